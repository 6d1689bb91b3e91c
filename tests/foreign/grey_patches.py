"""A dataset file in the idiom of Mammoth's MNIST: images in one tensor without channels, and no transform at all."""

import torch
import torch.nn.functional as F
import torchvision.transforms as transforms
from PIL import Image

from datasets.seq_patches import Patches
from datasets.utils import set_default_from_args
from datasets.utils.continual_dataset import ContinualDataset, store_masked_loaders
from utils.conf import base_path


class GreyPatches(Patches):
    def __init__(self, root, train=True, transform=None):
        super().__init__(root, train, transform)
        self.data, self.targets = torch.from_numpy(self.data[..., 0]), torch.tensor(self.targets)
        self.not_aug_transform = transforms.ToTensor()

    def __getitem__(self, index):
        img, target = Image.fromarray(self.data[index].numpy(), mode="L"), int(self.targets[index])
        original_img = self.not_aug_transform(img.copy())
        if self.transform is not None:
            img = self.transform(img)
        return (img, target, original_img) if self.train else (img, target)


class SequentialGreyPatches(ContinualDataset):
    NAME = "grey-patches"
    SETTING = "class-il"
    N_CLASSES_PER_TASK = 2
    N_TASKS = 3
    N_CLASSES = N_CLASSES_PER_TASK * N_TASKS
    SIZE = (8, 8)
    TRANSFORM = None

    def get_data_loaders(self):
        splits = [GreyPatches(base_path() + "GREY", train, transforms.ToTensor()) for train in (True, False)]
        return store_masked_loaders(*splits, self)

    @set_default_from_args("backbone")
    def get_backbone():
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

    @set_default_from_args("batch_size")
    def get_batch_size(self):
        return 20

    @set_default_from_args("n_epochs")
    def get_epochs(self):
        return 1
