"""A labelled set of images as two tensors."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from utils.augmentations import apply_transform, is_batched, to_device, to_unit_float
from utils.resume.array_tensor import ArrayTensor
from utils.resume.state import saved_by_attributes


@saved_by_attributes
class ImageSet:
    """Images `data` (uint8 [N, H, W, C]) and labels `targets` (int64 [N]) on one device.

    A method may edit both, in place or by putting other tensors or numpy arrays there (iCaRL adds exemplars). It may
    attach a further tensor with one row per image and put its name into `extra_return_fields` (LwF does so with
    logits): the loader then appends it to every training batch. It may also replace `transform`.
    """

    def __init__(self, data: Tensor, targets: Tensor, transform: Any = None, origin: _Origin | None = None):
        self._data, self._targets, self.transform = data, targets, transform
        self.extra_return_fields: tuple[str, ...] = ()
        self.n_own = len(targets)  # rows before those that a method has appended
        self._origin = origin

    def __len__(self) -> int:
        return self._targets.shape[0]  # a tensor's `len` takes three times as long

    # -- images and labels, as tensors that are good for numpy, too -------------------------------------------------

    @property
    def data(self) -> Tensor:
        return self._data.as_subclass(ArrayTensor)

    @data.setter
    def data(self, images: Any) -> None:
        images = _as_tensor(images)
        if images.dtype != torch.uint8:
            as_bytes = images.to(torch.uint8)
            if not torch.equal(as_bytes.to(images.dtype), images):
                raise ValueError(f"images must be bytes, 0 … 255; these {images.dtype} values are not")
            images = as_bytes
        images = images.to(self._data.device).permute(0, 3, 1, 2)
        self._data = images.contiguous(memory_format=self._layout()).permute(0, 2, 3, 1)

    @property
    def targets(self) -> Tensor:
        return self._targets.as_subclass(ArrayTensor)

    @targets.setter
    def targets(self, labels: Any) -> None:
        self._targets = _as_tensor(labels).to(self._targets.device, torch.int64)

    def _layout(self) -> torch.memory_format:
        planar = self._data.permute(0, 3, 1, 2).is_contiguous()
        return torch.contiguous_format if planar else torch.channels_last

    @property
    def dataset(self) -> ImageSet:
        """In Mammoth `train_loader.dataset` wraps another dataset; here there is only this one."""
        return self

    @property
    def indexes(self) -> Tensor:
        """The rows' numbers in the whole training (or test) set."""
        return torch.arange(len(self)) if self._origin is None else self._origin.rows

    # -- parts and copies ----------------------------------------------------------------------------------------

    def subset(self, rows: Tensor) -> ImageSet:
        """The images that a boolean mask or an index tensor selects."""
        index = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows
        images, labels = self._data.index_select(0, index), self._targets.index_select(0, index)
        return type(self)(images, labels, self.transform, _Origin(self, index))

    def with_targets(self, labels: Tensor) -> ImageSet:
        """The same images under other labels."""
        return type(self)(self._data, labels)

    def to(self, device: torch.device, memory_format: torch.memory_format) -> ImageSet:
        """A copy on the device, in the memory layout of batches, which then need no rearranging."""
        images = self._data.permute(0, 3, 1, 2).to(device, memory_format=memory_format)
        return ImageSet(images.permute(0, 2, 3, 1), self._targets.to(device), self.transform, self._origin)

    def __deepcopy__(self, memo: dict[int, Any]) -> ImageSet:
        """Images, labels and attached fields are copied; the transform is shared, and so are its random numbers."""
        other = copy.copy(self)
        vars(other).update({name: value.clone() for name, value in vars(self).items() if isinstance(value, Tensor)})
        other._origin = None  # it is its owner's now
        return other

    # -- what a method does to it ----------------------------------------------------------------------------------

    def append(self, images: Tensor, labels: Tensor) -> None:
        """Train on these 8-bit images, NCHW, as well (exemplars of earlier tasks), until `drop_appended`."""
        own = self._data.permute(0, 3, 1, 2)
        images = images.to(own.device).contiguous(memory_format=self._layout())
        self._data = torch.cat((own, images)).permute(0, 2, 3, 1)
        self._targets = torch.cat((self._targets, labels.to(own.device)))

    def appended(self) -> tuple[Tensor, Tensor]:
        """What `append` has added, in its form."""
        return self._data[self.n_own :].permute(0, 3, 1, 2), self._targets[self.n_own :]

    def whole(self) -> Tensor:
        """All images, in the form of `append`."""
        return self._data.permute(0, 3, 1, 2)

    def drop_appended(self) -> None:
        self._data, self._targets = self._data[: self.n_own], self._targets[: self.n_own]

    def add_extra_return_field(self, name: str, values: Any) -> None:
        setattr(self, name, values)
        self.extra_return_fields += (name,)

    def edits(self) -> dict[str, Any]:
        """All that a method has done to it, for a checkpoint: the rows added or, if others were changed, all rows."""
        intact = self._origin is not None and self._origin.begins(self._data, self._targets)
        rows = self.appended() if intact else (self.whole(), self._targets)
        fields = {name: _as_tensor(getattr(self, name)) for name in self.extra_return_fields}
        return {"appended": intact, "rows": rows, "fields": fields}

    def redo(self, edits: dict[str, Any]) -> None:
        images, labels = edits["rows"]
        if not edits["appended"]:
            self._data, self._targets = self._data[:0], self._targets[:0]
        if len(labels):
            self.append(images, labels)
        for name, values in edits["fields"].items():
            device = getattr(getattr(self, name, None), "device", values.device)  # where it was attached, if it was
            setattr(self, name, values.to(device))
        self.extra_return_fields = tuple(edits["fields"])

    # -- reading -----------------------------------------------------------------------------------------------------

    def batch(self, rows: Tensor | slice) -> Tensor:
        """Images as NCHW, in the memory layout of `data`."""
        if isinstance(rows, slice):
            return self._data[rows].permute(0, 3, 1, 2)
        if self._data.is_contiguous():
            return self._data.index_select(0, rows).permute(0, 3, 1, 2)
        return self._data.permute(0, 3, 1, 2).index_select(0, rows)

    def labels(self, rows: Tensor | slice) -> Tensor:
        return _take(self._targets, rows)

    def extra(self, rows: Any) -> tuple[Any, ...]:
        """The fields that methods have attached, on the images' device: one that lies there costs no waiting for it.

        One as long as the whole training set goes by the numbers there.
        """
        fields = [_as_tensor(getattr(self, name)) for name in self.extra_return_fields]
        numbers = [rows if len(field) == len(self) else _take(self.indexes, rows) for field in fields]
        taken = (_take(field, number) for field, number in zip(fields, numbers, strict=True))
        return tuple(to_device(values, self._data.device) for values in taken)

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        """One item in Mammoth's form: (transformed image, label, image in [0, 1], *extra). For code that wants single
        images; training goes through `TaskLoader`."""
        image = self._data[i].permute(2, 0, 1)
        raw = to_unit_float(image, torch.contiguous_format)
        transformed = raw if self.transform is None else transform_bytes(image[None], self.transform)[0]
        return (transformed, self._targets[i], raw, *self.extra(i))


class _Origin(NamedTuple):
    """The rows of a larger set that a set was made of."""

    whole: ImageSet
    rows: Tensor

    def begins(self, data: Tensor, targets: Tensor) -> bool:
        """Whether these images and labels still begin with those rows."""
        n, whole = len(self.rows), self.whole
        own = ((data, whole._data), (targets, whole._targets))
        return all(torch.equal(now[:n].cpu(), then.index_select(0, self.rows).cpu()) for now, then in own)


def transform_bytes(images: Tensor, transform: Any) -> Tensor:
    """Transform a batch of bytes, NCHW: at once if the transform can, else image by image, from PIL as in Mammoth."""
    if is_batched(transform):
        return apply_transform(images, transform)
    from torchvision.transforms.functional import to_pil_image  # not above: it takes as long to import as torch

    return torch.stack([transform(to_pil_image(image)) for image in images.cpu()]).to(images.device)


def _as_tensor(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values) if isinstance(values, list) else values).as_subclass(Tensor)  # type: ignore[arg-type]


def _take(field: Tensor, rows: Any) -> Tensor:
    # A field may be on another device than the images.
    return field.index_select(0, rows.to(field.device)) if isinstance(rows, Tensor) and rows.dim() else field[rows]
