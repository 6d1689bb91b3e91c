"""GDumb: only stores, and trains a fresh network on the memory after each task."""

import torch

from backbone import get_backbone
from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.augmentations import cutmix_data
from utils.buffer import Buffer
from utils.status import progress_bar


class FromScratch(ContinualModel):
    NAME = "gdumb"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.set_defaults(lr=0, n_epochs=1)  # the steps are its own
        parser.add_argument("--maxlr", type=float, default=0.1)
        parser.add_argument("--fitting_epochs", type=int, default=40)
        parser.add_argument("--cutmix_alpha", type=float, default=None)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        args.n_epochs = 1
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size, self.device)

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return 0

    def end_task(self, dataset):
        self.net = get_backbone(self.args).to(self.device)
        opt = torch.optim.SGD(
            self.get_parameters(),
            lr=self.args.maxlr,
            momentum=self.args.optim_mom,
            weight_decay=self.args.optim_wd,
            nesterov=self.args.optim_nesterov,
        )
        images, labels = self.buffer.get_all_data(transform=self.transform, device=self.device)
        assert len(self.buffer.examples) == self.args.buffer_size
        for epoch in range(self.args.fitting_epochs):
            order = torch.randperm(len(images)).split(self.args.batch_size)
            for i, rows in enumerate(order):
                x, y = images[rows], labels[rows]
                opt.zero_grad()
                if self.args.cutmix_alpha is not None:
                    x, y, other, share = cutmix_data(x, y, alpha=self.args.cutmix_alpha)
                    outputs = self.net(x)
                    loss = share * self.loss(outputs, y) + (1 - share) * self.loss(outputs, other)
                else:
                    loss = self.loss(self.net(x), y)
                loss.backward()
                opt.step()
                progress_bar(i, len(order), epoch, "G", loss.item())
