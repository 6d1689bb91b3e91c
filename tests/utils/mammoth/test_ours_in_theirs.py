"""Our DGC files in a stand-in for a checkout of Mammoth (see its README), in a process of their own."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import ROOT

from models.utils.dgc_views import raw_batches
from utils.mammoth.export import export

pytestmark = [pytest.mark.numeric, pytest.mark.slow]

COMMON = "--dataset seq-toy --lr 0.3 --n_epochs 2 --buffer_size 20"
BASES = {"er": "", "derpp": "--alpha 0.1 --beta 0.5", "xder": "--alpha 0.1 --beta 0.5"}
ESTIMATORS = {
    "sampled": "--dgc_estimator sampled --dgc_m 3 --dgc_current 1",
    "plain": "--dgc_estimator sampled --dgc_m 3 --dgc_view plain",
    "buffer": "--dgc_estimator sampled --dgc_m 4 --dgc_stage buffer --dgc_params head",
    "closed": "--dgc_estimator closed --dgc_decay 50",
    "released": "--dgc_estimator released --dgc_m 3",
}
OWN = {name: f"--model {name} {flags} --seed 0" for name, flags in BASES.items()}
OURS = {
    f"dgc_{base} {estimator}": f"--model dgc_{base} {flags} --dgc_alpha 0.05 {own} --seed 0"
    for base, flags in BASES.items()
    for estimator, own in ESTIMATORS.items()
}
OFF = {f"dgc_{base} off": f"--model dgc_{base} {flags} --dgc_alpha 0 --seed 0" for base, flags in BASES.items()}
OTHERS = {
    "er_task_end": "--model er_task_end --seed 0",
    "derpp_task_end": "--model derpp_task_end --alpha 0.1 --beta 0.5 --seed 0",
    "two optimizers": "--model dgc_er --dgc_alpha 0.05 --lr_scheduler multisteplr --optim_mom 0.5 --seed 0",
    "two optimizers off": "--model dgc_er --dgc_alpha 0 --lr_scheduler multisteplr --optim_mom 0.5 --seed 0",
    "skipped tasks": "--model dgc_er --dgc_estimator closed --start_from 2 --seed 0",
    "no seed": "--model dgc_er",
}
AGAIN = {f"{name} again": flags for name, flags in OWN.items()}
SAVED: dict[str, str] = {}
for base, own in OWN.items():
    flags = OURS[f"dgc_{base} sampled"]
    SAVED |= {
        f"{base} saved": f"{flags} --stop_after 2 --savecheck last",
        f"{base} loaded": f"{flags} --start_from 2 --stop_after 2 --loadcheck last.pt",
        f"{base} goes on": f"{flags} --start_from 2 --loadcheck last.pt",
        f"{base} without DGC": f"{own} --start_from 2 --stop_after 2 --loadcheck last.pt",
    }
# Runs one command after the other in one process, as if each were the first: torch is loaded once.
DRIVER = """
import json, sys
import main
from utils.buffer import Buffer
methods = dict(vars(Buffer))
print(json.dumps([main.main(command) for command in json.load(sys.stdin)]))
assert dict(vars(Buffer)) == methods
"""
# The same in float64, with an eye on what goes through the network and on the gradients: for each command how many
# passes of the base were rebuilt, and, at the first corrected step, where θ = θ̃, the replay term's gradient as the
# difference that the term makes to the base's, w·g(x̄;θ), and as DGC has it, w·g(x̄;θ̃).
WATCHING = """
import json, sys
import torch
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
import main
from models.utils.dgc_estimators import Sampled
from models.utils.dgc_mixin import DgcMixin
from models.utils.dgc_views import SameView

class Stop(Exception):
    pass

passed, watched = [], {"rebuilt": 0}
observe, step, correction = DgcMixin.observe, SameView.step, Sampled.correction

def observing(self, *args, **kwargs):
    passed.clear()
    hook = self.net.register_forward_pre_hook(lambda net, given: passed.append(given[0].clone()))
    calls, loss = [], self.loss

    def without_replay(outputs, labels):
        calls.append(len(labels))
        n = len(self.dgc_stream[2])
        if self.NAME == "dgc_er":
            return loss(outputs[:n], labels[:n]) * n / len(labels)
        return loss(outputs, labels) * (len(calls) == 1)

    try:
        if watched["zeroed"] and self.dgc_past:
            self.loss = without_replay
        return observe(self, *args, **kwargs)
    finally:
        self.loss = loss
        hook.remove()

def stepping(self, replay, stream):
    passes = step(self, replay, stream)
    for p in passes:
        assert p.training and sum(p.inputs.shape == x.shape and torch.equal(p.inputs, x) for x in passed) == 1
        watched["rebuilt"] += 1
    return passes

def flat(vector):
    return torch.cat([part.flatten() for part in vector])

def correcting(self, scale):
    if not (self.host.dgc_past and watched["stop"]):
        yield from correction(self, scale)
        return
    watched["base"] = flat([p.grad.clone() for p in self.host.net.parameters()])
    if not watched["zeroed"]:
        *_, (vector, factor) = correction(self, scale)
        names = [name for name, _ in self.host.net.named_parameters()]
        watched["pair"] = -factor / scale * flat([vector[name] for name in names])
    raise Stop

DgcMixin.observe, SameView.step, Sampled.correction = observing, stepping, correcting

def first_step(command, zeroed):
    watched.update(zeroed=zeroed, stop=True)
    try:
        main.main(command)
    except Stop:
        return watched["base"]

reports = []
for command in json.load(sys.stdin):
    term = first_step(command, False) - first_step(command, True)
    difference = (term - watched["pair"]).norm() / term.norm()
    watched.update(zeroed=False, stop=False, rebuilt=0)
    report = main.main(command)
    reports.append({"rebuilt": watched["rebuilt"], "difference": difference.item(), "losses": report["losses"]})
