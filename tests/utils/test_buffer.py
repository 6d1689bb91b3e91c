"""The replay buffer: reservoir against a literal one, uniformity, storage formats, reading, saving."""

from __future__ import annotations

import io
from argparse import Namespace

import numpy as np
import pytest
import torch

from utils.augmentations import BatchTransform, to_unit_float
from utils.buffer import Buffer


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def stream(start: int, stop: int, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    """Samples that carry their position in the stream, as an 'image' and as a label."""
    position = torch.arange(start, stop, device=device)
    return {"examples": position[:, None].float(), "labels": position}


def filled(size: int, seen: int, **options) -> Buffer:
    buffer = Buffer(size, generator=seeded(), **options)
    buffer.add_data(**stream(0, seen, buffer.device))
    return buffer


def images(n: int, seed: int = 0, shape: tuple[int, ...] = (3, 8, 8)) -> torch.Tensor:
    return torch.randint(256, (n, *shape), dtype=torch.uint8, generator=seeded(seed))


def literal_reservoir(capacity: int, length: int, generator: torch.Generator) -> list[int]:
    """Algorithm R, one sample after the other."""
    slots: list[int] = []
    for n in range(length):
        if n < capacity:
            slots.append(n)
            continue
        j = int(torch.empty((), dtype=torch.int64).random_(generator=generator)) % (n + 1)
        if j < capacity:
            slots[j] = n
    return slots


# --- the reservoir ---


@pytest.mark.parametrize("cuts", [[1] * 60, [7] * 9, [60], [3, 0, 40, 17], [10, 50]])
@pytest.mark.parametrize("capacity", [1, 10, 59, 60, 100])
def test_equals_the_literal_reservoir_however_the_stream_is_cut(cuts, capacity, device):
    buffer = Buffer(capacity, device, generator=seeded(3))
    start = 0
    for cut in cuts:
        buffer.add_data(**stream(start, start + cut, device))
        start += cut
    expected = literal_reservoir(capacity, start, seeded(3))
    examples, labels = buffer.get_all_data(device="cpu")
    assert labels.tolist() == expected
    assert examples.flatten().tolist() == expected
    assert buffer.num_seen_examples == start
    assert len(buffer) == min(start, capacity)


def test_of_two_samples_for_one_slot_the_later_wins():
    """Capacity 1: the content is the last sample whose draw was 0, also within one batch."""
    accepted = 0
    draws = torch.empty(199, dtype=torch.int64).random_(generator=seeded())
    for n, draw in enumerate(draws.tolist(), start=1):
        if draw % (n + 1) == 0:
            accepted += 1
            last = n
    assert accepted > 1
    assert filled(1, 200).labels.tolist() == [last]


@pytest.mark.parametrize(("batch", "runs"), [(7, 400), (60, 1500)])
def test_every_position_of_the_stream_is_kept_equally_often(batch, runs):
    """χ² over the positions; each is kept in a run with probability 10/60, and the 60 counts sum to 10·runs."""
    length, capacity = 60, 10
    generator = seeded(11)
    counts = torch.zeros(length)
    for _ in range(runs):
        buffer = Buffer(capacity, generator=generator)
        for start in range(0, length, batch):
            buffer.add_data(**stream(start, min(start + batch, length)))
        assert len(buffer.labels.unique()) == capacity
        counts[buffer.labels] += 1
    p = capacity / length
    chi2 = ((counts - runs * p) ** 2).sum() / (runs * p * (1 - p)) * (length - 1) / length
    assert 30 < chi2 < 98, "59 degrees of freedom: outside with probability 0.002"


def test_without_a_generator_numpys_global_one_decides_draw_by_draw():
    """Mammoth's rule, for agreement with its runs: `randint(0, n + 1)` per sample, `choice` without replacement."""
    np.random.seed(5)
    buffer = Buffer(10)
    buffer.add_data(**stream(0, 60))
    buffer.add_data(**stream(60, 100))
    rows = buffer.get_data(4, return_index=True)[0]
    np.random.seed(5)
    slots = list(range(10))
    for n in range(10, 100):
        slot = np.random.randint(0, n + 1)
        if slot < 10:
            slots[slot] = n
    assert buffer.labels.tolist() == slots
    assert rows.tolist() == np.random.choice(10, size=4, replace=False).tolist()


def test_partial_fill_keeps_everything_in_order():
    buffer = Buffer(50, generator=seeded())
    assert buffer.is_empty()
    assert len(buffer) == 0
    buffer.add_data(**stream(0, 20))
    assert (len(buffer), buffer.is_empty(), buffer.is_full()) == (20, False, False)
    assert buffer.labels[:20].tolist() == list(range(20))
    assert (buffer.labels[20:] == 0).all()
    buffer.add_data(**stream(20, 50))
    assert buffer.is_full()
    assert buffer.get_all_data()[1].tolist() == list(range(50))


# --- fields and storage ---


def test_types_and_allocation():
    buffer = Buffer(10)
    assert buffer.used_attributes == []
    buffer.add_data(
        examples=torch.rand(4, 3, 8, 8, dtype=torch.float64),
        labels=torch.arange(4, dtype=torch.int32),
        logits=torch.rand(4, 5, dtype=torch.float64, requires_grad=True),
        task_labels=torch.tensor([0.0, 1.0, 2.0, 3.0]),
    )
    assert buffer.attributes == ["examples", "labels", "logits", "task_labels", "true_labels"]
    assert buffer.used_attributes == ["examples", "labels", "logits", "task_labels"]
    types = [getattr(buffer, name).dtype for name in buffer.used_attributes]
    assert types == [torch.float32, torch.int64, torch.float32, torch.int64]
    assert buffer.examples.shape == (10, 3, 8, 8)
    assert buffer.examples.is_contiguous()
    assert not buffer.logits.requires_grad
    assert buffer.task_labels[:4].tolist() == [0, 1, 2, 3]
    assert buffer.nbytes() == 10 * (4 * 192 + 8 + 4 * 5 + 8)


def test_fields_come_in_their_fixed_order():
    buffer = Buffer(10)
    n = torch.arange(4)
    buffer.add_data(
        true_labels=n + 40, task_labels=n + 30, logits=(n + 20.0)[:, None], labels=n + 10, examples=n[:, None]
    )
    index, raw, examples, labels, logits, task_labels, true_labels = buffer.get_data(
        4, transform=None, return_index=True, return_not_aug=True
    )
    assert index.dtype == torch.int64
    for shift, field in enumerate((raw, examples, labels, logits, task_labels, true_labels)):
        offset = max(shift - 1, 0) * 10
        assert field.flatten().tolist() == (index + offset).tolist()
    without_labels = Buffer(10)
    without_labels.add_data(examples=n[:, None], logits=n[:, None])
    assert len(without_labels.get_data(2)) == 2


def test_a_later_call_may_omit_a_field_but_not_add_one():
    buffer = filled(4, 2)
    buffer.add_data(examples=torch.full((2, 1), 9.0))
    assert buffer.labels.tolist() == [0, 1, 0, 0]
    with pytest.raises(AttributeError, match="logits"):
        buffer.add_data(**stream(0, 2), logits=torch.rand(2, 5))
    assert buffer.num_seen_examples == 4


def test_a_batch_of_wrong_shape_is_refused_whole():
    buffer = Buffer(4)
    with pytest.raises(ValueError, match=r"labels has shape \(1,\)"):
        buffer.add_data(examples=torch.rand(2, 1), labels=torch.arange(1))
    assert buffer.used_attributes == []
    buffer = filled(4, 2)
    with pytest.raises(ValueError, match=r"examples has shape \(2, 5\)"):
        buffer.add_data(examples=torch.rand(2, 5), labels=torch.arange(2))
    assert buffer.num_seen_examples == 2


def test_rows_that_have_no_image_are_left_out():
    """FDR makes task labels for a full batch, also for the last, short one."""
    buffer = Buffer(4)
    buffer.add_data(examples=torch.rand(2, 1), labels=torch.arange(2), task_labels=torch.full((32,), 7.0))
    assert buffer.task_labels.tolist() == [7, 7, 0, 0]


@pytest.mark.numeric
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 8, 8)])
def test_eight_bits_are_exact(memory_format, shape, device):
    """Bytes stored as bytes, or by way of floats in [0, 1], come back as the same floats."""
    x = images(20, shape=shape).to(device).contiguous(memory_format=memory_format)
    for given in (x, to_unit_float(x)):
        buffer = Buffer(30, device, image_dtype=torch.uint8)
        buffer.add_data(examples=given, labels=torch.arange(20, device=device))
        assert buffer.examples.dtype == torch.uint8
        assert buffer.examples.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(buffer.examples[:20], x, rtol=0, atol=0)
        out, labels = buffer.get_all_data()
        assert labels.tolist() == list(range(20))
        assert out.dtype == torch.float32
        torch.testing.assert_close(out, x.float() / 255, rtol=0, atol=0)


