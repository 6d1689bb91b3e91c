"""CIFAR and MNIST through torchvision's readers and checksums, with our downloads and one-line errors.

torchvision takes as long to import as torch, so it is imported once the files are there: data that is missing should
be missed before that. Hence the addresses and checksums of the archives, which torchvision has, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from datasets.utils.downloads import find, has_md5, obtain, one_line_reads, unpack
from utils.errors import UserError

IDX = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]


@dataclass(frozen=True)
class Published:
    """Folders on the web that hold the same archives, and the md5 of each archive."""

    mirrors: tuple[str, ...]
    md5: dict[str, str]
    unpacked: str = ""  # the folder inside the archive, if there is one

    def urls(self, archive: str) -> list[str]:
        return [mirror + archive for mirror in self.mirrors]


def _idx_files(*md5: str) -> dict[str, str]:
    return dict(zip(IDX, md5, strict=True))


TORONTO = ("https://www.cs.toronto.edu/~kriz/",)
# By the name of torchvision's class.
PUBLISHED = {
    "CIFAR10": Published(
        TORONTO, {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"}, unpacked="cifar-10-batches-py"
    ),
    "CIFAR100": Published(
        TORONTO, {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"}, unpacked="cifar-100-python"
    ),
    "MNIST": Published(
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        _idx_files(
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "FashionMNIST": Published(
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        _idx_files(
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
}


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
