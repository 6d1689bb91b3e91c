"""A strongly convex problem for DGC's theory: softmax regression with an L2 penalty on scikit-learn's digits, float64.

Two sides that share nothing but the images: the real methods on a linear network, and numpy formulas for many
repetitions at once. θ is the 10 × 64 matrix of weights. Everything is deterministic for a given seed.
"""

from __future__ import annotations

import copy
from argparse import Namespace
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from datasets.seq_digits import SequentialDigits
from models.dgc_er import DgcEr
from models.er import Er
from utils.augmentations import to_unit_float
from utils.buffer import Buffer
from utils.cli.parse import parse_args

Array = NDArray[np.float64]
Data = tuple[Array, Array]  # features and one-hot labels
SCALE = 0.25  # of the pixels; a power of two, so that both sides see the same bits
BATCH = 16
DIGITS: dict[bool, tuple[np.ndarray, np.ndarray]] = {}


def digits(dataset: SequentialDigits, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Read once: hundreds of models are built on them."""
    if train not in DIGITS:
        DIGITS[train] = SequentialDigits.load_split(dataset, train)
    return DIGITS[train]


class PlainDigits(SequentialDigits):
    """Not normalised: then replay and calibration turn bytes into floats by the same operations, to the last bit."""

    MEAN = STD = None

    def load_split(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        return digits(self, train)


class LinearNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(SCALE * x.flatten(1).double())


# -- the real methods -------------------------------------------------------------------------------------------------


@lru_cache  # hundreds of models are built with the same flags
def parsed(name: str, *flags: str) -> Namespace:
    line = ["--model", name, "--seed", "0", "--replay_weight", "tasks", "--buffer_fill", "task_end"]
    line += ["--minibatch_size", str(BATCH), *flags]
    return parse_args([*line, "--dgc_alpha", "1"] if name == "dgc_er" else line)


def build(name: str, lr: float, penalty: float, *flags: str, seed: int = 0) -> Any:
    """`er` or `dgc_er` before its first task: filled at the end of tasks, task weights (eq. 7), α = 1 (eq. 11)."""
    args = copy.copy(parsed(name, f"--lr={lr}", f"--optim_wd={penalty}", *flags))
    args.seed, args.device = seed, torch.device("cpu")
    dataset = PlainDigits(args)
    method = {"er": Er, "dgc_er": DgcEr}[name]
    model = method(LinearNet(), F.cross_entropy, args, dataset.get_transform(), dataset)
    model.stream = torch.Generator().manual_seed(seed)
    return model


def begin_task(model: Any) -> None:
    model.dataset.get_data_loaders()
    model.meta_begin_task(model.dataset)


def step(model: Any) -> None:
    """One step on a batch drawn uniformly from the task."""
    images = model.dataset.train_loader.dataset
    rows = torch.randperm(len(images), generator=model.stream)[:BATCH]
    batch = to_unit_float(images.batch(rows))
    model.meta_observe(batch, images.targets[rows], batch)


def end_task(model: Any) -> None:
    model.meta_end_task(model.dataset)


def third_task(name: str, start: Array, lr: float, penalty: float, *flags: str, seed: int = 0) -> Any:
    """A model at the start of task 3, at θ = start: Γ' is exact there, because θ did not move before."""
    model = build(name, lr, penalty, *flags, seed=seed)
    for _ in range(2):
        begin_task(model)
        set_weights(model, start)
        end_task(model)
    begin_task(model)
    return model


def stages(model: Any, count: int, m: int) -> Array:
    """θ before the first and after each of `count` times m steps."""
    path = [weights(model)]
    for _ in range(count):
        for _ in range(m):
            step(model)
        path.append(weights(model))
    return np.array(path)


def weights(model: Any) -> Array:
    return model.net.linear.weight.detach().numpy().copy()


def set_weights(model: Any, theta: Array) -> None:
    with torch.no_grad():
        model.net.linear.weight.copy_(torch.from_numpy(theta))


def calibrated(model: Any) -> Array:
    """Γ'."""
    return model.dgc.gamma["linear.weight"].numpy().copy()


# -- numpy ------------------------------------------------------------------------------------------------------------


def as_data(images: Tensor, labels: Tensor) -> Data:
    """From NCHW bytes."""
    features = SCALE * to_unit_float(images).flatten(1).double().numpy()
    return features, np.eye(10)[labels.numpy()]


def tasks() -> list[Data]:
    """The training sets of the five tasks."""
    model, found = build("er", 0.1, 0.0, "--buffer_size", "1"), []
    for _ in range(5):
        model.dataset.get_data_loaders()
        images = model.dataset.train_loader.dataset
        found.append(as_data(images.data.permute(0, 3, 1, 2), images.targets))
    return found


def union(parts: list[Data]) -> Data:
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def errors(data: Data, theta: Array) -> Array:
    """Softmax minus label. Leading axes of θ, and of the data, are repetitions."""
    logits = data[0] @ np.swapaxes(theta, -1, -2)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return p - data[1]


def G(data: Data, theta: Array) -> Array:
    """The gradient of the mean cross-entropy."""
    return np.swapaxes(errors(data, theta), -1, -2) @ data[0] / data[0].shape[-2]


def each(data: Data, theta: Array) -> Array:
    """The gradients of single images, [image, 640]."""
    return np.einsum("nc,nd->ncd", errors(data, theta), data[0]).reshape(len(data[0]), -1)


def rows(data: Data, index: NDArray[np.int64]) -> Data:
    return data[0][index], data[1][index]


def hessian(data: Data, theta: Array) -> Array:
    x, p = data[0], errors(data, theta) + data[1]
    h = np.empty((10, 64, 10, 64))
    for a in range(10):
        for b in range(a, 10):
            h[a, :, b, :] = (x * (p[:, a] * ((a == b) - p[:, b]))[:, None]).T @ x / len(x)
            h[b, :, a, :] = h[a, :, b, :].T
    return h.reshape(640, 640)


def settle(parts: list[tuple[float, Data]], penalty: float, start: Array, push: Array | float = 0.0) -> Array:
    """The root of Σ w·G(D;θ) + push + penalty·θ, by Newton's method with halved steps."""

    def slope(theta: Array) -> Array:
        return sum(w * G(data, theta) for w, data in parts) + push + penalty * theta

    theta, residual = start, slope(start)
    for _ in range(60):
        if np.linalg.norm(residual) < 1e-13:
            break
        h = sum(w * hessian(data, theta) for w, data in parts) + penalty * np.eye(640)
        move, size = np.linalg.solve(h, residual.ravel()).reshape(theta.shape), 1.0
        while size > 1e-6 and np.linalg.norm(slope(theta - size * move)) > (1 - size / 4) * np.linalg.norm(residual):
            size /= 2
        theta = theta - size * move
        residual = slope(theta)
    return theta


def distance(theta: Array, optimum: Array) -> Array:
    return np.sqrt(((theta - optimum) ** 2).sum((-1, -2)))


def understated(gamma: Array, past: Data, before: Array, after: Array) -> Array:
    """By how much Γ' understates the change of the past's gradient along the path, as a share of the true change."""
    moved, true = after - before, G(past, after)
    return ((true - gamma) * moved).sum((-1, -2)) / ((true - G(past, before)) * moved).sum((-1, -2))


def smoothness(data: Data, penalty: float) -> float:
    """L for every single image: the Hessian of a softmax is at most ½."""
    return penalty + 0.5 * float((data[0] ** 2).sum(1).max())


def reservoir(parts: list[Data], size: int, seed: int) -> list[NDArray[np.int64]]:
    """What the real buffer holds after each part was offered to it in turn (M_2, M_3, …), as rows of their union."""
    buffer, first, contents = Buffer(size, generator=torch.Generator().manual_seed(seed)), 0, []
    for x, _ in parts:
        index = torch.arange(first, first + len(x))
        buffer.add_data(examples=torch.zeros(len(x), 1), labels=index)
        first += len(x)
        contents.append(buffer.labels[: len(buffer)].numpy().copy())
    return contents


def draw(random: np.random.Generator, repetitions: int, n: int) -> NDArray[np.int64]:
    """A batch of rows without replacement for every repetition."""
    return random.random((repetitions, n)).argpartition(min(BATCH, n) - 1, axis=1)[:, :BATCH]


@dataclass
class Literal:
    """Algorithm 1 at α = 1 (eqs. 10–12) for one task, in many repetitions at once; first axis: repetition.

    `rule` is `er`, `closed`, or `sampled` with the current-task term; `stage` as in `--dgc_stage`.
    """

    rule: str
    task: Data
    memory: Data
    past: float  # N_past / (N_past + N_t)
    lr: float
    penalty: float
    m: int = 50
    stage: str = "batch"

    def train(self, theta: Array, gamma: Array, stages: int, random: np.random.Generator) -> tuple[list[Array], Array]:
        """θ at the ends of the stages, and the last Γ'(t)."""
        path, calibrator = [theta], gamma - G(self.memory, theta)
        for _ in range(stages):
            tilde, full = theta, G(self.task, theta)
            for _ in range(self.m):
                x, z = rows(self.task, draw(random, len(theta), len(self.task[0]))), self._replay(random)
                v = (1 - self.past) * G(x, theta) + self.past * G(z, theta) + self.penalty * theta
                if self.rule == "closed":
                    v += self.past * calibrator
                elif self.rule == "sampled":
                    v += (1 - self.past) * (full - G(x, tilde)) + self.past * (gamma - G(z, tilde))
                theta = theta - self.lr * v
            z = self._replay(random) if self.stage == "batch" else self.memory
            gamma = gamma + G(z, theta) - G(z, tilde)
            path.append(theta)
        return path, G(self.memory, theta) + calibrator if self.rule == "closed" else gamma

    def _replay(self, random: np.random.Generator) -> Data:
        x, y = self.memory
        index = draw(random, *x.shape[:2])
        first = np.arange(len(x))[:, None]
        return x[first, index], y[first, index]
