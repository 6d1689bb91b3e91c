"""Exemplars by herding: the few images whose mean feature is closest to that of their class (Welling 2009; iCaRL)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from datasets.utils.image_set import ImageSet
from models.utils.balanced_memory import keep_first_of_each
from utils.buffer import Buffer
from utils.errors import UsageError

CHUNK = 256  # images per forward pass


@torch.no_grad()
def herd(features: Tensor, quota: int) -> Tensor:
    """Rows in herding order, min(quota, n) of them.

    Row k is the one, not chosen before, that brings the mean of the k chosen closest to the mean μ of all: with
    c_i = φ_i − μ and s = Σ c over the k − 1 chosen, argmin ‖s + c_i‖² = argmin ‖c_i‖² + 2 c_i·s. A pick is one
    product of matrix and vector; nothing is read back from the device.
    """
    # In double precision, which MPS lacks: rounding errors would decide near ties after hundreds of picks.
    features = features if features.device.type == "mps" else features.double()
    centred = features - features.mean(0)
    norms = centred.square().sum(1)
    products = torch.zeros_like(norms)
    picks = [torch.empty(0, dtype=torch.int64, device=features.device)]
    for _ in range(min(quota, len(features))):
        pick = (norms + 2 * products).argmin(0, keepdim=True)
        norms.index_fill_(0, pick, math.inf)  # never again
        products += centred @ centred.index_select(0, pick)[0]
        picks.append(pick)
    return torch.cat(picks)


@torch.no_grad()
def compute_features(images: Tensor, features_of: Callable[[Tensor], Tensor], normalize: bool) -> Tensor:
    """Features of 8-bit images (NCHW), `CHUNK` at a time, in the mode that the network is in; on the unit sphere with
    `normalize`. `features_of` also prepares the images (normalisation of pixels)."""
    features = torch.cat([features_of(chunk).float() for chunk in images.split(CHUNK)])
    return F.normalize(features, dim=1) if normalize else features


def append_exemplars(images: ImageSet, buffer: Buffer) -> None:
    """Let a task be trained on all of memory as well, until `drop_appended`."""
    if images.extra_return_fields:
        fields = ", ".join(images.extra_return_fields)
        raise UsageError(
            f"exemplars can't join a training set that gives {fields}, too (--noise_rate): use another method"
        )
    if not buffer.is_empty():
        stored = len(buffer)
        images.append(buffer.examples[:stored], buffer.labels[:stored])


def refill_by_herding(
    buffer: Buffer,
    images: ImageSet,
    classes: range,
    quota: int,
    features_of: Callable[[Tensor], Tensor],
    normalize: bool = True,
) -> None:
    """At the end of a task with these classes: `quota` exemplars of each class seen, in herding order.

    Classes before them keep their first ones. The new ones are herded from `images` (the task's own, nothing appended)
    and join class by class. The caller puts the network into eval mode.
    """
    keep_first_of_each(buffer, classes.start, quota)
    for label in classes:
        rows = (images.targets == label).nonzero()[:, 0]
        features = compute_features(images.batch(rows).to(buffer.device), features_of, normalize)
        chosen = rows[herd(features, quota).to(rows.device)]
        buffer.add_data(examples=images.batch(chosen), labels=images.targets[chosen])
