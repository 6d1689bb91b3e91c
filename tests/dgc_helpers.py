"""What the tests of DGC share: short runs, and a comparison of every step with the literal twin."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from method_helpers import RESNET
from torch import Tensor

from backbone.ResNetBlock import ResNet
from main import initialize
from models.utils.dgc_gradients import Pass
from models.utils.dgc_reference import Batch, Closed, Reference, Released, Sampled
from utils.cli.parse import parse_args

# 7 steps a task: with m = 3 stages end inside tasks, and a partial one is left at their ends.
STEPS = 7
FLAGS = ["--buffer_size", "40", "--batch_size", "16", "--minibatch_size", "8", "--lr", "0.02"]
FLAGS += ["--fitting_mode", "iters", "--n_iters", str(STEPS)]
DGC = ["--dgc_m", "3", "--dgc_alpha", "0.3"]
ESTIMATORS = ["sampled", "closed", "released"]
EXACT = 1e-9  # float64: what thousands of roundings of 1e-16 may add up to


class DoubleResNet(ResNet):
    """For the comparison in float64: takes the float32 batches of the pipeline."""

    def forward(self, x: Tensor, returnt: Any = "out") -> Any:
        return super().forward(x.double(), returnt)


def build(base_path: Path, *flags: str, model: str = "dgc_er", double: bool = False) -> tuple[Any, Any, Namespace]:
    defaults = [*FLAGS, *RESNET, *DGC]
    pairs = zip(defaults[::2], defaults[1::2], strict=True)
    kept = [word for pair in pairs if pair[0] not in flags for word in pair]
    line = ["--model", model, "--seed", "0", "--base_path", str(base_path), *kept, *flags]
    built, dataset, args = initialize(parse_args(line))
    if double:
        for module in built.net.modules():
            if type(module) is ResNet:
                module.__class__ = DoubleResNet
        built.net.double()
        built.opt = built.get_optimizer()
    return built, dataset, args


def begun(base_path: Path, *flags: str, steps: int = STEPS, **options: Any) -> tuple[Any, Any]:
    """A model at the start of its second task, and the dataset."""
    model, dataset, _ = build(base_path, *flags, **options)
    loader, _ = dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    for batch, _ in zip(loader, range(steps), strict=False):
        model.meta_observe(*batch)
    model.meta_end_task(dataset)
    dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    return model, dataset


def batch_with_past(model: Any, dataset: Any) -> Any:
    """The first batch of the task in which the base replays: where memory is merged into the stream, not each one."""
    merged = hasattr(model.net, "extractors")
    return next(b for b in dataset.train_loader if not merged or (b[1] < model.n_past_classes).any())


def state(net: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def flat(model: Any, vector: dict[str, Tensor]) -> Tensor:
    """A vector by names as one in float64: zero for parameters that it leaves out."""
    parameters = model.net.named_parameters()
    return torch.cat([vector.get(name, torch.zeros_like(p)).detach().reshape(-1).double() for name, p in parameters])


def untouched(model: Any) -> list[Tensor]:
    """Parameters, BatchNorm statistics, modes, and every random generator of the base."""
    streams = model.dataset.streams.state_dict()
    modes = torch.tensor([module.training for module in model.net.modules()])
    return [modes, torch.get_rng_state(), *(streams[name] for name in sorted(streams)), *state(model.net).values()]


def batches(passes: list[Pass]) -> list[Batch]:
    """For the twin, one for each term."""
    return [Batch(p.inputs, t.labels, t.rows, t.columns, p.training) for p in passes for t in p.terms]


class Recorder:
    """Stands for an estimator's view and keeps what it has handed out, by the method asked."""

    def __init__(self, view: Any):
        self._view, self.seen = view, {}

    def __getattr__(self, name: str) -> Any:
        def asked(*args: Any, **kwargs: Any) -> Any:
            self.seen[name] = list(getattr(self._view, name)(*args, **kwargs))
            return self.seen[name]

        return asked

    def last(self, name: str) -> list[Batch]:
        return batches(self.seen.pop(name, []))


