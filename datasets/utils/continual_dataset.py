"""A dataset that arrives as a sequence of tasks, each with its own classes."""

from __future__ import annotations

from argparse import Namespace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from datasets.transforms.denormalization import DeNormalize
from datasets.utils.foreign.masked_loaders import MammothDatasetWrapper, fix_class_names_order, store_masked_loaders
from datasets.utils.held_out import draw_held_out
from datasets.utils.image_set import ImageSet
from datasets.utils.label_noise import UNLABELLED, labelled, noisy_labels, some_unlabelled, some_wrong
from datasets.utils.loader import TaskLoader
from utils.augmentations import BatchTransform
from utils.errors import UsageError, UserError
from utils.evaluate import evaluate
from utils.loggers import mean_accuracy_line
from utils.prompt_templates import templates
from utils.random_streams import RandomStreams
from utils.status import say

if TYPE_CHECKING:
    from torchvision import transforms

# Mammoth's place for what a dataset file needs.
__all__ = ["ContinualDataset", "MammothDatasetWrapper", "fix_class_names_order", "store_masked_loaders"]

EVALUATION_BATCH = 256  # at least: without gradients there is memory for it, and it is faster


SHARED_CLASSES = ("domain-il", "general-continual")  # settings in which tasks differ in something else


class _Splits(NamedTuple):
    """All images, on the host. Only the current task's images and the test sets go to the device."""

    train: ImageSet
    evaluation: ImageSet  # the test set, or what `--validation` holds out of the training set
    test: ImageSet
    true_labels: torch.Tensor | None  # of the training images, if `--noise_rate` has changed some


