"""Experience Replay: train on the stream's batch and a batch from a reservoir, together."""

from __future__ import annotations

from typing import Any

import torch

from models.utils.continual_model import ContinualModel
from models.utils.rehearsal import add_replay_args, make_buffer, offer_task
from utils.args import ArgumentParser


class Er(ContinualModel):
    """Experience Replay (Chaudhry et al. 2019): one step on stream and replay batch, concatenated."""

    NAME = "er"
    COMPATIBILITY = ["class-il", "task-il", "domain-il", "general-continual"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        add_replay_args(parser)
        return parser

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset)
        self.buffer = make_buffer(args, self.device, self.dataset)

    def observe(
        self, inputs: torch.Tensor, labels: torch.Tensor, not_aug_inputs: torch.Tensor, epoch: int | None = None
    ) -> torch.Tensor:
        stream_labels = labels
        if not self.buffer.is_empty():
            replayed, replayed_labels = self.buffer.get_data(
                self.args.minibatch_size, transform=self.transform, device=self.device
            )
            # One forward pass over both: BatchNorm then normalises them by shared statistics.
            inputs, labels = torch.cat((inputs, replayed)), torch.cat((labels, replayed_labels))
        self.opt.zero_grad()
        loss = self.loss(self.net(inputs), labels)
        loss.backward()
        self.opt.step()
        if self.args.buffer_fill == "stream":
            self.buffer.add_data(examples=not_aug_inputs, labels=stream_labels)
        return loss.detach()

    def end_task(self, dataset: Any) -> None:
        if self.args.buffer_fill == "task_end":
            offer_task(self.buffer, dataset)
