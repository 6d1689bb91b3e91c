"""Files of a run that were changed: noticed, said in one line by both commands, and mended from the checkpoint."""

from __future__ import annotations

import json
import re
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_same_run, run, run_directory
from method_helpers import Killed, kill_at

from experiments.results.records import inspect_run
from models.sgd import Sgd
from utils.cli.parse import parse_args
from utils.errors import UsageError, UserError
from utils.resume import store
from utils.run.directory import RunDirectory
from utils.run.method_state import method_flags
from utils.run.read_results import DamagedRun, read_finished

FLAGS = ["--n_epochs", "1", "--stop_after", "3", "--enable_other_metrics", "1"]
Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("finished")
    run(base, *FLAGS, model="sgd")
    return base


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


def asked_again(base: Path) -> dict[str, Any] | None:
    """What `main.py` finds before it trains anything."""
    return RunDirectory(parse_args(["--model", "sgd", "--seed", "0", "--base_path", str(base), *FLAGS])).finished()


def edit(name: str, pattern: str, replacement: str | Callable[[re.Match[str]], str]) -> Change:
    def change(directory: Path) -> None:
        text = (directory / name).read_text()
        edited, found = re.subn(pattern, replacement, text, count=1, flags=re.DOTALL)
        assert found and edited != text
        (directory / name).write_text(edited)

    return change


def other_digit(match: re.Match[str]) -> str:
    return f"{match[1]}{9 - int(match[2])}"


