"""Atomic writes, one-line errors, leftovers and the lock of a run directory."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import ROOT

import utils.resume.files
from utils.errors import UserError
from utils.resume.files import RunLock, atomic_write, atomic_write_text, is_locked, remove_leftovers


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    atomic_write_text(path, "one")
    atomic_write_text(path, "zwei ∂")
    assert path.read_text(encoding="utf-8") == "zwei ∂"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3)])
def test_error_while_writing_leaves_the_old_file_alone(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    atomic_write_text(path, "old")

    def write(file) -> None:
        file.write(b"half")
        raise error

    with pytest.raises(type(error)):
        atomic_write(path, write)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_order_is_write_fsync_replace_fsync_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def record(name: str, function):
        def recorded(*arguments):
            calls.append(name)
            return function(*arguments)

        return recorded

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, record(name, getattr(os, name)))
    atomic_write(
        tmp_path / "file",
        lambda file: calls.append("write") or file.write(b"x"),
        before_replace=lambda: calls.append("before"),
    )
    assert calls == ["write", "fsync", "before", "replace", "fsync"]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space there or choose another --base_path"),
        (errno.EDQUOT, "free some space there or choose another --base_path"),
        (errno.EROFS, "; choose another --base_path"),
        (errno.EACCES, "; choose another --base_path"),
    ],
)
def test_refusals_of_the_system_become_one_line(tmp_path: Path, number: int, remedy: str) -> None:
    path = tmp_path / "file"
    atomic_write_text(path, "old")

    def write(file) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(UserError) as caught:
        atomic_write(path, write)
    message = str(caught.value)
    assert str(path) in message and os.strerror(number) in message and remedy in message and "\n" not in message
    assert isinstance(caught.value.__cause__, OSError)
    assert path.read_text() == "old"


def test_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"cannot write .*file/sub/y: .*; choose another --checkpoint_path$"):
        atomic_write_text(tmp_path / "file" / "sub" / "y", "x", flag="--checkpoint_path")


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = {"checkpoint.pt", ".hidden", "x.partial"}
    for name in kept | {".checkpoint.pt.77-ab.partial", ".config.yaml.1-cd.partial"}:
        (tmp_path / name).write_text("x")
    remove_leftovers(tmp_path)
    assert {entry.name for entry in tmp_path.iterdir()} == kept


@pytest.mark.skipif(utils.resume.files.fcntl is None, reason="no advisory locks")
def test_lock_names_directory_and_holder_and_dies_with_the_process(tmp_path: Path) -> None:
    path = tmp_path / "run" / "run.lock"
    take = f"from utils.resume.files import RunLock; RunLock({str(path)!r}); print('ok', flush=True)"
    script = f"{take}; import time; time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"ok\n"
        with pytest.raises(UserError) as caught:
            RunLock(path)
        message = str(caught.value)
        assert str(path.parent) in message and f"process {holder.pid} " in message and "\n" not in message
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()  # type: ignore[union-attr]
    deadline = time.monotonic() + 60
    while True:
        try:
            lock = RunLock(path)
            break
        except UserError:  # the kernel may take a moment to clean up
            assert time.monotonic() < deadline
    assert f"process {os.getpid()} " in path.read_text()
    lock.release()
    with RunLock(path):
        pass
    RunLock(path).release()


def test_asking_whether_a_file_is_locked_leaves_it_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    assert not is_locked(path) and not path.exists()
    lock = RunLock(path)
    content = path.read_text()
    assert is_locked(path)
    lock.release()
    assert not is_locked(path) and path.read_text() == content


def test_without_advisory_locks_nothing_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils.resume.files, "fcntl", None)
    locks = [RunLock(tmp_path / "run.lock") for _ in range(2)]
    for lock in locks:
        lock.release()


def test_importing_needs_no_torch() -> None:
    script = "import sys, utils.resume.files, utils.resume.signals; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0
