"""GPU-hours of a profile's tables: each kind of their runs is measured by a few steps, on random images.

As `python reproduce.py plan` does it (experiments/running/probe.py), but without the datasets' files. Ends of tasks and
evaluations are in it, diagnostics and checkpoints are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from experiments.cells import Cell, expand
from experiments.running.estimates import kind_of
from experiments.running.probe import measure
from experiments.tables import load_table

Figures = dict[str, Any]


def kinds(tables: Sequence[str], profile: str) -> list[tuple[Cell, int]]:
    """One cell for each kind of run that the tables need, and how many runs are of that kind."""
    runs: dict[Any, tuple[Cell, int]] = {}
    for name in tables:
        grid = load_table(name, profile)
        one_seed = expand(replace(grid, seeds=grid.seeds[:1]), [])
        for cell in one_seed.cells:
            runs.setdefault(cell.path, (cell, len(grid.seeds)))
    found: dict[str, tuple[Cell, int]] = {}
    for cell, seeds in runs.values():
        kind = kind_of(cell.args)
        first, count = found.get(kind, (cell, 0))
        found[kind] = (first, count + seeds)
    return list(found.values())


def hours(
    tables: Sequence[str], profile: str, device: str, more: Sequence[str] = (), tell: Callable[[str], None] = print
) -> Figures:
    """Hours of all runs on one device, one at a time; `more` are flags beside those of the tables."""
    rows, failed = [], []
    for cell, runs in kinds(tables, profile):
        row = {"row": cell.row, "dataset": cell.args.dataset, "model": cell.args.model, "runs": runs}
        tell(f"{cell.row} on {cell.args.dataset} …")
        try:
            seconds = measure([*cell.argv, f"--device={device}", *more])["seconds"]
        except Exception as error:  # whatever a method raises on this device
            failed.append(row | {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})
            continue
        rows.append(row | {"hours_per_run": seconds / 3600})
    return {
        "profile": profile,
        "tables": list(tables),
        "runs": sum(row["runs"] for row in rows),
        "hours": sum(row["runs"] * row["hours_per_run"] for row in rows),
        "by_kind": rows,
        "failed": failed,
    }
