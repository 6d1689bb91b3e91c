"""Reports of runs that were written by hand: what they say, in every form, and what they keep to themselves."""

from __future__ import annotations

import io
import json
import platform
import re
import shutil
import socket
import subprocess
import warnings
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_helpers import DIGITS, expanded, finish
from report_helpers import Page, made_up_results

from docs.figures import ladder
from experiments import cli
from experiments.cells import Expansion, expand
from experiments.grid import PaperValue, selection
from experiments.report.aggregate import CellMeans, aggregated
from experiments.report.benchmarks import benchmarks
from experiments.report.figures import (
    CAPTIONS,
    draw_accuracy,
    draw_loss,
    draw_matrices,
    draw_memory,
    draw_panels,
    figures,
    has_loss,
)
from experiments.report.latex import escape, latex
from experiments.report.page import page
from experiments.report.page_tables import difference_cell, reach_of
from experiments.report.styles import GREY, spread, styles
from experiments.report.tables import UNCLEAR, agreement, judged, markdown, notes, outcome
from experiments.report.write import report_markdown, write_report
from experiments.results.collection import Results, read_results, write_results
from experiments.results.records import MEASUREMENTS, read_curves
from experiments.results.statistics import Difference, Summary, summarise
from experiments.results.stored import read_stored

ROWS = {
    "ER": {"model": "er"},
    "DGC-ER": {"model": "dgc_er", "against": "ER"},
    "SGD": {"model": "sgd", "buffer_size": None},
    "Small": {"model": "er", "buffer_size": 10, "columns": {"digits, 60": None}},
}
PAPER = {"FAA": {"ER": {"digits, 50": PaperValue("61.08 ± 1.23", 61.08, 1.23)}}}
ASCII = "<script>alert('1')</script> & \"50 %\" $x_1^2$ {\\} ~ # α θ̃ | [1] *"  # and what latex.py names
NASTY = f"{ASCII} 中"


@pytest.fixture
def half_done(tmp_path: Path) -> Expansion:
    """Two seeds of ER and DGC-ER, one of SGD, none in the other column; `Small` has no cell there."""
    columns = {"digits, 50": {"buffer_size": 50}, "digits, 60": {"buffer_size": 60}}
    expansion = expanded(
        tmp_path, title="Half", flags=DIGITS, columns=columns, rows=ROWS, seeds=2, metrics=["FAA", "FAIA"]
    )
    cells = {(c.row, c.column, c.seed): c for c in expansion.cells}
    finish(cells["ER", "digits, 50", 0], 90, (40, 60), cpu="A processor", torch="2.14.0", git_commit="abc" * 10)
    finish(cells["ER", "digits, 50", 1], 90, (50, 60), cpu="A processor")
    finish(cells["DGC-ER", "digits, 50", 0], 90, (42, 60), cpu="A processor")
    finish(cells["DGC-ER", "digits, 50", 1], 90, (56, 60), cpu="A processor")
    finish(cells["SGD", "digits, 60", 1], 90, (0, 90), cpu="A processor")
    for cell in expansion.cells:
        if cell.row == "DGC-ER" and cell.path.exists():
            write_log(cell.path / "metrics.jsonl")
    return expansion


def write_log(path: Path) -> None:
    measured = {"buffer_error": 0.51234567, "calibrated_error": None, "buffer_cosine": 0.9}
    events = [
        {"event": "train", "task": 1, "step": 3, "loss": [3.0, None, 1.0]},
        {"event": "task_end", "task": 1, "step": 3},
        {"event": "diagnostics", "task": 2, "step": 0, **measured},
        {"event": "train", "task": 2, "step": 2, "loss": [2.0, 1.0]},
        {"event": "whole_loss", "task": 1, "step": 0, "seen": 2.0},
        {"event": "whole_loss", "task": 2, "step": 0, "seen": 1.5},
    ]
    lines = [json.dumps(event) for event in events]
    path.write_text("\n".join([*lines[:2], '{"event": "tr', *lines[2:]]) + "\n")  # one line is damaged


def results_of(expansion: Expansion, **of_the_grid: Any) -> Results:
    (results,) = read_results([replace(expansion, grid=replace(expansion.grid, **of_the_grid))], curves=True)
    return results


def cells_of(text: str) -> list[list[str]]:
    """The rows of all Markdown tables."""
    return [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]


def tex_cells(text: str) -> list[list[str]]:
    rows = [line.removesuffix(r"\\").split("&") for line in text.splitlines() if line.endswith(r"\\")]
    return [[cell.strip() for cell in row] for row in rows]


def test_every_form_has_the_numbers_of_the_records(half_done: Expansion) -> None:
    """FAA of ER: 50 and 55; of DGC-ER: 51 and 58, so the differences are 1 and 3; t_{0.975,1} = 12.706."""
    results = results_of(half_done, paper=PAPER)
    shown = Page(page([results])).tables
    assert shown[0][2] == ["ER", "52.50 ± 2.50 (2)paper 61.08 ± 1.23", "not run"]
    assert shown[0][3] == ["DGC-ER", "54.50 ± 3.50 (2)", "not run"]
    assert shown[1][2] == ["DGC-ER − ER", "+2.00 [−10.71, +14.71], p 0.3 (2)", "not run"]
    assert shown[2][2][:2] == ["ER", "71.25 ± 1.25 (2)"]  # FAIA: (90 + 50)/2 and (90 + 55)/2
    text = cells_of(markdown(results))
    assert text[1] == ["ER", "52.50 ± 2.50 (2)", "61.08 ± 1.23", "not run"]
    lines = tex_cells(latex(results))
    assert ["ER", r"52.50 $\pm$ 2.50 (2)", r"61.08 $\pm$ 1.23", "not run"] in lines
    assert [r"DGC-ER $-$ (ER)", r"+2.00 {[}-10.71, +14.71{]}, p 0.3 (2)", "--"] in lines


