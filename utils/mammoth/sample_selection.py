"""Which stored sample a new one replaces, decided one sample at a time: the strategies that Mammoth's models ask for.

All draw from numpy's global generator, as there. A loss-aware strategy knows an importance score for each slot, which
the model keeps up to date; models feed minus the loss, so that what is learnt well has a high score and goes first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

UNLIMITED = 10**9


class BaseSampleSelection:
    """Called with the number of samples seen so far and the labels stored, gives a slot, or −1 to discard."""

    importance_scores: Tensor | None = None

    def __init__(self, buffer_size: int, device: Any = "cpu", dataset: Any = None):
        self.buffer_size, self.device, self.dataset = buffer_size, device, dataset

    def __call__(self, num_seen_examples: int, labels: Tensor | None = None) -> int:
        if num_seen_examples < self.buffer_size:
            return num_seen_examples
        slot = np.random.randint(0, num_seen_examples + 1)
        return self.choose_victim(slot, labels) if slot < self.buffer_size else -1

    def choose_victim(self, slot: int, labels: Tensor | None) -> int:
        """For a sample that a reservoir would have put into `slot`."""
        raise NotImplementedError

    def update(self, indexes: Any, values: Any) -> None:
        """New scores of some slots, for strategies that keep scores."""


class ReservoirSampling(BaseSampleSelection):
    def choose_victim(self, slot: int, labels: Tensor | None) -> int:
        return slot


class UnlimitedSampling(BaseSampleSelection):
    """Everything is kept."""

    def __init__(self, buffer_size: int, device: Any = "cpu", dataset: Any = None):
        super().__init__(UNLIMITED, device, dataset)


class BalancoirSampling(BaseSampleSelection):
    """A random sample of the most frequent class makes room."""

    def choose_victim(self, slot: int, labels: Tensor | None) -> int:
        counts = torch.bincount(_needed(labels))
        return int(np.random.choice(np.flatnonzero(labels == counts.argmax())))


class LARSSampling(BaseSampleSelection):
    """Loss-aware reservoir sampling (Buzzega et al. 2020): samples go in proportion to their scores."""

    def __init__(self, buffer_size: int, device: Any = "cpu", dataset: Any = None):
        super().__init__(buffer_size, device, dataset)
        self.importance_scores: Tensor = torch.zeros(buffer_size)

    def update(self, indexes: Any, values: Any) -> None:
        rows = torch.as_tensor(indexes, dtype=torch.int64).cpu()
        self.importance_scores[rows] = torch.as_tensor(values, dtype=torch.float32).detach().cpu()

    def weights(self, labels: Tensor | None) -> Tensor:
        return _to_unit(self.importance_scores)

    def choose_victim(self, slot: int, labels: Tensor | None) -> int:
        weights = self.weights(labels).double().numpy()
        return int(np.random.choice(self.buffer_size, p=weights / weights.sum())) if weights.sum() > 0 else slot


class LossAwareBalancedSampling(LARSSampling):
    """Half by score, half by how frequent a sample's class is."""

    def weights(self, labels: Tensor | None) -> Tensor:
        counts = torch.bincount(_needed(labels))[labels]
        return 0.5 * super().weights(labels) + 0.5 * _to_unit(counts.float())


class ABSSampling(LARSSampling):
    """Asymmetric balanced sampling: of the current task what is learnt well goes first, of the past what is not."""

    def weights(self, labels: Tensor | None) -> Tensor:
        first, _ = self.dataset.get_offsets()
        past, weights = _needed(labels) < first, torch.zeros(self.buffer_size)
        for group, sign in ((past, -1), (~past, 1)):
            if group.any():
                scores = _to_unit(sign * self.importance_scores[group])
                # Both groups lose samples in proportion to their size.
                weights[group] = scores / scores.sum() * group.sum() if scores.sum() > 0 else torch.ones_like(scores)
        return weights


def _needed(labels: Tensor | None) -> Tensor:
    if labels is None:
        raise ValueError("this sample_selection_strategy needs labels; give them to add_data")
    return labels


def _to_unit(values: Tensor) -> Tensor:
    """Scaled to [0, 1]."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.ones_like(values)


STRATEGIES: dict[str, type[BaseSampleSelection]] = {
    "reservoir": ReservoirSampling,
    "lars": LARSSampling,
    "labrs": LossAwareBalancedSampling,
    "abs": ABSSampling,
    "balancoir": BalancoirSampling,
    "unlimited": UnlimitedSampling,
}
