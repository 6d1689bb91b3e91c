"""Task splits, class orders, hold-outs; and files that are missing, damaged or out of date."""

from __future__ import annotations

import gzip
import hashlib
import math
import pickle
import shutil
import socket
import tarfile
import urllib.request
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import run
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100, MNIST, FashionMNIST

import datasets.utils.downloads as downloads
import datasets.utils.image_cache as image_cache
from datasets import get_dataset, get_dataset_class, get_dataset_config_names, read_dataset_config
from datasets.utils import default_flags, set_default_from_args
from datasets.utils.continual_dataset import ContinualDataset
from datasets.utils.torchvision_files import IDX, PUBLISHED
from utils.augmentations import to_unit_float
from utils.errors import UsageError, UserError

ALL = ["seq-cifar10", "seq-cifar100", "seq-digits", "seq-fmnist", "seq-mnist", "seq-tinyimg"]


def make_args(dataset: str = "", **changes) -> Namespace:
    defaults = dict(
        dataset=dataset, dataset_config=None, seed=0, batch_size=8, drop_last=False, permute_classes=False,
        custom_class_order=None, validation=None, joint=False, stop_after=None, base_path="nowhere",
        device=torch.device("cpu"),
        code_optimization=0, debug_mode=False,
    )  # fmt: skip
    return Namespace(**defaults | changes)


