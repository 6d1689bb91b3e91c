"""A run that continues another one's tasks (`--savecheck`, `--loadcheck FILE --start_from N`)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_same, run

from utils.augmentations import to_unit_float
from utils.resume.state import pack

BUFFER = ["--buffer_size", "50"]
METHODS = {
    "sgd": ["--optim_mom", "0.9"],
    "er": [*BUFFER, "--replay_weight", "tasks"],
    "dgc_er": [*BUFFER, "--dgc_alpha", "0.3", "--dgc_m", "3"],
    "dgc_derpp": [*BUFFER, "--dgc_alpha", "0.3", "--dgc_estimator", "closed", "--alpha", "0.1", "--beta", "0.5"],
    "dgc_dynamic_er": [*BUFFER, "--dgc_alpha", "0.3", "--dgc_m", "3"],
    "xder": BUFFER,
    "gcr": [*BUFFER, "--alpha", "0.1", "--beta", "0.5"],
    "hal": BUFFER,
    "icarl": BUFFER,
    "aop": [],
    "ssvrg": BUFFER,
}


def hand_over(tmp_path: Path, model: str, *flags: str) -> str:
    """The file of a run of two tasks."""
    saved = tmp_path / f"saved-{model}"
    more = ["--stop_after", "2", "--savecheck", "last", "--checkpoint_path", str(saved)]
    run(tmp_path / "first", "--n_epochs", "1", *flags, *more, model=model)
    (file,) = saved.iterdir()
    return str(file)


def third_task(tmp_path: Path, model: str, file: str, *flags: str) -> Any:
    more = ["--loadcheck", file, "--start_from", "2", "--stop_after", "3"]
    return run(tmp_path / "second", "--n_epochs", "1", *flags, *more, model=model)[1]


@pytest.mark.slow
@pytest.mark.parametrize("model", METHODS)
def test_the_same_run_goes_on_as_if_nothing_had_happened(model: str, tmp_path: Path, caplog: Any) -> None:
    flags = METHODS[model]
    _, whole, _ = run(tmp_path / "whole", "--n_epochs", "1", *flags, "--stop_after", "3", model=model)
    with caplog.at_level(logging.WARNING):
        continued = third_task(tmp_path, model, hand_over(tmp_path, model, *flags), *flags)
    assert "taken over" not in caplog.text
    assert_same(pack(continued), pack(whole))


@pytest.mark.numeric
@pytest.mark.parametrize("change", [["--lr", "0.02"], ["--batch_size", "20"]])
def test_with_other_settings_dgc_begins_with_the_gradient_of_the_weights_handed_over(
    change: list[str], tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Γ' at the start of a task is the mean gradient of all earlier images there, so that can be said exactly."""
    from models.dgc_er import DgcEr

    errors = []

    def gradients(self: Any, images: Any, labels: Any) -> Any:
        """Neither augmentation nor BatchNorm: all views of them are the same."""
        outputs = self.net(self.normalization_transform(to_unit_float(images)))
        return torch.autograd.grad(self.loss(outputs, labels), list(self.net.parameters()))

    def begun(self: Any, dataset: Any) -> None:
        original(self, dataset)
        if self.current_task == 2:
            true = gradients(self, *(torch.cat(parts) for parts in zip(*self.past, strict=True)))
            stored = gradients(self, self.buffer.examples, self.buffer.labels)
            found = [self.dgc.direction()[name] for name, _ in self.net.named_parameters()]
            errors.extend((c - g + m).abs().max() for c, g, m in zip(found, true, stored, strict=True))
        images = dataset.train_loader.dataset
        self.past = [*getattr(self, "past", []), (images.batch(slice(None)), images.targets)]

    original = DgcEr.meta_begin_task
    flags = METHODS["dgc_er"]
    file = hand_over(tmp_path, "dgc_er", *flags)
    monkeypatch.setattr(DgcEr, "meta_begin_task", begun)
    with caplog.at_level(logging.WARNING):
        third_task(tmp_path, "dgc_er", file, *flags, *change)
    assert f"only weights and buffer are taken over (other settings: {change[0][2:]}: " in caplog.text
    assert max(errors) < 1e-5


def test_the_first_task_of_another_run_is_not_taken_for_this_one(tmp_path: Path, caplog: Any) -> None:
    file = hand_over(tmp_path, "er", *BUFFER)
    with caplog.at_level(logging.WARNING):
        run(tmp_path / "b", "--n_epochs", "1", *BUFFER, "--loadcheck", file, "--start_from", "3", model="er")
    assert "(it is of --start_from 2, and this run has 3)" in caplog.text


def test_a_coreset_of_another_run_comes_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from models.gcr import Gcr

    weights = []

    def begun(self: Any, dataset: Any) -> None:
        weights.append(self.weights.clone())
        self.weights.mul_(0.5)  # as a choice may weigh them; what fits into its block keeps its weights

    monkeypatch.setattr(Gcr, "begin_task", begun)
    file = hand_over(tmp_path, "gcr", *METHODS["gcr"])
    third_task(tmp_path, "gcr", file, *METHODS["gcr"], "--lr", "0.02")
    assert len(weights) == 5 and torch.equal(weights[-1], torch.ones(50))  # though they were halved before the load
