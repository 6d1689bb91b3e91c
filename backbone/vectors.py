"""Networks for vectors, such as the embeddings of a pretrained network."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from backbone import register_backbone
from backbone.mammoth_backbone import MammothBackbone, ReturnTypes, check_returnt, returned
from backbone.MNISTMLP import MNISTMLP


class LinearNet(MammothBackbone):
    """A linear classifier on the input itself, which is what `returnt='features'` gives; all weights start at zero.

    With cross-entropy that is softmax regression: a convex problem, in which no start is better than another.
    """

    def __init__(self, input_size: int, output_size: int):
        super().__init__()
        self.num_classes, self.feature_dim = output_size, input_size
        self.classifier = nn.Linear(input_size, output_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor, returnt: ReturnTypes = "out") -> Any:
        check_returnt(returnt)
        return returned(returnt, x.flatten(1), self.classifier)


@register_backbone("linear")
def linear(num_classes: int, input_size: int = 128) -> LinearNet:
    """Softmax regression on vectors, or on pixels."""
    return LinearNet(input_size, num_classes)


@register_backbone("mlp")
def mlp(num_classes: int, mlp_hidden_size: int = 256, input_size: int = 128) -> MNISTMLP:
    """Two hidden layers of 256 units, for vectors."""
    return MNISTMLP(input_size, num_classes, mlp_hidden_size)
