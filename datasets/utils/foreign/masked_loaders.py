"""Loaders of a task from whole datasets of other code, as files written for Mammoth make them."""

from __future__ import annotations

import copy
import logging
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from datasets.utils.held_out import draw_held_out, so_far
from datasets.utils.label_noise import UNLABELLED, labelled, noisy_labels, some_unlabelled, some_wrong
from utils.conf import create_seeded_dataloader
from utils.mammoth.exemplars import concatenate, in_form_of
from utils.random_streams import new_generator
from utils.resume.rng import HostGenerators


class MammothDatasetWrapper(Dataset):
    """Part of a dataset that has `data` and `targets`; what else it has is read and written through the wrapper.

    An item is that of the dataset, followed by the fields that `extra_return_fields` names. Their values have one row
    per item, or one per image of the full set, where `indexes` are the places of the items.
    """

    OWN = frozenset({"dataset", "train", "indexes", "extra_return_fields", "num_times_iterated", "n_own", "written"})
    dataset: Any
    data: Any  # of the dataset
    targets: Any

    def __init__(self, dataset: Any, train: bool):
        self.dataset, self.train = dataset, train
        self.indexes = np.arange(len(dataset.targets))
        self.extra_return_fields: tuple[str, ...] = ()
        self.num_times_iterated = 0
        self.n_own = len(dataset.targets)  # items before those that one of our methods has appended
        self.written: set[str] = set()  # attributes that a method has set, see `edits`

    def __getattr__(self, name: str) -> Any:
        if name in self.OWN or name.startswith("__"):  # not set yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if "written" in vars(self):
            self.written.add(name)
        if name not in self.OWN and hasattr(self.dataset, name):
            setattr(self.dataset, name, value)
        else:
            super().__setattr__(name, value)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        extra = (self._row(getattr(self, name), index) for name in self.extra_return_fields)
        return (*self.dataset[index], *extra)

    def _row(self, field: Any, index: Any) -> Any:
        return field[index] if len(field) == len(self) else field[self.indexes[index]]

    def add_extra_return_field(self, name: str, values: Any) -> None:
        setattr(self, name, values)
        self.extra_return_fields = (*self.extra_return_fields, name)

    def keep(self, mask: np.ndarray) -> None:
        """Forget all items but those of a mask."""
        self.data, self.targets = _select(self.data, mask), _select(self.targets, mask)
        self.indexes = self.indexes[mask]
        self.n_own = len(self)

    # -- for our methods, and for checkpoints ----------------------------------------------------------------------

    def batch(self, rows: Tensor | slice) -> Tensor:
        """Images in [0, 1], not augmented, the third field of items; that the first is drawn for it leaves no trace."""
        chosen = range(len(self))[rows] if isinstance(rows, slice) else rows.tolist()
        with HostGenerators(0):
            return torch.stack([self[row][2] for row in chosen])

    def append(self, images: Tensor, labels: Tensor) -> None:
        """Train on these images in [0, 1], NCHW, as well (exemplars of earlier tasks), until `drop_appended`."""
        self.data = concatenate(self.data, in_form_of(self.data, images))
        self.targets = torch.cat((torch.as_tensor(self.targets), labels.cpu()))

    def drop_appended(self) -> None:
        self.data, self.targets = self.data[: self.n_own], self.targets[: self.n_own]

    def edits(self) -> dict[str, Any]:
        """What a method has put into attributes since the loader was made."""
        values = {name: getattr(self, name) for name in sorted(self.written)}
        lost = [name for name, value in values.items() if callable(value)]
        if lost:
            logging.warning("resume is not exact: the training set's %s can't be saved", ", ".join(lost))
        plain = {name: value for name, value in values.items() if name not in lost}
        return {
            name: {"array": torch.from_numpy(value)} if isinstance(value, np.ndarray) else {"value": value}
            for name, value in plain.items()
        }

    def redo(self, edits: dict[str, Any]) -> None:
        for name, saved in edits.items():
            setattr(self, name, saved["array"].numpy() if "array" in saved else saved["value"])


def _select(values: Any, mask: np.ndarray) -> Any:
    """The items of an array, a tensor or a list."""
    if isinstance(values, Tensor):
        return values[torch.from_numpy(mask)]
    return values[mask] if isinstance(values, np.ndarray) else [values[i] for i in np.flatnonzero(mask)]


