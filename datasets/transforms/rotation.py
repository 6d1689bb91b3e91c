"""Rotations, for domain-incremental variants of a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
from torchvision.transforms.functional import rotate


class Rotation:
    """Rotates all images, PIL or tensors, by one angle that numpy's global generator chooses when it is made."""

    def __init__(self, deg_min: float = 0, deg_max: float = 180):
        self.degrees = float(np.random.uniform(deg_min, deg_max))

    def __call__(self, image: Any) -> Any:
        return rotate(image, self.degrees)


class FixedRotation(Rotation):
    """By the angle that belongs to a seed."""

    def __init__(self, seed: int, deg_min: float = 0, deg_max: float = 180):
        self.degrees = float(np.random.RandomState(seed).uniform(deg_min, deg_max))


class IncrementalRotation:
    """By an angle that grows with every image."""

    def __init__(self, init_deg: float = 0, increase_per_iteration: float = 0.006):
        self.degrees, self.increase_per_iteration = init_deg, increase_per_iteration

    def __call__(self, image: Any) -> Any:
        rotated = rotate(image, self.degrees)
        self.degrees += self.increase_per_iteration
        return rotated
