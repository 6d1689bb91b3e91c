"""Progressive networks: told the task of an image, and another network for each."""

import torch
import torch.optim as optim

from backbone import get_backbone
from backbone.MNISTMLP import BaseMNISTMLP
from backbone.MNISTMLP_PNN import MNISTMLP_PNN
from backbone.ResNet18_PNN import resnet18_pnn
from backbone.ResNetBlock import ResNet
from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser
from utils.conf import get_device


def make_column(bone, old_cols=None, x_shape=None):
    if isinstance(bone, BaseMNISTMLP):
        return MNISTMLP_PNN(bone.input_size, bone.output_size, old_cols)
    if isinstance(bone, ResNet):
        return resnet18_pnn(bone.num_classes, bone.nf, old_cols, x_shape)
    raise NotImplementedError("Progressive Neural Networks is not implemented for this backbone")


class Progressive(ContinualModel):
    NAME = "pnn"
    COMPATIBILITY = ["task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        self.nets = [make_column(backbone).to(get_device())]
        super().__init__(self.nets[-1], loss, args, transform, dataset=dataset)
        self.x_shape = None
        self.task_idx = 0

    def forward(self, x, task_label):
        if self.x_shape is None:
            self.x_shape = x.shape
        if self.task_idx == 0:
            return self.net(x)
        self.nets[task_label].to(self.device)
        out = self.nets[task_label](x)
        if self.task_idx != task_label:
            self.nets[task_label].cpu()
        return out

    def end_task(self, dataset):
        self.task_idx += 1
        self.nets[-1].cpu()
        self.nets.append(make_column(get_backbone(self.args), self.nets, self.x_shape).to(self.device))
        self.net = self.nets[-1]
        self.opt = optim.SGD(self.net.parameters(), lr=self.args.lr)

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        if self.x_shape is None:
            self.x_shape = inputs.shape
        self.opt.zero_grad()
        outputs = self.net(inputs)
        start, end = self.get_offsets(self.current_task)
        mask = torch.ones(outputs.shape[1], dtype=torch.bool, device=outputs.device)
        mask[start:end] = False
        loss = self.loss(outputs.masked_fill(mask, -1e9), labels)
        loss.backward()
        self.opt.step()
        return loss.item()
