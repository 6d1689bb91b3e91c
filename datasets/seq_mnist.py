"""MNIST in 5 tasks of 2 digits."""

from __future__ import annotations

import numpy as np

from datasets.utils import flag_default
from datasets.utils.continual_dataset import ContinualDataset
from datasets.utils.torchvision_files import load_mnist


class SequentialMNIST(ContinualDataset):
    """MNIST in 5 tasks of 2 digits; one epoch of plain 28×28 images, neither augmented nor normalised."""

    NAME = "seq-mnist"
    SOURCE = FOLDER = "MNIST"  # torchvision's class, and where its files are below the base path
    N_TASKS = 5
    N_CLASSES_PER_TASK = 2
    N_CLASSES = 10
    SIZE = (28, 28)
    CHANNELS = 1

    def load_split(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        images, labels = load_mnist(self.SOURCE, self.args.base_path, self.FOLDER, train)
        return images[..., None], labels

    get_backbone = flag_default("backbone", "mnistmlp")
    get_epochs = flag_default("n_epochs", 1)
    get_batch_size = flag_default("batch_size", 64)
