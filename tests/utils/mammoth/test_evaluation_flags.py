"""`--validation 0`, `--validation_mode complete` and `--eval_future`, as Mammoth has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_helpers import flags_of, on
from helpers import run

import datasets
from datasets.utils.continual_dataset import ContinualDataset
from utils.cli.parse import parse_args
from utils.errors import UsageError
from utils.run.identity import relevant_config

SHORT = ("--lr", "0.1", "--n_epochs", "1", "--stop_after", "3")


def classes_of_test_sets(flags: list[str], *more: str) -> list[list[int]]:
    """The classes in the test sets of all tasks."""
    args = parse_args(["--model", "sgd", "--seed", "0", "--lr", "0.1", *flags, *more])
    args.device = torch.device("cpu")
    dataset: ContinualDataset = datasets.get_dataset(args)
    for _ in range(dataset.N_TASKS):
        dataset.get_data_loaders()
    return [sorted(torch.cat([batch[1] for batch in loader]).tolist()) for loader in dataset.test_loaders]


@pytest.mark.parametrize("validation", ["0", "10"])
@pytest.mark.parametrize("flags", [[], on("seq-patches")])
def test_complete_test_sets_hold_all_classes_so_far(flags: list[str], validation: str) -> None:
    current = classes_of_test_sets(flags, "--validation", validation)
    complete = classes_of_test_sets(flags, "--validation", validation, "--validation_mode", "complete")
    assert complete[0] == current[0] and len(complete) == len(current)
    for task, labels in enumerate(complete):
        assert labels == sorted(label for part in current[: task + 1] for label in part)


def test_shared_classes_are_tested_as_they_are() -> None:
    """Tasks that differ in something else than their classes (domain-il)."""
    assert classes_of_test_sets(on("perm-patches"), "--validation_mode", "complete") == classes_of_test_sets(
        on("perm-patches")
    )


def test_no_validation_and_the_usual_mode_rename_no_run() -> None:
    plain = parse_args(["--model", "sgd", "--seed", "0"])
    given = ["--validation", "0", "--validation_mode", "current", "--eval_future", "0", "--noise_type", "sym"]
    args = parse_args([*"--model sgd --seed 0 --disable_noisy_labels_cache 1".split(), *given])
    assert args.validation is None and args.noise_type == "symmetric"
    assert relevant_config(args) == relevant_config(plain)
    other = parse_args(["--model", "sgd", "--seed", "0", "--validation_mode", "complete"])
    assert relevant_config(other) == relevant_config(plain) | {"validation_mode": "complete"}


def test_an_evaluation_is_cumulative_and_counts_each_image_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, parts = run(tmp_path / "parts", *SHORT, "--validation", "0", model="sgd")
    _, _, whole = run(tmp_path / "whole", *SHORT, "--validation", "0", "--validation_mode", "complete", model="sgd")
    assert "[Task-IL], which knows task k alone, has no meaning" in caplog.text
    for file in ("per_class.csv", "confusion.csv"):
        assert (parts / file).read_bytes() == (whole / file).read_bytes()
    confusion = [line.split(",")[1:] for line in (whole / "confusion.csv").read_text().splitlines()[1:]]
    right, count = sum(int(row[i]) for i, row in enumerate(confusion)), sum(int(n) for row in confusion for n in row)
    assert json.loads(events(whole)[-1])["class_il"][-1] == pytest.approx(100 * right / count)
    assert "final_test" not in (whole / "metrics.jsonl").read_text()


def events(directory: Path) -> list[str]:
    return [line for line in (directory / "metrics.jsonl").read_text().splitlines() if '"event":"task_end"' in line]


@pytest.mark.parametrize("flags", [[], on("seq-patches")])
def test_tasks_to_come_are_predicted_by_future_forward(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    command = [*flags_of("future_toy"), *flags, *SHORT[2:], "--eval_future", "1"]
    _, model, directory = run(tmp_path, *command, model="future_toy")
    n_tasks = model.n_tasks
    assert model.changes == [(k + 1, True) for k in range(n_tasks)]  # once, for all tasks, before the first evaluation
    assert {task for task, _ in model.future_calls} == set(range(1, min(3, n_tasks - 1) + 1))
    rows = [json.loads(line) for line in events(directory)]
    for task, row in enumerate(rows):
        to_come = n_tasks - task - 1
        assert len(row["class_il"]) == task + 1
        expected = [0.0] * (to_come - 1) + [pytest.approx(50, abs=3)] if to_come else []
        assert row.get("future_class_il", []) == expected  # always the last class: half of the last task
        assert len(row.get("future_task_il", [])) == to_come
    means = [sum(row["future_class_il"]) / len(row["future_class_il"]) for row in rows if "future_class_il" in row]
    out = capsys.readouterr().out
    assert f"still to come: {sum(means) / len(means):.2f} %" in out
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    assert summary["class_il"]["FAA"] == pytest.approx(sum(rows[-1]["class_il"]) / 3)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--eval_future", "1"], "^--eval_future 1: sgd has no future_forward"),
        (["--joint", "1", "--eval_future", "1"], "^--joint has one task: no future"),
        (["--validation", "-1"], "at least 0"),
        (["--validation_mode", "all"], "valid are complete, current"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(flags: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        parse_args(["--model", "sgd", "--seed", "0", *flags])
    assert "\n" not in str(caught.value)
