"""Models, found by importing every file of this folder."""

import importlib
import os

REGISTRY = {}


def get_model_names():
    if not REGISTRY:
        for file in sorted(os.listdir(os.path.dirname(__file__))):
            if "__" in file or os.path.isdir(os.path.join(os.path.dirname(__file__), file)):
                continue
            stem = file.split(".")[0]
            try:
                module = importlib.import_module(f"models.{stem}")
                for value in vars(module).values():
                    if isinstance(value, type) and "ContinualModel" in [base.__name__ for base in value.__mro__[1:]]:
                        REGISTRY[value.NAME.replace("_", "-")] = value
            except Exception as error:
                REGISTRY[stem.replace("_", "-")] = error
    return REGISTRY


def get_model(args, backbone, loss, transform, dataset):
    return get_model_names()[args.model](backbone, loss, args, transform, dataset)
