"""`reproduce.py`: what it says, and what it refuses in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from experiment_helpers import DIGITS, call, expanded, finish, write_grid
from helpers import ROOT


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], ["tables", "--grid"]),
        (["run", "faia", "--grid", "x.yaml"], ["tables", "--grid"]),
        (["run", "faia"], ["--profile", "paper, reduced, smoke"]),
        (["run", "faia", "--profile", "huge"], ["--profile", "huge", "smoke"]),
        (["table", "faya", "--profile", "smoke"], ["unknown table 'faya'", "'faa'"]),
        (["plan", "--grid", "nowhere.yaml"], ["nowhere.yaml", "cannot be read"]),
        (["run", "--grid", "x.yaml", "--profile", "smoke"], ["--profile"]),
        (["run", "m", "--profile", "smoke", "--jobs", "0"], ["--jobs", "0", "at least 1"]),
        (["run", "m", "--profile", "smoke", "--seeds", "x"], ["--seeds x"]),
        (["run", "m", "--profile", "smoke", "--seeds", "0"], ["seeds", "0"]),
        (["table", "m", "--profile", "smoke", "--rows", "DGC"], ["no row 'DGC'", "'DGC-ER'"]),
        (["table", "m", "--profile", "smoke", "--seeds", "1", "--metrics", "AA"], ["unknown metric 'AA'"]),
        (["run", "m", "--profile", "smoke", "--seeds", "1", "--devices", "gpu"], ["--device gpu", "can't be used"]),
        (["sing"], ["sing"]),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture
) -> None:
    assert call(*arguments) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("error: ") and output.err.count("\n") == 1
    assert all(word in output.err for word in words), output.err


def test_list_names_every_table_without_torch() -> None:
    code = (
        "import sys, reproduce\n"
        "try: reproduce.main(['list'])\n"
        "except SystemExit as e: assert not e.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    places = re.findall(r"^(\w+) +(Table \d|Figure \d|ours) ", done.stdout, re.M)
    assert [place for _, place in places] == [
        *(f"Table {n}" for n in range(1, 9)),
        *(f"Figure {n}" for n in range(1, 4)),
        *["ours"] * 4,
    ]
    assert "profiles: paper, reduced, smoke" in done.stdout


def test_table_status_and_plan_of_a_finished_grid(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    expansion = expanded(tmp_path, title="Mine", flags=DIGITS, rows={"ER": {"model": "er"}}, seeds=2)
    for cell in expansion.cells:
        finish(cell, 90, (40, 60))
    where = ["--grid", tmp_path / "grid.yaml", "--base_path", tmp_path / "data"]
    assert call("table", *where, "--metrics", "FF", "--output", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("## Mine") and "| ER  | 50.00 ± 0.00 (2) |" in printed and "### FAIA" not in printed
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["results.csv", "results.json"]
    assert call("status", *where, "--watch") == 0  # all is done, so there is nothing to watch
    assert "Nothing is left to run." in capsys.readouterr().out
    assert call("plan", *where, "--seeds", "3", "--no_probe") == 0
    assert "3 runs in all, 2 done, 1 to go." in capsys.readouterr().out
    assert call("run", *where, "--devices", "cpu") == 0  # which starts no process
    assert capsys.readouterr().out == "2 runs, of which 2 are done\n"
    assert call("status", "--base_path", tmp_path / "data") == 0  # of the last `run`
    assert "| grid | 2 " in capsys.readouterr().out


def test_status_before_anything_was_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert call("status", "--base_path", tmp_path) == 2
    assert f"nothing was run below {tmp_path / 'results'} yet" in capsys.readouterr().err


def test_a_table_whose_methods_are_missing_is_shown_with_the_papers_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert call("table", "alpha", "--profile", "paper", "--rows", "DGC-ER", "--base_path", tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("| DGC-ER")]
    numbers = ["57.40 ± 2.14", "59.55 ± 0.97", "59.14 ± 0.91", "55.48 ± 1.52"]
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    assert cells == [part for number in numbers for part in ("missing", number)]
    assert any(line.startswith("Profile paper: ") for line in lines)


@pytest.mark.parametrize("command", [["plan", "--no_probe"], ["status"], ["table"]])
def test_every_output_names_the_scale(tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture) -> None:
    where = ["--rows", "SGD", "--columns", "S-CIFAR100", "--base_path", tmp_path]
    assert call(*command, "faia", "m", "--profile", "reduced", *where) == 0
    assert "Profile reduced: ResNet18 an eighth as wide" in capsys.readouterr().out


def test_a_probe_measures_what_a_run_will_take(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    rows = {"DGC-ER": {"model": "dgc_er"}, "no data": {"model": "er", "dataset": "seq-tinyimg"}}
    grid = write_grid(tmp_path / "grid.yaml", flags=DIGITS, rows=rows, seeds=2)
    blocked = tmp_path / "data" / "TINYIMG"
    blocked.parent.mkdir()
    blocked.write_text("not a folder")
    assert call("plan", "--grid", grid, "--base_path", tmp_path / "data", "--devices", "cpu") == 0
    output = capsys.readouterr()
    assert re.search(
        r"Time: \d.* of work, .* with 1 at a time \(measured on this machine: a probe for 2 of them\)", output.out
    )
    assert re.search(r"^Disk: \S+ GB\.$", output.out, re.M)
    assert re.search(r"^Not in it: 2 runs \(.+\)\.$", output.out, re.M)
    assert output.err.count("measuring") == 2
    assert not list(tmp_path.glob("data/results/seq-*"))  # a probe leaves no run behind