class ContinualDataset:
    """Base of all datasets. A subclass declares the attributes below, gives defaults, and implements `load_split`.

    Or, if it was written for Mammoth, `get_data_loaders`; `datasets.utils.foreign.own_loaders` then stands in for what
    is made of `load_split` here.

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
            self.N_TASKS, self.N_CLASSES_PER_TASK = 1, self.N_CLASSES
        self._classes_per_task = self._class_counts()
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
        """Of the data, if a flag says which they are; it is part of a run's name."""
        return None

    @classmethod
    def check_args(cls, args: Namespace) -> None:
        """Refuse flags that don't fit the dataset (UsageError), before anything is built."""
        if getattr(args, "embeddings", None):
            raise UsageError(
                f"--embeddings {args.embeddings}: {cls.NAME} reads no such file; use --dataset seq-embeddings"
            )

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

    def get_class_names(self) -> list[str]:
        """Names such that entry i is the class that is now labelled i."""
        return fix_class_names_order(self.load_class_names(), self.args)

    def get_prompt_templates(self) -> list[str]:
        return templates[self.NAME]

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
        self._splits  # noqa: B018

    # -- loaders --------------------------------------------------------------------------------------------

    def get_data_loaders(self) -> tuple[TaskLoader, TaskLoader]:
        """Go on to the next task: its training loader and its test loader, which joins `test_loaders`."""
        if self.current_task >= self.N_TASKS:
            raise IndexError(f"{self.NAME} has only {self.N_TASKS} tasks")
        self.c_task += 1
        transform = self.get_batch_transform(augment=True, stream="augment")
        images = self._task_images().to(self.args.device, transform.memory_format)
        images.transform = transform
        if self._splits.true_labels is not None:
            true = self._splits.true_labels.index_select(0, images.indexes)
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
        """Of a task, the current one by default; images without a label only if the method can use them."""
        train = self._splits.train
        rows = _rows_of(train, self.get_offsets(task))
        if not some_unlabelled(self.args) or self.args.takes_unlabelled:
            return rows
        return rows[labelled(train.labels(rows), self.args)]

    def _task_images(self) -> ImageSet:
        """The current task's."""
        rows = self._training_rows()
        images = self._splits.train.subset(rows)
        if not some_unlabelled(self.args) or not self.args.takes_unlabelled:
            return images
        mask = labelled(self._splits.train.labels(rows), self.args)
        images.targets = images.labels(slice(None)).masked_fill(~mask, UNLABELLED)
        return images

    def resumable_loader(self) -> Any:
        """The current task's training loader, in the form that the training loop iterates over."""
        return self.train_loader

    def make_test_loader(self, k: int) -> TaskLoader:
        """The images of `eval_offsets(k)` that the run is evaluated on."""
        return self._plain_loader(_classes(self._splits.evaluation, self.eval_offsets(k)))

    def true_test_loaders(self) -> list[TaskLoader]:
        """The real test sets of all tasks, for the last evaluation of a run with `--validation`."""
        tasks = range(self.n_eval_tasks)
        return [self._plain_loader(_classes(self._splits.test, self.eval_offsets(k))) for k in tasks]

    def _plain_loader(self, images: ImageSet) -> TaskLoader:
        transform = self.get_batch_transform(augment=False)
        images = images.to(self.args.device, transform.memory_format)
        images.transform = transform
        batch_size = max(self.args.batch_size, EVALUATION_BATCH)
        return TaskLoader(images, batch_size, transform, shuffle=False, drop_last=False, generator=None, triples=False)

    # -- data -----------------------------------------------------------------------------------------------

    @cached_property
    def _splits(self) -> _Splits:
        """Read once per object, when the first task is asked for."""
        train, test = self._read(train=True), self._relabel(self._read(train=False))
        evaluation = test
        if self.args.validation:
            # Drawn from the original labels: the same images are held out whatever the class order.
            held_out = draw_held_out(train.targets, self.args.validation, self.streams["validation"])
            train, evaluation = train.subset(~held_out), self._relabel(train.subset(held_out))
        train, true_labels = self._relabel(train), None
        if some_wrong(self.args):
            true_labels = train.labels(slice(None))
            train = train.with_targets(noisy_labels(true_labels, self.N_CLASSES, self.args))
        return _Splits(train, evaluation, test, true_labels)

    def _read(self, train: bool) -> ImageSet:
        images, labels = self.load_split(train)
        expected = (*self.SIZE, self.CHANNELS)
        if images.dtype != np.uint8 or images.shape[1:] != expected or len(images) != len(labels):
            raise UserError(
                f"{self.NAME}: load_split gave {images.dtype} images {images.shape} and {len(labels)} labels, "
                f"expected uint8 [N, {', '.join(map(str, expected))}]"
            )
        self._check_labels(np.asarray(labels), train)
        return ImageSet(torch.from_numpy(images).contiguous(), torch.as_tensor(labels, dtype=torch.int64))

    def _check_labels(self, labels: np.ndarray, train: bool) -> None:
        """A label that no task has would drop its images without a word. A class may be without images."""
        integers = labels.ndim == 1 and len(labels) > 0 and np.issubdtype(labels.dtype, np.integer)
        if integers and labels.min() >= 0 and labels.max() < self.N_CLASSES:
            return
        found = f"{labels.min()}…{labels.max()}" if integers else f"of type {labels.dtype} and shape {labels.shape}"
        raise UserError(
            f"{self.NAME}: load_split gave {'training' if train else 'test'} labels {found}, expected integers in "
            f"0…{self.N_CLASSES - 1}, one for each image; count labels from 0, or correct N_CLASSES"
        )

    def _relabel(self, images: ImageSet) -> ImageSet:
        if self.class_order is None:
            return images
        return images.with_targets(torch.tensor(self.class_order)[images.targets])

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

    @property
    def TRANSFORM(self) -> transforms.Compose:
        """The training transform for one PIL image, in torchvision's terms."""
        from torchvision import transforms  # here and below: to read the flags takes half the time without it

        augment: list[Any] = []
        if self.CROP_PADDING:
            augment.append(transforms.RandomCrop(self.SIZE, padding=self.CROP_PADDING))
        if self.HORIZONTAL_FLIP:
            augment.append(transforms.RandomHorizontalFlip())
        return transforms.Compose([*augment, *self.TEST_TRANSFORM.transforms])

    @property
    def TEST_TRANSFORM(self) -> transforms.Compose:
        from torchvision import transforms

        normalisation = self.get_normalization_transform()
        return transforms.Compose([transforms.ToTensor(), *([normalisation] if normalisation else [])])

    def get_transform(self) -> transforms.Compose:
        """For code that transforms image by image; what the loaders and the buffer use is `get_batch_transform`."""
        from torchvision import transforms

        return transforms.Compose([transforms.ToPILImage(), self.TRANSFORM])

    def get_normalization_transform(self) -> transforms.Normalize | None:
        if self.MEAN is None or self.STD is None:
            return None
        from torchvision import transforms

        return transforms.Normalize(self.MEAN, self.STD)

    def get_denormalization_transform(self) -> DeNormalize | None:
        if self.MEAN is None or self.STD is None:
            return None
        return DeNormalize(self.MEAN, self.STD)

    @staticmethod
    def get_loss() -> Any:
        return F.cross_entropy

    # -- for code that asks a dataset to evaluate, as in Mammoth ----------------------------------------------

    @staticmethod
    def evaluate(model: Any, dataset: Any, last: bool = False, return_loss: bool = False) -> tuple[Any, ...]:
        return evaluate(model, dataset, last, return_loss)

    @staticmethod
    def log(args: Namespace, logger: Any, accs: tuple[Any, Any], t: int, setting: str, *_: Any, **__: Any) -> None:
        """Say the mean accuracies; the training loop does its own recording."""
        say(mean_accuracy_line(*accs))


def _range(counts: list[int], task: int) -> tuple[int, int]:
    """Empty beyond the last task, where X-DER looks ahead, and before the first one."""
    return sum(counts[: max(task, 0)]), sum(counts[: max(task + 1, 0)])


def _rows_of(images: ImageSet, offsets: tuple[int, int]) -> torch.Tensor:
    first, last = offsets
    return ((images.targets >= first) & (images.targets < last)).nonzero()[:, 0]


def _classes(images: ImageSet, offsets: tuple[int, int]) -> ImageSet:
    return images.subset(_rows_of(images, offsets))
