"""DGC against its equations, and what it must leave alone."""

from __future__ import annotations

import contextlib
import math
import random
from argparse import Namespace
from collections.abc import Callable
from functools import cache, partial
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
    TaskFreeComparison,
    batch_with_past,
    batches,
    begun,
    build,
    compare,
    flat,
    state,
)
from helpers import RESULT_FILES, assert_same_run, run
from method_helpers import RESNET, Killed, kill_at
from torch import Tensor, nn

from models.dgc_er import DgcEr
from models.utils import dgc_mixin
from models.utils.dgc_estimators import TaskFreeSampled
from models.utils.dgc_gradients import mean_gradient, padded
from models.utils.dgc_reference import Sampled
from utils.cli.parse import parse_args
from utils.errors import UsageError
from utils.training import train

BASES = ["er", "derpp", "xder"]
VARIANTS = [
    ["sampled"],
    ["sampled", "--dgc_view", "plain"],
    ["sampled", "--dgc_current", "1"],
    ["sampled", "--dgc_view", "plain", "--dgc_current", "1"],
    ["sampled", "--dgc_stage", "buffer"],
    ["sampled", "--replay_weight", "tasks", "--dgc_current", "1"],
    ["closed"],
    ["closed", "--replay_weight", "tasks"],
    ["released"],
]

pytestmark = pytest.mark.numeric


# -- every step against the equations ----------------------------------------------------------------------------------


ON_EVERY_BASE = [0, 2, 6, 8]
PAIRS = [*(("er", v) for v in VARIANTS), *((base, VARIANTS[i]) for base in BASES[1:] for i in ON_EVERY_BASE)]


