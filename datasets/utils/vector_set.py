"""A labelled set of vectors, in the place of images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datasets.utils.image_set import ImageSet, _as_tensor
from utils.augmentations import to_unit_float
from utils.resume.state import saved_by_attributes


@saved_by_attributes
class VectorSet(ImageSet):
    """As `ImageSet`, with vectors `data` [N, d] in the type that their file has."""

    @property
    def data(self) -> Tensor:
        return super().data

    @data.setter
    def data(self, vectors: Any) -> None:
        vectors = _as_tensor(vectors)
        if vectors.dtype != self._data.dtype:
            raise ValueError(f"vectors must be {self._data.dtype}, as those of the file; these are {vectors.dtype}")
        self._data = vectors.to(self._data.device)

    def to(self, device: torch.device, memory_format: torch.memory_format) -> VectorSet:
        return VectorSet(self._data.to(device), self._targets.to(device), self.transform, self._origin)

    def append(self, images: Tensor, labels: Tensor) -> None:
        device = self._data.device
        self._data = torch.cat((self._data, images.to(device)))
        self._targets = torch.cat((self._targets, labels.to(device)))

    def appended(self) -> tuple[Tensor, Tensor]:
        return self._data[self.n_own :], self._targets[self.n_own :]

    def whole(self) -> Tensor:
        return self._data

    def batch(self, rows: Tensor | slice) -> Tensor:
        return self._data[rows] if isinstance(rows, slice) else self._data.index_select(0, rows)

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        raw = to_unit_float(self._data[i : i + 1])
        transformed = raw if self.transform is None else self.transform(self._data[i : i + 1])
        return (transformed[0], self._targets[i], raw[0], *self.extra(i))
