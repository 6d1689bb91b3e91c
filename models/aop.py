"""Adaptive Orthogonal Projection: no image is stored; weights move only where earlier inputs do not notice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from models.aop_utils.projector import (
    adaptive_a,
    full_precision,
    identity_root,
    input_rows,
    leave_out,
    mean_inputs,
    project,
    projected_layers,
)
from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, number
from utils.errors import UsageError
from utils.schedulers import task_steps


class Aop(ContinualModel):
    """Adaptive Orthogonal Projection (Guo et al. 2022): gradients without the directions of inputs seen before.

    Every weight matrix W (of a convolution: unfolded) has a projector Q, at first the identity and never reset. After
    the backward pass, for each row r of the layer's inputs, and then for the gradient,

        k = Q rᵀ,   Q ← Q − k kᵀ / (a + r k);     ∇W ← ∇W Qᵀ

    r is the batch mean of a linear layer's input; of a convolution, each patch on a grid of two pixels of the
    zero-padded batch-mean map. a falls in the course λ of a task: (10⁻⁵)^λ, in linear layers (mean(r)⁴ + var(r))^λ,
    where var divides by n − 1. The projected gradient is clipped. All rows enter Q in one update
    (models/aop_utils/projector.py).

    Ours, where the paper's networks leave it open (they have neither biases nor BatchNorm):
    - What has no projector, biases and BatchNorm's scales and shifts, stays as initialised: trained freely, it undoes
      what the projection protects. BatchNorm's statistics follow the data, as with every other method.
    - Task-free, λ starts again every `--aop_horizon` steps, since it can't know how long a task is.

    The projectors of a ResNet-18 take 0.37 GB at 64 filters (23 MB at 16), and as much in each checkpoint.
    """

    NAME = "aop"
    COMPATIBILITY = ["class-il", "task-il", "domain-il", "general-continual"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        parser.add_argument(
            "--aop_clip", type=number(float, above=0), default=10.0, help="the projected gradient's largest norm"
        )
        parser.add_argument(
            "--aop_horizon", type=number(int, 1), help="task-free: steps in which a falls, before it starts at 1 again"
        )
        return parser

    @classmethod
    def check_args(cls, args: Any) -> None:
        if args.task_free and args.aop_horizon is None:
            raise ValueError("--task_free 1: aop can't know how many steps there will be; give --aop_horizon STEPS")
        if args.aop_horizon and not args.task_free:
            raise ValueError(
                f"--aop_horizon {args.aop_horizon}: a falls in the steps of a task; leave it out, or use --task_free 1"
            )
        if args.code_optimization >= 3:
            raise ValueError(
                f"-O {args.code_optimization}: aop reads the inputs of layers, which a compiled network hides; use -O 2"
            )

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset)
        if self.dataset.SETTING == "general-continual" and not args.task_free:
            raise UsageError(
                f"aop can't know how many steps {self.dataset.NAME} has; use --task_free 1 --aop_horizon STEPS"
            )
        layers = projected_layers(self.net)
        self.roots = {name: identity_root(layer) for name, layer in layers.items()}  # S of Q = S Sᵀ
        weights = {layer.weight for layer in layers.values()}
        for parameter in self.net.parameters():
            parameter.requires_grad_(parameter in weights)

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None) -> Tensor:
        self.opt.zero_grad()
        with mean_inputs(self.net) as means:
            loss = self.loss(self.net(inputs), labels)
        loss.backward()
        with full_precision(self.device):
            self._project(means)
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.args.aop_clip)
        self.opt.step()
        return loss.detach()

    @torch.no_grad()
    def _project(self, means: dict[str, Tensor]) -> None:
        layers, progress = projected_layers(self.net), self.progress()
        for name, mean in means.items():
            layer, root = layers[name], self.roots[name]
            rows = input_rows(layer, mean)
            leave_out(root, rows, adaptive_a(layer, rows, progress))
            if layer.weight.grad is not None:
                project(layer.weight.grad, root)

    def progress(self) -> float:
        """λ in [0, 1): the part of the task, or of the horizon, that is done."""
        args = self.args
        if args.task_free:
            return self.task_iteration % args.aop_horizon / args.aop_horizon
        return self.task_iteration / task_steps(args, len(self.dataset.train_loader), self.current_task)
