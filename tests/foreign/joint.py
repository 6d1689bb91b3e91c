"""Joint training: keeps every task's loader, and trains on all of them after the last task."""

import torch
from torch.utils.data import TensorDataset

from models.utils.continual_model import ContinualModel
from utils.conf import create_seeded_dataloader
from utils.schedulers import get_scheduler
from utils.status import progress_bar


class AllAtOnce(ContinualModel):
    NAME = "joint"
    COMPATIBILITY = ["class-il", "task-il"]

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.loaders = []
        self.rows = 0

    def end_task(self, dataset):
        self.loaders.append(dataset.train_loader)
        if len(dataset.test_loaders) != dataset.N_TASKS:
            return
        images, labels = [], []
        for loader in self.loaders:
            for x, y, _ in loader:
                images.append(x.cpu())
                labels.append(y.cpu())
        everything = TensorDataset(torch.cat(images), torch.cat(labels))
        self.rows = len(everything)
        scheduler = get_scheduler(self.net, self.args)
        loader = create_seeded_dataloader(self.args, everything, batch_size=self.args.batch_size, shuffle=True)
        for epoch in range(self.args.n_epochs):
            for i, (x, y) in enumerate(loader):
                if self.args.debug_mode and i > self.get_debug_iters():
                    break
                self.opt.zero_grad()
                loss = self.loss(self.net(x.to(self.device)), y.to(self.device))
                loss.backward()
                self.opt.step()
                progress_bar(i, len(loader), epoch, "J", loss.item())
            if scheduler is not None:
                scheduler.step()

    def observe(self, *args, **kwargs):
        return 0
