"""Networks."""

from torch import nn


class MammothBackbone(nn.Module):
    def to(self, device, *args, **kwargs):
        super().to(device, *args, **kwargs)
        self.device = device
        return self


class Small(MammothBackbone):
    """A convolution with BatchNorm, and a head for all classes."""

    def __init__(self, num_classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, stride=2, bias=False), nn.BatchNorm2d(4)
        self.classifier = nn.Linear(4, num_classes)

    def forward(self, x, returnt="out"):
        features = self.bn1(self.conv1(x)).relu().mean((2, 3))
        return features if returnt == "features" else self.classifier(features)


def get_backbone(args):
    return Small(6)
