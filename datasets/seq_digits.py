"""scikit-learn's handwritten digits in 5 tasks of 2: no download, seconds per run."""

from __future__ import annotations

from functools import cache

import numpy as np

from datasets.utils import flag_default
from datasets.utils.continual_dataset import ContinualDataset

SPLIT_SEED = 0


@cache  # the file is text: reading it for each of the two halves would take longer than a task
def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Images in 8 bits, and labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return np.rint(digits.images * (255 / 16)).astype(np.uint8)[..., None], digits.target


def _test_mask(labels: np.ndarray) -> np.ndarray:
    """A fifth of each digit, the same in every run. `RandomState` is the generator that numpy has promised to keep."""
    random = np.random.RandomState(SPLIT_SEED)
    mask = np.zeros(len(labels), bool)
    for digit in range(10):
        members = random.permutation(np.flatnonzero(labels == digit))
        mask[members[: round(len(members) / 5)]] = True
    return mask


class SequentialDigits(ContinualDataset):
    """scikit-learn's 1797 handwritten digits, 8×8, in 5 tasks of 2: nothing to download, seconds per run."""

    NAME = "seq-digits"
    N_TASKS = 5
    N_CLASSES_PER_TASK = 2
    N_CLASSES = 10
    SIZE = (8, 8)
    CHANNELS = 1
    MEAN, STD = (0.3058,), (0.3764,)  # of the training set

    def load_split(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        images, labels = _digits()
        rows = _test_mask(labels) != train
        return images[rows], labels[rows]  # copies, which are the caller's to change

    get_backbone = flag_default("backbone", "mnistmlp")
    get_epochs = flag_default("n_epochs", 10)
    get_batch_size = flag_default("batch_size", 32)
