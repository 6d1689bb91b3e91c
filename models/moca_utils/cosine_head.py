"""A classifier that sees only angles."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS = 1e-12  # below this length a vector counts as zero, whose direction is 0 instead of NaN


def direction(x: Tensor, eps: float = EPS) -> Tensor:
    """x / max(‖x‖, eps) along the last dimension."""
    return F.normalize(x, dim=-1, eps=eps)


class CosineHead(nn.Module):
    """logits = s · cos(x, w_c) for each class c, without bias; the scale s is learnt, from 1.

    It takes the place of a linear layer and keeps its weights: their directions are the classes' first ones. Weights
    that are all zero have none, and are drawn as PyTorch draws a linear layer's.
    """

    def __init__(self, linear: nn.Linear, eps: float = EPS):
        super().__init__()
        self.eps = eps
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = nn.Parameter(linear.weight.detach().clone())
        if not self.weight.any():
            nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        self.scale = nn.Parameter(torch.ones_like(self.weight[0, 0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * F.linear(direction(x, self.eps), direction(self.weight, self.eps))
