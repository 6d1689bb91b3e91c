"""Mammoth's base of models that also predict classes which are still to come."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from models.utils.continual_model import ContinualModel


class FutureModel(ContinualModel):
    """Trained like any other; `--eval_future 1` also evaluates it on the tasks to come."""

    @abstractmethod
    def future_forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Outputs for images of tasks that were not trained yet."""

    @abstractmethod
    def change_transform(self, dataset: Any) -> None:
        """Called after each task of a second dataset, which stands for the future: its transforms may be taken over."""
