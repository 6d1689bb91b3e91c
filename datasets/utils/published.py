"""Where the datasets that torchvision reads are published, and the checksums of their archives.

torchvision has the same facts, but takes as long to import as torch: data that is missing should be missed before that.
"""

from __future__ import annotations

from dataclasses import dataclass

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
