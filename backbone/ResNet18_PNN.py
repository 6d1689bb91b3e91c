"""A column of a progressive network that is a ResNet-18."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from backbone.ResNetBlock import BasicBlock, ResNet
from backbone.utils.columns import Adaptor, Column


class ResNetPNN(Column, ResNet):
    """Each stage but the first, and the classifier, also reads what the older columns have there."""

    def __init__(
        self,
        num_classes: int,
        nf: int = 64,
        old_cols: Sequence[ResNetPNN] | None = None,
        x_shape: Sequence[int] | None = None,
    ):
        channels = old_cols[0].conv1.in_channels if old_cols else 3 if x_shape is None else x_shape[-3]
        ResNet.__init__(self, BasicBlock, [2, 2, 2, 2], num_classes, nf, in_channels=channels)
        self.begin_column(old_cols)
        if not self.old_cols:
            return
        if x_shape is None:
            raise ValueError("x_shape, the shape of a batch of images, is needed once there are older columns")
        sides = list(x_shape[-2:])
        for stage in range(2, 5):
            width = nf * 2 ** (stage - 2)
            self.add_module(f"adaptor{stage}", Adaptor(len(self.old_cols), width, width, sides))
            sides = [(side + 1) // 2 for side in sides]
        self.add_module("adaptor5", Adaptor(len(self.old_cols), self.feature_dim, num_classes))

    def layer_outputs(self, x: Tensor, older: list[list[Tensor]]) -> list[Tensor]:
        out = F.relu(self.bn1(self.conv1(x)))
        outputs = []
        for number, layer in enumerate(self.stages):
            if older and number:
                out = out + self.get_submodule(f"adaptor{number + 1}")([c[number - 1] for c in older])
            out = layer(out)
            outputs.append(out)
        features = F.adaptive_avg_pool2d(out, 1).flatten(1)
        logits = self.classifier(features)
        if older:
            logits = logits + self.get_submodule("adaptor5")([column[4] for column in older])
        return [*outputs, features, logits]


def resnet18_pnn(
    num_classes: int, nf: int = 64, old_cols: Sequence[Any] | None = None, x_shape: Sequence[int] | None = None
) -> ResNetPNN:
    return ResNetPNN(num_classes, nf, old_cols, x_shape)
