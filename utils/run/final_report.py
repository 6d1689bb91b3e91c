"""The report printed at the end of a run, made from its result files; needs no torch."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from utils.errors import UserError
from utils.metrics import DEFINITIONS, average_accuracy
from utils.run.identity import stored_config
from utils.run.read_results import Matrix, Metrics, read_finished

OVER_TIME = ("FF", "BWT")  # metrics that compare the network with what it was
REPORT_COLUMNS = 100


def final_report(directory: str | Path) -> str:
    """The report of a finished run, from its files."""
    found = read_finished(Path(directory))
    if found is None:
        raise UserError(f"{Path(directory, 'summary.json')} is missing: the run is not finished; repeat its command")
    report = final_table(found.class_il, found.task_il, *reported_metrics(Path(directory), found.summary))
    test = found.summary.get("test")
    if test is None:
        return report
    means = [
        f"[{name}]: {np.mean(test[key]):.2f} %" for name, key in (("Class-IL", "class_il"), ("Task-IL", "task_il"))
    ]
    return f"{report}\n\nAll of the above is on held-out training images. On the test set: {' '.join(means)}"


def reported_metrics(directory: Path, summary: Mapping[str, Any]) -> tuple[Metrics, Metrics]:
    """Class-il and task-il. A network that is only evaluated (`--inference_only`) forgets nothing: the more classes it
    is asked to tell apart, the more it errs."""
    class_il, task_il = summary["class_il"], summary["task_il"]
    if not (directory / "config.yaml").exists() or not stored_config(directory).get("inference_only"):
        return class_il, task_il
    shown = [name for name in DEFINITIONS if name not in OVER_TIME]
    return {name: class_il.get(name) for name in shown}, {name: task_il.get(name) for name in shown}


def final_table(class_il: Matrix, task_il: Matrix, class_metrics: Metrics, task_metrics: Metrics) -> str:
    """The matrix, then each metric with its definition, in at most 100 columns."""
    return "\n".join([*_matrix_lines(class_il, task_il), "", *_metric_lines(class_metrics, task_metrics)])


def _matrix_lines(class_il: Matrix, task_il: Matrix) -> list[str]:
    """Cells get as many decimals as fit. Beyond 20 tasks the middle ones are not shown, only averaged."""
    tasks = len(class_il)
    shown: list[int | None] = list(range(tasks))
    if tasks > 20:
        shown[9 : tasks - 9] = [None]
    width, decimals = next(((w, d) for w, d in ((7, 2), (6, 1)) if w * len(shown) <= 80), (4, 0))
    label = max(2, len(str(tasks)))
    head = "".join(f"{'…' if j is None else j + 1:>{width}}" for j in shown)
    lines = [
        "Class-IL accuracy in % on each task (column) after each task (row); means over the tasks seen",
        f"{'':{label}}{head} |{'Class-IL':>8}{'Task-IL':>8}",
    ]
    means = np.stack([average_accuracy(class_il), average_accuracy(task_il)], axis=1)
    for k in shown:
        if k is None:
            lines.append(f"{'…':>{label}}")
        elif not np.isnan(class_il[k, : k + 1]).all():
            cells = "".join(f"{_shown_cell(class_il[k], k, j, decimals):>{width}}" for j in shown)
            lines.append(f"{k + 1:>{label}}{cells} |{means[k, 0]:8.2f}{means[k, 1]:8.2f}")
    return lines


def _shown_cell(row: NDArray[np.float64], k: int, j: int | None, decimals: int) -> str:
    if j is None:
        return "…" if k >= len(row) - 9 else ""
    return f"{row[j]:.{decimals}f}" if j <= k and not np.isnan(row[j]) else ""


def _metric_lines(class_metrics: Metrics, task_metrics: Metrics) -> list[str]:
    lines = [f"{'':5}{'Class-IL':>9}{'Task-IL':>9}"]
    for name, definition in DEFINITIONS.items():
        if name not in class_metrics or (name == "FWT" and class_metrics[name] is None):
            continue  # FWT is measured only on demand
        values = f"{_number(class_metrics.get(name)):>9}{_number(task_metrics.get(name)):>9}"
        text = textwrap.wrap(definition, REPORT_COLUMNS - 25)
        lines += [f"{name:5}{values}  {text[0]}", *(f"{'':25}{rest}" for rest in text[1:])]
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
