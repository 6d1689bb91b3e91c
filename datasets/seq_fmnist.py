"""Fashion-MNIST in 5 tasks of 2 kinds of clothing."""

from __future__ import annotations

import numpy as np

from datasets.seq_mnist import SequentialMNIST
from datasets.utils.torchvision_files import load_mnist


class SequentialFashionMNIST(SequentialMNIST):
    """Fashion-MNIST in 5 tasks of 2 kinds of clothing; the settings of seq-mnist."""

    NAME = "seq-fmnist"

    def load_split(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        images, labels = load_mnist("FashionMNIST", self.args.base_path, "FMNIST", train)
        return images[..., None], labels

    def load_class_names(self) -> list[str]:
        from torchvision.datasets import FashionMNIST

        return list(FashionMNIST.classes)
