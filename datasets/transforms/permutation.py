"""Permutations of pixels, for domain-incremental variants of a dataset."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class FixedPermutation:
    """The permutation of pixels that belongs to a seed, the same for all images."""

    def __init__(self, seed: int):
        self.seed = seed
        self.perm: Tensor | None = None

    def __call__(self, image: Tensor) -> Tensor:
        if self.perm is None:  # only now the size is known
            self.perm = torch.from_numpy(np.random.RandomState(self.seed).permutation(image.numel()))
        return image.flatten()[self.perm].view(image.shape)


class Permutation(FixedPermutation):
    """One that numpy's global generator chooses when it is made."""

    def __init__(self) -> None:
        super().__init__(np.random.randint(2**31))
