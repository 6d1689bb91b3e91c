"""A NaN or an infinity never reaches the parameters, the optimizer's state or the buffer."""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import get_total_norm

from models.utils.continual_model import OPTIMIZERS
from utils.buffer import Buffer
from utils.resume.guard import NonFiniteError, NonFiniteGuard, norm_on_host

pytestmark = pytest.mark.numeric


class Learner:
    """The outline of a replay method: one step with two loss terms, then a write into the buffer."""

    def __init__(self, device: torch.device, optimizer: str = "sgd", fused: bool = True):
        torch.manual_seed(0)
        self.net = nn.Linear(3, 2).to(device)
        options: dict[str, Any] = {"momentum": 0.9} if optimizer == "sgd" else {}
        self.opt = OPTIMIZERS[optimizer](self.net.parameters(), lr=0.1, fused=fused, **options)
        self.buffer = Buffer(4, device, generator=torch.Generator().manual_seed(0))
        self.args = Namespace()

    def meta_observe(self, inputs: torch.Tensor, penalty: float = 0.0) -> Any:
        return self.observe(inputs, penalty)

    def observe(self, inputs: torch.Tensor, penalty: float) -> Any:
        self.opt.zero_grad()
        ce_loss = self.net(inputs).square().mean()
        # The gradient of this term is finite whatever its value.
        penalty_loss = self.net.bias.sum() * 0 + penalty
        loss = ce_loss + penalty_loss
        loss.backward()
        self.opt.step()
        self.buffer.add_data(examples=inputs)
        return loss.detach()

    def state(self) -> dict[str, Any]:
        optimizer = [value for entry in self.opt.state.values() for value in entry.values()]
        tensors = [*self.net.parameters(), *(v for v in optimizer if v is not None), self.buffer.examples]
        return {str(i): torch.as_tensor(t).detach().clone() for i, t in enumerate(tensors)}


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


GOOD = torch.tensor([[0.1, 0.2, 0.3]])
BAD = [(torch.tensor([[math.nan, 0, 0]]), 0.0), (torch.tensor([[math.inf, 0, 0]]), 0.0), (GOOD, math.inf)]


@pytest.mark.parametrize(("inputs", "penalty"), BAD)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_on_a_cpu_the_step_raises_and_names_the_terms(inputs: torch.Tensor, penalty: float, optimizer: str) -> None:
    learner = Learner(torch.device("cpu"), optimizer)
    with NonFiniteGuard(learner, on_device=False) as guard:
        guard.where = lambda: "task 2, epoch 1, step 7"
        learner.meta_observe(GOOD)
        before = learner.state()
        with pytest.raises(NonFiniteError) as caught:
            learner.meta_observe(inputs, penalty)
    message = str(caught.value)
    assert "task 2, epoch 1, step 7" in message and "\n" not in message
    term = "penalty_loss = inf" if penalty else "ce_loss = "
    assert term in message and "gradient norm" in message
    assert equal(before, learner.state())


@pytest.mark.parametrize(("inputs", "penalty"), BAD)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_masked_on_the_device_the_step_changes_nothing(
    inputs: torch.Tensor, penalty: float, optimizer: str, device: torch.device
) -> None:
    """The GPU's way, which works on every device: no value is read until `check`."""
    learner = Learner(device, optimizer)
    with NonFiniteGuard(learner, on_device=True) as guard:
        learner.meta_observe(GOOD.to(device))
        guard.check()
        before = learner.state()
        learner.meta_observe(inputs.to(device), penalty)
        assert equal(before, learner.state())
        learner.meta_observe(GOOD.to(device))
        with pytest.raises(NonFiniteError, match="2 steps ago"):
            guard.check()


def test_masked_steps_are_otherwise_the_same_steps(device: torch.device) -> None:
    plain, masked = Learner(device), Learner(device)
    for _ in range(3):
        plain.meta_observe(GOOD.to(device))
        with NonFiniteGuard(masked, on_device=True):
            masked.meta_observe(GOOD.to(device))
    assert equal(plain.state(), masked.state())


def test_an_optimizer_that_cannot_skip_gets_zero_gradients(device: torch.device) -> None:
    learner = Learner(device, fused=False)
    with NonFiniteGuard(learner, on_device=True) as guard:
        learner.meta_observe(torch.full((1, 3), math.nan, device=device))
        assert all(torch.isfinite(p).all() for p in learner.net.parameters())
        with pytest.raises(NonFiniteError, match="1 steps ago"):
            guard.check()


def test_a_loss_that_is_only_returned_is_checked_too() -> None:
    guard = NonFiniteGuard(Learner(torch.device("cpu")), on_device=False)
    guard.check(1.0)
    with pytest.raises(NonFiniteError, match="loss = nan"):
        guard.check(math.nan)


def test_what_the_hooks_of_a_method_add_is_checked_too() -> None:
    learner = Learner(torch.device("cpu"))

    def spoil(*_: Any) -> None:
        learner.net.bias.grad[0] = math.inf

    with NonFiniteGuard(learner, on_device=False):
        learner.meta_observe(GOOD)
        learner.opt.register_step_pre_hook(spoil)
        before = learner.state()
        for _ in range(2):
            with pytest.raises(NonFiniteError, match="gradient norm = inf"):
                learner.meta_observe(GOOD)
    assert equal(before, learner.state())


def test_outside_its_block_the_guard_is_gone() -> None:
    learner = Learner(torch.device("cpu"))
    with NonFiniteGuard(learner, on_device=False):
        pass
    learner.meta_observe(torch.full((1, 3), math.nan))
    assert torch.isnan(learner.net.weight).any()


@pytest.mark.parametrize(
    "gradients",
    [
        [torch.randn(7, 5), torch.randn(7)],
        [torch.tensor([3.0], dtype=torch.float64), torch.tensor([0.0, 4.0])],  # 5, without any rounding
        [torch.full((2,), 3e38)],  # the norm overflows, although each number is finite
        [torch.tensor([1.0, math.nan]), torch.ones(2)],
        [],
    ],
    ids=["floats", "mixed types", "overflow", "nan", "none"],
)
def test_the_norm_is_that_of_torch(gradients: list[torch.Tensor]) -> None:
    assert norm_on_host(gradients) == pytest.approx(float(get_total_norm(gradients)), rel=0, abs=0, nan_ok=True)
