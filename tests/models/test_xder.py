"""X-DER: each loss term against a slow twin, what happens to the buffer, odd task sizes, and exact resume."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import run, uncapturable
from method_helpers import RESNET, assert_exact_resume, begin_task, build, record_draws
from torch import nn

from datasets.seq_digits import SequentialDigits
from models.utils.exemplars import draw_balanced, keep_first_of_each
from models.xder import XDer
from models.xder_utils.losses import future_constraint, graft, past_constraint
from models.xder_utils.stored_logits import Replay
from utils.batch_norm import bn_track_stats
from utils.buffer import Buffer
from utils.cli.parse import parse_args
from utils.errors import UsageError
from utils.simclrloss import SupConLoss

pytestmark = pytest.mark.numeric

BUFFER = ["--buffer_size", "50"]
TERMS = ("loss", "loss_stream", "loss_mse", "loss_replay", "loss_contrast", "loss_past", "loss_future")


# -- functions of logits -----------------------------------------------------------------------------------------------


def slow_contrast(z: torch.Tensor, labels: torch.Tensor, temperature: float, one: bool = False) -> torch.Tensor:
    """Loss per image: the mean over its anchors, every sum written out. z [B, views, D]."""
    images, views = z.shape[:2]
    everything = [(i, v) for i in range(images) for v in range(views)]
    losses = []
    for i in range(images):
        anchors = []
        for v in range(1 if one else views):
            e = {(j, w): (z[i, v] @ z[j, w] / temperature).exp() for j, w in everything if (j, w) != (i, v)}
            logs = [(value / sum(e.values())).log() for (j, _), value in e.items() if labels[j] == labels[i]]
            anchors.append(-sum(logs) / len(logs))
        losses.append(sum(anchors) / len(anchors))
    return torch.stack(losses)


@pytest.mark.parametrize(("views", "mode"), [(2, "all"), (3, "all"), (3, "one")])
def test_supervised_contrastive_loss(views: int, mode: str) -> None:
    z = F.normalize(torch.randn(5, views, 4, generator=torch.Generator().manual_seed(0)), dim=2)
    labels = torch.tensor([3, 1, 3, 3, 0])
    for given in (labels, None):
        reference = slow_contrast(z, torch.arange(5) if given is None else given, 0.5, one=mode == "one")
        for reduction, expected in (("none", reference), ("mean", reference.mean()), ("sum", reference.sum())):
            loss = SupConLoss(0.5, mode, base_temperature=0.5, reduction=reduction)(z, given)
            torch.testing.assert_close(loss, expected)
    scaled = SupConLoss(0.5, mode, base_temperature=0.25)(z, labels)
    torch.testing.assert_close(scaled, 2 * SupConLoss(0.5, mode, base_temperature=0.5)(z, labels))


@pytest.mark.parametrize("wrong", [{"contrast_mode": "some"}, {"reduction": "max"}])
def test_the_contrastive_loss_refuses_unknown_names(wrong: dict[str, str]) -> None:
    (value,) = wrong.values()
    with pytest.raises(ValueError, match=f"{value!r} unknown"):
        SupConLoss(**wrong)


def test_the_contrastive_loss_needs_views() -> None:
    with pytest.raises(ValueError, match=r"\[B, views, D\], got \(4, 3\)"):
        SupConLoss()(torch.zeros(4, 3))


def test_an_anchor_without_positives_counts_as_zero() -> None:
    z = torch.randn(3, 1, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = SupConLoss(1.0, reduction="none")(z, torch.tensor([0, 1, 1]))
    loss.sum().backward()
    assert loss[0] == 0 and (loss[1:] > 0).all() and z.grad is not None and z.grad.isfinite().all()


def test_graft_by_hand() -> None:
    """Columns 2 and 3 are grafted; γ = 0.5."""
    old = torch.tensor([[8.0, 1, 0, 0, 9], [1, 4, 0, 0, 9], [-2, 1, 0, 0, 9], [8, -1, 7, 7, 9], [-4, 1, 7, 7, 9]])
    new = torch.tensor([[5.0, 5, 6, -2, 5], [5, 5, 8, -2, 5], [5, 5, 3, -1, 5], [5, 5, -3, 0, 5], [5, 5, -3, -1, 5]])
    expected = torch.tensor(
        [
            [8.0, 1, 6, -2, 9],  # 6 is below the true class's 8: as it is
            [1, 4, 2, -0.5, 9],  # 8 is above 4: times 0.5 · 4 / 8
            [-2, 1, 0, 0, 9],  # above a true logit that is negative: no change of signs
            [8, -1, 0, 0, 9],  # the same with 0 as the highest: no division by it
            [-4, 1, -3, -1, 9],  # no factor above 1
        ]
    )
    before = old.clone()
    assert torch.equal(graft(old, new, torch.tensor([0, 1, 0, 1, 0]), slice(2, 4), 0.5), expected)
    assert torch.equal(old, before)


def test_grafted_logits_stay_below_the_true_class() -> None:
    random = torch.Generator().manual_seed(0)
    old, new = (5 * torch.randn(300, 10, generator=random) for _ in range(2))
    labels = torch.randint(4, (300,), generator=random)
    grafted = graft(old, new, labels, slice(4, None), 0.85)
    truth, highest = old.gather(1, labels[:, None])[:, 0], new[:, 4:].amax(1)
    assert torch.equal(grafted[:, :4], old[:, :4])
    assert torch.equal(grafted[highest <= truth, 4:], new[highest <= truth, 4:])
    scaled = (truth > 0) & (highest > truth)
    torch.testing.assert_close(grafted[scaled, 4:], new[scaled, 4:] * (0.85 * truth / highest)[scaled, None])
    torch.testing.assert_close(grafted[scaled, 4:].amax(1), 0.85 * truth[scaled])
    assert scaled.sum() > 40 < (highest <= truth).sum()


def test_past_constraint() -> None:
    """6 outputs: 2 past, 2 current, 2 future; only violators count, and the past has no gradient."""
    outputs = torch.tensor([[2.0, 0, 1, 0, 9, 9], [0, 0, 5, 0, 9, 9], [1, 0, 0, 1.5, 9, 9]], requires_grad=True)
    losses = []
    for row in outputs:
        weights = [math.exp(value) for value in row[:4].tolist()]
        losses.append((max(weights[:2]) - max(weights[2:])) / sum(weights) + 0.3)
    assert losses[0] > 0 > losses[1] and losses[2] > 0
    loss = past_constraint(outputs, 2, 4, 0.3)
    assert loss.item() == pytest.approx((losses[0] + losses[2]) / 2)
    (gradient,) = torch.autograd.grad(loss, outputs)
    good = outputs[:, :4].softmax(1)[:, 2:].amax(1)
    (expected,) = torch.autograd.grad(-(good[0] + good[2]) / 2, outputs)
    torch.testing.assert_close(gradient, expected)
    assert (gradient[1] == 0).all() and (gradient[:, 4:] == 0).all()


def test_future_constraint() -> None:
    """Classes 4 and 5 are future; rows are of the tasks {0, 1}, {2, 3}, {2, 3}, {0, 1}; the last is a duplicate."""
    outputs = torch.tensor(
        [[1.0, 2, 9, 9, 1, 0], [9, 9, 1, 5, 1, 2], [9, 9, 1, 0, 2, 3], [1, 2, 9, 9, 7, 0]], requires_grad=True
    )
    first, second = [True, True, False, False, False, False], [False, False, True, True, False, False]
    own_head = torch.tensor([first, second, second, first])
    counted = torch.tensor([True, True, True, False])
    loss = future_constraint(outputs, own_head, 4, 1.5, counted)
    # 1 + 1.5 − 2 = 0.5;  2 + 1.5 − 5 < 0;  3 + 1.5 − 1 = 3.5;  the last would be 6.5
    assert loss.item() == 2.0
    assert future_constraint(outputs, own_head, 4, 1.5).item() == 3.5
    (gradient,) = torch.autograd.grad(loss, outputs)
    expected = torch.zeros(4, 6)
    expected[[0, 2], [4, 5]], expected[[0, 2], [1, 2]] = 0.5, -0.5
    assert torch.equal(gradient, expected)


def test_no_violators_is_zero_and_not_nan() -> None:
    outputs = torch.tensor([[0.0, 0, 9, 0, 1, 1]], requires_grad=True)
    own_head = torch.tensor([[False, False, True, True, False, False]])
    for loss in (past_constraint(outputs, 2, 4, 0.3), future_constraint(outputs, own_head, 4, 0.3)):
        (gradient,) = torch.autograd.grad(loss, outputs)
        assert loss == 0 and (gradient == 0).all()


def test_bn_track_stats() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)))
    x = torch.randn(8, 3)
    for condition, batches in ((False, 0), (True, 1)):
        expected = net[1](net[0](x)) if condition else nn.BatchNorm1d(4)(net[0](x))
        net[1].reset_running_stats()
        with pytest.raises(KeyError), bn_track_stats(net, condition):
            assert torch.allclose(net[1](net[0](x)), expected)  # normalised by the batch in any case
            raise KeyError
        assert net[1].num_batches_tracked == batches and (net[1].running_mean == 0).all() == (not condition)
        assert net[1].track_running_stats and not net[2][0].track_running_stats
    net.eval()
    with bn_track_stats(net[:2], False):
        assert torch.allclose(net[:2](x), net[1](net[0](x)))


# -- the buffer --------------------------------------------------------------------------------------------------------


def test_quotas() -> None:
    labels = torch.arange(600) % 6
    counts = []
    for seed in range(60):
        rows = draw_balanced(labels, range(2, 6), 23, torch.Generator().manual_seed(seed))
        count = torch.bincount(labels[rows], minlength=6).tolist()
        assert len(set(rows.tolist())) == 23 and sorted(count) == [0, 0, 5, 6, 6, 6] and count[:2] == [0, 0]
        assert not torch.equal(labels[rows].sort().values, labels[rows])  # classes are mixed
        counts.append(count.index(5))
    assert set(counts) == {2, 3, 4, 5}  # which class gets one less is random
    rare = torch.tensor([0, 1, 1, 1, 1, 1])
    rows = draw_balanced(rare, range(2), 8, torch.Generator().manual_seed(0))
    assert torch.bincount(rare[rows]).tolist() == [1, 4]


def test_keep_first_of_each() -> None:
    buffer = Buffer(10, image_dtype=torch.uint8)
    keep_first_of_each(buffer, 2, 2)  # nothing is stored yet
    images = torch.arange(8, dtype=torch.uint8).view(8, 1, 1, 1)
    labels, logits = torch.tensor([1, 0, 1, 2, 1, 0, 0, 2]), torch.arange(16.0).view(8, 2)
    buffer.add_data(images, labels, logits, task_labels=labels // 2)
    keep_first_of_each(buffer, 2, 2)
    assert buffer.num_seen_examples == len(buffer) == 4
    assert buffer.examples[:4].flatten().tolist() == [1, 5, 0, 2]
    assert buffer.labels[:4].tolist() == [0, 0, 1, 1]
    assert torch.equal(buffer.logits[:4], logits[[1, 5, 0, 2]])
    keep_first_of_each(buffer, 2, 0)
    assert buffer.is_empty()


def train_task(model: XDer, steps: int = 2) -> None:
    for batch in begin_task(model)[:steps]:
        model.observe(*batch)


def test_memory_is_balanced_at_the_end_of_each_task(tmp_path: Path) -> None:
    """M = 23. Past classes have ⌊23 / seen⌋ images each, the two new ones share what is left."""
    model = build("xder", tmp_path, "--buffer_size", "23")
    buffer, old = model.buffer, {}
    for task, (past, *new) in enumerate([(0, 11, 12), (5, 6, 7), (3, 5, 6), (2, 5, 6), (2, 3, 4)]):
        train_task(model)
        model.meta_end_task(model.dataset)
        counts = torch.bincount(buffer.labels).tolist()
        assert counts[:-2] == [past] * (2 * task) and sorted(counts[-2:]) == new
        assert len(buffer) == buffer.num_seen_examples == len(buffer.labels) == 23
        assert torch.equal(buffer.task_labels, buffer.labels // 2) and buffer.examples.dtype == torch.uint8
        images = {label: buffer.examples[buffer.labels == label].flatten(1).tolist() for label in range(2 * task + 2)}
        for label in range(2 * task):
            assert images[label] == old[label][:past]
        old = images


def slow_graft(old: torch.Tensor, new: torch.Tensor, label: int, heads: range, gamma: float) -> torch.Tensor:
    result, highest = old.clone(), max(new[c].item() for c in heads)
    assert old[label] > 0 or highest <= old[label]
    factor = gamma * old[label] / highest if highest > old[label] else 1.0
    for c in heads:
        result[c] = new[c] * factor
    return result


def test_what_is_recorded_at_the_end_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New images: train-mode outputs, past heads lowered. Past images: heads 1, 2, … grafted, head 0 as it was."""
    model = build("xder", tmp_path, *BUFFER, *RESNET, "--gamma", "0.5")
    train_task(model)
    with torch.no_grad():
        model.net.classifier.bias[:] = torch.tensor([3.0, 3, *[0] * 8])
    model.meta_end_task(model.dataset)
    kept, kept_logits = model.buffer.examples.clone(), model.buffer.logits.clone()
    train_task(model, steps=0)
    with torch.no_grad():
        model.net.classifier.bias[:] = torch.tensor([6.0, 0, 3, 3, *[5] * 6])  # true logits > 0, lower than others
    model.net.layer3.eval()  # modules may be in different modes
    before = copy.deepcopy(model.net)
    model.meta_end_task(model.dataset)

    for name, value in model.net.state_dict().items():  # BatchNorm's statistics among them
        assert torch.equal(value, before.state_dict()[name]), name
    modes = [module.training for module in model.net.modules()]
    assert modes == [module.training for module in before.modules()] and not all(modes)

    # 50 // 4 = 12 of the old classes each, then 26 new ones, recorded in one batch of at most 32.
    examples, labels, logits = model.buffer.examples, model.buffer.labels, model.buffer.logits
    assert (labels[:24] < 2).all() and (labels[24:] >= 2).all()
    outputs = before.train()((examples[24:].float() / 255 - 0.3058) / 0.3764).detach()
    for z, output, label in zip(logits[24:], outputs, labels[24:].tolist(), strict=True):
        torch.testing.assert_close(z, slow_graft(output, output, label, range(2), 0.5), atol=1e-4, rtol=1e-4)
    assert (logits[24:, :2].amax(1) < logits[24:].gather(1, labels[24:, None])[:, 0]).all()

    old = {tuple(x.flatten().tolist()): z for x, z in zip(kept, kept_logits, strict=True)}
    for x, z, label in zip(examples[:24], logits[:24], labels[:24], strict=True):
        stored = old[tuple(x.flatten().tolist())]
        assert torch.equal(z[:2], stored[:2]) and not torch.isclose(z[2:], stored[2:]).any()
        torch.testing.assert_close(z[2:].amax(), 0.5 * stored[label])  # future logits were above the true one


