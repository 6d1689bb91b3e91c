"""The network of the traces. It has what methods treat differently (convolutions, BatchNorm, a linear head), and
rounding stays rounding in it: it has no kinks, and BatchNorm's batches are large enough. In a narrow ResNet a ReLU
behind a nearly constant channel turns 1e-17 into 1e-3 within a few steps.
"""

from __future__ import annotations

import torch
from torch import nn

from backbone import MammothBackbone, register_backbone


class SmoothNet(MammothBackbone):
    """Two convolutions with BatchNorm and tanh, and a linear head."""

    def __init__(self, num_classes: int, in_channels: int):
        super().__init__()
        self.num_classes = num_classes
        self.conv1 = nn.Conv2d(in_channels, 6, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.feature_dim = 8
        self.classifier = nn.Linear(self.feature_dim, num_classes)

    def forward(self, x: torch.Tensor, returnt: str = "out"):
        first = torch.tanh(self.bn1(self.conv1(x)))
        second = torch.tanh(self.bn2(self.conv2(first)))
        features = second.mean((2, 3))
        if returnt == "features":
            return features
        outputs = self.classifier(features)
        return {"out": outputs, "both": (outputs, features), "full": (outputs, [first, second])}[returnt]


@register_backbone("smooth")
def smooth(num_classes: int, in_channels: int = 1) -> SmoothNet:
    """For the loss traces."""
    return SmoothNet(num_classes, in_channels)
