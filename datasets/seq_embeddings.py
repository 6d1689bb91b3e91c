"""Vectors instead of images: embeddings of a pretrained network, from a file, in tasks."""

from __future__ import annotations

from argparse import Namespace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datasets.transforms.standardise import Standardise
from datasets.utils import flag_default
from datasets.utils.continual_dataset import ContinualDataset
from datasets.utils.embedding_file import Embeddings, read_embeddings
from datasets.utils.image_set import ImageSet
from datasets.utils.vector_set import VectorSet
from utils.errors import UsageError

EMBEDDED = Path(__file__).resolve().parent / "embedded" / "cifar100_embeddings.npz"


class SequentialEmbeddings(ContinualDataset):
    """Embeddings of a frozen network in 10 tasks: of 50 classes of CIFAR-100, or those in the file --embeddings.

    Each feature is standardised by the mean and deviation that it has in the training vectors of the first task, since
    later ones are not there yet. Vectors are not augmented, and the buffer keeps them in the file's type.
    """

    NAME = "seq-embeddings"
    HOLDS_VECTORS = True
    N_TASKS = 10
    N_CLASSES_PER_TASK = 5
    N_CLASSES = 50
    SIZE = (1, 1)
    CHANNELS = 128  # features

    @staticmethod
    def file(args: Namespace) -> str:
        return getattr(args, "embeddings", None) or str(EMBEDDED)

    @classmethod
    def fields(cls, args: Namespace) -> dict[str, Any]:
        """What the file says about the dataset; nothing while the flags are not yet known."""
        if not hasattr(args, "embeddings"):
            return {}
        content, tasks = read_embeddings(cls.file(args)), args.n_tasks or cls.N_TASKS
        if content.n_classes % tasks and args.classes_first_task is None:
            raise UsageError(
                f"--embeddings {cls.file(args)}: its {content.n_classes} classes make no {tasks} equal tasks; give a "
                "divisor by --n_tasks, or --classes_first_task"
            )
        per_task = content.n_classes // tasks
        return {"N_CLASSES": content.n_classes, "N_CLASSES_PER_TASK": per_task, "CHANNELS": content.width}

    @classmethod
    def content_sha256(cls, args: Namespace) -> str:
        return read_embeddings(cls.file(args)).sha256

    # -- data -------------------------------------------------------------------------------------------------

    @property
    def _content(self) -> Embeddings:
        return read_embeddings(self.file(self.args))

    @property
    def image_dtype(self) -> torch.dtype:  # type: ignore[override]
        """That of the file: the buffer holds vectors as they come."""
        return self.splits.train.data.dtype

    def load_split(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        content = self._content
        return (content.train_x, content.train_y) if train else (content.test_x, content.test_y)

    def load_class_names(self) -> list[str]:
        return self._content.class_names

    def read_split(self, train: bool) -> ImageSet:
        vectors, labels = self.load_split(train)
        return VectorSet(torch.from_numpy(vectors.copy()), torch.from_numpy(labels.copy()))

    # -- transforms -------------------------------------------------------------------------------------------

    @cached_property
    def _standardise(self) -> Standardise:
        """Also of a joint run, which then sees the numbers that a sequence of tasks sees."""
        first, last = self.eval_offsets(0)
        train = self.splits.train
        return Standardise.of(train.data[(train.targets >= first) & (train.targets < last)].as_subclass(torch.Tensor))

    def get_batch_transform(self, augment: bool, stream: str = "replay_augment") -> Any:
        return self._standardise

    def get_transform(self) -> Any:
        return self._standardise

    def get_normalization_transform(self) -> Any:
        return self._standardise

    # -- defaults: chosen for `er` on held-out training vectors ------------------------------------------------

    get_backbone = flag_default("backbone", "linear")
    get_epochs = flag_default("n_epochs", 10)
    get_batch_size = flag_default("batch_size", 32)
    get_weight_decay = flag_default("optim_wd", 1e-4)
    get_scheduler_name = flag_default("lr_scheduler", "linear")
    get_scheduler_mode = flag_default("scheduler_mode", "iter")