def test_logits_are_renewed_with_probability_one_over_the_number_of_draws(tmp_path: Path) -> None:
    model = build("xder", tmp_path, "--buffer_size", "288")
    train_task(model)
    model.meta_end_task(model.dataset)
    begin_task(model)
    buffer, stored, changes = model.buffer, model.buffer.logits.clone(), 0
    marker = torch.full((288, 10), -100.0)
    replay = Replay(torch.arange(288), marker, buffer.labels, stored, buffer.task_labels, torch.ones(288).bool())
    for _ in range(10):
        model.draws[:], buffer.logits[:] = 3, stored
        model.renew_logits([replay])
        changed = buffer.logits[:, 2:] == -100
        assert torch.equal(changed.any(1), changed.all(1)) and torch.equal(buffer.logits[:, :2], stored[:, :2])
        assert (model.draws == 4).all()
        changes += int(changed[:, 0].sum())
    assert abs(changes - 2880 / 4) < 4 * math.sqrt(2880 * 3 / 16)

    buffer.logits[:], buffer.write_mask = stored, torch.tensor(False)  # after a step that was not finite
    model.draws.zero_()
    model.renew_logits([replay])
    assert torch.equal(buffer.logits, stored)
    model.meta_begin_task(model.dataset)
    assert (model.draws == 0).all()


