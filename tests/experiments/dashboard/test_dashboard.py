"""Dashboards in wandb, without wandb's server: which runs their filters find, how they are grouped, what they show."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from experiment_helpers import DIGITS, call, expanded, finish, write_grid
from helpers import ROOT, run
from wandb_helpers import keep_offline, read_sessions

from experiments.cells import Cell, Expansion, expand, wandb_tag, with_wandb_labels
from experiments.dashboard.layout import Dashboard, Panel, Runs, dashboard, logged_settings
from experiments.results.collection import Results, read_results
from experiments.tables import load_table

AWKWARD = "ER, the task's < b, α = 0.1 \\"  # the library's language for filters has its own use for these characters
GRID: dict[str, Any] = {
    "flags": DIGITS,
    "columns": {"D, m = 1": {"dgc_m": 1}, "D, m = 2": {"dgc_m": 2}},
    "rows": {
        "SGD": {"model": "sgd", "buffer_size": None, "dgc_m": None},
        AWKWARD: {"model": "er", "buffer_fill": "task_end", "dgc_m": None},
        "ER": {"model": "er", "dgc_m": None},
        "DGC-ER": {"model": "dgc_er", "dgc_alpha": 0.1, "against": AWKWARD},
        "DGC-ER, closed": {"model": "dgc_er", "dgc_estimator": "closed", "dgc_m": None, "against": AWKWARD},
    },
    "seeds": 2,
    "metrics": ["FAIA", "FAIA Task-IL", "T1"],
}
DIAGNOSED = {"flags": DIGITS | {"dgc_diagnostics": 3}, "rows": {"DGC-ER": {"model": "dgc_er", "dgc_alpha": 0.1}}}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    monkeypatch.setenv("WANDB_PROJECT", "demo")
    return Results(expanded(tmp_path, **GRID), {})


def all_panels(shown: Dashboard) -> list[Panel]:
    parts = [*shown.sections, *shown.blocks]
    return [panel for part in parts for panel in part.panels]


# -- which runs --------------------------------------------------------------------------------------------------------


def filed(expansions: list[Expansion]) -> dict[Path, tuple[str, ...]]:
    """The tags of runs, as their command lines name them last."""
    cells = with_wandb_labels(expansions)
    return {cell.path: cell.argv[cell.argv.index("--wandb_tags") + 1 :] for cell in cells}


def cells_of(runs: Runs, expansion: Expansion) -> list[Cell]:
    """What a block's runs should be: the cells of its column in its rows."""
    column = runs.name if runs.name in expansion.grid.columns else ""
    return [cell for cell in expansion.cells if cell.column == column and wandb_tag(cell.row) in runs.tags[-1]]


def has(runs: Runs, tags: tuple[str, ...]) -> bool:
    """Whether a run with these tags is one of them."""
    return all(set(group) & set(tags) for group in runs.tags)


def assert_exact(expansion: Expansion, tags: dict[Path, tuple[str, ...]]) -> None:
    """Every block has the runs of its cells and no other, and each of its curves is one row."""
    blocks = [block for block in dashboard([Results(expansion, {})]).blocks if block.runs is not None]
    assert blocks
    for block in blocks:
        assert block.runs is not None
        cells = cells_of(block.runs, expansion)
        assert {path for path, found in tags.items() if has(block.runs, found)} == {cell.path for cell in cells}
        curves: dict[tuple[str, ...], set[str]] = {}
        for cell in cells:
            settings = logged_settings(cell)
            curves.setdefault(tuple(repr(settings.get(name)) for name in block.runs.by), set()).add(cell.row)
        assert len(curves) == block.runs.curves
        runs_by_row = {row: frozenset(c.path for c in cells if c.row == row) for row in {c.row for c in cells}}
        assert len(curves) == len(set(runs_by_row.values())), block.title  # rows that share their runs are one curve


def test_filters_find_the_runs_of_a_column_and_curves_are_rows(results: Results) -> None:
    assert_exact(results.expansion, filed([results.expansion]))
    assert dashboard([results]).runs.by == ("buffer_size", "model", "dgc_m", "buffer_fill")


@pytest.mark.slow
def test_filters_are_exact_among_tables_that_share_runs() -> None:
    tables = [expand(load_table(name, "smoke"), ["--wandb_project=demo"]) for name in ("alpha", "m", "gradients")]
    tags = filed(tables)
    for table in tables:
        assert_exact(table, tags)


