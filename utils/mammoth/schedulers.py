"""Schedules that models written for Mammoth make by themselves; such models find them in `utils.schedulers`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class CosineSchedule(LRScheduler):
    """From the full learning rate down a quarter of a cosine, to 0 after `K` steps."""

    def __init__(self, optimizer: Optimizer, K: int):
        self.K = K
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        share = math.cos(math.pi / 2 * min(self.last_epoch / self.K, 1))
        return [rate * share for rate in self.base_lrs]


class CosineSchedulerWithLinearWarmup(LRScheduler):
    """Up from 0 in `warmup_length` steps, then down half a cosine, to 0 after `steps`; one rate per parameter group."""

    def __init__(self, optimizer: Optimizer, base_lrs: float | Sequence[float], warmup_length: int, steps: int):
        groups = len(optimizer.param_groups)
        self.peaks = list(base_lrs) if isinstance(base_lrs, Sequence) else [base_lrs] * groups
        self.warmup_length, self.steps = warmup_length, steps
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        step = self.last_epoch
        if step < self.warmup_length:
            share = (step + 1) / self.warmup_length
        else:
            way = (step - self.warmup_length) / max(self.steps - self.warmup_length, 1)
            share = 0.5 * (1 + math.cos(math.pi * min(way, 1)))
        return [peak * share for peak in self.peaks]
