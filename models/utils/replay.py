"""What replay methods share: the buffer, when it is filled, and the logits that are stored in it."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from models.utils.continual_model import ContinualModel
from models.utils.dgc_gradients import share
from utils.args import add_rehearsal_args, choice, number
from utils.augmentations import apply_transform, to_unit_float
from utils.buffer import Buffer
from utils.errors import UsageError

READ = 1024  # images read at once at the end of a task


def add_replay_args(parser: Any) -> None:
    """Flags: buffer size, replay batch size, and the moment of filling."""
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


class ReplayModel(ContinualModel):
    """A method with a buffer: when it is filled, what is drawn, and what the past weighs.

    `get_parser` adds the flags of Experience Replay. A method that has fewer adds its own instead, and does without
    `store`, or fills the buffer in its own `end_task`.
    """

    def __init__(self, backbone: Any, loss: Any, args: Namespace, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset)
        self.buffer: Any = self.make_buffer()
        self.past_images = 0  # in the training sets of finished tasks, if they are weighed

    @staticmethod
    def get_parser(parser: Any) -> Any:
        add_replay_args(parser)
        add_replay_weight(parser)
        return parser

    @classmethod
    def derived_args(cls, args: Namespace) -> dict[str, Any]:
        return {"buffer_fill": "stream"} if getattr(args, "buffer_fill", "") is None else {}

    @classmethod
    def check_args(cls, args: Namespace) -> None:
        if args.task_free and getattr(args, "buffer_fill", "") == "task_end":
            raise ValueError("--buffer_fill task_end: a task-free run has no ends of tasks; use --buffer_fill stream")
        if args.task_free and getattr(args, "replay_weight", "") == "tasks":
            raise ValueError("--replay_weight tasks: a task-free run knows no tasks; use --replay_weight batch")

    # -- what a method without these flags decides by itself -------------------------------------------------------

    def fills_at_task_end(self) -> bool:
        return getattr(self.args, "buffer_fill", "stream") == "task_end"

    def weighs_tasks(self) -> bool:
        return getattr(self.args, "replay_weight", "batch") == "tasks"

    # -- the buffer --------------------------------------------------------------------------------------------------

    def make_buffer(self) -> Buffer:
        """An empty reservoir on the model's device; it stores images as they came from the dataset, ours in 8 bits."""
        dtype = self.dataset.image_dtype
        return Buffer(self.args.buffer_size, self.device, generator=self.random_stream("buffer"), image_dtype=dtype)

    def draw_replay(self, **options: Any) -> Any:
        """A replay batch as `Buffer.get_data` hands it out: augmented, unless the options say otherwise."""
        options = {"transform": self.transform, "device": self.device} | options
        return self.buffer.get_data(self.args.minibatch_size, **options)

    def join_replay(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The stream's batch followed by one from the buffer, if there is any.

        For one forward pass over both: BatchNorm then normalises them by shared statistics.
        """
        if self.buffer.is_empty():
            return inputs, labels
        replayed, replayed_labels = self.draw_replay()
        return torch.cat((inputs, replayed)), torch.cat((labels, replayed_labels))

    def store(self, **fields: Tensor) -> None:
        """Offer a step's batch to the buffer, unless that waits for the end of the task."""
        if not self.fills_at_task_end():
            self.buffer.add_data(**fields)

    def end_task(self, dataset: Any) -> None:
        if self.fills_at_task_end():
            self.store_task(dataset)
        self.count_task(dataset)

    def store_task(self, dataset: Any) -> None:
        """Offer a whole task to the buffer at its end."""
        offer_task(self.buffer, dataset)

    # -- what the past weighs ------------------------------------------------------------------------------------------

    def count_task(self, dataset: Any) -> None:
        if self.weighs_tasks():
            self.past_images += len(training_set(dataset))

    def past_share(self) -> float:
        """(t−1)/t, by images where tasks differ in size (eq. 7, Remark 3.1)."""
        return share(self.past_images, len(training_set(self.dataset)))

    def task_weights(self) -> tuple[float, float]:
        """1/t and (t−1)/t; 1 and 1 if tasks don't count, or in the first, when what is replayed is of the same task."""
        if not self.past_images:
            return 1.0, 1.0
        past = self.past_share()
        return 1 - past, past


def training_set(dataset: Any) -> Any:
    """The images of the current task. A stream of batches (`GCLDataset`) has none that could be read again."""
    images = getattr(dataset.train_loader, "dataset", None)
    if images is None:
        raise UsageError(
            f"{dataset.NAME} is one stream of batches, and this method reads the training sets of tasks: use "
            "--task_free 1 if the method has it, or another method"
        )
    return images


def task_batches(dataset: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """(images as they are stored, labels) of the current task, in its own order."""
    images = training_set(dataset)
    for start in range(0, len(images), READ):
        rows = slice(start, start + READ)
        yield images.batch(rows), images.targets[rows]


def offer_task(buffer: Buffer, dataset: Any, logits_of: Callable[[Tensor], Tensor] | None = None) -> None:
    """Offer each training image of the current task to the reservoir once (Algorithm 1, last line of a task).

    With `logits_of`, a function of a batch of images, each is stored together with its logits.
    """
    for images, labels in task_batches(dataset):
        logits = logits_of(images) if logits_of is not None else None
        buffer.add_data(examples=images, labels=labels, logits=logits)


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