def test_rows_that_were_not_asked_for_are_not_shown(results: Results) -> None:
    rows = {row: spec for row, spec in results.grid.rows.items() if row in ("ER", "SGD")}
    expansion = results.expansion
    narrowed = Expansion(
        type(expansion.grid)(**{**vars(expansion.grid), "rows": rows}),
        [cell for cell in expansion.cells if cell.row in rows],
        {},
    )
    shown = dashboard([Results(narrowed, {})])
    tags = filed([expansion])
    assert {path for path, found in tags.items() if has(shown.runs, found)} == {cell.path for cell in narrowed.cells}
    assert "DGC − base" not in [section.name for section in shown.sections]


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_sections_and_chapters(results: Results) -> None:
    shown = dashboard([results])
    names = ["Results", "DGC − base", "Accuracy over the tasks", "Accuracy matrices", "Training"]
    assert [section.name for section in shown.sections] == names
    assert [(block.level, block.title) for block in shown.blocks] == [
        (1, "grid"),
        (2, "D, m = 1"),
        (3, "DGC − base, D, m = 1"),
        (2, "D, m = 2"),
        (3, "DGC − base, D, m = 2"),
    ]
    bars = [key for panel in shown.sections[0].panels for key in panel.keys]
    assert bars == ["FAIA", "FAA", "FF", "FAIA_task_il", "T1"]


def test_differences_of_finished_pairs_are_in_the_text(tmp_path: Path) -> None:
    grid = {"flags": DIGITS, "rows": {"ER": {"model": "er"}, "DGC-ER": {"model": "dgc_er", "against": "ER"}}}
    expansion = expanded(tmp_path, **grid, seeds=2, metrics=["FAA"])
    before, *_ = dashboard(read_results([expansion])).blocks
    assert "no pair of these runs was finished" in before.text
    for number, cell in enumerate(expansion.cells):  # FAA 50, 51; 62, 63
        finish(cell, 90.0, (50.0 + number + 10 * (cell.row == "DGC-ER"),) * 2)
    shown = dashboard(read_results([expansion]))
    (panel,) = next(section.panels for section in shown.sections if section.name == "DGC − base")
    for text in (panel.text, shown.blocks[0].text):
        assert "DGC-ER − (ER)" in text and "+12.00 [+12.00, +12.00]" in text


@pytest.mark.slow
def test_panels_show_and_group_by_what_a_run_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_offline(tmp_path, monkeypatch)
    flags = ["--dataset=seq-digits", "--n_epochs=1", "--buffer_size=50", "--dgc_diagnostics=2", "--dgc_alpha=0.1"]
    flags += ["--batch_size=128", "--stop_after=2"]
    _, _, directory = run(tmp_path, *flags, "--wandb_project=demo", model="dgc_er")
    (session,) = read_sessions(directory)
    logged = {key for row in session.history.values() for key in row} | session.summary.keys()
    logged |= {key.partition(".")[0] for key in logged}  # a nested one, such as an image's, by its first name
    shown = dashboard([Results(expanded(tmp_path, **DIAGNOSED, metrics=["FAIA", "FF Task-IL", "seconds", "T2"]), {})])
    keys = {key for panel in all_panels(shown) for key in panel.keys} | {"Task"}
    assert len(keys) > 15 and keys <= logged, keys - logged
    config = {item.key for item in session.run.config.update}
    assert {"model", "dataset", "buffer_size", "buffer_fill", "dataset_fields", "dgc_diagnostics"} <= config


