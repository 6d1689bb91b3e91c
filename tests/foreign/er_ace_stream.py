"""ER-ACE that masks and replays from the first task on if its own `--task_free` says so."""

from models.er_ace import AsymmetricReplay
from utils import binary_to_boolean_type
from utils.args import ArgumentParser


class StreamReplay(AsymmetricReplay):
    NAME = "er_ace_stream"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        AsymmetricReplay.get_parser(parser)
        parser.add_argument("--task_free", type=binary_to_boolean_type, default=False)
        return parser

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        if not self.args.task_free or self.current_task > 0 or self.buffer.is_empty():
            return super().observe(inputs, labels, not_aug_inputs, epoch=epoch)
        old_x, old_y = self.buffer.get_data(self.args.minibatch_size, transform=self.transform, device=self.device)
        self.opt.zero_grad()
        loss = self.loss(self.net(inputs), labels) + self.loss(self.net(old_x), old_y)
        loss.backward()
        self.opt.step()
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return loss.item()
