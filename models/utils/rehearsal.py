"""What our replay methods share: the buffer, and when it is filled."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch

from utils.args import add_rehearsal_args, choice
from utils.buffer import Buffer
from utils.errors import UsageError

CHUNK = 1024  # images offered to the buffer at once at the end of a task


def add_replay_args(parser: Any) -> None:
    """The flags of a replay method of ours: buffer size, replay batch size, and the moment of filling."""
    add_rehearsal_args(parser)
    parser.add_argument(
        "--buffer_fill",
        type=choice("stream", "task_end"),
        default="stream",
        help="offer images to the reservoir at every step (Mammoth), or each once at the end of its task (Algorithm 1)",
    )


def make_buffer(args: Namespace, device: torch.device, dataset: Any) -> Buffer:
    """An empty reservoir on the model's device that stores images in 8 bits, as they came from the dataset."""
    if args.task_free and args.buffer_fill == "task_end":
        raise UsageError("--buffer_fill task_end: a task-free run has no ends of tasks; use --buffer_fill stream")
    return Buffer(args.buffer_size, device, generator=dataset.streams["buffer"], image_dtype=torch.uint8)


def offer_task(buffer: Buffer, dataset: Any) -> None:
    """Offer each training image of the current task to the reservoir once (Algorithm 1, last line of a task)."""
    images, labels = dataset.train_loader.dataset.data, dataset.train_loader.dataset.targets
    for start in range(0, len(labels), CHUNK):
        batch = images[start : start + CHUNK].permute(0, 3, 1, 2)
        buffer.add_data(examples=batch, labels=labels[start : start + CHUNK])
