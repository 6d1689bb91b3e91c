"""The estimators of Dynamic Gradient Calibration: what is added to a base method's gradient just before its step.

Notation: t task; T_t its training set; M_t the buffer in task t; x_t and x̄ the stream's and the replay batch of a step,
v and w the weights of their cross-entropies in the base's loss; θ the parameters, θ̃ those at the start of the stage of
m steps; g(X;θ) the gradient of the mean cross-entropy over a batch, G(D;θ) over a set; Γ' the estimate of G over all
past data; N_past and N_t the numbers of images in finished tasks and in this one. Equation numbers are the paper's.

| `--dgc_estimator` | added at a step of task t ≥ 2 (`--dgc_current` adds a term in every task) | kept |
|---|---|---|
| `sampled`  | w·α·(Γ' − g(x̄;θ̃)), the paper's Algorithm 1 | Γ', θ̃ |
| `closed`   | w·α·c_t, the mean of `sampled` over x̄ | c_t |
| `released` | α·Γ', the code published with the paper | Γ', θ̃, a running sum |

An estimator knows neither the base method nor its data. Its `host` is the mixin (models/utils/dgc_mixin.py), which
tells weights and sizes; its `view` of the images comes from there, too, and hands them out as passes.

Where the network grows, nothing is known about what is new. There the calibrator Γ' − G(M;θ) is zero, so that the
buffer's own gradient counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Vector = dict[str, Tensor]  # one tensor per parameter, by name, with its shape and strides
Loss = Callable[[Tensor, Tensor], Tensor]
ALL = slice(None)


# -- gradients that leave no trace -----------------------------------------------------------------------------------


class Term(NamedTuple):
    """A weighted mean cross-entropy over some rows and columns of a pass's outputs."""

    labels: Tensor  # counted from the first of the columns
    rows: Any = ALL
    columns: slice = ALL
    weight: float | Tensor = 1.0


@dataclass(frozen=True)
class Pass:
    """Images that go through the network together, and what counts of it."""

    inputs: Tensor
    terms: tuple[Term, ...]
    training: bool = False  # BatchNorm normalises by the batch, not by the running statistics

    def loss(self, net: nn.Module, loss: Loss) -> Tensor:
        outputs = net(self.inputs)
        first, *others = [t.weight * loss(outputs[t.rows, t.columns], t.labels) for t in self.terms]
        return sum(others, first)

    def __len__(self) -> int:
        return sum(len(term.labels) for term in self.terms)


@contextmanager
def borrowed(net: nn.Module, training: bool = False) -> Iterator[None]:
    """In train or in eval mode for a while; in neither do BatchNorm's running statistics change."""
    modes = [(module, module.training) for module in net.modules()]
    tracking = [module for module in net.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    net.train(training)
    for layer in tracking if training else ():
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in tracking:
            layer.track_running_stats = True
        for module, mode in modes:
            module.training = mode


def gradient(net: nn.Module, loss: Loss, passes: Iterable[Pass], names: Iterable[str]) -> Vector:
    """The gradient of the passes' sum for the named parameters; not through `.grad`, which belongs to the base."""
    parameters = dict(net.named_parameters())
    wanted = {name: parameters[name] for name in names if name in parameters}
    if not wanted:
        return {}
    total: Tensor | float = 0.0
    with torch.enable_grad():
        for batch in passes:
            with borrowed(net, batch.training):
                total = total + batch.loss(net, loss)
        found = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)  # type: ignore[arg-type]
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(wanted.items(), found, strict=True)}


def mean_gradient(
    net: nn.Module, loss: Loss, passes: Iterable[Pass], names: Iterable[str], per_pass: bool = False
) -> Vector:
    """G(D;θ) from the passes of a set; `per_pass` gives a short last one the weight of a full one."""
    names, count = list(names), 0
    total = {n: torch.zeros_like(p) for n, p in net.named_parameters() if n in names}  # p's strides: fast to add
    for batch in passes:
        weight = 1 if per_pass else len(batch)
        found = gradient(net, loss, [batch], names)
        accumulate(total, found, weight)
        count += weight
    if total:
        torch._foreach_div_(list(total.values()), max(count, 1))
    return total


