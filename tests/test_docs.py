"""The documentation is executed: files are written where it says, commands run or parsed, flags and paths looked up."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from helpers import ROOT, run
from PIL import Image

import datasets
import embed
import models
from benchmarks import small_network
from datasets.seq_embeddings import EMBEDDED
from experiments import cli, demo
from experiments.report.calibration_picture import TITLES
from main import initialize
from models.utils.dgc_mixin import DgcMixin
from utils.cli.parse import parse_args, parser_of
from utils.training import train

PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("[!.]*/README.md"),
        *(ROOT / "docs").rglob("*.md"),
    )
}
README, EXTENDING, GUIDE = PAGES["README.md"], PAGES["docs/extending.md"], PAGES["docs/guide.md"]
MAMMOTH = PAGES["docs/mammoth.md"]

# Flags of the scripts in benchmarks/ and docs/figures/, and those that the examples of docs/extending.md bring along.
OTHER_FLAGS = {"--output", "--replay_beta", "--run_task_free", "--title", "--width"}
# Which pages may call by their names alone.
MODULES = {path.name for folder in ("experiments", "models", "utils") for path in (ROOT / folder).rglob("*.py")}
# Files that a page tells the reader to make.
TO_BE_MADE = {
    "models/my_method.py",
    "models/config/my_method.yaml",
    "datasets/seq_mine.py",
    "datasets/configs/seq-mine",
}
NAMED_FILE = r"^File `([^`]+)`:\n\n```\w+\n(.*?)^```"
SH_BLOCK = r"^```sh\n(.*?)^```"

# Runs the commands one after the other in one process, so that torch is loaded once.
DRIVER = """
import contextlib, io, json, runpy, sys
import main
results = []
for script, *flags in json.load(sys.stdin):
    output, code = io.StringIO(), 0
    with contextlib.redirect_stdout(output):
        try:
            main.main(flags) if script == "main.py" else runpy.run_path(script, run_name="__main__")
        except SystemExit as exit:
            code = exit.code or 0
    results.append([code, output.getvalue()])
