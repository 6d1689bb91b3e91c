"""Progressive networks (Rusu et al. 2016): a column per task, which reads the layers of the frozen ones before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from backbone.mammoth_backbone import MammothBackbone
from backbone.utils.modules import AlphaModule


class Column(MammothBackbone):
    """A subclass defines `layer_outputs`, of which the last is the logits, and calls `begin_column` after its layers.

    The older columns are no part of it: its parameters are those that are trained, and a model that keeps all columns
    keeps each once. They are moved to where the input is, because such models move idle columns to the CPU.
    """

    old_cols: list[Any]

    def begin_column(self, old_cols: Sequence[Any] | None) -> None:
        self.old_cols = list(old_cols or ())
        for column in self.old_cols:
            column.requires_grad_(False).eval()
            column.frozen = True

    frozen = False

    def train(self, mode: bool = True) -> Column:
        super().train(mode and not self.frozen)
        return self

    def layer_outputs(self, x: Tensor, older: list[list[Tensor]]) -> list[Tensor]:
        """The outputs of this column's layers; `older` has those of the columns before it, by column and layer."""
        raise NotImplementedError

    def forward(self, x: Tensor, returnt: str = "out") -> Tensor:
        if returnt != "out":
            raise NotImplementedError(f"a column of a progressive network gives 'out' alone, not {returnt!r}")
        older: list[list[Tensor]] = []
        with torch.no_grad():
            for column in self.old_cols:
                older.append(column.to(x.device).layer_outputs(x, older))
        return self.layer_outputs(x, older)[-1]


class Adaptor(nn.Module):
    """The side inputs of a layer: what older columns have there, scaled, projected, ReLU, and projected again."""

    def __init__(self, columns: int, width: int, out: int, sides: Sequence[int] = ()):
        super().__init__()
        self.alpha = AlphaModule((columns * width, *sides))
        # A projection of channels at every place of a map, or of a vector.
        kind: Any = (lambda a, b: nn.Conv2d(a, b, kernel_size=1)) if sides else nn.Linear
        self.project = nn.Sequential(kind(columns * width, width), nn.ReLU(), kind(width, out))

    def forward(self, older: Sequence[Tensor]) -> Tensor:
        return self.project(self.alpha(torch.cat(list(older), dim=1)))