# -- a step ------------------------------------------------------------------------------------------------------------


def slow_losses(net: nn.Module, batch: Any, draws: Any, views: torch.Tensor, margin: float) -> dict[str, torch.Tensor]:
    """The terms of a step in task 2 of 5 of the digits (P = 2, heads of two classes), image by image."""
    inputs, labels, _ = batch
    (rows1, images1, _, stored, _), (rows2, images2, labels2, _, _), (_, scl_labels, *_) = draws
    outputs, outputs1, outputs2 = net(inputs), net(images1), net(images2)
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    contrast = torch.func.functional_call(net, (dict(net.named_parameters()), buffers), views).view(-1, 2, 10)
    scl_labels = torch.cat([labels[:4], scl_labels])
    past, future = [], []
    for output in outputs:
        p = output[:4].softmax(0)
        past.append(p[:2].max().detach() + margin - p[2:].max())
        future.append(output[4:].max() + margin - output[2:4].max())
    distinct = [*outputs1, *(o for row, o in zip(rows2, outputs2, strict=True) if row not in rows1)]
    future += [output[4:].max() + margin - output[:2].max() for output in distinct]
    assert len(rows1) < len(distinct) < len(rows1) + len(rows2)
    violators = [[v for v in violations if v > 0] for violations in (past, future)]
    assert all(violators) and len(violators[1]) < len(future)
    heads = [slow_contrast(F.normalize(contrast[..., c : c + 2], dim=2), scl_labels, 5.0) for c in (4, 6, 8)]
    stream = [-o[2:4].log_softmax(0)[y - 2] for o, y in zip(outputs, labels, strict=True)]
    replay = [-o[:2].log_softmax(0)[y] for o, y in zip(outputs2, labels2, strict=True)]
    return {
        "loss_stream": torch.stack(stream).mean(),
        "loss_mse": ((outputs1 - stored) ** 2).sum() / (len(rows1) * 10),
        "loss_replay": torch.stack(replay).mean(),
        "loss_contrast": torch.stack(heads).sum() / (3 * 8),
        "loss_past": torch.stack(violators[0]).mean(),
        "loss_future": torch.stack(violators[1]).mean(),
    }


