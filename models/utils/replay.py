"""What our replay methods share: the buffer, when it is filled, and the logits that are stored in it."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from models.utils.continual_model import ContinualModel
from utils.args import add_rehearsal_args, choice, number
from utils.augmentations import apply_transform, to_unit_float
from utils.buffer import Buffer
from utils.errors import UsageError

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


def add_replay_weight(parser: Any) -> None:
    parser.add_argument(
        "--replay_weight",
        type=choice("batch", "tasks"),
        default="batch",
        help="weigh stream and replay as published (Mammoth), or as the paper's eq. 7 does: 1/t for the current task, "
        "(t−1)/t for the past",
    )


def add_stored_weights(parser: Any) -> None:
    """The flags α and β of DER++'s loss and those built on it."""
    for name, what in {"--alpha": "logits, α", "--beta": "labels, β"}.items():
        parser.add_argument(name, type=number(float, 0), required=True, help=f"weight of the stored {what}")


def check_replay_args(args: Namespace) -> None:
    """Fill at every step unless told otherwise; a task-free run must."""
    args.buffer_fill = args.buffer_fill or "stream"
    if args.task_free and args.buffer_fill == "task_end":
        raise ValueError("--buffer_fill task_end: a task-free run has no ends of tasks; use --buffer_fill stream")
    if args.task_free and getattr(args, "replay_weight", "batch") == "tasks":
        raise ValueError("--replay_weight tasks: a task-free run knows no tasks; use --replay_weight batch")


def make_buffer(args: Namespace, device: torch.device, dataset: Any) -> Buffer:
    """An empty reservoir on the model's device; it stores images as they came from the dataset, ours in 8 bits."""
    return Buffer(args.buffer_size, device, generator=dataset.streams["buffer"], image_dtype=dataset.image_dtype)


class ReplayModel(ContinualModel):
    """A method with a buffer, which may weigh the past as the paper does."""

    def __init__(self, backbone: Any, loss: Any, args: Namespace, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset)
        self.buffer = make_buffer(args, self.device, self.dataset)
        self.past_images = 0  # `--replay_weight tasks`: in the training sets of finished tasks

    def task_weights(self) -> tuple[float, float]:
        """1/t and (t−1)/t, by images where tasks differ in size (eq. 7, Remark 3.1).

        1 and 1 if tasks don't count, or in the first one, when what is replayed is of the same task.
        """
        if not self.past_images:
            return 1.0, 1.0
        past = self.past_images / (self.past_images + len(training_set(self.dataset)))
        return 1 - past, past

    def store(self, **fields: Tensor) -> None:
        """Offer a step's batch to the buffer, unless that waits for the end of the task."""
        if self.args.buffer_fill == "stream":
            self.buffer.add_data(**fields)

    def end_task(self, dataset: Any) -> None:
        if self.args.buffer_fill == "task_end":
            self.store_task(dataset)
        self.count_task(dataset)

    def count_task(self, dataset: Any) -> None:
        if self.args.replay_weight == "tasks":
            self.past_images += len(training_set(dataset))

    def store_task(self, dataset: Any) -> None:
        """What `--buffer_fill task_end` does at the end of a task."""
        offer_task(self.buffer, dataset)


def join_replay(model: Any, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The stream's batch followed by one from memory, if there is any.

    For one forward pass over both: BatchNorm then normalises them by shared statistics.
    """
    if model.buffer.is_empty():
        return inputs, labels
    replayed, replayed_labels = model.buffer.get_data(
        model.args.minibatch_size, transform=model.transform, device=model.device
    )
    return torch.cat((inputs, replayed)), torch.cat((labels, replayed_labels))


def training_set(dataset: Any) -> Any:
    """The images of the current task. A stream of batches (`GCLDataset`) has none that could be read again."""
    images = getattr(dataset.train_loader, "dataset", None)
    if images is None:
        raise UsageError(
            f"{dataset.NAME} is one stream of batches, and this method reads the training sets of tasks: use "
            "--task_free 1 if the method has it, or another method"
        )
    return images


def offer_task(buffer: Buffer, dataset: Any, logits_of: Callable[[Tensor], Tensor] | None = None) -> None:
    """Offer each training image of the current task to the reservoir once (Algorithm 1, last line of a task).

    With `logits_of`, a function of a batch of images, each is stored together with its logits.
    """
    images = training_set(dataset)
    for start in range(0, len(images), CHUNK):
        rows = slice(start, start + CHUNK)
        batch = images.batch(rows)
        logits = logits_of(batch) if logits_of is not None else None
        buffer.add_data(examples=batch, labels=images.targets[rows], logits=logits)


@torch.no_grad()
def compute_logits(net: nn.Module, images: Tensor, transform: Any, chunk: int) -> Tensor:
    """Logits of images (bytes, or floats in [0, 1]), at most `chunk` at a time, in the mode that the network is in.

    The chunks are equal (±1): no stray last image on its own, whose BatchNorm statistics would be those of one image.
    """
    device = next(net.parameters()).device
    chunks = (x.to(device) for x in images.tensor_split(math.ceil(len(images) / chunk)))
    return torch.cat([net(to_input(x, transform)).float() for x in chunks])


def to_input(images: Tensor, transform: Any) -> Tensor:
    """What the network gets of images, which are bytes or floats in [0, 1]; without a transform as floats."""
    if transform is None:
        return to_unit_float(images)
    return apply_transform(images, transform)
