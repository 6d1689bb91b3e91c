"""CIFAR-10 in 5 tasks of 2 classes."""

from __future__ import annotations

import numpy as np
from torchvision.datasets import CIFAR10

from datasets.utils import set_default_from_args
from datasets.utils.continual_dataset import ContinualDataset
from datasets.utils.torchvision_files import load_cifar


class SequentialCIFAR10(ContinualDataset):
    """CIFAR-10 in 5 tasks of 2 classes; 10 000 training images of 32×32 per task."""

    NAME = "seq-cifar10"
    N_TASKS = 5
    N_CLASSES_PER_TASK = 2
    N_CLASSES = 10
    SIZE = (32, 32)
    MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615)
    CROP_PADDING = 4
    HORIZONTAL_FLIP = True

    def load_split(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        split = load_cifar(CIFAR10, self.args.base_path, "CIFAR10", train)
        return split.data, np.array(split.targets)

    def load_class_names(self) -> list[str]:
        return load_cifar(CIFAR10, self.args.base_path, "CIFAR10", train=False).classes

    @set_default_from_args("backbone")
    def get_backbone(self) -> str:
        return "resnet18"

    @set_default_from_args("n_epochs")
    def get_epochs(self) -> int:
        return 50

    @set_default_from_args("batch_size")
    def get_batch_size(self) -> int:
        return 32
