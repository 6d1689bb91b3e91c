"""`--dgc_diagnostics`: the numbers against a slow reference, and that measuring changes nothing."""

from __future__ import annotations

import copy
import importlib.util
import json
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dgc_helpers import DoubleResNet, batches
from helpers import ROOT, assert_same, final_state, run, run_directory
from method_helpers import RESNET, assert_exact_resume
from torch import Tensor
from wandb_helpers import install_stub, make_args, make_logger, window

from backbone.ResNetBlock import ResNet
from main import initialize
from models.dgc_er import DgcEr
from models.er import Er
from models.utils.dgc_reference import Batch, Reference
from utils.augmentations import to_uint8, to_unit_float
from utils.cli.parse import parse_args
from utils.errors import UsageError
from utils.random_streams import RandomStreams
from utils.resume.state import pack
from utils.run.diagnostics import Diagnostics
from utils.training import train

pytestmark = pytest.mark.numeric

STEPS = ["--fitting_mode", "iters", "--n_iters", "3", "--stop_after", "3"]
FLAGS = ["--buffer_size", "40", "--minibatch_size", "16", *STEPS, *RESNET]
DGC = {
    name: ["--dgc_estimator", name, "--dgc_alpha", "0.1", "--dgc_m", "2"] for name in ("sampled", "closed", "released")
}
DGC["plain"] = [*DGC["sampled"], "--dgc_view", "plain"]


def events(directory: Path, name: str = "diagnostics") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


@cache
def digits(dataset: Any) -> list[Tensor]:
    """Images (NCHW) and labels of the training set, from the source."""
    images, labels = (torch.as_tensor(part) for part in dataset.load_split(None, train=True))
    return [images.permute(0, 3, 1, 2), labels.long()]


Sets = dict[str, tuple[Tensor, Tensor]]


def measured_sets(model: Any, task: int, step: int) -> Sets:
    """The images and labels that are compared: of all past tasks, of one replay batch, of the buffer."""
    images, labels = digits(type(model.dataset))
    past = labels < model.dataset.get_offsets(task)[0]
    size = len(model.buffer)
    stored = model.buffer.examples[:size], model.buffer.labels[:size]
    drawn = torch.randperm(size, generator=RandomStreams(0)[f"diagnostics/{step}"])[:16]
    return {"true": (images[past], labels[past]), "batch": (stored[0][drawn], stored[1][drawn]), "buffer": stored}


def plain_batches(model: Any, sets: Sets) -> dict[str, list[Batch]]:
    """By definition: each set at once, un-augmented and in eval mode; normalised, but for the published code."""
    released = getattr(model.args, "dgc_estimator", "") == "released"
    normalise = (lambda x: x) if released else model.dataset.get_normalization_transform()
    found = {name: [Batch(normalise(to_unit_float(images)), labels)] for name, (images, labels) in sets.items()}
    return found | {"snapshot": found["buffer"]}


class Handed:
    """Keeps what a view in train mode hands out for a measurement, in this order."""

    NAMES = ("true", "batch", "buffer", "snapshot")

    def __init__(self, view: Any, monkeypatch: pytest.MonkeyPatch):
        self.passes: list[list[Any]] = []
        for name in ("past", "buffer"):
            monkeypatch.setattr(view, name, self.keeping(getattr(view, name)), raising=False)

    def keeping(self, method: Any) -> Any:
        def asked(*args: Any) -> Any:
            self.passes.append(list(method(*args)))
            return self.passes[-1]

        return asked

    def check(self, model: Any, sets: Sets) -> dict[str, list[Batch]]:
        """Each image of a set once, in batches that are composed as the base's are."""
        columns = slice(0, model.n_past_classes) if model.NAME == "dgc_xder" else slice(None)
        stream = 32 if model.NAME == "dgc_er" else 0
        images, labels = digits(type(model.dataset))
        first, last = model.dataset.get_offsets(model.dataset.c_task)
        current = contents(images[(labels >= first) & (labels < last)])
        for (images, labels), passes in zip([*sets.values(), sets["buffer"]], self.passes, strict=True):
            sizes, replayed = {len(p) for p in passes}, Counter()
            assert max(sizes) <= 16 and max(sizes) - min(sizes) <= 1
            for p in passes:
                (term,) = p.terms
                n = len(p.inputs) - len(term.labels)
                assert p.training and term.columns == columns and n == stream
                assert range(len(p.inputs))[term.rows] == range(n, len(p.inputs))
                pixels = to_uint8(p.inputs * model.dataset.STD[0] + model.dataset.MEAN[0])
                replayed += contents(pixels[n:], term.labels)
                assert contents(pixels[:n]) <= current
            assert replayed == contents(images, labels)
        return dict(zip(self.NAMES, map(batches, self.passes), strict=True))


