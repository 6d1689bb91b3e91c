"""Triplet losses on the hardest pairs of a batch (Hermans et al. 2017), over squared Euclidean distances."""

from __future__ import annotations

import torch
from torch import Tensor


def batch_hard_triplet_loss(
    labels: Tensor, embeddings: Tensor, k: int, margin: float = 0, margin_type: str = "soft"
) -> Tensor | None:
    """Each anchor's k farthest images of its class against its k nearest of others; None if no anchor has both."""
    distances, same, others = _pairs(labels, embeddings)
    k = min(k, len(labels))
    valid = same.any(1) & others.any(1)
    if not valid.any():
        return None
    farthest, is_positive = _extreme(distances, same, k, largest=True)
    nearest, is_negative = _extreme(distances, others, k, largest=False)
    # The i-th farthest against the i-th nearest, as far as an anchor has that many of both.
    pairs = is_positive & is_negative
    return _hinge(farthest[pairs] - nearest[pairs] + margin, margin_type)


def negative_only_triplet_loss(
    labels: Tensor, embeddings: Tensor, k: int, margin: float = 0, margin_type: str = "soft"
) -> Tensor | None:
    """The same without the positives; None if all labels agree."""
    distances, _, others = _pairs(labels, embeddings)
    if not others.any():
        return None
    nearest, is_negative = _extreme(distances, others, min(k, len(labels)), largest=False)
    return _hinge(margin - nearest[is_negative], margin_type)


def _pairs(labels: Tensor, embeddings: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distances, and which pairs are of one class (not an image with itself) and of two."""
    flat = embeddings.flatten(1)
    squares = flat.pow(2).sum(1)
    distances = (squares[:, None] + squares[None] - 2 * flat @ flat.T).clamp_min(0)
    same = labels[:, None] == labels[None]
    return distances, same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device), ~same


def _extreme(distances: Tensor, mask: Tensor, k: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Each row's k largest or smallest distances under a mask, and which of these exist."""
    never = -torch.inf if largest else torch.inf
    values, columns = distances.masked_fill(~mask, never).topk(k, dim=1, largest=largest)
    return values, mask.gather(1, columns)


def _hinge(difference: Tensor, margin_type: str) -> Tensor:
    return (torch.nn.functional.softplus(difference) if margin_type == "soft" else difference.clamp_min(0)).mean()
