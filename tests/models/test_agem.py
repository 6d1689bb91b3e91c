"""A-GEM and A-GEM-R: the projection, a step, what is stored, learning, presets, and exact resume."""

from __future__ import annotations

import copy
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from helpers import run, uncapturable
from method_helpers import RESNET, assert_exact_resume, begin_task, build, record_draws
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from datasets.seq_digits import SequentialDigits
from models.agem import Agem, project
from models.agem_r import AgemR
from models.utils.averaged_gem import project_gradients
from utils.cli.parse import parse_args
from utils.errors import UsageError
from utils.resume.guard import NonFiniteError

pytestmark = pytest.mark.numeric

BUFFER = ["--buffer_size", "50"]
SEEDS = range(5)


# -- the projection ----------------------------------------------------------------------------------------------------


def parameters_with(*gradients: Tensor | None) -> list[nn.Parameter]:
    made = []
    for gradient in gradients:
        made.append(nn.Parameter(torch.zeros(1) if gradient is None else torch.zeros_like(gradient)))
        made[-1].grad = gradient
    return made


@pytest.mark.parametrize(
    ("g", "h", "expected"),
    [
        ((3.0, -1.0), (-1.0, 1.0), (1.0, 1.0)),  # ⟨g, h⟩ = −4, ⟨h, h⟩ = 2: g + 2h, orthogonal to h
        ((0.3, -0.1), (0.1, 0.2), (0.3, -0.1)),  # no conflict
        ((1.0, 2.0), (-2.0, 1.0), (1.0, 2.0)),  # orthogonal already
        ((3.0, -1.0), (0.0, 0.0), (3.0, -1.0)),
    ],
)
def test_projection_by_hand(g: tuple, h: tuple, expected: tuple) -> None:
    """The two numbers belong to different parameters: products are over all of them."""
    assert torch.equal(project(torch.tensor(g), torch.tensor(h)), torch.tensor(expected))
    parameters = parameters_with(*(torch.tensor([value]) for value in g))
    project_gradients(parameters, [torch.tensor([value]) for value in h])
    assert [p.grad.item() for p in parameters] == pytest.approx(expected, abs=1e-6)
    if sum(a * b for a, b in zip(g, h, strict=True)) >= 0:
        assert all(torch.equal(p.grad, torch.tensor([value])) for p, value in zip(parameters, g, strict=True))


def test_what_has_no_gradient_counts_as_zero() -> None:
    parameters = parameters_with(torch.tensor([-2.0]), torch.tensor([5.0]), None, None)
    project_gradients(parameters, [torch.tensor([1.0]), None, torch.tensor([1.0]), None])
    # g = (−2, 5, 0, 0) and h = (1, 0, 1, 0): g + h
    assert [p.grad.item() for p in parameters[:3]] == [-1.0, 5.0, 1.0] and parameters[3].grad is None


def test_random_gradients_never_oppose_the_memory(device: torch.device) -> None:
    random = torch.Generator().manual_seed(0)
    conflicts = 0
    for _ in range(50):
        shapes = [(4, 3, 3, 3), (7,), (5, 2)]
        g, h = ([torch.randn(s, generator=random).to(device) for s in shapes] for _ in range(2))
        h[0] = h[0].contiguous(memory_format=torch.channels_last)
        flat_g, flat_h = (torch.cat([part.flatten() for part in vector]) for vector in (g, h))
        parameters = parameters_with(*(part.clone() for part in g))
        project_gradients(parameters, h)
        new = torch.cat([p.grad.flatten() for p in parameters])
        dot = flat_g @ flat_h
        if dot < 0:
            conflicts += 1
            assert abs(new @ flat_h) < 1e-4
            torch.testing.assert_close(new, flat_g - dot / (flat_h @ flat_h) * flat_h)
        else:
            assert torch.equal(new, flat_g)
    assert 10 < conflicts < 40


# -- a step ------------------------------------------------------------------------------------------------------------


def flat_gradient(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(cross_entropy(net(images), labels), net.parameters())])


