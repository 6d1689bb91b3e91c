"""A replay buffer with a ring for each task (HAL)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from utils.augmentations import apply_transform
from utils.mammoth.buffer import field_dtype

COUNTERS = ("task_number", "num_seen_examples", "filled_space")
FIELDS = ("examples", "labels", "logits", "task_labels")


class RingBuffer:
    """Each task has `buffer_size // n_tasks` slots, in which the newest samples replace the oldest.

    The model counts the tasks: at the end of one it sets `num_seen_examples` to 0 and `task_number` to the next.
    """

    examples: Tensor

    def __init__(self, buffer_size: int, n_tasks: int = 1, device: torch.device | str = "cpu"):
        self.buffer_size, self.device = buffer_size, torch.device(device)
        self.buffer_portion_size = buffer_size // n_tasks
        if self.buffer_portion_size == 0:
            raise ValueError(f"buffer_size {buffer_size} is less than one slot for each of {n_tasks} tasks")
        self.task_number = self.num_seen_examples = 0
        self.filled_space = 0  # slots that have been written
        self.attributes = list(FIELDS)

    @property
    def used_attributes(self) -> list[str]:
        return [name for name in FIELDS if hasattr(self, name)]

    def __len__(self) -> int:
        return self.filled_space

    def is_empty(self) -> bool:
        return self.num_seen_examples == 0 and self.task_number == 0

    @torch.no_grad()
    def add_data(
        self,
        examples: Tensor,
        labels: Tensor | None = None,
        logits: Tensor | None = None,
        task_labels: Tensor | None = None,
    ) -> None:
        given = {
            name: v for name, v in zip(FIELDS, (examples, labels, logits, task_labels), strict=True) if v is not None
        }
        if not hasattr(self, "examples"):
            for name, value in given.items():
                shape = (self.buffer_size, *value.shape[1:])
                setattr(self, name, torch.zeros(shape, dtype=field_dtype(name), device=self.device))
        start = self.task_number * self.buffer_portion_size
        for row in range(len(examples)):
            slot = self.num_seen_examples % self.buffer_portion_size + start
            self.num_seen_examples += 1
            self.filled_space = max(self.filled_space, slot + 1)
            for name, value in given.items():
                getattr(self, name)[slot] = value[row].to(self.device)

    def get_data(self, size: int, transform: Any = None, device: Any = None) -> tuple[Tensor, ...]:
        """Different rows at random, at most as many as there are: images, then the other fields."""
        return self._rows(np.random.permutation(len(self))[:size], transform, device)

    def get_all_data(self, transform: Any = None, device: Any = None) -> tuple[Tensor, ...]:
        return self._rows(np.arange(len(self)), transform, device)

    def _rows(self, rows: np.ndarray, transform: Any, device: Any) -> tuple[Tensor, ...]:
        index = torch.from_numpy(rows).to(self.device)
        fields = [getattr(self, name)[index] for name in self.used_attributes]
        fields[0] = apply_transform(fields[0], transform)
        return tuple(field.to(device or self.device) for field in fields)

    def empty(self) -> None:
        for name in self.used_attributes:
            delattr(self, name)
        self.task_number = self.num_seen_examples = self.filled_space = 0

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*COUNTERS, *self.used_attributes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.empty()
        for name, value in state.items():
            setattr(self, name, value.to(self.device, copy=True) if isinstance(value, Tensor) else value)
