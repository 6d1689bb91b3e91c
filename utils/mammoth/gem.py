"""What A-GEM as written for Mammoth imports from `models.gem`, for where there is no such file (utils.cli.plugins)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

Parameters = Callable[[], Iterable["nn.Parameter"]]  # `self.parameters`, not called yet


def store_grad(params: Parameters, grads: Tensor, grad_dims: Sequence[int]) -> None:
    """Write the gradients into a flat vector, in which every parameter has its share; zeros where there is none."""
    for parameter, part in zip(params(), grads.zero_().split([int(n) for n in grad_dims]), strict=True):
        if parameter.grad is not None:
            part.copy_(parameter.grad.flatten())


def overwrite_grad(params: Parameters, newgrad: Tensor, grad_dims: Sequence[int]) -> None:
    """The reverse; a parameter without a gradient gets none."""
    for parameter, part in zip(params(), newgrad.split([int(n) for n in grad_dims]), strict=True):
        if parameter.grad is not None:
            parameter.grad.copy_(part.view_as(parameter.grad))
