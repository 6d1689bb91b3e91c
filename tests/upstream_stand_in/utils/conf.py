"""The device of the process."""

import torch


def get_device():
    return torch.device("cpu")