class Comparison:
    """Every step of a model against the twin of its estimator, through the estimator's interface alone."""

    def __init__(self, model: Any, twin: Reference, tolerance: float = EXACT):
        self.model, self.dgc, self.twin, self.tolerance = model, model.dgc, twin, tolerance
        self.dgc.view = self.view = Recorder(self.dgc.view)
        self.corrected = self.tasks = 0
        original = {name: getattr(self.dgc, name) for name in ("begin_task", "correction", "after_step", "end_task")}
        original |= {name: getattr(self.dgc, name) for name in ("before_observe", "end_batch")}

        def correction(scale: float) -> Iterator[Any]:
            before = untouched(model)
            added = list(original["correction"](scale))
            assert all(torch.equal(a, b) for a, b in zip(before, untouched(model), strict=True))
            self.compare(sum(flat(model, vector) * factor for vector, factor in added), scale)
            return iter(added)

        @contextmanager
        def end_task() -> Iterator[None]:
            with original["end_task"]():
                kept = self.view.last("stage") or self.view.last("buffer")
                yield
            self.end_task(kept)
            self.tasks += 1

        def followed(name: str) -> Callable[[], None]:
            def run() -> None:
                original[name]()
                getattr(self, name)()

            return run

        self.dgc.correction, self.dgc.end_task = correction, end_task
        for name in ("begin_task", "after_step", "before_observe", "end_batch"):
            setattr(self.dgc, name, followed(name))

    def compare(self, added: Any, scale: float) -> None:
        expected = self.expected(scale)
        if expected is None:
            assert isinstance(added, int) or not added.any()
            return
        assert (added - expected).norm() <= self.tolerance * expected.norm()
        self.corrected += 1

    def theta(self) -> dict[str, Tensor]:
        return state(self.model.net)

    def images(self) -> int:
        return len(self.model.dataset.train_loader.dataset)

    def weights(self) -> tuple[float, float]:
        """v and w, from the definition of each base."""
        model, args = self.model, self.model.args
        b, draw = len(model.dgc_stream[2]), model.dgc_draw()
        r = 0 if draw is None else len(draw)
        by_tasks = args.replay_weight == "tasks" and self.twin.past > 0
        shares = (self.images() / (self.twin.past + self.images()), self.twin.past / (self.twin.past + self.images()))
        if model.NAME == "dgc_er":
            return shares if by_tasks and r else (b / (b + r), r / (b + r))
        return (shares[0], shares[1] * args.beta) if by_tasks else (1.0, args.beta)

    def expected(self, scale: float) -> Tensor | None:
        raise NotImplementedError

    def begin_task(self) -> None: ...

    def before_observe(self) -> None: ...

    def after_step(self) -> None: ...

    def end_batch(self) -> None: ...

    def end_task(self, kept: list[Batch]) -> None: ...


class SampledComparison(Comparison):
    twin: Sampled

    def begin_task(self) -> None:
        self.steps = 0
        if self.twin.past or self.model.args.dgc_current:
            self.begin_stage()

    def begin_stage(self) -> None:
        self.twin.theta_tilde = self.theta()
        if self.model.args.dgc_current:
            self.twin.task_gradient = self.twin.G(self.view.last("task"), self.theta())

    def expected(self, scale: float) -> Tensor | None:
        parts, total = self.view.last("step"), None
        v, w = self.weights()
        if self.twin.past and self.model.dgc_draw() is not None:
            total = self.twin.correction(parts.pop(0), w, scale)
        if self.model.args.dgc_current:
            current = self.twin.current(parts.pop(0), v)
            total = current if total is None else total + current
        assert not parts
        return total

    def after_step(self) -> None:
        self.steps += 1
        if self.steps % self.model.args.dgc_m == 0:
            self.end_stage()

    def end_stage(self) -> None:
        passes = self.view.last("stage")
        if self.twin.past:
            self.twin.move(passes, passes, self.theta())
        self.begin_stage()

    def end_task(self, kept: list[Batch]) -> None:
        if self.twin.past:
            self.twin.move(self.view.last("as_past"), kept, self.theta())
        self.twin.end_task(self.view.last("task"), self.images(), self.theta())
        self.twin.theta_tilde = self.theta()
        gamma = flat(self.model, self.dgc.gamma)
        assert (gamma - self.twin.gamma).norm() <= 10 * self.tolerance * gamma.norm()


class TaskFreeComparison(SampledComparison):
    """Algorithm 2: micro-tasks, a refresh after batches 1, m+1, 2m+1, … when there is a past."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.refreshes: list[int] = []

    def before_observe(self) -> None:
        self.twin.theta_tilde = self.twin.theta_tilde or self.theta()

    def after_step(self) -> None:
        if passes := self.view.last("stage"):
            self.refreshes.append(self.twin.past + 1)
            self.twin.move(passes, passes, self.theta())

    def end_batch(self) -> None:
        t = self.twin.past + 1
        (stream,) = self.view.last("step")
        self.twin.gamma = ((t - 1) * self.twin.gamma + self.twin.g(stream, self.twin.theta_tilde)) / t
        self.twin.past = t


class ClosedComparison(Comparison):
    twin: Closed

    def expected(self, scale: float) -> Tensor | None:
        if not self.twin.past or self.model.dgc_draw() is None:
            return None
        return self.twin.closed_correction(self.weights()[1], scale)

    def end_task(self, kept: list[Batch]) -> None:
        task, filled = self.view.last("task"), self.view.last("buffer")
        self.twin.end_closed_task(kept, task, filled, self.images(), self.theta())


class ReleasedComparison(Comparison):
    twin: Released

    def before_observe(self) -> None:
        if drawn := self.view.last("draw"):
            assert drawn[0].images.abs().max() <= 1  # not normalised
            self.twin.difference(drawn[0], self.theta(), self.model.args.dgc_m)

    def expected(self, scale: float) -> Tensor | None:
        return scale * self.twin.gamma if self.twin.n else None

    def end_task(self, kept: list[Batch]) -> None:
        self.twin.end_released_task(self.view.last("task"), self.theta())

    def end_batch(self) -> None:
        self.twin.end_released_task(self.view.last("step"), self.theta())


COMPARISONS: dict[str, tuple[Any, Any]] = {
    "sampled": (SampledComparison, Sampled),
    "closed": (ClosedComparison, Closed),
    "released": (ReleasedComparison, Released),
}


def compare(model: Any, estimator: str, tolerance: float = EXACT) -> Any:
    comparison, twin = COMPARISONS[estimator]
    return comparison(model, twin(model.net), tolerance)
