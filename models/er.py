"""Experience Replay: train on the stream's batch and a batch from a reservoir, together."""

from __future__ import annotations

import torch

from models.utils.replay import ReplayModel


class Er(ReplayModel):
    """Experience Replay (Chaudhry et al. 2019): one step on stream and replay batch, concatenated."""

    NAME = "er"
    COMPATIBILITY = ["class-il", "task-il", "domain-il", "general-continual"]

    def observe(
        self, inputs: torch.Tensor, labels: torch.Tensor, not_aug_inputs: torch.Tensor, epoch: int | None = None
    ) -> torch.Tensor:
        images, targets = self.join_replay(inputs, labels)
        self.opt.zero_grad()
        outputs = self.net(images)
        if self.past_images and targets is not labels:  # some were joined
            (v, w), n_stream = self.task_weights(), len(labels)
            stream_loss = self.loss(outputs[:n_stream], targets[:n_stream])
            loss = v * stream_loss + w * self.loss(outputs[n_stream:], targets[n_stream:])
        else:
            loss = self.loss(outputs, targets)
        loss.backward()
        self.opt.step()
        self.store(examples=not_aug_inputs, labels=labels)
        return loss.detach()
