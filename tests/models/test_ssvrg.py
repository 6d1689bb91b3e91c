"""SSVRG: every step against its equation, what the extra passes leave alone, variance, and exact resume."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import dgc_logistic as convex
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import run, uncapturable
from method_helpers import RESNET, assert_exact_resume, begin_task, build, record_draws
from torch import Tensor, nn

from backbone.ResNetBlock import ResNet
from models.ssvrg import Ssvrg
from utils.cli.parse import parse_args
from utils.errors import UsageError
from utils.training import train

pytestmark = pytest.mark.numeric

BUFFER = ["--buffer_size", "50"]
# Two epochs of 5 steps: with m = 4 stages end inside tasks, and a partial one is left at their ends.
SHORT = ["--buffer_size", "40", "--batch_size", "64", "--minibatch_size", "16", "--n_epochs", "2", "--lr", "0.02"]
Batch = tuple[Tensor, Tensor]
State = dict[str, Tensor]


class DoubleResNet(ResNet):
    """For the comparison in float64: takes the float32 batches of the pipeline."""

    def forward(self, x: Tensor, returnt: Any = "out") -> Any:
        return super().forward(x.double(), returnt)


def state(net: nn.Module) -> State:
    return {name: value.clone() for name, value in net.state_dict().items()}


class Twin:
    """The equation written literally: one flat vector in float64, one gradient at a time, its own θ̃."""

    def __init__(self, net: nn.Module, full_mode: str, current: bool):
        self.net, self.full_mode, self.current = copy.deepcopy(net), full_mode, current
        self.past = 0  # N_past

    def g(self, batch: Batch, theta: State, mode: str = "train") -> Tensor:
        self.net.load_state_dict(theta)
        self.net.train(mode == "train")
        self.net.zero_grad()
        F.cross_entropy(self.net(batch[0]), batch[1]).backward()
        return torch.cat([p.grad.reshape(-1) for p in self.net.parameters()])

    def G(self, batches: list[Batch], theta: State) -> Tensor:
        total = sum(len(labels) * self.g((images, labels), theta, self.full_mode) for images, labels in batches)
        return total / sum(len(labels) for _, labels in batches)

    def begin_stage(self, task: list[Batch], buffer: list[Batch], theta: State) -> None:
        self.theta_tilde = theta
        self.v = self.G(task, theta) if self.current else None
        self.mu = self.G(buffer, theta) if self.past else None

    def step(self, n_task: int, x: Batch, xbar: Batch | None, theta: State) -> Tensor:
        of_task = self.g(x, theta)
        if self.current:
            of_task = of_task - self.g(x, self.theta_tilde) + self.v
        if xbar is None:
            return of_task
        of_buffer = self.g(xbar, theta) - self.g(xbar, self.theta_tilde) + self.mu
        n = self.past + n_task
        return n_task / n * of_task + self.past / n * of_buffer


class Spy:
    """Watches a run, and lets the twin make every step as well."""

    def __init__(self, model: Any, monkeypatch: pytest.MonkeyPatch):
        self.model, self.steps, self.stages, self.drawn = model, 0, [], {}
        self.twin = Twin(model.net, model.args.ssvrg_full, model.args.ssvrg_current)
        self.observe, self.begin_stage, self.end_task = model.observe, model.begin_stage, model.end_task
        self.get_data = model.buffer.get_data
        for name in ("observe", "end_task", "begin_stage"):
            monkeypatch.setattr(model, name, getattr(self, f"watched_{name}"))
        for name in ("task_batches", "buffer_batches"):
            monkeypatch.setattr(model, name, self.recorded(name, getattr(model, name)))
        monkeypatch.setattr(model.buffer, "get_data", self.watched_get_data)

    def recorded(self, name: str, batches: Any) -> Any:
        def record() -> list[Batch]:
            self.drawn[name] = list(batches())
            return self.drawn[name]

        return record

    def watched_get_data(self, *args: Any, **kwargs: Any) -> Any:
        found = self.get_data(*args, **kwargs)
        if "transform" in kwargs:  # the replay batch of the step; the others are read by index
            self.xbar = found
        return found

    def watched_begin_stage(self) -> None:
        self.drawn = {}
        self.stages.append((self.model.current_task, self.model.task_iteration))
        theta = state(self.model.net)
        self.begin_stage()
        assert_same_state(self.model.net, theta)
        self.twin.begin_stage(self.drawn.get("task_batches", []), self.drawn.get("buffer_batches", []), theta)

    def watched_observe(self, inputs: Tensor, labels: Tensor, *rest: Any, **kwargs: Any) -> Tensor:
        self.xbar = None
        before = state(self.model.net)
        result = self.observe(inputs, labels, *rest, **kwargs)
        n_task = len(self.model.dataset.train_loader.dataset)
        expected = self.twin.step(n_task, (inputs, labels), self.xbar, before)
        found = torch.cat([p.grad.reshape(-1) for p in self.model.net.parameters()])
        assert (found - expected).norm() <= 1e-9 * expected.norm()
        self.steps += 1
        return result

    def watched_end_task(self, dataset: Any) -> None:
        self.end_task(dataset)
        self.twin.past += len(dataset.train_loader.dataset)


def assert_same_state(net: nn.Module, expected: State) -> None:
    for name, value in net.state_dict().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("frozen", [[], ["--body_lr_scale", "0"]], ids=["free", "frozen"])
def test_the_pair_cancels_at_the_snapshot(frozen: list[str], tmp_path: Path) -> None:
    """At θ = θ̃ the corrected gradient is the full one, whose BatchNorm a frozen body has in eval mode."""
    model = build("ssvrg", tmp_path, *BUFFER, *RESNET, *frozen)
    for batch in begin_task(model)[:3]:
        model.observe(*batch)
    model.meta_end_task(model.dataset)
    batch = begin_task(model)[0]
    model.observe(*batch)
    for name, p in model.net.named_parameters():
        if p.requires_grad:
            torch.testing.assert_close(p.grad, model.full_gradient[name], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "current", "n_tasks"), [("train", 1, 3), ("train", 0, 2), ("eval", 1, 2)])
def test_every_step_is_the_equation(
    mode: str, current: int, n_tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of different sizes, a network with BatchNorm."""
    flags = ["--ssvrg_m", "4", "--ssvrg_full", mode, "--ssvrg_current", str(current), "--stop_after", str(n_tasks)]
    model = build("ssvrg", tmp_path, *SHORT, *RESNET, *flags)
    model.net.__class__ = DoubleResNet
    model.net.double()
    model.opt = model.get_optimizer()
    spy = Spy(model, monkeypatch)
    train(model, model.dataset, model.args)
    tasks = range(0 if current else 1, n_tasks)
    assert spy.steps == 10 * n_tasks and spy.stages == [(task, step) for task in tasks for step in (0, 4, 8)]