class Toy(ContinualDataset):
    """6 classes in 3 tasks; 10 training and 4 test images of each, class by class; pixel 0 is the original label."""

    NAME = "toy"
    N_TASKS, N_CLASSES_PER_TASK, N_CLASSES = 3, 2, 6
    SIZE = (4, 4)
    MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    CROP_PADDING = 1
    HORIZONTAL_FLIP = True
    reads = 0

    def load_split(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        self.reads += 1
        labels = np.repeat(np.arange(6), 10 if train else 4)
        images = np.random.RandomState(train).randint(0, 256, (len(labels), 4, 4, 3)).astype(np.uint8)
        images[:, 0, 0, 0] = labels
        images[:, 0, 0, 1] = train
        return images, labels

    def load_class_names(self) -> list[str]:
        return list("abcdef")


def labels_of(loader) -> list[int]:
    return torch.cat([batch[1] for batch in loader]).tolist()


def original(loader) -> list[int]:
    return loader.dataset.data[:, 0, 0, 0].tolist()


# -- tasks -------------------------------------------------------------------------------------------------------


def test_tasks_take_consecutive_classes(device):
    dataset = Toy(make_args(device=device))
    assert (dataset.c_task, dataset.current_task, dataset.get_offsets()) == (-1, 0, (0, 0))
    for task in range(3):
        train, test = dataset.get_data_loaders()
        assert dataset.train_loader is train and dataset.test_loaders[task] is test
        assert (dataset.c_task, dataset.current_task) == (task, task + 1)
        assert dataset.get_offsets() == dataset.get_offsets(task) == dataset.eval_offsets(task)
        assert dataset.get_offsets() == (2 * task, 2 * task + 2)
        assert sorted(labels_of(train)) == [2 * task] * 10 + [2 * task + 1] * 10
        assert labels_of(test) == [2 * task] * 4 + [2 * task + 1] * 4
        assert train.dataset.data.device.type == test.dataset.data.device.type == device.type
    assert dataset.n_eval_tasks == 3 and dataset.get_offsets(3) == (6, 6)
    assert dataset.reads == 2  # once per split, not per task
    with pytest.raises(IndexError):
        dataset.get_data_loaders()


@pytest.mark.numeric
def test_batches_have_the_promised_form():
    dataset = Toy(make_args())
    train, test = dataset.get_data_loaders()
    augmented, labels, plain = next(iter(train))
    assert augmented.shape == plain.shape == (8, 3, 4, 4) and labels.dtype == torch.int64
    assert plain.min() >= 0 and plain.max() <= 1
    images, labels = next(iter(test))
    mean, std = (torch.tensor(values)[:, None, None] for values in (Toy.MEAN, Toy.STD))
    expected = (to_unit_float(test.dataset.data[:8].permute(0, 3, 1, 2)) - mean) / std
    torch.testing.assert_close(images, expected, rtol=0, atol=1e-6)


def test_batch_size_drop_last_and_memory_format_follow_the_flags():
    train, test = Toy(make_args(batch_size=6, drop_last=True, code_optimization=1)).get_data_loaders()
    assert [len(labels) for _, labels, _ in train] == [6, 6, 6]
    assert [len(labels) for _, labels in test] == [8]  # evaluation takes more at a time
    assert next(iter(train))[0].is_contiguous(memory_format=torch.channels_last)


def test_same_seed_same_batches_and_replay_does_not_shift_them():
    one, two, other = (Toy(make_args(seed=seed)) for seed in (3, 3, 4))
    replay = two.get_batch_transform(augment=True)
    batches = []
    for dataset in (one, two, other):
        batches.append([])
        for augmented, _, plain in dataset.get_data_loaders()[0]:
            batches[-1].append(augmented)
            if dataset is two:
                replay(plain)
    assert all(torch.equal(a, b) for a, b in zip(batches[0], batches[1], strict=True))
    assert not torch.equal(batches[0][0], batches[2][0])


def test_joint_trains_on_everything_and_tests_on_the_original_tasks():
    dataset = Toy(make_args(joint=True))
    train, _ = dataset.get_data_loaders()
    assert (dataset.N_TASKS, dataset.N_CLASSES_PER_TASK, dataset.n_eval_tasks) == (1, 6, 3)
    assert sorted(labels_of(train)) == sorted(list(range(6)) * 10) and dataset.get_offsets() == (0, 6)
    assert [dataset.eval_offsets(k) for k in range(3)] == [(0, 2), (2, 4), (4, 6)]
    assert [set(labels_of(loader)) for loader in dataset.test_loaders] == [{0, 1}, {2, 3}, {4, 5}]
    assert dataset.current_task == 1
    assert Toy.N_TASKS == 3  # the class is untouched


def test_custom_class_order_is_the_new_label_of_each_class():
    order = [5, 4, 3, 2, 0, 1]
    args = make_args(custom_class_order=order)
    dataset = Toy(args)
    train, test = dataset.get_data_loaders()
    assert args.class_order == order
    assert set(original(train)) == set(original(test)) == {4, 5}
    assert all(order[old] == new for old, new in zip(original(train), train.dataset.targets, strict=True))
    assert dataset.get_class_names() == list("efdcba")
    with pytest.raises(UsageError, match="custom_class_order"):
        Toy(make_args(custom_class_order=[0, 1, 2, 3, 4, 4]))


def test_permuted_classes_depend_on_the_seed_alone():
    args = [make_args(permute_classes=True, seed=seed) for seed in (1, 1, 2)]
    for each in args:
        Toy(each).get_data_loaders()
    assert args[0].class_order == args[1].class_order != args[2].class_order
    assert sorted(args[0].class_order) == list(range(6)) and isinstance(args[0].class_order, list)
    assert Toy(make_args()).class_order is None


@pytest.mark.parametrize("validation, held_out", [(0.2, 2), (20, 2), (0.21, 3), (1, 1), (70, 7)])
def test_validation_replaces_the_test_set(validation, held_out):
    dataset = Toy(make_args(validation=validation))
    train, test = dataset.get_data_loaders()
    assert len(train.dataset) == 2 * (10 - held_out)
    assert labels_of(test) == [0] * held_out + [1] * held_out
    assert test.dataset.data[:, 0, 0, 1].all()  # training images
    images = torch.cat((train.dataset.data, test.dataset.data)).flatten(1)
    assert len(images.unique(dim=0)) == 20  # none in both
    real = dataset.true_test_loaders()
    assert [labels_of(loader) for loader in real] == [[2 * k] * 4 + [2 * k + 1] * 4 for k in range(3)]
    assert not any(loader.dataset.data[:, 0, 0, 1].any() for loader in real)


def test_validation_depends_on_the_seed_and_not_on_the_class_order():
    def held_out(**changes) -> set:
        dataset = Toy(make_args(validation=0.3, **changes))
        for _ in range(3):
            dataset.get_data_loaders()
        data = torch.cat([loader.dataset.data for loader in dataset.test_loaders])
        return {image.numpy().tobytes() for image in data}

    assert held_out() == held_out() == held_out(permute_classes=True)
    assert held_out() != held_out(seed=1)
    with pytest.raises(UserError, match="no training image of class 0"):
        Toy(make_args(validation=95)).get_data_loaders()


def test_tasks_of_unequal_size_and_wrong_numbers():
    uneven = type("Uneven", (Toy,), {"N_CLASSES_PER_TASK": [3, 1, 2]})(make_args())
    assert [uneven.get_offsets(task) for task in range(3)] == [(0, 3), (3, 4), (4, 6)]
    for wrong in ({"N_TASKS": 4}, {"N_CLASSES_PER_TASK": [3, 1]}, {"N_CLASSES": 7}):
        with pytest.raises(UsageError, match="do not make up"):
            type("Wrong", (Toy,), wrong)(make_args())


def test_load_split_is_checked():
    floats = type("Floats", (Toy,), {"load_split": lambda self, train: (np.zeros((6, 4, 4, 3)), np.arange(6))})
    with pytest.raises(UserError, match="float64"):
        floats(make_args()).get_data_loaders()


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (np.arange(1, 7), "1…6"),
        (np.arange(6) - 1, "-1…4"),
        (np.arange(6.0), r"of type float64 and shape \(6,\)"),
        (np.arange(6)[:, None], r"of type int64 and shape \(6, 1\)"),
        ([], r"of type float64 and shape \(0,\)"),
    ],
)
def test_labels_that_no_task_has_are_refused(labels, found):
    images = np.zeros((len(labels), 4, 4, 3), dtype=np.uint8)
    wrong = type("Wrong", (Toy,), {"load_split": lambda self, train: (images, labels)})
    expected = rf"^toy: load_split gave training labels {found}, expected integers in 0…5, .*; count labels from 0"
    with pytest.raises(UserError, match=expected):
        wrong(make_args()).prepare()


