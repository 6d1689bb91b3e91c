"""Images to be embedded: all of a dataset, or of a folder with a folder for each class."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from utils.errors import UsageError, UserError

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm"}


class DatasetSource:
    """The training or test images of a dataset, under their original labels."""

    def __init__(self, dataset: Any, train: bool):
        self.images, labels = dataset.load_split(train)
        self.labels = np.asarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, size: int) -> Iterator[list[Tensor]]:
        """Bytes NCHW, in groups of one size of image: here one group a batch."""
        for start in range(0, len(self), size):
            yield [torch.from_numpy(self.images[start : start + size]).permute(0, 3, 1, 2)]


class FolderSource:
    """`FOLDER/CLASS/*.jpg`, the classes in alphabetical order."""

    def __init__(self, folder: Path, classes: list[str]):
        self.files: list[Path] = []
        labels: list[int] = []
        for label, name in enumerate(classes):
            files = sorted(f for f in (folder / name).glob("**/*") if f.suffix.lower() in ENDINGS)
            if not files:
                raise UserError(f"--images: {folder / name} holds no image ({', '.join(sorted(ENDINGS))})")
            self.files += files
            labels += [label] * len(files)
        self.labels = np.array(labels)

    def __len__(self) -> int:
        return len(self.files)

    def batches(self, size: int) -> Iterator[list[Tensor]]:
        """One image at a time: they may differ in size."""
        for start in range(0, len(self), size):
            yield [_read_image(file) for file in self.files[start : start + size]]


def _read_image(file: Path) -> Tensor:
    from PIL import Image

    try:
        with Image.open(file) as image:
            return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)[None]
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{file} can't be read as an image ({error}); repair or remove it") from None


def folder_sources(folder: str) -> tuple[FolderSource, FolderSource, list[str]]:
    """Sources for `FOLDER/train` and `FOLDER/test` (or `val`), and the names of the classes, which both must have."""
    root = Path(folder)
    test = next((root / name for name in ("test", "val") if (root / name).is_dir()), root / "test")
    for part in (root / "train", test):
        if not part.is_dir():
            raise UsageError(f"--images {folder}: {part} is missing; it takes FOLDER/train/CLASS and FOLDER/test/CLASS")
    train_classes, test_classes = (sorted(d.name for d in p.iterdir() if d.is_dir()) for p in (root / "train", test))
    if train_classes != test_classes or not train_classes:
        odd = sorted(set(train_classes) ^ set(test_classes))
        raise UsageError(f"--images {folder}: train and test must have the same classes; only one has {odd[:3]}")
    return FolderSource(root / "train", train_classes), FolderSource(test, train_classes), train_classes


def dataset_of(name: str, base_path: str | None) -> Any:
    """A dataset of images that the project itself reads."""
    from datasets import get_dataset
    from datasets.utils.continual_dataset import ContinualDataset
    from utils.cli.parse import parse_args

    flags = ["--model", "sgd", "--dataset", name, "--seed", "0", "--lr", "0.1"]
    args: Namespace = parse_args([*flags, *(["--base_path", base_path] if base_path else [])])
    dataset = get_dataset(args)
    if args.dataset == "seq-embeddings" or type(dataset).load_split is ContinualDataset.load_split:
        raise UsageError(f"--dataset {name} has no images that could be read at once; give its images by --images")
    return dataset
