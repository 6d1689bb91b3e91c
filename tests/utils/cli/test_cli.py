"""The command line: precedence, presets, and errors of one line that name the remedy."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
import torch
import yaml
from helpers import ROOT

import datasets
import main
import models
import utils.cli.known_command as known_command
from utils.cli import registry
from utils.cli.flags import framework_parser
from utils.cli.known_command import command_sha256, finished_run
from utils.cli.parse import parse_args, parser_of
from utils.cli.parser import SYNONYMS
from utils.cli.yaml_io import read_yaml
from utils.errors import UsageError, UserError
from utils.run.identity import changed, config_hash, difference, relevant_config

ER = ["--model", "er", "--buffer_size", "500"]


def parse(*flags: str) -> Namespace:
    return parse_args([*ER, *flags])


def refusal(*flags: str, base: list[str] = ER) -> str:
    with pytest.raises(UsageError) as caught:
        parse_args([*base, *flags])
    message = str(caught.value)
    assert "\n" not in message
    return message


def run_main(*flags: str, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, ROOT / "main.py", *flags], cwd=cwd, capture_output=True, text=True)


ANSWERS = """
import sys, main
for line in sys.stdin.read().splitlines():
    try:
        main.main(line.split())
    except SystemExit as end:
        print(end.code, flush=True)
