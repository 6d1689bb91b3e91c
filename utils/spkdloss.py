"""Mammoth's name for `utils.mammoth.spkdloss`."""

from utils.mammoth.spkdloss import SPKDLoss

__all__ = ["SPKDLoss"]
