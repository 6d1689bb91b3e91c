"""`--dgc_diagnostics K`: how far replay's gradients are from the true gradient of the past, along a run.

Replay stands in for G(T_[1:t);θ), the gradient over all training images of the finished tasks, which no method may
see. The training loop may. Before every K-th step of a task t ≥ 2 it measures against it, at the present θ,

- `batch`: g(x̄;θ) of one replay batch, drawn here, not the one that the method is about to draw;
- `buffer`: G(M;θ) of the whole buffer as it is now (filled from the stream, it holds images of this task, too);
- `calibrated`: G(M;θ) + c, if the method has a correction c (`dgc_direction`); the whole of it, whatever α is.

Each has `…_error` ‖estimate − true‖ / ‖true‖ and `…_cosine`. `alpha_star` = ⟨true − G(M;θ), c⟩ / ⟨c, c⟩ is the multiple
of c that brings the buffer's gradient closest to the true one; `past_norm` is ‖true‖.

Gradients are taken as the run's calibration takes its own (`--dgc_view`): on un-augmented images in eval mode, for runs
without DGC too, or in the base's augmented batches in train mode. Views are never compared. Always in float32. A
measurement leaves no trace: neither in modes, statistics and `.grad`, nor in any random generator (what it draws is
determined by seed and step, so there is nothing to save either).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from models.utils.dgc_gradients import Pass, mean_gradient
from models.utils.dgc_views import PlainView
from utils.errors import UsageError
from utils.random_streams import RandomStreams

Batch = tuple[Tensor, Tensor]


class TrainingSets:
    """What measures along a run: how often, and the training sets of the tasks begun, which no method may see."""

    def __init__(self, model: Any, every: int | None):
        self.model, self.every = model, every or 0
        self.tasks: list[Batch] = []  # on the host

    def keep(self, images: Any) -> None:
        """To be told of each task's training set, in order, before the method can change it."""
        if self.every:
            if not hasattr(images, "batch"):
                raise UsageError(
                    f"the loader of {self.model.args.dataset} does not give its training set, which --dgc_diagnostics "
                    "and --loss_diagnostics measure on; leave them out"
                )
            self.tasks.append((images.batch(slice(None)).cpu(), images.targets.cpu()))


class Diagnostics(TrainingSets):
    """Measures every `every` steps; 0 is off."""

    def __init__(self, model: Any, every: int):
        if every and not (hasattr(model, "buffer") and hasattr(model.args, "minibatch_size")):
            raise UsageError(
                f"--dgc_diagnostics {every} needs a replay buffer, which {model.NAME} has not; leave it out"
            )
        super().__init__(model, every)
        self.view: Any = getattr(model, "dgc_view", None) or PlainView(model)

    def due(self, task: int, task_step: int) -> bool:
        """Before a step, both counted from 0: at the first of a task θ is where the last one left it."""
        return bool(self.every and task and task_step % self.every == 0) and not self.model.buffer.is_empty()

    def measure(self, task: int, step: int) -> dict[str, float]:
        """The values at this θ; `step`, the run's, determines what is drawn."""
        draws, buffer = RandomStreams(self.model.args.seed)[f"diagnostics/{step}"], self.model.buffer
        rows = torch.randperm(len(buffer), generator=draws)
        seed = int(torch.randint(2**32, (), generator=draws))
        with self.model.dgc_aside(seed) if hasattr(self.model, "dgc_aside") else nullcontext():
            past = [torch.cat(parts) for parts in zip(*self.tasks[:task], strict=True)]
            true = self._gradient(self.view.past(*past))
            batch = self._gradient(self.view.past(*self._stored(rows[: self.model.args.minibatch_size])))
            whole = self._gradient(self.view.past(*self._stored(torch.arange(len(rows)))))
            direction = self.model.dgc.direction() if hasattr(self.model, "dgc") else None
        values = {"past_norm": true.norm(), **_compare("batch", batch, true), **_compare("buffer", whole, true)}
        if direction is not None:
            c = self._flat(direction)
            values |= _compare("calibrated", whole + c, true)
            values["alpha_star"] = (true - whole) @ c / (c @ c)
        return {name: float(value) for name, value in values.items()}

    def _gradient(self, passes: Iterable[Pass]) -> Tensor:
        """The mean over all images, as one vector in float64 on the host."""
        names = [name for name, p in self.model.net.named_parameters() if p.requires_grad]
        return self._flat(mean_gradient(self.model.net, self.model.loss, passes, names))

    def _flat(self, vector: Mapping[str, Tensor]) -> Tensor:
        """A vector by names in the same form; zero for parameters that it leaves out."""
        trainable = [(name, p) for name, p in self.model.net.named_parameters() if p.requires_grad]
        parts = [vector[name] if name in vector else torch.zeros_like(p) for name, p in trainable]
        return torch.cat([part.detach().reshape(-1) for part in parts]).cpu().double()

    def _stored(self, rows: Tensor) -> Batch:
        """Rows of the buffer, as they are stored."""
        images, labels, *_ = self.model.buffer.get_data_by_index(rows)
        return images, labels


def _compare(name: str, estimate: Tensor, true: Tensor) -> dict[str, Tensor]:
    return {
        f"{name}_error": (estimate - true).norm() / true.norm(),
        f"{name}_cosine": estimate @ true / (estimate.norm() * true.norm()),
    }
