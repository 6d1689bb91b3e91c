"""Batches of a task, made from tensors that are already on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from datasets.utils.image_set import ImageSet, transform_bytes
from utils.augmentations import BatchTransform, to_device, to_unit_float
from utils.conf import warn_once
from utils.resume.state import saved_by_attributes


@saved_by_attributes
class TaskLoader:
    """Iterates over an `ImageSet` in batches; each `iter()` is an epoch with a new permutation.

    Yields `(augmented, labels, not_augmented)` with `triples`, where `not_augmented` is the plain image in [0, 1], and
    `(transformed, labels)` without.

    Resumable between two batches: `state_dict` says which permutation is in use and how much of it has been handed
    out. The random parameters of a batch are drawn when the batch is made and never ahead, so with the generators'
    states restored too, the remaining batches are the same bit for bit.
    """

    def __init__(
        self,
        dataset: ImageSet,
        batch_size: int,
        transform: BatchTransform,
        shuffle: bool,
        drop_last: bool,
        generator: torch.Generator | None,
        triples: bool,
    ):
        self.dataset, self.batch_size, self.transform = dataset, batch_size, transform
        self.shuffle, self.drop_last, self.generator, self.triples = shuffle, drop_last, generator, triples
        self.position = 0  # batches handed out in the current epoch
        self._permutation: Tensor | None = None  # of the current epoch, on the host
        self._resume = False

    def __len__(self) -> int:
        full, rest = divmod(len(self.dataset), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        # A finished epoch has no batches left; an epoch of which none was handed out has not begun.
        resume, self._resume = self._resume and 0 < self.position < len(self), False
        start = self.position if resume else 0
        permutation = self._permutation if resume else self._new_permutation()
        order = permutation if permutation is None else to_device(permutation, self.dataset.targets.device)
        for step in range(start, len(self)):
            batch = self._batch(order, step * self.batch_size)
            # Written at each batch, so that a second iterator (a model may make one) is forgotten at the next step.
            self._permutation, self.position = permutation, step + 1
            yield batch

    def _new_permutation(self) -> Tensor | None:
        return torch.randperm(len(self.dataset), generator=self.generator) if self.shuffle else None

    def _batch(self, order: Tensor | None, start: int) -> tuple[Any, ...]:
        rows = slice(start, start + self.batch_size) if order is None else order[start : start + self.batch_size]
        images, labels = self.dataset.batch(rows), self.dataset.labels(rows)
        transform = self._transform_in_use()
        augmented = transform_bytes(images, transform)
        if not self.triples:
            return augmented, labels
        layout = getattr(transform, "memory_format", torch.contiguous_format)
        return (augmented, labels, to_unit_float(images, layout), *self.dataset.extra(rows))

    def _transform_in_use(self) -> Any:
        """The loader's own, unless a method has given the images another."""
        return self.dataset.transform or self.transform

    def over(self, images: ImageSet) -> TaskLoader:
        """A loader like this one, of other images."""
        options = (self.shuffle, self.drop_last, self.generator, self.triples)
        return TaskLoader(images, self.batch_size, self.transform, *options)

    def state_dict(self) -> dict[str, Any]:
        if self._transform_in_use() is not self.transform:
            warn_once(
                "resuming from this checkpoint would not be exact: the method has replaced the training transform"
            )
        return {"permutation": self._permutation, "position": self.position}

    def load_state_dict(self, state: dict[str, Any], continues: bool = True) -> None:
        """With `continues` the next `iter()` continues the saved epoch, else it begins a new one."""
        if not continues:
            return
        permutation = state["permutation"]
        if permutation is not None and len(permutation) != len(self.dataset):
            raise ValueError(
                f"the saved epoch has {len(permutation)} images, this task {len(self.dataset)}: "
                "the state belongs to another task or dataset"
            )
        self._permutation, self.position, self._resume = permutation, state["position"], True
