"""What STAR asks of a framework: weights moved in place and back inside a step, a second network with an optimizer."""

import torch
import torch.nn.functional as F

from backbone import get_backbone
from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.buffer import Buffer


class Perturbed(ContinualModel):
    NAME = "er_star_like"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--p-gamma", type=float, default=0.05)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)
        self.proxy = get_backbone(self.args).to(self.device)
        self.proxy_opt = torch.optim.SGD(self.proxy.parameters(), lr=0.01)
        self.moved = 0.0

    def perturb(self, x):
        with torch.no_grad():
            now = F.softmax(self.net(x), dim=1)
        self.proxy.load_state_dict(self.net.state_dict())
        self.proxy_opt.zero_grad()
        noisy = x + 0.1 * torch.randn_like(x)
        (-F.kl_div(F.log_softmax(self.proxy(noisy), dim=1), now, reduction="batchmean")).backward()
        self.proxy_opt.step()
        before = [p.detach().clone() for p in self.net.parameters()]
        with torch.no_grad():
            for p, q in zip(self.net.parameters(), self.proxy.parameters()):
                step = q - p
                p.add_(step, alpha=self.args.p_gamma / (step.norm() + 1e-12))
        F.kl_div(F.log_softmax(self.net(x), dim=1), now, reduction="batchmean").backward()
        with torch.no_grad():
            for p, old in zip(self.net.parameters(), before):
                self.moved += float((p - old).norm())
                p.copy_(old)

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        x, y = inputs, labels
        if not self.buffer.is_empty():
            old, _ = self.buffer.get_data(self.args.minibatch_size, transform=self.transform)
            self.perturb(old.to(self.device))  # its gradients stay
            old, old_y = self.buffer.get_data(self.args.minibatch_size, transform=self.transform)
            x, y = torch.cat([x, old.to(self.device)]), torch.cat([y, old_y.to(self.device)])
        loss = self.loss(self.net(x), y)
        loss.backward()
        self.opt.step()
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return loss.item()
