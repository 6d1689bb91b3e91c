"""What a finished run leaves for tables: one small record, read from the files of its directory."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from experiments.results.curves import read_curves
from utils.metrics import average_accuracy
from utils.run.read_results import (
    DamagedRun,
    Finished,
    check_finished,
    read_environment,
    read_finished,
    read_timing,
    reading,
)

Record = dict[str, Any]
KEPT = "model dataset seed config_hash class_il task_il test n_tasks steps parameters stored_bytes".split()
ACCURACY_DIGITS = 3
TIMED_TASKS = 3  # the paper's table of training times has the first three


def read_summary(path: Path) -> Record | None:
    """What came out of a run that is done, which is finished and not damaged; None of any other."""
    return inspect_run(path)[0]


def damage(path: Path) -> str | None:
    """Which file of a finished run is damaged, why, and what to do about it; None of any other run."""
    return inspect_run(path)[1]


def inspect_run(path: Path) -> tuple[Record | None, str | None]:
    """`read_summary` and `damage`, with each file read once."""
    try:
        found = check_finished(path)
        return None if found is None else _results(found), None
    except DamagedRun as error:
        return None, str(error)


def read_record(path: Path, args: Namespace, curves: bool = False) -> Record | None:
    """The record of the run in a directory, begun with `args`; None if it is not finished. It names no paths.

    With `curves` it has the loss and the errors of gradients over the steps, for which the whole log is read. A run
    that is damaged counts as not finished, with a warning: it must not take the others of its table with it.
    """
    try:
        found = read_finished(path)
        if found is None:
            return None
        record = _results(found)
        if hasattr(args, "buffer_size"):
            record["buffer_size"] = args.buffer_size
        if curves:
            with reading(path / "metrics.jsonl"):
                record |= read_curves(path / "metrics.jsonl")
        return record | {"timing": read_timing(path), "environment": read_environment(path)}
    except DamagedRun as error:
        print(f"warning: {error}", file=sys.stderr)
        return None


def _results(found: Finished) -> Record:
    """The summary; AA_t, Class-IL, after each task t; and the matrix that it is the mean of, up to its diagonal."""
    from utils.loggers import plain

    record = {name: found.summary[name] for name in KEPT if name in found.summary}
    lower = [[round(float(value), ACCURACY_DIGITS) for value in row[: k + 1]] for k, row in enumerate(found.class_il)]
    return record | {"average_accuracy": plain(average_accuracy(found.class_il)), "accuracy": plain(lower)}


def read_json(path: Path) -> Any:
    """The content of a file; None if it is not there or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _accuracy(kind: str, name: str, record: Record) -> float | None:
    return record[kind].get(name)


def _seconds(record: Record) -> float | None:
    return record["timing"] and record["timing"]["train_seconds"]


def _task_seconds(task: int, record: Record) -> float | None:
    by_task = record["timing"]["train_seconds_by_task"] if record["timing"] else []
    return by_task[task - 1] if len(by_task) >= task else None


# What a grid may list under `metrics`.
METRICS: dict[str, Callable[[Record], float | None]] = {
    **{name: partial(_accuracy, "class_il", name) for name in ("FAIA", "FAA", "FF", "BWT", "FWT")},
    **{f"{name} Task-IL": partial(_accuracy, "task_il", name) for name in ("FAIA", "FAA", "FF", "BWT", "FWT")},
    "seconds": _seconds,
    **{f"T{task}": partial(_task_seconds, task) for task in range(1, TIMED_TASKS + 1)},
}
