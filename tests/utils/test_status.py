"""The progress bar: what it shows, how rarely it asks for the loss, and what a step costs."""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Callable
from time import thread_time

import pytest

from utils import status
from utils.status import Progress, ProgressBar, progress_bar, say


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Not a fixture: pytest puts its own stderr in place again between a test's setup and its body."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")
    return screen


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds_per_step: float) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += seconds_per_step
        return now[0]

    monkeypatch.setattr(status, "perf_counter", clock)


def test_bar_shows_task_epoch_steps_and_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    pass_time(monkeypatch, 0.21)  # every step is late enough to be drawn
    with Progress(1, 10, 50, total_steps=200, loss=lambda: 1.23456, done_steps=100) as bar:
        bar.begin_epoch(25)
        for _ in range(20):
            bar.step()
    last = last_drawn(terminal)
    assert last.startswith("Task 2/10, epoch 26/50:  60%")
    assert "120/200" in last and "loss 1.235" in last
    assert re.search(r"\[\d\d:\d\d<\d\d:\d\d, ", last)  # elapsed < remaining: of the task, if no more is known


def test_the_time_left_is_that_of_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of 200 steps, 100 of them made in another session, and 1000 steps in later tasks."""
    terminal = open_terminal(monkeypatch)
    now = [0.0]
    monkeypatch.setattr(status, "perf_counter", lambda: now[0])
    with Progress(1, 10, 50, 200, lambda: 1.5, done_steps=100, steps_after=1000) as bar:
        bar.begin_epoch(25)
        for _ in range(20):
            now[0] += 7.0
            bar.step()
    last = last_drawn(terminal)
    assert last.startswith("Task 2/10, epoch 26/50:  60%") and "120/200" in last
    assert last.endswith("loss 1.5, whole run: 2 h 6 min left]")  # (80 + 1000) · 7 s
    assert "<" not in last


def last_drawn(terminal: Terminal) -> str:
    return [text for text in terminal.getvalue().split("\r") if "loss" in text][-1].rstrip()


def test_loss_is_asked_for_only_when_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    pass_time(monkeypatch, 0.001)
    asked = []
    with Progress(0, 2, None, None, loss=lambda: asked.append(1) or 0.5) as bar:
        bar.begin_epoch(0)
        for _ in range(1000):  # a second
            bar.step()
    assert 4 <= len(asked) <= 5
    assert "Task 1/2, epoch 1: " in terminal.getvalue()


def test_nothing_is_drawn_without_a_terminal_or_when_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)

    def never() -> float:
        raise AssertionError

    pass_time(monkeypatch, 10.0)
    with Progress(0, 1, 1, 10, never, enabled=False) as bar:
        bar.begin_epoch(0)
        bar.step()
    assert terminal.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Progress(0, 1, 1, 10, never) as bar:
        bar.begin_epoch(0)
        bar.step()
    assert sys.stderr.getvalue() == ""


def test_step_costs_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """About four times the call of a function that does nothing; writing a line would be hundreds of times it."""
    open_terminal(monkeypatch)
    with Progress(0, 1, 1, 10**9, lambda: 0.0) as bar:
        step, nothing = (min(_seconds(call) for _ in range(5)) for call in (bar.step, lambda: None))
    assert step < 40 * nothing


def _seconds(call: Callable[[], None]) -> float:
    """The processor's time for many calls, whatever else it is busy with."""
    start = thread_time()
    for _ in range(20_000):
        call()
    return thread_time() - start


def test_bar_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    open_terminal(monkeypatch)
    before = threading.active_count()
    with Progress(0, 1, 1, 10, lambda: 0.0):
        assert threading.active_count() == before


def test_say_reaches_stdout_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    say("Accuracy for 1 task(s)")
    assert capsys.readouterr().out == "Accuracy for 1 task(s)\n"


def test_mammoth_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    pass_time(monkeypatch, 0.3)
    for i in range(3):
        progress_bar(i, 3, 0, "C", loss=2.0)
    assert "Task C, epoch 1" in terminal.getvalue() and "loss 2" in terminal.getvalue()
    assert terminal.getvalue().endswith(" \r")  # wiped off after the last step
    silent = Terminal()
    monkeypatch.setattr(sys, "stderr", silent)
    ProgressBar(verbose=False).prog(0, None, 4, 1, 0.5)
    assert silent.getvalue() == ""
    bar = ProgressBar(joint=True)
    bar.prog(0, None, 4, 1, 0.5)
    assert "Task joint" in silent.getvalue()
    bar.close()
