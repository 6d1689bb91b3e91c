"""DGC on top of methods from elsewhere (`--dgc 1`): what it does, what it needs, and when it is refused."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_helpers import FOREIGN, flags_of, write
from helpers import ROOT, run
from method_helpers import RESNET, Killed, assert_exact_resume, kill_at

import models
from main import initialize
from models.hal import Hal
from models.utils import dgc_mixin
from models.utils.dgc_mixin import DgcMixin
from models.utils.with_dgc import with_dgc
from utils.cli import registry
from utils.cli.parse import parse_args
from utils.errors import UsageError


def parse(*flags: str) -> Namespace:
    return parse_args(["--lr", "0.1", "--seed", "0", *flags])


@pytest.mark.numeric
def test_dgc_on_a_foreign_model_is_the_two_lines_of_class(tmp_path: Path) -> None:
    """`--dgc 1` and `class DgcErAce(DgcMixin, ErAce)` give the same numbers, which are not those without DGC."""
    foreign = (FOREIGN / "er_ace.py").read_text()
    two_lines = """
from models.utils.dgc_mixin import DgcMixin

class DgcErAce(DgcMixin, AsymmetricReplay):
    NAME, COMPATIBILITY = 'two_lines', ['class-il', 'task-il']
"""
    by_hand = write(tmp_path, "two_lines.py", foreign + two_lines)
    flags = ("--lr", "0.1", "--buffer_size", "100", "--n_epochs", "2", "--stop_after", "3")
    dgc = (*flags, "--dgc_estimator", "closed", "--dgc_alpha", "0.3")
    _, model, one = run(tmp_path / "a", "--plugin", str(FOREIGN / "er_ace.py"), "--dgc", "1", *dgc, model="er_ace")
    _, _, two = run(tmp_path / "b", "--plugin", by_hand, *dgc, model="two_lines")
    _, _, base = run(tmp_path / "c", "--plugin", str(FOREIGN / "er_ace.py"), *flags, model="er_ace")
    assert (model.NAME, type(model).__mro__[2]) == ("dgc_er_ace", DgcMixin)
    assert (one / "metrics.jsonl").read_bytes() == (two / "metrics.jsonl").read_bytes()
    assert (one / "metrics.jsonl").read_bytes() != (base / "metrics.jsonl").read_bytes()
    calibrator = model.dgc.calibrator
    assert calibrator and all(torch.isfinite(part).all() for part in calibrator.values())


@pytest.mark.numeric
def test_dgc_on_a_subclass_of_er_has_the_weights_of_ers_loss(tmp_path: Path) -> None:
    """On embeddings ER weighs by tasks; with DGC's own settings the subclass is `dgc_er`."""
    mine = "from models.er import Er\n\nclass Mine(Er):\n    NAME, COMPATIBILITY = 'mine', ['class-il']\n"
    flags = (
        "--dataset",
        "seq-embeddings",
        "--buffer_size",
        "100",
        "--n_epochs",
        "1",
        "--stop_after",
        "3",
        "--lr",
        "0.1",
    )
    flags = (*flags, "--dgc_estimator", "closed", "--dgc_alpha", "1", "--buffer_fill", "task_end")
    plugin = ("--plugin", write(tmp_path, "mine.py", mine), "--replay_weight", "tasks", "--dgc", "1")
    _, _, one = run(tmp_path / "a", *plugin, *flags, model="mine")
    _, _, two = run(tmp_path / "b", *flags, model="dgc_er")
    assert (one / "metrics.jsonl").read_bytes() == (two / "metrics.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["sampled", "released"])
def test_dgc_on_a_foreign_model_resumes_exactly(estimator: str, tmp_path: Path) -> None:
    flags = (*flags_of("er_ace"), "--dgc", "1", "--dgc_estimator", estimator, "--dgc_alpha", "0.1", "--dgc_m", "4")
    method = models.get_model_class(parse_args(["--model", "er_ace", *flags]))
    assert_exact_resume(method, tmp_path, *flags, model="er_ace")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--model", "er", "--buffer_size", "5"], "er has a DGC of its own; use --model dgc_er"),
        (["--model", "xder", "--buffer_size", "5"], "use --model dgc_xder"),
        (["--model", "dgc_er", "--buffer_size", "5"], "dgc-er is with DGC already"),
        (["--model", "sgd"], "sgd has no replay buffer"),
        (["--model", "joint"], "joint has no replay buffer"),
        (["--model", "icarl", "--buffer_size", "5"], "icarl draws no replay batch: .* use --model dgc_er, dgc_derpp"),
        (["--model", "agem_r", "--buffer_size", "5"], "agem-r projects .* DGC is defined here for er, derpp, xder"),
        (["--model", "gss", "--buffer_size", "5"], "gss chooses at every step what it stores"),
        (["--plugin", str(FOREIGN / "lwf.py"), "--model", "lwf"], "lwf has no replay buffer"),
    ],
)
def test_dgc_is_refused_with_a_reason(flags: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=f"--dgc 1: .*{reason}"):
        parse(*flags, "--dgc", "1")


