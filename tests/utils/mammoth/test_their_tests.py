"""What Mammoth's own tests rely on: `main()` called again and again in one process, and what it logs and leaves."""

from __future__ import annotations

import logging
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_helpers import FOREIGN, write
from torch import nn

import backbone
import datasets
import main as main_module
import models
from backbone import register_backbone
from datasets import ContinualDataset, register_dataset
from main import main
from models import ContinualModel, register_model
from utils.cli.parse import parse_args

QUICK = "--debug_mode 1 --non_verbose 1 --num_workers 0 --n_epochs 1 --batch_size 16 --lr 0.1 --seed 0"


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """`main()` as their tests call it; gives the messages of the root logger."""
    monkeypatch.setenv("MAMMOTH_TEST", "1")
    caplog.set_level(logging.DEBUG)

    def call_(flags: str) -> list[str]:
        caplog.clear()
        folders = f"--base_path {tmp_path} --checkpoint_path {tmp_path}/checkpoints"
        monkeypatch.setattr(sys, "argv", ["mammoth", *f"{flags} {QUICK} {folders}".split()])
        assert main() is None
        return [record.getMessage() for record in caplog.records if record.name == "root"]

    return call_


def test_the_same_command_trains_again_and_says_what_with(call: Any, capsys: pytest.CaptureFixture) -> None:
    command = "--model er --buffer_size 50"
    for _ in range(2):
        messages = call(command)
        (flags,) = [message for message in messages if message.startswith("Namespace(")]
        assert "buffer_size=50" in flags and "model='er'" in flags
        assert "Using backbone: mnistmlp" in messages
        shown = capsys.readouterr()
        accuracies = [line[:22] for line in shown.err.splitlines() if line.startswith("Accuracy")]
        assert accuracies == [f"Accuracy for {n} task(s)" for n in range(1, 6)]
        assert "This run is finished" not in shown.out


