"""A general-continual dataset file in Mammoth's idiom: one stream of batches, of which nobody knows the length."""

import numpy as np
import torch

from datasets.seq_patches import Patches
from datasets.utils import set_default_from_args
from datasets.utils.gcl_dataset import GCLDataset


class Stream:
    def __init__(self, train):
        self.images, self.train = Patches("", train), train

    def __iter__(self):
        order = np.random.permutation(len(self.images)) if self.train else np.arange(len(self.images))
        for rows in np.array_split(order, 9):
            images = torch.from_numpy(self.images.data[rows]).permute(0, 3, 1, 2) / 255
            labels = torch.tensor([self.images.targets[i] for i in rows])
            yield (images, labels, images) if self.train else (images, labels)


class StreamOfPatches(GCLDataset):
    NAME = "gcl-patches"
    N_CLASSES = 6
    N_CLASSES_PER_TASK = 6
    SIZE = (8, 8)

    def get_data_loaders(self):
        return Stream(True), Stream(False)

    @staticmethod
    def get_transform():
        return None

    @set_default_from_args("backbone")
    def get_backbone(self):
        return "mnistmlp"

    @set_default_from_args("batch_size")
    def get_batch_size(self):
        return 16