def test_every_task_free_step_is_the_equation_of_replay_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """½·g(X;θ) + ½·[g(X̄;θ) − g(X̄;θ̃) + μ̃] with m = 4; X̄ and μ̃ are of the reservoir at the start of the stage."""
    model = build("ssvrg", tmp_path, *SHORT, *RESNET, "--task_free", "1", "--ssvrg_m", "4")
    assert not model.args.ssvrg_current
    model.net.__class__ = DoubleResNet
    model.net.double()
    model.opt = model.get_optimizer()
    twin, draws = Twin(model.net, "train", current=False), record_draws(monkeypatch)
    twin.past = 1  # of two parts that count alike
    loader, seen = model.dataset.get_data_loaders()[0], 0
    for step, (inputs, labels, raw) in enumerate([*loader, *loader]):
        theta, batch = state(model.net), (inputs, labels)
        draws.clear()
        model.meta_observe(inputs, labels, raw)
        if step >= 4 and step % 4 == 0:
            at_start, staged = seen, torch.cat([images for images, _ in draws[:-1]])
            assert len(staged) == 40 and len(draws) == 4
            twin.begin_stage([], draws[:-1], theta)
        if step == 0:
            assert not draws
            expected = twin.g(batch, theta)
        elif step < 4:
            expected = (twin.g(batch, theta) + twin.g(draws[-1], theta)) / 2
        else:
            assert model.stage_buffer.num_seen_examples == at_start
            replayed = draws[-1][0].flatten(1)
            assert len(replayed) == 16 and (replayed[:, None] == staged.flatten(1)).all(2).any(1).all()
            expected = twin.step(1, batch, draws[-1], theta)
        found = torch.cat([p.grad.reshape(-1) for p in model.net.parameters()])
        assert (found - expected).norm() <= 1e-9 * expected.norm()
        seen += len(labels)
        assert model.buffer.num_seen_examples == seen
    assert step == 9 and uncapturable(model) == []