@pytest.mark.parametrize(
    ("base", "variant"),
    [pytest.param(*p, marks=[] if p in [("er", [e]) for e in ESTIMATORS] else pytest.mark.slow) for p in PAIRS],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_every_step_agrees_with_the_reference(base: str, variant: list[str], tmp_path: Path) -> None:
    estimator, *flags = variant
    flags = ["--dgc_estimator", estimator, *flags, "--stop_after", "3"]
    model, dataset, args = build(tmp_path, *flags, model=f"dgc_{base}", double=True)
    comparison = compare(model, estimator)
    train(model, dataset, args)
    assert comparison.tasks == 3 and comparison.corrected == (3 if args.dgc_current else 2) * STEPS


@pytest.mark.parametrize("variant", [["sampled"], ["sampled", "--dgc_current", "1"], ["closed"], ["released"]], ids=str)
def test_single_precision_differs_by_its_rounding(variant: list[str], tmp_path: Path) -> None:
    """The same passes in both precisions: what float32 loses of a gradient is bounded by what it loses of each sum.

    A correction is a difference of gradients, so its error is measured against the largest of them.
    """
    estimator, *flags = variant
    model, dataset = begun(tmp_path, "--dgc_estimator", estimator, *flags)
    for batch, _ in zip(dataset.train_loader, range(4), strict=False):
        model.meta_observe(*batch)
    kinds = {"sampled": "stage", "closed": "buffer", "released": "draw"}
    passes = getattr(model.dgc_view, kinds[estimator])()
    names = model.dgc_names()
    single = flat(model, mean_gradient(model.net, F.cross_entropy, passes, names))
    twin = Sampled(model.net)
    exact = twin.G(batches(passes), state(model.net))
    # Depth of the sums in a ResNet-18 pass times float32's ε, generously: about 20 layers, each a sum of thousands.
    assert (single - exact).norm() <= 20 * math.sqrt(4096) * torch.finfo(torch.float32).eps * exact.norm()


def test_task_free_follows_algorithm_2(tmp_path: Path) -> None:
    model, dataset, args = build(tmp_path, "--task_free", "1", "--stop_after", "2", double=True)
    initial = state(model.net)
    comparison = TaskFreeComparison(model, Sampled(model.net))
    train(model, dataset, args)
    assert args.buffer_fill == "stream"
    assert comparison.corrected == 2 * STEPS - 1  # all but the first, when the buffer was empty
    assert comparison.refreshes == [4, 7, 10, 13]
    assert not torch.equal(initial["conv1.weight"], model.dgc.snapshot.state_dict()["conv1.weight"])


# -- the view `same`: one function at two points ---------------------------------------------------------------------


class Aborted(Exception):
    """Ends an `observe` before its step."""


def gradients_of_one_step(model: Any, batch: Any, loss: Any = None) -> Tensor:
    """What the base has computed before the correction is added; the step is not made, unless `loss` is None."""
    seen: list[Tensor] = []

    def look(optimizer: Any, *_: Any) -> None:
        seen.append(flat(model, {name: p.grad for name, p in model.net.named_parameters() if p.grad is not None}))
        if loss is not None:
            raise Aborted

    # Hooks run in the order of their registration, which only a private name of PyTorch can change: this one first.
    hook = model.opt.register_step_pre_hook(look)
    model.opt._optimizer_step_pre_hooks.move_to_end(next(reversed(model.opt._optimizer_step_pre_hooks)), last=False)
    if loss is not None:
        model.loss = loss
    with contextlib.suppress(Aborted):
        model.meta_observe(*batch)
    hook.remove()
    return seen[0]


def without_replay(name: str, n_stream: int, n_past: int) -> Any:
    """The base's loss function, but for the replayed images' cross-entropy, which it calls in known ways."""
    calls = []

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        calls.append(labels)
        single = F.cross_entropy(outputs, labels, reduction="none")
        if name == "dgc_er":
            return (single * (torch.arange(len(labels)) < n_stream)).mean()
        if name == "dgc_dynamic_er":  # the auxiliary head, asked second, keeps its images
            return (single * (labels >= n_past)).mean() if len(calls) == 1 else single.mean()
        return single.mean() * (len(calls) != 2)

    return loss


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        *((name, []) for name in ("dgc_er", "dgc_derpp", "dgc_xder", "dgc_dynamic_er")),
        *((name, ["--body_lr_scale", "0"]) for name in ("dgc_er", "dgc_derpp")),  # BatchNorm freezes after θ̃ was copied
    ],
)
def test_the_pair_cancels_at_the_start_of_a_stage(name: str, flags: list[str], tmp_path: Path) -> None:
    """w·g(x̄;θ), which is the base's gradient minus its gradient with the replay loss zeroed, against w·g(x̄;θ̃)."""
    full, part = (begun(tmp_path / side, *flags, model=name, double=True, steps=2) for side in ("full", "part"))
    batch = batch_with_past(*full)
    taken: list[Any] = []
    original = full[0].dgc.correction

    def correction(scale: float) -> Any:
        taken.extend(original(1.0))
        return iter(taken)

    full[0].dgc.correction = correction
    everything = gradients_of_one_step(full[0], batch)
    zeroed = without_replay(name, len(batch[1]), full[0].n_past_classes)
    rest = gradients_of_one_step(part[0], batch_with_past(*part), zeroed)
    (_, weight), (at_snapshot, sign) = taken
    replay = everything - rest
    calibrated = flat(full[0], {n: torch.ones_like(p) for n, p in full[0].net.named_parameters() if n in at_snapshot})
    assert weight > 0 and sign == -1 and replay.norm() > 0
    difference = replay * calibrated - flat(full[0], at_snapshot)
    assert difference.norm() <= 1e-12 * everything.norm()


@pytest.mark.parametrize("name", ["dgc_er", "dgc_derpp", "dgc_xder", "dgc_dynamic_er"])
@pytest.mark.parametrize("level", ["0", "1"])
def test_the_rebuilt_batch_is_one_that_the_base_passed(name: str, level: str, tmp_path: Path) -> None:
    model, dataset = begun(tmp_path, "-O", level, model=name, steps=1)
    passed: list[Tensor] = []
    rebuilt: list[Tensor] = []
    model.net.register_forward_pre_hook(lambda _, given: passed.append(given[0].clone()))
    step = model.dgc_view.step

    def recorded(*weights: Any) -> Any:
        passes = step(*weights)
        rebuilt.append(passes[0].inputs)
        return passes

    model.dgc_view.step = recorded
    model.meta_observe(*batch_with_past(model, dataset))
    assert len(rebuilt) == 1
    assert any(torch.equal(rebuilt[0], p) and rebuilt[0].stride() == p.stride() for p in passed if len(p))


