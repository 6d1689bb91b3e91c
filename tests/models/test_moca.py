"""MOCA: the cosine classifier, both perturbations against slow twins, which images get them, and exact resume."""

from __future__ import annotations

import copy
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import run, uncapturable
from method_helpers import PAPER_COLUMNS, RESNET, assert_exact_resume, begin_task, build, record_draws
from torch import Tensor, nn

from datasets.seq_digits import SequentialDigits
from models.moca import Moca
from models.moca_utils.cosine_head import CosineHead, direction
from utils.cli.parse import parse_args
from utils.errors import UsageError

pytestmark = pytest.mark.numeric

BUFFER = ["--buffer_size", "50"]
VARIANTS = ["wap", "gaussian"]


# -- the classifier ----------------------------------------------------------------------------------------------------


def test_cosine_head_by_hand() -> None:
    head = CosineHead(nn.Linear(2, 3))
    with torch.no_grad():
        head.weight[:] = torch.tensor([[2.0, 0.0], [0.0, 0.5], [3.0, 4.0]])
        head.scale.fill_(10)
    x = torch.tensor([[5.0, 0.0], [-1.0, 1.0], [0.3, 0.4], [0.0, 0.0]])
    half = math.sqrt(0.5)
    expected = torch.tensor([[10, 0, 6], [-10 * half, 10 * half, 2 * half], [6, 8, 10], [0, 0, 0]])
    torch.testing.assert_close(head(x), expected)


def test_cosine_head_takes_the_place_of_the_linear_layer(tmp_path: Path) -> None:
    linear = nn.Linear(7, 3)
    head = CosineHead(linear)
    assert (head.in_features, head.out_features, head.scale.item()) == (7, 3, 1.0)
    assert torch.equal(head.weight, linear.weight) and [name for name, _ in head.named_parameters()] == [
        "weight",
        "scale",
    ]
    for network in ([], RESNET):
        model = build("moca", tmp_path, *BUFFER, *network)
        batch = begin_task(model)[0]
        stepped = {id(p) for group in model.opt.param_groups for p in group["params"]}
        assert stepped == {id(p) for p in model.net.parameters()}
        model.observe(*batch)
        assert model.net.classifier.scale != 1
        outputs, features = model.net(batch[0], returnt="both")
        unit = [[x / x.norm() for x in rows] for rows in (features, model.net.classifier.weight)]
        cosines = torch.stack([torch.stack([u @ w for w in unit[1]]) for u in unit[0]])
        torch.testing.assert_close(outputs, model.net.classifier.scale * cosines)


# -- a step ------------------------------------------------------------------------------------------------------------


