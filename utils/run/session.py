"""What a run consists of, and how it is left and entered again."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from utils.errors import START_AGAIN, UserError
from utils.loggers import MetricsLog
from utils.resume import store
from utils.resume.guard import NonFiniteGuard
from utils.resume.signals import StopSignals
from utils.run.accuracies import Accuracies
from utils.run.diagnostics import Diagnostics
from utils.run.directory import RunDirectory
from utils.run.environment import as_begun, environment
from utils.run.identity import model_name
from utils.run.memory import bytes_by_part
from utils.run.method_state import MethodState
from utils.run.position import Position
from utils.run.read_results import DamagedRun, read_environment
from utils.run.timing import Timing
from utils.run.wandb_logger import WandbLogger
from utils.run.whole_loss import WholeLoss
from utils.run.write_results import write_json, write_summary
from utils.schedulers import task_steps
from utils.status import say

GUARD_EVERY = 50  # steps between looks at the guard's flag on a GPU
CHECKPOINT_SHARE = 0.01  # of the time, at most, for the checkpoints after tasks that take seconds


class Stopped(SystemExit):
    """A signal ended the run between two steps, after a checkpoint; the exit code is 128 + the signal's number."""


class Session:
    """The parts of one run. Enter it to train: the logs are closed at its end.

    Everything that later steps depend on is in `state_dict()`: what is not in there can't matter to them.
    """

    def __init__(self, model: Any, dataset: Any, args: Namespace, directory: RunDirectory, signals: StopSignals):
        self.model, self.dataset, self.args, self.directory, self.signals = model, dataset, args, directory, signals
        self.position = Position(task=args.start_from or 0)
        self.end = min(args.stop_after or dataset.N_TASKS, dataset.N_TASKS)  # a joint run has one task
        self.loader: Any = None  # of the current task
        self.method = MethodState(model, dataset, args)
        self.guard = NonFiniteGuard(model, on_device=model.device.type != "cpu")
        self.guard.where = self.position.step_under_way
        self.accuracies = Accuracies(dataset.n_eval_tasks, dataset.N_CLASSES)
        self.timing = Timing()
        self.diagnostics = Diagnostics(model, args.dgc_diagnostics)
        self.whole_loss = WholeLoss(model, args.loss_diagnostics)
        self.wandb = WandbLogger(args, directory.hash, directory.config, directory.path)
        self.metrics = MetricsLog(directory.path / "metrics.jsonl", self.wandb.log_window)
        self._closing = ExitStack()
        self._checkpoint_at, self._task_checkpoint_at = float("inf"), 0.0

    def __enter__(self) -> Session:
        self._schedule_checkpoint()
        self._closing.callback(lambda: self.wandb.finish(exit_code=int(self.position.task < self.end)))
        self._closing.callback(self.metrics.close)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._closing.__exit__(*exception)

    # -- data ----------------------------------------------------------------------------------------------------------

    def next_data(self) -> None:
        """Make the next task's loader, which stays the same whatever a method puts into `dataset.train_loader`."""
        self.dataset.get_data_loaders()
        self.method.know(self.dataset.train_loader)
        self.loader = self.dataset.resumable_loader()
        for measuring in (self.diagnostics, self.whole_loss):
            measuring.keep(self.loader.dataset)

    def data_so_far(self) -> list[Any]:
        """The loaders of all tasks begun, to be held until the model is restored, which may have held them."""
        loaders = []
        for _ in range(self.position.task + self.position.in_task):
            self.next_data()
            loaders.append(self.dataset.train_loader)
        return loaders

    def steps_per_epoch(self) -> int:
        try:
            length = len(self.loader)
        except TypeError:  # a stream of batches, which ends when it ends
            length = sys.maxsize
        return self.limited(length)

    def limited(self, steps_per_epoch: int) -> int:
        """`--debug_mode` makes a few of them."""
        return min(steps_per_epoch, self.model.get_debug_iters() + 1) if self.args.debug_mode else steps_per_epoch

    def steps_in_task(self) -> int:
        return task_steps(self.args, self.steps_per_epoch(), self.position.task)

    # -- begin, leave, enter again, finish -----------------------------------------------------------------------------

    def begin(self) -> None:
        self.method.packed_model()  # warns about what can't be saved
        self._write_environment()

    def resume(self) -> bool:
        """Continue from the last checkpoint, with as many threads as the run was begun with; False if there is none."""
        path = self.directory.path
        state = store.load(path)
        if state is None:
            return False
        self._closing.enter_context(as_begun(path, environment()))
        if missing := self.state_dict().keys() - set(state if isinstance(state, dict) else ()):
            raise UserError(
                f"cannot resume {path}: another version of this code wrote its checkpoint (it lacks "
                f"{', '.join(sorted(missing))}); {START_AGAIN}"
            )
        with store.misfits_explained(f"the checkpoint in {path}"):
            self.load_state_dict(state)
        try:
            read_environment(path)
        except DamagedRun:  # written again, although the machine may have changed: no run is finished without it
            self._write_environment()
        say(f"Resuming {path} at {self.position}")
        return True

    def between_steps(self) -> None:
        """The only place inside a task where a run can be left and entered again."""
        step, every = self.position.step, self.args.checkpoint_every
        if self.guard.on_device and step % GUARD_EVERY == 0:
            self.guard.check()
        if (every and step % every == 0) or time.monotonic() >= self._checkpoint_at:
            self.checkpoint()
        self._stop_if_asked()

    def between_tasks(self) -> None:
        if self.position.task == self.end or time.monotonic() >= self._task_checkpoint_at:
            self.checkpoint()
        self._stop_if_asked()

    def checkpoint(self) -> None:
        self.guard.check()  # a step that was masked on the device must stop the run, not be saved as its state
        start = time.monotonic()
        store.save(self.directory.path, self.state_dict())
        self._schedule_checkpoint()
        now = time.monotonic()
        self._task_checkpoint_at = now + (now - start) / CHECKPOINT_SHARE

    def finish(self, test: dict[str, list[float]] | None = None) -> dict[str, Any]:
        """Write the result files; `summary.json` comes last, because its presence says that the run is finished."""
        path, args = self.directory.path, self.args
        class_il, task_il = self.accuracies.metrics()
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
            config_hash=self.directory.hash,
            n_tasks=self.dataset.n_eval_tasks if args.joint else self.end,
            steps=self.position.step,
            parameters=sum(p.numel() for p in self.model.net.parameters()),
            **bytes_by_part(self.model, self.method.belongings()),
            **({} if test is None else {"test": test}),
        )
        return self.directory.finished() or {}

    def _write_environment(self) -> None:
        write_json(self.directory.path / "environment.json", environment())

    def _schedule_checkpoint(self) -> None:
        minutes = self.args.checkpoint_minutes
        self._checkpoint_at = time.monotonic() + 60 * minutes if minutes else float("inf")

    def _stop_if_asked(self) -> None:
        if self.signals.received is not None and self.position.task < self.end:
            self.checkpoint()
            say(f"Stopped at {self.position}; `--resume {self.directory.path}` continues from there")
            raise Stopped(self.signals.exit_code)

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        loader = self.loader if self.position.in_task else None
        return {
            "hash": self.directory.hash,
            "position": asdict(self.position),
            **self.method.state_dict(),
            # What a method has added to the training set of the task: exemplars, or a field of its own.
            "edits": loader.dataset.edits() if loader is not None and hasattr(loader.dataset, "edits") else None,
            "loader": loader.state_dict() if loader is not None else None,
            "metrics": self.metrics.state_dict(),
            "accuracies": self.accuracies.state_dict(),
            "timing": self.timing.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`; the method comes last, because its random generators do."""
        self.position.restore(state["position"])
        if self.position.task > self.end:
            raise ValueError(f"task {self.position.task + 1} of {self.end}")
        loaders = self.data_so_far()
        if state["edits"] is not None:
            self.loader.dataset.redo(state["edits"])
        if state["loader"] is not None:
            # At the end of an epoch nothing is left of its permutation: the next epoch draws its own.
            inside = self.position.in_epoch and self.position.epoch_step < self.steps_per_epoch()
            self.loader.load_state_dict(state["loader"], continues=inside)
        self.accuracies.load_state_dict(state["accuracies"])
        self.timing.load_state_dict(state["timing"])
        self.metrics.load_state_dict(state["metrics"])
        self.method.load_state_dict(state, self.steps_per_epoch(), self.position.task)
        del loaders
