"""The inverse of `torchvision.transforms.Normalize`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class DeNormalize:
    """Takes normalised images [B, C, H, W] back to [0, 1]; an image alone becomes a batch of one, as in Mammoth."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]):
        self.mean = torch.as_tensor(mean)
        self.std = torch.as_tensor(std)

    def __call__(self, images: Tensor) -> Tensor:
        images = images[None] if images.dim() == 3 else images
        mean, std = self.mean.to(images), self.std.to(images)
        return images * std[:, None, None] + mean[:, None, None]
