"""Dynamic Gradient Calibration (Lin, Chen, Huang, Ding, ICML 2024) on top of any replay method.

    class DgcEr(DgcMixin, Er): NAME = "dgc_er"

Replay sees a small buffer M_t of the past, so its gradient is noisy and biased. DGC keeps an estimate Γ' of the
gradient over *all* past data and corrects each step by it. In every form that is a vector added to the base method's
gradient: the paper's combined rule (eq. 15) is α·Γ_DGC + (1−α)·g(x̄;θ) = g(x̄;θ) + α·(Γ' − g(x̄;θ̃)). So the base's
`observe` runs untouched; a hook of its optimizer adds the correction just before the step.

What is added is said by the estimators (dgc_estimators.py, where the notation is explained), and on which images by
their views (dgc_views.py). This file fits both to a base method: it notes what the base replays (dgc_draws.py), and
attaches to its optimizer and its hooks. The flags are in dgc_flags.py.

Calibration leaves no trace in the network: neither in its statistics, modes and `.grad`, nor in the random numbers of
the base, because draws of its own come from a private generator.

These files import torch and the interface that Mammoth shares, and run in a Mammoth checkout as they are.
"""

from __future__ import annotations

import copy
import inspect
import math
import operator
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from models.utils.dgc_draws import Draw, Recorder, UsageError, images_and_labels
from models.utils.dgc_estimators import estimator_class, is_task_free
from models.utils.dgc_flags import add_dgc_args, check_dgc_args
from models.utils.dgc_gradients import ALL, CHUNK, add_to_gradients, borrowed, share
from models.utils.dgc_views import VIEWS, as_input, generators_put_back, raw_batches

IDLE = 100  # task-free: batches without a correction until DGC is taken to have nothing to do


# -- the mixin -------------------------------------------------------------------------------------------------------


