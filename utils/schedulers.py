"""Learning-rate schedules within one task."""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any

from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR


def get_scheduler(model: Any, args: Namespace, steps_per_epoch: int = 1) -> LRScheduler | None:
    """The schedule of `--lr_scheduler` for the model's current optimizer, or None."""
    if args.lr_scheduler in (None, "none") or model.opt is None:
        return None
    length = task_length(args, steps_per_epoch)
    if args.lr_scheduler == "multisteplr":
        milestones = [m if m >= 1 else max(1, round(m * length)) for m in args.lr_milestones]
        return MultiStepLR(model.opt, milestones=milestones, gamma=args.sched_multistep_lr_gamma)
    if args.lr_scheduler == "cosine":
        return CosineAnnealingLR(model.opt, T_max=length)
    raise ValueError(f"unknown lr_scheduler {args.lr_scheduler!r}")


def task_length(args: Namespace, steps_per_epoch: int) -> int:
    """How long a task is trained, in what `--scheduler_mode` counts."""
    steps = args.n_iters if args.fitting_mode == "iters" else args.n_epochs * steps_per_epoch
    return max(1, steps if args.scheduler_mode == "iter" else math.ceil(steps / max(steps_per_epoch, 1)))
