"""X-DER's memory: balanced by hand at the end of a task; logits and task labels are rewritten in place."""

import torch
import torch.nn.functional as F

from models.utils.continual_model import ContinualModel
from utils import binary_to_boolean_type
from utils.args import ArgumentParser, add_rehearsal_args
from utils.augmentations import apply_transform
from utils.batch_norm import bn_track_stats


class HeadsToCome(ContinualModel):
    NAME = "xder_ce"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--alpha", type=float, required=True)
        parser.add_argument("--beta", type=float, required=True)
        parser.add_argument("--align_bn", type=binary_to_boolean_type, default=0)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        from utils.buffer import Buffer

        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size, device="cpu")
        self.rewritten = 0

    def end_task(self, dataset):
        training = self.training
        self.train()
        per_class = self.buffer.buffer_size // self.n_seen_classes
        if self.current_task > 0:
            images, labels, logits, tasks = self.buffer.get_all_data()
            self.buffer.empty()
            for label in labels.unique():
                rows = (labels == label).nonzero().flatten()[:per_class]
                self.buffer.add_data(
                    examples=images[rows], labels=labels[rows], logits=logits[rows], task_labels=tasks[rows]
                )
        missing = {label: per_class for label in range(self.n_past_classes, self.n_seen_classes)}
        with torch.no_grad(), bn_track_stats(self, False):
            for data in dataset.train_loader:
                outputs = self.net(data[0].to(self.device)).cpu()
                for row, label in enumerate(data[1].tolist()):
                    if missing.get(label, 0) > 0:
                        missing[label] -= 1
                        self.buffer.add_data(
                            examples=data[2][row : row + 1],
                            labels=data[1][row : row + 1],
                            logits=outputs[row : row + 1],
                            task_labels=torch.tensor([self.current_task]),
                        )
            self.renew_old_logits()
        assert self.buffer.num_seen_examples <= self.buffer.buffer_size
        self.train(training)

    def renew_old_logits(self):
        """The head of the task just learnt, and all later ones, for what is older than it."""
        for index in torch.arange(len(self.buffer)).split(self.args.batch_size):
            images = apply_transform(self.buffer.examples[index], self.transform).to(self.device)
            old = self.buffer.task_labels[index] < self.current_task
            first = dataset_start(self, self.current_task)
            new = self.net(images).to(self.buffer.device)
            self.buffer.logits[index[old], first:] = new[old][:, first:]
            self.rewritten += int(old.sum())
        assert self.dataset.get_offsets(self.n_tasks)[0] == self.num_classes

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        with bn_track_stats(self, not self.args.align_bn or self.current_task == 0):
            outputs = self.net(inputs)
        own = slice(self.n_past_classes, self.n_seen_classes)
        loss = self.loss(outputs[:, own], labels - own.start)
        if not self.buffer.is_empty():
            index, old_x, old_y, old_logits, tasks = self.buffer.get_data(
                self.args.minibatch_size, transform=self.transform, return_index=True, device=self.device
            )
            old_out = self.net(old_x)
            loss = loss + self.args.alpha * F.mse_loss(old_out, old_logits)
            loss = loss + self.args.beta * self.loss(old_out[:, : self.n_past_classes], old_y)
            assert (tasks == torch.div(old_y, self.cpt, rounding_mode="floor")).all()
            self.buffer.task_labels[index.to(self.buffer.device)] = tasks.to(self.buffer.device)
        loss.backward()
        self.opt.step()
        return loss.item()


def dataset_start(model, task):
    return model.dataset.get_offsets(task)[0]
