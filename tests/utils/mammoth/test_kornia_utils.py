"""Torchvision's transforms as Kornia's."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import pad
from torchvision import transforms as T

from utils.augmentations import apply_transform
from utils.kornia_utils import KorniaAugNoGrad, to_kornia_transform

pytestmark = pytest.mark.numeric

IMAGES = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "transform",
    [
        T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
        T.Resize((8, 20)),
        T.CenterCrop(10),
        T.RandomHorizontalFlip(1.0),
        T.RandomVerticalFlip(1.0),
        T.RandomGrayscale(1.0),
        T.ColorJitter((1.3, 1.3)),
        T.ColorJitter(contrast=(0.6, 0.6)),
        T.ColorJitter(saturation=(1.5, 1.5)),
    ],
    ids=repr,
)
def test_without_chance_both_do_the_same(transform: torch.nn.Module) -> None:
    torch.testing.assert_close(to_kornia_transform(transform)(IMAGES), transform(IMAGES), atol=2e-4, rtol=0)


def test_every_crop_and_flip_comes_and_no_other_image() -> None:
    image = torch.arange(1.0, 17.0).view(1, 1, 4, 4)
    padded = pad(image, (1, 1, 1, 1))
    windows = [padded[0, 0, top : top + 4, left : left + 4] for top in range(3) for left in range(3)]
    allowed = {w.contiguous().numpy().tobytes() for window in windows for w in (window, window.flip(-1))}
    torch.manual_seed(0)
    crop = to_kornia_transform(T.Compose([T.ToPILImage(), T.RandomCrop(4, padding=1), T.RandomHorizontalFlip()]))
    seen = {view[0].contiguous().numpy().tobytes() for view in crop(image.expand(500, 1, 4, 4))}
    assert seen == allowed


@pytest.mark.parametrize(
    "transform",
    [
        T.RandomResizedCrop(16),
        T.RandomRotation(20),
        T.RandomAffine(10, (0.1, 0.1), (0.8, 1.2), 5),
        T.RandomPerspective(p=1.0),
        T.RandomErasing(p=1.0),
        T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_images_of_a_batch_are_changed_each_in_its_own_way(transform: torch.nn.Module) -> None:
    torch.manual_seed(0)
    out = to_kornia_transform(transform)(IMAGES[:1].expand(4, -1, -1, -1).requires_grad_())
    assert out.shape == (4, 3, 16, 16) and not out.requires_grad
    assert len({view.numpy().tobytes() for view in out}) == 4
    same = KorniaAugNoGrad(*to_kornia_transform(transform, apply=False), same_on_batch=True)
    out = same(IMAGES[:1].expand(4, -1, -1, -1))
    assert all(torch.equal(view, out[0]) for view in out)


def test_random_apply_does_all_or_nothing_to_an_image() -> None:
    torch.manual_seed(0)
    both = T.RandomApply([T.RandomHorizontalFlip(1.0), T.RandomVerticalFlip(1.0)], p=0.25)
    batch = IMAGES[:1].expand(400, -1, -1, -1)
    out = to_kornia_transform(both)(batch)
    turned, same = ((out == image).flatten(1).all(1) for image in (IMAGES[0].flip(-1, -2), IMAGES[0]))
    assert torch.equal(turned, ~same)
    assert 0.18 < turned.float().mean() < 0.32  # 0.25 ± 3 standard deviations


def test_probabilities_can_be_replaced_and_strangers_are_refused() -> None:
    never = to_kornia_transform(T.Compose([T.RandomHorizontalFlip(1.0), T.ToTensor()]), override_p=0.0)
    assert torch.equal(never(IMAGES), IMAGES)
    with pytest.raises(NotImplementedError, match="Lambda"):
        to_kornia_transform(T.Compose([T.Lambda(lambda image: image)]))


def test_apply_transform_hands_over_the_whole_batch() -> None:
    calls = []
    transform = KorniaAugNoGrad()
    transform.register_forward_pre_hook(lambda _, batch: calls.append(len(batch[0])))
    apply_transform(IMAGES, transform)
    assert calls == [6]
