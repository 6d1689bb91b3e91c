"""MNIST in 5 tasks of 2 digits."""

from __future__ import annotations

import numpy as np

from datasets.utils import set_default_from_args
from datasets.utils.continual_dataset import ContinualDataset
from datasets.utils.torchvision_files import load_mnist


class SequentialMNIST(ContinualDataset):
    """MNIST in 5 tasks of 2 digits; one epoch of plain 28×28 images, neither augmented nor normalised."""

    NAME = "seq-mnist"
    N_TASKS = 5
    N_CLASSES_PER_TASK = 2
    N_CLASSES = 10
    SIZE = (28, 28)
    CHANNELS = 1

    def load_split(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        images, labels = load_mnist("MNIST", self.args.base_path, "MNIST", train)
        return images[..., None], labels

    @set_default_from_args("backbone")
    def get_backbone(self) -> str:
        return "mnistmlp"

    @set_default_from_args("n_epochs")
    def get_epochs(self) -> int:
        return 1

    @set_default_from_args("batch_size")
    def get_batch_size(self) -> int:
        return 64
