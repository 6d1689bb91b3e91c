"""DGC on a network that grows: against the equations, carried from task to task, and what it must leave alone."""

from __future__ import annotations

import copy
import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dgc_reference import DGC, ESTIMATORS, FLAGS, Batch, Closed, DoubleResNet, Released, Sampled, State
from helpers import RESULT_FILES, assert_same_run, run
from method_helpers import Killed, kill_at
from torch import Tensor

import models.dgc_dynamic_er as module
from main import initialize
from models.dgc_dynamic_er import DgcDynamicEr, past_images
from models.utils.dgc_mixin import gradient
from utils.errors import UsageError
from utils.parse import parse_args
from utils.state import uncapturable
from utils.training import train

RESNET = ["--backbone", "resnet18", "--num_filters", "2"]


def build(tmp_path: Path, *flags: str, double: bool = False) -> tuple[Any, Any, Namespace]:
    line = ["--model", "dgc_dynamic_er", "--seed", "0", "--base_path", str(tmp_path), *FLAGS, *RESNET, *DGC, *flags]
    model, dataset, args = initialize(parse_args(line))
    if double:
        model.net.extractors[0].__class__ = DoubleResNet
        model.net.double()
    return model, dataset, args


def state(net: Any) -> State:
    return {name: value.clone() for name, value in net.state_dict().items()}


# -- against the equations -------------------------------------------------------------------------------------------


class Growing:
    """Makes a twin grow: its vectors are [newest extractor, rows of the head, biases], in one piece."""

    net: Any

    def g(self, batch: Batch, theta: State) -> Tensor:
        self.net.load_state_dict({name: value.double() for name, value in theta.items()})
        self.net.eval()
        self.net.zero_grad()
        F.cross_entropy(self.net(batch[0].double()), batch[1]).backward()
        head = self.net.classifier
        parts = [*self.net.extractors[-1].parameters(), head.weight, head.bias]
        return torch.cat([p.grad.reshape(-1) for p in parts])

    def grow(self, net: Any) -> None:
        self.net, old = copy.deepcopy(net).double(), self.net.classifier
        for name in ("gamma", "record"):
            if isinstance(getattr(self, name, None), Tensor):
                setattr(self, name, self.carried(getattr(self, name), old.out_features, old.in_features))

    def carried(self, vector: Tensor, outputs: int, inputs: int) -> Tensor:
        head = self.net.classifier
        body = vector[: len(vector) - outputs * inputs - outputs]
        weight, bias = torch.zeros_like(head.weight), torch.zeros_like(head.bias)
        for row in range(outputs):
            bias[row] = vector[len(body) + outputs * inputs + row]
            for column in range(inputs):
                weight[row, column] = vector[len(body) + row * inputs + column]
        return torch.cat([body, weight.reshape(-1), bias]).detach()


class GrowingSampled(Growing, Sampled):
    pass


class GrowingClosed(Growing, Closed):
    pass


class GrowingReleased(Growing, Released):
    pass


