"""Small parts of progressive networks, under Mammoth's names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn


class AlphaModule(nn.Module):
    """Multiplies each number of an input by a learnt factor, which starts between 0 and 0.1."""

    def __init__(self, shape: int | Sequence[int]):
        super().__init__()
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.alpha = nn.Parameter(torch.rand(1, *self.shape) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.alpha


class ListModule(nn.Module):
    """A list of modules that grows."""

    def __init__(self, *modules: nn.Module):
        super().__init__()
        for module in modules:
            self.append(module)

    def append(self, module: nn.Module) -> None:
        self.add_module(str(len(self)), module)

    def __getitem__(self, index: int) -> nn.Module:
        return list(self)[index]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._modules.values())  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._modules)
