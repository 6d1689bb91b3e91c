"""What matters to a mixin of X-DER: a buffer filled at the ends of tasks, draws with rows, and a dataset of its own."""

import torch
import torch.nn.functional as F

from datasets import get_dataset
from models.utils.continual_model import ContinualModel
from utils.args import *  # noqa: F403
from utils.buffer import Buffer


class XDer(ContinualModel):
    NAME = "xder"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser):
        add_rehearsal_args(parser)  # noqa: F405
        parser.add_argument("--alpha", type=float, required=True)
        parser.add_argument("--beta", type=float, required=True)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset)
        self.buffer = Buffer(self.args.buffer_size)
        self.dataset = get_dataset(args)  # another one than that of the loop

    def end_task(self, dataset):
        quota = self.args.buffer_size // self.n_seen_classes
        kept = self.buffer.get_all_data() if not self.buffer.is_empty() else None
        if kept is not None:
            self.buffer.empty()
            rows = torch.cat([(kept[1] == label).nonzero()[:quota, 0] for label in range(self.n_past_classes)])
            images, labels, logits, tasks = (field[rows] for field in kept)
            self.buffer.add_data(examples=images, labels=labels, logits=logits, task_labels=tasks)
        items = [dataset.train_loader.dataset[i] for i in range(len(dataset.train_loader.dataset))]
        for label in range(self.n_past_classes, self.n_seen_classes):
            images = torch.stack([item[2] for item in items if item[1] == label][:quota])
            with torch.no_grad():
                logits = self.net(self.transform(images))
            labels = torch.full((len(images),), label)
            self.buffer.add_data(images, labels, logits, torch.full_like(labels, self.current_task))

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        outputs = self.net(inputs)
        loss = self.loss(outputs[:, self.n_past_classes : self.n_seen_classes], labels - self.n_past_classes)
        if not self.buffer.is_empty():
            size, how = self.args.minibatch_size, {"transform": self.transform, "return_index": True}
            index, images, _, logits, _ = self.buffer.get_data(size, device=self.device, **how)
            replayed = self.net(images)
            loss = loss + self.args.alpha * F.mse_loss(replayed, logits)
            self.buffer.logits[index, self.n_past_classes :] = replayed.detach()[:, self.n_past_classes :].cpu()
            _, images, targets, _, _ = self.buffer.get_data(size, device=self.device, **how)
            loss = loss + self.args.beta * self.loss(self.net(images)[:, : self.n_past_classes], targets)
            self.buffer.get_data(size, device=self.device)  # for the contrastive loss
        loss.backward()
        self.opt.step()
        return loss.item()
