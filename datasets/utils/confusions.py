"""Which class an image may be taken for, in original labels: `--noise_type asymmetric`."""

from __future__ import annotations

from utils.cli.registry import normalise
from utils.errors import UsageError

# Truck → automobile, bird → airplane, deer → horse, cat ↔ dog (Patrini et al. 2017).
CIFAR10 = {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}
# The published superclass of each class, in the order of the labels.
CIFAR100_SUPERCLASSES = (
    *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7),
    *(6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10),
    *(16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16),
    *(12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
)


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
