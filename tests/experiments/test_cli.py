"""`reproduce.py`: what it says, and what it refuses in one line."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from experiment_helpers import DIGITS, call, expanded, finish, write_grid
from helpers import ROOT, run

from experiments import demo
from experiments.cells import expand
from experiments.grid import read_grid
from experiments.results.collection import read_results, write_results
from experiments.results.stored import known_runs, read_stored
from experiments.running.cell_files import cell_directory, cells_root
from experiments.running.estimates import Estimates, kind_of
from experiments.running.leases import claim
from experiments.running.probe import beginning, measure, to_second_task
from utils.cli.parse import parse_args
from utils.errors import UsageError, UserError
from utils.run.directory import RunDirectory
from utils.run.pace import steps_of

SGD = {"model": "sgd", "buffer_size": None}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], ["tables", "--grid"]),
        (["run", "faia", "--grid", "x.yaml"], ["give tables or --grid, not both"]),
        (["run", "faia"], ["--profile", "paper, small, smoke"]),
        (["run", "faia", "--profile", "huge"], ["--profile", "huge", "smoke"]),
        (["table", "faya", "--profile", "smoke"], ["unknown table 'faya'", "'faa'"]),
        (
            ["plan", "--grid", "nowhere.yaml"],
            ["error: nowhere.yaml cannot be read: No such file or directory; give a YAML file"],
        ),
        (["run", "--grid", "x.yaml", "--profile", "smoke"], ["--profile"]),
        (["run", "m", "--profile", "smoke", "--jobs", "0"], ["--jobs", "0", "at least 1"]),
        (["run", "m", "--profile", "smoke", "--seeds", "x"], ["--seeds x"]),
        (["run", "m", "--profile", "smoke", "--seeds", "0"], ["seeds: 0 is no number of seeds: it must be at least 1"]),
        (["run", "m", "--profile", "smoke", "--seeds", "9" * 23], ["seeds", "at most 10000"]),
        (["table", "m", "--profile", "smoke", "--rows", "DGC"], ["no row 'DGC'", "'DGC-ER'"]),
        (["table", "m", "--profile", "smoke", "--seeds", "1", "--metrics", "AA"], ["unknown metric 'AA'"]),
        (
            ["run", "m", "--profile", "smoke", "--seeds", "1", "--devices", "gpu"],
            ["--devices gpu can't be used; give cpu, cuda or cuda:0"],
        ),
        (
            ["run", "m", "--profile", "smoke", "--seeds", "1", "--devices", "cpu,cpu2"],
            ["--devices cpu,cpu2", "give cpu"],
        ),
        (["run", "m", "--profile", "smoke", "--seeds", "1", "--devices", "99"], ["--devices 99: this machine has"]),
        (["plan", "all", "--profile", "smoke", "--columns", "S-CIFAR"], ["none of the tables has a column 'S-CIFAR'"]),
        (["plan", "all", "faya", "--profile", "smoke"], ["unknown table 'faya'"]),
        (["report", "m", "--profile", "smoke"], ["missing --output: no default is known; give a value\n"]),
        (["report", "m", "--output", str(ROOT / "README.md")], ["README.md is a file, not a folder; give a folder"]),
        (["table", "m", "--output", str(ROOT / "README.md")], ["README.md is a file, not a folder; give a folder"]),
        (["sing"], ["sing"]),
        ([], ["a command is missing", "list, plan, run, status, table, report", "--help"]),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture
) -> None:
    assert call(*arguments) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("error: ") and output.err.count("\n") == 1
    assert all(word in output.err for word in words), output.err


def test_the_demo_fails_in_one_line_before_anything_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "file").touch()
    for flag, more in (("--base_path", []), ("--picture", ["--base_path", str(tmp_path)])):
        with pytest.raises(SystemExit) as ended:
            demo.main([flag, str(tmp_path / "file" / "x"), *more])
        output = capsys.readouterr()
        assert ended.value.code == 1 and output.out == "" and output.err.count("\n") == 1
        assert output.err.startswith("error: cannot write ") and output.err.endswith(f"; choose another {flag}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(SystemExit) as ended:
        demo.main(["--pictures", "x"])
    assert ended.value.code == 2 and capsys.readouterr().err.count("\n") == 1


def test_the_demo_is_stopped_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """At any time, since torch is loaded after the command line is read."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "require_writable", stop)
    with pytest.raises(SystemExit) as ended:
        demo.main([])
    assert ended.value.code == 130 and capsys.readouterr().err == "stopped; what is finished is kept\n"
    code = "import sys, experiments.demo; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


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
    assert "profiles: paper, small, smoke" in done.stdout


