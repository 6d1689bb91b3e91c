"""Which ResNet a CPU can train to the end: time of a step, size, joint accuracy and the accuracy of one task alone.

    python -m benchmarks.small_network --base_path data --output docs/results/small/network.json

A step is forward, backward and SGD on 64 random images (as many as `er` takes: 32 of the stream and 32 replayed), in
channels_last memory with one thread; the candidates take turns step by step, and CPU time counts. Then comes a whole
run of `er` with the network that was chosen. Some candidates are trained on the first 10 classes of CIFAR-100, as long
as in one task of `--dataset_config small`, and of these some on all of it. Trainings that the output file has already
are kept; it is written after every one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import MultiStepLR

from backbone.ResNetBlock import BasicBlock, ResNet
from datasets.embedded.make import accuracy, read_images, train
from utils.run.environment import environment
from utils.run.write_results import write_json

ROOT = Path(__file__).resolve().parent.parent
STEP_IMAGES, WARM_UP, ROUNDS = 64, 5, 60
RUN_STEPS = 15_700  # of `er`: 10 tasks of 10 epochs; what else a run does comes on top
RATE = 0.1
Figures = dict[str, Any]


class Candidate(NamedTuple):
    """Two layers a block, one of the stem, one of the classifier."""

    filters: int
    stem_stride: int
    blocks: tuple[int, ...]

    def build(self, classes: int) -> ResNet:
        torch.manual_seed(0)
        net = ResNet(BasicBlock, list(self.blocks), classes, self.filters, stem_stride=self.stem_stride)
        return net.to(memory_format=torch.channels_last)  # type: ignore[return-value]

    @property
    def name(self) -> str:
        layers = 2 * sum(self.blocks) + 2
        return f"{layers} layers, {len(self.blocks)} stages, {self.filters} filters, stem of stride {self.stem_stride}"


CANDIDATES = [
    *(Candidate(filters, 2, (1, 1, 1)) for filters in (12, 16, 20, 24, 32)),
    Candidate(8, 1, (1, 1, 1)),
    Candidate(16, 1, (1, 1, 1)),
    Candidate(12, 2, (1, 1, 1, 1)),
    Candidate(16, 2, (1, 1, 1, 1)),
    Candidate(16, 2, (2, 2, 2)),
    Candidate(8, 1, (2, 2, 2, 2)),  # ResNet-18, an eighth as wide
]
CHOSEN = Candidate(16, 2, (1, 1, 1))  # `resnet8` of 16 filters, the network of `--dataset_config small`
# Each of the others takes as long as one of these with more filters, or far too long.
ONE_TASK = [CHOSEN, *(Candidate(filters, 2, (1, 1, 1)) for filters in (20, 24)), Candidate(16, 2, (1, 1, 1, 1))]
JOINT = [CHOSEN, Candidate(16, 2, (1, 1, 1, 1))]  # what leaves `er` within its six minutes
TRAININGS = {  # classes, epochs, batch size
    "one_task": (ONE_TASK, (10, 10, 32)),
    "joint": (JOINT, (100, 20, 64)),
}


def step_milliseconds(candidates: list[Candidate]) -> dict[str, list[float]]:
    x = torch.randn(STEP_IMAGES, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    y = torch.randint(100, (STEP_IMAGES,))
    sides = []
    for candidate in candidates:
        net = candidate.build(100).train()
        sides.append((candidate.name, net, torch.optim.SGD(net.parameters(), lr=RATE)))
    times: dict[str, list[float]] = {name: [] for name, _, _ in sides}
    for round_ in range(-WARM_UP, ROUNDS):
        for name, net, optimizer in sides:
            start = time.process_time()
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            if round_ >= 0:
                times[name].append(1e3 * (time.process_time() - start))
    return times


def describe(candidate: Candidate, times: list[float]) -> Figures:
    net, median = candidate.build(100), statistics.median(times)
    return {
        "parameters": sum(p.numel() for p in net.parameters()),
        "features": net.feature_dim,
        "step_ms": {"median": median, "quartiles": statistics.quantiles(times, n=4)[::2], "best": min(times)},
        "er_minutes_of_steps_alone": median * RUN_STEPS / 60_000,
    }


def trained(candidate: Candidate, classes: int, epochs: int, batch_size: int, base_path: str) -> Figures:
    """On the first `classes` of CIFAR-100, the learning rate falling after 70 % and 90 % of the steps."""
    which = list(range(classes))
    net, start = candidate.build(classes), time.process_time()

    def falling(optimizer: Any, steps: int) -> MultiStepLR:
        return MultiStepLR(optimizer, [round(share * steps) for share in (0.7, 0.9)], gamma=0.1)

    images = read_images(base_path, True, which)
    train(net, images, falling, epochs=epochs, batch_size=batch_size, seed=0, lr=RATE)
    found = accuracy(net, read_images(base_path, False, which))
    return {"accuracy": found, "epochs": epochs, "batch_size": batch_size, "cpu_seconds": time.process_time() - start}


def er_run(base_path: str) -> Figures:
    """A whole run of `er`, by the command that anyone would give; CPU time is all of it, from start to exit."""
    flags = "--model er --dataset seq-cifar100 --dataset_config small --buffer_size 2000 --seed 0"
    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, "main.py", *flags.split(), "--base_path", base_path, "--results_path", results]
        wall, before = time.perf_counter(), children_seconds()
        subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        times = {"seconds": time.perf_counter() - wall, "cpu_seconds": children_seconds() - before}
        (summary,) = (json.loads(path.read_text()) for path in Path(results).rglob("summary.json"))
        (timing,) = (json.loads(path.read_text()) for path in Path(results).rglob("timing.json"))
    metrics = {kind: summary[kind] for kind in ("class_il", "task_il")}
    return {"flags": flags, **times, "timing": timing, **metrics}


def children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def table(figures: Figures) -> str:
    """The table in docs/results/small/network.md."""
    lines = ["| network | parameters | features | ms a step (best) | one task | joint |", "|---|---|---|---|---|---|"]
    for candidate in CANDIDATES:
        own = figures["candidates"][candidate.name]
        step = f"{own['step_ms']['median']:.1f} ({own['step_ms']['best']:.1f})"
        reached = [f"{own[key]['accuracy']:.1f} %" if key in own else "" for key in TRAININGS]
        cells = [candidate.name, f"{own['parameters']:,}", str(own["features"]), step, *reached]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file of the figures")
    parser.add_argument("--base_path", default="data", help="folder with cifar-100-python/ or CIFAR100/")
    args = parser.parse_args()
    torch.set_num_threads(1)
    figures: Figures = json.loads(args.output.read_text()) if args.output.exists() else {}
    times = step_milliseconds(CANDIDATES)
    for candidate in CANDIDATES:
        own = figures.setdefault("candidates", {}).setdefault(candidate.name, {})
        own |= describe(candidate, times[candidate.name])
    print(table(figures))
    figures |= {"environment": environment(), "load": os.getloadavg()[0]}
    write_json(args.output, figures)
    if "er" not in figures:
        figures["er"] = er_run(args.base_path)
        write_json(args.output, figures)
    for key, (candidates, settings) in TRAININGS.items():
        for candidate in candidates:
            own = figures["candidates"][candidate.name]
            if key not in own:
                own[key] = trained(candidate, *settings, args.base_path)
                write_json(args.output, figures)
    print(table(figures))


if __name__ == "__main__":
    main()
