"""Experience replay with LiDER's losses on the maps of a network."""

from models.utils.lider_model import LiderOptimizer, add_lipschitz_args
from utils.args import ArgumentParser, add_rehearsal_args
from utils.buffer import Buffer


class ReplayWithBudgets(LiderOptimizer):
    NAME = "er_lider"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        add_lipschitz_args(parser)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)
        self.lip_values = []

    def begin_task(self, dataset):
        if self.current_task == 0:
            self.net.set_return_prerelu(True)
            self.init_net(dataset)

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        loss = self.loss(self.net(inputs), labels)
        if not self.buffer.is_empty():
            old, y = self.buffer.get_data(self.args.minibatch_size, transform=self.transform, device=self.device)
            loss += self.loss(self.net(old), y)
            old, _ = self.buffer.get_data(self.args.minibatch_size, transform=self.transform, device=self.device)
            _, maps = self.net(old, returnt="full")
            features = [old, *maps]
            lip_minimize_loss = self.minimization_lip_loss(features)
            lip_budget_loss = self.dynamic_budget_lip_loss(features)
            loss += self.args.beta_lip_lambda * lip_minimize_loss + self.args.alpha_lip_lambda * lip_budget_loss
            self.lip_values.append(lip_minimize_loss.item())
        loss.backward()
        self.opt.step()
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return loss.item()
