"""Flags of a plugin that have the name of one of the framework's: the plugin's wins, ours gets a `run_` before it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from foreign_helpers import flags_of, write
from helpers import run, run_directory
from method_helpers import assert_exact_resume

import models
from main import initialize
from utils.cli.config import MODEL, view
from utils.cli.flags import DERIVED, framework_parser
from utils.cli.mammoth_flags import MAMMOTHS
from utils.cli.parse import parse_args, parser_of
from utils.errors import UsageError
from utils.run.identity import config_hash, relevant_config

MODEL_FILE = """
from models.utils.continual_model import ContinualModel

class Clashing(ContinualModel):
    NAME = "clashing"
    COMPATIBILITY = ["class-il", "general-continual"]

    @staticmethod
    def get_parser(parser):
        {flags}
        return parser

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        loss = self.loss(self.net(inputs), labels)
        loss.backward()
        self.opt.step()
        return loss.item()
"""
SHORT = ("--n_epochs", "1", "--stop_after", "2")
# Without these a run would be another, whatever the model's flag of that name says.
GIVEN = {"lr": "0.1", "batch_size": "32", "n_epochs": "1", "stop_after": "1", "seed": "0", "backbone": "mnistmlp"}


def clashing(folder: Path, *flags: str) -> list[str]:
    lines = "\n        ".join(f"parser.add_argument({flag})" for flag in flags)
    return ["--plugin", write(folder, "clashing.py", MODEL_FILE.format(flags=lines)), "--model", "clashing"]


@pytest.mark.parametrize("ours", ["0", "1"])
@pytest.mark.parametrize("own", ["0", "1"])
def test_the_model_and_the_loop_each_read_their_own(
    own: str, ours: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = clashing(tmp_path, "'--task_free', type=int, default=7")
    flags = (*command[:2], "--lr", "0.1", "--task_free", own, "--run_task_free", ours, *SHORT)
    _, model, directory = run(tmp_path / "run", *flags, model="clashing")
    assert model.args.task_free == int(own)
    assert model.current_task == (0 if ours == "1" else 2)  # hidden from the model by our flag alone
    stored = yaml.safe_load((directory / "config.yaml").read_text())["args"]
    assert (stored["task_free"], stored["run_task_free"]) == (int(own), ours == "1")
    said = [record.message for record in caplog.records if "--run_task_free" in record.message]
    assert said == ["model clashing has a --task_free of its own; the framework's is --run_task_free here"]


def test_both_values_name_the_run(tmp_path: Path) -> None:
    command = [*clashing(tmp_path, "'--task_free', type=int, default=7", "'--notes'"), "--lr", "0.1", "--seed", "0"]
    names = set()
    for flags in ([], ["--task_free", "8"], ["--run_task_free", "1"], ["--notes", "model's"]):
        names.add(config_hash(relevant_config(parse_args([*command, *flags]))))
    assert len(names) == 4
    assert config_hash(relevant_config(parse_args([*command, "--run_notes", "ours"]))) in names  # as always


def all_names() -> list[str]:
    """Flags, aliases such as `--lpc`, and what is derived from them."""
    parser = framework_parser()
    flags = {flag.removeprefix("--") for flag in parser.flags() if flag.startswith("--")}
    return sorted((flags | parser.actions_by_dest().keys() | DERIVED.keys() | MAMMOTHS.keys()) - {"help"})


@pytest.mark.slow
@pytest.mark.parametrize("name", all_names())
def test_no_name_keeps_a_plugin_from_running(name: str, tmp_path: Path) -> None:
    """A model's flag of any name that the framework uses, for flags or otherwise, with a value that it would refuse."""
    value = "clashing" if name == "model" else "a value of its own"
    command = clashing(tmp_path, f"'--{name}', default={value!r}")
    command += [part for n, v in GIVEN.items() for part in (f"--run_{n}" if n == name else f"--{n}", v)]
    args = parse_args([*command, "--base_path" if name != "base_path" else "--run_base_path", str(tmp_path)])
    assert getattr(view(args, MODEL), name) == (command[1] if name == "plugin" else value)
    model, _, args = initialize(args)
    assert getattr(model.args, name) == getattr(view(args, MODEL), name)
    assert model.opt.param_groups[0]["lr"] == 0.1 and model.net.classifier.out_features == 10


