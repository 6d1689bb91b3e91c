"""GDumb: only stores, and trains a fresh network on the memory after the last task."""

import torch
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

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
        parser.add_argument("--maxlr", type=float, default=5e-2)
        parser.add_argument("--minlr", type=float, default=5e-4)
        parser.add_argument("--fitting_epochs", type=int, default=256)
        parser.add_argument("--cutmix_alpha", type=float, default=1.0)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        if args.n_epochs != 1:
            args.n_epochs = 1
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)
        self.rates = []

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return 0

    def end_task(self, dataset):
        if self.current_task != dataset.N_TASKS - 1:
            return
        self.net = get_backbone(self.args).to(self.device)
        opt = torch.optim.SGD(
            self.get_parameters(),
            lr=self.args.maxlr,
            momentum=self.args.optim_mom,
            weight_decay=self.args.optim_wd,
            nesterov=self.args.optim_nesterov,
        )
        schedule = CosineAnnealingWarmRestarts(opt, T_0=1, T_mult=2, eta_min=self.args.minlr)
        for epoch in range(self.args.fitting_epochs):
            if epoch < 2:  # a slow start
                for group in opt.param_groups:
                    group["lr"] = self.args.maxlr * (0.1 if epoch == 0 else 1)
            else:
                schedule.step()
            self.rates.append(opt.param_groups[0]["lr"])
            self.fit(epoch, opt)

    def fit(self, epoch, opt):
        everything, size = len(self.buffer.examples), self.args.batch_size
        images, labels = self.buffer.get_data(everything, transform=self.transform, device=self.device)
        for start in range(0, len(images), size):
            x, y = images[start : start + size].cpu(), labels[start : start + size].cpu()
            opt.zero_grad()
            if self.args.cutmix_alpha is not None:
                x, y, other, share = cutmix_data(x=x, y=y, alpha=self.args.cutmix_alpha)
                outputs = self.net(x.to(self.device))
                loss = share * self.loss(outputs, y.to(self.device))
                loss = loss + (1 - share) * self.loss(outputs, other.to(self.device))
            else:
                loss = self.loss(self.net(x.to(self.device)), y.to(self.device))
            loss.backward()
            opt.step()
            progress_bar(epoch, self.args.fitting_epochs, 1, "G", loss.item())
