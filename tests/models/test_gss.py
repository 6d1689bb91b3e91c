"""GSS: scores against gradients taken image by image, what the buffer does with them, learning, and exact resume."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import run, uncapturable
from method_helpers import RESNET, assert_exact_resume, begin_task, build, record_draws
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from backbone.MNISTMLP import mnistmlp
from backbone.ResNetBlock import resnet18
from models.gss import Gss
from models.gss_utils import gradients as gss_gradients
from models.gss_utils.buffer import ScoredBuffer
from models.gss_utils.gradients import gradient_products
from utils.cli.parse import parse_args
from utils.errors import UsageError
from utils.resume.guard import NonFiniteGuard

pytestmark = pytest.mark.numeric

BUFFER = ["--buffer_size", "50"]
SEEDS = range(5)


# -- scores ------------------------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """What our networks lack: every kind of convolution, modules used twice, frozen ones, operations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.strided = nn.Conv2d(3, 4, (3, 2), stride=(2, 3), padding=(2, 1), dilation=(1, 2))
        self.same = nn.Conv2d(4, 4, (3, 2), padding="same", dilation=(1, 2))
        self.valid = nn.Conv2d(4, 6, 2, padding="valid", stride=2, bias=False)  # leaves a row over
        self.grouped = nn.Conv2d(6, 6, 3, padding=1, groups=2)
        self.reflect = nn.Conv2d(6, 6, 3, padding=1, padding_mode="reflect")
        self.norm = nn.GroupNorm(2, 6)
        self.twice, self.bn = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.frozen, self.partly = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6)
        self.partly.bias.requires_grad_(False)
        self.unused, self.classifier = nn.Linear(2, 2), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.same(self.strided(x).relu_()).relu_()
        x = self.reflect(self.grouped(self.valid(x)).relu_())
        x = self.norm(x).flatten(2).mT  # [images, positions, features]
        x = self.twice(torch.tanh(self.twice(x)).mean(1))
        x = self.bn(torch.tanh(self.bn(x)))
        x += self.partly(self.frozen(x))
        return self.classifier(x)


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    made = {"mlp": mnistmlp(10, 20, 3 * 12 * 12), "resnet": resnet18(10, 4), "odd": Odd()}
    for module in (module for net in made.values() for module in net.modules()):
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5), nn.init.normal_(module.bias)
            module.running_mean.normal_(), module.running_var.uniform_(0.5, 2)
    return made