def shapes(net: nn.Module) -> dict[str, torch.Size]:
    """Shape of each entry of its state, by name; differs once the network has grown."""
    return {name: value.shape for name, value in net.state_dict().items()}


def padded(vector: Tensor, like: Tensor) -> Tensor:
    """A vector for a parameter that has grown since (a head with new outputs): zero for what is new."""
    if vector.shape == like.shape:
        return vector
    larger = torch.zeros_like(like)
    larger[tuple(slice(size) for size in vector.shape)] = vector
    return larger


def accumulate(total: Vector, vector: Vector, scale: float = 1.0) -> None:
    """total += scale · vector; what only one of them has counts as zero in the other."""
    for name, value in vector.items():
        total[name] = padded(total[name], value) if name in total else torch.zeros_like(value)
    if vector:
        torch._foreach_add_([total[name] for name in vector], list(vector.values()), alpha=scale)


def shrink(vector: Vector, factor: float) -> None:
    """vector *= factor."""
    if vector:
        torch._foreach_mul_(list(vector.values()), factor)


def share(images: int, others: int) -> float:
    """The weight of some images beside others: the paper's 1/t and (t−1)/t for tasks of any size (Remark 3.1)."""
    return images / (images + others)


# -- what all estimators share ---------------------------------------------------------------------------------------


class Estimator:
    """Adds nothing by itself: this is DGC at α = 0.

    The mixin calls, in this order: `begin_task`, after the base's; `before_observe` for each batch, `correction` and
    `after_step` for each step of the optimizer; `end_task`, around the base's. In a task-free run, where every batch is
    a task of its own, it calls `end_batch` after each batch instead of the hooks of tasks.
    """

    VIEW = "plain"  # on what it takes its gradients by default
    VIEWS: tuple[str, ...] = ("plain",)  # what --dgc_view may be,
    NO_OTHER_VIEW = "has no pair of gradients that could cancel"  # and why nothing else
    FIXED_BUFFER = False  # whether the buffer must stay as it is during a task
    STAGES = False  # whether --dgc_stage and --dgc_current mean anything to it
    NEEDS_DRAW = True  # whether a step without a replay batch stays as it is
    STATE: tuple[str, ...] = ()  # attributes that a resumed run needs

    def __init__(self, host: Any, view: Any, args: Any):
        self.host, self.view, self.args = host, view, args

    def begin_task(self) -> None: ...

    def before_observe(self) -> None: ...

    def correction(self, scale: float) -> Iterator[tuple[Vector, float | Tensor]]:
        """Vectors and their factors, to be added to the gradient; `scale` is α, perhaps decayed."""
        return iter(())

    def after_step(self) -> None: ...

    @contextmanager
    def end_task(self) -> Iterator[None]:
        """The base's `end_task` runs inside: it may move θ, and reads and fills the buffer."""
        yield

    def end_batch(self) -> None: ...

    def direction(self) -> Vector | None:
        """c of the calibrated estimate G(M;θ) + c at this moment, without α and w; None if there is none yet."""
        return None

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def mean_gradient(self, net: nn.Module, passes: Iterable[Pass], per_pass: bool = False) -> Vector:
        return mean_gradient(net, self.host.loss, passes, self.host.dgc_names(), per_pass)

    def like_network(self, vector: Vector) -> Vector:
        """A vector of the last task for the network of this one, which may have grown since."""
        parameters = dict(self.host.net.named_parameters())
        return {name: padded(vector[name], parameters[name]) for name in self.host.dgc_names() if name in vector}

    def updated_average(self, gamma: Vector) -> Vector:
        """(N_past·Γ' + N_t·G(T_t;θ)) / (N_past + N_t) (eq. 14; Remark 3.1 for tasks of different sizes)."""
        of_task = self.host.dgc_share_of_task()
        shrink(gamma, 1 - of_task)
        accumulate(gamma, self.mean_gradient(self.host.net, self.view.task()), of_task)
        return gamma

    def minus_buffer(self, gamma: Vector, net: nn.Module, passes: Iterable[Pass]) -> Vector:
        """Γ' − G(M;θ) at the parameters of `net`."""
        difference = self.mean_gradient(net, passes)
        shrink(difference, -1.0)
        accumulate(difference, {name: value for name, value in gamma.items() if name in difference})
        return difference


