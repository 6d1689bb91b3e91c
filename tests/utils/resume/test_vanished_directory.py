"""A run whose directory is taken away while it trains ends with one line, and leaves nothing that looks finished."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import assert_same_run, run, run_directory

import utils.resume.files
from main import initialize
from models.sgd import Sgd
from utils.cli.parse import parse_args
from utils.errors import UserError
from utils.resume.files import RunLock, atomic_write_text
from utils.training import train

FLAGS = ["--n_epochs", "1", "--stop_after", "2"]
GONE = "was removed or moved while a run worked in it, which ends here; put it back and repeat the command"
NEEDS_LOCKS = pytest.mark.skipif(utils.resume.files.fcntl is None, reason="no advisory locks")


def during_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], None]) -> None:
    steps = {"done": 0}
    observe = Sgd.observe

    def acting(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps["done"] += 1
        if steps["done"] == step:
            action()
        return observe(self, *args, **kwargs)

    monkeypatch.setattr(Sgd, "observe", acting)


@NEEDS_LOCKS
@pytest.mark.parametrize("step", [1, 12])
def test_a_removed_directory_ends_the_run_and_is_not_made_again(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    during_step(monkeypatch, step, lambda: shutil.rmtree(run_directory(tmp_path)))
    with pytest.raises(UserError, match=GONE) as caught:
        run(tmp_path, *FLAGS, model="sgd")
    assert "\n" not in str(caught.value) and caught.value.exit_code == 1
    assert not list(tmp_path.glob("results/*/*/*"))


@NEEDS_LOCKS
def test_a_moved_directory_goes_on_from_its_new_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, straight = run(tmp_path / "straight", *FLAGS, model="sgd")
    with monkeypatch.context() as patch:
        during_step(patch, 12, lambda: run_directory(tmp_path / "a").rename(tmp_path / "elsewhere"))
        with pytest.raises(UserError, match=f"{GONE}, or give its new place to --resume"):
            run(tmp_path / "a", *FLAGS, "--checkpoint_every", "5", model="sgd")
    assert not list(tmp_path.glob("a/results/*/*/*"))
    train(*initialize(parse_args(["--resume", str(tmp_path / "elsewhere")])))
    assert_same_run(tmp_path / "elsewhere", straight)


@NEEDS_LOCKS
def test_a_directory_that_another_process_has_made_anew_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = []

    def replace() -> None:
        directory = run_directory(tmp_path)
        shutil.rmtree(directory)
        # As another process sees it, which holds no locks: a private name, since a process has but one list of them.
        held, utils.resume.files._held = utils.resume.files._held, {}
        locks.append(RunLock(directory / "run.lock"))
        utils.resume.files._held = held  # as another process sees it

    during_step(monkeypatch, 3, replace)
    with pytest.raises(UserError, match=GONE):
        run(tmp_path, *FLAGS, model="sgd")
    assert [entry.name for entry in run_directory(tmp_path).iterdir()] == ["run.lock"] and locks[0].holds()
    locks[0].release()


def test_a_removed_log_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    during_step(monkeypatch, 12, lambda: (run_directory(tmp_path) / "metrics.jsonl").unlink())
    with pytest.raises(UserError, match=r"metrics\.jsonl was removed or replaced during the run; --overwrite 1"):
        run(tmp_path, *FLAGS, model="sgd")
    assert not (run_directory(tmp_path) / "summary.json").exists()


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("given", [[], ["--results_path", "mine"]])
def test_a_full_disk_names_the_flag_that_was_given(given: list[str], resumed: bool, tmp_path: Path) -> None:
    from utils.run.directory import RunDirectory

    command = ["--model", "sgd", "--seed", "0", "--base_path", str(tmp_path), *FLAGS, *given]
    directory = RunDirectory(parse_args(command))
    with directory:
        pass
    remedy = f" or choose another {'--results_path' if given else '--base_path'}"
    if resumed:
        directory, remedy = RunDirectory(parse_args(["--resume", str(directory.path)])), ""
    with directory, pytest.raises(UserError) as caught:

        def refuse(*_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", refuse)
            atomic_write_text(directory.path / "checkpoint.json", "x")
    assert str(caught.value).endswith(f"No space left on device; free some space there{remedy}")


def test_an_unwritable_checkpoint_path_is_found_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    flags = [*FLAGS, "--savecheck", "last", "--checkpoint_path", str(tmp_path / "file" / "models")]
    with pytest.raises(UserError, match=r"file/models: Not a directory; choose another --checkpoint_path$"):
        run(tmp_path, *flags, model="sgd")
    assert not (tmp_path / "results").exists()
