"""Ridge regression on frozen features, from running sums over all images, which forget nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from models.utils.statistics_model import StatisticsModel
from utils.args import ArgumentParser, number


class Ridge(StatisticsModel):
    """Least squares for one-hot labels with an L2 penalty, from a Gram matrix and class sums kept over all tasks.

        W = (XᵀX/n + λI)⁻¹ Xᵀ(Y − ȳ)/n,   b = ȳ − W·x̄        (X centred, so that the bias is not penalised)

    Both sums simply add up, so after each task the solution is that of joint training on all images so far, to
    rounding. Memory: d² + dC numbers of 64 bits, however many images there were.
    """

    NAME = "ridge"

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        parser.add_argument(
            "--ridge_penalty", type=number(float, above=0), default=0.1, help="λ, per image, of the squared weights"
        )
        return parser

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset)
        self.gram = self.class_sums.new_zeros(len(self.class_sums), len(self.class_sums))  # XᵀX

    def gather(self, features: Tensor, labels: Tensor) -> None:
        super().gather(features, labels)
        self.gram += features.T @ features

    def solve(self) -> tuple[Tensor, Tensor]:
        n = self.class_counts.sum()
        mean, shares = self.class_sums.sum(1) / n, self.class_counts / n
        covariance = self.gram / n - torch.outer(mean, mean)
        penalty = self.args.ridge_penalty * torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
        weight = torch.linalg.solve(covariance + penalty, self.class_sums / n - torch.outer(mean, shares)).T
        return weight, shares - weight @ mean
