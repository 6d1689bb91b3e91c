"""What a method stores, against counts by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import run
from method_helpers import build

import models
from utils.run.memory import stored_bytes

IMAGE, LABEL = 64, 8  # bytes: 8 × 8 pixels, an int64


def trained(tmp_path: Path, model: str, *flags: str) -> tuple[int, int]:
    """Bytes stored and parameters of a finished run."""
    summary, _, _ = run(tmp_path / model, "--n_epochs", "1", *flags, model=model)
    return summary["stored_bytes"], summary["parameters"]


def test_fine_tuning_stores_nothing(tmp_path: Path) -> None:
    assert trained(tmp_path, "sgd")[0] == 0


def test_replay_stores_its_buffer_and_calibration_its_vectors(tmp_path: Path) -> None:
    buffer = 40 * (IMAGE + LABEL)
    assert trained(tmp_path, "er", "--buffer_size", "40")[0] == buffer
    stored, parameters = trained(tmp_path, "dgc_er", "--buffer_size", "40", "--dgc_estimator", "sampled")
    vectors = 2 * 4 * parameters  # Γ' and θ̃
    generator = torch.Generator().get_state().nbytes
    assert stored == buffer + vectors + generator


def test_buffer_and_calibrator_are_told_apart(tmp_path: Path) -> None:
    flags = ["--n_epochs", "1", "--buffer_size", "40", "--dgc_estimator", "closed"]
    summary, _, _ = run(tmp_path, *flags, model="dgc_er")
    assert summary["buffer_bytes"] == 40 * (IMAGE + LABEL) and summary["calibrator_bytes"] == 4 * summary["parameters"]
    assert summary["stored_bytes"] >= summary["buffer_bytes"] + summary["calibrator_bytes"]
    assert "buffer_bytes" not in run(tmp_path / "sgd", "--n_epochs", "1", model="sgd")[0]


def test_coreset_and_candidates_both_count(tmp_path: Path) -> None:
    logits, weight, task = 4 * 10, 4, 8
    stored, _ = trained(tmp_path, "gcr", "--buffer_size", "40", "--candidate_size", "30")
    coreset, candidates = 40 * (IMAGE + LABEL + logits + weight + task), 30 * (IMAGE + LABEL + logits)
    assert stored == coreset + candidates + (IMAGE + LABEL + logits) + 8  # a row for what is not kept, and a counter


def test_what_belongs_to_the_network_is_not_counted_and_shared_memory_once(tmp_path: Path) -> None:
    model = build("sgd", tmp_path)
    model.head = next(model.net.parameters())
    model.table = torch.zeros(10, dtype=torch.float64)
    model.views = [model.table[:5], model.table[5:]]
    model.array = np.zeros(3, dtype=np.float32)
    model.part = torch.zeros(100)[10:13]  # nobody has the rest
    assert stored_bytes(model) == 80 + 12 + 12


WITHOUT_BUFFER = ("sgd", "joint", "aop", "ncm", "ridge")
METHOD_FLAGS = {name: ["--buffer_size", "40"] for name in models.get_model_entries() if name not in WITHOUT_BUFFER}
for name in ("derpp", "dgc-derpp", "gcr"):  # no default is known
    METHOD_FLAGS[name] += ["--alpha", "0.1", "--beta", "0.5"]


@pytest.mark.slow
@pytest.mark.parametrize("model", models.get_model_entries())
def test_the_summary_does_not_depend_on_whether_the_run_was_interrupted(model: str, tmp_path: Path) -> None:
    """What is restored from a checkpoint has other storages: only the bytes shown by a tensor are the method's."""
    flags = ["--n_epochs", "1", *METHOD_FLAGS.get(model, []), *([] if model == "joint" else ["--stop_after", "2"])]
    _, _, directory = run(tmp_path, *flags, model=model)
    summary = (directory / "summary.json").read_bytes()
    (directory / "summary.json").unlink()
    run(tmp_path, *flags, model=model)
    assert (directory / "summary.json").read_bytes() == summary
