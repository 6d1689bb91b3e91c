"""Datasets that make their own loaders, as those written for Mammoth do; and transforms in a dataset's YAML."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

import torch
from torchvision import transforms

from datasets.utils.continual_dataset import ContinualDataset
from datasets.utils.foreign.masked_loaders import MammothDatasetWrapper
from datasets.utils.foreign.replayed_loader import ReplayedLoader
from utils.errors import UsageError, UserError
from utils.kornia_utils import to_kornia_transform
from utils.random_streams import new_generator
from utils.resume.rng import HostGenerators


class OwnLoaders(ContinualDataset):
    """Stands before a dataset class that implements `get_data_loaders`: `class …(OwnLoaders, Theirs)`.

    What such a class draws from the global generators for a task (a permutation of pixels, a rotation) depends on
    the seed and the task alone: a second dataset of the same arguments, and a resumed run, has the same tasks.
    """

    image_dtype = torch.float32  # nothing is known about its images
    may_lack_labels = True  # nor about its labels; to look costs little where batches come from the host

    def prepare(self) -> None:
        """Look at a training image of a dataset that is then thrown away: its shape is declared nowhere."""
        with HostGenerators(0):
            loader, _ = self.again().get_data_loaders()
            batch = next(iter(loader), None)
        self._refuse_other_labels(loader)
        if batch is None:
            return  # the loop has words for that
        if len(batch) < 3:
            raise UserError(
                f"{self.NAME}: its training items have {len(batch)} parts, but Mammoth's have three: image, label and "
                "image without augmentation"
            )
        self.CHANNELS, *_ = shape = batch[2].shape[1:]
        self.args.in_channels, self.args.input_size = self.CHANNELS, shape.numel()

    def _refuse_other_labels(self, loader: Any) -> None:
        """Wrong and missing labels are made by `store_masked_loaders` alone."""
        if isinstance(getattr(loader, "dataset", None), MammothDatasetWrapper):
            return
        for flag, usual in (("noise_rate", 0), ("label_perc", 1), ("label_perc_by_class", 1)):
            if getattr(self.args, flag) != usual:
                raise UserError(
                    f"--{flag}: {self.NAME} makes its batches itself, with the labels that they have; leave it out"
                )

    def get_data_loaders(self) -> tuple[Any, Any]:
        task = len(self.test_loaders)
        with HostGenerators(new_generator(self.args.seed, f"task/{task}").initial_seed()):
            self.train_loader, test_loader = super().get_data_loaders()
        if len(self.test_loaders) == task:  # not made by `store_masked_loaders`
            self.test_loaders.append(test_loader)
        return self.train_loader, test_loader

    def images_per_task(self) -> None:
        return None

    def resumable_loader(self) -> ReplayedLoader:
        loader = ReplayedLoader(self.train_loader, self.args.seed, len(self.test_loaders), self.args.device)
        if not loader.repeatable:
            logging.warning("an interrupted run will not resume exactly: the loader's workers outlive an epoch")
        return loader

    # -- test sets out of turn -------------------------------------------------------------------------------------

    def make_test_loader(self, k: int) -> Any:
        while len(self._ahead.test_loaders) <= k:
            self._ahead.get_data_loaders()
        return self._ahead.test_loaders[k]

    @cached_property
    def _ahead(self) -> ContinualDataset:
        return self.again()

    def true_test_loaders(self) -> list[Any]:
        dataset = self.again(validation=None, validation_mode="current")
        for _ in range(self.N_TASKS):
            dataset.get_data_loaders()
        return dataset.test_loaders

    # -- transforms ------------------------------------------------------------------------------------------------

    def get_batch_transform(self, augment: bool, stream: str = "") -> Any:
        """Kornia's counterpart of the dataset's transform, or that itself, image by image; None if there is none."""
        transform = self.get_transform() if augment else self.get_normalization_transform()
        if transform is None:
            return None
        try:
            return to_kornia_transform(transform)
        except (NotImplementedError, AttributeError, TypeError, ValueError) as error:
            logging.warning("%s: %s; replayed images are transformed one by one, which is slow", self.NAME, error)
            return transform


# -- transforms written in a dataset's YAML ----------------------------------------------------------------------------


def compose(file: str, key: str, entries: Any) -> transforms.Compose:
    """A list whose entries are `Name`, `Name: {argument: value}` or `Name: argument`, in torchvision's names."""
    if not isinstance(entries, list):
        raise UsageError(f"{file}: {key} must be a list of transforms, not {entries!r}")
    try:
        return transforms.Compose([_build(entry) for entry in entries])
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{file}: {key}: {error}") from None


def _build(entry: Any) -> Any:
    name, given = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else (entry, {})
    kind = getattr(transforms, str(name), None)
    if not isinstance(kind, type):
        raise ValueError(f"{name!r} is no transform of torchvision")
    if name == "RandomApply":
        inner = given["transform"]
        parts = [{part: arguments} for part, arguments in inner.items()] if isinstance(inner, dict) else inner
        return kind([_build(part) for part in parts], p=given.get("p", 0.5))
    return kind(**given) if isinstance(given, dict) else kind(given)