def store_masked_loaders(train_dataset: Any, test_dataset: Any, setting: Any) -> tuple[DataLoader, DataLoader]:
    """The next task of `setting`, a ContinualDataset, cut out of its whole training set and its whole test set.

    Sets `train_loader` and extends `test_loaders`: by one, or with `--joint` by one for each task that there would be.
    """
    args, task = setting.args, len(setting.test_loaders)
    if not setting.shares_classes:
        setting.c_task += 1
    train, test = _wrap(train_dataset, train=True), _wrap(test_dataset, train=False)
    if args.validation:
        _hold_out(train, test, args)
    if setting.class_order is not None:
        for split in (train, test):
            split.targets = np.array(setting.class_order)[split.targets]
    if some_wrong(args):
        train.add_extra_return_field("true_labels", train.targets)
        true = torch.from_numpy(train.targets)
        train.targets = noisy_labels(true, setting.N_CLASSES, args, setting.NAME, setting.class_order).numpy()
    tests = [_part(test, setting, k, so_far(args)) for k in (range(setting.n_eval_tasks) if args.joint else [task])]
    if not args.joint:
        train = _part(train, setting, task)
    elif args.stop_after:
        train.keep(train.targets < setting.get_offsets(0)[1])
    if some_unlabelled(args):
        _unlabel(train, args)
    loaders = [_loader(args, split) for split in (train, *tests)]
    setting.train_loader = loaders[0]
    setting.test_loaders += loaders[1:]
    return loaders[0], loaders[-1]


def _wrap(dataset: Any, train: bool) -> MammothDatasetWrapper:
    """Around a copy: the images are shared, but the caller's object is left as it is."""
    wrapper = MammothDatasetWrapper(copy.copy(dataset), train)
    wrapper.targets = torch.as_tensor(wrapper.targets).to(torch.int64, copy=True).numpy()
    return wrapper


def _hold_out(train: MammothDatasetWrapper, test: MammothDatasetWrapper, args: Namespace) -> None:
    """Let some of the training images, the same in every task, take the place of the test images."""
    generator = new_generator(args.seed, "validation")
    mask = draw_held_out(torch.from_numpy(train.targets), args.validation, generator).numpy()
    test.data, test.targets, test.indexes = _select(train.data, mask), train.targets[mask], train.indexes[mask]
    if hasattr(train, "task_ids"):
        test.task_ids = train.task_ids
    train.keep(~mask)


def _part(split: MammothDatasetWrapper, setting: Any, task: int, cumulative: bool = False) -> MammothDatasetWrapper:
    """A task's items: those that `task_ids` names, or else those of its classes; or of all tasks up to it."""
    part = copy.copy(split)
    part.dataset = copy.copy(split.dataset)
    if hasattr(split, "task_ids"):
        tasks = np.asarray(split.task_ids)[split.indexes]
        part.keep(tasks <= task if cumulative else tasks == task)
    elif not setting.shares_classes:
        first, last = setting.eval_offsets(task)
        part.keep((split.targets >= (0 if cumulative else first)) & (split.targets < last))
    return part


def _unlabel(train: MammothDatasetWrapper, args: Namespace) -> None:
    """Images without a label are for methods that can do something with them."""
    mask = labelled(torch.from_numpy(train.targets), args).numpy()
    if args.takes_unlabelled:
        train.targets = np.where(mask, train.targets, UNLABELLED)
    else:
        train.keep(mask)


def _loader(args: Namespace, split: MammothDatasetWrapper) -> DataLoader:
    split.targets = torch.as_tensor(split.targets)
    split.written = set()
    drop_last = bool(args.drop_last) and split.train
    # Without `worker_init_fn` torch seeds workers anew at every epoch.
    options: Any = {"shuffle": split.train, "drop_last": drop_last, "worker_init_fn": None}
    return create_seeded_dataloader(args, split, batch_size=args.batch_size, **options)


def fix_class_names_order(class_names: Sequence[str], args: Namespace) -> list[str]:
    """Names such that entry i is the class that is now labelled i."""
    order = getattr(args, "class_order", None)
    return list(class_names) if order is None else [class_names[original] for original in np.argsort(order)]
