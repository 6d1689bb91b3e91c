"""What Transfer without Forgetting asks of a framework: maps before the ReLU, maps in the buffer, pairs augmented."""

from copy import deepcopy

import torch
from torchvision import transforms

from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.augmentations import (
    CustomRandomCrop,
    CustomRandomHorizontalFlip,
    DoubleCompose,
    DoubleTransform,
    apply_transform,
)
from utils.buffer import Buffer
from utils.conditional_bn import ConditionalBatchNorm2d
from utils.kornia_utils import KorniaMultiAug  # noqa: F401


class Adapter(torch.nn.Module):
    def __init__(self, width, n_tasks):
        super().__init__()
        self.norm = ConditionalBatchNorm2d(width, n_tasks)

    def forward(self, student, teacher, task):
        attention = torch.sigmoid(self.norm(teacher, task))
        return (attention * (student - teacher).pow(2)).mean(), attention


class Attentive(ContinualModel):
    NAME = "twf_like"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--virtual_bs_iterations", type=int, default=2)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)
        side = dataset.SIZE[0]
        self.pairs = DoubleCompose(
            [
                DoubleTransform(transforms.Normalize((0.5,), (0.5,))),
                CustomRandomCrop(side, padding=2, resize=True, min_resize_index=1),
                CustomRandomHorizontalFlip(),
            ]
        )
        self.steps = 0
        self.net.set_return_prerelu(True)
        self.teacher = deepcopy(self.net).eval()
        self.adapters = torch.nn.ModuleList([Adapter(self.net.nf * n, dataset.N_TASKS) for n in (1, 2)])

    def get_parameters(self):
        adapters = getattr(self, "adapters", None)  # the base asks before they are there
        return [*self.net.parameters(), *(adapters.parameters() if adapters is not None else ())]

    def end_task(self, dataset):
        del self.opt  # the framework makes another one at the start of the next task

    def maps(self, inputs, task):
        with torch.no_grad():
            self.teacher(inputs)
        teacher = [self.teacher.layer1[-1].prerelu, self.teacher.layer2[-1].prerelu]
        student = [self.net.layer1[-1].prerelu, self.net.layer2[-1].prerelu]
        return zip(*(a(s, t, task) for a, s, t in zip(self.adapters, student, teacher)))

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        if self.task_iteration % self.args.virtual_bs_iterations == 0:
            self.opt.zero_grad()
        outputs = self.net(inputs)
        losses, attention = self.maps(inputs, torch.full_like(labels, self.current_task))
        loss = self.loss(outputs, labels) + 0.1 * sum(losses)
        if self.current_task > 0:
            index, images, y = self.buffer.get_data(self.args.minibatch_size, transform=None, return_index=True)
            drawn = [self.pairs(image, self.buffer.attention_maps[i]) for i, image in zip(index.tolist(), images)]
            stored = [torch.stack(layer).float() / 255 for layer in zip(*(maps for _, maps in drawn))]
            old = torch.stack([image for image, _ in drawn]).to(self.device)
            loss += self.loss(self.net(old), y.to(self.device))
            _, now = self.maps(old, torch.zeros_like(y).to(self.device))
            loss += sum((a.float() - s.to(a.device)).pow(2).mean() for a, s in zip(now, stored))
        (loss / self.args.virtual_bs_iterations).backward()
        if self.task_iteration > 0 and self.task_iteration % self.args.virtual_bs_iterations == 0:
            self.opt.step()
            self.steps += 1
        plain = apply_transform(not_aug_inputs, transforms.Normalize((0.5,), (0.5,)))
        assert plain.shape == inputs.shape
        self.buffer.add_data(
            examples=not_aug_inputs, labels=labels, attention_maps=[(a.detach() * 255).byte() for a in attention]
        )
        return loss.item()