@pytest.mark.numeric
def test_eight_bits_round_and_clamp():
    buffer = Buffer(4, image_dtype=torch.uint8)
    buffer.add_data(torch.tensor([0.0, 0.4999 / 255, 0.5001 / 255, 1.1]).view(4, 1, 1, 1))
    assert buffer.examples.flatten().tolist() == [0, 0, 1, 255]


def test_a_float_buffer_takes_bytes_as_images_in_unit_range():
    buffer = Buffer(8)
    buffer.add_data(images(8))
    torch.testing.assert_close(buffer.examples, images(8).float() / 255, rtol=0, atol=0)


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_without_a_slot_are_refused(size):
    with pytest.raises(ValueError, match=f"buffer_size {size} "):
        Buffer(size)


def test_unknown_options_are_refused():
    with pytest.raises(ValueError, match="'larks'"):
        Buffer(5, "cpu", "larks")
    with pytest.raises(ValueError, match="float64"):
        Buffer(5, image_dtype=torch.float64)


def test_the_size_changes_only_while_nothing_is_stored():
    buffer = filled(5, 5)
    with pytest.raises(RuntimeError, match="empty"):
        buffer.buffer_size = 8
    buffer.buffer_size = 5
    buffer.empty()
    assert not hasattr(buffer, "examples")
    assert buffer.is_empty()
    buffer.buffer_size = 8
    buffer.add_data(**stream(0, 20))
    assert len(buffer) == len(buffer.examples) == 8


