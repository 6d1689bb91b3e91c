"""DGC where a base method or a command does what few do."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dgc_helpers import begun, build, flat
from foreign_helpers import write
from helpers import run
from torch import Tensor, nn

from main import initialize
from models.utils.dgc_gradients import Pass, mean_gradient
from models.utils.dgc_views import PlainView, read_rows
from utils.cli.parse import parse_args
from utils.errors import UserError
from utils.training import train

pytestmark = pytest.mark.numeric

FLAGS = ["--buffer_size", "40", "--batch_size", "16", "--minibatch_size", "8", "--lr", "0.05", "--n_epochs", "2"]
RESNET = ["--backbone", "resnet8", "--num_filters", "4"]

STORES_FIRST = """
import torch
from models.utils.continual_model import ContinualModel
from utils.args import add_rehearsal_args
from utils.buffer import Buffer

class StoresFirst(ContinualModel):
    NAME, COMPATIBILITY = "stores_first", ["class-il", "task-il", "general-continual"]

    @staticmethod
    def get_parser(parser):
        add_rehearsal_args(parser)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        images, targets = self.buffer.get_data(self.args.minibatch_size, transform=self.transform, device=self.device)
        loss = self.loss(self.net(torch.cat((inputs, images))), torch.cat((labels, targets)))
        loss.backward()
        self.opt.step()
        return loss.item()
"""
JOINS = """
from models.er import Er

class Joins(Er):
    NAME, COMPATIBILITY = "joins", ["class-il"]
"""


def mean_of(model: Any, passes: list[Pass]) -> Tensor:
    return flat(model, mean_gradient(model.net, model.loss, passes, model.dgc_names()))


# -- a file of another run ---------------------------------------------------------------------------------------------


def saved(tmp_path: Path, model: str, *flags: str, size: int = 40) -> str:
    folder = tmp_path / "checkpoints"
    save = ["--stop_after", "2", "--savecheck", "last", "--checkpoint_path", str(folder)]
    run(tmp_path / "a", "--buffer_size", str(size), *FLAGS[2:], *RESNET, *save, *flags, model=model)
    (file,) = folder.glob("*.pt")
    return str(file)


def continued(tmp_path: Path, model: str, file: str, size: int = 40, *more: str) -> Any:
    line = ["--model", model, "--seed", "0", "--base_path", str(tmp_path / "b"), "--buffer_size", str(size)]
    line += [*FLAGS[2:], *RESNET, *more]
    line += ["--dgc_estimator", "closed", "--dgc_alpha", "0.5", "--loadcheck", file, "--start_from", "2"]
    return initialize(parse_args([*line, "--stop_after", "3"]))


@pytest.mark.parametrize(("elsewhere", "size"), [(False, 40), (False, 1000), (True, 40)])
def test_the_calibrator_is_that_of_the_buffer_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool, size: int
) -> None:
    """c = Γ' − G(M;θ), Γ' from all images of the skipped tasks at the file's θ: so G(M;θ) + c is the true gradient.

    A method from elsewhere stores nothing in skipped tasks, because it stores in its steps.
    """
    if elsewhere:
        base = ["--plugin", write(tmp_path, "base.py", STORES_FIRST)]
        file = saved(tmp_path, "stores_first", *base, size=size)
        model, dataset, args = continued(tmp_path, "stores_first", file, size, *base, "--dgc", "1")
    else:
        file = saved(tmp_path, "er", "--buffer_fill", "task_end", size=size)
        model, dataset, args = continued(tmp_path, "dgc_er", file, size)
    seen: list[tuple[Tensor, Tensor]] = []
    errors: list[tuple[float, float]] = []
    begin = model.dgc.begin_task

    def look() -> None:
        begin()
        if model.current_task < 2:
            images = dataset.train_loader.dataset
            seen.append((images.batch(slice(None)).clone(), images.targets.clone()))
            return
        view = PlainView(model)
        true = mean_of(model, list(view.past(*map(torch.cat, zip(*seen, strict=True)))))
        buffer = mean_of(model, view.buffer())
        calibrated = buffer + flat(model, model.dgc.direction())
        errors.append((float((buffer - true).norm() / true.norm()), float((calibrated - true).norm() / true.norm())))

    monkeypatch.setattr(model.dgc, "begin_task", look)
    train(model, dataset, args)
    ((of_buffer, of_calibrated),) = errors
    assert of_buffer > 0.1 if size == 40 else of_buffer < 1e-5  # the larger one holds all past images
    assert of_calibrated < 1e-5


def test_a_file_whose_weights_fit_only_after_the_skipped_tasks_is_refused(tmp_path: Path) -> None:
    built = continued(tmp_path, "dgc_dynamic_er", saved(tmp_path, "dynamic_er"))
    with pytest.raises(UserError, match=r"^[^\n]*does not fit this model[^\n]*DGC needs weights that fit before"):
        train(*built)


def test_weights_that_fit_after_the_skipped_tasks_can_be_evaluated(tmp_path: Path) -> None:
    """Then no gradient counts, so it does not matter that those of the skipped tasks are of other weights."""
    file = saved(tmp_path, "dynamic_er")
    line = ["--buffer_size", "40", *FLAGS[2:], *RESNET, "--loadcheck", file, "--start_from", "2", "--stop_after", "3"]
    line += ["--inference_only", "1"]
    found = [run(tmp_path / model, *line, model=model)[0]["class_il"] for model in ("dgc_dynamic_er", "dynamic_er")]
    assert found[0] == found[1] and found[0]["FAA"] is not None


# -- bases from elsewhere ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "source", "flags"),
    [
        ("joins", JOINS, ["--buffer_fill", "stream", "--dgc_current", "1"]),
        ("stores_first", STORES_FIRST, ["--task_free", "1"]),
    ],
)
def test_how_a_base_passes_its_replay_is_found_out_in_time(
    name: str, source: str, flags: list[str], tmp_path: Path
) -> None:
    """Where DGC asks for it before the second task: for the current task's term, and in a task-free run."""
    plugin = ["--plugin", write(tmp_path, "base.py", source), "--dgc", "1", "--dgc_alpha", "0.3"]
    summary, model, _ = run(tmp_path, *plugin, *FLAGS, "--stop_after", "2", *flags, model=name)
    assert summary["steps"] > 0 and model.dgc.gamma


