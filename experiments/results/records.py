"""What tables need of a finished run: one small record, read from the files in its directory."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

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
MEASUREMENTS = 120  # per run
DIGITS = 4  # significant ones: a curve shows fewer
DIAGNOSTICS = ("batch", "buffer", "calibrated")
MEASURED = [f"{estimate}_{kind}" for kind in ("error", "cosine") for estimate in DIAGNOSTICS] + ["alpha_star"]
MEASUREMENTS_OF = {"diagnostics": MEASURED, "whole_loss": ["seen", "past", "current"]}  # by event of the log


def read_summary(path: Path) -> Record | None:
    """The results of a run that is finished and not damaged; None for any other."""
    return inspect_run(path)[0]


def inspect_run(path: Path) -> tuple[Record | None, str | None]:
    """The results, or else which file of a finished run is damaged, why, and what to do about it."""
    try:
        found = check_finished(path)
        return None if found is None else _results(found), None
    except DamagedRun as error:
        return None, str(error)


def read_record(path: Path, args: Namespace, curves: bool = False) -> Record | None:
    """The record of the run in a directory, begun with `args`; None if it is not finished. It names no paths.

    With `curves` it has what `--dgc_diagnostics` and `--loss_diagnostics` measured, for which the whole log is read. A
    damaged run counts as not finished, with a warning: it must not spoil the rest of its table.
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


# -- what the log of a run adds to its summary, thinned out ------------------------------------------------------


def read_curves(log: Path) -> dict[str, Any]:
    """`diagnostics` and `whole_loss`: each value by measurement, with `at`, the run's step, where the log has them."""
    steps: dict[int, int] = {}  # of each task
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in MEASUREMENTS_OF}
    for event in _events(log):
        if event.get("event") == "train" and "loss" in event:
            steps[event["task"]] = steps.get(event["task"], 0) + len(event["loss"])
        elif event.get("event") in measured:
            before = sum(count for task, count in steps.items() if task < event["task"])
            measured[event["event"]].append(event | {"at": before + event["step"]})
    return {name: _measurements(events, MEASUREMENTS_OF[name]) for name, events in measured.items() if events}


def _events(log: Path) -> Iterator[dict[str, Any]]:
    """The log's lines; damaged ones are skipped."""
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _measurements(events: list[dict[str, Any]], names: list[str]) -> dict[str, list[Any]]:
    kept = events[:: -(-len(events) // MEASUREMENTS)]
    found: dict[str, list[Any]] = {name: [event[name] for event in kept] for name in ("at", "task")}
    for name in names:
        values = [event.get(name) for event in kept]
        if any(value is not None for value in values):
            found[name] = [None if value is None else _short(value) for value in values]
    return found


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


# -- metrics ------------------------------------------------------------------------------------------------------


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


def _megabytes(record: Record) -> float | None:
    """What a method keeps beside its network: images, labels, logits, DGC's vectors."""
    stored = record.get("stored_bytes")
    return None if stored is None else stored / 1e6


def _task_seconds(task: int, record: Record) -> float | None:
    by_task = record["timing"]["train_seconds_by_task"] if record["timing"] else []
    return by_task[task - 1] if len(by_task) >= task else None


# What a grid may list under `metrics`.
METRICS: dict[str, Callable[[Record], float | None]] = {
    **{name: partial(_accuracy, "class_il", name) for name in ("FAIA", "FAA", "FF", "BWT", "FWT")},
    **{f"{name} Task-IL": partial(_accuracy, "task_il", name) for name in ("FAIA", "FAA", "FF", "BWT", "FWT")},
    "seconds": _seconds,
    "MB": _megabytes,
    **{f"T{task}": partial(_task_seconds, task) for task in range(1, TIMED_TASKS + 1)},
}
COSTS = ("MB", "seconds", *(f"T{task}" for task in range(1, TIMED_TASKS + 1)))
LESS_IS_BETTER = ("FF", "FF Task-IL", *COSTS)
