"""The embeddings and the network that the repository ships, and the code that makes them: no image file is needed."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import datasets.embedded.make as make
from backbone.ResNetBlock import resnet8
from datasets.embedded.make import WEIGHTS
from datasets.seq_embeddings import EMBEDDED
from datasets.utils import embedding_file
from datasets.utils.embedding_file import read_embeddings, write_npz

TRAIN_IMAGES, TEST_IMAGES, FEATURES = 200, 100, 128


@pytest.fixture(scope="module")
def embeddings() -> dict[str, np.ndarray]:
    with np.load(EMBEDDED, allow_pickle=False) as file:
        return dict(file)


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Six images of noise of each class stand in for the training set and for the test set; gives the class names."""
    names = [f"class {label}" for label in range(100)]
    random = np.random.RandomState(0)

    def split(train: bool) -> SimpleNamespace:
        labels = random.permutation(np.arange(100).repeat(6))
        data = random.randint(256, size=(600, 32, 32, 3), dtype=np.uint8)
        return SimpleNamespace(data=data, targets=labels.tolist(), classes=names)

    splits = {train: split(train) for train in (True, False)}
    monkeypatch.setattr(make, "load_cifar", lambda name, base_path, train: splits[train])
    return names


def test_the_files_are_small() -> None:
    assert EMBEDDED.stat().st_size <= 2_200_000
    assert WEIGHTS.stat().st_size <= 700_000
    assert sorted(path.name for path in EMBEDDED.parent.glob("*.npz")) == sorted([EMBEDDED.name, WEIGHTS.name])


def test_what_the_embeddings_are(embeddings: dict[str, np.ndarray]) -> None:
    sizes = {"train": TRAIN_IMAGES, "test": TEST_IMAGES}
    for part, size in sizes.items():
        x, y = embeddings[f"{part}_x"], embeddings[f"{part}_y"]
        assert (x.dtype, x.shape) == (np.int8, (make.CLASSES * size, FEATURES))
        assert np.bincount(y).tolist() == [size] * make.CLASSES, "labels without holes, all equally often"
        assert x.min() >= 0, "averages of what a ReLU lets through"
        # Every feature uses at least a third of the 128 steps, and next to nothing is cut off.
        assert x.max(axis=0).min() >= 42 and (x == 127).mean() < 1e-3
    assert (embeddings["scale"].dtype, embeddings["scale"].shape) == (np.float32, (FEATURES,))
    assert np.isfinite(embeddings["scale"]).all() and (embeddings["scale"] > 0).all()
    assert len(set(embeddings["class_names"].tolist())) == make.CLASSES
    assert "CIFAR-100" in str(embeddings["provenance"])
    assert read_embeddings(str(EMBEDDED)).class_names == embeddings["class_names"].tolist(), "the dataset can read it"


def test_every_feature_says_something_in_every_task(embeddings: dict[str, np.ndarray]) -> None:
    """What is standardised by a task's deviation must have one."""
    for task in range(10):
        rows = embeddings["train_y"] // 5 == task
        assert (embeddings["train_x"][rows].std(axis=0) > 0).all()


def test_the_network_has_not_seen_the_embedded_classes(embeddings: dict[str, np.ndarray]) -> None:
    with np.load(WEIGHTS, allow_pickle=False) as file:
        own = set(file["class_names"].tolist())
        assert all(file[name].dtype == np.float16 for name in file.files if name not in make.NOTES)
    assert len(own) == make.CLASSES and own.isdisjoint(embeddings["class_names"].tolist())
    own_labels, others = make.split_classes(make.seed_of())
    assert sorted(own_labels + others) == list(range(100))


def test_classes_embedded_alike_lie_together(embeddings: dict[str, np.ndarray]) -> None:
    """Nearest class means on the test images: far from the 2 % of chance, so labels and vectors belong together."""
    deviation = embeddings["train_x"].std(0)
    x, test = embeddings["train_x"] / deviation, embeddings["test_x"] / deviation
    centres = np.stack([x[embeddings["train_y"] == label].mean(0) for label in range(make.CLASSES)])
    nearest = (test @ centres.T - np.square(centres).sum(1) / 2).argmax(1)
    assert 100 * (nearest == embeddings["test_y"]).mean() > 30


