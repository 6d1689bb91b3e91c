"""The figures and tables of docs/results/small, from the results.json files in its folders.

    python -m docs.figures.small

draws a picture of each ladder, of the loss along the way and of the rates of the body, and writes the tables into the
page, and the main table, beside the paper's numbers, into the project's README. What has no results is left out, and
a cell without any run is `not run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from docs.figures import ladder, ranks
from docs.figures.marks import fill
from experiments.grid import ONLY_COLUMN
from experiments.report import figures
from experiments.report.aggregate import cell_of
from experiments.report.styles import BLUE, GREY, VERMILION, name_lines, pyplot, styles
from experiments.report.tables import number_rows, pair_rows, table
from experiments.results.collection import NOT_RUN, Results
from experiments.results.statistics import Difference
from experiments.results.stored import read_stored
from utils.run.look import SOFT

FOLDER = Path(__file__).resolve().parents[1] / "results" / "small"
ROOT = FOLDER.parents[2]
START, END = "<!-- results: python -m docs.figures.small -->", "<!-- end of results -->"
IN_README = "<!-- small: python -m docs.figures.small -->", "<!-- end of small -->"
IN_README_COLUMN, IN_README_METRIC = "S-CIFAR100, 500", "FAIA"
NOTHING = "Nothing has been run yet."
LADDERS = {"ladder": "Where the gain comes from: ER", "ladder_methods": "DER++, X-DER and Dynamic ER"}
HEADLINES = {
    "ladder": "Task weights cut forgetting; calibration lifts FAIA only where features are frozen",
    "ladder_methods": "Task weights halve the forgetting of DER++; calibration at α = 0.001 changes nothing that shows",
}
LOSS_HEADLINE = "Calibration at α = 0.001 leaves the loss as it is"
MAIN = {"faia": "All methods: FAIA", "faa": "All methods: FAA", "ff": "All methods: forgetting (FF)"}
OTHERS = {
    "alpha": "α",
    "m": "m",
    "tasks": "5 and 20 tasks",
    "taskfree": "Task-free",
    "estimators": "Estimators",
    "policy": "When the buffer is filled, and how replay is weighed",
    "equal_memory": "Equal memory",
    "icarl_rate": "iCaRL's learning rate, over the first three tasks",
}
LEGEND = """\
Means over the seeds, and the paired difference to the row in the second column with its 95 % interval;
minutes of training, and what is stored beside the network in millions of bytes."""
BODY = {"ER, batch weights": GREY, "ER, task weights": VERMILION, "DGC-ER, task weights": BLUE}
Tables = dict[str, Results]


def stored(folder: Path) -> Tables:
    """All tables below a folder, by name."""
    tables: Tables = {}
    for file in sorted(folder.glob("*/results.json")):
        for found in read_stored(file):
            if found.grid.name in tables:
                raise SystemExit(f"the table {found.grid.name} is in {file}, and in another folder beside it; keep one")
            tables[found.grid.name] = found
    return tables


# -- text ----------------------------------------------------------------------------------------------------------


def page(tables: Tables) -> str:
    """Everything between the marks."""
    parts = [
        *(_ladder(tables[name], title) for name, title in LADDERS.items() if name in tables),
        *(_numbers(tables[name], title) for name, title in MAIN.items() if name in tables),
        *([_order(tables["faia"])] if "faia" in tables else []),
        *(_numbers(tables[name], title) for name, title in OTHERS.items() if name in tables),
        *([_loss()] if _has_loss(tables) else []),
        *([_body(tables["body_rate"])] if "body_rate" in tables else []),
        *([_dynamic(tables["dynamic_er"])] if "dynamic_er" in tables else []),
    ]
    return "\n\n".join(part for part in parts if part) or NOTHING


def _ladder(found: Results, title: str) -> str:
    parts = [f"## {title}", f"![The change that each rung makes]({found.grid.name}.png)"]
    for column in found.grid.columns:
        parts += [f"{column} images:"] if column else []
        parts += [table(ladder_rows(found, column))]
    return "\n\n".join([*parts, LEGEND])


def ladder_rows(found: Results, column: str) -> list[list[str]]:
    """A table with its head: a line for each rung."""
    shown = ("FAIA", "FAA", "FF")
    lines = [["rung", "against", *(name for m in shown for name in (m, "change")), "minutes", "MB", "seeds"]]
    for row, spec in found.grid.rows.items():
        own = {metric: found.summary(row, column, metric) for metric in (*shown, "seconds", "MB")}
        if own["FAIA"].mean is None:
            lines.append([row, spec.against or "", NOT_RUN, *[""] * (len(lines[0]) - 3)])
            continue
        cells = [row, spec.against or ""]
        for metric in shown:
            cells += [f"{own[metric].mean:.1f}", _change(found.difference(row, column, metric))]
        seconds, megabytes = own["seconds"].mean, own["MB"].mean
        cells += ["" if seconds is None else f"{seconds / 60:.1f}", "" if megabytes is None else f"{megabytes:.2f}"]
        lines.append([*cells, str(own["FAIA"].n)])
    return lines


def _change(difference: Difference | None, places: int = 1) -> str:
    if difference is None or difference.summary.mean is None:
        return ""
    known = (difference.summary.mean, difference.low, difference.high)
    mean, *ends = (f"{value:+.{places}f}" for value in known if value is not None)
    return f"{mean} [{', '.join(ends)}]" if ends else mean


def _numbers(found: Results, title: str, *before: str, metrics: Sequence[str] = ()) -> str:
    """The numbers of a table beside the paper's, and the differences of its pairs."""
    parts = [f"## {title}", *before]
    for metric in metrics or found.grid.metrics:
        parts.append(table(number_rows(found, metric)))
        if pairs := pair_rows(found, metric):
            parts.append(table(pairs))
    return "\n\n".join(parts)


