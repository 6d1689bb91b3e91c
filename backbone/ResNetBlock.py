"""ResNets for small images: a 3×3 stem and no max-pool, to keep the detail of 32×32 pixels."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from backbone import register_backbone
from backbone.mammoth_backbone import MammothBackbone, ReturnTypes, check_returnt


def conv3x3(in_planes: int, out_planes: int, stride: int = 1) -> nn.Conv2d:
    """3×3 convolution that keeps the size at stride 1; no bias, because BatchNorm follows."""
    return nn.Conv2d(in_planes, out_planes, kernel_size=3, stride=stride, padding=1, bias=False)


class Projection(nn.Conv2d):
    """The 1×1 convolution of a shortcut, without bias.

    Strided, on channels_last images of a few channels, oneDNN's kernel for AVX2 (torch 2.14) writes outside of its
    memory and the process dies sooner or later. Such images are thinned out first, which gives the same numbers.
    """

    def __init__(self, in_planes: int, out_planes: int, stride: int):
        super().__init__(in_planes, out_planes, kernel_size=1, stride=stride, bias=False)
        self.narrow = in_planes < 16 and stride > 1  # seen below 8; a vector of AVX-512 has 16

    def forward(self, x: Tensor) -> Tensor:
        if self.narrow and x.device.type == "cpu" and not x.is_contiguous():
            step = self.stride[0]
            return F.conv2d(x[..., ::step, ::step], self.weight)
        return super().forward(x)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is a 1×1 convolution only where the shape changes."""

    expansion = 1

    def __init__(self, in_planes: int, planes: int, stride: int = 1):
        super().__init__()
        self.conv1 = conv3x3(in_planes, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(Projection(in_planes, planes, stride), nn.BatchNorm2d(planes))

    def pre_activation(self, x: Tensor) -> Tensor:
        """The block's output before its last ReLU, which some distillation losses compare."""
        out = F.relu(self.bn1(self.conv1(x)))
        return self.bn2(self.conv2(out)) + self.shortcut(x)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.pre_activation(x))


class ResNet(MammothBackbone):
    """Stem, stages of `nf`·(1, 2, 4, …) channels of which all but the first halve the sides, average pool, linear head.

    `num_blocks` has the blocks of each stage, four in ResNet-18. 'full' gives (logits, [stem, stage 1, …, last stage]):
    maps after their ReLU, or before it once `set_return_prerelu` was called. All weights have PyTorch's default
    initialisation.
    """

    def __init__(
        self,
        block: type[BasicBlock],
        num_blocks: list[int],
        num_classes: int,
        nf: int,
        in_channels: int = 3,
        stem_stride: int = 1,
    ):
        super().__init__()
        self.block = block
        self.num_classes = num_classes
        self.nf = nf
        self.return_prerelu = False
        self.conv1 = conv3x3(in_channels, nf, stem_stride)
        self.bn1 = nn.BatchNorm2d(nf)
        width = nf
        for stage, blocks in enumerate(num_blocks):
            before, width = width, nf * 2**stage * block.expansion
            self.add_module(f"layer{stage + 1}", self._make_layer(before, width, blocks, stride=2 if stage else 1))
        self.feature_dim = width
        self.classifier = nn.Linear(self.feature_dim, num_classes)

    def _make_layer(self, in_planes: int, planes: int, blocks: int, stride: int) -> nn.Sequential:
        first = self.block(in_planes, planes, stride)
        return nn.Sequential(first, *(self.block(planes, planes) for _ in range(blocks - 1)))

    @property
    def stages(self) -> list[nn.Sequential]:
        """By name, since some code puts an `nn.Sequential` in the classifier's place."""
        return [layer for name, layer in self.named_children() if name.startswith("layer")]  # type: ignore[misc]

    def set_return_prerelu(self, enable: bool = True) -> None:
        self.return_prerelu = enable

    def forward(self, x: Tensor, returnt: ReturnTypes = "out") -> Any:
        check_returnt(returnt)
        if returnt == "full":
            last, maps = self._maps(x)
            return self.classifier(_pool(last)), maps
        out = F.relu(self.bn1(self.conv1(x)))
        for layer in self.stages:
            out = layer(out)
        features = _pool(out)
        if returnt == "features":
            return features
        logits = self.classifier(features)
        return logits if returnt == "out" else (logits, features)

    def _maps(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The last stage's output and the maps of 'full', in one pass."""
        before = self.bn1(self.conv1(x))
        out = F.relu(before)
        maps = [before if self.return_prerelu else out]
        for layer in self.stages:
            if self.return_prerelu:
                before = layer[-1].pre_activation(layer[:-1](out))  # type: ignore[operator]
                out = F.relu(before)
                maps.append(before)
            else:
                out = layer(out)
                maps.append(out)
        return out, maps


def _pool(x: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


@register_backbone("resnet18")
def resnet18(num_classes: int, num_filters: int = 64, in_channels: int = 3) -> ResNet:
    """ResNet-18 for small images (11.2 M parameters at 64 filters), the paper's network."""
    return ResNet(BasicBlock, [2, 2, 2, 2], num_classes, num_filters, in_channels)


@register_backbone("resnet34")
def resnet34(num_classes: int, num_filters: int = 64, in_channels: int = 3) -> ResNet:
    """ResNet-34 for small images (21.3 M parameters at 64 filters)."""
    return ResNet(BasicBlock, [3, 4, 6, 3], num_classes, num_filters, in_channels)


@register_backbone("reduced-resnet18")
def reduced_resnet18(num_classes: int, in_channels: int = 3) -> ResNet:
    """ResNet-18 of 20 filters (1.1 M parameters), common in online continual learning."""
    return ResNet(BasicBlock, [2, 2, 2, 2], num_classes, 20, in_channels)


@register_backbone("resnet8")
def resnet8(num_classes: int, num_filters: int = 16, in_channels: int = 3) -> ResNet:
    """ResNet-8 for CPUs: a stem of stride 2 and three stages of one block (84 k parameters at 16 filters)."""
    return ResNet(BasicBlock, [1, 1, 1], num_classes, num_filters, in_channels, stem_stride=2)