print(*sys.modules)
"""


def answers(*command_lines: str) -> tuple[str, set[str]]:
    """What one process says to some command lines, and the modules that it has imported by then."""
    command, lines = [sys.executable, "-c", ANSWERS], "\n".join(command_lines)
    done = subprocess.run(command, cwd=ROOT, input=lines, stdout=PIPE, stderr=STDOUT, text=True, check=True)
    said, _, modules = done.stdout.rstrip().rpartition("\n")
    return said, set(modules.split())


def test_what_framework_flags_suffice_for_is_answered_without_torch() -> None:
    er = "--model er --buffer_size 5"
    said, modules = answers(
        *("--help", "--list", "--model err", "--modle er", f"{er} --dataset seq_cifar", f"{er} --lr -1"),
        *(
            f"{er} --backbone resnet19",
            f"{er} --dataset seq-digits --dataset_config onlin",
            "--model er --buffer_size 0",
        ),
    )
    assert [line for line in said.splitlines() if line in ("0", "1", "2")] == ["0"] * 2 + ["2"] * 7
    assert said.count("error: ") == 7 and "Traceback" not in said
    expected = ["--lr FLOAT", "optimizer and learning-rate", "wandb:", "er ", "seq-digits", "'seq_cifar10'?"]
    assert all(text in said for text in [*expected, "--lr: -1 is out", "'resnet18'?", "'online'?", "at least 1"]), said
    assert not modules & {"torch", "numpy"}


def test_a_finished_run_is_shown_without_torch(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    command = ["--model", "er", "--buffer_size", "20", "--seed", "3", "--n_epochs", "0", "--base_path", str(tmp_path)]
    command += ["--dataset", "seq-digits"]
    main.main(command)
    report = capsys.readouterr().out.partition("\nClass-IL accuracy")[2]
    (directory,) = tmp_path.glob("results/*/*/*")
    said, modules = answers(" ".join([*command, "--notes", "other"]), f"--resume {directory}")
    assert said.count(report.rstrip()) == 2 and said.count(f"This run is finished ({directory})") == 2
    assert "torch" not in modules
    # Where the command line is another one, or does not tell all, the flags are looked at.
    assert finished_run([*command[2:], *command[:2]]) == directory
    for other in (
        ["--lr", "0.3"],
        ["--overwrite", "1"],
        ["--plugin", "x.py"],
        ["--seed", "3"],
        ["--notes", "two", "words"],
    ):
        assert finished_run([*command, *other]) is None
    assert finished_run(command[:4] + command[6:]) is None and finished_run([]) is None
    assert finished_run(["--resume", str(directory), "--lr", "0.3"]) is None
    (directory / "summary.json").unlink()
    assert finished_run(command) is None and finished_run(["--resume", str(directory)]) is None


def test_a_command_is_known_only_to_the_sources_it_was_given_to(monkeypatch: pytest.MonkeyPatch) -> None:
    before = command_sha256(ER)
    assert (
        before == command_sha256(["--buffer_size=500", "--model=er", "--notes=x"]) != command_sha256([*ER, "-O", "1"])
    )
    monkeypatch.setattr(known_command, "sources_sha256", lambda: "edited")
    assert command_sha256(ER) != before


@pytest.mark.slow
def test_what_needs_the_models_flags_is_answered_without_the_other_libraries(tmp_path: Path) -> None:
    """Each takes as long to import as torch, or nearly; the last line gets as far as the files that are missing."""
    cifar = "--model dgc_er --dataset seq-cifar100 --buffer_size 5"
    missing = "--model xder --dataset seq-cifar100 --buffer_size 5 --nowand 1 --base_path"
    (tmp_path / "CIFAR100").mkdir()
    (tmp_path / "CIFAR100" / "cifar-100-python.tar.gz").touch()
    said, modules = answers(f"{cifar} --dgc_alpha x", f"{cifar} --learning_rate 1", f"{missing} {tmp_path}")
    assert [line for line in said.splitlines() if line in ("0", "1", "2")] == ["2", "2", "1"], said
    assert "--dgc_alpha: x is out of range" in said and "unknown flag --learning_rate; did you mean '--lr'?" in said
    assert "cifar-100-python.tar.gz is damaged" in said
    slow = {"torchvision", "torch._dynamo", "kornia", "sklearn", "scipy", "matplotlib", "wandb"}
    assert "torch" in modules and not modules & slow


def test_errors_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = run_main("--model", "err", "--buffer_size", "5", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown model 'err'; did you mean 'er'?\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dataset", "seq-cifar"], ["seq-cifar", "seq-cifar10"]),
        (["--bufer_size", "5"], ["--bufer_size", "--buffer_size"]),
        (["--lr", "fast"], ["--lr", "'fast'", "number"]),
        (["--lr", "-1"], ["--lr", "-1", "greater than 0"]),
        (["--lr", "nan"], ["--lr", "nan"]),
        (["--lr", "inf"], ["--lr", "finite"]),
        (["--n_epochs", "1.5"], ["--n_epochs", "1.5", "whole number"]),
        (["--optim_mom", "1"], ["--optim_mom", "less than 1"]),
        (["--optimizer", "sdg"], ["--optimizer", "sdg", "'sgd'"]),
        (["--permute_classes", "maybe"], ["--permute_classes", "maybe", "boolean"]),
        (["--backbone", "resnet19"], ["resnet19", "resnet18"]),
        (["--dataset", "seq-cifar100", "--dataset_config", "6tasks"], ["6tasks", "5tasks"]),
        (["--model_config", "bets"], ["bets", "best"]),
        (["--lr", "1", "--lr", "2"], ["--lr", "2 times"]),
        (["--n_ep", "3"], ["--n_ep", "--n_epochs"]),
        (["stray"], ["stray"]),
        (["--lr"], ["--lr", "expected one argument"]),
        (["--custom_class_order", "0,1"], ["--custom_class_order", "0…9"]),
        (["--fitting_mode", "iters"], ["--n_iters"]),
        (["--fitting_mode", "early_stopping"], ["early_stopping is not possible", "--n_epochs"]),
        (["--fitting_mode", "time"], ["time is not possible", "speed"]),
        (["--loadcheck", "https://somewhere/model.pt"], ["https://somewhere/model.pt", "download the file"]),
        (["--optim_nesterov", "1"], ["--optim_mom"]),
        (["--start_from", "5"], ["--start_from 5", "0…4"]),
        (["--stop_after", "6"], ["--stop_after 6", "5 tasks"]),
        (["--joint", "1", "--task_free", "1"], ["--task_free", "--joint"]),
        (["--resume", "nowhere"], ["nowhere", "config.yaml"]),
        (["--mlp_hidden_size", "0"], ["--mlp_hidden_size", "at least 1"]),
        (["--seed", "-1"], ["--seed", "at least 0"]),
        (["--minibatch_size", "1" + 20 * "0"], ["--minibatch_size", "less than 9223372036854775808"]),
        (["--resume", ""], ["--resume", "empty"]),
        (["--dataset", ""], ["--dataset", "empty"]),
        (
            ["--dataset", "seq-embeddings", "--dataset_config", "nope"],
            ["'nope'", "seq-embeddings has none; leave it out"],
        ),
        (["--device", "gpu"], ["--device gpu can't be used; give cpu, cuda or cuda:0"]),
        (["--lr_milestones", "0.5", "0.2"], ["--lr_milestones 0.5 0.2: give them in increasing order"]),
        (["--lr_milestones", "5", "0.9", "3"], ["--lr_milestones 5 0.9 3: give them in increasing order"]),
        (["--lr_milestones", "3", "3"], ["--lr_milestones 3 3: give them in increasing order"]),
        (["--lr_milestones_first", "9", "3"], ["--lr_milestones_first 9 3: give them in increasing order"]),
        (["--O", "1"], ["unknown flag --O; did you mean '--code_optimization'?"]),
    ],
)
def test_bad_values_are_refused_with_a_reason(flags: list[str], words: list[str]) -> None:
    message = refusal(*flags)
    assert all(word in message for word in words), message


def test_buffer_size_is_required_and_positive() -> None:
    assert "--buffer_size" in refusal(base=["--model", "er"])
    assert "at least 1" in refusal(base=["--model", "er", "--buffer_size", "0"])
    assert "--model is missing" in refusal(base=[])
    assert "unknown flag --modle; did you mean '--model'?" in refusal(base=["--modle", "er"])


def test_an_unknown_flag_is_named_before_a_missing_one() -> None:
    message = refusal("--buffer", "200", base=["--model", "er"])
    assert message == "unknown flag --buffer; did you mean '--buffer_size'?"
    assert refusal("--seed", "1", base=["--model", "er"]).startswith("missing --buffer_size")


@pytest.mark.parametrize(
    ("flags", "meant"),
    [("--learning_rate 1", "lr"), ("--epochs 3", "n_epochs"), ("--Weight-Decay 0", "optim_wd"), ("--gpu 0", "device")],
)
def test_a_flag_is_known_by_what_it_is_called_elsewhere(flags: str, meant: str) -> None:
    assert refusal(*flags.split()) == f"unknown flag {flags.split()[0]}; did you mean '--{meant}'?"


def test_names_from_elsewhere_stand_for_flags_that_are_there() -> None:
    parser = parser_of(["--model", "dgc_er", "--dataset", "seq-cifar100"])
    known = {flag.removeprefix("--") for flag in parser.flags()}
    assert set(SYNONYMS.values()) <= known and not known & SYNONYMS.keys()
    assert "'--buffer_size'?" in refusal("--memory_size", "5", base=["--model", "er"])
    assert "did you mean" not in refusal("--memory_size", "5", base=["--model", "sgd"])  # which has no buffer
    assert refusal(base=["--method", "er"]) == "unknown flag --method; did you mean '--model'?"


def test_names_are_suggested_as_they_are_typed() -> None:
    for typed, meant in (("dgc_err", "dgc_er"), ("dgc-err", "dgc-er"), ("DGC_ERR", "dgc_er")):
        assert refusal(base=["--model", typed]) == f"unknown model {typed!r}; did you mean {meant!r}?"
    assert refusal("--dataset", "seq_cifar1000") == "unknown dataset 'seq_cifar1000'; did you mean 'seq_cifar100'?"


def test_stopped_outside_training_it_says_that_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "train_or_find", stop)
    with pytest.raises(SystemExit) as ended:
        main.main(ER)
    output = capsys.readouterr()
    assert (ended.value.code, output.out, output.err) == (130, "", "stopped outside training; what was saved is kept\n")


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1", "mps", "0", "0, 1"])
def test_devices_that_may_be_there_are_left_to_torch(device: str) -> None:
    assert parse("--device", device).device == device


@pytest.mark.parametrize(("dataset", "default"), [("seq-digits", "none"), ("seq-cifar100", "multisteplr")])
def test_the_help_of_a_flag_has_one_default(dataset: str, default: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        parse("--dataset", dataset, "--help")
    text = " ".join(capsys.readouterr().out.split())
    for part in text.partition(" --lr_scheduler ")[2].split(" --")[:1]:
        assert part.count("default") == 1 and part.endswith(f"(default: {default})")


def test_what_is_no_misspelling_gets_no_suggestion() -> None:
    remedy = "; add --help to this command to list its flags"
    assert refusal("--foo", "3") == f"unknown flag --foo{remedy}"
    assert (
        refusal("--buffer_size", "20", base=["--model", "sgd"])
        == "unknown flag --buffer_size; this method keeps no buffer"
    )
    assert refusal("--") == f"unknown flag --{remedy}"
    assert "--lpt" not in refusal("--alpha", "3")  # which is alike by its dashes only
    assert refusal("--buffer-sise", "3", base=["--model", "er"]).endswith("did you mean '--buffer_size'?")


@pytest.mark.parametrize("value", ["-inf", "-Infinity", "-nan", "-1e3", "-.5", "-3"])
def test_negative_numbers_are_values_and_no_flags(value: str) -> None:
    assert f"--lr: {value} is out of range: it must be greater than 0" in refusal("--lr", value)


def test_plugins_that_offer_nothing_are_refused(tmp_path: Path) -> None:
    assert "README.md: no model, dataset or backbone, since it is no .py file; give" in refusal("--plugin", "README.md")
    file, helped = tmp_path / "helper.py", tmp_path / "helped.py"
    file.write_text("WORD = 'w'\n")
    assert f"{file}: it has no model, dataset or backbone; give" in refusal("--plugin", str(file))
    helped.write_text("class A:\n    NAME = 'a'\n")
    assert "helper.py: it has no" in refusal("--plugin", str(file), "--plugin", str(helped))
    helped.write_text("from models.helper import WORD\nclass A:\n    NAME = 'a'\n")
    assert parse("--plugin", str(file), "--plugin", str(helped)).plugin == [str(file), str(helped)]


DEEP, HUGE = "args: " + "[" * 3000, "args: {lr: " + "1" * 5000 + "}"


@pytest.mark.parametrize(
    "content",
    [
        "args: [1",
        "args: {lr: 1, lr: 2}",
        "a: b: c",
        "a: '",
        "\x00",
        "text",
        DEEP,
        DEEP + "]" * 3000,
        HUGE,
        "a: 2024-13-01",
    ],
    ids=range(10),
)
def test_a_broken_config_of_a_run_names_the_remedy(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(UserError, match=r"config\.yaml .*; --overwrite 1 with the run's own command") as caught:
        parse_args(["--resume", str(tmp_path)])
    assert "\n" not in str(caught.value) and "^" not in str(caught.value)
    assert "run's own command" in refusal("--overwrite", "1", "--resume", finished_config(tmp_path))


@pytest.mark.parametrize("name", ["model", "dataset", "dataset_config", "buffer_size", "dgc", "seed", "lr_milestones"])
def test_recorded_flags_of_any_kind_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    for value in (3, True, 1.5, float("nan"), 10**30, [1], {"a": 1}, "\0", "x"):
        args = {"model": "er", "buffer_size": 50, "dataset": "seq-digits", "seed": 0, name: value}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump({"config": {}, "args": args}))
        torch.save({"model": {"w": torch.zeros(1)}, "args": args}, tmp_path / "file.pt")
        for argv in (["--resume", str(tmp_path)], ["--loadcheck", str(tmp_path / "file.pt")]):
            try:
                parse_args(argv)
            except UserError as error:
                assert "\n" not in str(error)


def finished_config(folder: Path) -> str:
    (folder / "config.yaml").write_text("args: {model: er, buffer_size: 500}")
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, "{"])
def test_curves_of_what_is_no_run_are_refused_in_one_line(content: str | None, tmp_path: Path) -> None:
    if content:
        (tmp_path / "metrics.jsonl").write_text(content)
    script = [sys.executable, "-m", "docs.figures.diagnostics", tmp_path]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"no diagnostics in {tmp_path}: run it with --dgc_diagnostics")


def test_joint_needs_boundaries_and_says_so() -> None:
    message = refusal("--task_free", "1", "--joint", "0", base=["--model", "joint"])
    assert "joint needs task boundaries" in message


@pytest.mark.parametrize("text", ["1", "true", "T", "y", "YES"])
def test_booleans_take_mammoths_values(text: str) -> None:
    assert parse("--permute_classes", text).permute_classes is True


def test_names_are_normalised_as_in_mammoth() -> None:
    assert parse("--dataset", "seq_cifar100").dataset == "seq-cifar100"


def test_precedence_parser_dataset_model_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    args = parse("--dataset", "seq-cifar100")
    assert (args.optim_mom, args.lr_scheduler, args.lr_milestones) == (0.0, "multisteplr", [35, 45])  # flag, dataset
    assert (args.lr, args.n_epochs, args.backbone) == (0.1, 50, "resnet18")  # model YAML, dataset class
    online = parse("--dataset", "seq-cifar100", "--dataset_config", "online")
    assert (online.n_epochs, online.lr_scheduler) == (1, None)  # dataset YAML over dataset class
    preset = {"lr": 0.5, "n_epochs": 7, "optim_mom": 0.9}
    monkeypatch.setattr(models, "read_model_config", lambda *_: (dict(preset), "er.yaml"))
    args = parse("--dataset", "seq-cifar100", "--dataset_config", "online", "--lr", "0.03")
    assert (args.n_epochs, args.optim_mom, args.lr) == (7, 0.9, 0.03)  # model YAML over dataset YAML, then the line


def test_five_and_twenty_tasks_by_dataset_config() -> None:
    for name, tasks, classes in (("5tasks", 5, 20), ("20tasks", 20, 5)):
        args = parse("--dataset", "seq-cifar100", "--dataset_config", name)
        fields = relevant_config(args)["dataset_fields"]
        assert (fields["N_TASKS"], fields["N_CLASSES_PER_TASK"]) == (tasks, classes)
    natural = relevant_config(parse("--dataset", "seq-cifar100"))["dataset_fields"]
    assert natural["N_TASKS"] == 10  # a config never leaks into the class


def test_best_presets_are_the_published_ones() -> None:
    best = ["--model_config", "best"]
    assert parse("--dataset", "seq-cifar100", *best).lr == 0.1
    sgd = {"seq-cifar10": 0.1, "seq-cifar100": 0.03, "seq-tinyimg": 0.03}
    for dataset, lr in sgd.items():
        assert parse_args(["--model", "sgd", "--dataset", dataset, *best]).lr == lr
    message = refusal("--dataset", "seq-cifar100", *best, base=["--model", "er", "--buffer_size", "300"])
    assert "300" in message and "500, 2000" in message
    assert "seq-mnist" in refusal("--dataset", "seq-mnist", *best)


def test_yaml_files_may_merge_a_mapping_and_change_what_it_brings(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text("a: &a {lr: 1, n_epochs: 2}\nb: {<<: *a, lr: 3}")
    assert read_yaml(file)["b"] == {"lr": 3, "n_epochs": 2}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("default: {lrr: 1}", ["er.yaml", "'lrr'", "'lr'"]),
        ("default: {lr: fast}", ["er.yaml", "lr", "fast"]),
        ("default: {lr: -1}", ["er.yaml", "lr", "greater than 0"]),
        ("default: {lr_milestones: 3}", ["er.yaml", "lr_milestones", "no list"]),
        ("default: [1", ["er.yaml", "not valid YAML"]),
        ("just text", ["er.yaml", "key: value"]),
        ("default: 3", ["er.yaml", "'default'", "3"]),
        ("default: {lr: 1, lr: 2}", ["er.yaml", "'lr' is given twice"]),
    ],
)
def test_yaml_errors_name_file_and_key(
    content: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "er.yaml"
    file.write_text(content)
    monkeypatch.setattr(models, "config_file", lambda model: file)
    message = refusal()
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "content",
    [
        *("N_TASKS: abc", "N_TASKS: 0", "N_TASKS: [5]", "N_CLASSES: true", "N_CLASSES_PER_TASK: 2.5", "3: 4"),
        *("MEAN: foo", "MEAN: [0.1, 0.2]", "STD: [0]", "SIZE: [16, x]", "SIZE: [8]", "SETTING: foo"),
    ],
)
def test_dataset_yaml_errors_name_the_file(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd.yaml").write_text(content)
    monkeypatch.setattr(datasets, "config_folder", lambda dataset: tmp_path)
    assert "odd.yaml" in refusal("--dataset_config", "odd")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            PermissionError(13, "Permission denied", "/x/y.yaml"),
            "/x/y.yaml: Permission denied; restore the file or its",
        ),
        (MemoryError("Unable to\nallocate 7 PiB"), "out of memory (Unable to allocate 7 PiB); use a smaller --batch"),
        (torch.OutOfMemoryError("CUDA out of memory."), "out of memory (CUDA out of memory.); use a smaller --batch"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you"), "out of memory (DefaultCPUAllocator"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_machine_refuses_is_one_line(
    error: Exception, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def refused(argv: list[str]) -> None:
        raise error

    monkeypatch.setattr(main, "train_or_find", refused)
    with pytest.raises(SystemExit) as exit:
        main.main([])
    message = capsys.readouterr().err
    assert exit.value.code == 1 and message.startswith(f"error: {line}") and message.count("\n") == 1


def test_an_error_of_the_code_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "train_or_find", lambda argv: [][0])
    with pytest.raises(IndexError):
        main.main([])


BROKEN = {
    "syntax": "def f(:",
    "imports": "import no_such_module\nclass A:\n    NAME = 'broken-imports'",
    "raises": "class A:\n    NAME = 'broken-raises'\nraise RuntimeError('as\\nsuch')",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_model_file_is_reported_to_who_asks_for_it_only(kind: str) -> None:
    file = ROOT / "models" / f"broken_{kind}.py"
    file.write_text(BROKEN[kind])
    try:
        assert parse().model == "er"
        with pytest.raises(UserError, match=f"models/broken_{kind}.py cannot be imported: .*Error") as caught:
            parse_args(["--model", f"broken_{kind}"])
        assert "\n" not in str(caught.value)
    finally:
        file.unlink()


def test_names_are_found_however_they_are_declared() -> None:
    file = ROOT / "models" / "declared.py"
    file.write_text("class A:\n    NAME: str = 'annotated'\nif True:\n    class B:\n        NAME = 'nested_name'\n")
    try:
        assert {"annotated", "nested-name"} <= models.get_model_entries().keys()
    finally:
        file.unlink()


def test_a_file_that_is_removed_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "own.py").write_text("class A:\n    NAME = 'own'\n")
    (tmp_path / "models" / "gone.py").symlink_to("nowhere.py")
    for module in (registry, known_command):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    assert list(models.get_model_entries()) == ["own"]
    known_command.sources_sha256.cache_clear()
    with_link = known_command.sources_sha256()
    (tmp_path / "models" / "gone.py").unlink()
    known_command.sources_sha256.cache_clear()
    assert known_command.sources_sha256() == with_link
    known_command.sources_sha256.cache_clear()


def test_model_yaml_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "er.yaml"
    file.write_text("default: {lr: 1}\nseq_digits:\n  lr: 2\n  n_epochs: 4\n  dataset_config: online\n  500: {lr: 3}\n")
    monkeypatch.setattr(models, "config_file", lambda model: file)
    assert (parse().lr, parse().n_epochs) == (1, 10)
    best = parse("--model_config", "best")
    assert (best.lr, best.n_epochs, best.dataset_config) == (3, 4, "online")


def test_wandb_is_on_with_a_project_unless_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    assert parse().nowand == 1
    assert parse("--wandb_project", "p").nowand == 0
    assert parse("--wandb_project", "p", "--nowand", "1").nowand == 1
    assert parse("--wandb_project", "p", "--debug_mode", "1").nowand == 1
    monkeypatch.setenv("WANDB_PROJECT", "p")
    assert parse().nowand == 0


def test_minibatch_size_follows_batch_size_unless_given() -> None:
    assert parse("--batch_size", "7").minibatch_size == 7
    assert parse("--batch_size", "7", "--minibatch_size", "3").minibatch_size == 3


def test_a_seed_is_drawn_anew_each_time() -> None:
    assert parse().seed != parse().seed
    assert parse("--seed", "3").seed == 3


def test_the_hash_covers_what_matters_and_nothing_else() -> None:
    def of(*flags: str) -> str:
        return config_hash(relevant_config(parse("--seed", "1", *flags)))

    assert of() == of("--notes", "x", "--base_path", "/elsewhere", "--checkpoint_every", "7", "--lr", "0.1")
    changed = [["--lr", "0.2"], ["--n_epochs", "3"], ["--dataset_config", "online"], ["--task_free", "1"]]
    assert len({of(), *(of(*flags) for flags in changed)}) == 1 + len(changed)


@pytest.mark.parametrize("value", [0, 1, False, True, "same", 0.0, []])
def test_a_flag_of_tomorrow_counts_when_it_is_given_and_only_then(value: object) -> None:
    """Whatever its value is: 0 is a choice, too, where not to give the flag means something else."""
    args = parse("--seed", "1")
    config = relevant_config(args)
    assert relevant_config(changed(args, flag_of_tomorrow=None)) == config
    given = relevant_config(changed(args, flag_of_tomorrow=value))
    assert config_hash(given) != config_hash(config)
    assert difference(config, given) == f"flag_of_tomorrow: None → {value}"


def test_a_weight_decay_of_zero_is_not_the_default_one() -> None:
    def of(*flags: str) -> str:
        flags = ("--model", "dynamic_er", "--buffer_size", "50", "--seed", "1", *flags)
        return config_hash(relevant_config(parse_args(list(flags))))

    assert len({of(), of("--optim_wd_later", "0"), of("--optim_wd_later", "0.1")}) == 3


def test_flags_are_frozen() -> None:
    """A new or renamed flag is a change of the interface: make it here, too, on purpose."""
    flags = sorted(flag for flag in framework_parser().flags() if flag.startswith("--"))
    assert flags == sorted(
        """--backbone --base_path --batch_size --checkpoint_every --checkpoint_minutes --checkpoint_path
        --ckpt_name --classes_first_task --code_optimization --custom_class_order --dataset --dataset_config
        --cache_path_noisy_labels --debug_mode --disable_noisy_labels_cache --eval_future
        --deterministic --device --dgc --dgc_diagnostics --drop_last --embeddings --enable_other_metrics --eval_epochs
        --fitting_mode --help --inference_only --joint --label_perc --label_perc_by_class --label_perc_by_task
        --list --loadcheck --loss_diagnostics --lpc --lpt --lr --lr_milestones --lr_milestones_first --lr_scheduler
        --model --model_config --n_epochs --n_epochs_first --n_iters --n_tasks --noise_rate --noise_type
        --non_verbose --notes --nowand --num_workers --optim_mom --optim_nesterov
        --optim_wd --optimizer --overwrite --permute_classes --plugin --results_path --resume --savecheck
        --body_lr_scale --sched_multistep_lr_gamma --scheduler_mode --seed --start_from --stop_after --task_free
        --task_free_lr_restart --validation --validation_mode --wandb_entity --wandb_group --wandb_name --wandb_project
        --wandb_tags""".split()
    )
