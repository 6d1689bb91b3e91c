"""What stored results must look like, so that every report can be made of them."""

from __future__ import annotations

from typing import Any

from experiments.results.curves import MEASURED
from experiments.results.records import METRICS
from utils.run.shapes import ENVIRONMENT, NUMBERS, SUMMARY, TEXT, TIMING, check_shape

MISFIT = "is shorter or longer than what it belongs to"
DIAGNOSTICS = {"at": [int], "task": [int], **{f"{name}?": NUMBERS for name in MEASURED}}
TABLE = {
    "name": str,
    "title": str,
    "place?": str,
    "profile?": str,
    "conditions": str,
    "notes": [str],
    "metrics": [str],
    "rows": [str],
    "columns": [str],
    "seeds": [int],
    "against": {"*": str},
    "column_flags?": {"*": {"dataset?": TEXT}},
    "absent?": [[str]],
    "unavailable": [[str]],
    "paper": {"*": {"*": {"*": str}}},
}
RUN = SUMMARY | {
    "cells": [[str]],
    "environment": int,
    "timing": (TIMING, None),
    "average_accuracy?": NUMBERS,
    "accuracy?": [NUMBERS],
    "task_steps?": [int],
    "loss?": [NUMBERS],
    "diagnostics?": DIAGNOSTICS,
}
RESULTS = {"tables": [TABLE], "environments": [(ENVIRONMENT, None)], "runs": [RUN]}


def check(content: Any) -> None:
    """ValueError with the reason if no report can be made of it."""
    check_shape(content, RESULTS)
    reasons = [] if content["tables"] else ["tables is empty"]
    for i, table in enumerate(content["tables"]):
        reasons += [f"tables[{i}].{reason}" for reason in _wrong_in_table(table)]
    for i, run in enumerate(content["runs"]):
        reasons += [f"runs[{i}].{reason}" for reason in _wrong_in_run(run, len(content["environments"]))]
    if reasons:
        raise ValueError(reasons[0])


def _wrong_in_table(table: dict[str, Any]) -> list[str]:
    empty = [f"{name} is empty" for name in ("rows", "columns", "seeds", "metrics") if not table[name]]
    unknown = [f"metrics: unknown metric {metric!r}" for metric in table["metrics"] if metric not in METRICS]
    lengths = {"absent": 2, "unavailable": 3}
    long = [name for name, length in lengths.items() if any(len(place) != length for place in table.get(name, []))]
    return [*empty, *unknown, *(f"{name} {MISFIT}" for name in long)]


def _wrong_in_run(run: dict[str, Any], environments: int) -> list[str]:
    steps, loss, matrix = run.get("task_steps", []), run.get("loss", []), run.get("accuracy", [])
    measured = run.get("diagnostics", {})
    fits = {
        "cells": all(len(cell) == 3 for cell in run["cells"]),
        "loss": len(loss) in (0, len(steps)),
        "accuracy": all(len(row) <= len(matrix) for row in matrix),
        "diagnostics": len({len(measured[name]) for name in ("at", "task", *MEASURED) if name in measured}) <= 1,
    }
    number = run["environment"]
    unknown = [] if 0 <= number < environments else [f"environment is {number}, of {environments} from 0"]
    return unknown + [f"{name} {MISFIT}" for name, right in fits.items() if not right]
