"""What stored results must look like, so that every report can be made of them; said of the first place that differs.

A shape is a type, a list of one shape, a mapping of names to shapes, or one of these with None in a tuple for what may
be null. A name that ends in `?` may be missing, and the shape of `*` is that of all values.
"""

from __future__ import annotations

from reprlib import repr as shortened
from typing import Any

from experiments.curves import MEASURED
from experiments.records import METRICS

NUMBER, NUMBERS = (float, None), [(float, None)]
TEXT = (str, None)
HUGE = 1e100  # infinity and NaN are none of ours either, and sums and squares must be possible
WORDS = {str: "text", int: "a whole number", float: "a number", list: "a list", dict: "a mapping"}
MISFIT = "is shorter or longer than what it belongs to"
ACCURACIES = {f"{name}?": NUMBER for name in ("FAIA", "FAA", "FF", "BWT", "FWT")}
ENVIRONMENT = {f"{name}?": TEXT for name in ("platform", "cpu", "gpu", "git_commit")}
TIMING = {"finished": TEXT, "train_seconds": NUMBER, "train_seconds_by_task": [float]}
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
RUN = {
    "cells": [[str]],
    "seed": int,
    "environment": int,
    "class_il": ACCURACIES,
    "task_il": ACCURACIES,
    "timing": (TIMING, None),
    "parameters?": int,
    "stored_bytes?": int,
    "average_accuracy?": NUMBERS,
    "accuracy?": [NUMBERS],
    "task_steps?": [int],
    "loss?": [NUMBERS],
    "diagnostics?": DIAGNOSTICS,
}
RESULTS = {"tables": [TABLE], "environments": [(ENVIRONMENT, None)], "runs": [RUN]}


def check(content: Any) -> None:
    """ValueError with the reason if no report can be made of it."""
    _check(content, RESULTS, "")
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


def _check(value: Any, shape: Any, place: str) -> None:
    if isinstance(shape, tuple):
        if value is None:
            return
        shape = shape[0]
    kind = shape if isinstance(shape, type) else type(shape)
    right = isinstance(value, int | float if kind is float else kind) and not isinstance(value, bool)
    if not right or (kind in (int, float) and not abs(value) < HUGE):
        raise ValueError(f"{place or 'the content'} is {shortened(value)}, not {WORDS[kind]}")
    if isinstance(shape, list):
        for i, element in enumerate(value):
            _check(element, shape[0], f"{place}[{i}]")
    elif isinstance(shape, dict):
        _check_names(value, shape, place)


def _check_names(value: dict[str, Any], shape: dict[str, Any], place: str) -> None:
    for pattern, of_name in shape.items():
        name = pattern.removesuffix("?")
        if pattern == "*":
            for any_name, element in value.items():
                _check(element, of_name, f"{place}[{shortened(any_name)}]")
        elif name in value:
            _check(value[name], of_name, f"{place}.{name}".lstrip("."))
        elif pattern == name:
            raise ValueError(f"{place or 'the content'} has no {name}")