@pytest.mark.parametrize("tested", ["0", "1"])
def test_a_script_says_that_it_runs(
    tested: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("MAMMOTH_TEST", tested)
    monkeypatch.setattr(sys, "argv", ["main.py", "--list"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(main_module.__file__), run_name="__main__")
    assert capsys.readouterr().out.count("Running Mammoth!") == int(tested)


def test_a_hidden_size_of_its_own_is_logged(call: Any) -> None:
    command = "--model sgd --dataset seq-digits --backbone mnistmlp"
    line = "hidden size is set to `7` instead of the default `100`"
    assert line in call(f"{command} --mlp_hidden_size 7") and line not in call(command)


def test_the_parser_alone() -> None:
    command = ["--model", "derpp", "--dataset", "seq-digits", "--buffer_size", "9"]
    parser = main_module.parse_args(command, return_parser_only=True)
    assert {"alpha", "beta", "lr", "buffer_size"} <= set(vars(parser.parse_args(command)))
    assert main_module.parse_args(command).buffer_size == 9


def test_debug_mode_alone_trains_again_too(
    call: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.delenv("MAMMOTH_TEST")
    for _ in range(2):
        call("--model sgd --stop_after 1")
        assert "Accuracy for 1 task(s)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "files"),
    [("--savecheck last --stop_after 2", ["last"]), ("--savecheck task --stop_after 2", ["0", "1"])]
    + [(f"--savecheck {when} --joint 1", ["joint"]) for when in ("last", "task")],
)
def test_checkpoints_are_called_what_the_record_says(call: Any, tmp_path: Path, flags: str, files: list[str]) -> None:
    model = "--model er --buffer_size 50" if "joint" not in flags else "--model sgd"
    messages = call(f"{model} --ckpt_name mine {flags}")
    (name,) = [m.partition(": ")[2] for m in messages if m.startswith("Saving checkpoint into: ")]
    parts = name.split("_")
    size = "50" if "er" in parts else "0"
    assert parts[:6] == ["mine", model.split()[1], "seq-digits", "None", size, "1"] and len(parts[7]) == 8
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {f"{name}_{end}.pt" for end in files}


def test_a_checkpoint_holds_schedule_and_optimizer_in_torchs_form(call: Any, tmp_path: Path) -> None:
    call(
        "--model derpp --buffer_size 60 --alpha 0.1 --beta 0.5 --savecheck last --stop_after 1 "
        "--lr_scheduler multisteplr --lr_milestones 1"
    )
    (file,) = (tmp_path / "checkpoints").iterdir()
    content = torch.load(file, weights_only=True)
    group = content["optimizer"]["param_groups"][0]
    assert group["initial_lr"] == 0.1 and group["lr"] == pytest.approx(0.01)
    assert list(content["scheduler"]["milestones"]) == [1] and content["scheduler"]["base_lrs"] == [0.1]
    assert len(content["buffer"]["examples"]) == len(content["buffer"]["logits"]) == 60


def test_presets_lie_beside_a_plugin(tmp_path: Path) -> None:
    """`models/config` and `datasets/configs` of its own checkout, for flags known and unknown."""
    for folder in ("models/config", "datasets/configs/seq-patches"):
        (tmp_path / folder).mkdir(parents=True)
    si = write(tmp_path / "models", "si.py", (FOREIGN / "si.py").read_text())
    patches = write(tmp_path / "datasets", "seq_patches.py", (FOREIGN / "seq_patches.py").read_text())
    write(
        tmp_path / "datasets/configs/seq-patches", "2tasks.yaml", "N_TASKS: 2\nN_CLASSES_PER_TASK: 3\nbatch_size: 5\n"
    )
    write(
        tmp_path / "models/config",
        "si.yaml",
        "default:\n  mlp_hidden_size: 20\n  unheard_of: 7\n"
        "seq-patches:\n  dataset_config: 2tasks\n  lr: 0\n  c: 0.25\n  n_epochs: 4\n",
    )
    command = ["--plugin", si, "--model", "si", "--plugin", patches, "--dataset", "seq-patches", "--seed", "0"]
    for alias in ("default", "base"):
        args = parse_args([*command, "--model_config", alias, "--c", "1", "--lr", "0.1"])
        assert (args.mlp_hidden_size, args.unheard_of, args.n_epochs, args.c) == (20, 7, 2, 1)
    args = parse_args([*command, "--model_config", "best"])
    assert (args.lr, args.c, args.n_epochs, args.batch_size, args.mlp_hidden_size) == (0, 0.25, 4, 5, 20)
    assert args.dataset_config == "2tasks" and datasets.get_dataset_class(args).N_TASKS == 2
    ours = parse_args(["--plugin", si, "--model", "si", "--c", "1", "--lr", "0.1"])  # a dataset of ours has its own
    assert ours.dataset_config is None and ours.mlp_hidden_size == 20


# -- what a program registers itself -----------------------------------------------------------------------------------


class Vectors(torch.utils.data.Dataset):
    """[N, 10] tensors; the label is the place of the largest number."""

    def __init__(self, train: bool):
        self.data = torch.rand(60, 10, generator=torch.Generator().manual_seed(int(train)))
        self.targets, self.train = self.data.argmax(1).numpy(), train

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        x, y = self.data[index], int(self.targets[index])
        return (x, y, x) if self.train else (x, y)


@pytest.fixture
def registered() -> Any:
    """A model, a dataset and a network of the test's own, as a notebook would have them."""
    before = [dict(names) for names in (models.REGISTERED_MODELS, datasets.REGISTERED_DATASETS)]
    before.append(dict(backbone.REGISTERED_BACKBONES))

    @register_backbone("line")
    def line() -> nn.Module:
        return nn.Linear(10, 10)

    @register_dataset("seq-lines")
    class Lines(ContinualDataset):
        NAME, SETTING = "seq-lines", "class-il"
        N_CLASSES_PER_TASK, N_TASKS, SIZE = 5, 2, (10,)  # type: ignore[assignment]

        def get_data_loaders(self) -> Any:
            return datasets.utils.continual_dataset.store_masked_loaders(Vectors(True), Vectors(False), self)

        @staticmethod
        def get_loss() -> Any:
            return nn.CrossEntropyLoss()

        @staticmethod
        def get_transform() -> Any:
            return None

        @staticmethod
        def get_normalization_transform() -> Any:
            return None

    @register_dataset("bare")
    class Bare(ContinualDataset):
        def __init__(self, num_classes: int = 10, grain: int = 3):
            raise NotImplementedError

    @register_model("tuner")
    class Tuner(ContinualModel):
        NAME, COMPATIBILITY = "tuner", ["class-il"]

        @staticmethod
        def get_parser(parser: Any) -> Any:
            parser.add_argument("--resume", type=float, default=0.5)  # a name of the framework's
            return parser

        def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
            self.opt.zero_grad()
            loss = self.loss(self.net(inputs), labels)
            loss.backward()
            self.opt.step()
            return loss.item()

    yield
    for names, old in zip((models.REGISTERED_MODELS, datasets.REGISTERED_DATASETS), before[:2], strict=True):
        names.clear()
        names.update(old)
    backbone.REGISTERED_BACKBONES.clear()
    backbone.REGISTERED_BACKBONES.update(before[2])


@pytest.mark.usefixtures("registered")
def test_what_the_process_registers_can_be_selected(call: Any, tmp_path: Path) -> None:
    call("--model tuner --dataset seq-lines --backbone line --resume 0.25")
    (config,) = tmp_path.glob("results/seq-lines/tuner/*/config.yaml")
    assert "registered_sha256" in config.read_text() and "resume: 0.25" in config.read_text()


@pytest.mark.usefixtures("registered")
def test_help_names_all_choices_and_the_flags_of_signatures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for command, expected in {
        "--model sgd --dataset seq-lines --backbone line": ["seq-lines", "seq-digits", "line", "resnet18", "tuner"],
        "--model sgd --dataset bare --backbone mnistmlp": ["--grain", "--mlp_hidden_size"],
    }.items():
        monkeypatch.setattr(sys, "argv", ["mammoth", *command.split(), "--help"])
        with pytest.raises(SystemExit) as ended:
            main()
        text = capsys.readouterr().out
        assert ended.value.code == 0 and all(word in text for word in expected)


# -- import mammoth ----------------------------------------------------------------------------------------------------


def test_the_package_of_that_name(tmp_path: Path) -> None:
    import mammoth

    flags = {"buffer_size": 50, "lr": 0.1, "n_epochs": 1, "seed": 0, "base_path": tmp_path, "stop_after": 1}
    weights = []
    for _ in range(2):  # trained both times, although the run is then finished
        model, dataset = mammoth.load_runner("er", "seq-digits", flags | {"notes": None, "lr_milestones": [1, 2]})
        assert isinstance(model, mammoth.ContinualModel) and isinstance(dataset, mammoth.ContinualDataset)
        summary = mammoth.train(model, dataset)
        weights.append(model.net.classifier.weight.detach().clone())
        assert summary["steps"] == 9 and model.buffer.num_seen_examples == 288
    assert torch.equal(*weights)


def test_the_flags_that_it_tells() -> None:
    import mammoth

    required, optional = mammoth.get_avail_args(dataset="seq-digits", model="derpp")
    assert set(required) == {"buffer_size"} and set(required["buffer_size"]) == {"description"}
    assert optional["batch_size"]["default"] == 32 and optional["alpha"]["default"] == 0.1
    assert "learning rate" in optional["lr"]["description"]
    required, optional = mammoth.get_avail_args()
    assert "lr" in required and "seed" in optional and not {"help", "debug_mode"} & {*required, *optional}
    assert {"er", "seq-digits", "mnistmlp"} <= {
        *mammoth.get_model_names(), *mammoth.get_dataset_names(names_only=True), *mammoth.get_backbone_names()
    }  # fmt: skip
    assert all(hasattr(mammoth, name) for name in mammoth.__all__)
