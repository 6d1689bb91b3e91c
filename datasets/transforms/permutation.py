"""Permutations of pixels, for domain-incremental variants of a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np


class Permutation:
    """A permutation of pixels, the same for all images, that numpy's global generator chooses when it is made."""

    def __init__(self, size: int):
        self.perm: Any = np.random.permutation(size)

    def __call__(self, image: Any) -> Any:
        """A tensor or an array with its pixels permuted, in the shape it had."""
        return image.flatten()[self.perm].reshape(image.shape)


class FixedPermutation(Permutation):
    """The one that belongs to a seed."""

    def __init__(self, seed: int):
        self.seed, self.perm = seed, None

    def __call__(self, image: Any) -> Any:
        if self.perm is None:  # only now the size is known
            self.perm = np.random.RandomState(self.seed).permutation(image.flatten().shape[0])
        return super().__call__(image)
