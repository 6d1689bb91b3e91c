"""The parts of X-DER that are functions of logits alone. Shapes: B images, C classes, all heads side by side.

Nothing here waits for the device: rows that do not count are masked, never taken out.
"""

from __future__ import annotations

import torch
from torch import Tensor


def graft(old: Tensor, new: Tensor, labels: Tensor, heads: slice, gamma: float) -> Tensor:
    """The logits `old` [B, C] with the columns `heads` taken from `new`, kept below the logit of the true class.

    Where the highest new logit exceeds old[y], the new ones are scaled by γ · old[y] / highest. If old[y] is not
    positive, no scaling brings them below it, and that factor turns signs around or explodes; so it is kept in [0, 1].
    (The published code lets it go. For old[y] > 0 it is in [0, γ] anyway.)
    """
    part, truth = new[:, heads], old.gather(1, labels[:, None])
    highest = part.amax(1, keepdim=True)
    factor = (gamma * truth / highest).clamp(0, 1).where(highest > truth, 1)
    grafted = old.clone()
    grafted[:, heads] = part * factor
    return grafted


def mean_violation(violation: Tensor, counted: Tensor | None = None) -> Tensor:
    """Mean over the rows that are above 0 (and `counted`); 0 if there are none."""
    violated = violation > 0 if counted is None else (violation > 0) & counted
    return violation.where(violated, 0).sum() / violated.sum().clamp(min=1)


def past_constraint(outputs: Tensor, n_past: int, n_seen: int, margin: float) -> Tensor:
    """New images: the most probable past class must stay `margin` below the most probable current one.

    The past probability has no gradient: the current head has to rise, past heads are not pushed down.
    """
    probabilities = outputs[:, :n_seen].softmax(1)
    past, current = probabilities[:, :n_past].amax(1), probabilities[:, n_past:].amax(1)
    return mean_violation(past.detach() + margin - current)


def future_constraint(
    outputs: Tensor, own_head: Tensor, n_seen: int, margin: float, counted: Tensor | None = None
) -> Tensor:
    """The highest future logit must stay `margin` below the highest of the image's own head.

    `own_head` [B, C] marks the classes of the task that the image is from.
    """
    own = outputs.masked_fill(~own_head, -torch.inf).amax(1)
    return mean_violation(outputs[:, n_seen:].amax(1) + margin - own, counted)
