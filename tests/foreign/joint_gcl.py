"""Joint training of a stream without tasks: all batches are kept, and a new network is trained at the end."""

import math

import torch
from torch.optim import SGD

from backbone import get_backbone
from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser
from utils.status import progress_bar


class JointStream(ContinualModel):
    NAME = "joint_gcl"
    COMPATIBILITY = ["general-continual"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        parser.set_defaults(n_epochs=1)
        parser.add_argument("--passes", type=int, default=20)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.images, self.labels = [], []

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.images.append(inputs.data)
        self.labels.append(labels.data)
        return 0

    def end_task(self, dataset):
        self.net = get_backbone(self.args).to(self.device)
        self.net.train()
        self.opt = SGD(self.net.parameters(), lr=self.args.lr)
        images, labels = torch.cat(self.images), torch.cat(self.labels)
        size = self.args.batch_size
        for epoch in range(self.args.passes):
            order = torch.randperm(len(labels))
            for i in range(math.ceil(len(labels) / size)):
                rows = order[i * size : (i + 1) * size]
                self.opt.zero_grad()
                loss = self.loss(self.net(images[rows].to(self.device)), labels[rows].to(self.device))
                loss.backward()
                self.opt.step()
                progress_bar(i, len(labels) // size, epoch, "J", loss.item())
