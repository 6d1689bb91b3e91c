"""DER++: the loss of a step, the logits that are stored, presets, and exact resume."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import run, uncapturable
from method_helpers import RESNET, assert_exact_resume, assert_sgd_step, begin_task, build, record_draws

from models.derpp import Derpp
from utils.augmentations import to_uint8
from utils.cli.parse import parse_args
from utils.errors import UsageError
from utils.resume.guard import NonFiniteError

pytestmark = pytest.mark.numeric

BUFFER = ["--buffer_size", "50"]


def test_step_is_the_gradient_of_the_three_terms(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """θ ← θ − η ∇[ CE(B) + α · mean (f(R₁) − z)² + β · CE(R₂) ], each batch with its own BatchNorm statistics."""
    flags = ["--alpha", "0.3", "--beta", "0.7", "--device", device.type]
    model = build("derpp", tmp_path, *BUFFER, *RESNET, *flags)
    batches = begin_task(model)
    draws = record_draws(monkeypatch)
    first = model.observe(*batches[0])
    assert draws == [] and len(model.buffer) == 32  # nothing is drawn from an empty buffer
    assert (first["loss"], first["loss_mse"], first["loss_replay"]) == (first["loss_ce"], 0, 0)

    net = copy.deepcopy(model.net)
    terms = model.observe(*batches[1])
    expected = terms_by_hand(net, batches[1], draws)
    expected["loss"] = expected["loss_ce"] + 0.3 * expected["loss_mse"] + 0.7 * expected["loss_replay"]
    assert_sgd_step(model.net, net, terms, expected, lr=0.03)


def terms_by_hand(net: Any, batch: Any, draws: Any) -> dict[str, torch.Tensor]:
    inputs, labels, _ = batch
    (images1, _, stored), (images2, labels2, _) = draws
    assert not torch.equal(images1, images2)  # two draws
    outputs, outputs1, outputs2 = net(inputs), net(images1), net(images2)
    squares = [(outputs1[i, c] - stored[i, c]) ** 2 for i in range(len(stored)) for c in range(10)]
    return {
        "loss_ce": torch.stack([-outputs[i].log_softmax(0)[y] for i, y in enumerate(labels)]).mean(),
        "loss_mse": torch.stack(squares).sum() / (32 * 10),
        "loss_replay": torch.stack([-outputs2[i].log_softmax(0)[y] for i, y in enumerate(labels2)]).mean(),
    }


@pytest.mark.parametrize(("task", "v", "w"), [(0, 1, 1), (1, 288 / 576, 288 / 576), (2, 291 / 867, 576 / 867)])
def test_weighed_by_tasks(task: int, v: float, w: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """(1/t)·CE(B) + ((t−1)/t)·(α·MSE + β·CE(R₂)), by images: tasks 1 to 3 have 288, 288 and 291."""
    model = build("derpp", tmp_path, *BUFFER, *RESNET, "--alpha", "0.3", "--beta", "0.7", "--replay_weight", "tasks")
    for _ in range(task):
        model.observe(*begin_task(model)[0])
        model.meta_end_task(model.dataset)
    batches = begin_task(model)
    model.observe(*batches[0])
    net, draws = copy.deepcopy(model.net), record_draws(monkeypatch)
    terms = model.observe(*batches[1])
    expected = terms_by_hand(net, batches[1], draws)
    replay = 0.3 * expected["loss_mse"] + 0.7 * expected["loss_replay"]
    expected["loss"] = v * expected["loss_ce"] + w * replay
    assert_sgd_step(model.net, net, terms, expected, lr=0.03)


def test_the_stream_stores_train_mode_logits_from_before_the_update(tmp_path: Path) -> None:
    model = build("derpp", tmp_path, *BUFFER, *RESNET)
    inputs, labels, not_aug_inputs = begin_task(model)[0]
    expected = copy.deepcopy(model.net)(inputs).detach()
    model.observe(inputs, labels, not_aug_inputs)
    assert torch.equal(model.buffer.labels[:32], labels)
    assert torch.equal(model.buffer.examples[:32], to_uint8(not_aug_inputs))
    assert torch.allclose(model.buffer.logits[:32], expected, atol=1e-6)
    assert not torch.allclose(model.net(inputs), expected, atol=1e-3)  # after the update they are others


def test_task_end_stores_eval_mode_logits_of_the_final_parameters(tmp_path: Path) -> None:
    model = build("derpp", tmp_path, *BUFFER, *RESNET, "--buffer_fill", "task_end")
    for batch in begin_task(model):
        model.observe(*batch)
        assert model.buffer.is_empty()
    model.net.layer3.eval()  # modules may be in different modes
    before = copy.deepcopy(model.net)
    model.meta_end_task(model.dataset)

    for name, value in model.net.state_dict().items():
        assert torch.equal(value, before.state_dict()[name]), name
    modes = {name: module.training for name, module in model.net.named_modules()}
    assert modes == {name: module.training for name, module in before.named_modules()}
    assert modes["layer1"] and not modes["layer3.0.bn1"]

    images = model.dataset.train_loader.dataset
    assert model.buffer.num_seen_examples == len(images) == 288 and len(model.buffer) == 50
    rows = {tuple(image.flatten().tolist()) for image in images.data}
    assert all(tuple(image.permute(1, 2, 0).flatten().tolist()) in rows for image in model.buffer.examples)
    before.eval()
    normalised = (model.buffer.examples.float() / 255 - 0.3058) / 0.3764
    assert torch.allclose(model.buffer.logits, before(normalised), atol=1e-5)


@pytest.mark.slow
def test_it_beats_fine_tuning(tmp_path: Path) -> None:
    sgd = run(tmp_path / "sgd", "--n_epochs", "5", model="sgd")[0]["class_il"]
    for fill in ("stream", "task_end"):
        flags = ["--buffer_size", "200", "--n_epochs", "5", "--buffer_fill", fill]
        summary, model, _ = run(tmp_path / fill, *flags, model="derpp")
        assert summary["class_il"]["FAA"] > 60 > 25 > sgd["FAA"]
        assert model.buffer.logits.shape == (200, 10) and uncapturable(model) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [["--buffer_fill", "stream"], ["--buffer_fill", "task_end", *RESNET], ["--task_free", "1"]], ids=" ".join
)
def test_resume_is_exact(flags: list[str], tmp_path: Path) -> None:
    assert_exact_resume(Derpp, tmp_path, *BUFFER, *flags, tasks=2)


def test_a_nan_is_named_and_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    observe = Derpp.observe

    def poisoned(self, *batch, epoch=None):
        if self.current_task == 1:
            self.buffer.logits[:] = torch.nan
            seen.update(net=copy.deepcopy(self.net.state_dict()), count=self.buffer.num_seen_examples, model=self)
        return observe(self, *batch)

    monkeypatch.setattr(Derpp, "observe", poisoned)
    with pytest.raises(NonFiniteError, match=r"loss_ce = \d.*loss_mse = nan, loss_replay = \d.*loss = nan"):
        run(tmp_path, *BUFFER, "--n_epochs", "1", model="derpp")
    model = seen["model"]
    assert all(torch.equal(value, seen["net"][name]) for name, value in model.net.state_dict().items())
    assert model.buffer.num_seen_examples == seen["count"]


@pytest.mark.parametrize(
    ("dataset", "buffer_size", "alpha"),
    [
        ("seq-cifar10", 500, 0.2),
        ("seq-cifar10", 2000, 0.2),
        ("seq-cifar100", 500, 0.1),
        ("seq-cifar100", 2000, 0.1),
        ("seq-tinyimg", 2000, 0.1),
        ("seq-tinyimg", 5000, 0.1),
    ],
)
def test_presets(dataset: str, buffer_size: int, alpha: float) -> None:
    flags = ["--model", "derpp", "--dataset", dataset, "--buffer_size", str(buffer_size)]
    args = parse_args([*flags, "--model_config", "best"])
    assert (args.lr, args.alpha, args.beta, args.buffer_fill) == (0.03, alpha, 0.5, "stream")
    args = parse_args(flags)
    assert (args.lr, args.alpha, args.beta) == (0.03, 0.1, 0.5)
    with pytest.raises(UsageError, match="--alpha: -1 is out of range"):
        parse_args([*flags, "--alpha", "-1"])
