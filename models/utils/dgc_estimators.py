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
knows the weights and sizes; its `view` (models/utils/dgc_views.py) hands out images as passes. How gradients are taken
is in models/utils/dgc_gradients.py.

Where the network grows, nothing is known about what is new. There the calibrator Γ' − G(M;θ) is zero, so that the
buffer's own gradient counts.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from models.utils.dgc_gradients import Pass, Vector, accumulate, gradient, mean_gradient, padded, shapes, shrink

# -- what all estimators share ---------------------------------------------------------------------------------------


class Estimator:
    """Adds nothing by itself: this is DGC at α = 0.

    The mixin calls, in this order: `before_task` and `begin_task`, before and after the base's; `before_observe` for
    each batch, `correction` and `after_step` for each step of the optimizer; `end_task`, around the base's. In a
    task-free run, where every batch is a task of its own, it calls `end_batch` after each batch instead of the hooks of
    tasks.
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

    def before_task(self) -> None: ...

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

    def leave_buffer(self) -> None:
        """M is about to be replaced by the buffer of another run, between two tasks."""

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

    def follow_network(self) -> None:
        """If θ was moved since Γ' was taken: Γ' ← G(M;θ) + c with c = Γ' − G(M;θ̃) from before, zero where θ is new."""
        if self.snapshot is None or (self.snapshot_fits() and self.is_at_snapshot()):
            return
        if passes := self.view.buffer():
            calibrator = self.like_network(self.minus_buffer(self.gamma, self.snapshot, passes))
            self.gamma = self.mean_gradient(self.host.net, passes)
            accumulate(self.gamma, calibrator)

    def is_at_snapshot(self) -> bool:
        """Whether θ̃, of the same shape, is θ."""
        return all(map(torch.equal, self.snapshot.parameters(), self.host.net.parameters()))

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
    """Algorithm 1: SVRG over the past, whose full gradient can't be computed any more. Γ' stands for it.

        a task begins   θ̃ ← θ
        each step       w·α·(Γ' − g(x̄;θ̃)) is added                                             eqs. 11 and 15
        every m steps   Γ' ← g(X̄;θ) − g(X̄;θ̃) + Γ', then θ̃ ← θ                                  eq. 12
        a task ends     the same at the final θ, then Γ' ← (N_past·Γ' + N_t·G(T_t;θ)) / (N_past + N_t)   eq. 14

    With `--dgc_current`, SVRG over the current task, too: each step adds v·(G(T_t;θ̃) − g(x_t;θ̃)) (eq. 10).
    """

    VIEW, VIEWS = "same", ("same", "plain")
    STAGES = True
    STATE = (*SnapshotEstimator.STATE, "task_gradient")

    def __init__(self, host: Any, view: Any, args: Any):
        super().__init__(host, view, args)
        self.task_gradient: Vector = {}  # --dgc_current: G(T_t;θ̃)

    def begin_task(self) -> None:
        self.follow_network()
        if self.host.dgc_past or self.args.dgc_current:
            self.begin_stage()

    def begin_stage(self) -> None:
        """θ̃ ← θ, and G(T_t;θ̃) if it is asked for."""
        self.take_snapshot()
        if self.args.dgc_current:
            self.task_gradient = self.mean_gradient(self.host.net, self.view.task(current=True))

    def correction(self, scale: float) -> Iterator[tuple[Vector, float | Tensor]]:
        """w·α·Γ' + v·G(T_t;θ̃), minus the gradient at θ̃ of the loss w·α·CE(x̄) + v·CE(x_t), in one backward pass."""
        weight = self.host.dgc_replay_weight() if self.host.dgc_past else None
        replay = None if weight is None else scale * weight  # w·α; None if nothing was drawn
        stream = self.host.dgc_stream_weight() if self.args.dgc_current else None  # v
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
        """Γ' and θ̃ move to the present parameters, before the buffer changes."""
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
        """The last, partial stage ends at the final θ, with images of the old buffer; then eq. 14."""
        kept = self.view.stage() if self.host.dgc_past else []
        yield
        self.move_gamma(self.view.as_past(kept), kept)
        self.gamma = self.updated_average(self.gamma)
        self.take_snapshot()

    def snapshot_fits(self) -> bool:
        """Nor may layers have been frozen or freed since: BatchNorm in a frozen body normalises differently."""
        if not super().snapshot_fits():
            return False
        trained = ([p.requires_grad for p in net.parameters()] for net in (self.snapshot, self.host.net))
        return operator.eq(*trained)


