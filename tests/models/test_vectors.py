"""Every method on vectors: it trains in seconds and learns, or says why it can't be given any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import vector_helpers as vectors
from helpers import run
from method_helpers import assert_exact_resume, begin_task

from main import initialize
from models import get_model_entries
from models.dgc_er import DgcEr
from models.ridge import Ridge
from utils.cli.parse import parse_args
from utils.errors import UsageError

REFUSED = {
    "xder": "views of an image",
    "dgc-xder": "views of an image",
    "dynamic-er": "feature extractor with every task",
    "dgc-dynamic-er": "feature extractor with every task",
}
NO_BUFFER = {"sgd", "joint", "aop", "ridge", "ncm"}
LEARN_LITTLE = {"sgd", "aop"}  # without a buffer the linear classifier forgets all but the last task
FLAGS = ["--dataset", "seq-embeddings", "--n_tasks", "4"]


def names() -> list[str]:
    return [entry.name for entry in get_model_entries().values()]


def flags_for(name: str, file: Path, *flags: str) -> list[str]:
    buffer = [] if name in NO_BUFFER else ["--buffer_size", "60"]
    variant = ["--moca_variant", "gaussian"] if name == "moca" else []
    return [*FLAGS, "--embeddings", str(file), *buffer, *variant, *flags]


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["linear", "mlp"])
@pytest.mark.parametrize("name", [name for name in names() if name not in REFUSED])
def test_a_method_learns_vectors(tmp_path: Path, name: str, backbone: str) -> None:
    file = vectors.write(tmp_path / "a.npz")
    summary, model, _ = run(tmp_path, *flags_for(name, file, "--backbone", backbone), model=name)
    assert summary["class_il"]["FAA"] > (20 if name in LEARN_LITTLE else 45)
    if name not in NO_BUFFER:
        assert model.buffer.examples.dtype == torch.int8 and summary["stored_bytes"] > 60 * vectors.WIDTH


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_images_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=REFUSED[name]):
        parse_args(["--model", name, *flags_for(name, vectors.write(tmp_path / "a.npz"))])


def test_moca_says_which_variant_needs_a_network(tmp_path: Path) -> None:
    line = ["--model", "moca", "--buffer_size", "60", "--base_path", str(tmp_path), *FLAGS]
    with pytest.raises(UsageError, match="linear has none to move; use --moca_variant gaussian"):
        initialize(parse_args([*line, "--embeddings", str(vectors.write(tmp_path / "a.npz"))]))


# -- methods that keep sums --------------------------------------------------------------------------------------------


def finished_tasks(tmp_path: Path, name: str, *flags: str, file: Path) -> Any:
    """A model after all tasks, and what it has seen: standardised vectors and labels."""
    line = ["--model", name, "--seed", "0", "--base_path", str(tmp_path), *flags_for(name, file, *flags)]
    model, dataset, _ = initialize(parse_args(line))
    for _ in range(dataset.N_TASKS):
        begin_task(model)
        model.meta_end_task(dataset)
    return model


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_ridge_is_its_joint_solution(tmp_path: Path, dtype: str) -> None:
    made = vectors.arrays(dtype)
    file = vectors.write(tmp_path / "a.npz", **made, **({} if dtype == "int8" else {"scale": None}))
    model, joint = (finished_tasks(tmp_path, "ridge", *flags, file=file) for flags in ([], ["--joint", "1"]))
    x = model.normalization_transform(torch.from_numpy(made["train_x"])).double().numpy()
    y = np.eye(vectors.CLASSES)[made["train_y"]]
    centred, penalty = x - x.mean(0), model.args.ridge_penalty * np.eye(vectors.WIDTH)
    weight = np.linalg.solve(centred.T @ centred / len(x) + penalty, centred.T @ (y - y.mean(0)) / len(x)).T
    bias = y.mean(0) - weight @ x.mean(0)
    for solution in (model.solve(), joint.solve()):
        assert np.abs(solution[0].numpy() - weight).max() < 1e-10 and np.abs(solution[1].numpy() - bias).max() < 1e-10
    assert np.allclose(model.net.classifier.weight.detach().numpy(), weight, atol=1e-6)


def test_ncm_finds_the_nearest_mean(tmp_path: Path) -> None:
    made = vectors.arrays()
    model = finished_tasks(tmp_path, "ncm", file=vectors.write(tmp_path / "a.npz"))
    train, test = (model.normalization_transform(torch.from_numpy(made[part])) for part in ("train_x", "test_x"))
    means = torch.stack([train[torch.from_numpy(made["train_y"] == label)].mean(0) for label in range(vectors.CLASSES)])
    assert torch.equal(model(test).argmax(1), torch.cdist(test, means).argmin(1))


@pytest.mark.parametrize(("method", "buffer"), [(Ridge, []), (DgcEr, ["--buffer_size", "30"])])
def test_a_killed_run_on_vectors_ends_as_if_nothing_had_happened(
    tmp_path: Path, method: Any, buffer: list[str]
) -> None:
    file = vectors.write(tmp_path / "a.npz")
    assert_exact_resume(method, tmp_path, *FLAGS, "--embeddings", str(file), *buffer)
