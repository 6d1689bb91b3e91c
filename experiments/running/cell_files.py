"""What is kept about a cell beside its run directory: the log of its process, its leases, why it failed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from utils.resume.files import atomic_write_text

REASON_LENGTH = 300


def cells_root(path: Path) -> Path:
    """Beside the run directories, `<dataset>/<model>/<seed and hash>`, of which `path` is one."""
    return path.parents[2] / ".cells"


def cell_directory(path: Path) -> Path:
    """The folder for log, leases and failure of the run in `path`: `path` itself belongs to the run."""
    return cells_root(path).joinpath(*path.parts[-3:])


def log_file(path: Path) -> Path:
    return cell_directory(path) / "log.txt"


def _failure_file(path: Path) -> Path:
    return cell_directory(path) / "failure.json"


def write_failure(path: Path, reason: str, flag: str | None = None) -> None:
    atomic_write_text(_failure_file(path), json.dumps({"reason": reason}) + "\n", flag=flag)


def read_failure(path: Path) -> str | None:
    """Why the last attempt at a run failed; None if there was none, or it did not fail."""
    try:
        return str(json.loads(_failure_file(path).read_text(encoding="utf-8"))["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget_failure(path: Path) -> None:
    _failure_file(path).unlink(missing_ok=True)


def failure_time(path: Path) -> int | None:
    """When a run failed last, by the file server's clock; only good for telling failures apart."""
    try:
        return _failure_file(path).stat().st_mtime_ns
    except OSError:
        return None


def reason_in(log: Path, start: int, exit_code: int) -> str:
    """The last line that an attempt wrote, which is its error, or the signal that killed it."""
    if exit_code < 0:
        # Real-time signals have a number only.
        name = signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else f"signal {-exit_code}"
        return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    try:
        with open(log, "rb") as file:
            file.seek(start)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        lines = []
    spoken = [line.strip() for line in lines if line.strip() and not line.startswith("$ ")]
    last = spoken[-1].removeprefix("error: ") if spoken else "no output"
    return f"{last[:REASON_LENGTH]}" if exit_code else f"ended without a summary: {last[:REASON_LENGTH]}"
