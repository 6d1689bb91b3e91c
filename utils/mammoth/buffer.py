"""What only models written for Mammoth ask of a replay buffer: other strategies than the reservoir, other draws."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from utils.mammoth.sample_selection import STRATEGIES, BaseSampleSelection

Transform = Callable[[Tensor], Tensor]
FIELDS = ("examples", "labels", "logits", "task_labels", "true_labels")
FIRST_ROWS = 10  # of a buffer without a limit


def field_dtype(name: str) -> torch.dtype:
    return torch.int64 if name.endswith("labels") else torch.float32


class MammothBuffer:
    """The part of `utils.buffer.Buffer` that our own methods do without."""

    labels: Tensor
    task_labels: Tensor
    attention_maps: list[list[Tensor] | None]
    buffer_size: int
    device: torch.device
    generator: torch.Generator | None
    num_seen_examples: int
    sample_selection_strategy: str
    sample_selection_fn: BaseSampleSelection

    if TYPE_CHECKING:  # what it uses of the other part

        def __len__(self) -> int: ...
        def get_data(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]: ...
        def get_data_by_index(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]: ...
        def _permutation(self, n: int) -> Tensor: ...
        def _require_data(self) -> None: ...
        def _allocate(self, given: dict[str, Tensor]) -> None: ...

        @property
        def used_attributes(self) -> list[str]: ...

    # -- strategies -----------------------------------------------------------------------------------------------

    @staticmethod
    def _check_strategy(name: str) -> None:
        if name not in STRATEGIES:
            raise ValueError(f"sample_selection_strategy {name!r} unknown; valid are {', '.join(STRATEGIES)}")

    @property
    def _grows(self) -> bool:
        return self.sample_selection_strategy == "unlimited"

    def _make_room(self, rows: int) -> None:
        """For a buffer without a limit: double the storage until the rows fit."""
        for name in self.used_attributes:
            while len(getattr(self, name)) < rows:
                field = getattr(self, name)
                setattr(self, name, torch.cat((field, torch.zeros_like(field))))

    def _select_slots(self, count: int, labels: Tensor | None, scores: Tensor | None) -> tuple[Tensor, Tensor]:
        """Rows of a batch and their slots, by a strategy that looks at what is stored before each sample."""
        choose, new = self.sample_selection_fn, None if labels is None else labels.cpu()
        stored = self.labels.cpu().clone() if new is not None else None
        placed: dict[int, int] = {}
        for row in range(count):
            slot = choose(self.num_seen_examples + row, stored)
            if slot >= 0:
                placed[slot] = row
                if new is not None and stored is not None:
                    stored[slot] = new[row]
                choose.update(slot, 0.0 if scores is None else scores[row])
        return torch.tensor(list(placed.values()), dtype=torch.int64), torch.tensor(list(placed), dtype=torch.int64)

    # -- storage --------------------------------------------------------------------------------------------------

    def init_tensors(
        self,
        examples: Tensor,
        labels: Tensor | None = None,
        logits: Tensor | None = None,
        task_labels: Tensor | None = None,
        true_labels: Tensor | None = None,
    ) -> None:
        """Allocate zeros for the fields given, as the first `add_data` does by itself."""
        given = zip(FIELDS, (examples, labels, logits, task_labels, true_labels), strict=True)
        self._allocate({name: value for name, value in given if value is not None})

    def _store_maps(self, attention_maps: Sequence[Tensor], rows: Tensor, slots: Tensor) -> None:
        """Slot by slot the maps of one image, a list over layers, as bytes; `get_data` does not hand them out."""
        if not hasattr(self, "attention_maps"):
            self.attention_maps = [None] * self.buffer_size
        for row, slot in zip(rows.tolist(), slots.tolist(), strict=True):
            self.attention_maps[slot] = [layer[row].to(self.device, torch.uint8) for layer in attention_maps]

    def _take_maps(self, attention_maps: list[list[Tensor] | None]) -> None:
        """Copies of maps that were stored, on the buffer's device."""
        self.attention_maps = [m and [layer.to(self.device, copy=True) for layer in m] for m in attention_maps]

    def serialize(self, out_device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """The field tensors by name: Mammoth's format, which loses the counter. `state_dict` is exact."""
        return {name: getattr(self, name).to(out_device) for name in self.used_attributes}

    # -- draws ----------------------------------------------------------------------------------------------------

    def _rows_outside(self, task: int, cpt: int | None) -> Tensor:
        """The stored rows of all other tasks, by `task_labels` or else by `labels // cpt`; waits for the device."""
        if hasattr(self, "task_labels"):
            tasks = self.task_labels
        elif cpt is not None:
            tasks = self.labels // cpt
        else:
            raise ValueError("mask_task_out needs cpt (classes per task), because no task_labels are stored")
        rows = (tasks[: len(self)] != task).nonzero().flatten().cpu()
        if len(rows) == 0:
            raise RuntimeError(f"every stored sample is of task {task}, which mask_task_out excludes")
        return rows

    def get_balanced_data(
        self, size: int, transform: Transform | None = None, n_classes: int = -1
    ) -> tuple[Tensor, ...]:
        """As `get_data`, with equally many rows (±1) of `n_classes` random stored classes (−1: of all).

        Where a class has too few rows, or there are too few classes, it is a plain `get_data`.
        """
        self._require_data()
        index = self._draw_balanced_rows(size, n_classes) if hasattr(self, "labels") else None
        return self.get_data(size, transform, force_indexes=index)

    def _draw_balanced_rows(self, size: int, n_classes: int) -> Tensor | None:
        order = self._permutation(len(self))
        labels = self.labels[: len(self)].cpu()[order]
        classes = labels.unique()
        classes = classes[self._permutation(len(classes))]
        if n_classes == -1:
            n_classes = len(classes)
        quotas = [size // n_classes + (i < size % n_classes) for i in range(n_classes)]
        rows = [order[labels == c][:quota] for c, quota in zip(classes, quotas, strict=False)]
        index = torch.cat(rows)
        return index if len(index) == size else None

    def get_dataloader(
        self,
        args: Namespace,
        batch_size: int,
        shuffle: bool = False,
        drop_last: bool = False,
        transform: Transform | None = None,
        sampler: Sampler | None = None,
    ) -> DataLoader:
        """Batches of stored rows, as in `get_data`. `args` is part of Mammoth's signature only."""
        return DataLoader(
            range(len(self)),  # type: ignore[arg-type]
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            drop_last=drop_last,
            generator=self.generator,
            collate_fn=lambda rows: self.get_data_by_index(rows, transform),
        )

    def __getitem__(self, index: int) -> list[Tensor]:
        """The fields of one row."""
        row = range(len(self))[index]
        return [field[0] for field in self.get_data_by_index([row])]

    def __iter__(self) -> Iterator[list[Tensor]]:
        return (self[row] for row in range(len(self)))
