"""Files that are either the old ones or the new ones, never half of each, whenever the process is killed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from utils.errors import UserError

try:
    import fcntl
except ImportError:  # Windows has no advisory locks
    fcntl = None  # type: ignore[assignment]

LEFTOVER = ".partial"
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


def results_flag(results_path: str | None) -> str:
    """The option to change if results cannot be written: --results_path only if it was given."""
    return "--base_path" if results_path in (None, "results") else "--results_path"


@contextlib.contextmanager
def one_line_errors(path: Path, flag: str | None = None) -> Iterator[None]:
    """Say in one line what the operating system refused, and what to do about it.

    `flag` is the option to change; for what lies in a directory that this process has locked, it is the lock's. There
    nothing is touched once the lock has gone. An empty flag stands for a place that no option can change.
    """
    lock = _held.get(path.parent) or _held.get(path)
    if lock is not None:
        lock.check()
    try:
        yield
    except OSError as error:
        if lock is not None:
            lock.check()  # which explains more, if that is why
        flag = flag if flag is not None else lock.flag if lock is not None else "--base_path"
        remedies = ["free some space there"] if error.errno in NO_SPACE else []
        remedies += [f"choose another {flag}"] if flag else []
        reason = error.strerror or str(error)
        raise UserError(f"cannot write {path}: {reason}; {' or '.join(remedies) or 'make it writable'}") from error


def is_file_of(descriptor: int, path: Path) -> bool:
    """Whether what was opened is still what lies at the path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def file_digest(path: str | os.PathLike[str], algorithm: str = "sha256") -> str:
    """As `hashlib.file_digest`, which Python 3.10 lacks."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def require_writable(directory: Path, flag: str) -> None:
    """Make a directory if need be, and find out now whether files can be written there later."""
    with one_line_errors(directory, flag):
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()


def fsync_directory(directory: Path) -> None:
    """Make a rename durable: the name of a file is data of its directory."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:  # some network file systems cannot do it
            raise
    finally:
        os.close(descriptor)


def atomic_write(
    path: str | os.PathLike[str],
    write: Callable[[BinaryIO], object],
    *,
    before_replace: Callable[[], None] | None = None,
    flag: str | None = None,
) -> None:
    """Give `path` the content that `write` produces, or leave it as it was.

    `before_replace` runs when the new content is complete on the disk and not yet visible. `flag` is as in
    `one_line_errors`. Folders are made unless a run has begun: it made its own then, and one that has gone since must
    not come back empty.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}{LEFTOVER}")
    with one_line_errors(path, flag):
        if not _held:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            if before_replace is not None:
                before_replace()
            os.replace(temporary, path)
        except BaseException:  # KeyboardInterrupt too must not leave the temporary file behind
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        fsync_directory(path.parent)


def atomic_write_text(path: str | os.PathLike[str], text: str, *, flag: str | None = None) -> None:
    atomic_write(path, lambda file: file.write(text.encode()), flag=flag)


def remove_leftovers(directory: str | os.PathLike[str]) -> None:
    """Delete the temporary files of processes that were killed while writing.

    Only the holder of the directory's `RunLock` may call this: a leftover of the dead looks like a file that
    a living process is just writing.
    """
    for leftover in Path(directory).glob(f".*{LEFTOVER}"):
        with one_line_errors(leftover):
            leftover.unlink(missing_ok=True)


class RunLock:
    """One process per run directory: an exclusive advisory lock on a file in it, until the process ends.

    The operating system drops the lock with the process, however it dies; so a stale lock cannot exist, and
    the file, which only says who holds it, is never deleted. Without advisory locks (Windows, some network
    file systems) nothing is locked.
    """

    def __init__(self, path: str | os.PathLike[str], *, flag: str = "--base_path"):
        self.path, self.flag = Path(path), flag
        self._descriptor: int | None = None
        if fcntl is None:
            return
        with one_line_errors(self.path, flag):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A bare descriptor: garbage collection must not give the lock away.
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        self._take(descriptor)
        self._descriptor = descriptor
        _held[self.path.parent] = self
        with one_line_errors(self.path):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in NO_LOCKS:
                logging.warning("%s cannot be locked (%s): start this run only once", self.path, error.strerror)
                return
            holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise UserError(
                f"run directory {self.path.parent} is in use by {holder}; wait until it ends, or stop it"
            ) from error

    def holds(self) -> bool:
        """Whether the file that was locked is the one that lies there, so that another process would be refused."""
        return self._descriptor is None or is_file_of(self._descriptor, self.path)

    def check(self) -> None:
        if not self.holds():
            raise UserError(
                f"{self.path.parent} was removed or moved while a run worked in it, which ends here; put it back and "
                "repeat the command, or give its new place to --resume"
            )

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held.pop(self.path.parent, None)

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


_held: dict[Path, RunLock] = {}  # the locks of this process, by directory


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Whether a living process holds the `RunLock` on a file; the file stays as it is."""
    if fcntl is None or not Path(path).exists():
        return False
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in NO_LOCKS
    return False
