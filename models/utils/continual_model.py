"""The base class of every method: a network, an optimizer, the counters of the task sequence, and hooks."""

from __future__ import annotations

import contextlib
import inspect
import logging
from argparse import Namespace
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from models.utils.frozen_body import check_body_lr_scale, freeze_body, scaled_groups
from utils.args import ArgumentParser
from utils.cli.config import FRAMEWORK, view
from utils.errors import UsageError, UserError
from utils.resume.guard import is_logged

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@lru_cache
def keywords(observe: Callable) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Names that an `observe` accepts (None: all), and those beside the three of every batch that have no default."""
    parameters = inspect.signature(observe).parameters
    _, *own = parameters.values()
    if len(own) < 3 and not any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        given = ", ".join(p.name for p in own)
        raise UserError(f"{observe.__qualname__} takes ({given}); it must take inputs, labels and not_aug_inputs")
    named = [p for p in own[3:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = frozenset(p.name for p in named if p.default is p.empty)
    return None if "kwargs" in parameters else frozenset(parameters), required


class ContinualModel(nn.Module):
    """A continual learner. Subclasses implement `observe`, one training step; the rest is optional.

    Hooks, all no-ops here: `begin_task`, `end_task`, `begin_epoch`, `end_epoch`, `end_eval`. The training loop
    calls them through the `meta_*` methods, which keep the counters. With `--task_free 1` it calls `observe` alone.
    """

    NAME: str
    COMPATIBILITY: list[str]
    AVAIL_OPTIMS = ["sgd", "adam", "adamw"]
    opt: Any = None  # also once a model has deleted its own at the end of a task, to free memory

    def __init__(
        self,
        backbone: Any,
        loss: Callable[..., torch.Tensor],
        args: Namespace,
        transform: Callable | None,
        dataset: Any = None,
    ):
        super().__init__()
        if not getattr(self, "NAME", None) or not getattr(self, "COMPATIBILITY", None):
            name = type(self).__name__
            raise UserError(f"{name} lacks NAME or COMPATIBILITY; docs/extending.md shows what a method needs")
        if dataset is None:
            from datasets import get_dataset

            logging.warning("%s was built without a dataset; it makes its own", type(self).__name__)
            dataset = get_dataset(args)
        self.net, self.loss, self.args, self.dataset = backbone, loss, args, dataset
        self.original_transform = transform
        self._current_task = 0
        self._cpt = dataset.N_CLASSES_PER_TASK
        self._n_classes_current_task = self._n_past_classes = self._n_seen_classes = -1
        self._n_remaining_classes = -1
        self._task_iteration = self._epoch_iteration = self._past_epoch = 0
        self.transform = dataset.get_batch_transform(augment=True) if transform is not None else None
        if transform is not None:
            self.normalization_transform = dataset.get_batch_transform(augment=False)
        check_body_lr_scale(self)
        self.opt = self.get_optimizer()
        self.device = next((p.device for p in self.net.parameters()), torch.device("cpu"))

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        """Add the method's own flags. `parser` is a group of the help: `add_argument`, `set_defaults`."""
        return parser

    @classmethod
    def derived_args(cls, args: Namespace) -> dict[str, Any]:
        """Values of flags that follow from others, such as a default that depends on one; a method never sets them."""
        return {}

    @classmethod
    def check_args(cls, args: Namespace) -> None:
        """Refuse contradictions among the flags (ValueError), before anything is built."""

    # -- the optimizer -------------------------------------------------------------------------------------

    def get_parameters(self) -> Any:
        return self.net.parameters()

    def get_optimizer(self, params: Any = None, lr: float | None = None) -> torch.optim.Optimizer | None:
        """A fresh optimizer from the flags, or None if there is nothing to optimise."""
        parameters = list(self.get_parameters() if params is None else params)
        if not parameters:
            return None
        flags = view(self.args, FRAMEWORK)  # a model may have flags of its own by these names
        if flags.optimizer not in self.AVAIL_OPTIMS:
            raise UsageError(f"{self.NAME} supports the optimizers {self.AVAIL_OPTIMS}, not {flags.optimizer!r}")
        options: dict[str, Any] = {"lr": flags.lr if lr is None else lr, "weight_decay": flags.optim_wd}
        if flags.optimizer == "sgd":
            options |= {"momentum": flags.optim_mom, "nesterov": flags.optim_nesterov}
        # One kernel instead of several: 1.7 times faster on a CPU, and it can skip a step on the device (resume.guard).
        options["fused"] = all(p.device.type in ("cpu", "cuda") for p in parameters if isinstance(p, torch.Tensor))
        groups = scaled_groups(self, parameters, options["lr"]) if params is None else parameters
        return OPTIMIZERS[flags.optimizer](groups, **options)

    def to(self, *args: Any, **kwargs: Any) -> ContinualModel:
        """As `nn.Module.to`, and notes in `device` where the network now is."""
        super().to(*args, **kwargs)
        self.device = next((p.device for p in self.net.parameters()), self.device)
        return self

    def random_stream(self, purpose: str) -> torch.Generator:
        """The run's generator for a purpose: the one way to random numbers for a method (utils/random_streams.py).

        Its state is in checkpoints, and no draw for another purpose shifts it.
        """
        return self.dataset.streams[purpose]

    # -- what a method may override ------------------------------------------------------------------------

    def observe(
        self, inputs: torch.Tensor, labels: torch.Tensor, not_aug_inputs: torch.Tensor, epoch: int | None = None
    ) -> Any:
        """One training step; returns the loss (a scalar tensor or a number), or a dict of 'loss' and other terms.

        `inputs` are augmented and normalised, `not_aug_inputs` the same images untouched, in [0, 1]. A detached tensor
        is the better return value: it reaches the log without waiting for the GPU.
        """
        raise NotImplementedError(f"{type(self).__name__} must define observe")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def begin_task(self, dataset: Any) -> None: ...

    def end_task(self, dataset: Any) -> None: ...

    def begin_epoch(self, epoch: int, dataset: Any) -> None: ...

    def end_epoch(self, epoch: int, dataset: Any) -> None: ...

    def end_eval(self, dataset: Any, accs: Any) -> None: ...

    def get_debug_iters(self) -> int:
        return 5

    # -- called by the training loop -------------------------------------------------------------------------

    def meta_begin_task(self, dataset: Any) -> None:
        self._task_iteration = 0
        first, last = dataset.get_offsets(self._current_task)
        self._n_classes_current_task = last - first
        self._n_past_classes, self._n_seen_classes = first, last
        self._n_remaining_classes = self.num_classes - last
        if self.opt is not None:
            self.opt.zero_grad(set_to_none=True)
        freeze_body(self)
        self.opt = self.get_optimizer()
        self.begin_task(dataset)

    def meta_end_task(self, dataset: Any) -> None:
        self.end_task(dataset)
        self._current_task += 1

    def meta_begin_epoch(self, epoch: int, dataset: Any) -> None:
        self._epoch_iteration = 0
        self.begin_epoch(epoch, dataset)

    def meta_end_epoch(self, epoch: int, dataset: Any) -> None:
        self._past_epoch += 1
        self.end_epoch(epoch, dataset)

    def meta_end_eval(self, dataset: Any, accs: Any) -> None:
        """`end_eval` sees the task that was just finished as the current one."""
        self._current_task -= 1
        try:
            self.end_eval(dataset, accs)
        finally:
            self._current_task += 1

    def meta_observe(self, *batch: Any, **extra: Any) -> Any:
        """`observe` with the keywords that its signature asks for, and without images that have no label (−1).

        Those are for methods that say "cssl"; a batch without any label is passed over.
        """
        accepted, required = keywords(type(self).observe)
        if not required <= extra.keys():
            missing = required - extra.keys()
            given = "; give --noise_rate, which makes them" if "true_labels" in missing else ""
            raise UserError(f"{self.NAME} needs {', '.join(sorted(missing))} with every batch, which has none{given}")
        if accepted is not None and not extra.keys() <= accepted:
            extra = {name: value for name, value in extra.items() if name in accepted}
        if getattr(self.dataset, "may_lack_labels", False) and "cssl" not in self.COMPATIBILITY:
            labelled = batch[1] >= 0
            if not labelled.any():
                return 0.0
            if not labelled.all():
                batch = tuple(field[labelled] for field in batch)
                extra = {n: v[labelled] if isinstance(v, torch.Tensor) else v for n, v in extra.items()}
        result = self.observe(*batch, **extra)
        counters = vars(self)  # torch takes 2 µs to set an attribute of a module
        counters["_task_iteration"] += 1
        counters["_epoch_iteration"] += 1
        return result

    # -- counters --------------------------------------------------------------------------------------------

    @property
    def num_classes(self) -> int:
        return self.dataset.N_CLASSES

    @property
    def n_tasks(self) -> int:
        return self.dataset.N_TASKS

    N_CLASSES, N_TASKS = num_classes, n_tasks  # Mammoth has two names for each

    @property
    def SETTING(self) -> str:
        return self.dataset.SETTING

    @property
    def cpt(self) -> Any:
        """Classes per task: a number, or a list if the tasks differ."""
        return self._cpt

    @cpt.setter
    def cpt(self, value: Any) -> None:
        logging.warning("%s sets cpt, which follows from the dataset, to %s", self.NAME, value)
        self._cpt = value

    @property
    def classes_per_task(self) -> Any:
        return self._cpt

    @property
    def current_task(self) -> int:
        """Index of the current task, from 0; already the next one while a finished task is evaluated."""
        return self._current_task

    @property
    def n_classes_current_task(self) -> int:
        return self._n_classes_current_task

    @property
    def n_past_classes(self) -> int:
        return self._n_past_classes

    @property
    def n_seen_classes(self) -> int:
        return self._n_seen_classes

    @property
    def n_remaining_classes(self) -> int:
        return self._n_remaining_classes

    @property
    def task_iteration(self) -> int:
        """Steps done in this task; 0 during the first `observe`."""
        return self._task_iteration

    @property
    def epoch_iteration(self) -> int:
        return self._epoch_iteration

    def get_offsets(self, task: int) -> tuple[int, int]:
        return self.dataset.get_offsets(task)

    def autolog_wandb(self, locals: dict[str, Any], extra: dict[str, Any] | None = None) -> None:
        """Send losses among local variables to wandb, if it is on. Those of `observe` are logged without this."""
        if view(self.args, FRAMEWORK).nowand:
            return
        import wandb

        values = {name: float(value) for name, value in locals.items() if is_logged(name, value)}
        with contextlib.suppress(Exception):  # wandb is not worth a training run
            wandb.log(values | (extra or {}), commit=False)

    # -- hand-over ---------------------------------------------------------------------------------------------

    def load_buffer(self, buffer: Any) -> None:
        """Adopt a buffer, or the fields of one that `Buffer.serialize` has written; the sizes must agree."""
        if not isinstance(buffer, dict):
            if buffer.buffer_size != self.args.buffer_size:
                raise ValueError(f"it holds {buffer.buffer_size} images, --buffer_size is {self.args.buffer_size}")
            self.buffer = buffer
            return
        capacity = len(next(iter(buffer.values()))) if buffer else self.buffer.buffer_size
        self.buffer.load_state_dict({"buffer_size": capacity, "num_seen_examples": capacity, "fields": buffer})