class SnapshotEstimator(Estimator):
    """One that keeps Γ' and θ̃."""

    STATE: tuple[str, ...] = ("gamma", "snapshot", "stage_step")

    def __init__(self, host: Any, view: Any, args: Any):
        super().__init__(host, view, args)
        self.gamma: Vector = {}  # Γ'
        self.snapshot: Any = None  # θ̃, a network with its BatchNorm statistics
        self.stage_step = 0

    def take_snapshot(self) -> None:
        """θ̃ ← θ; a new stage begins."""
        self.stage_step = 0
        if not self.snapshot_fits():
            self.snapshot = self.host.dgc_copy()
            return
        held = self.snapshot.state_dict()
        for name, value in self.host.net.state_dict().items():
            held[name].copy_(value)

    def snapshot_fits(self) -> bool:
        """Whether there is a θ̃ and it has θ's shape: a network may have grown since."""
        return self.snapshot is not None and shapes(self.snapshot) == shapes(self.host.net)

    def follow_growth(self) -> None:
        """If the network is another one: Γ' ← G(M;θ) + c with c = Γ' − G(M;θ̃) from before, zero where it is new."""
        if self.snapshot is not None and not self.snapshot_fits() and (passes := self.view.buffer()):
            calibrator = self.like_network(self.minus_buffer(self.gamma, self.snapshot, passes))
            self.gamma = self.mean_gradient(self.host.net, passes)
            accumulate(self.gamma, calibrator)

    def direction(self) -> Vector | None:
        """Γ_DGC = g(x̄;θ) − g(x̄;θ̃) + Γ' (eq. 11) averaged over the buffer: c = Γ' − G(M;θ̃)."""
        if not (self.gamma and self.snapshot_fits() and (passes := self.view.buffer())):
            return None
        return self.minus_buffer(self.gamma, self.snapshot, passes)

    def at_snapshot(self, passes: list[Pass]) -> Vector:
        """The gradient at θ̃ of the passes' sum."""
        return gradient(self.snapshot, self.host.loss, passes, self.host.dgc_names())


# -- the paper ------------------------------------------------------------------------------------------------------


