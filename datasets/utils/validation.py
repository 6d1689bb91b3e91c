"""Mammoth's way to hold out training images, for dataset files that do so themselves; ours is `held_out`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image


def get_validation_indexes(validation_size: float, dataset: Any, seed: int | None = None) -> tuple[Any, Any]:
    """(kept, held out): rows of a data set, class by class. A size below 1 is a fraction, any other percent."""
    percent = round(validation_size * 100, 2) if validation_size < 1 else validation_size
    targets = np.asarray(dataset.targets)
    kept, held_out = [], []
    for label in np.unique(targets):
        rows = np.flatnonzero(targets == label)
        # Seeded anew for every class, so that what is held out of one does not depend on the others.
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed or 0)).numpy()
        count = math.ceil(len(rows) * percent / 100)
        held_out.append(rows[order[:count]])
        kept.append(rows[order[count:]])
    return np.concatenate(kept), np.concatenate(held_out)


def get_train_val(
    train: Any, test_transform: Callable | None, dataset: str, val_perc: float = 0.1
) -> tuple[Any, ValidationDataset]:
    """The training set, cut in place, and what was taken from it."""
    kept, held_out = get_validation_indexes(val_perc, train, seed=0)
    # A tensor stays one: items of torchvision's MNIST call `.numpy()` on its rows.
    data, targets = (v if isinstance(v, torch.Tensor) else np.asarray(v) for v in (train.data, train.targets))
    train.data, train.targets = data[kept], targets[kept]
    return train, ValidationDataset(data[held_out], targets[held_out], transform=test_transform)


class ValidationDataset(torch.utils.data.Dataset):
    """Arrays as a data set of (image, label)."""

    def __init__(
        self, data: Any, targets: Any, transform: Callable | None = None, target_transform: Callable | None = None
    ):
        self.data, self.targets = data, targets
        self.transform, self.target_transform = transform, target_transform

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        array, target = np.asarray(self.data[index]), self.targets[index]
        if array.dtype.kind == "f" and array.max() < 2:  # in [0, 1]
            array = array * 255
        image: Any = Image.fromarray(array.astype(np.uint8))
        image = self.transform(image) if self.transform is not None else image
        return image, self.target_transform(target) if self.target_transform is not None else target