def contents(images: Tensor, labels: Tensor | None = None) -> Counter:
    keys = [tuple(image.flatten().tolist()) for image in images]
    return Counter(keys if labels is None else zip(keys, labels.tolist(), strict=True))


def slow_values(model: Any, handed: dict[str, list[Batch]]) -> dict[str, float]:
    """The definitions, in float64: nothing of the code under test but θ, θ̃, Γ' and c_t."""
    reference, theta = Reference(model.net), model.net.state_dict()

    def flat(vector: dict[str, Tensor]) -> Tensor:
        return torch.cat([vector[name].double().reshape(-1) for name, _ in model.net.named_parameters()])

    true, batch, whole = (reference.G(handed[name], theta) for name in ("true", "batch", "buffer"))
    estimates, values = {"batch": batch, "buffer": whole}, {"past_norm": true.norm()}
    if hasattr(model, "dgc"):
        correction = {
            "closed": lambda: flat(model.dgc.calibrator),
            "released": lambda: flat(model.dgc.gamma),
            "sampled": lambda: flat(model.dgc.gamma) - reference.G(handed["snapshot"], model.dgc.snapshot.state_dict()),
        }[model.args.dgc_estimator]()
        estimates["calibrated"] = whole + correction
        values["alpha_star"] = torch.linalg.lstsq(correction[:, None], (true - whole)[:, None]).solution[0, 0]
    for name, estimate in estimates.items():
        values[f"{name}_error"] = (estimate - true).norm() / true.norm()
        values[f"{name}_cosine"] = torch.nn.functional.cosine_similarity(estimate, true, dim=0)
    return {name: float(value) for name, value in values.items()}


