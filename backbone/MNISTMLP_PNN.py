"""A column of a progressive network for digits."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from backbone.mammoth_backbone import xavier
from backbone.utils.columns import Adaptor, Column

HIDDEN = 100


class MNISTMLP_PNN(Column):
    """Two hidden layers of 100 units; the second and the classifier also read the older columns."""

    def __init__(self, input_size: int, output_size: int, old_cols: Sequence[MNISTMLP_PNN] | None = None):
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.fc1 = nn.Linear(input_size, HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, HIDDEN)
        self.classifier = nn.Linear(HIDDEN, output_size)
        self.begin_column(old_cols)
        if self.old_cols:
            self.adaptor2 = Adaptor(len(self.old_cols), HIDDEN, HIDDEN)
            self.adaptor3 = Adaptor(len(self.old_cols), HIDDEN, output_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.apply(xavier)

    def layer_outputs(self, x: Tensor, older: list[list[Tensor]]) -> list[Tensor]:
        first = F.relu(self.fc1(x.flatten(1)))
        second = self.fc2(first)
        second = F.relu(second + self.adaptor2([c[0] for c in older]) if older else second)
        logits = self.classifier(second)
        return [first, second, logits + self.adaptor3([c[1] for c in older]) if older else logits]
