"""DGC on a network that grows: against the equations, from task to task, and what it must leave alone."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dgc_helpers import (
    DGC,
    ESTIMATORS,
    EXACT,
    FLAGS,
    STEPS,
    ClosedComparison,
    ReleasedComparison,
    SampledComparison,
    begun,
    build,
    flat,
    state,
)
from helpers import RESULT_FILES, assert_same_run, run, uncapturable
from method_helpers import RESNET, Killed, kill_at
from torch import Tensor

import models.dgc_dynamic_er as module
from models.dgc_dynamic_er import DgcDynamicEr
from models.utils.dgc_reference import Batch, Closed, Released, Sampled, State
from utils.cli.parse import parse_args
from utils.errors import UsageError
from utils.training import train

pytestmark = pytest.mark.numeric


# -- against the equations -------------------------------------------------------------------------------------------


class Growing:
    """Makes a twin grow: what it knew about old rows × old columns of the head stays, all else is unknown."""

    net: Any

    def g(self, batch: Batch, theta: State) -> Tensor:
        self.net.load_state_dict({name: value.double() for name, value in theta.items()})
        self.net.train(batch.training)
        outputs = self.net(batch.images.double())[batch.rows, batch.columns]
        learning = {n: p for n, p in self.net.named_parameters() if p.requires_grad and not n.startswith("auxiliary.")}
        found = torch.autograd.grad(F.cross_entropy(outputs, batch.labels), list(learning.values()))
        gradients = dict(zip(learning, found, strict=True))
        return torch.cat([gradients.get(n, torch.zeros_like(p)).reshape(-1) for n, p in self.net.named_parameters()])

    def grow(self, net: Any) -> None:
        self.old, self.net = self.net, copy.deepcopy(net).double()

    def carried(self, vector: Any) -> Tensor:
        """A vector of the old network as one of the new."""
        parts, start = {}, 0
        for name, p in self.old.named_parameters():
            parts[name] = vector[start : start + p.numel()].view(p.shape)
            start += p.numel()
        new = {name: torch.zeros_like(p) for name, p in self.net.named_parameters()}
        rows, columns = parts["classifier.weight"].shape
        for row in range(rows):
            new["classifier.bias"][row] = parts["classifier.bias"][row]
            for column in range(columns):
                new["classifier.weight"][row, column] = parts["classifier.weight"][row, column]
        return torch.cat([value.reshape(-1) for value in new.values()]).detach()


class GrowingSampled(Growing, Sampled):
    pass


class GrowingClosed(Growing, Closed):
    pass


class GrowingReleased(Growing, Released):
    pass


class PastShare:
    """x̄ is the images of past classes in a batch, and w their share of it."""

    model: Any

    def weights(self) -> tuple[float, float]:
        labels = self.model.dgc_stream[2].tolist()
        return 0.0, sum(label < self.model.n_past_classes for label in labels) / len(labels)


class SampledGrowth(PastShare, SampledComparison):
    def begin_task(self) -> None:
        if self.twin.past:
            passes = self.view.last("buffer")
            calibrator = self.twin.gamma - self.twin.G(passes, self.twin.theta_tilde)
            self.twin.grow(self.model.net)
            self.twin.gamma = self.twin.G(passes, self.theta()) + self.twin.carried(calibrator)
        else:
            self.twin.grow(self.model.net)
        super().begin_task()


class ClosedGrowth(PastShare, ClosedComparison):
    def begin_task(self) -> None:
        self.twin.grow(self.model.net)
        if self.twin.past:
            self.twin.calibrator = self.twin.carried(self.twin.calibrator)


class ReleasedGrowth(PastShare, ReleasedComparison):
    def begin_task(self) -> None:
        """θ̃ becomes the grown network; the stage, its sum included, continues."""
        self.twin.grow(self.model.net)
        if self.twin.n:
            self.twin.gamma, self.twin.theta_tilde = self.twin.carried(self.twin.gamma), self.theta()
            if self.twin.count:
                self.twin.record = self.twin.carried(self.twin.record)
            assert self.dgc.stage_step == self.twin.count


GROWTH: dict[str, tuple[Any, Any]] = {
    "sampled": (SampledGrowth, GrowingSampled),
    "closed": (ClosedGrowth, GrowingClosed),
    "released": (ReleasedGrowth, GrowingReleased),
}
VIEWS = [("sampled", "same"), ("sampled", "plain"), ("closed", "plain"), ("released", None)]


def compared(tmp_path: Path, estimator: str, view: str | None, tasks: int, tolerance: float = EXACT) -> Any:
    flags = ["--dgc_estimator", estimator, "--stop_after", str(tasks), *(["--dgc_view", view] if view else [])]
    model, dataset, args = build(tmp_path, *flags, model="dgc_dynamic_er", double=True)
    comparison, twin = GROWTH[estimator]
    found = comparison(model, twin(model.net), tolerance)
    train(model, dataset, args)
    assert len(model.net.extractors) == found.tasks == tasks
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "view"), VIEWS)
def test_every_step_agrees_with_the_reference(estimator: str, view: str | None, tmp_path: Path) -> None:
    found = compared(tmp_path, estimator, view, tasks=3)
    assert found.corrected >= STEPS + 2  # a batch without any past image stays as it is


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "view"), VIEWS[:3])
def test_without_looking_at_labels(estimator: str, view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the share w lies on the device, in single precision; where it is 0 nothing is added."""
    monkeypatch.setattr(module, "at_hand", lambda labels: False)
    assert compared(tmp_path, estimator, view, tasks=2, tolerance=1e-6).corrected


