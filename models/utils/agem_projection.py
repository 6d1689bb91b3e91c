"""A-GEM's projection: take out of a gradient what would increase the loss on the memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def project_gradients(parameters: list[nn.Parameter], reference: list[Tensor | None]) -> None:
    """g ← g − min(⟨g, h⟩, 0) / ⟨h, h⟩ · h, where g is all `.grad` together and h is `reference`, which is overwritten.

    A part that is None counts as zero. The scalars stay on the device: both branches are one formula, in which no
    conflict leaves g bit for bit as it is, and so does h = 0.
    """
    g, h = [], []
    for parameter, part in zip(parameters, reference, strict=True):
        if part is not None:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            g.append(parameter.grad)
            h.append(part)
    if not h:
        return
    g_dot_h = torch.stack([(a * b).sum() for a, b in zip(g, h, strict=True)]).sum()
    h_dot_h = torch.stack(torch._foreach_norm(h)).square().sum()
    # If h = 0, so is ⟨g, h⟩: any positive denominator will do.
    factor = g_dot_h.clamp(max=0) / h_dot_h.clamp(min=torch.finfo(h_dot_h.dtype).tiny)
    torch._foreach_mul_(h, factor)
    torch._foreach_sub_(g, h)