print(json.dumps(results))
"""


class Extended(NamedTuple):
    """A copy of the project, extended as docs/extending.md says, after its commands."""

    root: Path
    outputs: dict[str, str]

    def run(self, dataset: str, model: str, **config: Any) -> tuple[dict[str, Any], Path]:
        """Summary and directory of the run with these settings."""
        for path in self.root.glob(f"data/results/{dataset}/{model}/*"):
            found = yaml.safe_load((path / "config.yaml").read_text())["config"]
            found |= found["dataset_fields"]
            if all(found[name] == value for name, value in config.items()):
                return json.loads((path / "summary.json").read_text()), path
        raise AssertionError(f"no run of {model} on {dataset} with {config}")


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Extended:
    root = tmp_path_factory.mktemp("project")
    shutil.copy(ROOT / "main.py", root)
    for package in ("backbone", "datasets", "models", "utils"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, content in re.findall(NAMED_FILE, EXTENDING, re.M | re.S):
        path = root / name
        assert not path.exists(), f"{name} is there already: the example needs another name"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    commands = "".join(re.findall(SH_BLOCK, EXTENDING, re.M | re.S)).splitlines()
    assert all(command.startswith("python ") for command in commands)
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_PROJECT"}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps([shlex.split(command)[1:] for command in commands]),
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert all(code == 0 for code, _ in results), done.stderr
    return Extended(root, {command: out for command, (_, out) in zip(commands, results, strict=True)})


@pytest.mark.slow
@pytest.mark.numeric
def test_the_new_method_is_listed_and_learns(extended: Extended) -> None:
    listing = extended.outputs["python main.py --list"]
    assert all(name in listing for name in ("er-beta", "seq-stripes", "small-cnn"))
    summary, directory = extended.run("seq-digits", "er-beta", replay_beta=0.5, buffer_size=200)
    assert summary["class_il"]["FAA"] > 80
    first = json.loads((directory / "metrics.jsonl").read_text().partition("\n")[0])
    assert len(first["stream_loss"]) == len(first["loss"]) == 50


@pytest.mark.slow
@pytest.mark.numeric
def test_the_new_dataset_and_its_variant_are_learnt(extended: Extended) -> None:
    three_tasks, _ = extended.run("seq-stripes", "er", N_TASKS=3, n_epochs=5)
    two_tasks, _ = extended.run("seq-stripes", "er", N_TASKS=2, n_epochs=10)
    assert (three_tasks["n_tasks"], two_tasks["n_tasks"]) == (3, 2)
    assert min(three_tasks["class_il"]["FAA"], two_tasks["class_il"]["FAA"]) > 80


@pytest.mark.slow
@pytest.mark.numeric
def test_the_new_network_learns_and_has_its_flag(extended: Extended) -> None:
    summary, _ = extended.run("seq-stripes", "er-beta", backbone="small-cnn", width=8)
    assert summary["class_il"]["FAA"] > 80
    assert summary["parameters"] == (9 * 8 + 8) + (8 * 9 * 16 + 16) + (256 * 6 + 6)


@pytest.mark.slow
def test_the_guide_names_every_file_of_a_run(extended: Extended) -> None:
    _, directory = extended.run("seq-digits", "er-beta")
    for path in directory.iterdir():
        assert f"`{path.name}`" in GUIDE


def flags_of_other_commands() -> set[str]:
    """As the help of `reproduce.py` and `embed.py` names them."""
    shown = io.StringIO()
    for command in cli.COMMANDS:
        with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
            cli.main([command, "--help"])
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
        embed.parse(["--help"])
    return set(re.findall(r"--[a-z]\w*", shown.getvalue()))


@pytest.fixture(scope="module")
def known_flags() -> set[str]:
    known = OTHER_FLAGS | flags_of_other_commands()
    for model in models.get_model_entries():
        for dataset in ("seq-digits", "seq-cifar100"):  # which have different networks
            known |= parser_of(["--model", model, "--dataset", dataset]).flags()
    return known


@pytest.mark.parametrize("page", PAGES)
def test_flags_exist(page: str, known_flags: set[str]) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z]\w*", PAGES[page]))
    assert named <= known_flags, named - known_flags


@pytest.mark.parametrize("page", PAGES)
def test_paths_and_links_lead_somewhere(page: str) -> None:
    made = TO_BE_MADE | {name for name, _ in re.findall(NAMED_FILE, EXTENDING, re.M | re.S)}
    text = re.sub(r"--output \S+", "", PAGES[page])  # written by the command
    folders = "backbone|benchmarks|datasets|docs|experiments|models|tests|utils"
    paths = set(re.findall(rf"(?<![\w/.<>*-])((?:{folders})/[\w./*-]*\w(?![\w<])|\w+\.py)", text)) - made
    places = [ROOT, (ROOT / page).parent]
    missing = {path for path in paths if not any(any(place.glob(path)) for place in places) and path not in MODULES}
    assert not missing
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert all(link.startswith("https://") or (ROOT / page).parent.joinpath(link).exists() for link in links), links


@pytest.mark.parametrize("page", PAGES)
def test_tables_have_a_head_as_wide_as_their_rows(page: str) -> None:
    """Otherwise they are shown as their source."""
    text = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.M | re.S)
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
        lines = block.splitlines()
        assert "---" not in lines[0] and re.fullmatch(r"[|:\- ]+", lines[1]), lines[0]
        widths = {re.sub(r"\\\||`[^`]*`", "", line).count("|") for line in lines}
        assert len(widths) == 1, lines[0]


def commands_of(page: str) -> list[str]:
    return [command.partition("#")[0].strip() for command in re.findall(r"python main\.py[^`\n]*", PAGES[page])]


@pytest.fixture(scope="module")
def mammoth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stands for MAMMOTH, with the files that its page names."""
    root = Path(shutil.copytree(ROOT / "tests/upstream_stand_in", tmp_path_factory.mktemp("checkout") / "mammoth"))
    model, dataset = (root / "models/er.py").read_text(), (ROOT / "tests/foreign/seq_patches.py").read_text()
    (root / "models/er_ace.py").write_text(model.replace('NAME = "er"', 'NAME = "er_ace"'))
    (root / "datasets/seq_birds.py").write_text(dataset.replace("seq-patches", "seq-birds"))
    return root


@pytest.mark.slow
def test_the_page_about_mammoth_is_run_there(mammoth: Path) -> None:
    first, *commands = re.findall(SH_BLOCK, MAMMOTH, re.M | re.S)[0].splitlines()
    assert commands.pop(0) == "cd MAMMOTH"
    subprocess.run([sys.executable, *shlex.split(first.replace("MAMMOTH", str(mammoth)))[1:]], cwd=ROOT, check=True)
    table = [shlex.split(command.replace("seq-cifar100", "seq-toy"))[1:] for command in commands]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], input=json.dumps(table), cwd=mammoth, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [code for code, _ in json.loads(done.stdout)] == [0] * 3