def _order(found: Results) -> str:
    described = [text for column in found.grid.columns if (text := ranks.describe(found, column))]
    return "\n\n".join(["## In the paper's order?", *described]) if described else ""


def beside_the_paper(found: Results) -> str:
    """The main table of the README, two methods in a line, and how far the methods stand in the paper's order."""
    cells = [_beside_the_paper(found, row) for row in found.grid.rows]
    half = (len(cells) + 1) // 2
    right = [*cells[half:], *[["", "", ""]] * (2 * half - len(cells))]
    head = [f"{IN_README_METRIC} in %", "paper", "here"]
    lines = [[*head, *head], *([*a, *b] for a, b in zip(cells[:half], right, strict=True))]
    order = ranks.sentence(IN_README_COLUMN, ranks.order(found, IN_README_COLUMN))
    return "\n\n".join([table(lines), order, _gains(found)])


def _gains(found: Results) -> str:
    """What DGC adds to each base, here and in the paper."""
    paper = found.grid.paper.get(IN_README_METRIC, {})
    gains = []
    for row, spec in found.grid.rows.items():
        difference = found.difference(row, IN_README_COLUMN, IN_README_METRIC)
        if spec.against and row in paper and difference is not None and difference.summary.mean is not None:
            theirs = paper[row][IN_README_COLUMN].mean - paper[spec.against][IN_README_COLUMN].mean
            gains.append(f"{_change(difference, 2)} for {row} (paper {theirs:+.2f})")
    return f"What DGC adds to its base: {', '.join(gains)}."


def _beside_the_paper(found: Results, row: str) -> list[str]:
    """Joint training has no FAIA: its FAA."""
    metric = "FAA" if row == "Joint" else IN_README_METRIC
    paper = found.grid.paper.get(metric, {}).get(row, {}).get(IN_README_COLUMN)
    own = found.summary(row, IN_README_COLUMN, metric)
    if own.mean is None:
        here = NOT_RUN
    else:
        here = f"{own.mean:.1f}" + ("" if own.se is None else f" ± {own.se:.1f}") + (f" ({metric})" * (row == "Joint"))
    return [row, "" if paper is None else f"{paper.mean:.1f}", here]


