"""Augmentations that models written for Mammoth find in `utils.augmentations`. They draw from the global generators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from utils.strong_views import StrongViews

SOFT_PADDING = 4
LUMINANCE = (0.299, 0.587, 0.114)


def rand_bbox(size: Sequence[int], lam: float) -> tuple[int, int, int, int]:
    """A random box of 1 − `lam` of the images' area: first row, first column, and one past the last row and column.

    Where it reaches over the edge it is cut off.
    """
    share, (height, width) = np.sqrt(1 - lam), size[-2:]
    row, column = np.random.randint(height), np.random.randint(width)
    half_height, half_width = int(height * share) // 2, int(width * share) // 2
    rows = np.clip((row - half_height, row + half_height), 0, height)
    columns = np.clip((column - half_width, column + half_width), 0, width)
    return int(rows[0]), int(columns[0]), int(rows[1]), int(columns[1])


def cutmix_data(
    x: Tensor, y: Tensor, alpha: float = 1.0, cutmix_prob: float = 0.5, force: bool = False
) -> tuple[Tensor, Tensor, Tensor, float]:
    """CutMix (Yun et al. 2019): with some probability every image gets a box of another one.

    The loss is to be lam · loss(y_a) + (1 − lam) · loss(y_b); lam is the share of the image that is left.
    """
    if alpha <= 0:
        raise ValueError(f"cutmix needs alpha above 0, got {alpha}")
    if not force and np.random.rand() > cutmix_prob:
        return x, y, y, 1.0
    top, left, bottom, right = rand_bbox(x.shape, np.random.beta(alpha, alpha))
    others = torch.randperm(len(x)).to(x.device)
    mixed = x.clone()
    mixed[..., top:bottom, left:right] = x[others, ..., top:bottom, left:right]
    lam = 1 - (bottom - top) * (right - left) / (x.shape[-1] * x.shape[-2])
    return mixed, y, y[others], lam


def normalize(x: Tensor, mean: Any, std: Any) -> Tensor:
    """(x − mean) / std by channel, of an image or a batch."""
    mean, std = (torch.as_tensor(v, dtype=x.dtype, device=x.device).view(-1, 1, 1) for v in (mean, std))
    return (x - mean) / std


def random_flip(x: Tensor) -> Tensor:
    """Mirror each image of a batch with probability 1/2."""
    chosen = (torch.rand(len(x)) < 0.5).to(x.device)
    return torch.where(chosen.view(-1, 1, 1, 1), x.flip(-1), x)


def random_crop(x: Tensor, padding: int) -> Tensor:
    """Pad each image of a batch with zeros and cut out a random window of the image's size."""
    height, width = x.shape[-2:]
    padded = F.pad(x, (padding,) * 4)
    corners = torch.randint(2 * padding + 1, (len(x), 2)).tolist()
    crops = [
        image[:, top : top + height, left : left + width] for image, (top, left) in zip(padded, corners, strict=True)
    ]
    return torch.stack(crops)


def random_grayscale(x: Tensor, prob: float = 0.2) -> Tensor:
    """Make each image of a batch grey with some probability."""
    weights = torch.tensor(LUMINANCE, dtype=x.dtype, device=x.device).view(1, 3, 1, 1)
    chosen = (torch.rand(len(x)) < prob).to(x.device)
    return torch.where(chosen.view(-1, 1, 1, 1), (x * weights).sum(1, keepdim=True).expand_as(x), x)


def soft_aug(mean: Any, std: Any) -> Callable[[Tensor], Tensor]:
    """Flip, crop and normalise a batch in [0, 1]."""
    return lambda x: normalize(random_crop(random_flip(x), SOFT_PADDING), mean, std)


def strong_aug(size: Any, mean: Any, std: Any) -> Callable[[Tensor], Tensor]:
    """Flip, random resized crop, colour jitter, grayscale and normalisation of a batch in [0, 1]."""
    height_width = (size, size) if isinstance(size, int) else tuple(size)
    return StrongViews(height_width, tuple(map(float, mean)), tuple(map(float, std)))
