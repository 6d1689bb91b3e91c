"""Modes of a network for a while, and BatchNorm: its running statistics, and batches that it cannot normalise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from utils.errors import UserError


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


@contextmanager
def bn_track_stats(module: nn.Module, condition: bool = True) -> Iterator[None]:
    """With a false `condition`, no pass inside changes any BatchNorm's running statistics or its counter of batches.

    In train mode a batch is still normalised by its own statistics, in eval mode by the running ones.
    """
    layers = [] if condition else [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    tracked = [layer.track_running_stats for layer in layers]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer, track in zip(layers, tracked, strict=True):
            layer.track_running_stats = track


@contextmanager
def single_images_explained(where: Callable[[], str]) -> Iterator[None]:
    """Say in one line what may have given BatchNorm a batch of one image; `where` names the step under way."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UserError(
            f"BatchNorm can't normalise a batch of a single image ({where()}): use --drop_last 1, "
            "another --batch_size or, if the buffer holds just one, a larger --buffer_size"
        ) from error