def doubled(base_path: Path, model: str, *flags: str) -> tuple[Any, Any, Any]:
    """A model in float64; only its inputs are rounded to float32, 6e-8, on both sides."""
    line = ["--model", model, "--seed", "0", "--base_path", str(base_path), *FLAGS, *flags, "--dgc_diagnostics", "2"]
    built, dataset, args = initialize(parse_args(line))
    for module in built.net.modules():
        if type(module) is ResNet:
            module.__class__ = DoubleResNet
    built.net.double()
    return built, dataset, args


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, flags",
    [
        ("er", ["-O", "1"]),
        *(("dgc_er", flags) for flags in DGC.values()),
        ("dgc_er", [*DGC["sampled"], "--task_free", "1"]),
        ("dgc_xder", DGC["sampled"]),
    ],
    ids=str,
)
def test_the_numbers_are_those_of_the_definitions(
    name: str, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the view `same`, whose images are random, from the batches that it handed out."""
    measured, measure = [], Diagnostics.measure
    same = "sampled" in flags and "--dgc_view" not in flags

    def compared(self: Diagnostics, task: int, step: int) -> dict[str, float]:
        before = traces(self.model)
        sets = measured_sets(self.model, task, step)
        with monkeypatch.context() as patch:
            handed = Handed(self.view, patch) if same else None
            values = measure(self, task, step)
        assert_same(before, traces(self.model))
        found = handed.check(self.model, sets) if handed else plain_batches(self.model, sets)
        assert values == pytest.approx(slow_values(self.model, found), rel=1e-6, abs=1e-6)
        measured.append(values)
        return values

    monkeypatch.setattr(Diagnostics, "measure", compared)
    model, dataset, args = doubled(tmp_path, name, *flags)
    train(model, dataset, args)
    written = events(run_directory(tmp_path))
    assert [{name: line[name] for name in measured[0]} for line in written] == measured
    assert [(line["task"], line["step"]) for line in written] == [(task, k) for task in (2, 3) for k in (0, 2)]
    assert ("alpha_star" in measured[0]) == (name != "er")


def traces(model: Any) -> list[Any]:
    """What a measurement must leave alone: network, modes, gradients, buffer, DGC, generators."""
    net = model.net
    return [
        copy.deepcopy(pack(model)),
        [module.training for module in net.modules()],
        [None if p.grad is None else p.grad.clone() for p in net.parameters()],
        {name: value.clone() for name, value in model.buffer.serialize().items()},
        {name: value.clone() for name, value in model.dataset.streams.state_dict().items()},
        [torch.get_rng_state(), torch.from_numpy(np.random.get_state()[1].astype(np.int64)), random.getstate()],
        [model.dgc_generator.get_state() if hasattr(model, "dgc") else None],
    ]


def test_a_buffer_with_the_whole_history_is_exact(tmp_path: Path) -> None:
    flags = ["--buffer_fill", "task_end", "--buffer_size", "2000", "--minibatch_size", "2000", "--dgc_diagnostics", "2"]
    _, _, directory = run(tmp_path, *STEPS, *flags)
    found = events(directory)
    assert len(found) == 4
    for line in found:
        assert max(line["buffer_error"], line["batch_error"]) < 1e-5
        assert min(line["buffer_cosine"], line["batch_cosine"]) > 1 - 1e-9


def test_the_closed_form_is_exact_when_the_second_task_begins(tmp_path: Path) -> None:
    """Later Γ' also carries what went stale in between: after two tasks the estimate is good, but not exact."""
    _, _, directory = run(tmp_path, *FLAGS, *DGC["closed"], "--dgc_diagnostics", "100", model="dgc_er")
    second, third = events(directory)
    assert second["calibrated_error"] < 1e-4 and second["alpha_star"] == pytest.approx(1, abs=1e-4)
    assert second["buffer_error"] > 0.1
    assert 1e-3 < third["calibrated_error"] < 1


@pytest.mark.slow
@pytest.mark.parametrize("model, flags", [("er", []), ("dgc_er", DGC["sampled"]), ("dgc_er", DGC["closed"])], ids=str)
def test_the_run_is_the_same_with_and_without(model: str, flags: list[str], tmp_path: Path) -> None:
    flags = ["--buffer_size", "40", *STEPS[:-1], "2", *RESNET, *flags, "--optim_mom", "0.9"]
    plain_summary, _, plain = run(tmp_path / "plain", *flags, model=model)
    summary, _, measured = run(tmp_path / "measured", *flags, "--dgc_diagnostics", "2", model=model)
    assert len(events(measured)) == 2 and not events(plain)
    for name in ("accuracy.csv", "per_class.csv", "confusion.csv"):
        assert (plain / name).read_bytes() == (measured / name).read_bytes()
    assert plain_summary | {"config_hash": ""} == summary | {"config_hash": ""}
    for name in ("task_end", "summary"):
        assert events(plain, name) == events(measured, name)
    # The lines of the steps are cut at the measurements, too; what is in them is the same.
    losses, same = ([loss for line in events(at, "train") for loss in line["loss"]] for at in (plain, measured))
    assert len(losses) == 6 and losses == same
    a, b = final_state(plain), final_state(measured)
    for state in (a, b):
        del state["hash"], state["metrics"]  # the flag itself, and the place in the file
    assert_same(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("method, flags", [(Er, []), (DgcEr, DGC["sampled"]), (DgcEr, DGC["closed"])], ids=str)
def test_resume_is_exact_with_measurements(method: Any, flags: list[str], tmp_path: Path) -> None:
    assert_exact_resume(method, tmp_path, "--buffer_size", "40", *flags, "--dgc_diagnostics", "2")


def test_a_method_without_buffer_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--dgc_diagnostics 5 needs a replay buffer, which sgd has not"):
        run(tmp_path, "--dgc_diagnostics", "5", model="sgd")
    assert not list(tmp_path.glob("results/*/*/*"))


def test_wandb_gets_each_measurement_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install_stub(monkeypatch)
    for _ in range(2):  # resumed, the run comes back to an earlier step
        logger = make_logger(tmp_path, make_args())
        logger.log_window(window(1, 20))
        logger.log_values("diagnostics", {"buffer_error": 0.5}, 20)
    assert [kwargs["step"] for name, kwargs in calls if name == "log"] == [*range(1, 21), 20]


@pytest.mark.slow
def test_the_curves_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("docs_diagnostics", ROOT / "docs" / "figures" / "diagnostics.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    flags = ["--buffer_size", "40", *STEPS, "--dgc_diagnostics", "2"]
    runs = [run(tmp_path / model, *flags, model=model)[2] for model in ("er", "dgc_er")]
    found = script.measured(runs[1])
    assert found["at"] == [3, 5, 6, 8] and found["task"] == [2, 2, 3, 3]
    assert "view same" in script.described(runs[1]) and not [w for w in script.described(runs[0]) if "view" in w]
    script.draw(runs, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(SystemExit, match="no diagnostics in"):
        script.draw([tmp_path], tmp_path / "none.png")
