"""Crop, flip and normalise whole batches of images at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Models written for Mammoth import * from here, and use these modules as well.
import numpy as np
import PIL
import torch
import torch.nn.functional as F
from torch import Tensor

from utils.mammoth.augmentations import (
    cutmix_data,
    normalize,
    rand_bbox,
    random_crop,
    random_flip,
    random_grayscale,
    soft_aug,
    strong_aug,
)
from utils.mammoth.pair_transforms import CustomRandomCrop, CustomRandomHorizontalFlip, DoubleCompose, DoubleTransform

__all__ = [
    "PIL",
    "TF",  # noqa: F822
    "UNITS",
    "BatchTransform",
    "CustomRandomCrop",
    "CustomRandomHorizontalFlip",
    "DoubleCompose",
    "DoubleTransform",
    "F",
    "RepeatedTransform",
    "Tensor",
    "apply_transform",
    "cutmix_data",
    "is_batched",
    "normalize",
    "np",
    "rand_bbox",
    "random_crop",
    "random_flip",
    "random_grayscale",
    "soft_aug",
    "strong_aug",
    "to_device",
    "to_stored",
    "to_uint8",
    "to_unit_float",
    "torch",
    "transforms",  # noqa: F822 (see `__getattr__`)
]

# A canvas (below) is made for one shape of batch: full batches, short last ones, replay batches of a filling buffer.
KEPT_CANVASES = 4
# What stands for 1 in types without fractions: pixels, and vectors in 8 bits.
UNITS = {torch.uint8: 255, torch.int8: 127}
MAX_CANVAS = 1024  # images; a larger batch is cut, so that no large memory is kept


def __getattr__(name: str) -> Any:
    """torchvision's modules for those models: when asked for, because it takes as long to import as torch."""
    if name in ("transforms", "TF"):
        from torchvision import transforms

        return transforms if name == "transforms" else transforms.functional
    raise AttributeError(f"module 'utils.augmentations' has no attribute {name!r}")


def to_unit_float(batch: Tensor, memory_format: torch.memory_format = torch.preserve_format) -> Tensor:
    """Bytes as float32 in [0, 1], bit for bit torchvision's `ToTensor`; signed ones around 0; others as they are."""
    if batch.dtype not in UNITS:
        return batch.to(torch.float32) if batch.dtype == torch.float16 else batch
    return batch.to(torch.float32, memory_format=memory_format, copy=True).div_(UNITS[batch.dtype])


def to_stored(batch: Tensor, dtype: torch.dtype) -> Tensor:
    """Inverse of `to_unit_float`, for the type in which a dataset stores; what has that type stays as it is."""
    if batch.dtype == dtype:
        return batch
    if dtype not in UNITS:
        return to_unit_float(batch).to(dtype)
    limits = torch.iinfo(dtype)
    return batch.mul(UNITS[dtype]).round_().clamp_(limits.min, limits.max).to(dtype)


def to_uint8(batch: Tensor) -> Tensor:
    """The nearest byte of values in [0, 1]."""
    return to_stored(batch, torch.uint8)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy from the host without waiting for the GPU: from pinned memory the copy is only queued."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class BatchTransform:
    """RandomCrop (zero padding), RandomHorizontalFlip, ToTensor and Normalize, for a batch instead of an image.

    Takes NCHW batches of bytes (datasets, our buffer) or of floats in [0, 1] (buffers of other code), in any memory
    layout, and returns float32 in `memory_format`; it is fastest if the two agree. Each image has its own crop and
    flip, drawn on the host from `generator` (None: torch's global one). `benchmarks/pipeline.py` measures the speed.
    """

    batched = True
    accepts_uint8 = True

    def __init__(
        self,
        size: tuple[int, int],
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        padding: int = 0,
        flip: bool = False,
        generator: torch.Generator | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
    ):
        self.size, self.mean, self.std = tuple(size), mean, std
        self.padding, self.flip = padding, flip
        self.generator, self.memory_format = generator, memory_format
        self._places = 2 * padding + 1  # of a window, along each axis of the padded image
        self._canvases: dict[tuple[Any, ...], _Canvas] = {}
        self._factors: dict[tuple[torch.device, bool], tuple[Tensor, Tensor]] = {}

    def __call__(self, batch: Tensor) -> Tensor:
        return self._transform(batch, self._draw_windows(len(batch)))

    def draw(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """For each of n images, on the host: first row and first column of the crop in the padded image, and flip."""
        windows, places = self._draw_windows(n), self._places
        return windows // places % places, windows % places, windows // places**2 == 1

    def apply(self, batch: Tensor, top: Tensor, left: Tensor, flip: Tensor) -> Tensor:
        """Crop, flip and normalise with the given parameters (host tensors, one entry per image)."""
        return self._transform(batch, (flip.long() * self._places + top) * self._places + left)

    def _draw_windows(self, n: int) -> Tensor:
        """Crop and flip of each image as one number, because each call of a random generator costs time."""
        count = self._places**2 * (1 + self.flip)
        if count == 1:
            return torch.zeros(n, dtype=torch.int64)  # nothing is random: the generator stays as it is
        return torch.randint(count, (n,), generator=self.generator)

    def _transform(self, batch: Tensor, windows: Tensor) -> Tensor:
        if batch.dim() != 4 or batch.shape[2:] != self.size:
            raise ValueError(f"expected a batch of {self.size} images, [B, C, H, W], got {tuple(batch.shape)}")
        images = batch.detach()
        if (self.padding or self.flip) and len(images):
            images = self._crop(images, windows)
        return self._normalise(images)

    def _crop(self, images: Tensor, windows: Tensor) -> Tensor:
        if len(images) > MAX_CANVAS:
            chunks = zip(images.split(MAX_CANVAS), windows.split(MAX_CANVAS), strict=True)
            return torch.cat([self._crop(*chunk) for chunk in chunks])
        key = (images.shape, images.dtype, images.device, images.is_contiguous())
        if key not in self._canvases:
            if len(self._canvases) == KEPT_CANVASES:
                del self._canvases[next(iter(self._canvases))]  # the oldest
            self._canvases[key] = _Canvas(images, self.padding, self.flip)
        return self._canvases[key].crop(images, windows)

    def _normalise(self, images: Tensor) -> Tensor:
        """(v − mean) / std as v · scale + shift; bytes are brought to [0, 1] on the way."""
        is_bytes = images.dtype == torch.uint8
        if self.mean is None and is_bytes:
            return to_unit_float(images, self.memory_format)
        out = images.to(torch.float32, memory_format=self.memory_format, copy=True)
        if self.mean is None:
            return out
        key = (images.device, is_bytes)
        if key not in self._factors:
            self._factors[key] = self._make_factors(*key)
        scale, shift = self._factors[key]
        return torch.addcmul(shift, out, scale, out=out)

    def _make_factors(self, device: torch.device, is_bytes: bool) -> tuple[Tensor, Tensor]:
        """Scale and shift as whole images in the layout of the output: broadcasting over channels is slower."""
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (self.mean, self.std))
        factors = (1 / (std * 255 if is_bytes else std), -mean / std)
        scale, shift = (
            factor.expand(-1, -1, *self.size).contiguous(memory_format=self.memory_format).to(device)
            for factor in factors
        )
        return scale, shift


