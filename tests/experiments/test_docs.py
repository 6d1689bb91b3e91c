"""docs/experiments.md is executed: its grid is run and tabulated, its other commands are parsed and expanded."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import ROOT

from experiments import cli
from experiments.cells import expand
from experiments.results.records import METRICS

PAGE = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^python reproduce\.py (.*)", PAGE, re.M)


def call(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    assert not ended.value.code


@pytest.mark.slow
def test_the_grid_of_the_page_is_run_and_tabulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    ((name, content),) = re.findall(r"^File `([^`]+)`:\n\n```yaml\n(.*?)^```", PAGE, re.M | re.S)
    (tmp_path / name).write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    own = [command for command in COMMANDS if f"--grid {name}" in command]
    assert [command.split()[0] for command in own] == ["run", "table"]
    for command in own:
        call(*shlex.split(command), "--base_path", str(tmp_path / "data"))
    printed = capsys.readouterr().out
    assert "12 runs" in printed  # 2 of SGD, 4 of ER and of DGC-ER, 2 with equal memory
    rows = re.findall(r"^\| (SGD|ER|DGC-ER|ER, equal memory) +\| \d+\.\d\d ± \d", printed, re.M)
    assert rows == ["SGD", "ER", "DGC-ER", "ER, equal memory"] * 2
    assert len(re.findall(r"DGC-ER − \(ER\)", printed)) == 2
    assert {path.name for path in (tmp_path / "results").iterdir()} == {"results.json", "results.csv"}


@pytest.mark.slow
def test_the_other_commands_are_understood() -> None:
    others = [shlex.split(command) for command in COMMANDS if "--grid sweep.yaml" not in command]
    assert {arguments[0] for arguments in others} == set(cli.COMMANDS)
    for arguments in others:
        args = cli.parser().parse_args(arguments)
        grids = cli.grids(args) if len(arguments) > 1 else []
        for grid in cli.selection(grids, args.rows, args.columns) if grids else []:
            assert expand(replace(grid, seeds=(0,)), []).cells


def test_the_page_names_every_metric_and_profile() -> None:
    for metric in METRICS:
        assert f"`{metric.removesuffix(' Task-IL')}`" in PAGE
    assert all(f"| `{profile}` |" in PAGE for profile in cli.profile_names())
