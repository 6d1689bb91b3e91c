"""The training loop: tasks → epochs → steps, with the hooks of the method and an evaluation after each task.

What a run consists of, and how it is left and entered again between two steps, is in `utils.run.session`.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from utils.batch_norm import single_images_explained
from utils.checkpoints import mammoth_load_checkpoint
from utils.errors import UserError
from utils.resume.signals import StopSignals
from utils.run.directory import RunDirectory
from utils.run.evaluator import FINAL, TASK_END, WITHIN_TASK, Evaluator
from utils.run.hand_over import hand_over, take_over
from utils.run.pace import Pace, steps_after_task
from utils.run.precision import autocast
from utils.run.session import Session
from utils.schedulers import task_epochs
from utils.status import Progress, say


def train(
    model: Any, dataset: Any, args: Namespace | None = None, signals: StopSignals | None = None
) -> dict[str, Any]:
    """Train, or continue to train, the run that `args` describe; returns its summary."""
    args = args or model.args
    with RunDirectory(args) as directory, signals or StopSignals() as signals:
        if (summary := directory.finished()) is not None:
            return summary
        return Trainer(Session(model, dataset, args, directory, signals)).run()


class Trainer:
    """The loop over the tasks, epochs and steps of a session."""

    def __init__(self, session: Session):
        self.session = session
        self.model, self.dataset, self.args = session.model, session.dataset, session.args
        self.position, self.guard = session.position, session.guard
        self.evaluator, self._pace = Evaluator(session), Pace(session)
        self._measures = bool(self.args.dgc_diagnostics or self.args.loss_diagnostics)
        self._autocast = autocast(self.model.device, self.args.code_optimization)  # entered anew by every step

    def run(self) -> dict[str, Any]:
        """All tasks from the beginning, or from the last checkpoint; returns the summary."""
        with self.session as session:
            self.evaluator.look_ahead()
            if not session.resume():
                self._begin_run()
            with self.guard, single_images_explained(self.position.step_under_way):
                while self.position.task < session.end:
                    self._task()
            return self._finish()

    def _begin_run(self) -> None:
        self.session.begin()
        if self.args.enable_other_metrics:
            for task in range(self.dataset.N_TASKS):
                self.session.accuracies.untrained[:, task] = self.evaluator.before_training(task)
        if self.args.loadcheck and self.position.task and take_over(self.session):
            return
        for _ in range(self.position.task):  # skipped by --start_from
            self.session.next_data()
            self._hook(self.model.meta_begin_task, self.dataset)
            self._hook(self.model.meta_end_task, self.dataset)
        if self.args.loadcheck:  # after the hooks, which must not touch what is handed over
            mammoth_load_checkpoint(self.args.loadcheck, self.model)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def _task(self) -> None:
        session, task = self.session, self.position.task
        with session.timing.measure("train", task):
            if not self.position.in_task:
                self.begin_task()
            if not self.args.inference_only:
                self.fit()
            self._pace.end_task()
            self.end_task()
        with session.timing.measure("eval", task):
            self._evaluate_task()
        self.position.end_task()
        session.between_tasks()

    def begin_task(self) -> None:
        session, task = self.session, self.position.task
        self.model.net.train()
        if self.args.enable_other_metrics:
            session.accuracies.before[:, task] = self.evaluator.before_training(task)
        session.next_data()
        self._hook(self.model.meta_begin_task, self.dataset)
        self.position.begin_task()
        session.metrics.begin_task(task)
        if self.args.task_free:
            if not self.args.task_free_lr_restart:
                return
            for group in self.model.opt.param_groups:  # the optimizer lives on: only its learning rate goes back
                group["lr"] = self.args.lr
        session.method.schedule.begin(session.steps_per_epoch(), task)

    def end_task(self) -> None:
        self.guard.check()
        self._hook(self.model.meta_end_task, self.dataset)

    def _hook(self, hook: Callable[..., None], *args: Any) -> None:
        """Call a hook of the method; a task-free run has none, because they tell where tasks begin and end."""
        if not self.args.task_free:
            hook(*args)

    # -- epochs and steps ----------------------------------------------------------------------------------------------

    def fit(self) -> None:
        """Train on the current task."""
        session, position, total = self.session, self.position, self.session.steps_in_task()
        with Progress(
            position.task,
            self.dataset.N_TASKS,
            self._epochs_in_task(),
            total if total < sys.maxsize else None,
            session.metrics.latest_loss,
            position.task_step,
            enabled=not self.args.non_verbose,
            steps_after=steps_after_task(session),
        ) as bar:
            for _ in self.steps():
                bar.begin_epoch(position.epoch)
                bar.step()
                self._pace.step()
                session.between_steps()

    def steps(self) -> Iterator[None]:
        """Make the steps of the current task that are left; between two of them the run can be left."""
        position, total, epochs = self.position, self.session.steps_in_task(), self._epochs_in_task()
        if self.session.steps_per_epoch() == 0:
            raise UserError(
                f"--drop_last 1 with --batch_size {self.args.batch_size} leaves no batch of the "
                f"{len(self.session.loader.dataset)} images of task {position.task + 1}; use a smaller --batch_size"
            )
        while position.in_epoch or (position.task_step < total if epochs is None else position.epoch < epochs):
            yield from self._epoch(total)

    def _epochs_in_task(self) -> int | None:
        return None if self.args.fitting_mode == "iters" else task_epochs(self.args, self.position.task)

    def _epoch(self, total: int) -> Iterator[None]:
        session, position = self.session, self.position
        if not position.in_epoch:
            position.begin_epoch()
            self._hook(self.model.meta_begin_epoch, position.epoch, self.dataset)
        session.metrics.begin_epoch(position.epoch)
        batches, steps = iter(session.loader), session.steps_per_epoch()
        while position.epoch_step < steps and position.task_step < total:
            batch = next(batches, None)
            if batch is None:
                break
            if self._measures:
                self._diagnose()
            self._step(batch)
            yield
        self._end_epoch(total)

    def _diagnose(self) -> None:
        """Before a step and after the checkpoint that may have been taken there: a resumed run measures again."""
        session, position = self.session, self.position
        measured = {}
        if session.diagnostics.due(position.task, position.task_step):
            measured["diagnostics"] = session.diagnostics.measure(position.task, position.step)
        if session.whole_loss.due(position.task_step):
            measured["whole_loss"] = session.whole_loss.measure(position.task)
        for name, values in measured.items():
            session.metrics.event(name, **values)
            session.wandb.log_values(name, values, position.step)

    def _step(self, batch: tuple[Any, ...]) -> None:
        extra = {} if self.args.task_free else {"epoch": self.position.epoch}  # epochs count hidden tasks
        if len(batch) > 3:  # fields that a method has attached to the training set are passed by their names
            names = getattr(self.session.loader.dataset, "extra_return_fields", ())
            extra |= zip(names, batch[3:], strict=False)
        self.guard.terms = {}
        with self._autocast:
            result = self.model.meta_observe(*batch[:3], **extra)
        values = self._step_values(result)
        values["lr"] = self.model.opt.param_groups[0]["lr"]
        if self.args.scheduler_mode == "iter":
            self.session.method.schedule.step()
        self.position.count_step()
        self.session.metrics.add_step(values)
        self.session.timing.step(len(batch[1]))

    def _step_values(self, result: Any) -> dict[str, Any]:
        """The numbers that `observe` has returned, and the loss terms that the guard has seen."""
        if result is None:
            raise UserError(f"observe of {self.args.model} has returned nothing; it must return the loss of its step")
        given = result if isinstance(result, dict) else {"loss": result}
        values = {name: _without_graph(value) for name, value in given.items() if _is_number(value)}
        for name, term in self.guard.terms.items():
            values.setdefault(name, term)
        if not self.guard.on_device:  # on the host a number costs nothing
            values["loss"] = float(values["loss"])
            self.guard.check(values["loss"])
        return values

    def _end_epoch(self, total: int) -> None:
        position, every = self.position, self.args.eval_epochs
        if self.args.scheduler_mode == "epoch":
            self.session.method.schedule.step()
        self._hook(self.model.meta_end_epoch, position.epoch, self.dataset)
        position.end_epoch()
        if every and position.epoch % every == 0 and position.task_step < total:
            self.evaluator.log(self.evaluator.seen_tasks(), WITHIN_TASK, epoch=position.epoch)

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def _evaluate_task(self) -> None:
        session, evaluation = self.session, self.evaluator.seen_tasks()
        self._hook(self.model.meta_end_eval, self.dataset, (evaluation.class_il, evaluation.task_il))
        session.accuracies.add(evaluation)
        session.accuracies.write(session.directory.path)
        self.evaluator.log(evaluation, TASK_END)
        session.wandb.log_matrix(session.accuracies.class_il, self.position.step)
        last = self.position.task + 1 == session.end
        if self.args.savecheck == "task" or (self.args.savecheck == "last" and last):
            hand_over(session)

    def _finish(self) -> dict[str, Any]:
        if self.args.eval_future and (transfer := self.evaluator.average_transfer()) is not None:
            say(f"Average transfer, the mean accuracy on tasks still to come: {transfer:.2f} %")
        if not self.args.validation:
            return self.session.finish()
        final = self.evaluator.true_test_sets()
        self.evaluator.log(final, FINAL)
        return self.session.finish(test={"class_il": final.class_il, "task_il": final.task_il})


def _without_graph(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _is_number(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, torch.Tensor) else isinstance(value, int | float | np.number)