class DgcMixin:
    """Put it before a replay method that has `self.buffer`; see the module's text."""

    # Which `buffer.get_data` of a step draws x̄, the batch whose cross-entropy enters the loss. ER's only one is 0.
    DGC_DRAW = 0
    # Whether the base passes x̄ through its network joined to the stream's batch; None: to be found out.
    DGC_JOINED: bool | None = None

    args: Any
    buffer: Any
    dataset: Any
    device: Any
    loss: Any
    net: Any
    opt: Any
    transform: Any

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        check_dgc_args(args)
        kind = estimator_class(args)
        self.dgc = kind(self, VIEWS[args.dgc_view or kind.VIEW](self), args)
        self.dgc_past = 0  # N_past: images of finished tasks; batches in a task-free run
        self.dgc_stream: tuple[Tensor, Tensor, Tensor] | None = None  # (inputs, un-augmented, labels) being observed
        self.dgc_generator = torch.Generator().manual_seed(0x5DEECE66D ^ (getattr(args, "seed", None) or 0))
        # The dataset is the one that the hooks are given: some methods put another into `self.dataset`.
        self.dgc_training_set: Callable[[], Any] = lambda: self.dataset.train_loader.dataset
        self._dgc_task_free = is_task_free(args)
        self._dgc_task_step = 0
        # Lists that each step empties, because torch takes 2 µs to set an attribute of a module.
        self._dgc_draws: list[Draw] = []  # since the last step
        self._dgc_last_draws: list[Draw] = []  # those of the last step
        self._dgc_passed: list[Tensor] = []  # what went through the network, while that is watched
        self._dgc_joined = self.DGC_JOINED
        self._dgc_used = False  # whether there was ever a step that DGC could correct
        self._dgc_idle = 0  # batches observed before that, though there were past images in the buffer
        self._dgc_held_back: list[str] = []  # fields that the base wanted to store while the buffer must stay fixed
        super().__init__(backbone, loss, args, transform, dataset)  # type: ignore[call-arg]
        self._dgc_check_fit()

    def _dgc_check_fit(self) -> None:
        if self.dataset.SETTING == "general-continual" and not self._dgc_task_free:
            raise UsageError(
                f"DGC needs the training sets of tasks, and {self.dataset.NAME} is one stream without any"
                + ("; use --task_free 1" if hasattr(self.args, "task_free") else "")
            )
        if self.args.dgc_params == "frozen" and not self.dgc_features_frozen():
            raise UsageError(
                "--dgc_params frozen: the features under the classifier learn, so that its calibrator goes stale; use "
                "--backbone linear, --body_lr_scale 0 or, all the same, --dgc_params head"
            )
        dropout = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in self.net.modules())
        if dropout and self.dgc_view.REPEATS_BASE:
            raise UsageError(
                "--dgc_view same takes a pass twice, but the network has dropout, which is drawn anew each time: use "
                "--dgc_view plain"
            )

    @classmethod
    def get_parser(cls, parser: Any) -> Any:
        """The base's flags and ours. A base may return nothing, or a parser of its own."""
        own = super().get_parser(parser)  # type: ignore[misc]
        parser = parser if own is None else own
        add_dgc_args(parser)
        return parser

    @classmethod
    def derived_args(cls, args: Any) -> dict[str, Any]:
        """In a framework that asks: DGC fills the buffer at the end of tasks, if there are any."""
        fill = {} if args.task_free or getattr(args, "buffer_fill", "") is not None else {"buffer_fill": "task_end"}
        return super().derived_args(args) | fill  # type: ignore[misc]

    @classmethod
    def check_args(cls, args: Any) -> None:
        """Before anything is built, in a framework that asks."""
        super().check_args(args)  # type: ignore[misc]
        check_dgc_args(args)

    @property
    def dgc_view(self) -> Any:
        """What the estimator sees of the images."""
        return self.dgc.view

    # -- what a base method may need to say otherwise ----------------------------------------------------------------

    def dgc_weights(self, stream: int, replayed: int) -> tuple[float, float]:
        """v and w, the weights of the cross-entropies of x_t and x̄ in the base's loss.

        Those of one mean over both batches, or the paper's 1/t and (t−1)/t (eq. 15) if the base weighs by tasks.
        """
        if replayed and getattr(self, "past_images", 0):
            return self.task_weights()  # type: ignore[attr-defined]
        return share(stream, replayed), share(replayed, stream)

    def dgc_separate_weights(self, factor: float) -> tuple[float, float]:
        """v and w of a base that adds x̄'s mean cross-entropy times a factor to the stream's."""
        v, w = self.task_weights() if hasattr(self, "task_weights") else (1.0, 1.0)
        return v, w * factor

    def dgc_pass(self, inputs: Tensor, drawn: Tensor) -> tuple[Tensor, Any]:
        """The batch in which x̄ went through the network at this step, and its rows there."""
        if self._dgc_joined is None:
            self._dgc_joined = self._dgc_find_form(inputs, drawn)
        return (torch.cat((inputs, drawn)), slice(len(inputs), None)) if self._dgc_joined else (drawn, ALL)

    def _dgc_find_form(self, inputs: Tensor, drawn: Tensor) -> bool:
        """Whether x̄ was joined to the stream's batch in what has just gone through the network."""
        if any(_equal(drawn, passed) for passed in self._dgc_passed):
            return False
        if inputs.shape[1:] == drawn.shape[1:]:
            joined = torch.cat((inputs, drawn))
            if any(_equal(joined, passed) for passed in self._dgc_passed):
                return True
        self._dgc_refuse(
            "passes them through its network neither by themselves nor joined to the stream's batch; use --dgc_view "
            "plain"
        )

    def dgc_mix(self) -> tuple[int, int]:
        """How many images of the current task and of the buffer are in one pass of the base that has x̄ in it."""
        return (self.args.batch_size if self._dgc_joined else 0), self.args.minibatch_size

    def dgc_columns(self, current: bool = False) -> slice:
        """The outputs in the cross-entropy of x̄, or of x_t."""
        return ALL

    def dgc_draw(self) -> Draw | None:
        """x̄ of this step, if there is one."""
        if len(self._dgc_draws) <= self.DGC_DRAW:
            return None
        if self._dgc_draws[self.DGC_DRAW].labels is None:
            self._dgc_refuse("replays images without labels")
        return self._dgc_draws[self.DGC_DRAW]

    def dgc_replay_weight(self) -> Any:
        """w at this step: a number, or a scalar tensor if it lies on the device; None without any x̄."""
        draw = self.dgc_draw()
        return None if draw is None else self.dgc_weights(self.dgc_stream[2].shape[0], len(draw))[1]  # type: ignore[index]

    def dgc_stream_weight(self) -> float:
        """v at this step."""
        draw = self.dgc_draw()
        return self.dgc_weights(len(self.dgc_stream[2]), 0 if draw is None else len(draw))[0]  # type: ignore[index]

    def dgc_copy(self) -> nn.Module:
        """A copy of the network to be θ̃; it may share what stays as it is until the next task."""
        return copy.deepcopy(self.net)

    def dgc_features_frozen(self) -> bool:
        """Whether what enters the classifier stays as it is while it is calibrated, so from the second task on."""
        if getattr(self.args, "body_lr_scale", None) == 0:
            return True
        trained = {id(p) for p in self.net.parameters() if p.requires_grad}
        return trained <= {id(p) for p in self.net.classifier.parameters()}

    def dgc_names(self) -> list[str]:
        """The parameters that are calibrated: trainable ones, all or the part that `--dgc_params` names."""
        part = self.args.dgc_params
        head = {id(p) for p in self.net.classifier.parameters()} if part != "all" else set()
        return [
            name
            for name, p in self.net.named_parameters()
            if p.requires_grad and (part == "all" or (id(p) in head) == (part != "body"))
        ]

    # -- around the base's hooks -------------------------------------------------------------------------------------

    def get_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        optimizer = super().get_optimizer(*args, **kwargs)  # type: ignore[misc]
        self._dgc_attach(optimizer)
        return optimizer

    def _dgc_attach(self, optimizer: Any) -> None:
        """Optimizers are rebuilt at every task, and some methods make their own: once for each."""
        if optimizer is not None and not hasattr(optimizer, "calibrated"):
            optimizer.calibrated = ([], [])  # its parameters, and those of the network among them with their names
            optimizer.register_step_pre_hook(self._dgc_before_step)
            optimizer.register_step_post_hook(self._dgc_after_step)

    def begin_task(self, dataset: Any) -> None:
        """The estimator's turn is after the base's, which may have made the network grow."""
        self.dgc.before_task()
        super().begin_task(dataset)  # type: ignore[misc]
        self.dgc_training_set = lambda: dataset.train_loader.dataset
        self._dgc_task_step = 0
        self.dgc.begin_task()
        self._dgc_joined = self.DGC_JOINED

    def end_task(self, dataset: Any) -> None:
        self.dgc_training_set = lambda: dataset.train_loader.dataset
        self._dgc_check_use()
        with self.dgc.end_task():
            self._dgc_fill()
            super().end_task(dataset)  # type: ignore[misc]
            if not self.buffer.is_empty() and not hasattr(self.buffer, "labels"):
                self._dgc_refuse("stores no labels with them")
        self.dgc_past += len(dataset.train_loader.dataset)

    def load_buffer(self, buffer: Any) -> None:
        self.dgc.leave_buffer()
        super().load_buffer(buffer)  # type: ignore[misc]

    def observe(
        self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None, **kwargs: Any
    ) -> Any:
        base = super().observe  # type: ignore[misc]
        accepted = accepted_keywords(base.__func__)
        kwargs = {"epoch": epoch, **kwargs}
        if accepted is not None and not kwargs.keys() <= accepted:
            kwargs = {name: value for name, value in kwargs.items() if name in accepted}
        self._dgc_attach(self.opt)
        self.dgc.before_observe()
        attributes = vars(self)  # set without torch, as above
        attributes["dgc_stream"] = (inputs, not_aug_inputs, labels)
        # Asked before the base stores this batch.
        to_replay = not self._dgc_used and self.dgc_past and not self.buffer.is_empty()
        watching = self._dgc_watch()
        try:
            with self._dgc_recorder():
                result = base(inputs, labels, not_aug_inputs, **kwargs)
            if to_replay and not self._dgc_used:
                self._dgc_idle += 1
            if self._dgc_task_free:
                self._dgc_end_batch()
        finally:
            attributes["dgc_stream"] = None
            if watching is not None:
                watching.remove()
            for noted in (self._dgc_draws, self._dgc_last_draws, self._dgc_passed):
                noted.clear()
        _wandb_loss = result["loss"] if isinstance(result, dict) else result  # Mammoth logs locals of that kind of name
        return result

    def _dgc_end_batch(self) -> None:
        """Task-free: every batch is a task of its own."""
        if self._dgc_idle == IDLE:
            self._dgc_check_use()
        self.dgc_past += 1
        self._dgc_draws[:] = self._dgc_last_draws
        self.dgc.end_batch()

    def _dgc_recorder(self) -> Recorder:
        """Notes what the base draws; if it has no `--buffer_fill`, also holds back what it wants to store."""
        hold_back = None if hasattr(self.args, "buffer_fill") else self._dgc_hold_back
        return Recorder(self.buffer, self._dgc_remember, hold_back)

    def _dgc_hold_back(self, names: list[str]) -> bool:
        """Whether the fields of these names wait for the end of the task, which a task-free run does not have."""
        if "labels" not in names:
            self._dgc_refuse("stores no labels with them")
        if not self._dgc_task_free:
            self._dgc_held_back = names
        return not self._dgc_task_free

    def _dgc_remember(self, index: Tensor | None, fields: Any) -> None:
        def stored() -> tuple[Tensor, Tensor]:
            if index is None:
                self._dgc_refuse("has a buffer that does not tell which images it hands out; use --dgc_view same")
            return self.dgc_rows(index)  # type: ignore[arg-type]

        self._dgc_draws.append(Draw(*images_and_labels(fields), stored))

    def _dgc_watch(self) -> Any:
        """Until it is known how an unknown base passes x̄ through its network, see what goes there: a hook, or None."""
        asked = self.dgc_past or self.args.dgc_current or self._dgc_task_free
        if self._dgc_joined is not None or not asked or not self.dgc_view.REPEATS_BASE:
            return None
        return self.net.register_forward_pre_hook(lambda _, given: self._dgc_passed.append(given[0]))

    # -- each step -----------------------------------------------------------------------------------------------------

    def _dgc_before_step(self, optimizer: Any, *_: Any) -> None:
        """Add the correction to the gradients that the base has computed."""
        if optimizer is not self.opt or self.dgc_stream is None:
            return
        if not self._dgc_used:
            draws = self.dgc_past and self.dgc_replay_weight() is not None
            self._dgc_used = not self.dgc.NEEDS_DRAW or bool(draws)
        for vector, scale in self.dgc.correction(correction_scale(self.args, self._dgc_task_step)):
            add_to_gradients(self._dgc_stepped(optimizer), vector, scale)

    def _dgc_stepped(self, optimizer: Any) -> list[tuple[str, Tensor]]:
        """The network's parameters that the optimizer has; their names are looked up again if it gets others."""
        stepped = [p for group in optimizer.param_groups for p in group["params"]]
        known, named = optimizer.calibrated
        if len(known) != len(stepped) or not all(map(operator.is_, known, stepped)):
            numbers = set(map(id, stepped))
            named = [(name, p) for name, p in self.net.named_parameters() if id(p) in numbers]
            optimizer.calibrated = stepped, named
        return named

    def _dgc_after_step(self, optimizer: Any, *_: Any) -> None:
        if optimizer is self.opt and self.dgc_stream is not None:
            vars(self)["_dgc_task_step"] += 1
            # The next step's x̄ is drawn after this one: a base may make several steps in one `observe`.
            self._dgc_last_draws[:] = self._dgc_draws
            self.dgc.after_step()
            self._dgc_draws.clear()  # also what the estimator has read

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

    # -- for the estimator and its view ------------------------------------------------------------------------------

    def dgc_share_of_task(self) -> float:
        """N_t / (N_past + N_t)."""
        return share(len(self.dgc_training_set()), self.dgc_past)

    def dgc_rows(self, index: Tensor, augmented: bool = False) -> tuple[Tensor, Tensor]:
        """Rows of the buffer: images in [0, 1], or as the base would get them, and labels."""
        index = index if index.device.type == "cpu" else index.to(self.buffer.device)  # which may be the host
        transform = self.transform if augmented else None
        images, labels, *_ = self.buffer.get_data_by_index(index, transform=transform, device=self.device)
        return images, labels

    @contextmanager
    def dgc_own_randomness(self) -> Iterator[None]:
        """What the base's transform draws inside comes from a seed of DGC's; all generators are put back."""
        seed = int(torch.randint(2**32, (), generator=self.dgc_generator))
        own = getattr(self.transform, "generator", None)
        generators = [torch.default_generator, *([own] if isinstance(own, torch.Generator) else [])]
        if torch.device(self.device).type == "cuda":
            generators.append(torch.cuda.default_generators[torch.device(self.device).index or 0])
        with generators_put_back(generators):
            for generator in generators:
                generator.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            yield

    @contextmanager
    def dgc_aside(self, seed: int) -> Iterator[None]:
        """For measurements: DGC's own draws inside are determined by the seed, and shift none that come after."""
        state = self.dgc_generator.get_state()
        self.dgc_generator.manual_seed(seed)
        try:
            yield
        finally:
            self.dgc_generator.set_state(state)

    def _dgc_fill(self) -> None:
        """In a framework without `--buffer_fill`: offer what was held back, each image once (Algorithm 1)."""
        if not self._dgc_held_back:
            return
        if self.args.dgc_alpha and not self._dgc_task_step:
            self._dgc_refuse("makes no step of its optimizer in `observe`")
        for images, labels in raw_batches(self.dgc_training_set(), CHUNK):
            fields: dict[str, Any] = {"examples": images, "labels": labels}
            if "logits" in self._dgc_held_back:
                with borrowed(self.net), torch.no_grad():
                    fields["logits"] = self.net(as_input(self, images).to(self.device))
            if "task_labels" in self._dgc_held_back:
                fields["task_labels"] = torch.full_like(labels, self.current_task)  # type: ignore[attr-defined]
            self.buffer.add_data(**fields)
        self._dgc_held_back = []

    def _dgc_refuse(self, reason: str) -> NoReturn:
        name = self.NAME  # type: ignore[attr-defined]
        raise UsageError(f"{name}: DGC corrects the cross-entropy of replayed images, but its base {reason}")


def correction_scale(args: Any, step: int) -> float:
    """How much of the correction is applied at a step of a task (from 0): the one place that gives it its shape."""
    decay = 1.0 if args.dgc_decay is None else math.exp(-step / args.dgc_decay)
    return args.dgc_alpha * decay


# -- looking at the base ------------------------------------------------------------------------------------


@lru_cache
def accepted_keywords(observe: Callable) -> frozenset[str] | None:
    """Names that an `observe` accepts; None if it takes all."""
    names = inspect.signature(observe).parameters
    return None if "kwargs" in names else frozenset(names)


def _equal(a: Tensor, b: Any) -> bool:
    return isinstance(b, Tensor) and a.shape == b.shape and torch.equal(a, b)
