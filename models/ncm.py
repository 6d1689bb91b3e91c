"""Nearest class mean on frozen features."""

from __future__ import annotations

from torch import Tensor

from models.utils.statistics_model import StatisticsModel


class Ncm(StatisticsModel):
    """Each image belongs to the class whose mean feature μ is nearest: argmin ‖x − μ‖² = argmax x·μ − ½‖μ‖²."""

    NAME = "ncm"

    def solve(self) -> tuple[Tensor, Tensor]:
        means = (self.class_sums / self.class_counts.clamp(min=1)).T
        return means, -means.square().sum(1) / 2