def test_full_gradients_are_over_all_images_once_and_drawn_anew(tmp_path: Path) -> None:
    model = build("ssvrg", tmp_path, *SHORT)
    begin_task(model)
    model.meta_end_task(model.dataset)
    begin_task(model)
    task = model.dataset.train_loader.dataset
    rows = [torch.cat(model.shuffled(len(task), 64)) for _ in range(2)]
    assert torch.equal(rows[0].sort().values, torch.arange(len(task))) and not torch.equal(rows[0], rows[1])
    assert {len(labels) for _, labels in model.task_batches()} <= {len(task) // 5, len(task) // 5 + 1}
    labels = torch.cat([labels for _, labels in model.task_batches()])
    assert torch.equal(labels.sort().values, task.targets.sort().values)
    images = torch.cat([images for images, _ in model.buffer_batches()])
    stored = (model.buffer.examples.float() / 255 - 0.3058) / 0.3764
    assert torch.allclose(images.flatten(1).sum(1).sort().values, stored.flatten(1).sum(1).sort().values, atol=1e-4)


def test_extra_passes_leave_the_network_and_the_random_numbers_alone(tmp_path: Path) -> None:
    """One step in task 2: statistics, modes and draws are those of a method that passes over the two batches once."""
    model = build("ssvrg", tmp_path, *BUFFER, *RESNET)
    first = begin_task(model)
    model.meta_observe(*first[0])
    model.meta_end_task(model.dataset)
    batches = begin_task(model)
    model.net.layer3.eval()  # modules may be in different modes
    net, streams = copy.deepcopy(model.net), copy.deepcopy(model.dataset.streams)
    model.meta_observe(*batches[0])

    rows = torch.randperm(50, generator=streams["buffer"])[:32]
    net(batches[0][0])
    net(model.buffer.get_data_by_index(rows, model.normalization_transform)[0])
    for name, value in net.named_buffers():
        assert torch.allclose(value, dict(model.net.named_buffers())[name], atol=1e-6), name
    modes = [{name: module.training for name, module in n.named_modules()} for n in (net, model.net)]
    assert modes[0] == modes[1] and not modes[0]["layer3.0.bn1"] and modes[0]["layer1"]
    found = model.dataset.streams.state_dict()
    for name, generator_state in streams.state_dict().items():
        assert torch.equal(generator_state, found[name]) == (name != "ssvrg"), name
    assert not any(p.grad is not None for p in model.snapshot[0].parameters())
    assert uncapturable(model) == []


def test_without_corrections_the_first_task_is_ers(tmp_path: Path) -> None:
    flags = ["--stop_after", "1", "--n_epochs", "2", *BUFFER]
    _, er, _ = run(tmp_path / "er", *flags, "--buffer_fill", "task_end", model="er")
    _, none, _ = run(tmp_path / "none", *flags, "--ssvrg_current", "0", model="ssvrg")
    _, some, _ = run(tmp_path / "some", *flags, model="ssvrg")
    assert torch.equal(er.net.fc1.weight, none.net.fc1.weight) and not none.snapshot
    assert not torch.equal(er.net.fc1.weight, some.net.fc1.weight)
    assert torch.equal(er.buffer.examples, some.buffer.examples)


# -- variance ---------------------------------------------------------------------------------------------------------


def on_convex_problem() -> Any:
    """Softmax regression on the digits at the start of task 3."""
    args = parse_args(
        ["--model", "ssvrg", "--seed", "0", "--minibatch_size", str(convex.BATCH), "--buffer_size", "200"]
    )
    args.device = torch.device("cpu")
    dataset = convex.PlainDigits(args)
    model = Ssvrg(convex.LinearNet(), F.cross_entropy, args, dataset.get_transform(), dataset)
    model.stream = torch.Generator().manual_seed(0)
    for _ in range(2):
        convex.begin_task(model)
        convex.end_task(model)
    convex.begin_task(model)
    return model


def gradients(model: Any, theta: np.ndarray, count: int) -> np.ndarray:
    """Over many steps from the same θ, which does not move (lr 0)."""
    found = []
    for _ in range(count):
        convex.set_weights(model, theta)
        convex.step(model)
        found.append(model.net.linear.weight.grad.numpy().copy())
    return np.array(found)


@pytest.mark.slow
def test_near_the_snapshot_the_variance_is_smaller_than_ers_and_the_mean_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """n = 150 steps of each at growing distances from θ̃; an L2 penalty would be the optimizer's, and have no noise."""
    model, random, n = on_convex_problem(), np.random.default_rng(0), 150
    model.opt = model.get_optimizer(lr=1e-30)
    start, direction = random.normal(0, 0.3, (10, 64)), random.normal(0, 1, (10, 64))
    convex.set_weights(model, start)
    model.begin_stage()
    model._task_iteration, model.args.ssvrg_m = 1, 10**9  # amid the stage; private: the loop counts
    images, buffer, past = model.dataset.train_loader.dataset, model.buffer, model.past_share()
    task = convex.as_data(images.data.permute(0, 3, 1, 2), images.targets)
    stored = convex.as_data(buffer.examples, buffer.labels)
    ratios = []
    for distance in (0.0, 0.03, 0.1, 1.0):
        theta = start + distance * direction
        corrected = gradients(model, theta, n)
        with monkeypatch.context() as patch:
            patch.setattr(model, "_correct_gradients", lambda parts: None)  # the same steps without the correction
            plain = gradients(model, theta, n)
        true = (1 - past) * convex.G(task, theta) + past * convex.G(stored, theta)
        for sample in (plain, corrected):
            deviation = np.sqrt(sample.var(0).sum() / n)  # of the mean from its expectation
            assert np.linalg.norm(sample.mean(0) - true) <= 3 * deviation + 1e-12
        ratios.append(corrected.var(0).sum() / plain.var(0).sum())
    assert ratios[0] < 1e-20 and ratios[1] < 1e-3 and ratios[2] < 1e-2 and ratios[3] < 0.5
    assert ratios == sorted(ratios)


# -- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_beats_fine_tuning(tmp_path: Path) -> None:
    """Final accuracy, seeds 0 to 4, same learning rate and epochs."""
    flags, gains = ["--n_epochs", "2", "--lr", "0.1"], []
    for seed in range(5):
        sgd = run(tmp_path / f"sgd{seed}", *flags, model="sgd", seed=seed)[0]["class_il"]["FAA"]
        own = run(tmp_path / f"own{seed}", *flags, "--buffer_size", "100", model="ssvrg", seed=seed)[0]
        gains.append(own["class_il"]["FAA"] - sgd)
    assert sum(gains) / 5 > 35


@pytest.mark.slow
def test_a_network_with_batch_norm_learns(tmp_path: Path) -> None:
    """Measured, seeds 0 to 5: 78 … 90; after two tasks of two classes, one forgotten task leaves at most 50."""
    flags = ["--backbone", "resnet18", "--num_filters", "4", "--n_epochs", "3", "--lr", "0.03", "--stop_after", "2"]
    flags += ["--ssvrg_m", "10", "--buffer_size", "100"]
    found = [run(tmp_path / str(seed), *flags, model="ssvrg", seed=seed)[0]["class_il"]["FAA"] for seed in range(3)]
    assert sum(found) / 3 > 60, found


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--ssvrg_m", "4"],
        ["--ssvrg_m", "4", "--ssvrg_current", "0", *RESNET],
        ["--ssvrg_full", "eval"],
        ["--ssvrg_m", "4", "--task_free", "1"],
    ],
    ids=" ".join,
)
def test_resume_in_the_middle_of_a_stage_is_exact(flags: list[str], tmp_path: Path) -> None:
    assert_exact_resume(Ssvrg, tmp_path, *BUFFER, *flags, tasks=2)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--buffer_size", "1"], ["--buffer_size", "3", "-O", "1", *RESNET]], ids=" ".join)
def test_tiny_buffers(flags: list[str], tmp_path: Path) -> None:
    _, model, _ = run(tmp_path, *flags, "--n_epochs", "1", "--stop_after", "2", model="ssvrg")
    assert len(model.buffer) == model.args.buffer_size


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ssvrg_m", "0"], ["--ssvrg_m", "at least 1"]),
        (["--ssvrg_full", "test"], ["--ssvrg_full", "'test'"]),
        (["--buffer_fill", "stream"], ["--buffer_fill"]),
    ],
)
def test_contradictions_are_refused_in_one_line(flags: list[str], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_args(["--model", "ssvrg", *BUFFER, *flags])
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("dataset", "sizes"), [("seq-cifar10", (500, 2000)), ("seq-cifar100", (500, 2000)), ("seq-tinyimg", (2000, 5000))]
)
def test_presets(dataset: str, sizes: tuple[int, int]) -> None:
    for size in sizes:
        flags = ["--model", "ssvrg", "--dataset", dataset, "--buffer_size", str(size), "--model_config", "best"]
        args = parse_args(flags)
        assert (args.lr, args.ssvrg_m, args.ssvrg_current, args.ssvrg_full) == (0.1, 200, True, "train")
