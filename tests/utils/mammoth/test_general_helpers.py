"""Helpers that less common methods of Mammoth import from `utils`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from utils.autoaugment import CIFAR10Policy
from utils.bmm import BetaMixture1D
from utils.conditional_bn import ConditionalBatchNorm1d, ConditionalBatchNorm2d
from utils.distributed import CustomDP, make_dp, wait_for_master
from utils.errors import UsageError
from utils.mixup import mixup
from utils.triplet import batch_hard_triplet_loss, negative_only_triplet_loss


def test_mixup_has_one_coefficient_per_image_shared_by_the_couples() -> None:
    np.random.seed(0)
    images, labels = torch.ones(50, 3, 2, 2), torch.ones(50, 4)
    mixed, soft = mixup([(images, 0 * images), (labels, 0 * labels)], 1)
    share = mixed[:, 0, 0, 0]
    assert 0.5 <= share.min() < share.max() <= 1
    assert torch.equal(mixed, share.view(-1, 1, 1, 1).expand_as(mixed)) and torch.equal(soft[:, 2], share)
    assert torch.equal(mixup([(images, 0 * images)], 1, force_lambda=0.25), 0.25 * images)


def test_triplets_of_the_hardest_pairs() -> None:
    labels, points = torch.tensor([0, 0, 1]), torch.tensor([[0.0], [1.0], [3.0]])
    hard = batch_hard_triplet_loss(labels, points, 1, margin=5, margin_type="hard")
    assert hard is not None and hard.item() == pytest.approx((max(0, 1 - 9 + 5) + max(0, 1 - 4 + 5)) / 2)
    soft = batch_hard_triplet_loss(labels, points, 9)  # more than there are
    expected = torch.tensor([1.0 - 9, 1 - 4]).exp().log1p().mean()
    torch.testing.assert_close(soft, expected)
    negative = negative_only_triplet_loss(labels, points, 1)
    torch.testing.assert_close(negative, torch.tensor([-9.0, -4, -4]).exp().log1p().mean())


def test_without_a_valid_pair_there_is_no_loss() -> None:
    points = torch.randn(3, 2)
    assert batch_hard_triplet_loss(torch.tensor([1, 1, 1]), points, 2) is None
    assert batch_hard_triplet_loss(torch.tensor([1, 2, 3]), points, 2) is None
    assert negative_only_triplet_loss(torch.tensor([1, 1, 1]), points, 2) is None


@pytest.mark.parametrize(("kind", "shape"), [(ConditionalBatchNorm1d, (6, 3)), (ConditionalBatchNorm2d, (6, 3, 4, 4))])
def test_scale_and_shift_by_condition(kind: type, shape: tuple[int, ...]) -> None:
    layer, x, condition = kind(3, 2), torch.randn(shape), torch.tensor([0, 0, 0, 1, 1, 1])
    assert layer.embed.weight[:, 3:].abs().max() == 0 and (layer.embed.weight[:, :3] - 1).abs().max() < 0.2
    layer.embed.weight.data[1] = torch.tensor([2.0, 2, 2, 5, 5, 5])
    plain = layer.bn(x)
    torch.testing.assert_close(layer(x, condition)[3:], 2 * plain[3:] + 5)
    layer(x, condition, flag_stop_grad=condition == 1).sum().backward()
    assert layer.embed.weight.grad[1].abs().max() == 0 and layer.embed.weight.grad[0].abs().max() > 0


def test_a_mixture_of_two_betas_is_found() -> None:
    generator = np.random.RandomState(0)
    low, high = generator.beta(2, 10, 600), generator.beta(10, 2, 400)
    mixture = BetaMixture1D(max_iters=20).fit(np.concatenate([low, high]))
    assert mixture.weight == pytest.approx([0.6, 0.4], abs=0.03)
    means = mixture.alphas / (mixture.alphas + mixture.betas)
    assert means == pytest.approx([2 / 12, 10 / 12], abs=0.02)
    assert mixture.predict(high).mean() > 0.97 > 0.03 > mixture.predict(low).mean()
    mixture.create_lookup(1)
    assert mixture.look_lookup(np.array([0.05, 0.95, 1.0])) == pytest.approx([0, 1, 1], abs=0.02)
    kept, x_min, x_max = BetaMixture1D.outlier_remove(np.arange(101.0))
    assert (kept.min(), kept.max(), x_min, x_max) == (5, 95, 5 + 1e-5, 95)
    assert BetaMixture1D.normalize(np.array([0.0, 50, 200]), 0, 100) == pytest.approx([1e-3, 0.5, 0.999])


def test_a_published_policy_augments_an_image() -> None:
    image = Image.fromarray(np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3))
    torch.manual_seed(0)
    changed = [np.asarray(CIFAR10Policy()(image)).tolist() != np.asarray(image).tolist() for _ in range(20)]
    assert sum(changed) > 5 and CIFAR10Policy.__name__ == "CIFAR10Policy"


def test_there_is_one_device() -> None:
    assert not isinstance(torch.nn.Linear(1, 1), CustomDP) and wait_for_master() is None
    for make in (make_dp, CustomDP):
        with pytest.raises(UsageError, match="a run uses one device"):
            make(torch.nn.Linear(1, 1))
