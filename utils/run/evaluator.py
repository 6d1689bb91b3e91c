"""The evaluations of a run: on which test sets, and where their results are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from utils.conf import warn_once
from utils.evaluate import Evaluation, evaluate_loaders
from utils.loggers import mean_accuracy_line
from utils.run.precision import autocast
from utils.run.session import Session
from utils.status import say

TASK_END, WITHIN_TASK, FINAL = "task_end", "eval", "final_test"  # events of `metrics.jsonl`


class Evaluator:
    """Evaluates the model of a session as it is now."""

    def __init__(self, session: Session):
        self.session, self.model, self.dataset, self.args = session, session.model, session.dataset, session.args

    def seen_tasks(self) -> Evaluation:
        """On the test sets of all tasks seen."""
        max_batches = self.model.get_debug_iters() + 1 if self.args.debug_mode else None
        return self._on(self.dataset.test_loaders, max_batches)

    def true_test_sets(self) -> Evaluation:
        """With `--validation` a run is judged on held-out training images; these are the real test sets."""
        return self._on(self.dataset.true_test_loaders()[: len(self.dataset.test_loaders)])

    def before_training(self, task: int) -> tuple[float, float]:
        """Accuracy on a task not trained yet, class-il among the classes up to its own (for forward transfer)."""
        loader, classes = self.dataset.make_test_loader(task), self.dataset.get_offsets(task)
        try:
            with autocast(self.model.device, self.args.code_optimization):
                result = evaluate_loaders(self.model, [loader], [classes])
        except Exception as error:  # whatever its forward raises; if it is broken, the next evaluation tells
            warn_once(
                f"no forward transfer: {self.model.NAME} can't predict a task before training it "
                f"({type(error).__name__}: {error})"
            )
            return np.nan, np.nan
        return result.class_il[0], result.task_il[0]

    def log(self, evaluation: Evaluation, event: str, epoch: int | None = None) -> None:
        """To `metrics.jsonl`, wandb and the console."""
        class_il, task_il, position = evaluation.class_il, evaluation.task_il, self.session.position
        self.session.metrics.event(event, class_il=class_il, task_il=task_il)
        prefix = "FINAL" if event == FINAL else "RESULT"
        self.session.wandb.log_accuracy(position.task, class_il, task_il, position.step, epoch, prefix)
        say(("On the test set: " if event == FINAL else "") + mean_accuracy_line(class_il, task_il))

    def _on(self, loaders: Sequence[Any], max_batches: int | None = None) -> Evaluation:
        ranges = [self.dataset.eval_offsets(k) for k in range(len(loaders))]
        with autocast(self.model.device, self.args.code_optimization):
            return evaluate_loaders(self.model, loaders, ranges, max_batches)
