"""What every network offers to the methods: `returnt`, flat parameter and gradient vectors, its device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

ReturnTypes = Literal["out", "features", "both", "full"]


def check_returnt(returnt: str) -> None:
    """Refuse an unknown `returnt` before the network computes (and BatchNorm counts) anything."""
    if returnt not in get_args(ReturnTypes):
        raise ValueError(f"unknown returnt {returnt!r}; valid are {', '.join(get_args(ReturnTypes))}")


def returned(returnt: ReturnTypes, features: Tensor, classifier: nn.Module, maps: Any = None) -> Any:
    """What `returnt` asks a network for; one without intermediate maps gives its features in their place."""
    if returnt == "features":
        return features
    logits = classifier(features)
    if returnt == "out":
        return logits
    return logits, features if returnt == "both" or maps is None else maps


def xavier(m: nn.Module) -> None:
    """For `net.apply(xavier)`: Glorot-uniform weights and zero biases in linear layers, others untouched."""
    if isinstance(m, nn.Linear):
        nn.init.xavier_uniform_(m.weight)
        if m.bias is not None:
            nn.init.zeros_(m.bias)


def num_flat_features(x: Tensor) -> int:
    """How many numbers one sample of the batch `x` has."""
    return x[0].numel()


class MammothBackbone(nn.Module):
    """Base of all networks. A subclass implements `forward(x, returnt)` and ends in a linear `classifier`.

    `returnt` selects what `forward` gives: 'out' the logits, 'features' the vector that enters the
    classifier, 'both' the pair (logits, features), 'full' the logits and the intermediate maps.
    """

    body_frozen = False  # `--body_lr_scale 0`: then BatchNorm stays in eval mode

    def __init__(self, **kwargs: Any):
        super().__init__()
        self.device = torch.device(kwargs.get("device", "cpu"))

    def train(self, mode: bool = True) -> MammothBackbone:
        super().train(mode)
        if self.body_frozen:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def to(self, *args: Any, **kwargs: Any) -> MammothBackbone:
        """As `nn.Module.to`, and notes in `device` where the parameters now are."""
        super().to(*args, **kwargs)
        first = next(self.parameters(), None)
        if first is not None:
            self.device = first.device
        return self

    def forward(self, x: Tensor, returnt: ReturnTypes = "out") -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def features(self, x: Tensor) -> Tensor:
        return self(x, returnt="features")

    def get_params(self) -> Tensor:
        """All parameters as one flat vector, through which gradients flow."""
        return torch.cat([parameter.reshape(-1) for parameter in self.parameters()])

    def set_params(self, new_params: Tensor) -> None:
        """Write a vector of `get_params` back, in place: optimizers keep pointing at the same parameters."""
        with torch.no_grad():
            for parameter, values in self._split(new_params):
                parameter.copy_(values)

    def get_grads(self) -> Tensor:
        """All gradients as one flat vector, in the order of `get_params`; every parameter must have one."""
        grads = []
        for name, parameter in self.named_parameters():
            if parameter.grad is None:
                raise RuntimeError(f"parameter {name!r} has no gradient; call backward on a loss that uses it")
            grads.append(parameter.grad.reshape(-1))
        return torch.cat(grads)

    def set_grads(self, new_grads: Tensor) -> None:
        """Give every parameter its part of a flat vector as gradient, whether or not it had one."""
        for parameter, values in self._split(new_grads):
            parameter.grad = values.detach().clone()

    def _split(self, vector: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        parameters = list(self.parameters())
        sizes = [parameter.numel() for parameter in parameters]
        if vector.shape != (sum(sizes),):
            raise ValueError(f"vector of shape {tuple(vector.shape)} given for {sum(sizes)} parameters")
        for parameter, values in zip(parameters, vector.split(sizes), strict=True):
            yield parameter, values.view(parameter.shape)
