"""Tiny-ImageNet in 10 tasks of 20 classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from datasets.utils import flag_default
from datasets.utils.continual_dataset import ContinualDataset
from datasets.utils.downloads import obtain, one_line_reads, unpack
from datasets.utils.image_cache import load_images
from utils.errors import UserError

URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
ARCHIVE = "tiny-imagenet-200"


def find_tiny_imagenet(base_path: str) -> Path:
    """The unpacked archive, in TINYIMG or directly in the base path; fetched if it is nowhere."""
    base = Path(base_path)
    places = [base / "TINYIMG", *sorted((base / "TINYIMG").glob(f"{ARCHIVE}*/")), *sorted(base.glob(f"{ARCHIVE}*/"))]
    for place in places:
        if (place / "wnids.txt").exists():
            return place
    return unpack(obtain(base_path, "TINYIMG", f"{ARCHIVE}.zip", [URL], MD5), ARCHIVE)


def _lines(path: Path) -> list[str]:
    with one_line_reads(path):
        return path.read_text(encoding="utf-8").splitlines()


def list_images(root: Path, train: bool, wnids: list[str]) -> tuple[list[str], list[str]]:
    """Files below `root` and their WordNet ids, from the lists that come with them: so a lost file is noticed."""
    if not train:
        annotations = root / "val" / "val_annotations.txt"
        fields = [line.split("\t")[:2] for line in _lines(annotations)]
        if any(field[-1] not in wnids for field in fields):
            raise UserError(f"{annotations} is damaged; delete the folder {root} to fetch it again from {URL}")
        return [f"val/images/{name}" for name, _ in fields], [wnid for _, wnid in fields]
    files, ids = [], []
    for wnid in wnids:
        names = [line.partition("\t")[0] for line in _lines(root / "train" / wnid / f"{wnid}_boxes.txt")]
        files += [f"train/{wnid}/images/{name}" for name in names]
        ids += [wnid] * len(names)
    return files, ids


class SequentialTinyImagenet(ContinualDataset):
    """Tiny-ImageNet in 10 tasks of 20 classes; 10 000 training images of 64×64 per task.

    Labels follow the sorted WordNet ids. The test set is the validation split: the test split has no labels.
    """

    NAME = "seq-tinyimg"
    N_TASKS = 10
    N_CLASSES_PER_TASK = 20
    N_CLASSES = 200
    SIZE = (64, 64)
    MEAN, STD = (0.4802, 0.4480, 0.3975), (0.2770, 0.2691, 0.2821)
    CROP_PADDING = 4
    HORIZONTAL_FLIP = True

    def load_split(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        root = find_tiny_imagenet(self.args.base_path)
        wnids = self._wnids(root)
        files, ids = list_images(root, train, wnids)
        label_of = {wnid: label for label, wnid in enumerate(wnids)}
        images = load_images(root, files, self.SIZE, root / f"{'train' if train else 'val'}.cache")
        return images, np.array([label_of[wnid] for wnid in ids])

    def load_class_names(self) -> list[str]:
        root = find_tiny_imagenet(self.args.base_path)
        words = dict(line.split("\t", 1) for line in _lines(root / "words.txt"))
        return [words[wnid].partition(",")[0] for wnid in self._wnids(root)]

    def _wnids(self, root: Path) -> list[str]:
        wnids = sorted(set(_lines(root / "wnids.txt")) - {""})
        if len(wnids) != self.N_CLASSES:
            raise UserError(
                f"{root / 'wnids.txt'} lists {len(wnids)} classes instead of {self.N_CLASSES}; "
                f"delete the folder {root} to fetch it again from {URL}"
            )
        return wnids

    get_backbone = flag_default("backbone", "resnet18")
    get_epochs = flag_default("n_epochs", 100)
    get_batch_size = flag_default("batch_size", 32)