def test_the_shipped_network_embeds(embeddings: dict[str, np.ndarray]) -> None:
    net = make.load_network()
    assert not net.training and net.feature_dim == FEATURES and net.num_classes == make.CLASSES
    x = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    features = make.outputs(net, make.Images(x, torch.zeros(4)), "features")
    assert features.shape == (4, FEATURES) and features.isfinite().all() and features.min() >= 0
    scale = torch.from_numpy(embeddings["scale"])
    steps = torch.from_numpy(make.quantise(features, scale)).float()
    within = features <= 127 * scale
    assert ((steps * scale - features).abs() <= 0.5001 * scale)[within].all()
    assert (steps[~within] == 127).all()


def test_a_network_is_read_as_it_was_written(tmp_path: Path) -> None:
    net = resnet8(make.CLASSES, num_filters=2).half().float()  # what float16 can hold
    path = tmp_path / "net.npz"
    make.save_network(path, net, seed=3, class_names=["a", "b"], provenance="a test")
    assert make.seed_of(path) == 3
    torch.testing.assert_close(make.load_network(path).state_dict(), net.state_dict(), rtol=0, atol=0)
    arrays = dict(np.load(path))
    write_npz(path, {name: array for name, array in arrays.items() if name != "bn1.bias"})
    with pytest.raises(ValueError, match=r"missing.*bn1\.bias"):
        make.load_network(path)


@pytest.mark.slow
def test_the_whole_command_makes_the_same_bytes_again(tmp_path: Path, images: list[str]) -> None:
    threads, made = torch.get_num_threads(), []
    try:
        for folder in (tmp_path / "first", tmp_path / "second"):
            files = [folder / "weights.npz", folder / "embeddings.npz"]
            flags = ["--epochs", "1", "--train_images", "4", "--weights", str(files[0]), "--output", str(files[1])]
            make.main(flags)
            made.append([path.read_bytes() for path in files])
    finally:
        torch.set_num_threads(threads)
    assert made[0] == made[1]
    arrays = np.load(files[1])
    _, others = make.split_classes()
    assert arrays["class_names"].tolist() == [images[original] for original in others]
    assert (len(arrays["train_x"]), len(arrays["test_x"])) == (4 * make.CLASSES, 6 * make.CLASSES)


def test_images_are_the_first_of_their_class_in_the_order_of_the_labels(images: list[str]) -> None:
    found = make.read_images("nowhere", True, [7, 3], per_class=2)
    split = make.load_cifar("CIFAR100", "nowhere", True)
    rows = [[row for row, label in enumerate(split.targets) if label == original][:2] for original in (7, 3)]
    assert found.y.tolist() == [0, 0, 1, 1]
    assert np.array_equal(found.x.permute(0, 2, 3, 1).numpy(), split.data[np.concatenate(rows)])


def test_an_archive_has_no_time_and_keeps_shapes(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6).reshape(2, 3).T, "text": np.array("one line"), "none": np.zeros((0, 3), np.int8)}
    write_npz(tmp_path / "a.npz", arrays)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        assert file.files == list(arrays)
        for name, array in arrays.items():
            assert file[name].shape == array.shape and file[name].dtype == array.dtype
            assert np.array_equal(file[name], array)
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    with pytest.raises(ValueError, match="Object arrays"):
        write_npz(tmp_path / "b.npz", {"a": np.array([{}])})
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_an_array_larger_than_the_usual_form_allows_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 2 GiB, which these limits stand for, the embeddings of hours would be lost at the end."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)
    monkeypatch.setattr(embedding_file, "LARGE", 500)
    arrays = {"train_x": np.arange(600, dtype=np.float32), "train_y": np.arange(3)}
    write_npz(tmp_path / "large.npz", arrays)
    with np.load(tmp_path / "large.npz") as written:
        assert all(np.array_equal(written[name], array) for name, array in arrays.items())