class Sampled(SnapshotEstimator):
    """Algorithm 1: SVRG over the past, whose full gradient nobody can take any more: Γ' stands for it."""

    VIEW, VIEWS = "same", ("same", "plain")
    STAGES = True
    STATE = (*SnapshotEstimator.STATE, "task_gradient")

    def __init__(self, host: Any, view: Any, args: Any):
        super().__init__(host, view, args)
        self.task_gradient: Vector = {}  # --dgc_current: G(T_t;θ̃)

    def snapshot_fits(self) -> bool:
        """Nor may the body have been frozen since: BatchNorm would then normalise differently in train mode."""
        frozen = [getattr(net, "body_frozen", False) for net in (self.snapshot, self.host.net)]
        return super().snapshot_fits() and frozen[0] == frozen[1]

    def begin_task(self) -> None:
        self.follow_growth()
        if self.host.dgc_past or self.args.dgc_current:
            self.begin_stage()

    def begin_stage(self) -> None:
        """θ̃ ← θ, and G(T_t;θ̃) if it is asked for."""
        self.take_snapshot()
        if self.args.dgc_current:
            self.task_gradient = self.mean_gradient(self.host.net, self.view.task(current=True))

    def correction(self, scale: float) -> Iterator[tuple[Vector, float | Tensor]]:
        """w·α·(Γ' − g(x̄;θ̃)) (eqs. 11 and 15) and, with --dgc_current, v·(G(T_t;θ̃) − g(x_t;θ̃)) (eq. 10)."""
        weight = self.host.dgc_replay_weight() if self.host.dgc_past else None
        replay = None if weight is None else scale * weight
        stream = self.host.dgc_stream_weight() if self.args.dgc_current else None
        if replay is not None:
            yield self.gamma, replay
        if stream is not None:
            yield self.task_gradient, stream
        if replay is not None or stream is not None:
            yield self.at_snapshot(self.view.step(replay, stream)), -1.0

    def after_step(self) -> None:
        if self.host.dgc_past or self.args.dgc_current:
            self.stage_step += 1
            if self.stage_step == self.args.dgc_m:
                self.end_stage()

    def end_stage(self) -> None:
        """After m steps Γ' and θ̃ move on to the present parameters, before the buffer changes."""
        passes = self.view.stage()
        self.move_gamma(passes, passes)
        self.begin_stage()

    def move_gamma(self, now: list[Pass], before: list[Pass]) -> None:
        """Γ' ← g(X̄;θ) − g(X̄;θ̃) + Γ' (eq. 12). The two passes differ only at a task's end (`view.as_past`)."""
        if self.host.dgc_past and now:
            accumulate(self.gamma, self.mean_gradient(self.host.net, now))
            accumulate(self.gamma, self.mean_gradient(self.snapshot, before), -1.0)

    @contextmanager
    def end_task(self) -> Iterator[None]:
        """The last, partial stage at the final θ, then Γ' ← (N_past·Γ' + N_t·G(T_t;θ)) / (N_past + N_t) (eq. 14)."""
        kept = self.view.stage() if self.host.dgc_past else []
        yield
        self.move_gamma(self.view.as_past(kept), kept)
        self.gamma = self.updated_average(self.gamma)
        self.take_snapshot()


class TaskFreeSampled(Sampled):
    """Algorithm 2: every batch is a task; `host.dgc_past` of them came before this one."""

    def before_observe(self) -> None:
        if self.snapshot is None:
            self.take_snapshot()

    def after_step(self) -> None:
        """The stage ends after batches 1, m+1, 2m+1, …, but not after batch 1, which has no past."""
        if self.host.dgc_past and self.host.dgc_past % self.args.dgc_m == 0:
            self.end_stage()

    def end_batch(self) -> None:
        """Γ' ← ((n−1)·Γ' + g(x_n;θ̃)) / n over n batches, which all weigh alike, as in Algorithm 2 (eq. 14)."""
        n = self.host.dgc_past
        shrink(self.gamma, 1 - 1 / n)
        accumulate(self.gamma, self.at_snapshot(self.view.step(None, 1.0)), 1 / n)


# -- the closed form ------------------------------------------------------------------------------------------------


class Closed(Estimator):
    """`sampled`, averaged over the draw of x̄ from M_t. Then eq. 11 is Γ_DGC = G(M_t;θ) + (Γ' − G(M_t;θ̃)), and the stage
    update (eq. 12) leaves Γ' − G(M_t;θ̃) as it is: inside a task the recursion is one constant vector,

        c_t = Γ'(t) − G(M_t; θ at the start of task t).
    """

    FIXED_BUFFER = True
    STATE = ("calibrator",)

    def __init__(self, host: Any, view: Any, args: Any):
        super().__init__(host, view, args)
        self.calibrator: Vector = {}  # c_t

    def begin_task(self) -> None:
        self.calibrator = self.like_network(self.calibrator)

    def correction(self, scale: float) -> Iterator[tuple[Vector, float | Tensor]]:
        """w·α·c_t."""
        if self.host.dgc_past and (weight := self.host.dgc_replay_weight()) is not None:
            yield self.calibrator, scale * weight

    @contextmanager
    def end_task(self) -> Iterator[None]:
        """Γ'(t) = G(M_t;θ) + c_t at the final θ; Γ'(t+1) by eq. 14; c_{t+1} = Γ'(t+1) − G(M_{t+1};θ)."""
        kept = self.view.buffer() if self.host.dgc_past else []
        yield
        gamma = self.mean_gradient(self.host.net, kept) if kept else {}
        accumulate(gamma, self.calibrator)
        filled = self.view.buffer()
        self.calibrator = self.minus_buffer(self.updated_average(gamma), self.host.net, filled) if filled else {}

    def direction(self) -> Vector | None:
        return self.calibrator or None


