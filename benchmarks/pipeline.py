"""Training images per second: our loader against torchvision's PIL transforms in a DataLoader.

Both sides return the same triples (augmented, label, not augmented) in batches of 32 from the same synthetic images of
CIFAR's shape (random bytes: neither side's speed depends on the content). Each measurement is a fresh process with one
torch thread, and the sides take turns, so that what else the machine does hits all of them. Worker processes of the PIL
loader come on top of its one process.

    python -m benchmarks.pipeline --output pipeline.json
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from datasets.utils.image_set import ImageSet
from datasets.utils.loader import TaskLoader
from utils.augmentations import BatchTransform
from utils.run.environment import environment
from utils.run.write_results import write_json

IMAGES, BATCH, SIZE = 5000, 32, (32, 32)  # one task of S-CIFAR100
MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)


class PilImages(Dataset):
    """The usual way: one image at a time, augmented as a PIL image."""

    def __init__(self, images: np.ndarray):
        self.images = images
        self.plain = transforms.ToTensor()
        self.augment = transforms.Compose(
            [
                transforms.RandomCrop(SIZE, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int, torch.Tensor]:
        image = Image.fromarray(self.images[i])
        return self.augment(image), i % 10, self.plain(image)


def make_loader(side: str) -> Iterable[Any]:
    """`ours`, or the number of workers of the PIL loader."""
    images = np.random.RandomState(0).randint(0, 256, (IMAGES, *SIZE, 3)).astype(np.uint8)
    if side == "ours":
        transform = BatchTransform(SIZE, MEAN, STD, padding=4, flip=True)
        labels = torch.arange(IMAGES) % 10
        dataset = ImageSet(torch.from_numpy(images), labels).to(torch.device("cpu"), transform.memory_format)
        return TaskLoader(dataset, BATCH, transform, shuffle=True, drop_last=False, generator=None, triples=True)
    workers = int(side)
    return DataLoader(PilImages(images), BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)


def measure(side: str, seconds: float) -> float:
    """Images per second over whole epochs, after one epoch to warm up."""
    torch.set_num_threads(1)
    loader = make_loader(side)
    epochs, start = -1, 0.0
    while epochs < 1 or time.perf_counter() - start < seconds:
        for _ in loader:
            pass
        epochs += 1
        if epochs == 0:
            start = time.perf_counter()
    return epochs * IMAGES / (time.perf_counter() - start)


def measure_in_fresh_process(side: str, seconds: float) -> float:
    command = [sys.executable, "-m", "benchmarks.pipeline", "--side", side, "--seconds", str(seconds)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def table(rates: dict[str, list[float]]) -> tuple[str, dict[str, Any]]:
    """The printed table, and the figures in it."""
    medians = {side: statistics.median(values) for side, values in rates.items()}
    best = max((side for side in rates if side != "ours"), key=lambda side: medians[side])
    lines = [f"{'loader':24} {'median img/s':>14} {'best img/s':>12} {'ours is':>9}"]
    for side, values in rates.items():
        name = "ours" if side == "ours" else f"PIL, {side} workers"
        ratio = f"{medians['ours'] / medians[side]:8.1f}×"
        lines.append(f"{name:24} {medians[side]:14,.0f} {max(values):12,.0f} {ratio}")
    figures = {
        "images_per_second": rates,
        "ratio_to_pil_in_one_process": medians["ours"] / medians["0"],
        "ratio_to_pil_with_best_workers": medians["ours"] / medians[best],
        "best_workers": int(best),
    }
    return "\n".join(lines), figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of one measurement, at least an epoch")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4], help="worker counts of the PIL loader")
    parser.add_argument("--side", help=argparse.SUPPRESS)  # a child process: measure this side and print the number
    args = parser.parse_args()
    if args.side:
        print(measure(args.side, args.seconds))
        return
    rates: dict[str, list[float]] = {side: [] for side in ("ours", "0", *map(str, args.workers))}
    for _ in range(args.repetitions):
        for side in rates:
            rates[side].append(measure_in_fresh_process(side, args.seconds))
    text, figures = table(rates)
    conditions = {
        "data": f"{IMAGES} synthetic images of {SIZE[0]}x{SIZE[1]}x3 bytes, batch {BATCH}, 1 torch thread",
        "machine": f"{environment()['cpu']}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
        "versions": f"python {platform.python_version()}, torch {torch.__version__}",
        "repetitions": args.repetitions,
    }
    print(f"{conditions['data']}; {conditions['machine']}; {conditions['versions']}\n{text}")
    if args.output:
        write_json(args.output, conditions | figures)


if __name__ == "__main__":
    main()
