"""`make demo`: replay with and without calibration on the embedded digits, side by side.

    python -m experiments.demo [--base_path DIR] [--picture FILE.png]

A run that is finished already is not repeated.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from main import initialize
from utils.cli.parse import parse_args
from utils.cli.registry import ROOT
from utils.metrics import average_accuracy, summarise
from utils.run.directory import RunDirectory
from utils.run.read_results import read_accuracy
from utils.training import train

COMMON = ["--dataset", "seq-digits", "--buffer_size", "200", "--seed", "0"]
RUNS = {
    "er, filled by the stream": ["--model", "er"],
    "er, filled at task ends": ["--model", "er", "--buffer_fill", "task_end"],
    "dgc_er": ["--model", "dgc_er"],
}
SMOOTHING = 10  # steps


def train_or_find(title: str, flags: list[str], base_path: str) -> Path:
    """The directory of a finished run."""
    args = parse_args([*flags, *COMMON, "--base_path", base_path])
    run = RunDirectory(args)
    if run.finished() is None:
        print(f"\n{title}: python main.py {' '.join([*flags, *COMMON])}")
        train(*initialize(args))
    return run.path


def table(directories: dict[str, Path]) -> str:
    lines = [f"{'':26}{'FAA':>8}{'FAIA':>8}{'FF':>8}"]
    for title, directory in directories.items():
        metrics = summarise(read_accuracy(directory / "accuracy.csv")[0])
        lines.append(f"{title:26}" + "".join(f"{metrics[name]:8.2f}" for name in ("FAA", "FAIA", "FF")))
    return "\n".join(lines)


def losses(directory: Path) -> np.ndarray:
    """The loss of every step, averaged over a few."""
    events = (json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines())
    values = [loss for event in events if event["event"] == "train" for loss in event["loss"]]
    return np.convolve(values, np.ones(SMOOTHING) / SMOOTHING, mode="valid")


def draw(directories: dict[str, Path], picture: Path) -> None:
    """Average accuracy after each task, and the loss along the way."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
    for title, directory in directories.items():
        accuracies = average_accuracy(read_accuracy(directory / "accuracy.csv")[0])
        left.plot(range(1, len(accuracies) + 1), accuracies, marker="o", label=title)
        right.plot(losses(directory), linewidth=0.8, label=title)
    left.set(xlabel="tasks seen", ylabel="mean accuracy on them (%)", xticks=range(1, len(accuracies) + 1))
    left.legend(frameon=False)
    right.set(xlabel="step", ylabel=f"training loss (mean of {SMOOTHING} steps)", yscale="log")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("seq-digits, MLP, buffer of 200 images, seed 0", fontsize=10)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base_path", default=str(ROOT / "data"), help="where the runs and the picture go")
    parser.add_argument("--picture", type=Path, help="where the picture goes instead")
    args = parser.parse_args(argv)
    picture = args.picture or Path(args.base_path, "demo.png")
    directories = {title: train_or_find(title, flags, args.base_path) for title, flags in RUNS.items()}
    draw(directories, picture)
    print(f"\nClass-IL accuracy and forgetting in percent, one seed\n\n{table(directories)}\n\nRun directories:")
    for title, directory in directories.items():
        print(f"  {title:26}{directory}")
    print(f"Curves: {picture}")


if __name__ == "__main__":
    main()