@pytest.mark.parametrize("labels", [[0, 5], np.array([0, 5], dtype=np.uint8), torch.tensor([0, 5])])
def test_labels_may_be_any_integers_and_leave_classes_out(labels):
    images = np.zeros((2, 4, 4, 3), dtype=np.uint8)
    train, _ = type("Few", (Toy,), {"load_split": lambda self, train: (images, labels)})(make_args()).get_data_loaders()
    assert labels_of(train) == [0]


def test_a_damaged_array_file_is_one_line(tmp_path):
    file = tmp_path / "mine.npz"

    def read() -> np.ndarray:
        with downloads.one_line_reads(file), np.load(file) as arrays:
            return arrays["images"]

    np.savez_compressed(file, images=np.arange(3000) % 7)
    intact = file.read_bytes()
    assert len(read()) == 3000
    middle = len(intact) // 2
    damages = [b"", intact[:middle], b"text", intact[:middle] + bytes(16) + intact[middle + 16 :]]
    for damage in damages:
        file.write_bytes(damage)
        with pytest.raises(UserError) as error:
            read()
        one_line(error, f"{file} is damaged (", "); delete it, and make or fetch it again")
    np.savez(file, pictures=np.arange(3))
    with pytest.raises(UserError, match=r"is damaged \(images is not a file in the archive\)"):
        read()


@pytest.mark.numeric
def test_transforms():
    dataset = Toy(make_args())
    image = torch.rand(3, 4, 4)
    names = [type(step).__name__ for step in dataset.get_transform().transforms[1].transforms]
    assert names == ["RandomCrop", "RandomHorizontalFlip", "ToTensor", "Normalize"]
    assert dataset.get_transform()(image).shape == (3, 4, 4)
    normalised = dataset.get_normalization_transform()(image)
    for given in (normalised, normalised[None]):  # an image alone becomes a batch of one
        torch.testing.assert_close(dataset.get_denormalization_transform()(given), image[None])
    assert dataset.get_loss() is F.cross_entropy
    plain = get_dataset(make_args("seq-mnist"))
    assert plain.get_normalization_transform() is None and plain.get_denormalization_transform() is None
    assert [type(step).__name__ for step in plain.TRANSFORM.transforms] == ["ToTensor"]


# -- defaults and configs ----------------------------------------------------------------------------------------


def test_defaults_from_methods():
    class Base:
        @set_default_from_args("n_epochs")
        def get_epochs():  # as upstream declares them
            return 5

        @set_default_from_args("batch_size")
        def get_batch_size(self):
            return 7

    class Derived(Base):
        @set_default_from_args("n_epochs")
        def get_epochs(self):
            return 6

        def get_batch_size(self):  # a plain override withdraws the default
            return 8

    assert default_flags(Base) == {"n_epochs": 5, "batch_size": 7}
    assert default_flags(Derived) == {"n_epochs": 6}
    assert Base.get_epochs() == Base().get_epochs() == 5 and Base.get_epochs.flag == "n_epochs"


@pytest.mark.parametrize(
    "name, epochs, batch_size, backbone, tasks, classes, size",
    [
        ("seq-cifar10", 50, 32, "resnet18", 5, 2, 32),
        ("seq-cifar100", 50, 32, "resnet18", 10, 10, 32),
        ("seq-tinyimg", 100, 32, "resnet18", 10, 20, 64),
        ("seq-mnist", 1, 64, "mnistmlp", 5, 2, 28),
        ("seq-fmnist", 1, 64, "mnistmlp", 5, 2, 28),
        ("seq-digits", 10, 32, "mnistmlp", 5, 2, 8),
    ],
)
def test_declared_settings(name, epochs, batch_size, backbone, tasks, classes, size):
    dataset = get_dataset(make_args(name))  # reads no file: the base path does not exist
    flags = default_flags(type(dataset))
    assert (flags["n_epochs"], flags["batch_size"], flags["backbone"]) == (epochs, batch_size, backbone)
    assert (dataset.get_epochs(), dataset.get_batch_size(), dataset.get_minibatch_size()) == (epochs, *[batch_size] * 2)
    assert (tasks, classes, (size, size)) == (dataset.N_TASKS, dataset.N_CLASSES_PER_TASK, dataset.SIZE)
    schedule = {"lr_scheduler": "multisteplr", "lr_milestones": [35, 45], "sched_multistep_lr_gamma": 0.1}
    assert {key: flags.get(key) for key in schedule} == (
        schedule if name == "seq-cifar100" else dict.fromkeys(schedule)
    )
    with pytest.raises(UsageError, match="--n_iters"):
        dataset.get_iters()