def test_a_table_of_a_column_without_a_name_has_a_caption_all_the_same() -> None:
    results = made_up_results(rows=2, buffers=1, seeds=2, tasks=2)
    grid = replace(results.grid, columns={"": {}})
    unnamed = {(row, "", seed): record for (row, column, seed), record in results.records.items() if "100, " in column}
    text = page([replace(results, expansion=replace(results.expansion, grid=grid), records=unnamed)])
    assert ">Mean ± standard error (number of seeds).<" in text and ">Difference seed by seed: mean [" in text
    assert "<h3></h3>" not in text


def test_the_verdict_judges_by_the_better_direction() -> None:
    """DGC-M0 is 2 points above M0 in every run; what it forgets is 1 point more."""
    results = made_up_results(rows=3, buffers=2, seeds=3, tasks=2)
    for (row, column, seed), record in results.records.items():
        if row == "DGC-M0":
            base, jitter = results.records["M0", column, seed]["class_il"], 0.01 * seed
            record["class_il"] = base | {"FAIA": base["FAIA"] + 2 + jitter, "FF": base["FF"] + 1 + jitter}
    shown = Page(page([results]))
    (card,) = shown.cards
    heads = ["FAIA ↑better in 4 of 4", "FAA ↑no clear difference", "FF ↓worse in 4 of 4"]
    assert card[0] == ["3 seeds", *heads] and "FAIA ↑ better in 4 of 4: +2.01" in shown.text
    assert card[1] == [
        "S-CIFAR10, 100",
        "+2.01 better[+1.99, +2.03]",
        "+0.00 [+0.00, +0.00]",
        "+1.01 worse[+0.99, +1.03]",
    ]
    outcomes = [a["class"] for _, a in shown.elements if (a.get("class") or "").startswith("difference")]
    assert outcomes[:3] == ["difference better", "difference unclear", "difference worse"]
    assert shown.text.index("Verdict") < shown.text.index("Mean ± standard error")
    single = Page(page([made_up_results(rows=2, buffers=1, seeds=1, tasks=2)]))
    assert "No pair can be judged yet: each has one seed." in single.text and "better in" not in single.text
    assert not any((attributes.get("class") or "") == "interval" for _, attributes in single.elements)
    assert Page(page([made_up_results(rows=1, buffers=1, seeds=2, tasks=2)])).cards == []


def test_one_column_is_one_table_of_all_metrics() -> None:
    """In the verdict a line for each pair; what a method costs is in the table below only."""
    results = made_up_results(rows=4, buffers=1, seeds=2, tasks=2)
    grid = replace(results.grid, metrics=["FAIA", "FF", "MB"])
    grid = replace(grid, columns={"S-CIFAR10, 100": grid.columns["S-CIFAR10, 100"]})
    del results.records["DGC-M1", "S-CIFAR10, 100", 0]
    shown = Page(page([replace(results, expansion=replace(results.expansion, grid=grid))]))
    (card,) = shown.cards
    assert card[0] == ["(seeds)", "FAIA ↑", "FF ↓"] and [line[0] for line in card[1:]] == ["DGC-M0 − M0", "DGC-M1 − M1"]
    assert card[1][1].endswith("] (2)") and card[2][1].endswith("(1)")
    assert [table[0] for table in shown.tables[:2]] == [
        ["Method", "FAIA ↑", "FF ↓", "MB"],
        ["Pair", "FAIA ↑", "FF ↓", "MB"],
    ]


def test_what_a_method_costs_is_shown_and_not_judged(half_done: Expansion) -> None:
    results = results_of(half_done, metrics=["FAA", "seconds"])
    for (row, _, seed), record in results.records.items():
        record["timing"] |= {"train_seconds": 10.0 + seed + 5 * (row == "DGC-ER")}
    text = page([results])
    shown = Page(text)
    assert shown.tables[3][2][:2] == ["DGC-ER − ER", "+5.00 [+5.00, +5.00] (2)"]
    part = text.partition("<h3>seconds</h3>")[2].partition("</section>")[0]
    assert "outcome" not in part and "<svg" not in part and "difference unclear" in part
    rows = cells_of(markdown(results))
    assert ["DGC-ER − (ER)", "+5.00 [+5.00, +5.00] (2)", "–"] in rows and "### seconds\n" in markdown(results)


def test_a_strip_has_an_arrow_where_the_interval_goes_on() -> None:
    """Half of the ends are up to 1 from zero, so a strip ends at 2, and an interval from 9 to 11 is outside."""
    near, far = (Difference(summarise([m, m]), m - 1, m + 1, 0.5) for m in (0.0, 10.0))
    reach = reach_of([near, near, far, None])
    assert reach == 2.0 and reach_of([near]) == 1.0 and reach_of([]) == 1.0
    inside, outside = (difference_cell(d, "FAIA", reach, UNCLEAR) for d in (near, far))
    assert "beyond" not in inside and "<circle" in inside and 'x1="30.0" x2="90.0"' in inside
    assert outside.count("beyond") == 1 and "<circle" not in outside
    none = Difference(summarise([0.0, 0.0]), 0.0, 0.0, None)
    assert difference_cell(none, "FAIA", reach_of([]), UNCLEAR).count("<circle") == 1
    through = Difference(summarise([0.0, 0.0]), -3.0, 3.0, 0.5)
    assert difference_cell(through, "FAIA", reach, UNCLEAR).count("beyond") == 2
    every_equal = [Difference(summarise([0.0, 0.0]), 0.0, 0.0, None)] * 2
    assert reach_of(every_equal) == 1.0