# Some gradients of the deeper network do not oppose the buffer's.
DEEP = ["--backbone", "resnet18", "--num_filters", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["agem", "agem_r"])
@pytest.mark.parametrize("network", [[], DEEP], ids=["mlp", "resnet"])
def test_a_step_follows_the_projected_gradient(
    method: str, network: list[str], device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In train mode, stream and replay apart: so are also the running statistics of BatchNorm."""
    model = build(method, tmp_path, *BUFFER, *network, "--lr", "0.02", "--device", device.type)
    draws = record_draws(monkeypatch)
    for batch in begin_task(model):
        model.observe(*batch)
    model.meta_end_task(model.dataset)
    assert bool(draws) == (method == "agem_r")  # the first task has nothing to replay, but for the reservoir
    draws.clear()

    conflicts, batches = 0, begin_task(model)
    for inputs, labels, not_aug_inputs in batches:
        net, before = copy.deepcopy(model.net), model.net.get_params().detach().clone()
        terms = model.observe(inputs, labels, not_aug_inputs)
        images, targets = draws.pop()
        expected = {"loss": cross_entropy(copy.deepcopy(net)(inputs), labels)}
        g, h = flat_gradient(net, inputs, labels), flat_gradient(net, images, targets)
        conflict = bool(g @ h < 0)
        conflicts += conflict
        step = g - (g @ h) / (h @ h) * h if conflict else g
        torch.testing.assert_close(model.net.get_params().detach(), before - 0.02 * step, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(terms["loss"], expected["loss"].detach())
        assert not terms["loss"].requires_grad and not terms["loss_replay"].requires_grad and not draws
        for name, value in model.net.named_buffers():
            torch.testing.assert_close(value, dict(net.named_buffers())[name])
    assert conflicts > 0 and (conflicts < len(batches) or not network)


def test_frozen_and_unused_parameters(tmp_path: Path) -> None:
    model = build("agem_r", tmp_path, *BUFFER)
    model.net.fc1.requires_grad_(False)
    model.net.spare = nn.Parameter(torch.ones(3))
    batches = begin_task(model)
    before = copy.deepcopy(model.net.state_dict())
    for batch in batches[:3]:
        model.observe(*batch)
    changed = {name for name, value in model.net.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"fc2.weight", "fc2.bias", "classifier.weight", "classifier.bias"}


def test_a_nan_in_replay_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}
    transform = AgemR.replay_transform

    def poisoned(self):
        seen.update(model=self, net=copy.deepcopy(self.net.state_dict()), count=self.buffer.num_seen_examples)
        return (lambda images: images * torch.nan) if self.current_task else transform(self)

    monkeypatch.setattr(AgemR, "replay_transform", poisoned)
    with pytest.raises(NonFiniteError, match=r"loss = \d.*loss_replay = nan"):
        run(tmp_path, *BUFFER, "--n_epochs", "1", model="agem_r")
    model = seen["model"]
    assert all(torch.equal(value, seen["net"][name]) for name, value in model.net.state_dict().items())
    assert model.buffer.num_seen_examples == seen["count"]


# -- the buffer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--buffer_size", "53"], [11, 11, 11, 10, 10]),
        (["--buffer_size", "3"], [1, 1, 1, 0, 0]),
        (["--buffer_size", "2000"], [400] * 5),  # more than the tasks have: all of them
        (["--buffer_size", "200", "--agem_per_task", "32"], [32] * 5),
        (["--buffer_size", "2000", "--agem_per_task", "32"], [32] * 5),
    ],
    ids=lambda value: " ".join(value) if isinstance(value[0], str) else "",
)
def test_what_is_stored_of_each_task(flags: list[str], expected: list[int], tmp_path: Path) -> None:
    model = build("agem", tmp_path, *flags)
    for task, count in enumerate(expected):
        begin_task(model)
        before = len(model.buffer)
        model.meta_end_task(model.dataset)
        images = model.dataset.train_loader.dataset
        count = min(count, len(images))
        assert len(model.buffer) - before == count
        if count:
            new = slice(before, before + count)
            assert set((model.buffer.labels[new] // 2).tolist()) == {task}
            stored = sorted(tuple(x.flatten().tolist()) for x in model.buffer.examples[new])
            offered = sorted(tuple(x.permute(2, 0, 1).flatten().tolist()) for x in images.data)
            assert len(set(stored)) == count and set(stored) <= set(offered)  # no image twice


def test_more_than_fits_is_a_reservoir(tmp_path: Path) -> None:
    model = build("agem", tmp_path, "--buffer_size", "40", "--agem_per_task", "32")
    for _ in range(5):
        begin_task(model)
        model.meta_end_task(model.dataset)
    counts = (model.buffer.labels // 2).bincount(minlength=5).tolist()
    assert model.buffer.num_seen_examples == 160 and sum(counts) == 40 and min(counts) > 0 and max(counts) < 20


def test_the_reservoir_is_filled_at_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for raw in ("0", "1"):
        model = build("agem_r", tmp_path, "--buffer_size", "64", "--agem_raw", raw)
        draws = record_draws(monkeypatch)
        batches = begin_task(model)
        model.observe(*batches[0])
        assert model.buffer.num_seen_examples == 32 and torch.equal(model.buffer.labels[:32], batches[0][1])
        model.observe(*batches[1])
        images = draws[-1][0].flatten(1)
        stored = model.buffer.examples[:32].flatten(1) / 255  # the second batch went to other slots
        expected = stored if raw == "1" else (stored - 0.3058) / 0.3764
        assert (torch.cdist(images, expected).amin(1) < 0.01).all() and len(draws) == 1
        model.meta_end_task(model.dataset)
        assert model.buffer.num_seen_examples == 64


@pytest.mark.slow
def test_tasks_of_different_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SequentialDigits, "N_CLASSES_PER_TASK", [3, 1, 4, 2])
    monkeypatch.setattr(SequentialDigits, "N_TASKS", 4)
    for method in ("agem", "agem_r"):
        _, model, _ = run(tmp_path / method, "--buffer_size", "42", "--n_epochs", "1", "-O", "1", *RESNET, model=method)
        assert len(model.buffer) == 42 and uncapturable(model) == []
        if method == "agem":
            edges = torch.tensor([3, 4, 8])
            assert torch.bucketize(model.buffer.labels, edges, right=True).bincount().tolist() == [11, 11, 10, 10]


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sgd_forgetting(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return forgetting("sgd", tmp_path_factory.mktemp("sgd"))


def forgetting(method: str, directory: Path, *flags: str) -> list[float]:
    flags = ("--n_epochs", "2", "--lr", "0.03", *flags)
    return [run(directory / str(s), *flags, model=method, seed=s)[0]["class_il"]["FF"] for s in SEEDS]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "margin"), [("agem", 17), ("agem_r", 2)])
def test_it_forgets_less_than_fine_tuning(
    method: str, margin: float, sgd_forgetting: list[float], tmp_path: Path
) -> None:
    found = forgetting(method, tmp_path, "--buffer_size", "100")
    gains = [base - value for base, value in zip(sgd_forgetting, found, strict=True)]
    assert sum(gains) / len(gains) > margin, gains


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "flags"), [(Agem, []), (Agem, RESNET), (AgemR, []), (AgemR, ["--task_free", "1", "--agem_raw", "1"])]
)
def test_resume_is_exact(method: type, flags: list[str], tmp_path: Path) -> None:
    assert_exact_resume(method, tmp_path, *BUFFER, *flags, tasks=2)


def test_refusals() -> None:
    flags = ["--model", "agem", *BUFFER]
    with pytest.raises(UsageError, match="--task_free 1: agem needs task boundaries"):
        parse_args([*flags, "--task_free", "1"])
    with pytest.raises(ValueError, match=r"--task_free 1: agem needs task boundaries.*; use --model agem_r"):
        Agem.check_args(Namespace(task_free=True))
    assert parse_args(["--model", "agem_r", *BUFFER, "--task_free", "1"]).task_free
    with pytest.raises(UsageError, match="--agem_per_task 51: the buffer holds only --buffer_size 50 images"):
        parse_args([*flags, "--agem_per_task", "51"])
    with pytest.raises(UsageError, match="--agem_per_task: 0 is out of range"):
        parse_args([*flags, "--agem_per_task", "0"])


@pytest.mark.parametrize("method", ["agem", "agem_r"])
@pytest.mark.parametrize(
    ("dataset", "buffer_size", "lr"),
    [
        ("seq-cifar10", 500, 0.03),
        ("seq-cifar10", 2000, 0.03),
        ("seq-cifar100", 500, 0.03),
        ("seq-cifar100", 2000, 0.03),
        ("seq-tinyimg", 2000, 0.01),
        ("seq-tinyimg", 5000, 0.01),
    ],
)
def test_presets(method: str, dataset: str, buffer_size: int, lr: float) -> None:
    flags = ["--model", method, "--dataset", dataset, "--buffer_size", str(buffer_size)]
    assert parse_args([*flags, "--model_config", "best"]).lr == lr
    args = parse_args(flags)
    assert args.lr == 0.03 and not getattr(args, "agem_per_task", None) and not getattr(args, "agem_raw", False)
