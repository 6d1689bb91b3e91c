"""The step that A-GEM and its variant with a reservoir share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from models.utils.agem_projection import project_gradients
from models.utils.continual_model import ContinualModel
from models.utils.replay import make_buffer


class AveragedGem(ContinualModel):
    """Step along g = ∇CE(B) if ⟨g, h⟩ ≥ 0 with h = ∇CE(R), else along g − (⟨g, h⟩ / ⟨h, h⟩) · h.

    Not in `models/agem.py`, whose place another A-GEM may take.
    """

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset)
        self.buffer = make_buffer(args, self.device, self.dataset)

    def observe(
        self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None
    ) -> dict[str, Tensor]:
        self.opt.zero_grad()
        loss = self.loss(self.net(inputs), labels)
        loss.backward()
        loss_replay = torch.zeros((), device=self.device)
        if not self.buffer.is_empty():
            images, targets = self.buffer.get_data(
                self.args.minibatch_size, transform=self.replay_transform(), device=self.device
            )
            loss_replay = self.loss(self.net(images), targets)
            parameters = [p for p in self.net.parameters() if p.requires_grad]
            # Not through `.grad`, which holds g: neither gradient is copied.
            project_gradients(parameters, list(torch.autograd.grad(loss_replay, parameters, allow_unused=True)))
        self.opt.step()
        return {"loss": loss.detach(), "loss_replay": loss_replay.detach()}

    def replay_transform(self) -> Any:
        return self.transform