class Spy:
    """Watches a model's steps: what the hook adds to the gradients, and that it touches nothing else."""

    def __init__(self, model: Any, twin: Any, tolerance: float, monkeypatch: pytest.MonkeyPatch):
        self.model, self.twin, self.tolerance, self.corrected = model, twin, tolerance, 0
        self.patch = lambda name, function: monkeypatch.setattr(model, name, function)
        before_step, begin = model._dgc_before_step, model.begin_task

        def began(dataset: Any) -> None:
            begin(dataset)
            self.twin.grow(model.net)
            self.began()

        self.patch("begin_task", began)
        self.patch("_dgc_before_step", lambda optimizer: self.step(lambda: before_step(optimizer)))

    def began(self) -> None: ...

    def expected(self) -> Any:
        raise NotImplementedError

    def step(self, add_correction: Callable[[], None]) -> None:
        net = self.model.net
        expected = self.expected()
        old = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
        untouched = self.untouched()
        add_correction()
        assert all(torch.equal(a, b) for a, b in zip(untouched, self.untouched(), strict=True))
        calibrated = [f"extractors.{len(net.extractors) - 1}.", "classifier."]
        added = {name: p.grad - old[name] for name, p in net.named_parameters() if name in old}
        parts = [added[name] for prefix in calibrated for name in added if name.startswith(prefix)]
        others = [value for name, value in added.items() if not name.startswith(tuple(calibrated))]
        assert not any(value.any() for value in others)  # the auxiliary head; frozen extractors have no gradient
        assert all((p.grad is None) != p.requires_grad for p in net.parameters())
        difference = torch.cat([part.reshape(-1) for part in parts]) - expected
        assert difference.norm() <= (0 if isinstance(expected, float) else self.tolerance * expected.norm())
        self.corrected += not isinstance(expected, float)

    def untouched(self) -> list[Tensor]:
        """Parameters, BatchNorm statistics, modes, and every random generator of the base."""
        net, streams = self.model.net, self.model.dataset.streams.state_dict()
        modes = torch.tensor([module.training for module in net.modules()])
        generators = [torch.get_rng_state(), *(streams[name] for name in sorted(streams))]
        return [modes, *generators, *state(net).values()]

    def xbar(self) -> tuple[Batch, float] | None:
        """The images of past classes in the batch, and their share."""
        images, labels = self.model._dgc_stream
        rows = [i for i, label in enumerate(labels) if label < self.model.n_past_classes]
        ready = self.model.normalization_transform(images)
        return ((ready[rows], labels[rows]), len(rows) / len(labels)) if rows else None

    def task(self) -> list[Batch]:
        """T_t: the images of the task, and none of memory."""
        batches = list(self.model._dgc_task_batches())
        labels = torch.cat([labels for _, labels in batches])
        assert len(labels) in range(280, 300) and labels.min() == self.model.n_past_classes
        return batches


class SampledSpy(Spy):
    def __init__(self, model: Any, tolerance: float, monkeypatch: pytest.MonkeyPatch):
        super().__init__(model, GrowingSampled(model.net), tolerance, monkeypatch)
        move, end = model._dgc_move_gamma, model._dgc_end_task

        def moved(batches: Any) -> None:
            if model._dgc_snapshot:
                self.twin.end_stage(batches, state(model.net), state(model._dgc_snapshot[0]))
            move(batches)

        def ended(kept: Any) -> None:
            end(kept)
            self.twin.end_task(self.task(), state(model.net))

        self.patch("_dgc_move_gamma", moved)
        self.patch("_dgc_end_task", ended)

    def expected(self) -> Any:
        if not self.twin.past or (found := self.xbar()) is None:
            return 0.0
        xbar, weight = found
        theta_tilde = state(self.model._dgc_snapshot[0])
        return self.twin.correction(xbar, theta_tilde, weight, self.model.args.dgc_alpha)


class ClosedSpy(Spy):
    def __init__(self, model: Any, tolerance: float, monkeypatch: pytest.MonkeyPatch):
        super().__init__(model, GrowingClosed(model.net), tolerance, monkeypatch)
        end = model._dgc_end_task

        def ended(kept: Any) -> None:
            end(kept)
            self.twin.end_closed_task(kept, self.task(), state(model.net))

        self.patch("_dgc_end_task", ended)

    def began(self) -> None:
        if self.twin.past:
            self.twin.begin_task(self.model._dgc_buffer_batches(), state(self.model.net))

    def expected(self) -> Any:
        found = self.xbar()
        return self.twin.closed_correction(found[1], self.model.args.dgc_alpha) if found else 0.0