@pytest.mark.slow
def test_the_page_about_mammoth_is_run_here(mammoth: Path, tmp_path: Path) -> None:
    *commands, copying = re.findall(SH_BLOCK, MAMMOTH, re.M | re.S)[1].replace("MAMMOTH", str(mammoth)).splitlines()
    assert copying == f"cp {mammoth}/models/er_ace.py models/"
    for number, command in enumerate(commands):
        flags = ["--n_epochs", "1", "--stop_after", "2", "--base_path", str(tmp_path / str(number)), "--seed", "0"]
        model, dataset, args = initialize(parse_args(shlex.split(command)[2:] + flags))
        assert train(model, dataset, args)["n_tasks"] == 2
        assert isinstance(model, DgcMixin) == ("dgc" in command)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory, mammoth: Path) -> dict[str, str]:
    """What the words in capitals of the commands stand for: the directory of a run, the file of a saved model, …"""
    file = tmp_path_factory.mktemp("saved") / "model.pt"
    flags = ["--dataset", "seq-digits", "--buffer_size", "20", "--n_epochs", "1", "--stop_after", "1"]
    _, _, directory = run(tmp_path_factory.mktemp("run"), *flags)
    args = yaml.safe_load((directory / "config.yaml").read_text())["args"]
    torch.save({"args": args, "model": {"weight": torch.zeros(1)}}, file)
    return {"RUN": str(directory), "VECTORS": str(EMBEDDED.with_suffix("")), "FILE": str(file), "MAMMOTH": str(mammoth)}


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/extending.md"])  # which is run
def test_commands_parse(page: str, stand_ins: dict[str, str]) -> None:
    for command in commands_of(page):
        flags = [
            re.sub(r"[A-Z]+", lambda word: stand_ins.get(word[0], word[0]), word) for word in shlex.split(command)[2:]
        ]
        if {"--help", "--list"} & set(flags):
            with pytest.raises(SystemExit) as ended:
                parse_args(flags)
            assert not ended.value.code
        else:
            parse_args(flags)


def test_the_readme_begins_with_commands_that_exist() -> None:
    first_screen = "\n".join(README.splitlines()[:35])  # of which 8 are a table
    targets = re.findall(r"^make (\w+)", first_screen, re.M)
    assert targets == ["demo", "check", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)
    assert "python main.py --model dgc_er --dataset seq-cifar100 --buffer_size 2000" in first_screen
    assert len(README.splitlines()) <= 150


@pytest.mark.slow
@pytest.mark.numeric
def test_the_demo_compares_four_methods(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    demo.main(["--base_path", str(tmp_path)])
    printed = capsys.readouterr().out
    faa = {name: float(re.search(rf"\({name}\) +(\d+\.\d\d) ", printed)[1]) for name in TITLES}  # type: ignore[index]
    assert faa["sgd"] + 5 < faa["er"] < faa["dgc_er"] - 4 < faa["joint"] - 4
    width, height = Image.open(tmp_path / "demo.png").size
    assert width > 2 * height > 800
    demo.main(["--base_path", str(tmp_path)])  # nothing is trained again
    assert "Accuracy for" not in capsys.readouterr().out


def script(name: str) -> ModuleType:
    return importlib.import_module(f"docs.figures.{name}")


def test_tables_of_embeddings_come_from_the_committed_results() -> None:
    figures = script("embeddings")

    def shown(page: str, name: str) -> str:
        start, end = figures.marks(name)
        return (ROOT / page).read_text().partition(start)[2].partition(end)[0].strip()

    assert shown("README.md", "results") == figures.summary_table("main")
    for name, text in figures.blocks().items():
        assert shown("docs/results/embeddings/README.md", name) == text, name


def test_benchmark_figures_come_from_the_committed_results() -> None:
    benchmarks = script("benchmarks")
    shown = PAGES["docs/benchmarks.md"].partition(benchmarks.START)[2].partition(benchmarks.END)[0]
    assert shown.strip() == benchmarks.block()


def test_accuracies_beside_mammoths_come_from_the_committed_results() -> None:
    figures = script("mammoth_stream")
    assert MAMMOTH.partition(figures.START)[2].partition(figures.END)[0].strip() == figures.table()
    methods = json.loads(figures.RESULTS.read_text())["methods"]
    assert all(found["agrees"] for found in methods.values()) and len(methods) == 17


def test_the_choice_of_a_network_is_shown_as_it_was_measured() -> None:
    page = "docs/results/small/network.md"
    assert small_network.table(json.loads((ROOT / page).with_suffix(".json").read_text())) in PAGES[page]


@pytest.mark.parametrize("name", datasets.get_dataset_names(names_only=True))
def test_the_table_of_datasets_is_true(name: str) -> None:
    args = parse_args(["--model", "sgd", "--dataset", name])
    cls = datasets.get_dataset_class(args)
    rows = [line.strip("| ").split(" | ") for line in PAGES["docs/datasets.md"].splitlines() if line.startswith("|")]
    row = next(row for row in rows if row[0] == f"`{name}`" and len(row) == 9)
    height, width = cls.SIZE
    assert row[1:3] == [f"{cls.N_TASKS} × {cls.N_CLASSES_PER_TASK}", f"{height}×{width}×{cls.CHANNELS}"]
    assert row[6:] == [f"`{args.backbone}`", str(args.n_epochs), str(args.batch_size)]
    assert (row[4] == "no") == (cls.MEAN is None)
    assert (row[5] == "crop, flip") == bool(cls.CROP_PADDING and cls.HORIZONTAL_FLIP)