@pytest.mark.parametrize("name", models.get_model_entries())
def test_every_method_of_ours_has_a_dgc_of_its_own_or_none(name: str) -> None:
    with pytest.raises(UsageError, match="--dgc 1: "):
        parse("--model", name, "--buffer_size", "5", "--dgc", "1")


def test_dgc_on_a_plugin_that_has_taken_the_name_of_ours(tmp_path: Path) -> None:
    args = parse(*flags_of("er")[:2], "--model", "er", "--buffer_size", "5", "--dgc", "1")
    assert issubclass(models.get_model_class(args), DgcMixin) and args.dgc_estimator == "sampled"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hal", r"would need a utils\.buffer\.Buffer in self\.buffer, which is a utils\..*ring_buffer\.RingBuffer"),
        ("der", "dgc_der: DGC corrects the cross-entropy of replayed images, but its base stores no labels with them"),
        ("fdr", "dgc_fdr: .* stores no labels with them"),  # it fills its buffer at the end of a task
        ("gdumb", "dgc_gdumb: .* makes no step of its optimizer in `observe`"),
        ("icarl", "dgc_icarl: .* draws nothing from self.buffer by get_data in `observe`"),
        ("bic", "dgc_bic: .* draws nothing from self.buffer"),
        (
            "mer",
            "dgc_mer: .* neither by themselves nor joined to the stream's batch; use --dgc_view plain",
        ),  # before it
    ],
)
def test_dgc_needs_a_buffer_of_labelled_images_draws_and_steps(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=reason):
        run(tmp_path, *flags_of(name), "--dgc", "1", "--n_epochs", "1", "--stop_after", "2", model=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("mer", ("--dgc_view", "plain")),
        ("er", ("--dgc_estimator", "closed")),
        ("er", ("--start_from", "2")),  # with nothing in memory in the only task that is trained
        ("icarl", ("--dgc_alpha", "0")),  # the method alone
        ("icarl", ("--dgc_estimator", "released")),  # needs no draw of the method's
    ],
)
def test_dgc_runs_where_it_may_act(name: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    tasks = "3" if "--start_from" in flags else "2"
    line = (*flags_of(name), "--dgc", "1", "--n_epochs", "1", "--stop_after", tasks, *flags)
    summary, model, _ = run(tmp_path, *line, model=name)
    assert summary["class_il"]["FAA"] >= 0 and isinstance(model, DgcMixin)


def test_that_dgc_has_nothing_to_do_is_known_after_resuming(tmp_path: Path) -> None:
    flags = (*flags_of("icarl"), "--dgc", "1", "--n_epochs", "1", "--stop_after", "2")
    method = models.get_model_class(parse_args(["--model", "icarl", *flags]))
    with pytest.MonkeyPatch.context() as patch:
        kill_at(method, 17, patch)  # of 18, in task 2
        with pytest.raises(Killed):
            run(tmp_path, *flags, "--checkpoint_every", "2", model="icarl")
    with pytest.raises(UsageError, match="draws nothing from"):
        run(tmp_path, *flags, model="icarl")


def test_dgc_on_a_foreign_model_without_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer is filled as the stream goes: there is no end of a task for which it could wait."""
    flags = (*flags_of("er"), "--dgc", "1", "--task_free", "1", "--n_epochs", "1", "--stop_after", "2")
    _, model, _ = run(tmp_path / "er", *flags, model="er")
    assert len(model.buffer) == 100
    with pytest.raises(UsageError, match="stores no labels"):
        run(tmp_path / "der", *flags_of("der"), *flags[-8:], model="der")
    monkeypatch.setattr(dgc_mixin, "IDLE", 5)
    monkeypatch.setattr(type(model), "dgc_draw", lambda self: None)
    with pytest.raises(UsageError, match="draws nothing from"):
        run(tmp_path / "idle", *flags, model="er")


def test_dgc_on_a_file_in_models_that_is_none_of_ours() -> None:
    entry = registry.Entry("mine", ROOT / "models" / "mine.py", "Mine", "", "models.mine")
    assert issubclass(with_dgc(entry, Hal), DgcMixin)


BUFFERS = {
    "loose": """
class Memory(Buffer):
    def get_data(self, *args, **kwargs):
        return super().get_data(*args, **kwargs)
""",
    "index_last": """
class Memory(Buffer):
    def get_data(self, size, transform=None, give_index=False, random=False, device=None, **more):
        index, *fields = super().get_data(size, transform, return_index=True, device=device, **more)
        return (*fields, index) if give_index else tuple(fields)
""",
}


def with_memory(folder: Path, kind: str) -> str:
    """ER as it is given, with a buffer of its own kind."""
    text = (FOREIGN / "er.py").read_text().replace("self.buffer = Buffer(", "self.buffer = Memory(")
    text = text.replace("\n\nclass PlainReplay", BUFFERS[kind] + "\n\nclass PlainReplay")
    if kind == "index_last":
        text = text.replace("old_x, old_y = ", "old_x, old_y, _ = ").replace("device=self.device)", "give_index=True)")
    return write(folder, f"{kind}.py", text)


MEMORY_RUN = ("--dgc", "1", "--dgc_alpha", "0.3", "--dgc_m", "4", "--lr", "0.1", "--buffer_size", "100")
MEMORY_RUN = (*MEMORY_RUN, "--n_epochs", "1", "--stop_after", "2")


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("estimator", ["sampled", "closed"])
def test_a_buffer_need_not_tell_its_rows_as_ours_does(kind: str, estimator: str, tmp_path: Path) -> None:
    flags = (*MEMORY_RUN, "--dgc_estimator", estimator)
    own = ("--plugin", with_memory(tmp_path, kind))
    _, model, one = run(tmp_path / "one", *own, *flags, model="er")
    _, _, two = run(tmp_path / "two", "--plugin", str(FOREIGN / "er.py"), *flags, model="er")
    assert type(model.buffer).__name__ == "Memory"
    assert (one / "metrics.jsonl").read_bytes() == (two / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("kind", BUFFERS)
def test_what_needs_its_rows_is_refused(kind: str, tmp_path: Path) -> None:
    flags = ("--plugin", with_memory(tmp_path, kind), *MEMORY_RUN, "--dgc_view", "plain")
    with pytest.raises(UsageError, match="does not tell which images it hands out; use --dgc_view same") as caught:
        run(tmp_path / "run", *flags, model="er")
    assert "\n" not in str(caught.value)


BASE = """
import torch
from models.utils.continual_model import ContinualModel
from utils.args import add_rehearsal_args
from utils.buffer import Buffer

class Base(ContinualModel):
    NAME, COMPATIBILITY = "base", ["class-il"]

    @staticmethod
    def get_parser(parser):
        add_rehearsal_args(parser)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset)
        self.buffer = Buffer(args.buffer_size)
        self.steps = []

    def draw(self):
        return self.buffer.get_data(self.args.minibatch_size, transform=self.transform, device=self.device)

    def step(self, loss, *drawn):
        self.steps.append(drawn)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()
