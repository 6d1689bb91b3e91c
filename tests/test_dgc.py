"""DGC against its equations, and what it must leave alone."""

from __future__ import annotations

import math
import random
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dgc_reference import DGC, ESTIMATORS, FLAGS, Closed, DoubleResNet, Released, Sampled
from helpers import RESULT_FILES, assert_same_run, run
from torch import Tensor

from main import initialize
from models.dgc_er import DgcEr
from models.utils import dgc_mixin
from models.utils.dgc_mixin import correction_scale
from utils.errors import UsageError
from utils.parse import parse_args
from utils.training import train

BASES = ["er", "derpp", "xder"]
RESNET = ["--backbone", "resnet18", "--num_filters", "4"]


def build(tmp_path: Path, *flags: str, model: str = "dgc_er", double: bool = False) -> tuple[Any, Any, Namespace]:
    line = ["--model", model, "--seed", "0", "--base_path", str(tmp_path), *FLAGS, *RESNET, *DGC, *flags]
    built, dataset, args = initialize(parse_args(line))
    if double:
        built.net.__class__ = DoubleResNet
        built.net.double()
        built.opt = built.get_optimizer()
    return built, dataset, args


def state(net: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def flat(model: Any, vector: dict[str, Tensor] | None) -> Tensor:
    return torch.cat([vector[name].reshape(-1).double() for name, _ in model.net.named_parameters()])


class Spy:
    """Watches a model's steps: what the hook adds to the gradients, and that it touches nothing else."""

    def __init__(self, model: Any, double: bool, monkeypatch: pytest.MonkeyPatch):
        self.model, self.double, self.corrected = model, double, 0
        self.patch = lambda name, function: monkeypatch.setattr(model, name, function)
        before_step = model._dgc_before_step
        self.patch("_dgc_before_step", lambda optimizer: self.step(lambda: before_step(optimizer)))

    def expected(self) -> Any:
        raise NotImplementedError

    def step(self, add_correction: Callable[[], None]) -> None:
        model = self.model
        expected = self.expected()
        old = {name: p.grad.clone() for name, p in model.net.named_parameters()}
        untouched = self.untouched()
        add_correction()
        new = {name: p.grad - old[name] for name, p in model.net.named_parameters()}
        assert all(torch.equal(a, b) for a, b in zip(untouched, self.untouched(), strict=True))
        difference = (flat(model, new) - expected).norm()
        if isinstance(expected, float):
            assert difference == 0
        elif self.double:
            assert difference <= 1e-9 * expected.norm()
        else:
            assert difference <= 1e-5 * self.scale
        self.corrected += not isinstance(expected, float)

    def untouched(self) -> list[Tensor]:
        """Parameters, BatchNorm statistics, modes, and every random generator of the base."""
        net, streams = self.model.net, self.model.dataset.streams.state_dict()
        modes = torch.tensor([module.training for module in net.modules()])
        generators = [torch.get_rng_state(), *(streams[name] for name in sorted(streams))]
        return [modes, *generators, *(value.clone() for value in net.state_dict().values())]

    def xbar(self) -> Any:
        draws = self.model._dgc_draws
        return self.model._dgc_rows(draws[self.model.DGC_DRAW]) if len(draws) > self.model.DGC_DRAW else None

    def weight(self) -> float:
        if self.model.NAME != "dgc_er":
            return self.model.args.beta
        if self.model.args.replay_weight == "tasks":
            n = len(self.model.dataset.train_loader.dataset)
            return self.twin.past / (self.twin.past + n)
        r, b = len(self.xbar()[1]), len(self.model._dgc_stream[1])
        return r / (b + r)

    def base_scale(self, batch: Any) -> Tensor:
        return self.twin.g(batch, state(self.model.net)).norm()


class SampledSpy(Spy):
    def __init__(self, model: Any, double: bool, monkeypatch: pytest.MonkeyPatch):
        super().__init__(model, double, monkeypatch)
        self.twin = Sampled(model.net)
        move, end = model._dgc_move_gamma, model._dgc_end_task

        def moved(batches: Any) -> None:
            if model._dgc_snapshot:
                self.twin.end_stage(batches, state(model.net), state(model._dgc_snapshot[0]))
            move(batches)

        def ended(kept: Any) -> None:
            end(kept)
            self.twin.end_task(list(model._dgc_task_batches()), state(model.net))
            assert (flat(model, model._dgc_gamma) - self.twin.gamma).norm() <= 1e-4 * self.twin.gamma.norm()

        self.patch("_dgc_move_gamma", moved)
        self.patch("_dgc_end_task", ended)

    def expected(self) -> Any:
        model, xbar = self.model, self.xbar()
        self.scale = self.base_scale(xbar or model._dgc_stream)
        if not model._dgc_snapshot:
            return 0.0
        theta_tilde = state(model._dgc_snapshot[0])
        weight = self.weight() if xbar else 0.0
        correction = self.twin.correction(xbar, theta_tilde, weight, model.args.dgc_alpha)
        if model.args.dgc_current:
            images, labels = model._dgc_stream
            stream = (model._dgc_ready(images), labels)
            self.scale = max(self.scale, self.twin.g(stream, theta_tilde).norm())  # the larger of the two gradients
            correction = correction + self.twin.current(stream, list(model._dgc_task_batches()), theta_tilde)
        return correction


class ClosedSpy(Spy):
    def __init__(self, model: Any, double: bool, monkeypatch: pytest.MonkeyPatch):
        super().__init__(model, double, monkeypatch)
        self.twin = Closed(model.net)
        begin, end = model.begin_task, model._dgc_end_task

        def began(dataset: Any) -> None:
            begin(dataset)
            if self.twin.past:
                self.twin.begin_task(model._dgc_buffer_batches(), state(model.net))

        def ended(kept: Any) -> None:
            end(kept)
            self.twin.end_closed_task(kept, list(model._dgc_task_batches()), state(model.net))

        self.patch("begin_task", began)
        self.patch("_dgc_end_task", ended)

    def expected(self) -> Any:
        self.scale = self.base_scale(self.xbar() or self.model._dgc_stream)
        return self.twin.closed_correction(self.weight() if self.xbar() else 0.0, self.model.args.dgc_alpha)


class ReleasedSpy(Spy):
    def __init__(self, model: Any, double: bool, monkeypatch: pytest.MonkeyPatch):
        super().__init__(model, double, monkeypatch)
        self.twin, self.drawn = Released(model.net), []
        rows, end = model._dgc_rows, model._dgc_end_released

        def recorded(index: Tensor) -> Any:
            self.drawn.append(rows(index))
            return self.drawn[-1]

        def ended() -> None:
            end()
            batches = list(model._dgc_task_batches(model.args.batch_size))
            self.twin.end_task(batches, state(model._dgc_snapshot[0]))

        self.patch("_dgc_rows", recorded)
        self.patch("_dgc_end_released", ended)

    def step(self, add_correction: Callable[[], None]) -> None:
        """The twin needs the rows that the hook draws: let it draw them first, and put the generator back."""
        generator, model = self.model._dgc_generator.get_state(), self.model
        self.raw = model._dgc_rows(model._dgc_draw()) if len(model.buffer) else None
        model._dgc_generator.set_state(generator)
        super().step(add_correction)

    def expected(self) -> Any:
        model = self.model
        self.scale = self.base_scale(self.raw or model._dgc_stream)
        if not self.twin.n:
            return 0.0
        assert self.raw[0].min() >= 0 and self.raw[0].max() <= 1  # not normalised
        self.twin.difference(self.raw, state(model.net), state(model._dgc_snapshot[0]), model.args.dgc_m)
        return model.args.dgc_alpha * self.twin.gamma


SPIES = {"sampled": SampledSpy, "closed": ClosedSpy, "released": ReleasedSpy}
VARIANTS = [
    ["sampled"],
    ["sampled", "--dgc_current", "1"],
    ["sampled", "--dgc_stage", "buffer"],
    ["sampled", "--replay_weight", "tasks", "--dgc_current", "1"],
    ["closed"],
    ["closed", "--replay_weight", "tasks"],
    ["released"],
]


@pytest.mark.parametrize("double", [True, False], ids=["float64", "float32"])
@pytest.mark.parametrize("variant", VARIANTS, ids=" ".join)
def test_every_step_agrees_with_the_reference(
    variant: list[str], double: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator, *flags = variant
    model, dataset, args = build(tmp_path, "--dgc_estimator", estimator, *flags, "--stop_after", "3", double=double)
    spy = SPIES[estimator](model, double, monkeypatch)
    train(model, dataset, args)
    assert spy.corrected == (30 if args.dgc_current else 20)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("base", ["derpp", "xder"])
def test_other_bases_agree_with_the_reference(
    base: str, estimator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--dgc_estimator", estimator, "--stop_after", "3"]
    model, dataset, args = build(tmp_path, *flags, model=f"dgc_{base}", double=False)
    spy = SPIES[estimator](model, False, monkeypatch)
    train(model, dataset, args)
    assert spy.corrected == 20


class TaskFreeSpy(Spy):
    """Algorithm 2: micro-tasks, a refresh after batches 1, m+1, 2m+1, … unless the buffer is empty."""

    def __init__(self, model: Any, double: bool, monkeypatch: pytest.MonkeyPatch):
        super().__init__(model, double, monkeypatch)
        self.twin, self.refreshes = Sampled(model.net), []
        move, end = model._dgc_move_gamma, model._dgc_end_micro_task

        def moved(batches: Any) -> None:
            self.refreshes.append(self.twin.past + 1)
            self.twin.end_stage(batches, state(model.net), state(model._dgc_snapshot[0]))
            move(batches)

        def ended() -> None:
            end()
            images, labels = model._dgc_stream
            g = self.twin.g((model._dgc_ready(images), labels), state(model._dgc_snapshot[0]))
            t = self.twin.past + 1
            self.twin.gamma = ((t - 1) * self.twin.gamma + g) / t
            self.twin.past = t

        self.patch("_dgc_move_gamma", moved)
        self.patch("_dgc_end_micro_task", ended)

    def expected(self) -> Any:
        self.scale = self.base_scale(self.xbar() or self.model._dgc_stream)
        if not self.xbar():
            return 0.0
        theta_tilde = state(self.model._dgc_snapshot[0])
        return self.twin.correction(self.xbar(), theta_tilde, self.weight(), self.model.args.dgc_alpha)


def test_task_free_follows_algorithm_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, dataset, args = build(tmp_path, "--task_free", "1", "--stop_after", "2", double=True)
    initial = state(model.net)
    spy = TaskFreeSpy(model, True, monkeypatch)
    train(model, dataset, args)
    assert args.buffer_fill == "stream"
    assert spy.corrected == 19  # all but the first of 20 steps, when the buffer was empty
    assert spy.refreshes == [4, 7, 10, 13, 16, 19]
    assert not torch.equal(initial["conv1.weight"], model._dgc_snapshot[0].state_dict()["conv1.weight"])


@pytest.mark.parametrize("estimator", ["sampled", "released"])
@pytest.mark.parametrize("base", ["er", "derpp"])
def test_task_free_runs_learn(base: str, estimator: str, tmp_path: Path) -> None:
    flags = ["--task_free", "1", "--dgc_estimator", estimator, "--dgc_m", "5", "--buffer_size", "100", "--lr", "0.1"]
    summary, _, _ = run(tmp_path, *flags, "--n_epochs", "3", model=f"dgc_{base}")
    assert summary["class_il"]["FAA"] > 60


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("base", BASES)
def test_alpha_zero_is_the_base_method_bit_for_bit(base: str, estimator: str, tmp_path: Path) -> None:
    flags = [*FLAGS, "--stop_after", "3"]
    fill = [] if base == "xder" else ["--buffer_fill", "task_end"]
    _, plain, a = run(tmp_path / "base", *flags, *fill, model=base)
    zero = ["--dgc_alpha", "0", "--dgc_m", "2", "--dgc_estimator", estimator]
    _, calibrated, b = run(tmp_path / "dgc", *flags, *zero, model=f"dgc_{base}")
    assert all(torch.equal(x, y) for x, y in zip(plain.net.parameters(), calibrated.net.parameters(), strict=True))
    assert torch.equal(plain.buffer.examples, calibrated.buffer.examples)
    for name in RESULT_FILES[:-1]:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("base", BASES)
def test_calibration_changes_the_run(base: str, estimator: str, tmp_path: Path) -> None:
    flags = [*FLAGS, "--stop_after", "3", "--dgc_m", "2", "--dgc_estimator", estimator]
    _, zero, _ = run(tmp_path / "zero", *flags, "--dgc_alpha", "0", model=f"dgc_{base}")
    _, some, _ = run(tmp_path / "some", *flags, "--dgc_alpha", "0.5", model=f"dgc_{base}")
    assert not torch.equal(next(zero.net.parameters()), next(some.net.parameters()))


class Killed(Exception):
    pass


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("base", BASES)
def test_resume_in_the_middle_of_a_stage_is_exact(
    base: str, estimator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [*FLAGS, *RESNET, *DGC, "--stop_after", "3", "--dgc_estimator", estimator]
    _, _, straight = run(tmp_path / "straight", *flags, model=f"dgc_{base}")
    position = random.Random(estimator + base).randrange(11, 28)  # in task 2 or 3 of 10 steps each
    steps = {"left": position}
    observe = dgc_mixin.DgcMixin.observe

    def dying(self, *args, **kwargs):
        result = observe(self, *args, **kwargs)
        steps["left"] -= 1
        if steps["left"] == 0:
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(dgc_mixin.DgcMixin, "observe", dying)
        with pytest.raises(Killed):
            run(tmp_path / "broken", *flags, "--checkpoint_every", "1", model=f"dgc_{base}")
    _, _, resumed = run(tmp_path / "broken", *flags, model=f"dgc_{base}")
    assert_same_run(resumed, straight)


def test_task_free_resume_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = [*FLAGS, *DGC, "--task_free", "1", "--stop_after", "2"]
    _, _, straight = run(tmp_path / "straight", *flags, model="dgc_er")
    with monkeypatch.context() as patch:
        calls = {"left": 12}
        end = dgc_mixin.DgcMixin._dgc_end_micro_task

        def dying(self):
            calls["left"] -= 1
            if calls["left"] == 0:
                raise Killed
            end(self)

        patch.setattr(dgc_mixin.DgcMixin, "_dgc_end_micro_task", dying)
        with pytest.raises(Killed):
            run(tmp_path / "broken", *flags, "--checkpoint_every", "2", model="dgc_er")
    _, _, resumed = run(tmp_path / "broken", *flags, model="dgc_er")
    assert_same_run(resumed, straight)


# -- small parts ------------------------------------------------------------------------------------------------------


def scale_args(**changes: Any) -> Namespace:
    return Namespace(**{"dgc_alpha": 0.25, "dgc_decay": None, **changes})


def test_the_shape_of_the_correction() -> None:
    assert [correction_scale(scale_args(), step) for step in (0, 10)] == [0.25, 0.25]
    decaying = scale_args(dgc_decay=5.0)
    assert correction_scale(decaying, 0) == 0.25
    assert correction_scale(decaying, 10) == pytest.approx(0.25 * math.exp(-2))


def begun(tmp_path: Path, *flags: str) -> tuple[Any, Any]:
    """A model at the start of its second task."""
    model, dataset, _ = build(tmp_path, *flags)
    loader, _ = dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    for batch in loader:
        model.meta_observe(*batch)
    model.meta_end_task(dataset)
    dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    return model, dataset


@pytest.mark.parametrize(("part", "in_head", "in_body"), [("head", True, False), ("body", False, True)])
def test_only_the_named_part_is_corrected(part: str, in_head: bool, in_body: bool, tmp_path: Path) -> None:
    model, _ = begun(tmp_path, "--dgc_params", part, "--dgc_estimator", "closed")
    assert ("classifier.weight" in model._dgc_calibrator) == in_head
    assert ("conv1.weight" in model._dgc_calibrator) == in_body


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_frozen_parameters_and_those_without_gradient(estimator: str, tmp_path: Path) -> None:
    model, dataset = begun(tmp_path, "--dgc_estimator", estimator)
    model.net.conv1.weight.requires_grad_(False)
    before = model.net.conv1.weight.clone()
    seen = {}

    def lose_a_gradient(optimizer: Any, *_: Any) -> None:
        seen["correction"] = model.net.bn1.weight.grad
        model.net.bn1.weight.grad = None

    # Hooks run in the order of their registration: this one before the mixin's.
    hooks = model.opt._optimizer_step_pre_hooks
    model.opt.register_step_pre_hook(lose_a_gradient)
    hooks.move_to_end(next(reversed(hooks)), last=False)
    model.meta_observe(*next(iter(dataset.train_loader)))
    assert torch.equal(model.net.conv1.weight, before) and model.net.conv1.weight.grad is None
    assert model.net.bn1.weight.grad is not None and model.net.bn1.weight.grad.norm() > 0


@pytest.mark.parametrize("estimator", ["sampled", "closed"])
def test_a_head_that_grows(estimator: str, tmp_path: Path) -> None:
    model, dataset, _ = build(tmp_path, "--dgc_estimator", estimator)
    loader, _ = dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    model.meta_observe(*next(iter(loader)))
    model.meta_end_task(dataset)
    old = model._dgc_gamma["classifier.weight"].clone()
    features = model.net.classifier.in_features
    model.net.classifier = torch.nn.Linear(features, 13)
    loader, _ = dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    model.meta_observe(*next(iter(loader)))
    model.meta_end_task(dataset)
    new = model._dgc_gamma["classifier.weight"]
    assert old.shape == (10, features) and new.shape == (13, features) and torch.isfinite(new).all()


def test_a_growing_vector_keeps_what_it_knows() -> None:
    padded = dgc_mixin.grown(torch.ones(2, 3), torch.zeros(4, 3))
    assert torch.equal(padded, torch.tensor([[1.0] * 3, [1.0] * 3, [0.0] * 3, [0.0] * 3]))


def test_calibration_sees_plain_normalised_images(tmp_path: Path) -> None:
    model, dataset = begun(tmp_path)
    images, labels = model._dgc_rows(torch.arange(5))
    stored = model.buffer.examples[:5].float() / 255
    normalise = dataset.get_normalization_transform()
    assert torch.allclose(images, normalise(stored), atol=1e-6)
    assert torch.equal(labels, model.buffer.labels[:5])
    task = torch.cat([labels for _, labels in model._dgc_task_batches()])
    assert torch.equal(task, dataset.train_loader.dataset.targets)


def test_gradients_in_the_parameters_strides(tmp_path: Path) -> None:
    """Otherwise the addition of the correction is several times slower."""
    model, _ = begun(tmp_path, "-O", "1", "--dgc_estimator", "closed")
    for name, p in model.net.named_parameters():
        assert model._dgc_calibrator[name].stride() == p.stride(), name


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
        (["--dgc_estimator", "released", "--dgc_stage", "buffer"], ["--dgc_stage buffer", "released"]),
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
    assert issubclass(DgcEr, dgc_mixin.DgcMixin)