# -- as wandb's objects ------------------------------------------------------------------------------------------------


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Our module that needs wandb's library; the server's number of a project is made up."""
    interface = pytest.importorskip("wandb_workspaces.reports.v2.interface")
    monkeypatch.setattr(interface, "execute_graphql", lambda *_: {"project": {"internalId": "1"}})
    # A private name of the library's, which would log in.
    monkeypatch.setattr(interface, "_get_api", lambda: None)
    return importlib.import_module("experiments.dashboard.objects")


def spec(made: Any) -> dict[str, Any]:
    """What would be sent."""
    return made._to_model().model_dump(by_alias=True, exclude_none=True)["spec"]


def found_by(runset: dict[str, Any]) -> list[list[str]]:
    leaves = runset["filters"]["filters"]
    assert all(leaf["key"] == {"section": "run", "name": "tags"} and leaf["op"] == "IN" for leaf in leaves)
    assert all(leaf["connector"] == "AND" for leaf in leaves[1:])
    return [leaf["value"] for leaf in leaves]


def test_the_workspace_as_it_is_sent(results: Results, objects: Any) -> None:
    shown = dashboard([results])
    section = spec(objects.workspace(shown, "demo", "lab"))["section"]
    (runset,) = section["runSets"]
    assert found_by(runset) == [["grid"], ["SGD", AWKWARD, "ER", "DGC-ER", "DGC-ER, closed"]]
    assert [key["name"] for key in runset["grouping"]] == [f"{name}.value" for name in shown.runs.by]
    sections = {part["name"]: part["panels"] for part in section["panelBankConfig"]["sections"]}
    assert list(sections) == [part.name for part in shown.sections]
    faia, aa, matrices, loss = (
        sections[name][0] for name in ("Results", "Accuracy over the tasks", "Accuracy matrices", "Training")
    )
    assert (faia["viewType"], faia["config"]["metrics"]) == ("Bar Chart", ["FAIA"])
    assert (aa["config"]["metrics"], aa["config"]["xAxis"]) == (["AA"], "Task")
    for panel in (faia, aa):
        assert (panel["config"]["groupAgg"], panel["config"]["groupArea"]) == ("mean", "stderr")
    assert matrices["config"]["mediaKeys"] == ["accuracy_matrix"]
    assert (loss["config"]["metrics"], loss["config"]["xAxis"]) == (["loss"], "_step")


def test_the_report_as_it_is_sent(results: Results, objects: Any) -> None:
    shown = dashboard([results])
    blocks = spec(objects.report(shown, "demo", "lab"))["blocks"]
    headings = [block["children"][0]["text"] for block in blocks if block["type"] == "heading"]
    assert headings == [block.title for block in shown.blocks]
    grids = [block["metadata"] for block in blocks if block["type"] == "panel-grid"]
    expected = [block for block in shown.blocks if block.runs is not None]
    for grid, block in zip(grids, expected, strict=True):
        (runset,) = grid["runSets"]
        assert block.runs is not None and found_by(runset) == [list(group) for group in block.runs.tags]
        assert runset["project"]["name"] == "demo" and runset["project"]["entityName"] == "lab"
        panels = grid["panelBankSectionConfig"]["panels"]
        assert [panel["config"]["chartTitle"] for panel in panels] == [panel.title for panel in block.panels]
        places = [(panel["layout"]["x"], panel["layout"]["y"]) for panel in panels]
        assert len(set(places)) == len(places)  # none covers another
    assert found_by(grids[1]["runSets"][0])[-1] == [AWKWARD, "DGC-ER", "DGC-ER, closed"]


# -- the command -------------------------------------------------------------------------------------------------------


def refused(tmp_path: Path, capsys: pytest.CaptureFixture, *flags: str) -> tuple[int, str]:
    grid = write_grid(tmp_path / "grid.yaml", flags=DIGITS, rows={"ER": {"model": "er"}})
    code = call("dashboard", "--grid", grid, "--base_path", tmp_path, *flags)
    (line,) = capsys.readouterr().err.splitlines()
    return code, line


def test_what_hinders_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    code, line = refused(tmp_path, capsys)
    assert code == 2 and "--wandb_project is missing" in line
    monkeypatch.setenv("WANDB_MODE", "offline")
    code, line = refused(tmp_path, capsys, "--wandb_project", "demo")
    assert code == 2 and "WANDB_MODE=offline" in line and "wandb sync" in line
    monkeypatch.delenv("WANDB_MODE")
    for name in ("wandb_workspaces.reports.v2", "wandb_workspaces"):
        monkeypatch.setitem(sys.modules, name, None)  # an import raises
    monkeypatch.delitem(sys.modules, "experiments.dashboard.objects", raising=False)
    code, line = refused(tmp_path, capsys, "--wandb_project", "demo")
    assert code == 1 and "pip install wandb wandb-workspaces" in line


def test_without_a_login_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip("wandb_workspaces")
    import wandb

    def not_logged_in(**_: Any) -> None:
        raise wandb.errors.UsageError("No API key\nconfigured.")

    monkeypatch.setattr(wandb, "Api", not_logged_in)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    code, line = refused(tmp_path, capsys, "--wandb_project", "demo")
    assert code == 1 and "UsageError: No API key configured." in line and "`wandb login`" in line


def test_it_is_sent_and_its_addresses_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, objects: Any
) -> None:
    saved = []

    class Place:
        def __init__(self, kind: str, project: str, entity: str):
            self.url = f"https://wandb.test/{entity}/{project}/{kind}"

        def save(self) -> None:
            saved.append(self.url)

    for kind in ("workspace", "report"):
        monkeypatch.setattr(objects, kind, lambda _, *where, kind=kind: Place(kind, *where))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    grid = write_grid(tmp_path / "grid.yaml", flags=DIGITS, rows={"ER": {"model": "er"}})
    names = ["--wandb_project", "demo", "--wandb_entity", "lab"]
    assert call("dashboard", "--grid", grid, "--base_path", tmp_path, *names) == 0
    assert capsys.readouterr().out.split() == saved
    assert saved == ["https://wandb.test/lab/demo/workspace", "https://wandb.test/lab/demo/report"]


@pytest.mark.slow
def test_the_picture_in_the_docs_shows_the_layout() -> None:
    sketch = importlib.import_module("docs.figures.dashboard")
    shown, drawn = sketch.example(), (ROOT / "docs" / "figures" / "dashboard.svg").read_text(encoding="utf-8")
    texts = [section.name for section in shown.sections]
    texts += [text for section in shown.sections for panel in section.panels for text in (panel.title, *panel.keys)]
    assert len(texts) > 30 and all(text in drawn for text in texts)
