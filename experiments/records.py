"""What a finished run leaves for tables: one small record, read from the files of its directory."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from experiments.curves import read_curves

Record = dict[str, Any]
KEPT = "model dataset seed config_hash class_il task_il test n_tasks steps parameters stored_bytes".split()
ACCURACY_DIGITS = 3
TIMED_TASKS = 3  # the paper's table of training times has the first three


def read_summary(path: Path) -> Record | None:
    """The summary of a finished run; None if there is none, or none that can be read."""
    summary = read_json(path / "summary.json")
    return summary if isinstance(summary, dict) and isinstance(summary.get("class_il"), dict) else None


def read_record(path: Path, args: Namespace, curves: bool = False) -> Record | None:
    """The record of the run in a directory, begun with `args`; None if it is not finished. It names no paths.

    With `curves` it has the loss and the errors of gradients over the steps, for which the whole log is read.
    """
    summary = read_summary(path)
    if summary is None:
        return None
    record = {name: summary[name] for name in KEPT if name in summary}
    record |= _accuracies(path)
    if hasattr(args, "buffer_size"):
        record["buffer_size"] = args.buffer_size
    if curves:
        record |= read_curves(path / "metrics.jsonl")
    return record | {"timing": read_timing(path), "environment": read_json(path / "environment.json")}


def _accuracies(path: Path) -> Record:
    """AA_t, Class-IL, after each task t; and the matrix that it is the mean of, up to its diagonal."""
    from utils.loggers import plain
    from utils.metrics import average_accuracy
    from utils.results import read_accuracy

    matrix = read_accuracy(path / "accuracy.csv")[0]
    lower = [[round(float(value), ACCURACY_DIGITS) for value in row[: k + 1]] for k, row in enumerate(matrix)]
    return {"average_accuracy": plain(average_accuracy(matrix)), "accuracy": plain(lower)}


def read_timing(path: Path) -> Record | None:
    """Seconds of training and evaluation, in all and by task."""
    timing = read_json(path / "timing.json")
    if not isinstance(timing, dict):
        return None
    by_task = {kind: [task[f"{kind}_seconds"] or 0.0 for task in timing["tasks"]] for kind in ("train", "eval")}
    return {
        "finished": timing["finished"],
        "train_seconds": sum(by_task["train"]),
        "eval_seconds": sum(by_task["eval"]),
        "train_seconds_by_task": by_task["train"],
        "steps_per_second": timing["steps_per_second"],
    }


def read_json(path: Path) -> Any:
    """The content of a file; None if it is not there or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
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
