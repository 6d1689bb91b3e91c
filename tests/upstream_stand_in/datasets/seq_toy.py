"""Three tasks of two classes of small noisy images."""

import numpy as np
import torch
import torch.nn.functional as F
import torchvision.transforms as transforms
from PIL import Image

from datasets.utils.continual_dataset import ContinualDataset, store_masked_loaders

MEAN, STD = (0.5, 0.45, 0.4), (0.25, 0.2, 0.3)


class Toy:
    def __init__(self, train, transform):
        self.train, self.transform = train, transform
        self.not_aug_transform = transforms.ToTensor()
        self.targets = np.arange(96 if train else 24) % 6
        colours = np.random.RandomState(5).randint(30, 226, (6, 3))[self.targets]
        noise = np.random.RandomState(train).randint(-30, 30, (len(self.targets), 6, 6, 3))
        self.data = (colours[:, None, None] + noise).clip(0, 255).astype(np.uint8)

    def __getitem__(self, index):
        image, target = Image.fromarray(self.data[index]), self.targets[index]
        if not self.train:
            return self.transform(image), target
        return self.transform(image), target, self.not_aug_transform(image)


class SequentialToy(ContinualDataset):
    NAME, SETTING = "seq-toy", "class-il"
    N_TASKS, N_CLASSES_PER_TASK, SIZE = 3, 2, (6, 6)
    TRANSFORM = transforms.Compose(
        [transforms.RandomCrop(6, padding=1), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
         transforms.Normalize(MEAN, STD)]
    )  # fmt: skip
    TEST_TRANSFORM = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])

    def get_data_loaders(self):
        return store_masked_loaders(Toy(True, self.TRANSFORM), Toy(False, self.TEST_TRANSFORM), self)

    @staticmethod
    def get_transform():
        return transforms.Compose([transforms.ToPILImage(), SequentialToy.TRANSFORM])

    @staticmethod
    def get_normalization_transform():
        return transforms.Normalize(MEAN, STD)

    @staticmethod
    def get_loss():
        return F.cross_entropy

    @torch.no_grad()
    def evaluate(self, model):
        last = self.get_offsets()[1]
        model.net.eval()
        hits = [
            (model(x)[:, :last].argmax(1) == y).float().mean().item() for task in self.test_loaders for x, y in task
        ]
        model.net.train()
        return sum(hits) / len(hits)
