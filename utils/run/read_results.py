"""Reading the result files of a finished run, and the check that every command makes before it believes them.

The accuracy matrix is the primary result. Metrics are computed from it whenever a run is read, and must be those of its
summary; the summary must be of the run that the directory is of.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from utils.cli.yaml_io import read_yaml
from utils.errors import UserError
from utils.metrics import DEFINITIONS, Matrix, summarise
from utils.run.shapes import NUMBER, TEXT, check_shape

Metrics = Mapping[str, float | None]
ACCURACY_COLUMNS = ["after_task", "task", "class_il", "task_il"]
MOST_TASKS = 10_000
SAME = 1e-9  # relative: the order of a sum may be another one on another machine
DIRECTORY = re.compile(r"seed(\d+)-([0-9a-f]{12})")
# Shapes of what is read, see `check_shape`.
ACCURACIES = {f"{name}?": NUMBER for name in ("FAIA", "FAA", "FF", "BWT", "FWT")}
ENVIRONMENT = {f"{name}?": TEXT for name in ("platform", "cpu", "gpu", "git_commit")}
TIMING = {"finished": TEXT, "train_seconds": NUMBER, "train_seconds_by_task": [float]}
SUMMARY = {
    "seed": int,
    "class_il": ACCURACIES,
    "task_il": ACCURACIES,
    "n_tasks?": int,
    "parameters?": int,
    "stored_bytes?": int,
    "buffer_bytes?": int,
    "calibrator_bytes?": int,
    "test?": ({"class_il": [float], "task_il": [float]}, None),
}


class DamagedRun(UserError):
    """A finished run with a file that cannot be used. No command mends it: only its owner may delete what it holds."""


class Finished(NamedTuple):
    """The results of a run: its summary, with the metrics that follow from the matrices, and these."""

    summary: dict[str, Any]
    class_il: Matrix
    task_il: Matrix


def read_finished(directory: Path) -> Finished | None:
    """What came out of a run; None if it is not finished."""
    file = directory / "summary.json"
    with reading(file):
        try:
            summary = json_object(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        check_shape(summary, SUMMARY)
        _check_identity(summary, directory)
    matrices = directory / "accuracy.csv"
    with reading(matrices):
        class_il, task_il, untrained = read_matrices(matrices)
        if len(class_il) != summary.get("n_tasks", len(class_il)):
            raise ValueError(f"it has {len(class_il)} of {summary['n_tasks']} tasks")
    metrics = {
        kind: summarise(matrix, _before(matrix), untrained[i])
        for i, (kind, matrix) in enumerate((("class_il", class_il), ("task_il", task_il)))
    }
    for kind, by_name in metrics.items():
        for name in DEFINITIONS:
            stored = summary[kind].get(name)
            if stored is None:  # not reported, which is no wrong number
                by_name[name] = None
            elif not _same(by_name[name], stored):
                raise DamagedRun(
                    f"{file} and {matrices.name} contradict each other (by the matrix, {name} of {kind} is "
                    f"{by_name[name]}, not {stored}); {_remedy(file)}"
                )
    return Finished(summary | metrics, class_il, task_il)


def check_finished(directory: Path) -> Finished | None:
    """As `read_finished`, and the files about its circumstances can be read, too."""
    found = read_finished(directory)
    if found is not None:
        read_timing(directory)
        read_environment(directory)
    return found


def read_matrices(path: Path) -> tuple[Matrix, Matrix, Matrix]:
    """Class-il and task-il over the tasks run, NaN where not measured; both accuracies of the untrained network."""
    with open(path, newline="", encoding="utf-8") as file:
        try:
            header, *lines = list(csv.reader(file)) or [[]]
        except csv.Error as error:  # Python 3.10 does not read a zero byte
            raise ValueError(error) from None
    if header != ACCURACY_COLUMNS:
        raise ValueError(f"its columns are not {','.join(ACCURACY_COLUMNS)}")
    rows = [(int(k), int(j), float(c or "nan"), float(t or "nan")) for k, j, c, t in lines]
    places = {(k, j) for k, j, _, _ in rows}
    if len(places) < len(rows) or not all(0 <= k <= MOST_TASKS and 1 <= j <= MOST_TASKS for k, j in places):
        raise ValueError("a line is there twice, or of a task that can't be")
    if not all(math.isnan(value) or 0 <= value <= 100 for _, _, *values in rows for value in values):
        raise ValueError("an accuracy is not between 0 and 100")
    tasks = max((max(k, j) for k, j in places if k), default=0)
    class_il, task_il = np.full((2, tasks, tasks), np.nan)
    untrained = np.full((2, tasks), np.nan)
    for k, j, c, t in rows:
        if k:
            class_il[k - 1, j - 1], task_il[k - 1, j - 1] = c, t
        elif j <= tasks:
            untrained[:, j - 1] = c, t
    return class_il, task_il, untrained


def _before(matrix: Matrix) -> NDArray[np.float64]:
    """The accuracy on each task just before it was trained, which stands above the diagonal where it was measured."""
    return np.concatenate([[np.nan], np.diag(matrix, 1)])


def _same(computed: float | None, stored: float) -> bool:
    return computed is not None and math.isclose(computed, stored, rel_tol=SAME, abs_tol=SAME)


def _check_identity(summary: dict[str, Any], directory: Path) -> None:
    """By the directory's name or, where somebody has given it another one, by its config."""
    if found := DIRECTORY.fullmatch(directory.name):
        expected: dict[str, Any] = {"seed": int(found[1]), "config_hash": found[2]}
    elif (directory / "config.yaml").exists():
        content = read_yaml(directory / "config.yaml")
        expected = {"seed": (content.get("config") or {}).get("seed"), "config_hash": content.get("hash")}
    else:
        return
    for name, value in expected.items():
        if summary.get(name) != value:
            raise ValueError(f"its {name} is {summary.get(name)}, but that of the directory {value}")


def read_timing(directory: Path) -> dict[str, Any]:
    """Seconds of training and evaluation of a finished run, in all and by task."""
    file = directory / "timing.json"
    with reading(file):
        timing = json_object(file)
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


def read_environment(directory: Path) -> dict[str, Any]:
    """The machine and the versions of a finished run."""
    file = directory / "environment.json"
    with reading(file):
        environment = json_object(file)
        check_shape(environment, ENVIRONMENT)
        return environment


@contextlib.contextmanager
def reading(file: Path) -> Iterator[None]:
    """Say in one line what is wrong with a file of a finished run, and what to do about it."""
    try:
        yield
    except DamagedRun:
        raise
    except PermissionError as error:
        raise DamagedRun(f"{file} can't be read ({error.strerror}); make it readable") from error
    except (UserError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedRun(f"{file} is damaged ({_reason(error)}); {_remedy(file)}") from error


def _remedy(file: Path) -> str:
    """All but the log is made anew from the last checkpoint, where there is one."""
    lost = file.parent if file.name == "metrics.jsonl" else file.with_name("summary.json")
    return f"delete {lost}, then run it again"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def json_object(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return content
