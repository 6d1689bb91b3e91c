"""Mammoth's name for `utils.mammoth.triplet`."""

from utils.mammoth.triplet import batch_hard_triplet_loss, negative_only_triplet_loss

__all__ = ["batch_hard_triplet_loss", "negative_only_triplet_loss"]
