"""Files from elsewhere: how they are found, named, reported and made part of a run's identity."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import yaml
from foreign_helpers import FOREIGN, flags_of, write
from helpers import ROOT, assert_same_run, run

import models
from main import initialize
from utils.cli.parse import listing, parse_args
from utils.errors import UsageError, UserError
from utils.mammoth.gem import overwrite_grad, store_grad
from utils.run.identity import config_hash, relevant_config
from utils.training import train

MODEL = """
from models.utils.continual_model import ContinualModel

class Mine(ContinualModel):
    NAME = {name}
    COMPATIBILITY = ["class-il"]

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        return 0
"""
BACKBONE = """
from backbone import register_backbone
from backbone.MNISTMLP import MNISTMLP

@register_backbone("tiny-" + "mlp")
def tiny(num_classes, width: int = 7, input_size: int = 784):
    return MNISTMLP(input_size, num_classes, width)
"""


def parse(*flags: str) -> Namespace:
    return parse_args(["--lr", "0.1", "--seed", "0", *flags])


@pytest.mark.parametrize("name", ["'any_name'", "'any' + '_name'", "'_'.join(['any', 'name'])"])
@pytest.mark.parametrize("asked", ["any_name", "any-name", "ANY-name"])
def test_a_plugin_is_found_by_its_name_whatever_its_file_is_called(name: str, asked: str, tmp_path: Path) -> None:
    file = write(tmp_path, "something else.py", MODEL.format(name=name))
    args = parse("--plugin", file, "--model", asked)
    assert args.model == "any-name" and models.get_model_class(args).__name__ == "Mine"


@pytest.mark.parametrize("name", ["'by_decorator'", "'by' + '_decorator'"])
def test_a_decorator_names_a_model_as_well(name: str, tmp_path: Path) -> None:
    decorated = f"\nfrom models import register_model\n@register_model({name})\nclass"
    content = MODEL.format(name="'mine'").replace("\nclass", decorated)
    args = parse("--plugin", write(tmp_path, "m.py", content), "--model", "by_decorator")
    assert models.get_model_class(args).NAME == "mine"


def test_what_cannot_be_saved_is_said_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    init = "\n    def begin_task(self, dataset):\n        self.late = iter([])\n    early = None\n"
    init += "\n    def __init__(self, *args):\n        super().__init__(*args)\n        self.early = iter([])\n"
    file = write(tmp_path, "m.py", MODEL.format(name="'iterators'") + init)
    run(tmp_path / "run", "--plugin", file, "--lr", "0.1", "--n_epochs", "1", "--stop_after", "1", model="iterators")
    said = [record.message for record in caplog.records]
    assert said == [
        f"an interrupted run will not resume exactly: {name} (builtins.list_iterator) can't be saved"
        for name in ("early", "late")
    ]


def test_one_dropped_into_the_folder_is_found_also_by_a_computed_name() -> None:
    file = ROOT / "models" / "zz_dropped.py"
    file.write_text(MODEL.format(name="'dropped' + '_in'"))
    try:
        assert models.get_model_class(parse("--model", "dropped_in")).__name__ == "Mine"
        with pytest.raises(UsageError, match="unknown model 'dropped-out'"):
            parse("--model", "dropped-out")
    finally:
        file.unlink()


def test_a_name_that_is_taken_goes_to_the_plugin_with_a_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("'er'", "'e' + 'r'"):
        caplog.clear()
        file = write(tmp_path, "mine.py", MODEL.format(name=name))
        assert models.get_model_class(parse("--plugin", file, "--model", "er")).__name__ == "Mine"
        assert [record.message for record in caplog.records] == [
            f"model er is that of {file}, not that of models/er.py"
        ]
    caplog.clear()
    assert models.get_model_class(parse("--model", "er", "--buffer_size", "5")).__name__ == "Er"
    assert not caplog.records


def test_a_file_added_to_the_folder_wins_over_the_one_that_has_its_name(caplog: pytest.LogCaptureFixture) -> None:
    file = ROOT / "models" / "a_dropped.py"
    file.write_text(MODEL.format(name="'er'"))
    try:
        assert models.get_model_class(parse("--model", "er")).__name__ == "Mine"
        assert "models/a_dropped.py, not that of models/er.py" in caplog.text
    finally:
        file.unlink()


def test_several_plugins_of_several_kinds(tmp_path: Path) -> None:
    files = [write(tmp_path, "m.py", MODEL.format(name="'mine'")), write(tmp_path, "b.py", BACKBONE)]
    flags = ["--plugin", files[0], "--plugin", files[1], "--backbone", "tiny_mlp", "--width", "5"]
    _, model, _ = run(tmp_path / "run", "--lr", "0.1", "--stop_after", "1", *flags, model="mine")
    assert (model.net.feature_dim, model.args.backbone) == (5, "tiny-mlp")
    assert model.args.plugin == files
    table = listing(files)
    assert "plugins:\n  mine" in table and "tiny-mlp" not in table  # a listing imports nothing


def test_a_plugin_imports_what_lies_beside_it_or_is_given_too(tmp_path: Path) -> None:
    """Before what we have under that name, which for all others stays what it is."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    importing = "from models.far import WORD\nfrom models.er import Mine as Er\nfrom models.derpp import Derpp\n"
    here = write(
        tmp_path / "one", "m.py", importing + MODEL.format(name="'importing'") + "    words = WORD, Er, Derpp\n"
    )
    write(tmp_path / "one", "er.py", MODEL.format(name="'beside'"))
    far = write(tmp_path / "two", "far.py", "WORD = 'far'\n")
    found = models.get_model_class(parse("--plugin", here, "--plugin", far, "--model", "importing"))
    word, er, derpp = found.words  # type: ignore[attr-defined]
    assert (word, er.NAME, derpp) == ("far", "beside", models.get_model_class(Namespace(model="derpp")))
    assert models.get_model_class(Namespace(model="er")).NAME == "er"
    alone = write(tmp_path / "one", "m.py", importing + MODEL.format(name="'importing'") + "# alone\n")
    with pytest.raises(
        UserError, match=r"m\.py cannot be imported: ModuleNotFoundError: No module named 'models\.far'"
    ):
        parse("--plugin", alone, "--model", "importing")