@pytest.mark.parametrize("name", ALL)
def test_every_dataset_has_an_online_config(name):
    assert "online" in get_dataset_config_names(name)


@pytest.mark.parametrize("config, tasks, classes", [("5tasks", 5, 20), ("20tasks", 20, 5)])
def test_cifar100_in_other_numbers_of_tasks(config, tasks, classes):
    cls = get_dataset_class(make_args("seq-cifar100", dataset_config=config))
    assert (tasks, classes, 100) == (cls.N_TASKS, cls.N_CLASSES_PER_TASK, cls.N_CLASSES)


SMALL = [*(("seq-cifar100", split) for split in ("", "-5tasks", "-20tasks")), ("seq-cifar10", ""), ("seq-tinyimg", "")]


@pytest.mark.parametrize(("name", "split"), SMALL)
def test_the_small_scale_is_one_scale(name, split):
    """The same network, batches and falling rate everywhere, and at least 1,500 steps in every task."""
    small = get_dataset_class(make_args(name, dataset_config=f"small{split}"))
    _, config, _ = read_dataset_config(name, f"small{split}")
    _, reference, _ = read_dataset_config("seq-cifar100", "small")
    same = ("backbone", "num_filters", "batch_size", "scheduler_mode", "lr_milestones", "code_optimization")
    assert {key: config[key] for key in same} == {key: reference[key] for key in same}
    images = 100_000 if name == "seq-tinyimg" else 50_000
    assert config["n_epochs"] * math.ceil(images / small.N_TASKS / config["batch_size"]) >= 1500


