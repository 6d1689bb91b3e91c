"""The narrow ResNets that He et al. (2016) made for CIFAR: 16, 32 and 64 channels, 6n + 2 layers."""

from __future__ import annotations

from backbone import register_backbone
from backbone.ResNetBlock import BasicBlock, ResNet


@register_backbone("resnet32")
def resnet32(num_classes: int, depth: int = 32, in_channels: int = 3) -> ResNet:
    """ResNet-32 for small images (0.47 M parameters), common in class-incremental learning."""
    blocks, rest = divmod(depth - 2, 6)
    if rest or blocks < 1:
        raise ValueError(f"depth {depth} is not 6n + 2, as the layers of this network are counted; take 20, 32 or 44")
    return ResNet(BasicBlock, [blocks] * 3, num_classes, 16, in_channels=in_channels)
