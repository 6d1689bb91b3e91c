"""A domain-incremental dataset file in Mammoth's idiom: every task permutes the pixels in its own way."""

import numpy as np
import torch.nn.functional as F
import torchvision.transforms as transforms

from datasets.seq_patches import Patches
from datasets.transforms.permutation import Permutation
from datasets.utils import set_default_from_args
from datasets.utils.continual_dataset import ContinualDataset, store_masked_loaders
from utils.conf import base_path


class PermutedTriples(Patches):
    def __getitem__(self, index):
        img, target = super().__getitem__(index)
        return img, target, img


class PermutedPatches(ContinualDataset):
    NAME = "perm-patches"
    SETTING = "domain-il"
    N_CLASSES_PER_TASK = 6
    N_TASKS = 3
    SIZE = (8, 8)

    def get_data_loaders(self):
        transform = transforms.Compose((transforms.ToTensor(), Permutation(np.prod(self.SIZE) * 3)))
        train_dataset = PermutedTriples(base_path() + "PATCHES", train=True, transform=transform)
        test_dataset = Patches(base_path() + "PATCHES", train=False, transform=transform)
        return store_masked_loaders(train_dataset, test_dataset, self)

    @set_default_from_args("backbone")
    def get_backbone(self):
        return "mnistmlp"

    @staticmethod
    def get_transform():
        return None

    @staticmethod
    def get_normalization_transform():
        return None

    @staticmethod
    def get_denormalization_transform():
        return None

    @staticmethod
    def get_loss():
        return F.cross_entropy

    @set_default_from_args("n_epochs")
    def get_epochs(self):
        return 1

    @set_default_from_args("batch_size")
    def get_batch_size(self):
        return 24