def test_a_row_without_its_base_is_named() -> None:
    results = made_up_results(rows=4, buffers=1, seeds=2, tasks=2)

    def shown(*rows: str) -> Page:
        grid = replace(results.grid, rows={row: results.grid.rows[row] for row in rows})
        return Page(page([replace(results, expansion=replace(results.expansion, grid=grid))]))

    words = "Not compared, because the other row was not chosen: DGC-M1 (− M1)."
    part, alone = shown("M0", "DGC-M0", "DGC-M1"), shown("DGC-M1")
    assert words in part.text and len(part.cards) == 1
    assert words in alone.text and alone.cards == [] and "Verdict" in alone.text
    assert "Not compared" not in shown(*results.grid.rows).text


def test_a_report_without_any_run_says_so(half_done: Expansion) -> None:
    none = replace(results_of(half_done), records={})
    shown = Page(page([none]))
    assert "Nothing has been run." in shown.text and shown.cards == [] and "seed" not in verdict_of(shown)
    assert report_markdown([none]).startswith("Nothing has been run.\n\n## Half")
    assert "Nothing has been run" not in Page(page([results_of(half_done)])).text


def verdict_of(shown: Page) -> str:
    return shown.text.partition("Verdict\n")[2].partition("Mean ± standard error")[0]


NOTES = {
    "MOCA, S-CIFAR100, 2000: strange.": False,
    "S-TinyImageNet, 5000: the paper marks DGC-ER.": False,
    "Dynamic ER's alone.": False,
    "AOP and ER differ.": True,
    "ER's on S-CIFAR100.": True,
    "The maximum does not run over the last task.": True,
}


def test_notes_are_about_what_is_shown(half_done: Expansion) -> None:
    """The paper's table has more rows and columns than the one that is shown, whose names have more words."""
    value = PaperValue("61.08 ± 1.23", 61.08, 1.23)
    columns = ("S-CIFAR100, 500", "S-TinyImageNet, 5000")
    paper = {"FAA": {row: dict.fromkeys(columns, value) for row in ("MOCA", "AOP", "ER", "DGC-ER", "Dynamic ER")}}
    rows = {"ER, filled at task ends": half_done.grid.rows["ER"], "DGC-ER": half_done.grid.rows["DGC-ER"]}
    shown = results_of(half_done, notes=list(NOTES), paper=paper, rows=rows, columns={"S-CIFAR100, 500": {}})
    assert notes(shown, shown.grid.rows) == [note for note, kept in NOTES.items() if kept]
    assert all((f"- {note}" in markdown(shown)) == kept for note, kept in NOTES.items())
    everything = results_of(half_done, notes=list(NOTES))
    assert notes(everything, everything.grid.rows) == list(NOTES)  # no table to know other names from


def test_notes_about_other_methods_are_in_the_view_that_has_them(half_done: Expansion) -> None:
    text = page([results_of(half_done, notes=["SGD forgets.", "ER does not."])])
    assert '<li class="only-all">SGD forgets.</li><li>ER does not.</li>' in text


def test_a_hollow_square_is_a_base_and_nothing_else() -> None:
    results = made_up_results(rows=30, buffers=1, seeds=1, tasks=2)  # with more pairs than colours
    text = page([results])
    for number, row in enumerate(results.grid.rows):
        (key,) = re.findall(rf"^\.k{number}\{{(.*)\}}$", text, re.M)
        assert key.startswith("border:" if row.startswith("M") else "background:"), row
    keys = [
        re.findall(rf"^\.k{n}\{{(.*)\}}$", text, re.M)[0] for n, row in enumerate(results.grid.rows) if row[0] == "D"
    ]
    assert keys[0] != keys[6] and "stripe" not in keys[0] and "gradient" in keys[6]  # the same colour


@pytest.mark.parametrize(
    ("metric", "interval", "outcome"),
    [
        ("FAIA", (1.0, 2.0), "better"),
        ("FAIA", (-2.0, -1.0), "worse"),
        ("FF", (1.0, 2.0), "worse"),
        ("FF Task-IL", (-2.0, -1.0), "better"),
        ("seconds", (1.0, 2.0), "unclear"),
        ("MB", (-2.0, -1.0), "unclear"),
        ("FF", (-1.0, 2.0), "unclear"),
        ("BWT", (None, None), "unclear"),
    ],
)
def test_better_is_more_accuracy_and_less_forgetting(
    metric: str, interval: tuple[float | None, float | None], outcome: str
) -> None:
    assert judged(Difference(summarise([1.0, 2.0]), *interval, 0.01), metric) == outcome


@pytest.mark.parametrize(
    ("faia", "faa", "ff", "found"),
    [
        (0.0, 0.0, -9.0, "better"),
        (-5.0, 0.0, -9.0, "unjudged"),
        (0.0, -5.0, -9.0, "unjudged"),
        (None, -5.0, -9.0, "unjudged"),
        (None, None, -9.0, "better"),
        (-5.0, -5.0, 9.0, "worse"),
        (5.0, 5.0, -9.0, "better"),
    ],
)
def test_who_learns_nothing_forgets_nothing(faia: float | None, faa: float | None, ff: float, found: str) -> None:
    results = made_up_results(rows=2, buffers=1, seeds=3, tasks=2)
    changes = {"FAIA": faia, "FAA": faa, "FF": ff}
    for (row, _, seed), record in results.records.items():
        moved = (row == "DGC-M0") * np.array([(by or 0) + 0.01 * (seed - 1) for by in changes.values()])
        value = dict(zip(changes, (50 + seed + moved).tolist(), strict=True))
        record["class_il"] = {metric: None if changes[metric] is None else v for metric, v in value.items()}
        record["class_il"]["BWT"] = -value["FF"]
    column = next(iter(results.grid.columns))
    assert outcome(results, "DGC-M0", column, "FF") == outcome(results, "DGC-M0", column, "BWT") == found
    shown = page([results])
    assert ('class="difference unjudged"' in shown) == (found == "unjudged")
    assert ('<span class="better">better in 2</span> of 2' in shown.partition("FF ↓")[2]) == (found == "better")


