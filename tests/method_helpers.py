"""What the tests of single methods share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_same_run, run

from main import initialize
from utils.buffer import Buffer
from utils.cli.parse import parse_args

# Dataset and buffer size of the columns of the paper's main table, for which there are presets.
PAPER_COLUMNS = [
    ("seq-cifar10", 500),
    ("seq-cifar10", 2000),
    ("seq-cifar100", 500),
    ("seq-cifar100", 2000),
    ("seq-tinyimg", 2000),
    ("seq-tinyimg", 5000),
]
# The smallest with BatchNorm, strides and shortcuts: a third of the layers of a ResNet-18, and of its time.
RESNET = ["--backbone", "resnet8", "--num_filters", "4"]


class Killed(Exception):
    """Stands for the end of the process at a step; nothing is saved on the way out."""


def build(model: str, base_path: Path, *flags: str, seed: int = 0) -> Any:
    """A model on the digits, before its first task."""
    return initialize(parse_args(["--model", model, "--seed", str(seed), "--base_path", str(base_path), *flags]))[0]


def begin_task(model: Any) -> list[tuple[torch.Tensor, ...]]:
    """Enter the next task; its batches."""
    loader, _ = model.dataset.get_data_loaders()
    model.meta_begin_task(model.dataset)
    return list(loader)


def record_draws(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Tensor, ...]]:
    """What `Buffer.get_data` hands out from now on."""
    draws: list[tuple[torch.Tensor, ...]] = []
    get_data = Buffer.get_data

    def recorded(self, *args, **kwargs):
        draws.append(tuple(field.clone() for field in get_data(self, *args, **kwargs)))
        return draws[-1]

    monkeypatch.setattr(Buffer, "get_data", recorded)
    return draws


def kill_at(method: type, step: int, patch: pytest.MonkeyPatch) -> None:
    """Let the process "die" in the middle of a step (from 1), after the optimizer has moved the parameters."""
    observe: Any = method.observe  # type: ignore[attr-defined]
    steps = {"done": 0}

    def dying(self, *args, **kwargs):
        result = observe(self, *args, **kwargs)
        steps["done"] += 1
        if steps["done"] == step:
            raise Killed
        return result

    patch.setattr(method, "observe", dying)


def assert_exact_resume(method: Any, tmp_path: Path, *flags: str, tasks: int = 3, model: str | None = None) -> None:
    """Killed in step 6 (of 9 in task 1), then 9 steps after the last checkpoint, in task 2: the end is the same.

    `model`: the name to ask for, if it is not the method's own.
    """
    name, flags = model or method.NAME, ("--n_epochs", "1", "--stop_after", str(tasks), *flags)
    _, _, straight = run(tmp_path / "straight", *flags, model=name)
    for step in (6, 9):
        with pytest.MonkeyPatch.context() as patch:
            kill_at(method, step, patch)
            with pytest.raises(Killed):
                run(tmp_path / "broken", *flags, "--checkpoint_every", "2", model=name)
    _, _, resumed = run(tmp_path / "broken", *flags, model=name)
    assert_same_run(resumed, straight)


def assert_sgd_step(net: Any, before: Any, terms: dict[str, torch.Tensor], expected: dict[str, Any], lr: float) -> None:
    """`net` is `before`, through which the expected terms were computed, after a step of SGD on their sum `loss`."""
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], value.detach(), msg=name)
        assert not terms[name].requires_grad
    gradients = torch.autograd.grad(expected["loss"], list(before.parameters()))
    for new, old, gradient in zip(net.parameters(), before.parameters(), gradients, strict=True):
        assert torch.allclose(new, old - lr * gradient, atol=1e-6)
    for name, value in net.named_buffers():
        assert torch.allclose(value, dict(before.named_buffers())[name]), name
