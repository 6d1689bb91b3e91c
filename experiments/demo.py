"""`make demo`: fine-tuning, replay, calibrated replay and joint training on the embedded vectors, side by side.

    python -m experiments.demo [--base_path DIR] [--picture FILE.png]

A run that is finished already is not repeated.
"""

from __future__ import annotations

import os
from pathlib import Path

from main import train_or_find
from utils.args import ArgumentParser
from utils.cli.console import one_line_failures, open_standard_streams
from utils.cli.registry import ROOT
from utils.resume.files import require_writable
from utils.run.result import Result

TASKS = 10
JOINT = "joint"
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


def result_of(flags: list[str], base_path: str) -> Result:
    """A finished run, or else one that is trained now."""
    print(f"python main.py {' '.join([*flags, *COMMON])}", flush=True)
    return Result(train_or_find([*flags, *COMMON, "--base_path", base_path, "--non_verbose", "1"])[0])


def told(results: dict[str, Result]) -> str:
    """Accuracy and forgetting in percent, bytes beside the network, what calibration gains, and where the runs are."""
    from experiments.report.calibration_picture import TITLES, percent_closed

    lines = [f"{'':34}{'FAA':>8}{'FAIA':>8}{'FF':>8}{'bytes':>10}"]
    for name, result in results.items():
        values = [result.metrics[key] for key in ("FAA", "FAIA", "FF")]
        numbers = "".join(f"{'–' if value is None else f'{value:.2f}':>8}" for value in values)
        size = "all data" if name == JOINT else f"{result.summary['stored_bytes']:,}"
        lines.append(f"{TITLES[name]:34}{numbers}{size:>10}")
    replay, calibrated, joint = (results[name].metrics["FAA"] or 0.0 for name in ("er", "dgc_er", JOINT))
    more = results["dgc_er"].summary["stored_bytes"] - results["er"].summary["stored_bytes"]
    lines += [
        f"\nBoth replay the same {BUFFER} vectors. Calibration lifts the final accuracy from {replay:.1f} to "
        f"{calibrated:.1f} %:\nit closes {percent_closed(replay, calibrated, joint):.0f} % of the gap to joint "
        f"training ({joint:.1f} %), for {more:,} bytes more.\n\nRun directories:"
    ]
    return "\n".join([*lines, *(f"  {TITLES[name]:34}{result.directory}" for name, result in results.items())])


def run(argv: list[str] | None) -> None:
    parser = ArgumentParser(prog="experiments.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--base_path", default=str(ROOT / "data"), help="where the runs and the picture go")
    parser.add_argument("--picture", type=Path, help="where the picture goes instead")
    args = parser.parse_args(argv)
    picture = args.picture or Path(args.base_path, "demo.png")
    require_writable(picture.parent, "--picture" if args.picture else "--base_path")
    from experiments.report.calibration_picture import draw  # and torch, which takes seconds

    results = {name: result_of(flags, args.base_path) for name, flags in FLAGS.items()}
    joint = [result_of(joint_on(tasks), args.base_path) for tasks in range(1, TASKS + 1)]
    results[JOINT] = joint[-1]
    matrices = {name: [result.accuracy] for name, result in results.items()}
    bound = [[result.metrics["FAA"] or 0.0 for result in joint]]
    draw(matrices, bound, picture, f"{TASKS} tasks of 5 classes, linear classifier on frozen features, seed 0")
    print(f"\n{told(results)}\n\nPicture: {picture}")


def main(argv: list[str] | None = None) -> None:
    open_standard_streams()
    with one_line_failures("stopped; what is finished is kept"):
        run(argv)


if __name__ == "__main__":
    # Steps on vectors are so short that a second thread only waits, and takes a core for it.
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded
    main()