def test_a_gem_comes_without_the_file_of_gem(tmp_path: Path) -> None:
    file = write(tmp_path, "alone.py", (FOREIGN / "agem.py").read_text())
    flags = ("--plugin", file, "--buffer_size", "100", "--lr", "0.1", "--n_epochs", "3", "--stop_after", "3")
    summary, model, _ = run(tmp_path / "alone", *flags, model="agem")
    beside, _, _ = run(tmp_path / "beside", *flags_of("agem"), *flags[6:], model="agem")
    assert type(model).__module__.startswith("plugin_alone") and summary["class_il"] == beside["class_il"]


@pytest.mark.numeric
def test_gradients_as_one_vector() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2, 3)), *(torch.nn.Parameter(torch.zeros(n)) for n in (2, 1))]
    parameters[0].grad, parameters[2].grad = torch.arange(6.0).view(3, 2).T, torch.tensor([9.0])
    vector, sizes = torch.ones(9), [6, 2, 1]
    store_grad(lambda: parameters, vector, sizes)
    assert vector.tolist() == [0, 2, 4, 1, 3, 5, 0, 0, 9]
    overwrite_grad(lambda: parameters, -vector, sizes)
    assert parameters[0].grad.tolist() == [[0, -2, -4], [-1, -3, -5]] and parameters[2].grad.tolist() == [-9]
    assert parameters[1].grad is None


