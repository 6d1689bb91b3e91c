"""Mammoth's name for `utils.mammoth.autoaugment`."""

from utils.mammoth.autoaugment import CIFAR10Policy, ImageNetPolicy, SVHNPolicy

__all__ = ["CIFAR10Policy", "ImageNetPolicy", "SVHNPolicy"]
