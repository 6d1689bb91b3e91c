"""What the two CIFAR datasets share."""

from __future__ import annotations

from typing import Any

import numpy as np

from datasets.utils import flag_default
from datasets.utils.continual_dataset import ContinualDataset
from datasets.utils.torchvision_files import load_cifar


class SequentialCifar(ContinualDataset):
    """32×32 colour images, cropped and flipped; 50 epochs of ResNet-18. A subclass names torchvision's class."""

    SOURCE: str
    SIZE = (32, 32)
    CROP_PADDING = 4
    HORIZONTAL_FLIP = True

    def load_split(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        split = self._load(train)
        return split.data, np.array(split.targets)

    def load_class_names(self) -> list[str]:
        return self._load(train=False).classes

    def _load(self, train: bool) -> Any:
        return load_cifar(self.SOURCE, self.args.base_path, train)

    get_backbone = flag_default("backbone", "resnet18")
    get_epochs = flag_default("n_epochs", 50)
    get_batch_size = flag_default("batch_size", 32)
