"""Dark Experience Replay ++: replay the labels of stored images, and the logits that they once had."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from models.utils.dgc_gradients import CHUNK
from models.utils.replay import ReplayModel, add_stored_weights, compute_logits, offer_task
from utils.args import ArgumentParser
from utils.batch_norm import network_mode


class Derpp(ReplayModel):
    """Dark Experience Replay ++ (Buzzega et al. 2020): rehearsal of labels and of earlier logits.

        L = CE(f(B)) + α · mean (f(R₁) − z)² + β · CE(f(R₂))

    z are the logits stored with R₁; the mean is over images and classes. R₁ and R₂ are independent draws. With
    `--replay_weight tasks` the first term weighs 1/t and both others (t−1)/t.
    """

    NAME = "derpp"
    COMPATIBILITY = ["class-il", "task-il", "domain-il", "general-continual"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        ReplayModel.get_parser(parser)
        add_stored_weights(parser)
        return parser

    def observe(
        self, inputs: torch.Tensor, labels: torch.Tensor, not_aug_inputs: torch.Tensor, epoch: int | None = None
    ) -> dict[str, torch.Tensor]:
        self.opt.zero_grad()
        # Three forward passes, as published: each batch is normalised by its own statistics.
        outputs = self.net(inputs)
        loss_ce = self.loss(outputs, labels)
        loss_mse = loss_replay = torch.zeros((), device=self.device)
        v, w = self.task_weights()
        if not self.buffer.is_empty():
            replayed, _, stored_logits = self.draw_replay()
            loss_mse = F.mse_loss(self.net(replayed), stored_logits)
            replayed, replayed_labels, _ = self.draw_replay()
            loss_replay = self.loss(self.net(replayed), replayed_labels)
        loss = v * loss_ce + w * self.args.alpha * loss_mse + w * self.args.beta * loss_replay
        loss.backward()
        self.opt.step()
        self.store(examples=not_aug_inputs, labels=labels, logits=outputs.detach())
        terms = {"loss": loss, "loss_ce": loss_ce, "loss_mse": loss_mse, "loss_replay": loss_replay}
        return {name: term.detach() for name, term in terms.items()}

    def store_task(self, dataset: Any) -> None:
        """The logits are those of the final parameters, for the images as they are tested."""
        with network_mode(self.net, training=False):
            offer_task(self.buffer, dataset, self._logits_of)

    def _logits_of(self, images: torch.Tensor) -> torch.Tensor:
        return compute_logits(self.net, images, getattr(self, "normalization_transform", None), CHUNK)
