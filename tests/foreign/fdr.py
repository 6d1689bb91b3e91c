"""Functional regularisation: the buffer is rebuilt after each task, with task labels; two steps per batch."""

import torch

from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.buffer import Buffer


class FunctionDistance(ContinualModel):
    NAME = "fdr"
    COMPATIBILITY = ["class-il", "domain-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--alpha", type=float, required=True)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size, self.device)
        self.soft = torch.nn.Softmax(dim=1)

    def end_task(self, dataset):
        quota = self.args.buffer_size // (self.current_task + 1)
        if self.current_task > 0:
            images, logits, tasks = self.buffer.get_all_data()
            self.buffer.empty()
            for task in tasks.unique():
                rows = (tasks == task).nonzero().flatten()[:quota]
                self.buffer.add_data(examples=images[rows], logits=logits[rows], task_labels=tasks[rows])
        room = quota
        with torch.no_grad():
            for data in dataset.train_loader:
                outputs = self.net(data[0].to(self.device))[:room]
                if room > 0:
                    self.buffer.add_data(
                        examples=data[2][:room],
                        logits=outputs,
                        task_labels=torch.ones(len(outputs)) * self.current_task,
                    )
                room -= self.args.batch_size

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        loss = self.loss(self.net(inputs), labels)
        loss.backward()
        self.opt.step()
        if not self.buffer.is_empty():
            old_x, old_logits, _ = self.buffer.get_data(
                self.args.minibatch_size, transform=self.transform, device=self.device
            )
            self.opt.zero_grad()
            distance = (self.soft(self.net(old_x)) - self.soft(old_logits)).norm(dim=1).mean()
            (self.args.alpha * distance).backward()
            self.opt.step()
        return loss.item()
