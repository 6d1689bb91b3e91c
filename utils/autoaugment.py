"""Mammoth's name for `utils.mammoth.autoaugment`."""

from utils.mammoth.autoaugment import CIFAR10Policy, Cutout, ImageNetPolicy, SubPolicy, SVHNPolicy

__all__ = ["CIFAR10Policy", "Cutout", "ImageNetPolicy", "SVHNPolicy", "SubPolicy"]
