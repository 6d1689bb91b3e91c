"""`--noise_rate`, `--noise_type` and `--label_perc`: labels of the training set that are wrong, or missing."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

import torch
from torch import Tensor

from utils.cli.registry import normalise
from utils.errors import UsageError
from utils.random_streams import new_generator

UNLABELLED = -1
# Truck → automobile, bird → airplane, deer → horse, cat ↔ dog (Patrini et al. 2017).
CIFAR10 = {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}
# The published superclass of each class, in the order of the labels.
CIFAR100_SUPERCLASSES = (
    *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7),
    *(6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10),
    *(16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16),
    *(12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
)


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


# -- which class an image may be taken for, in original labels ---------------------------------------------------------


def confused_with(dataset: str) -> dict[int, int]:
    """Label → label of a dataset, which is known by its name as in Mammoth; a class that is absent keeps its labels."""
    if "cifar100" in normalise(dataset):
        return _next_of_superclass()
    if "cifar10" in normalise(dataset):
        return CIFAR10
    raise UsageError(
        f"--noise_type asymmetric: which classes of {dataset} are taken for each other is not known (of CIFAR-10 and "
        "CIFAR-100 it is); use symmetric"
    )


def _next_of_superclass() -> dict[int, int]:
    """To the next class of the same superclass, the last one to the first.

    Mammoth takes five consecutive labels for a superclass; but labels are in alphabetical order.
    """
    members: dict[int, list[int]] = {}
    for label, superclass in enumerate(CIFAR100_SUPERCLASSES):
        members.setdefault(superclass, []).append(label)
    return {a: b for group in members.values() for a, b in zip(group, [*group[1:], group[0]], strict=True)}
