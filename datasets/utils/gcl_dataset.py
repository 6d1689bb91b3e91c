"""A stream without tasks, in Mammoth's form."""

from __future__ import annotations

from argparse import Namespace

from datasets.utils import flag_default
from datasets.utils.continual_dataset import ContinualDataset
from utils.errors import UsageError

__all__ = ["ContinualDataset", "GCLDataset"]


class GCLDataset(ContinualDataset):
    """General continual learning: one pass over one stream. Both loaders are iterables that yield ready batches."""

    SETTING = "general-continual"
    N_TASKS = 1

    def __init_subclass__(cls) -> None:
        """Such a class declares `N_CLASSES` alone: its one task has them all."""
        if not hasattr(cls, "N_CLASSES_PER_TASK") and hasattr(cls, "N_CLASSES"):
            cls.N_CLASSES_PER_TASK = cls.N_CLASSES
        super().__init_subclass__()

    @classmethod
    def check_args(cls, args: Namespace) -> None:
        if args.n_epochs > 1:
            raise UsageError(f"--n_epochs {args.n_epochs}: {cls.NAME} is a stream, which passes once; leave it out")
        for flag in ("enable_other_metrics", "eval_future"):
            if getattr(args, flag):
                raise UsageError(f"--{flag} 1: {cls.NAME} is one stream, with no task to come; leave it out")
        super().check_args(args)

    get_epochs = flag_default("n_epochs", 1)
