"""What stands for Kornia's pipelines: whole batches, without gradient."""

import torch
from torch import nn
from torchvision.transforms import ToTensor


class KorniaAugNoGrad(nn.Module):  # as there: a class attribute of a model would hide what torch has in `_modules`
    whole_batch = True

    def __init__(self, transforms):
        super().__init__()
        self.transforms = [t for t in transforms if not isinstance(t, ToTensor)]

    @torch.no_grad()
    def forward(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x