@pytest.mark.parametrize(
    ("name", "flags", "more"),
    [
        ("dgc_er", [], 16 + 8),  # BatchNorm couples the batch in which the base has x̄
        ("dgc_er", ["--dgc_view", "plain"], 8),
        ("dgc_er", ["--dgc_estimator", "released"], 2 * 8),
        ("dgc_er", ["--dgc_estimator", "closed"], 0),
        ("dgc_derpp", [], 8),
        ("dgc_xder", [], 8),
    ],
)
def test_what_a_step_costs_in_images(name: str, flags: list[str], more: int, tmp_path: Path) -> None:
    """Beyond the base's own passes of 16 images of the stream and 8 of the buffer; the clock is for benchmarks."""
    passed: dict[str, int] = {}
    for alpha in ("0", "0.3"):  # at 0 DGC does nothing
        model, dataset = begun(tmp_path / alpha, *flags, "--dgc_alpha", alpha, model=name, steps=2)
        seen: list[tuple[type, int]] = []  # also by the copy of the network that is θ̃
        hook = partial(lambda notes, module, given: notes.append((type(module), len(given[0]))), seen)
        with torch.nn.modules.module.register_module_forward_pre_hook(hook):
            model.meta_observe(*batch_with_past(model, dataset))
        passed[alpha] = sum(images for kind, images in seen if kind is type(model.net))
    assert passed["0"] > 0 and passed["0.3"] - passed["0"] == more


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_calibration_takes_the_noise_of_replay_away(seed: str) -> None:
    """By (1−α)² one step from θ̃, which is what SVRG is for; on a network without BatchNorm, whose curvature is mild."""
    from benchmarks import dgc_variance

    flags = [word if word != "0" else seed for word in dgc_variance.FLAGS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dgc_variance, "FLAGS", flags)
        ((_, model),) = dgc_variance.stage([1], *dgc_variance.NETWORKS["mlp"], stage_length=10)
    found = dgc_variance.variances(model)
    assert found["alpha 1.0"] <= 0.05 and found["alpha 0.5"] == pytest.approx(0.25, abs=0.05)


# -- whole runs ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["sampled", "released"])
@pytest.mark.parametrize("base", ["er", "derpp"])
def test_task_free_runs_learn(base: str, estimator: str, tmp_path: Path) -> None:
    flags = ["--task_free", "1", "--dgc_estimator", estimator, "--dgc_m", "5", "--buffer_size", "100", "--lr", "0.1"]
    summary, _, _ = run(tmp_path, *flags, "--n_epochs", "3", model=f"dgc_{base}")
    assert summary["class_il"]["FAA"] > 60


