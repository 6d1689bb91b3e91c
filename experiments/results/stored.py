"""Reading `results.json` again, without run directories, and the shape that it must have."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cells import Expansion
from experiments.grid import Grid, Row
from experiments.results.collection import Results
from experiments.results.records import ACCURACY_DIGITS, KEPT, MEASUREMENTS_OF, METRICS, Record
from experiments.tables import paper_value
from utils.errors import UsageError
from utils.metrics import average_accuracy, summarise
from utils.run.read_results import ENVIRONMENT, SUMMARY, TIMING
from utils.run.shapes import NUMBERS, TEXT, check_shape

REMEDY = "give one that `table` or `report` has written with --output DIR, unchanged"
TABLE = {
    "name": str,
    "title": str,
    "place": str,
    "profile": str,
    "conditions": str,
    "notes": [str],
    "metrics": [str],
    "rows": [str],
    "columns": [str],
    "seeds": [int],
    "against": {"*": str},
    "column_flags": {"*": {"dataset?": TEXT}},
    "absent": [[str]],
    "unavailable": [[str]],
    "paper": {"*": {"*": {"*": str}}},
}
RUN = SUMMARY | {
    "cells": [[str]],
    "config_hash": str,
    "environment": int,
    "timing": (TIMING, None),
    "average_accuracy": NUMBERS,
    "accuracy": [NUMBERS],
    **{
        f"{event}?": {"at": [int], "task": [int], **{f"{name}?": NUMBERS for name in names}}
        for event, names in MEASUREMENTS_OF.items()
    },
}
ROUNDING = 1.01 * 10**-ACCURACY_DIGITS  # FF is the mean of differences of two rounded numbers
RESULTS = {"tables": [TABLE], "environments": [(ENVIRONMENT, None)], "runs": [RUN]}


def read_stored(path: Path) -> list[Results]:
    """The tables of a file."""
    with _one_line_errors(path, "--from"):
        content, runs = _read(path)
        return [Results(_expansion(table), _records(table, runs)) for table in content["tables"]]


def known_runs(paths: Iterable[Path], wanted: Set[str]) -> dict[str, Record]:
    """The records of all runs in these files, by the hash in the names of their directories.

    A file without any of the runs that are `wanted` is likely another table's: a warning says so.
    """
    known: dict[str, Record] = {}
    for path in paths:
        with _one_line_errors(path, "--known"):
            found = {run["record"]["config_hash"]: run["record"] for run in _read(path)[1]}
        if not found.keys() & wanted:
            print(f"warning: --known: 0 of {len(found)} runs in {path} belong to these tables", file=sys.stderr)
        known |= found
    return known


@contextmanager
def _one_line_errors(path: Path, flag: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{flag} {path}: cannot be read: {error.strerror}; {REMEDY}") from None
    except (ValueError, RecursionError) as error:  # not JSON, or changed since
        raise UsageError(f"{flag} {path}: not a results.json: {' '.join(str(error).split())}; {REMEDY}") from None


def _read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The content of a file, and its runs."""
    content = json.loads(path.read_text(encoding="utf-8"))
    check_shape(content, RESULTS)
    _check_values(content)
    return content, [_run(run, content["environments"]) for run in content["runs"]]


def _check_values(content: dict[str, Any]) -> None:
    """ValueError with the reason if no report can be made from it."""
    if not content["tables"]:
        raise ValueError("tables is empty")
    for i, table in enumerate(content["tables"]):
        for name in ("rows", "columns", "seeds", "metrics"):
            if not table[name]:
                raise ValueError(f"tables[{i}].{name} is empty")
        for metric in table["metrics"]:
            if metric not in METRICS:
                raise ValueError(f"tables[{i}].metrics: unknown metric {metric!r}")
    environments = len(content["environments"])
    for i, run in enumerate(content["runs"]):
        if not 0 <= run["environment"] < environments:
            raise ValueError(f"runs[{i}].environment is {run['environment']}, of {environments} from 0")
        _check_matrix(run, f"runs[{i}]")


def _check_matrix(run: dict[str, Any], place: str) -> None:
    """Its metrics must be those of its matrix, as for a run's directory, to the digits that are stored."""
    lower, tasks = run["accuracy"], len(run["accuracy"])
    if run.get("n_tasks", tasks) != tasks or [len(row) for row in lower] != list(range(1, tasks + 1)):
        raise ValueError(f"{place}.accuracy is not a matrix up to its diagonal, with a row for each task")
    matrix = np.array([row + [None] * (tasks - len(row)) for row in lower], float).reshape(tasks, tasks)
    if np.any((matrix < 0) | (matrix > 100)):
        raise ValueError(f"{place}.accuracy: a number is not between 0 and 100")
    computed = summarise(matrix) | {f"AA_{k}": value for k, value in enumerate(average_accuracy(matrix), 1)}
    stored = run["class_il"] | {f"AA_{k}": value for k, value in enumerate(run["average_accuracy"], 1)}
    for name, value in stored.items():
        right = computed.get(name)
        unknown = value is None or name == "FWT"  # which needs accuracies above the diagonal
        if not unknown and (right is None or not math.isclose(value, right, abs_tol=ROUNDING)):
            raise ValueError(f"{place}: {name} is {value}, but by its accuracy matrix {right}")


def _run(run: dict[str, Any], environments: list[Any]) -> dict[str, Any]:
    """A run's cells, and the record that these share."""
    known = {*KEPT, "buffer_size", *(name.removesuffix("?") for name in RUN)} - {"cells"}  # older files have more
    record = {name: value for name, value in run.items() if name in known}
    return {
        "cells": run["cells"],
        "seed": run["seed"],
        "record": record | {"environment": environments[run["environment"]]},
    }


def _records(table: dict[str, Any], runs: list[Record]) -> dict[tuple[str, str, int], Record]:
    """In the order of the table's cells."""
    found = {}
    for run in runs:
        for name, row, column in run["cells"]:
            if name == table["name"]:
                found[row, column, run["seed"]] = run["record"]
    places = product(table["rows"], table["columns"], table["seeds"])
    return {place: found[place] for place in places if place in found}


def _expansion(table: dict[str, Any]) -> Expansion:
    """A grid that suffices for tables; it cannot be run."""
    absent: dict[str, dict[str, None]] = {row: {} for row in table["rows"]}
    for row, column in table["absent"]:
        absent.setdefault(row, {})[column] = None
    grid = Grid(
        name=table["name"],
        title=table["title"],
        flags={},
        columns={column: table["column_flags"].get(column, {}) for column in table["columns"]},
        rows={row: Row({}, dict(absent[row]), table["against"].get(row)) for row in table["rows"]},
        seeds=tuple(table["seeds"]),
        metrics=table["metrics"],
        lenient=True,
        place=table["place"],
        profile=table["profile"],
        conditions=table["conditions"],
        notes=table["notes"],
        paper={
            metric: {row: {column: paper_value(text) for column, text in by.items()} for row, by in rows.items()}
            for metric, rows in table["paper"].items()
        },
    )
    return Expansion(grid, [], {(row, column): reason for row, column, reason in table["unavailable"]})