@pytest.mark.slow
@pytest.mark.parametrize(("name", "split"), SMALL)
def test_the_small_scale_runs(name, split, tmp_path, monkeypatch):
    """On images of noise: two of each class to train, one to test."""

    def noise(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(self.N_CLASSES).repeat(1 + train)
        return np.random.RandomState(0).randint(256, size=(len(labels), *self.SIZE, 3), dtype=np.uint8), labels

    monkeypatch.setattr(get_dataset_class(make_args(name)), "load_split", noise)
    flags = ["--dataset", name, "--dataset_config", f"small{split}", "--buffer_size", "20", "--n_epochs", "1"]
    summary, model, _ = run(tmp_path, *flags)
    assert len(model.net.stages) == 3 and model.net.nf == 16
    assert model.args.lr_scheduler == "multisteplr"
    assert model.opt.param_groups[0]["lr"] < model.args.lr  # it has fallen in the last task
    assert summary["class_il"]["FAA"] >= 0


# -- seq-digits --------------------------------------------------------------------------------------------------


@pytest.mark.numeric
def test_digits_split_is_stratified_fixed_and_normalised():
    splits = []
    for seed in (0, 1):
        dataset = get_dataset(make_args("seq-digits", seed=seed, joint=True))
        train, _ = dataset.get_data_loaders()
        test = torch.cat([loader.dataset.data for loader in dataset.test_loaders])
        splits.append((train.dataset.data, test))
    assert all(torch.equal(a, b) for a, b in zip(*splits, strict=True))  # whatever the seed
    data, targets = train.dataset.data, train.dataset.targets
    test_targets = torch.cat([loader.dataset.targets for loader in dataset.test_loaders])
    assert (len(data), len(test_targets)) == (1438, 359)
    assert data.shape[1:] == (8, 8, 1) and data.dtype == torch.uint8 and data.max() == 255
    assert set(data.unique().tolist()) <= {round(value * 255 / 16) for value in range(17)}
    per_class = targets.bincount() + test_targets.bincount()
    assert (test_targets.bincount() / per_class - 0.2).abs().max() < 0.005
    pixels = data.double() / 255
    assert abs(pixels.mean().item() - dataset.MEAN[0]) < 1e-4 and abs(pixels.std().item() - dataset.STD[0]) < 1e-4
    # A checksum of the split: it must never change, or results would stop being comparable.
    assert hashlib.md5(data.numpy().tobytes()).hexdigest() == DIGITS_MD5


DIGITS_MD5 = "9b08e4eafbe02292cca7246f84abf0ac"


# -- files: CIFAR and MNIST --------------------------------------------------------------------------------------


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def no_network(monkeypatch):
    for name in PUBLISHED:
        publish(monkeypatch, name, mirrors=("http://127.0.0.1:9/",))  # nobody listens there


def publish(monkeypatch, name: str, **changes) -> None:
    monkeypatch.setitem(PUBLISHED, name, replace(PUBLISHED[name], **changes))


def test_what_is_published_is_what_torchvision_says():
    for cls in (CIFAR10, CIFAR100):
        source = PUBLISHED[cls.__name__]
        assert source.md5 == {cls.filename: cls.tgz_md5} and source.unpacked == cls.base_folder
        assert source.urls(cls.filename) == [cls.url]
    for cls in (MNIST, FashionMNIST):
        source = PUBLISHED[cls.__name__]
        assert list(source.md5.items()) == list(map(tuple, cls.resources))
        assert list(source.mirrors) == cls.mirrors


def write_cifar100(folder: Path, monkeypatch) -> Path:
    """A tiny CIFAR-100 in the original format, whose checksums torchvision is made to expect."""
    data = folder / CIFAR100.base_folder
    data.mkdir(parents=True)
    for name, images in (("train", 2), ("test", 1)):
        labels = list(range(100)) * images
        pixels = np.random.RandomState(images).randint(0, 256, (len(labels), 3072)).astype(np.uint8)
        (data / name).write_bytes(pickle.dumps({"data": pixels, "fine_labels": labels}))
    (data / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"class {i}" for i in range(100)]}))
    monkeypatch.setattr(CIFAR100, "train_list", [["train", md5(data / "train")]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", md5(data / "test")]])
    monkeypatch.setattr(CIFAR100, "meta", CIFAR100.meta | {"md5": md5(data / "meta")})
    return data


def pack_cifar100(data: Path, archive: Path, monkeypatch) -> None:
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(data, CIFAR100.base_folder)
    publish(monkeypatch, "CIFAR100", md5={archive.name: md5(archive)}, mirrors=(f"{archive.parent.as_uri()}/",))


@pytest.mark.parametrize("place", ["CIFAR100", "."])
def test_cifar_files_are_found_without_network(place, tmp_path, monkeypatch, no_network):
    data = write_cifar100(tmp_path / place, monkeypatch)
    dataset = get_dataset(make_args("seq-cifar100", base_path=str(tmp_path)))
    train, test = dataset.get_data_loaders()
    assert sorted(labels_of(train)) == sorted(list(range(10)) * 2) and labels_of(test) == list(range(10))
    planes = pickle.loads((data / "test").read_bytes())["data"][0].reshape(3, 32, 32)
    assert np.array_equal(test.dataset.data[0].permute(2, 0, 1).numpy(), planes)
    assert dataset.get_class_names()[99] == "class 99"


def one_line(error: pytest.ExceptionInfo, *parts: object) -> None:
    text = str(error.value)
    assert "\n" not in text
    for part in parts:
        assert str(part) in text, text


def test_missing_files_without_network_are_one_line(tmp_path, no_network):
    expected = {
        "seq-cifar10": "CIFAR10/cifar-10-python.tar.gz",
        "seq-cifar100": "CIFAR100/cifar-100-python.tar.gz",
        "seq-mnist": "MNIST/MNIST/raw/train-images-idx3-ubyte.gz",
        "seq-fmnist": "FMNIST/FashionMNIST/raw/train-images-idx3-ubyte.gz",
    }
    for name, file in expected.items():
        with pytest.raises(UserError) as error:
            get_dataset(make_args(name, base_path=str(tmp_path))).get_data_loaders()
        one_line(error, tmp_path / file, "http://127.0.0.1:9/", "refused", "--base_path")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_answer_is_given_up_soon(tmp_path, monkeypatch):
    """A name that nobody looks up: nothing but the thread waits for it."""
    asked = Event()

    def never(*_: object) -> None:
        asked.wait(60)
        raise TimeoutError

    monkeypatch.setattr(downloads, "CONNECT_SECONDS", 0.01)
    monkeypatch.setattr(downloads.socket, "create_connection", never)
    monkeypatch.setattr(downloads.urllib.request, "getproxies", dict)
    try:
        with pytest.raises(UserError) as error:
            get_dataset(make_args("seq-cifar100", base_path=str(tmp_path / "new" / "folder"))).get_data_loaders()
        one_line(error, "www.cs.toronto.edu", "no connection within 0.01 seconds")
    finally:
        asked.set()
    assert list(tmp_path.iterdir()) == []


def test_behind_a_proxy_only_the_proxy_is_asked(tmp_path, monkeypatch):
    asked = []

    def refuse(address, *_, **__):
        asked.append(address)
        raise ConnectionRefusedError

    urllib.request.install_opener(None)  # it would remember the proxies of its first use
    monkeypatch.setattr(urllib.request, "getproxies", lambda: {"https": "http://127.0.0.1:9"})
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(UserError, match="could not be fetched"):
        downloads.obtain(str(tmp_path), "CIFAR100", "file.zip", ["https://www.cs.toronto.edu/file.zip"], md5="0")
    urllib.request.install_opener(None)
    assert asked == [("127.0.0.1", 9)]


@pytest.mark.parametrize("file, damage", [("train", "cut"), ("meta", "cut"), ("test", "gone")])
def test_damaged_cifar_files_are_named(file, damage, tmp_path, monkeypatch, no_network):
    data = write_cifar100(tmp_path / "CIFAR100", monkeypatch)
    path = data / file
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError) as error:
        get_dataset(make_args("seq-cifar100", base_path=str(tmp_path))).get_data_loaders()
    one_line(
        error,
        path,
        f"delete the folder {data}",
        "http://127.0.0.1:9/cifar-100",
        "missing" if damage == "gone" else "damaged",
    )


def test_download_unpacks_and_leaves_no_temporary_files(tmp_path, monkeypatch):
    source = write_cifar100(tmp_path / "source", monkeypatch)
    pack_cifar100(source, tmp_path / "source" / CIFAR100.filename, monkeypatch)
    base = tmp_path / "base"
    dataset = get_dataset(make_args("seq-cifar100", base_path=str(base)))
    assert len(dataset.get_data_loaders()[0].dataset) == 20
    assert sorted(path.name for path in (base / "CIFAR100").iterdir()) == sorted(
        [CIFAR100.filename, CIFAR100.base_folder]
    )


def test_a_wrong_download_is_not_kept(tmp_path, monkeypatch):
    source = write_cifar100(tmp_path / "source", monkeypatch)
    pack_cifar100(source, tmp_path / "source" / CIFAR100.filename, monkeypatch)
    publish(monkeypatch, "CIFAR100", md5={CIFAR100.filename: "0" * 32})
    base = tmp_path / "base"
    with pytest.raises(UserError) as error:
        get_dataset(make_args("seq-cifar100", base_path=str(base))).get_data_loaders()
    one_line(error, CIFAR100.filename, "md5")
    assert not base.exists()


def test_an_interrupted_download_is_not_kept(tmp_path, monkeypatch):
    source = write_cifar100(tmp_path / "source", monkeypatch)
    pack_cifar100(source, tmp_path / "source" / CIFAR100.filename, monkeypatch)

    def interrupted(url, name):
        yield b"the first bytes"
        raise KeyboardInterrupt

    monkeypatch.setattr(downloads, "_stream", interrupted)  # where bytes arrive from the network
    with pytest.raises(KeyboardInterrupt):
        get_dataset(make_args("seq-cifar100", base_path=str(tmp_path / "base"))).get_data_loaders()
    assert not (tmp_path / "base").exists()


def test_a_damaged_archive_is_named_and_an_intact_one_used(tmp_path, monkeypatch):
    source = write_cifar100(tmp_path / "source", monkeypatch)
    archive = tmp_path / CIFAR100.filename  # directly in the base path
    pack_cifar100(source, archive, monkeypatch)
    publish(monkeypatch, "CIFAR100", mirrors=("http://127.0.0.1:9/",))
    content = archive.read_bytes()
    archive.write_bytes(content[:-10])
    with pytest.raises(UserError) as error:
        get_dataset(make_args("seq-cifar100", base_path=str(tmp_path))).get_data_loaders()
    one_line(error, archive, "damaged", "delete it")
    archive.write_bytes(content)
    assert len(get_dataset(make_args("seq-cifar100", base_path=str(tmp_path))).get_data_loaders()[0].dataset) == 20


def test_cifar10_batches_are_joined(tmp_path, monkeypatch, no_network):
    data = tmp_path / CIFAR10.base_folder
    data.mkdir()
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for name in names:
        content = {"data": np.zeros((20, 3072), np.uint8), "labels": list(range(10)) * 2}
        (data / name).write_bytes(pickle.dumps(content))
    (data / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    monkeypatch.setattr(CIFAR10, "train_list", [[name, md5(data / name)] for name in names[:5]])
    monkeypatch.setattr(CIFAR10, "test_list", [[names[5], md5(data / names[5])]])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": md5(data / "batches.meta")})
    dataset = get_dataset(make_args("seq-cifar10", base_path=str(tmp_path)))
    train, test = dataset.get_data_loaders()
    assert (len(train.dataset), len(test.dataset)) == (20, 4)
    assert dataset.get_class_names() == list("abcdefghij")


def write_mnist(raw: Path, cls: type, monkeypatch) -> None:
    """A tiny MNIST as gzipped idx files, whose checksums are made the published ones."""
    raw.mkdir(parents=True)
    checksums = {}
    for archive, n in zip(IDX, (30, 30, 10, 10), strict=True):
        if "images" in archive:
            pixels = np.random.RandomState(n).randint(0, 256, (n, 28, 28)).astype(np.uint8)
            content = bytes([0, 0, 8, 3]) + np.array(pixels.shape, ">i4").tobytes() + pixels.tobytes()
        else:
            content = bytes([0, 0, 8, 1]) + np.array([n], ">i4").tobytes() + bytes(i % 10 for i in range(n))
        (raw / archive).write_bytes(gzip.compress(content))
        checksums[archive] = md5(raw / archive)
    publish(monkeypatch, cls.__name__, md5=checksums)


@pytest.mark.parametrize("name, cls, folder", [("seq-mnist", MNIST, "MNIST"), ("seq-fmnist", FashionMNIST, "FMNIST")])
@pytest.mark.parametrize("direct", [True, False])
def test_mnist_files_are_found_unpacked_and_read(name, cls, folder, direct, tmp_path, monkeypatch, no_network):
    raw = (tmp_path if direct else tmp_path / folder) / cls.__name__ / "raw"
    write_mnist(raw, cls, monkeypatch)
    dataset = get_dataset(make_args(name, base_path=str(tmp_path)))
    train, test = dataset.get_data_loaders()
    assert (len(train.dataset), len(test.dataset), labels_of(test)) == (6, 2, [0, 1])
    augmented, _, plain = next(iter(train))
    assert augmented.shape == (6, 1, 28, 28) and torch.equal(augmented, plain)  # neither augmented nor normalised
    assert len(dataset.get_class_names()) == 10
    for archive in raw.glob("*.gz"):  # what is unpacked needs them no more
        archive.unlink()
    get_dataset(make_args(name, base_path=str(tmp_path))).get_data_loaders()


@pytest.mark.parametrize("file", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
@pytest.mark.parametrize("size", [0, 3, 12])
def test_damaged_mnist_files_are_named(file, size, tmp_path, monkeypatch, no_network):
    raw = tmp_path / "MNIST" / "raw"
    write_mnist(raw, MNIST, monkeypatch)
    get_dataset(make_args("seq-mnist", base_path=str(tmp_path))).get_data_loaders()
    (raw / file).write_bytes((raw / file).read_bytes()[:size])
    with pytest.raises(UserError) as error:
        get_dataset(make_args("seq-mnist", base_path=str(tmp_path))).get_data_loaders()
    one_line(error, raw / file, "damaged", "delete it")


# -- files: Tiny-ImageNet ----------------------------------------------------------------------------------------


def save_image(path: Path, colour: tuple[int, int, int] | int, size: tuple[int, int] = (64, 64)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = "L" if isinstance(colour, int) else "RGB"
    Image.new(mode, size, colour).save(path, "JPEG", quality=95)


@pytest.fixture(scope="module")
def tiny_tree(tmp_path_factory) -> Path:
    """Tiny-ImageNet's layout with one training and one validation image per class; red = 40 + label, some are gray."""
    root = tmp_path_factory.mktemp("tiny") / "TINYIMG" / "tiny-imagenet-200"
    wnids = [f"n{label:08d}" for label in range(200)]
    annotations = []
    for label, wnid in enumerate(wnids):
        colour = 40 + label if label % 50 == 0 else (40 + label, 90, 200)
        save_image(root / "train" / wnid / "images" / f"{wnid}_0.JPEG", colour)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t63\t63\n")
        save_image(root / "val" / "images" / f"val_{label}.JPEG", colour)
        annotations.append(f"val_{label}.JPEG\t{wnid}\t0\t0\t63\t63\n")
    (root / "val" / "val_annotations.txt").write_text("".join(reversed(annotations)))
    (root / "wnids.txt").write_text("\n".join(reversed(wnids)) + "\n")
    (root / "words.txt").write_text("".join(f"{wnid}\tthing {i}, item\n" for i, wnid in enumerate(wnids)))
    return root


def test_tiny_imagenet_is_labelled_by_sorted_ids(tiny_tree, monkeypatch):
    base = str(tiny_tree.parent.parent)
    dataset = get_dataset(make_args("seq-tinyimg", base_path=base))
    for _ in range(2):
        train, test = dataset.get_data_loaders()
    for loader in (train, test):
        assert sorted(labels_of(loader)) == list(range(20, 40))
        red, green = loader.dataset.data[:, 30, 30, :2].int().T
        assert (red - 40 - loader.dataset.targets).abs().max() <= 3 and (green - 90).abs().max() <= 3
    gray = dataset.splits.train.data[50, 0, 0]
    assert gray.tolist() == [90, 90, 90]
    assert dataset.get_class_names()[:2] == ["thing 0", "thing 1"]

    # Decoding is what the cache saves.
    monkeypatch.setattr(image_cache, "_decode", lambda *_: pytest.fail("decoded again"))
    again = get_dataset(make_args("seq-tinyimg", base_path=base))
    again.get_data_loaders()
    assert torch.equal(again.splits.train.data, dataset.splits.train.data)


def test_tiny_imagenet_reports_what_is_missing_or_damaged(tiny_tree, tmp_path, monkeypatch):
    root = tmp_path / "tiny-imagenet-200"  # directly in the base path
    shutil.copytree(tiny_tree, root, ignore=shutil.ignore_patterns("*.cache"))

    def failure() -> pytest.ExceptionInfo:
        with pytest.raises(UserError) as error:
            get_dataset(make_args("seq-tinyimg", base_path=str(tmp_path))).get_data_loaders()
        return error

    annotations = root / "val" / "val_annotations.txt"
    text = annotations.read_text()
    for damaged in (text[:-25], text.replace("n00000150", "n99999999")):
        annotations.write_text(damaged)
        one_line(failure(), annotations, "damaged")
    image = root / "train" / "n00000150" / "images" / "n00000150_0.JPEG"
    image.unlink()
    one_line(failure(), image, "missing")
    boxes = root / "train" / "n00000002" / "n00000002_boxes.txt"
    boxes.unlink()
    one_line(failure(), boxes)
    (root / "wnids.txt").write_text("n00000000\n")
    one_line(failure(), root / "wnids.txt", "1 classes instead of 200")
    shutil.rmtree(root)
    monkeypatch.setattr("datasets.seq_tinyimg.URL", "http://127.0.0.1:9/")
    one_line(failure(), tmp_path / "TINYIMG" / "tiny-imagenet-200.zip", "http://127.0.0.1:9/", "--base_path")


@pytest.fixture
def pictures(tmp_path) -> tuple[Path, list[str]]:
    files = [f"{i}.JPEG" for i in range(5)]
    for i, file in enumerate(files):
        save_image(tmp_path / file, (50 * i, 100, 0), (6, 4))
    return tmp_path, files


def load(root: Path, files: list[str]) -> np.ndarray:
    return image_cache.load_images(root, files, (4, 6), root / "cache")


def test_cache_that_is_cut_off_or_altered_is_made_again(pictures):
    root, files = pictures
    images = load(root, files)
    assert images.shape == (5, 4, 6, 3) and images.dtype == np.uint8
    good = (root / "cache").read_bytes()
    assert sorted(path.name for path in root.iterdir()) == sorted([*files, "cache"])
    damaged = [good[:length] for length in range(0, len(good), 20)] + [good + b"x"]
    damaged += [good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :] for i in range(0, len(good), 7)]
    for content in damaged:
        (root / "cache").write_bytes(content)
        assert np.array_equal(load(root, files), images)
    load(root, files)
    assert (root / "cache").read_bytes() == good


def test_cache_follows_its_sources(pictures):
    root, files = pictures
    first = load(root, files)
    save_image(root / "3.JPEG", 77, (6, 4))  # another size in bytes
    second = load(root, files)
    assert (second[3] == 77).all() and np.array_equal(np.delete(second, 3, 0), np.delete(first, 3, 0))
    assert np.array_equal(load(root, files[::-1]), second[::-1])
    assert len(load(root, files[:2])) == 2


def test_unreadable_pictures_are_named(pictures):
    root, files = pictures
    content = (root / "2.JPEG").read_bytes()
    for damaged in (b"", b"no picture", content[: len(content) // 2]):
        (root / "2.JPEG").write_bytes(damaged)
        with pytest.raises(UserError) as error:
            load(root, files)
        one_line(error, root / "2.JPEG", "not a readable image")
    save_image(root / "2.JPEG", 0, (6, 5))
    with pytest.raises(UserError) as error:
        load(root, files)
    one_line(error, root / "2.JPEG", "(5, 6)", "(4, 6)")
    assert not (root / "cache").exists()


def test_a_disk_that_cannot_be_written_costs_only_the_cache(pictures, monkeypatch, caplog):
    def full(*_):
        raise UserError("cannot write cache: No space left on device")

    monkeypatch.setattr(image_cache, "atomic_write", full)
    root, files = pictures
    assert len(load(root, files)) == 5 and not (root / "cache").exists()
    assert "not kept" in caplog.text
