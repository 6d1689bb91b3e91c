"""A small fully connected network, for digits and for tests."""

from __future__ import annotations

import logging
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from backbone import register_backbone
from backbone.mammoth_backbone import MammothBackbone, ReturnTypes, check_returnt, returned, xavier


class MNISTMLP(MammothBackbone):
    """Two hidden ReLU layers of equal width and a linear head; any image shape of `input_size` numbers.

    'full' gives the same pair as 'both': there are no intermediate maps. As in Mammoth weights start Xavier-uniform,
    biases at zero. With PyTorch's own start the first outputs and gradients are several times smaller, which costs 10
    points of accuracy and more in short training.
    """

    def __init__(self, input_size: int, output_size: int, hidden_size: int = 100):
        super().__init__()
        self.input_size = input_size
        self.output_size = output_size
        self.num_classes = output_size
        self.feature_dim = hidden_size
        self.fc1 = nn.Linear(input_size, hidden_size)
        self.fc2 = nn.Linear(hidden_size, hidden_size)
        self.classifier = nn.Linear(hidden_size, output_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.apply(xavier)

    # Mammoth's network holds its layers in two further modules. Made when asked for, these always have the current
    # layers, also after a model has replaced the classifier.

    @property
    def _features(self) -> nn.Sequential:
        return nn.Sequential(self.fc1, nn.ReLU(), self.fc2, nn.ReLU())

    @property
    def net(self) -> nn.Sequential:
        return nn.Sequential(self._features, self.classifier)

    def aliases(self) -> dict[str, str]:
        """Further names under which Mammoth's files have the weights of a layer."""
        places = {"fc1": ("_features.0", "net.0.0"), "fc2": ("_features.2", "net.0.2"), "classifier": ("net.1",)}
        return {name: layer for layer, names in places.items() for name in names}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Accept what Mammoth's network has written, strictly, too."""
        again = tuple(f"{prefix}{alias}." for alias in self.aliases())
        for name in [name for name in state_dict if name.startswith(again)]:
            del state_dict[name]
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(self, x: Tensor, returnt: ReturnTypes = "out") -> Any:
        check_returnt(returnt)
        features = F.relu(self.fc2(F.relu(self.fc1(x.flatten(1)))))
        return returned(returnt, features, self.classifier)


BaseMNISTMLP = MNISTMLP  # Mammoth's name


@register_backbone("mnistmlp")
def mnistmlp(num_classes: int, mlp_hidden_size: int = 100, input_size: int = 784) -> MNISTMLP:
    """Two hidden layers of 100 units: trains in seconds on a CPU."""
    if mlp_hidden_size != 100:  # Mammoth's own tests look for it
        logging.debug("hidden size is set to `%d` instead of the default `100`", mlp_hidden_size)
    return MNISTMLP(input_size, num_classes, mlp_hidden_size)
