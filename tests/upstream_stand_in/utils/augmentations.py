"""Transforms of batches."""

import torch


def apply_transform(x, transform, autosqueeze=False):
    if transform is None:
        return x
    if hasattr(transform, "whole_batch"):
        return transform(x)
    return torch.stack([transform(image) for image in x.cpu()]).to(x.device)
