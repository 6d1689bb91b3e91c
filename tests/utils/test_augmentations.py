"""The batched transform is torchvision's per-image pipeline, and its random draws have the right distribution."""

from __future__ import annotations

import copy
import itertools

import kornia.augmentation as K
import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import functional as TF

import utils.augmentations as augmentations
from utils.augmentations import BatchTransform, apply_transform, to_uint8, to_unit_float

pytestmark = pytest.mark.numeric

MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
FORMATS = [torch.contiguous_format, torch.channels_last]


def random_batch(n: int, channels: int, size: tuple[int, int]) -> torch.Tensor:
    """Bytes in NHWC memory, seen as NCHW: what the loader and the buffer hand over."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (n, *size, channels), generator=generator, dtype=torch.uint8).permute(0, 3, 1, 2)


def torchvision_result(batch, top, left, flip, size, padding, channels, monkeypatch) -> torch.Tensor:
    """PIL image by PIL image through torchvision's own classes, with their random choices forced to the given ones."""
    out = []
    for image, row, column, mirror in zip(batch, top.tolist(), left.tolist(), flip.tolist(), strict=True):
        box = (row, column, *size)
        monkeypatch.setattr(transforms.RandomCrop, "get_params", staticmethod(lambda *_, box=box: box))
        pipeline = [
            transforms.RandomCrop(size, padding=padding),
            transforms.RandomHorizontalFlip(p=float(mirror)),
            transforms.ToTensor(),
            transforms.Normalize(MEAN[:channels], STD[:channels]),
        ]
        pixels = image.permute(1, 2, 0).numpy()
        out.append(transforms.Compose(pipeline)(Image.fromarray(pixels if channels == 3 else pixels[..., 0])))
    return torch.stack(out)


