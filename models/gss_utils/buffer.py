"""A buffer in which every slot has a score; what is to be stored competes with what is there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from utils.buffer import Buffer

FIRST_SCORE = 0.1  # of images that came when there was nothing to compare them with


class ScoredBuffer(Buffer):
    """Greedy replacement (Aljundi et al. 2019, Algorithm 2), for batches; low scores are precious.

    Free slots are filled in order, at the score of the whole batch. Once there are none, a batch with a score of 1 or
    more (its gradient does not oppose those of all images that it was compared with) is ignored. Each image
    of any other draws in turn a slot i with a probability proportional to its score C_i, and takes it, with its own
    score c, with probability C_i / (C_i + c).

    Scores are kept on the host, where slots are drawn; `draws` is the generator for that.
    """

    def __init__(self, *args: Any, draws: torch.Generator, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.draws = draws
        self.scores = np.full(self.buffer_size, FIRST_SCORE)
        self._offered = np.empty(0)

    def add_data(self, *args: Any, sample_selection_scores: Tensor | None = None, **fields: Any) -> None:
        """Offer a batch and its scores, on any device: that of the batch, then one for each image. Waits for them.

        If the batch's score is NaN, all stays as it is; while `write_mask` is False, it counts as NaN.
        """
        if sample_selection_scores is None:
            raise ValueError("this buffer selects by scores: give add_data sample_selection_scores")
        if self.write_mask is not None:
            sample_selection_scores = torch.where(self.write_mask, sample_selection_scores, math.nan)
        self._offered = sample_selection_scores.cpu().double().numpy()
        if not math.isnan(self._offered[0]):
            super().add_data(*args, **fields)

    def _draw_slots(self, count: int) -> tuple[Tensor, Tensor]:
        batch_score, image_scores = self._offered[0], self._offered[1:]
        first = len(self)
        free = min(self.buffer_size - first, count)
        self.scores[first : first + free] = batch_score
        taken = {first + row: row for row in range(free)}
        if free < count and batch_score < 1:
            taken |= self.replace(image_scores, free)
        return torch.tensor(list(taken.values()), dtype=torch.int64), torch.tensor(list(taken), dtype=torch.int64)

    def replace(self, image_scores: np.ndarray, first: int) -> dict[int, int]:
        """Slot → row of the batch, of rows from `first` on; the last one that has taken a slot stays in it.

        One by one, because a slot's score changes hands with it; numpy is fast enough for that.
        """
        taken = {}
        randoms = torch.rand(len(image_scores), 2, generator=self.draws, dtype=torch.float64).numpy()
        for row in range(first, len(image_scores)):
            cumulated = self.scores.cumsum()
            slot = int(np.searchsorted(cumulated, randoms[row, 0] * cumulated[-1], side="right"))
            if slot == len(cumulated):  # all scores are 0, or it was rounded up
                continue
            if randoms[row, 1] * (self.scores[slot] + image_scores[row]) < self.scores[slot]:
                taken[slot], self.scores[slot] = row, image_scores[row]
        return taken

    def empty(self) -> None:
        super().empty()
        self.scores = np.full(self.buffer_size, FIRST_SCORE)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"slot_scores": self.scores}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Images from a buffer without scores count as the first ones."""
        super().load_state_dict(state)
        self.scores = np.array(state.get("slot_scores", self.scores))