def _loss() -> str:
    return "\n\n".join(["## The loss over all training images so far", "![Loss over all images so far](loss.png)"])


def _body(found: Results) -> str:
    picture = "![FAA against the rate of the body](body_rate.png)"
    return _numbers(found, "From frozen to free features", picture, "FAA in %:", metrics=["FAA"])


def _dynamic(found: Results) -> str:
    rows = table(ladder_rows(found, ONLY_COLUMN))
    picture = "![The best α, and error and cosine of replay, buffer and calibrated gradient](dynamic_er.png)"
    return "\n\n".join(["## Dynamic ER, whose earlier extractors are frozen", rows, LEGEND, picture])


# -- figures -------------------------------------------------------------------------------------------------------


def draw(tables: Tables, folder: Path) -> None:
    for name in LADDERS.keys() & tables.keys():
        ladder.draw(tables[name], folder / f"{name}.png", HEADLINES.get(name, ""))
    if _has_loss(tables):
        draw_loss(tables["loss"], folder / "loss.png")
    if "body_rate" in tables:
        draw_body(tables["body_rate"], folder / "body_rate.png")


def _has_loss(tables: Tables) -> bool:
    """`report` stores the curves, `table` does not."""
    return "loss" in tables and any(record.get("whole_loss") for record in tables["loss"].records.values())


def draw_loss(found: Results, output: Path) -> None:
    column = next(iter(found.grid.columns))  # the table has one
    cells = {row: cell for row in found.grid.rows if (cell := cell_of(found, row, column)) is not None}
    drawn = {row: cell for row, cell in cells.items() if figures.has_loss(cell)}
    figure = figures.draw_loss(drawn, styles([found]))
    figure.suptitle(LOSS_HEADLINE, fontweight="bold", x=0.01, ha="left")
    figure.savefig(output)


def draw_body(found: Results, output: Path) -> None:
    """FAA against ρ, with standard errors."""
    seeds = {len(found.by_seed(row, column, "FAA")) for row in BODY for column in found.grid.columns} - {0}
    count = "1 seed" if seeds == {1} else f"{' to '.join(str(n) for n in sorted({min(seeds), max(seeds)}))} seeds"
    plt, columns = pyplot(), list(found.grid.columns)
    figure, axes = plt.subplots(figsize=(5.5, 3.2), constrained_layout=True)
    for row, colour in BODY.items():
        run = [c for c in columns if found.by_seed(row, c, "FAA")]
        own = [found.summary(row, column, "FAA") for column in run]
        means, errors = np.array([(s.mean or 0.0, s.se or 0.0) for s in own]).reshape(-1, 2).T
        places = [columns.index(column) for column in run]
        axes.vlines(places, means - errors, means + errors, color=colour[0], linewidth=1)
        axes.plot(places, means, color=colour[0], marker="o", markersize=3.5, linewidth=1.8, label=row)
    axes.set_xticks(range(len(columns)), columns)
    axes.set(xlabel="rate of the body over that of the classifier, from frozen (0) to free (1)", ylabel="FAA (%)")
    headline = "At equal weights, calibration lifts replay on frozen or slow features"
    axes.set_title(headline, fontweight="bold", loc="left", pad=18)
    axes.annotate(
        f"mean ± standard error, {count}", (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points",
        fontsize=7.5, color=SOFT[0],
    )  # fmt: skip
    name_lines(figure)
    figure.savefig(output)


def main() -> None:
    tables = stored(FOLDER)
    draw(tables, FOLDER)
    fill(FOLDER / "README.md", START, END, page(tables))
    if "faia" in tables:
        fill(ROOT / "README.md", *IN_README, beside_the_paper(tables["faia"]))


if __name__ == "__main__":
    main()