def test_code_in_a_note_is_code(half_done: Expansion) -> None:
    assert "<li>Over `&lt;x&gt;`" not in (shown := page([results_of(half_done, notes=["Over `<x>` (`--flag`)."])]))
    assert "<li>Over <code>&lt;x&gt;</code> (<code>--flag</code>).</li>" in shown


def test_pairs_are_the_default_view(half_done: Expansion) -> None:
    shown = page([results_of(half_done)])
    assert re.findall(r'<tr class="only-all"><th scope="row"><i class="key k\d"></i>(\w+)', shown)[:2] == [
        "SGD",
        "Small",
    ]
    assert 'name="view" checked> <span>Pairs only' in shown
    rows = {row: replace(spec, against=None) for row, spec in half_done.grid.rows.items()}
    assert "<tr class=" not in page([results_of(half_done, rows={r: rows[r] for r in ("ER", "DGC-ER")})])


def test_what_has_no_number_is_told_apart(half_done: Expansion) -> None:
    expansion = replace(half_done, unavailable={("Small", "digits, 50"): "no such model"})
    numbers = Page(page([results_of(expansion)])).tables[0]
    assert [row[1:] for row in numbers[4:]] == [
        ["45.00 (1) 1 not run", "45.00 (1) 1 not run"],  # a run that both columns share
        ["not available", "not in the grid"],
    ]
    text = latex(results_of(expansion))
    assert r"Small & not available &  \\" in text
    undefined = results_of(half_done, metrics=["FWT"])
    assert Page(page([undefined])).tables[0][2][1:] == ["–", "not run"]


@pytest.mark.parametrize("row", ["ER", "DGC-ER"])
def test_a_pair_says_why_it_has_no_difference(half_done: Expansion, row: str) -> None:
    """The other row of the pair has no run in the second column; what a run cannot mend is said first."""

    def shown(expansion: Expansion) -> list[str]:
        return Page(page([results_of(expansion, metrics=["FAA"])])).tables[1][2][1:]

    assert shown(half_done)[1] == "not run"
    assert shown(replace(half_done, unavailable={(row, "digits, 60"): "no such model"}))[1] == "not available"
    rows = dict(half_done.grid.rows)
    rows[row] = replace(rows[row], columns={"digits, 60": None})
    assert shown(replace(half_done, grid=replace(half_done.grid, rows=rows)))[1] == "not in the grid"


@pytest.mark.parametrize(
    ("ours", "paper", "verdict"),
    [
        (Summary(10, 50.0, 3.0, 1.0), PaperValue("", 52.8, 1.0), "agrees"),
        (Summary(10, 50.0, 3.0, 1.0), PaperValue("", 52.9, 1.0), "lower"),
        (Summary(10, 50.0, 3.0, 1.0), PaperValue("", 47.1, 1.0), "higher"),
        (Summary(1, 50.0, None, None), PaperValue("", 50.0, 1.0), "untold"),
        (Summary(10, 50.0, 3.0, 1.0), PaperValue("", 50.0, None), "untold"),
    ],
)
def test_agreement_is_two_standard_errors_of_the_difference(ours: Summary, paper: PaperValue, verdict: str) -> None:
    found = agreement(ours, paper)
    assert found is not None and found.verdict == verdict
    assert agreement(Summary(0, None, None, None), paper) is None


def test_colours_are_for_the_papers_scale_alone(half_done: Expansion) -> None:
    def verdicts(shown: Page) -> list[str | None]:
        return [a["class"] for _, a in shown.elements if "verdict" in (a.get("class") or "") and "title" in a]

    small = Page(page([results_of(half_done, paper=PAPER, profile="small")]))
    assert verdicts(small) == [] and "orientation only" in small.text and "Difference to the paper" not in small.text
    exact = Page(page([results_of(half_done, paper=PAPER, profile="paper")]))
    assert verdicts(exact) == ["verdict lower"] and "orientation only" not in exact.text
    assert exact.tables[0][2][1] == "52.50 ± 2.50 (2)paper 61.08 ± 1.23 ▼ -8.58 (lower)"
    assert all(sign in exact.text.partition("FAA: mean")[0] for sign in "✓▲▼·")  # the legend
    without = Page(page([results_of(half_done)]))
    assert "orientation" not in without.text and verdicts(without) == []


def test_what_comes_from_files_is_text_and_nothing_else(half_done: Expansion) -> None:
    grid = half_done.grid
    rows = {NASTY if row == "ER" else row: replace(spec, against=None) for row, spec in grid.rows.items()}
    results = results_of(half_done, title=NASTY, notes=[NASTY], conditions=NASTY, rows=rows, profile="paper")
    text = page([results])
    shown = Page(text)
    assert "alert('1')" not in text and text.count("<script") == text.count("</script") == 1
    assert shown.tables[0][2][0] == NASTY and shown.text.count(NASTY) >= 5
    assert NASTY.replace("|", "\\|").replace("<", "&lt;") in markdown(results) and "<script" not in markdown(results)
    escaped = escape(NASTY)
    assert r"\textless{}script" in escaped and r"$\alpha$ $\tilde\theta$ \textbar{}" in escaped
    assert not re.search(r"(?<!\\)[&%#]", escaped)


def test_names_of_several_lines_are_one_line_of_markdown(half_done: Expansion) -> None:
    rows = {f"two\nlines {row}": replace(spec, against=None) for row, spec in half_done.grid.rows.items()}
    text = markdown(results_of(half_done, title="A\ntitle", notes=["A\n\nnote"], rows=rows))
    assert text.startswith("## A title\n\n") and text.endswith("\n\n- A note")
    assert [row[0] for row in cells_of(text)[1:5]] == [f"two lines {row}" for row in half_done.grid.rows]


