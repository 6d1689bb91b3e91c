"""On which images Dynamic Gradient Calibration takes its gradients, and how: of buffer, stream and task, as passes.

- `plain`: un-augmented, normalised, BatchNorm in eval mode, cross-entropy over all outputs; `raw`: not normalised.
- `same`: the base's own pass once more, with its augmentation, its batch and its train mode. Only then do the two
  members of the pair g(x̄;θ) − g(x̄;θ̃) of eq. 11 cancel at θ = θ̃. What is drawn for a stage or a task's end is augmented
  by the base's transform and put into batches like the base's. Means over such batches depend on the batches, because
  BatchNorm couples the images of one.

The notation is that of models/utils/dgc_estimators.py; the host is the mixin (models/utils/dgc_mixin.py).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.utils.dgc_estimators import is_task_free
from models.utils.dgc_gradients import ALL, CHUNK, Pass, Term
from utils.augmentations import apply_transform

UNITS = {torch.uint8: 255, torch.int8: 127, torch.float16: 1}


# -- reading images ----------------------------------------------------------------------------------------------------


@contextmanager
def generators_put_back(generators: list[torch.Generator]) -> Iterator[None]:
    """These, Python's and numpy's: what is drawn inside shifts nothing that the base draws later."""
    states = [generator.get_state() for generator in generators]
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def read_rows(images: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Un-augmented images of a training set, as bytes or in [0, 1], and their labels: at once, or item by item."""
    if hasattr(images, "batch"):  # an ImageSet
        labels = torch.as_tensor(images.targets)
        rows = to_device(rows, labels.device)
        return images.batch(rows), labels.index_select(0, rows).as_subclass(Tensor)
    with generators_put_back([torch.default_generator]):  # the items' own augmentation is drawn and not used
        items = [images[i] for i in rows.tolist()]
    items = [item for item in items if item[1] >= 0]  # Mammoth's label of what has none is −1
    labels = torch.tensor([int(item[1]) for item in items], dtype=torch.int64)
    return torch.stack([item[2] for item in items]) if items else torch.empty(0), labels


