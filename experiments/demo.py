"""`make demo`: fine-tuning, replay, calibrated replay and joint training on the embedded vectors, side by side.

    python -m experiments.demo [--base_path DIR] [--picture FILE.png]

A run that is finished already is not repeated.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from experiments.report.calibration_picture import JOINT, TITLES, Matrices, draw, percent_closed
from main import initialize
from utils.cli.parse import parse_args
from utils.cli.registry import ROOT
from utils.metrics import final_average_accuracy, summarise
from utils.run.directory import RunDirectory
from utils.run.read_results import read_accuracy
from utils.training import train

TASKS = 10
BUFFER = "100"
COMMON = ["--dataset", "seq-embeddings", "--seed", "0"]
FLAGS = {
    "sgd": ["--model", "sgd"],
    "er": ["--model", "er", "--buffer_size", BUFFER],
    "dgc_er": ["--model", "dgc_er", "--buffer_size", BUFFER],
}


def joint_on(tasks: int) -> list[str]:
    """What could be known at best after so many tasks: all their data at once."""
    return ["--model", JOINT] + (["--stop_after", str(tasks)] if tasks < TASKS else [])


def train_or_find(flags: list[str], base_path: str) -> tuple[Path, dict[str, Any]]:
    """The directory of a finished run, and its summary."""
    args = parse_args([*flags, *COMMON, "--base_path", base_path, "--non_verbose", "1"])
    run = RunDirectory(args)
    summary = run.finished()
    if summary is None:
        print(f"python main.py {' '.join([*flags, *COMMON])}", flush=True)
        summary = train(*initialize(args))
    return run.path, summary


def table(matrices: dict[str, Matrices], summaries: dict[str, dict[str, Any]]) -> str:
    """Accuracy and forgetting in percent, and bytes beside the network."""
    lines = [f"{'':34}{'FAA':>8}{'FAIA':>8}{'FF':>8}{'bytes':>10}"]
    for name, (matrix,) in matrices.items():
        metrics = summarise(matrix)
        numbers = "".join(
            f"{'–' if metrics[key] is None else f'{metrics[key]:.2f}':>8}" for key in ("FAA", "FAIA", "FF")
        )
        size = "all data" if name == JOINT else f"{summaries[name]['stored_bytes']:,}"
        lines.append(f"{TITLES[name]:34}{numbers}{size:>10}")
    return "\n".join(lines)


def conclusion(matrices: dict[str, Matrices], summaries: dict[str, dict[str, Any]]) -> str:
    replay, calibrated, joint = (final_average_accuracy(matrices[name][0]) for name in ("er", "dgc_er", JOINT))
    more = summaries["dgc_er"]["stored_bytes"] - summaries["er"]["stored_bytes"]
    return (
        f"Both replay the same {BUFFER} vectors. Calibration lifts the final accuracy from {replay:.1f} to "
        f"{calibrated:.1f} %:\nit closes {percent_closed(replay, calibrated, joint):.0f} % of the gap to joint "
        f"training ({joint:.1f} %), for {more:,} bytes more."
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base_path", default=str(ROOT / "data"), help="where the runs and the picture go")
    parser.add_argument("--picture", type=Path, help="where the picture goes instead")
    args = parser.parse_args(argv)
    runs = {name: train_or_find(flags, args.base_path) for name, flags in FLAGS.items()}
    joint = [train_or_find(joint_on(tasks), args.base_path) for tasks in range(1, TASKS + 1)]
    runs[JOINT] = joint[-1]
    matrices = {name: [read_accuracy(directory / "accuracy.csv")[0]] for name, (directory, _) in runs.items()}
    summaries = {name: summary for name, (_, summary) in runs.items()}
    picture = args.picture or Path(args.base_path, "demo.png")
    bound = [[summary["class_il"]["FAA"] for _, summary in joint]]
    draw(matrices, bound, picture, f"{TASKS} tasks of 5 classes, linear classifier on frozen features, seed 0")
    print(
        f"\n{table(matrices, summaries)}\n\n{conclusion(matrices, summaries)}\n\nPicture: {picture}\nRun directories:"
    )
    for name, (directory, _) in runs.items():
        print(f"  {TITLES[name]:34}{directory}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # steps on vectors are so short that a second thread only waits, and takes a core for it
    main()
