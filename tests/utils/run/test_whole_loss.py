"""`--loss_diagnostics`: the loss over all training images so far, against its definition, and without a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_same, final_state, run
from method_helpers import assert_exact_resume

from experiments.results.records import read_curves
from main import initialize
from models.er import Er
from utils.cli.parse import parse_args
from utils.run.whole_loss import WholeLoss

pytestmark = pytest.mark.numeric

STEPS = ["--fitting_mode", "iters", "--n_iters", "3", "--stop_after", "2"]


def events(directory: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


def mean_loss(model: Any, classes: range) -> float:
    """By definition: all training images of these classes at once, as they are tested."""
    images, labels = (torch.as_tensor(part) for part in model.dataset.load_split(train=True))
    own = torch.isin(labels, torch.tensor(classes))
    inputs = model.dataset.get_normalization_transform()(images[own].permute(0, 3, 1, 2) / 255)
    model.net.eval()
    with torch.no_grad():
        found = float(F.cross_entropy(model.net(inputs), labels[own].long()))
    model.net.train()
    return found


def test_it_is_the_mean_over_all_training_images_so_far(tmp_path: Path) -> None:
    line = ["--model", "er", "--buffer_size", "20", "--dataset", "seq-digits", "--seed", "0"]
    line += ["--backbone", "resnet8", "--num_filters", "2"]
    model, dataset, _ = initialize(parse_args([*line, "--base_path", str(tmp_path)]))
    loss = WholeLoss(model, every=4)
    for task in range(2):
        dataset.get_data_loaders()
        loss.keep(dataset.train_loader.dataset)
        found = loss.measure(task)
        assert found["seen"] == pytest.approx(mean_loss(model, range(2 * task + 2)), rel=1e-5)
        assert found["current"] == pytest.approx(mean_loss(model, range(2 * task, 2 * task + 2)), rel=1e-5)
    assert found["past"] == pytest.approx(mean_loss(model, range(2)), rel=1e-5)
    assert [step for step in range(9) if loss.due(step)] == [0, 4, 8]
    assert not WholeLoss(model, every=None).due(0)


@pytest.mark.parametrize("model, flags", [("sgd", []), ("er", ["--buffer_size", "40"])], ids=str)
def test_the_run_is_the_same_with_and_without(model: str, flags: list[str], tmp_path: Path) -> None:
    _, _, plain = run(tmp_path / "plain", *STEPS, *flags, model=model)
    _, _, measured = run(tmp_path / "measured", *STEPS, *flags, "--loss_diagnostics", "2", model=model)
    found = events(measured, "whole_loss")
    assert [(line["task"], line["step"], "past" in line) for line in found] == [
        (1, 0, False), (1, 2, False), (2, 0, True), (2, 2, True)]  # fmt: skip
    assert found[1]["seen"] < found[0]["seen"] and found[2]["past"] < found[2]["current"]  # it learns; new is unknown
    assert not events(plain, "whole_loss")
    assert (plain / "accuracy.csv").read_bytes() == (measured / "accuracy.csv").read_bytes()
    a, b = final_state(plain), final_state(measured)
    for state in (a, b):
        del state["hash"], state["metrics"]  # the flag itself, and the place in the file
    assert_same(a, b)


def test_results_hold_the_measurements_by_step(tmp_path: Path) -> None:
    _, _, directory = run(tmp_path, *STEPS, "--loss_diagnostics", "2", model="sgd")
    curves = read_curves(directory / "metrics.jsonl")["whole_loss"]
    assert curves["at"] == [0, 2, 3, 5] and curves["task"] == [1, 1, 2, 2]
    lines = events(directory, "whole_loss")
    assert curves["seen"] == pytest.approx([line["seen"] for line in lines], rel=1e-3)
    assert curves["past"][:2] == [None, None] and curves["past"][3] == pytest.approx(lines[3]["past"], rel=1e-3)


def test_resume_is_exact_with_measurements(tmp_path: Path) -> None:
    assert_exact_resume(Er, tmp_path, "--buffer_size", "40", "--loss_diagnostics", "2")
