"""A trained model in a file: weights, buffer and flags."""

import torch


def save_checkpoint(path, model, args, results):
    """Plain values and tensors only: what reads it refuses anything else."""
    buffer = model.buffer
    content = {
        "model": model.state_dict(),
        "optimizer": model.opt.state_dict(),
        "scheduler": None,
        "args": {name: value for name, value in vars(args).items() if isinstance(value, (int, float, str, type(None)))},
        "results": results,
        "buffer": {name: getattr(buffer, name) for name in buffer.used_attributes},
    }
    torch.save(content, path)


def load_checkpoint(path, model):
    content = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(content["model"])  # strictly
    model.load_buffer(content["buffer"])
