"""Which images stand for all: their weighted loss gradients at the last layer add up to the gradient of all."""

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
    """Greedy argmin over w ≥ 0 with at most `budget` entries above 0 of ‖Σ wᵢgᵢ − g‖² + ridge·‖w‖².

    `gram` is ⟨gᵢ, gⱼ⟩ and `target` ⟨gᵢ, g⟩. Again and again the item joins that correlates most with what is left of
    g, and all weights are fitted anew; a weight that would become negative leaves (Lawson & Hanson 1974). Without
    the budget that ends in the exact solution.
    """
    fit = _RidgeFit(gram, target, ridge)
    if budget >= len(gram) and fit.take_all():
        return fit.weights
    tolerance = ROUNDING * float(target.abs().max())
    for _ in range(3 * len(gram)):  # rounding errors could let an item come and go for ever
        if len(fit.active) >= budget:
            break
        correlation = target - gram @ fit.weights
        correlation[fit.active] = -torch.inf
        best = int(correlation.argmax())
        if correlation[best] <= tolerance:
            break
        fit.append(best)
        fit.solve()
    return fit.weights


class _RidgeFit:
    """Weights of the active items that solve (G + ridge·I) w = target among them, all of them positive."""

    def __init__(self, gram: Tensor, target: Tensor, ridge: float):
        self.gram, self.target, self.ridge = gram, target, ridge
        self.active: list[int] = []
        self.weights = torch.zeros_like(target)
        # Cholesky factor of the active block, in the order of `active`. Column-major, as LAPACK wants it: no copies.
        self._factor = torch.zeros_like(gram).T

    def take_all(self) -> bool:
        """If the solution without the constraint on the signs keeps to it, it is the solution."""
        weights = torch.linalg.solve(self._ridged(self.gram), self.target)
        positive = bool((weights > 0).all())
        if positive:
            self.weights = weights
        return positive

    def append(self, item: int) -> None:
        """One more row of the factor: O(k²), where a new factorisation would be O(k³)."""
        k = len(self.active)
        row = self.gram[item, self.active]
        row = torch.linalg.solve_triangular(self._factor[:k, :k], row[:, None], upper=False)[:, 0]
        self._factor[k, :k] = row
        self._factor[k, k] = (self.gram[item, item] + self.ridge - row @ row).sqrt()
        self.active.append(item)

    def solve(self) -> None:
        """From the present weights straight towards the solution; an item that reaches 0 on the way is dropped."""
        while self.active:
            k, now = len(self.active), self.weights[self.active]
            solution = torch.cholesky_solve(self.target[self.active][:, None], self._factor[:k, :k])[:, 0]
            negative = solution <= 0
            if not negative.any():
                self.weights[self.active] = solution
                return
            shares = now[negative] / (now[negative] - solution[negative])
            moved = now + shares.min() * (solution - now)
            moved[negative.nonzero()[shares.argmin()]] = 0
            self.weights[self.active] = moved.clamp(min=0)
            self._keep([item for item, weight in zip(self.active, moved.tolist(), strict=True) if weight > 0])

    def _keep(self, items: list[int]) -> None:
        self.active, k = items, len(items)
        self._factor[:k, :k] = torch.linalg.cholesky(self._ridged(self.gram[items][:, items]))

    def _ridged(self, block: Tensor) -> Tensor:
        return block + self.ridge * torch.eye(len(block), dtype=block.dtype)


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

    If the classes' quotas exceed the budget the largest weights stay. If too few items have a positive weight, others
    join at random, with weight 1. All on the host.
    """
    labels, weights = labels.cpu(), weights.double().cpu()
    found = torch.zeros_like(weights)
    counts = labels.bincount()
    for label, quota in enumerate(class_quotas(counts, budget).tolist()):
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
