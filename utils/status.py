"""The progress bar, console lines that do not tear it, and times as people read them."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import TextIO

from tqdm import tqdm

REDRAW_SECONDS = 0.2
RUN_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{rate_fmt}{postfix}]"


class _Bar(tqdm):
    monitor_interval = 0  # tqdm's watchdog thread serves bars that guess when to redraw; this one knows


class Progress:
    """One task's bar on stderr: task, epoch, steps, loss, and the time left for the whole run.

    `step()` only counts; five times per second at most it redraws, and only then asks for the loss, which on
    a GPU waits for the step to finish. Without a terminal, or with `enabled=False`, nothing is drawn.
    """

    def __init__(
        self,
        task: int | str,
        n_tasks: int | None,
        n_epochs: int | None,
        total_steps: int | None,
        loss: Callable[[], float],
        done_steps: int = 0,
        enabled: bool = True,
        steps_after: int | None = None,
    ):
        """Tasks count from 0; totals are None if unknown; a task that is resumed has some steps done.

        `steps_after` are those of later tasks. If they are unknown, the time left is that of the task.
        """
        self._title = f"Task {_of(task, n_tasks)}"
        self._n_epochs = n_epochs
        self._loss = loss
        self._new_steps = 0
        self._done_before = done_steps
        self._steps_after = steps_after
        self._begin = perf_counter()
        self._redraw_at = math.inf
        self._bar: _Bar | None = None
        if enabled and sys.stderr.isatty():
            self._bar = _Bar(
                desc=self._title,
                total=total_steps,
                initial=done_steps,
                unit="step",
                mininterval=0,
                miniters=0,
                leave=False,
                dynamic_ncols=True,
                bar_format=None if steps_after is None or total_steps is None else RUN_FORMAT,
            )
            self._redraw_at = perf_counter() + REDRAW_SECONDS

    def begin_epoch(self, epoch: int | str) -> None:
        """Epochs count from 0."""
        if self._bar is not None:
            text = f"{self._title}, epoch {_of(epoch, self._n_epochs)}"
            self._bar.set_description_str(text, refresh=False)

    def step(self) -> None:
        self._new_steps += 1
        if perf_counter() >= self._redraw_at:
            self._redraw()

    def _redraw(self) -> None:
        assert self._bar is not None
        loss = self._loss()  # which waits for the device, so that the time is that of the steps
        made = self._bar.n + self._new_steps - self._done_before
        text = f"loss {loss:.4g}"
        if self._steps_after is not None and self._bar.total is not None:
            left = self._bar.total - self._done_before - made + self._steps_after
            text += f", whole run: {duration(left * (perf_counter() - self._begin) / made)} left"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(self._new_steps)
        self._new_steps = 0
        self._redraw_at = perf_counter() + REDRAW_SECONDS

    def close(self) -> None:
        """Takes the bar off the screen: what remains of a task is the line about its accuracy."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
            self._redraw_at = math.inf

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _of(index: int | str, total: int | None) -> str:
    number = index + 1 if isinstance(index, int) else index
    return str(number) if total is None else f"{number}/{total}"


def say(text: str) -> None:
    """Print to stdout above a bar that may be there; at once, also into a pipe or a file.

    For what a run reports while it trains: a lost console (a full disk, a closed terminal) must not end the run.
    """
    try:
        with tqdm.external_write_mode(sys.stdout):
            print(text, flush=True)
    except OSError as error:
        discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):  # a reader that has left (`… | head`) need not be told
            logging.warning("stdout can't be written (%s); the run continues without it", error.strerror)


def discard(stream: TextIO) -> None:
    """From now on, discard what is written to a stream, without an error even at exit."""
    with contextlib.suppress(OSError):  # in a notebook it has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class ProgressBar:
    """Mammoth's interface, for models that train something of their own inside a hook."""

    def __init__(self, joint: bool = False, verbose: bool = True):
        self._joint = joint
        self._verbose = verbose
        self._progress: Progress | None = None
        self._loss: float = math.nan

    def prog(self, i: int, max_iter: int | None, epoch: int | str, task_number: int | str, loss: float) -> None:
        """Step `i` (from 0) of `max_iter`: a bar begins at step 0 and goes away after the last."""
        if i == 0 or self._progress is None:
            self.close()
            task = "joint" if self._joint else task_number
            self._progress = Progress(task, None, None, max_iter, lambda: float(self._loss), i, self._verbose)
            self._progress.begin_epoch(epoch)
        self._loss = loss
        self._progress.step()
        if max_iter is not None and i + 1 >= max_iter:
            self.close()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None


_shared_bar = ProgressBar()


def progress_bar(i: int, max_iter: int | None, epoch: int | str, task_number: int | str, loss: float) -> None:
    """Mammoth's function: one bar for whoever calls it."""
    _shared_bar.prog(i, max_iter, epoch, task_number, loss)


def duration(seconds: float) -> str:
    """In two units: `3 d 4 h`, `2 h 5 min`, `4 min 10 s`, `12 s`."""
    left = round(seconds)
    parts: list[str] = []
    units = [("d", 86400), ("h", 3600), ("min", 60), ("s", 1)]
    first = next((i for i, (_, size) in enumerate(units) if left >= size), len(units) - 1)
    for name, size in units[first : first + 2]:
        amount, left = divmod(left, size)
        if amount or not parts:
            parts.append(f"{amount} {name}")
    return " ".join(parts)
