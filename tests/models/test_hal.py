"""HAL: the two steps of an update against a slow twin, how anchors are learned, its memories, and exact resume."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_same, run, uncapturable
from method_helpers import PAPER_COLUMNS, RESNET, assert_exact_resume, begin_task, build, record_draws
from torch import nn

import models.hal_utils.anchors
from datasets.seq_digits import SequentialDigits
from models.hal import Hal
from models.hal_utils.portions import TaskPortions
from utils.augmentations import to_uint8
from utils.buffer import Buffer
from utils.cli.parse import parse_args
from utils.errors import UsageError

pytestmark = pytest.mark.numeric

BUFFER = ["--buffer_size", "50"]


@pytest.fixture
def few_anchor_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which it makes no difference how good the anchors are."""
    monkeypatch.setattr(models.hal_utils.anchors, "ANCHOR_STEPS", 5)


def train_task(model: Hal, steps: int = 3) -> None:
    for batch in begin_task(model)[:steps]:
        model.observe(*batch)
    model.meta_end_task(model.dataset)


# -- a step ------------------------------------------------------------------------------------------------------------


def in_double_precision(model: Hal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network, anchors and the images that any buffer hands out; what is stored stays as it is."""
    model.net.double()
    model.anchors, get_data = model.anchors.double(), Buffer.get_data

    def doubled(self, *args, **kwargs):
        images, *others = get_data(self, *args, **kwargs)
        return images.double(), *others

    monkeypatch.setattr(Buffer, "get_data", doubled)
    model.opt = model.get_optimizer()


def slow_step(
    net: nn.Module, images: torch.Tensor, labels: torch.Tensor, anchors: torch.Tensor, lr: float, through: bool
) -> Any:
    """Both losses and, of each parameter, both gradients, with copies of the network instead of functional calls.

    Through θ' = θ − η∇CE(θ) the gradient v with respect to θ' arrives at θ as v − ηHv.
    """
    outputs = net(images)
    ce = torch.stack([-output.log_softmax(0)[y] for output, y in zip(outputs, labels, strict=True)]).mean()
    first = torch.autograd.grad(ce, list(net.parameters()), create_graph=True)
    ahead, now = copy.deepcopy(net), copy.deepcopy(net)
    with torch.no_grad():
        for parameter, gradient in zip(ahead.parameters(), first, strict=True):
            parameter -= lr * gradient
    # The statistics of the copies don't matter: in train mode the anchors have their own.
    goal, outputs = ahead(anchors), now(anchors)
    penalty = sum((goal[i, c] - outputs[i, c]) ** 2 for i in range(len(anchors)) for c in range(10))
    penalty = penalty / (10 * len(anchors))
    second = torch.autograd.grad(penalty, list(now.parameters()), retain_graph=True)
    if through:
        v = torch.autograd.grad(penalty, list(ahead.parameters()))
        products = torch.autograd.grad(first, list(net.parameters()), v)
        second = [a + b - lr * c for a, b, c in zip(second, v, products, strict=True)]
    first = [gradient.detach() for gradient in first]
    return (ce.detach(), penalty.detach()), list(zip(first, second, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("stop_gradient", ["0", "1"])
@pytest.mark.parametrize("network", [[], RESNET], ids=["mlp", "resnet"])
def test_step_adds_the_anchors_gradient(
    network: list[str], stop_gradient: str, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One optimizer step from θ, with momentum and weight decay: θ' leaves no trace. In float64."""
    flags = ["--hal_lambda", "3", "--optim_mom", "0.9", "--optim_wd", "0.01", "--device", device.type]
    model = build("hal", tmp_path, *BUFFER, *network, *flags, "--hal_stop_gradient", stop_gradient)
    train_task(model)
    batch = begin_task(model)[0]
    in_double_precision(model, monkeypatch)
    model.opt.param_groups[0]["lr"] = 0.05  # a scheduler may have changed it
    net, anchors, draws = copy.deepcopy(model.net), model.anchors[:2].clone(), record_draws(monkeypatch)
    terms = model.observe(batch[0].double(), *batch[1:])

    ((replayed, replayed_labels),) = draws
    images, labels = torch.cat((batch[0], replayed)), torch.cat((batch[1], replayed_labels))
    (ce, penalty), gradients = slow_step(net, images, labels, anchors, 0.05, through=stop_gradient == "0")
    torch.testing.assert_close(terms["loss_ce"], ce)
    torch.testing.assert_close(terms["loss_anchors"], penalty)
    torch.testing.assert_close(terms["loss"], ce + 3 * penalty)
    assert penalty > 1e-6 and not any(term.requires_grad for term in terms.values())
    largest = max(float(second.abs().max()) for _, second in gradients)
    assert largest > 1e-4  # the second gradient is no small thing
    for new, before, (first, second) in zip(model.net.parameters(), net.parameters(), gradients, strict=True):
        gradient = first + 3 * second + 0.01 * before
        torch.testing.assert_close(model.opt.state[new]["momentum_buffer"], gradient, rtol=1e-9, atol=1e-9 * largest)
        torch.testing.assert_close(new, before - 0.05 * gradient, rtol=0, atol=1e-9 * largest)
    for name, value in model.net.named_buffers():  # one update, by stream and replay alone
        torch.testing.assert_close(value, dict(net.named_buffers())[name], msg=name)
    assert all(module.training for module in model.net.modules())
    assert torch.equal(model.anchors[:2], anchors) and (model.anchors[2:] == 0).all()


def test_the_look_ahead_step_is_the_optimizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second task on `--body_lr_scale` gives body and classifier rates of their own."""
    flags = ["--hal_lambda", "0", "--body_lr_scale", "0.1", "--lr", "0.1"]
    model = build("hal", tmp_path, *BUFFER, *flags)
    train_task(model)
    batch, look, ahead = begin_task(model)[0], torch.func.functional_call, {}

    def noted(net: nn.Module, parameters: Any, *args: Any) -> Any:
        ahead.update({name: p.detach().clone() for name, p in parameters.items()})
        return look(net, parameters, *args)

    monkeypatch.setattr(torch.func, "functional_call", noted)
    before = {name: p.detach().clone() for name, p in model.net.named_parameters()}
    model.observe(*batch)
    for name, p in model.net.named_parameters():
        assert not torch.equal(p, before[name])
        torch.testing.assert_close(ahead[name] - before[name], p - before[name], rtol=1e-4, atol=1e-8)


def test_the_gradient_through_the_look_ahead_step_by_its_formula(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network of 330 parameters as a function of one vector, and its Hessian as a matrix, by torch.func."""
    model = build("hal", tmp_path, *BUFFER, "--hal_lambda", "0.7", "--mlp_hidden_size", "4", "--lr", "0.2")
    train_task(model)
    (images, labels, _), *_ = begin_task(model)
    in_double_precision(model, monkeypatch)
    images, anchors = images.double().flatten(1), model.anchors[:2].flatten(1)
    shapes = [p.shape for p in model.net.parameters()]
    theta = torch.cat([p.detach().flatten() for p in model.net.parameters()])
    assert len(theta) == 330

    def outputs(vector: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        parts = vector.split([shape.numel() for shape in shapes])
        w1, b1, w2, b2, w3, b3 = (part.view(shape) for part, shape in zip(parts, shapes, strict=True))
        return ((x @ w1.T + b1).relu() @ w2.T + b2).relu() @ w3.T + b3

    def cross_entropy(vector: torch.Tensor) -> torch.Tensor:
        return -outputs(vector, images).log_softmax(1)[torch.arange(len(labels)), labels].mean()

    def distance(now: torch.Tensor, later: torch.Tensor) -> torch.Tensor:
        return (outputs(now, anchors) - outputs(later, anchors)).square().mean()

    ahead = theta - 0.2 * torch.func.grad(cross_entropy)(theta)
    u, v = torch.func.grad(distance, argnums=(0, 1))(theta, ahead)
    hessian = torch.func.hessian(cross_entropy)(theta)
    expected = torch.func.grad(cross_entropy)(theta) + 0.7 * (u + v - 0.2 * hessian @ v)

    model.backward_with_anchors(model.loss(model.net(images.view(-1, 1, 8, 8)), labels))
    found = torch.cat([p.grad.flatten() for p in model.net.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
    constant = torch.func.grad(cross_entropy)(theta) + 0.7 * u
    assert (found - constant).norm() > 0.01 * constant.norm()


def test_first_task_has_no_anchors(tmp_path: Path) -> None:
    model = build("hal", tmp_path, *BUFFER)
    terms = model.observe(*begin_task(model)[0])
    assert terms["loss_anchors"] == 0 and terms["loss"] == terms["loss_ce"]


def mean_change(path: Path, seed: int, *flags: str) -> float:
    """mean (f_after(e) − f_before(e))² over the anchors, averaged over the steps of task 2."""
    model = build("hal", path, *BUFFER, *flags, seed=seed)
    train_task(model, steps=9)
    changes = []
    for batch in begin_task(model):
        before = model.net(model.anchors[:2]).detach()
        model.observe(*batch)
        changes.append(float((model.net(model.anchors[:2]).detach() - before).square().mean()))
    return sum(changes) / len(changes)


@pytest.mark.slow
def test_only_a_constant_goal_leads_the_anchors_outputs_on(tmp_path: Path) -> None:
    """They change by 30 % to 45 % more in a step than without the term; with the gradient through it within 1 %."""
    for seed in range(3):
        none = mean_change(tmp_path, seed, "--hal_lambda", "0")
        through = mean_change(tmp_path, seed, "--hal_lambda", "1")
        constant = mean_change(tmp_path, seed, "--hal_lambda", "1", "--hal_stop_gradient", "1")
        assert through < 1.1 * none < 1.15 * none < constant


@pytest.mark.slow
def test_no_anchor_is_too_bright(tmp_path: Path) -> None:
    """Normalised by running statistics, the outputs would grow with the anchors, and the term with their square."""
    terms = []
    for brightness in (1, 1000):
        model = build("hal", tmp_path, *BUFFER, *RESNET)
        train_task(model)
        model.anchors *= brightness
        terms.append(model.observe(*begin_task(model)[0])["loss_anchors"])
    torch.testing.assert_close(terms[1], terms[0], rtol=0.01, atol=0)


@pytest.mark.parametrize("network", [[], RESNET], ids=["mlp", "resnet"])
def test_running_mean_feature(
    network: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_anchor_steps: None
) -> None:
    """φ̄ ← β φ̄ + (1−β) · mean φ(B), from 0 in each task; the replayed images don't count."""
    model = build("hal", tmp_path, *BUFFER, *network, "--beta", "0.7")
    draws = record_draws(monkeypatch)
    for _ in range(2):
        expected = torch.zeros(model.net.feature_dim)
        batches = begin_task(model)[:3]
        assert (model.mean_features == 0).all()
        for batch in batches:
            net, n_draws = copy.deepcopy(model.net), len(draws)
            model.observe(*batch)
            images = torch.cat([batch[0], *(draw[0] for draw in draws[n_draws:])])
            features = net(images, returnt="features")[:32]
            expected = 0.7 * expected + 0.3 * features.mean(0).detach()
            torch.testing.assert_close(model.mean_features, expected, rtol=1e-4, atol=1e-6)
        model.meta_end_task(model.dataset)


def test_without_anchors_and_ring_it_is_er(tmp_path: Path, few_anchor_steps: None) -> None:
    flags = ["--n_epochs", "1", "--lr", "0.1", "--stop_after", "3", *BUFFER]
    er = run(tmp_path / "er", *flags, model="er")[1]
    hal = run(tmp_path / "hal", *flags, "--hal_lambda", "0", "--hal_memory", "reservoir", model="hal")[1]
    assert_same(hal.net.state_dict(), er.net.state_dict())
    assert_same(hal.buffer.state_dict(), er.buffer.state_dict())


# -- anchors -----------------------------------------------------------------------------------------------------------


def objective_by_hand(net: nn.Module, later: nn.Module, anchor: torch.Tensor, y: int, mean: Any, gamma: float) -> Any:
    def cross_entropy(logits: torch.Tensor) -> torch.Tensor:
        return logits.exp().sum().log() - logits[y]

    feature = net(anchor[None], returnt="features")[0]
    distance = sum((a - b) ** 2 for a, b in zip(feature, mean, strict=True))
    return cross_entropy(net(anchor[None])[0]) - cross_entropy(later(anchor[None])[0]) + gamma * distance


@pytest.mark.slow
@pytest.mark.parametrize("network", [[], RESNET], ids=["mlp", "resnet"])
def test_anchors_are_learned_one_by_one(network: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch of anchors is what SGD on each alone gives, in float64, and the network stays as it is."""
    monkeypatch.setattr(models.hal_utils.anchors, "ANCHOR_STEPS", 20)
    model = build("hal", tmp_path, *BUFFER, *network, "--gamma", "0.2")
    train_task(model)
    for batch in begin_task(model)[:3]:
        model.observe(*batch)
    in_double_precision(model, monkeypatch)
    finetuned: list[nn.Module] = []
    original, objectives = Hal.finetuned, []
    monkeypatch.setattr(Hal, "finetuned", lambda self: finetuned.append(original(self)) or finetuned[-1])
    objective = Hal.anchor_objective

    def recorded(self, *args):
        objectives.append(objective(self, *args))
        return objectives[-1]

    monkeypatch.setattr(Hal, "anchor_objective", recorded)
    before, state = copy.deepcopy(model.net), model.dataset.streams["hal"].get_state()
    model.meta_end_task(model.dataset)
    assert_same(model.net.state_dict(), before.state_dict())
    assert all(module.training for module in model.net.modules()) and len(objectives) == 20

    generator = torch.Generator()
    generator.set_state(state)
    noise = torch.rand(2, 1, 8, 8, generator=generator, dtype=torch.float64)
    assert noise.min() >= 0 and noise.max() <= 1
    now, later = before.eval(), finetuned[0]
    assert not later.training
    for i, y in enumerate((2, 3)):
        anchor = noise[i].requires_grad_()
        optimizer, mean = torch.optim.SGD([anchor], lr=0.03), model.mean_features.double()
        for step in range(20):
            value = objective_by_hand(now, later, anchor, y, mean, 0.2)
            torch.testing.assert_close(objectives[step][i], value, rtol=1e-9, atol=1e-9)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        torch.testing.assert_close(model.anchors[y], anchor.detach(), rtol=1e-9, atol=1e-9)


def test_the_objective_of_anchors_falls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every anchor, to two thirds or less of its value for noise in the seeds that were tried."""
    objective, values = Hal.anchor_objective, []

    def recorded(self, *args):
        values.append(objective(self, *args))
        return values[-1]

    monkeypatch.setattr(Hal, "anchor_objective", recorded)
    for seed in range(4):
        model = build("hal", tmp_path, *BUFFER, "--gamma", "0.2", seed=seed)
        train_task(model, steps=9)
        values.clear()
        train_task(model, steps=9)
        assert len(values) == 100
        assert (values[-1] < 0.8 * values[0]).all(), (seed, values[0], values[-1])


@pytest.mark.parametrize(("finetune", "images"), [("epoch", 70), ("batch", 32)])
def test_hindsight_is_sgd_on_the_buffer(
    finetune: str, images: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """θ_M: an epoch over the buffer, every image once, or one batch of it."""
    flags = ["--buffer_size", "350", "--hal_finetune", finetune, "--lr", "0.1", *RESNET]
    model = build("hal", tmp_path, *flags)
    for batch in begin_task(model)[:4]:
        model.observe(*batch)
    assert len(model.buffer) == 70  # 350 / 5 tasks; 128 were offered
    net, before = copy.deepcopy(model.net).train(), copy.deepcopy(model.net.state_dict())
    draws = record_draws(monkeypatch)
    later = model.finetuned()
    rows = torch.cat([to_uint8((draw[0] * 0.3764 + 0.3058).clamp(0, 1)) for draw in draws]).flatten(1)
    assert len(rows) == images and len(draws) == images // 32 and min(len(draw[0]) for draw in draws) >= 32
    if finetune == "epoch":
        assert sorted(rows.tolist()) == sorted(model.buffer.examples[:70].flatten(1).tolist())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in draws:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    for name, value in later.state_dict().items():
        assert torch.allclose(value, net.state_dict()[name], atol=1e-6), name
    assert_same(model.net.state_dict(), before)


# -- the buffer --------------------------------------------------------------------------------------------------------


def images_of(first: int, last: int) -> torch.Tensor:
    return torch.arange(first, last, dtype=torch.uint8).view(-1, 1, 1, 1)


def offer(buffer: TaskPortions, first: int, last: int) -> list[int]:
    buffer.add_data(images_of(first, last), labels=torch.arange(first, last))
    stored = buffer.labels[: len(buffer)].tolist()
    assert buffer.examples[: len(buffer)].flatten().tolist() == stored
    return stored


def test_ring(device: torch.device) -> None:
    """11 slots for 2 tasks: 5 each."""
    buffer = TaskPortions(11, 2, device, torch.Generator())
    buffer.begin_portion(0)
    assert buffer.is_empty() and len(buffer) == 0
    assert offer(buffer, 0, 3) == [0, 1, 2]
    assert offer(buffer, 3, 7) == [5, 6, 2, 3, 4]  # in turn
    assert offer(buffer, 7, 20) == [15, 16, 17, 18, 19]  # more than there are slots: the latest
    buffer.begin_portion(1)
    assert offer(buffer, 20, 22) == [15, 16, 17, 18, 19, 20, 21]
    assert set(buffer.get_data(11)[1].tolist()) == set(buffer.labels[:7].tolist())  # blank slots are not drawn
    saved = copy.deepcopy(buffer.state_dict())
    expected = offer(buffer, 22, 26)
    assert expected == [15, 16, 17, 18, 19, 25, 21, 22, 23, 24]
    resumed = TaskPortions(11, 2, device, torch.Generator())
    resumed.load_state_dict(saved)
    assert offer(resumed, 22, 26) == expected
    resumed.empty()
    assert len(resumed) == 0 and resumed.is_empty()


def test_a_short_task_leaves_no_gap() -> None:
    buffer = TaskPortions(10, 2, torch.device("cpu"), torch.Generator())
    buffer.begin_portion(0)
    offer(buffer, 0, 2)
    buffer.begin_portion(1)
    assert offer(buffer, 2, 9) == [0, 1, 7, 8, 4, 5, 6]
    with pytest.raises(ValueError, match="buffer_size 2 is too small for 3 portions"):
        TaskPortions(2, 3, torch.device("cpu"), torch.Generator())


def test_a_buffer_that_was_handed_over_keeps_its_past() -> None:
    buffer = TaskPortions(6, 3, torch.device("cpu"), torch.Generator())
    buffer.load_state_dict(
        {"buffer_size": 6, "num_seen_examples": 6, "fields": {"examples": images_of(0, 6), "labels": torch.arange(6)}}
    )
    buffer.begin_portion(1)
    assert offer(buffer, 6, 7) == [0, 1, 6]


def test_buffer_holds_the_latest_images_of_each_task(tmp_path: Path, few_anchor_steps: None) -> None:
    model = build("hal", tmp_path, "--buffer_size", "53")
    latest: list[torch.Tensor] = []
    for task in range(5):
        batches = begin_task(model)[:3]
        for batch in batches:
            model.observe(*batch)
        latest.append(to_uint8(torch.cat([batch[2] for batch in batches])[-10:]).flatten(1))  # ⌊53 / 5⌋
        stored = model.buffer.examples[: len(model.buffer)].flatten(1)
        assert len(stored) == 10 * (task + 1)
        for past, images in enumerate(latest):
            assert sorted(stored[10 * past : 10 * past + 10].tolist()) == sorted(images.tolist())
        model.meta_end_task(model.dataset)


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_beats_fine_tuning(tmp_path: Path) -> None:
    def faa(model: str, seed: int, *flags: str) -> float:
        flags = ("--n_epochs", "2", "--lr", "0.1", *flags)
        return run(tmp_path / f"{model}{seed}", *flags, model=model, seed=seed)[0]["class_il"]["FAA"]

    gains = [faa("hal", seed, *BUFFER) - faa("sgd", seed) for seed in range(5)]
    assert sum(gains) / 5 > 28, gains


@pytest.mark.slow
@pytest.mark.parametrize(("buffer", "network"), [("ring", [*RESNET, "--batch_size", "70"]), ("reservoir", [])])
def test_tasks_of_any_size_and_a_buffer_smaller_than_the_classes(
    buffer: str, network: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_anchor_steps: None
) -> None:
    monkeypatch.setattr(SequentialDigits, "N_CLASSES_PER_TASK", [3, 1, 4, 2])
    monkeypatch.setattr(SequentialDigits, "N_TASKS", 4)
    flags = ["--buffer_size", "9", "--n_epochs", "1", "--hal_memory", buffer, "-O", "1", *network]
    _, model, _ = run(tmp_path, *flags, model="hal")
    assert len(model.buffer) == {"ring": 8, "reservoir": 9}[buffer] and uncapturable(model) == []
    assert model.anchors.isfinite().all() and (model.anchors.flatten(1) != 0).any(1).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [["--lr_scheduler", "cosine"], RESNET, ["--hal_memory", "reservoir"]], ids=["mlp", "resnet", "reservoir"]
)
def test_resume_is_exact(flags: list[str], tmp_path: Path, few_anchor_steps: None) -> None:
    assert_exact_resume(Hal, tmp_path, *BUFFER, *flags, tasks=2)


def test_starting_late(tmp_path: Path, few_anchor_steps: None) -> None:
    """A task that is passed over has stored nothing to fine-tune on."""
    flags = ["--start_from", "2", "--stop_after", "3", "--n_epochs", "1", *BUFFER]
    _, model, _ = run(tmp_path, *flags, model="hal")
    assert len(model.buffer) == 10 and model.buffer.labels[:10].min() >= 4


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--buffer_size 9 leaves each of the 5 tasks less than two .* at least 10$"):
        build("hal", tmp_path, "--buffer_size", "9")
    with pytest.raises(UsageError, match=r"^--buffer_size 1 leaves the buffer less than two images; use at least 2$"):
        build("hal", tmp_path, "--buffer_size", "1", "--hal_memory", "reservoir")
    with pytest.raises(UsageError, match=r"^-O 3: hal takes a gradient .*; use -O 2, or --hal_stop_gradient 1$"):
        parse_args(["--model", "hal", *BUFFER, "-O", "3"])
    assert parse_args(["--model", "hal", *BUFFER, "-O", "3", "--hal_stop_gradient", "1"]).hal_stop_gradient
    with pytest.raises(UsageError, match="--task_free 1: hal needs task boundaries"):
        parse_args(["--model", "hal", *BUFFER, "--task_free", "1"])


@pytest.mark.parametrize(("dataset", "buffer_size"), PAPER_COLUMNS)
def test_presets(dataset: str, buffer_size: int) -> None:
    flags = ["--model", "hal", "--dataset", dataset, "--buffer_size", str(buffer_size)]
    for config in ("best", "default"):
        args = parse_args([*flags, "--model_config", config])
        assert (args.lr, args.hal_lambda, args.beta, args.gamma) == (0.03, 0.1, 0.3, 0.1)
        assert (args.hal_memory, args.hal_finetune) == ("ring", "epoch")
