"""Torchvision's transforms as Kornia's, which act on whole batches and draw for each image separately."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import kornia.augmentation as K
import torch
from kornia.augmentation.auto import AutoAugment, RandAugment
from torch import Tensor, nn
from torchvision import transforms as T


class KorniaAugNoGrad(nn.Module):
    """Transforms of batches [B, C, H, W] of floats, one after the other, without gradient."""

    batched = True  # `utils.augmentations.apply_transform` hands over the batch as it is
    stateless = True  # a checkpoint need not hold it: what it draws comes from torch's global generator

    def __init__(self, *augs: nn.Module, same_on_batch: bool = False):
        super().__init__()
        self.transforms = nn.ModuleList(augs)
        for module in self.modules():
            if hasattr(module, "same_on_batch"):
                setattr(module, "same_on_batch", same_on_batch)  # noqa: B010  (torch declares tensors and modules only)

    @torch.no_grad()
    def forward(self, batch: Tensor) -> Tensor:
        for transform in self.transforms:
            batch = transform(batch)
        return batch


class KorniaMultiAug(nn.Module):
    """The same batch, transformed `n_augs` times: [n_augs, B, C, H, W], without gradient."""

    batched = stateless = True

    def __init__(self, n_augs: int, aug_list: Iterable[nn.Module]):
        super().__init__()
        self.n_augs, self.augs = n_augs, KorniaAugNoGrad(*aug_list)

    def forward(self, batch: Tensor) -> Tensor:
        return torch.stack([self.augs(batch) for _ in range(self.n_augs)])


class CustomKorniaRandAugment(RandAugment):
    """`n` operations at random for the whole batch, of strength `m` of 30 (Cubuk et al. 2020)."""

    batched = stateless = True

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class _Published(nn.Module):
    """One sub-policy of AutoAugment (Cubuk et al. 2019) at random for the whole batch."""

    def __init__(self, policy: str):
        super().__init__()
        self.policy = AutoAugment(policy)

    def forward(self, batch: Tensor) -> Tensor:
        return self.policy(batch)


class _RandomApply(nn.Module):
    """All of some transforms with probability p, chosen for each image."""

    def __init__(self, transforms: list[nn.Module], p: float):
        super().__init__()
        self.transforms, self.p = nn.Sequential(*transforms), p

    def forward(self, batch: Tensor) -> Tensor:
        chosen = (torch.rand(len(batch)) < self.p).to(batch.device)
        return torch.where(chosen.view(-1, 1, 1, 1), self.transforms(batch), batch)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


def _name(mode: Any) -> str:
    """Kornia's name of an interpolation."""
    return mode.value.upper()


def _range(values: Any) -> Any:
    """The range of a factor; torchvision's None is 0 here."""
    return 0.0 if values is None else tuple(values)


CONVERSIONS: dict[type, Callable[[Any], nn.Module]] = {
    T.RandomCrop: lambda t: K.RandomCrop(
        _pair(t.size), t.padding, t.pad_if_needed, t.fill, padding_mode=t.padding_mode, p=1.0
    ),
    T.RandomResizedCrop: lambda t: K.RandomResizedCrop(
        _pair(t.size), t.scale, t.ratio, resample=_name(t.interpolation), align_corners=False, p=1.0
    ),
    T.RandomHorizontalFlip: lambda t: K.RandomHorizontalFlip(p=t.p),
    T.RandomVerticalFlip: lambda t: K.RandomVerticalFlip(p=t.p),
    T.RandomRotation: lambda t: K.RandomRotation(tuple(t.degrees), resample=_name(t.interpolation), p=1.0),
    T.RandomAffine: lambda t: K.RandomAffine(
        tuple(t.degrees), t.translate, t.scale, t.shear, resample=_name(t.interpolation), p=1.0
    ),
    T.RandomPerspective: lambda t: K.RandomPerspective(t.distortion_scale, resample=_name(t.interpolation), p=t.p),
    T.RandomErasing: lambda t: K.RandomErasing(t.scale, t.ratio, t.value, p=t.p),
    T.ColorJitter: lambda t: K.ColorJitter(
        _range(t.brightness), _range(t.contrast), _range(t.saturation), _range(t.hue), p=1.0
    ),
    T.RandomGrayscale: lambda t: K.RandomGrayscale(p=t.p),
    T.RandAugment: lambda t: CustomKorniaRandAugment(t.num_ops, t.magnitude),
}
# By the names of their classes, of which a plugin may have its own.
POLICIES = {"CIFAR10Policy": "cifar10", "ImageNetPolicy": "imagenet", "SVHNPolicy": "svhn"}
# Without anything random, torchvision's own do the same to every image of a batch.
KEPT = (T.Resize, T.CenterCrop, T.Normalize, T.Grayscale)
# Batches of floats are what goes in and what comes out.
DROPPED = (T.ToTensor, T.ToPILImage)


def to_kornia_transform(transform: Any, apply: bool = True, override_p: float | None = None) -> Any:
    """A torchvision transform, a Compose or a list of them, as one transform of batches (`apply=False`: as a list).

    `override_p` replaces the probability of the random ones. What has no counterpart is a NotImplementedError.
    """
    converted = list(_convert(transform, override_p))
    return KorniaAugNoGrad(*converted) if apply else converted


def _convert(transform: Any, p: float | None) -> Iterable[nn.Module]:
    if isinstance(transform, T.Compose | list | tuple):
        for part in getattr(transform, "transforms", transform):
            yield from _convert(part, p)
    elif isinstance(transform, T.RandomApply):
        yield _RandomApply(list(_convert(list(transform.transforms), None)), transform.p if p is None else p)
    elif type(transform) in CONVERSIONS:
        if p is not None and hasattr(transform, "p"):
            transform = copy.copy(transform)
            transform.p = p
        yield CONVERSIONS[type(transform)](transform)
    elif type(transform).__name__ in POLICIES:
        yield _Published(POLICIES[type(transform).__name__])
    elif isinstance(transform, KEPT):
        yield transform
    elif not isinstance(transform, DROPPED):
        raise NotImplementedError(f"{type(transform).__name__} has no counterpart in Kornia")
