"""Dynamic Gradient Calibration (Lin, Chen, Huang, Ding, ICML 2024) on top of any replay method.

    class DgcEr(DgcMixin, Er): NAME = "dgc_er"

Replay sees a small buffer M_t of the past, so its gradient is noisy and biased. DGC keeps an estimate Γ' of the
gradient over *all* past data and corrects each step by it. In every form that is a vector added to the base method's
gradient: the paper's combined rule (eq. 15) is α·Γ_DGC + (1−α)·g(x̄;θ) = g(x̄;θ) + α·(Γ' − g(x̄;θ̃)). So the base's
`observe` runs untouched; a hook of its optimizer adds the correction just before the step.

Notation: t task; x̄ the replay batch of this step; θ the parameters, θ̃ those at the start of the stage of m steps;
g(X;θ) the gradient of the mean cross-entropy over a batch, G(D;θ) over a set; T_t the task's training set; N_past and
N_t the numbers of images in finished tasks and in this one; w the weight of x̄'s cross-entropy in the base's loss.

| `--dgc_estimator` | added at a step of task t ≥ 2 | kept |
|---|---|---|
| `sampled`  | w·α·(Γ' − g(x̄;θ̃)), the paper's Algorithm 1 | Γ', θ̃ |
| `closed`   | w·α·c_t, the mean of `sampled` over x̄ | c_t |
| `released` | α·Γ', the code published with the paper | Γ', θ̃, a running sum |

Gradients for calibration are taken on un-augmented, normalised images (`released`: not normalised) with BatchNorm in
eval mode. They leave no trace in the network: neither in its statistics, modes and `.grad`, nor in the random
numbers of the base, because draws of our own come from a private generator.

This file imports torch and the interface that Mammoth shares, and runs in a Mammoth checkout as it is.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from utils.augmentations import apply_transform

try:  # here an error of one line
    from utils.errors import UsageError
except ImportError:  # in Mammoth
    UsageError = ValueError  # type: ignore[misc, assignment]

CHUNK = 256  # images per pass when a gradient over a whole set is taken
IDLE = 100  # task-free: batches without a correction until DGC is taken to have nothing to do
Vector = dict[str, Tensor]  # one tensor per parameter, by name, with its shape and strides
Batch = tuple[Tensor, Tensor]  # images and labels


# -- flags -----------------------------------------------------------------------------------------------------------


def _number(kind: type, holds: Callable[[Any], bool], words: str) -> Callable[[str], Any]:
    def convert(text: Any) -> Any:
        if text is None:  # Mammoth passes defaults through here, too
            return None
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not holds(value):
            raise argparse.ArgumentTypeError(f"{text} is out of range: it must be {words}")
        return value

    convert.metavar = kind.__name__.upper()  # type: ignore[attr-defined]  # what a help text may show
    return convert


def add_dgc_args(parser: Any) -> None:
    """The flags of the mixin; equation numbers are those of the paper."""
    estimators, binary = ["sampled", "closed", "released"], _number(int, lambda v: v in (0, 1), "0 or 1")
    parser.add_argument("--dgc_estimator", choices=estimators, default="sampled",
        help="form of the correction: sampled = Algorithm 1 (eqs. 11, 12, 14), closed = its mean over replay batches, "
        "released = the code published with the paper")  # fmt: skip
    parser.add_argument("--dgc_alpha", type=_number(float, lambda v: 0 <= v <= 1, "in [0, 1]"), default=1e-3,
        help="α of eq. 15, the share of the calibrated estimate; 0 is the base method")  # fmt: skip
    parser.add_argument("--dgc_m", type=_number(int, lambda v: v >= 1, "a whole number, at least 1"), default=200,
        help="m, the number of steps between updates of Γ' and θ̃ (eq. 12)")  # fmt: skip
    parser.add_argument("--dgc_stage", choices=["batch", "buffer"], default="batch",
        help="sampled: update Γ' (eq. 12) by one replay batch, as printed, or by the whole buffer")  # fmt: skip
    parser.add_argument("--dgc_current", type=binary, default=0,
        help="1 adds the SVRG term of the current task, (G(T_t;θ̃) − g(x_t;θ̃))/t (eq. 10); sampled only")  # fmt: skip
    parser.add_argument("--dgc_decay", type=_number(float, lambda v: v > 0, "greater than 0"), default=None,
        help="let the correction decay as exp(−k/TAU) over the steps k of a task; constant by default")  # fmt: skip
    parser.add_argument("--dgc_params", choices=["all", "head", "body"], default="all",
        help="correct all parameters, only the classifier's, or only the others")  # fmt: skip


def check_dgc_args(args: argparse.Namespace) -> None:
    """Refuse what contradicts itself (ValueError with one line)."""
    task_free, fill = getattr(args, "task_free", False), getattr(args, "buffer_fill", "task_end")
    problems = [
        (args.dgc_estimator == "closed" and task_free,
         "--dgc_estimator closed needs a buffer that stays as it is during a task: a task-free run has no tasks"),
        (args.dgc_estimator == "closed" and fill != "task_end",
         "--dgc_estimator closed needs a buffer that stays as it is during a task: use --buffer_fill task_end"),
        (args.dgc_current and args.dgc_estimator != "sampled", "--dgc_current 1 is a term of --dgc_estimator sampled"),
        (args.dgc_current and task_free,
         "--dgc_current 1 is zero in a task-free run, where each batch is a task: leave it out"),
        (args.dgc_decay and task_free, "--dgc_decay counts the steps of a task: a task-free run has no tasks"),
        (args.dgc_stage == "buffer" and args.dgc_estimator != "sampled",
         f"--dgc_stage buffer is for --dgc_estimator sampled; {args.dgc_estimator} has no such stage"),
    ]  # fmt: skip
    for wrong, message in problems:
        if wrong:
            raise ValueError(message)
    if args.dgc_m == 1:
        logging.warning(
            "--dgc_m 1: Γ' then takes in the noise of a batch at every step; the paper's own table collapses"
        )


def correction_scale(args: argparse.Namespace, step: int) -> float:
    """How much of the correction is applied at a step of a task (from 0): the one place that gives it its shape."""
    decay = 1.0 if args.dgc_decay is None else math.exp(-step / args.dgc_decay)
    return args.dgc_alpha * decay


# -- gradients that leave no trace ----------------------------------------------------------------------------------


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Eval mode for a while: BatchNorm uses its running statistics and leaves them alone."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def gradient(net: nn.Module, loss: Callable[..., Tensor], batch: Batch, names: Iterable[str]) -> list[Tensor]:
    """g(X;θ) for the named parameters; not through `.grad`, which belongs to the base method."""
    parameters = dict(net.named_parameters())
    wanted = [parameters[name] for name in names]
    with evaluating(net), torch.enable_grad():
        found = torch.autograd.grad(loss(net(batch[0]), batch[1]), wanted, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(wanted, found, strict=True)]


def mean_gradient(
    net: nn.Module, loss: Callable[..., Tensor], batches: Iterable[Batch], names: list[str], per_batch: bool = False
) -> Vector:
    """G(D;θ) from the batches of a set; `per_batch` gives a short last batch the weight of a full one."""
    parameters = dict(net.named_parameters())
    total = {name: torch.zeros_like(parameters[name]) for name in names}  # the parameters' strides: fast to add
    count = 0
    for batch in batches:
        weight = 1 if per_batch else len(batch[1])
        torch._foreach_add_(list(total.values()), gradient(net, loss, batch, names), alpha=weight)
        count += weight
    torch._foreach_div_(list(total.values()), count)
    return total


def shapes(net: nn.Module) -> dict[str, torch.Size]:
    """By the names in its state: they differ between two networks of which one has grown."""
    return {name: value.shape for name, value in net.state_dict().items()}


def grown(vector: Tensor, like: Tensor) -> Tensor:
    """A vector for a parameter that has grown since (a head with new outputs): zeros where nothing is known yet."""
    if vector.shape == like.shape:
        return vector
    padded = torch.zeros_like(like)
    padded[tuple(slice(size) for size in vector.shape)] = vector
    return padded


def accumulate(total: Vector, vector: Vector, scale: float = 1.0) -> None:
    """total += scale · vector; what is new in it starts from zero."""
    for name, value in vector.items():
        total[name] = grown(total[name], value) if name in total else torch.zeros_like(value)
    torch._foreach_add_([total[name] for name in vector], list(vector.values()), alpha=scale)


def shrink(vector: Vector, factor: float) -> None:
    if vector:
        torch._foreach_mul_(list(vector.values()), factor)


def raw_batches(images: Any, size: int) -> Iterator[Batch]:
    """(un-augmented images in [0, 1], labels) of a training set in its own order: by slices, or item by item."""
    for start in range(0, len(images), size):
        if hasattr(images, "batch"):  # a training set of ours
            rows = slice(start, start + size)
            batch = images.batch(rows)
            yield batch.float() / 255 if batch.dtype == torch.uint8 else batch, images.targets[rows]
        else:
            with torch.random.fork_rng(devices=[]):  # the items' own augmentation is drawn and not used
                items = [images[i] for i in range(start, min(start + size, len(images)))]
            items = [item for item in items if item[1] >= 0]  # Mammoth's label of what has none is −1
            if items:
                yield torch.stack([item[2] for item in items]), torch.as_tensor([int(item[1]) for item in items])


@lru_cache
def accepted_keywords(observe: Callable) -> frozenset[str] | None:
    """Names that an `observe` accepts; None if it takes all."""
    names = inspect.signature(observe).parameters
    return None if "kwargs" in names else frozenset(names)


# -- the mixin -------------------------------------------------------------------------------------------------------


class DgcMixin:
    """Put it before a replay method that has `self.buffer`; see the module's text."""

    # Which `buffer.get_data` of a step draws x̄, the batch whose cross-entropy enters the loss. ER's only one is 0.
    DGC_DRAW = 0

    args: Any
    buffer: Any
    dataset: Any
    device: Any
    loss: Any
    net: Any
    opt: Any

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        check_dgc_args(args)
        self._dgc_task_free = bool(getattr(args, "task_free", False))
        # Plain containers only: the framework saves and restores what lies in them.
        self._dgc_gamma: Vector = {}  # Γ'
        self._dgc_calibrator: Vector = {}  # closed: c_t
        self._dgc_task_gradient: Vector = {}  # --dgc_current: G(T_t;θ̃)
        self._dgc_record: Vector = {}  # released: the running sum
        self._dgc_snapshot: list[nn.Module] = []  # θ̃ with its BatchNorm statistics; in a list, to be no submodule
        self._dgc_past = 0  # images of finished tasks; batches in a task-free run
        self._dgc_tasks = 0  # n of the released code: finished tasks; batches in a task-free run
        self._dgc_stage_step = self._dgc_task_step = 0
        self._dgc_used = False  # whether there was ever a step that DGC could correct
        self._dgc_idle = 0  # batches observed before that, though there were past images in memory
        self._dgc_held_back: list[str] = []  # fields that the base wanted to store while the buffer must stay fixed
        self._dgc_generator = torch.Generator().manual_seed(0x5DEECE66D ^ (getattr(args, "seed", None) or 0))
        self._dgc_draws: list[Tensor] = []
        self._dgc_stream: Batch | None = None  # the batch being observed; None outside `observe`
        # Of the dataset that the hooks are given: some methods put another one into `self.dataset`.
        self._dgc_training_set: Callable[[], Any] = lambda: self.dataset.train_loader.dataset
        super().__init__(backbone, loss, args, transform, dataset)  # type: ignore[call-arg]
        if self.dataset.SETTING == "general-continual" and not self._dgc_task_free:
            raise UsageError(
                f"DGC needs the training sets of tasks, and {self.dataset.NAME} is one stream without any"
                + ("; use --task_free 1" if hasattr(args, "task_free") else "")
            )

    @classmethod
    def get_parser(cls, parser: Any) -> Any:
        """The base's flags and ours. A base may return nothing, or a parser of its own."""
        own = super().get_parser(parser)  # type: ignore[misc]
        parser = parser if own is None else own
        add_dgc_args(parser)
        return parser

    @classmethod
    def check_args(cls, args: Any) -> None:
        """Before anything is built, in a framework that asks. DGC fills the buffer at the end of tasks, if any."""
        if getattr(args, "buffer_fill", "") is None:
            args.buffer_fill = "stream" if args.task_free else "task_end"
        super().check_args(args)  # type: ignore[misc]
        check_dgc_args(args)

    def dgc_weight(self, stream: int, replayed: int) -> float:
        """w, the weight of the replay batch's cross-entropy in the base's loss; here one mean over both batches."""
        return replayed / (stream + replayed)

    # The next four are for bases whose replay is no draw from the buffer, and for networks that grow.

    def dgc_replay_weight(self) -> Any:
        """w at this step: a number, or a tensor of no dimension if it lies on the device; None without any x̄."""
        if len(self._dgc_draws) <= self.DGC_DRAW:
            return None
        return self.dgc_weight(len(self._dgc_stream[1]), len(self._dgc_draws[self.DGC_DRAW]))  # type: ignore[index]

    def dgc_replay_batch(self) -> Batch:
        """x̄ of this step, un-augmented: the rows that the base drew."""
        return self._dgc_rows(self._dgc_draws[self.DGC_DRAW])

    def dgc_carry(self, vector: Vector) -> Vector:
        """A vector of the last task, under the names that its parameters have now that a task begins."""
        return vector

    def dgc_copy(self) -> nn.Module:
        """A copy of the network to be θ̃; it may share what stays as it is until the next task."""
        return copy.deepcopy(self.net)

    def dgc_direction(self) -> Vector | None:
        """c of the calibrated estimate G(M;θ) + c at this moment, for those who watch; None if there is none yet.

        `sampled`: Γ_DGC = g(x̄;θ) − g(x̄;θ̃) + Γ' (eq. 11) averaged over the buffer has c = Γ' − G(M;θ̃); `closed`: c_t;
        `released`: Γ', which is what its code adds to the replay gradient. Without α, w and decay; not to be changed.
        """
        if self.args.dgc_estimator == "sampled":
            ready = self._dgc_gamma and self._dgc_snapshot and not self.buffer.is_empty()
            return self._dgc_gamma_minus_buffer(self._dgc_snapshot[0]) if ready else None
        held = self._dgc_calibrator if self.args.dgc_estimator == "closed" else self._dgc_gamma
        return self._dgc_like_network(held) or None

    # -- around the base's hooks ---------------------------------------------------------------------------------

    def get_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        optimizer = super().get_optimizer(*args, **kwargs)  # type: ignore[misc]
        self._dgc_attach(optimizer)
        return optimizer

    def _dgc_attach(self, optimizer: Any) -> None:
        """Optimizers are rebuilt at every task, and some methods make their own: once for each."""
        if optimizer is not None and not getattr(optimizer, "calibrated", False):
            optimizer.calibrated = True
            optimizer.register_step_pre_hook(lambda opt, *_: self._dgc_before_step(opt))
            optimizer.register_step_post_hook(lambda opt, *_: self._dgc_after_step(opt))

    def begin_task(self, dataset: Any) -> None:
        """c_t = Γ'(t) − G(M_t;θ), or θ̃ ← θ: only now, because the base may just have made the network grow."""
        super().begin_task(dataset)  # type: ignore[misc]
        self._dgc_training_set = lambda: dataset.train_loader.dataset
        self._dgc_task_step = 0
        if not self.args.dgc_alpha:
            return
        self._dgc_gamma = self._dgc_like_network(self.dgc_carry(self._dgc_gamma))
        self._dgc_record = self._dgc_like_network(self.dgc_carry(self._dgc_record))
        if self.args.dgc_estimator == "released":
            if self._dgc_snapshot and shapes(self._dgc_snapshot[0]) != shapes(self.net):
                self._dgc_snapshot = [self.dgc_copy()]  # no other θ̃ has θ's shape; the stage goes on
        elif self.args.dgc_estimator == "closed":
            if self._dgc_past and not self.buffer.is_empty():  # as it is after tasks that were skipped
                self._dgc_calibrator, self._dgc_gamma = self._dgc_gamma_minus_buffer(self.net), {}  # all that is kept
        elif self._dgc_past or self.args.dgc_current:
            self._dgc_take_snapshot()

    def end_task(self, dataset: Any) -> None:
        """Keep what is needed of M_t, let the base finish (it may move θ, read and fill the buffer), then update Γ'."""
        self._dgc_training_set = lambda: dataset.train_loader.dataset
        self._dgc_check_use()
        kept: list[Batch] = []
        if self.args.dgc_alpha and self._dgc_past and self.args.dgc_estimator != "released":
            kept = self._dgc_buffer_batches() if self.args.dgc_estimator == "closed" else self._dgc_stage_batches()
        self._dgc_fill()
        super().end_task(dataset)  # type: ignore[misc]
        if not self.buffer.is_empty() and not hasattr(self.buffer, "labels"):
            self._dgc_refuse("stores no labels with them")
        if self.args.dgc_alpha:
            if self.args.dgc_estimator == "released":
                self._dgc_end_released()
            else:
                self._dgc_end_task(kept)
        self._dgc_past += len(dataset.train_loader.dataset)

    def observe(
        self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None, **kwargs: Any
    ) -> Any:
        base = super().observe  # type: ignore[misc]
        accepted = accepted_keywords(base.__func__)
        kwargs = {"epoch": epoch, **kwargs}
        if accepted is not None:
            kwargs = {name: value for name, value in kwargs.items() if name in accepted}
        self._dgc_attach(self.opt)
        algorithm_2 = self._dgc_task_free and self.args.dgc_alpha
        if algorithm_2 and self.args.dgc_estimator == "sampled" and not self._dgc_snapshot:
            self._dgc_take_snapshot()
        self._dgc_stream = (not_aug_inputs, labels)
        to_replay = bool(self._dgc_past) and not self.buffer.is_empty()  # asked before the base stores this batch
        try:
            with self._dgc_recording():
                result = base(inputs, labels, not_aug_inputs, **kwargs)
            self._dgc_idle += to_replay and not self._dgc_used
            if algorithm_2:
                self._dgc_end_micro_task()
        finally:
            self._dgc_stream = None
        _wandb_loss = result["loss"] if isinstance(result, dict) else result  # Mammoth logs locals of that kind of name
        return result

    @contextmanager
    def _dgc_recording(self) -> Iterator[None]:
        """Note which rows the base draws; of a base without `--buffer_fill`, also hold the writes back.

        Not in a task-free run: it has no end of a task at which they could be made.
        """
        buffer = self.buffer
        get_data, add_data = buffer.get_data, buffer.add_data
        self._dgc_draws = []

        def recorded(*args: Any, **kwargs: Any) -> Any:
            call = inspect.signature(get_data).bind(*args, **kwargs)
            wanted = call.arguments.get("return_index", False)
            call.arguments["return_index"] = True
            index, *fields = get_data(*call.args, **call.kwargs)
            self._dgc_draws.append(index)
            return (index, *fields) if wanted else tuple(fields)

        def held_back(*args: Any, **kwargs: Any) -> Any:
            fields = inspect.signature(add_data).bind(*args, **kwargs).arguments
            names = sorted(name for name, value in fields.items() if value is not None)
            if "labels" not in names:
                self._dgc_refuse("stores no labels with them")
            if self._dgc_task_free:
                return add_data(*args, **kwargs)
            self._dgc_held_back = names
            return None

        buffer.get_data = recorded
        if not hasattr(self.args, "buffer_fill"):
            buffer.add_data = held_back
        try:
            yield
        finally:
            for name in ("get_data", "add_data"):
                vars(buffer).pop(name, None)  # the class's own methods show again

    # -- each step -------------------------------------------------------------------------------------------------

    def _dgc_before_step(self, optimizer: Any) -> None:
        """Add the correction to the gradients that the base has computed (eqs. 11 and 15)."""
        if optimizer is not self.opt or self._dgc_stream is None or not self.args.dgc_alpha:
            return
        scale = correction_scale(self.args, self._dgc_task_step)
        if self.args.dgc_estimator == "released":
            self._dgc_used = True  # it needs no draw of the base's
            self._dgc_record_difference()
            self._dgc_add(optimizer, self._dgc_gamma, scale)
        elif self._dgc_past and (weight := self.dgc_replay_weight()) is not None:
            self._dgc_used = True
            scale *= weight
            if self.args.dgc_estimator == "closed":
                self._dgc_add(optimizer, self._dgc_calibrator, scale)
            else:
                self._dgc_add(optimizer, self._dgc_gamma, scale)
                self._dgc_add(optimizer, self._dgc_at_snapshot(self.dgc_replay_batch()), -scale)
        if self.args.dgc_current:
            share = self._dgc_share_of_task()
            stream = (self._dgc_ready(self._dgc_stream[0]), self._dgc_stream[1])
            self._dgc_add(optimizer, self._dgc_task_gradient, share)
            self._dgc_add(optimizer, self._dgc_at_snapshot(stream), -share)

    def _dgc_add(self, optimizer: Any, vector: Vector, scale: float | Tensor) -> None:
        """To every trainable parameter of the optimizer; one without a gradient gets the correction as its gradient."""
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        gradients, additions = [], []
        for name, p in self.net.named_parameters():
            if name in vector and p.requires_grad and id(p) in stepped:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                gradients.append(p.grad)
                additions.append(grown(vector[name], p))
        if not gradients:
            return
        if isinstance(scale, Tensor):  # to read it would make the host wait
            additions, scale = list(torch._foreach_mul(additions, scale)), 1.0
        torch._foreach_add_(gradients, additions, alpha=scale)

    def _dgc_after_step(self, optimizer: Any) -> None:
        """Count; at the end of a stage Γ' and θ̃ move on to the present parameters, before the buffer changes."""
        if optimizer is not self.opt or self._dgc_stream is None or not self.args.dgc_alpha:
            return
        self._dgc_task_step += 1
        if self.args.dgc_estimator != "sampled" or not (self._dgc_past or self.args.dgc_current):
            return
        self._dgc_stage_step += 1
        # Algorithm 2 refreshes after batches 1, m+1, 2m+1, …; here `_dgc_past` batches came before this one.
        due = self._dgc_past % self.args.dgc_m == 0 if self._dgc_task_free else self._dgc_stage_step == self.args.dgc_m
        if due:
            self._dgc_move_gamma(self._dgc_stage_batches())
            self._dgc_take_snapshot()

    def _dgc_move_gamma(self, batches: list[Batch]) -> None:
        """Γ' ← g(X̄;θ) − g(X̄;θ̃) + Γ' (eq. 12)."""
        if self._dgc_past and batches:
            accumulate(self._dgc_gamma, self._dgc_mean_gradient(self.net, batches))
            accumulate(self._dgc_gamma, self._dgc_mean_gradient(self._dgc_snapshot[0], batches), -1.0)

    def _dgc_stage_batches(self) -> list[Batch]:
        """X̄ for the stage update: a fresh draw from the buffer, or all of it."""
        if self.buffer.is_empty():
            return []
        return self._dgc_buffer_batches() if self.args.dgc_stage == "buffer" else [self._dgc_rows(self._dgc_draw())]

    def _dgc_check_use(self) -> None:
        """A base on which DGC never has an effect must not pass for a run with DGC."""
        if not self.args.dgc_alpha or self._dgc_used or not self._dgc_idle:
            return
        if not self._dgc_task_step:
            self._dgc_refuse("makes no step of its optimizer in `observe`")
        self._dgc_refuse(
            "draws nothing from self.buffer by get_data in `observe` before its step, so there is nothing to "
            "calibrate; run it without DGC"
        )

    # -- ends of tasks -----------------------------------------------------------------------------------------------

    def _dgc_end_task(self, kept: list[Batch]) -> None:
        """Γ'(t+1) = (N_past·Γ'(t) + N_t·G(T_t;θ)) / (N_past + N_t) at the final θ (eq. 14).

        Before that Γ'(t) is brought to θ: by the last, partial stage, or in closed form as G(M_t;θ) + c_t.
        """
        if self.args.dgc_estimator == "sampled":
            self._dgc_move_gamma(kept)
        elif kept:
            self._dgc_gamma = self._dgc_mean_gradient(self.net, kept)
            accumulate(self._dgc_gamma, self._dgc_calibrator)
        share = self._dgc_share_of_task()
        shrink(self._dgc_gamma, 1 - share)
        accumulate(self._dgc_gamma, self._dgc_mean_gradient(self.net, self._dgc_task_batches()), share)

    def _dgc_share_of_task(self) -> float:
        """N_t / (N_past + N_t): the paper's 1/t for tasks of different sizes (Remark 3.1)."""
        current = len(self._dgc_training_set())
        return current / (self._dgc_past + current)

    def _dgc_end_micro_task(self) -> None:
        """Task-free: every batch is a task of its own, and Γ' the mean over one more of them (eq. 14)."""
        if self._dgc_idle == IDLE:
            self._dgc_check_use()
        images, labels = self._dgc_stream  # type: ignore[misc]
        if not self._dgc_snapshot:
            self._dgc_take_snapshot()
        self._dgc_past += 1
        self._dgc_tasks += 1
        self._dgc_average(self._dgc_at_snapshot((self._dgc_ready(images), labels)))

    # -- the released code ---------------------------------------------------------------------------------------------

    def _dgc_record_difference(self) -> None:
        """Sum g(R;θ) − g(R;θ̃) over m raw batches R; then Γ' += sum/(m·n) and θ̃ ← θ. A task's end resets neither."""
        if not self._dgc_tasks or self.buffer.is_empty():
            return
        batch = self._dgc_rows(self._dgc_draw())
        accumulate(self._dgc_record, self._dgc_mean_gradient(self.net, [batch]))
        accumulate(self._dgc_record, self._dgc_at_snapshot(batch), -1.0)
        self._dgc_stage_step += 1
        if self._dgc_stage_step == self.args.dgc_m:
            accumulate(self._dgc_gamma, self._dgc_record, 1 / (self.args.dgc_m * self._dgc_tasks))
            self._dgc_record = {}
            self._dgc_take_snapshot()

    def _dgc_end_released(self) -> None:
        """n ← n+1; Γ' ← ((n−1)·Γ' + mean over batches of g(raw batch;θ̃)) / n."""
        if not self._dgc_snapshot:
            self._dgc_take_snapshot()
        self._dgc_tasks += 1
        batches = self._dgc_task_batches(self.args.batch_size)
        self._dgc_average(self._dgc_mean_gradient(self._dgc_snapshot[0], batches, per_batch=True))

    def _dgc_average(self, vector: Vector) -> None:
        shrink(self._dgc_gamma, 1 - 1 / self._dgc_tasks)
        accumulate(self._dgc_gamma, vector, 1 / self._dgc_tasks)

    # -- parameters and snapshots ----------------------------------------------------------------------------------

    def _dgc_names(self) -> list[str]:
        """The parameters that are calibrated: trainable ones, all or the part that `--dgc_params` names."""
        part = self.args.dgc_params
        head = {id(p) for p in self.net.classifier.parameters()} if part != "all" else set()
        return [
            name
            for name, p in self.net.named_parameters()
            if p.requires_grad and (part == "all" or (id(p) in head) == (part == "head"))
        ]

    def _dgc_mean_gradient(self, net: nn.Module, batches: Iterable[Batch], per_batch: bool = False) -> Vector:
        return mean_gradient(net, self.loss, batches, self._dgc_names(), per_batch)

    def _dgc_gamma_minus_buffer(self, net: nn.Module) -> Vector:
        """Γ' − G(M;θ) at the parameters of `net`."""
        difference = self._dgc_mean_gradient(net, self._dgc_buffer_batches())
        torch._foreach_neg_(list(difference.values()))
        accumulate(difference, self._dgc_like_network(self._dgc_gamma))
        return difference

    def _dgc_at_snapshot(self, batch: Batch) -> Vector:
        """g(X;θ̃)."""
        names = self._dgc_names()
        return dict(zip(names, gradient(self._dgc_snapshot[0], self.loss, batch, names), strict=True))

    def _dgc_like_network(self, vector: Vector) -> Vector:
        """A vector of the last task, padded where the network has grown since."""
        return {name: grown(vector[name], p) for name, p in self.net.named_parameters() if name in vector}

    def _dgc_take_snapshot(self) -> None:
        """θ̃ ← θ; a new stage begins. With `--dgc_current` it needs G(T_t;θ̃)."""
        self._dgc_stage_step = 0
        if self._dgc_snapshot and shapes(self._dgc_snapshot[0]) == shapes(self.net):
            held = self._dgc_snapshot[0].state_dict()
            for name, value in self.net.state_dict().items():
                held[name].copy_(value)
        else:
            self._dgc_snapshot = [self.dgc_copy()]
        if self.args.dgc_current:
            self._dgc_task_gradient = self._dgc_mean_gradient(self.net, self._dgc_task_batches())

    # -- data ----------------------------------------------------------------------------------------------------------

    def _dgc_ready(self, images: Tensor) -> Tensor:
        """Images in [0, 1] as calibration sees them: normalised, but for the released code."""
        if self.args.dgc_estimator == "released":
            return images
        return apply_transform(images, getattr(self, "normalization_transform", None))

    def _dgc_rows(self, index: Tensor) -> Batch:
        """Rows of the buffer, un-augmented."""
        index = index if index.device.type == "cpu" else index.to(self.buffer.device)  # which may be the host
        images, labels, *_ = self.buffer.get_data_by_index(index, device=self.device)
        return self._dgc_ready(images), labels

    def _dgc_draw(self) -> Tensor:
        """Rows of a replay batch of our own."""
        return torch.randperm(len(self.buffer), generator=self._dgc_generator)[: self.args.minibatch_size]

    def _dgc_buffer_batches(self) -> list[Batch]:
        """All of the buffer; copies, which stay what they are when the buffer changes."""
        if self.buffer.is_empty():
            return []
        return [self._dgc_rows(index) for index in torch.arange(len(self.buffer)).split(CHUNK)]

    def _dgc_task_batches(self, size: int = CHUNK) -> Iterator[Batch]:
        """The current task's training set."""
        for images, labels in raw_batches(self._dgc_training_set(), size):
            yield self._dgc_ready(images.to(self.device)), labels.to(self.device)

    def _dgc_fill(self) -> None:
        """In a framework without `--buffer_fill`: offer what was held back, each image once (Algorithm 1)."""
        if not self._dgc_held_back:
            return
        if self.args.dgc_alpha and not self._dgc_task_step:
            self._dgc_refuse("makes no step of its optimizer in `observe`")
        for images, labels in raw_batches(self._dgc_training_set(), CHUNK):
            fields: dict[str, Any] = {"examples": images, "labels": labels}
            if "logits" in self._dgc_held_back:
                with evaluating(self.net), torch.no_grad():
                    normalised = apply_transform(images, getattr(self, "normalization_transform", None))
                    fields["logits"] = self.net(normalised.to(self.device))
            if "task_labels" in self._dgc_held_back:
                fields["task_labels"] = torch.full_like(labels, self.current_task)  # type: ignore[attr-defined]
            self.buffer.add_data(**fields)
        self._dgc_held_back = []

    def _dgc_refuse(self, reason: str) -> None:
        name = self.NAME  # type: ignore[attr-defined]
        raise UsageError(f"{name}: DGC corrects the cross-entropy of replayed images, but its base {reason}")
