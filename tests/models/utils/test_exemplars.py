"""Herding: each pick against a search in double precision, and the buffer that is refilled with the picks."""

from __future__ import annotations

import pytest
import torch

from datasets.utils.image_set import ImageSet
from models.utils import exemplars
from models.utils.exemplars import compute_features, refill_by_herding
from utils.buffer import Buffer
from utils.herding import herd

pytestmark = pytest.mark.numeric


def random_features(n: int, d: int, seed: int) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def slow_herd(features: torch.Tensor, quota: int) -> list[int]:
    """Try each row that is left; keep the one with which the mean is closest to that of all."""
    features = features.double()
    goal, chosen = features.mean(0), []
    for _ in range(min(quota, len(features))):
        distances = {
            row: (features[[*chosen, row]].mean(0) - goal).norm().item()
            for row in range(len(features))
            if row not in chosen
        }
        chosen.append(min(distances, key=distances.__getitem__))
    return chosen


@pytest.mark.parametrize("offset", [0, 50])  # features far from the origin, as after a ReLU
@pytest.mark.parametrize("seed", range(3))
def test_each_pick_is_the_best_one(seed: int, offset: float, device: torch.device) -> None:
    features = random_features(40, 6, seed) + offset
    picks = herd(features.to(device), 40)
    assert picks.device.type == device.type and picks.dtype == torch.int64
    assert picks.tolist() == slow_herd(features, 40)
    assert herd(features, 7).tolist() == picks.tolist()[:7]  # a smaller quota is the beginning of a larger one


def test_by_hand() -> None:
    """The mean is 3: first 3.5; then 2, since 2.75 is nearer than 2 and 4.75; then 6, since 3.83 is nearer than 2."""
    features = torch.tensor([[0.5], [3.5], [2.0], [6.0]])
    assert herd(features, 2).tolist() == [1, 2] and herd(features, 9).tolist() == [1, 2, 3, 0]


def test_its_mean_is_closer_than_that_of_a_random_choice() -> None:
    features, generator = random_features(300, 16, 0), torch.Generator().manual_seed(0)
    goal = features.mean(0)
    herded = (features[herd(features, 10)].mean(0) - goal).norm()
    random = [(features[torch.randperm(300, generator=generator)[:10]].mean(0) - goal).norm() for _ in range(50)]
    assert herded < 0.6 * min(random)


def test_quotas_at_the_edge() -> None:
    features = random_features(5, 3, 0)
    assert herd(features, 0).tolist() == [] and herd(features[:1], 3).tolist() == [0]
    assert sorted(herd(features, 99).tolist()) == [0, 1, 2, 3, 4]
    assert len(set(herd(torch.ones(4, 2), 3).tolist())) == 3  # equal features: no row twice


def test_features_come_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exemplars, "CHUNK", 4)
    images, sizes = torch.arange(30, dtype=torch.uint8).view(10, 3, 1, 1), []

    def features_of(x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.uint8 and not torch.is_grad_enabled()
        sizes.append(len(x))
        return x.flatten(1).double()

    features = compute_features(images, features_of, normalize=False)
    assert sizes == [4, 4, 2] and features.dtype == torch.float32
    assert torch.equal(features, images.flatten(1).float())
    torch.testing.assert_close(compute_features(images, features_of, normalize=True).norm(dim=1), torch.ones(10))


@pytest.mark.parametrize("normalize", [False, True])
def test_refill(normalize: bool) -> None:
    """Classes 0 and 1 with 4 exemplars each, then 2 and 3 with 3 each: all bytes and the order survive."""
    random = torch.Generator().manual_seed(0)
    data = torch.randint(256, (60, 2, 2, 3), dtype=torch.uint8, generator=random)  # NHWC
    targets = torch.arange(60) % 4
    buffer = Buffer(12, image_dtype=torch.uint8)

    def features_of(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).float() - 100

    orders = {}
    for label in range(4):
        features = data[targets == label].permute(0, 3, 1, 2).flatten(1).double() - 100
        features = features / features.norm(dim=1, keepdim=True) if normalize else features
        orders[label] = data[targets == label][slow_herd(features, 15)].permute(0, 3, 1, 2)
    for classes, quota in ((range(2), 4), (range(2, 4), 3)):
        own = (targets >= classes.start) & (targets < classes.stop)
        refill_by_herding(buffer, ImageSet(data[own], targets[own]), classes, quota, features_of, normalize)
        assert len(buffer) == buffer.num_seen_examples == classes.stop * quota
        assert buffer.labels[: len(buffer)].tolist() == [label for label in range(classes.stop) for _ in range(quota)]
        for label in range(classes.stop):
            assert torch.equal(buffer.examples[label * quota : (label + 1) * quota], orders[label][:quota])


def test_normalisation_matters_to_the_choice() -> None:
    features = random_features(50, 4, 1) * torch.linspace(0.1, 10, 50)[:, None]
    normalised = features / features.norm(dim=1, keepdim=True)
    assert herd(features, 10).tolist() != herd(normalised, 10).tolist()
