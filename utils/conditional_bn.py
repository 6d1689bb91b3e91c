"""Mammoth's name for `utils.mammoth.conditional_bn`."""

from utils.mammoth.conditional_bn import ConditionalBatchNorm1d, ConditionalBatchNorm2d

__all__ = ["ConditionalBatchNorm1d", "ConditionalBatchNorm2d"]
