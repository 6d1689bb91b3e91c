"""LwF with binary losses: makes a dataset of its own, and keeps a copy of the network."""

from copy import deepcopy

import torch
import torch.nn.functional as F

from datasets import get_dataset
from models.utils.continual_model import ContinualModel
from utils.args import *


class BinaryLwf(ContinualModel):
    NAME = "lwf_mc"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        parser.add_argument("--wd_reg", type=float, default=0.0)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.dataset = get_dataset(args)
        self.one_hot = torch.eye(self.dataset.N_CLASSES_PER_TASK * self.dataset.N_TASKS).to(self.device)
        self.teacher = None

    def observe(self, inputs, labels, not_aug_inputs, logits=None, epoch=None):
        old = self.current_task * self.dataset.N_CLASSES_PER_TASK
        seen = old + self.dataset.N_CLASSES_PER_TASK
        wanted = self.one_hot[labels][:, :seen]
        if self.teacher is not None:
            with torch.no_grad():
                wanted[:, :old] = torch.sigmoid(self.teacher(inputs))[:, :old]
        self.opt.zero_grad()
        loss = F.binary_cross_entropy_with_logits(self.net(inputs)[:, :seen], wanted)
        loss = loss + self.args.wd_reg * (self.net.get_params() ** 2).sum()
        loss.backward()
        self.opt.step()
        return loss.item()

    def end_task(self, dataset):
        self.teacher = deepcopy(self.net.eval())
        self.net.train()
