"""Mammoth's name for `utils.mammoth.mixup`."""

from utils.mammoth.mixup import mixup

__all__ = ["mixup"]
