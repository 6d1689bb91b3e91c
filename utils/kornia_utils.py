"""Mammoth's name for `utils.mammoth.kornia_utils`."""

from utils.mammoth.kornia_utils import CustomKorniaRandAugment, KorniaAugNoGrad, KorniaMultiAug, to_kornia_transform

__all__ = ["CustomKorniaRandAugment", "KorniaAugNoGrad", "KorniaMultiAug", "to_kornia_transform"]
