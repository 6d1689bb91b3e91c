"""The figures and tables of docs/results/embeddings, from the results.json files there.

    python -m docs.figures.embeddings

draws `calibration.png` (the README's picture), `bytes.png` and `alpha.png`, and writes the tables into the pages that
show them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from docs.figures.marks import fill
from experiments.report.calibration_picture import JOINT, draw, percent_closed
from experiments.report.styles import BLUE, GREEN, GREY, INK, PURPLE, VERMILION, name_lines, pyplot
from experiments.results.collection import Results
from experiments.results.stored import read_stored

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "results" / "embeddings"
BUFFER = "100"
ROWS = {"sgd": "SGD", "er": "ER", "dgc_er": "DGC-ER"}
SAME_MEMORY = "ER, same memory"  # compared with DGC-ER
SUMMARY = {
    "SGD": "fine-tuning (`sgd`)",
    "ER": "replay (`er`)",
    SAME_MEMORY: "replay, same memory",
    "DGC-ER": "**calibrated (`dgc_er`)**",
    "NCM": "class means (`ncm`)",
    "Ridge": "ridge regression (`ridge`)",
    "Joint": "`joint`",
}
ESTIMATORS = {
    "ER, as in Mammoth": "ER, as in Mammoth",
    "ER": "ER",
    "DGC-ER": "DGC-ER, `closed`",
    "DGC-ER, sampled": "`sampled`, one batch a stage, as printed",
    "DGC-ER, sampled, stages by the whole buffer": "`sampled`, stages by the whole buffer",
    "DGC-ER, released": "`released`, its α = 0.001",
}
CONDITIONS = "50 classes of CIFAR-100, 10 tasks, linear classifier on frozen features, 100 vectors, {} seeds"


def results(grid: str) -> Results:
    (found,) = read_stored(FOLDER / grid / "results.json")
    return found


def values(found: Results, row: str, column: str, read: Any) -> list[Any]:
    """One for each seed."""
    return [read(record) for (r, c, _), record in found.records.items() if (r, c) == (row, column)]


def mean_and_error(found: Results, row: str, column: str) -> tuple[float, float]:
    """The FAA over seeds, and its standard error."""
    summary = found.summary(row, column, "FAA")
    assert summary.mean is not None and summary.se is not None
    return summary.mean, summary.se


def matrix(record: dict[str, Any]) -> Any:
    """The accuracy matrix, NaN where nothing was measured."""
    rows = record["accuracy"]
    found = np.full((len(rows), len(rows[-1])), np.nan)
    for k, row in enumerate(rows):
        found[k, : len(row)] = [np.nan if a is None else a for a in row]
    return found


def calibration() -> None:
    main, joint = results("main"), results("joint")
    matrices = {name: values(main, row, BUFFER, matrix) for name, row in ROWS.items()}
    matrices[JOINT] = values(main, "Joint", BUFFER, matrix)
    tasks = list(joint.grid.columns)
    bound = np.array([list(joint.by_seed("Joint", task, "FAA").values()) for task in tasks]).T.tolist()
    draw(matrices, bound, FOLDER / "calibration.png", CONDITIONS.format(len(bound)))


def against_bytes() -> None:
    """Accuracy over all that a method stores: buffer, calibrator, sums."""
    plt, found = pyplot(), results("main")
    figure, axes = plt.subplots(figsize=(6, 3.4), constrained_layout=True)
    for row, colour in {"ER, as in Mammoth": GREY, "ER": VERMILION, "DGC-ER": BLUE}.items():
        points = {column: _bytes_and_accuracy(found, row, column) for column in found.grid.columns}
        more = [_bytes_and_accuracy(found, SAME_MEMORY, column) for column in points] if row == "ER" else []
        x, y, error = np.array(sorted([*points.values(), *more])).T
        axes.errorbar(x, y, error, color=colour[0], marker="o", markersize=3.5, linewidth=1.8)
        _name(axes, row, x[-1], y[-1], colour)
        if row != "ER, as in Mammoth":
            for column, (at, height, _) in points.items():
                above = (-4, 5) if row == "DGC-ER" else (0, -11)
                axes.annotate(column, (at, height), above, textcoords="offset points", fontsize=6.5, ha="center")
    for row, colour in {"Ridge": GREEN, "NCM": PURPLE}.items():
        stored, height, _ = _bytes_and_accuracy(found, row, BUFFER)
        axes.plot([stored], [height], "D", color=colour[0], markersize=5)
        _name(axes, row, stored, height, colour, (-9, -3), "right")
    height = _bytes_and_accuracy(found, "Joint", BUFFER)[1]
    axes.axhline(height, color=INK[0], linestyle=":", linewidth=1)
    _name(axes, "Joint", x[0], height, INK, (0, 4), "right")
    axes.set(xscale="log", xlabel="bytes stored in addition to the network", ylabel="FAA (%)", ylim=(22, 52))
    axes.set_title("At equal bytes, calibrated replay is ahead of replay", fontweight="bold")
    ticks = {10_000: "10 kB", 30_000: "30 kB", 100_000: "100 kB", 300_000: "300 kB"}
    axes.set_xticks(list(ticks), ticks.values(), minor=False)
    axes.set_xticks([], minor=True)
    figure.savefig(FOLDER / "bytes.png")


def _bytes_and_accuracy(found: Results, row: str, column: str) -> tuple[float, float, float]:
    stored = values(found, row, column, lambda record: record["stored_bytes"])
    return float(np.mean(stored)), *mean_and_error(found, row, column)


def _name(
    axes: Any,
    name: str,
    x: float,
    y: float,
    colour: tuple[str, str],
    offset: tuple[int, int] = (7, -3),
    ha: str = "left",
) -> None:
    axes.annotate(name, (x, y), offset, textcoords="offset points", color=colour[0], fontsize=7.5, ha=ha)


def over_alpha() -> None:
    plt, found = pyplot(), results("alpha")
    figure, axes = plt.subplots(figsize=(5.5, 3.2), constrained_layout=True)
    colours = {"closed": BLUE, "sampled": GREEN, "sampled, stages by the whole buffer": PURPLE, "released": VERMILION}
    columns = list(found.grid.columns)
    base = mean_and_error(found, "ER", columns[0])[0]
    axes.axhline(base, color=INK[0], linestyle=":", linewidth=1, label="ER")
    for row, colour in colours.items():
        y, error = np.array([mean_and_error(found, row, column) for column in columns]).T
        alphas = [float(column) for column in columns]
        axes.plot(alphas, y, color=colour[0], marker="o", markersize=3.5, label=row)
        axes.fill_between(alphas, y - error, y + error, color=colour[0], alpha=0.15, linewidth=0)
    axes.set(xscale="log", xlabel="α, the share of the correction that is applied", ylabel="FAA (%)")
    axes.set_title("On frozen features the whole correction (α = 1) is best", fontweight="bold")
    axes.set_xticks(alphas, columns, minor=False)
    axes.set_xticks([], minor=True)
    name_lines(figure)
    figure.savefig(FOLDER / "alpha.png")


def summary_table(grid: str) -> str:
    """FAA of the methods of interest for every buffer, and what calibration adds, seed by seed."""
    found = results(grid)
    columns = list(found.grid.columns)
    rows = {
        name: [_mean(found, row, column) for column in columns]
        for row, name in SUMMARY.items()
        if row in found.grid.rows
    }
    gains = {"calibrated − replay [95 %]": ("DGC-ER", 1), "calibrated − replay, same memory [95 %]": (SAME_MEMORY, -1)}
    for name, (row, sign) in gains.items():
        if row in found.grid.rows:
            rows[name] = [_difference(found, row, column, sign) for column in columns]
    lines = ["| FAA in % | " + " | ".join(f"{column} vectors" for column in columns) + " |", "|---" * 6 + "|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    note = f"Mean ± standard error of {len(found.by_seed('ER', BUFFER, 'FAA'))} seeds."
    if SAME_MEMORY in found.grid.rows:
        stored = {row: _bytes_and_accuracy(found, row, BUFFER)[0] for row in ("ER", SAME_MEMORY)}
        more = (stored[SAME_MEMORY] / stored["ER"] - 1) * int(BUFFER)
        note += f" Same memory: {more:.0f} vectors more, the bytes of the calibrator."
    return "\n".join([*lines, "", note, _shares(found, columns)])


def estimators_table(grid: str) -> str:
    """FAA of every form of calibration for every buffer, with the number of seeds."""
    found = results(grid)
    columns = list(found.grid.columns)
    lines = ["| FAA in % (seeds) | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for row, name in ESTIMATORS.items():
        if row in found.grid.rows:
            own = [found.summary(row, column, "FAA") for column in columns]
            lines.append(f"| {name} | " + " | ".join(f"{s.mean:.2f} ± {s.se:.2f} ({s.n})" for s in own) + " |")
    return "\n".join(lines)


def methods_table() -> str:
    """Every method that runs on vectors, with a small and a large buffer."""
    found = results("methods")
    metrics, columns = ("FAA", "FF"), list(found.grid.columns)
    heads = [f"{metric}, {column} vectors" for metric in metrics for column in columns]
    lines = ["| in % | " + " | ".join(heads) + " |", "|---" * (1 + len(heads)) + "|"]
    for row in found.grid.rows:
        cells = [_mean(found, row, column, metric) for metric in metrics for column in columns]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean(found: Results, row: str, column: str, metric: str = "FAA") -> str:
    summary = found.summary(row, column, metric)
    return "–" if summary.mean is None else f"{summary.mean:.1f} ± {summary.se or 0:.1f}"


def _difference(found: Results, row: str, column: str, sign: int) -> str:
    """To the row that it is compared with, or with the sign turned."""
    difference = found.difference(row, column, "FAA")
    assert difference is not None and difference.low is not None and difference.high is not None
    low, high = sorted((sign * difference.low, sign * difference.high))
    return f"{sign * difference.summary.mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def _shares(found: Results, columns: list[str]) -> str:
    parts = []
    for column in columns:
        replay, calibrated, joint = (mean_and_error(found, row, column)[0] for row in ("ER", "DGC-ER", "Joint"))
        parts.append(f"{percent_closed(replay, calibrated, joint):.0f}")
    shares = f"{', '.join(parts[:-1])} and {parts[-1]} %"
    return f"Calibration closes {shares} of the gap between replay and joint training."


def blocks() -> dict[str, str]:
    """What stands between marks in docs/results/embeddings, by the marks' name."""
    return {
        "results": summary_table("main"),
        "all images": summary_table("all_images"),
        "estimators": estimators_table("main"),
        "estimators, all images": estimators_table("all_images"),
        "methods": methods_table(),
    }


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: python -m docs.figures.embeddings -->", f"<!-- end of {name} -->"


def main() -> None:
    calibration()
    against_bytes()
    over_alpha()
    fill(ROOT / "README.md", *marks("results"), summary_table("main"))
    for name, text in blocks().items():
        fill(FOLDER / "README.md", *marks(name), text)


if __name__ == "__main__":
    main()
