"""ResNets for small images: a 3×3 stem and no max-pool, to keep the detail of 32×32 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch.nn.functional as F
from torch import Tensor, nn

from backbone import register_backbone
from backbone.mammoth_backbone import MammothBackbone, ReturnTypes, check_returnt, returned
from backbone.utils.imagenet import load_imagenet

# By block. Not an attribute of it, so that neither copies of a network nor checkpoints carry maps of some batch.
_PRERELU: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()


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


class Block(nn.Module):
    """What the blocks have in common: once `return_prerelu` is set, each forward pass leaves a map in `prerelu`."""

    expansion = 1
    return_prerelu = False

    @property
    def prerelu(self) -> Tensor | None:
        """The last output before its ReLU, which some distillation losses compare."""
        return _PRERELU.get(self)

    def remember(self, before: Tensor) -> None:
        if self.return_prerelu:
            _PRERELU[self] = before.clone()


class BasicBlock(Block):
    """Two 3×3 convolutions and a shortcut, which is a 1×1 convolution only where the shape changes."""

    def __init__(self, in_planes: int, planes: int, stride: int = 1):
        super().__init__()
        self.conv1 = conv3x3(in_planes, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(Projection(in_planes, planes, stride), nn.BatchNorm2d(planes))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out)) + self.shortcut(x)
        self.remember(out)
        return F.relu(out)


class PreActBlock(Block):
    """BatchNorm and ReLU come before each convolution (He et al. 2016, "Identity mappings"), and none at the end."""

    def __init__(self, in_planes: int, planes: int, stride: int = 1):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_planes)
        self.conv1 = conv3x3(in_planes, planes, stride)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(Projection(in_planes, planes, stride))

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        shortcut = self.shortcut(active) if len(self.shortcut) else x
        out = self.conv2(F.relu(self.bn2(self.conv1(active)))) + shortcut
        self.remember(out)
        return out


class ResNet(MammothBackbone):
    """Stem, stages of `nf`·(1, 2, 4, …) channels of which all but the first halve the sides, average pool, linear head.

    `num_blocks` has the blocks of each stage, four in ResNet-18; a stage that it lacks is an Identity. A stem of
    another kernel than 3×3 is that of ImageNet's networks: stride 2 and max-pooling. 'full' gives (logits, [stem,
    stage 1, …, last stage]): maps after their ReLU, or before it once `set_return_prerelu` was called. All weights
    have PyTorch's default initialisation.
    """

    return_prerelu = False
    pools_stem = False

    def __init__(
        self,
        block: type[Block],
        num_blocks: Sequence[int],
        num_classes: int,
        nf: int,
        initial_conv_k: int = 3,
        in_channels: int = 3,
        stem_stride: int = 1,
    ):
        super().__init__()
        self.block = block
        self.num_classes = num_classes
        self.nf = self.in_planes = nf
        if initial_conv_k == 3:
            self.conv1 = conv3x3(in_channels, nf, stem_stride)
        else:
            self.conv1 = nn.Conv2d(in_channels, nf, initial_conv_k, stride=2, padding=3, bias=False)
            self.maxpool, self.pools_stem = nn.MaxPool2d(3, stride=2, padding=1), True
        self.bn1 = nn.BatchNorm2d(nf)
        for stage, blocks in enumerate(num_blocks):
            layer = self._make_layer(block, nf * 2**stage, blocks, stride=2 if stage else 1)
            self.add_module(f"layer{stage + 1}", layer)
        for stage in range(len(num_blocks), 4):
            self.add_module(f"layer{stage + 1}", nn.Identity())
        self.feature_dim = self.in_planes
        self.classifier = nn.Linear(self.feature_dim, num_classes)

    def _make_layer(self, block: type[Any], planes: int, num_blocks: int, stride: int) -> nn.Sequential:
        """A stage; `in_planes`, the channels that come in, become those that go out."""
        layers = []
        for number in range(num_blocks):
            layers.append(block(self.in_planes, planes, 1 if number else stride))
            self.in_planes = planes * block.expansion
        return nn.Sequential(*layers)

    @property
    def stages(self) -> list[nn.Sequential]:
        """By name, since some code puts an `nn.Sequential` in the classifier's place."""
        layers = [layer for name, layer in self.named_children() if name.startswith("layer")]
        return [layer for layer in layers if not isinstance(layer, nn.Identity)]  # type: ignore[misc]

    def set_return_prerelu(self, enable: bool = True) -> None:
        self.return_prerelu = enable
        for module in self.modules():
            if isinstance(module, Block):
                module.return_prerelu = enable

    def forward(self, x: Tensor, returnt: ReturnTypes = "out") -> Any:
        check_returnt(returnt)
        before = self.bn1(self.conv1(x))
        out = F.relu(before)
        maps: list[Any] = []
        if returnt == "full":
            maps.append(before if self.return_prerelu else out)
        out = self.maxpool(out) if self.pools_stem else out
        for layer in self.stages:
            out = layer(out)
            if returnt == "full":
                maps.append(layer[-1].prerelu if self.return_prerelu else out)
        return returned(returnt, F.adaptive_avg_pool2d(out, 1).flatten(1), self.classifier, maps)


