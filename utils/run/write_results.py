"""Writing the result files of a run.

The accuracy matrix is the primary result; every metric is derived from it. Tasks count from 1 in the files;
classes are the labels the network sees (from 0, after any permutation). Only `timing.json` holds wall-clock
and only `environment.json` the machine: all other files of two equal runs are equal byte by byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from utils.loggers import plain
from utils.metrics import DEFINITIONS
from utils.resume.files import atomic_write_text
from utils.run.read_results import ACCURACY_COLUMNS, Matrix, Metrics


def write_accuracy(
    path: str | Path,
    class_il: Matrix,
    task_il: Matrix,
    untrained: tuple[Iterable[float], Iterable[float]] | None = None,
) -> None:
    """`accuracy.csv`: every a[k,j] that was measured, exactly. `after_task` 0 is the untrained network."""
    rows = [] if untrained is None else _accuracy_rows(0, *untrained)
    for k, (row_class_il, row_task_il) in enumerate(zip(class_il, task_il, strict=True)):
        rows += _accuracy_rows(k + 1, row_class_il, row_task_il)
    _write_csv(path, ACCURACY_COLUMNS, rows)


def _accuracy_rows(after_task: int, class_il: Iterable[float], task_il: Iterable[float]) -> list[list[Any]]:
    pairs = enumerate(zip(class_il, task_il, strict=True), start=1)
    return [[after_task, j, _cell(c), _cell(t)] for j, (c, t) in pairs if not (np.isnan(c) and np.isnan(t))]


def _cell(value: float) -> str:
    return "" if np.isnan(value) else repr(float(value))


def write_per_class(path: str | Path, accuracy: Matrix) -> None:
    """`per_class.csv` from accuracy[k, c] of class c after task k; NaN (a class not met yet) is left out."""
    rows = [[k + 1, c, _cell(accuracy[k, c])] for k, c in np.argwhere(~np.isnan(accuracy)).tolist()]
    _write_csv(path, ["after_task", "class", "accuracy"], rows)


def write_confusion(path: str | Path, counts: NDArray[np.int64]) -> None:
    """`confusion.csv`: how many test images of a class (row) were taken for a class (column) at the end."""
    rows = [[c, *row] for c, row in enumerate(counts.tolist())]
    _write_csv(path, ["true_class", *range(counts.shape[1])], rows)


def _write_csv(path: str | Path, header: Sequence[Any], rows: Sequence[Sequence[Any]]) -> None:
    atomic_write_text(path, "".join(",".join(map(str, row)) + "\n" for row in (header, *rows)))


def write_summary(path: str | Path, class_il: Metrics, task_il: Metrics, **facts: Any) -> None:
    """`summary.json`, from `utils.metrics.summarise` of both matrices; null where a metric is undefined.

    Among the `facts` are the bytes that the method has beside its network at the end, in all and by part, and, if the
    matrices come from a validation set, as `test` the accuracies per task on the test set.
    """
    write_json(path, {**facts, "class_il": class_il, "task_il": task_il, "definitions": DEFINITIONS})


def write_json(path: str | Path, content: Mapping[str, Any]) -> None:
    atomic_write_text(path, json.dumps(plain(content), indent=2, sort_keys=True, allow_nan=False) + "\n")
