"""The supervised contrastive loss (Khosla et al. 2020), and SimCLR's where there are no labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SupConLoss(nn.Module):
    """Pulls the views of an image, and of images with the same label, together and pushes all others apart.

    For an anchor i with positives P(i), all other views of its class, and all views a ≠ i in the denominator:

        L_i = −(τ / τ_base) · mean_{p ∈ P(i)} log( exp(z_i·z_p / τ) / Σ_{a ≠ i} exp(z_i·z_a / τ) )

    Anchors are all views (`contrast_mode='all'`) or the first of each image ('one'). An image's loss is the mean over
    its anchors; `reduction` is over images: 'mean', 'sum' or 'none'. An anchor without positives counts as 0.
    """

    def __init__(
        self,
        temperature: float = 0.07,
        contrast_mode: str = "all",
        base_temperature: float = 0.07,
        reduction: str = "mean",
    ):
        super().__init__()
        if contrast_mode not in ("all", "one"):
            raise ValueError(f"contrast_mode {contrast_mode!r} unknown; valid are all, one")
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction {reduction!r} unknown; valid are mean, sum, none")
        self.temperature, self.base_temperature = temperature, base_temperature
        self.contrast_mode, self.reduction = contrast_mode, reduction

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        """`features` [B, views, D], normalised by the caller; `labels` [B]. Without labels every image is a class."""
        if features.dim() < 3:
            raise ValueError(f"features must be [B, views, D], got {tuple(features.shape)}")
        images, views = features.shape[:2]
        labels = torch.arange(images, device=features.device) if labels is None else labels.flatten()
        z = features.flatten(2).transpose(0, 1).flatten(0, 1)  # [views·B, D]: all first views, then all second ones
        classes = labels.repeat(views)
        anchors = len(z) if self.contrast_mode == "all" else images

        similarity = z[:anchors] @ z.T / self.temperature
        itself = torch.eye(anchors, len(z), dtype=torch.bool, device=z.device)
        positive = (classes[:anchors, None] == classes) & ~itself
        log_p = similarity - similarity.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
        mean_log_p = torch.where(positive, log_p, 0.0).sum(1) / positive.sum(1).clamp(min=1)
        loss = -(self.temperature / self.base_temperature) * mean_log_p.view(-1, images).mean(0)
        return loss if self.reduction == "none" else getattr(loss, self.reduction)()
