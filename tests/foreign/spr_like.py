"""What methods for wrong labels ask of a framework: true labels, several buffers, steps of optimizers of their own."""

import torch
from torchvision import transforms

from backbone import get_backbone
from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.augmentations import RepeatedTransform
from utils.autoaugment import CIFAR10Policy
from utils.bmm import BetaMixture1D
from utils.buffer import Buffer
from utils.distributed import CustomDP, make_dp  # noqa: F401
from utils.kornia_utils import to_kornia_transform


class SelfPurified(ContinualModel):
    NAME = "spr_like"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--delayed_buffer_size", type=int, default=96)
        parser.set_defaults(optimizer="adam", lr=2e-4, num_workers=0)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        assert "mnistmlp" in type(self.net).__name__.lower() and not isinstance(self.net, CustomDP)
        self.buffer = Buffer(self.args.buffer_size)
        self.delayed_buffer = Buffer(self.args.delayed_buffer_size)
        self.seen_buffer = Buffer(-1, device="cpu", sample_selection_strategy="unlimited")
        self.expert = get_backbone(self.args).to(self.device)
        self.kept_right = self.kept = self.right = self.examined = 0
        policy = transforms.Compose([transforms.ToPILImage(), CIFAR10Policy(), transforms.ToTensor()])
        self.many = RepeatedTransform([transforms.Normalize((0.0,), (1.0,)), transforms.RandomHorizontalFlip()])
        self.policy = to_kornia_transform(policy)

    def observe(self, inputs, labels, not_aug_inputs, true_labels, epoch=None):
        self.seen_buffer.add_data(examples=not_aug_inputs, labels=labels)
        self.delayed_buffer.add_data(examples=not_aug_inputs, labels=labels, true_labels=true_labels)
        if not self.delayed_buffer.is_full():
            return 0.0
        self.fit(self.expert, self.delayed_buffer, epochs=5)
        self.purify()
        self.delayed_buffer.empty()
        return self.fit(self.net, self.buffer, epochs=10)

    def fit(self, net, buffer, epochs):
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(epochs):
            for images, y, *_ in buffer.get_dataloader(self.args, batch_size=32, shuffle=True, drop_last=False):
                opt.zero_grad()
                loss = self.loss(net(self.many(images)[0]), y)
                loss.backward()
                opt.step()
        return loss.item()

    @torch.no_grad()
    def purify(self):
        images, y, true = self.delayed_buffer.get_all_data()
        losses = self.loss(self.expert(images), y, reduction="none").numpy()
        kept, low, high = BetaMixture1D.outlier_remove(losses)
        mixture = BetaMixture1D(max_iters=10)
        mixture.fit(mixture.normalize(kept, low, high))
        mixture.create_lookup(1)
        noisy = torch.from_numpy(mixture.look_lookup(mixture.normalize(losses, low, high))) > 0.5
        self.examined += len(y)
        self.right += int((y == true).sum())
        self.kept += int((~noisy).sum())
        self.kept_right += int((y == true)[~noisy].sum())
        self.buffer.add_data(examples=images[~noisy], labels=y[~noisy], true_labels=true[~noisy])