# --- reading ---


def test_draws_without_replacement_and_clips_the_size(device):
    buffer = filled(50, 20, device=device)
    for size, expected in ((8, 8), (20, 20), (100, 20), (0, 0)):
        index, examples, labels = buffer.get_data(size, return_index=True, device=device)
        assert len(index.unique()) == expected == len(examples)
        assert (index < 20).all()
        assert labels.tolist() == index.tolist()
    assert buffer.get_data(8)[0].device.type == device.type
    assert buffer.get_data(8, device="cpu")[0].device.type == "cpu"


def test_draws_are_uniform():
    buffer = filled(20, 20)
    counts = torch.zeros(20)
    for _ in range(1000):
        counts[buffer.get_data(5)[1]] += 1
    chi2 = ((counts - 250) ** 2).sum() / (250 * 0.75) * 19 / 20
    assert 5 < chi2 < 44, "19 degrees of freedom: outside with probability 0.002"


def test_reading_an_empty_buffer_says_so():
    buffer = Buffer(5)
    for read in (lambda: buffer.get_data(3), buffer.get_all_data, lambda: buffer.get_balanced_data(3)):
        with pytest.raises(RuntimeError, match="is_empty"):
            read()
    assert list(buffer) == []


def test_task_mask_excludes_a_task_and_never_gives_free_rows():
    buffer = Buffer(100, generator=seeded())
    labels = torch.arange(30) % 6
    buffer.add_data(examples=labels[:, None], labels=labels)
    index, _, drawn = buffer.get_data(100, mask_task_out=1, cpt=2, return_index=True)
    assert sorted(index.tolist()) == [i for i in range(30) if i % 6 not in (2, 3)]
    torch.testing.assert_close(buffer.labels[index], drawn, rtol=0, atol=0)
    assert len(buffer.get_data(7, mask_task_out=0, cpt=2)[0]) == 7
    with pytest.raises(ValueError, match="cpt"):
        buffer.get_data(5, mask_task_out=1)
    with pytest.raises(RuntimeError, match="task 0"):
        buffer.get_data(5, mask_task_out=0, cpt=6)


def test_task_mask_prefers_stored_task_labels():
    buffer = Buffer(10, generator=seeded())
    buffer.add_data(**stream(0, 6), task_labels=torch.tensor([0, 1, 0, 1, 2, 2]))
    assert sorted(buffer.get_data(10, mask_task_out=1, cpt=1)[1].tolist()) == [0, 2, 4, 5]