class TaskFreeSampled(Sampled):
    """Algorithm 2: every batch is a task, and `host.dgc_past` of them came before this one."""

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
    update (eq. 12) leaves Γ' − G(M_t;θ̃) as it is: within a task the recursion is one constant vector, c_t.

        each step     w·α·c_t is added
        a task ends   Γ'(t) = G(M_t;θ) + c_t at the final θ
                      Γ'(t+1) = (N_past·Γ'(t) + N_t·G(T_t;θ)) / (N_past + N_t)                            eq. 14
                      c_{t+1} = Γ'(t+1) − G(M_{t+1};θ), with the buffer as it is now
    """

    FIXED_BUFFER = True
    STATE = ("calibrator", "gamma_left")

    def __init__(self, host: Any, view: Any, args: Any):
        super().__init__(host, view, args)
        self.calibrator: Vector = {}  # c_t
        self.gamma_left: Vector = {}  # Γ' instead of it, while M is about to be replaced or empty

    def before_task(self) -> None:
        """By now a buffer that was loaded knows how many of its rows hold images."""
        if self.gamma_left:
            self.set_calibrator(self.gamma_left)

    def begin_task(self) -> None:
        self.calibrator = self.like_network(self.calibrator)

    def correction(self, scale: float) -> Iterator[tuple[Vector, float | Tensor]]:
        if self.host.dgc_past and (weight := self.host.dgc_replay_weight()) is not None:
            yield self.calibrator, scale * weight

    @contextmanager
    def end_task(self) -> Iterator[None]:
        """The base's `end_task` turns M_t into M_{t+1}."""
        kept = self.view.buffer() if self.host.dgc_past else []
        yield
        self.set_calibrator(self.updated_average(self.past_gradient(kept)))

    def leave_buffer(self) -> None:
        if self.calibrator:
            self.calibrator, self.gamma_left = {}, self.past_gradient(self.view.buffer())

    def past_gradient(self, kept: list[Pass]) -> Vector:
        """Γ'(t) = G(M_t;θ) + c_t, or as it was left without an M_t."""
        gamma = self.mean_gradient(self.host.net, kept)
        accumulate(gamma, self.calibrator if kept else self.gamma_left)
        return gamma

    def set_calibrator(self, gamma: Vector) -> None:
        """c = Γ' − G(M;θ), with the buffer as it is now; one that is empty may yet be loaded."""
        filled = self.view.buffer()
        calibrator = self.minus_buffer(gamma, self.host.net, filled) if filled else {}
        self.calibrator, self.gamma_left = calibrator, {} if filled else gamma

    def direction(self) -> Vector | None:
        return self.calibrator or None


# -- the published code ---------------------------------------------------------------------------------------------


class Released(SnapshotEstimator):
    """The code published with the paper: it adds Γ' itself, estimated on raw images R, to the base's gradient.

        each step       the sum grows by g(R;θ) − g(R;θ̃), before the base's step; α·Γ' is added
        every m steps   Γ' ← Γ' + sum / (m·n), the sum starts again, and θ̃ ← θ
        a task ends     n ← n + 1, Γ' ← ((n−1)·Γ' + the mean over batches of T_t of g(batch;θ̃)) / n

    A new task resets neither the sum nor θ̃.
    """

    VIEW, VIEWS, NO_OTHER_VIEW = "raw", (), "takes raw images, as its code does"
    NEEDS_DRAW = False
    STATE = (*SnapshotEstimator.STATE, "record", "n")

    def __init__(self, host: Any, view: Any, args: Any):
        super().__init__(host, view, args)
        self.record: Vector = {}  # the sum of this stage's differences
        self.n = 0  # finished tasks; batches in a task-free run

    def begin_task(self) -> None:
        """If the network has grown, vectors grow with it, and θ̃ is a new copy."""
        self.gamma, self.record = self.like_network(self.gamma), self.like_network(self.record)
        if self.snapshot is not None and not self.snapshot_fits():
            self.snapshot = self.host.dgc_copy()

    def before_observe(self) -> None:
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
        yield self.gamma, scale

    @contextmanager
    def end_task(self) -> Iterator[None]:
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
