"""A memory with equally many images of every class, refilled at the end of each task."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from utils.buffer import Buffer
from utils.errors import UsageError


def require_own_classes(model: Any) -> None:
    """Tasks that share their classes have no old ones, of which images could be kept."""
    dataset = model.dataset
    if dataset.shares_classes:
        remedy = "--task_free 1" if "general-continual" in model.COMPATIBILITY else "another method"
        reason = f"needs tasks with classes of their own, but {dataset.NAME} is {dataset.SETTING}"
        raise UsageError(f"{model.NAME} {reason}; use {remedy}")


def keep_first_of_each(buffer: Buffer, n_classes: int, quota: int) -> None:
    """Of each of the classes 0 … n_classes − 1 keep the first `quota` images, in their order; forget all others."""
    if buffer.is_empty():
        return
    labels = buffer.labels[: len(buffer)].cpu()
    rows = [labels.new_empty(0)] + [(labels == label).nonzero()[:quota, 0] for label in range(n_classes)]
    index = torch.cat(rows).to(buffer.device)
    kept = {name: getattr(buffer, name)[index] for name in buffer.used_attributes}
    buffer.empty()
    buffer.add_data(**kept)


def draw_balanced(labels: Tensor, classes: range, slots: int, generator: Generator) -> Tensor:
    """Random rows for so many slots, equally many of each class; chance decides which classes get one more.

    In random order, so that a batch of neighbours mixes the classes. A class that has too few rows leaves slots free.
    """
    order = torch.randperm(len(labels), generator=generator)
    per_class, rest = divmod(slots, len(classes))
    lucky = torch.randperm(len(classes), generator=generator)[:rest].tolist()
    shuffled = labels.cpu()[order]
    chosen = [(shuffled == label).nonzero()[: per_class + (i in lucky), 0] for i, label in enumerate(classes)]
    return order[torch.cat(chosen).sort().values]
