"""A labelled set of images as two tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from utils.augmentations import BatchTransform, to_unit_float


class ImageSet:
    """Images `data` (uint8 [N, H, W, C]) and labels `targets` (int64 [N]) on one device.

    A model may attach a further tensor with one row per image and put its name into `extra_return_fields` (LwF does so
    with logits): the loader then appends it to every training batch. `transform` serves `__getitem__` only; a
    loader has its own.
    """

    def __init__(self, data: Tensor, targets: Tensor, transform: BatchTransform | None = None):
        self.data, self.targets, self.transform = data, targets, transform
        self.extra_return_fields: tuple[str, ...] = ()
        self.n_own = len(targets)  # rows before those that a method has appended

    def __len__(self) -> int:
        return len(self.targets)

    def subset(self, rows: Tensor) -> ImageSet:
        """The images that a boolean mask or an index tensor selects."""
        index = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows
        return ImageSet(self.data.index_select(0, index), self.targets.index_select(0, index), self.transform)

    def to(self, device: torch.device, memory_format: torch.memory_format) -> ImageSet:
        """A copy on the device, in the memory layout that batches shall have: they need no rearranging then."""
        images = self.data.permute(0, 3, 1, 2).to(device, memory_format=memory_format)
        return ImageSet(images.permute(0, 2, 3, 1), self.targets.to(device), self.transform)

    def append(self, images: Tensor, labels: Tensor) -> None:
        """Train on these 8-bit images, NCHW, as well (exemplars of earlier tasks), until `drop_appended`."""
        own = self.data.permute(0, 3, 1, 2)
        layout = torch.contiguous_format if own.is_contiguous() else torch.channels_last
        images = images.to(own.device).contiguous(memory_format=layout)
        self.data = torch.cat((own, images)).permute(0, 2, 3, 1)
        self.targets = torch.cat((self.targets, labels.to(own.device)))

    def appended(self) -> tuple[Tensor, Tensor]:
        """What `append` has added, in its form."""
        return self.data[self.n_own :].permute(0, 3, 1, 2), self.targets[self.n_own :]

    def drop_appended(self) -> None:
        self.data, self.targets = self.data[: self.n_own], self.targets[: self.n_own]

    def edits(self) -> dict[str, Any]:
        """All that a method has added, for a checkpoint."""
        return {"rows": self.appended(), "fields": {name: getattr(self, name) for name in self.extra_return_fields}}

    def redo(self, edits: dict[str, Any]) -> None:
        images, labels = edits["rows"]
        if len(labels):
            self.append(images, labels)
        for name, values in edits["fields"].items():
            setattr(self, name, values)
        self.extra_return_fields = tuple(edits["fields"])

    def batch(self, rows: Tensor | slice) -> Tensor:
        """Images as NCHW, in the memory layout of `data`."""
        if isinstance(rows, slice):
            return self.data[rows].permute(0, 3, 1, 2)
        if self.data.is_contiguous():
            return self.data.index_select(0, rows).permute(0, 3, 1, 2)
        return self.data.permute(0, 3, 1, 2).index_select(0, rows)

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        """One item in Mammoth's form: (transformed image, label, image in [0, 1], *extra). For code that wants single
        images; training goes through `TaskLoader`."""
        image = self.data[i].permute(2, 0, 1)
        raw = to_unit_float(image, torch.contiguous_format)
        transformed = self.transform(image[None])[0] if self.transform is not None else raw
        extra = (getattr(self, field)[i] for field in self.extra_return_fields)
        return (transformed, self.targets[i], raw, *extra)