@pytest.mark.slow
def test_the_report_is_complete_and_says_nothing_about_the_machine(
    half_done: Expansion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "whose-machine")
    monkeypatch.setattr(platform, "node", lambda: "whose-machine")
    where = ["--grid", str(tmp_path / "grid.yaml"), "--base_path", str(tmp_path / "data")]
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", *where, "--output", str(tmp_path / "out")])
    assert not ended.value.code and capsys.readouterr().out.strip() == str(tmp_path / "out" / "index.html")
    files = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    figures = {name for name in files if name.startswith("figures/grid-digits-50-accuracy")}
    assert figures == {f"figures/grid-digits-50-accuracy-{end}" for end in ("pairs.png", "pairs.svg", "all.svg")}
    assert {"index.html", "report.md", "results.json", "results.csv", "latex/grid.tex"} < files
    assert all(any(f"-{kind}" in name for name in files) for kind in CAPTIONS)
    for path in (tmp_path / "out").rglob("*.*"):
        content = path.read_bytes().decode("utf-8", errors="replace")
        assert not any(word in content for word in (str(tmp_path), "whose-machine", "/home/")), path
    shown = Page((tmp_path / "out" / "index.html").read_text())
    facts = dict(shown.tables[-1])
    assert facts["CPU"] == "A processor" and facts["Versions"] == "torch 2.14.0" and facts["Finished"] == "2024-05-01"
    assert facts["Commit"] == "abcabcabcabc" and facts["Runs"] == "5"
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| Commit" in text and "(figures/grid-digits-50-accuracy-pairs.png)" in text


@pytest.mark.slow
def test_a_report_is_made_again_from_its_raw_results(half_done: Expansion, tmp_path: Path) -> None:
    expansion = replace(half_done, unavailable={("Small", "digits, 50"): "no such model"})
    results = results_of(expansion, paper=PAPER, profile="paper", place="Table 1", conditions="Profile paper: big.")
    write_report([results], tmp_path / "once")
    write_report(read_stored(tmp_path / "once" / "results.json"), tmp_path / "twice")
    assert_same_files(tmp_path / "once", tmp_path / "twice")


def assert_same_files(directory: Path, other: Path) -> None:
    for path in directory.rglob("*.*"):
        assert path.read_bytes() == (other / path.relative_to(directory)).read_bytes(), path


@pytest.mark.slow
def test_a_report_of_some_columns_is_made_again(half_done: Expansion, tmp_path: Path) -> None:
    """`Small` lacks a cell in the column that is left out."""
    (part,) = selection([half_done.grid], None, ["50"])
    write_report([results_of(expand(part, [f"--base_path={tmp_path / 'data'}"]))], tmp_path / "once")
    write_report(read_stored(tmp_path / "once" / "results.json"), tmp_path / "twice")
    assert_same_files(tmp_path / "once", tmp_path / "twice")


@pytest.mark.parametrize("content", [None, "{", "[]", '{"tables": [{}], "runs": [], "environments": []}'])
def test_a_file_that_is_no_result_is_one_line(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    arguments = ["report", "--from", str(tmp_path / "results.json"), "--output", str(tmp_path / "out")]
    for extra in ([], ["faia"]):
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments, *extra])
        assert ended.value.code == 2 and not (tmp_path / "out").exists()
        error = capsys.readouterr().err
        assert error.startswith("error: --from") and error.count("\n") == 1


WRONG: list[tuple[str, Any, str]] = [  # where, what stands there, and the reason that is given; `...` takes it away
    ("tables", [], "tables is empty"),
    ("tables.0.metrics", ["FAA", "FAAA"], "tables[0].metrics: unknown metric 'FAAA'"),
    ("tables.0.title", 5, "tables[0].title is 5, not text"),
    ("tables.0.rows", [], "tables[0].rows is empty"),
    ("tables.0.paper", {"FAA": {"ER": {"digits, 50": "abc"}}}, "'abc' is no number of the paper"),
    ("runs.0.class_il", ..., "runs[0] has no class_il"),
    ("runs.0.class_il.FAA", "high", "runs[0].class_il.FAA is 'high', not a number"),
    ("runs.1.class_il.FAA", float("nan"), "runs[1].class_il.FAA is nan, not a number"),
    ("runs.0.environment", 7, "runs[0].environment is 7, of 2 from 0"),
    ("environments.0", "a machine", "environments[0] is 'a machine', not a mapping"),
    ("environments.0.cpu", ["A"], "environments[0].cpu is ['A'], not text"),
]


