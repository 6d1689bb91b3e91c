"""Gradients that leave no trace in the network they are taken of, and arithmetic with them.

Written for DGC (dgc_estimators.py, which explains the notation) and used wherever a gradient over a set is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Vector = dict[str, Tensor]  # one tensor per parameter, by name, with its shape and strides
Loss = Callable[[Tensor, Tensor], Tensor]
ALL = slice(None)
CHUNK = 256  # images per pass over a whole set


class Term(NamedTuple):
    """A weighted mean cross-entropy over some rows and columns of a pass's outputs."""

    labels: Tensor  # counted from the first of the columns
    rows: Any = ALL
    columns: slice = ALL
    weight: float | Tensor = 1.0


@dataclass(frozen=True)
class Pass:
    """Images that go through the network together, and what counts of it."""

    inputs: Tensor
    terms: tuple[Term, ...]
    training: bool = False  # BatchNorm normalises by the batch, not by the running statistics

    def loss(self, net: nn.Module, loss: Loss) -> Tensor:
        outputs = net(self.inputs)
        first, *others = [t.weight * loss(outputs[t.rows, t.columns], t.labels) for t in self.terms]
        return sum(others, first)

    def __len__(self) -> int:
        return sum(len(term.labels) for term in self.terms)


@contextmanager
def borrowed(net: nn.Module, training: bool = False) -> Iterator[None]:
    """In train or in eval mode for a while; in neither do BatchNorm's running statistics change."""
    modes = [(module, module.training) for module in net.modules()]
    tracking = [module for module in net.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    net.train(training)
    for layer in tracking if training else ():
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in tracking:
            layer.track_running_stats = True
        for module, mode in modes:
            module.training = mode


def gradient(net: nn.Module, loss: Loss, passes: Iterable[Pass], names: Iterable[str]) -> Vector:
    """The gradient of the passes' sum for the named parameters; not through `.grad`, which belongs to the base.

    What the loss does not depend on, or what is frozen in this network, is not in it.
    """
    parameters = dict(net.named_parameters())
    wanted = {name: parameters[name] for name in names if name in parameters and parameters[name].requires_grad}
    if not wanted:
        return {}
    total: Tensor | float = 0.0
    with torch.enable_grad():
        for batch in passes:
            with borrowed(net, batch.training):
                total = total + batch.loss(net, loss)
        found = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)  # type: ignore[arg-type]
    return {name: g for name, g in zip(wanted, found, strict=True) if g is not None}


def mean_gradient(
    net: nn.Module, loss: Loss, passes: Iterable[Pass], names: Iterable[str], per_pass: bool = False
) -> Vector:
    """G(D;θ) from the passes of a set; `per_pass` gives a short last one the weight of a full one."""
    names, count, parameters = list(names), 0, dict(net.named_parameters())
    total: Vector = {}
    for batch in passes:
        weight = 1 if per_pass else len(batch)
        found = gradient(net, loss, [batch], names)
        # With the strides of the parameters, which are fast to add to them.
        total |= {name: torch.zeros_like(parameters[name]) for name in found if name not in total}
        accumulate(total, found, weight)
        count += weight
    if total:
        torch._foreach_div_(list(total.values()), max(count, 1))
    return total


def shapes(net: nn.Module) -> dict[str, torch.Size]:
    """Shape of each entry of its state, by name; differs once the network has grown."""
    return {name: value.shape for name, value in net.state_dict().items()}


def padded(vector: Tensor, like: Tensor) -> Tensor:
    """A vector for a parameter that has grown since (a head with new outputs): zero for what is new."""
    if vector.shape == like.shape:
        return vector
    larger = torch.zeros_like(like)
    larger[tuple(slice(size) for size in vector.shape)] = vector
    return larger


def accumulate(total: Vector, vector: Vector, scale: float = 1.0) -> None:
    """total += scale · vector; what only one of them has counts as zero in the other."""
    for name, value in vector.items():
        total[name] = padded(total[name], value) if name in total else torch.zeros_like(value)
    if vector:
        torch._foreach_add_([total[name] for name in vector], list(vector.values()), alpha=scale)


def add_to_gradients(parameters: Iterable[tuple[str, Tensor]], vector: Vector, scale: float | Tensor) -> None:
    """`.grad` += scale · vector, where it is trained; a parameter without a gradient gets this one."""
    gradients, additions = [], []
    for name, p in parameters:
        if name in vector and p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            gradients.append(p.grad)
            additions.append(padded(vector[name], p))
    if not gradients:
        return
    if isinstance(scale, Tensor):  # to read it would make the host wait
        additions, scale = list(torch._foreach_mul(additions, scale)), 1.0
    torch._foreach_add_(gradients, additions, alpha=scale)


def shrink(vector: Vector, factor: float) -> None:
    """vector *= factor."""
    if vector:
        torch._foreach_mul_(list(vector.values()), factor)


def share(images: int, others: int) -> float:
    """The weight of some images beside others: the paper's 1/t and (t−1)/t for tasks of any size (Remark 3.1)."""
    return images / (images + others)
