"""Similarity-preserving knowledge distillation."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class SPKDLoss(nn.Module):
    """Tung and Mori 2019: images that look alike to the teacher should look alike to the student.

    The mean square difference (or the sum, or all of them, by `reduction`) of two matrices of similarities between the
    images of a batch, whose rows have norm 1.
    """

    def __init__(self, reduction: str = "mean"):
        super().__init__()
        self.reduction = "mean" if reduction == "batchmean" else reduction

    def forward(self, teacher_features: Tensor, student_features: Tensor) -> Tensor:
        teacher, student = (_similarities(features) for features in (teacher_features, student_features))
        return F.mse_loss(student, teacher, reduction=self.reduction)


def _similarities(features: Tensor) -> Tensor:
    flat = features.flatten(1)
    return F.normalize(flat @ flat.T, dim=1)
