"""A reservoir of images that only the device knows to be wanted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from utils.augmentations import to_device
from utils.buffer import Buffer


def per_row(mask: Tensor, field: Tensor) -> Tensor:
    """The mask in a shape that broadcasts to the field."""
    return mask.view(-1, *[1] * (field.dim() - 1))


class CandidateReservoir(Buffer):
    """A uniform random sample of the wanted images among all that are offered.

    Which images are wanted is a mask on the device, so `taken`, the number of them, stays there too: nothing waits
    for a GPU. `num_seen_examples` counts all that are offered. The last row is no slot: `index_copy_` writes there,
    as zeros, what is not kept.
    """

    def __init__(
        self, capacity: int, device: torch.device, generator: Generator, image_dtype: torch.dtype = torch.uint8
    ):
        super().__init__(capacity + 1, device, generator=generator, image_dtype=image_dtype)
        self.capacity = capacity
        self.taken = torch.zeros((), dtype=torch.int64, device=self.device)

    @torch.no_grad()
    def offer(self, wanted: Tensor, examples: Tensor, labels: Tensor, logits: Tensor) -> None:
        """Wanted image n (from 0) goes to slot n while there is one, later ones to a slot drawn from {0..n}."""
        if not hasattr(self, "examples"):
            self.init_tensors(examples, labels, logits)
        draws = torch.empty(len(labels), dtype=torch.int64).random_(generator=self.generator)
        n = (self.taken + wanted.cumsum(0) - 1).clamp(min=0)
        slots = torch.where(n < self.capacity, n, to_device(draws, self.device) % (n + 1))
        slots = torch.where(wanted & (slots < self.capacity), slots, self.capacity)
        overwritten = (slots[:, None] == slots).triu(1).any(1)  # by a later one; a GPU would take either
        slots = torch.where(overwritten, self.capacity, slots)
        kept = slots < self.capacity
        for name, value in {"examples": examples, "labels": labels, "logits": logits}.items():
            self._write(name, torch.where(per_row(kept, value), value, 0), slots)
        self.taken += wanted.sum()
        self.num_seen_examples += len(labels)

    def draw(self, count: int, first: int) -> Tensor:
        """`count` of the first `first` slots: the filled ones in random order, repeated if they are fewer.

        If none is filled, an empty one: the caller gives it no weight.
        """
        order = to_device(torch.randperm(first, generator=self.generator), self.device)
        keys = torch.where(torch.arange(first, device=self.device) < self.taken, order, -1)
        return keys.argsort(descending=True)[torch.arange(count, device=self.device) % self.taken.clamp(1, first)]

    def content(self) -> list[Tensor]:
        """Images, labels and logits in the filled slots; waits for the device."""
        filled = min(int(self.taken), self.capacity)
        return [getattr(self, name)[:filled] for name in self.used_attributes]

    def start_anew(self) -> None:
        """Without images, but with the room for them: it is needed in the next task again, and counts as stored."""
        self.num_seen_examples = 0
        self.taken.zero_()

    def empty(self) -> None:
        super().empty()
        self.taken.zero_()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        taken = int(state["taken"])  # `empty`, which the line below calls, would set it to 0 if it is the same tensor
        super().load_state_dict(state)
        self.taken.fill_(taken)