BROKEN = {
    "imports": "import no_such_module\n" + MODEL.format(name="'broken'"),
    "raises": MODEL.format(name="'broken'") + "\nraise RuntimeError('as\\nsuch')",
    "exits": "import sys\nsys.exit(3)\n" + MODEL.format(name="'broken'"),
    "computed": "raise KeyError('no name')",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_reported_when_asked_for_and_hinders_nobody(kind: str, tmp_path: Path) -> None:
    file = write(tmp_path, "broken.py", BROKEN[kind])
    with pytest.raises(UserError, match=r"broken\.py cannot be imported: \w+(Error|Exit): ") as caught:
        parse("--plugin", file, "--model", "broken")
    assert "\n" not in str(caught.value)
    assert models.get_model_class(parse("--plugin", file, "--model", "sgd")).NAME == "sgd"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("x = 1\ndef f(:", "invalid syntax, line 2"),
        ("\0", "source code .* null bytes"),
        ("(" * 10**5, "too many|overflow"),
    ],
    ids=["syntax", "zero", "nested"],
)
def test_a_plugin_with_a_syntax_error_is_named_as_such(content: str, reason: str, tmp_path: Path) -> None:
    """Also where another file has the model: it can't have been meant."""
    file = write(tmp_path, "broken.py", content)
    for model in ("broken", "sgd"):
        with pytest.raises(
            UsageError, match=rf"--plugin {file} is not valid Python: .*({reason}).*; correct it"
        ) as caught:
            parse("--plugin", file, "--model", model)
        assert "\n" not in str(caught.value)


def test_a_model_that_has_a_flag_twice_is_reported_in_one_line(tmp_path: Path) -> None:
    parser = "\n    @staticmethod\n    def get_parser(parser):\n" + "        parser.add_argument('--c')\n" * 2
    file = write(tmp_path, "clash.py", MODEL.format(name="'clash'") + parser)
    with pytest.raises(UserError, match=r"the flags of model clash can't be added: ArgumentError: .*--c"):
        parse("--plugin", file, "--model", "clash")


def test_a_parser_of_its_own_is_taken_over(tmp_path: Path) -> None:
    body = """
    @staticmethod
    def get_parser(parser):
        parser = ArgumentParser(description="mine")
        add_rehearsal_args(parser)
        parser.add_argument("--p-steps", type=int, default=3)
        parser.set_defaults(n_epochs=2, of_no_flag=5)
        parser.add_argument_group(title="more", description="of mine").add_argument("--further", type=int, default=4)
        return parser
"""
    content = "from utils.args import *\n" + MODEL.format(name="'own_parser'") + body
    args = parse("--plugin", write(tmp_path, "own.py", content), "--model", "own_parser", "--buffer_size", "7")
    assert (args.buffer_size, args.p_steps, args.n_epochs, args.of_no_flag, args.further) == (7, 3, 2, 5, 4)