Trained = Callable[..., tuple[Any, Path]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model after three tasks, and its directory; each is trained once."""

    @cache
    def train_once(name: str, *flags: str) -> tuple[Any, Path]:
        _, model, directory = run(tmp_path_factory.mktemp(name), *FLAGS, "--stop_after", "3", *flags, model=name)
        return model, directory

    return train_once


def without_correction(trained: Trained, base: str, estimator: str) -> tuple[Any, Path]:
    return trained(f"dgc_{base}", "--dgc_m", "2", "--dgc_estimator", estimator, "--dgc_alpha", "0")


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("base", BASES)
def test_alpha_zero_is_the_base_method_bit_for_bit(base: str, estimator: str, trained: Trained) -> None:
    plain, a = trained(base, *([] if base == "xder" else ["--buffer_fill", "task_end"]))
    calibrated, b = without_correction(trained, base, estimator)
    assert all(torch.equal(x, y) for x, y in zip(plain.net.parameters(), calibrated.net.parameters(), strict=True))
    assert torch.equal(plain.buffer.examples, calibrated.buffer.examples)
    for name in RESULT_FILES[:-1]:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("base", BASES)
def test_calibration_changes_the_run(base: str, estimator: str, trained: Trained) -> None:
    zero, _ = without_correction(trained, base, estimator)
    some, _ = trained(f"dgc_{base}", "--dgc_m", "2", "--dgc_estimator", estimator, "--dgc_alpha", "0.5")
    assert not torch.equal(next(zero.net.parameters()), next(some.net.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("base", BASES)
def test_resume_in_the_middle_of_a_stage_is_exact(base: str, estimator: str, tmp_path: Path) -> None:
    flags = [*FLAGS, *RESNET, *DGC, "--stop_after", "3", "--dgc_estimator", estimator]
    _, _, straight = run(tmp_path / "straight", *flags, model=f"dgc_{base}")
    position = random.Random(estimator + base).randrange(8, 20)  # in task 2 or 3 of 7 steps each
    with pytest.MonkeyPatch.context() as patch:
        kill_at(dgc_mixin.DgcMixin, position, patch)
        with pytest.raises(Killed):  # after a checkpoint of the step before
            run(tmp_path / "broken", *flags, "--checkpoint_every", str(position - 1), model=f"dgc_{base}")
    _, _, resumed = run(tmp_path / "broken", *flags, model=f"dgc_{base}")
    assert_same_run(resumed, straight)


def test_task_free_resume_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = [*FLAGS, *DGC, "--task_free", "1", "--stop_after", "2"]
    _, _, straight = run(tmp_path / "straight", *flags, model="dgc_er")
    with monkeypatch.context() as patch:
        calls = {"left": 12}
        end = TaskFreeSampled.end_batch

        def dying(self):
            calls["left"] -= 1
            if calls["left"] == 0:
                raise Killed
            end(self)

        patch.setattr(TaskFreeSampled, "end_batch", dying)
        with pytest.raises(Killed):
            run(tmp_path / "broken", *flags, "--checkpoint_every", "2", model="dgc_er")
    _, _, resumed = run(tmp_path / "broken", *flags, model="dgc_er")
    assert_same_run(resumed, straight)


# -- small parts ------------------------------------------------------------------------------------------------------


def scale_args(**changes: Any) -> Namespace:
    return Namespace(**{"dgc_alpha": 0.25, "dgc_decay": None, **changes})


def test_the_shape_of_the_correction() -> None:
    assert [dgc_mixin.correction_scale(scale_args(), step) for step in (0, 10)] == [0.25, 0.25]
    decaying = scale_args(dgc_decay=5.0)
    assert dgc_mixin.correction_scale(decaying, 0) == 0.25
    assert dgc_mixin.correction_scale(decaying, 10) == pytest.approx(0.25 * math.exp(-2))


@pytest.mark.parametrize(("part", "in_head", "in_body"), [("head", True, False), ("body", False, True)])
def test_only_the_named_part_is_corrected(part: str, in_head: bool, in_body: bool, tmp_path: Path) -> None:
    model, _ = begun(tmp_path, "--dgc_params", part, "--dgc_estimator", "closed")
    assert ("classifier.weight" in model.dgc.calibrator) == in_head
    assert ("conv1.weight" in model.dgc.calibrator) == in_body


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_frozen_parameters_and_those_without_gradient(estimator: str, tmp_path: Path) -> None:
    model, dataset = begun(tmp_path, "--dgc_estimator", estimator)
    model.net.conv1.weight.requires_grad_(False)
    before = model.net.conv1.weight.clone()
    seen = {}

    def lose_a_gradient(optimizer: Any, *_: Any) -> None:
        seen["correction"] = model.net.bn1.weight.grad
        model.net.bn1.weight.grad = None

    # As above: this hook before the mixin's.
    hooks = model.opt._optimizer_step_pre_hooks
    model.opt.register_step_pre_hook(lose_a_gradient)
    hooks.move_to_end(next(reversed(hooks)), last=False)
    model.meta_observe(*next(iter(dataset.train_loader)))
    assert torch.equal(model.net.conv1.weight, before) and model.net.conv1.weight.grad is None
    assert model.net.bn1.weight.grad is not None and model.net.bn1.weight.grad.norm() > 0


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_head_that_grows(estimator: str, tmp_path: Path) -> None:
    """What is new gets no calibration: right after growth Γ' − G(M;θ) is zero there, and as before elsewhere."""
    model, dataset, _ = build(
        tmp_path, "--dgc_estimator", estimator, "--dgc_alpha", "1", *PLAIN[estimator], double=True
    )
    loader, _ = dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    model.meta_observe(*next(iter(loader)))
    model.meta_end_task(dataset)
    known = flat_head(model.dgc.direction())
    old = model.net.classifier
    model.net.classifier = torch.nn.Linear(old.in_features, 13, dtype=torch.float64)
    with torch.no_grad():
        model.net.classifier.weight[:10], model.net.classifier.bias[:10] = old.weight, old.bias
    dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    grown = model.dgc.direction()
    assert grown["classifier.weight"].shape == (13, old.in_features)
    assert torch.allclose(flat_head(grown, 10), known, rtol=EXACT, atol=EXACT)
    assert grown["classifier.weight"][10:].abs().max() <= EXACT and grown["classifier.bias"][10:].abs().max() <= EXACT


PLAIN = {"sampled": ["--dgc_view", "plain"], "closed": [], "released": []}


def flat_head(vector: dict[str, Tensor], rows: int | None = None) -> Tensor:
    return torch.cat([vector["classifier.weight"][:rows].reshape(-1), vector["classifier.bias"][:rows]])


def test_a_growing_vector_keeps_what_it_knows() -> None:
    larger = padded(torch.ones(2, 3), torch.zeros(4, 3))
    assert torch.equal(larger, torch.tensor([[1.0] * 3, [1.0] * 3, [0.0] * 3, [0.0] * 3]))


def test_the_plain_view_is_of_normalised_images(tmp_path: Path) -> None:
    model, dataset = begun(tmp_path, "--dgc_view", "plain")
    (whole,) = model.dgc_view.buffer()
    stored = model.buffer.examples[: len(model.buffer)].float() / 255
    assert torch.allclose(whole.inputs, dataset.get_normalization_transform()(stored), atol=1e-6) and not whole.training
    assert torch.equal(whole.terms[0].labels, model.buffer.labels[: len(model.buffer)])
    model.normalization_transform = nn.Threshold(2.0, 3.0)  # a module, as Mammoth's are: all values become 3
    assert all(torch.equal(part.inputs, torch.full_like(part.inputs, 3.0)) for part in model.dgc_view.buffer())
    task = torch.cat([part.terms[0].labels for part in model.dgc_view.task()])
    assert torch.equal(task, dataset.train_loader.dataset.targets)


def test_the_same_view_covers_every_image_once(tmp_path: Path) -> None:
    model, dataset = begun(tmp_path)
    whole, task = model.dgc_view.buffer(), list(model.dgc_view.task())
    labels = torch.cat([part.terms[0].labels for part in whole])
    assert torch.equal(labels.sort().values, model.buffer.labels[: len(model.buffer)].sort().values)
    assert all(len(part.inputs) == 16 + len(part) and part.training for part in whole)  # joined with 16 of the task
    labels = torch.cat([part.terms[0].labels for part in task])
    assert torch.equal(labels.sort().values, dataset.train_loader.dataset.targets.sort().values)
    assert all(20 <= len(part.inputs) <= 24 for part in task)  # 16 + 8 at most, in batches of one size


def test_gradients_in_the_parameters_strides(tmp_path: Path) -> None:
    """Otherwise the addition of the correction is several times slower."""
    model, _ = begun(tmp_path, "-O", "1", "--dgc_estimator", "closed")
    for name, p in model.net.named_parameters():
        assert model.dgc.calibrator[name].stride() == p.stride(), name


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dgc_alpha", "-0.1"], ["--dgc_alpha", "-0.1", "in [0, 1]"]),
        (["--dgc_alpha", "2"], ["--dgc_alpha", "in [0, 1]"]),
        (["--dgc_m", "0"], ["--dgc_m", "at least 1"]),
        (["--dgc_m", "1.5"], ["--dgc_m", "whole number"]),
        (["--dgc_decay", "0"], ["--dgc_decay", "greater than 0"]),
        (["--dgc_estimator", "open"], ["--dgc_estimator", "open", "closed"]),
        (["--dgc_estimator", "closed", "--buffer_fill", "stream"], ["closed", "--buffer_fill task_end"]),
        (["--dgc_estimator", "closed", "--task_free", "1"], ["closed", "task-free"]),
        (["--task_free", "1", "--buffer_fill", "task_end"], ["task_end", "task-free"]),
        (["--task_free", "1", "--replay_weight", "tasks"], ["--replay_weight tasks", "task-free"]),
        (["--task_free", "1", "--dgc_current", "1"], ["--dgc_current 1", "task-free"]),
        (["--task_free", "1", "--dgc_decay", "5"], ["--dgc_decay", "task-free"]),
        (["--dgc_estimator", "closed", "--dgc_current", "1"], ["--dgc_current 1", "sampled"]),
        (["--dgc_estimator", "sampled", "--dgc_alpha", "0", "--dgc_current", "1"], ["--dgc_alpha 0 is"]),
        (["--dgc_estimator", "released", "--dgc_stage", "buffer"], ["--dgc_stage buffer", "released"]),
        (["--dgc_estimator", "closed", "--dgc_view", "same"], ["--dgc_view same", "closed"]),
        (["--dgc_estimator", "released", "--dgc_view", "plain"], ["--dgc_view plain", "raw"]),
    ],
)
def test_values_out_of_range_are_refused_with_a_reason(flags: list[str], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_args(["--model", "dgc_er", "--buffer_size", "10", *flags])
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_m_of_one_warns(caplog: pytest.LogCaptureFixture) -> None:
    parse_args(["--model", "dgc_er", "--buffer_size", "10", "--dgc_m", "1"])
    assert "--dgc_m 1" in caplog.text


def test_defaults_are_the_papers() -> None:
    args = parse_args(["--model", "dgc_er", "--buffer_size", "10"])
    assert (args.dgc_estimator, args.dgc_alpha, args.dgc_m, args.dgc_stage) == ("sampled", 1e-3, 200, "batch")
    assert (args.dgc_current, args.dgc_decay, args.dgc_params, args.buffer_fill) == (0, None, "all", "task_end")
    assert args.dgc_view is None  # same, for sampled; not stored, so that it renames no run
    assert issubclass(DgcEr, dgc_mixin.DgcMixin)


@pytest.mark.parametrize(("name", "sizes"), [("dgc_er", (16, 24)), ("dgc_derpp", (16, 16))])
def test_the_tasks_gradient_is_taken_in_passes_as_large_as_the_streams(
    name: str, sizes: tuple[int, int], tmp_path: Path
) -> None:
    """By BatchNorm a mean over batches depends on their size: b images alone, or joined to r where the base does so."""
    flags = ["--batch_size", "16", "--minibatch_size", "8", "--dgc_current", "1"]
    model, _, _ = build(tmp_path / "first", *flags, model=name)
    dataset = model.dataset
    dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    second, _ = begun(tmp_path / "second", *flags, model=name, steps=2)
    for built, size in zip((model, second), sizes, strict=True):
        passes = [len(part) for part in built.dgc_view.task(current=True)]
        images = sum(passes)
        assert len(passes) == -(-images // size) and max(passes) - min(passes) <= 1
