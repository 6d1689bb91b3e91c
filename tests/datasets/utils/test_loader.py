"""Batches: complete, in the promised form, and the same after a resume in the middle of an epoch."""

from __future__ import annotations

import io
import itertools

import pytest
import torch

from datasets.utils.image_set import ImageSet
from datasets.utils.loader import TaskLoader
from utils.augmentations import BatchTransform, to_unit_float
from utils.random_streams import RandomStreams

N, SIZE = 23, (6, 5)


def image_set(device: torch.device | str = "cpu") -> ImageSet:
    """Image i is told by its first byte, its label by i mod 4."""
    data = torch.randint(256, (N, *SIZE, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    data[:, 0, 0, 0] = torch.arange(N)
    return ImageSet(data.to(device), (torch.arange(N) % 4).to(device))


def train_loader(streams: RandomStreams, device="cpu", batch_size=4, drop_last=False) -> TaskLoader:
    transform = BatchTransform(SIZE, (0.5,) * 3, (0.25,) * 3, padding=2, flip=True, generator=streams["augment"])
    return TaskLoader(image_set(device), batch_size, transform, True, drop_last, streams["shuffle"], triples=True)


def order(batches) -> list[int]:
    return [round(float(value) * 255) for _, _, plain in batches for value in plain[:, 0, 0, 0].cpu()]


def test_an_epoch_holds_every_image_once_and_the_last_batch_is_short(device):
    loader = train_loader(RandomStreams(0), device)
    batches = list(loader)
    assert len(loader) == len(batches) == 6
    assert [len(labels) for _, labels, _ in batches] == [4, 4, 4, 4, 4, 3]
    assert sorted(order(batches)) == list(range(N)) and order(batches) != list(range(N))


def test_drop_last():
    loader = train_loader(RandomStreams(0), drop_last=True)
    assert len(loader) == len(list(loader)) == 5
    assert len(train_loader(RandomStreams(0), batch_size=23, drop_last=True)) == 1
    assert len(train_loader(RandomStreams(0), batch_size=24, drop_last=True)) == 0


def test_triples(device):
    loader = train_loader(RandomStreams(0), device)
    for augmented, labels, plain in loader:
        rows = torch.tensor(order([(augmented, labels, plain)]), device=device)
        assert labels.dtype == torch.int64 and torch.equal(labels, rows % 4)
        assert torch.equal(plain, to_unit_float(loader.dataset.data[rows].permute(0, 3, 1, 2)))
        assert plain.min() >= 0 and plain.max() <= 1
        assert augmented.shape == plain.shape and augmented.abs().max() < 2 + 1e-6
        assert augmented.is_contiguous() and plain.is_contiguous()
        assert augmented.device == labels.device == plain.device == loader.dataset.data.device


def test_channels_last_batches():
    transform = BatchTransform(SIZE, padding=1, memory_format=torch.channels_last)
    augmented, _, plain = next(iter(TaskLoader(image_set(), 4, transform, True, False, None, triples=True)))
    assert augmented.is_contiguous(memory_format=torch.channels_last)
    assert plain.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.numeric
def test_pairs_come_in_order():
    transform = BatchTransform(SIZE, (0.5,) * 3, (0.25,) * 3)
    images = image_set()
    batches = list(TaskLoader(images, 10, transform, False, False, None, triples=False))
    assert [len(batch) for batch in batches] == [2, 2, 2]
    assert torch.equal(torch.cat([labels for _, labels in batches]), images.targets)
    expected = (to_unit_float(images.data.permute(0, 3, 1, 2)) - 0.5) / 0.25
    torch.testing.assert_close(torch.cat([pixels for pixels, _ in batches]), expected, rtol=0, atol=1e-6)


def test_each_epoch_has_its_own_permutation_and_a_broken_off_one_is_not_continued():
    loader = train_loader(RandomStreams(0))
    first, second = order(loader), order(loader)
    assert first != second and sorted(second) == list(range(N))
    list(itertools.islice(loader, 2))
    assert sorted(order(loader)) == list(range(N))


def equal(left, right) -> bool:
    pairs = zip(left, right, strict=True)
    return all(torch.equal(x, y) for a, b in pairs for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("done", range(13))
def test_resume_is_exact_at_every_batch_of_two_epochs(done, device):
    """Epochs of 6 batches: positions 0, 6 and 12 are boundaries between epochs."""
    streams = RandomStreams(7)
    loader = train_loader(streams, device)
    stream = itertools.chain.from_iterable(iter(loader) for _ in range(3))
    list(itertools.islice(stream, done))
    saved = {"loader": loader.state_dict(), "streams": streams.state_dict()}
    file = io.BytesIO()
    torch.save(saved, file)
    expected = list(stream)

    streams = RandomStreams(99)
    resumed = train_loader(streams, device)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    resumed.load_state_dict(saved["loader"])
    streams.load_state_dict(saved["streams"])
    assert resumed.position == (done if done <= 6 else done - 6)
    # An epoch whose last batch is out is over: the next iter() starts a new one.
    epochs = 3 - done // 6
    actual = list(itertools.chain.from_iterable(iter(resumed) for _ in range(epochs)))
    assert len(actual) == 18 - done and equal(actual, expected)


def test_position_counts_batches_handed_out():
    loader = train_loader(RandomStreams(0))
    assert loader.state_dict() == {"permutation": None, "position": 0}
    for count, _ in enumerate(loader, 1):
        assert loader.position == loader.state_dict()["position"] == count


def test_a_second_iterator_does_not_disturb_the_first():
    loader = train_loader(RandomStreams(0))
    outer = iter(loader)
    seen = [next(outer)]
    list(loader)  # a model that runs over its task in the middle of an epoch
    seen.append(next(outer))
    assert loader.position == 2
    assert sorted(order([*seen, *outer])) == list(range(N))


def test_state_of_another_task_is_refused():
    with pytest.raises(ValueError, match="5 images, this task 23"):
        train_loader(RandomStreams(0)).load_state_dict({"permutation": torch.randperm(5), "position": 1})


def test_extra_fields_of_a_model_follow_the_images():
    loader = train_loader(RandomStreams(0))
    loader.dataset.logits = torch.arange(N)[:, None] * torch.ones(1, 3)
    loader.dataset.extra_return_fields += ("logits",)
    for _, _, plain, logits in loader:
        assert logits[:, 2].tolist() == order([(None, None, plain)])


@pytest.mark.numeric
def test_image_set():
    images = image_set()
    by_mask, by_index = images.subset(images.targets == 1), images.subset(torch.arange(1, N, 4))
    assert len(by_mask) == len(by_index) == 6 and torch.equal(by_mask.data, by_index.data)
    transformed, label, plain = images[3]
    assert label == 3 and torch.equal(transformed, plain)
    assert torch.equal(plain, to_unit_float(images.data[3]).permute(2, 0, 1))
    images.transform = BatchTransform(SIZE, (0.5,) * 3, (0.5,) * 3)
    torch.testing.assert_close(images[3][0], (plain - 0.5) / 0.5)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_appended_images_come_in_the_layout_of_the_set_and_can_be_dropped(memory_format):
    own = ImageSet(torch.randint(0, 256, (5, 4, 6, 3), dtype=torch.uint8), torch.arange(5)).to("cpu", memory_format)
    extra = torch.randint(0, 256, (2, 3, 4, 6), dtype=torch.uint8)
    before, strides = own.data.clone(), own.data.stride()
    own.append(extra, torch.tensor([7, 8]))
    assert own.data.stride() == strides and own.targets.tolist() == [0, 1, 2, 3, 4, 7, 8] and len(own) == 7
    assert torch.equal(own.batch(torch.tensor([0, 6])), torch.stack((before[0].permute(2, 0, 1), extra[1])))
    images, labels = own.appended()
    assert torch.equal(images, extra) and labels.tolist() == [7, 8]
    own.drop_appended()
    assert torch.equal(own.data, before) and len(own) == 5 and len(own.appended()[1]) == 0
