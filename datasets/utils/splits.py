"""The images of a dataset, read, checked and labelled as the flags say, before tasks are cut out of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datasets.utils.held_out import draw_held_out
from datasets.utils.image_set import ImageSet
from datasets.utils.label_noise import noisy_labels, some_wrong
from utils.errors import UserError

if TYPE_CHECKING:
    from datasets.utils.continual_dataset import ContinualDataset


class Splits(NamedTuple):
    """All images, on the host. Only the current task's images and the test sets go to the device."""

    train: ImageSet
    evaluation: ImageSet  # the test set, or what `--validation` holds out of the training set
    test: ImageSet
    true_labels: Tensor | None  # of the training images, if `--noise_rate` has changed some


def make_splits(dataset: ContinualDataset) -> Splits:
    args, order = dataset.args, dataset.class_order
    train, test = dataset.read_split(train=True), _relabel(dataset.read_split(train=False), order)
    evaluation = test
    if args.validation:
        # Drawn from the original labels: the same images are held out whatever the class order.
        held_out = draw_held_out(train.targets, args.validation, dataset.streams["validation"])
        train, evaluation = train.subset(~held_out), _relabel(train.subset(held_out), order)
    train, true_labels = _relabel(train, order), None
    if some_wrong(args):
        true_labels = train.labels(slice(None))
        train = train.with_targets(noisy_labels(true_labels, dataset.N_CLASSES, args, dataset.NAME, order))
    return Splits(train, evaluation, test, true_labels)


def _relabel(images: ImageSet, class_order: list[int] | None) -> ImageSet:
    return images if class_order is None else images.with_targets(torch.tensor(class_order)[images.targets])


def checked_images(dataset: ContinualDataset, train: bool) -> ImageSet:
    """What `load_split` gives, if it has the form that the class declares."""
    images, labels = dataset.load_split(train)
    expected = (*dataset.SIZE, dataset.CHANNELS)
    if images.dtype != np.uint8 or images.shape[1:] != expected or len(images) != len(labels):
        raise UserError(
            f"{dataset.NAME}: load_split gave {images.dtype} images {images.shape} and {len(labels)} labels, "
            f"expected uint8 [N, {', '.join(map(str, expected))}]"
        )
    _check_labels(dataset, np.asarray(labels), train)
    return ImageSet(torch.from_numpy(images).contiguous(), torch.as_tensor(labels, dtype=torch.int64))


def _check_labels(dataset: ContinualDataset, labels: np.ndarray, train: bool) -> None:
    """Images whose label no task has would be dropped silently. A class may be without images."""
    integers = labels.ndim == 1 and len(labels) > 0 and np.issubdtype(labels.dtype, np.integer)
    if integers and labels.min() >= 0 and labels.max() < dataset.N_CLASSES:
        return
    found = f"{labels.min()}…{labels.max()}" if integers else f"of type {labels.dtype} and shape {labels.shape}"
    raise UserError(
        f"{dataset.NAME}: load_split gave {'training' if train else 'test'} labels {found}, expected integers in "
        f"0…{dataset.N_CLASSES - 1}, one for each image; count labels from 0, or correct N_CLASSES"
    )