def test_images_of_past_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = begun(tmp_path, model="dgc_dynamic_er", steps=1)  # two classes are past
    inputs, plain, labels = torch.rand(4, 1, 8, 8), torch.rand(4, 1, 8, 8), torch.tensor([0, 3, 1, 2])
    model.dgc_stream = (inputs, plain, labels)
    draw = model.dgc_draw()
    assert torch.equal(draw.images, inputs[[0, 2]]) and draw.labels.tolist() == [0, 1]
    assert torch.equal(draw.stored()[0], plain[[0, 2]]) and model.dgc_replay_weight() == 0.5
    monkeypatch.setattr(module, "at_hand", lambda labels: False)
    draw = model.dgc_draw()
    assert draw.images is inputs and draw.labels.tolist() == [0, -100, 1, -100] and model.dgc_replay_weight() == 0.5
    model.dgc_stream = (inputs[1::2], plain[1::2], labels[1::2])
    assert model.dgc_draw().labels.tolist() == [3, 2]  # none: a mean over nothing would be NaN


# -- from task to task -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("estimator", "view"), VIEWS[1:])
def test_right_after_growth_everything_new_has_the_gradient_of_the_base(
    estimator: str, view: str | None, tmp_path: Path
) -> None:
    """A batch that holds the whole buffer: averaged over draws, the corrected gradient is the base's on what is new."""
    flags = ["--dgc_estimator", estimator, "--dgc_alpha", "1", *(["--dgc_view", view] if view else [])]
    model, _ = begun(tmp_path, *flags, model="dgc_dynamic_er", double=True)
    images, labels = model.buffer.get_all_data()
    model.dgc_stream = (model.normalization_transform(images), images, labels)
    added = sum(flat(model, vector) * factor for vector, factor in model.dgc.correction(1.0))
    old_rows, old_columns = model.n_past_classes, model.net.width
    sizes = {name: p.shape for name, p in model.net.named_parameters()}
    parts = dict(zip(sizes, added.split([shape.numel() for shape in sizes.values()]), strict=True))
    head = parts.pop("classifier.weight").view(sizes["classifier.weight"])
    bias = parts.pop("classifier.bias")
    assert head[:old_rows, :old_columns].norm() > 0
    scale = added.norm() * EXACT
    assert head[old_rows:].norm() <= scale and head[:, old_columns:].norm() <= scale
    assert bias[old_rows:].norm() <= scale and all(part.norm() <= scale for part in parts.values())


def test_the_snapshot_shares_what_is_frozen(tmp_path: Path) -> None:
    model, dataset = begun(tmp_path, model="dgc_dynamic_er")
    held, live = model.dgc.snapshot, model.net
    assert held.extractors[0] is live.extractors[0] and held.extractors[1] is not live.extractors[1]
    before = state(held)
    for batch, _ in zip(dataset.train_loader, range(2), strict=False):  # m = 3: θ̃ stays
        model.meta_observe(*batch)
    assert all(torch.equal(value, before[name]) for name, value in state(held).items())
    assert not torch.equal(state(live)["extractors.1.conv1.weight"], before["extractors.1.conv1.weight"])


@pytest.mark.parametrize(("part", "in_head", "in_body"), [("head", True, False), ("body", False, True)])
def test_only_the_named_part_is_corrected(part: str, in_head: bool, in_body: bool, tmp_path: Path) -> None:
    flags = ["--dgc_params", part, "--dgc_estimator", "sampled"]
    model, _ = begun(tmp_path, *flags, model="dgc_dynamic_er", steps=1)
    assert ("classifier.weight" in model.dgc.gamma) == in_head
    assert ("extractors.1.conv1.weight" in model.dgc.gamma) == in_body
    assert not any(name.startswith("auxiliary") for name in model.dgc.gamma)