@pytest.mark.parametrize(("where", "what", "reason"), WRONG, ids=[reason for _, _, reason in WRONG])
def test_results_that_were_changed_are_one_line(
    where: str, what: Any, reason: str, half_done: Expansion, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "results.json"
    write_results([results_of(half_done)], tmp_path)
    content = json.loads(path.read_text())
    *steps, last = [int(step) if step.isdecimal() else step for step in where.split(".")]
    place = content
    for step in steps:
        place = place[step]
    if what is ...:
        del place[last]
    else:
        place[last] = what
    path.write_text(json.dumps(content))
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", "--from", str(path), "--output", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and not (tmp_path / "out").exists() and error.count("\n") == 1
    assert error.startswith(f"error: --from {path}: not a results.json: {reason}")
    assert error.endswith("; give one that `table` or `report` has written with --output DIR, unchanged\n")


def test_curves_are_thinned_out(tmp_path: Path) -> None:
    write_log(tmp_path / "metrics.jsonl")
    assert read_curves(tmp_path / "metrics.jsonl") == {
        "diagnostics": {"at": [3], "task": [2], "buffer_error": [0.5123], "buffer_cosine": [0.9]},
        "whole_loss": {"at": [0, 3], "task": [1, 2], "seen": [2.0, 1.5]},
    }
    events = [{"event": "whole_loss", "task": 0, "step": step, "seen": float(step)} for step in range(1000)]
    (tmp_path / "long.jsonl").write_text("\n".join(map(json.dumps, events)))
    thinned = read_curves(tmp_path / "long.jsonl")["whole_loss"]
    assert len(thinned["at"]) <= MEASUREMENTS and thinned["at"] == thinned["seen"] == list(range(0, 1000, 9))
    assert read_curves(tmp_path / "nowhere.jsonl") == {}


def test_cells_are_means_over_seeds(half_done: Expansion) -> None:
    results = results_of(half_done)
    records = [results.records["DGC-ER", "digits, 50", seed] for seed in (0, 1)]
    cell = aggregated(records)
    assert cell.matrix == [[90.0], [49.0, 60.0]] and [s.mean for s in cell.average_accuracy] == [90.0, 54.5]
    assert cell.gradients["buffer_error"] == [0.5123] and cell.faia is not None and cell.faia.mean == 72.25
    assert cell.memory == 4 * 1234 + 5678
    without = [{name: value for name, value in record.items() if name != "stored_bytes"} for record in records]
    assert aggregated(without).memory is None and aggregated([without[0], records[1]]).memory == cell.memory
    assert aggregated([records[0] | {"stored_bytes": 0}]).memory == 0


def test_pairs_are_in_colour_and_the_others_grey(half_done: Expansion) -> None:
    looks = styles([results_of(half_done)])
    assert looks["ER"].light == looks["DGC-ER"].light and looks["ER"].dash and looks["DGC-ER"].dash is None
    assert looks["Small"].light == GREY[0] != looks["SGD"].light and not looks["SGD"].of_interest
    alone = results_of(half_done, rows={"DGC-ER": half_done.grid.rows["DGC-ER"]})
    assert styles([alone])["DGC-ER"].light == looks["DGC-ER"].light
    others = styles([made_up_results(4, 1, 1, 2)])
    assert others["M0"].light == others["DGC-M0"].light != others["M1"].light == others["DGC-M1"].light
    without_pairs = results_of(
        half_done, rows={row: replace(spec, against=None) for row, spec in half_done.grid.rows.items()}
    )
    assert len({style.light for row, style in styles([without_pairs]).items() if row != "SGD"}) == 3
    many = styles([made_up_results(30, 1, 1, 2)])
    assert len({(style.light, style.dash) for row, style in many.items() if row.startswith("DGC")}) == 15


def test_names_are_moved_apart_and_no_further_than_needed() -> None:
    assert spread([10.0, 50.0, 52.0, 90.0], 0, 100, [10] * 4) == [10.0, 46.0, 56.0, 90.0]
    assert spread([90.0, 95.0, 99.0], 0, 100, [10, 20, 10]) == [65.0, 80.0, 95.0]


def test_tables_of_the_same_runs_are_one_benchmark(half_done: Expansion) -> None:
    results = results_of(half_done, place="Table 1", title="FAIA", metrics=["FAIA"])
    grid = results.grid
    more = replace(results.expansion, grid=replace(grid, name="more", metrics=["FF"], columns={"other": {}}))
    unpaired = {row: replace(spec, against=None) for row, spec in grid.rows.items()}
    apart = replace(results.expansion, grid=replace(grid, name="apart", rows=unpaired))
    elsewhere = replace(results.expansion, grid=replace(grid, conditions="Profile paper: big."))
    found = benchmarks([results, *(replace(results, expansion=e) for e in (more, apart, elsewhere))])
    assert [first.grid.name for first, _ in found] == ["grid", "apart", "grid"]
    together = found[0][1].grid
    assert list(together.columns) == [*grid.columns, "other"] and together.metrics == ["FAIA", "FF"]


@pytest.mark.slow
def test_a_benchmark_is_drawn_once() -> None:
    results = made_up_results(rows=2, buffers=1, seeds=1, tasks=2)
    looks, grid = styles([results]), results.grid
    other = replace(results.expansion, grid=replace(grid, name="other", title="Other"))
    panels = draw_panels([results, replace(results, expansion=other)], looks)
    assert [(p.benchmark, p.kind) for p in panels] == [
        (dataset, kind) for dataset in ("S-CIFAR10", "S-CIFAR100") for kind in ("accuracy", "matrices", "loss")
    ]
    shown = page([results], panels).partition("</style>")[2]
    assert shown.count('role="img"') == 6 and "#0072b2" not in shown and "var(--c0072b2)" in shown
    names = re.findall(r' id="(\w+)"', shown)
    assert len(names) == len(set(names))
    rerun = {place: dict(record) for place, record in results.records.items() if "S-CIFAR10, 100" in place}
    again = draw_panels([results, replace(results, records=rerun, expansion=other)], looks)[6:]
    assert {p.benchmark for p in again} == {"S-CIFAR10: Other"} and not {p.name for p in again} & {
        p.name for p in panels
    }


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2])
def test_errors_are_drawn_where_there_are_several_seeds(seeds: int) -> None:
    results = made_up_results(rows=4, buffers=2, seeds=seeds, tasks=2)
    drawn = {kind: figure.axes[0] for _, kind, _, figure in figures(results, styles([results]))}
    bands = [area for area in drawn["accuracy"].collections if area.get_paths()]
    assert len(bands) == (4 if seeds > 1 else 0)
    assert len(drawn["memory"].containers) == 4  # bars, which one seed leaves empty


def test_views_have_the_pairs_or_every_method() -> None:
    results = made_up_results(rows=3, buffers=1, seeds=1, tasks=2)  # M1 is in no pair
    lines = {
        (kind, view): sorted(line.get_label() for line in figure.axes[0].get_lines() if line.get_label()[0] != "_")
        for _, kind, view, figure in figures(results, styles([results]))
        if kind != "matrices"
    }
    assert lines["accuracy", "pairs"] == lines["loss", "pairs"] == ["DGC-M0", "M0"]
    assert lines["accuracy", "all"] == ["DGC-M0", "M0", "M1"]


