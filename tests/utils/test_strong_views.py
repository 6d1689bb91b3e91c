"""Strong views are torchvision's operations image by image, and their random choices are distributed as its."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.v2 import functional as TF

from utils.augmentations import apply_transform, to_unit_float
from utils.strong_views import NEUTRAL, StrongViews, ViewParameters

pytestmark = pytest.mark.numeric

MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
ADJUST = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)
SIZES = [(3, (32, 32)), (1, (28, 28)), (1, (8, 8)), (3, (10, 14))]
# For values in [0, 1]; measured: at most 4.9e-6. What is left is the rounding of the resampling coordinates and of hue.
TOLERANCE = 1e-5


def random_bytes(n: int, channels: int, size: tuple[int, int]) -> Tensor:
    """NHWC memory seen as NCHW. Coarse values too, so that black, white, grey and equal channels occur."""
    generator = torch.Generator().manual_seed(0)
    fine = torch.randint(256, (n, *size, channels), generator=generator)
    coarse = torch.randint(3, (n, *size, channels), generator=generator) * 127.5
    return torch.where(torch.arange(n)[:, None, None, None] % 2 == 0, fine, coarse).to(torch.uint8).permute(0, 3, 1, 2)


def no_change(n: int, size: tuple[int, int]) -> ViewParameters:
    off = torch.zeros(n, dtype=torch.bool)
    box = torch.tensor([0, 0, *size]).expand(n, 4)
    return ViewParameters(box, off, off, torch.arange(4).expand(n, 4), torch.tensor(NEUTRAL).expand(n, 4), off)


def torchvision_views(batch: Tensor, p: ViewParameters, size: tuple[int, int]) -> Tensor:
    """Image by image, in [0, 1]."""
    out = []
    for image, box, flip, jitter, order, factors, gray in zip(batch, *(x.tolist() for x in p), strict=True):
        image = TF.resized_crop(image, *box, list(size), InterpolationMode.BILINEAR, antialias=False)
        image = TF.horizontal_flip(image) if flip else image
        for operation in order if jitter else ():
            image = ADJUST[operation](image, factors[operation])
        out.append(TF.rgb_to_grayscale(image, num_output_channels=len(image)) if gray else image)
    return torch.stack(out)


def assert_equal_to_torchvision(p: ViewParameters, channels: int, size: tuple[int, int], device: torch.device) -> None:
    batch = random_bytes(len(p.box), channels, size)
    expected = torchvision_views(to_unit_float(batch).contiguous(), p, size)
    views = StrongViews(size, (0.0,) * channels, (1.0,) * channels)
    for images in (batch, to_unit_float(batch), to_unit_float(batch).contiguous()):
        out = views.apply(images.to(device), p)
        assert out.dtype == torch.float32 and out.is_contiguous()
        torch.testing.assert_close(out.cpu(), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("channels, size", SIZES)
def test_no_change_returns_the_image(channels, size, device):
    assert_equal_to_torchvision(no_change(16, size), channels, size, device)


@pytest.mark.parametrize("channels, size", SIZES)
@pytest.mark.parametrize("operation, factors", [(0, (0.6, 1.4)), (1, (0.6, 1.4)), (2, (0.6, 1.4)), (3, (-0.1, 0.1))])
def test_colour_operation(operation, factors, channels, size, device):
    n = 40
    values = torch.tensor(NEUTRAL).repeat(n, 1)
    values[:, operation] = torch.linspace(*factors, n)
    p = no_change(n, size)._replace(jitter=torch.ones(n, dtype=torch.bool), factors=values)
    assert_equal_to_torchvision(p, channels, size, device)


@pytest.mark.parametrize("channels, size", SIZES)
@pytest.mark.parametrize("field", ["flip", "grayscale"])
def test_flip_and_grayscale(field, channels, size, device):
    chosen = torch.arange(16) % 3 == 0
    assert_equal_to_torchvision(no_change(16, size)._replace(**{field: chosen}), channels, size, device)


@pytest.mark.parametrize("channels, size", SIZES)
def test_resized_crop(channels, size, device):
    """Random boxes, and the extremes: a single pixel, a row and a column at the borders."""
    height, width = size
    drawn = StrongViews(size, MEAN, STD, torch.Generator().manual_seed(1)).draw(200).box
    extremes = [(0, 0, 1, 1), (height - 1, width - 1, 1, 1), (0, 0, 1, width), (0, width - 1, height, 1)]
    box = torch.cat((drawn, torch.tensor(extremes)))
    assert_equal_to_torchvision(no_change(len(box), size)._replace(box=box), channels, size, device)


@pytest.mark.parametrize("channels, size", SIZES)
def test_everything_together_in_all_24_orders(channels, size, device):
    p = StrongViews(size, MEAN, STD, torch.Generator().manual_seed(2)).draw(10 * 24)
    p = p._replace(order=torch.tensor(list(itertools.permutations(range(4))) * 10))
    assert 0 < p.jitter.sum() < len(p.jitter)
    assert_equal_to_torchvision(p, channels, size, device)


def test_normalises():
    batch = random_bytes(8, 3, (32, 32))
    out = StrongViews((32, 32), MEAN, STD).apply(batch, no_change(8, (32, 32)))
    expected = TF.normalize(to_unit_float(batch), list(MEAN), list(STD))
    torch.testing.assert_close(out, expected, rtol=0, atol=TOLERANCE / min(STD))


def test_saturation_and_hue_and_grayscale_leave_one_channel_alone():
    n, size = 12, (8, 8)
    batch = random_bytes(n, 1, size)
    on = torch.ones(n, dtype=torch.bool)
    factors = torch.tensor([1.0, 1.0, 0.6, 0.1]).expand(n, 4)
    p = no_change(n, size)._replace(jitter=on, factors=factors, grayscale=on)
    out = StrongViews(size, (0.0,), (1.0,)).apply(batch, p)
    torch.testing.assert_close(out, to_unit_float(batch), rtol=0, atol=TOLERANCE)


# Random choices. All seeds are fixed, so the bounds (about four standard errors) either hold always or never.


def test_probabilities_and_ranges():
    n = 20000
    p = StrongViews((32, 32), MEAN, STD, torch.Generator().manual_seed(3)).draw(n)
    for chosen, probability in ((p.flip, 0.5), (p.jitter, 0.8), (p.grayscale, 0.2)):
        assert chosen.double().mean().item() == pytest.approx(probability, abs=0.014)
    for low, high, values in zip((0.6, 0.6, 0.6, -0.1), (1.4, 1.4, 1.4, 0.1), p.factors.T, strict=True):
        place = (values - low) / (high - low)  # uniform in [0, 1]
        assert place.min().item() == pytest.approx(0, abs=1e-3) and place.max().item() == pytest.approx(1, abs=1e-3)
        assert place.mean().item() == pytest.approx(0.5, abs=0.0085)
        assert place.var().item() == pytest.approx(1 / 12, abs=0.0025)
    orders, counts = p.order.unique(dim=0, return_counts=True)
    assert len(orders) == 24 and (orders.sort(1).values == torch.arange(4)).all()
    assert (counts - n / 24).abs().max() < 4 * (n / 24) ** 0.5
    independent = torch.stack([p.flip, p.jitter, p.grayscale, *p.factors.T, *p.order.T[:1], *p.box.T[2:3]]).double()
    correlation = independent.corrcoef() - torch.eye(len(independent))
    assert correlation.abs().max() < 4 / n**0.5


@pytest.mark.parametrize("size", [(32, 32), (10, 30)])
def test_crop_boxes_are_distributed_as_torchvisions(size):
    """Kolmogorov–Smirnov distance of top, left, height, width, area and ratio; 1.95 is the 0.1 % quantile."""
    n, m = 20000, 4000
    ours = StrongViews(size, MEAN, STD, torch.Generator().manual_seed(4)).draw(n).box
    image = torch.zeros(1, *size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        theirs = torch.tensor([RandomResizedCrop.get_params(image, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(m)])
    for a, b in zip(_box_statistics(ours), _box_statistics(theirs), strict=True):
        grid = torch.cat((a, b)).unique()
        distance = torch.searchsorted(a, grid, right=True) / n - torch.searchsorted(b, grid, right=True) / m
        assert distance.abs().max() < 1.95 * (1 / n + 1 / m) ** 0.5


def _box_statistics(box: Tensor) -> list[Tensor]:
    top, left, height, width = box.double().T
    assert (top >= 0).all() and (left >= 0).all() and (height >= 1).all() and (width >= 1).all()
    return [values.sort().values for values in (top, left, height, width, height * width, width / height)]


@pytest.mark.parametrize("size", [(1, 40), (40, 1), (1, 1)])
def test_the_largest_permitted_box_where_no_random_one_fits(size):
    box = StrongViews(size, MEAN, STD, torch.Generator().manual_seed(6)).draw(50).box
    expected = RandomResizedCrop.get_params(torch.zeros(1, *size), [0.2, 1.0], [3 / 4, 4 / 3])
    assert (box == torch.tensor(expected)).all()


def test_the_generator_alone_decides(device):
    batch = random_bytes(16, 3, (32, 32)).to(device)
    generator = torch.Generator().manual_seed(7)
    views = StrongViews((32, 32), MEAN, STD, generator)
    views(batch)
    state, global_state = generator.get_state(), torch.get_rng_state()
    first, second = views(batch), views(batch)
    assert torch.equal(torch.get_rng_state(), global_state)
    assert not torch.equal(first, second)
    generator.set_state(state)
    torch.manual_seed(8)
    assert torch.equal(views(batch), first) and torch.equal(views(batch), second)


def test_every_image_has_its_own_view():
    batch = random_bytes(1, 3, (32, 32)).expand(64, -1, -1, -1)
    out = StrongViews((32, 32), MEAN, STD, torch.Generator().manual_seed(9))(batch)
    assert len(out.flatten(1).unique(dim=0)) == 64


def test_input_is_kept_and_no_gradient_flows(device):
    batch = to_unit_float(random_bytes(16, 3, (32, 32))).to(device).requires_grad_()
    before = batch.detach().clone()
    assert not StrongViews((32, 32), MEAN, STD)(batch).requires_grad
    assert torch.equal(batch, before)


def test_apply_transform_hands_over_the_bytes():
    batch = random_bytes(16, 3, (32, 32))
    views = [StrongViews((32, 32), MEAN, STD, torch.Generator().manual_seed(10)) for _ in range(2)]
    assert torch.equal(apply_transform(batch, views[0]), views[1](batch))


@pytest.mark.parametrize("shape", [(4, 3, 32, 31), (4, 2, 32, 32), (3, 32, 32)])
def test_refuses_other_shapes(shape):
    with pytest.raises(ValueError, match=r"expected \[B, 1 or 3, 32, 32\]"):
        StrongViews((32, 32), MEAN, STD)(torch.zeros(shape))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_never_waits_for_the_gpu():
    batch = random_bytes(16, 3, (32, 32)).cuda()
    views = StrongViews((32, 32), MEAN, STD, torch.Generator())
    views(batch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        views(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
