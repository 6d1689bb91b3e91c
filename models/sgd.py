"""Plain fine-tuning on one task after the other: the lower bound that every method must beat."""

from __future__ import annotations

import torch

from models.utils.continual_model import ContinualModel


class Sgd(ContinualModel):
    """Fine-tuning without any protection against forgetting: the lower bound."""

    NAME = "sgd"
    COMPATIBILITY = ["class-il", "task-il", "domain-il", "general-continual"]

    def observe(
        self, inputs: torch.Tensor, labels: torch.Tensor, not_aug_inputs: torch.Tensor, epoch: int | None = None
    ) -> torch.Tensor:
        self.opt.zero_grad()
        loss = self.loss(self.net(inputs), labels)
        loss.backward()
        self.opt.step()
        return loss.detach()
