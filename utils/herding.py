"""Which images of a class are kept: herding (Welling 2009; iCaRL) finds the few whose mean feature is that of all."""

from __future__ import annotations

import math
from typing import Any

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


def first_of_each(buffer: Any, n_classes: int, quota: int) -> dict[str, Tensor]:
    """All fields of the first `quota` stored images of each class 0 … n_classes − 1."""
    labels = buffer.labels[: len(buffer)].cpu()
    rows = [labels.new_empty(0)] + [(labels == label).nonzero()[:quota, 0] for label in range(n_classes)]
    index = torch.cat(rows).to(buffer.device)
    return {name: getattr(buffer, name)[index] for name in buffer.used_attributes}
