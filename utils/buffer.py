"""The replay buffer: preallocated tensors, filled by a vectorised reservoir.

What is stored: un-augmented, un-normalised images and, for each, the fields that the method gave on the first
call. Augmentation and normalisation happen when a batch is read (`transform`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from utils.augmentations import apply_transform, to_device, to_stored, to_unit_float
from utils.errors import UserError
from utils.mammoth.buffer import FIELDS, FIRST_ROWS, MammothBuffer, Transform, field_dtype
from utils.mammoth.exemplars import fill_buffer, icarl_replay
from utils.mammoth.sample_selection import (
    STRATEGIES,
    UNLIMITED,
    ABSSampling,
    BalancoirSampling,
    BaseSampleSelection,
    LARSSampling,
    LossAwareBalancedSampling,
    ReservoirSampling,
)

# Beside the buffer, what models written for Mammoth look for here.
__all__ = [
    "ABSSampling",
    "BalancoirSampling",
    "BaseSampleSelection",
    "Buffer",
    "LARSSampling",
    "LossAwareBalancedSampling",
    "ReservoirSampling",
    "fill_buffer",
    "icarl_replay",
]
IMAGE_DTYPES = (torch.float32, torch.float16, torch.uint8, torch.int8)


class Buffer(MammothBuffer):
    """A uniform random sample of fixed size of everything that was offered to it.

    Slots are chosen on the host from `generator` (None: numpy's global one, draw by draw as in Mammoth), so the content
    is the same on every device, and neither reading nor writing waits for a GPU. Mammoth's other strategies, which do
    wait, and its other ways to read are in `MammothBuffer`.

    With `image_dtype=torch.uint8` images take a quarter of the memory, in channels-last order: floats in [0, 1] are
    rounded to 8 bits when stored and handed out as floats in [0, 1]; `examples` is then the raw 8-bit tensor. Vectors
    (torch.int8, torch.float16) likewise stay in the type of their file.

    `write_mask`, a scalar bool tensor, protects the content without waiting for the device: while it is False,
    `add_data` draws and counts but leaves the rows as they are. The run must then be aborted, because slots that were
    still free stay blank.
    """

    # Only those of the first `add_data` exist; `empty` removes them.
    examples: Tensor
    labels: Tensor
    logits: Tensor
    task_labels: Tensor
    true_labels: Tensor
    _buffer_size: int

    def __init__(
        self,
        buffer_size: int,
        device: torch.device | str = "cpu",
        sample_selection_strategy: str = "reservoir",
        *,
        generator: torch.Generator | None = None,
        image_dtype: torch.dtype = torch.float32,
        dataset: Any = None,  # for the strategy "abs"
    ):
        self._check_strategy(sample_selection_strategy)
        if image_dtype not in IMAGE_DTYPES:
            valid = ", ".join(map(str, IMAGE_DTYPES))
            raise ValueError(f"image_dtype {image_dtype} cannot hold images; valid are {valid}")
        self.num_seen_examples = 0
        self.sample_selection_strategy = sample_selection_strategy
        self._dataset = dataset
        self.buffer_size = buffer_size
        self.device = torch.device(device)
        self.generator = generator
        self.image_dtype = image_dtype
        self.attributes = list(FIELDS)
        self.write_mask: Tensor | None = None

    @property
    def buffer_size(self) -> int:
        return self._buffer_size

    @buffer_size.setter
    def buffer_size(self, value: int) -> None:
        if self._grows:
            value = UNLIMITED
        if value <= 0:
            raise ValueError(f"buffer_size {value} is not positive: a replay buffer needs at least one slot")
        if hasattr(self, "examples") and value != self._buffer_size:
            # The tensors have the old size, and what they hold is a uniform sample for that size only.
            raise RuntimeError(f"buffer_size cannot become {value} while data is stored; call empty() first")
        self._buffer_size = value
        self.sample_selection_fn = STRATEGIES[self.sample_selection_strategy](value, "cpu", self._dataset)

    @property
    def used_attributes(self) -> list[str]:
        return [name for name in self.attributes if hasattr(self, name)]

    def __len__(self) -> int:
        return min(self.num_seen_examples, self.buffer_size)

    def is_empty(self) -> bool:
        return self.num_seen_examples == 0

    def is_full(self) -> bool:
        return self.num_seen_examples >= self.buffer_size

    # --- writing ---

    def _allocate(self, given: dict[str, Tensor]) -> None:
        """Zeros for the fields given; later calls of `add_data` can bring no others."""
        rows = FIRST_ROWS if self._grows else self.buffer_size
        for name, value in given.items():
            shape = (rows, *value.shape[1:])
            try:
                blank = torch.zeros(shape, dtype=self._dtype(name), device=self.device)
            except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
                reason = str(error).partition("\n")[0]
                raise UserError(f"--buffer_size {self.buffer_size} does not fit into memory ({reason})") from error
            setattr(self, name, _in_memory_order(blank))

    def _dtype(self, name: str) -> torch.dtype:
        return self.image_dtype if name == "examples" else field_dtype(name)

    @torch.no_grad()
    def add_data(
        self,
        examples: Tensor,
        labels: Tensor | None = None,
        logits: Tensor | None = None,
        task_labels: Tensor | None = None,
        attention_maps: Any = None,
        true_labels: Tensor | None = None,
        sample_selection_scores: Tensor | None = None,
    ) -> None:
        """Offer a batch. A field left out keeps the stale values of the slots overwritten.

        `attention_maps` are tensors [B, …], one per layer, of values from 0 to 255. `sample_selection_scores`
        are for loss-aware strategies; a reservoir ignores them.
        """
        n, fields = len(examples), (examples, labels, logits, task_labels, true_labels)
        given = {name: value[:n] for name, value in zip(FIELDS, fields, strict=True) if value is not None}
        self._check(given, n)
        if not hasattr(self, "examples"):
            self._allocate(given)
        if self._grows:
            self._make_room(self.num_seen_examples + n)
        if self.sample_selection_strategy in ("reservoir", "unlimited"):
            rows, slots = self._draw_slots(n)
        else:
            rows, slots = self._select_slots(n, labels, sample_selection_scores)
        self.num_seen_examples += n
        if len(slots) == 0:
            return
        if attention_maps is not None:
            self._store_maps(attention_maps, rows, slots)
        rows, slots = to_device(rows, examples.device), to_device(slots, self.device)
        for name, value in given.items():
            self._write(name, _select_rows(value, rows.to(value.device)), slots)

    def _check(self, given: dict[str, Tensor], count: int) -> None:
        """Before anything is drawn or written: a batch is stored as a whole or not at all."""
        allocated = hasattr(self, "examples")
        for name, value in given.items():
            if allocated and not hasattr(self, name):
                raise AttributeError(f"field {name!r} was not in the first add_data, so it has no storage")
            expected = (count, *(getattr(self, name) if allocated else value).shape[1:])
            if value.shape != expected:
                raise ValueError(f"{name} has shape {tuple(value.shape)}, but {expected} is needed")

    def _draw_slots(self, count: int) -> tuple[Tensor, Tensor]:
        """Reservoir sampling of a batch: which of its rows enter, and into which slots (no slot twice).

        Sample n of the stream (from 0) goes to slot n while there is one; later ones draw j uniform in {0..n}
        and go to slot j if it exists. Where two samples of a batch chose the same slot the later one wins, as
        it does one by one: so the content does not depend on how the stream is cut into batches. 63 random
        bits modulo n+1 are uniform to one part in 2^63/n.
        """
        first = self.num_seen_examples
        slots = np.arange(first, first + count)
        late = slots[max(self.buffer_size - first, 0) :]
        if self.generator is None:
            late[:] = [np.random.randint(0, n + 1) for n in late]
        else:
            draws = torch.empty(len(late), dtype=torch.int64).random_(generator=self.generator)
            late[:] = draws.numpy() % (late + 1)
        # Read backwards, the first occurrence of a slot is the last sample that chose it.
        rows = np.flatnonzero(slots < self.buffer_size)[::-1]
        unique, winners = np.unique(slots[rows], return_index=True)
        return torch.from_numpy(rows[winners]), torch.from_numpy(unique)

    def _write(self, name: str, value: Tensor, slots: Tensor) -> None:
        field: Tensor = getattr(self, name)
        if name == "examples":
            value = to_stored(value, self.image_dtype)
        value = value.to(device=self.device, dtype=field.dtype)
        if self.write_mask is not None:
            # A buffer in host memory (Mammoth's default) has to wait for the device here, as for the value itself.
            value = torch.where(self.write_mask.to(self.device), value, _select_rows(field, slots))
        field.index_copy_(0, slots, value)

    def empty(self) -> None:
        """Forget everything, including which fields exist."""
        for name in self.used_attributes:
            delattr(self, name)
        vars(self).pop("attention_maps", None)
        self.num_seen_examples = 0
        self.buffer_size = self._buffer_size  # a strategy without scores, too

    # --- reading ---

    def get_data(
        self,
        size: int,
        transform: Transform | None = None,
        return_index: bool = False,
        device: torch.device | str | None = None,
        mask_task_out: int | None = None,
        cpt: int | None = None,
        return_not_aug: bool = False,
        not_aug_transform: Transform | None = None,
        force_indexes: Tensor | Sequence[int] | None = None,
    ) -> tuple[Tensor, ...]:
        """Rows drawn uniformly without replacement, at most as many as are stored.

        Gives ([index], [not augmented], examples, then those of labels, logits, task_labels, true_labels that
        exist). `mask_task_out` excludes a task, whose labels are known from `cpt`, the number of classes per task.
        `force_indexes` replaces the draw. A transform that declares `accepts_uint8` gets 8-bit images as they are.
        """
        self._require_data()
        if force_indexes is not None:
            index = torch.as_tensor(force_indexes, dtype=torch.int64)
        elif mask_task_out is None:
            index = self._permutation(len(self))[:size]
        else:
            others = self._rows_outside(mask_task_out, cpt)
            index = others[self._permutation(len(others))[:size]]
        index = to_device(index, self.device)
        images = _select_rows(self.examples, index)
        batch = [index] if return_index else []
        if return_not_aug:
            batch.append(_hand_out(images, not_aug_transform))
        batch.append(_hand_out(images, transform))
        batch += [getattr(self, name).index_select(0, index) for name in self.used_attributes[1:]]
        if device is None:
            return tuple(batch)
        return tuple(to_device(field, torch.device(device)) for field in batch)

    def _require_data(self) -> None:
        if self.is_empty():
            raise RuntimeError("nothing is stored in the buffer yet; check is_empty() before reading")

    def _permutation(self, n: int) -> Tensor:
        if self.generator is None:  # what `np.random.choice(n, size, replace=False)` begins with
            return torch.from_numpy(np.random.permutation(n))
        return torch.randperm(n, generator=self.generator)

    def get_data_by_index(
        self,
        indexes: Tensor | Sequence[int],
        transform: Transform | None = None,
        device: torch.device | str | None = None,
    ) -> tuple[Tensor, ...]:
        """The rows named, in that order; the fields as in `get_data`."""
        return self.get_data(0, transform, device=device, force_indexes=indexes)

    def get_all_data(
        self, transform: Transform | None = None, device: torch.device | str | None = None
    ) -> tuple[Tensor, ...]:
        """A copy of all stored rows in slot order."""
        return self.get_data_by_index(torch.arange(len(self)), transform, device)

    # --- as a whole ---

    def to(self, device: torch.device | str) -> Buffer:
        self.device = torch.device(device)
        for name in self.used_attributes:
            setattr(self, name, getattr(self, name).to(self.device))
        if hasattr(self, "attention_maps"):
            self._take_maps(self.attention_maps)
        return self

    def nbytes(self) -> int:
        """Bytes that the stored fields occupy, free slots included."""
        maps = [layer for stored in getattr(self, "attention_maps", []) for layer in stored or ()]
        return sum(field.nbytes for field in (*maps, *(getattr(self, name) for name in self.used_attributes)))

    def state_dict(self) -> dict[str, Any]:
        """All that a checkpoint needs, beside the generator; tensors are not copied."""
        maps = {"attention_maps": self.attention_maps} if hasattr(self, "attention_maps") else {}
        return {
            "buffer_size": self.buffer_size,
            "num_seen_examples": self.num_seen_examples,
            "fields": {name: getattr(self, name) for name in self.used_attributes},
            "scores": self.sample_selection_fn.importance_scores,
            **maps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become an exact copy of the buffer saved, also of one that has no storage yet."""
        if state["buffer_size"] != self.buffer_size:
            raise ValueError(f"saved buffer_size {state['buffer_size']} differs from {self.buffer_size} here")
        for name, value in state["fields"].items():
            if name not in self.attributes and hasattr(self, name):
                raise ValueError(f"{name} is no field of a buffer")
            if value.dtype != self._dtype(name):
                raise ValueError(f"saved {name} are {value.dtype}, but this buffer stores {self._dtype(name)}")
        self.empty()
        for name, value in state["fields"].items():
            setattr(self, name, _in_memory_order(value.to(self.device, copy=True)))
        if "attention_maps" in state:
            self._take_maps(state["attention_maps"])
        self.num_seen_examples = state["num_seen_examples"]
        if state.get("scores") is not None:
            self.sample_selection_fn.importance_scores = state["scores"].cpu().clone()


def _in_memory_order(field: Tensor) -> Tensor:
    """8-bit images lie channels-last, as batches come from a dataset and as convolutions read them fastest."""
    if field.dtype == torch.uint8 and field.dim() == 4:
        return field.contiguous(memory_format=torch.channels_last)
    return field.contiguous()


def _select_rows(field: Tensor, index: Tensor) -> Tensor:
    """`field[index]`; channels-last images go through their NHWC view, whose rows are copied whole."""
    if field.dim() == 4 and field.is_contiguous(memory_format=torch.channels_last):
        return field.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)
    return field.index_select(0, index)


def _hand_out(images: Tensor, transform: Transform | None) -> Tensor:
    if not getattr(transform, "accepts_uint8", False):
        images = to_unit_float(images)
    return apply_transform(images, transform)
