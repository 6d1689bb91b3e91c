"""A dataset file in Mammoth's idiom: a torchvision-style dataset of triples, and `store_masked_loaders`."""

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
import torchvision.transforms as transforms
from PIL import Image

from datasets.transforms.denormalization import DeNormalize
from datasets.utils import set_default_from_args
from datasets.utils.continual_dataset import ContinualDataset, fix_class_names_order, store_masked_loaders
from utils.conf import base_path

COLOURS = np.random.RandomState(7).randint(40, 216, size=(6, 3))


class Patches:
    """Squares of one colour per class, with noise; what a folder of images would be."""

    def __init__(self, root: str, train: bool = True, transform=None) -> None:
        self.root, self.train, self.transform = root, train, transform
        random = np.random.RandomState(1 if train else 2)
        labels = np.arange(240 if train else 60) % 6
        noise = random.randint(-40, 40, size=(len(labels), 8, 8, 3))
        self.data = (COLOURS[labels][:, None, None, :] + noise).clip(0, 255).astype(np.uint8)
        self.targets = labels.tolist()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        img, target = Image.fromarray(self.data[index]), self.targets[index]
        if self.transform is not None:
            img = self.transform(img)
        return img, target


class TrainPatches(Patches):
    def __init__(self, *args, **kwargs) -> None:
        self.not_aug_transform = transforms.Compose([transforms.ToTensor()])
        super().__init__(*args, **kwargs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, torch.Tensor]:
        img, target = Image.fromarray(self.data[index]), self.targets[index]
        not_aug_img = self.not_aug_transform(img.copy())
        if self.transform is not None:
            img = self.transform(img)
        if hasattr(self, "logits"):
            return img, target, not_aug_img, self.logits[index]
        return img, target, not_aug_img


class SequentialPatches(ContinualDataset):
    NAME = "seq-patches"
    SETTING = "class-il"
    N_CLASSES_PER_TASK = 2
    N_TASKS = 3
    SIZE = (8, 8)
    MEAN, STD = (0.5, 0.45, 0.4), (0.25, 0.2, 0.3)
    TRANSFORM = transforms.Compose(
        [
            transforms.RandomCrop(8, padding=1),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    TEST_TRANSFORM = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])

    def __init__(self, args, augment: Literal["crop", "none"] = "crop", shade: int | None = 3) -> None:
        super().__init__(args)
        self.augment, self.shade = augment, shade
        if augment == "none":
            self.TRANSFORM = self.TEST_TRANSFORM

    def get_data_loaders(self):
        train_dataset = TrainPatches(base_path() + "PATCHES", train=True, transform=self.TRANSFORM)
        test_dataset = Patches(base_path() + "PATCHES", train=False, transform=self.TEST_TRANSFORM)
        train, test = store_masked_loaders(train_dataset, test_dataset, self)
        return train, test

    def get_transform(self):
        return transforms.Compose([transforms.ToPILImage(), self.TRANSFORM])

    def get_class_names(self):
        if self.class_names is None:
            self.class_names = fix_class_names_order([f"colour {i}" for i in range(6)], self.args)
        return self.class_names

    @set_default_from_args("backbone")
    def get_backbone():
        return "mnistmlp"

    @staticmethod
    def get_loss():
        return F.cross_entropy

    @staticmethod
    def get_normalization_transform():
        return transforms.Normalize(SequentialPatches.MEAN, SequentialPatches.STD)

    @staticmethod
    def get_denormalization_transform():
        return DeNormalize(SequentialPatches.MEAN, SequentialPatches.STD)

    @set_default_from_args("n_epochs")
    def get_epochs(self):
        return 2

    @set_default_from_args("batch_size")
    def get_batch_size(self):
        return 16