def test_one_that_has_all_of_them_at_once_trains(tmp_path: Path) -> None:
    names = [name for name in all_names() if name not in ("model", "plugin")]
    command = clashing(tmp_path, *(f"'--{name}', default={name!r}" for name in names), "'-O', dest='short'")
    flags = [part for name, value in GIVEN.items() for part in (f"--run_{name}", value)]
    model, dataset, args = initialize(parse_args([*command, *flags, "--run_base_path", str(tmp_path), "-O", "5"]))
    from utils.training import train

    summary = train(model, dataset, args)
    assert summary["steps"] == 9 and run_directory(tmp_path).is_dir()
    assert all(getattr(model.args, name) == name for name in names) and model.args.short == "5"


def test_a_resumed_run_has_both_values(tmp_path: Path) -> None:
    command = clashing(tmp_path, "'--task_free', type=int, default=7", "'--resume', type=int, default=0")
    flags = (*command[:2], "--lr", "0.1", "--resume", "3")
    assert_exact_resume(models.get_model_class(parse_args([*command, "--lr", "0.1"])), tmp_path / "runs", *flags)
    run(tmp_path / "whole", *flags, *SHORT, model="clashing")
    again = parse_args(["--run_resume", str(run_directory(tmp_path / "whole"))])
    assert (again.resume, view(again, MODEL).resume) == (str(run_directory(tmp_path / "whole")), 3)


def test_a_message_calls_our_flag_by_its_name_here() -> None:
    with pytest.raises(UsageError, match=r"^--run_task_free 1: er-ace-stream needs task boundaries"):
        parse_args(["--model", "er_ace_stream", *flags_of("er_ace_stream"), "--run_task_free", "1"])
    with pytest.raises(UsageError, match="unknown flag --run_seed"):
        parse_args(["--model", "er_ace_stream", *flags_of("er_ace_stream"), "--run_seed", "1"])


def test_dgc_asks_for_our_task_free(tmp_path: Path) -> None:
    command = ["--model", "er_ace_stream", *flags_of("er_ace_stream"), "--dgc", "1", "--base_path", str(tmp_path)]
    model, _, _ = initialize(parse_args([*command, "--task_free", "1"]))
    assert model.args.task_free is True and model.dgc.STAGES  # the estimator of a run with tasks


BACKBONE = """
from backbone import register_backbone
from backbone.MNISTMLP import MNISTMLP

@register_backbone("narrow")
def narrow(num_classes, input_size: int = 784, seed: int = 9, width: int = 7):
    return MNISTMLP(input_size, num_classes, width + seed)
"""


def test_parameters_of_a_backbone_are_flags_whatever_they_are_called(tmp_path: Path) -> None:
    backbone = ["--plugin", write(tmp_path, "narrow.py", BACKBONE), "--backbone", "narrow"]
    command = [*clashing(tmp_path, "'--width', default='wide'"), *backbone, "--lr", "0.1"]
    args = parse_args([*command, "--seed", "4", "--run_seed", "5", "--run_width", "2", "--base_path", str(tmp_path)])
    model, dataset, args = initialize(args)
    assert model.net.classifier.in_features == 6 and model.args.width == "wide"
    assert (args.seed, model.args.seed, dataset.args.seed) == (5, 5, 5)


def test_a_default_that_a_model_sets_is_taken_as_it_is(tmp_path: Path) -> None:
    """`lr=0` means that the model sees to the rate; no flag would take it."""
    command = ["--model", "gdumb", *(flag for flag in flags_of("gdumb") if flag not in ("--lr", "0.1"))]
    assert parse_args(command).lr == 0
    assert parse_args([*command, "--lr", "0.03"]).lr == 0.03
    assert parse_args([*command, "--lr", "0"]).lr == 0  # as its own default is
    with pytest.raises(UsageError, match="argument --lr: -1 is out of range"):
        parse_args([*command, "--lr", "-1"])
    with pytest.raises(UsageError, match="--lr"):
        parse_args(["--model", "sgd", "--lr", "0"])


def test_only_a_default_that_counts_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "sgd.yaml", "default: {lr: 0, optim_mom: 2}")
    monkeypatch.setattr(models, "config_file", lambda _: Path(file))
    assert parse_args(["--model", "sgd", "--lr", "0.1", "--optim_mom", "0"]).lr == 0.1
    with pytest.raises(UsageError, match=r"sgd\.yaml: optim_mom: 2 is out of range"):
        parse_args(["--model", "sgd", "--lr", "0.1"])


def test_without_a_clash_no_name_changes() -> None:
    parser = parser_of(["--model", "er", "--dataset", "seq-digits"])
    assert not parser.moved and not parser.renamed
    assert not [flag for flag in parser.flags() if flag.startswith("--run_")]