# -- the published code ---------------------------------------------------------------------------------------------


class Released(SnapshotEstimator):
    """The code published with the paper: it adds Γ' itself, estimated on raw images, to the base's gradient."""

    VIEW, VIEWS, NO_OTHER_VIEW = "raw", (), "takes raw images, as its code does"
    NEEDS_DRAW = False
    STATE = (*SnapshotEstimator.STATE, "record", "n")

    def __init__(self, host: Any, view: Any, args: Any):
        super().__init__(host, view, args)
        self.record: Vector = {}  # the sum of this stage's differences
        self.n = 0  # finished tasks; batches in a task-free run

    def begin_task(self) -> None:
        """A task's beginning resets neither the sum nor θ̃; but if the network has grown, θ̃ is a copy of it."""
        self.gamma, self.record = self.like_network(self.gamma), self.like_network(self.record)
        if self.snapshot is not None and not self.snapshot_fits():
            self.snapshot = self.host.dgc_copy()

    def before_observe(self) -> None:
        """Sum g(R;θ) − g(R;θ̃) over m raw batches R; then Γ' += sum/(m·n) and θ̃ ← θ."""
        if not self.n or not (drawn := self.view.draw()):
            return
        accumulate(self.record, self.mean_gradient(self.host.net, drawn))
        accumulate(self.record, self.mean_gradient(self.snapshot, drawn), -1.0)
        self.stage_step += 1
        if self.stage_step == self.args.dgc_m:
            accumulate(self.gamma, self.record, 1 / (self.args.dgc_m * self.n))
            self.record = {}
            self.take_snapshot()

    def correction(self, scale: float) -> Iterator[tuple[Vector, float | Tensor]]:
        """α·Γ'."""
        yield self.gamma, scale

    @contextmanager
    def end_task(self) -> Iterator[None]:
        """n ← n+1; Γ' ← ((n−1)·Γ' + mean over batches of g(raw batch;θ̃)) / n."""
        yield
        if self.snapshot is None:
            self.take_snapshot()
        self.average(self.mean_gradient(self.snapshot, self.view.task(self.args.batch_size), per_pass=True))

    def end_batch(self) -> None:
        """As the end of a task, with this batch for the task."""
        if self.snapshot is None:
            self.take_snapshot()
        self.average(self.at_snapshot(self.view.step(None, 1.0)))

    def average(self, vector: Vector) -> None:
        self.n += 1
        shrink(self.gamma, 1 - 1 / self.n)
        accumulate(self.gamma, vector, 1 / self.n)

    def direction(self) -> Vector | None:
        """What its code adds to the replay gradient."""
        return self.gamma or None


ESTIMATORS: dict[str, type[Estimator]] = {"sampled": Sampled, "closed": Closed, "released": Released}
TASK_FREE = ESTIMATORS | {"sampled": TaskFreeSampled}


def is_task_free(args: Any) -> bool:
    """Whether the run is; the method itself may have a flag of that name, and then the run's has a `run_` before it."""
    return bool(getattr(args, "run_task_free", getattr(args, "task_free", False)))


def estimator_class(args: Any) -> type[Estimator]:
    """The one that `--dgc_estimator` names."""
    if not args.dgc_alpha:
        return Estimator
    return (TASK_FREE if is_task_free(args) else ESTIMATORS)[args.dgc_estimator]