def one_by_one(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Gradients [images, parameters] in eval mode."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    rows = []
    for i in range(len(labels)):
        loss = cross_entropy(net(images[i : i + 1]), labels[i : i + 1])
        found = torch.autograd.grad(loss, parameters, materialize_grads=True)
        rows.append(torch.cat([gradient.flatten() for gradient in found]))
    return torch.stack(rows)


def brute_force(net: nn.Module, stream: Any, buffer: Any) -> list[float]:
    """1 + the highest cosine, for the gradient of the batch's loss and for those of its images."""
    rows, h = one_by_one(net, *stream), one_by_one(net, *buffer)
    parameters = [p for p in net.parameters() if p.requires_grad]
    batch = torch.autograd.grad(cross_entropy(net(stream[0]), stream[1]), parameters, materialize_grads=True)
    rows = torch.cat((torch.cat([gradient.flatten() for gradient in batch])[None], rows))
    return [1 + max(float(g @ h_j / (g.norm() * h_j.norm())) for h_j in h) for g in rows]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", ["mlp", "resnet", "odd"])
def test_scores_are_those_of_single_gradients(
    name: str, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = networks()[name].double().to(memory_format=layout)
    random = torch.Generator().manual_seed(1)
    images = torch.randn(12, 3, 12, 12, generator=random, dtype=torch.float64).to(memory_format=layout)
    labels = torch.randint(5, (12,), generator=random)
    stream, buffer = (images[:7], labels[:7]), (images[7:], labels[7:])
    for size in (gss_gradients.BLOCK, 100):  # also in small blocks
        monkeypatch.setattr(gss_gradients, "BLOCK", size)
        products = gradient_products(net, cross_entropy, stream, buffer)
        net.eval()
        g, h = one_by_one(net, *stream), one_by_one(net, *buffer)
        exact = {"atol": 1e-8, "rtol": 1e-8}
        torch.testing.assert_close(products.cross, g @ h.T, **exact)
        torch.testing.assert_close(products.squares, torch.cat((g, h)).square().sum(1), **exact)
        torch.testing.assert_close(products.batch_square, g.mean(0).square().sum(), **exact)
        scores = products.scores().tolist()
        assert scores == pytest.approx(brute_force(net, stream, buffer), abs=1e-8)
        assert max(scores) - min(scores) > 0.02


def test_the_network_is_left_as_it_was() -> None:
    net = networks()["resnet"]
    net.layer4.eval()  # modules may be in different modes
    before, modes = copy.deepcopy(net.state_dict()), [module.training for module in net.modules()]
    net.conv1.weight.grad = torch.ones_like(net.conv1.weight)
    images, labels = torch.randn(6, 3, 12, 12), torch.arange(6)
    scores = gradient_products(net, cross_entropy, (images[:2], labels[:2]), (images[2:], labels[2:])).scores()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert modes == [module.training for module in net.modules()] and modes[0] and not all(modes)
    assert (net.conv1.weight.grad == 1).all() and net.classifier.weight.grad is None
    # A private name of PyTorch's, which has no other way to ask for the hooks that are left.
    assert not any(module._forward_hooks for module in net.modules()) and not scores.requires_grad


def test_a_compiled_network_is_seen_through() -> None:
    net = networks()["mlp"]
    images, labels = torch.randn(6, 3, 12, 12), torch.arange(6)
    batches = (images[:2], labels[:2]), (images[2:], labels[2:])
    expected = gradient_products(net, cross_entropy, *batches).scores()
    net.compile(backend="eager")
    net(images)
    assert torch.equal(gradient_products(net, cross_entropy, *batches).scores(), expected)


def test_a_zero_gradient_is_like_nothing() -> None:
    net = nn.Linear(2, 2)
    zero, other = torch.zeros(1, 2), torch.ones(1, 2)
    net.bias.requires_grad_(False)  # so that the gradient of a blank image is zero
    label = torch.tensor([0])
    assert gradient_products(net, cross_entropy, (zero, label), (other, label)).scores().tolist() == [1, 1]
    assert gradient_products(net, cross_entropy, (other, label), (zero, label)).scores().tolist() == [1, 1]
    same = gradient_products(net, cross_entropy, (other, label), (other, label)).scores()
    opposed = gradient_products(net, cross_entropy, (other, label), (other, 1 - label)).scores()
    assert same.tolist() == pytest.approx([2, 2]) and opposed.tolist() == pytest.approx([0, 0], abs=1e-6)


# -- the buffer --------------------------------------------------------------------------------------------------------


def scored_buffer(size: int, seed: int = 0) -> ScoredBuffer:
    return ScoredBuffer(size, draws=torch.Generator().manual_seed(seed), image_dtype=torch.uint8)


def add(buffer: ScoredBuffer, values: list[int], batch_score: float, image_scores: list[float]) -> None:
    """Images that are all of one value, with that value as their label."""
    labels = torch.tensor(values)
    images = labels.view(-1, 1, 1, 1).to(torch.uint8)
    buffer.add_data(examples=images, labels=labels, sample_selection_scores=torch.tensor([batch_score, *image_scores]))
    n = len(buffer)
    assert torch.equal(buffer.examples[:n].flatten().long(), buffer.labels[:n])  # fields stay together


def content(buffer: ScoredBuffer) -> dict[int, float]:
    n = len(buffer)
    return dict(zip(buffer.labels[:n].tolist(), buffer.scores[:n].round(6).tolist(), strict=True))


def test_free_slots_are_filled_at_the_score_of_the_batch() -> None:
    buffer = scored_buffer(5)
    add(buffer, [1, 2], 0.1, [0.1, 0.1])
    add(buffer, [3], 1.7, [0.4])  # above 1, too
    assert content(buffer) == {1: 0.1, 2: 0.1, 3: 1.7}
    add(buffer, [4, 5, 6, 7], 1.0, [0.1] * 4)  # the rest of it is ignored
    assert content(buffer) == {1: 0.1, 2: 0.1, 3: 1.7, 4: 1.0, 5: 1.0} and buffer.is_full()


def test_a_batch_that_resembles_memory_is_ignored() -> None:
    buffer = scored_buffer(2)
    add(buffer, [1, 2], 0.9, [0.9, 0.9])
    state = buffer.draws.get_state()
    for score in (1.0, 1.5):
        add(buffer, [3, 4], score, [0.0, 0.0])
        assert content(buffer) == {1: 0.9, 2: 0.9} and torch.equal(buffer.draws.get_state(), state)
    add(buffer, [3, 4], 0.99, [0.0, 0.0])  # C/(C + 0) = 1: each takes its slot
    assert 4 in content(buffer) and content(buffer)[4] == 0


def test_a_batch_that_fills_the_memory_competes_with_its_rest() -> None:
    """Slots 0 and 1 are filled; then 3 surely takes one of them, since its score is 0, and 4 never one of score 0."""
    for seed in range(20):
        buffer = scored_buffer(2, seed)
        add(buffer, [1, 2, 3], 0.5, [9.0, 9.0, 0.0])
        assert content(buffer) in ({1: 0.5, 3: 0}, {3: 0, 2: 0.5})
        add(buffer, [4], 0.5, [0.0])
        assert content(buffer) == {3: 0, 4: 0}
        add(buffer, [5], 0.5, [0.0])  # nothing has a positive score
        assert content(buffer) == {3: 0, 4: 0}


def test_the_law_of_replacement() -> None:
    """Slot i with probability C_i / ΣC, taken with probability C_i / (C_i + c)."""
    scores, own, trials = np.array([0.2, 0.5, 1.3]), 0.7, 20000
    buffer = scored_buffer(3)
    add(buffer, [0, 1, 2], 0.1, [0.1] * 3)
    counts = np.zeros(4)
    for _ in range(trials):
        buffer.scores = scores.copy()
        slots = buffer.replace(np.array([own]), 0)
        assert all(buffer.scores[slot] == own for slot in slots)
        counts[next(iter(slots), 3)] += 1
    law = scores / scores.sum() * scores / (scores + own)
    expected = np.append(law, 1 - law.sum())
    assert np.abs(counts / trials - expected).max() < 4 * np.sqrt(0.25 / trials)


def test_scores_change_hands_within_a_batch() -> None:
    """Against the law written out, image by image, with the same random numbers."""
    buffer = scored_buffer(6)
    add(buffer, list(range(6)), 0.8, [0.8] * 6)
    new = [0.9, 0.1, 1.2, 0.4, 0.05, 0.6, 0.3, 0.7]
    twin = torch.Generator()
    twin.set_state(buffer.draws.get_state())
    expected, labels = [float(np.float32(0.8))] * 6, list(range(6))
    randoms = torch.rand(8, 2, generator=twin, dtype=torch.float64).tolist()
    for i, ((u, v), score) in enumerate(zip(randoms, new, strict=True)):
        slot = next(k for k in range(6) if sum(expected[: k + 1]) > u * sum(expected))
        if v < expected[slot] / (expected[slot] + score):
            expected[slot], labels[slot] = float(np.float32(score)), 10 + i
    add(buffer, list(range(10, 18)), 0.5, new)
    assert buffer.scores.tolist() == pytest.approx(expected) and buffer.labels.tolist() == labels
    assert len(set(labels) - set(range(6))) >= 2


def test_nothing_is_written_while_the_mask_is_false_or_the_score_not_a_number() -> None:
    buffer = scored_buffer(3)
    add(buffer, [1, 2], 0.5, [0.5, 0.5])
    buffer.write_mask = torch.tensor(False)
    add(buffer, [3], 0.5, [0.5])
    buffer.write_mask = torch.tensor(True)
    add(buffer, [4], float("nan"), [0.5])
    assert content(buffer) == {1: 0.5, 2: 0.5}
    add(buffer, [5], 0.25, [0.5])
    assert content(buffer) == {1: 0.5, 2: 0.5, 5: 0.25}
    with pytest.raises(ValueError, match="give add_data sample_selection_scores"):
        buffer.add_data(examples=torch.zeros(1, 1, 1, 1))


def test_the_state_has_the_scores() -> None:
    buffer, other = scored_buffer(3), scored_buffer(3)
    add(buffer, [1, 2], 0.5, [0.5, 0.5])
    other.load_state_dict(buffer.state_dict())
    assert content(other) == {1: 0.5, 2: 0.5}
    add(other, [3], 0.75, [0.0])
    assert content(buffer) == {1: 0.5, 2: 0.5} and content(other) == {1: 0.5, 2: 0.5, 3: 0.75}
    plain = {name: value for name, value in buffer.state_dict().items() if name != "slot_scores"}
    other.load_state_dict(plain)  # of a method without scores
    assert content(other) == {1: 0.1, 2: 0.1}
    buffer.empty()
    add(buffer, [7], 0.1, [0.1])
    assert content(buffer) == {7: 0.1}


# -- the method --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", ["0", "1"])
def test_a_step_is_that_of_er_and_the_scores_are_taken_after_it(
    raw: str, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("gss", tmp_path, *BUFFER, *RESNET, "--gss_raw", raw, "--device", device.type)
    draws = record_draws(monkeypatch)
    batches = begin_task(model)
    model.observe(*batches[0])
    assert draws == [] and model.buffer.scores[:32].tolist() == pytest.approx([0.1] * 32)

    net = copy.deepcopy(model.net)
    inputs, labels, not_aug_inputs = batches[1]
    loss = model.observe(inputs, labels, not_aug_inputs)
    (replayed, replayed_labels), (compared, compared_labels) = draws
    images, targets = torch.cat((inputs, replayed)), torch.cat((labels, replayed_labels))
    expected = cross_entropy(net(images), targets)
    gradients = torch.autograd.grad(expected, list(net.parameters()))
    torch.testing.assert_close(loss, expected.detach())
    for new, old, gradient in zip(model.net.parameters(), net.parameters(), gradients, strict=True):
        assert torch.allclose(new, old - 0.03 * gradient, atol=1e-6)
    for name, value in model.net.named_buffers():  # BatchNorm has seen the step only
        assert torch.allclose(value, dict(net.named_buffers())[name]), name

    ready = not_aug_inputs if raw == "1" else (not_aug_inputs - 0.3058) / 0.3764
    assert compared.amin() == (0 if raw == "1" else pytest.approx(-0.3058 / 0.3764, abs=1e-3))
    after = copy.deepcopy(model.net).eval()
    scores = brute_force(after, (ready, labels), (compared, compared_labels))
    assert model.buffer.scores[32:].tolist() == pytest.approx([scores[0]] * 18, abs=1e-4)
    assert model.net.training


def test_the_number_of_images_compared_and_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("gss", tmp_path, *BUFFER, "--gss_minibatch_size", "7", "--batch_num", "3", "--minibatch_size", "5")
    draws = record_draws(monkeypatch)
    batches = begin_task(model)
    model.observe(*batches[0])
    before = model.net.get_params().clone()
    model.observe(*batches[1])
    assert [len(labels) for _, labels in draws] == [5, 5, 5, 7]
    assert not torch.equal(model.net.get_params(), before) and model.buffer.num_seen_examples == 64


def test_a_batch_larger_than_the_memory(tmp_path: Path) -> None:
    model = build("gss", tmp_path, "--buffer_size", "3")
    for batch in begin_task(model):
        model.observe(*batch)
    assert len(model.buffer) == 3 and (model.buffer.scores >= 0).all()


def test_a_masked_step_leaves_memory_alone(tmp_path: Path) -> None:
    """The GPU's way: the step is skipped on the device, and the run aborted later."""
    model = build("gss", tmp_path, *BUFFER)
    batches = begin_task(model)
    with NonFiniteGuard(model, on_device=True):
        model.meta_observe(*batches[0])
        before = copy.deepcopy(model.buffer.state_dict())
        inputs, labels, not_aug_inputs = batches[1]
        model.meta_observe(inputs * torch.nan, labels, not_aug_inputs)
        after = model.buffer.state_dict()
        assert torch.equal(after["fields"]["labels"], before["fields"]["labels"])
        assert np.array_equal(after["slot_scores"], before["slot_scores"]) and len(model.buffer) == 32
        model.meta_observe(*batches[1])
        assert len(model.buffer) == 50


def accuracies(method: str, directory: Path, *flags: str) -> list[float]:
    flags = ("--n_epochs", "2", "--lr", "0.03", *flags)
    return [run(directory / str(s), *flags, model=method, seed=s)[0]["class_il"]["FAA"] for s in SEEDS]


@pytest.mark.slow
def test_it_beats_fine_tuning(tmp_path: Path) -> None:
    base = accuracies("sgd", tmp_path / "sgd")
    found = accuracies("gss", tmp_path / "gss", "--buffer_size", "100")
    gains = [value - other for value, other in zip(found, base, strict=True)]
    assert sum(gains) / len(gains) > 9, gains


@pytest.mark.slow
def test_it_runs_with_channels_last_and_can_be_saved(tmp_path: Path) -> None:
    _, model, _ = run(tmp_path, *BUFFER, *RESNET, "-O", "1", "--n_epochs", "1", "--stop_after", "2", model="gss")
    assert uncapturable(model) == [] and model.buffer.is_full() and len(set(model.buffer.scores)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("flags", [RESNET, ["--task_free", "1", "--batch_num", "2"]], ids=" ".join)
def test_resume_is_exact(flags: list[str], tmp_path: Path) -> None:
    assert_exact_resume(Gss, tmp_path, *BUFFER, *flags, tasks=2)


def test_a_buffer_of_another_method_can_be_taken_over(tmp_path: Path) -> None:
    er = build("er", tmp_path, *BUFFER)
    for batch in begin_task(er)[:1]:
        er.observe(*batch)
    for given in (er.buffer, er.buffer.serialize()):
        model = build("gss", tmp_path, *BUFFER)
        model.load_buffer(given)
        assert isinstance(model.buffer, ScoredBuffer) and (model.buffer.scores == 0.1).all()
        assert torch.equal(model.buffer.labels, er.buffer.labels)


@pytest.mark.parametrize(
    ("dataset", "buffer_size"),
    [(name, size) for name in ("seq-cifar10", "seq-cifar100") for size in (500, 2000)]
    + [("seq-tinyimg", 2000), ("seq-tinyimg", 5000)],
)
def test_presets(dataset: str, buffer_size: int) -> None:
    flags = ["--model", "gss", "--dataset", dataset, "--buffer_size", str(buffer_size)]
    for config in ("best", "default"):
        args = parse_args([*flags, "--model_config", config])
        assert (args.lr, args.gss_minibatch_size, args.batch_num, args.gss_raw) == (0.03, 32, 1, False)
    with pytest.raises(UsageError, match="--gss_minibatch_size: 0 is out of range"):
        parse_args([*flags, "--gss_minibatch_size", "0"])
