"""`--validation` and `--validation_mode`: which training images are held out, and what a test set consists of."""

from __future__ import annotations

import math
from argparse import Namespace

import torch
from torch import Tensor

from utils.errors import UsageError


def so_far(args: Namespace) -> bool:
    """Whether the test set of a task has the images of all tasks up to it; made by hand, `args` may lack the flag."""
    return getattr(args, "validation_mode", "current") == "complete"


def draw_held_out(targets: Tensor, size: float, generator: torch.Generator) -> Tensor:
    """A mask over the training set: the given part of each original class, rounded up."""
    fraction = size if size < 1 else size / 100
    held_out = torch.zeros(len(targets), dtype=torch.bool)
    for label in targets.unique().tolist():
        members = (targets == label).nonzero().squeeze(1)
        # Without round() 7 % of 100 images would be 8: 0.07 · 100 is 7.000000000000001 in floating point.
        count = math.ceil(round(fraction * len(members), 6))
        if count >= len(members):
            raise UsageError(
                f"--validation {size} leaves no training image of class {label} ({len(members)} images); "
                "choose a smaller part"
            )
        held_out[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return held_out
