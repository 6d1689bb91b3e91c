"""A general-continual dataset file as mnist-360 is one: pairs of classes that turn, from a list of loaders."""

import numpy as np
import torchvision.transforms as transforms

from datasets.perm_patches import Patches, PermutedTriples
from datasets.transforms.rotation import IncrementalRotation
from datasets.utils import set_default_from_args
from datasets.utils.gcl_dataset import GCLDataset
from datasets.utils.validation import get_train_val
from utils.conf import base_path, create_seeded_dataloader


class Turning:
    def __init__(self, args, train):
        self.args, self.train = args, train
        self.dataset = []
        for first in (0, 2, 4):
            turn = transforms.Compose([IncrementalRotation(increase_per_iteration=1), transforms.ToTensor()])
            images = (PermutedTriples if train else Patches)(base_path() + "PATCHES", train=train, transform=turn)
            if args.validation:
                images, held_out = get_train_val(images, turn, "gcl-turning", val_perc=args.validation)
                images = images if train else held_out
            mine = (np.asarray(images.targets) // 2) * 2 == first
            images.data, images.targets = np.asarray(images.data)[mine], np.asarray(images.targets)[mine]
            self.dataset.append(
                create_seeded_dataloader(
                    args, images, non_verbose=True, batch_size=args.batch_size, shuffle=train, num_workers=0
                )
            )

    def __iter__(self):
        for loader in self.dataset:
            yield from loader


class TurningPatches(GCLDataset):
    NAME = "gcl-turning"
    SETTING = "general-continual"
    N_CLASSES = 6
    SIZE = (8, 8)

    def get_data_loaders(self):
        assert self.args.label_perc == 1
        train_loader, test_loader = Turning(self.args, True), Turning(self.args, False)
        self.train_loader = train_loader
        self.test_loaders.append(test_loader)
        return train_loader, test_loader

    @staticmethod
    def get_transform():
        return None

    @set_default_from_args("backbone")
    def get_backbone(self):
        return "mnistmlp"

    @set_default_from_args("batch_size")
    def get_batch_size(self):
        return 16
