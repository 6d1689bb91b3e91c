"""CIFAR and MNIST through torchvision's readers and checksums, with our downloads and one-line errors."""

from __future__ import annotations

from typing import Any

import numpy as np
from torchvision.datasets.mnist import read_image_file, read_label_file
from torchvision.datasets.utils import check_integrity

from datasets.utils.downloads import find, obtain, one_line_reads, unpack
from utils.errors import UserError


def load_cifar(cls: Any, base_path: str, folder: str, train: bool) -> Any:
    """A torchvision CIFAR dataset, fetched if necessary; torchvision checks the md5 of every file."""
    data = find(base_path, folder, cls.base_folder)
    if not data.exists():
        data = unpack(obtain(base_path, folder, cls.filename, [cls.url], cls.tgz_md5), cls.base_folder)
    try:
        with one_line_reads(data):
            return cls(str(data.parent), train=train, download=False)
    except RuntimeError as error:
        files = [*cls.train_list, *cls.test_list, (cls.meta["filename"], cls.meta["md5"])]
        bad = next((data / name for name, md5 in files if not check_integrity(data / name, md5)), data)
        state = "is damaged (its md5 is not the published one)" if bad.exists() else "is missing"
        raise UserError(f"{bad} {state}; delete the folder {data} to fetch it again from {cls.url}") from error


def load_mnist(cls: Any, base_path: str, folder: str, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, 28, 28] and labels of one of torchvision's MNIST-like datasets, fetched if necessary."""
    images, labels = cls.resources[:2] if train else cls.resources[2:]
    return (
        _load_idx(read_image_file, cls, base_path, folder, *images),
        _load_idx(read_label_file, cls, base_path, folder, *labels),
    )


def _load_idx(read: Any, cls: Any, base_path: str, folder: str, archive: str, md5: str) -> np.ndarray:
    """One file in the idx format. Only the archive has a published md5; a file that lies there unpacked must at least
    have the length that its header announces."""
    urls = [mirror + archive for mirror in cls.mirrors]
    name = f"{cls.__name__}/raw/{archive}"  # torchvision's place below its root
    path = find(base_path, folder, name.removesuffix(".gz"))
    if not path.exists():
        path = unpack(obtain(base_path, folder, name, urls, md5), archive.removesuffix(".gz"))
    try:
        with one_line_reads(path):
            return read(str(path)).numpy()
    except UserError:
        raise
    except Exception as error:  # whatever torchvision's parser stumbles over
        raise UserError(f"{path} is damaged; delete it to fetch it again from {urls[0]}") from error
