"""Strong random views of whole batches, for contrastive losses (X-DER).

Shapes: B images, C channels (1 or 3), H×W pixels. Kornia's views come more slowly (`benchmarks/strong_views.py`), only
from floats, and from torch's global generator, where whatever else draws would change them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

MIN_AREA, MAX_RATIO = 0.2, 4 / 3  # of the crop: fraction of the image, longer by shorter side
FLIP, JITTER, GRAYSCALE = 0.5, 0.8, 0.2  # probabilities
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
NEUTRAL, STRENGTH = (1.0, 1.0, 1.0, 0.0), (0.4, 0.4, 0.4, 0.1)  # factors are NEUTRAL ± STRENGTH; hue is in turns
LUMINANCE = (0.2989, 0.587, 0.114)  # of red, green and blue, as in torchvision


class ViewParameters(NamedTuple):
    """Random choices for B views, on the host."""

    box: Tensor  # int64 [B, 4]: top, left, height and width of the crop
    flip: Tensor  # bool [B]: mirror the crop
    jitter: Tensor  # bool [B]: change the colours
    order: Tensor  # int64 [B, 4]: the colour operations (BRIGHTNESS … HUE) in the order they are done
    factors: Tensor  # float64 [B, 4]: of BRIGHTNESS … HUE
    grayscale: Tensor  # bool [B]


class StrongViews:
    """Random resized crop, flip, colour jitter, grayscale and normalisation, chosen anew for every image.

    Takes NCHW batches of bytes or of floats in [0, 1], returns float32 without gradient. The operations are
    torchvision's on float tensors (bilinear, no antialiasing). An image of one channel has no colour: saturation, hue
    and grayscale leave it alone. Parameters are drawn on the host from `generator` (None: torch's global one).
    """

    batched = accepts_uint8 = True

    def __init__(
        self, size: tuple[int, int], mean: tuple[float, ...], std: tuple[float, ...], generator: Generator | None = None
    ):
        self.size, self.mean, self.std, self.generator = size, mean, std, generator

    def __call__(self, batch: Tensor) -> Tensor:
        return self.apply(batch, self.draw(len(batch)))

    def draw(self, n: int) -> ViewParameters:
        box = self._draw_boxes(n)
        flip, jitter, grayscale = self._uniform(3, n) < torch.tensor([[FLIP], [JITTER], [GRAYSCALE]])
        factors = torch.tensor(NEUTRAL) + torch.tensor(STRENGTH) * (2 * self._uniform(n, 4) - 1)
        return ViewParameters(box, flip, jitter, self._uniform(n, 4).argsort(1), factors, grayscale)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def _draw_boxes(self, n: int) -> Tensor:
        """Torchvision's rule: the first of ten random boxes that fits, else the largest permitted, in the centre."""
        limit = torch.tensor(self.size, dtype=torch.float64)[:, None]
        area, ratio = self._uniform(2, 10, n)
        area = limit.prod() * (MIN_AREA + (1 - MIN_AREA) * area)
        ratio = MAX_RATIO ** (2 * ratio - 1)  # width by height, as often wide as tall
        tries = torch.stack(((area / ratio).sqrt(), (area * ratio).sqrt()), dim=1).round()  # [10, 2, B]
        boxes = torch.cat((tries, limit.minimum((limit.flip(0) * MAX_RATIO).round()).expand(1, 2, n)))
        first = ((boxes >= 1) & (boxes <= limit)).all(1).int().argmax(0)  # that fits
        extent = boxes[first, :, torch.arange(n)].T
        corner = (self._uniform(2, n) * (limit - extent + 1)).floor()
        return torch.cat((corner.where(first < 10, (limit - extent) // 2), extent)).T.long()

    @torch.no_grad()
    def apply(self, batch: Tensor, p: ViewParameters) -> Tensor:
        """The views with the given parameters. Nothing here waits for the device.

        Hue has another formula than the other colour operations, which are blends. To shift it once for all images,
        each image gets three blends before and three after it, of which three do nothing (`_blend_weights`).
        """
        if tuple(batch.shape[2:]) != tuple(self.size) or batch.shape[1] not in (1, 3):
            raise ValueError(f"expected [B, 1 or 3, {self.size[0]}, {self.size[1]}], got {tuple(batch.shape)}")
        numbers = torch.cat((p.box, p.flip[:, None], p.factors[:, HUE:] * p.jitter[:, None], _blend_weights(p)), dim=1)
        numbers = numbers.T.float().contiguous()
        if batch.is_cuda:  # from pinned memory the copy is queued, and the host does not wait
            numbers = numbers.pin_memory().to(batch.device, non_blocking=True)
        numbers = numbers.to(batch.device)[..., None]
        x = self._crop(batch.float() / 255 if batch.dtype == torch.uint8 else batch.float(), *numbers[:5])
        for step, weights in enumerate(numbers[6:, ..., None, None].unflatten(0, (7, 3))):
            if step == 3 and x.shape[1] == 3:
                _shift_hue(x, turns=numbers[5, ..., None])
            _blend(x, *weights)
        for channel, mean, std in zip(x.unbind(1), self.mean, self.std, strict=True):
            channel.sub_(mean).div_(std)
        return x

    def _crop(self, images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, flip: Tensor) -> Tensor:
        """Crop, resize and mirror in one resampling. Parameters [B, 1]."""
        row, column = (torch.arange(side, device=images.device) for side in self.size)
        column = column + flip * (self.size[1] - 1 - 2 * column)
        x, y = _source(column, left, width, self.size[1]), _source(row, top, height, self.size[0])
        grid = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), dim=3)
        return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _source(pixel: Tensor, start: Tensor, extent: Tensor, side: int) -> Tensor:
    """Place [B, side] of output pixels in the image, in −1..1; clamped, as if nothing existed outside the crop."""
    inside = ((pixel + 0.5) * extent / side - 0.5).clamp_(min=0).minimum(extent - 1)
    return (start + inside + 0.5) * 2 / side - 1


def _blend_weights(p: ViewParameters) -> Tensor:
    """[B, 7·3]: a, b, c of x ← a·x + b·(mean luminance) + c·luminance, before hue, after it, and for grayscale."""
    factor = p.factors.gather(1, p.order)
    steps = torch.stack((factor, (1 - factor) * (p.order == CONTRAST), (1 - factor) * (p.order == SATURATION)), dim=2)
    place, hue_place = torch.arange(4), (p.order == HUE).int().argmax(1, keepdim=True)
    before, after = (place < hue_place) & p.jitter[:, None], (place > hue_place) & p.jitter[:, None]
    wanted = torch.cat((before[:, :3], after[:, 1:], p.grayscale[:, None]), dim=1)[..., None]
    weights = torch.cat((steps[:, :3], steps[:, 1:], torch.tensor([0.0, 0.0, 1.0]).expand(len(steps), 1, 3)), dim=1)
    return torch.where(wanted, weights, torch.tensor([1.0, 0.0, 0.0])).flatten(1)  # (1, 0, 0) does nothing


def _luminance(x: Tensor) -> Tensor:
    if x.shape[1] == 1:
        return x
    red, green, blue = x.split(1, dim=1)
    return (red * LUMINANCE[0]).add_(green, alpha=LUMINANCE[1]).add_(blue, alpha=LUMINANCE[2])


def _blend(x: Tensor, keep: Tensor, to_mean: Tensor, to_luminance: Tensor) -> None:
    luminance = _luminance(x)
    target = luminance.mean((1, 2, 3), keepdim=True) * to_mean + luminance * to_luminance
    x.mul_(keep).add_(target).clamp_(0, 1)


def _shift_hue(x: Tensor, turns: Tensor) -> None:
    """Rotate the hue by up to a third of a turn, in place. The usual case by case is `where`, slow on the CPU; instead:

    Hue h counts sixths of a turn from red, in [−3, 3]. With the pixel's lowest channel scaled to 0, its highest to 1,
    |h| = 1 − r + g + b, and the sign is that of g − b. Back: a channel that peaks at p (red 0, green 2, blue −2) is
    clamp(2 − d, 0, 1), d = distance of h and p on the circle; up to the clamp 2 − d = ||h − p| − 3| − 1.
    """
    red, green, blue = x.unbind(1)
    low = red.minimum(green).minimum(blue)
    chroma = red.maximum(green).maximum(blue).sub_(low)
    hue = (green + blue).sub_(red).sub_(low).div_(chroma.clamp(min=torch.finfo(x.dtype).tiny)).add_(1)
    hue = hue.copysign_(green - blue).add_(turns * 6)
    for channel, peak in ((red, 0), (green, 2), (blue, -2)):
        torch.sub(hue, peak, out=channel).abs_().sub_(3).abs_().sub_(1).clamp_(0, 1).mul_(chroma).add_(low)
