"""`--noise_rate` and `--label_perc`: labels of the training set that are wrong, or missing."""

from __future__ import annotations

from argparse import Namespace

import torch
from torch import Tensor

from utils.random_streams import new_generator

UNLABELLED = -1


# A namespace that was made by hand may lack the flags.


def some_wrong(args: Namespace) -> bool:
    return getattr(args, "noise_rate", 0) > 0


def some_unlabelled(args: Namespace) -> bool:
    return min(getattr(args, "label_perc", 1), getattr(args, "label_perc_by_class", 1)) < 1


def noisy_labels(targets: Tensor, n_classes: int, args: Namespace) -> Tensor:
    """Symmetric noise: that share of the labels, at random, becomes another one, any other with the same chance."""
    generator = new_generator(args.seed, "label_noise")
    wrong = torch.randperm(len(targets), generator=generator)[: round(args.noise_rate * len(targets))]
    shifts = torch.randint(1, n_classes, (len(wrong),), generator=generator)
    noisy = targets.clone()
    noisy[wrong] = (targets[wrong] + shifts) % n_classes
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
