"""What methods share that keep sums over features instead of images, and train nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from models.utils.continual_model import ContinualModel
from models.utils.replay import task_batches, to_input
from utils.batch_norm import network_mode
from utils.errors import UsageError


class StatisticsModel(ContinualModel):
    """Reads each training image once, at the end of its task, and writes the solution into the classifier.

    Features are those of the network as it is, in eval mode, of un-augmented images: of vectors with the backbone
    `linear` the vectors themselves. No step is made: the optimizer's flags and epochs have no effect.
    """

    COMPATIBILITY = ["class-il", "task-il", "domain-il"]

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset)
        if not isinstance(getattr(self.net, "classifier", None), torch.nn.Linear):
            raise UsageError(f"{self.NAME} solves for a linear classifier, and --backbone {args.backbone} ends in none")
        # Sums over all images lose digits in float32; MPS has nothing better.
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        self.class_sums = torch.zeros(
            self.net.classifier.in_features, self.num_classes, dtype=dtype, device=self.device
        )  # Σ over the images of each class of its features
        self.class_counts = torch.zeros(self.num_classes, dtype=dtype, device=self.device)

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None) -> Tensor:
        """Nothing is learnt from a batch: its loss under the solution of the last task."""
        with torch.no_grad(), network_mode(self.net, training=False):
            return self.loss(self.net(inputs), labels)

    @torch.no_grad()
    def end_task(self, dataset: Any) -> None:
        transform = getattr(self, "normalization_transform", None)
        with network_mode(self.net, training=False):
            for images, labels in task_batches(dataset):
                inputs = to_input(images, transform).to(self.device)
                features = self.net(inputs, returnt="features").to(self.class_sums.dtype)
                self.gather(features, torch.as_tensor(labels))
        weight, bias = self.solve()
        self.net.classifier.weight.copy_(weight)
        self.net.classifier.bias.copy_(bias)

    def gather(self, features: Tensor, labels: Tensor) -> None:
        """Add a batch to the sums."""
        one_hot = torch.nn.functional.one_hot(labels.to(self.device), self.num_classes).to(features.dtype)
        self.class_sums += features.T @ one_hot
        self.class_counts += one_hot.sum(0)

    def solve(self) -> tuple[Tensor, Tensor]:
        """Weight [classes, features] and bias of the classifier that follows from the sums."""
        raise NotImplementedError
