"""Convex combinations of images and labels (Zhang et al. 2018), one coefficient per image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def mixup(couples: Sequence[tuple[Tensor, Tensor]], alpha: float, force_lambda: Any = None) -> Any:
    """λa + (1 − λ)b for each couple (a, b), with the same λ ≥ 0.5 per row; a tuple unless there is one couple."""
    first = couples[0][0]
    if force_lambda is None:
        drawn = np.random.beta(alpha, alpha, size=len(first))
        share = torch.as_tensor(np.maximum(drawn, 1 - drawn), dtype=torch.float32, device=first.device)
    else:
        share = torch.as_tensor(force_lambda, dtype=torch.float32, device=first.device).expand(len(first))
    mixed = tuple(_between(a, b, share) for a, b in couples)
    return mixed if len(mixed) > 1 else mixed[0]


def _between(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    weight = share.view(-1, *[1] * (a.dim() - 1))
    return weight * a + (1 - weight) * b
