"""What our replay methods share: the buffer, when it is filled, and the logits that are stored in it."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from utils.args import add_rehearsal_args, choice
from utils.augmentations import apply_transform, to_unit_float
from utils.buffer import Buffer

CHUNK = 1024  # images offered to the buffer at once at the end of a task


def add_replay_args(parser: Any) -> None:
    """The flags of a replay method of ours: buffer size, replay batch size, and the moment of filling."""
    add_rehearsal_args(parser)
    parser.add_argument(
        "--buffer_fill",
        type=choice("stream", "task_end"),
        help="offer images to the reservoir at every step (Mammoth; the default), or each once at the end of its task "
        "(Algorithm 1; the default of dgc_*)",
    )


def check_replay_args(args: Namespace) -> None:
    """Fill at every step unless told otherwise; a task-free run must."""
    args.buffer_fill = args.buffer_fill or "stream"
    if args.task_free and args.buffer_fill == "task_end":
        raise ValueError("--buffer_fill task_end: a task-free run has no ends of tasks; use --buffer_fill stream")


def make_buffer(args: Namespace, device: torch.device, dataset: Any) -> Buffer:
    """An empty reservoir on the model's device that stores images in 8 bits, as they came from the dataset."""
    return Buffer(args.buffer_size, device, generator=dataset.streams["buffer"], image_dtype=torch.uint8)


def offer_task(buffer: Buffer, dataset: Any, logits_of: Callable[[Tensor], Tensor] | None = None) -> None:
    """Offer each training image of the current task to the reservoir once (Algorithm 1, last line of a task).

    With `logits_of`, a function of a batch of 8-bit images, each is stored together with its logits.
    """
    images, labels = dataset.train_loader.dataset.data, dataset.train_loader.dataset.targets
    for start in range(0, len(labels), CHUNK):
        batch = images[start : start + CHUNK].permute(0, 3, 1, 2)
        logits = logits_of(batch) if logits_of is not None else None
        buffer.add_data(examples=batch, labels=labels[start : start + CHUNK], logits=logits)


@torch.no_grad()
def compute_logits(net: nn.Module, images: Tensor, transform: Any, chunk: int) -> Tensor:
    """Logits of 8-bit images, at most `chunk` at a time, in the mode that the network is in.

    The chunks are equal (±1): no stray last image on its own, whose BatchNorm statistics would be those of one image.
    """
    chunks = images.tensor_split(math.ceil(len(images) / chunk))
    ready = (to_unit_float(x) if transform is None else apply_transform(x, transform) for x in chunks)
    return torch.cat([net(x).float() for x in ready])