@pytest.mark.parametrize("channels, size", [(3, (32, 32)), (1, (28, 28)), (3, (10, 14)), (1, (8, 8))])
def test_equals_torchvision_for_every_crop_and_flip(channels, size, device, monkeypatch):
    padding = 4
    places = range(2 * padding + 1)
    top, left, flip = torch.tensor(list(itertools.product(places, places, [0, 1]))).T  # all 162 combinations
    batch = random_batch(len(top), channels, size)
    expected = torchvision_result(batch, top, left, flip, size, padding, channels, monkeypatch)
    for memory_format in FORMATS:
        transform = BatchTransform(size, MEAN[:channels], STD[:channels], padding, True, memory_format=memory_format)
        for images in (batch, to_unit_float(batch), to_unit_float(batch).contiguous()):
            out = transform.apply(images.to(device), top, left, flip.bool())
            assert out.dtype == torch.float32
            assert out.is_contiguous(memory_format=memory_format)
            torch.testing.assert_close(out.cpu(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("memory_format", FORMATS)
def test_without_augmentation_it_is_to_tensor_and_normalize(memory_format, device):
    batch = random_batch(7, 3, (12, 10))
    plain = torch.stack([TF.to_tensor(image.permute(1, 2, 0).numpy()) for image in batch])
    out = BatchTransform((12, 10), MEAN, STD, memory_format=memory_format)(batch.to(device))
    torch.testing.assert_close(out.cpu(), TF.normalize(plain, MEAN, STD), rtol=0, atol=1e-6)
    unnormalised = BatchTransform((12, 10), memory_format=memory_format)(batch.to(device))
    assert torch.equal(unnormalised.cpu(), plain)
    assert unnormalised.is_contiguous(memory_format=memory_format)


def test_crop_without_normalisation_moves_bytes_exactly():
    batch = random_batch(5, 3, (9, 9))
    transform = BatchTransform((9, 9), padding=2, flip=True)
    zero, yes = torch.zeros(5, dtype=torch.int64), torch.ones(5, dtype=torch.bool)
    centre = transform.apply(batch, zero + 2, zero + 2, yes)
    assert torch.equal(centre, to_unit_float(batch.flip(-1)))
    corner = transform.apply(batch, zero, zero, ~yes)
    assert torch.equal(corner[:, :, 2:, 2:], to_unit_float(batch[:, :, :-2, :-2]))
    assert corner[:, :, :2].abs().max() == 0 and corner[:, :, :, :2].abs().max() == 0


@pytest.mark.parametrize("memory_format", FORMATS)
def test_batches_of_many_sizes_share_one_transform(memory_format, device):
    """Memory is kept between batches: it must carry nothing over, nor grow without bound."""
    transform = BatchTransform((6, 5), padding=2, flip=True, generator=torch.Generator().manual_seed(0))
    for n in (1, 5, 3, 5, 2, 7, 1, 2500):
        batch = random_batch(n, 2, (6, 5)).contiguous(memory_format=memory_format).to(device)
        top, left, flip = transform.draw(n)
        out = transform.apply(batch, top, left, flip)
        fresh = BatchTransform((6, 5), padding=2, flip=True)
        for i in {0, n // 2, n - 1}:
            assert torch.equal(
                out[i], fresh.apply(batch[i : i + 1], top[i : i + 1], left[i : i + 1], flip[i : i + 1])[0]
            )
    # Private, because what is kept between batches shows nowhere else.
    assert len(transform._canvases) <= augmentations.KEPT_CANVASES
    # Memory that is kept between batches.
    assert all(len(canvas.images) <= augmentations.MAX_CANVAS for canvas in transform._canvases.values())


def test_draws_are_uniform_over_offsets_and_flips():
    transform = BatchTransform((32, 32), padding=4, flip=True, generator=torch.Generator().manual_seed(1))
    per_cell, cells = 200, 9 * 9 * 2
    top, left, flip = transform.draw(per_cell * cells)
    assert (top.min(), top.max(), left.min(), left.max()) == (0, 8, 0, 8)
    counts = torch.bincount((top * 9 + left) * 2 + flip.long(), minlength=cells).double()
    chi_square = ((counts - per_cell) ** 2 / per_cell).sum().item()
    degrees = cells - 1
    assert abs(chi_square - degrees) < 4 * (2 * degrees) ** 0.5


def test_draws_come_from_the_given_generator_only():
    state = torch.get_rng_state()
    seeded = [BatchTransform((8, 8), padding=2, flip=True, generator=torch.Generator().manual_seed(3)) for _ in "ab"]
    assert all(torch.equal(a, b) for a, b in zip(seeded[0].draw(50), seeded[1].draw(50), strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    BatchTransform((8, 8), padding=2, flip=True).draw(50)
    assert not torch.equal(torch.get_rng_state(), state)  # without a generator: the global one


def test_transform_without_randomness_draws_nothing():
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    BatchTransform((8, 8), (0.5,), (0.5,), generator=generator)(random_batch(4, 1, (8, 8)))
    assert torch.equal(generator.get_state(), state)


def test_call_is_draw_and_apply_and_leaves_its_input_alone(device):
    batch = random_batch(16, 3, (8, 8)).to(device)
    original = batch.clone()
    transform = BatchTransform((8, 8), MEAN, STD, padding=2, flip=True, generator=torch.Generator().manual_seed(5))
    transform(batch)
    twin = copy.deepcopy(transform)
    assert torch.equal(transform(batch), twin.apply(batch, *twin.draw(16)))
    assert torch.equal(batch, original)
    floats = torch.rand(2, 1, 8, 8, requires_grad=True)
    out = BatchTransform((8, 8))(floats)
    assert out.data_ptr() != floats.data_ptr() and not out.requires_grad


def test_crop_alone_flip_alone_and_the_empty_batch():
    batch = random_batch(40, 3, (6, 5))
    plain = to_unit_float(batch)
    crop = BatchTransform((6, 5), padding=1, generator=torch.Generator().manual_seed(0))
    top, left, flip = crop.draw(40)
    assert not flip.any() and set(top.tolist()) == set(left.tolist()) == {0, 1, 2}
    padded = torch.nn.functional.pad(plain, (1, 1, 1, 1))
    for image, source, y, x in zip(crop.apply(batch, top, left, flip), padded, top, left, strict=True):
        assert torch.equal(image, source[:, y : y + 6, x : x + 5])
    mirror = BatchTransform((6, 5), flip=True, generator=torch.Generator().manual_seed(0))
    top, left, flip = mirror.draw(40)
    assert not top.any() and not left.any() and 0 < flip.sum() < 40
    assert torch.equal(
        mirror.apply(batch, top, left, flip), torch.where(flip[:, None, None, None], plain.flip(-1), plain)
    )
    assert mirror(batch[:0]).shape == crop(batch[:0]).shape == (0, 3, 6, 5)


def test_wrong_image_size_is_refused():
    with pytest.raises(ValueError, match=r"\(8, 8\).*\(2, 3, 9, 8\)"):
        BatchTransform((8, 8))(random_batch(2, 3, (9, 8)))


def test_bytes_and_floats_convert_back_and_forth():
    every_byte = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    floats = to_unit_float(every_byte)
    assert torch.equal(floats[0], TF.to_tensor(every_byte[0, 0].numpy()))  # bit for bit
    assert torch.equal(to_uint8(floats), every_byte)
    assert to_uint8(torch.tensor([-0.1, 0.4 / 255, 0.6 / 255, 1.1])).tolist() == [0, 0, 1, 255]


# -- apply_transform ---------------------------------------------------------------------------------------------


def test_apply_transform_hands_the_whole_batch_to_batched_transforms():
    batch = random_batch(4, 3, (8, 8))
    assert apply_transform(batch, None) is batch
    out = apply_transform(batch, BatchTransform((8, 8), MEAN, STD))
    assert torch.equal(out, BatchTransform((8, 8), MEAN, STD)(batch))
    flipped = apply_transform(batch, K.RandomHorizontalFlip(p=1.0))  # kornia wants floats
    torch.testing.assert_close(flipped, to_unit_float(batch).flip(-1))


def test_apply_transform_goes_image_by_image_otherwise():
    batch = to_unit_float(random_batch(64, 3, (8, 8)))
    compose = transforms.Compose([transforms.ToPILImage(), transforms.RandomHorizontalFlip(), transforms.ToTensor()])
    torch.manual_seed(0)
    out = apply_transform(batch, compose)
    flipped = [bool(torch.equal(image, original.flip(-1))) for image, original in zip(out, batch, strict=True)]
    kept = [bool(torch.equal(image, original)) for image, original in zip(out, batch, strict=True)]
    assert np.logical_xor(flipped, kept).all() and 0 < sum(flipped) < 64


def test_apply_transform_to_one_image():
    image = random_batch(1, 3, (8, 8))[0]
    transform = BatchTransform((8, 8), MEAN, STD)
    assert apply_transform(image, transform).shape == (1, 3, 8, 8)
    assert apply_transform(image, transform, autosqueeze=True).shape == (3, 8, 8)
    pil = TF.to_pil_image(image)
    torch.testing.assert_close(apply_transform(pil, transform, True), apply_transform(image, transform, True))
