"""Mammoth's name for `utils.mammoth.bmm`."""

from utils.mammoth.bmm import BetaMixture1D

__all__ = ["BetaMixture1D"]
