"""A network that gains a feature extractor with every task."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from backbone.mammoth_backbone import MammothBackbone, ReturnTypes, check_returnt, returned
from utils.augmentations import to_device


def linear(inputs: int, outputs: int, like: Tensor, generator: torch.Generator) -> nn.Linear:
    """A layer on the device of `like`: Kaiming-uniform weights (linear gain), drawn on the host, and zero biases."""
    layer = skip_init(nn.Linear, inputs, outputs, device=like.device, dtype=like.dtype)
    bound = math.sqrt(3 / inputs)
    weight = torch.empty(outputs, inputs).uniform_(-bound, bound, generator=generator)
    with torch.no_grad():
        layer.weight.copy_(to_device(weight, like.device))
        layer.bias.zero_()
    return layer


@torch.no_grad()
def align_new_classes(classifier: nn.Linear, n_old: int) -> None:
    """Weight alignment (Zhao et al. 2020): scale the rows of new classes to the mean norm of the old ones."""
    norms = classifier.weight.norm(dim=1)
    classifier.weight[n_old:] *= norms[:n_old].mean() / norms[n_old:].mean()


class ExpandableNet(MammothBackbone):
    """Extractors φ₁ … φ_t side by side, of which only the newest learns, and one linear head on all of their features.

    Until the first `grow` it is the backbone as given. From then on `classifier` has the outputs of the classes met so
    far, and from the second on there is `auxiliary`, a head on φ_t alone: "an old class", then each new one.
    'full' gives (logits, [φ₁(x), …, φ_t(x)]).
    """

    auxiliary: nn.Linear | None

    def __init__(self, backbone: Any):
        super().__init__()
        self.classifier: nn.Linear = backbone.classifier
        backbone.classifier = nn.Identity()
        self.extractors = nn.ModuleList([backbone])
        self.auxiliary = None
        self.device = self.classifier.weight.device
        self.num_classes = self.classifier.out_features  # in the end
        self.n_seen_classes = 0
        self.width = self.classifier.in_features  # of one extractor

    def grow(self, n_new: int, generator: torch.Generator) -> None:
        """Be ready for `n_new` more classes; but for the first ones, with another extractor, a copy of the newest."""
        old, n_old = self.classifier, self.n_seen_classes
        if n_old:
            newest = self.extractors[-1]
            self.extractors.append(copy.deepcopy(newest))
            newest.requires_grad_(False).eval()
            self.auxiliary = linear(self.width, 1 + n_new, like=old.weight, generator=generator)
        self.n_seen_classes += n_new
        inputs = self.width * len(self.extractors)
        self.classifier = linear(inputs, self.n_seen_classes, like=old.weight, generator=generator)
        with torch.no_grad():
            self.classifier.weight[:n_old, : old.in_features] = old.weight[:n_old]
            self.classifier.bias[:n_old] = old.bias[:n_old]

    def train(self, mode: bool = True) -> ExpandableNet:
        """Old extractors stay in eval mode: in train mode BatchNorm would change what they compute."""
        super().train(mode)
        for extractor in self.extractors[:-1]:
            extractor.eval()
        return self

    def forward(self, x: Tensor, returnt: ReturnTypes = "out") -> Any:
        check_returnt(returnt)
        parts = [extractor(x, returnt="features") for extractor in self.extractors]
        return returned(returnt, torch.cat(parts, dim=1), self.classifier, parts)
