"""The training loop."""

import math

import torch

from utils.checkpoints import load_checkpoint, save_checkpoint
from utils.conf import get_device


def train(model, dataset, args):
    model.net.to(get_device())
    losses, accuracies = [], []
    for _ in range(args.start_from):
        dataset.get_data_loaders()
        model.meta_begin_task(dataset)
        model.meta_end_task(dataset)
    if args.loadcheck:
        load_checkpoint(args.loadcheck, model)
    for _ in range(args.start_from, args.stop_after or dataset.N_TASKS):
        model.net.train()
        train_loader, _ = dataset.get_data_loaders()
        model.meta_begin_task(dataset)
        scheduler = None
        if args.lr_scheduler:
            model.opt = model.get_optimizer()  # once more
            scheduler = torch.optim.lr_scheduler.MultiStepLR(model.opt, [2])
        for epoch in range(args.n_epochs):
            model.begin_epoch(epoch, dataset)
            for data in train_loader:
                inputs, labels, not_aug_inputs = (field.to(model.device) for field in data[:3])
                loss = model.meta_observe(inputs, labels.long(), not_aug_inputs, epoch=epoch)
                assert not math.isnan(loss)
                losses.append(loss)
            if scheduler is not None:
                scheduler.step()
            model.end_epoch(epoch, dataset)
        model.meta_end_task(dataset)
        accuracies.append(dataset.evaluate(model))
    if args.savecheck:
        save_checkpoint("last.pt", model, args, accuracies)
    return losses, accuracies
