"""CIFAR-100 in 10 tasks of 10 classes."""

from __future__ import annotations

from typing import Any

from datasets.utils import set_default_from_args
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

    @set_default_from_args("lr_scheduler")
    def get_scheduler_name(self) -> str:
        return "multisteplr"

    @set_default_from_args("lr_milestones")
    def get_scheduler_milestones(self) -> list[int]:
        return [35, 45]

    @set_default_from_args("sched_multistep_lr_gamma")
    def get_scheduler_gamma(self) -> float:
        return 0.1


def __getattr__(name: str) -> Any:
    """Names that dataset files of Mammoth import from here."""
    return sibling(__name__, name, "CIFAR100")
