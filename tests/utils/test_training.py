"""The training loop: hooks in order, what reaches a model, what a run writes down, and what stops it."""

from __future__ import annotations

import errno
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import RESULT_FILES, assert_same, final_state, run, run_directory
from method_helpers import RESNET

import utils.resume.files
from main import initialize
from main import main as command_line
from main import run as run_in_python
from models.er import Er
from models.sgd import Sgd
from utils.cli.parse import parse_args
from utils.errors import UsageError, UserError
from utils.resume.guard import NonFiniteError
from utils.run.precision import autocast
from utils.run.read_results import read_matrices
from utils.training import train

ER = ["--buffer_size", "50"]
SHORT = [*ER, "--n_epochs", "1"]


def events(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def record_hooks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that a model receives, with the counters it sees at the time."""
    calls: list[Any] = []
    observe = Sgd.observe

    def hook(name: str) -> Any:
        return lambda self, *args: calls.append((name, self.current_task, *(a for a in args if isinstance(a, int))))

    def observed(self, inputs, labels, not_aug_inputs, epoch=None):
        calls.append(("observe", self.current_task, epoch, self.task_iteration, self.epoch_iteration))
        return observe(self, inputs, labels, not_aug_inputs)

    for name in ("begin_task", "end_task", "begin_epoch", "end_epoch", "end_eval"):
        monkeypatch.setattr(Sgd, name, hook(name))
    monkeypatch.setattr(Sgd, "observe", observed)
    return calls


def test_hooks_come_in_the_order_of_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_hooks(monkeypatch)
    flags = ["--fitting_mode", "epochs", "--n_epochs", "2", "--batch_size", "200", "--stop_after", "2"]
    run(tmp_path, *flags, model="sgd")
    expected: list[Any] = []
    for task in (0, 1):
        expected.append(("begin_task", task))
        for epoch in (0, 1):
            expected.append(("begin_epoch", task, epoch))
            expected += [("observe", task, epoch, 2 * epoch + step, step) for step in (0, 1)]
            expected.append(("end_epoch", task, epoch))
        # end_eval sees the finished task as the current one.
        expected += [("end_task", task), ("end_eval", task)]
    assert calls == expected


def test_a_task_free_model_sees_nothing_but_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_hooks(monkeypatch)
    optimizers = set()
    observed = Sgd.observe
    monkeypatch.setattr(
        Sgd, "observe", lambda self, *a, **k: (optimizers.add(id(self.opt)), observed(self, *a, **k))[1]
    )
    flags = ["--task_free", "1", "--n_epochs", "1", "--lr_scheduler", "multisteplr", "--lr_milestones", "1"]
    summary, model, directory = run(tmp_path, *flags, model="sgd")
    assert {call[0] for call in calls} == {"observe"}
    assert {call[1:3] for call in calls} == {(0, None)}  # no task index, no epoch
    assert len(optimizers) == 1 and model.n_seen_classes == -1
    assert {event["lr"] for event in events(directory) if event["event"] == "train"} == {0.1}  # no schedule: no leak
    assert summary["n_tasks"] == 5 and summary["class_il"]["FAIA"] is not None


def test_task_free_needs_a_buffer_that_fills_as_it_goes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--buffer_fill task_end: a task-free run has no ends of tasks"):
        run(tmp_path, *ER, "--task_free", "1", "--buffer_fill", "task_end")


@pytest.mark.numeric
def test_learning_rate_schedule_restarts_at_each_task(tmp_path: Path) -> None:
    flags = ["--n_epochs", "3", "--lr_scheduler", "multisteplr", "--lr_milestones", "1", "2", "--stop_after", "2"]
    _, _, directory = run(tmp_path, *flags, model="sgd")
    rates = [(e["task"], e["lr"]) for e in events(directory) if e["event"] == "train"]
    expected = pytest.approx([0.1] * 9 + [0.01] * 9 + [0.001] * 9)
    assert rates == [(1, expected), (2, expected)]


@pytest.mark.numeric
@pytest.mark.parametrize("task_free", [[], ["--task_free", "1", "--task_free_lr_restart", "1"]], ids=["cil", "free"])
def test_the_first_task_may_have_epochs_and_milestones_of_its_own(task_free: list[str], tmp_path: Path) -> None:
    schedule = ["--lr_scheduler", "multisteplr", "--lr_milestones", "1", "--lr_milestones_first", "0.5", "3"]
    flags = ["--n_epochs", "2", "--n_epochs_first", "4", *schedule, "--stop_after", "2", *task_free]
    summary, _, directory = run(tmp_path, *flags, model="sgd")
    rates = [(e["task"], e["lr"]) for e in events(directory) if e["event"] == "train"]
    first, later = [0.1] * 18 + [0.01] * 9 + [0.001] * 9, [0.1] * 9 + [0.01] * 9
    assert rates == [(1, pytest.approx(first)), (2, pytest.approx(later))]
    assert summary["steps"] == (4 + 2) * 9


@pytest.mark.numeric
def test_milestones_below_one_are_shares_of_the_task(tmp_path: Path) -> None:
    schedule = ["--lr_scheduler", "multisteplr", "--scheduler_mode", "iter", "--lr_milestones", "0.5", "0.9"]
    _, _, directory = run(tmp_path, "--fitting_mode", "iters", "--n_iters", "10", *schedule, model="sgd")
    rates = [event["lr"] for event in events(directory) if event["event"] == "train"]
    assert rates == [pytest.approx([0.1] * 5 + [0.01] * 4 + [0.001])] * 5


def test_iterations_cut_epochs_short(tmp_path: Path) -> None:
    summary, _, directory = run(tmp_path, *ER, "--fitting_mode", "iters", "--n_iters", "13")
    assert summary["steps"] == 5 * 13
    epochs = [(e["task"], e["epoch"], len(e["loss"])) for e in events(directory) if e["event"] == "train"]
    assert epochs == [(task, 2, 13) for task in (1, 2, 3, 4, 5)]


@pytest.mark.slow
@pytest.mark.numeric
def test_er_beats_fine_tuning_and_joint_beats_both(tmp_path: Path) -> None:
    faa = {name: run(tmp_path / name, *flags, model=name)[0]["class_il"] for name, flags in
           (("sgd", []), ("er", ["--buffer_size", "200"]), ("joint", []))}  # fmt: skip
    assert faa["sgd"]["FAA"] < 25 and faa["er"]["FAA"] > 85 and faa["joint"]["FAA"] > 94
    assert faa["sgd"]["FF"] > 80 > 15 > faa["er"]["FF"]
    assert (faa["joint"]["FAIA"], faa["joint"]["FF"]) == (None, None)


def test_joint_sees_all_tasks_and_is_evaluated_on_each(tmp_path: Path) -> None:
    summary, model, directory = run(tmp_path, "--n_epochs", "1", model="joint")
    assert summary["steps"] == math.ceil(len(model.dataset.train_loader.dataset) / 32) == 45
    class_il, task_il, _ = read_matrices(directory / "accuracy.csv")
    assert class_il.shape == (5, 5)
    assert np.isnan(class_il[:4]).all() and not np.isnan(class_il[4]).any()
    assert (task_il[4] >= class_il[4]).all() and (task_il[4] > class_il[4]).any()


def test_a_joint_run_can_be_confined_to_the_first_tasks(tmp_path: Path) -> None:
    summary, model, directory = run(tmp_path, "--n_epochs", "1", "--stop_after", "2", model="joint")
    labels = model.dataset.train_loader.dataset.targets
    assert sorted(set(labels.tolist())) == [0, 1, 2, 3]
    class_il, *_ = read_matrices(directory / "accuracy.csv")
    assert class_il.shape == (2, 2) and summary["n_tasks"] == 2
    assert summary["class_il"]["FAA"] == pytest.approx(class_il[-1].mean())


@pytest.mark.numeric
def test_er_step_is_one_mean_over_both_batches(device: torch.device, tmp_path: Path) -> None:
    """θ ← θ − η ∇ mean CE over the b + r images of stream and replay batch, BatchNorm statistics shared."""
    flags = ["--model", "er", *ER, "--seed", "0", "--device", device.type, "--base_path", str(tmp_path)]
    model, dataset, _ = initialize(parse_args([*flags, "--backbone", "resnet18", "--num_filters", "4"]))
    loader, _ = dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    batches = list(loader)
    model.observe(*batches[0])
    assert len(model.buffer) == 32

    reference, _, _ = initialize(parse_args([*flags, "--backbone", "resnet18", "--num_filters", "4"]))
    reference.net.load_state_dict(model.net.state_dict())
    state = dataset.streams.state_dict()
    replayed, replayed_labels = model.buffer.get_data(32, transform=model.transform)
    dataset.streams.load_state_dict(state)

    inputs, labels, _ = batches[1]
    logits = reference.net(torch.cat([inputs, replayed]))
    losses = torch.nn.functional.cross_entropy(logits, torch.cat([labels, replayed_labels]), reduction="none")
    assert len(losses) == 64
    gradients = torch.autograd.grad(losses.sum() / 64, list(reference.net.parameters()))
    loss = model.observe(*batches[1])
    assert torch.allclose(loss, losses.mean(), atol=1e-6)
    for new, old, gradient in zip(model.net.parameters(), reference.net.parameters(), gradients, strict=True):
        assert torch.allclose(new, old - 0.1 * gradient, atol=1e-6)
    for name, value in model.net.named_buffers():
        assert torch.allclose(value, dict(reference.net.named_buffers())[name]), name


@pytest.mark.parametrize(("fill", "during", "after"), [("stream", 50, 50), ("task_end", 0, 50)])
def test_buffer_fill(fill: str, during: int, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    end_epoch = lambda self, epoch, dataset: sizes.append(len(self.buffer))  # noqa: E731
    monkeypatch.setattr(Er, "end_epoch", end_epoch)
    _, model, _ = run(tmp_path, *ER, "--n_epochs", "2", "--buffer_fill", fill, "--stop_after", "1")
    assert sizes == [during, during] and len(model.buffer) == after
    images = len(model.dataset.train_loader.dataset)
    # The stream offers an image once per epoch, the end of a task once.
    assert model.buffer.num_seen_examples == (2 * images if fill == "stream" else images)
    assert model.buffer.examples.dtype == torch.uint8


def test_the_same_seed_is_the_same_run_and_another_is_not(tmp_path: Path) -> None:
    _, _, a = run(tmp_path / "a", *SHORT)
    _, _, b = run(tmp_path / "b", *SHORT)
    _, _, c = run(tmp_path / "c", *SHORT, seed=1)
    assert all((a / name).read_bytes() == (b / name).read_bytes() for name in RESULT_FILES)
    assert_same(final_state(a), final_state(b))
    assert (a / "metrics.jsonl").read_bytes() != (c / "metrics.jsonl").read_bytes()


def test_what_a_run_writes(tmp_path: Path) -> None:
    summary, model, directory = run(tmp_path, *SHORT, "--enable_other_metrics", "1")
    names = {path.name for path in directory.iterdir()} - {"checkpoint.previous.pt"}  # there if two were due
    assert names == {*RESULT_FILES, "config.yaml", "timing.json", "environment.json", "run.lock",
                     "checkpoint.pt", "checkpoint.json"}  # fmt: skip
    class_il, *_ = read_matrices(directory / "accuracy.csv")
    lower = [class_il[k, : k + 1].mean() for k in range(5)]
    assert summary["class_il"]["FAA"] == pytest.approx(lower[-1])
    assert summary["class_il"]["FAIA"] == pytest.approx(np.mean(lower))
    assert summary["class_il"]["FWT"] is not None and not np.isnan(np.diag(class_il, 1)).any()
    ends = [event for event in events(directory) if event["event"] == "task_end"]
    assert [len(event["class_il"]) for event in ends] == [1, 2, 3, 4, 5]
    assert ends[-1]["class_il"] == class_il[4].tolist()
    losses = [loss for event in events(directory) if event["event"] == "train" for loss in event["loss"]]
    assert len(losses) == summary["steps"] == 46 and all(math.isfinite(loss) for loss in losses)
    confusion = np.loadtxt(directory / "confusion.csv", delimiter=",", skiprows=1)[:, 1:]
    test_images = sum(len(loader.dataset) for loader in model.dataset.test_loaders)
    assert confusion.sum() == test_images == 359
    assert summary["parameters"] == sum(p.numel() for p in model.net.parameters())
    for name in RESULT_FILES:  # wall-clock lives in timing.json alone
        assert "second" not in (directory / name).read_text()


def test_a_finished_run_is_shown_and_overwritten_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--model", "er", *SHORT, "--seed", "0", "--base_path", str(tmp_path)]
    command_line(flags)
    first = capsys.readouterr().out
    before = (run_directory(tmp_path) / "timing.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Er, "observe", None)  # nothing may be trained again
        command_line(flags)
    second = capsys.readouterr().out
    assert "--overwrite 1" in second and "FAIA" in second
    assert first.partition("Class-IL accuracy")[2] in second
    assert (run_directory(tmp_path) / "timing.json").read_bytes() == before
    command_line([*flags, "--overwrite", "1"])
    assert "Accuracy for 5 task(s)" in capsys.readouterr().out


def test_validation_judges_on_held_out_images_and_ends_on_the_test_set(tmp_path: Path) -> None:
    summary, model, directory = run(tmp_path, *SHORT, "--validation", "20")
    sizes = [len(loader.dataset) for loader in model.dataset.test_loaders]
    held_out, trained = sum(sizes), len(model.dataset.train_loader.dataset)
    assert 280 < held_out < 300 and 225 < trained < 235
    assert len(summary["test"]["class_il"]) == 5
    final = [event for event in events(directory) if event["event"] == "final_test"]
    assert final[0]["class_il"] == summary["test"]["class_il"]


def test_hand_over_and_inference(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    saved = tmp_path / "saved"
    flags = [*SHORT, "--savecheck", "last", "--checkpoint_path", str(saved), "--ckpt_name", "x"]
    summary, model, _ = run(tmp_path / "a", *flags)
    (file,) = saved.glob("x_er_seq-digits_*_last.pt")
    other, loaded, _ = run(tmp_path / "b", "--loadcheck", str(file), "--inference_only", "1")
    assert_same(dict(loaded.net.state_dict()), dict(model.net.state_dict()))
    assert loaded.buffer.num_seen_examples == model.buffer.num_seen_examples
    assert torch.equal(loaded.buffer.examples, model.buffer.examples)
    assert other["class_il"]["FAA"] == summary["class_il"]["FAA"] and other["steps"] == 0
    with pytest.raises(UserError, match="does not fit this model"):
        run(tmp_path / "c", "--loadcheck", str(file), "--mlp_hidden_size", "50")


def poison(monkeypatch: pytest.MonkeyPatch, at_step: int) -> dict[str, Any]:
    """Put a NaN into one batch; remembers the state before it."""
    seen: dict[str, Any] = {"step": 0}
    observe = Er.observe

    def poisoned(self, inputs, labels, not_aug_inputs, epoch=None):
        if seen["step"] == at_step:
            inputs = inputs.clone()
            inputs[0, 0, 0, 0] = math.nan
            seen["net"] = {name: value.clone() for name, value in self.net.state_dict().items()}
            seen["buffer"] = (self.buffer.num_seen_examples, self.buffer.examples.clone())
            seen["model"] = self
        seen["step"] += 1
        return observe(self, inputs, labels, not_aug_inputs)

    monkeypatch.setattr(Er, "observe", poisoned)
    return seen


def test_a_nan_stops_the_run_before_it_does_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = poison(monkeypatch, at_step=12)
    with pytest.raises(NonFiniteError, match=r"task 2, epoch 1, step 4: loss = nan, gradient norm = nan") as caught:
        run(tmp_path, *SHORT)
    assert caught.value.exit_code == 1
    model = seen["model"]
    assert_same(dict(model.net.state_dict()), seen["net"])
    assert model.buffer.num_seen_examples == seen["buffer"][0]
    assert torch.equal(model.buffer.examples, seen["buffer"][1])


def test_a_full_disk_ends_in_one_line_with_the_last_checkpoint_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, straight = run(tmp_path / "straight", *SHORT)
    writes = {"left": 12}
    fsync = os.fsync

    def full(descriptor: int) -> None:
        writes["left"] -= 1
        if writes["left"] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(utils.resume.files.os, "fsync", full)
        with pytest.raises(UserError, match="No space left on device") as caught:
            run(tmp_path / "full", *SHORT, "--checkpoint_every", "2")
    assert "\n" not in str(caught.value)
    _, _, resumed = run(tmp_path / "full", *SHORT)
    assert_same(final_state(resumed), final_state(straight))


def test_an_unwritable_place_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        command_line(["--model", "er", *SHORT, "--base_path", str(tmp_path / "file" / "x")])
    message = capsys.readouterr().err
    assert ended.value.code == 1
    assert message.count("\n") == 1 and message.startswith("error: cannot write")
    assert "--base_path" in message


@pytest.mark.numeric
def test_autocast_sees_the_weights_as_they_are() -> None:
    """Also after a step within one region, where DGC takes gradients anew; torch would have the old ones cached."""
    layer = torch.nn.Linear(1, 1, bias=False)
    with autocast(torch.device("cpu"), level=2):
        before = layer(torch.ones(1))
        with torch.no_grad():
            layer.weight += 1
        assert before.dtype == torch.bfloat16 and (layer(torch.ones(1)) - before).item() == pytest.approx(1, abs=0.02)


def test_a_method_that_returns_no_loss_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sgd, "observe", lambda self, inputs, labels, not_aug_inputs: None)
    with pytest.raises(UserError, match=r"^observe of sgd has returned nothing; it must return the loss"):
        run(tmp_path, model="sgd")


def test_a_method_may_return_its_loss_as_it_is(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    class Plain(Sgd):
        def observe(self, inputs, labels, not_aug_inputs):
            self.opt.zero_grad()
            loss = self.loss(self.net(inputs), labels)
            loss.backward()
            self.opt.step()
            return loss

    flags = {"dataset": "seq-digits", "n_epochs": 1, "lr": 0.1, "stop_after": 1}
    plain, ours = (run_in_python(m, base_path=tmp_path / str(m), **flags) for m in (Plain, "sgd"))
    assert plain.metrics == ours.metrics and not [w for w in recwarn if "requires_grad" in str(w.message)]


@pytest.mark.parametrize(
    ("method", "line"),
    [
        (
            {"observe": lambda self, inputs, labels: 0.0},
            "takes (inputs, labels); it must take inputs, labels and not_a",
        ),
        ({"COMPATIBILITY": []}, "lacks NAME or COMPATIBILITY; docs/extending.md shows what a method needs"),
    ],
)
def test_an_incomplete_method_is_told_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: dict[str, Any], line: str
) -> None:
    for name, value in method.items():
        monkeypatch.setattr(Sgd, name, value)
    with pytest.raises(UserError, match=re.escape(line)):
        run(tmp_path, model="sgd")


def test_bfloat16_is_refused_where_it_is_emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utils.run.precision.has_bfloat16", lambda device: False)
    with pytest.raises(UsageError, match=r"-O 2 needs bfloat16.*use -O 1"):
        run(tmp_path, *SHORT, "-O", "2")


def test_an_unusable_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--device quantum can't be used"):
        run(tmp_path, *SHORT, "--device", "quantum")
    with pytest.raises(UsageError, match="--device 99: this machine has"):
        run(tmp_path, *SHORT, "--device", "99")


@pytest.mark.numeric
def test_channels_last_learns_the_same(tmp_path: Path) -> None:
    flags = [*ER, *RESNET, "--n_epochs", "1", "--stop_after", "2"]
    _, _, plain = run(tmp_path / "plain", *flags)
    _, model, fast = run(tmp_path / "fast", *flags, "-O", "1")
    assert model.net.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert events(fast)[0]["loss"][:3] == pytest.approx(events(plain)[0]["loss"][:3], rel=1e-3)  # rounding grows later


@pytest.mark.numeric
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_optimizers_are_torchs(optimizer: str, tmp_path: Path) -> None:
    flags = ["--optimizer", optimizer, "--lr", "0.01", "--optim_wd", "0.1", "--optim_mom", "0.5", "--seed", "0"]
    model, _, _ = initialize(parse_args(["--model", "sgd", "--base_path", str(tmp_path), *flags]))
    group = model.opt.param_groups[0]
    assert type(model.opt).__name__.lower() == optimizer
    assert (group["lr"], group["weight_decay"]) == (0.01, 0.1)
    assert group.get("momentum") == (0.5 if optimizer == "sgd" else None)


@pytest.mark.numeric
def test_joint_with_validation_ends_on_every_test_set(tmp_path: Path) -> None:
    summary, _, _ = run(tmp_path, "--n_epochs", "2", "--validation", "10", model="joint")
    assert len(summary["test"]["class_il"]) == 5 and summary["n_tasks"] == 5
    assert np.mean(summary["test"]["class_il"]) == pytest.approx(summary["class_il"]["FAA"], abs=12)


def test_no_batch_at_all_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    flags = ["--fitting_mode", "iters", "--n_iters", "3", "--batch_size", "100000", "--drop_last", "1"]
    with pytest.raises(UserError, match="--batch_size 100000 leaves no batch of the 288 images of task 1"):
        run(tmp_path, *ER, *flags)
    assert list(tmp_path.glob("results/*/*/*")) == []


def test_batch_norm_of_a_single_image_is_one_line(tmp_path: Path) -> None:
    flags = ["--backbone", "resnet18", "--num_filters", "2", "--batch_size", "1"]
    with pytest.raises(
        UserError, match=r"single image \(task 1, epoch 1, step 1\): use --drop_last 1, another --batch_size"
    ):
        run(tmp_path, *flags, model="sgd")


def test_a_handed_over_buffer_is_not_offered_the_skipped_tasks_again(tmp_path: Path) -> None:
    common = [*SHORT, "--buffer_fill", "task_end", "--checkpoint_path", str(tmp_path / "saved")]
    _, first, _ = run(tmp_path / "a", *common, "--stop_after", "2", "--savecheck", "last")
    (file,) = (tmp_path / "saved").iterdir()
    _, second, _ = run(tmp_path / "b", *common, "--loadcheck", str(file), "--start_from", "2", "--stop_after", "3")
    new = len(second.dataset.train_loader.dataset)
    assert second.buffer.num_seen_examples == first.buffer.num_seen_examples + new


def test_a_run_from_a_handed_over_model_resumes_without_the_file(tmp_path: Path) -> None:
    common = ["--checkpoint_path", str(tmp_path / "saved")]
    run(tmp_path / "a", *SHORT, *common, "--stop_after", "2", "--savecheck", "last")
    (file,) = (tmp_path / "saved").iterdir()
    flags = [*SHORT, "--loadcheck", str(file), "--start_from", "2"]
    _, _, straight = run(tmp_path / "straight", *flags)
    with pytest.MonkeyPatch.context() as patch:
        observe = Er.observe

        def dying(self, *args, **kwargs):
            if self.current_task == 3:
                raise KeyboardInterrupt
            return observe(self, *args, **kwargs)

        patch.setattr(Er, "observe", dying)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "b", *flags, "--checkpoint_every", "3")
    file.unlink()
    directory = run_directory(tmp_path / "b")
    train(*initialize(parse_args(["--resume", str(directory)])))
    assert_same(final_state(directory), final_state(straight))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("summary.json", "[1]", "damaged"),
        ("summary.json", "{", "damaged"),
        ("summary.json", b"\xff\xfe{", "damaged"),
        ("accuracy.csv", "x", "summary.json, then run it again"),
    ],
)
def test_damaged_results_are_one_line(name: str, content: Any, words: str, tmp_path: Path, capsys: Any) -> None:
    flags = ["--model", "sgd", "--n_epochs", "0", "--seed", "0", "--base_path", str(tmp_path)]
    command_line(flags)
    file = run_directory(tmp_path) / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        command_line(flags)
    message = capsys.readouterr().err
    assert stopped.value.code == 1 and message.count("\n") == 1 and words in message
    command_line([*flags, "--overwrite", "1"])


@pytest.mark.parametrize("content", ["", "config: 3", "hash: x"])
def test_a_damaged_config_is_named(content: str, tmp_path: Path) -> None:
    _, _, directory = run(tmp_path, "--n_epochs", "0", model="sgd")
    (directory / "summary.json").unlink()
    (directory / "config.yaml").write_text(content)
    with pytest.raises(UserError, match=r"config\.yaml is damaged"):
        run(tmp_path, "--n_epochs", "0", model="sgd")


@pytest.mark.numeric
def test_cosine_reaches_zero_at_the_end_of_a_task_whatever_counts_it(tmp_path: Path) -> None:
    for mode, fitting in (("epoch", []), ("iter", []), ("iter", ["--fitting_mode", "iters", "--n_iters", "20"])):
        flags = ["--lr_scheduler", "cosine", "--scheduler_mode", mode, "--n_epochs", "4", *fitting, "--stop_after", "1"]
        _, model, _ = run(tmp_path / f"{mode}{len(fitting)}", *flags, model="sgd")
        assert model.opt.param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)


def test_a_buffer_beyond_memory_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--buffer_size 500000000000000 does not fit into memory"):
        run(tmp_path, "--buffer_size", str(5 * 10**14), "--n_epochs", "1")
