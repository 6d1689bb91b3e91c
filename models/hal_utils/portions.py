"""A buffer with a portion for each task, which holds the latest images of that task."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from utils.buffer import Buffer


class TaskPortions(Buffer):
    """⌊buffer_size / n_portions⌋ slots for each task, overwritten in turn: the oldest image goes first.

    A task that brings fewer images than its portion has slots leaves no gap: the next one begins behind its last.
    """

    def __init__(
        self,
        buffer_size: int,
        n_portions: int,
        device: torch.device,
        generator: torch.Generator,
        image_dtype: torch.dtype = torch.uint8,
    ):
        super().__init__(buffer_size, device, generator=generator, image_dtype=image_dtype)
        self.portion = buffer_size // n_portions
        if self.portion == 0:
            raise ValueError(f"buffer_size {buffer_size} is too small for {n_portions} portions")
        self.first = self.offered = self.filled = 0  # first slot of the portion; images offered to it; slots in use

    def __len__(self) -> int:
        return self.filled

    def begin_portion(self, task: int) -> None:
        """From now on images are of this task (from 0); what is stored of earlier ones stays."""
        # A buffer handed over by another run counts as full: the portions of tasks to come are free nevertheless.
        self.first, self.offered = min(self.filled, task * self.portion), 0
        self.filled = self.first

    def _draw_slots(self, count: int) -> tuple[Tensor, Tensor]:
        """Which rows of a batch enter, and into which slots: the latest, at most a portion, each to the next slot."""
        rows = torch.arange(max(count - self.portion, 0), count)
        slots = self.first + (self.offered + rows) % self.portion
        self.offered += count
        self.filled = self.first + min(self.offered, self.portion)
        return rows, slots

    def empty(self) -> None:
        super().empty()
        self.first = self.offered = self.filled = 0

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "ring": (self.first, self.offered, self.filled)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.first, self.offered, self.filled = state.get("ring", (0, 0, self.buffer_size))
