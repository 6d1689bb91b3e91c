"""The equations of DGC, written literally and slowly: one flat vector in float64, one gradient at a time.

The twin is given the fast run's parameters and batches, and keeps its own Γ'. Nothing here is shared with
`models/utils/dgc_mixin.py` but the names of the parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbone.ResNetBlock import ResNet

State = dict[str, Tensor]
Batch = tuple[Tensor, Tensor]

# Of the runs that are compared. Two epochs of 5 steps (6 where memory joins the training set): with m = 3 stages end
# inside tasks, and a partial one is left at the ends of some.
FLAGS = ["--buffer_size", "40", "--batch_size", "64", "--minibatch_size", "16", "--n_epochs", "2", "--lr", "0.02"]
DGC = ["--dgc_m", "3", "--dgc_alpha", "0.3"]
ESTIMATORS = ["sampled", "closed", "released"]


class DoubleResNet(ResNet):
    """For the comparison in float64: takes the float32 batches of the pipeline."""

    def forward(self, x: Tensor, returnt: Any = "out") -> Any:
        return super().forward(x.double(), returnt)


class Reference:
    """g(X;θ) and G(D;θ): eval mode, mean cross-entropy over all outputs, every parameter in one vector."""

    def __init__(self, net: nn.Module):
        self.net = copy.deepcopy(net).double()
        self.past = 0  # N_past
        self.gamma: Any = 0.0  # Γ'

    def g(self, batch: Batch, theta: State) -> Tensor:
        self.net.load_state_dict({name: value.double() for name, value in theta.items()})
        self.net.eval()
        self.net.zero_grad()
        F.cross_entropy(self.net(batch[0].double()), batch[1]).backward()
        return torch.cat([p.grad.reshape(-1) for p in self.net.parameters()])

    def G(self, batches: Iterable[Batch], theta: State) -> Tensor:
        """The mean of the gradients of single images."""
        total, count = 0.0, 0
        for images, labels in batches:
            total, count = total + len(labels) * self.g((images, labels), theta), count + len(labels)
        return total / count


class Sampled(Reference):
    """Algorithm 1 with eqs. 11, 12, 14 and 15."""

    def correction(self, xbar: Batch | None, theta_tilde: State, weight: float, alpha: float) -> Any:
        if not self.past or xbar is None:
            return 0.0
        # (1−α)·g(x̄;θ) + α·(g(x̄;θ) − g(x̄;θ̃) + Γ') minus the base's own g(x̄;θ), times its weight.
        return weight * alpha * (self.gamma - self.g(xbar, theta_tilde))

    def current(self, x: Batch, task: list[Batch], theta_tilde: State) -> Tensor:
        """(1/t)·(G(T_t;θ̃) − g(x_t;θ̃)) of eq. 10, by numbers of images."""
        n = sum(len(labels) for _, labels in task)
        return n / (self.past + n) * (self.G(task, theta_tilde) - self.g(x, theta_tilde))

    def end_stage(self, batches: list[Batch], theta: State, theta_tilde: State) -> None:
        if self.past:
            self.gamma = self.G(batches, theta) - self.G(batches, theta_tilde) + self.gamma

    def end_task(self, task: list[Batch], theta: State) -> None:
        n = sum(len(labels) for _, labels in task)
        self.gamma = (self.past * self.gamma + n * self.G(task, theta)) / (self.past + n)
        self.past += n


class Closed(Sampled):
    """The same, averaged over the draw of x̄: one constant vector c_t per task."""

    calibrator: Any = 0.0

    def begin_task(self, buffer: list[Batch], theta: State) -> None:
        if self.past:
            self.calibrator = self.gamma - self.G(buffer, theta)

    def closed_correction(self, weight: float, alpha: float) -> Any:
        return weight * alpha * self.calibrator if self.past else 0.0

    def end_closed_task(self, buffer: list[Batch], task: list[Batch], theta: State) -> None:
        if self.past:
            self.gamma = self.G(buffer, theta) + self.calibrator
        self.end_task(task, theta)


class Released(Reference):
    """The published code: Γ' is added as it is; its stage update averages m differences and divides by n."""

    def __init__(self, net: nn.Module):
        super().__init__(net)
        self.record: Any = 0.0
        self.count = self.n = 0

    def difference(self, raw: Batch, theta: State, theta_tilde: State, m: int) -> bool:
        """Before a step; True if the stage is over and θ̃ ← θ."""
        self.record = self.record + self.g(raw, theta) - self.g(raw, theta_tilde)
        self.count += 1
        if self.count < m:
            return False
        self.gamma = self.gamma + self.record / (m * self.n)
        self.record, self.count = 0.0, 0
        return True

    def end_task(self, raw_batches: list[Batch], theta_tilde: State) -> None:
        self.n += 1
        mean = sum(self.g(batch, theta_tilde) for batch in raw_batches) / len(raw_batches)
        self.gamma = (self.n - 1) / self.n * self.gamma + mean / self.n
