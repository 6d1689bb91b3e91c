"""What stands for Kornia's pipelines: whole batches, without gradient."""

import torch
from torchvision.transforms import ToTensor


class KorniaAugNoGrad:
    whole_batch = True

    def __init__(self, transforms):
        self.transforms = [t for t in transforms if not isinstance(t, ToTensor)]

    @torch.no_grad()
    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x