def test_table_status_and_plan_of_a_finished_grid(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    expansion = expanded(tmp_path, title="Mine", flags=DIGITS, rows={"ER": {"model": "er"}}, seeds=2)
    for cell in expansion.cells:
        finish(cell, 90, (40, 60))
    where = ["--grid", tmp_path / "grid.yaml", "--base_path", tmp_path / "data"]
    assert call("table", *where, "--metrics", "FF", "--output", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("## Mine") and "| ER  | 50.00 ± 0.00 (2) |" in printed and "### FAIA" not in printed
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["results.csv", "results.json"]
    assert call("status", *where) == 0
    assert "Nothing is left to run." in capsys.readouterr().out
    assert call("plan", *where, "--seeds", "3", "--no_probe") == 0
    assert "3 runs in all, 2 done, 1 to go." in capsys.readouterr().out
    assert call("plan", *where, "--seeds", "2,", "--no_probe") == 0  # seed 2 alone
    assert "1 run in all, 0 done, 1 to go." in capsys.readouterr().out
    assert call("run", *where, "--devices", "cpu") == 0  # which starts no process
    assert capsys.readouterr().out == "2 of 2 runs are done\n"


def test_runs_of_another_machine_are_known_by_their_stored_results(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """One of four runs is here; the file of another machine has that one and two more."""
    content = {"flags": DIGITS, "rows": {"ER": {"model": "er"}, "SGD": SGD}}
    there = expanded(tmp_path, seeds=2, **content)
    for cell, final in zip(there.cells[:3], (60, 70, 20), strict=True):
        finish(cell, 90, (final, final))
    grid = ["--grid", tmp_path / "grid.yaml"]
    call("table", *grid, "--base_path", tmp_path / "data", "--output", tmp_path / "stored")
    printed = capsys.readouterr().out
    known = [*grid, "--base_path", tmp_path / "here", "--known", tmp_path / "stored" / "results.json"]
    here = expand(read_grid(tmp_path / "grid.yaml"), [f"--base_path={tmp_path / 'here'}"])
    finish(here.cells[0], 90, (60, 60))
    call("table", *known, "--output", tmp_path / "again")
    assert capsys.readouterr().out == printed and "65.00 ± 5.00 (2)" in printed
    stored = [(tmp_path / folder / "results.json").read_bytes() for folder in ("stored", "again")]
    assert stored[0] == stored[1]
    call("plan", "--no_probe", *known)
    assert "1 run in all, 0 done, 1 to go." in capsys.readouterr().out
    call("run", *known, "--seeds", "1")
    assert capsys.readouterr().out == "2 of 2 runs are known from --known\n0 of 0 runs are done\n"
    assert call("status", *known, "--rows", "SGD", "--seeds", "7,") == 0
    file = tmp_path / "stored" / "results.json"
    assert capsys.readouterr().err == f"warning: --known: 0 of 3 runs in {file} belong to these tables\n"
    content = json.loads(file.read_text())
    del content["runs"][1]["config_hash"]
    for text, reason in ((json.dumps(content), r"runs\[1\] has no config_hash"), ("{", "")):
        file.write_text(text)
        assert call("table", *known) == 2
        assert re.fullmatch(rf".*--known \S+ not a results.json: {reason}.+\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda run: run["class_il"].update(FAIA=999), "runs[0]: FAIA is 999, but by its accuracy matrix 75"),
        (lambda run: run["class_il"].update(FF=30.002), "runs[0]: FF is 30.002, but by its accuracy matrix 30"),
        (lambda run: run["accuracy"][1].pop(), "runs[0].accuracy is not a matrix up to its diagonal"),
        (lambda run: run.update(n_tasks=10**12), "runs[0].accuracy is not a matrix up to its diagonal"),
        (lambda run: run["accuracy"].pop(), "runs[0].accuracy is not a matrix up to its diagonal"),
        (lambda run: run["accuracy"][0].__setitem__(0, 101), "runs[0].accuracy: a number is not between 0 and 100"),
        (lambda run: run["average_accuracy"].__setitem__(1, 61), "runs[0]: AA_2 is 61, but by its accuracy matrix 60"),
        (lambda run: run["average_accuracy"].append(61), "runs[0]: AA_3 is 61, but by its accuracy matrix None"),
        (lambda run: run["class_il"].update(FF=30.0009, FWT=9.0), None),  # rounded; and what is not in the matrix
    ],
)
@pytest.mark.parametrize("flag", ["--known", "--from"])
def test_stored_runs_are_checked_against_their_matrix(
    change: Callable[[dict], object], reason: str | None, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    expansion = expanded(tmp_path, flags=DIGITS, rows={"ER": {"model": "er"}})
    finish(expansion.cells[0], 90, (60, 60))
    write_results(read_results([expansion]), tmp_path)
    file = tmp_path / "results.json"
    content = json.loads(file.read_text())
    change(content["runs"][0])
    file.write_text(json.dumps(content))
    if reason is None:
        assert len(known_runs([file], set())) == len(read_stored(file)[0].records) == 1
        return
    with pytest.raises(UsageError, match=rf"{flag} \S+: not a results.json: {re.escape(reason)}"):
        known_runs([file], set()) if flag == "--known" else read_stored(file)


def test_all_tables_can_be_narrowed_down(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    where = ["--profile", "smoke", "--columns", "S-CIFAR10", "--rows", "ER", "--seeds", "1", "--base_path", tmp_path]
    assert call("plan", "all", "faia", *where, "--no_probe") == 0
    output = capsys.readouterr()
    tables = re.findall(r"^\| (\w+) +\| +\d", output.out, re.M)
    assert "faia" in tables and "tasks" not in tables and len(set(tables)) == len(tables) and not output.err


def test_the_time_left_is_unknown_until_something_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    expansion = expanded(tmp_path, flags=DIGITS, rows={"ER": {"model": "er"}, "SGD": SGD}, seeds=2)
    where = ["--grid", tmp_path / "grid.yaml", "--base_path", tmp_path / "data"]

    def last_line() -> str:
        assert call("status", *where) == 0
        return capsys.readouterr().out.splitlines()[-1]

    assert last_line() == "Nothing is running; left: 4 runs of unknown length (`plan` measures them)."
    running, waiting = expansion.cells[0], expansion.cells[2]
    assert claim(cell_directory(running.path)) is not None
    assert last_line() == "Left: 4 runs of unknown length (`plan` measures them)."
    known = Estimates([])
    probes = {f"{known.machine['cpu']}, {known.machine['gpu']}, cpu, 1 threads, {kind_of(waiting.args)}": {}}
    (cells_root(running.path) / "probes.json").write_text(json.dumps(probes))  # damaged
    assert last_line() == "Left: 4 runs of unknown length (`plan` measures them)."
    probes = {name: {"seconds": 15, "bytes": 1} for name in probes}
    (cells_root(running.path) / "probes.json").write_text(json.dumps(probes))
    assert last_line() == "Left: about 30 s with 1 at a time, and 2 runs of unknown length (`plan` measures them)."


TIMES = '{"finished": null, "steps_per_second": 1, "tasks": [{"train_seconds": 1.5, "eval_seconds": 1}]}'
DAMAGES = {
    "accuracy.csv": [None, "after_task,task\n", "after_task,task,class_il,task_il\n", "\0" * 99],
    "timing.json": [None, "{}", "[1]", '{"tasks": [{}]}', '{"tasks": 3}', "{", TIMES.replace("1.5", "NaN")],
    "environment.json": [None, "[1]", "{", '{"git_commit": ["abc"]}', '{"cpu": 5}'],
    "summary.json": [
        "{",
        "[]",
        '{"class_il": {}}',
        '{"seed": 0, "class_il": {"FF": "high"}, "task_il": {}}',
        '{"seed": 0, "class_il": {}, "task_il": {"FAA": NaN}}',
        '{"seed": 0, "class_il": {}, "task_il": {}, "n_tasks": "2"}',
    ],
}


@pytest.mark.parametrize(("name", "content"), [(name, content) for name in DAMAGES for content in DAMAGES[name]])
def test_a_damaged_run_is_one_line_and_hinders_no_other(
    tmp_path: Path, name: str, content: str | None, capsys: pytest.CaptureFixture
) -> None:
    expansion = expanded(tmp_path, flags=DIGITS, rows={"ER": {"model": "er"}}, seeds=2, metrics=["FF"])
    for cell in expansion.cells:
        finish(cell, 90, (40, 60))
    damaged = expansion.cells[0]
    file = damaged.path / name
    file.unlink() if content is None else file.write_text(content)
    summary = re.escape(str(damaged.path / "summary.json"))
    line = rf"{re.escape(str(file))} is damaged \(.+\); delete {summary}, then run it again\n"
    where = ["--grid", tmp_path / "grid.yaml", "--base_path", tmp_path / "data"]

    assert call("table", *where, "--output", tmp_path / "out") == 0
    output = capsys.readouterr()
    assert "50.00 ± – (1)" in output.out and re.fullmatch(f"warning: {line}", output.err), output.err
    assert call("status", *where) == 0
    output = capsys.readouterr()
    assert re.search(f"^failed: ER, seed 0: {line}", output.out, re.M) and "Only failed runs are left." in output.out
    assert call("plan", *where, "--no_probe") == 0
    output = capsys.readouterr()
    assert "2 runs in all, 1 done, 1 to go." in output.out
    assert re.search(f"^damaged: ER, seed 0: {line}", output.out, re.M) and output.err == ""
    assert call("run", *where, "--devices", "cpu") == 1  # which starts no process, and deletes nothing
    output = capsys.readouterr()
    assert re.search(f"^failed: ER, seed 0: {line}", output.out, re.M) and damaged.path.exists()


def test_a_log_that_makes_no_curves_hinders_no_report(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    expansion = expanded(tmp_path, flags=DIGITS, rows={"ER": {"model": "er"}}, seeds=2, metrics=["FF"])
    for cell in expansion.cells:
        finish(cell, 90, (40, 60))
    (expansion.cells[0].path / "metrics.jsonl").write_text("[1]\n")
    (results,) = read_results([expansion], curves=True)
    assert list(results.records) == [("ER", "", 1)]
    assert re.fullmatch(r"warning: \S+/metrics.jsonl is damaged .+ then run it again\n", capsys.readouterr().err)


def test_the_remedy_names_the_place_that_was_given(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (cell,) = expanded(tmp_path, flags=DIGITS, rows={"ER": {"model": "er"}}).cells
    (tmp_path / "file").write_text("not a folder")
    grid = ["--grid", tmp_path / "grid.yaml", "--devices", "cpu"]
    assert call("run", *grid, "--results_path", tmp_path / "file") == 1
    assert capsys.readouterr().err.endswith("Not a directory; choose another --results_path\n")
    assert call("run", *grid, "--base_path", tmp_path / "file") == 1
    assert capsys.readouterr().err.endswith("Not a directory; choose another --base_path\n")
    elsewhere = parse_args([*cell.argv, f"--results_path={tmp_path / 'file'}"])  # of a single run
    with pytest.raises(UserError, match="choose another --results_path"), RunDirectory(elsewhere):
        pass


def test_without_a_probe_time_and_disk_are_unknown(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    expanded(tmp_path, flags=DIGITS, rows={"ER": {"model": "er"}})
    assert call("plan", "--grid", tmp_path / "grid.yaml", "--base_path", tmp_path / "data", "--no_probe") == 0
    assert capsys.readouterr().out.endswith("Time and disk are unknown for 1 run (not measured).\n")


def test_a_table_whose_methods_are_missing_is_shown_with_the_papers_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert call("table", "alpha", "--profile", "paper", "--rows", "DGC-ER", "--base_path", tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("| DGC-ER")]
    numbers = ["57.40 ± 2.14", "59.55 ± 0.97", "59.14 ± 0.91", "55.48 ± 1.52"]
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    assert cells == [part for number in numbers for part in ("not run", number)]
    assert any(line.startswith("Profile paper: ") for line in lines)


@pytest.mark.parametrize("command", [["plan", "--no_probe"], ["status"], ["table"]])
def test_every_output_names_the_scale(tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture) -> None:
    where = ["--rows", "SGD", "--columns", "S-CIFAR100", "--base_path", tmp_path]
    assert call(*command, "faia", "m", "--profile", "small", *where) == 0
    assert "Profile small: ResNet-8 of 16 filters" in capsys.readouterr().out


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
    assert re.search(r"^Not included: 2 runs \(.+\)\.$", output.out, re.M)
    assert output.err.count("measuring") == 2
    assert not list(tmp_path.glob("data/results/seq-*"))  # a probe leaves no run behind


def test_a_probe_counts_the_steps_of_unequal_tasks(tmp_path: Path) -> None:
    flags = ["--classes_first_task", "6", "--n_epochs_first", "3", "--n_epochs", "2", "--lr", "0.1"]
    summary, _, _ = run(tmp_path, *flags, model="sgd")
    argv = ["--model", "sgd", "--dataset", "seq-digits", "--seed", "0", "--base_path", str(tmp_path), *flags]
    with beginning(argv) as trainer, trainer.guard:
        to_second_task(trainer)
        assert steps_of(trainer.session, range(trainer.session.end)) == summary["steps"]


@pytest.mark.slow
def test_a_probe_counts_what_a_method_adds_to_the_later_tasks(tmp_path: Path) -> None:
    """iCaRL trains on its exemplars, too: here 200 beside the 288 images of a task."""
    flags = ["--buffer_size", "200", "--n_epochs", "1", "--lr", "0.1"]
    summary, _, _ = run(tmp_path, *flags, model="icarl")
    argv = ["--model", "icarl", "--dataset", "seq-digits", "--seed", "0", "--base_path", str(tmp_path), *flags]
    with beginning(argv) as trainer, trainer.guard:
        to_second_task(trainer)
        assert steps_of(trainer.session, range(trainer.session.end)) == summary["steps"]


def test_a_probe_asks_for_the_dataset_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it holds a run's directory: while it does, no folder is made, not even the dataset's."""

    def refuse(*_: object) -> None:
        raise OSError("no way there")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(UserError, match=r"could not be fetched from .*no way there"):
        measure(["--model=sgd", "--dataset=seq-cifar100", "--dataset_config=small", f"--base_path={tmp_path / 'data'}"])


def test_a_flag_given_twice_is_refused(capsys: pytest.CaptureFixture) -> None:
    assert call("plan", "faia", "--profile", "smoke", "--seeds", "1", "--seeds=2") == 2
    assert capsys.readouterr().err == "error: --seeds is given 2 times; give it once\n"
