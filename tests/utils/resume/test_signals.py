"""Signals set a flag, a further Ctrl-C ends the process at once, and the handlers before come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers import ROOT

from utils.cli.console import one_line_failures
from utils.resume.signals import NAMES, StopSignals, blocked_signals

POSIX = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
DEADLINE = 120  # seconds, on however busy a machine; the loop takes five times as long unless it is ended
LOOP = """
import sys, time
from utils.resume.signals import StopSignals
with StopSignals() as stop:
    print('ready', flush=True)
    end = time.monotonic() + 600
    while time.monotonic() < end and (stop.received is None or sys.argv[1] == 'stubborn'):
        time.sleep(0.01)
sys.exit(stop.exit_code)
"""


# A library that swallows what is raised while it is imported, as torch and numpy do in places.
SWALLOWS = """
import time
print('ready', flush=True)
for _ in range(600):
    try:
        time.sleep(1)
    except BaseException:
        pass
"""
COMMAND = """
from utils.cli.console import one_line_failures
with one_line_failures():
    import swallows
"""


def start(mode: str, code: str = LOOP) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", code, mode], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@POSIX
@pytest.mark.parametrize("name", NAMES)
def test_first_signal_ends_the_loop_with_128_plus_its_number(name: str) -> None:
    process = start("polite")
    process.send_signal(getattr(signal, name))
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 128 + getattr(signal, name)
    assert errors == f"{name} received: saving at the next step boundary; a further Ctrl-C stops at once\n"


@POSIX
def test_ctrl_c_is_not_swallowed_by_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = start("", COMMAND)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, errors) == (130, "stopped before it began\n")


def test_a_command_may_run_in_a_thread_which_no_signal_reaches() -> None:
    """As `main.main([...])` in a notebook's or a server's thread; Python sets handlers in the main one only."""
    ended: list[object] = []

    def command() -> None:
        with one_line_failures():
            ended.append("well")

    thread = threading.Thread(target=command)
    thread.start()
    thread.join(DEADLINE)
    assert ended == ["well"]


@POSIX
def test_a_scheduler_may_repeat_itself_and_ctrl_c_ends_the_process_at_once() -> None:
    process = start("stubborn")
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGUSR2):
        process.send_signal(number)
        time.sleep(0.3)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert len(errors.splitlines()) == 2 and "SIGINT" in errors.splitlines()[1]


@POSIX
def test_handlers_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: signal.getsignal(getattr(signal, name)) for name in NAMES}
    with pytest.raises(ZeroDivisionError), StopSignals() as stop:
        assert stop.received is None and stop.exit_code == 0
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.received == signal.SIGUSR1 and stop.exit_code == 128 + signal.SIGUSR1
        raise ZeroDivisionError
    assert {name: signal.getsignal(getattr(signal, name)) for name in NAMES} == before


@POSIX
def test_a_closed_terminal_is_ignored_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.received is None and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        with blocked_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@POSIX
def test_blocked_signals_wait_whichever_thread_they_hit_and_spare_processes_started_meanwhile() -> None:
    over = threading.Event()
    threading.Thread(target=over.wait, daemon=True).start()
    code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM); print('alive')"
    with StopSignals() as stop:
        with blocked_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            assert stop.received is None and child.stdout == "alive\n"
        assert stop.received == signal.SIGTERM
    over.set()


def test_in_another_thread_nothing_is_caught() -> None:
    before = {name: signal.getsignal(getattr(signal, name)) for name in NAMES if hasattr(signal, name)}
    seen: list[dict] = []

    def work() -> None:
        with StopSignals():
            seen.append({name: signal.getsignal(getattr(signal, name)) for name in before})

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_signals_that_the_platform_lacks_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utils.resume.signals.NAMES", ("SIGINT", "SIGNOTHERE"))
    before = signal.getsignal(signal.SIGINT)
    with StopSignals():
        assert signal.getsignal(signal.SIGINT) != before
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == before
