"""What the training loop costs where nothing hides it: a linear classifier on vectors, with replay.

    python -m benchmarks.loop_vectors [--output FILE.json]

Microseconds of processor time per step of `er` and of `dgc_er` (closed) in the second task, against the loop that one
would write by hand, with the same loader, draw, concatenation, weights and finite check. All sides run in one process,
in turns of one epoch. What is on top is a difference within a round, and its median over the rounds is shown, because
other processes slow all sides of a round down alike: between the median steps of two sides and between undisturbed
ones, the time that a tenth of a side's steps stay below. The log's line for every 50 steps is spread over them.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.loop import finite_step, loop_epochs
from benchmarks.second_task import trainer_in_second_task
from datasets.utils.embedding_file import write_embeddings
from main import initialize
from utils.cli.parse import parse_args
from utils.loggers import WINDOW
from utils.run.environment import environment
from utils.run.write_results import write_json
from utils.training import Trainer

CLASSES, TRAIN, TEST, FEATURES = 50, 200, 10, 128  # as the file that is shipped, with fewer test vectors
ROUNDS, LOG_ROUNDS = 150, 15
SHARES = {"undisturbed": 0.1, "median": 0.5}  # of a round's steps, sorted by their times


def write_vectors(path: Path) -> None:
    random = np.random.RandomState(0)
    arrays: dict[str, Any] = {"scale": np.float32(0.02)}
    for part, count in (("train", TRAIN), ("test", TEST)):
        arrays[f"{part}_x"] = random.randint(-127, 128, (CLASSES * count, FEATURES)).astype(np.int8)
        arrays[f"{part}_y"] = np.repeat(np.arange(CLASSES), count)
    write_embeddings(path, arrays)


def second_task(model: str, base_path: Path) -> AbstractContextManager[Trainer]:
    """The training loop at the start of the second task, with a full buffer."""
    flags = ["--dataset", "seq-embeddings", "--embeddings", str(base_path / "vectors.npz"), "--buffer_size", "100"]
    flags += ["--seed", "0", "--n_epochs", "1", "--non_verbose", "1", "--device", "cpu"]
    return trainer_in_second_task(*initialize(parse_args(["--model", model, *flags, "--base_path", str(base_path)])))


def bare_epoch(model: Any, loader: Any) -> None:
    """Experience Replay with the weights of eq. 7, written by hand."""
    v, w = 1 / 2, 1 / 2
    for inputs, labels, _ in loader:
        replayed, replayed_labels = model.buffer.get_data(32, transform=model.transform, device=model.device)
        n, images, targets = len(labels), torch.cat((inputs, replayed)), torch.cat((labels, replayed_labels))
        model.opt.zero_grad()
        outputs = model.net(images)
        finite_step(model, v * model.loss(outputs[:n], targets[:n]) + w * model.loss(outputs[n:], targets[n:]))


class Ticking:
    """A loader that notes the processor time of each step: from the moment it hands out a batch to the next."""

    def __init__(self, loader: Any):
        self.loader, self.dataset = loader, loader.dataset
        self.rounds: list[list[float]] = []

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        since = None
        self.rounds.append([])
        for batch in self.loader:
            now = time.process_time()
            if since is not None:
                self.rounds[-1].append(1e6 * (now - since))
            since = now
            yield batch


def log_us_per_step(trainer: Trainer) -> float:
    """The share of a step in the line that the log writes for many; to note a step is part of the step."""
    log, best = trainer.session.metrics, math.inf
    for _ in range(LOG_ROUNDS):
        log.flush()
        log.step = 0
        for k in range(WINDOW):
            start = time.process_time()
            log.add_step({"loss": 1 / (k + 3), "stream_loss": 1 / (k + 7), "lr": 0.05 - k / 1e4})
        best = min(best, time.process_time() - start)
    return 1e6 * best / WINDOW


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        write_vectors(Path(folder) / "vectors.npz")
        with second_task("er", Path(folder)) as er, second_task("dgc_er", Path(folder)) as dgc:
            bare = Ticking(er.dataset.train_loader)
            for trainer in (er, dgc):
                trainer.session.loader = Ticking(trainer.session.loader)
            for _ in range(ROUNDS):
                bare_epoch(er.model, bare)
                loop_epochs(er)
                loop_epochs(dgc)
            log = log_us_per_step(er)
            rounds = {"bare": bare.rounds, "er": er.session.loader.rounds, "dgc_er": dgc.session.loader.rounds}
    result: dict[str, Any] = {"log_us_per_step": log, "steps": sum(map(len, bare.rounds)), "load": os.getloadavg()[0]}
    for kind, share in SHARES.items():
        times = {name: np.array([np.quantile(steps, share) for steps in found]) for name, found in rounds.items()}
        on_top = {f"{name}_on_top": np.median(times[name] - times["bare"]) + log for name in ("er", "dgc_er")}
        result[f"{kind}_us"] = {"bare": float(np.median(times["bare"]))} | on_top
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="also write the figures to this JSON file")
    output = parser.parse_args().output
    torch.set_num_threads(1)
    result = measure() | {"environment": environment()}
    for kind in SHARES:
        figures = ", ".join(f"{name} {value:.0f}" for name, value in result[f"{kind}_us"].items())
        print(f"{kind} steps, in µs: {figures}")
    if output:
        write_json(output, result)


if __name__ == "__main__":
    main()
