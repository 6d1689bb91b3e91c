"""Buffers with equally many images of every class, refilled at the end of each task, by herding or by chance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from datasets.utils.image_set import ImageSet
from models.utils.dgc_gradients import CHUNK
from utils.buffer import Buffer
from utils.errors import UsageError
from utils.herding import first_of_each, herd


def require_own_classes(model: Any) -> None:
    """Refuse tasks that share their classes: there are no past classes of which to keep images."""
    dataset = model.dataset
    if dataset.shares_classes:
        remedy = "--task_free 1" if "general-continual" in model.COMPATIBILITY else "another method"
        reason = f"needs tasks with classes of their own, but {dataset.NAME} is {dataset.SETTING}"
        raise UsageError(f"{model.NAME} {reason}; use {remedy}")


def keep_first_of_each(buffer: Buffer, n_classes: int, quota: int) -> None:
    """Keep the first `quota` images of each class 0 … n_classes − 1, in their order; forget all others."""
    if buffer.is_empty():
        return
    kept = first_of_each(buffer, n_classes, quota)
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


# -- herding ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def compute_features(images: Tensor, features_of: Callable[[Tensor], Tensor], normalize: bool) -> Tensor:
    """Features of 8-bit images (NCHW), `CHUNK` at a time, in the mode that the network is in; on the unit sphere with
    `normalize`. `features_of` also prepares the images (normalisation of pixels)."""
    features = torch.cat([features_of(chunk).float() for chunk in images.split(CHUNK)])
    return F.normalize(features, dim=1) if normalize else features


def append_exemplars(images: ImageSet, buffer: Buffer) -> None:
    """Let a task be trained on the whole buffer as well, until `drop_appended`."""
    if images.extra_return_fields:
        fields = ", ".join(images.extra_return_fields)
        raise UsageError(
            f"exemplars can't join a training set that gives {fields}, too (--noise_rate): use another method"
        )
    if not buffer.is_empty():
        stored = len(buffer)
        images.append(buffer.examples[:stored], buffer.labels[:stored])


def refill_by_herding(
    buffer: Buffer,
    images: ImageSet,
    classes: range,
    quota: int,
    features_of: Callable[[Tensor], Tensor],
    normalize: bool = True,
) -> None:
    """At the end of a task with these classes: `quota` exemplars of each class seen, in herding order.

    Classes before them keep their first ones. The new ones are herded from `images` (the task's own, nothing appended)
    and join class by class. The caller puts the network into eval mode.
    """
    keep_first_of_each(buffer, classes.start, quota)
    for label in classes:
        rows = (images.targets == label).nonzero()[:, 0]
        features = compute_features(images.batch(rows).to(buffer.device), features_of, normalize)
        chosen = rows[herd(features, quota).to(rows.device)]
        buffer.add_data(examples=images.batch(chosen), labels=images.targets[chosen])
