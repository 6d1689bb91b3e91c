"""BatchNorm whose scale and shift depend on a condition of each image (de Vries et al. 2017)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _Conditional(nn.Module):
    """Scale and shift are rows of `embed`: the first half the scale, the second the shift."""

    NORM: Any

    def __init__(self, num_features: int, num_conditions: int):
        super().__init__()
        self.num_features = num_features
        self.bn = self.NORM(num_features, affine=False)
        self.embed = nn.Embedding(num_conditions, 2 * num_features)
        nn.init.normal_(self.embed.weight[:, :num_features].data, 1, 0.02)
        self.embed.weight.data[:, num_features:].zero_()

    def forward(self, x: Tensor, cond_id: Tensor, flag_stop_grad: Tensor | None = None) -> Tensor:
        """Rows that `flag_stop_grad` marks give no gradient to scale and shift."""
        rows = self.embed(cond_id)
        if flag_stop_grad is not None:
            rows = torch.where(flag_stop_grad.bool().view(-1, 1), rows.detach(), rows)
        scale, shift = (part.view(*part.shape, *[1] * (x.dim() - 2)) for part in rows.split(self.num_features, dim=1))
        return scale * self.bn(x) + shift


class ConditionalBatchNorm1d(_Conditional):
    NORM = nn.BatchNorm1d


class ConditionalBatchNorm2d(_Conditional):
    NORM = nn.BatchNorm2d
