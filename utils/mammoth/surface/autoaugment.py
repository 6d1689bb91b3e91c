"""AutoAugment's published policies (Cubuk et al. 2019) for PIL images, as torchvision has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import AutoAugment, AutoAugmentPolicy, InterpolationMode
from torchvision.transforms.autoaugment import _apply_op

BINS = 10  # strengths of an operation


class _Policy(AutoAugment):
    PUBLISHED: AutoAugmentPolicy

    def __init__(self, fillcolor: Sequence[float] = (128, 128, 128)):
        super().__init__(self.PUBLISHED, fill=list(fillcolor))


class CIFAR10Policy(_Policy):
    PUBLISHED = AutoAugmentPolicy.CIFAR10


class ImageNetPolicy(_Policy):
    PUBLISHED = AutoAugmentPolicy.IMAGENET


class SVHNPolicy(_Policy):
    PUBLISHED = AutoAugmentPolicy.SVHN


class SubPolicy:
    """Two operations, each with a probability and one of ten strengths; names as in `shearX` and `autocontrast`."""

    def __init__(
        self,
        p1: float,
        operation1: str,
        magnitude_idx1: int,
        p2: float,
        operation2: str,
        magnitude_idx2: int,
        fillcolor: Sequence[float] = (128, 128, 128),
    ):
        self.steps = [(p1, operation1, magnitude_idx1), (p2, operation2, magnitude_idx2)]
        self.fill = list(fillcolor)

    def __call__(self, image: Any) -> Any:
        for probability, operation, strength in self.steps:
            if torch.rand(()) < probability:
                image = self._apply(image, operation.lower(), strength)
        return image

    def _apply(self, image: Any, operation: str, strength: int) -> Any:
        width, height = image.size
        space = AutoAugment()._augmentation_space(BINS, (height, width))
        names = {name.lower(): name for name in space}
        if operation not in names:
            raise ValueError(f"operation {operation!r} unknown; valid are {', '.join(names)}")
        magnitudes, signed = space[names[operation]]
        magnitude = float(magnitudes[strength]) if magnitudes.ndim else 0.0
        if signed and torch.rand(()) < 0.5:
            magnitude = -magnitude
        return _apply_op(image, names[operation], magnitude, InterpolationMode.NEAREST, self.fill)


class Cutout:
    """Sets squares at random places of an image [C, H, W] to zero (DeVries and Taylor 2017); its edge cuts them off."""

    def __init__(self, n_holes: int, length: int):
        self.n_holes, self.length = n_holes, length

    def __call__(self, image: Tensor) -> Tensor:
        image = image.clone()
        for _ in range(self.n_holes):
            row, column = (int(torch.randint(side, ())) - self.length // 2 for side in image.shape[-2:])
            image[..., max(row, 0) : max(row + self.length, 0), max(column, 0) : max(column + self.length, 0)] = 0
        return image
