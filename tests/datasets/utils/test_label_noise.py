"""`--noise_type asymmetric`: wrong labels of classes that are taken for each other, of our CIFAR and of plugins."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter

import pytest
import torch

from datasets.utils.label_noise import confused_with, noisy_labels
from utils.cli.parse import parse_args
from utils.errors import UsageError


def changes(dataset: str, n_classes: int, rate: float, order: list[int] | None = None, seed: int = 0) -> Counter:
    """How often each original label became which one, with 20 images a class."""
    true = torch.arange(n_classes).repeat_interleave(20)
    args = Namespace(seed=seed, noise_rate=rate, noise_type="asymmetric")
    relabelled = true if order is None else torch.tensor(order)[true]
    noisy = noisy_labels(relabelled, n_classes, args, dataset, order)
    original = noisy if order is None else torch.tensor(order).argsort()[noisy]
    return Counter((a, b) for a, b in zip(true.tolist(), original.tolist(), strict=True) if a != b)


@pytest.mark.parametrize("name", ["seq-cifar10", "seq-cifar10-224"])
@pytest.mark.parametrize("order", [None, [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]])
def test_of_cifar10_five_classes_are_taken_for_others(name: str, order: list[int] | None) -> None:
    found = changes(name, 10, 0.4, order)
    assert found == dict.fromkeys([(9, 1), (2, 0), (4, 7), (3, 5), (5, 3)], 8)


def test_of_cifar100_a_class_is_taken_for_the_next_of_its_superclass() -> None:
    confused = confused_with("seq-cifar100")
    assert sorted(confused) == sorted(confused.values()) == list(range(100))
    beds_and_so_on = [5, 20, 25, 84, 94]  # bed, chair, couch, table, wardrobe
    assert [confused[label] for label in beds_and_so_on] == [20, 25, 84, 94, 5]
    for label in range(100):  # five steps lead back
        circle = [label]
        for _ in range(5):
            circle.append(confused[circle[-1]])
        assert circle[5] == label and len(set(circle)) == 5
    found = changes("seq-cifar100", 100, 0.25)
    assert found == {(a, b): 5 for a, b in confused.items()}


def test_it_follows_from_seed_type_and_rate_alone() -> None:
    def labels(seed: int) -> list[int]:
        args = Namespace(seed=seed, noise_rate=0.4, noise_type="asymmetric")
        return noisy_labels(torch.arange(10).repeat(20), 10, args, "seq-cifar10").tolist()

    assert labels(1) == labels(1) != labels(2)


@pytest.mark.parametrize("cache", [[], ["--disable_noisy_labels_cache", "0"], ["--cache_path_noisy_labels", "there"]])
def test_the_flags_of_mammoths_cache_are_taken_and_change_nothing(cache: list[str]) -> None:
    flags = "--model sgd --dataset seq-cifar10 --seed 0 --noise_rate 0.2 --noise_type asymm".split()
    args = parse_args([*flags, *cache])
    assert args.noise_type == "asymmetric"


def test_other_datasets_are_refused() -> None:
    flags = "--model sgd --dataset seq-mnist --seed 0 --noise_type asym --noise_rate".split()
    parse_args([*flags, "0"])
    with pytest.raises(UsageError, match=r"^--noise_type asymmetric: which classes of seq-mnist .* use symmetric") as e:
        parse_args([*flags, "0.2"])
    assert "\n" not in str(e.value)
