"""How far a grid is: read from run directories and leases alone, so that no process needs to be asked."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import datasets
from experiments.cell_files import cell_directory, log_file, read_failure
from experiments.cells import Cell, Expansion, conditions, distinct_runs
from experiments.claims import STALE_SECONDS, held
from experiments.estimates import Estimates
from experiments.markdown import table
from experiments.plan import duration
from experiments.records import read_summary

DONE, RUNNING, FAILED, WAITING = STATES = ("done", "running", "failed", "waiting")
TAIL_BYTES = 1 << 16  # more than the last line of `metrics.jsonl`


@dataclass(frozen=True)
class CellStatus:
    """`progress` is the part of its tasks that a run has finished, `reason` why a failed one failed."""

    cell: Cell
    state: str
    progress: float = 0.0
    reason: str = ""


def status_of(cell: Cell, stale_seconds: float = STALE_SECONDS) -> CellStatus:
    if read_summary(cell.path) is not None:
        return CellStatus(cell, DONE, 1.0)
    progress = _progress(cell)
    if held(cell_directory(cell.path), stale_seconds):
        return CellStatus(cell, RUNNING, progress)
    failure = read_failure(cell.path)
    return CellStatus(cell, WAITING, progress) if failure is None else CellStatus(cell, FAILED, progress, failure)


def _progress(cell: Cell) -> float:
    n_tasks = 1 if cell.args.joint else datasets.get_dataset_class(cell.args).N_TASKS
    return max(0, _current_task(cell.path / "metrics.jsonl") - 1) / n_tasks


def _current_task(metrics: Path) -> int:
    """Of a run, counted from 1; 0 if it has not begun."""
    try:
        with open(metrics, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().splitlines()
        return int(json.loads(lines[-1])["task"])
    except (OSError, ValueError, LookupError):
        return 0


def status(expansions: Sequence[Expansion]) -> str:
    """A line per table, the runs that are running and those that failed, and when all will be done."""
    cells = [cell for expansion in expansions for cell in expansion.cells]
    by_path = {cell.path: status_of(cell) for cell in distinct_runs(cells)}
    rows = []
    for expansion in expansions:
        counts = Counter(by_path[path].state for path in {cell.path for cell in expansion.cells})
        rows.append([expansion.grid.name, *(str(counts[state]) for state in STATES)])
    parts = [*conditions(expansions), table(["", *STATES], rows)]
    found = list(by_path.values())
    parts += [f"running: {s.cell.name} ({s.progress:.0%})" for s in found if s.state == RUNNING]
    for s in found:
        if s.state == FAILED:
            parts.append(f"failed: {s.cell.name}: {s.reason}\n        {log_file(s.cell.path)}")
    return "\n".join([*parts, _remaining(found)])


def _remaining(found: Sequence[CellStatus]) -> str:
    """The time until all is done, if what runs now goes on running; failed runs are not in it."""
    running = [s for s in found if s.state == RUNNING]
    left = [s for s in found if s.state in (RUNNING, WAITING)]
    if not left:
        return "Nothing is left to run." if all(s.state == DONE for s in found) else "Only failed runs are left."
    estimates = Estimates([s.cell for s in found if s.state == DONE])
    known = [(s, estimate) for s in left if (estimate := estimates.of(s.cell)) is not None]
    work = sum((1 - s.progress) * estimate.seconds for s, estimate in known)
    unknown = f", and {len(left) - len(known)} runs of a kind not finished yet" if len(known) < len(left) else ""
    if not running:
        return f"Nothing is running; {duration(work)} of work is left{unknown}."
    return f"Left: about {duration(work / len(running))} with {len(running)} at a time{unknown}."
