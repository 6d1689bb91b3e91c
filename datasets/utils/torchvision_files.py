"""CIFAR and MNIST through torchvision's readers and checksums, with our downloads and one-line errors.

torchvision is imported once the files are there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from datasets.utils.downloads import find, has_md5, obtain, one_line_reads, unpack
from datasets.utils.published import IDX, PUBLISHED
from utils.errors import UserError


def load_cifar(name: str, base_path: str, train: bool) -> Any:
    """The torchvision dataset of that name, fetched if necessary; torchvision checks the md5 of every file."""
    source = PUBLISHED[name]
    (archive,) = source.md5
    data = find(base_path, name, source.unpacked)
    if not data.exists():
        data = unpack(obtain(base_path, name, archive, source.urls(archive), source.md5[archive]), source.unpacked)
    import torchvision.datasets

    cls = getattr(torchvision.datasets, name)
    try:
        with one_line_reads(data):
            return cls(str(data.parent), train=train, download=False)
    except RuntimeError as error:
        files = [*cls.train_list, *cls.test_list, (cls.meta["filename"], cls.meta["md5"])]
        bad = next((data / file for file, md5 in files if not has_md5(data / file, md5)), data)
        state = "is damaged (its md5 is not the published one)" if bad.exists() else "is missing"
        url = source.urls(archive)[0]
        raise UserError(f"{bad} {state}; delete the folder {data} to fetch it again from {url}") from error


def load_mnist(name: str, base_path: str, folder: str, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, 28, 28] and labels of the torchvision dataset of that name, fetched if necessary."""
    images, labels = IDX[:2] if train else IDX[2:]
    return (
        _load_idx("read_image_file", name, base_path, folder, images),
        _load_idx("read_label_file", name, base_path, folder, labels),
    )


def _load_idx(reader: str, name: str, base_path: str, folder: str, archive: str) -> np.ndarray:
    """One file in the idx format. Only the archive has a published md5; a file that lies there unpacked must at least
    have the length that its header announces."""
    source = PUBLISHED[name]
    urls = source.urls(archive)
    file = f"{name}/raw/{archive}"  # torchvision's place below its root
    path = find(base_path, folder, file.removesuffix(".gz"))
    if not path.exists():
        path = unpack(obtain(base_path, folder, file, urls, source.md5[archive]), archive.removesuffix(".gz"))
    from torchvision.datasets import mnist

    try:
        with one_line_reads(path):
            return getattr(mnist, reader)(str(path)).numpy()
    except UserError:
        raise
    except Exception as error:  # whatever torchvision's parser stumbles over
        raise UserError(f"{path} is damaged; delete it to fetch it again from {urls[0]}") from error