def raw_batches(images: Any, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(un-augmented images in [0, 1], labels) of a training set in its own order."""
    for rows in torch.arange(len(images)).split(size):
        batch, labels = read_rows(images, rows)
        if len(labels):
            yield in_unit_range(batch), labels


def in_unit_range(images: Tensor) -> Tensor:
    """Stored bytes (of images, or signed ones of vectors) as floats; other floats as they are."""
    return images if images.dtype not in UNITS else images.float() / UNITS[images.dtype]


def as_input(model: Any, images: Tensor) -> Tensor:
    """Un-augmented images as the network takes them. A dataset without transforms has nothing to normalise by."""
    return apply_transform(images, getattr(model, "normalization_transform", None))


def to_device(tensor: Tensor, device: Any) -> Tensor:
    """From the host without waiting for the GPU."""
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


# -- views of the images -----------------------------------------------------------------------------------------------


class View:
    """Hands images of a host out as passes."""

    REPEATS_BASE = False  # whether it takes the base's own pass once more, which it must know

    def __init__(self, host: Any):
        self.host = host

    def stage(self) -> list[Pass]:
        """X̄ for the stage update: a fresh draw from the buffer, or all of it."""
        return self.buffer() if self.host.args.dgc_stage == "buffer" else self.draw()

    def draw(self) -> list[Pass]:
        """A replay batch of DGC's own; none from an empty buffer."""
        host = self.host
        rows = torch.randperm(len(host.buffer), generator=host.dgc_generator)[: self.draw_size()]
        return [self.rows(rows)] if len(rows) else []

    def draw_size(self) -> int:
        return self.host.args.minibatch_size

    def buffer(self) -> list[Pass]:
        """All of the buffer; copies, which stay what they are when it changes."""
        raise NotImplementedError

    def rows(self, index: Tensor) -> Pass:
        """Rows of the buffer."""
        raise NotImplementedError


class PlainView(View):
    """Un-augmented images and BatchNorm in eval mode."""

    normalised = True

    def step(self, replay: Any, stream: Any) -> list[Pass]:
        """x̄ and x_t of this step with these weights; None leaves one out."""
        parts = [] if replay is None else [(*self.host.dgc_draw().stored(), replay)]
        parts += [] if stream is None else [(*self.host.dgc_stream[1:], stream)]
        return [Pass(self._ready(images), (Term(labels, weight=weight),)) for images, labels, weight in parts]

    def rows(self, index: Tensor) -> Pass:
        images, labels = self.host.dgc_rows(index)
        return Pass(self._ready(images), (Term(labels),))

    def buffer(self) -> list[Pass]:
        rows = torch.arange(len(self.host.buffer))
        return [self.rows(index) for index in rows.split(CHUNK)] if len(rows) else []

    def task(self, size: int = CHUNK, current: bool = False) -> Iterator[Pass]:
        """The current task's training set."""
        for images, labels in raw_batches(self.host.dgc_training_set(), size):
            yield Pass(self._ready(images.to(self.host.device)), (Term(labels.to(self.host.device)),))

    def past(self, images: Tensor, labels: Tensor) -> Iterator[Pass]:
        """Images of finished tasks as they would be replayed, for diagnostics."""
        for x, y in zip(images.split(CHUNK), labels.split(CHUNK), strict=True):
            x = in_unit_range(x.to(self.host.device))
            yield Pass(self._ready(x), (Term(y.to(self.host.device)),))

    def as_past(self, passes: list[Pass]) -> list[Pass]:
        """Replay passes of the task that ends, as the next one will have them."""
        return passes

    def _ready(self, images: Tensor) -> Tensor:
        return as_input(self.host, images) if self.normalised else images


class RawView(PlainView):
    """As `PlainView`, but not normalised: the published code."""

    normalised = False


class SameView(View):
    """The base's own pass, rebuilt: its augmentation, its batch, train mode."""

    REPEATS_BASE = True

    def step(self, replay: Any, stream: Any) -> list[Pass]:
        """x̄ and x_t of this step with these weights; in one pass if the base has them in one."""
        host, draw = self.host, self.host.dgc_draw()
        inputs, _, labels = host.dgc_stream
        head = host.dgc_columns(current=True)
        stream_term = None if stream is None else Term(labels - (head.start or 0), slice(len(labels)), head, stream)
        if draw is None:
            return [Pass(inputs, (stream_term,), training=True)] if stream_term else []
        batch, rows = host.dgc_pass(inputs, draw.images)
        terms = () if replay is None else (Term(draw.labels, rows, host.dgc_columns(), replay),)
        if stream_term is None or len(batch) > len(draw):  # one forward and one backward for both
            return [Pass(batch, terms if stream_term is None else (*terms, stream_term), training=True)]
        passes = [Pass(batch, terms, training=True)] if terms else []
        return [*passes, Pass(inputs, (stream_term,), training=True)]

    def draw_size(self) -> int:
        return self.host.dgc_mix()[1]

    def rows(self, index: Tensor) -> Pass:
        with self.host.dgc_own_randomness():
            images, labels = self.host.dgc_rows(index, augmented=True)
        return self._replayed(images, labels)

    def _replayed(self, images: Tensor, labels: Tensor) -> Pass:
        """Joined with images of the current task, if the base does so."""
        stream = self._stream_images(self.host.dgc_mix()[0])
        batch = images if stream is None else torch.cat((stream, images))
        rows = slice(len(batch) - len(images), None)
        return Pass(batch, (Term(labels, rows, self.host.dgc_columns()),), training=True)

    def _stream_images(self, count: int) -> Tensor | None:
        """A fresh draw from the current task; where there are no tasks, the batch at hand."""
        host = self.host
        if not count:
            return None
        if host.dgc_stream is not None and is_task_free(host.args):
            return host.dgc_stream[0]
        task = host.dgc_training_set()
        own = min(getattr(task, "n_own", len(task)), len(task))  # without what the base has appended
        return self._augmented(*read_rows(task, torch.randperm(own, generator=host.dgc_generator)[:count]))[0]

    def _augmented(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        images, labels, transform = images.to(self.host.device), labels.to(self.host.device), self.host.transform
        with self.host.dgc_own_randomness():
            return in_unit_range(images) if transform is None else apply_transform(images, transform), labels

    def buffer(self) -> list[Pass]:
        return [self.rows(rows) for rows in self._shuffled(len(self.host.buffer), self.host.dgc_mix()[1])]

    def _shuffled(self, count: int, size: int) -> tuple[Tensor, ...]:
        """Rows of a set in batches of one size (±1) and of all classes, by whose statistics BatchNorm normalises."""
        rows = torch.randperm(count, generator=self.host.dgc_generator)
        return rows.tensor_split(math.ceil(count / size)) if count else ()

    def task(self, size: int | None = None, current: bool = False) -> Iterator[Pass]:
        """The current task's training set, as the stream's images now or as past ones from the next task on."""
        task, columns = self.host.dgc_training_set(), self.host.dgc_columns(current=True)
        columns = columns if current else self._past_columns()
        own = min(getattr(task, "n_own", len(task)), len(task))
        for rows in self._shuffled(own, size or (self._stream_pass() if current else sum(self.host.dgc_mix()))):
            images, labels = self._augmented(*read_rows(task, rows))
            if len(labels):
                yield Pass(images, (Term(labels - (columns.start or 0), ALL, columns),), training=True)

    def _stream_pass(self) -> int:
        """How many images are in one pass of the base that has x_t in it: replayed ones only if it joins them."""
        joined, replayed = self.host.dgc_mix()
        return self.host.args.batch_size + (replayed if joined and self.host.dgc_past else 0)

    def past(self, images: Tensor, labels: Tensor) -> Iterator[Pass]:
        """Images of finished tasks as they would be replayed, for diagnostics."""
        for rows in self._shuffled(len(labels), self.host.dgc_mix()[1]):
            yield self._replayed(*self._augmented(images[rows], labels[rows]))

    def as_past(self, passes: list[Pass]) -> list[Pass]:
        """Replay passes of the task that ends, as the next one will have them."""
        columns = self._past_columns()
        return [replace(p, terms=tuple(term._replace(columns=columns) for term in p.terms)) for p in passes]

    def _past_columns(self) -> slice:
        """The outputs in the loss of replayed images when this task is over: of all classes seen, or simply all."""
        return slice(0, self.host.n_seen_classes) if self.host.dgc_columns() != ALL else ALL


VIEWS = {"plain": PlainView, "raw": RawView, "same": SameView}
