"""Mammoth's base of models that also predict classes which are still to come."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from models.utils.continual_model import ContinualModel


class FutureModel(ContinualModel):
    """A model from Mammoth may be one, and is trained and evaluated like any other: `--eval_future 1` is refused."""

    @abstractmethod
    def future_forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Outputs for images of tasks that were not trained yet."""

    @abstractmethod
    def change_transform(self, dataset: Any) -> None:
        """Take over the transforms of another dataset."""
