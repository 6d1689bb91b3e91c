"""A training loader of other code (torch's DataLoader, any iterable of batches), resumable at any batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from utils.augmentations import to_device
from utils.random_streams import new_generator
from utils.resume.rng import HostGenerators, generator_state, set_generator_state


class ReplayedLoader:
    """The interface of `TaskLoader` for a loader that cannot say where it is. Batches come on the device.

    Such a loader draws from the global generators. Here each epoch has its own state of them, seeded by the run's seed,
    the task and the epoch: its batches are the same whatever the model draws, and a resumed run plays the epoch
    again up to its place, loading what it throws away. That holds for worker processes, too, since torch seeds them
    from the same generators; but not for workers that outlive an epoch.
    """

    def __init__(self, loader: Any, seed: int, task: int, device: torch.device):
        self.loader, self.dataset, self.device = loader, getattr(loader, "dataset", None), device
        self._seed, self._task = seed, task
        self._generator = getattr(loader, "generator", None)
        self.epoch, self.position = -1, 0  # batches handed out in this epoch
        self._resume = False

    @property
    def repeatable(self) -> bool:
        """Whether an epoch played again is the same."""
        return not getattr(self.loader, "persistent_workers", False)

    def __len__(self) -> int:
        """A stream may not know its length: TypeError."""
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        to_skip, self._resume = self.position if self._resume else 0, False
        self.epoch += not to_skip
        seed = new_generator(self._seed, f"loader/{self._task}/{self.epoch}").initial_seed()
        generators = HostGenerators(seed)
        if self._generator is not None:
            self._generator.manual_seed(seed)
        with generators:
            batches = iter(self.loader)
        position = 0
        while True:
            with generators:
                batch = next(batches, None)
            if batch is None:
                return
            position += 1
            if position > to_skip:
                self.position = position
                yield tuple(self._ready(index, field) for index, field in enumerate(batch))

    def _ready(self, index: int, field: Any) -> Any:
        """On the device; labels, which come second, as int64."""
        if not isinstance(field, torch.Tensor):
            return field
        return to_device(field.long() if index == 1 else field, self.device)

    def state_dict(self) -> dict[str, Any]:
        """The generator's present state is for code that iterates over the loader by itself after an epoch."""
        generator = generator_state(self._generator) if self._generator is not None else None
        return {"epoch": self.epoch, "position": self.position, "generator": generator}

    def load_state_dict(self, state: dict[str, Any], continues: bool = True) -> None:
        """With `continues` the next `iter()` continues the saved epoch, else it begins a new one."""
        self.epoch, self.position = state["epoch"], state["position"]
        self._resume = continues and self.position > 0
        if self._generator is not None:
            set_generator_state(self._generator, state["generator"])
