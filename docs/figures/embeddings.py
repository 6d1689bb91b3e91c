"""The figures and tables of docs/results/embeddings, from the results.json files there.

    python -m docs.figures.embeddings

draws `calibration.png` (the README's picture), `bytes.png` and `alpha.png`, and writes the tables into the pages that
show them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments.report.calibration_picture import JOINT, closed_share, draw
from experiments.report.styles import BLUE, GREEN, GREY, INK, PURPLE, VERMILION, name_lines, pyplot
from experiments.results.collection import Results
from experiments.results.stored import read_stored

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "results" / "embeddings"
START, END = "<!-- results: python -m docs.figures.embeddings -->", "<!-- end of results -->"
BUFFER = "100"
ROWS = {"sgd": "SGD", "er": "ER", "dgc_er": "DGC-ER"}
CONDITIONS = "50 classes of CIFAR-100 in 10 tasks, linear classifier on frozen features, 100 stored vectors, {} seeds"


def results(grid: str) -> Results:
    (found,) = read_stored(FOLDER / grid / "results.json")
    return found


def values(found: Results, row: str, column: str, read: Any) -> list[Any]:
    """One for each seed."""
    return [read(record) for (r, c, _), record in found.records.items() if (r, c) == (row, column)]


def faa(record: dict[str, Any]) -> float:
    return record["class_il"]["FAA"]


def mean_and_error(numbers: list[float]) -> tuple[float, float]:
    return float(np.mean(numbers)), float(np.std(numbers, ddof=1) / np.sqrt(len(numbers)))


def matrix(record: dict[str, Any]) -> Any:
    return np.array([[np.nan if a is None else a for a in row] for row in record["accuracy"]], float)


def calibration() -> None:
    main, joint = results("main"), results("joint")
    matrices = {name: values(main, row, BUFFER, matrix) for name, row in ROWS.items()}
    matrices[JOINT] = values(main, "Joint", BUFFER, matrix)
    tasks = list(joint.grid.columns)
    bound = np.array([values(joint, "Joint", task, faa) for task in tasks]).T.tolist()
    draw(matrices, bound, FOLDER / "calibration.png", CONDITIONS.format(len(bound)))


def against_bytes() -> None:
    """Accuracy over all that a method stores: buffer, calibrator, sums."""
    plt, found = pyplot(), results("main")
    figure, axes = plt.subplots(figsize=(6, 3.6), constrained_layout=True)
    for row, colour in {"ER, as in Mammoth": GREY, "ER": VERMILION, "DGC-ER": BLUE}.items():
        points = [
            (np.mean(values(found, row, c, lambda record: record["stored_bytes"])),
             *mean_and_error(values(found, row, c, faa)))
            for c in found.grid.columns
        ]  # fmt: skip
        x, y, error = np.array(points).T
        axes.errorbar(x, y, error, color=colour[0], marker="o", markersize=3.5, linewidth=1.8, label=row)
        if row == "ER":
            for at, height, column in zip(x, y, found.grid.columns, strict=True):
                axes.annotate(column, (at, height), (0, -11), textcoords="offset points", fontsize=6.5, ha="center")
    for row, colour in {"Ridge": GREEN, "NCM": PURPLE}.items():
        stored = np.mean(values(found, row, BUFFER, lambda record: record["stored_bytes"]))
        height, error = mean_and_error(values(found, row, BUFFER, faa))
        axes.errorbar([stored], [height], [error], color=colour[0], marker="D", markersize=5, linestyle="none")
        axes.annotate(row, (stored, height), (7, -3), textcoords="offset points", color=colour[0], fontsize=7.5)
    for row in ("Joint", "SGD"):
        height = mean_and_error(values(found, row, BUFFER, faa))[0]
        axes.axhline(height, color=INK[0], linestyle=":", linewidth=1)
        axes.annotate(row, (0.01, height), (0, 3), xycoords=("axes fraction", "data"),
                      textcoords="offset points", fontsize=7.5)  # fmt: skip
    axes.set(xscale="log", xlabel="bytes stored beside the network (log)", ylabel="FAA (%)", ylim=(0, None))
    _label_ends(axes)
    figure.savefig(FOLDER / "bytes.png")


def _label_ends(axes: Any) -> None:
    for container in axes.containers:
        line = container.lines[0]
        if container.get_label().startswith("_") or line.get_linestyle() == "None":
            continue
        x, y = line.get_data()
        axes.annotate(container.get_label(), (x[-1], y[-1]), (7, -3), textcoords="offset points",
                      color=line.get_color(), fontsize=7.5)  # fmt: skip


def over_alpha() -> None:
    plt, found = pyplot(), results("alpha")
    figure, axes = plt.subplots(figsize=(5.5, 3.2), constrained_layout=True)
    colours = {"closed": BLUE, "sampled": GREEN, "sampled, stages by the whole buffer": PURPLE, "released": VERMILION}
    columns = list(found.grid.columns)
    base = mean_and_error(values(found, "ER", columns[0], faa))[0]
    axes.axhline(base, color=INK[0], linestyle=":", linewidth=1, label="ER")
    for row, colour in colours.items():
        y, error = np.array([mean_and_error(values(found, row, column, faa)) for column in columns]).T
        alphas = [float(column) for column in columns]
        axes.plot(alphas, y, color=colour[0], marker="o", markersize=3.5, label=row)
        axes.fill_between(alphas, y - error, y + error, color=colour[0], alpha=0.15, linewidth=0)
    axes.set(xscale="log", xlabel="α, the share of the correction that is applied", ylabel="FAA (%)")
    name_lines(figure)
    figure.savefig(FOLDER / "alpha.png")


def summary_table() -> str:
    """FAA of the methods of interest for every buffer, and what calibration adds, seed by seed."""
    found = results("main")
    columns = list(found.grid.columns)
    lines = ["| FAA in % | " + " | ".join(f"{column} vectors" for column in columns) + " |", "|---" * 6 + "|"]
    for row, name in {
        "SGD": "fine-tuning (`sgd`)",
        "ER": "replay (`er`)",
        "DGC-ER": "**calibrated (`dgc_er`)**",
    }.items():
        lines.append(f"| {name} | " + " | ".join(_mean(found, row, column) for column in columns) + " |")
    lines.append("| difference [95 %] | " + " | ".join(_gain(found, "DGC-ER", column) for column in columns) + " |")
    for row, name in {"NCM": "class means (`ncm`)", "Ridge": "ridge regression (`ridge`)", "Joint": "`joint`"}.items():
        lines.append(f"| {name} | " + " | ".join(_mean(found, row, column) for column in columns) + " |")
    seeds = len(found.by_seed("ER", BUFFER, "FAA"))
    note = (
        f"Mean ± standard error of {seeds} seeds; methods without a buffer have one number. {_shares(found, columns)}"
    )
    return "\n".join([*lines, "", note])


def _mean(found: Results, row: str, column: str) -> str:
    summary = found.summary(row, column, "FAA")
    assert summary.mean is not None and summary.se is not None
    return f"{summary.mean:.1f} ± {summary.se:.1f}"


def _gain(found: Results, row: str, column: str) -> str:
    difference = found.difference(row, column, "FAA")
    assert difference is not None and difference.low is not None and difference.high is not None
    return f"{difference.summary.mean:+.1f} [{difference.low:+.1f}, {difference.high:+.1f}]"


def _shares(found: Results, columns: list[str]) -> str:
    joint = found.summary("Joint", BUFFER, "FAA").mean
    parts = []
    for column in columns:
        replay, calibrated = (found.summary(row, column, "FAA").mean for row in ("ER", "DGC-ER"))
        assert replay is not None and calibrated is not None and joint is not None
        parts.append(f"{closed_share(replay, calibrated, joint):.0%}")
    return f"Of the gap between replay and joint training calibration closes {', '.join(parts)}."


def write_table(page: Path) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(START)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{START}\n\n{summary_table()}\n\n{END}{after}", encoding="utf-8")


def main() -> None:
    calibration()
    against_bytes()
    over_alpha()
    for page in (ROOT / "README.md", FOLDER / "README.md"):
        write_table(page)


if __name__ == "__main__":
    main()
