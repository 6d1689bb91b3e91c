"""Plugins that import what their own checkout has beside them, without that taking the place of ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from foreign_helpers import write
from helpers import run

import models
from utils.cli.parse import parse_args
from utils.errors import UserError
from utils.run.identity import config_hash, relevant_config

MODEL = """
{imports}
from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.buffer import Buffer


class Helped(ContinualModel):
    NAME = "helped"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        add_perturb_args(parser)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)
        self.pert = Perturber(self)

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        loss = self.loss(self.net(inputs), labels)
        loss.backward()
        self.pert(inputs)
        self.opt.step()
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return loss.item()
"""
PERTURBER = """
from copy import deepcopy
from backbone import get_backbone
from .scale import SCALE
from . import scale
from models.star_utils.other import WORD


def add_perturb_args(parser):
    parser.add_argument("--p-gamma", type=float, default=0.5)


class Perturber:
    def __init__(self, model):
        self.model, self.calls, self.words = model, 0, (SCALE, scale.SCALE, WORD)
        self.proxy = get_backbone(deepcopy(model.args)).to(model.device)

    def __call__(self, inputs):
        self.calls += 1
        for p in self.model.net.parameters():
            p.grad.add_(p.data, alpha=self.model.args.p_gamma * SCALE)
"""
IMPORTS = {
    "from a module": "from models.star_utils.perturber import Perturber, add_perturb_args",
    "from the folder": "from models.star_utils import perturber\n"
    "Perturber, add_perturb_args = perturber.Perturber, perturber.add_perturb_args",
    "as": "import models.star_utils.perturber as p\nPerturber, add_perturb_args = p.Perturber, p.add_perturb_args",
    "by the full name": "import models.star_utils.perturber\n"
    "Perturber, add_perturb_args = models.star_utils.perturber.Perturber, models.star_utils.perturber.add_perturb_args",
    "from the package": "from models import star_utils\nimport models.star_utils.perturber\n"
    "Perturber, add_perturb_args = star_utils.perturber.Perturber, star_utils.perturber.add_perturb_args",
}


def checkout(folder: Path, imports: str, init: bool = False) -> list[str]:
    """A model, and beside it a folder of helpers: a namespace package, unless it has an `__init__`."""
    helpers = folder / "models" / "star_utils"
    helpers.mkdir(parents=True, exist_ok=True)
    write(helpers, "perturber.py", PERTURBER)
    write(helpers, "scale.py", "SCALE = 1e-3\n")
    write(helpers, "other.py", "WORD = 'other'\n")
    if init:
        write(helpers, "__init__.py", "")
    file = write(folder / "models", "helped.py", MODEL.format(imports=imports))
    return ["--plugin", file, "--buffer_size", "20", "--lr", "0.1", "--seed", "0"]


def class_of(flags: list[str]) -> Any:
    return models.get_model_class(parse_args(["--model", "helped", *flags]))


@pytest.mark.parametrize("init", [False, True])
@pytest.mark.parametrize("form", IMPORTS)
def test_helpers_in_a_folder(form: str, init: bool, tmp_path: Path) -> None:
    assert class_of(checkout(tmp_path, IMPORTS[form], init)).NAME == "helped"
    assert not [name for name in sys.modules if name.startswith("models.star_utils")]
    assert not hasattr(models, "star_utils")


def test_a_model_trains_with_them(tmp_path: Path) -> None:
    flags = checkout(tmp_path, IMPORTS["from a module"])[:-2]
    _, model, _ = run(tmp_path / "run", *flags, "--n_epochs", "1", "--stop_after", "1", model="helped")
    assert model.pert.calls == 9 and model.pert.words == (1e-3, 1e-3, "other")


def test_the_framework_stays_ours_and_what_it_lacks_is_theirs(tmp_path: Path) -> None:
    for folder in ("models/utils", "utils", "backbone"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for framework in ("models/utils/continual_model.py", "utils/buffer.py", "backbone/ResNetBlock.py"):
        write(tmp_path, framework, "raise RuntimeError('another framework')\n")
    write(tmp_path, "models/utils/wide_model.py", "WIDE = 3\n")
    write(tmp_path, "utils/leaf.py", "from models.utils.wide_model import WIDE\nLEAF = WIDE + 1\n")
    words = "from models.utils.wide_model import WIDE\nfrom utils.leaf import LEAF\nimport backbone.ResNetBlock\n"
    found = class_of(checkout(tmp_path, words + IMPORTS["from a module"] + "\nassert (WIDE, LEAF) == (3, 4)"))
    assert issubclass(found, models.get_model_class(parse_args(["--model", "sgd", "--lr", "1"])).__mro__[1])


def test_two_checkouts_have_their_own(tmp_path: Path) -> None:
    first, second = (checkout(tmp_path / name, IMPORTS["from a module"]) for name in ("first", "second"))
    write(tmp_path / "second" / "models" / "star_utils", "scale.py", "SCALE = 2e-3\n")
    scales = [
        sys.modules[class_of(flags).__module__].Perturber.__init__.__globals__["SCALE"] for flags in (first, second)
    ]
    assert scales == [1e-3, 2e-3]


def test_an_edited_helper_makes_another_run(tmp_path: Path) -> None:
    flags = ["--model", "helped", *checkout(tmp_path, IMPORTS["from a module"])]
    first = config_hash(relevant_config(parse_args(flags)))
    write(tmp_path / "models" / "star_utils", "scale.py", "SCALE = 5e-3\n")  # imported by the helper alone
    assert config_hash(relevant_config(parse_args(flags))) != first


def test_a_helper_that_is_missing_is_named(tmp_path: Path) -> None:
    flags = checkout(tmp_path, "from models.star_utils.nothing import x\n" + IMPORTS["as"])
    with pytest.raises(UserError, match=r"helped\.py cannot be imported: ModuleNotFoundError: .*models\.star_utils"):
        class_of(flags)
