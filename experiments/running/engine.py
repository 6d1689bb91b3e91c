"""Run the cells of a grid on this machine, a few at a time; others may work on the same directory.

A cell is done if and only if its run directory holds a summary and no damaged file. So the same command continues
whatever happened: it claims one unfinished cell after another (`leases.py`), and each run resumes from its checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from experiments.cells import Cell, distinct_runs
from experiments.results.records import inspect_run
from experiments.running.cell_files import (
    cell_directory,
    failure_time,
    forget_failure,
    log_file,
    read_failure,
    reason_in,
    write_failure,
)
from experiments.running.leases import STALE_SECONDS, Lease, claim, held, remove_leases
from experiments.running.processes import run_cell, start_fork_server, threads_per_process
from utils.resume.files import is_locked, results_flag
from utils.resume.signals import StopSignals
from utils.status import say

ATTEMPTS = 3  # at a run whose process is killed from outside, by a system that is out of memory, say
LOOK_SECONDS = 0.5  # between looks at signals
OTHERS_SECONDS = 5.0  # between looks at cells that other processes have
STOPPED_BY_SIGNAL = 128


@dataclass
class Running:
    """A cell that a process of this engine works on."""

    cell: Cell
    lease: Lease
    device: str
    process: ForkServerProcess
    log_start: int  # where this attempt begins in the log
    lost: bool = False  # the lease, to another process


@dataclass
class Outcome:
    """What `Engine.run` leaves; `stopped` is the exit code if a signal ended it, else 0."""

    done: list[Cell] = field(default_factory=list)
    failed: dict[Path, tuple[Cell, str]] = field(default_factory=dict)
    stopped: int = 0

    @property
    def exit_code(self) -> int:
        return self.stopped or int(bool(self.failed))


class Engine:
    """`jobs` processes on each of the devices work through the cells, seed by seed.

    `patience` is how many seconds to wait, with nothing else to do, for cells that other processes have.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        devices: Sequence[str],
        jobs: int = 1,
        stale_seconds: float = STALE_SECONDS,
        patience: float = math.inf,
    ):
        runs = distinct_runs(cells)
        self.total = len(runs)
        # Every row of a table gets its first seed before any gets its second.
        self.waiting = sorted(runs, key=lambda cell: cell.seed)
        self.free = [device for _ in range(jobs) for device in devices]
        self.running: list[Running] = []
        self.threads = threads_per_process(len(self.free))
        self.stale_seconds = stale_seconds
        self.patience = patience
        self.outcome = Outcome()
        self._attempts: Counter[Path] = Counter()
        self._old_failures = {cell.path: failure_time(cell.path) for cell in runs}
        self._fill_at = self._beat_at = self._idle_since = 0.0
        self._told_to_wait = False

    def run(self) -> Outcome:
        """Until every cell is done, here or elsewhere, or has failed, or a signal asks to stop, or patience ends."""
        self.waiting = [cell for cell in self.waiting if not self._finished(cell)]
        say(f"{len(self.outcome.done)} of {self.total} runs are done")
        if not self.waiting:
            return self.outcome
        with StopSignals() as signals:
            try:
                start_fork_server(self.threads, self.waiting)
                self._idle_since = time.monotonic()
                while self.running or (self.waiting and not self.outcome.stopped and not self._out_of_patience()):
                    self._stop_if_asked(signals)
                    self._fill()
                    self._beat()
                    self._collect()
            finally:  # an error here, such as a full disk: let no process run without its lease
                self._signal_all(signal.SIGTERM)
        return self.outcome

    def _out_of_patience(self) -> bool:
        if time.monotonic() - self._idle_since < self.patience:
            return False
        say(f"{len(self.waiting)} runs are still held by other processes, and left to them")
        return True

    def _stop_if_asked(self, signals: StopSignals) -> None:
        if signals.received is not None and not self.outcome.stopped:
            self.outcome.stopped = signals.exit_code
            self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: int) -> None:
        for running in self.running:
            assert running.process.pid is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.process.pid, number)

    # -- claiming and starting --------------------------------------------------------------------------------------

    def _fill(self) -> None:
        if self.outcome.stopped or not self.free or time.monotonic() < self._fill_at:
            return
        left = []
        for cell in self.waiting:
            if not self.free:
                left.append(cell)
            elif self._finished(cell) or self._failed_elsewhere(cell):
                continue
            elif (lease := self._claim(cell)) is None:
                left.append(cell)
            elif is_locked(cell.path / "run.lock"):  # by `main.py`, or by an orphan that is just saving
                lease.release()
                left.append(cell)
            elif not self._finished(cell, lease):  # by the process that had it before
                self.start(cell, lease, self.free.pop(0))
        if left and not self.running and not self._told_to_wait:
            say(f"waiting for runs that other processes hold: {len(left)}")
            self._told_to_wait = True
        self.waiting = left
        self._fill_at = time.monotonic() + OTHERS_SECONDS

    def _claim(self, cell: Cell) -> Lease | None:
        return claim(cell_directory(cell.path), self.stale_seconds, results_flag(cell.args.results_path))

    def _finished(self, cell: Cell, lease: Lease | None = None) -> bool:
        """Done, or finished but damaged, which another attempt would not change; then our lease is given back."""
        results, reason = inspect_run(cell.path)
        if results is not None:
            self.outcome.done.append(cell)
        elif reason:
            self.outcome.failed[cell.path] = cell, reason
        else:
            return False
        if lease is not None:
            lease.release()
        # A lease that is held belongs to a run that has its summary and is still sending the last of it to wandb.
        if not held(cell_directory(cell.path), self.stale_seconds):
            remove_leases(cell_directory(cell.path))
        return True

    def _failed_elsewhere(self, cell: Cell) -> bool:
        """Since this command began; an earlier failure is tried again."""
        if failure_time(cell.path) in (None, self._old_failures[cell.path]) or self._attempts[cell.path]:
            return False
        self.outcome.failed[cell.path] = cell, read_failure(cell.path) or "?"
        return True

    def start(self, cell: Cell, lease: Lease, device: str) -> None:
        forget_failure(cell.path)
        log = log_file(cell.path)
        log_start = log.stat().st_size if log.exists() else 0
        argv = [*cell.argv, f"--device={device}"]
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=run_cell, args=(argv, log, self.threads), name=cell.name)
        process.start()
        self.running.append(Running(cell, lease, device, process, log_start))
        self._attempts[cell.path] += 1

    # -- keeping and ending -----------------------------------------------------------------------------------------

    def _beat(self) -> None:
        if time.monotonic() < self._beat_at:
            return
        self._beat_at = time.monotonic() + self.stale_seconds / 6
        for running in self.running:
            if not running.lease.beat(self.stale_seconds):
                running.lost = True
                running.process.kill()  # not `terminate`: the new holder may be writing already

    def _collect(self) -> None:
        """Wait a moment for processes to end, and note how they did."""
        if not self.running:
            time.sleep(LOOK_SECONDS)
        ended = multiprocessing.connection.wait([running.process.sentinel for running in self.running], LOOK_SECONDS)
        for running in [running for running in self.running if running.process.sentinel in ended]:
            self._end(running)
            self.running.remove(running)
            self.free.append(running.device)
            self._fill_at, self._idle_since = 0.0, time.monotonic()

    def _end(self, running: Running) -> None:
        cell = running.cell
        running.process.join()
        code = running.process.exitcode or 0
        running.process.close()
        if self._finished(cell, running.lease):
            _, reason = self.outcome.failed.get(cell.path, (cell, ""))
            self._tell(cell, f"failed: {reason}" if reason else "done")
            return
        if not running.lost and not self.outcome.stopped and not self._killed(cell, code):
            reason = reason_in(log_file(cell.path), running.log_start, code)
            write_failure(cell.path, reason, results_flag(cell.args.results_path))
            self.outcome.failed[cell.path] = cell, reason
            self._tell(cell, f"failed: {reason}")
        else:
            self.waiting.insert(0, cell)
        running.lease.release()

    def _killed(self, cell: Cell, code: int) -> bool:
        """From outside, and not too often: the run resumes from its checkpoint."""
        return (code < 0 or code > STOPPED_BY_SIGNAL) and self._attempts[cell.path] < ATTEMPTS

    def _tell(self, cell: Cell, what: str) -> None:
        say(f"[{len(self.outcome.done) + len(self.outcome.failed)}/{self.total}] {cell.name}: {what}")
