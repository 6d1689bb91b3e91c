"""One independent random generator per purpose, so that drawing more of one never shifts another."""

from __future__ import annotations

import hashlib

import torch


def new_generator(seed: int, purpose: str) -> torch.Generator:
    """The generator of a purpose as it is when a run begins: for what must come out the same whenever it is drawn."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


class RandomStreams:
    """Named CPU generators derived from one seed: `streams['shuffle']`, `streams['augment']`, …

    All random numbers are drawn on the host: the stream is then the same on every device, its state is a few kilobytes
    in a checkpoint, and a GPU is never waited for.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self._generators: dict[str, torch.Generator] = {}

    def __getitem__(self, name: str) -> torch.Generator:
        if name not in self._generators:
            self._generators[name] = new_generator(self.seed, name)
        return self._generators[name]

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {name: generator.get_state() for name, generator in self._generators.items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        for name, generator_state in state.items():
            self[name].set_state(generator_state)