def second_task(tmp_path: Path, *flags: str, fill: int = 50) -> tuple[Moca, list[tuple[Tensor, ...]]]:
    """In the second task, in whose fourth step the buffer has images of both tasks."""
    model = build("moca", tmp_path, "--buffer_size", str(fill), *flags)
    for batch in begin_task(model)[:3]:
        model.observe(*batch)
    model.meta_end_task(model.dataset)
    batches = begin_task(model)
    for batch in batches[:3]:
        model.observe(*batch)
    assert set((model.buffer.labels // 2).tolist()) == {0, 1}
    return model, batches


def slow_wap(net: Any, images: Tensor, labels: Tensor, wrong: Tensor, lr: float, kappa: float) -> Tensor:
    """A copy of the network makes a step of SGD on the old images with wrong labels; their features there."""
    stepped = copy.deepcopy(net)
    optimizer = torch.optim.SGD(stepped.parameters(), lr=lr)
    outputs = stepped(images)
    losses = [-outputs[i].log_softmax(0)[wrong[i % len(wrong)]] for i in range(len(images)) if labels[i] < 2]
    (kappa * sum(losses) / len(losses)).backward()
    optimizer.step()
    return copy.deepcopy(stepped)(images, returnt="features").detach()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("short", [False, True], ids=["full", "short"])
def test_step_is_the_gradient_of_both_terms(
    variant: str, short: bool, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stream batch of 5 images the labels are repeated: 32 replayed images need as many."""
    flags = ["--moca_variant", variant, "--moca_lambda", "0.7", "--moca_kappa", "4", "--lr", "0.05"]
    model, batches = second_task(tmp_path, *RESNET, *flags, "--device", device.type)
    model.opt.param_groups[0]["lr"] = 0.04  # as a schedule would
    batch = tuple(field[:5] for field in batches[3]) if short else batches[3]
    net, draws = copy.deepcopy(model.net), record_draws(monkeypatch)
    generator = torch.Generator()
    generator.set_state(model.dataset.streams["moca"].get_state())
    terms = model.observe(*batch)
    ((images, labels),) = draws
    old = [bool(label < 2) for label in labels]
    assert len(labels) == 32 and any(old) and not all(old)
    if variant == "wap":
        noise = slow_wap(net, images, labels, batch[1], 0.04, 4.0)
    else:
        noise = torch.randn(32, 16, generator=generator).to(device)

    outputs, features, head = net(batch[0]), net(images, returnt="features"), net.classifier
    rows = []
    for u, n, is_old in zip(features, noise, old, strict=True):
        rows.append(u / u.norm() + 0.7 * n / n.norm() if is_old else u / u.norm())
        assert torch.allclose((rows[-1] - u / u.norm()).norm(), torch.tensor(0.7 * is_old, device=device), atol=1e-6)
    replayed = head(torch.stack(rows))
    expected = {
        "loss_stream": torch.stack([-outputs[i].log_softmax(0)[y] for i, y in enumerate(batch[1])]).mean(),
        "loss_replay": torch.stack([-replayed[i].log_softmax(0)[y] for i, y in enumerate(labels)]).mean(),
    }
    expected["loss"] = expected["loss_stream"] + expected["loss_replay"]
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], value.detach(), msg=name, atol=1e-5, rtol=1e-5)
        assert not terms[name].requires_grad
    gradients = torch.autograd.grad(expected["loss"], list(net.parameters()))
    for new, before, gradient in zip(model.net.parameters(), net.parameters(), gradients, strict=True):
        assert torch.allclose(new, before - 0.04 * gradient, atol=1e-5)
    for name, value in model.net.named_buffers():  # BatchNorm saw the stream and the replay batch, each once
        assert torch.allclose(value, dict(net.named_buffers())[name], atol=1e-6), name


def test_a_frozen_body_cannot_be_moved_to_perturb_features(tmp_path: Path) -> None:
    flags = ["--body_lr_scale", "0", "--stop_after", "2", "--lr", "0.1", "--n_epochs", "1", *BUFFER, *RESNET]
    with pytest.raises(
        UsageError, match=r"^--moca_variant wap[^\n]*--body_lr_scale 0[^\n]*use --moca_variant gaussian$"
    ):
        run(tmp_path, *flags, model="moca")
    summary, *_ = run(tmp_path, *flags, "--moca_variant", "gaussian", model="moca")
    assert summary["class_il"]["FAA"] > 25  # chance, over the four classes so far


def test_the_adversarial_step_leaves_no_trace(tmp_path: Path) -> None:
    model, batches = second_task(tmp_path, *RESNET)
    images, labels = model.buffer.get_data(32, transform=model.transform)
    features = model.net(images, returnt="features")
    model.opt.zero_grad()
    before = copy.deepcopy(model.net.state_dict())
    noise = model.adversarial_features(features, images, labels < 2, batches[3][1])
    assert not noise.requires_grad and not torch.allclose(noise, features)
    for name, value in model.net.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.net.parameters())
    untouched = model.adversarial_features(features, images, labels < 0, batches[3][1])  # no old image: no step
    torch.testing.assert_close(untouched, features)
    features.sum().backward()  # the graph of the pass is still there


def record_shifts(model: Moca, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """How far each replayed feature is moved, in each step from now on that perturbs any."""
    shifts: list[Tensor] = []
    perturb = model.perturb

    def recorded(features: Tensor, *rest: Tensor) -> Tensor:
        result = perturb(features, *rest)
        shifts.append((result - direction(features)).detach().norm(dim=1))
        return result

    monkeypatch.setattr(model, "perturb", recorded)
    return shifts


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("flags", "bounds"), [([], [0, 2, 4]), (["--moca_old_classes", "3"], [0, 3, 6])], ids=["P", "3"]
)
def test_only_images_of_past_classes_are_perturbed(
    variant: str, flags: list[str], bounds: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("moca", tmp_path, *BUFFER, "--moca_variant", variant, *flags)
    draws, seen = record_draws(monkeypatch), record_shifts(model, monkeypatch)
    for task, bound in enumerate(bounds):
        batches = begin_task(model)
        for batch in batches[:4]:
            draws.clear()
            seen.clear()
            model.observe(*batch)
            if task == 0:
                assert seen == []
                continue
            old = draws[0][1] < bound
            torch.testing.assert_close(seen[0], 1.5 * old.float(), atol=1e-5, rtol=1e-5)
        model.meta_end_task(model.dataset)
    assert old.sum() > 0 and (bound == 6 or not old.all())


@pytest.mark.parametrize("variant", VARIANTS)
def test_task_free_the_stream_tells_which_classes_are_present(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("moca", tmp_path, *BUFFER, "--moca_variant", variant, "--task_free", "1", "--moca_lambda", "0.5")
    draws, shifts, past = record_draws(monkeypatch), record_shifts(model, monkeypatch), []
    for _ in range(2):
        for inputs, labels, raw in list(model.dataset.get_data_loaders()[0])[:3]:
            model.meta_observe(inputs, labels, raw)
            if draws:
                old = torch.tensor([label not in labels for label in draws[-1][1]])
                torch.testing.assert_close(shifts[-1], 0.5 * old.float(), atol=1e-5, rtol=1e-5)
                past.append(int(old.sum()))
    assert past[:2] == [0, 0] and 0 < past[-1] < 32 and len(shifts) == 5


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_a_smallest_norm_a_zero_feature_is_nan_as_published(variant: str, tmp_path: Path) -> None:
    model, batches = second_task(tmp_path, "--moca_variant", variant, "--moca_raw_norm", "1")
    with torch.no_grad():
        model.net.fc2.bias.fill_(-1e3)
    assert model.observe(*batches[3])["loss_replay"].isnan()


@pytest.mark.parametrize("variant", VARIANTS)
def test_features_that_are_all_zero(variant: str, tmp_path: Path) -> None:
    """Dead ReLUs: every logit is 0, and nothing becomes NaN."""
    model, batches = second_task(tmp_path, "--moca_variant", variant)
    with torch.no_grad():
        model.net.fc2.bias.fill_(-1e3)
    terms = model.observe(*batches[3])
    assert all(value.isfinite() for value in terms.values())
    assert terms["loss_stream"].item() == pytest.approx(math.log(10))
    for name, p in model.net.named_parameters():
        assert p.isfinite().all() and p.grad is not None and p.grad.isfinite().all(), name
    if variant == "wap":  # its direction is 0 as well
        assert terms["loss_replay"].item() == pytest.approx(math.log(10))


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [["--moca_variant", "gaussian"], [*RESNET, "--batch_size", "70", "-O", "1"], ["--buffer_fill", "task_end"]],
    ids=" ".join,
)
def test_tasks_of_any_size_and_a_buffer_smaller_than_the_classes(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SequentialDigits, "N_CLASSES_PER_TASK", [3, 1, 4, 2])
    monkeypatch.setattr(SequentialDigits, "N_TASKS", 4)
    summary, model, _ = run(tmp_path, "--buffer_size", "7", "--n_epochs", "1", *flags, model="moca")
    assert len(model.buffer) == 7 and summary["class_il"]["FAIA"] > 0 and uncapturable(model) == []


@pytest.mark.slow
@pytest.mark.parametrize("task_free", ["0", "1"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_resume_is_exact(variant: str, task_free: str, tmp_path: Path) -> None:
    assert_exact_resume(Moca, tmp_path, *BUFFER, "--moca_variant", variant, "--task_free", task_free, tasks=2)


@pytest.mark.slow
def test_it_beats_fine_tuning(tmp_path: Path) -> None:
    flags, gains = ["--n_epochs", "2", "--lr", "0.1"], {variant: [] for variant in VARIANTS}  # type: ignore
    for seed in range(5):
        sgd, _, _ = run(tmp_path / f"sgd{seed}", *flags, model="sgd", seed=seed)
        for variant in VARIANTS:
            more = ["--buffer_size", "100", "--moca_variant", variant]
            moca, _, _ = run(tmp_path / f"{variant}{seed}", *flags, *more, model="moca", seed=seed)
            gains[variant].append(moca["class_il"]["FAA"] - sgd["class_il"]["FAA"])
    for variant in VARIANTS:
        assert statistics.mean(gains[variant]) > 30, variant


@pytest.mark.parametrize(("dataset", "size"), PAPER_COLUMNS)
def test_presets(dataset: str, size: int) -> None:
    flags = ["--model", "moca", "--dataset", dataset, "--buffer_size", str(size)]
    for section in ("default", "best"):
        args = parse_args([*flags, "--model_config", section])
        assert (args.lr, args.moca_variant, args.moca_lambda, args.moca_kappa) == (0.1, "wap", 1.5, 10)
        assert args.moca_old_classes is None and args.buffer_fill == "stream"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task_free", "1", "--moca_old_classes", "2"], "--moca_old_classes 2: a task-free run has no tasks"),
        (["--moca_variant", "wpa"], "--moca_variant: unknown value 'wpa'"),
        (["--moca_lambda", "-1"], "--moca_lambda: -1 is out of range"),
        (["--moca_old_classes", "0"], "--moca_old_classes: 0 is out of range"),
    ],
)
def test_refusals(flags: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_args(["--model", "moca", *BUFFER, *flags])
