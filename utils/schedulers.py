"""Learning-rate schedules within one task."""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR

from utils.cli.config import FRAMEWORK, view
from utils.conf import warn_once
from utils.mammoth.schedulers import CosineSchedule, CosineSchedulerWithLinearWarmup

__all__ = [
    "CosineSchedule",
    "CosineSchedulerWithLinearWarmup",
    "LinearSchedule",
    "TaskSchedule",
    "get_scheduler",
    "task_epochs",
    "task_length",
    "task_steps",
]


def get_scheduler(
    model: Any, args: Namespace, reload_optim: bool = True, *, steps_per_epoch: int = 1, task: int | None = None
) -> LRScheduler | None:
    """The schedule of `--lr_scheduler`, or None; with `reload_optim` for a new optimizer, else for the one there is.

    `task`, from 0, is by default the one that the model believes to be in.
    """
    args = view(args, FRAMEWORK)
    if args.lr_scheduler is None:
        return None
    if not hasattr(model, "opt"):  # Mammoth's joint training passes its network
        warn_once(f"a {type(model).__name__} has no optimizer: the learning rate stays constant")
        return None
    if reload_optim:
        model.opt = model.get_optimizer()
    if model.opt is None:
        return None
    task = model.current_task if task is None else task
    length = task_length(args, steps_per_epoch, task)
    if args.lr_scheduler == "multisteplr":
        given = (args.lr_milestones_first if task == 0 else None) or args.lr_milestones
        milestones = [m if m >= 1 else max(1, round(m * length)) for m in given]
        return MultiStepLR(model.opt, milestones=milestones, gamma=args.sched_multistep_lr_gamma)
    if args.lr_scheduler == "cosine":
        return CosineAnnealingLR(model.opt, T_max=length)
    if args.lr_scheduler == "linear":
        return LinearSchedule(model.opt, length)
    raise ValueError(f"unknown lr_scheduler {args.lr_scheduler!r}")


def task_epochs(args: Namespace, task: int) -> int:
    """Epochs of a task, which is counted from 0."""
    return (args.n_epochs_first if task == 0 else None) or args.n_epochs


def task_steps(args: Namespace, steps_per_epoch: int, task: int) -> int:
    return args.n_iters if args.fitting_mode == "iters" else task_epochs(args, task) * steps_per_epoch


def task_length(args: Namespace, steps_per_epoch: int, task: int) -> int:
    """How long a task is trained, in what `--scheduler_mode` counts."""
    steps = task_steps(args, steps_per_epoch, task)
    return max(1, steps if args.scheduler_mode == "iter" else math.ceil(steps / max(steps_per_epoch, 1)))


class TaskSchedule:
    """What moves the learning rate in a task: `--lr_scheduler`, or a `custom_scheduler` that the model has made.

    Some models move theirs by themselves, others leave it to the loop: it is moved here if it stands where it stood.
    """

    def __init__(self, model: Any, args: Namespace):
        self.model, self.args = model, args
        self._own: LRScheduler | None = None
        self._custom_at: int | None = None

    def begin(self, steps_per_epoch: int, task: int) -> None:
        custom = getattr(self.model, "custom_scheduler", None)
        self._custom_at = getattr(custom, "last_epoch", None)
        self._own = None
        if custom is None:
            self._own = get_scheduler(
                self.model, self.args, reload_optim=False, steps_per_epoch=steps_per_epoch, task=task
            )
        if self._own is not None:  # torch would warn if no step is made before the schedule's first
            self.model.opt._opt_called = True  # a resumed run has made some, and a model may train in its hooks alone

    def step(self) -> None:
        """After each of what `--scheduler_mode` counts."""
        if self._own is not None:
            self._own.step()
        custom = vars(self.model).get("custom_scheduler")  # a module is slow to say what it lacks
        if custom is not None:
            if getattr(custom, "last_epoch", None) == self._custom_at:
                custom.step()
            self._custom_at = getattr(custom, "last_epoch", None)

    def state_dict(self) -> dict[str, Any]:
        return {"own": None if self._own is None else self._own.state_dict(), "custom_at": self._custom_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A model's own schedule is restored with the model."""
        self._custom_at = state["custom_at"]
        own = {} if self._own is None else self._own.state_dict()
        if (state["own"] or {}).keys() != own.keys():  # torch would set whatever it is given
            raise ValueError("the state is that of another learning-rate schedule")
        if self._own is not None:
            self._own.load_state_dict(state["own"])


class LinearSchedule(LRScheduler):
    """From the full learning rate straight down, to 0 after `length` steps."""

    def __init__(self, optimizer: Optimizer, length: int):
        self.length = length
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        share = max(1 - self.last_epoch / self.length, 0.0)
        return [rate * share for rate in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        """torch's own takes a tenth of a step on vectors, most of it for warnings that can't arise here."""
        self.last_epoch += 1
        self._last_lr = self.get_lr()
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate
