"""Vectors from files: what is read, what is refused, and what becomes of it in buffer, transform and run name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import vector_helpers as vectors
from helpers import ROOT, run

from datasets import get_dataset
from datasets.seq_embeddings import EMBEDDED
from datasets.utils.embedding_file import read_embeddings
from main import initialize
from utils.cli.parse import parse_args
from utils.errors import UserError
from utils.run.directory import RunDirectory


def command(file: Path, *flags: str, model: str = "er") -> list[str]:
    line = ["--model", model, "--dataset", "seq-embeddings", "--embeddings", str(file), "--seed", "0"]
    line += ["--base_path", str(file.parent)]
    return [*line, *(["--buffer_size", "30"] if model != "sgd" and "--buffer_size" not in flags else []), *flags]


def build(file: Path, *flags: str) -> tuple[Any, Any]:
    model, dataset, _ = initialize(parse_args(command(file, *flags)))
    return model, dataset


def write_safetensors(path: Path, content: dict[str, Any]) -> Path:
    names = {"float16": "F16", "float32": "F32", "int8": "I8", "int64": "I64"}
    header: dict[str, Any] = {"__metadata__": {"provenance": "by hand", "class_names": json.dumps([*"abcd"])}}
    body = b""
    for name, array in content.items():
        offsets = [len(body), len(body) + array.nbytes]
        header[name] = {"dtype": names[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        body += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


# -- reading -----------------------------------------------------------------------------------------------------------


def test_both_formats_give_the_same_vectors(tmp_path: Path) -> None:
    made = vectors.arrays("float16", classes=4)
    npz = read_embeddings(str(vectors.write(tmp_path / "a.npz", **made, scale=None)))
    arrays = {name: made[name] for name in ("train_x", "train_y", "test_x", "test_y")}
    other = read_embeddings(str(write_safetensors(tmp_path / "a.safetensors", arrays)))
    for name, array in arrays.items():
        assert np.array_equal(getattr(npz, name), array) and np.array_equal(getattr(other, name), array)
    assert npz.class_names == [*"0123"] and other.class_names == [*"abcd"]
    assert npz.provenance == "made by a test" and other.provenance == "by hand"


BAD = {
    "missing": ({"test_y": None}, "it lacks test_y"),
    "labels": ({"train_y": np.zeros(7, int)}, "800 vectors and train_y 7 labels"),
    "type": ({"train_x": np.zeros((800, 16))}, "train_x is float64; store it as float16, float32 or int8"),
    "shape": ({"train_x": np.zeros((800, 4, 4), np.float32)}, "the shape [800, 4, 4]; it must be [N, d]"),
    "width": ({"test_x": np.zeros((200, 8), np.int8)}, "16 × int8 and 8 × int8"),
    "nan": ({"train_x": np.full((800, 16), np.nan, np.float32)}, "NaN or infinity in row 0 (800 rows in all)"),
    "float labels": ({"train_y": np.zeros(800)}, "train_y is float64 [800]; it must be [N], whole numbers"),
    "hole": ({"train_y": np.repeat(np.r_[0:5, 6:21], 40)}, "train_y has no vector of class 5"),
    "negative": ({"train_y": np.repeat(np.arange(-1, 19), 40)}, "labels -1…18"),
    "test class": ({"test_y": np.repeat(np.arange(20), 10) // 2}, "test_y has no vector of class 10"),
    "scale": ({"scale": None}, "int8 need a scale"),
    "bad scale": ({"scale": np.zeros(16)}, "scale [16] must be positive"),
    "names": ({"class_names": np.array(["a", "b"])}, "2 names for 20 classes"),
    "pickled": ({"provenance": np.array([{}], object)}, "without pickled objects"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_with_a_file_is_one_line_before_training(tmp_path: Path, case: str) -> None:
    changes, reason = BAD[case]
    file = vectors.write(tmp_path / "bad.npz", **changes)
    with pytest.raises(UserError) as caught:
        parse_args(command(file))
    assert reason in str(caught.value) and str(file) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"\x00" * 99])
@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".txt"])
def test_damaged_and_foreign_files_are_one_line(tmp_path: Path, content: bytes, ending: str) -> None:
    file = tmp_path / f"file{ending}"
    file.write_bytes(content)
    for path in (file, tmp_path / f"none{ending}"):
        with pytest.raises(UserError) as caught:
            parse_args(command(path))
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"dtype": "F8_E4M3"}, "train_x is of type F8_E4M3"),
        ({"data_offsets": [0, 10**6]}, "train_x lies beyond the end of the file"),
        ({"data_offsets": [8, 0]}, "train_x lies beyond the end of the file"),
    ],
)
def test_a_header_that_does_not_fit_its_tensors_is_one_line(tmp_path: Path, entry: dict[str, Any], reason: str) -> None:
    file = write_safetensors(tmp_path / "a.safetensors", {"train_x": np.zeros((2, 2), np.float32)})
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["train_x"] |= entry
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with pytest.raises(UserError, match=reason):
        read_embeddings(str(file))


# -- tasks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "ranges"),
    [
        (["--n_tasks", "5"], [(0, 4), (4, 8), (8, 12), (12, 16), (16, 20)]),
        (["--n_tasks", "3", "--classes_first_task", "10"], [(0, 10), (10, 15), (15, 20)]),
        (["--n_tasks", "1"], [(0, 20)]),
        ([], [(2 * task, 2 * task + 2) for task in range(10)]),
    ],
)
def test_classes_are_cut_into_tasks(tmp_path: Path, flags: list[str], ranges: list[tuple[int, int]]) -> None:
    _, dataset = build(vectors.write(tmp_path / "a.npz"), *flags)
    assert [dataset.get_offsets(task) for task in range(dataset.N_TASKS)] == ranges
    for first, last in ranges:
        loader, test = dataset.get_data_loaders()
        assert set(loader.dataset.targets.tolist()) == set(test.dataset.targets.tolist()) == set(range(first, last))


def test_image_datasets_take_the_same_flags(tmp_path: Path) -> None:
    line = ["--model", "er", "--buffer_size", "9", "--seed", "0", "--base_path", str(tmp_path)]
    args = parse_args([*line, "--dataset", "seq-cifar100", "--n_tasks", "11", "--classes_first_task", "50"])
    dataset = get_dataset(args)
    assert [dataset.get_offsets(task) for task in (0, 1, 10)] == [(0, 50), (50, 55), (95, 100)]
    _, _, directory = run(
        tmp_path, "--dataset", "seq-digits", "--n_tasks", "2", "--n_epochs", "1", "--buffer_size", "9"
    )
    assert len((directory / "accuracy.csv").read_text().splitlines()) > 2


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--n_tasks", "3"], "its 20 classes make no 3 equal tasks"),
        (["--n_tasks", "21"], "make no 21 equal tasks"),
        (["--n_tasks", "3", "--classes_first_task", "11"], "the other 9 classes of seq-embeddings make no 2 equal"),
        (["--n_tasks", "1", "--classes_first_task", "20"], "make no 0 equal tasks"),
        (["--n_tasks", "3", "--classes_first_task", "20"], "the other 0 classes"),
        (["--backbone", "resnet18"], "--backbone resnet18 takes images, and seq-embeddings has vectors"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, flags: list[str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        parse_args(command(vectors.write(tmp_path / "a.npz"), *flags))


def test_other_datasets_refuse_the_file_and_uneven_tasks(tmp_path: Path) -> None:
    line = ["--model", "sgd", "--dataset", "seq-digits", "--seed", "0"]
    with pytest.raises(UserError, match="seq-digits reads no such file"):
        parse_args([*line, "--embeddings", "a.npz"])
    with pytest.raises(UserError, match="10 classes of seq-digits make no 3 equal tasks"):
        parse_args([*line, "--n_tasks", "3"])
    with pytest.raises(UserError, match="seq-digits has 10 classes, fewer than tasks"):
        parse_args([*line, "--n_tasks", "11"])


# -- the run's name ----------------------------------------------------------------------------------------------------


def test_a_run_is_named_after_the_content_and_not_the_path(tmp_path: Path) -> None:
    def name(file: Path, *flags: str) -> str:
        return RunDirectory(parse_args(command(file, *flags))).hash

    first = vectors.write(tmp_path / "a.npz")
    copy, other = tmp_path / "b.npz", vectors.write(tmp_path / "c.npz", **vectors.arrays(seed=1))
    copy.write_bytes(first.read_bytes())
    assert name(first) == name(copy) == name(first, "--n_tasks", "10") != name(other)
    assert name(first) != name(first, "--n_tasks", "5")
    assert read_embeddings(str(first)).sha256 == read_embeddings(str(copy)).sha256


# -- what becomes of the vectors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_the_first_task_alone_standardises_and_the_buffer_keeps_the_type(tmp_path: Path, dtype: str) -> None:
    made = vectors.arrays(dtype)
    file = vectors.write(tmp_path / "a.npz", **made, **({} if dtype == "int8" else {"scale": None}))
    model, dataset = build(file, "--n_tasks", "5", "--buffer_fill", "task_end", "--buffer_size", "500")
    raw = made["train_x"].astype(np.float64)
    first = raw[made["train_y"] < 4]
    expected = (raw - first.mean(0)) / first.std(0)
    for task in range(3):
        loader, _ = dataset.get_data_loaders()
        model.meta_begin_task(dataset)
        rows = (made["train_y"] // 4 == task).nonzero()[0]
        got = torch.cat([inputs for inputs, _, _ in loader]).double().numpy()
        wanted = expected[rows]
        assert got.dtype == np.float64 and np.allclose(np.sort(got, 0), np.sort(wanted, 0), atol=1e-4)
        model.meta_end_task(dataset)
    examples, labels = model.buffer.examples[:480], model.buffer.labels[:480]
    assert str(model.buffer.examples.dtype) == f"torch.{dtype}"
    assert model.buffer.nbytes() == 500 * (16 * examples.element_size() + 8)
    stored = sorted(map(bytes, examples.numpy()))
    assert stored == sorted(map(bytes, made["train_x"][:480])) and labels.max() == 11
    replayed, _ = model.buffer.get_data(500, transform=model.transform)
    assert np.allclose(np.sort(replayed.numpy(), 0), np.sort(expected[:480], 0), atol=1e-4)


def test_what_observe_is_given_is_stored_to_the_bit(tmp_path: Path) -> None:
    """The stream fills by the un-augmented floats of `observe`, which must become the file's bytes again."""
    made = vectors.arrays()
    model, dataset = build(vectors.write(tmp_path / "a.npz"), "--buffer_fill", "stream", "--replay_weight", "batch")
    loader, _ = dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    for batch in loader:
        model.meta_observe(*batch)
    known = set(map(bytes, made["train_x"]))
    assert all(bytes(row) in known for row in model.buffer.examples.numpy())


def test_a_joint_run_sees_the_numbers_of_a_sequence(tmp_path: Path) -> None:
    file = vectors.write(tmp_path / "a.npz")
    one, two = (
        initialize(parse_args(command(file, *flags, model="sgd")))[1] for flags in (["--joint", "1"], ["--joint", "0"])
    )
    batch = torch.from_numpy(vectors.arrays()["test_x"])
    assert torch.equal(one.get_transform()(batch), two.get_transform()(batch))


def test_a_feature_that_never_varies_is_only_centred(tmp_path: Path) -> None:
    made = vectors.arrays("float32")
    made["train_x"][:, 3] = made["test_x"][:, 3] = 7
    _, dataset = build(vectors.write(tmp_path / "a.npz", **made, scale=None))
    assert not dataset.get_transform()(torch.from_numpy(made["test_x"]))[:, 3].any()


@pytest.mark.slow
def test_without_any_dataset_the_shipped_vectors_are_trained_on(tmp_path: Path) -> None:
    """In a process of its own, because the tests have another default."""
    command = [sys.executable, str(ROOT / "main.py"), "--model", "dgc_er", "--buffer_size", "100", "--seed", "0"]
    done = subprocess.run(
        [*command, "--n_epochs", "1", "--base_path", str(tmp_path), "--non_verbose", "1"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (summary,) = tmp_path.glob("results/seq-embeddings/dgc-er/*/summary.json")
    content = json.loads(summary.read_text())
    assert content["n_tasks"] == 10 and content["buffer_bytes"] == 100 * (128 + 8)
    assert content["calibrator_bytes"] == 4 * 50 * 129
    shipped = read_embeddings(str(EMBEDDED))
    assert (shipped.n_classes, shipped.width, len(shipped.train_y), len(shipped.test_y)) == (50, 128, 10_000, 5_000)
    assert shipped.train_x.dtype == np.int8


def test_er_and_dgc_er_differ_in_calibration_alone(tmp_path: Path) -> None:
    file = vectors.write(tmp_path / "a.npz")
    er, dgc = (vars(parse_args(command(file, model=model))) for model in ("er", "dgc_er"))
    shared = {name for name in er if er[name] != dgc[name]} - {
        "model",
        "command_sha256",
        "conf_jobnum",
        "conf_timestamp",
    }
    assert not shared and (er["replay_weight"], er["buffer_fill"], er["lr_scheduler"]) == (
        "tasks",
        "task_end",
        "linear",
    )
    assert dgc.keys() - er.keys() == {name for name in dgc if name.startswith("dgc_")} - {"dgc_diagnostics"}
    assert (dgc["dgc_estimator"], dgc["dgc_alpha"]) == ("closed", 1)
    images = vars(parse_args(["--model", "dgc_er", "--dataset", "seq-digits", "--buffer_size", "9"]))
    assert (images["dgc_estimator"], images["dgc_alpha"], images["replay_weight"]) == ("sampled", 0.001, "batch")