"""
ONCE = """
    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.buffer.add_data(not_aug_inputs, labels)
        if self.buffer.is_empty():
            return self.step(self.loss(self.net(inputs), labels))
        x, y = self.draw()
        {}
"""
OBSERVES = {
    "alone": ONCE.format("return self.step(self.loss(self.net(inputs), labels) + self.loss(self.net(x), y), x)"),
    "joined": ONCE.format(
        "return self.step(self.loss(self.net(torch.cat((inputs, x))), torch.cat((labels, y))), torch.cat((inputs, x)))"
    ),
    "neither": ONCE.format("return self.step(self.loss(self.net(x.flip(-1)), y), x)"),
    # A step without a draw, one, one of which the second of two draws is not in the cross-entropy, and one without.
    "several": """
    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.step(self.loss(self.net(inputs), labels))
        if not self.buffer.is_empty():
            x, y = self.draw()
            self.step(self.loss(self.net(x), y), x)
            (x, y), (z, _) = self.draw(), self.draw()
            self.step(self.loss(self.net(x), y) + 0.1 * self.net(z).square().mean(), x)
        self.buffer.add_data(not_aug_inputs, labels)
        return self.step(self.loss(self.net(inputs), labels))
""",
}


def observed(folder: Path, kind: str, *flags: str) -> tuple[Any, list[Any]]:
    """A base in its second task, and what DGC took through θ̃ at each step of it; None if a step was not corrected."""
    line = ["--plugin", write(folder, "base.py", BASE + OBSERVES[kind]), "--model", "base", "--dgc", "1", *flags]
    line += ["--buffer_size", "60", "--minibatch_size", "8", *RESNET]
    model, dataset, _ = initialize(parse("--base_path", str(folder), "--dgc_alpha", "0.5", *line))
    for _ in range(2):
        loader, _ = dataset.get_data_loaders()
        model.meta_begin_task(dataset)
        model.steps, taken = [], watch_steps(model)
        for batch in list(loader)[:3]:
            model.meta_observe(*batch)
        if model.current_task == 0:
            model.meta_end_task(dataset)
    return model, taken


def watch_steps(model: Any) -> list[Any]:
    taken: list[Any] = []
    passes: list[Any] = []
    correction, step = type(model.dgc).correction, type(model.dgc_view).step

    def handing(replay: Any, stream: Any) -> Any:
        passes[:] = step(model.dgc_view, replay, stream)
        return passes

    def watched(scale: float) -> Any:
        before = [p.grad.clone() for p in model.net.parameters()]
        passes.clear()
        yield from correction(model.dgc, scale)
        changed = any(not torch.equal(p.grad, old) for p, old in zip(model.net.parameters(), before, strict=True))
        taken.append([p.inputs for p in passes] if changed else None)

    model.dgc.correction, model.dgc_view.step = watched, handing
    return taken


@pytest.mark.parametrize("estimator", ["sampled", "closed"])
def test_each_step_is_calibrated_on_the_draws_since_the_one_before(estimator: str, tmp_path: Path) -> None:
    model, taken = observed(tmp_path, "several", "--dgc_estimator", estimator)
    assert [bool(drawn) for drawn in model.steps] == 3 * [False, True, True, False]
    for drawn, inputs in zip(model.steps, taken, strict=True):
        assert (inputs is None) == (not drawn)
        if drawn and estimator == "sampled":
            assert len(inputs) == 1 and torch.equal(inputs[0], drawn[0])
    assert model.dgc.state_dict().get("stage_step", 12) == 12


@pytest.mark.parametrize("kind", ["alone", "joined"])
def test_how_a_base_passes_what_it_replays_is_found_out(kind: str, tmp_path: Path) -> None:
    model, taken = observed(tmp_path, kind)
    assert len(taken) == 3
    for (passed,), (inputs,) in zip(model.steps, taken, strict=True):
        assert torch.equal(passed, inputs) and len(inputs) == (40 if kind == "joined" else 8)
    assert not model.net._forward_pre_hooks


def test_a_pass_that_cannot_be_rebuilt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"dgc_base: .* use --dgc_view plain$"):
        observed(tmp_path, "neither")
    _, taken = observed(tmp_path, "neither", "--dgc_view", "plain")
    assert len(taken) == 3 and all(inputs is not None for inputs in taken)


DROPOUT = """
from torch import nn
from backbone import register_backbone
from backbone.MNISTMLP import MNISTMLP

@register_backbone("dropping")
def dropping(num_classes, rate: float = 0.5, input_size: int = 784):
    net = MNISTMLP(input_size, num_classes, 7)
    net.classifier = nn.Sequential(nn.Dropout(rate), net.classifier)
    return net
"""


def test_a_network_with_dropout_has_no_pass_that_could_be_taken_twice(tmp_path: Path) -> None:
    flags = ["--plugin", write(tmp_path, "dropping.py", DROPOUT), "--model", "dgc_er", "--buffer_size", "10"]
    flags += ["--base_path", str(tmp_path), "--backbone", "dropping"]
    with pytest.raises(UsageError, match=r"the network has dropout, .*: use --dgc_view plain$"):
        initialize(parse(*flags))
    for allowed in (["--rate", "0"], ["--dgc_view", "plain"], ["--dgc_estimator", "closed"], ["--dgc_alpha", "0"]):
        assert isinstance(initialize(parse(*flags, *allowed))[0], DgcMixin)