def test_matrices_of_a_pair_are_on_a_scale_that_shows_them() -> None:
    cells = {"ER": CellMeans(matrix=[[20.0], [2.0, 18.0]]), "DGC-ER": CellMeans(matrix=[[20.0], [7.0, 17.0]])}
    cells["SGD"] = CellMeans(matrix=[[21.0], [0.0, 25.0]])
    (figure,) = draw_matrices(cells, {}, bases={"DGC-ER": "ER"})
    images = figure.axes[0].get_images()
    assert [image.get_clim() for image in images] == [(0, 25), (0, 25), (-5, 5), (0, 25)]
    cells |= {"M0": CellMeans(matrix=[[20.0], [20.0, 20.0]]), "DGC-M0": CellMeans(matrix=[[20.0], [18.0, 20.0]])}
    (figure,) = draw_matrices(cells, {}, bases={"DGC-ER": "ER", "DGC-M0": "M0"})
    both = figure.axes[0]
    assert [image.get_clim() for image in both.get_images()[2:6:3]] == [(-5, 5), (-2, 2)]
    assert {"difference, ±5", "difference, ±2"} <= {text.get_text() for text in both.texts}
    assert images[2].get_array()[1].tolist() == [5.0, -1.0] and bool(images[2].get_array().mask[0, 1])


def test_matrices_of_many_pairs_are_panels_that_fit_on_a_page_and_share_a_scale() -> None:
    cells = {f"{dgc}M{i}": CellMeans(matrix=[[20.0 + i], [2.0, 18.0]]) for i in range(7) for dgc in ("", "DGC-")}
    figures = [
        (figure.get_figheight(), [image.get_clim() for image in figure.axes[0].get_images()])
        for figure in draw_matrices(cells, {}, bases={f"DGC-M{i}": f"M{i}" for i in range(7)})
    ]
    assert [len(limits) for _, limits in figures] == [15, 6]  # no pair is cut in two
    assert all(limits[0] == (0, 26) for _, limits in figures)
    assert max(height for height, _ in figures) < 1.6 * 4.4  # of a third of a printed page's width, its height


def test_a_method_that_stores_nothing_is_a_level_line() -> None:
    looks = styles([made_up_results(2, 1, 1, 2)])
    known = summarise([50.0, 60.0])
    rows = {"M0": [CellMeans(memory=10, faia=known)], "DGC-M0": [CellMeans(memory=0, faia=known)]}
    (axes,) = draw_memory(rows, looks).axes
    ((_, _, (bar,)),) = axes.containers
    assert bar.get_segments()[0][:, 1].tolist() == [50.0, 60.0]  # the mean is 55, its standard error 5
    assert [list(line.get_ydata()) for line in axes.get_lines() if line.get_label() == "DGC-M0"] == [[55.0, 55.0]]


def test_figures_take_names_as_they_are() -> None:
    looks = {NASTY: styles([made_up_results(1, 1, 1, 2)])["M0"]}
    content = io.StringIO()
    cell = CellMeans(average_accuracy=[summarise([50.0])] * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a font may lack a letter
        (figure,) = draw_accuracy({NASTY: cell}, looks, title=NASTY)
        figure.savefig(content, format="svg")
    assert figure.texts[0].get_text() == NASTY and "<script" not in content.getvalue()


def test_every_line_is_named_and_no_name_covers_another() -> None:
    from matplotlib.text import Text

    looks = styles([made_up_results(20, 1, 1, 2)])
    looks["_mine"] = looks.pop("M0")  # matplotlib itself hides such a name
    figure = draw_memory({row: [CellMeans(memory=10, faia=summarise([50.0]))] for row in looks}, looks)
    figure.canvas.draw()
    for axes in figure.axes:
        boxes = [Text.get_window_extent(name) for name in axes.texts]  # without the line that leads to it
        assert sorted(text.get_text() for text in axes.texts) == sorted(looks)
        assert min(box.y0 for box in boxes) > 0 and max(box.y1 for box in boxes) < figure.bbox.y1
        assert max(box.x1 for box in boxes) <= figure.bbox.x1
        ordered = sorted(boxes, key=lambda box: box.y0)
        assert all(below.y1 < above.y0 + 1 for below, above in pairwise(ordered))


def test_many_methods_have_small_axes_each_and_a_pair_shares_one() -> None:
    looks = styles([made_up_results(12, 1, 1, 2)])
    cells = {row: CellMeans(average_accuracy=[summarise([50.0 + i])] * 2) for i, row in enumerate(looks)}
    cells["Joint"] = CellMeans(average_accuracy=[summarise([]), summarise([90.0])])
    looks["Joint"] = looks["M0"]
    first, second = draw_accuracy(cells, looks, bases={f"DGC-M{i}": f"M{i}" for i in range(6)})
    every = [*first.axes, *second.axes]
    shown = {axes.get_title(loc="left"): [line.get_label() for line in axes.get_lines()] for axes in every}
    assert shown == {f"DGC-M{i} − M{i}": [f"M{i}", f"DGC-M{i}"] for i in range(6)} | {"Joint": ["Joint"]}
    assert len(first.axes) == 4 and {axes.get_ylim() for axes in every} == {(48.0, 92.0)}
    for axes in every:
        (grey,) = [paths[0].get_extents() for area in axes.collections if (paths := area.get_paths())]
        assert (grey.y0, grey.y1) == (50.0, 90.0)


def test_in_small_axes_the_base_is_dashed_whatever_else_it_is_compared_with() -> None:
    """In a ladder a row is the base of one pair and the method of another."""
    results = made_up_results(12, 1, 1, 2)
    rows = list(results.grid.rows)
    ladders = {row: replace(results.grid.rows[row], against=base) for base, row in pairwise([None, *rows])}
    grid = replace(results.grid, rows=ladders)
    looks = styles([replace(results, expansion=replace(results.expansion, grid=grid))])
    cells = {row: CellMeans(average_accuracy=[summarise([50.0])] * 2) for row in rows}
    for figure in draw_accuracy(cells, looks, bases=dict(pairwise(reversed(rows)))):
        for axes in figure.axes:
            base, row = axes.get_lines()
            assert axes.get_title(loc="left") == f"{row.get_label()} − {base.get_label()}"
            assert base.is_dashed() and not row.is_dashed()


@pytest.mark.parametrize("draw", [draw_accuracy, draw_matrices])
def test_names_of_any_length_cover_nothing(draw: Any) -> None:
    """Neither the axes or matrices above them nor each other."""
    names = [f"sampled, α = {i}, stages by the whole buffer, views of its own, and yet more words" for i in range(10)]
    results = made_up_results(10, 1, 1, 2)
    looks = dict(zip(names, styles([results]).values(), strict=True))
    cells = {n: CellMeans(average_accuracy=[summarise([50.0])] * 2, matrix=[[20.0], [2.0, 18.0]]) for n in names}
    for figure in draw(cells, looks, title="buffer 500", bases=dict(pairwise(names))):
        figure.canvas.draw()
        boxes = [text.get_window_extent() for text in figure.texts]
        for axes in figure.axes:
            boxes += [image.get_window_extent() for image in axes.get_images()] or [axes.bbox]
            texts = [axes.title, axes._left_title, *axes.texts]
            boxes += [text.get_window_extent() for text in texts if text.get_text()]
        for a, b in combinations(boxes, 2):
            assert not (a.x0 < b.x1 - 1 and b.x0 < a.x1 - 1 and a.y0 < b.y1 - 1 and b.y0 < a.y1 - 1), (a, b)


@pytest.mark.slow
def test_figures_of_one_name_are_numbered() -> None:
    results = made_up_results(14, 1, 1, 2)
    names = {panel.name for panel in draw_panels([results], styles([results]))}
    kinds = ("accuracy", "accuracy-2", "loss", "matrices", "matrices-2")
    assert names == {f"many-{dataset}-100-{kind}" for dataset in ("S-CIFAR10", "S-CIFAR100") for kind in kinds}


def test_the_loss_over_several_tasks_is_drawn() -> None:
    def measured(tasks: list[int], first: float) -> dict:
        return {"class_il": {}, "whole_loss": {"at": [0, 9], "task": tasks, "seen": [first, 1.0]}}

    cell, joint = aggregated([measured([0, 1], 2.0), measured([0, 1], 3.0)]), aggregated([measured([0, 0], 2.0)])
    assert has_loss(cell) and not has_loss(joint) and not has_loss(CellMeans())
    (axes,) = draw_loss({"M0": cell}, styles([made_up_results(1, 1, 1, 2)])).axes
    assert [list(map(list, zip(*line.get_xydata(), strict=True))) for line in axes.get_lines()] == [[[0, 9], [2.5, 1]]]


def test_memory_is_labelled_by_plain_numbers() -> None:
    cells = [CellMeans(memory=memory, faia=summarise([20.0])) for memory in (1_540_000, 6_160_000)]
    looks = styles([made_up_results(1, 1, 1, 2)])
    figure = draw_memory({"M0": cells}, looks)
    figure.canvas.draw()
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels(which="both")]
    assert {"2", "5"} <= set(labels) and all(re.fullmatch(r"[\d.]*", label) for label in labels), labels


