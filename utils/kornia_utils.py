"""Mammoth's name for `utils.mammoth.kornia_utils`."""

from utils.mammoth.kornia_utils import KorniaAugNoGrad, to_kornia_transform

__all__ = ["KorniaAugNoGrad", "to_kornia_transform"]
