"""The README's table and picture, from the raw results in docs/results/demo.

python -m docs.figures.demo run       train again and replace the raw results
python -m docs.figures.demo table     print the table, in Markdown
python -m docs.figures.demo picture   draw demo_accuracy.png
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image

from utils.metrics import summarise
from utils.run.heatmap import accuracy_heatmap
from utils.run.read_results import read_accuracy

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "demo"
PICTURE = ROOT / "docs" / "figures" / "demo_accuracy.png"
FLAGS: dict[str, list[str]] = {"sgd": [], "er": ["--buffer_size", "200"], "joint": []}
TITLES = {"sgd": "sgd", "er": "er, buffer 200", "joint": "joint"}
SEEDS = range(10)
METRICS = ("FAA", "FAIA", "FF")


def run() -> None:
    """Train in a temporary directory, named by relative paths: the configs shall tell nothing about this machine."""
    for model, flags in FLAGS.items():
        for seed in SEEDS:
            command = [sys.executable, str(ROOT / "main.py"), "--model", model, "--dataset", "seq-digits", *flags]
            command += ["--seed", str(seed), "--device", "cpu", "--base_path", ".", "--checkpoint_path", "checkpoints"]
            with tempfile.TemporaryDirectory() as place:
                subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)
                (made,) = Path(place).glob("results/*/*/*")
                target = RESULTS / model / f"seed{seed}"
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(made / "accuracy.csv", target / "accuracy.csv")
                config = yaml.safe_load((made / "config.yaml").read_text())
                for name in ("base_path", "checkpoint_path"):  # places on this machine
                    del config["args"][name]
                (target / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
            print(target.relative_to(ROOT))


def matrices(model: str) -> list[NDArray[np.float64]]:
    """The class-il accuracy matrices of a model, one per seed."""
    files = sorted((RESULTS / model).glob("seed*/accuracy.csv"))
    return [read_accuracy(file)[0] for file in files]


def table() -> str:
    """Mean, standard deviation over seeds (n − 1) and standard error of the mean; – where a metric is undefined."""
    lines = ["| method | n | " + " | ".join(METRICS) + " |", "|---" * (2 + len(METRICS)) + "|"]
    for model, title in TITLES.items():
        runs = [summarise(a) for a in matrices(model)]
        cells = [_cell([metrics[name] for metrics in runs]) for name in METRICS]
        lines.append(f"| {title} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: list[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return "–"
    deviation = float(np.std(numbers, ddof=1))
    return f"{np.mean(numbers):.2f} (sd {deviation:.2f}, se {deviation / math.sqrt(len(numbers)):.2f})"


def picture() -> Image.Image:
    """The mean accuracy matrices side by side."""
    parts = [accuracy_heatmap(np.mean(matrices(model), axis=0), title) for model, title in TITLES.items()]
    image = Image.new("RGB", (sum(part.width for part in parts), parts[0].height), "white")
    left = 0
    for part in parts:
        image.paste(part, (left, 0))
        left += part.width
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table", "picture"))
    what = parser.parse_args().what
    if what == "run":
        run()
    elif what == "table":
        print(table())
    else:
        picture().save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
