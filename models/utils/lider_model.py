"""LiDER: replay that keeps the Lipschitz constants of a network's layers small (Bonicelli et al. 2022).

The Lipschitz constant of a layer is estimated for each image as by Shang et al. (2021): by the spectral norm of the
product of the maps that enter the layer and those that leave it. For methods written for
Mammoth; none of the project's own uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser
from utils.augmentations import to_device
from utils.batch_norm import network_mode

POWER_ITERATIONS = 10
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "lrelu": F.leaky_relu}


def add_lipschitz_args(parser: ArgumentParser) -> None:
    """The flags of LiDER. The weights of its two losses are read by the methods themselves."""
    parser.add_argument("--alpha_lip_lambda", type=float, default=0, help="weight of the loss by budgets on the buffer")
    parser.add_argument("--beta_lip_lambda", type=float, default=0, help="weight of the loss that has no budgets")
    parser.add_argument(
        "--headless_init_act", choices=list(ACTIVATIONS), default="relu", help="what a budget goes through, to be ≥ 0"
    )
    parser.add_argument(
        "--grad_iter_step",
        type=int,
        default=-2,
        help=f"of {POWER_ITERATIONS} power iterations, the first with a gradient; negative: counted from the end",
    )


class LiderOptimizer(ContinualModel):
    """A method adds its losses, of [inputs, *maps] for the maps that `net(inputs, returnt='full')` gives."""

    @torch.no_grad()
    def init_net(self, dataset: Any) -> None:
        """Set the budgets `net.lip_coeffs`, one per transition: the mean over the training images of what is now."""
        total: Tensor | None = None
        count = 0
        with network_mode(self.net, training=False):
            for batch in dataset.train_loader:
                inputs = to_device(batch[0], self.device)
                coefficients = self.get_feature_lip_coeffs([inputs, *self.net(inputs, returnt="full")[1]]).sum(0)
                total = coefficients if total is None else total + coefficients
                count += len(inputs)
                if self.args.debug_mode and count > self.get_debug_iters() * len(inputs):
                    break
        if total is None:
            raise ValueError("init_net needs training images, and the loader has none")
        self.net.lip_coeffs = total / count

    def minimization_lip_loss(self, features: Sequence[Tensor]) -> Tensor:
        """Eq. 8: keeps all constants small."""
        return self.get_feature_lip_coeffs(features).mean()

    def dynamic_budget_lip_loss(self, features: Sequence[Tensor]) -> Tensor:
        """Eq. 7: keeps the constants near their budgets."""
        budgets = ACTIVATIONS[self.args.headless_init_act](self.net.lip_coeffs.to(features[0].device))
        found = self.get_feature_lip_coeffs(features)
        return (found - budgets[: found.shape[1]]).abs().mean()

    def get_feature_lip_coeffs(self, features: Sequence[Tensor]) -> Tensor:
        """[B, transitions]: the estimate for each image and each pair of successive maps."""
        return torch.stack([self.spectral_norm(_product(a, b)) for a, b in pairwise(features)], dim=1)

    def spectral_norm(self, matrices: Tensor) -> Tensor:
        """The largest singular value of each of some matrices [B, n, m], by power iteration."""
        start = self.args.grad_iter_step % POWER_ITERATIONS
        squares = matrices.transpose(1, 2) @ matrices
        vector = torch.ones(len(squares), squares.shape[1], 1, dtype=squares.dtype, device=squares.device)
        for iteration in range(POWER_ITERATIONS):
            with torch.set_grad_enabled(torch.is_grad_enabled() and iteration >= start):
                vector = F.normalize(squares @ vector, dim=1)
        return (matrices @ vector).flatten(1).norm(dim=1)


def _product(before: Tensor, after: Tensor) -> Tensor:
    """[B, channels before, channels after]: the mean over places of what enters there times what leaves there."""
    height, width = after.shape[-2:]
    before = before if before.shape[-2:] == (height, width) else F.adaptive_avg_pool2d(before, (height, width))
    return before.flatten(2) @ after.flatten(2).transpose(1, 2) / (height * width)
