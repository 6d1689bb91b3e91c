"""`--dgc_diagnostics K`: how far replay's gradients are from the true gradient of the past, along a run.

Replay stands in for G(T_[1:t);θ), the gradient over all training images of the finished tasks, which no method may
see. The training loop may. Before every K-th step of a task t ≥ 2 it measures against it, at the present θ,

- `batch`: g(x̄;θ) of one replay batch, drawn here, not the one that the method is about to draw;
- `buffer`: G(M;θ) of the whole buffer as it is now (filled from the stream, it holds images of this task, too);
- `calibrated`: G(M;θ) + c, if the method has a correction c (`dgc_direction`); the whole of it, whatever α is.

Each has `…_error` ‖estimate − true‖ / ‖true‖ and `…_cosine`. `alpha_star` = ⟨true − G(M;θ), c⟩ / ⟨c, c⟩ is the multiple
of c that brings the buffer's gradient closest to the true one; `past_norm` is ‖true‖.

Gradients are those of DGC: the cross-entropy over all outputs, un-augmented normalised images, BatchNorm in eval mode;
always in float32. A measurement leaves no trace: neither in modes, statistics and `.grad`, nor in any random generator
(its own is made anew from seed and step, so there is nothing to save either).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from utils.augmentations import apply_transform
from utils.errors import UsageError
from utils.modes import network_mode
from utils.random_streams import RandomStreams

CHUNK = 256  # images per pass
Batch = tuple[Tensor, Tensor]


class Diagnostics:
    """Measures every `every` steps; 0 is off."""

    def __init__(self, model: Any, dataset: Any, every: int):
        if every and not (hasattr(model, "buffer") and hasattr(model.args, "minibatch_size")):
            raise UsageError(
                f"--dgc_diagnostics {every} needs a replay buffer, which {model.NAME} has not; leave it out"
            )
        self.model, self.every = model, every
        self._transform = dataset.get_batch_transform(augment=False)
        self._tasks: list[Batch] = []  # training sets by task, on the host

    def keep(self, images: Any) -> None:
        """To be told of each task's training set, in order, before the method can change it."""
        if self.every:
            self._tasks.append((images.batch(slice(None)).cpu(), images.targets.cpu()))

    def due(self, task: int, task_step: int) -> bool:
        """Before a step, both counted from 0: at the first of a task θ is where the last one left it."""
        return bool(self.every and task and task_step % self.every == 0) and not self.model.buffer.is_empty()

    def measure(self, task: int, step: int) -> dict[str, float]:
        """The values at this θ; `step`, the run's, determines the replay batch."""
        rows = torch.randperm(
            len(self.model.buffer), generator=RandomStreams(self.model.args.seed)[f"diagnostics/{step}"]
        )
        true = self._gradient(self._past(task))
        batch = self._gradient(self._buffer(rows[: self.model.args.minibatch_size]))
        buffer = self._gradient(self._buffer(torch.arange(len(rows))))
        values = {"past_norm": true.norm(), **_compare("batch", batch, true), **_compare("buffer", buffer, true)}
        direction = self.model.dgc_direction() if hasattr(self.model, "dgc_direction") else None
        if direction is not None:
            c = self._flat(direction)
            values |= _compare("calibrated", buffer + c, true)
            values["alpha_star"] = (true - buffer) @ c / (c @ c)
        return {name: float(value) for name, value in values.items()}

    def _gradient(self, batches: Iterable[Batch]) -> Tensor:
        """The mean over all images, as one vector in float64 on the host."""
        net, total, count = self.model.net, torch.zeros(()), 0
        parameters = [p for p in net.parameters() if p.requires_grad]
        with network_mode(net, training=False), torch.enable_grad():
            for images, labels in batches:
                loss = self.model.loss(net(images), labels)
                found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
                total = total.to(loss.device) + len(labels) * torch.cat([g.reshape(-1) for g in found])
                count += len(labels)
        return total.cpu().double() / count

    def _flat(self, vector: Mapping[str, Tensor]) -> Tensor:
        """A vector by names in the same form; zero for parameters that it leaves out."""
        trainable = [(name, p) for name, p in self.model.net.named_parameters() if p.requires_grad]
        parts = [vector[name] if name in vector else torch.zeros_like(p) for name, p in trainable]
        return torch.cat([part.detach().reshape(-1) for part in parts]).cpu().double()

    def _past(self, task: int) -> Iterator[Batch]:
        for images, targets in self._tasks[:task]:
            for data, labels in zip(images.split(CHUNK), targets.split(CHUNK), strict=True):
                yield apply_transform(data.to(self.model.device), self._transform), labels.to(self.model.device)

    def _buffer(self, rows: Tensor) -> Iterator[Batch]:
        for index in rows.split(CHUNK):
            images, labels, *_ = self.model.buffer.get_data_by_index(index, self._transform, self.model.device)
            yield images, labels


def _compare(name: str, estimate: Tensor, true: Tensor) -> dict[str, Tensor]:
    return {
        f"{name}_error": (estimate - true).norm() / true.norm(),
        f"{name}_cosine": estimate @ true / (estimate.norm() * true.norm()),
    }
