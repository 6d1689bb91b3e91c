"""What the training loop costs where nothing hides it: a linear classifier on vectors, with replay.

    python -m benchmarks.loop_vectors [--output FILE.json]

Microseconds of processor time per step of `er` and of `dgc_er` (closed) in the second task, against the loop that one
would write by hand, with the same loader, draw, concatenation, weights and finite check. All sides run in one process,
in turns; what is on top is the median over the rounds of the difference, and the difference of the best times.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils import get_total_norm

from datasets.utils.embedding_file import write_embeddings
from main import initialize
from utils.cli.parse import parse_args
from utils.resume.signals import StopSignals
from utils.run.directory import RunDirectory
from utils.run.environment import environment
from utils.run.session import Session
from utils.run.write_results import write_json
from utils.training import Trainer

CLASSES, TRAIN, TEST, FEATURES = 50, 200, 10, 128  # as the file that is shipped, with fewer test vectors
EPOCHS, ROUNDS = 10, 15


def write_vectors(path: Path) -> None:
    random = np.random.RandomState(0)
    arrays: dict[str, Any] = {"scale": np.float32(0.02)}
    for part, count in (("train", TRAIN), ("test", TEST)):
        arrays[f"{part}_x"] = random.randint(-127, 128, (CLASSES * count, FEATURES)).astype(np.int8)
        arrays[f"{part}_y"] = np.repeat(np.arange(CLASSES), count)
    write_embeddings(path, arrays)


@contextmanager
def second_task(model: str, base_path: Path) -> Iterator[Trainer]:
    """The training loop at the start of the second task, with a full buffer."""
    flags = ["--dataset", "seq-embeddings", "--embeddings", str(base_path / "vectors.npz"), "--buffer_size", "100"]
    flags += ["--seed", "0", "--n_epochs", str(EPOCHS), "--non_verbose", "1", "--device", "cpu"]
    args = parse_args(["--model", model, *flags, "--base_path", str(base_path)])
    built, dataset, args = initialize(args)
    with RunDirectory(args) as run, StopSignals() as signals:
        trainer = Trainer(Session(built, dataset, args, run, signals))
        trainer.begin_task()
        trainer.end_task()
        trainer.position.end_task()
        trainer.begin_task()
        yield trainer


def bare_epochs(model: Any, loader: Any) -> int:
    """Experience Replay with the weights of eq. 7, written by hand."""
    steps, (v, w) = 0, (1 / 2, 1 / 2)
    for _ in range(EPOCHS):
        for inputs, labels, _ in loader:
            replayed, replayed_labels = model.buffer.get_data(32, transform=model.transform, device=model.device)
            n, images, targets = len(labels), torch.cat((inputs, replayed)), torch.cat((labels, replayed_labels))
            model.opt.zero_grad()
            outputs = model.net(images)
            loss = v * model.loss(outputs[:n], targets[:n]) + w * model.loss(outputs[n:], targets[n:])
            loss.backward()
            norm = get_total_norm([p.grad for p in model.net.parameters() if p.grad is not None])
            if not (math.isfinite(loss.detach()) and math.isfinite(norm)):
                raise RuntimeError("not finite")
            model.opt.step()
            steps += 1
    return steps


def loop_epochs(trainer: Trainer) -> int:
    """The same epochs through the training loop."""
    trainer.position.begin_task()
    with trainer.guard:
        trainer.fit()
    return trainer.position.task_step


def seconds_per_step(function: Any, *args: Any) -> float:
    start = time.process_time()
    steps = function(*args)
    return (time.process_time() - start) / steps


def measure() -> dict[str, Any]:
    times: dict[str, list[float]] = {"bare": [], "er": [], "dgc_er": []}
    with tempfile.TemporaryDirectory() as folder:
        write_vectors(Path(folder) / "vectors.npz")
        with second_task("er", Path(folder)) as er, second_task("dgc_er", Path(folder)) as dgc:
            for _ in range(ROUNDS):
                times["bare"].append(seconds_per_step(bare_epochs, er.model, er.dataset.train_loader))
                times["er"].append(seconds_per_step(loop_epochs, er))
                times["dgc_er"].append(seconds_per_step(loop_epochs, dgc))
    micro = {name: [1e6 * t for t in values] for name, values in times.items()}
    result: dict[str, Any] = {f"{name}_us_per_step": statistics.median(values) for name, values in micro.items()}
    for name in ("er", "dgc_er"):
        on_top = [loop - bare for loop, bare in zip(micro[name], micro["bare"], strict=True)]
        result[f"{name}_us_on_top"] = statistics.median(on_top)
        result[f"{name}_us_on_top_of_best"] = min(micro[name]) - min(micro["bare"])
    return result | {"rounds": ROUNDS, "steps_per_round": EPOCHS * -(-CLASSES // 10 * TRAIN // 32)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="also write the figures to this JSON file")
    output = parser.parse_args().output
    torch.set_num_threads(1)
    result = measure() | {"environment": environment()}
    print(f"bare {result['bare_us_per_step']:.0f} µs/step")
    for name in ("er", "dgc_er"):
        best = result[f"{name}_us_on_top_of_best"]
        print(f"{name} {result[f'{name}_us_on_top']:.0f} µs/step on top (median of {ROUNDS} rounds; best {best:.0f})")
    if output:
        write_json(output, result)


if __name__ == "__main__":
    main()
