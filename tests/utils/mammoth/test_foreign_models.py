"""Model files in Mammoth's idiom, one per pattern, run as they are: each leaves something behind to be checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from foreign_helpers import flags_of
from helpers import run
from method_helpers import assert_exact_resume

import models
from utils.cli.parse import parse_args

IMAGES = [288, 288, 291]  # of tasks 1 to 3


def train(name: str, base_path: Path, *flags: str) -> tuple[float, Any]:
    """Three tasks of two digits, three epochs each: final Class-IL accuracy in percent, and the model."""
    epochs = "1" if name == "gss" else "3"  # it takes a gradient of every image
    summary, model, _ = run(base_path, *flags_of(name), "--n_epochs", epochs, "--stop_after", "3", *flags, model=name)
    return summary["class_il"]["FAA"], model


def per_class(labels: torch.Tensor) -> list[int]:
    return [count for _, count in sorted(Counter(labels.tolist()).items())]


class Pattern(NamedTuple):
    """Bounds of the accuracy (33 is what forgetting leaves), and what must be true of the trained model."""

    low: float
    high: float
    holds: Callable[[Any], bool]


def fields(*names: str) -> Callable[[Any], bool]:
    return lambda model: model.buffer.used_attributes == list(names)


def balanced(buffer: Any) -> bool:
    """Each of 6 classes has 16 of 100 slots."""
    return per_class(buffer.labels[: len(buffer)]) == [16] * 6


PATTERNS = {
    "sgd": Pattern(30, 40, lambda m: m.task_iteration == 30),
    "er": Pattern(90, 100, lambda m: m.buffer.num_seen_examples == 3 * sum(IMAGES) and len(m.buffer) == 100),
    "der": Pattern(70, 100, fields("examples", "logits")),
    "derpp": Pattern(90, 100, fields("examples", "labels", "logits")),
    "er_ace": Pattern(85, 100, lambda m: m.net.classifier.bias is None and m.met.tolist() == [True] * 6 + [False] * 4),
    "si": Pattern(30, 60, lambda m: m.importance.min() >= 0 and m.importance.max() > 0 and not m.path.any()),
    "ewc_on": Pattern(30, 60, lambda m: m.fisher.max() > 0 and torch.equal(m.anchor, m.net.get_params())),
    "lwf_mc": Pattern(35, 70, lambda m: m.dataset.train_loader is None and m.teacher is not m.net),
    "lwf": Pattern(30, 60, lambda m: m.dataset.train_loader.dataset.logits.shape == (IMAGES[2], 10)),
    "fdr": Pattern(70, 100, lambda m: per_class(m.buffer.task_labels[: len(m.buffer)]) == [33] * 3),
    "gem": Pattern(50, 100, lambda m: m.projections > 5 and balanced(m.buffer)),
    "agem": Pattern(40, 90, lambda m: len(m.buffer) == 3 * 20 and m.buffer.examples.max() == 1),
    "agem_r": Pattern(33.4, 90, lambda m: m.buffer.num_seen_examples == 3 * sum(IMAGES)),
    "er_tricks": Pattern(85, 100, lambda m: (m.buffer.sample_selection_fn.importance_scores < 0).all()),
    "gss": Pattern(80, 100, lambda m: m.buffer.scores.min() >= 0 and m.buffer.scores.max() <= 2),
    "hal": Pattern(85, 100, lambda m: [y for _, y in m.anchors] == [0, 1, 2, 3, 4, 5] and len(m.buffer) == 60),
    "bic": Pattern(75, 100, lambda m: balanced(m.buffer) and len(m.val_loader.dataset) > 20),
    "icarl": Pattern(75, 100, lambda m: balanced(m.buffer) and m.buffer.buffer_size == 10**9),
    "lucir": Pattern(85, 100, lambda m: len(m.opt.param_groups) == 2 and m.buffer.buffer_size == 6 * 17),
    "rpc": Pattern(40, 100, lambda m: balanced(m.buffer) and m.buffer.num_seen_examples == len(m.buffer) == 96),
    "xder_ce": Pattern(70, 100, lambda m: m.rewritten == 2 * 25 + 4 * 16 and balanced(m.buffer)),
    "xder_rpc": Pattern(90, 100, lambda m: balanced(m.buffer)),
}


@pytest.mark.slow
@pytest.mark.numeric
@pytest.mark.parametrize("name", PATTERNS)
def test_it_runs_unmodified(name: str, tmp_path: Path) -> None:
    accuracy, model = train(name, tmp_path)
    pattern = PATTERNS[name]
    assert pattern.low < accuracy <= pattern.high
    assert pattern.holds(model)


def test_fine_tuning_is_the_same_as_ours(tmp_path: Path) -> None:
    """The same batches in the same order, step by step: a foreign model gets what ours gets."""
    flags = ("--n_epochs", "1", "--stop_after", "2")
    _, _, ours = run(tmp_path / "ours", "--lr", "0.1", *flags, model="sgd")
    _, _, theirs = run(tmp_path / "theirs", *flags, *flags_of("sgd"), model="sgd")
    for file in ("metrics.jsonl", "accuracy.csv"):
        assert (ours / file).read_bytes() == (theirs / file).read_bytes()


@pytest.mark.slow
@pytest.mark.numeric
def test_one_image_per_step(tmp_path: Path) -> None:
    """MER sets `batch_size` by `set_defaults`, and in its constructor, before the loaders are made."""
    summary, model, _ = run(tmp_path, *flags_of("mer"), "--n_epochs", "1", "--stop_after", "2", model="mer")
    assert summary["steps"] == sum(IMAGES[:2]) and model.args.minibatch_size == 1
    assert summary["class_il"]["FAA"] > 70  # 50: the second task alone


@pytest.mark.numeric
def test_the_memory_alone_is_learnt_after_the_last_task(tmp_path: Path) -> None:
    """GDumb makes its steps at the end of the stream, on a network, with an optimizer and a schedule of its own."""
    command = [*flags_of("gdumb"), "--n_epochs", "3"]
    summary, model, _ = run(tmp_path, *command, model="gdumb")
    assert model.args.n_epochs == 1 and model.buffer.num_seen_examples == 1438 and len(model.buffer) == 100
    rates = [0.005, 0.05, 0.05, 0.0253, 0.05, 0.0428, 0.0253, 0.0077, 0.05]
    assert model.rates[:9] == pytest.approx(rates, abs=1e-4) and len(model.rates) == 30
    assert summary["class_il"]["FAA"] > 50 and summary["class_il"]["FAIA"] < 45  # chance level before


@pytest.mark.numeric
def test_joint_training_on_kept_loaders(tmp_path: Path) -> None:
    summary, model, _ = run(tmp_path, *flags_of("joint"), "--n_epochs", "3", model="joint")
    assert summary["class_il"]["FAA"] > 85
    assert model.rows == sum(len(loader.dataset) for loader in model.loaders) == 1438


def test_exemplars_join_the_training_set_and_leave_it_again(tmp_path: Path) -> None:
    _, model = train("bic", tmp_path)
    (first, *later) = model.sizes
    assert first == (IMAGES[0], 0, IMAGES[0])
    for own, stored, both in later:
        assert 0.05 < 1 - both / (own + stored) < 0.16  # a tenth is held out
    _, model = train("lucir", tmp_path / "lucir")
    assert sum(model.imprinted) == sum(IMAGES[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["er", "lwf", "icarl", "bic", "lucir", "er_tricks", "gss", "hal", "gdumb", "joint", "xder_ce"]
)
def test_resume_is_exact(name: str, tmp_path: Path) -> None:
    """Random numbers of numpy, edited training sets, loaders and networks that the model has made: all come back."""
    method = models.get_model_class(parse_args(["--model", name, *flags_of(name)]))
    assert_exact_resume(method, tmp_path, *flags_of(name))


def test_a_model_that_cannot_predict_before_its_first_task_has_no_forward_transfer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """iCaRL's class means are those of its exemplars."""
    _, _, straight = run(tmp_path / "plain", *flags_of("icarl"), "--n_epochs", "1", "--stop_after", "2", model="icarl")
    flags = (*flags_of("icarl"), "--n_epochs", "1", "--stop_after", "2", "--enable_other_metrics", "1")
    summary, _, directory = run(tmp_path / "asked", *flags, model="icarl")
    assert "no forward transfer: icarl can't predict a task before training it" in caplog.text
    assert summary["class_il"]["FWT"] is None and summary["class_il"]["FAA"] > 80
    assert (directory / "per_class.csv").read_bytes() == (straight / "per_class.csv").read_bytes()