class _Canvas:
    """Crops and flips batches of one shape and memory layout.

    The batch and its mirror image are copied to memory that has a border of zeros around every image. A row of a window
    lies there in one piece (in NHWC memory with all its channels), so the crop is a copy of rows out of a view
    that has a row at every address: a few thousand long copies, not one per value. Where the rows of a window lie
    is read from a table. The memory is kept from batch to batch, because the borders stay zero.
    """

    def __init__(self, images: Tensor, padding: int, flip: bool):
        n, channels, height, width = images.shape
        self.planar = images.is_contiguous()
        padded = (height + 2 * padding, width + 2 * padding)
        if self.planar:
            memory = images.new_zeros(1 + flip, n, channels, *padded)
        else:
            memory = images.new_zeros(1 + flip, n, *padded, channels).permute(0, 1, 4, 2, 3)
        self.halves = memory[..., padding : padding + height, padding : padding + width].unbind()
        length = width if self.planar else width * channels
        self.rows = memory.as_strided((memory.numel() - length + 1, length), (1, 1))
        half, image, plane, row, pixel = memory.stride()
        places = torch.arange(2 * padding + 1)
        # Cropping an image at column `left` and flipping it is cropping its mirror image at column 2·padding − left.
        lefts = [places * pixel, places.flip(0) * pixel + half][: 1 + flip]
        windows = torch.stack([places[:, None] * row + left for left in lefts]).view(-1, 1)
        planes = torch.arange(channels if self.planar else 1)[:, None] * plane
        self.table = windows + (planes + torch.arange(height) * row).view(-1)  # [windows, rows of a window]
        self.images = torch.arange(n)[:, None] * image

    def crop(self, images: Tensor, windows: Tensor) -> Tensor:
        self.halves[0].copy_(images)
        if len(self.halves) == 2:
            self.halves[1].copy_(images.flip(-1))
        addresses = self.table.index_select(0, windows).add_(self.images)
        rows = self.rows.index_select(0, to_device(addresses.view(-1), images.device))
        n, channels, height, width = images.shape
        return rows.view(images.shape) if self.planar else rows.view(n, height, width, channels).permute(0, 3, 1, 2)


def is_batched(transform: Any) -> bool:
    """Whether a transform draws its own random parameters for every image of a batch (ours and kornia's do)."""
    return getattr(transform, "batched", False) or any(
        base.__module__.partition(".")[0] == "kornia" for base in type(transform).__mro__
    )


def apply_transform(x: Any, transform: Any, autosqueeze: bool = False) -> Any:
    """Transform a batch (or one image, tensor or PIL): at once if the transform can, else image by image on the host.

    One image counts as a batch of one; `autosqueeze` takes that dimension away again.
    """
    if transform is None:
        return x
    if not isinstance(x, Tensor):
        from torchvision.transforms.functional import to_tensor

        x = to_tensor(x)
    batch = x[None] if x.dim() == 3 else x
    if batch.dtype in UNITS and not getattr(transform, "accepts_uint8", False):
        batch = to_unit_float(batch)
    if is_batched(transform):
        out = transform(batch)
    else:
        out = torch.stack([transform(image) for image in batch.cpu()]).to(batch.device)
    return out.squeeze(0) if autosqueeze else out


class RepeatedTransform:
    """Mammoth's: the results of several transforms of the same images, along a new first axis."""

    def __init__(self, transform_list: Sequence[Any], autosqueeze: bool = False):
        if not transform_list:
            raise AssertionError("RepeatedTransform needs at least one transform, got an empty list")
        self.transform_list, self.autosqueeze = list(transform_list), autosqueeze

    @torch.no_grad()
    def __call__(self, x: Any) -> Tensor:
        return torch.stack([apply_transform(x, transform, self.autosqueeze) for transform in self.transform_list])