TAMPERED: dict[str, tuple[Change, str]] = {
    "FAA of class-il": (
        edit("summary.json", r'("class_il": \{[^}]*"FAA": )(\d)', other_digit),
        r"summary.json and accuracy.csv contradict each other \(by the matrix, FAA of class_il is ",
    ),
    "FWT of task-il": (
        edit("summary.json", r'("task_il": \{[^}]*"FWT": -?)(\d)', other_digit),
        "contradict each other .*FWT of task_il",
    ),
    "seed": (edit("summary.json", r'"seed": 0', '"seed": 1'), "its seed is 1, but that of the directory 0"),
    "hash": (
        edit("summary.json", r'("config_hash": ")\w{12}', r"\1aaaaaaaaaaaa"),
        "its config_hash is aaaaaaaaaaaa, but",
    ),
    "tasks": (
        edit("summary.json", r'"n_tasks": 3', '"n_tasks": 2'),
        r"accuracy.csv is damaged \(it has 3 of 2 tasks\)",
    ),
    "a digit": (edit("accuracy.csv", r"(\n2,1,[\d.]*\.)(\d)", other_digit), "contradict each other"),
    "a task-il digit": (edit("accuracy.csv", r"(\n3,1,[\d.]*,)(\d)", other_digit), "contradict each other|0 and 100"),
    "an untrained digit": (
        edit("accuracy.csv", r"(\n0,2,[\d.]*,)(\d)", other_digit),
        "contradict each other|0 and 100",
    ),
    "half": (edit("accuracy.csv", r"\n3,1,.*", "\n"), "contradict each other"),
    "a line less": (edit("accuracy.csv", r"\n2,1,[^\n]*", ""), "contradict each other"),
    "a line twice": (edit("accuracy.csv", r"(\n2,1,[^\n]*)", r"\1\1"), "a line is there twice"),
    "task 0": (edit("accuracy.csv", r"\n2,1,", "\n2,0,"), "a task that can't be"),
    "a huge task": (edit("accuracy.csv", r"\n2,1,", "\n2,999999999999,"), "a task that can't be"),
    "deep JSON": (lambda path: (path / "summary.json").write_text("[" * 100_000), "recursion"),
    "no environment": (
        lambda path: (path / "environment.json").unlink(),
        r"environment.json is damaged \(No such file",
    ),
    "no times": (lambda path: (path / "timing.json").unlink(), r"timing.json is damaged \(No such file"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", TAMPERED)
def test_both_commands_say_the_same_of_a_changed_result_and_the_checkpoint_has_it(
    what: str, copy: Path, finished: Path
) -> None:
    change, words = TAMPERED[what]
    directory = run_directory(copy)
    assert asked_again(copy) is not None and inspect_run(directory)[1] is None
    change(directory)
    with pytest.raises(DamagedRun, match=words) as caught:
        asked_again(copy)
    line = str(caught.value)
    assert inspect_run(directory) == (None, line) and "\n" not in line and caught.value.exit_code == 1
    assert line.endswith(f"; delete {directory / 'summary.json'}, then run it again")
    (directory / "summary.json").unlink()
    run(copy, *FLAGS, model="sgd")
    assert_same_run(directory, run_directory(finished))
    assert (directory / "environment.json").read_bytes() == (run_directory(finished) / "environment.json").read_bytes()


def test_metrics_are_those_of_the_matrix_to_the_last_bits(copy: Path) -> None:
    stored = json.loads((run_directory(copy) / "summary.json").read_text())
    found = read_finished(run_directory(copy))
    assert found is not None and found.summary["class_il"]["FWT"] is not None
    for kind in ("class_il", "task_il"):
        assert found.summary[kind] == pytest.approx(stored[kind], rel=1e-9)


def test_a_finished_run_in_another_place_is_compared_with_its_config(copy: Path, tmp_path: Path) -> None:
    elsewhere = run_directory(copy).rename(tmp_path / "elsewhere")
    assert inspect_run(elsewhere)[1] is None
    assert RunDirectory(parse_args(["--resume", str(elsewhere)])).finished() is not None
    with pytest.raises(UsageError, match=r"was begun with other settings \(lr: 0.1 → 0.3\)"):
        RunDirectory(parse_args(["--resume", str(elsewhere), "--lr", "0.3"])).finished()
    edit("summary.json", r'"seed": 0', '"seed": 1')(elsewhere)
    assert "its seed is 1, but that of the directory 0" in (inspect_run(elsewhere)[1] or "")


# -- unfinished runs ---------------------------------------------------------------------------------------------------


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    """Killed in step 25 of 27, with some lines of the log known to the checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        kill_at(Sgd, 25, patch)
        with pytest.raises(Killed):
            run(tmp_path / "broken", *FLAGS, "--checkpoint_every", "4", model="sgd")
    return run_directory(tmp_path / "broken")


def continue_run(directory: Path) -> None:
    run(directory.parents[3], *FLAGS, model="sgd")


def test_a_flipped_byte_in_the_log_is_noticed(unfinished: Path, finished: Path) -> None:
    log = unfinished / "metrics.jsonl"
    good = log.read_bytes()
    for place in (0, len(good) // 2):
        log.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(
            UserError, match=r"metrics.jsonl was changed since the checkpoint .*; put it back"
        ) as caught:
            continue_run(unfinished)
        assert "\n" not in str(caught.value)
    log.write_bytes(good + b"written after the checkpoint")
    (unfinished / "environment.json").unlink()
    continue_run(unfinished)
    assert_same_run(unfinished, run_directory(finished))
    assert json.loads((unfinished / "environment.json").read_text())["torch"] == torch.__version__


def resave(directory: Path, **changes: Any) -> None:
    """A checkpoint with a valid manifest and other content."""
    state = store.load(directory)
    assert state is not None
    store.save(directory, {n: v for n, v in (state | changes).items() if v is not ...})


POSITION = {"task": 1, "in_task": True, "epoch": 0, "in_epoch": True, "epoch_step": 1, "task_step": 1, "step": 11}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"position": 3},
        {"position": None},
        {"position": POSITION | {"restore": 1}},
        {"position": POSITION | {"__class__": 1}},
        {"position": POSITION | {"step": "1"}},
        {"position": POSITION | {"task": -1}},
        {"position": POSITION | {"task": 4}},
        {"position": {"task": 1}},
        {"metrics": 3},
        {"metrics": {}},
        {"accuracies": {"class_il": 3}},
        {"timing": []},
        {"loader": {"permutation": None}},
        {"schedule": {"own": {"get_lr": 1}, "custom_at": None}},
        {"streams": 1},
        {"global_rng": {}},
        {"model": {}},
        {"model": {"uncaptured": [], "model": {"kind": "nothing"}}},
        {"flags": 7},
        {"edits": ...},
    ],
    ids=str,
)
def test_a_checkpoint_with_strange_content_is_one_line(changes: dict[str, Any], unfinished: Path) -> None:
    resave(unfinished, **changes)
    with pytest.raises(UserError, match=r"cannot (continue|resume).*--overwrite 1") as caught:
        continue_run(unfinished)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_hides_no_method(unfinished: Path) -> None:
    state = store.load(unfinished)
    assert state is not None
    for name in ("observe", "forward", "_modules"):
        state["model"]["model"]["modules"][""]["attributes"] = {name: 3}
        store.save(unfinished, state)
        with pytest.raises(UserError, match=f"{name} is no name for data"):
            continue_run(unfinished)


def test_a_file_changes_only_flags_that_a_method_may_change() -> None:
    flags = {"checkpoint_path": "/theirs", "plugin": ["x.py"], "resume": "x", "device": "cuda", "lr": 0.1, "net": {}}
    assert method_flags(flags, Namespace()) == {"lr": 0.1}
