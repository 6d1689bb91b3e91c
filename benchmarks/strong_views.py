"""Strong views per second: ours against kornia's and torchvision's, on the CPU with one torch thread.

All sides do the same to the same CIFAR-shaped images (random values: no side's speed depends on the content): resized
crop, flip, colour jitter, grayscale, normalisation, with parameters for every image; only kornia has one order of the
jitter's operations per batch. They take turns batch by batch, so that what else the machine does hits all of them.

    python -m benchmarks.strong_views --output strong_views.json
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kornia
import kornia.augmentation as K
import torch
import torchvision
from torch import Tensor
from torchvision.transforms import v2

from utils.augmentations import to_uint8
from utils.run.environment import environment
from utils.run.write_results import write_json
from utils.strong_views import StrongViews

SIZE, BATCHES = (32, 32), (64, 128)
MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
SCALE, JITTER = (0.2, 1.0), (0.4, 0.4, 0.4, 0.1)
Side = Callable[[Tensor], Tensor]


def kornia_views() -> Side:
    """Its augmentations one after the other, which is a little faster than its `AugmentationSequential`."""
    return torch.nn.Sequential(
        K.RandomHorizontalFlip(p=0.5),
        K.RandomResizedCrop(SIZE, scale=SCALE, align_corners=False),
        K.ColorJitter(*JITTER, p=0.8),
        K.RandomGrayscale(p=0.2),
        K.Normalize(torch.tensor(MEAN), torch.tensor(STD)),
    )


def with_own_generator(views: Side) -> Side:
    """What exact resume asks of kornia: put the private random state in place of the global one and back again."""
    state = torch.Generator().manual_seed(0).get_state()

    def run(batch: Tensor) -> Tensor:
        nonlocal state
        before = torch.get_rng_state()
        torch.set_rng_state(state)
        out = views(batch)
        state = torch.get_rng_state()
        torch.set_rng_state(before)
        return out

    return run


def torchvision_views() -> Side:
    one = v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            v2.RandomResizedCrop(SIZE, scale=SCALE, antialias=False),
            v2.RandomApply([v2.ColorJitter(*JITTER)], p=0.8),
            v2.RandomGrayscale(p=0.2),
            v2.Normalize(MEAN, STD),
        ]
    )
    return lambda batch: torch.stack([one(image) for image in batch])


def make_sides() -> dict[str, Side]:
    ours = StrongViews(SIZE, MEAN, STD, torch.Generator().manual_seed(0))
    return {
        "ours": ours,
        "ours, from bytes": ours,
        "kornia": kornia_views(),
        "kornia, own generator": with_own_generator(kornia_views()),
        "torchvision, per image": torchvision_views(),
    }


@torch.no_grad()
def measure(batch_size: int, repetitions: int) -> dict[str, list[float]]:
    """Images per second of every side, one value per repetition, after two batches to warm up."""
    sides = make_sides()
    images = torch.rand(batch_size, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    as_stored = to_uint8(images).contiguous(memory_format=torch.channels_last)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    names, order = list(sides), random.Random(0)
    for repetition in range(-2, repetitions):
        order.shuffle(names)  # the side before leaves the caches warm or cold
        for name in names:
            batch = as_stored if name == "ours, from bytes" else images
            start = time.perf_counter()
            sides[name](batch)
            if repetition >= 0:
                rates[name].append(batch_size / (time.perf_counter() - start))
    return rates


def table(rates: dict[str, list[float]], batch_size: int) -> tuple[str, dict[str, Any]]:
    """The printed table, and the figures in it."""
    medians = {name: statistics.median(values) for name, values in rates.items()}
    lines = [f"{f'batch {batch_size}':24} {'median img/s':>14} {'best img/s':>12} {'ours is':>9}"]
    for name, values in rates.items():
        lines.append(f"{name:24} {medians[name]:14,.0f} {max(values):12,.0f} {medians['ours'] / medians[name]:8.1f}×")
    figures = {
        "median_images_per_second": {name: round(value) for name, value in medians.items()},
        "ours_is_faster_by": {name: round(medians["ours"] / value, 2) for name, value in medians.items()},
    }
    return "\n".join(lines), figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--repetitions", type=int, default=41)
    args = parser.parse_args()
    torch.set_num_threads(1)
    conditions = {
        "data": f"synthetic images of {SIZE[0]}x{SIZE[1]}x3, 1 torch thread, median of {args.repetitions} batches",
        "machine": f"{environment()['cpu']}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
        "versions": f"python {platform.python_version()}, torch {torch.__version__}, kornia {kornia.__version__}, "
        f"torchvision {torchvision.__version__}",
    }
    print("; ".join(conditions.values()))
    figures = {}
    for batch_size in BATCHES:
        text, figures[f"batch {batch_size}"] = table(measure(batch_size, args.repetitions), batch_size)
        print(text)
    if args.output:
        write_json(args.output, conditions | figures)


if __name__ == "__main__":
    main()