def test_rows_by_index_in_the_order_given(device):
    buffer = filled(10, 10, device=device)
    for index in ([3, 1, 3], torch.tensor([3, 1, 3]), torch.tensor([3, 1, 3], device=device)):
        assert buffer.get_data_by_index(index)[1].tolist() == [3, 1, 3]
        got, _, labels = buffer.get_data(1, return_index=True, force_indexes=index)
        assert got.tolist() == labels.tolist() == [3, 1, 3]


def test_forcing_the_rows_draws_nothing():
    buffer = filled(10, 10)
    before = buffer.generator.get_state()
    buffer.get_data(5, force_indexes=[1, 2])
    buffer.get_all_data()
    assert torch.equal(buffer.generator.get_state(), before)


def test_what_was_read_does_not_change_with_the_buffer():
    buffer = filled(10, 10)
    examples, labels = buffer.get_all_data()
    buffer.labels.zero_()
    buffer.examples.zero_()
    assert labels.tolist() == examples.flatten().tolist() == list(range(10))


class Probe:
    """A batched transform that notes what it was given."""

    batched = True

    def __init__(self, accepts_uint8: bool):
        self.accepts_uint8 = accepts_uint8

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        self.dtype = batch.dtype
        return batch.float() + 1000


@pytest.mark.numeric
@pytest.mark.parametrize("image_dtype", [torch.uint8, torch.float32])
def test_transforms_get_bytes_only_if_they_take_them(image_dtype):
    buffer = Buffer(8, image_dtype=image_dtype)
    buffer.add_data(images(8))
    for accepts in (True, False):
        probe = Probe(accepts)
        out = buffer.get_all_data(transform=probe)[0]
        assert probe.dtype == (image_dtype if accepts else torch.float32)
        assert out.min() >= 1000
    plain = Probe(False)
    raw, augmented = buffer.get_data(8, transform=Probe(False), return_not_aug=True, not_aug_transform=plain)
    torch.testing.assert_close(raw, augmented)
    index, raw, augmented = buffer.get_data(8, transform=Probe(False), return_index=True, return_not_aug=True)
    torch.testing.assert_close(raw, images(8)[index] / 255)
    torch.testing.assert_close(augmented, raw + 1000)


@pytest.mark.numeric
def test_batch_transform_normalises_what_is_stored(device):
    buffer = Buffer(8, device, image_dtype=torch.uint8)
    buffer.add_data(images(8).to(device))
    transform = BatchTransform((8, 8), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    out = buffer.get_all_data(transform=transform, device="cpu")[0]
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))
    torch.testing.assert_close(out, (images(8) / 255 - mean) / std, rtol=0, atol=2e-6)


def test_balanced_draw():
    buffer = Buffer(40, generator=seeded())
    labels = torch.tensor([0] * 20 + [1] * 10 + [2] * 4)
    buffer.add_data(examples=labels[:, None], labels=labels)
    for size, counts in ((12, [4, 4, 4]), (11, [3, 4, 4]), (2, [0, 1, 1])):
        drawn = buffer.get_balanced_data(size)[1]
        assert sorted(torch.bincount(drawn, minlength=3).tolist()) == counts
    two = buffer.get_balanced_data(6, n_classes=2)[1]
    assert sorted(torch.bincount(two, minlength=3).tolist()) == [0, 3, 3]
    assert len(buffer.get_balanced_data(30)[0]) == 30, "class 2 has too few rows: a plain draw"
    assert len(buffer.get_balanced_data(12, n_classes=5)[0]) == 12
    assert len(buffer.get_balanced_data(100)[0]) == 34


def test_rows_and_iteration_end_at_the_last_stored_row():
    buffer = filled(50, 3)
    rows = list(buffer)
    assert [int(label) for _, label in rows] == [0, 1, 2]
    example, label = buffer[-1]
    assert (example.shape, label.shape, int(label)) == ((1,), (), 2)
    with pytest.raises(IndexError):
        buffer[3]


