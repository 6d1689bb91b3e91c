"""`--noise_rate` and `--label_perc`: labels of the training set that are wrong, or missing."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

import torch
from torch import Tensor

from datasets.utils.confusions import confused_with
from utils.random_streams import new_generator

UNLABELLED = -1


# A namespace that was made by hand may lack the flags.


def some_wrong(args: Namespace) -> bool:
    return getattr(args, "noise_rate", 0) > 0


def some_unlabelled(args: Namespace) -> bool:
    return min(getattr(args, "label_perc", 1), getattr(args, "label_perc_by_class", 1)) < 1


def noisy_labels(
    targets: Tensor, n_classes: int, args: Namespace, dataset: str = "", class_order: Sequence[int] | None = None
) -> Tensor:
    """The labels, in the class order given, of which a share is wrong; they depend on nothing but the flags."""
    generator = new_generator(args.seed, "label_noise")
    if getattr(args, "noise_type", "symmetric") == "asymmetric":
        return _asymmetric(targets, args.noise_rate, confused_with(dataset), class_order, generator)
    # That share, at random, becomes another one, any other with the same chance.
    wrong = torch.randperm(len(targets), generator=generator)[: round(args.noise_rate * len(targets))]
    shifts = torch.randint(1, n_classes, (len(wrong),), generator=generator)
    noisy = targets.clone()
    noisy[wrong] = (targets[wrong] + shifts) % n_classes
    return noisy


def _asymmetric(
    targets: Tensor,
    rate: float,
    confused: dict[int, int],
    class_order: Sequence[int] | None,
    generator: torch.Generator,
) -> Tensor:
    """That share of each class that can be taken for another, in the original labels, gets the other's label."""
    noisy = targets.clone()
    for label, other in sorted(confused.items()):
        now, then = (label, other) if class_order is None else (class_order[label], class_order[other])
        rows = (targets == now).nonzero()[:, 0]
        noisy[rows[torch.randperm(len(rows), generator=generator)[: round(rate * len(rows))]]] = then
    return noisy


def labelled(targets: Tensor, args: Namespace) -> Tensor:
    """A mask over a task's images: the part that keeps its labels, of all of them or of each class, at least one."""
    if args.label_perc_by_class < 1:
        groups, share = [(targets == label).nonzero()[:, 0] for label in targets.unique()], args.label_perc_by_class
    else:
        groups, share = [torch.arange(len(targets))], args.label_perc
    generator = new_generator(args.seed, "labelled")
    mask = torch.zeros(len(targets), dtype=torch.bool)
    for rows in groups:
        mask[rows[torch.randperm(len(rows), generator=generator)[: max(1, round(share * len(rows)))]]] = True
    return mask