class ReleasedSpy(Spy):
    def __init__(self, model: Any, tolerance: float, monkeypatch: pytest.MonkeyPatch):
        super().__init__(model, GrowingReleased(model.net), tolerance, monkeypatch)
        end = model._dgc_end_released

        def ended() -> None:
            end()
            self.task()
            batches = list(model._dgc_task_batches(model.args.batch_size))
            self.twin.end_task(batches, state(model._dgc_snapshot[0]))

        self.patch("_dgc_end_released", ended)

    def began(self) -> None:
        """θ̃ is the grown network; the stage, its sum included, goes on."""
        if self.twin.n:
            held, live = state(self.model._dgc_snapshot[0]), state(self.model.net)
            assert held.keys() == live.keys() and all(torch.equal(held[name], live[name]) for name in live)
            assert self.model._dgc_stage_step == self.twin.count

    def expected(self) -> Any:
        model, twin = self.model, self.twin
        if not twin.n:
            return 0.0
        generator = model._dgc_generator.get_state()  # let the twin see the rows that the hook is about to draw
        raw = model._dgc_rows(model._dgc_draw())
        model._dgc_generator.set_state(generator)
        assert raw[0].min() >= 0 and raw[0].max() <= 1  # not normalised
        twin.difference(raw, state(model.net), state(model._dgc_snapshot[0]), model.args.dgc_m)
        return model.args.dgc_alpha * twin.gamma


