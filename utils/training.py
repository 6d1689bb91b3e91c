"""The training loop: tasks → epochs → steps, evaluation after each task, and checkpoints between steps.

Everything that a run consists of is in `Trainer._state()`: what is not in there can't matter to what comes after.
"""

from __future__ import annotations

import logging
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from reprlib import repr as shortened
from typing import Any
from weakref import ref

import numpy as np
import torch

from utils.checkpoints import mammoth_load_checkpoint, save_mammoth_checkpoint
from utils.cli.flags import role
from utils.conf import warn_once
from utils.errors import START_AGAIN, UserError
from utils.evaluate import Evaluation, evaluate_loaders
from utils.loggers import MetricsLog, mean_accuracy_line
from utils.resume import store
from utils.resume.guard import NonFiniteGuard
from utils.resume.rng import global_rng_state, set_global_rng_state
from utils.resume.signals import StopSignals
from utils.resume.state import pack, unpack
from utils.run.accuracies import Accuracies
from utils.run.diagnostics import Diagnostics
from utils.run.directory import RunDirectory
from utils.run.environment import as_begun, environment
from utils.run.hand_over import continued_state, load_weights
from utils.run.identity import model_name
from utils.run.memory import stored_bytes
from utils.run.pace import FirstSteps, opening_lines
from utils.run.precision import autocast
from utils.run.read_results import DamagedRun, read_environment
from utils.run.timing import Timing
from utils.run.wandb_logger import WandbLogger
from utils.run.write_results import write_json, write_summary
from utils.schedulers import TaskSchedule, task_epochs, task_steps
from utils.status import Progress, say

GUARD_EVERY = 50  # steps between looks at the guard's flag on a GPU
PLAIN = (type(None), bool, int, float, str, list)
CHECKPOINT_SHARE = 0.01  # of the time, at most, for the checkpoints after tasks that take seconds


class Stopped(SystemExit):
    """A signal ended the run between two steps, after a checkpoint; the exit code is 128 + the signal's number."""


@dataclass
class Position:
    """Where a run stands; all counted from 0. `in_task` is set between a task's begin and end."""

    task: int = 0
    in_task: bool = False
    epoch: int = 0
    in_epoch: bool = False
    epoch_step: int = 0
    task_step: int = 0
    step: int = 0

    def restore(self, values: Any) -> None:
        """Nothing but these fields, each with a value of its kind: the values come from a file."""
        kinds = {field.name: type(field.default) for field in fields(self)}
        if not isinstance(values, dict) or {n: type(v) for n, v in values.items()} != kinds or min(values.values()) < 0:
            raise ValueError(f"position is {shortened(values)}")
        vars(self).update(values)

    def __str__(self) -> str:
        """With the steps made in the task, as the progress bar counts them."""
        if not self.in_task:
            return f"task {self.task + 1}, before its first step"
        return f"task {self.task + 1}, epoch {self.epoch + 1}, step {self.task_step}"

    def step_under_way(self) -> str:
        return f"task {self.task + 1}, epoch {self.epoch + 1}, step {self.task_step + 1}"


def train(model: Any, dataset: Any, args: Namespace | None = None) -> dict[str, Any]:
    """Train, or go on with, the run that `args` describe; returns its summary."""
    args = args or model.args
    with RunDirectory(args) as run, StopSignals() as signals:
        if (summary := run.finished()) is not None:
            return summary
        return Trainer(model, dataset, args, run, signals).run()


def _is_number(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, torch.Tensor) else isinstance(value, int | float | np.number)


