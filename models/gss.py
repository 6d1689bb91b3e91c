"""Gradient-based Sample Selection: replay from a buffer of images whose gradients differ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from models.gss_utils.buffer import FIRST_SCORE, ScoredBuffer
from models.gss_utils.gradients import gradient_products
from models.utils.replay import ReplayModel
from utils.args import ArgumentParser, add_rehearsal_args, binary_to_boolean_type, number
from utils.augmentations import apply_transform


class Gss(ReplayModel):
    """Gradient-based Sample Selection, greedy (Aljundi et al. 2019). Steps are those of Experience Replay.

    After a step, q random images of the buffer with gradients h_j are compared with the new batch:

        s_B = 1 + max_j cos(g_B, h_j) for its mean gradient,    s_x = 1 + max_j cos(g_x, h_j) for each of its images

    0.1 when there is nothing to compare with. `ScoredBuffer` tells what becomes of the scores. Gradients are over all
    parameters, in eval mode, of un-augmented, normalised images; as in Mammoth not normalised: `--gss_raw 1`.

    That the batch is judged first, as a whole, is from the code of the paper's authors. A batch gradient is the mean
    of its images' gradients, so all scores come out of one pass over the q images and the batch (`gss_gradients`),
    and the host reads them once per step. That is the only time that it waits for the device.
    """

    NAME = "gss"
    COMPATIBILITY = ["class-il", "task-il", "domain-il", "general-continual"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        add_rehearsal_args(parser)
        add, count = parser.add_argument, number(int, 1)
        add("--gss_minibatch_size", type=count, default=32, help="images of the buffer to compare a batch with, q")
        add("--batch_num", type=count, default=1, help="steps on each batch of the stream, each with its own replay")
        add(
            "--gss_raw",
            type=binary_to_boolean_type,
            default=False,
            help="1: take the gradients to compare on images that are not normalised (Mammoth)",
        )
        return parser

    def make_buffer(self) -> ScoredBuffer:
        return ScoredBuffer(
            self.args.buffer_size,
            self.device,
            generator=self.random_stream("buffer"),
            image_dtype=self.dataset.image_dtype,
            draws=self.random_stream("gss"),
        )

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None) -> Tensor:
        for _ in range(self.args.batch_num):
            images, targets = self.join_replay(inputs, labels)
            self.opt.zero_grad()
            loss = self.loss(self.net(images), targets)
            loss.backward()
            self.opt.step()
        scores = self.scores(not_aug_inputs, labels)
        self.buffer.add_data(examples=not_aug_inputs, labels=labels, sample_selection_scores=scores)
        return loss.detach()

    def scores(self, images: Tensor, labels: Tensor) -> Tensor:
        """The score of a batch, then those of its images."""
        if self.buffer.is_empty():
            return torch.full((1 + len(labels),), FIRST_SCORE, device=self.device)
        transform = None if self.args.gss_raw else getattr(self, "normalization_transform", None)
        order = torch.randperm(len(self.buffer), generator=self.random_stream("gss"))
        stored = self.buffer.get_data_by_index(order[: self.args.gss_minibatch_size], transform, self.device)
        stream = apply_transform(images, transform), labels
        return gradient_products(self.net, self.loss, stream, stored).scores()

    def load_buffer(self, buffer: Any) -> None:
        """Take over the content of any buffer, never the buffer itself: ours has scores."""
        if isinstance(buffer, dict):
            super().load_buffer(buffer)
        else:
            self.buffer.load_state_dict(buffer.state_dict())
