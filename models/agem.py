"""Averaged GEM: a step may not increase the loss on a batch from the buffer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from models.utils.averaged_gem import AveragedGem
from models.utils.replay import training_set
from utils.args import ArgumentParser, add_rehearsal_args, number


class Agem(AveragedGem):
    """Averaged Gradient Episodic Memory (Chaudhry et al. 2019).

        g = ∇CE(B),  h = ∇CE(R);  step along g if ⟨g, h⟩ ≥ 0, else along g − (⟨g, h⟩ / ⟨h, h⟩) · h

    g and h are over all parameters; h itself is never followed. R is an augmented batch from the buffer.

    Buffer: at the end of each of the T tasks, M/T of its images, drawn uniformly without replacement. Mammoth stores
    one mini-batch of each task, whatever M is: `--agem_per_task 32`; should that exceed M, it is a reservoir. Also as
    in Mammoth, R goes through the network in train mode, by itself: BatchNorm normalises it by its own statistics,
    and the running ones take it in.
    """

    NAME = "agem"
    COMPATIBILITY = ["class-il", "task-il", "domain-il"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument(
            "--agem_per_task",
            type=number(int, 1),
            help="images stored of each task; by default --buffer_size is shared out among all tasks. 32 is Mammoth's, "
            "whatever --buffer_size",
        )
        return parser

    @classmethod
    def check_args(cls, args: Any) -> None:
        if args.task_free:
            raise ValueError(f"--task_free 1: {cls.NAME} needs task boundaries to fill its buffer; use --model agem_r")
        if (args.agem_per_task or 0) > args.buffer_size:
            raise ValueError(
                f"--agem_per_task {args.agem_per_task}: the buffer holds only --buffer_size {args.buffer_size} images"
            )

    def images_to_store(self) -> int:
        """How many of the current task. What M/T leaves over goes to the first tasks, one each."""
        share, rest = divmod(self.args.buffer_size, self.n_tasks)
        return self.args.agem_per_task or share + (self.current_task < rest)

    def end_task(self, dataset: Any) -> None:
        images = training_set(dataset)
        order = torch.randperm(len(images), generator=self.random_stream("agem"))
        rows = order[: self.images_to_store()].to(images.targets.device)
        if len(rows):
            self.buffer.add_data(examples=images.batch(rows), labels=images.targets[rows])


def project(gxy: Tensor, ger: Tensor) -> Tensor:
    """The projection for flat vectors, g and h: models written for Mammoth import it from here."""
    return gxy - (gxy @ ger).clamp(max=0) / (ger @ ger).clamp(min=torch.finfo(ger.dtype).tiny) * ger