print(json.dumps(reports))
"""


def run(checkout: Path, commands: dict[str, str], driver: str = DRIVER) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", driver],
        input=json.dumps([shlex.split(f"{flags} {COMMON}") for flags in commands.values()]),
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(commands, json.loads(done.stdout), strict=True))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(ROOT / "tests" / "upstream_stand_in", tmp_path_factory.mktemp("x") / "mammoth"))


@pytest.fixture(scope="module")
def before(checkout: Path) -> dict[str, Any]:
    """The checkout's own models, when our files are not there yet."""
    return run(checkout, OWN)


@pytest.fixture(scope="module")
def reports(checkout: Path, before: dict[str, Any]) -> dict[str, Any]:
    export(checkout)
    return run(checkout, OURS | OFF | OTHERS | SAVED | AGAIN)


def test_its_own_models_are_as_they_were(before: dict[str, Any], reports: dict[str, Any]) -> None:
    """Bit by bit, although our files have been imported and our models trained in the same process."""
    for name in OWN:
        assert reports[f"{name} again"] == before[name]


@pytest.mark.parametrize(
    ("ours", "theirs"), [("dgc_er", "er_task_end"), ("dgc_derpp", "derpp_task_end"), ("dgc_xder", "xder")]
)
def test_without_correction_it_is_the_base_filled_at_the_ends_of_tasks(
    ours: str, theirs: str, before: dict[str, Any], reports: dict[str, Any]
) -> None:
    base = before[theirs] if theirs in before else reports[theirs]
    assert reports[f"{ours} off"] == base  # losses, weights, buffer, and where the global generators stand


@pytest.mark.parametrize("name", OURS)
def test_every_estimator_corrects_and_leaves_no_trace(name: str, reports: dict[str, Any]) -> None:
    on, off = reports[name], reports[f"{name.partition(' ')[0]} off"]
    assert len(on["losses"]) == len(off["losses"]) == 24 and all(map(math.isfinite, on["losses"]))
    first_task = 8
    changed = on["losses"][:first_task] != off["losses"][:first_task]
    assert changed == ("sampled" in name)  # only --dgc_current acts there
    assert on["losses"][first_task:] != off["losses"][first_task:]
    change = np.abs(np.array(on["weights"]) - np.array(off["weights"])).max()
    assert change > 1e-5
    assert on["draws"] == off["draws"]  # the global generators are the base's alone
    assert on["patched"] == [] and sorted(set(on["buffer"])) == [0, 1, 2, 3, 4, 5]


def test_the_pass_of_the_base_is_rebuilt_and_the_pair_cancels(checkout: Path, reports: dict[str, Any]) -> None:
    """At θ = θ̃, for each base: here the weight of the replay term and its outputs are theirs."""
    commands = {base: OURS[f"dgc_{base} sampled"].replace("--dgc_current 1", "") for base in BASES}
    for base, found in run(checkout, commands, WATCHING).items():
        assert found["difference"] < 1e-12, base
        assert found["rebuilt"] == 16, base  # each step of tasks 2 and 3
        assert len(found["losses"]) == 24


def test_the_correction_survives_a_second_optimizer(reports: dict[str, Any]) -> None:
    on, off = reports["two optimizers"], reports["two optimizers off"]
    assert on["losses"][:8] == off["losses"][:8]
    assert np.abs(np.array(on["weights"]) - np.array(off["weights"])).max() > 1e-5


@pytest.mark.parametrize(("name", "steps"), [("skipped tasks", 8), ("no seed", 24)])
def test_special_runs(name: str, steps: int, reports: dict[str, Any]) -> None:
    losses = reports[name]["losses"]
    assert len(losses) == steps and all(map(math.isfinite, losses))


def test_a_checkpoint_written_there_loads_again(reports: dict[str, Any]) -> None:
    """Strictly: DGC adds nothing to the weights. Nothing but what a safe reader takes is in the file."""
    for base in BASES:
        first, on = reports[f"{base} saved"], reports[f"{base} goes on"]
        for same in (reports[f"{base} loaded"], reports[f"{base} without DGC"]):
            assert (same["losses"], same["parameters"], same["buffer"]) == ([], first["parameters"], first["buffer"])
        assert len(on["losses"]) == 8 and all(map(math.isfinite, on["losses"]))
        assert on["weights"] != first["weights"] and set(on["buffer"]) >= {4, 5}  # the third task's


def test_grey_images_in_a_tensor_are_read_item_by_item() -> None:
    """As torchvision's MNIST has them; they have no channels, and another range than what the items give."""

    class Grey:
        data, targets = torch.arange(5 * 4, dtype=torch.uint8).view(5, 2, 2), torch.arange(5)

        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int, torch.Tensor]:
            return torch.rand(1, 2, 2), int(self.targets[index]), self.data[index][None] / 255

    before = torch.get_rng_state()
    batches = list(raw_batches(Grey(), 3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.cat([images for images, _ in batches]), Grey.data[:, None] / 255)
    assert [labels.tolist() for _, labels in batches] == [[0, 1, 2], [3, 4]]
    Grey.targets = torch.tensor([0, -1, 2, -1, -1])  # without a label
    assert [labels.tolist() for _, labels in raw_batches(Grey(), 3)] == [[0, 2]]


def test_its_command_line(checkout: Path, reports: dict[str, Any], tmp_path: Path) -> None:
    command = [sys.executable, "main.py", *shlex.split(OURS["dgc_er closed"]), *COMMON.split()]
    command += ["--report", str(tmp_path / "report.json")]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "report.json").read_text()) == reports["dgc_er closed"]
