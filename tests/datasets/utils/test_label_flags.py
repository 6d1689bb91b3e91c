"""Wrong and missing labels, of our datasets and of those from elsewhere; flags of Mammoth that have one value here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_helpers import on
from helpers import ROOT, run

import datasets
from models.sgd import Sgd
from utils.cli.mammoth_flags import MAMMOTHS
from utils.cli.parse import parse_args
from utils.errors import UsageError
from utils.run.identity import config_hash, relevant_config

DIGITS: list[str] = []
DATASETS = [DIGITS, on("seq-patches"), on("grey-patches")]


def parse(*flags: str) -> Any:
    return parse_args(["--model", "sgd", "--seed", "0", "--lr", "0.1", *flags])


def training_sets(*flags: str, cssl: bool = False) -> list[Any]:
    """The training sets of all tasks."""
    args = parse(*flags)
    args.device, args.takes_unlabelled = torch.device("cpu"), cssl
    dataset = datasets.get_dataset(args)
    return [dataset.get_data_loaders()[0].dataset for _ in range(dataset.N_TASKS)]


def labels_of(images: Any) -> list[int]:
    return torch.as_tensor(images.targets).tolist()


@pytest.mark.parametrize("flags", DATASETS)
def test_a_share_of_the_labels_is_wrong_before_tasks_are_cut_out(flags: list[str]) -> None:
    tasks = training_sets(*flags, "--noise_rate", "0.3")
    given = [int(item[1]) for images in tasks for item in images]
    true = [int(item[3]) for images in tasks for item in images]
    assert len(given) == sum(map(len, training_sets(*flags)))
    assert sum(a != b for a, b in zip(given, true, strict=True)) == round(0.3 * len(given))
    for task, images in enumerate(tasks):
        assert set(labels_of(images)) == {2 * task, 2 * task + 1}  # by the labels that are seen
        assert len({int(item[3]) for item in images}) == len(set(true))  # any other label, with the same chance
    assert [labels_of(images) for images in tasks] == [
        labels_of(images) for images in training_sets(*flags, "--noise_rate", "0.3")
    ]


def test_the_true_labels_reach_observe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen, plain = [], Sgd.observe

    def observe(self: Any, inputs: Any, labels: Any, not_aug_inputs: Any, true_labels: Any, epoch: Any = None) -> Any:
        seen.append((labels != true_labels).float().mean().item())
        return plain(self, inputs, labels, not_aug_inputs)

    monkeypatch.setattr(Sgd, "observe", observe)
    flags = ("--noise_rate", "0.5", "--lr", "0.1", "--n_epochs", "1", "--stop_after", "1")
    for name, dataset in {"ours": DIGITS, "theirs": on("seq-patches")}.items():
        run(tmp_path / name, *dataset, *flags, model="sgd")
        assert 0.3 < sum(seen) / len(seen) < 0.7
        seen.clear()


def test_exemplars_without_true_labels_are_refused(tmp_path: Path) -> None:
    flags = ("--noise_rate", "0.2", "--buffer_size", "20", "--n_epochs", "1")
    with pytest.raises(UsageError, match="exemplars can't join a training set that gives true_labels"):
        run(tmp_path, *flags, "--stop_after", "1", model="icarl")  # before anything is trained
    summary, _, _ = run(tmp_path / "er", *flags, model="er")
    assert summary["n_tasks"] == 5


@pytest.mark.parametrize("flags", DATASETS)
@pytest.mark.parametrize("flag", ["--label_perc", "--lpc"])
def test_only_a_part_of_the_images_has_labels(flag: str, flags: list[str]) -> None:
    for whole, part, cssl in zip(
        training_sets(*flags),
        training_sets(*flags, flag, "0.25"),
        training_sets(*flags, flag, "0.25", cssl=True),
        strict=True,
    ):
        assert len(part) == pytest.approx(0.25 * len(whole), abs=1) and len(cssl) == len(whole)
        assert [label for label in labels_of(cssl) if label >= 0] == labels_of(part)
        if flag == "--lpc":
            for label in set(labels_of(whole)):
                assert labels_of(part).count(label) == round(0.25 * labels_of(whole).count(label))


@pytest.mark.parametrize("flag", ["--dgc", "--dgc_diagnostics", "--loss_diagnostics"])
def test_what_is_measured_on_all_images_needs_all_labels(flag: str, tmp_path: Path) -> None:
    plugin = tmp_path / "half.py"
    own = "class Half(Er):\n    NAME, COMPATIBILITY = 'half', ['class-il', 'cssl']\n"
    plugin.write_text(f"from models.er import Er\n{own}")
    half = ["--model", "half", "--plugin", str(plugin), "--buffer_size", "50", "--lr", "0.1", flag, "1"]
    parse_args(half)
    with pytest.raises(UsageError, match=rf"^{flag} 1 needs the labels of all training images, and --label_perc"):
        parse_args([*half, "--label_perc", "0.5"])


def test_images_without_a_label_are_kept_from_methods_that_need_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As they come from a dataset which has some of its own."""
    flags = (*on("seq-patches"), "--lr", "0.1", "--n_epochs", "1", "--stop_after", "1")
    _, model, _ = run(tmp_path, *flags, model="sgd")
    seen: list[Any] = []
    monkeypatch.setattr(Sgd, "observe", lambda self, *batch, **kwargs: seen.append((batch, kwargs)) or 1.0)
    images, labels = torch.rand(3, 3, 8, 8), torch.tensor([1, -1, 0])
    assert model.meta_observe(images, labels, images, epoch=4, true_labels=torch.arange(3)) == 1.0
    (batch, kwargs), steps = seen.pop(), model.task_iteration
    assert [len(field) for field in batch] == [2, 2, 2] and torch.equal(batch[0], images[[0, 2]])
    assert kwargs["epoch"] == 4 and kwargs["true_labels"].tolist() == [0, 2]
    assert model.meta_observe(images, torch.full((3,), -1), images) == 0 and not seen and model.task_iteration == steps
    monkeypatch.setattr(Sgd, "COMPATIBILITY", ["cssl"])
    model.meta_observe(images, labels, images)
    assert len(seen.pop()[0][1]) == 3


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--noise_type", "other"], "none of symmetric, asymmetric"),
        (["--distributed", "ddp"], "one device"),
        (["--disable_log", "1"], "--results_path"),
        (["--load_best_args"], "use --model_config best"),
        (["--tensorboard"], "metrics.jsonl"),
        (["--custom_task_order", "1,0"], "--custom_class_order"),
        (["--early_stopping_patience", "3"], "no early stopping"),
        (["--transform_type", "strong"], "no choice of augmentations"),
        (["--fitting_mode", "early_stopping"], "there is no early stopping; use --n_epochs"),
        (["--label_perc", "0"], "greater than 0"),
        (["--label_perc", "0.5", "--lpc", "0.5"], "give one"),
    ],
)
def test_what_is_refused_names_the_reason(flags: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        parse(*flags)
    assert flags[0] in str(caught.value) and "\n" not in str(caught.value)


def test_the_one_value_of_such_a_flag_may_be_given_and_changes_nothing() -> None:
    given = [flag for name, (value, _) in MAMMOTHS.items() if value is not None for flag in (f"--{name}", str(value))]
    plain, args = parse(), parse(*given)
    assert (args.eval_future, args.distributed, args.noise_type, args.lr_scheduler) == (False, "no", "symmetric", None)
    assert not hasattr(args, "class_order") and vars(args).keys() == vars(plain).keys()
    config = relevant_config(args)
    assert config == relevant_config(plain) and not config.keys() & {*MAMMOTHS, "lr_scheduler"}
    assert config_hash(config) != config_hash(relevant_config(parse("--label_perc", "0.5")))


def test_a_dataset_may_have_such_a_flag_itself(tmp_path: Path) -> None:
    text = (ROOT / "tests" / "foreign" / "seq_patches.py").read_text()
    (tmp_path / "d.py").write_text(text.replace("shade: int | None = 3", "transform_type: str = 'weak'"))
    text = (tmp_path / "d.py").read_text()
    (tmp_path / "d.py").write_text(text.replace("self.shade = augment, shade", "self.shade = augment, transform_type"))
    args = parse("--plugin", str(tmp_path / "d.py"), "--dataset", "seq-patches", "--transform_type", "strong")
    assert datasets.get_dataset(args).shade == "strong"  # type: ignore[attr-defined]
    assert relevant_config(args)["transform_type"] == "strong"
