"""A-GEM with a reservoir, which needs no task boundaries."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from models.utils.averaged_gem import AveragedGem
from utils.args import ArgumentParser, add_rehearsal_args, binary_to_boolean_type


class AgemR(AveragedGem):
    """A-GEM (Chaudhry et al. 2019) with a buffer that is a reservoir of the stream, filled at each step.

    The step is A-GEM's. So h is the gradient on a sample of everything seen so far, the current task included.
    Mammoth's replay batches are neither augmented nor normalised, unlike those of its other methods:
    `--agem_raw 1` reproduces that.
    """

    NAME = "agem_r"
    COMPATIBILITY = ["class-il", "task-il", "domain-il", "general-continual"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument(
            "--agem_raw",
            type=binary_to_boolean_type,
            default=False,
            help="1: replay images as they are stored, neither augmented nor normalised (Mammoth)",
        )
        return parser

    def observe(
        self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None
    ) -> dict[str, Tensor]:
        terms = super().observe(inputs, labels, not_aug_inputs)
        self.store(examples=not_aug_inputs, labels=labels)
        return terms

    def replay_transform(self) -> Any:
        return None if self.args.agem_raw else self.transform
