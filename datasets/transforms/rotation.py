"""Rotations, for domain-incremental variants of a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
from torchvision.transforms.functional import rotate


class Rotation:
    """Rotates all images, PIL or tensors, by one angle that numpy's global generator chooses when it is made."""

    def __init__(self, deg_min: float = 0, deg_max: float = 180):
        self.deg_min, self.deg_max = deg_min, deg_max
        self.degrees = float(self.generator().uniform(deg_min, deg_max))

    def generator(self) -> Any:
        return np.random

    def __call__(self, image: Any) -> Any:
        return rotate(image, self.degrees)


class FixedRotation(Rotation):
    """By the angle that belongs to a seed."""

    def __init__(self, seed: int, deg_min: float = 0, deg_max: float = 180):
        self.seed = seed
        super().__init__(deg_min, deg_max)

    def generator(self) -> Any:
        return np.random.RandomState(self.seed)


class IncrementalRotation:
    """By an angle that grows with every image, from `degrees` on; `iteration` counts the images."""

    def __init__(self, init_deg: float = 0, increase_per_iteration: float = 0.006):
        self.degrees, self.increase_per_iteration = init_deg, increase_per_iteration
        self.iteration = 0

    def set_iteration(self, i: int) -> None:
        self.iteration = i

    def __call__(self, image: Any) -> Any:
        angle = (self.iteration * self.increase_per_iteration + self.degrees) % 360
        self.iteration += 1
        return rotate(image, angle)
