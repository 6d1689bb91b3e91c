"""Train and eval mode of a network, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def network_mode(net: nn.Module, training: bool) -> Iterator[None]:
    """The network in train or eval mode; afterwards every module is back in its own (a part may be frozen in eval)."""
    modes = [(module, module.training) for module in net.modules()]
    net.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
