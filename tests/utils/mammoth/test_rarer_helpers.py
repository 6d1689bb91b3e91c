"""Helpers that rare methods and datasets of Mammoth import: pairs of image and maps, policies, downloads, rotations."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T

from datasets.transforms.denormalization import DeNormalize
from datasets.transforms.rotation import FixedRotation, IncrementalRotation, Rotation
from datasets.utils import hf_download
from utils.augmentations import (
    CustomRandomCrop,
    CustomRandomHorizontalFlip,
    DoubleCompose,
    DoubleTransform,
    RepeatedTransform,
)
from utils.autoaugment import CIFAR10Policy, Cutout, SubPolicy
from utils.kornia_utils import CustomKorniaRandAugment, KorniaMultiAug, to_kornia_transform

pytestmark = pytest.mark.numeric

# An image whose values say where they are, and a map of half its sides that says the same in bytes.
IMAGE = torch.arange(64.0).view(1, 8, 8)
MAP = torch.arange(16, dtype=torch.uint8).view(1, 4, 4)


def test_only_the_image_or_both() -> None:
    image, maps = DoubleTransform(lambda x: x + 1)(IMAGE, [MAP])
    assert torch.equal(image, IMAGE + 1) and maps[0] is MAP
    flip = CustomRandomHorizontalFlip(p=0.5)
    np.random.seed(0)
    seen = set()
    for _ in range(20):
        image, maps = flip((IMAGE, [MAP]))  # as a pair
        mirrored = torch.equal(image, IMAGE.flip(-1))
        assert mirrored == torch.equal(maps[0], MAP.flip(-1)) and (mirrored or torch.equal(image, IMAGE))
        seen.add(mirrored)
    assert seen == {True, False}


@pytest.mark.parametrize("resize", [False, True])
def test_a_map_is_cut_where_its_image_is(resize: bool) -> None:
    np.random.seed(1)
    crop, places = CustomRandomCrop(8, padding=2, resize=resize), set()
    for _ in range(40):
        image, (cut, whole) = crop(IMAGE + 1, [MAP + 1, IMAGE + 1])
        assert torch.equal(whole, image)  # a map of the image's own size
        assert image.shape == (1, 8, 8) and cut.shape == (1, 4, 4) and cut.dtype == torch.uint8
        rows, columns = (image[0].sum(1) > 0).nonzero().flatten(), (image[0].sum(0) > 0).nonzero().flatten()
        corner = int(image[0, rows[0], columns[0]]) - 1
        top, left = corner // 8 - int(rows[0]), corner % 8 - int(columns[0])  # of the window, in the image
        places.add((top, left))
        if top % 2 == left % 2 == 0:  # where no rounding is needed
            expected = torch.nn.functional.pad(MAP + 1, (1, 1, 1, 1))[:, 1 + top // 2 :, 1 + left // 2 :][:, :4, :4]
            assert torch.equal(cut, expected)
    assert len(places) > 15 and {-2, 2} <= {top for top, _ in places}


def test_pairs_are_composed_on_copies() -> None:
    def blank(image: torch.Tensor, maps: list[torch.Tensor]) -> Any:
        return image.zero_(), [m.zero_() for m in maps]

    both = DoubleCompose([blank, DoubleTransform(lambda x: x + 3)])
    image, maps = both(IMAGE, [MAP])
    assert image.unique().tolist() == [3] and maps[0].max() == 0 and IMAGE.max() == 63 and MAP.max() == 15
    assert both[0] is blank and len(list(both)) == len(both) == 2


def test_the_same_images_transformed_in_several_ways() -> None:
    repeated = RepeatedTransform([T.Normalize((0.0,), (1.0,)), T.Normalize((0.0,), (0.5,))], autosqueeze=True)
    images = torch.rand(3, 1, 4, 4, requires_grad=True)
    out = repeated(images)
    assert out.shape == (2, 3, 1, 4, 4) and not out.requires_grad
    torch.testing.assert_close(out[1], 2 * images.detach())
    assert repeated(images[0].detach()).shape == (2, 1, 4, 4)  # one image, as a dataset transforms it
    with pytest.raises(AssertionError, match="at least one transform"):
        RepeatedTransform([])


def picture(side: int = 16) -> Image.Image:
    return Image.fromarray(np.random.RandomState(0).randint(256, size=(side, side, 3), dtype=np.uint8))


def test_a_policy_of_ones_own() -> None:
    image = picture()
    never, twice = SubPolicy(0, "rotate", 9, 0, "solarize", 9), SubPolicy(1, "invert", 0, 1, "invert", 0)
    for policy in (never, twice):
        assert np.array_equal(policy(image), image)
    assert np.array_equal(SubPolicy(1, "invert", 3, 0, "color", 1)(image), 255 - np.asarray(image))
    filled = np.asarray(SubPolicy(1, "translateX", 9, 0, "color", 1, fillcolor=(1, 2, 3))(image))
    assert [1, 2, 3] in (filled[0, 0].tolist(), filled[0, -1].tolist())
    with pytest.raises(ValueError, match="operation 'twist' unknown; valid are shearx"):
        SubPolicy(1, "twist", 0, 0, "color", 1)(image)


def test_holes() -> None:
    torch.manual_seed(0)
    whole = torch.ones(3, 16, 16)
    sizes = {int((Cutout(1, 4)(whole) == 0).sum()) for _ in range(60)}
    assert max(sizes) == 3 * 16 and min(sizes) < 3 * 16 and whole.min() == 1


def test_policies_of_whole_batches() -> None:
    torch.manual_seed(0)
    images = torch.rand(4, 3, 16, 16, requires_grad=True)
    policy = to_kornia_transform(T.Compose([T.ToPILImage(), CIFAR10Policy(), T.ToTensor()]))
    outs = [policy(images) for _ in range(8)]
    assert all(out.shape == images.shape and not out.requires_grad for out in outs)
    assert sum(not torch.allclose(out, images) for out in outs) > 3
    several = KorniaMultiAug(3, to_kornia_transform(T.RandomHorizontalFlip(1.0), apply=False))(images)
    assert several.shape == (3, 4, 3, 16, 16) and torch.equal(several[2], images.detach().flip(-1))
    drawn = CustomKorniaRandAugment(2, 20)(images)
    assert drawn.shape == images.shape and not drawn.requires_grad
    assert to_kornia_transform(T.RandAugment())(images).shape == images.shape


def test_rotations() -> None:
    np.random.seed(2)
    rotation = Rotation(10, 20)
    np.random.seed(2)
    assert rotation.degrees == np.random.uniform(10, 20) and (rotation.deg_min, rotation.deg_max) == (10, 20)
    state = np.random.get_state()[1].tolist()
    assert FixedRotation(3, 0, 90).degrees == FixedRotation(3, 0, 90).degrees != FixedRotation(4, 0, 90).degrees
    assert np.random.get_state()[1].tolist() == state


def test_a_rotation_that_grows() -> None:
    image = torch.arange(9.0).view(1, 3, 3)
    growing = IncrementalRotation(init_deg=270, increase_per_iteration=90)
    turned = [growing(image) for _ in range(3)]
    quarter = torch.rot90(image, 1, (1, 2))
    for found, expected in zip(turned, (torch.rot90(image, 3, (1, 2)), image, quarter), strict=True):
        torch.testing.assert_close(found, expected)
    assert growing.iteration == 3 and growing.degrees == 270 and growing.increase_per_iteration == 90
    growing.set_iteration(2)
    torch.testing.assert_close(growing(image), quarter)


def test_images_without_normalisation() -> None:
    image, back = torch.rand(3, 2, 2), DeNormalize([0.1, 0.2, 0.3], np.array([0.5, 0.5, 0.5]))
    normalised = T.Normalize((0.1, 0.2, 0.3), (0.5, 0.5, 0.5))(image)
    torch.testing.assert_close(back(normalised).float(), image[None])
    assert torch.is_tensor(back.mean) and torch.is_tensor(back.std)


# -- downloads ---------------------------------------------------------------------------------------------------------


def hub(calls: list[dict[str, Any]], *files: str) -> SimpleNamespace:
    """A library that fetches some empty files."""

    def fetch(**options: Any) -> str:
        calls.append(options)
        for name in [options["filename"]] if "filename" in options else files:
            Path(options["local_dir"], name).touch()
        return str(Path(options["local_dir"], options.get("filename", "")))

    return SimpleNamespace(snapshot_download=fetch, hf_hub_download=fetch)


def test_what_is_missing_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub(calls, "a.npy", "b.npy"))
    folder = str(tmp_path / "new" / "images")
    for _ in range(2):
        hf_download.ensure_required_files_from_hf(folder, ["a.npy", "b.npy"], "someone/images")
    assert [(c["repo_id"], c["repo_type"], c["revision"]) for c in calls] == [("someone/images", "dataset", "main")]
    with pytest.raises(FileNotFoundError, match=r"someone/images \(v2\) was fetched to .*, but has no c\.npy"):
        hf_download.ensure_required_files_from_hf(folder, ["a.npy", "c.npy"], "someone/images", "v2")
    hf_download.download_dataset_snapshot_with_patterns("x/y", folder, allow_patterns=["*.png"])
    assert calls[-1]["allow_patterns"] == ["*.png"] and calls[-1]["ignore_patterns"] is None
    assert hf_download.download_dataset_file("x/y", folder, "c.npy") == f"{folder}/c.npy"


def test_without_the_library_there_is_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="`pip install huggingface_hub` adds it"):
        hf_download.download_dataset_snapshot("x/y", str(tmp_path))
    (tmp_path / "a").touch()
    hf_download.ensure_required_files_from_hf(str(tmp_path), ["a"], "x/y")  # nothing is missing
