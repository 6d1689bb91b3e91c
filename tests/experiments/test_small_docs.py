"""docs/results/small: the ladder, the order of methods and the page, from made-up results; the committed page."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT
from report_helpers import made_up_record
from scipy.stats import spearmanr

from docs.figures import diagnostics, ladder, ranks, small
from experiments.cells import Expansion
from experiments.grid import Grid, PaperValue, Row
from experiments.report.write import write_report
from experiments.results.collection import Results
from experiments.results.stored import read_stored

LEVELS = {"base": (40.0, 41.0, 42.0), "better": (42.0, 43.1, 43.9), "worse": (38.0, 39.1, 39.9), "alone": (44.0,)}


def results(
    name: str,
    levels: Mapping[str, Iterable[float]],
    columns: Iterable[str] = ("500", "2000"),
    against: str | None = "base",
    paper: Mapping[str, float] | None = None,
    **extra: Any,
) -> Results:
    """Rows with a FAIA for each seed in the first column; in the others nothing was run."""
    columns = list(columns)
    rows = {row: Row({}, {}, None if row == "base" else against) for row in [*levels, "absent"]}
    printed = {row: {columns[0]: PaperValue(f"{mean:.2f}", mean, None)} for row, mean in (paper or {}).items()}
    grid = Grid(name, name, {}, {column: {} for column in columns}, rows, (0, 1, 2), ["FAIA"], paper={"FAIA": printed})
    records = {}
    for row, values in levels.items():
        for seed, value in enumerate(values):
            record = made_up_record(seed, 2, value, random.Random(0)) | extra
            metrics = {"FAIA": value, "FAA": value - 10, "FF": 100 - 2 * value, "BWT": None, "FWT": None}
            records[row, columns[0], seed] = record | {"class_il": metrics}
    return Results(Expansion(grid, [], {}), records)


def test_a_verdict_needs_an_interval_that_leaves_nothing_open() -> None:
    found = results("ladder", LEVELS | {"either": (41.0, 40.0)})
    for row in ("better", "worse", "alone", "either", "absent"):
        told = "not run" if row == "absent" else {"alone": "one seed", "either": "unclear"}.get(row, row)
        assert ladder.verdict(found, row, "500", "FAIA") == told
    assert ladder.verdict(found, "better", "500", "FF") == "better"  # less of it
    assert ladder.verdict(found, "worse", "500", "FF") == "worse"


def test_less_forgetting_beside_less_accuracy_is_grey() -> None:
    found = results("ladder", LEVELS)
    for seed in (0, 1, 2):
        found.records["worse", "500", seed]["class_il"]["FF"] = 1.0 + seed
    assert ladder.verdict(found, "worse", "500", "FF") == "unjudged"
    grey = ladder.LEGEND["unjudged"]
    assert grey in ladder.legend(found, list(LEVELS), [("500", "FF")])
    assert grey not in ladder.legend(results("ladder", LEVELS), list(LEVELS), [("500", "FF")])


def test_a_rung_off_the_main_path_stands_below_its_base_and_starts_there() -> None:
    against = {"fill": "er", "weigh": "fill", "a": "weigh", "b": "weigh", "stages": "a", "released": "fill", "x": "y"}
    rows = ["er", "fill", "weigh", "a", "b", "stages", "released", "y", "x"]
    order = ladder.indented(rows, against)
    assert list(order) == ["er", "fill", "weigh", "a", "stages", "b", "released", "y", "x"]
    assert {row: base for row, base in order.items() if base} == {"stages": "a"}
    without = ladder.indented([row for row in rows if row != "a"], against)
    assert list(without) == [row for row in rows if row != "a"] and not any(without.values())
    found = results("ladder", LEVELS)
    assert ladder.ends(found, {"better": "worse"}, "better", "500", "FAIA") == pytest.approx((-2.0, 0.0))
    assert ladder.ends(found, {}, "better", "500", "FAIA") == pytest.approx((0.0, 2.0))
    assert ladder.ends(found, {}, "absent", "500", "FAIA") is None


def test_a_rung_shows_its_change_with_interval_minutes_and_bytes() -> None:
    head, base, better, _, alone, absent = small.ladder_rows(results("ladder", LEVELS), "500")
    assert head[:4] == ["rung", "against", "FAIA", "change"] and head[-3:] == ["minutes", "MB", "seeds"]
    assert base[:4] == ["base", "", "41.0", ""] and base[-2:] == ["1.54", "3"]
    # 2, 2.1, 1.9: mean 2, sd 0.1, half width 4.303 · 0.1 / √3 = 0.25; of FF twice that, negative.
    assert better[:4] == ["better", "base", "43.0", "+2.0 [+1.8, +2.2]"] and better[7] == "-4.0 [-4.5, -3.5]"
    assert alone[3] == "+4.0" and alone[-1] == "1"  # one seed has no interval
    assert absent[:3] == ["absent", "base", "not run"] and set(absent[3:]) == {""}


def test_the_order_of_methods_counts_a_number_of_the_paper_once() -> None:
    ours = {"A": [50.0], "B": [40.0], "C": [30.0], "D": [20.0], "E": [10.0], "E, again": [60.0]}
    paper = {"A": 10.5, "B": 49.0, "C": 39.0, "D": 29.0, "E": 19.0, "E, again": 19.0, "absent": 1.0}
    found = ranks.order(results("faia", ours, paper=paper), "500")
    assert found.places == {"A": (5, 1), "B": (1, 2), "C": (2, 3), "D": (3, 4), "E": (4, 5)}
    assert found.correlation.n == 5 and found.correlation.rho == pytest.approx(0.0)  # 1 − 6·(16 + 4) / (5·24)
    assert found.out_of_place() == ["A"]
    text = ranks.describe(results("faia", ours, paper=paper), "500")
    assert "ρ = 0.00 (95 % interval [-0.88, 0.88]) over the 5 methods that both have." in text and "| A   | 5" in text
    assert ranks.describe(results("faia", ours, paper=paper), "2000") == ""  # nothing was run


def test_the_order_of_the_bases_leaves_out_their_dgc_forms() -> None:
    ours = {"base": [50.0], "B": [40.0], "C": [30.0], "D": [20.0], "DGC": [60.0]}
    table = results("faia", ours, paper={"base": 9.0, "B": 8.0, "C": 7.0, "D": 6.0, "DGC": 5.0}, against=None)
    table.grid.rows["DGC"] = Row({}, {}, "base")
    found = ranks.order(table, "500")
    assert found.places["DGC"] == (5, 1) and found.correlation.rho == pytest.approx(0.0)  # 1 − 6·(16 + 4) / (5·24)
    assert found.of_bases == ranks.Correlation(4, pytest.approx(1.0), None, None)
    assert ranks.sentence("500", found).endswith("; 1.00 over the 4 that are not DGC forms of another.")


def test_the_page_has_what_was_run_and_nothing_else() -> None:
    assert small.page({}) == small.NOTHING
    tables = {"ladder": results("ladder", LEVELS), "faia": results("faia", LEVELS, paper={"base": 50.0})}
    page = small.page(tables)
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        f"## {small.LADDERS['ladder']}",
        f"## {small.MAIN['faia']}",
    ]
    assert "missing" not in page and "not run" in page and "loss.png" not in page
    assert small.page({"loss": results("loss", LEVELS, whole_loss=None)}) == small.NOTHING  # a table has no curves


def test_a_table_in_two_folders_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "results.json").touch()
    monkeypatch.setattr(small, "read_stored", lambda file: [results("ladder", LEVELS)])
    with pytest.raises(SystemExit, match=r"the table ladder is in .*results.json, and in another folder"):
        small.stored(tmp_path)


@pytest.mark.slow
def test_the_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from PIL import Image

    curve = {"at": [0, 2, 3, 5], "task": [1, 1, 2, 2], "seen": [2.0, 1.0, 3.0, 2.0], "current": [2.0, 1.0, 4.0, 2.0]}
    body = {row: (30.0, 31.0) for row in small.BODY}
    tables = {
        "ladder": results("ladder", LEVELS),
        "loss": results("loss", LEVELS, whole_loss=curve),
        "body_rate": results("body_rate", body, columns=["ρ = 0", "ρ = 1"], against=None),
    }
    small.draw(tables, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"ladder.png", "loss.png", "body_rate.png"}
    assert all(Image.open(path).size[0] > 600 for path in tmp_path.iterdir())
    assert "](loss.png)" in small.page(tables) and "](body_rate.png)" in small.page(tables)


REPORTS = {page.parent.name: page.parent for page in sorted((ROOT / "docs" / "results").glob("*/*/report.md"))}


def written(folder: Path) -> dict[str, str]:
    """The files of a report; of what depends on fonts their names only."""
    found = {}
    for path in folder.rglob("*.*"):
        content = "" if path.suffix in (".svg", ".png") else path.read_text(encoding="utf-8")
        found[path.relative_to(folder).as_posix()] = re.sub(r"<svg role=.*?</svg>", "", content, flags=re.S)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", REPORTS)
def test_a_committed_report_is_what_its_results_give_today(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_report(read_stored(REPORTS[name] / "results.json"), tmp_path)
    assert written(REPORTS[name]) == written(tmp_path)


@pytest.mark.slow
def test_runs_are_named_by_what_tells_them_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, output: drawn.append(figure))
    folder = ROOT / "docs" / "results" / "embeddings" / "gradients"
    diagnostics.draw([folder / "dgc_er"], tmp_path / "one.png", "What is seen")
    diagnostics.draw([folder / "er", folder / "dgc_er"], tmp_path / "two.png")
    one, two = ([axes.get_title(loc="left") for axes in figure.axes[::3]] for figure in drawn)
    assert one == [""] and two == ["er", "dgc-er, closed, α = 1"]
    shared = "seq-embeddings, buffer 100, filled at task ends, seed 0"
    assert [figure.texts[1].get_text() for figure in drawn] == [f"dgc-er, closed, α = 1, {shared}", shared]
    assert "no correction" in [text.get_text() for text in drawn[1].axes[0].texts]
    assert drawn[0].axes[1].get_ylim()[0] > 0.1  # an error of 1e-7 does not stretch the axis


def test_the_committed_page_is_that_of_the_committed_results() -> None:
    shown = (ROOT / "docs" / "results" / "small" / "README.md").read_text().partition(small.START)[2]
    assert shown.partition(small.END)[0].strip() == small.page(small.stored(small.FOLDER))


def test_the_main_table_of_the_readme_stands_beside_the_papers_numbers() -> None:
    levels = {"base": (40.0, 42.0), "DGC": (41.0, 44.0), "Joint": (60.0,)}
    found = results("faia", levels, columns=[small.IN_README_COLUMN], paper={"base": 50.0, "DGC": 52.5})
    rows = small.beside_the_paper(found).splitlines()
    assert [cell.strip() for cell in rows[2].split("|")[1:-1]] == [
        "base",
        "50.0",
        "41.0 ± 1.0",
        "Joint",
        "",
        "50.0 (FAA)",
    ]
    assert [cell.strip() for cell in rows[3].split("|")[1:-1]][3:] == ["absent", "", "not run"]
    assert rows[-1] == "What DGC adds to its base: +1.50 [-4.85, +7.85] for DGC (paper +2.50)."


def test_the_readme_shows_the_committed_main_table() -> None:
    start, end = small.IN_README
    shown = (ROOT / "README.md").read_text().partition(start)[2].partition(end)[0].strip()
    assert shown == small.beside_the_paper(small.stored(small.FOLDER)["faia"])


def test_the_highest_has_rank_1_and_equals_share_theirs() -> None:
    assert ranks.ranks([10.0, 30.0, 20.0]) == [3, 1, 2]
    assert ranks.ranks([5.0, 7.0, 5.0, 1.0]) == [2.5, 1, 2.5, 4]


def test_rank_correlation_by_hand_and_by_scipy() -> None:
    """Ranks 1 … 5 with two neighbours swapped: ρ = 1 − 6·2 / (5·24) = 0.9."""
    a, b = [9.0, 8.0, 7.0, 6.0, 5.0], [9.0, 7.0, 8.0, 6.0, 5.0]
    found = ranks.spearman(a, b)
    assert (found.n, found.rho) == (5, pytest.approx(0.9))
    z, half_width = math.atanh(0.9), 1.959964 * math.sqrt((1 + 0.405) / 2)
    assert (found.low, found.high) == pytest.approx((math.tanh(z - half_width), math.tanh(z + half_width)), abs=1e-6)
    tied = [3.0, 1.0, 3.0, 2.0, 0.0, 0.0]
    other = [1.0, 2.0, 2.0, 5.0, -1.0, 0.5]
    assert ranks.spearman(tied, other).rho == pytest.approx(spearmanr(tied, other).statistic)


def test_what_few_or_equal_values_cannot_tell_about_ranks_is_undefined() -> None:
    assert ranks.spearman([1.0, 2.0, 3.0], [5.0, 6.0, 6.5]) == ranks.Correlation(3, pytest.approx(1.0), None, None)
    assert ranks.spearman([1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0]).rho is None
    assert ranks.spearman([], []) == ranks.Correlation(0, None, None, None)