def test_the_ladder_explains_what_it_shows() -> None:
    results = made_up_results(rows=2, buffers=1, seeds=3, tasks=2)
    for (row, column, seed), record in results.records.items():
        if row == "DGC-M0":
            base, jitter = results.records["M0", column, seed]["class_il"], 0.01 * seed
            record["class_il"] = base | {"FAIA": base["FAIA"] + 20 + jitter, "FF": base["FF"] + jitter - 0.01}
    columns, rows = list(results.grid.columns), list(results.grid.rows)
    panels = [(column, metric) for column in columns for metric in ladder.FARTHEST]
    grey = "Grey: the interval contains 0."
    assert ladder.legend(results, rows, panels) == ["Blue: better.", grey, "Arrow: beyond the axis."]
    one = replace(results, records={place: record for place, record in results.records.items() if place[2] == 0})
    assert ladder.legend(one, rows, panels) == ["Hollow: one seed.", "Arrow: beyond the axis."]


DOCUMENT = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage{textcomp,booktabs,graphicx}
\begin{document}
\input{table.tex}
\end{document}
"""


def test_latex_is_well_formed(half_done: Expansion, tmp_path: Path) -> None:
    grid = half_done.grid
    rows = {f"{row} {ASCII}": replace(spec, against=None) for row, spec in grid.rows.items()}
    nasty = results_of(half_done, title=ASCII, rows=rows, columns={**grid.columns, ASCII: {}}, name="nasty grid")
    for results in (nasty, results_of(half_done, paper=PAPER), made_up_results(4, 2, 2, 2)):
        text = latex(results)
        assert text.count(r"\begin{") == text.count(r"\end{") and text.count(r"\toprule") == text.count(r"\bottomrule")
        for tabular in re.findall(r"\\begin{tabular}.*?\\end{tabular}", text, re.S):
            (letters,) = re.findall(r"{(l?r+)}", tabular)
            for row in [line for line in tabular.splitlines() if line.endswith(r"\\")]:
                spans = [int(n) for n in re.findall(r"\\multicolumn{(\d+)}", row)]
                assert len(re.findall(r"(?<!\\)&", row)) + 1 + sum(spans) - len(spans) == len(letters), row
        (tmp_path / "table.tex").write_text(text)
        (tmp_path / "report.tex").write_text(DOCUMENT)
        if shutil.which("pdflatex"):
            command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
            assert done.returncode == 0, done.stdout[-2000:]


def test_reasons_name_no_folders(tmp_path: Path) -> None:
    from experiments.cells import FOLDERS

    assert FOLDERS.sub("", f"{tmp_path}/models/x.yaml: key 1/2") == "x.yaml: key 1/2"
