"""The base of all models."""

import inspect

import torch
from torch import nn

from utils.conf import get_device
from utils.kornia_utils import KorniaAugNoGrad


class ContinualModel(nn.Module):
    NAME: str
    COMPATIBILITY: list

    @staticmethod
    def get_parser(parser):
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__()
        self.net, self.loss, self.args, self.original_transform, self.dataset = backbone, loss, args, transform, dataset
        self.num_classes, self.n_tasks, self.cpt = dataset.N_CLASSES, dataset.N_TASKS, dataset.N_CLASSES_PER_TASK
        self._current_task, self.n_past_classes, self.n_seen_classes = 0, -1, -1
        self.transform = KorniaAugNoGrad(transform.transforms[-1].transforms)
        self.normalization_transform = KorniaAugNoGrad([dataset.get_normalization_transform()])
        self.opt = self.get_optimizer()
        self.device = get_device()
        if not self.NAME or not self.COMPATIBILITY:
            raise NotImplementedError("NAME and COMPATIBILITY")

    @property
    def current_task(self):
        return self._current_task

    def get_parameters(self):
        return self.net.parameters()

    def get_optimizer(self, params=None, lr=None):
        return torch.optim.SGD(params or self.get_parameters(), lr=lr or self.args.lr, momentum=self.args.optim_mom)

    def load_buffer(self, fields):
        for name, value in fields.items():
            setattr(self.buffer, name, value)
        self.buffer.attributes = list(fields)
        self.buffer.num_seen_examples = self.buffer.examples.shape[0]

    def forward(self, x):
        return self.net(x)

    def begin_task(self, dataset): ...

    def end_task(self, dataset): ...

    def begin_epoch(self, epoch, dataset): ...

    def end_epoch(self, epoch, dataset): ...

    def meta_begin_task(self, dataset):
        self.n_past_classes, self.n_seen_classes = dataset.get_offsets(self._current_task)
        self.opt.zero_grad(set_to_none=True)
        self.opt = self.get_optimizer()
        self.begin_task(dataset)

    def meta_end_task(self, dataset):
        self.end_task(dataset)
        self._current_task += 1

    def meta_observe(self, inputs, labels, not_aug_inputs, **extra):
        names = inspect.signature(self.observe).parameters
        if "kwargs" not in names:
            extra = {name: value for name, value in extra.items() if name in names}
        loss = self.observe(inputs, labels, not_aug_inputs, **extra)
        return loss["loss"] if isinstance(loss, dict) else loss
