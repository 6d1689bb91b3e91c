"""Fashion-MNIST in 5 tasks of 2 kinds of clothing."""

from __future__ import annotations

from datasets.seq_mnist import SequentialMNIST


class SequentialFashionMNIST(SequentialMNIST):
    """Fashion-MNIST in 5 tasks of 2 kinds of clothing; the settings of seq-mnist."""

    NAME = "seq-fmnist"
    SOURCE, FOLDER = "FashionMNIST", "FMNIST"

    def load_class_names(self) -> list[str]:
        from torchvision.datasets import FashionMNIST

        return list(FashionMNIST.classes)
