"""A dataset that arrives as a sequence of tasks, each with its own classes."""

from __future__ import annotations

import copy
from argparse import Namespace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from datasets.utils import construct
from datasets.utils.foreign.interface import MammothDataset
from datasets.utils.foreign.masked_loaders import MammothDatasetWrapper, fix_class_names_order, store_masked_loaders
from datasets.utils.held_out import so_far
from datasets.utils.image_set import ImageSet
from datasets.utils.label_noise import UNLABELLED, confused_with, labelled, some_unlabelled, some_wrong
from datasets.utils.loader import TaskLoader
from datasets.utils.splits import Splits, checked_images, make_splits
from utils.augmentations import BatchTransform
from utils.errors import UsageError
from utils.random_streams import RandomStreams

# Mammoth's place for what a dataset file needs.
__all__ = ["ContinualDataset", "MammothDatasetWrapper", "fix_class_names_order", "store_masked_loaders"]

EVALUATION_BATCH = 256  # at least: without gradients there is memory for it, and it is faster


SHARED_CLASSES = ("domain-il", "general-continual")  # settings in which tasks differ in something else


class ContinualDataset(MammothDataset):
    """Base of all datasets. A subclass declares the attributes below, gives defaults, and implements `load_split`.

    One that was written for Mammoth implements `get_data_loaders` instead: see `datasets.utils.foreign.own_loaders`.

    Labels are consecutive: task t has the classes `get_offsets(t)`. With a class order (`--permute_classes`,
    `--custom_class_order`) new_label = class_order[original_label]. With `--joint` there is one task with all
    classes, while the test sets stay apart, one for each original task, so that accuracies compare.
    """

    NAME: str
    SETTING = "class-il"
    N_TASKS: int
    N_CLASSES_PER_TASK: int | list[int]
    N_CLASSES: int
    SIZE: tuple[int, int]
    CHANNELS = 3
    MEAN: tuple[float, ...] | None = None
    STD: tuple[float, ...] | None = None
    CROP_PADDING = 0
    HORIZONTAL_FLIP = False
    HOLDS_VECTORS = False  # instead of images: some networks and methods are then refused
    AVAIL_SCHEDS = ["multisteplr", "cosine"]
    class_names: list[str] | None = None
    image_dtype = torch.uint8  # in which a replay buffer can hold the images without loss

    def __init_subclass__(cls) -> None:
        """`N_CLASSES` follows from the tasks if a class does not give it; tasks with shared classes have them all."""
        per_task, shared = getattr(cls, "N_CLASSES_PER_TASK", None), cls.SETTING in SHARED_CLASSES
        if per_task is not None and (shared or not hasattr(cls, "N_CLASSES")):
            counts = per_task if isinstance(per_task, list | tuple) else [per_task] * getattr(cls, "N_TASKS", 1)
            cls.N_CLASSES = max(counts) if shared else sum(counts)

    def __init__(self, args: Namespace):
        self.args = args
        self.streams = RandomStreams(args.seed)
        self._classes_per_eval_task = self._class_counts()
        if args.joint and self.shares_classes:
            raise UsageError(f"--joint 1: the tasks of {self.NAME} ({self.SETTING}) can't be merged; leave it out")
        if args.joint:
            del self._classes_per_eval_task[args.stop_after or self.N_TASKS :]
            self.N_TASKS, self.N_CLASSES_PER_TASK = 1, sum(self._classes_per_eval_task)
        counts = self._classes_per_eval_task
        self._classes_per_task = [sum(counts)] if args.joint else counts
        self.class_order = self._make_class_order()
        if self.class_order is not None:
            args.class_order = self.class_order  # Mammoth's place for it
        self.c_task = -1
        self.train_loader: Any = None
        self.test_loaders: list[Any] = []

    @classmethod
    def fields(cls, args: Namespace) -> dict[str, Any]:
        """Attributes of the class that follow from flags, before anything is built."""
        return {}

    @classmethod
    def content_sha256(cls, args: Namespace) -> str | None:
        """SHA-256 of the data, if a flag names their file; it is part of a run's name."""
        return None

    @classmethod
    def check_args(cls, args: Namespace) -> None:
        """Refuse flags that don't fit the dataset (UsageError), before anything is built."""
        if getattr(args, "embeddings", None) and not cls.HOLDS_VECTORS:
            raise UsageError(
                f"--embeddings {args.embeddings}: {cls.NAME} reads no such file; use --dataset seq-embeddings"
            )
        if some_wrong(args) and args.noise_type == "asymmetric":
            confused_with(cls.NAME)

    # -- what a subclass provides ---------------------------------------------------------------------------

    def load_split(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        """Images (uint8 [N, H, W, C]) and original labels of the training or the test set."""
        raise NotImplementedError

    def load_class_names(self) -> list[str]:
        """Names in the original order of the labels."""
        return [str(label) for label in range(self.N_CLASSES)]

    def get_backbone(self) -> str:
        raise NotImplementedError

    def get_epochs(self) -> int:
        raise NotImplementedError

    def get_batch_size(self) -> int:
        raise NotImplementedError

    def get_minibatch_size(self) -> int:
        return self.get_batch_size()

    def get_iters(self) -> int:
        raise UsageError(f"{self.NAME} has no default number of steps per task; give --n_iters")

    # -- tasks and classes ----------------------------------------------------------------------------------

    @property
    def shares_classes(self) -> bool:
        """Whether every task has all classes."""
        return self.SETTING in SHARED_CLASSES

    @property
    def current_task(self) -> int:
        """How many tasks have been handed out."""
        return len(self.test_loaders) if self.shares_classes else self.c_task + 1

    @property
    def n_eval_tasks(self) -> int:
        """Number of test sets: `N_TASKS`, or the number of original tasks with `--joint`."""
        return len(self._classes_per_eval_task)

    def get_offsets(self, task_idx: int | None = None) -> tuple[int, int]:
        """(first class, one past the last class) of a task; of the current one by default."""
        if self.shares_classes:
            return 0, self.N_CLASSES
        return _range(self._classes_per_task, self.c_task if task_idx is None else task_idx)

    def eval_offsets(self, k: int) -> tuple[int, int]:
        """The class range of test loader k."""
        return self.get_offsets() if self.shares_classes else _range(self._classes_per_eval_task, k)

    def test_classes(self, k: int) -> tuple[int, int]:
        """The range of the classes that test set k has images of: `eval_offsets(k)`, or all up to these."""
        first, last = self.eval_offsets(k)
        return (0 if so_far(self.args) else first), last

    def get_class_names(self) -> list[str]:
        """Names such that entry i is the class that is now labelled i."""
        return fix_class_names_order(self.load_class_names(), self.args)

    def _class_counts(self) -> list[int]:
        per_task = self.N_CLASSES_PER_TASK
        counts = list(per_task) if isinstance(per_task, list | tuple) else [per_task] * self.N_TASKS
        if len(counts) != self.N_TASKS or (sum(counts) != self.N_CLASSES and not self.shares_classes):
            raise UsageError(
                f"{self.NAME}: N_TASKS {self.N_TASKS} and N_CLASSES_PER_TASK {per_task} do not make up its "
                f"{self.N_CLASSES} classes; correct them in the dataset's YAML"
            )
        return counts

    def _make_class_order(self) -> list[int] | None:
        if self.args.permute_classes:
            return torch.randperm(self.N_CLASSES, generator=self.streams["class_order"]).tolist()
        order = self.args.custom_class_order
        if order is not None and sorted(order) != list(range(self.N_CLASSES)):
            raise UsageError(f"--custom_class_order must list each of 0…{self.N_CLASSES - 1} once, got {order}")
        return order

    def prepare(self) -> None:
        """Read the data, once; what is missing or damaged is an error here, before a run begins."""
        self.splits  # noqa: B018

    # -- loaders --------------------------------------------------------------------------------------------

    def get_data_loaders(self) -> tuple[TaskLoader, TaskLoader]:
        """Begin the next task: its training loader and its test loader, which joins `test_loaders`."""
        if self.current_task >= self.N_TASKS:
            raise IndexError(f"{self.NAME} has only {self.N_TASKS} tasks")
        self.c_task += 1
        transform = self.get_batch_transform(augment=True, stream="augment")
        images = self._task_images().to(self.args.device, transform.memory_format)
        images.transform = transform
        if self.splits.true_labels is not None:
            true = self.splits.true_labels.index_select(0, images.indexes)
            images.add_extra_return_field("true_labels", true.to(self.args.device))
        self.train_loader = TaskLoader(
            images,
            self.args.batch_size,
            transform,
            shuffle=True,
            drop_last=bool(self.args.drop_last),
            generator=self.streams["shuffle"],
            triples=True,
        )
        new = range(self.n_eval_tasks) if self.args.joint else [self.c_task]
        self.test_loaders += [self.make_test_loader(k) for k in new]
        return self.train_loader, self.test_loaders[-1]

    def images_per_task(self) -> list[int] | None:
        """How many images the training set of each task has; None if only its loader knows."""
        return [len(self._training_rows(task)) for task in range(self.N_TASKS)]

    def _training_rows(self, task: int | None = None) -> torch.Tensor:
        """Rows of a task, by default the current one; images without a label only if the method can use them."""
        train = self.splits.train
        rows = _rows_of(train, self.get_offsets(task))
        if not some_unlabelled(self.args) or self.args.takes_unlabelled:
            return rows
        return rows[labelled(train.labels(rows), self.args)]

    def _task_images(self) -> ImageSet:
        """Training images of the current task."""
        rows = self._training_rows()
        images = self.splits.train.subset(rows)
        if not some_unlabelled(self.args) or not self.args.takes_unlabelled:
            return images
        mask = labelled(self.splits.train.labels(rows), self.args)
        images.targets = images.labels(slice(None)).masked_fill(~mask, UNLABELLED)
        return images

    def resumable_loader(self) -> Any:
        """The current task's training loader, in the form that the training loop iterates over."""
        return self.train_loader

    def make_test_loader(self, k: int) -> TaskLoader:
        """The images of `test_classes(k)` that the run is evaluated on."""
        return self._plain_loader(_classes(self.splits.evaluation, self.test_classes(k)))

    def again(self, **changes: Any) -> ContinualDataset:
        """A fresh copy with some flags changed; without changes it shares the images that were read."""
        args = copy.copy(self.args)
        for name, value in changes.items():
            setattr(args, name, value)
        other = construct(type(self), args)
        if not changes and "splits" in vars(self):
            other.splits = self.splits
        return other

    def true_test_loaders(self) -> list[TaskLoader]:
        """The real test sets of all tasks, for the last evaluation of a run with `--validation`."""
        tasks = range(self.n_eval_tasks)
        return [self._plain_loader(_classes(self.splits.test, self.eval_offsets(k))) for k in tasks]

    def _plain_loader(self, images: ImageSet) -> TaskLoader:
        transform = self.get_batch_transform(augment=False)
        images = images.to(self.args.device, transform.memory_format)
        images.transform = transform
        batch_size = max(self.args.batch_size, EVALUATION_BATCH)
        return TaskLoader(images, batch_size, transform, shuffle=False, drop_last=False, generator=None, triples=False)

    # -- data -----------------------------------------------------------------------------------------------

    @cached_property
    def splits(self) -> Splits:
        """All images, on the host; read once per object, when the first task is asked for."""
        return make_splits(self)

    def read_split(self, train: bool) -> ImageSet:
        """What `load_split` gives, checked."""
        return checked_images(self, train)

    # -- transforms and loss --------------------------------------------------------------------------------

    def get_batch_transform(self, augment: bool, stream: str = "replay_augment") -> BatchTransform:
        """The transform of training (or, un-augmented, of test) images, for whole batches.

        The loaders' augmentation has a random stream of its own, so that a method which replays images sees the same
        augmented training batches as one which does not.
        """
        channels_last = self.args.code_optimization >= 1
        return BatchTransform(
            self.SIZE,
            self.MEAN,
            self.STD,
            padding=self.CROP_PADDING if augment else 0,
            flip=self.HORIZONTAL_FLIP and augment,
            generator=self.streams[stream] if augment else None,
            memory_format=torch.channels_last if channels_last else torch.contiguous_format,
        )

    @staticmethod
    def get_loss() -> Any:
        return F.cross_entropy


def _range(counts: list[int], task: int) -> tuple[int, int]:
    """Empty beyond the last task, where X-DER looks ahead, and before the first one."""
    return sum(counts[: max(task, 0)]), sum(counts[: max(task + 1, 0)])


def _rows_of(images: ImageSet, offsets: tuple[int, int]) -> torch.Tensor:
    first, last = offsets
    return ((images.targets >= first) & (images.targets < last)).nonzero()[:, 0]


def _classes(images: ImageSet, offsets: tuple[int, int]) -> ImageSet:
    return images.subset(_rows_of(images, offsets))
