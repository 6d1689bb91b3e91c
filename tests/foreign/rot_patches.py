"""A domain-incremental dataset file that takes its images from a sibling and counts its classes over all tasks."""

import torchvision.transforms as transforms

from datasets.perm_patches import Patches, PermutedTriples
from datasets.transforms.rotation import Rotation
from datasets.utils import set_default_from_args
from datasets.utils.continual_dataset import ContinualDataset, store_masked_loaders
from utils.conf import base_path


class RotatedPatches(ContinualDataset):
    NAME = "rot-patches"
    SETTING = "domain-il"
    N_CLASSES_PER_TASK = 6
    N_TASKS = 2
    N_CLASSES = 12
    SIZE = (8, 8)

    def get_data_loaders(self):
        transform = transforms.Compose((Rotation(), transforms.ToTensor()))
        train_dataset = PermutedTriples(base_path() + "PATCHES", train=True, transform=transform)
        test_dataset = Patches(base_path() + "PATCHES", train=False, transform=transform)
        return store_masked_loaders(train_dataset, test_dataset, self)

    @set_default_from_args("backbone")
    def get_backbone(self):
        return "mnistmlp"

    @staticmethod
    def get_transform():
        return None

    @set_default_from_args("n_epochs")
    def get_epochs(self):
        return 1

    @set_default_from_args("batch_size")
    def get_batch_size(self):
        return 24