def test_batches_of_its_own_are_composed_like_the_bases(tmp_path: Path) -> None:
    model, dataset = begun(tmp_path, model="dgc_dynamic_er", steps=1)
    task, stored = dataset.train_loader.dataset, len(model.buffer)
    assert len(task) == task.n_own + stored  # the base trains on both
    stream, replayed = model.dgc_mix()
    assert stream + replayed == 16 and replayed == round(16 * stored / len(task))
    passes = model.dgc_view.buffer()
    assert sum(len(part) for part in passes) == stored
    for part in passes:
        assert len(part.inputs) == stream + len(part) and part.terms[0].labels.max() < model.n_past_classes


# -- whole runs ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_alpha_zero_is_the_base_method_bit_for_bit(estimator: str, tmp_path: Path) -> None:
    flags = [*FLAGS, "--stop_after", "3"]
    _, plain, a = run(tmp_path / "base", *flags, model="dynamic_er")
    dgc = ["--dgc_m", "2", "--dgc_estimator", estimator]
    _, zero, b = run(tmp_path / "zero", *flags, *dgc, "--dgc_alpha", "0", model="dgc_dynamic_er")
    _, some, _ = run(tmp_path / "some", *flags, *dgc, "--dgc_alpha", "0.5", model="dgc_dynamic_er")
    assert all(torch.equal(x, y) for x, y in zip(plain.net.parameters(), zero.net.parameters(), strict=True))
    assert torch.equal(plain.buffer.examples, zero.buffer.examples)
    for name in RESULT_FILES[:-1]:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    assert not torch.equal(some.net.extractors[2].fc1.weight, zero.net.extractors[2].fc1.weight)
    assert torch.equal(some.net.extractors[0].fc1.weight, zero.net.extractors[0].fc1.weight)  # nothing in task 1
    assert uncapturable(some) == []


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_resume_in_the_middle_of_a_stage_is_exact(estimator: str, tmp_path: Path) -> None:
    """Killed in tasks 2 and 3 (of 7 steps each); the last checkpoint is inside a stage each time."""
    flags = [*FLAGS, *DGC, "--stop_after", "3", "--dgc_estimator", estimator, "-O", "1"]
    flags += RESNET if estimator == "sampled" else []
    _, _, straight = run(tmp_path / "straight", *flags, model="dgc_dynamic_er")
    for step in (11, 7):
        with pytest.MonkeyPatch.context() as patch:
            kill_at(DgcDynamicEr, step, patch)
            with pytest.raises(Killed):
                run(tmp_path / "broken", *flags, "--checkpoint_every", "2", model="dgc_dynamic_er")
    _, model, resumed = run(tmp_path / "broken", *flags, model="dgc_dynamic_er")
    assert_same_run(resumed, straight)
    if estimator == "sampled":  # sharing survives, too
        assert model.dgc.snapshot.extractors[0] is model.net.extractors[0]


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["sampled", "closed"])
def test_diagnostics_and_learning(estimator: str, tmp_path: Path) -> None:
    tuned = ["--lr", "0.05", "--optim_wd", "0.02", "--n_epochs", "5"]
    flags = ["--buffer_size", "50", *tuned, "--dgc_estimator", estimator, "--dgc_m", "20", "--dgc_diagnostics", "50"]
    summary, _, directory = run(tmp_path, *flags, model="dgc_dynamic_er")
    assert summary["class_il"]["FAA"] > 75  # measured: 89 and 92; fine-tuning has 19
    events = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    measured = [event for event in events if event["event"] == "diagnostics"]
    assert len(measured) == 8 and all(event["buffer_error"] > 0 and "alpha_star" in event for event in measured)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dgc_current", "1"], "--dgc_current 1 needs batches of the current task alone"),
        (["--task_free", "1"], "--task_free 1: dgc.dynamic.er needs task boundaries"),
        (["--buffer_size", "9"], "--buffer_size 9 has no room for an image of each of the 10 classes"),
    ],
)
def test_refusals(flags: list[str], message: str) -> None:
    flags = flags if "--buffer_size" in flags else [*flags, "--buffer_size", "40"]
    with pytest.raises(UsageError, match=message):
        parse_args(["--model", "dgc_dynamic_er", *flags])


def test_the_presets_are_the_bases() -> None:
    args = parse_args("--model dgc_dynamic_er --dataset seq-cifar100 --buffer_size 500 --model_config best".split())
    assert (args.lr, args.batch_size, args.optim_wd_later) == (0.1, 128, 2e-4)
    assert (args.dgc_alpha, args.dgc_m, args.dgc_estimator, args.minibatch_size) == (1e-3, 200, "sampled", 128)