def test_reading_a_training_set_shifts_no_random_numbers() -> None:
    class Items:
        def __getitem__(self, index: int) -> tuple[Tensor, int, Tensor]:
            noise = torch.rand(()) + random.random() + np.random.rand()
            return torch.zeros(2) + noise, index % 2, torch.full((2,), float(index))

    def next_numbers() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    drawn = []
    for read in (False, True):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        if read:
            images, labels = read_rows(Items(), torch.tensor([3, 0]))
            assert images.tolist() == [[3, 3], [0, 0]] and labels.tolist() == [1, 0]
        drawn.append(next_numbers())
    assert drawn[0] == drawn[1]


def second_task(tmp_path: Path, change: Any, *flags: str) -> tuple[Any, Tensor]:
    """A model whose base makes a change as its second task begins, and the true gradient of the first at this θ."""
    model, dataset, _ = build(tmp_path, *flags)
    change(model, 0)
    loader, _ = dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    images = dataset.train_loader.dataset
    past = images.batch(slice(None)).clone(), images.targets.clone()
    for batch, _ in zip(loader, range(7), strict=False):
        model.meta_observe(*batch)
    model.meta_end_task(dataset)
    dataset.get_data_loaders()
    change(model, 1)
    model.meta_begin_task(dataset)
    return model, mean_of(model, list(PlainView(model).past(*past)))


def reinitialise(model: Any, task: int) -> None:
    if task:
        with torch.no_grad():
            model.net.classifier.weight[2:4].normal_(0, 0.3, generator=torch.Generator().manual_seed(0))


def thaw(model: Any, task: int) -> None:
    next(model.net.parameters()).requires_grad_(bool(task))


@pytest.mark.parametrize("change", [reinitialise, thaw])
@pytest.mark.parametrize("estimator", [["sampled", "--dgc_view", "plain"], ["closed"]], ids=["sampled", "closed"])
def test_calibration_follows_what_a_base_does_to_its_network(change: Any, estimator: list[str], tmp_path: Path) -> None:
    """Γ' was taken at another θ: the calibrator Γ' − G(M;θ̃) is carried over, and zero where parameters are new."""
    model, true = second_task(tmp_path, change, "--dgc_estimator", *estimator)
    buffer = mean_of(model, PlainView(model).buffer())
    c = flat(model, model.dgc.direction())
    assert (buffer + c - true).norm() < 0.5 * (buffer - true).norm()
    first = next(model.net.named_parameters())[0]
    if change is thaw:
        assert not model.dgc.direction().get(first, torch.zeros(1)).any()


def test_a_parameter_that_the_loss_does_not_depend_on_stays_without_a_gradient(tmp_path: Path) -> None:
    """A gradient of zeros would let weight decay and momentum move it."""
    model, dataset = begun(tmp_path, "--dgc_estimator", "sampled", "--optim_wd", "0.1")
    model.net.register_parameter("spare", nn.Parameter(torch.ones(3)))
    model.dgc.take_snapshot()
    model.opt = model.get_optimizer()
    model.meta_observe(*next(iter(dataset.train_loader)))
    assert model.net.spare.grad is None and model.net.spare.tolist() == [1, 1, 1]
