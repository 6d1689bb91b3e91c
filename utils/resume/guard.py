"""A loss or gradient that is not finite never reaches the parameters or the buffer.

The check sits in a hook that torch calls before every optimizer step, so it needs no line in any method. The loss terms
are found by Mammoth's convention: local variables of `observe` whose names contain "loss".
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

import torch
from torch.nn.utils import get_total_norm
from torch.optim.optimizer import register_optimizer_step_pre_hook

from utils.augmentations import to_device
from utils.errors import UserError


class NonFiniteError(UserError):
    """Training met a NaN or an infinity and stopped before it did harm."""


def is_logged(name: str, value: Any) -> bool:
    """Mammoth's rule for the local variables of `observe` that are worth logging."""
    is_scalar = value.ndim == 0 if isinstance(value, torch.Tensor) else isinstance(value, int | float)
    return is_scalar and _is_logged_name(name)


def _is_logged_name(name: str) -> bool:
    return "loss" in name.lower() or name.startswith("_wandb_")


@lru_cache
def _logged_names(code: CodeType) -> list[str]:
    """Those of a function's local variables, in their order in its frames."""
    return [name for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars) if _is_logged_name(name)]


def loss_terms(frame: FrameType | None) -> dict[str, torch.Tensor]:
    """Scalar tensors named like a loss in the `observe` calls around a frame, as they are."""
    terms: dict[str, torch.Tensor] = {}
    while frame is not None and frame.f_code.co_name != "meta_observe":
        if frame.f_code.co_name == "observe":
            values = frame.f_locals
            for name in _logged_names(frame.f_code):
                value = values.get(name)
                if isinstance(value, torch.Tensor) and value.ndim == 0:
                    terms[name] = value
        frame = frame.f_back
    return terms


def norm_on_host(gradients: list[torch.Tensor]) -> float:
    """What torch's `get_total_norm` gives for tensors in host memory, in half of its time on a small network."""
    norms = torch._foreach_norm(gradients) if gradients else [torch.zeros(())]
    return torch.linalg.vector_norm(torch.stack(norms)).item()


class NonFiniteGuard:
    """Watches every optimizer step while it is entered.

    On a CPU the values are at hand: the step raises `NonFiniteError`. On a GPU asking for them would stall every step;
    there the step and the buffer's next write are masked on the device, and `check()` reads the flag now and then.
    """

    def __init__(self, model: Any, on_device: bool):
        self.model = model
        self.on_device = on_device
        self.where: Callable[[], str] = lambda: "the first step"  # for the message; the training loop knows better
        # The latest optimizer step's, for the log; numbers where a value is at hand.
        self.terms: Mapping[str, torch.Tensor | float] = {}
        self._step = 0
        self._culprits: dict[str, torch.Tensor] = {}
        self._first_bad: torch.Tensor | None = None

    def __enter__(self) -> NonFiniteGuard:
        self._handles = [register_optimizer_step_pre_hook(self._attach)]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _attach(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Be the last hook of every optimizer: what a method's own hooks add to the gradients is checked, too.

        torch calls this one, which belongs to no optimizer, before those that do.
        """
        hooks = optimizer._optimizer_step_pre_hooks
        if next(reversed(hooks.values()), None) != self._before_step:
            for key in [key for key, hook in hooks.items() if hook == self._before_step]:
                del hooks[key]
            self._handles.append(optimizer.register_step_pre_hook(self._before_step))

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        terms = loss_terms(sys._getframe(1))
        if self.on_device:
            self.terms = detached = {name: value.detach() for name, value in terms.items()}
            self._mask(optimizer, gradients, {**detached, "gradient norm": get_total_norm(gradients)})
            return
        self.terms = numbers = {name: value.item() for name, value in terms.items()}
        norm = norm_on_host(gradients)
        if not (math.isfinite(norm) and all(map(math.isfinite, numbers.values()))):
            self._raise({**numbers, "gradient norm": norm})

    def _mask(self, optimizer: Any, gradients: list[torch.Tensor], values: dict[str, torch.Tensor]) -> None:
        """Make this step a no-op if a value is not finite, without asking the host."""
        device = optimizer.param_groups[0]["params"][0].device
        # A loss term may be a constant on the host, and so is the norm of no gradients.
        finite = {name: to_device(torch.isfinite(value), device) for name, value in values.items()}
        good = torch.stack(list(finite.values())).all()
        for name, is_finite in finite.items():
            self._culprits[name] = self._culprits.get(name, torch.zeros_like(is_finite)) | ~is_finite
        first = good.new_full((), -1, dtype=torch.int64) if self._first_bad is None else self._first_bad
        self._first_bad = torch.where(good | (first >= 0), first, self._step)
        self._step += 1
        if all(group.get("fused") for group in optimizer.param_groups):
            optimizer.grad_scale, optimizer.found_inf = None, (~good).float()
        else:  # an optimizer that can't skip a step at least sees no bad number
            for gradient in gradients:
                gradient.copy_(torch.where(good, gradient, 0.0))
        for value in vars(self.model).values():
            if hasattr(value, "write_mask"):
                value.write_mask = good

    def check(self, loss: float | None = None) -> None:
        """Raise if a masked step was seen, or if `loss`, a value already on the host, is not finite."""
        if loss is not None and not math.isfinite(loss):
            self._raise({"loss": loss})
        if self._first_bad is not None and int(self._first_bad) >= 0:
            names = [name for name, seen in self._culprits.items() if bool(seen)]
            self._raise(dict.fromkeys(names, math.nan), self._step - int(self._first_bad))

    def _raise(self, values: dict[str, float], steps_ago: int = 0) -> None:
        terms = ", ".join(f"{name} = {value:.6g}" for name, value in values.items())
        when = f" ({steps_ago} steps ago)" if steps_ago else ""
        raise NonFiniteError(
            f"not finite in {self.where()}{when}: {terms}; neither parameters nor buffer took it in; "
            "try a smaller --lr, or look at the data"
        )
