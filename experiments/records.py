"""What a finished run leaves for tables: one small record, read from the files of its directory."""

from __future__ import annotations

import contextlib
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from experiments.curves import read_curves
from experiments.shapes import ENVIRONMENT, SUMMARY, TIMING, check_shape
from utils.errors import UserError

Record = dict[str, Any]
KEPT = "model dataset seed config_hash class_il task_il test n_tasks steps parameters stored_bytes".split()
ACCURACY_DIGITS = 3
TIMED_TASKS = 3  # the paper's table of training times has the first three


class DamagedRun(UserError):
    """A finished run with a file that cannot be used. No command mends it: only its owner may delete a run."""


def read_summary(path: Path) -> Record | None:
    """What came out of a run that is done, which is finished and not damaged; None of any other."""
    return inspect_run(path)[0]


def damage(path: Path) -> str | None:
    """Which file of a finished run is damaged, why, and what to do about it; None of any other run."""
    return inspect_run(path)[1]


def inspect_run(path: Path) -> tuple[Record | None, str | None]:
    """`read_summary` and `damage`, with each file read once."""
    try:
        results = _results(path)
        if results is not None:
            _circumstances(path)
        return results, None
    except DamagedRun as error:
        return None, str(error)


def read_record(path: Path, args: Namespace, curves: bool = False) -> Record | None:
    """The record of the run in a directory, begun with `args`; None if it is not finished. It names no paths.

    With `curves` it has the loss and the errors of gradients over the steps, for which the whole log is read. A run
    that is damaged counts as not finished, with a warning: it must not take the others of its table with it.
    """
    try:
        record = _results(path)
        if record is None:
            return None
        if hasattr(args, "buffer_size"):
            record["buffer_size"] = args.buffer_size
        if curves:
            record |= _curves(path / "metrics.jsonl")
        return record | _circumstances(path)
    except DamagedRun as error:
        print(f"warning: {error}", file=sys.stderr)
        return None


def _results(path: Path) -> Record | None:
    """What came out of a finished run; None if it is not finished."""
    summary = _summary(path)
    if summary is None:
        return None
    record = {name: summary[name] for name in KEPT if name in summary}
    return record | _accuracies(path / "accuracy.csv", summary.get("n_tasks", 0))


def _circumstances(path: Path) -> Record:
    return {"timing": read_timing(path), "environment": read_environment(path)}


def _summary(path: Path) -> Record | None:
    file = path / "summary.json"
    with _reading(file):
        try:
            summary = _json_object(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        check_shape(summary, SUMMARY)
        return summary


def _curves(log: Path) -> Record:
    with _reading(log):
        return read_curves(log)


def _accuracies(file: Path, n_tasks: int) -> Record:
    """AA_t, Class-IL, after each task t; and the matrix that it is the mean of, up to its diagonal."""
    from utils.loggers import plain
    from utils.metrics import average_accuracy
    from utils.results import read_accuracy

    with _reading(file):
        matrix = read_accuracy(file)[0]
        if len(matrix) < n_tasks:
            raise ValueError(f"it ends after {len(matrix)} of {n_tasks} tasks")
    lower = [[round(float(value), ACCURACY_DIGITS) for value in row[: k + 1]] for k, row in enumerate(matrix)]
    return {"average_accuracy": plain(average_accuracy(matrix)), "accuracy": plain(lower)}


def read_timing(path: Path) -> Record:
    """Seconds of training and evaluation of a finished run, in all and by task."""
    file = path / "timing.json"
    with _reading(file):
        timing = _json_object(file)
        by_task = {kind: [task[f"{kind}_seconds"] or 0.0 for task in timing["tasks"]] for kind in ("train", "eval")}
        found = {
            "finished": timing["finished"],
            "train_seconds": sum(by_task["train"]),
            "eval_seconds": sum(by_task["eval"]),
            "train_seconds_by_task": by_task["train"],
            "steps_per_second": timing["steps_per_second"],
        }
        check_shape(found, TIMING | {"eval_seconds": float})
        return found


def read_environment(path: Path) -> Record:
    """The machine and the versions of a finished run."""
    file = path / "environment.json"
    with _reading(file):
        environment = _json_object(file)
        check_shape(environment, ENVIRONMENT)
        return environment


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Say in one line what is wrong with a file of a finished run, and what to do about it."""
    try:
        yield
    except (UserError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        why = error.__cause__ if isinstance(error, UserError) else error  # a UserError advises flags of `main.py`
        reason = getattr(why, "strerror", None) or (f"it has no {why}" if isinstance(why, KeyError) else why)
        raise DamagedRun(f"{file} is damaged ({reason}); delete {file.parent}, then `run` again") from error


def _json_object(file: Path) -> Record:
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return content


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