@register_backbone("resnet18")
def resnet18(num_classes: int, num_filters: int = 64, in_channels: int = 3) -> ResNet:
    """ResNet-18 for small images (11.2 M parameters at 64 filters), the paper's network."""
    return ResNet(BasicBlock, [2, 2, 2, 2], num_classes, num_filters, in_channels=in_channels)


@register_backbone("resnet34")
def resnet34(num_classes: int, num_filters: int = 64, in_channels: int = 3) -> ResNet:
    """ResNet-34 for small images (21.3 M parameters at 64 filters)."""
    return ResNet(BasicBlock, [3, 4, 6, 3], num_classes, num_filters, in_channels=in_channels)


@register_backbone("reduced-resnet18")
def reduced_resnet18(num_classes: int, in_channels: int = 3) -> ResNet:
    """ResNet-18 of 20 filters (1.1 M parameters), common in online continual learning."""
    return ResNet(BasicBlock, [2, 2, 2, 2], num_classes, 20, in_channels=in_channels)


@register_backbone("resnet8")
def resnet8(num_classes: int, num_filters: int = 16, in_channels: int = 3) -> ResNet:
    """ResNet-8 for CPUs: a stem of stride 2 and three stages of one block (84 k parameters at 16 filters)."""
    return ResNet(BasicBlock, [1, 1, 1], num_classes, num_filters, in_channels=in_channels, stem_stride=2)


@register_backbone("preact-resnet18")
def preact_resnet18(num_classes: int, num_filters: int = 64, in_channels: int = 3) -> ResNet:
    """ResNet-18 whose blocks begin with BatchNorm and ReLU."""
    return ResNet(PreActBlock, [2, 2, 2, 2], num_classes, num_filters, in_channels=in_channels)


@register_backbone("resnet18-spr")
def resnet18_spr(num_classes: int, in_channels: int = 3) -> ResNet:
    """ResNet-18 of 64 filters, under the name that Mammoth's SPR looks for."""
    return resnet18(num_classes, in_channels=in_channels)


@register_backbone("resnet18-7x7")
def resnet18_7x7(num_classes: int, num_filters: int = 64, in_channels: int = 3) -> ResNet:
    """ResNet-18 with the stem of ImageNet's networks: 7×7, stride 2, max-pooling."""
    return ResNet(BasicBlock, [2, 2, 2, 2], num_classes, num_filters, 7, in_channels)


@register_backbone("resnet18-7x7-pt")
def resnet18_7x7_pt(num_classes: int) -> ResNet:
    """The same, trained on ImageNet by torchvision; the classifier is new."""
    net = resnet18_7x7(num_classes)
    load_imagenet(net, "resnet18", lambda name: name.replace("downsample", "shortcut"))
    return net