@contextmanager
def _single_images_explained(position: Position) -> Iterator[None]:
    """Of the one image that BatchNorm was given, say what it can come from."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UserError(
            f"BatchNorm can't normalise a batch of a single image ({position.step_under_way()}): use --drop_last 1, "
            "another --batch_size or, if the memory has just one, a larger --buffer_size"
        ) from error


def _flags_of_methods(flags: dict[str, Any]) -> dict[str, Any]:
    """Flags that a model may change. Where a run reads and writes is not up to it, nor to a file from elsewhere."""
    return {n: v for n, v in flags.items() if role(n).hashed and isinstance(v, PLAIN)}


class Trainer:
    """One run from its beginning, or from its last checkpoint, to its summary."""

    def __init__(self, model: Any, dataset: Any, args: Namespace, run: RunDirectory, signals: StopSignals):
        self.model, self.dataset, self.args, self.run_directory, self.signals = (model, dataset, args, run, signals)
        self.position = Position(task=args.start_from or 0)
        self.end = args.stop_after or dataset.N_TASKS
        self.guard = NonFiniteGuard(model, on_device=model.device.type != "cpu")
        self.guard.where = self.position.step_under_way
        self.schedule = TaskSchedule(model, args)
        self.loader: Any = None  # of the current task
        self.accuracies = Accuracies(dataset.n_eval_tasks, dataset.N_CLASSES)
        self.timing = Timing()
        self.diagnostics = Diagnostics(model, dataset, args.dgc_diagnostics)
        self.wandb = WandbLogger(
            args, run.hash, run.config, args.wandb_group or args.dataset, args.wandb_tags, run.path
        )
        self.metrics = MetricsLog(run.path / "metrics.jsonl", self.wandb.log_window)
        self.first_steps = FirstSteps(self.metrics.latest_loss)
        self._checkpoint_at, self._task_checkpoint_at = float("inf"), 0.0
        self._first_flags = dict(vars(args))
        self._uncaptured: list[str] = []  # parts of the model that can't be saved, and of which that was said
        self._train_loaders: list[Any] = []  # of all tasks so far; weak references, because a model may let them go

    # -- the run -----------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        state = store.load(self.run_directory.path)
        if state is None:
            return self._run(None)
        with as_begun(self.run_directory.path, environment()):
            return self._run(state)

    def _run(self, state: dict[str, Any] | None) -> dict[str, Any]:
        if state is not None:
            if missing := self._state().keys() - set(state if isinstance(state, dict) else ()):
                raise UserError(
                    f"cannot resume {self.run_directory.path}: another version of this code wrote its checkpoint "
                    f"(it lacks {', '.join(sorted(missing))}); {START_AGAIN}"
                )
            with store.misfits_explained(f"the checkpoint in {self.run_directory.path}"):
                self._restore(state)
            self._restore_environment()
            say(f"Resuming {self.run_directory.path} at {self.position}")
        else:
            self._begin_run()
        self._schedule_checkpoint()
        try:
            with self.guard, _single_images_explained(self.position):
                while self.position.task < self.end:
                    self._task()
            return self._finish()
        finally:
            self.metrics.close()
            self.wandb.finish(exit_code=int(self.position.task < self.end))

    def _begin_run(self) -> None:
        self._pack_model()  # says what can't be saved
        write_json(self.run_directory.path / "environment.json", environment())
        if self.args.enable_other_metrics:
            for task in range(self.dataset.N_TASKS):
                self.accuracies.untrained[:, task] = self._accuracy_before_training(task)
        if self.args.loadcheck and self.position.task:
            self._take_over()
        else:
            self._pass_over_tasks()
            if self.args.loadcheck:
                mammoth_load_checkpoint(self.args.loadcheck, self.model)

    def _restore_environment(self) -> None:
        """What was lost is written again, although by now it may be another machine's: no run is finished without."""
        try:
            read_environment(self.run_directory.path)
        except DamagedRun:
            write_json(self.run_directory.path / "environment.json", environment())

    def _take_over(self) -> None:
        args, config = self.args, self.run_directory.config
        state = continued_state(args.loadcheck, self.position.task, config, training=not args.inference_only)
        if state is not None:
            loaders = self._data_so_far()
            with store.misfits_explained(args.loadcheck):
                self._restore_method(state)
            del loaders
        else:
            load_weights(args.loadcheck, self.model)
            self._pass_over_tasks()
            mammoth_load_checkpoint(args.loadcheck, self.model)  # again: the hooks must not touch what is handed over

    def _pass_over_tasks(self) -> None:
        """`--start_from`: without training on them."""
        for _ in range(self.position.task):
            self._begin_task_hooks()
            if not self.args.task_free:
                self.model.meta_end_task(self.dataset)

    def _task(self) -> None:
        with self.timing.measure("train", self.position.task):
            if not self.position.in_task:
                self._begin_task()
            if not self.args.inference_only:
                self._fit()
            if self.first_steps.end():
                self._say_how_long()
            self.guard.check()
            if not self.args.task_free:
                self.model.meta_end_task(self.dataset)
        with self.timing.measure("eval", self.position.task):
            self._evaluate_task()
        self.position.task += 1
        self.position.in_task = False
        if self.position.task == self.end or time.monotonic() >= self._task_checkpoint_at:
            self._checkpoint()
        self._stop_if_asked()

    def _begin_task(self) -> None:
        self.model.net.train()
        if self.args.enable_other_metrics:
            self.accuracies.before[:, self.position.task] = self._accuracy_before_training(self.position.task)
        self._begin_task_hooks()
        self.position.in_task, self.position.epoch, self.position.task_step = True, 0, 0
        self.metrics.begin_task(self.position.task)
        if not self.args.task_free or self.args.task_free_lr_restart:
            self._begin_schedule()

    def _begin_task_hooks(self) -> None:
        self._next_data()
        if not self.args.task_free:
            self.model.meta_begin_task(self.dataset)

    def _next_data(self) -> None:
        """The next task's loader, which stays the same whatever a method puts into `dataset.train_loader`."""
        self.dataset.get_data_loaders()
        self._train_loaders.append(ref(self.dataset.train_loader))
        self.loader = self.dataset.resumable_loader()
        self.diagnostics.keep(self.loader.dataset)

    def _begin_schedule(self) -> None:
        if self.args.task_free:  # the optimizer lives on: only its learning rate goes back
            for group in self.model.opt.param_groups:
                group["lr"] = self.args.lr
        self.schedule.begin(self._steps_per_epoch(), self.position.task)

    # -- epochs and steps ----------------------------------------------------------------------------------------

    def _steps_per_epoch(self) -> int:
        try:
            length = len(self.loader)
        except TypeError:  # a stream of batches, which ends when it ends
            length = sys.maxsize
        return self._limited(length)

    def _limited(self, steps_per_epoch: int) -> int:
        """`--debug_mode` makes a few of them."""
        return min(steps_per_epoch, self.model.get_debug_iters() + 1) if self.args.debug_mode else steps_per_epoch

    def _fit(self) -> None:
        """Train on the current task; a resumed run enters in the middle."""
        position, total = self.position, self._steps_in_task()
        if self._steps_per_epoch() == 0:
            images = len(self.loader.dataset)
            raise UserError(
                f"--drop_last 1 with --batch_size {self.args.batch_size} leaves no batch of the {images} images of "
                f"task {position.task + 1}; use a smaller --batch_size"
            )
        epochs = None if self.args.fitting_mode == "iters" else task_epochs(self.args, position.task)
        with Progress(
            position.task,
            self.dataset.N_TASKS,
            epochs,
            total if total < sys.maxsize else None,
            self.metrics.latest_loss,
            position.task_step,
            enabled=not self.args.non_verbose,
            steps_after=self._steps_after_task(),
        ) as bar:
            while position.in_epoch or (position.task_step < total if epochs is None else position.epoch < epochs):
                bar.begin_epoch(position.epoch)
                self._epoch(bar, total)

    def _steps_in_task(self) -> int:
        return task_steps(self.args, self._steps_per_epoch(), self.position.task)

    def _steps_after_task(self) -> int:
        """Of all later tasks, by their images; a dataset that makes its own loaders is taken to have tasks of a size.
        What a method adds to a training set (exemplars) is not in it before the task begins."""
        later = range(self.position.task + 1, self.end)
        images = self.dataset.images_per_task()
        if images is None or self.args.fitting_mode == "iters":
            return sum(task_steps(self.args, self._steps_per_epoch(), task) for task in later)
        size, drop_last = self.args.batch_size, self.args.drop_last
        epochs = [images[task] // size if drop_last else -(-images[task] // size) for task in later]
        return self.args.n_epochs * sum(map(self._limited, epochs))

    def _say_how_long(self) -> None:
        position, in_task = self.position, 0 if self.args.inference_only else self._steps_in_task()
        later = 0 if self.args.inference_only else self._steps_after_task()
        steps = None if in_task >= sys.maxsize else position.step - position.task_step + in_task + later
        seconds, threads = self.first_steps.seconds_per_step(), torch.get_num_threads()
        for line in opening_lines(self.args, threads, steps, position.step - self.first_steps.steps, seconds):
            say(line)

    def _epoch(self, bar: Progress, total: int) -> None:
        position, model, args = self.position, self.model, self.args
        if not position.in_epoch:
            position.in_epoch, position.epoch_step = True, 0
            if not args.task_free:
                model.meta_begin_epoch(position.epoch, self.dataset)
        self.metrics.begin_epoch(position.epoch)
        batches = iter(self.loader)
        # A task-free model gets no epoch: epochs count hidden tasks.
        extra = {} if args.task_free else {"epoch": position.epoch}
        steps = self._steps_per_epoch()
        while position.epoch_step < steps and position.task_step < total:
            batch = next(batches, None)
            if batch is None:
                break
            self._diagnose()
            self._step(batch, extra)
            bar.step()
            if self.first_steps.step():
                self._say_how_long()
            self._between_steps()
        self._end_epoch(total)

    def _diagnose(self) -> None:
        """Before a step and after the checkpoint that may have been taken there: a resumed run measures again."""
        position = self.position
        if self.diagnostics.due(position.task, position.task_step):
            values = self.diagnostics.measure(position.task, position.step)
            self.metrics.event("diagnostics", **values)
            self.wandb.log_values("diagnostics", values, position.step)

    def _step(self, batch: tuple[Any, ...], extra: dict[str, Any]) -> None:
        """Fields that a method has attached to the training set are passed by their names."""
        names = getattr(self.loader.dataset, "extra_return_fields", ())
        extra = extra | dict(zip(names, batch[3:], strict=False))
        self.guard.terms = {}
        with autocast(self.model.device, self.args.code_optimization):
            result = self.model.meta_observe(*batch[:3], **extra)
        if result is None:
            raise UserError(f"observe of {self.args.model} has returned nothing; it must return the loss of its step")
        values = dict(result) if isinstance(result, dict) else {"loss": result}
        values = {name: value for name, value in values.items() if _is_number(value)}
        values |= {name: term for name, term in self.guard.terms.items() if name not in values}
        if not self.guard.on_device:  # on the host a number costs nothing
            values["loss"] = float(values["loss"])
            self.guard.check(values["loss"])
        values["lr"] = self.model.opt.param_groups[0]["lr"]
        if self.args.scheduler_mode == "iter":
            self.schedule.step()
        self.position.epoch_step += 1
        self.position.task_step += 1
        self.position.step += 1
        self.metrics.add_step(values)
        self.timing.step(len(batch[1]))

    def _between_steps(self) -> None:
        """The only place inside a task where a run can be left and entered again."""
        step = self.position.step
        if self.guard.on_device and step % GUARD_EVERY == 0:
            self.guard.check()
        every = self.args.checkpoint_every
        if (every and step % every == 0) or time.monotonic() >= self._checkpoint_at:
            self._checkpoint()
        self._stop_if_asked()

    def _end_epoch(self, total: int) -> None:
        position = self.position
        if self.args.scheduler_mode == "epoch":
            self.schedule.step()
        if not self.args.task_free:
            self.model.meta_end_epoch(position.epoch, self.dataset)
        position.epoch += 1
        position.in_epoch = False
        every = self.args.eval_epochs
        if every and position.epoch % every == 0 and position.task_step < total:
            evaluation = self._evaluate()
            self._log_evaluation(evaluation, position.epoch)

    # -- evaluation ------------------------------------------------------------------------------------------------

    def _evaluate(self) -> Evaluation:
        """On the test sets of all tasks seen."""
        max_batches = self.model.get_debug_iters() + 1 if self.args.debug_mode else None
        return self._evaluate_on(self.dataset.test_loaders, max_batches)

    def _evaluate_on(self, loaders: Sequence[Any], max_batches: int | None = None) -> Evaluation:
        ranges = [self.dataset.eval_offsets(k) for k in range(len(loaders))]
        with autocast(self.model.device, self.args.code_optimization):
            return evaluate_loaders(self.model, loaders, ranges, max_batches)

    def _evaluate_task(self) -> None:
        evaluation = self._evaluate()
        if not self.args.task_free:
            self.model.meta_end_eval(self.dataset, (evaluation.class_il, evaluation.task_il))
        self.accuracies.add(evaluation)
        self.accuracies.write(self.run_directory.path)
        self._log_evaluation(evaluation)
        self.wandb.log_matrix(self.accuracies.class_il, self.position.step)
        if self.args.savecheck == "task" or (self.args.savecheck == "last" and self.position.task + 1 == self.end):
            self._hand_over()

    def _log_evaluation(self, evaluation: Evaluation, epoch: int | None = None, event: str = "eval") -> None:
        class_il, task_il = evaluation.class_il, evaluation.task_il
        self.metrics.event(
            "task_end" if epoch is None and event == "eval" else event, class_il=class_il, task_il=task_il
        )
        prefix = "FINAL" if event == "final_test" else "RESULT"
        self.wandb.log_accuracy(self.position.task, class_il, task_il, self.position.step, epoch, prefix)
        say(("On the test set: " if event == "final_test" else "") + mean_accuracy_line(class_il, task_il))

    def _accuracy_before_training(self, task: int) -> tuple[float, float]:
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

    def _finish(self) -> dict[str, Any]:
        """Write the result files; `summary.json` comes last, because its presence says that the run is finished."""
        path, args = self.run_directory.path, self.args
        class_il, task_il = self.accuracies.metrics()
        n_tasks = self.dataset.n_eval_tasks if args.joint else self.end
        test = self._evaluate_on_test_set() if args.validation else None
        self.metrics.event("summary", class_il=class_il, task_il=task_il)
        self.wandb.log_summary(class_il, task_il, self.timing.seconds["train"])
        self.accuracies.write(path)
        write_json(path / "timing.json", self.timing.report())
        write_summary(
            path / "summary.json",
            class_il,
            task_il,
            model=model_name(args),
            dataset=args.dataset,
            seed=args.seed,
            config_hash=self.run_directory.hash,
            n_tasks=n_tasks,
            steps=self.position.step,
            parameters=sum(p.numel() for p in self.model.net.parameters()),
            stored_bytes=stored_bytes(self.model, self._belongings()),
            test=test,
        )
        return self.run_directory.finished() or {}

    def _evaluate_on_test_set(self) -> dict[str, list[float]]:
        """With `--validation` the run was judged on held-out training images; this is the real test set."""
        evaluation = self._evaluate_on(self.dataset.true_test_loaders()[: len(self.dataset.test_loaders)])
        self._log_evaluation(evaluation, event="final_test")
        return {"class_il": evaluation.class_il, "task_il": evaluation.task_il}

    def _hand_over(self) -> None:
        rows = [
            [row[~np.isnan(row)].tolist() for row in a] for a in (self.accuracies.class_il, self.accuracies.task_il)
        ]
        scheduler = self.schedule.state_dict()["own"]
        task = self.position.task
        saved = save_mammoth_checkpoint(
            task,
            self.end,
            self.args,
            self.model,
            rows,
            self.model.opt.state_dict(),
            scheduler,
            state={"tasks": task + 1, "config": self.run_directory.config, **self._method_state()},
        )
        say(f"Saved for --loadcheck: {saved}")

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _schedule_checkpoint(self) -> None:
        minutes = self.args.checkpoint_minutes
        self._checkpoint_at = time.monotonic() + 60 * minutes if minutes else float("inf")

    def _checkpoint(self) -> None:
        self.guard.check()  # a step that was masked on the device must stop the run, not be saved as its state
        start = time.monotonic()
        store.save(self.run_directory.path, self._state())
        self._schedule_checkpoint()
        now = time.monotonic()
        self._task_checkpoint_at = now + (now - start) / CHECKPOINT_SHARE

    def _stop_if_asked(self) -> None:
        if self.signals.received is not None and self.position.task < self.end:
            self._checkpoint()
            say(f"Stopped at {self.position}; `--resume {self.run_directory.path}` goes on from there")
            raise Stopped(self.signals.exit_code)

    def _state(self) -> dict[str, Any]:
        loader = self.loader if self.position.in_task else None
        return {
            "hash": self.run_directory.hash,
            "position": asdict(self.position),
            **self._method_state(),
            "edits": self._edits(),
            "loader": loader.state_dict() if loader is not None else None,
            "metrics": self.metrics.state_dict(),
            "accuracies": self.accuracies.state_dict(),
            "timing": self.timing.state_dict(),
        }

    def _method_state(self) -> dict[str, Any]:
        """What also another run needs to train the next task as this one would."""
        return {
            "flags": self._changed_flags(),
            "model": self._pack_model(),
            "schedule": self.schedule.state_dict(),
            "streams": self.dataset.streams.state_dict(),
            "global_rng": global_rng_state(),
        }

    def _edits(self) -> Any:
        """What a method has added to the training set of the task: exemplars, or a field of its own."""
        return self.loader.dataset.edits() if self.position.in_task and hasattr(self.loader.dataset, "edits") else None

    def _changed_flags(self) -> dict[str, Any]:
        """Flags to which the model has given another value after its construction."""
        return {n: v for n, v in _flags_of_methods(vars(self.args)).items() if v != self._first_flags.get(n)}

    def _belongings(self) -> dict[str, Any]:
        """What belongs to the dataset: a model that holds such a thing gets the same one back when it is resumed."""
        things: dict[str, Any] = {}
        for task, reference in enumerate(self._train_loaders):
            for name in ("dataset", "transform", "generator"):
                things[f"train_loader[{task}].{name}"] = getattr(reference(), name, None)
            things[f"train_loader[{task}]"] = reference()
        return {name: thing for name, thing in things.items() if thing is not None}

    def _pack_model(self) -> dict[str, Any]:
        packed = pack(self.model, known=self._belongings())
        if new := [name for name in packed["uncaptured"] if name not in self._uncaptured]:
            logging.warning("an interrupted run will not resume exactly: %s can't be saved", ", ".join(new))
            self._uncaptured += new
        return packed

    def _restore(self, state: dict[str, Any]) -> None:
        """The inverse of `_state`."""
        self.position.restore(state["position"])
        if self.position.task > self.end:
            raise ValueError(f"task {self.position.task + 1} of {self.end}")
        loaders = self._data_so_far()
        if state["edits"] is not None:
            self.loader.dataset.redo(state["edits"])
        if state["loader"] is not None:
            # At the end of an epoch there is nothing to go on with: the next one draws its own permutation.
            inside = self.position.in_epoch and self.position.epoch_step < self._steps_per_epoch()
            self.loader.load_state_dict(state["loader"], go_on=inside)
        self.accuracies.load_state_dict(state["accuracies"])
        self.timing.load_state_dict(state["timing"])
        self.metrics.load_state_dict(state["metrics"])
        self._restore_method(state)
        del loaders

    def _data_so_far(self) -> list[Any]:
        """The loaders of all tasks begun, to be held until the model is restored, which may have held them."""
        loaders = []
        for _ in range(self.position.task + self.position.in_task):
            self._next_data()
            loaders.append(self.dataset.train_loader)
        return loaders

    def _restore_method(self, state: dict[str, Any]) -> None:
        """The inverse of `_method_state`. Random generators come last: building the rest may draw from them."""
        if state["schedule"]["own"] is not None:
            self.schedule.begin(self._steps_per_epoch(), self.position.task)
        vars(self.args).update(_flags_of_methods(state["flags"]))
        unpack(self.model, state["model"], self._belongings())
        self.schedule.load_state_dict(state["schedule"])
        self.dataset.streams.load_state_dict(state["streams"])
        set_global_rng_state(state["global_rng"])
