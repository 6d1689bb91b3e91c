"""Names that dataset files of Mammoth import: transforms, hold-out sets, and classes of other dataset files."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT
from PIL import Image

import backbone
import datasets
import models
from backbone.MNISTMLP import MNISTMLP
from datasets.transforms.permutation import FixedPermutation, Permutation
from datasets.utils.validation import ValidationDataset, get_train_val, get_validation_indexes
from utils.cli.parse import parse_args


def test_a_permutation_of_so_many_pixels_is_drawn_when_it_is_made() -> None:
    np.random.seed(3)
    permutation = Permutation(np.prod((2, 3)))
    np.random.seed(3)
    assert permutation.perm.tolist() == np.random.permutation(6).tolist()
    image = torch.arange(6.0).view(1, 2, 3)
    assert permutation(image).shape == (1, 2, 3) and permutation(image).flatten().tolist() == permutation.perm.tolist()
    assert isinstance(permutation(image.numpy()), np.ndarray)


def test_a_permutation_of_a_seed_leaves_the_global_generator_alone() -> None:
    state = np.random.get_state()[1].tolist()
    image, fixed = torch.arange(6.0), FixedPermutation(5)
    assert fixed.perm is None
    assert fixed(image).tolist() == FixedPermutation(5)(image).tolist() != image.tolist()
    assert np.random.get_state()[1].tolist() == state


@pytest.mark.parametrize(("size", "counts"), [(0.1, [1, 2]), (10, [1, 2]), (50, [5, 10])])
def test_held_out_rows_class_by_class(size: float, counts: list[int]) -> None:
    targets = np.array([1] * 20 + [0] * 10)
    kept, held_out = get_validation_indexes(size, Namespace(targets=targets), seed=4)
    assert sorted([*kept, *held_out]) == list(range(30))
    assert targets[held_out].tolist() == [0] * counts[0] + [1] * counts[1]  # ascending labels
    assert np.all(np.diff(targets[kept]) >= 0)


def test_a_training_set_is_cut_in_place() -> None:
    data = np.arange(20 * 4).reshape(20, 2, 2).astype(np.uint8)
    train = Namespace(data=data, targets=np.repeat([0, 1], 10))
    same, held_out = get_train_val(train, np.asarray, "any", val_perc=0.2)
    assert same is train and len(train.data) == len(train.targets) == 16 and len(held_out) == 4
    image, label = held_out[0]
    assert label == 0 and image.tolist() in data[:10].tolist() and image.tolist() not in train.data.tolist()
    tensors = Namespace(data=torch.from_numpy(data), targets=torch.arange(20) // 10)  # as torchvision's MNIST
    get_train_val(tensors, None, "any", val_perc=0.2)
    assert (
        torch.equal(tensors.data, torch.from_numpy(train.data)) and tensors.targets.tolist() == train.targets.tolist()
    )
    (halves, _) = ValidationDataset(np.full((1, 2, 2), 0.5), [3])[0]
    assert isinstance(halves, Image.Image) and np.asarray(halves).tolist() == [[127, 127]] * 2


@pytest.mark.parametrize("classes", ["10", "100"])
def test_the_classes_of_cifar_that_other_files_subclass(classes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    import torchvision

    asked: list[bool] = []

    def made(self, root, train=True, transform=None, target_transform=None, download=False):
        asked.append(download)
        self.data, self.targets = np.full((2, 4, 4, 3), 255, np.uint8), [7, 8]
        self.transform, self.target_transform = transform, target_transform

    source = getattr(torchvision.datasets, f"CIFAR{classes}")
    monkeypatch.setattr(source, "__init__", made)
    for intact in (False, True):
        monkeypatch.setattr(source, "_check_integrity", lambda self, intact=intact: self.root == "r" and intact)
        module = importlib.import_module(f"datasets.seq_cifar{classes}")
        train = getattr(module, f"MyCIFAR{classes}")("r", train=True, download=intact)
    assert asked == [True, False]  # whatever was asked for
    image, label, raw = train[1]
    assert isinstance(image, Image.Image) and label == 8 and raw.tolist() == torch.ones(3, 4, 4).tolist()
    train.logits = [1, 2]
    assert train[0][3] == 1 and isinstance(train, getattr(module, f"TCIFAR{classes}"))
    assert module.base_path() and not hasattr(module, "TNothing")


def test_the_base_classes_by_their_short_names() -> None:
    from datasets import ContinualDataset
    from datasets.utils.continual_dataset import ContinualDataset as by_its_place
    from datasets.utils.gcl_dataset import ContinualDataset as beside_gcl
    from models import ContinualModel
    from models.utils.continual_model import ContinualModel as models_base

    assert ContinualDataset is by_its_place is beside_gcl and ContinualModel is models_base


SIDE_BY_SIDE = {
    "does not import": "import no_such_module\n\nclass Broken:\n    NAME = 'sgd'\n",
    "has no such class": "class Broken:\n    NAME = 'sgd'\n\ndel Broken\n",
}


@pytest.mark.parametrize("content", SIDE_BY_SIDE.values(), ids=SIDE_BY_SIDE)
def test_a_broken_file_takes_no_working_name_away(content: str, caplog: pytest.LogCaptureFixture) -> None:
    file = ROOT / "models" / "zz_broken.py"
    file.write_text(content)
    try:
        assert models.get_model_class(parse_args(["--model", "sgd", "--lr", "0.1"])).__name__ == "Sgd"
        assert "models/zz_broken.py" in caplog.text
    finally:
        file.unlink()


IN_OTHER_FOLDERS = {
    "datasets": "import no_such_module\n\nclass Broken:\n    NAME = 'seq-digits'\n",
    "backbone": "import no_such_module\n\n@register_backbone('mnistmlp')\ndef broken(num_classes):\n    pass\n",
}


@pytest.mark.parametrize("folder", IN_OTHER_FOLDERS)
def test_nor_does_one_among_the_datasets_or_networks(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    file = ROOT / folder / "zz_broken.py"
    file.write_text(IN_OTHER_FOLDERS[folder])
    try:
        args = parse_args(["--model", "sgd", "--dataset", "seq-digits", "--lr", "0.1", "--backbone", "mnistmlp"])
        assert datasets.get_dataset_class(args).__name__ == "SequentialDigits"
        assert isinstance(backbone.get_backbone(args), MNISTMLP)
        assert f"{folder}/zz_broken.py cannot be imported" in caplog.text
    finally:
        file.unlink()


def test_nor_does_one_that_cannot_be_read() -> None:
    file = ROOT / "models" / "DGC-ER.py"
    file.write_text("def (:\n")
    try:
        assert models.get_model_entries()["dgc-er"].file.name == "dgc_er.py"
        args = parse_args(["--model", "dgc_er", "--buffer_size", "9", "--lr", "0.1"])
        assert models.get_model_class(args).__name__ == "DgcEr"
    finally:
        file.unlink()


def test_a_gem_that_is_dropped_in_is_found(tmp_path: Path) -> None:
    file = ROOT / "models" / "gem.py"
    assert not file.exists()
    sys.modules.pop("models.gem", None)  # what another test may have imported in its place
    file.write_text((ROOT / "tests" / "foreign" / "gem.py").read_text())
    try:
        args = parse_args(["--model", "gem", "--buffer_size", "9", "--lr", "0.1"])
        assert models.get_model_class(args).NAME == "gem"
    finally:
        file.unlink()
        sys.modules.pop("models.gem", None)
