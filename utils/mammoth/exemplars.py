"""Exemplars in the manner of iCaRL: a class-balanced buffer, refilled after each task, which joins the next one's data.

Mammoth's models find these two functions in `utils.buffer`. They know a training set by `data` and `targets` alone.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from utils.augmentations import to_uint8
from utils.batch_norm import network_mode
from utils.conf import create_seeded_dataloader
from utils.errors import UserError
from utils.herding import first_of_each, herd


def icarl_replay(self: Any, dataset: Any, val_set_split: float = 0) -> None:
    """From the second task on, add the images of the model's buffer to the task's training set, in place.

    With `val_set_split` a random part of both, of about that share, becomes `self.val_dataset` and `self.val_loader`
    instead.
    """
    if self.current_task == 0:
        return
    loader, images = dataset.train_loader, dataset.train_loader.dataset
    examples, labels, *_ = self.buffer.get_all_data()
    data, targets = in_form_of(images.data, examples), labels.cpu().numpy()
    data, targets = concatenate(images.data, data), np.concatenate((np.asarray(images.targets), targets))
    held_out = np.random.rand(len(targets)) < val_set_split if val_set_split else np.zeros(len(targets), bool)
    if val_set_split:
        self.val_dataset = copy.deepcopy(images)
        self.val_dataset.data, self.val_dataset.targets = data[held_out], targets[held_out]
        self.val_loader = _loader_like(loader, self.val_dataset, self.args)
    images.data, images.targets = data[~held_out], targets[~held_out]


def in_form_of(data: Any, examples: Tensor) -> Any:
    """Images in [0, 1], NCHW, in the form of the training set's: bytes or not, channels last, first, or none."""
    if not hasattr(data, "dtype"):
        raise UserError(f"the training set's images are a {type(data).__name__}, no array: no exemplars can be added")
    examples = examples.cpu()
    as_bytes = data.dtype in (np.uint8, torch.uint8)
    examples = to_uint8(examples) if as_bytes else examples
    if data.ndim == 3:
        examples = examples.squeeze(1)
    elif tuple(data.shape[1:]) != tuple(examples.shape[1:]):
        examples = examples.permute(0, 2, 3, 1)
    if tuple(data.shape[1:]) != tuple(examples.shape[1:]):
        shapes = f"{tuple(examples.shape[1:])} can't join the training set's, {tuple(data.shape[1:])}"
        raise UserError(f"exemplars of shape {shapes}: the dataset changes the size of its images")
    return examples.to(data.device) if isinstance(data, Tensor) else examples.numpy()


def concatenate(a: Any, b: Any) -> Any:
    return torch.cat((a, b)) if isinstance(a, Tensor) else np.concatenate((a, b))


def _loader_like(loader: Any, images: Any, args: Any) -> Any:
    if isinstance(loader, DataLoader):
        return create_seeded_dataloader(args, images, batch_size=args.batch_size, shuffle=True)
    return loader.over(images)


@torch.no_grad()
def fill_buffer(
    buffer: Any,
    dataset: Any,
    t_idx: int,
    net: Any = None,
    use_herding: bool = False,
    required_attributes: list[str] | None = None,
    normalize_features: bool = False,
    extend_equalize_buffer: bool = False,
) -> None:
    """At the end of task `t_idx`: as many images of every class seen as fit.

    The first stored ones of an old class stay; those of a new one are chosen by herding on the features of `net`, or
    at random. Exemplars that were added to the training set leave it again.
    """
    first, seen = dataset.get_offsets(t_idx)
    _drop_old_classes(dataset.train_loader.dataset, first)
    capacity = dataset.args.buffer_size
    quota = math.ceil(capacity / seen) if extend_equalize_buffer else capacity // seen
    if quota == 0:
        raise UserError(f"--buffer_size {capacity} has no room for an image of each of the {seen} classes seen")
    kept = first_of_each(buffer, first, quota) if first and not buffer.is_empty() else {}
    buffer.empty()
    buffer.buffer_size = quota * seen if extend_equalize_buffer else capacity
    if kept:
        buffer.add_data(**kept)
    wanted = required_attributes or ["examples", "labels"]
    fields, features = _read_task(dataset, t_idx, net, wanted, use_herding)
    for label in range(first, seen):
        rows = (fields["labels"] == label).nonzero().flatten()
        if use_herding:
            own = features[rows]
            rows = rows[herd(F.normalize(own) if normalize_features else own, quota)]
        else:
            rows = rows[torch.from_numpy(np.random.permutation(len(rows))[:quota])]
        buffer.add_data(**{name: fields[name][rows] for name in wanted})


def _drop_old_classes(images: Any, first: int) -> None:
    new = np.asarray(images.targets) >= first
    if not new.all():
        images.data, images.targets = images.data[new], images.targets[new]


def _read_task(
    dataset: Any, t_idx: int, net: Any, wanted: list[str], use_herding: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """What can be stored of the task's training images, and their features if those are needed."""
    examples, labels, logits, features = [], [], [], []
    normalise = dataset.get_normalization_transform() or (lambda images: images)
    for batch in dataset.train_loader:
        examples.append(batch[2].cpu())
        labels.append(batch[1].cpu())
        if use_herding or "logits" in wanted:
            device = getattr(net, "device", None) or next(net.parameters()).device
            with network_mode(net, training=False):
                found = net(normalise(batch[2]).to(device), returnt="features")
                features.append(found.cpu())
                logits.append(torch.sigmoid(net.classifier(found)).cpu())
    fields = {"examples": torch.cat(examples), "labels": torch.cat(labels)}
    fields["task_labels"] = torch.full_like(fields["labels"], t_idx)
    if logits:
        fields["logits"] = torch.cat(logits)
    return fields, torch.cat(features) if features else torch.empty(0)
