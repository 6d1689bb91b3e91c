"""The equations of DGC, written literally and slowly: one flat vector in float64, one gradient at a time.

The twin of models/utils/dgc_estimators.py, to be read beside the paper, and what the tests compare the fast code with,
step by step. It is given parameters and batches, and keeps its own Γ', θ̃ and c_t.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = dict[str, Tensor]


class Batch(NamedTuple):
    """Images in one pass; of its rows and outputs those that count, with their labels."""

    images: Tensor
    labels: Tensor
    rows: Any = slice(None)
    columns: slice = slice(None)
    training: bool = False


class Reference:
    """g(X;θ) and G(D;θ): the mean cross-entropy, every parameter in one vector."""

    def __init__(self, net: nn.Module):
        self.net = copy.deepcopy(net).double()
        self.past = 0  # N_past
        self.gamma: Any = 0.0  # Γ'
        self.theta_tilde: State = {}  # θ̃

    def g(self, batch: Batch, theta: State) -> Tensor:
        self.net.load_state_dict({name: value.double() for name, value in theta.items()})
        self.net.train(batch.training)
        outputs = self.net(batch.images.double())[batch.rows, batch.columns]
        gradients = torch.autograd.grad(F.cross_entropy(outputs, batch.labels), list(self.net.parameters()))
        return torch.cat([gradient.reshape(-1) for gradient in gradients])

    def G(self, batches: Iterable[Batch], theta: State) -> Tensor:
        """The mean of the gradients of single images, or of images in their batches."""
        batches = list(batches)
        parts = [len(batch.labels) * self.g(batch, theta) for batch in batches]
        return torch.stack(parts).sum(0) / sum(len(batch.labels) for batch in batches)


class Sampled(Reference):
    """Algorithm 1 with eqs. 11, 12, 14 and 15."""

    task_gradient: Any = 0.0  # G(T_t;θ̃), taken when a stage begins

    def correction(self, xbar: Batch, weight: float, alpha: float) -> Tensor:
        """(1−α)·g(x̄;θ) + α·(g(x̄;θ) − g(x̄;θ̃) + Γ') minus the base's own g(x̄;θ), times its weight."""
        return weight * alpha * (self.gamma - self.g(xbar, self.theta_tilde))

    def current(self, x: Batch, weight: float) -> Tensor:
        """v·(G(T_t;θ̃) − g(x_t;θ̃)) of eq. 10."""
        return weight * (self.task_gradient - self.g(x, self.theta_tilde))

    def move(self, now: list[Batch], before: list[Batch], theta: State) -> None:
        """Γ' ← g(X̄;θ) − g(X̄;θ̃) + Γ'; θ̃ ← θ."""
        self.gamma = self.G(now, theta) - self.G(before, self.theta_tilde) + self.gamma
        self.theta_tilde = theta

    def end_task(self, task: list[Batch], images: int, theta: State) -> None:
        self.gamma = (self.past * self.gamma + images * self.G(task, theta)) / (self.past + images)
        self.past += images


class Closed(Sampled):
    """The same, averaged over the draw of x̄: one constant vector c_t per task."""

    calibrator: Any = 0.0

    def closed_correction(self, weight: float, alpha: float) -> Any:
        return weight * alpha * self.calibrator

    def end_closed_task(
        self, kept: list[Batch], task: list[Batch], filled: list[Batch], images: int, theta: State
    ) -> None:
        """With the buffer before and after it was filled."""
        if self.past:
            self.gamma = self.G(kept, theta) + self.calibrator
        self.end_task(task, images, theta)
        self.calibrator = self.gamma - self.G(filled, theta)


class Released(Reference):
    """The published code: Γ' is added as it is; its stage update averages m differences and divides by n."""

    def __init__(self, net: nn.Module):
        super().__init__(net)
        self.record: Any = 0.0
        self.count = self.n = 0

    def difference(self, raw: Batch, theta: State, m: int) -> None:
        """Before a step."""
        self.record = self.record + self.g(raw, theta) - self.g(raw, self.theta_tilde)
        self.count += 1
        if self.count == m:
            self.gamma = self.gamma + self.record / (m * self.n)
            self.record, self.count, self.theta_tilde = 0.0, 0, theta

    def end_released_task(self, raw_batches: list[Batch], theta: State) -> None:
        self.theta_tilde = self.theta_tilde or theta
        self.n += 1
        mean = sum(self.g(batch, self.theta_tilde) for batch in raw_batches) / len(raw_batches)
        self.gamma = (self.n - 1) / self.n * self.gamma + mean / self.n
