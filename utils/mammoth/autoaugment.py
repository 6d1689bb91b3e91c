"""AutoAugment's published policies (Cubuk et al. 2019) for PIL images, as torchvision has them."""

from __future__ import annotations

from collections.abc import Sequence

from torchvision.transforms import AutoAugment, AutoAugmentPolicy


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
