"""Forward passes that leave the running statistics of BatchNorm alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


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
