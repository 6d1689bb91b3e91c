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
    if args.lr_scheduler == "multisteplr":
        return MultiStepLR(model.opt, milestones=args.lr_milestones, gamma=args.sched_multistep_lr_gamma)
    if args.lr_scheduler == "cosine":
        steps = args.n_iters if args.fitting_mode == "iters" else args.n_epochs * steps_per_epoch
        length = steps if args.scheduler_mode == "iter" else math.ceil(steps / max(steps_per_epoch, 1))
        return CosineAnnealingLR(model.opt, T_max=max(length, 1))
    raise ValueError(f"unknown lr_scheduler {args.lr_scheduler!r}")
