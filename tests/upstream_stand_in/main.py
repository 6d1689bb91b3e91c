"""`python main.py --model NAME --dataset NAME …`: parse, build, train; `--report FILE` is for the tests."""

import argparse
import json
import random
import sys

import numpy as np
import torch

from backbone import get_backbone
from datasets import get_dataset
from models import get_model, get_model_names
from utils.training import train


def parse_args(argv):
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--model", type=lambda name: name.strip().replace("_", "-"), required=True)
    model = get_model_names()[first.parse_known_args(argv)[0].model]
    if isinstance(model, Exception):
        raise model
    parser = argparse.ArgumentParser(parents=[first], allow_abbrev=False)
    for flag, kind, default in (
        ("dataset", str, None), ("backbone", str, "small"), ("lr", float, None), ("n_epochs", int, 1),
        ("batch_size", int, 8), ("seed", int, None), ("optim_mom", float, 0.0), ("lr_scheduler", str, None),
        ("start_from", int, 0), ("stop_after", int, None), ("nowand", int, 1), ("report", str, None),
        ("savecheck", str, None), ("loadcheck", str, None),
    ):  # fmt: skip
        parser.add_argument(f"--{flag}", type=kind, default=default)
    group = parser.add_argument_group("model")
    returned = model.get_parser(group)
    assert returned is None or hasattr(returned, "add_argument")
    for action in parser._actions:  # defaults go through the flag's type, as if they had been given
        if callable(action.type) and action.default is not argparse.SUPPRESS:
            action.default = (
                action.type(action.default) if action.default is not None or action.dest[:3] == "dgc" else None
            )
    args = parser.parse_args(argv)
    args.minibatch_size = args.batch_size  # whatever was given
    return args


def main(argv=None):
    args = parse_args(sys.argv[1:] if argv is None else argv)
    if args.seed is not None:
        random.seed(args.seed), np.random.seed(args.seed), torch.manual_seed(args.seed)
    dataset = get_dataset(args)
    model = get_model(args, get_backbone(args), dataset.get_loss(), dataset.get_transform(), dataset)
    losses, accuracies = train(model, dataset, args)
    report = {
        "losses": losses,
        "accuracies": accuracies,
        "parameters": [p.double().sum().item() for p in model.net.parameters()],
        "weights": model.net.state_dict()["classifier.weight"].flatten().tolist(),
        "buffer": model.buffer.labels.tolist() if hasattr(model, "buffer") else [],
        "draws": [torch.rand(1).item(), np.random.rand(), random.random()],
        "patched": sorted(set(vars(model.buffer)) & {"get_data", "add_data"}) if hasattr(model, "buffer") else [],
    }
    if args.report:
        with open(args.report, "w") as file:
            json.dump(report, file)
    return report


if __name__ == "__main__":
    main()
