"""Tasks cut out of a whole dataset."""

import torch
from torch.utils.data import DataLoader, Dataset


class MammothDatasetWrapper(Dataset):
    def __init__(self, dataset):
        self.dataset, self.extra_return_fields = dataset, ()

    def __getattr__(self, name):
        if name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self):
        return len(self.dataset.data)

    def __getitem__(self, index):
        return self.dataset[index]


class ContinualDataset:
    def __init__(self, args):
        self.args, self.train_loader, self.test_loaders, self.c_task = args, None, [], -1
        self.N_CLASSES = self.N_TASKS * self.N_CLASSES_PER_TASK

    def get_offsets(self, task_idx=None):
        task = self.c_task if task_idx is None else task_idx
        return task * self.N_CLASSES_PER_TASK, (task + 1) * self.N_CLASSES_PER_TASK


def store_masked_loaders(train, test, setting):
    setting.c_task += 1
    first, last = setting.get_offsets()
    for split in (train, test):
        mask = (split.targets >= first) & (split.targets < last)
        split.data, split.targets = split.data[mask], torch.from_numpy(split.targets[mask])
    seed = setting.args.seed
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    size = setting.args.batch_size
    setting.train_loader = DataLoader(MammothDatasetWrapper(train), size, shuffle=True, generator=generator)
    setting.test_loaders.append(DataLoader(MammothDatasetWrapper(test), size))
    return setting.train_loader, setting.test_loaders[-1]
