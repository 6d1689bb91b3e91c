"""The result files of a run and the report printed at its end.

The accuracy matrix is the primary result; every metric is derived from it. Tasks count from 1 in the files;
classes are the labels the network sees (from 0, after any permutation). Only `timing.json` holds wall-clock
and only `environment.json` the machine: all other files of two equal runs are equal byte by byte.
"""

from __future__ import annotations

import json
import platform
import subprocess
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from utils.errors import UserError
from utils.metrics import DEFINITIONS, average_accuracy
from utils.resume.files import atomic_write_text
from utils.run.finished import ACCURACY_COLUMNS, Matrix, read_finished
from utils.run.identity import stored_config

Metrics = Mapping[str, float | None]
OVER_TIME = ("FF", "BWT")  # metrics that compare the network with what it was
REPORT_COLUMNS = 100


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


def write_summary(
    path: str | Path,
    class_il: Metrics,
    task_il: Metrics,
    *,
    model: str,
    dataset: str,
    seed: int | None,
    config_hash: str,
    n_tasks: int,
    steps: int,
    parameters: int,
    stored_bytes: int,
    test: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """`summary.json`, from `utils.metrics.summarise` of both matrices; null where a metric is undefined.

    `stored_bytes` is what the method has beside its network at the end. `test` has the accuracies per task on the test
    set if the matrices come from a validation set.
    """
    run = {"model": model, "dataset": dataset, "seed": seed, "config_hash": config_hash}
    size = {"n_tasks": n_tasks, "steps": steps, "parameters": parameters, "stored_bytes": stored_bytes}
    metrics = {"class_il": class_il, "task_il": task_il, "definitions": DEFINITIONS}
    write_json(path, run | size | metrics | ({} if test is None else {"test": test}))


def write_json(path: str | Path, content: Mapping[str, Any]) -> None:
    from utils.loggers import plain  # here and below: a finished run is shown without torch

    atomic_write_text(path, json.dumps(plain(content), indent=2, sort_keys=True, allow_nan=False) + "\n")


def environment() -> dict[str, Any]:
    """`environment.json`: what may change the last bits or the speed of a run; nothing about whose it is."""
    import torch
    import torchvision

    from utils.run.processor import capability

    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "numpy": np.__version__,
        "cpu": _cpu_model(),
        **capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "git_commit": git_commit(),
    }


def _cpu_model() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or None


@cache
def git_commit() -> str | None:
    """The commit of this source tree, "-dirty" if files were changed since; None outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def final_report(directory: str | Path) -> str:
    """The report of a finished run, from its files."""
    found = read_finished(Path(directory))
    if found is None:
        raise UserError(f"{Path(directory, 'summary.json')} is missing: the run is not finished; repeat its command")
    report = final_table(found.class_il, found.task_il, *_reported_metrics(Path(directory), found.summary))
    test = found.summary.get("test")
    if test is None:
        return report
    means = [
        f"[{name}]: {np.mean(test[key]):.2f} %" for name, key in (("Class-IL", "class_il"), ("Task-IL", "task_il"))
    ]
    return f"{report}\n\nAll of the above is on held-out training images. On the test set: {' '.join(means)}"


def _reported_metrics(directory: Path, summary: Mapping[str, Any]) -> tuple[Metrics, Metrics]:
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
