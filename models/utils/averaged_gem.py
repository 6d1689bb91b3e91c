"""The step that A-GEM and its variant with a reservoir share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.utils.replay import ReplayModel


class AveragedGem(ReplayModel):
    """Step along g = ∇CE(B) if ⟨g, h⟩ ≥ 0 with h = ∇CE(R), else along g − (⟨g, h⟩ / ⟨h, h⟩) · h.

    Not in `models/agem.py`, whose place another A-GEM may take.
    """

    def observe(
        self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None
    ) -> dict[str, Tensor]:
        self.opt.zero_grad()
        loss = self.loss(self.net(inputs), labels)
        loss.backward()
        loss_replay = torch.zeros((), device=self.device)
        if not self.buffer.is_empty():
            images, targets = self.draw_replay(transform=self.replay_transform())
            loss_replay = self.loss(self.net(images), targets)
            parameters = [p for p in self.net.parameters() if p.requires_grad]
            # Not through `.grad`, which holds g: neither gradient is copied.
            project_gradients(parameters, list(torch.autograd.grad(loss_replay, parameters, allow_unused=True)))
        self.opt.step()
        return {"loss": loss.detach(), "loss_replay": loss_replay.detach()}

    def replay_transform(self) -> Any:
        return self.transform


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