def test_dataloader_over_the_rows():
    buffer = filled(50, 10)
    loader = buffer.get_dataloader(Namespace(), batch_size=4, transform=None)
    assert [labels.tolist() for _, labels in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    shuffled = buffer.get_dataloader(Namespace(), batch_size=4, shuffle=True, drop_last=True)
    seen = torch.cat([labels for _, labels in shuffled])
    assert len(seen) == len(seen.unique()) == 8
    reverse = buffer.get_dataloader(Namespace(), batch_size=5, sampler=range(9, -1, -1))
    assert next(iter(reverse))[1].tolist() == [9, 8, 7, 6, 5]


# --- saving, moving, guarding ---


def saved(buffer: Buffer) -> dict:
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("seen", [0, 4, 10, 100])
@pytest.mark.parametrize("image_dtype", [torch.uint8, torch.float32])
def test_a_restored_buffer_goes_on_exactly(seen, image_dtype, device):
    def batch(n: int, seed: int) -> dict[str, torch.Tensor]:
        return {"examples": images(n, seed).to(device), "labels": torch.arange(n, device=device)}

    original = Buffer(10, device, generator=seeded(), image_dtype=image_dtype)
    if seen:
        original.add_data(**batch(seen, 1))
    copy = Buffer(10, device, generator=seeded(99), image_dtype=image_dtype)
    copy.add_data(**batch(3, 2))
    copy.load_state_dict(saved(original))
    copy.generator.set_state(original.generator.get_state())
    assert copy.used_attributes == original.used_attributes
    assert copy.num_seen_examples == seen
    for buffer in (original, copy):
        buffer.add_data(**batch(30, 3))
    for expected, field in zip(original.get_data(7), copy.get_data(7), strict=True):
        assert torch.equal(expected, field)
    for name in original.used_attributes:
        ours, theirs = getattr(copy, name), getattr(original, name)
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()
        assert ours.data_ptr() != theirs.data_ptr()


def test_a_state_of_other_size_or_type_is_refused():
    with pytest.raises(ValueError, match="buffer_size 5 differs from 6"):
        Buffer(6).load_state_dict(filled(5, 5).state_dict())
    buffer = Buffer(5, image_dtype=torch.uint8)
    with pytest.raises(ValueError, match="float32"):
        buffer.load_state_dict(filled(5, 5).state_dict())
    assert buffer.is_empty()


def test_moving_and_serialising(device):
    buffer = filled(5, 5)
    assert buffer.to(device) is buffer
    assert buffer.device.type == buffer.labels.device.type == device.type
    out = buffer.serialize()
    assert list(out) == ["examples", "labels"]
    assert out["labels"].device.type == "cpu"
    assert out["labels"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("image_dtype", [torch.uint8, torch.float32])
def test_write_mask_protects_the_content(image_dtype, device):
    plain, masked = (Buffer(10, device, generator=seeded(), image_dtype=image_dtype) for _ in range(2))

    def offer(seed: int, mask: bool | None) -> None:
        batch = {"examples": images(8, seed).to(device), "labels": torch.arange(8, device=device) + seed}
        kept = {} if mask is not False else {name: value.clone() for name, value in plain.serialize(device).items()}
        plain.add_data(**batch)
        for name, value in kept.items():
            getattr(plain, name).copy_(value)
        masked.write_mask = None if mask is None else torch.tensor(mask, device=device)
        masked.add_data(**batch)

    for seed, mask in enumerate((None, True, True, False, False, True, None, False)):
        offer(seed, mask)
        assert torch.equal(masked.examples, plain.examples)
        assert torch.equal(masked.labels, plain.labels)
        assert masked.num_seen_examples == plain.num_seen_examples
    assert torch.equal(masked.generator.get_state(), plain.generator.get_state())


def test_no_step_waits_for_the_gpu(device):
    if device.type != "cuda":
        pytest.skip("a CPU has nothing to wait for")
    buffer = Buffer(50, device, generator=seeded(), image_dtype=torch.uint8)
    batch = {"examples": images(32).to(device), "labels": torch.arange(32, device=device)}
    buffer.add_data(**batch)
    transform = BatchTransform((8, 8), (0.5,) * 3, (0.2,) * 3, padding=1, flip=True, generator=seeded())
    buffer.get_data(16, transform=transform, device=device)
    buffer.write_mask = torch.tensor(True, device=device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            buffer.add_data(**batch)
            buffer.get_data(16, transform=transform, return_index=True, device=device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
