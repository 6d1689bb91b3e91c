"""Herding: the few rows whose mean feature is closest to that of all (Welling 2009; iCaRL)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


@torch.no_grad()
def herd(features: Tensor, quota: int) -> Tensor:
    """Rows in herding order, min(quota, n) of them.

    Row k is the one, not chosen before, that brings the mean of the k chosen closest to the mean μ of all: with
    c_i = φ_i − μ and s = Σ c over the k − 1 chosen, argmin ‖s + c_i‖² = argmin ‖c_i‖² + 2 c_i·s. A pick is one
    product of matrix and vector; nothing is read back from the device.
    """
    # In double precision, which MPS lacks: rounding errors would decide near ties after hundreds of picks.
    features = features if features.device.type == "mps" else features.double()
    centred = features - features.mean(0)
    norms = centred.square().sum(1)
    products = torch.zeros_like(norms)
    picks = [torch.empty(0, dtype=torch.int64, device=features.device)]
    for _ in range(min(quota, len(features))):
        pick = (norms + 2 * products).argmin(0, keepdim=True)
        norms.index_fill_(0, pick, math.inf)  # never again
        products += centred @ centred.index_select(0, pick)[0]
        picks.append(pick)
    return torch.cat(picks)
