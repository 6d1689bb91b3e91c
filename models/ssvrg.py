"""Streaming SVRG: the noise of stream and replay batches is cancelled by what the same batches give at a snapshot."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.ssvrg_utils.stage import Batch, StageModel
from utils.args import ArgumentParser, add_rehearsal_args, binary_to_boolean_type, choice, number
from utils.batch_norm import bn_track_stats

Parts = list[tuple[float, Batch]]  # batches and their weights


class Ssvrg(StageModel):
    """Streaming SVRG (Frostig et al. 2015) in the form of the DGC paper (eq. 9), as a baseline for it.

    θ̃ are the parameters at the start of a stage: at the start of each task, and every m steps. With the full gradients
    μ̃ = G(buffer;θ̃) and ṽ = G(T_t;θ̃), a step on a stream batch X and a replay batch X̄ follows

        v = (1/t) · [g(X;θ) − g(X;θ̃) + ṽ] + ((t−1)/t) · [g(X̄;θ) − g(X̄;θ̃) + μ̃],

    by numbers of images where tasks differ in size (Remark 3.1). The first task has no second part. The buffer, a
    reservoir, takes in a task at its end: during a stage it must stay as it is.

    Ours, where the paper is silent: X and X̄ have forward passes of their own, as g is a gradient of one batch. All
    terms see augmented images in train mode, and those of a pair the same ones, because v is unbiased only if the
    g(X;θ̃) have the mean ṽ. Full gradients over un-augmented images in eval mode, as those of DGC (`--ssvrg_full eval`),
    let a network with BatchNorm diverge. Their batches are as large as those of steps, shuffled, and leave no trace.

    Task-free there are neither T_t nor t: both parts weigh 1/2, as in ER, and the first has no correction. The
    reservoir takes in every batch, and a stage replays from a copy of it, so that μ̃ is the mean of what is drawn. The
    first stage begins after m steps; until then it is ER with two passes.

    `--ssvrg_current 0` leaves the first correction out; since the paper's time for the first task is ER's, it probably
    did. Its authors' prototype, ER's gradient plus 0.005·(μ̃ − g(X̄;θ̃)), the two on different kinds of images, is not
    reproduced.
    """

    NAME = "ssvrg"
    COMPATIBILITY = ["class-il", "task-il", "domain-il", "general-continual"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--ssvrg_m", type=number(int, 1), default=200, help="m, the number of steps of a stage")
        parser.add_argument(
            "--ssvrg_current",
            type=binary_to_boolean_type,
            default=True,
            help="0: correct the gradient of the replay batch only, not that of the current task's (task-free: always)",
        )
        parser.add_argument(
            "--ssvrg_full",
            type=choice("train", "eval"),
            default="train",
            help="full gradients in train mode over augmented images, as those of batches, or in eval mode over plain "
            "ones, as those of DGC (diverges with BatchNorm)",
        )
        return parser

    @classmethod
    def derived_args(cls, args: Any) -> dict[str, Any]:
        return {"ssvrg_current": args.ssvrg_current and not args.task_free}

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None) -> Tensor:
        args, past = self.args, self.past_share()
        if (past or args.ssvrg_current) and self.task_iteration % args.ssvrg_m == 0:
            self.begin_stage()
        parts: Parts = [(1 - past, (inputs, labels))]
        if past:
            buffer = self.stage_buffer if self.snapshot else self.buffer
            images, targets = buffer.get_data(args.minibatch_size, transform=self.transform, device=self.device)
            parts.append((past, (images, targets)))
        self.opt.zero_grad()
        loss = self._loss(self.net, parts)
        loss.backward()
        corrected = parts if args.ssvrg_current else parts[1:]
        if corrected and self.snapshot:
            self._correct_gradients(corrected)
        self.opt.step()
        self.store(examples=not_aug_inputs, labels=labels)
        return loss.detach()

    def _loss(self, net: nn.Module, parts: Parts) -> Tensor:
        return torch.stack([weight * self.loss(net(images), labels) for weight, (images, labels) in parts]).sum()

    def _correct_gradients(self, parts: Parts) -> None:
        """g(X;θ) − g(X;θ̃) + G(θ̃)."""
        (snapshot,) = self.snapshot
        with bn_track_stats(snapshot, False):
            paired = self._loss(snapshot, parts)
        # A parameter without a gradient is frozen, or not in use; then it has none at θ̃ either.
        gradients = {name: p.grad for name, p in self.net.named_parameters() if p.grad is not None}
        held = dict(snapshot.named_parameters())
        at_snapshot = torch.autograd.grad(paired, [held[name] for name in gradients])
        torch._foreach_sub_(list(gradients.values()), at_snapshot)
        torch._foreach_add_(list(gradients.values()), [self.full_gradient[name] for name in gradients])