SPIES = {"sampled": SampledSpy, "closed": ClosedSpy, "released": ReleasedSpy}


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_step_agrees_with_the_reference(estimator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--dgc_estimator", estimator, "--stop_after", "3"]
    model, dataset, args = build(tmp_path, *flags, double=True)
    spy = SPIES[estimator](model, 1e-9, monkeypatch)
    train(model, dataset, args)
    assert len(model.net.extractors) == 3
    assert spy.corrected == (24 if estimator == "released" else 22)  # two short last batches have no past image


@pytest.mark.parametrize("estimator", ["sampled", "closed"])
def test_without_looking_at_labels(estimator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the share w lies on the device, in single precision; where it is 0 nothing is added."""
    monkeypatch.setattr(module, "at_hand", lambda labels: False)
    model, dataset, args = build(tmp_path, "--dgc_estimator", estimator, "--stop_after", "2", double=True)
    spy = SPIES[estimator](model, 1e-6, monkeypatch)
    train(model, dataset, args)
    assert spy.corrected == 10  # of 12


def test_images_of_past_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = torch.rand(4, 1, 2, 2), torch.tensor([0, 3, 1, 2])
    chosen, kept = past_images(images, labels, 2)
    assert torch.equal(chosen, images[[0, 2]]) and kept.tolist() == [0, 1]
    monkeypatch.setattr(module, "at_hand", lambda labels: False)
    chosen, kept = past_images(images, labels, 2)
    assert chosen is images and kept.tolist() == [0, -100, 1, -100]
    assert past_images(images[1::2], labels[1::2], 2)[1].tolist() == [3, 2]  # none: a mean over nothing would be NaN


# -- from task to task -----------------------------------------------------------------------------------------------


def second_task(tmp_path: Path, *flags: str, steps: int = 2) -> tuple[Any, dict[str, Tensor]]:
    """A model after the begin of its second task, and Γ' at the end of the first one."""
    model, dataset, _ = build(tmp_path, *flags)
    loader, _ = dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    for batch, _ in zip(loader, range(steps), strict=False):
        model.meta_observe(*batch)
    model.meta_end_task(dataset)
    gamma = {name: value.clone() for name, value in model._dgc_gamma.items()}
    dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    return model, gamma


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gamma_is_carried_entry_by_entry(estimator: str, tmp_path: Path) -> None:
    model, before = second_task(tmp_path, "--dgc_estimator", estimator)
    width = model.net.width
    body = {name.removeprefix("extractors.0."): value for name, value in before.items() if "classifier" not in name}
    assert {name for name in before if "extractors.0." not in name} == {"classifier.weight", "classifier.bias"}
    assert before["classifier.weight"].shape == (2, width) and before["classifier.weight"].any()
    expected = {f"extractors.1.{name}": value for name, value in body.items()}
    weight, bias = torch.zeros(4, 2 * width), torch.zeros(4)
    weight[:2, :width], bias[:2] = before["classifier.weight"], before["classifier.bias"]
    expected |= {"classifier.weight": weight, "classifier.bias": bias}
    if estimator != "closed":
        assert model._dgc_gamma.keys() == expected.keys()  # neither the auxiliary head nor what is frozen
        assert all(torch.equal(value, expected[name]) for name, value in model._dgc_gamma.items())
        return
    # c_t = Γ' − G(M_t;θ), at the parameters of the grown network.
    images, labels = model.buffer.get_all_data(model.normalization_transform)
    found = gradient(model.net, F.cross_entropy, (images, labels), list(expected))
    assert model._dgc_calibrator.keys() == expected.keys() and not model._dgc_gamma
    for (name, value), g in zip(expected.items(), found, strict=True):
        assert torch.allclose(model._dgc_calibrator[name], value - g, atol=1e-6), name


def test_the_sum_of_the_released_code_is_carried_too(tmp_path: Path) -> None:
    model, _ = second_task(tmp_path, "--dgc_estimator", "released")
    batch = next(iter(model.dataset.train_loader))
    model.meta_observe(*batch)
    model.meta_observe(*batch)  # 2 of m = 3 differences
    record = {name: value.clone() for name, value in model._dgc_record.items()}
    assert record["classifier.weight"].abs().sum() > 0
    model.meta_end_task(model.dataset)
    model.dataset.get_data_loaders()
    model.meta_begin_task(model.dataset)
    carried = model._dgc_record
    assert model._dgc_stage_step == 2 and set(map(len, (carried, record))) == {len(model._dgc_names())}
    for name, value in record.items():
        new = carried[name.replace("extractors.1.", "extractors.2.")]
        assert torch.equal(new[tuple(slice(size) for size in value.shape)], value)
        assert new.abs().sum() == pytest.approx(float(value.abs().sum()), rel=1e-5)  # zero elsewhere


def test_the_snapshot_shares_what_is_frozen(tmp_path: Path) -> None:
    model, _ = second_task(tmp_path)
    held, live = model._dgc_snapshot[0], model.net
    assert held.extractors[0] is live.extractors[0] and held.extractors[1] is not live.extractors[1]
    before = state(held)
    for batch, _ in zip(model.dataset.train_loader, range(2), strict=False):  # m = 3: θ̃ stays
        model.meta_observe(*batch)
    assert all(torch.equal(value, before[name]) for name, value in state(held).items())
    assert not torch.equal(state(live)["extractors.1.conv1.weight"], before["extractors.1.conv1.weight"])


@pytest.mark.parametrize(("part", "in_head", "in_body"), [("head", True, False), ("body", False, True)])
def test_only_the_named_part_is_corrected(part: str, in_head: bool, in_body: bool, tmp_path: Path) -> None:
    model, _ = second_task(tmp_path, "--dgc_params", part, "--dgc_estimator", "closed", steps=1)
    assert ("classifier.weight" in model._dgc_calibrator) == in_head
    assert ("extractors.1.conv1.weight" in model._dgc_calibrator) == in_body
    assert not any(name.startswith("auxiliary") for name in model._dgc_calibrator)


# -- whole runs ------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_resume_in_the_middle_of_a_stage_is_exact(estimator: str, tmp_path: Path) -> None:
    """Killed in tasks 2 and 3 (of 5, 6 and 6 steps); the last checkpoint is one step into a stage each time."""
    flags = [*FLAGS, *DGC, "--stop_after", "3", "--dgc_estimator", estimator, "-O", "1"]
    flags[flags.index("--n_epochs") + 1] = "1"
    flags += RESNET if estimator == "sampled" else []
    _, _, straight = run(tmp_path / "straight", *flags, model="dgc_dynamic_er")
    for step in (7, 7):
        with pytest.MonkeyPatch.context() as patch:
            kill_at(DgcDynamicEr, step, patch)
            with pytest.raises(Killed):
                run(tmp_path / "broken", *flags, "--checkpoint_every", "2", model="dgc_dynamic_er")
    _, model, resumed = run(tmp_path / "broken", *flags, model="dgc_dynamic_er")
    assert_same_run(resumed, straight)
    if estimator == "sampled":  # sharing survives, too
        assert model._dgc_snapshot[0].extractors[0] is model.net.extractors[0]


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
