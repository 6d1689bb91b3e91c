"""Experience Replay: train on the stream's batch and a batch from a reservoir, together."""

from __future__ import annotations

from typing import Any

import torch

from models.utils.continual_model import ContinualModel
from models.utils.rehearsal import (
    add_replay_args,
    check_replay_args,
    join_replay,
    make_buffer,
    offer_task,
    training_set,
)
from utils.args import ArgumentParser, choice


class Er(ContinualModel):
    """Experience Replay (Chaudhry et al. 2019): one step on stream and replay batch, concatenated."""

    NAME = "er"
    COMPATIBILITY = ["class-il", "task-il", "domain-il", "general-continual"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        add_replay_args(parser)
        parser.add_argument(
            "--replay_weight",
            type=choice("batch", "tasks"),
            default="batch",
            help="weigh stream and replay by their images in the batch (Mammoth), or as the paper's eq. 7 does: "
            "1/t for the current task, (t−1)/t for the past",
        )
        return parser

    @classmethod
    def check_args(cls, args: Any) -> None:
        check_replay_args(args)
        if args.task_free and args.replay_weight == "tasks":
            raise ValueError("--replay_weight tasks: a task-free run knows no tasks; use --replay_weight batch")

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset)
        self.buffer = make_buffer(args, self.device, self.dataset)
        self.past_images = 0  # in the training sets of finished tasks

    def observe(
        self, inputs: torch.Tensor, labels: torch.Tensor, not_aug_inputs: torch.Tensor, epoch: int | None = None
    ) -> torch.Tensor:
        (images, targets), n_stream = join_replay(self, inputs, labels), len(labels)
        self.opt.zero_grad()
        outputs = self.net(images)
        if self.args.replay_weight == "tasks" and self.past_images and len(targets) > n_stream:
            past = self.past_share()
            stream_loss = self.loss(outputs[:n_stream], targets[:n_stream])
            replay_loss = self.loss(outputs[n_stream:], targets[n_stream:])
            loss = (1 - past) * stream_loss + past * replay_loss
        else:
            loss = self.loss(outputs, targets)
        loss.backward()
        self.opt.step()
        if self.args.buffer_fill == "stream":
            self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return loss.detach()

    def past_share(self) -> float:
        """(t−1)/t, by images where tasks differ in size (Remark 3.1)."""
        return self.past_images / (self.past_images + len(training_set(self.dataset)))

    def end_task(self, dataset: Any) -> None:
        if self.args.buffer_fill == "task_end":
            offer_task(self.buffer, dataset)
        if self.args.replay_weight == "tasks":
            self.past_images += len(training_set(dataset))