@pytest.mark.parametrize(("replay_weight", "share"), [("batch", 1.0), ("tasks", 0.5)])
def test_step_is_the_gradient_of_all_terms(
    replay_weight: str, share: float, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tasks` halves the terms of the stream and of the buffer in the second of two tasks of a size, and no others."""
    weights = {"alpha": 0.3, "beta": 0.7, "lambd": 0.4, "eta": 0.2, "m": 0.1}
    flags = [text for name, value in weights.items() for text in (f"--{name}", str(value))]
    flags += ["--simclr_batch_size", "4", "--device", device.type, "--replay_weight", replay_weight]
    model = build("xder", tmp_path, *BUFFER, *RESNET, *flags)
    train_task(model)
    model.meta_end_task(model.dataset)
    batch = begin_task(model)[0]
    net, stored = copy.deepcopy(model.net), model.buffer.logits.clone()
    views: list[torch.Tensor] = []
    strong_views = type(model.strong_views).__call__
    monkeypatch.setattr(
        type(model.strong_views), "__call__", lambda self, x: views.append(strong_views(self, x)) or views[-1]
    )
    draws = record_draws(monkeypatch)
    terms = model.observe(*batch)

    # First the draw for the logits, then the one for the labels, then the raw images for the contrast.
    assert [len(draw) for draw in draws] == [5, 5, 4] and [len(draw[0]) for draw in draws] == [32, 32, 4]
    assert draws[2][0].min() >= 0 and draws[2][0].max() <= 1 and draws[1][1].min() < 0
    expected = slow_losses(net, batch, draws, views[0], weights["m"])
    factors = dict(zip(expected, (share, 0.3 * share, 0.7 * share, 0.4, 0.2, 0.2), strict=True))
    expected["loss"] = sum(
        (factor * expected[name] for name, factor in factors.items()), torch.zeros((), device=device)
    )
    assert set(terms) == set(expected) == set(TERMS)
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], value.detach(), msg=name)
    gradients = torch.autograd.grad(expected["loss"], list(net.parameters()))
    for new, previous, gradient in zip(model.net.parameters(), net.parameters(), gradients, strict=True):
        assert torch.allclose(new, previous - 0.03 * gradient, atol=1e-6)
    for name, value in model.net.named_buffers():  # three updates of BatchNorm, none by the strong views
        assert torch.allclose(value, dict(net.named_buffers())[name]), name

    # At its first draw an image always gets its present logits for the heads from the current one on.
    drawn = set(draws[0][0].tolist()) | set(draws[1][0].tolist())
    changed = (model.buffer.logits != stored).cpu()
    assert set(changed.any(1).nonzero()[:, 0].tolist()) == drawn == set(model.draws.nonzero()[:, 0].tolist())
    assert not changed[:, :2].any() and model.draws.max() == 1
    outputs = dict(zip(draws[1][0].tolist(), copy.deepcopy(net)(draws[1][1]), strict=True))
    outputs |= dict(zip(draws[0][0].tolist(), copy.deepcopy(net)(draws[0][1]), strict=True))  # R₁'s are taken
    for row, output in outputs.items():
        new = graft(stored[row][None], output[None], model.buffer.labels[row][None], slice(2, None), 0.85)
        torch.testing.assert_close(model.buffer.logits[row], new[0].detach(), atol=1e-4, rtol=1e-4)


def test_weighed_by_tasks(tmp_path: Path) -> None:
    """(1/t)·CE + ((t−1)/t)·(α·MSE + β·CE), by images: tasks 1 to 3 have 288, 288 and 291. The other terms stay."""
    flags = ["--alpha", "0.3", "--beta", "0.7", "--lambd", "0.4", "--eta", "0.2", "--replay_weight", "tasks"]
    model = build("xder", tmp_path, *BUFFER, *flags)
    for v, w in ((1, 1), (288 / 576, 288 / 576), (291 / 867, 576 / 867)):
        for batch in begin_task(model)[:2]:
            terms = model.observe(*batch)
        expected = v * terms["loss_stream"] + w * (0.3 * terms["loss_mse"] + 0.7 * terms["loss_replay"])
        expected += 0.4 * terms["loss_contrast"] + 0.2 * (terms["loss_past"] + terms["loss_future"])
        torch.testing.assert_close(terms["loss"], expected)
        assert bool(terms["loss_mse"]) == bool(terms["loss_replay"]) == (model.current_task > 0)
        model.meta_end_task(model.dataset)


def test_switches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--past_constraint", "0", "--future_constraint", "0", "--lambd", "0"]
    model = build("xder", tmp_path, *BUFFER, *flags)
    train_task(model)
    model.meta_end_task(model.dataset)
    batch = begin_task(model)[0]
    draws = record_draws(monkeypatch)
    terms = model.observe(*batch)
    assert len(draws) == 2 and (terms["loss_past"], terms["loss_future"], terms["loss_contrast"]) == (0, 0, 0)
    torch.testing.assert_close(
        terms["loss"], terms["loss_stream"] + 0.3 * terms["loss_mse"] + 0.8 * terms["loss_replay"]
    )


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("network", [[], [*RESNET, "--batch_size", "70"]], ids=["mlp", "resnet"])
def test_tasks_of_any_size_and_a_buffer_smaller_than_the_classes(
    network: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [3, 1, 4, 2]
    monkeypatch.setattr(SequentialDigits, "N_CLASSES_PER_TASK", sizes)
    monkeypatch.setattr(SequentialDigits, "N_TASKS", 4)
    flags = ["--buffer_size", "7", "--n_epochs", "1", *network]
    _, model, directory = run(tmp_path, *flags, model="xder")
    assert len(model.buffer) == 7 and model.task_of_class.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 3, 3]
    events = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    train = [event for event in events if event["event"] == "train"]
    assert [event["task"] for event in train] == [1, 2, 3, 4]
    for event in train:
        used = {name for name in TERMS if any(event[name])}
        first, last = event["task"] == 1, event["task"] == 4
        assert not used & {"loss_mse", "loss_replay", "loss_past"} if first else used >= {"loss_mse", "loss_replay"}
        assert not used & {"loss_contrast", "loss_future"} if last else used >= {"loss_contrast", "loss_future"}
        # A head of one class is always right.
        assert ("loss_stream" in used) == (event["task"] != 2)
        assert all(math.isfinite(value) for name in TERMS for value in event[name])
    assert torch.bincount(model.buffer.labels, minlength=10)[8:].sum() == 7  # ⌊7 / 10⌋ = 0 of each past class


@pytest.mark.slow
def test_it_beats_fine_tuning(tmp_path: Path) -> None:
    sgd = run(tmp_path / "sgd", "--n_epochs", "3", model="sgd")[0]["class_il"]
    summary, model, _ = run(tmp_path / "xder", "--buffer_size", "200", "--n_epochs", "3", model="xder")
    assert summary["class_il"]["FAA"] > 60 > 25 > sgd["FAA"]
    assert model.buffer.logits.shape == (200, 10) and uncapturable(model) == []


@pytest.mark.slow
@pytest.mark.parametrize(("network", "tasks"), [([], 3), (RESNET, 2)], ids=["mlp", "resnet"])
def test_resume_is_exact(network: list[str], tasks: int, tmp_path: Path) -> None:
    assert_exact_resume(XDer, tmp_path, *BUFFER, *network, tasks=tasks)


HALF_THOUSAND, THOUSANDS = (0.03, 0.3, 0.8, 0.7, 0.001), (0.03, 0.6, 0.9, 0.2, 0.01)


@pytest.mark.parametrize(
    ("dataset", "buffer_size", "expected"),
    [
        ("seq-cifar10", 500, HALF_THOUSAND),
        ("seq-cifar10", 2000, THOUSANDS),
        ("seq-cifar100", 500, HALF_THOUSAND),
        ("seq-cifar100", 2000, THOUSANDS),
        ("seq-tinyimg", 2000, THOUSANDS),
        ("seq-tinyimg", 5000, THOUSANDS),
    ],
)
def test_presets(dataset: str, buffer_size: int, expected: tuple[float, ...]) -> None:
    flags = ["--model", "xder", "--dataset", dataset, "--buffer_size", str(buffer_size)]
    args = parse_args([*flags, "--model_config", "best"])
    assert (args.lr, args.alpha, args.beta, args.m, args.eta) == expected
    assert (args.gamma, args.lambd, args.simclr_temp, args.simclr_batch_size, args.simclr_num_aug) == (
        0.85, 0.05, 5, 64, 2)  # fmt: skip
    assert args.past_constraint and args.future_constraint
    with pytest.raises(UsageError, match="--task_free 1: xder needs task boundaries"):
        parse_args([*flags, "--task_free", "1"])
