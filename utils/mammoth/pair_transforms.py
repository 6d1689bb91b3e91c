"""Transforms of an image together with maps of it, such as a network's attention: what moves in one moves in all.

Called with (image, maps) or with the pair of them; they return the pair. A map may be smaller than the image by a
whole factor. They draw from numpy's global generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

Pair = tuple[Any, list[Tensor]]


class _PairTransform:
    def __call__(self, image: Any, maps: Sequence[Tensor] | None = None) -> Pair:
        if maps is None and isinstance(image, tuple | list):
            image, maps = image
        return self.transform_pair(image, list(maps or ()))

    def transform_pair(self, image: Any, maps: list[Tensor]) -> Pair:
        raise NotImplementedError


class DoubleTransform(_PairTransform):
    """A transform of the image alone."""

    def __init__(self, tf: Callable[[Any], Any]):
        self.transform = tf

    def transform_pair(self, image: Any, maps: list[Tensor]) -> Pair:
        return self.transform(image), maps


class DoubleCompose(_PairTransform):
    """Pair transforms one after the other, on copies."""

    def __init__(self, transforms: Sequence[Callable[..., Pair]]):
        self.transforms = list(transforms)

    def transform_pair(self, image: Any, maps: list[Tensor]) -> Pair:
        image, maps = image.clone(), [m.clone() for m in maps]
        for transform in self.transforms:
            image, maps = transform(image, maps)
        return image, maps

    def __getitem__(self, index: int) -> Callable[..., Pair]:
        return self.transforms[index]

    def __iter__(self) -> Iterator[Callable[..., Pair]]:
        return iter(self.transforms)

    def __len__(self) -> int:
        return len(self.transforms)


class CustomRandomHorizontalFlip(_PairTransform):
    """Mirrors all with probability p, or nothing."""

    def __init__(self, p: float = 0.5):
        self.p = p

    def transform_pair(self, image: Any, maps: list[Tensor]) -> Pair:
        if np.random.rand() >= self.p:
            return image, maps
        return image.flip(-1), [m.flip(-1) for m in maps]


class CustomRandomCrop(_PairTransform):
    """Pads with zeros and cuts out a window: of a map, the part that lies over the image's.

    Its place is rounded down to whole values of a map. With `resize`, maps (those before `min_resize_index`, if
    given) are doubled for that, and halved again, which makes the rounding half as coarse.
    """

    def __init__(
        self, size: int | Sequence[int], padding: int = 0, resize: bool = False, min_resize_index: int | None = None
    ):
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        self.padding, self.resize, self.min_resize_index = padding, resize, min_resize_index

    def transform_pair(self, image: Any, maps: list[Tensor]) -> Pair:
        height, width = (side + 2 * self.padding for side in image.shape[-2:])
        top = np.random.randint(height - self.size[0] + 1)
        left = np.random.randint(width - self.size[1] + 1)
        moved = []
        for index, values in enumerate(maps):
            factor = image.shape[-1] // values.shape[-1]
            chosen = self.min_resize_index is None or index < self.min_resize_index
            if self.resize and chosen and factor > 1:
                moved.append(_scaled(self._cut(_scaled(values, 2), top, left, factor // 2), 0.5))
            else:
                moved.append(self._cut(values, top, left, factor))
        return self._cut(image, top, left, 1), moved

    def _cut(self, values: Tensor, top: int, left: int, factor: int) -> Tensor:
        """The window, in an image that is smaller by a factor."""
        padded = F.pad(values, (self.padding // factor,) * 4)
        (height, width), top, left = (side // factor for side in self.size), top // factor, left // factor
        return padded[..., top : top + height, left : left + width]


def _scaled(values: Tensor, factor: float) -> Tensor:
    """Nearest values, for a map of any leading shape and type."""
    flat = values.reshape(1, -1, *values.shape[-2:])
    scaled = F.interpolate(flat.float(), scale_factor=factor, mode="nearest").to(values.dtype)
    return scaled.reshape(*values.shape[:-2], *scaled.shape[-2:])
