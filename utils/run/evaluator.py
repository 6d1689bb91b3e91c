"""The evaluations of a run: on which test sets, and where their results go."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from utils.conf import warn_once
from utils.evaluate import Evaluation, evaluate_loaders
from utils.loggers import mean_accuracy_line
from utils.mammoth.helpers import under_test
from utils.run.precision import autocast
from utils.run.session import Session
from utils.status import say

TASK_END, WITHIN_TASK, FINAL = "task_end", "eval", "final_test"  # events of `metrics.jsonl`


class Evaluator:
    """Evaluates the model of a session as it is now."""

    def __init__(self, session: Session):
        self.session, self.model, self.dataset, self.args = session, session.model, session.dataset, session.args

    def seen_tasks(self) -> Evaluation:
        """On the test sets of all tasks seen; with `--eval_future`, where the classes to come are no secret."""
        nested = self.args.validation_mode == "complete" and not self.dataset.shares_classes
        if nested:
            warn_once(
                "--validation_mode complete: test set k has all classes up to task k, so [Task-IL], which knows task k "
                "alone, has no meaning"
            )
        n_seen = self.dataset.N_CLASSES if self.args.eval_future else None
        return self._on(self.dataset.test_loaders, self._max_batches, n_seen=n_seen, nested=nested)

    def future_tasks(self) -> Evaluation | None:
        """On the test sets of the tasks to come, by the model's `future_forward`; None if there are none."""
        first = len(self.dataset.test_loaders)
        if not self.args.eval_future or first == len(self._future_loaders):
            return None
        forward, n_seen = self.model.future_forward, self.dataset.N_CLASSES
        return self._on(self._future_loaders, self._max_batches, first, n_seen=n_seen, forward=forward)

    def look_ahead(self) -> None:
        """With `--eval_future`, before a checkpoint is loaded: the model may change, as it does when a run begins."""
        if self.args.eval_future:
            _ = self._future_loaders

    @cached_property
    def _future_loaders(self) -> Sequence[Any]:
        """Loaders of a second dataset, which has handed out all tasks; the model may prepare for each."""
        ahead = self.dataset.again()
        for _ in range(self.dataset.N_TASKS):
            ahead.get_data_loaders()
            self.model.change_transform(ahead)
            ahead.train_loader = None
        return ahead.test_loaders

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
        future = self.future_tasks() if event != FINAL else None
        more = {} if future is None else {"future_class_il": future.class_il, "future_task_il": future.task_il}
        self.session.metrics.event(event, class_il=class_il, task_il=task_il, **more)
        prefix, wandb = "FINAL" if event == FINAL else "RESULT", self.session.wandb
        wandb.log_accuracy(position.task, class_il, task_il, position.step, epoch, prefix)
        line = mean_accuracy_line(class_il, task_il)
        say(("On the test set: " if event == FINAL else "") + line)
        if under_test():
            print(line, file=sys.stderr)
        if future is not None:
            wandb.log_future(position.task, future.class_il, future.task_il, position.step, epoch)
            say("Still to come: " + mean_accuracy_line(future.class_il, future.task_il))

    def average_transfer(self) -> float | None:
        """The mean over the tasks' ends of the mean accuracy on the tasks to come, as `metrics.jsonl` has them."""
        lines = map(json.loads, self.session.metrics.path.read_text(encoding="utf-8").splitlines())
        ends = [line["future_class_il"] for line in lines if line["event"] == TASK_END and "future_class_il" in line]
        return float(np.mean([np.mean(accuracies) for accuracies in ends])) if ends else None

    @property
    def _max_batches(self) -> int | None:
        return self.model.get_debug_iters() + 1 if self.args.debug_mode else None

    def _on(self, loaders: Sequence[Any], max_batches: int | None = None, first: int = 0, **options: Any) -> Evaluation:
        ranges = [self.dataset.eval_offsets(k) for k in range(first, len(loaders))]
        with autocast(self.model.device, self.args.code_optimization):
            return evaluate_loaders(self.model, loaders[first:], ranges, max_batches, first, **options)
