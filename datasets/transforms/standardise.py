"""Standardisation of vectors: the counterpart of an image's normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from utils.augmentations import UNITS, to_unit_float


class Standardise:
    """(x − mean) / std for each feature, in float32, for batches [B, d] as stored or in units (`to_unit_float`)."""

    batched = True
    accepts_uint8 = True  # that is: stored types of any kind
    generator = None  # nothing is random
    memory_format = torch.contiguous_format

    def __init__(self, mean: Tensor, std: Tensor):
        self.mean, self.std = mean, std
        self._factors: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    @classmethod
    def of(cls, vectors: Tensor) -> Standardise:
        """By the statistics of these vectors; a feature that never varies is only centred."""
        units = to_unit_float(vectors).double()
        std, mean = torch.std_mean(units, dim=0, correction=0)
        return cls(mean, torch.where(std > 0, std, 1.0))

    def __call__(self, batch: Tensor) -> Tensor:
        key = (batch.device, batch.dtype)
        if key not in self._factors:
            self._factors[key] = self._make_factors(*key)
        scale, shift = self._factors[key]
        return torch.addcmul(shift, batch.detach(), scale)

    def _make_factors(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        scale, shift = 1 / (self.std * UNITS.get(dtype, 1)), -self.mean / self.std
        return scale.float().to(device), shift.float().to(device)
