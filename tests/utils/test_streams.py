"""A console that is closed, full or gone: nothing is written to the wrong file, and no run is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a POSIX shell and /dev/full")


def shell(redirection: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A Python command whose standard streams the shell has treated so."""
    script = f'exec "$@" {redirection}'
    return subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_what_is_printed_to_a_closed_stream_reaches_no_file(closed: str, tmp_path: Path) -> None:
    code = """
import logging, os, sys
from utils.cli.console import one_line_failures, open_standard_streams
from utils.errors import UserError
from utils.status import say
open_standard_streams()
logging.basicConfig(stream=sys.stderr)
with one_line_failures(), open(sys.argv[1], "wb", buffering=0) as file:
    for _ in range(2):
        say("said")
        logging.warning("logged")
    os.write(2, b"by a handler of signals")
    file.write(b"%d" % (file.fileno() > 2))
    raise UserError("failed")
"""
    done = shell(closed, "-c", code, str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"1" and done.returncode == 1
    assert ("said" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))
    assert ("error: failed" in done.stderr) == ("2>&-" not in closed)


def test_what_a_run_tells_may_be_lost_with_one_warning() -> None:
    code = "from utils.status import say; say('one'); say('two')"
    done = shell("> /dev/full", "-c", code)
    warning = "WARNING:root:stdout can't be written (No space left on device); the run continues without it\n"
    assert (done.returncode, done.stderr) == (0, warning)


@pytest.mark.parametrize("command", [["main.py", "--list"], ["reproduce.py", "list"]])
def test_output_that_was_asked_for_is_not_lost_silently(command: list[str]) -> None:
    done = shell("> /dev/full", *command)
    line = "error: stdout can't be written: No space left on device; choose another place for the output\n"
    assert (done.returncode, done.stderr) == (1, line)


def test_the_exit_code_is_right_where_the_reason_cannot_be_told() -> None:
    for redirection in ("2> /dev/full", "2>&-"):
        assert shell(redirection, "main.py", "--model").returncode == 2


def test_a_deleted_working_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    script = 'cd "$1" && rmdir "$1" && exec "$2" "$3" --model sgd'
    arguments = ["sh", str(tmp_path / "gone"), sys.executable, str(ROOT / "main.py")]
    done = subprocess.run(["sh", "-c", script, *arguments], capture_output=True, text=True, check=False)
    line = "error: the working directory is not there any more (No such file or directory); `cd` to another one\n"
    assert (done.returncode, done.stderr) == (1, line)


def test_streams_that_are_open_stay_what_they_are() -> None:
    from utils.cli.console import open_standard_streams

    streams, descriptors = (sys.stdout, sys.stderr), len(os.listdir("/proc/self/fd"))
    open_standard_streams()
    assert (sys.stdout, sys.stderr) == streams and len(os.listdir("/proc/self/fd")) == descriptors
