"""ResNet-50 as torchvision builds it, for images of 224×224 pixels."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torchvision.models import resnet50 as torchvision_resnet50

from backbone import register_backbone
from backbone.mammoth_backbone import MammothBackbone, ReturnTypes, check_returnt, returned
from backbone.utils.imagenet import load_imagenet

STEM = ("conv1", "bn1", "relu", "maxpool")
STAGES = ("layer1", "layer2", "layer3", "layer4")


class ResNetBottleneck(MammothBackbone):
    """torchvision's parts under their names, and a `classifier` in place of `fc`.

    'full' gives (logits, [stem, stage 1, …, stage 4]): the maps after their ReLU, the stem's before its max-pooling.
    """

    def __init__(self, num_classes: int):
        super().__init__()
        parts = torchvision_resnet50(weights=None)
        for name in (*STEM, *STAGES):
            self.add_module(name, getattr(parts, name))
        self.num_classes, self.feature_dim = num_classes, parts.fc.in_features
        self.classifier = nn.Linear(self.feature_dim, num_classes)

    def set_grad_filter(self, filter_s: str, enable: bool) -> None:
        """Let the parameters learn, or stay, whose names contain a text."""
        for name, parameter in self.named_parameters():
            if filter_s in name:
                parameter.requires_grad_(enable)

    def forward(self, x: Tensor, returnt: ReturnTypes = "out") -> Any:
        check_returnt(returnt)
        maps = []
        for name in (*STEM, *STAGES):
            x = self.get_submodule(name)(x)
            if returnt == "full" and name in ("relu", *STAGES):
                maps.append(x)
        return returned(returnt, x.mean((2, 3)), self.classifier, maps)


@register_backbone("resnet50")
def resnet50(num_classes: int, pretrained: bool = False) -> ResNetBottleneck:
    """ResNet-50 for 224×224 pixels (23.5 M parameters without its head), on request trained on ImageNet."""
    net = ResNetBottleneck(num_classes)
    if pretrained:
        load_imagenet(net, "resnet50")
    return net


@register_backbone("resnet50-pt")
def resnet50_pt(num_classes: int) -> ResNetBottleneck:
    """ResNet-50, trained on ImageNet by torchvision; the classifier is new."""
    return resnet50(num_classes, pretrained=True)
