"""A stream without tasks, in Mammoth's form."""

from __future__ import annotations

from datasets.utils import set_default_from_args
from datasets.utils.continual_dataset import ContinualDataset

__all__ = ["ContinualDataset", "GCLDataset"]


class GCLDataset(ContinualDataset):
    """General continual learning: one pass over one stream. Both loaders are iterables that yield ready batches."""

    SETTING = "general-continual"
    N_TASKS = 1

    @set_default_from_args("n_epochs")
    def get_epochs(self) -> int:
        return 1
