"""Leases: several processes, on several machines with one shared directory, never work on the same cell.

A cell's leases are the files `lease.0`, `lease.1`, … of its directory, and the highest number holds. Whoever
wants the cell creates the next number, which the file system grants to one of them only (`O_CREAT | O_EXCL`, also on
NFS); but only if the holder's lease is stale, that is, was not touched for a while. Numbers never fall while the
cell is unfinished, so a slow process finds its number taken. (Renaming a stale lease has no such memory: a slow
process would rename the new lease of a quick one.)

Times are those of the file server: the age of a lease is the difference to a file just touched there, whatever the
clocks of the machines say. Only a process that may not write there, and so can claim nothing, uses the machine's clock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import time
from pathlib import Path

from utils.errors import UserError
from utils.resume.files import one_line_errors

STALE_SECONDS = 180.0  # above the 60 s for which NFS may show an old time
GIVE_UP = 2 / 3  # of that time without a beat: the rest is for the runs to stop in
NUMBER = re.compile(r"lease\.(\d+)")
READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


class Lease:
    """The right to work on a cell, as long as `beat` is called well within `STALE_SECONDS` and returns True."""

    def __init__(self, path: Path, owner: str):
        self.path, self.owner = path, owner
        self._renewed = time.monotonic()

    def beat(self, stale_seconds: float = STALE_SECONDS) -> bool:
        """Renew; False if the lease was lost: it was stale, and another process has the cell now.

        What the file server refuses for a moment is tried again at the next beat, while nobody can take the cell.
        """
        now = time.monotonic()
        try:
            os.utime(self.path)
            ours = _newest(self.path.parent) == self.path
        except FileNotFoundError:
            return False
        except OSError as error:
            if now - self._renewed < GIVE_UP * stale_seconds:
                return True
            reason = f"cannot renew the claim {self.path}: {error.strerror}"
            raise UserError(f"{reason}; repeat the command when that is fixed") from error
        self._renewed = now
        return ours

    def release(self) -> None:
        """Let anyone have the cell at once: a lease not touched since 1970 is stale. The number stays taken."""
        with contextlib.suppress(OSError):  # it is gone, or becomes stale by itself
            os.utime(self.path, (0, 0))


def claim(directory: Path, stale_seconds: float = STALE_SECONDS, flag: str | None = None) -> Lease | None:
    """The lease of the cell that `directory` belongs to, or None if another process has it."""
    with one_line_errors(directory, flag):
        directory.mkdir(parents=True, exist_ok=True)
        newest = _newest(directory)
        if newest is not None and not _stale(newest, stale_seconds):
            return None
        return create(directory / f"lease.{0 if newest is None else _number(newest) + 1}")


def create(path: Path) -> Lease | None:
    owner = f"{os.getpid()} {_machine()} {os.urandom(8).hex()}"
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except (FileExistsError, FileNotFoundError):  # another process was quicker, or has finished already
        return None
    try:
        os.write(descriptor, owner.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    # A network file system may have answered for a file that another client made: what is there decides.
    return Lease(path, owner) if _read(path) == owner and _newest(path.parent) == path else None


def held(directory: Path, stale_seconds: float = STALE_SECONDS) -> bool:
    """Whether a process is working on the cell."""
    newest = _newest(directory)
    return newest is not None and not _stale(newest, stale_seconds)


def _stale(lease: Path, stale_seconds: float) -> bool:
    return age(lease) >= stale_seconds or _holder_has_died(lease)


def _holder_has_died(lease: Path) -> bool:
    """Known at once if it ran on this machine: whoever repeats a command that was killed need not wait."""
    pid, _, rest = _read(lease).partition(" ")
    if not pid.isdigit() or rest.rpartition(" ")[0] != _machine():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it lives, and is another user's
        pass
    return False


def _machine() -> str:
    """Where a process number means the same process: containers of one host may share its name, not its numbers."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        namespace = ""
    return f"{socket.gethostname()} {namespace}"


def remove_leases(directory: Path) -> None:
    """For a finished cell: whoever claims it from now on sees first that it is finished."""
    for pattern in ("lease.*", ".clock.*"):  # the latter of a process that was killed while it looked
        for path in directory.glob(pattern):
            path.unlink(missing_ok=True)


def age(lease: Path) -> float:
    """Seconds since the last beat, by the file server's clock; infinite if the lease has gone."""
    try:
        # Opened, because that makes NFS ask the server, where `stat` may answer from memory.
        with open(lease, "rb") as file:
            touched = os.fstat(file.fileno()).st_mtime
        return _now(lease.parent) - touched
    except FileNotFoundError:
        return float("inf")
    except OSError as error:
        raise UserError(f"cannot read the claims in {lease.parent}: {error.strerror}") from error


def _now(directory: Path) -> float:
    probe = directory / f".clock.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        with open(probe, "xb") as file:
            now = os.fstat(file.fileno()).st_mtime
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
        return time.time()
    probe.unlink(missing_ok=True)
    return now


def _newest(directory: Path) -> Path | None:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return None
    numbers = [int(match[1]) for match in map(NUMBER.fullmatch, names) if match]
    return directory / f"lease.{max(numbers)}" if numbers else None


def _number(lease: Path) -> int:
    return int(lease.suffix[1:])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
