"""What a flag is to a run is said where it is declared; what a command selects is found once and carried."""

from __future__ import annotations

import ast
import copy
import pickle
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import ROOT

from utils.cli import registry
from utils.cli.config import Config
from utils.cli.flags import DERIVED, declared, framework_parser
from utils.cli.mammoth_flags import MAMMOTHS
from utils.cli.parse import parse_args
from utils.cli.roles import Role
from utils.run.identity import changed, config_hash, recorded_args, relevant_config

COMMAND = ["--model", "dgc_er", "--buffer_size", "20", "--n_epochs", "1", "--seed", "1"]
PRODUCT = ("backbone", "datasets", "experiments", "models", "utils", "main.py", "reproduce.py")
DECLARING = {"utils/cli/flags.py", "utils/cli/training_flags.py", "utils/cli/mammoth_flags.py"}
FLAGS = framework_parser().actions_by_dest().keys()


@pytest.fixture
def args() -> Config:
    return parse_args(COMMAND)


# -- roles -------------------------------------------------------------------------------------------------------------


def test_every_flag_of_the_framework_has_a_role() -> None:
    assert framework_parser().declared.keys() == FLAGS
    assert {declared(name).role for name in FLAGS} == set(Role) - {Role.FIXED, Role.DERIVED}
    assert {declared(name).role for name in MAMMOTHS} == {Role.FIXED, Role.DERIVED}  # the latter is class_order
    assert declared("buffer_size").role is declared("flag_of_a_plugin").role is Role.RESULT


def test_every_value_is_a_flag_or_declared_as_derived(args: Config) -> None:
    derived = {name for name in vars(args) if declared(name).role is Role.DERIVED}
    assert derived <= DERIVED.keys() and not DERIVED.keys() & FLAGS
    assert not derived & recorded_args(args).keys()


READ = {name for name in FLAGS if declared(name).role in (Role.PRESET, Role.FILE, Role.ORIGIN)} | {"dataset", "model"}


@pytest.mark.parametrize("name", [*sorted(FLAGS - READ), "buffer_size", "flag_of_a_plugin"])
def test_the_hash_covers_the_flags_whose_role_says_so(name: str, args: Config) -> None:
    """Those left out stand for settings, a class or a file, which must be there."""
    other = changed(args, **{name: "another value"})
    assert (recorded_args(other).get(name) == "another value") is declared(name).role.recorded
    assert (config_hash(relevant_config(other)) != config_hash(relevant_config(args))) is declared(name).role.hashed


def words(node: ast.AST) -> list[str]:
    """The strings in a literal collection, or in `"a b c".split()`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
        text = node.func.value
        return str(text.value).split() if isinstance(text, ast.Constant) else []
    if isinstance(node, ast.Set | ast.List | ast.Tuple):
        return [part.value for part in node.elts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return []


def product_files() -> Iterator[Path]:
    for name in PRODUCT:
        yield from sorted((ROOT / name).rglob("*.py")) if (ROOT / name).is_dir() else [ROOT / name]


def test_no_file_keeps_a_set_of_flags_of_its_own() -> None:
    """Three names are a set: whatever it is for, the flags can say it by their role.

    Model, dataset and seed are also columns of results, and don't count.
    """
    found = {}
    for file in product_files():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            flags = [word for word in words(node) if word.removeprefix("--") in FLAGS - {"model", "dataset", "seed"}]
            if len(flags) >= 3:
                found[f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"] = flags
    assert not {place: flags for place, flags in found.items() if place.partition(":")[0] not in DECLARING}


# -- the selection -----------------------------------------------------------------------------------------------------


def test_a_name_is_searched_for_once_per_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from main import initialize
    from utils.run.directory import RunDirectory

    searched, find = Counter[str](), registry.find
    monkeypatch.setattr(registry, "find", lambda kind, *rest: searched.update([kind.name]) or find(kind, *rest))
    for flags in ([], ["--backbone", "mnistmlp"]):
        searched.clear()
        args = parse_args([*COMMAND, "--base_path", str(tmp_path), *flags])
        first = RunDirectory(args).path
        initialize(args)
        assert RunDirectory(args).path == first
        assert searched == {"model": 1, "dataset": 1, "backbone": 1}


def test_a_namespace_made_by_hand_selects_by_its_names(args: Config) -> None:
    from models import get_model_class

    assert get_model_class(args).NAME == "dgc_er"
    assert get_model_class(Namespace(model="derpp")).NAME == "derpp"
    args.model = "er"  # by a program that builds another one
    assert get_model_class(args).NAME == "er"


# -- what is recorded --------------------------------------------------------------------------------------------------


def test_what_a_model_does_to_its_flags_is_not_recorded(args: Config) -> None:
    before, config = recorded_args(args), relevant_config(args)
    args.lr, args.buffer_size, args.new = 7.0, 1, "flag"
    args.n_tasks, args.dataset_config, args.plugin = 2, "online", ["nowhere.py"]  # which other settings follow from
    args.lr_milestones.append(3)
    recorded_args(args)["lr_milestones"].append(4)
    assert recorded_args(args) == before and relevant_config(args) == config
    args.device = "cuda:1"  # found when the run is built
    assert recorded_args(args) == before | {"device": "cuda:1"} and relevant_config(args) == config


def test_a_copy_of_the_flags_keeps_what_is_recorded(args: Config) -> None:
    for other in (copy.copy(args), copy.deepcopy(args), pickle.loads(pickle.dumps(args))):
        other.lr = 7.0
        assert relevant_config(other) == relevant_config(args)
    assert not [name for name in vars(args) if name.startswith("_")]


def test_methods_of_the_project_leave_their_flags_alone() -> None:
    """They fill them in while the command is parsed (`check_args`), before anything is recorded."""
    writing = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in sorted((ROOT / "models").rglob("*.py"))
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef) and not function.name.startswith("check_")
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if ast.unparse(node.value) in ("args", "self.args")
    ]
    assert not writing
