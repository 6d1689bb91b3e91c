"""The accuracy matrices of a run, growing by one row per finished task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from utils.evaluate import Evaluation
from utils.metrics import summarise
from utils.run.write_results import write_accuracy, write_confusion, write_per_class


class Accuracies:
    """a[k, j] for class-il and task-il, per-class accuracies, and the last confusion matrix.

    `untrained[:, j]` and `before[:, j]` are the accuracies (class-il, task-il) on task j of the untrained network and
    of the one that is about to train it; they are measured only for forward transfer.
    """

    ARRAYS = ("class_il", "task_il", "per_class", "confusion", "untrained", "before")

    def __init__(self, n_tasks: int, n_classes: int):
        self.class_il = np.full((n_tasks, n_tasks), np.nan)
        self.task_il = np.full((n_tasks, n_tasks), np.nan)
        self.per_class = np.full((n_tasks, n_classes), np.nan)
        self.confusion = np.zeros((n_classes, n_classes), dtype=np.int64)
        self.untrained = np.full((2, n_tasks), np.nan)
        self.before = np.full((2, n_tasks), np.nan)

    def add(self, evaluation: Evaluation) -> None:
        """The row of the last task that was evaluated."""
        k, n = len(evaluation.class_il) - 1, len(evaluation.class_il)
        self.class_il[k, :n], self.task_il[k, :n] = evaluation.class_il, evaluation.task_il
        self.per_class[k] = evaluation.per_class().numpy()
        self.confusion = evaluation.confusion.numpy()

    def metrics(self) -> tuple[dict[str, float | None], dict[str, float | None]]:
        """FAA, FAIA, FF, BWT and FWT for class-il and task-il; None where undefined."""
        matrices = (self.class_il, self.task_il)
        class_il, task_il = (summarise(a, self.before[i], self.untrained[i]) for i, a in enumerate(matrices))
        return class_il, task_il

    def write(self, directory: Path) -> None:
        untrained = None if np.isnan(self.untrained).all() else (self.untrained[0], self.untrained[1])
        class_il, task_il = self.class_il.copy(), self.task_il.copy()
        for task in np.flatnonzero(~np.isnan(self.before[0, 1:])):  # a[i−1, i], where it was measured
            class_il[task, task + 1], task_il[task, task + 1] = self.before[:, task + 1]
        write_accuracy(directory / "accuracy.csv", class_il, task_il, untrained)
        write_per_class(directory / "per_class.csv", self.per_class)
        write_confusion(directory / "confusion.csv", self.confusion)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(getattr(self, name)) for name in self.ARRAYS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.ARRAYS:
            setattr(self, name, state[name].numpy())
