"""The progress of a grid, from run directories and leases, and from SLURM's queue if anything was submitted."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import datasets
from experiments.cells import Cell, Expansion, conditions, distinct_runs
from experiments.report.tables import table
from experiments.results.records import inspect_run
from experiments.running.cell_files import cell_directory, log_file, read_failure
from experiments.running.estimates import Estimates
from experiments.running.leases import held
from experiments.running.slurm.queue import Job, jobs_of, last_words
from utils.errors import UserError
from utils.status import duration

DONE, RUNNING, QUEUED, FAILED, WAITING = STATES = ("done", "running", "queued", "failed", "waiting")
UNFINISHED = (RUNNING, QUEUED, WAITING)
LOG = "metrics.jsonl"
TAIL_BYTES = 1 << 16  # more than the last line of `metrics.jsonl`


@dataclass(frozen=True)
class CellStatus:
    """`progress` is the part of its tasks that a run has finished, `reason` why a failed one failed.

    `job` is the SLURM job of a run that is queued, or that failed without an error of its own.
    """

    cell: Cell
    state: str
    progress: float = 0.0
    reason: str = ""
    job: Job | None = None

    @property
    def log(self) -> Path:
        return self.job.log if self.job else log_file(self.cell.path)


def status_of(cell: Cell) -> CellStatus:
    results, damaged = inspect_run(cell.path)
    if results is not None:
        return CellStatus(cell, DONE, 1.0)
    if damaged:
        return CellStatus(cell, FAILED, 1.0, damaged)
    progress = _progress(cell)
    if held(cell_directory(cell.path)):
        return CellStatus(cell, RUNNING, progress)
    failure = read_failure(cell.path)
    return CellStatus(cell, WAITING, progress) if failure is None else CellStatus(cell, FAILED, progress, failure)


def statuses(expansions: Sequence[Expansion]) -> tuple[dict[Path, CellStatus], str]:
    """By run directory; and a message if SLURM has some of them but cannot be asked."""
    cells = [cell for expansion in expansions for cell in expansion.cells]
    found = {cell.path: status_of(cell) for cell in distinct_runs(cells)}
    waiting = [s.cell for s in found.values() if s.state == WAITING]
    try:
        jobs = jobs_of(waiting)
    except UserError as error:
        return found, f"Which of the waiting runs are queued is unknown: {error}"
    for path, job in jobs.items():
        state, reason = QUEUED, ""
        if job.state is None:
            state, reason = FAILED, f"its SLURM job {job.name} ended: {last_words(job.log)}"
        found[path] = replace(found[path], state=state, reason=reason, job=job)
    return found, ""


def _progress(cell: Cell) -> float:
    done = _current_task(cell.path / LOG) - 1 - (cell.args.start_from or 0)
    return max(0, done) / _n_tasks(cell)


def _n_tasks(cell: Cell) -> int:
    if cell.args.joint:
        return 1
    return (cell.args.stop_after or datasets.get_dataset_class(cell.args).N_TASKS) - (cell.args.start_from or 0)


def _current_task(metrics: Path) -> int:
    """The task that a run is in, counted from 1; 0 if it has not begun."""
    try:
        with open(metrics, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().splitlines()
        return int(json.loads(lines[-1])["task"])
    except (OSError, ValueError, LookupError, TypeError):
        return 0


def status(expansions: Sequence[Expansion]) -> str:
    """A line per table, the runs that are running and those that failed, and when all will be done."""
    by_path, note = statuses(expansions)
    found = list(by_path.values())
    states = [state for state in STATES if state != QUEUED or any(s.state == QUEUED for s in found)]
    rows = []
    for expansion in expansions:
        counts = Counter(by_path[path].state for path in {cell.path for cell in expansion.cells})
        rows.append([expansion.grid.name, *(str(counts[state]) for state in states)])
    parts = [*conditions(expansions), table([["", *states], *rows])]
    parts += [f"running: {s.cell.name} ({s.progress:.0%})" for s in found if s.state == RUNNING]
    jobs = Counter((s.job.array, s.job.condition) for s in found if s.state == QUEUED and s.job)
    parts += [f"queued: {count} in SLURM job array {array} ({condition})" for (array, condition), count in jobs.items()]
    parts += [f"failed: {s.cell.name}: {s.reason}\n        {s.log}" for s in found if s.state == FAILED]
    return "\n".join([*parts, *filter(None, [note]), _remaining(found)])


def _remaining(found: Sequence[CellStatus]) -> str:
    """The time until all is done with the present number of processes; failed runs are not included."""
    running = [s for s in found if s.state == RUNNING]
    left = [s for s in found if s.state in UNFINISHED]
    if not left:
        return "Nothing is left to run." if all(s.state == DONE for s in found) else "Only failed runs are left."
    estimates = Estimates([s.cell for s in found if s.state == DONE])
    estimates.recall_probes([s.cell for s in left])
    known = [(s, estimate) for s in left if (estimate := estimates.of(s.cell)) is not None]
    work = sum((1 - s.progress) * estimate.seconds for s, estimate in known)
    n = len(running)
    parts = []
    if known:
        parts.append(f"about {duration(work / n)} with {n} at a time" if n else f"{duration(work)} of work")
    if len(known) < len(left):
        parts.append(f"{len(left) - len(known)} runs of unknown length (`plan` measures them)")
    return f"{'Left' if n else 'Nothing is running; left'}: {', and '.join(parts)}."
