"""Which images stand for all: their weighted loss gradients at the last layer add up to the gradient of all.

A block that fits keeps its images and their weights. From others images are chosen such that, for each class, with g
the gradient of β·CE + α·MSE at the last layer,

    ‖Σ_new wᵢgᵢ − Σ_old wᵢgᵢ‖² + λ‖w‖²,  w ≥ 0

is small: by matching pursuit, with class quotas in proportion to the images, which stops as soon as the best image is
one that it has already. Random ones then fill the block, with weight 1. λ is absolute, while g vanishes as the network
learns: the longer a task is trained, the fewer images the pursuit takes and the more are random.

Ours: these gradients are of un-augmented images in eval mode (the published code augments, and normalises each image by
its batch), because they are then functions of the image alone. Old weights are in the target only, so that a block
stands for what it stood for before, up to λ; the published code has them in the gradients of both sums, and forgets
them. If the quotas exceed a block, the largest weights stay (there: the smallest).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

ROUNDING = 1e-10  # of the largest correlation: what is below is no reason to take one more item


def logit_gradients(outputs: Tensor, labels: Tensor, stored: Tensor, alpha: float, beta: float) -> Tensor:
    """δᵢ = ∂(β·CE + α·mean_C (f − z)²)/∂f of each image by itself, [n, C] in float64 on the host."""
    outputs, stored, labels = outputs.double().cpu(), stored.double().cpu(), labels.cpu()
    one_hot = F.one_hot(labels, outputs.shape[1])
    return beta * (outputs.softmax(1) - one_hot) + (2 * alpha / outputs.shape[1]) * (outputs - stored)


def gram_matrix(deltas: Tensor, features: Tensor) -> Tensor:
    """⟨gᵢ, gⱼ⟩ for gᵢ = (δᵢ ⊗ φᵢ, δᵢ), the gradient of weight and bias of the last layer, which is never formed.

    A linear layer has ∂L/∂W = δ ⊗ φ and ∂L/∂b = δ, so the product is (δᵢ·δⱼ)(φᵢ·φⱼ + 1).
    """
    features = features.double().cpu()
    return (deltas @ deltas.T) * (features @ features.T + 1)


def matching_pursuit(gram: Tensor, target: Tensor, budget: int, ridge: float) -> Tensor:
    """Weights w ≥ 0, at most `budget` of them above 0, that make ‖Σ wᵢgᵢ − g‖² + ridge·‖w‖² small.

    `gram` is ⟨gᵢ, gⱼ⟩ and `target` ⟨gᵢ, g⟩. Again and again the item joins that correlates most with what is left of g,
    and all weights are fitted anew. That ends when the best item is one of those chosen: the penalty keeps ridge·wᵢ of
    their correlation from being fitted, so they stay in the contest, and none that has less to offer than they joins.
    """
    chosen: list[int] = []
    weights = torch.zeros_like(target)
    tolerance = ROUNDING * float(target.abs().max())
    for _ in range(budget):
        left = target - gram @ weights
        best = int(left.argmax())
        if best in chosen or left[best] <= tolerance:
            break
        chosen, fitted = positive_ridge_fit(gram, target, [*chosen, best], ridge)
        weights = torch.zeros_like(target)
        weights[chosen] = fitted
    return weights


def positive_ridge_fit(gram: Tensor, target: Tensor, items: list[int], ridge: float) -> tuple[list[int], Tensor]:
    """(the items that stay, their weights): the solution of (G + ridge·I) w = target among them.

    While a weight is negative, the item of the most negative one leaves and the others are fitted anew.
    """
    while True:
        block = gram[items][:, items] + ridge * torch.eye(len(items), dtype=gram.dtype)
        weights = torch.linalg.solve(block, target[items])
        if len(items) == 1 or weights.min() >= 0:
            return items, weights
        items = [item for place, item in enumerate(items) if place != int(weights.argmin())]


def class_quotas(counts: Tensor, budget: int) -> Tensor:
    """So many items of each class: in proportion to its number, at least one of those that have any.

    They add up to the budget (largest remainders), unless it is smaller than the number of classes.
    """
    total = int(counts.sum())
    quotas = torch.maximum(budget * counts // total, (counts > 0).long())
    remainders = torch.where(quotas < counts, budget * counts - quotas * total, -total)
    rest = max(min(budget, total) - int(quotas.sum()), 0)
    quotas[remainders.argsort(descending=True, stable=True)[:rest]] += 1
    return quotas


def select(
    deltas: Tensor, features: Tensor, labels: Tensor, weights: Tensor, budget: int, ridge: float, generator: Generator
) -> tuple[Tensor, Tensor]:
    """(rows, their new weights): at most `budget`, which stand for Σ wᵢgᵢ, class by class.

    A pool no larger than the budget stays whole, with the weights that it has. If the classes' quotas exceed the budget
    the largest weights stay. If too few items have a positive weight, others join at random, with weight 1. All on the
    host.
    """
    labels, weights = labels.cpu(), weights.double().cpu()
    if len(labels) <= budget:
        return torch.arange(len(labels)), weights.float()
    found = torch.zeros_like(weights)
    for label, quota in enumerate(class_quotas(labels.bincount(), budget).tolist()):
        rows = (labels == label).nonzero()[:, 0]
        if len(rows):
            gram = gram_matrix(deltas[rows], features[rows])
            found[rows] = matching_pursuit(gram, gram @ weights[rows], quota, ridge)
    chosen = found.argsort(descending=True, stable=True)[: min(budget, int((found > 0).sum()))]
    others = (found == 0).nonzero()[:, 0]
    fill = others[torch.randperm(len(others), generator=generator)[: budget - len(chosen)]]
    found[fill] = 1
    rows = torch.cat((chosen, fill)).sort().values
    return rows, found[rows].float()
