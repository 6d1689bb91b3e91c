"""A mixture of two Beta densities on [0, 1], which tells clean from noisy samples (Arazo et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

EDGE = 1e-4  # the densities may be infinite at 0 and 1
POINTS = 100  # of the table of posteriors


class BetaMixture1D:
    """Fitted by expectation maximisation, whose second step matches weighted means and variances."""

    def __init__(
        self,
        max_iters: int = 10,
        alphas_init: Sequence[float] = (1, 2),
        betas_init: Sequence[float] = (2, 1),
        weights_init: Sequence[float] = (0.5, 0.5),
    ):
        self.alphas, self.betas, self.weight = (
            np.array(values, dtype=np.float64) for values in (alphas_init, betas_init, weights_init)
        )
        self.max_iters = max_iters
        self.lookup: Any = np.zeros(POINTS)

    @staticmethod
    def outlier_remove(x: Any) -> tuple[Any, Any, Any]:
        """(values between the percentiles 5 and 95, lower end of the range, upper end)."""
        x = np.asarray(x)
        low, high = np.percentile(x, 5), np.percentile(x, 95)
        kept = x[(x >= low) & (x <= high)]
        return kept, kept.min() + 1e-5, kept.max()

    @staticmethod
    def normalize(x: Any, x_min: Any, x_max: Any) -> Any:
        """From the range to [0.001, 0.999]."""
        return np.clip((np.asarray(x) - x_min) / (x_max - x_min + 1e-6), 1e-3, 1 - 1e-3)

    def fit(self, x: Any) -> BetaMixture1D:
        x = np.clip(np.asarray(x, dtype=np.float64), EDGE, 1 - EDGE)
        for _ in range(self.max_iters):
            shares = self._responsibilities(x)
            mass = shares.sum(1)
            mean = (shares * x).sum(1) / mass
            variance = (shares * (x - mean[:, None]) ** 2).sum(1) / mass
            concentration = mean * (1 - mean) / np.maximum(variance, 1e-12) - 1
            self.alphas, self.betas = mean * concentration, (1 - mean) * concentration
            self.weight = mass / mass.sum()
        return self

    def _joint(self, x: Any) -> Any:
        from scipy.stats import beta

        densities = beta.pdf(np.asarray(x)[None], self.alphas[:, None], self.betas[:, None])
        return self.weight[:, None] * densities

    def _responsibilities(self, x: Any) -> Any:
        joint = np.maximum(self._joint(x), 1e-12)
        return joint / joint.sum(0)

    def posterior(self, x: Any, y: int) -> Any:
        """Probability of component y."""
        return self._responsibilities(np.atleast_1d(np.asarray(x, dtype=np.float64)))[y].reshape(np.shape(x))

    def predict(self, x: Any) -> Any:
        return self.posterior(x, 1) > 0.5

    def create_lookup(self, y: int) -> None:
        """Tabulate the posterior of component y; beyond its maximum it stays there."""
        table = self.posterior(np.linspace(EDGE, 1 - EDGE, POINTS), y)
        top = int(table.argmax())
        table[top:] = table[top]
        self.lookup = table

    def look_lookup(self, x: Any) -> Any:
        rows = (POINTS * np.clip(np.asarray(x), EDGE, 1 - EDGE)).astype(int)
        return self.lookup[rows]
