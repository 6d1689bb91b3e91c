"""MOCA: replayed features are spread out, so that few images cover more of what their class may look like."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from models.moca_utils.cosine_head import EPS, CosineHead, direction
from models.utils.exemplars import require_own_classes
from models.utils.frozen_body import rates_of
from models.utils.replay import ReplayModel, add_replay_args
from utils.args import ArgumentParser, binary_to_boolean_type, choice, number
from utils.augmentations import to_device
from utils.batch_norm import bn_track_stats
from utils.errors import UsageError


class Moca(ReplayModel):
    """Modelling intra-class variation (Yu et al. 2023) on Experience Replay with a cosine classifier.

        L = CE(s·cos(φ(B), W)) + CE(s·cos(φ̃(R), W))
        φ̃(x) = φ(x)/‖φ(x)‖ + λ·n/‖n‖  for x of a past task's class,  φ(x)/‖φ(x)‖  for others

    B and R pass through the network one after the other. The direction n has no gradient. `gaussian`: n ~ N(0, I).
    `wap`, weight-adversarial perturbation: n = φ(x) in a network one step away, which knows old images less,

        θ' = θ − η ∇_θ κ·CE(f(R_past), labels of B)

    with the present learning rate η; image i of R gets label i of B. Task-free, where nobody says which classes are
    past, those are that B has not.

    Ours: the published code skips the perturbation where R and B differ in size, while here the labels are repeated as
    often as needed. ∇_θ is taken in the pass over R that the loss needs anyway, so BatchNorm sees all of R and not
    only R_past; the pass at θ' is in train mode, but leaves the running statistics alone. No norm is below 1e-12;
    with `--moca_raw_norm 1`, as published, a feature that is all zero becomes NaN, and the run ends there.
    """

    NAME = "moca"
    COMPATIBILITY = ["class-il", "task-il", "general-continual"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        add_replay_args(parser)
        add = parser.add_argument
        add("--moca_variant", type=choice("wap", "gaussian"), default="wap", help="where the perturbation comes from")
        add("--moca_lambda", type=number(float, 0), default=1.5, help="length of the perturbation, λ")
        add("--moca_kappa", type=number(float, 0), default=10.0, help="wap: factor of the adversarial loss, κ")
        add(
            "--moca_old_classes",
            type=number(int, 1),
            help="classes of each finished task that count as past (default: all that it has); the published code "
            "counts 20 on seq-cifar100, also where tasks have 10 or 5",
        )
        add(
            "--moca_raw_norm",
            type=binary_to_boolean_type,
            default=False,
            help="1: divide by norms of 0, too, as the published code does; a zero vector becomes NaN",
        )
        return parser

    @classmethod
    def check_args(cls, args: Any) -> None:
        super().check_args(args)
        if args.task_free and args.moca_old_classes:
            raise ValueError(
                f"--moca_old_classes {args.moca_old_classes}: a task-free run has no tasks to count; leave it out"
            )

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        eps = 0.0 if args.moca_raw_norm else EPS
        backbone.classifier = CosineHead(backbone.classifier, eps)  # before the optimizer is made
        super().__init__(backbone, loss, args, transform, dataset)
        if args.moca_variant == "wap" and all(n.startswith("classifier.") for n in self.net.state_dict()):
            raise UsageError(
                f"--moca_variant wap perturbs features by moving the network, and --backbone {args.backbone} has none "
                "to move; use --moca_variant gaussian"
            )
        if args.moca_variant == "wap" and getattr(args, "body_lr_scale", None) == 0:
            raise UsageError(
                "--moca_variant wap perturbs features by moving the network, and --body_lr_scale 0 holds it still; use "
                "--moca_variant gaussian"
            )
        if not args.task_free:
            require_own_classes(self)

    def observe(
        self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None
    ) -> dict[str, Tensor]:
        self.opt.zero_grad()
        loss_stream = self.loss(self.net(inputs), labels)
        loss_replay = torch.zeros((), device=self.device)
        if not self.buffer.is_empty():
            images, replayed_labels = self.draw_replay()
            features = self.net(images, returnt="features")
            if self.args.task_free or self.n_old_classes:
                features = self.perturb(features, images, self._is_old(replayed_labels, labels), labels)
            loss_replay = self.loss(self.net.classifier(features), replayed_labels)
        loss = loss_stream + loss_replay
        loss.backward()
        self.opt.step()
        self.store(examples=not_aug_inputs, labels=labels)
        terms = {"loss": loss, "loss_stream": loss_stream, "loss_replay": loss_replay}
        return {name: term.detach() for name, term in terms.items()}

    @property
    def n_old_classes(self) -> int:
        """Classes 0 … n − 1 are those of past tasks."""
        per_task = self.args.moca_old_classes
        return self.n_past_classes if per_task is None else per_task * self.current_task

    def _is_old(self, replayed_labels: Tensor, stream_labels: Tensor) -> Tensor:
        if self.args.task_free:
            return (replayed_labels[:, None] != stream_labels).all(1)
        return replayed_labels < self.n_old_classes

    def perturb(self, features: Tensor, images: Tensor, old: Tensor, stream_labels: Tensor) -> Tensor:
        if self.args.moca_variant == "wap":
            noise = self.adversarial_features(features, images, old, stream_labels)
        else:
            noise = torch.randn(features.shape, generator=self.random_stream("moca"))
            noise = to_device(noise, self.device)
        unit, noise = (direction(x, self.net.classifier.eps) for x in (features, noise))
        return torch.where(old[:, None], unit + self.args.moca_lambda * noise, unit)

    def adversarial_features(self, features: Tensor, images: Tensor, old: Tensor, stream_labels: Tensor) -> Tensor:
        """φ(x;θ'). Neither θ nor its gradients change."""
        wrong = stream_labels[torch.arange(len(images), device=self.device) % len(stream_labels)]
        crossed = self.loss(self.net.classifier(features), wrong, reduction="none")
        attack = self.args.moca_kappa * torch.where(old, crossed, 0.0).sum() / old.sum().clamp(min=1)
        # φ does not depend on the classifier: its part of θ' need not be computed.
        head = {id(p) for p in self.net.classifier.parameters()}
        theta = {name: p for name, p in self.net.named_parameters() if p.requires_grad and id(p) not in head}
        gradients = torch.autograd.grad(attack, list(theta.values()), retain_graph=True)
        with torch.no_grad(), bn_track_stats(self.net, False):
            rate = rates_of(self.opt)[next(iter(theta.values()))]  # that of the whole body
            moved = torch._foreach_add(list(theta.values()), gradients, alpha=-rate)
            stepped = dict(zip(theta, moved, strict=True))
            return functional_call(self.net, stepped, (images,), {"returnt": "features"})
