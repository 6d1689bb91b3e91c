"""Weights that torchvision has trained on ImageNet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from utils.errors import UserError


def load_imagenet(net: nn.Module, name: str, rename: Callable[[str], str] = str) -> None:
    """Those of torchvision's network `name`, all but the classifier's, into one with other names for its parts."""
    from torchvision.models import get_model_weights  # not above: it takes as long to import as torch

    weights = get_model_weights(name).DEFAULT  # type: ignore[attr-defined]
    state = fetched(lambda: weights.get_state_dict(progress=True), weights.url)
    own = net.state_dict()
    net.load_state_dict(own | {rename(key): value for key, value in state.items() if not key.startswith("fc.")})


def fetched(fetch: Callable[[], Any], url: str, otherwise: str = "") -> Any:
    """Pretrained weights from the network, or the place where they can be put by hand."""
    try:
        return fetch()
    except Exception as error:  # urllib's, requests', huggingface_hub's: whatever a download may raise
        folder = Path(torch.hub.get_dir(), "checkpoints")
        place = f"put it at {folder / Path(url).name}" if url.startswith("http") else ""
        reason = " ".join(str(error).split())[:150]
        remedy = " or ".join(filter(None, (place, otherwise)))
        raise UserError(f"{url} can't be fetched ({reason}); get the file elsewhere and {remedy}") from None
