"""A reservoir on the host that draws from numpy's global generator."""

import numpy as np
import torch

from utils.augmentations import apply_transform

FIELDS = ["examples", "labels", "logits", "task_labels", "true_labels"]


class Buffer:
    def __init__(self, buffer_size, device="cpu", sample_selection_strategy="reservoir", **kwargs):
        self.buffer_size, self.device, self.num_seen_examples, self.attributes = buffer_size, device, 0, FIELDS

    @property
    def used_attributes(self):
        return [name for name in self.attributes if hasattr(self, name)]

    def __len__(self):
        return min(self.num_seen_examples, self.buffer_size)

    def is_empty(self):
        return self.num_seen_examples == 0

    def add_data(self, examples, labels=None, logits=None, task_labels=None, attention_maps=None, true_labels=None,
                 sample_selection_scores=None):  # fmt: skip
        given = dict(zip(FIELDS, (examples, labels, logits, task_labels, true_labels), strict=True))
        given = {name: value for name, value in given.items() if value is not None}
        if not hasattr(self, "examples"):
            for name, value in given.items():
                kind = torch.int64 if name.endswith("els") else torch.get_default_dtype()
                setattr(self, name, torch.zeros((self.buffer_size, *value.shape[1:]), dtype=kind, device=self.device))
        for row in range(len(examples)):
            n = self.num_seen_examples
            slot = n if n < self.buffer_size else np.random.randint(0, n + 1)
            self.num_seen_examples += 1
            if slot < self.buffer_size:
                for name, value in given.items():
                    getattr(self, name)[slot] = value[row].to(self.device)

    def get_data(self, size, transform=None, return_index=False, device=None, mask_task_out=None, cpt=None,
                 return_not_aug=False, not_aug_transform=None, force_indexes=None):  # fmt: skip
        size = min(size, len(self))
        choice = torch.from_numpy(np.random.choice(len(self), size, replace=False))
        fields = self.get_data_by_index(choice, transform, device)
        return (choice.to(device or self.device), *fields) if return_index else fields

    def get_data_by_index(self, indexes, transform=None, device=None):
        device = device or self.device
        images = apply_transform(self.examples[indexes], transform).to(device)
        return (images, *(getattr(self, name)[indexes].to(device) for name in self.used_attributes[1:]))

    def get_all_data(self, transform=None, device=None):
        return self.get_data_by_index(torch.arange(len(self)), transform, device)

    def empty(self):
        for name in self.used_attributes:
            delattr(self, name)
        self.num_seen_examples = 0