def test_what_is_not_there_or_given_twice(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.py: no such file"):
        parse("--plugin", str(tmp_path / "nowhere.py"), "--model", "sgd")
    with pytest.raises(UsageError, match="--seed is given 2 times"):
        parse("--model", "sgd", "--seed", "1")


def test_a_run_depends_on_the_content_of_its_plugin_not_on_its_place(tmp_path: Path) -> None:
    def hash_of(file: str) -> str:
        return config_hash(relevant_config(parse("--plugin", file, "--model", "mine")))

    content = MODEL.format(name="'mine'")
    (tmp_path / "elsewhere").mkdir()
    first = hash_of(write(tmp_path, "m.py", content))
    assert hash_of(write(tmp_path / "elsewhere", "other.py", content)) == first
    assert hash_of(write(tmp_path, "m.py", content + "# edited\n")) != first
    assert not {"plugin", "plugin_sha256"} & relevant_config(parse("--model", "sgd")).keys()


@pytest.mark.slow
def test_resume_finds_the_plugin_and_notices_an_edit(tmp_path: Path) -> None:
    file = write(
        tmp_path, "mine.py", (FOREIGN / "sgd.py").read_text().replace("'sgd'", "'mine'").replace('"sgd"', "'mine'")
    )
    base = tmp_path / "run"
    _, _, directory = run(base, "--plugin", file, "--lr", "0.1", "--n_epochs", "1", "--stop_after", "1", model="mine")
    assert yaml.safe_load((directory / "config.yaml").read_text())["args"]["plugin"] == [file]
    command = [sys.executable, str(ROOT / "main.py"), "--resume", str(directory)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "This run is finished" in done.stdout, done.stderr
    (directory / "summary.json").unlink()
    Path(file).write_text(Path(file).read_text() + "\n# edited\n")
    with pytest.raises(UsageError, match=r"was begun with other settings \(plugin_sha256"):
        train(*initialize(parse("--resume", str(directory))))


def test_a_file_given_by_loadcheck_never_has_its_plugin_imported(tmp_path: Path) -> None:
    """Whoever made the file can name any path, and the code there must not run unless the user names it, too."""
    mark = tmp_path / "mark"
    evil = write(tmp_path, "evil.py", f"open({str(mark)!r}, 'w').close()\n" + MODEL.format(name="'evil'"))
    file = tmp_path / "model.pt"
    for named in ([evil], evil, {evil: 1}, [3]):
        stored = {"model": "evil", "dataset": "seq-digits", "plugin": named}
        torch.save({"model": {"net.weight": torch.zeros(1)}, "args": stored}, file)
        for flags in ([], ["--help"], ["--dataset", "seq-digits"], ["--model", "evil"], ["--model", "sgd"]):
            with pytest.raises(
                UsageError, match=r"model\.pt was made with --plugin .*; give --plugin yourself"
            ) as error:
                parse("--loadcheck", str(file), *flags)
            assert "\n" not in str(error.value)
        assert parse("--loadcheck", str(file), "--model", "sgd", "--dataset", "seq-digits").plugin == []
        with pytest.raises(UsageError, match="unknown model 'evil'"):
            parse("--loadcheck", str(file), "--model", "evil", "--dataset", "seq-digits")
    assert not mark.exists()
    assert parse("--loadcheck", str(file), "--plugin", evil).model == "evil"
    assert mark.exists()  # the trap itself works


def test_a_file_given_by_loadcheck_does_not_decide_where_a_run_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_PROJECT", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    flags = {"wandb_project": "theirs", "wandb_entity": "them", "wandb_name": "x", "wandb_tags": ["x"], "nowand": 0}
    stored = {"model": "sgd", "lr": 0.25, **flags}
    torch.save({"model": {"net.weight": torch.zeros(1)}, "args": stored}, tmp_path / "model.pt")
    args = parse_args(["--loadcheck", str(tmp_path / "model.pt"), "--seed", "0"])
    assert (args.model, args.wandb_project, args.wandb_entity, args.wandb_name) == ("sgd", None, None, None)
    assert args.nowand == 1 and args.wandb_tags == []


def test_a_file_given_by_loadcheck_hands_on_settings_and_not_what_a_run_did(tmp_path: Path) -> None:
    done = {"notes": "theirs", "non_verbose": True, "checkpoint_every": 7, "inference_only": True, "stop_after": 2}
    stored = {"model": "sgd", "n_epochs": 3, "dataset_config": "online", **done}
    torch.save({"model": {"net.weight": torch.zeros(1)}, "args": stored}, tmp_path / "model.pt")
    args = parse_args(["--loadcheck", str(tmp_path / "model.pt"), "--seed", "0"])
    assert (args.model, args.n_epochs, args.dataset_config) == ("sgd", 3, "online")
    own = parse_args(["--model", "sgd", "--seed", "0"])
    assert {name: getattr(args, name) for name in done} == {name: getattr(own, name) for name in done}


def test_resume_shows_the_plugin_before_it_is_imported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = write(tmp_path, "broken.py", "raise SystemExit('imported')\n")
    config = {"hash": "0", "config": {}, "args": {"model": "sgd", "plugin": [broken]}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(UserError):
        parse_args(["--resume", str(tmp_path), "--dataset", "no-such-dataset"])
    assert f"--resume {tmp_path} imports its plugin: {broken}" in caplog.text
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config | {"args": {"model": "sgd", "plugin": 3}}))
    with pytest.raises(UserError, match="is damaged: plugin: 3 is no list of files"):
        parse_args(["--resume", str(tmp_path)])


def test_ours_are_untouched_by_plugins(tmp_path: Path) -> None:
    """In a process that has loaded plugins a run is the same as in one that has not."""
    flags = ("--buffer_size", "50", "--n_epochs", "1", "--stop_after", "1")
    _, _, before = run(tmp_path / "before", *flags)
    run(tmp_path / "plugin", *flags_of("lucir"), "--n_epochs", "1", "--stop_after", "1", model="lucir")
    _, _, after = run(tmp_path / "after", *flags)
    assert_same_run(before, after)
