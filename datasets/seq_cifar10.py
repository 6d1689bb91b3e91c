"""CIFAR-10 in 5 tasks of 2 classes."""

from __future__ import annotations

from typing import Any

from datasets.utils.cifar import SequentialCifar
from datasets.utils.foreign.siblings import sibling


class SequentialCIFAR10(SequentialCifar):
    """CIFAR-10 in 5 tasks of 2 classes; 10 000 training images of 32×32 per task."""

    NAME = "seq-cifar10"
    SOURCE = "CIFAR10"
    N_TASKS = 5
    N_CLASSES_PER_TASK = 2
    N_CLASSES = 10
    MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615)


def __getattr__(name: str) -> Any:
    """Names that dataset files of Mammoth import from here."""
    return sibling(__name__, name, "CIFAR10")
