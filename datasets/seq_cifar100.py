"""CIFAR-100 in 10 tasks of 10 classes."""

from __future__ import annotations

from typing import Any

from datasets.utils import flag_default
from datasets.utils.cifar import SequentialCifar
from datasets.utils.foreign.siblings import sibling


class SequentialCIFAR100(SequentialCifar):
    """CIFAR-100 in 10 tasks of 10 classes; 5 000 training images of 32×32 per task.

    The learning rate falls by 10 after epochs 35 and 45 of every task, as in the runs that the paper compares with.
    """

    NAME = "seq-cifar100"
    SOURCE = "CIFAR100"
    N_TASKS = 10
    N_CLASSES_PER_TASK = 10
    N_CLASSES = 100
    MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)

    get_scheduler_name = flag_default("lr_scheduler", "multisteplr")
    get_scheduler_milestones = flag_default("lr_milestones", [35, 45])
    get_scheduler_gamma = flag_default("sched_multistep_lr_gamma", 0.1)


def __getattr__(name: str) -> Any:
    """Names that dataset files of Mammoth import from here."""
    return sibling(__name__, name, "CIFAR100")
