"""Hindsight Anchor Learning: replay, and a learned image per past class, whose outputs follow those after a step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.hal_utils.anchors import AnchorModel
from models.utils.frozen_body import rates_of
from utils.args import ArgumentParser, add_rehearsal_args, binary_to_boolean_type, choice, number
from utils.batch_norm import bn_track_stats


class Hal(AnchorModel):
    """Hindsight Anchor Learning (Chaudhry et al. 2021): replay, and a learned image of each past class as an anchor.

    With stream batch B, replay batch R and anchors e, a step is

        θ' = θ − η ∇CE(B∪R; θ)
        θ ← θ − η ∇[ CE(B∪R; θ) + λ · mean (f_θ(e) − f_θ'(e))² ]        θ' is a function of θ
        φ̄ ← β φ̄ + (1−β) · mean φ(B)                                     0 when a task begins

    At the end of a task, θ_M is θ fine-tuned on the buffer for one epoch: what training on other data will do to it.
    Each class y of the task gets an anchor, from uniform noise by 100 steps of gradient descent with rate η, that
    keeps its loss low now, suffers from fine-tuning, and has a feature that is typical of the task:

        min_e CE(e, y; θ) − CE(e, y; θ_M) + γ · ‖φ_θ(e) − φ̄‖²

    The buffer is a ring of ⌊M/T⌋ slots for each task. Mammoth ignored its own ring until the end of 2023 and used a
    reservoir (`--hal_memory reservoir`), and it fine-tunes on one batch only (`--hal_finetune batch`).

    The gradient flows through the look-ahead step, too, as in the authors' code: with v = ∂/∂θ' of the mean, θ' gives
    v − ηHv, where H is the Hessian of CE(B∪R; θ). So the term looks for parameters at which a step on such data leaves
    the anchors' outputs as they are. Mammoth takes f_θ'(e) as a constant (`--hal_stop_gradient 1`): it is then a goal,
    which leads the outputs on to where the step takes them, and they change more than without the term.

    Our choices: anchors live in the space of the network's inputs, noise in [0, 1] included. They are learned in eval
    mode, where each depends on itself alone (Mammoth: train mode, batches of one), and used in train mode: BatchNorm
    normalises them by their own statistics, since with the running ones nothing bounds the outputs of these images, and
    the term may explode; unlike in Mammoth they do not enter the running ones. θ' is a plain gradient step with the
    optimizer's present learning rate; anchors and θ_M are made with `--lr` itself. φ(B) is of the pass before the step,
    which is there already.
    """

    NAME = "hal"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        add_rehearsal_args(parser)
        weight, add = number(float, 0), parser.add_argument
        add("--hal_lambda", type=weight, required=True, help="weight of the anchors' outputs, λ")
        add("--beta", type=number(float, 0, 1), required=True, help="decay of the running mean feature, β")
        add("--gamma", type=weight, required=True, help="anchors: weight of the distance to the mean feature, γ")
        kept = "ring of equal portions per task (the paper), or a reservoir (as Mammoth until 2023)"
        add("--hal_memory", type=choice("ring", "reservoir"), default="ring", help=kept)
        finetune = "simulate forgetting by one epoch on the buffer (the paper), or by one batch of it (as Mammoth)"
        add("--hal_finetune", type=choice("epoch", "batch"), default="epoch", help=finetune)
        add(
            "--hal_stop_gradient",
            type=binary_to_boolean_type,
            default=False,
            help="1: no gradient through the look-ahead step (as Mammoth)",
        )
        return parser

    @classmethod
    def check_args(cls, args: Any) -> None:
        if args.code_optimization >= 3 and not args.hal_stop_gradient:
            raise ValueError(
                f"-O {args.code_optimization}: hal takes a gradient of a gradient, which a compiled network does not "
                "have; use -O 2, or --hal_stop_gradient 1"
            )

    def begin_task(self, dataset: Any) -> None:
        self.mean_features.zero_()
        if self.args.hal_memory == "ring":
            self.buffer.begin_portion(self.current_task)

    def observe(
        self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None
    ) -> dict[str, Tensor]:
        images, targets = self.join_replay(inputs, labels)
        self.opt.zero_grad()
        outputs, features = self.net(images, returnt="both")
        loss_ce = self.loss(outputs, targets)
        loss_anchors = torch.zeros((), device=self.device)
        if self.n_past_classes:
            loss_anchors = self.backward_with_anchors(loss_ce)
        else:
            loss_ce.backward()
        loss = loss_ce + self.args.hal_lambda * loss_anchors
        self.opt.step()
        self.mean_features.lerp_(features[: len(labels)].detach().float().mean(0), 1 - self.args.beta)
        self.store(examples=not_aug_inputs, labels=labels)
        terms = {"loss": loss, "loss_ce": loss_ce, "loss_anchors": loss_anchors}
        return {name: term.detach() for name, term in terms.items()}

    def backward_with_anchors(self, loss_ce: Tensor) -> Tensor:
        """Give the parameters the gradient of CE + λ · the anchors' loss, and return the latter.

        It is mean (f_θ(e) − f_θ'(e))² over anchors and outputs.
        """
        anchors, rates = self.anchors[: self.n_past_classes], rates_of(self.opt)
        through = not self.args.hal_stop_gradient
        trained = {name: parameter for name, parameter in self.net.named_parameters() if parameter.requires_grad}
        parameters = list(trained.values())
        # Zeros for what the loss does not depend on: a network may have such parameters.
        first = torch.autograd.grad(loss_ce, parameters, create_graph=through, materialize_grads=True)
        with bn_track_stats(self.net, False):
            with torch.set_grad_enabled(through):
                ahead = {name: p - rates[p] * g for (name, p), g in zip(trained.items(), first, strict=True)}
                target = torch.func.functional_call(self.net, ahead, (anchors,))
            loss_anchors = F.mse_loss(self.net(anchors), target)
        second = torch.autograd.grad(loss_anchors, parameters, materialize_grads=True)
        for parameter, a, b in zip(parameters, first, second, strict=True):
            parameter.grad = a.detach() + self.args.hal_lambda * b
        return loss_anchors
