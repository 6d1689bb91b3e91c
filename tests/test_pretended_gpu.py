"""Every method on a pretended GPU: nothing mixes devices, and no step waits for the device (`pretended_gpu.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers import ROOT, run

pytestmark = pytest.mark.slow

SHORT = ["--n_epochs", "1", "--batch_size", "64", "--non_verbose", "1"]  # 5 steps a task
REPLAY = "--buffer_size 30 --stop_after 2"
DGC = f"{REPLAY} --dgc_m 3 --dgc_alpha 0.3"
DERPP = "--alpha 0.1 --beta 0.5"
RUNS = [
    "--model sgd --stop_after 2 --backbone resnet8 --num_filters 4",
    f"--model er {REPLAY} --noise_rate 0.2",
    f"--model er {REPLAY} --task_free 1",
    f"--model dgc_er {DGC} --backbone resnet8 --num_filters 4",
    f"--model dgc_er {DGC} --dgc_current 1 --replay_weight tasks",
    f"--model dgc_er {DGC} --dgc_current 1 --dgc_view plain",
    f"--model dgc_er {REPLAY} --dgc_estimator closed --dgc_alpha 0.3",
    f"--model dgc_er {DGC} --task_free 1 --dgc_stage buffer",
    f"--model dgc_derpp {DGC} {DERPP} --dgc_current 1 --replay_weight tasks",
    f"--model dgc_derpp {DGC} {DERPP} --dgc_estimator released",
    f"--model derpp {REPLAY} {DERPP}",
    f"--model dgc_xder {DGC}",
    f"--model xder {REPLAY}",
    f"--model dynamic_er {REPLAY}",
    f"--model dgc_dynamic_er {DGC}",
    f"--model dgc_dynamic_er {DGC} --dgc_view plain",
    f"--model agem {REPLAY}",
    f"--model agem_r {REPLAY}",
    f"--model hal {REPLAY}",
    f"--model icarl {REPLAY}",
    f"--model gcr {REPLAY} {DERPP}",
    f"--model moca {REPLAY}",
    f"--model moca {REPLAY} --task_free 1",
    "--model aop --stop_after 2 --backbone resnet8 --num_filters 4",
    f"--model ssvrg {REPLAY} --ssvrg_m 4",
    f"--model ssvrg {REPLAY} --ssvrg_m 4 --task_free 1",
    "--model joint",
]
LEARNT = [f"--model dgc_er {DGC}", f"--model er {REPLAY} --task_free 1"]
WAITING = [f"--model gss {REPLAY}", f"--model gcr {REPLAY} {DERPP} --task_free 1"]
FOREIGN = "--buffer_size 30 --stop_after 2 --lr 0.1 --plugin {}/tests/foreign/{}.py"
HOST_MEMORY = [  # Mammoth's buffers lie on the host unless they are told otherwise
    f"--model er {FOREIGN.format(ROOT, 'er')}",
    f"--model er {FOREIGN.format(ROOT, 'er')} --dgc 1",
    f"--model derpp {FOREIGN.format(ROOT, 'derpp')} {DERPP}",
]


class Runs(NamedTuple):
    """What runs on the pretended GPU waited for, or their errors; each has a folder of its own, by its flags."""

    waits: dict[str, Any]
    folders: dict[str, Path]


def trained(folder: Path, *runs: str) -> Runs:
    """One process for all of them: torch is loaded once."""
    folders = {flags: folder / str(number) for number, flags in enumerate(runs)}
    digits = f"{' '.join(SHORT)} --dataset seq-digits --seed 0"  # a process of its own has the default dataset
    lines = [f"{flags} {digits} --base_path {folders[flags]}" for flags in runs]
    command = [sys.executable, "tests/pretended_gpu.py", *lines]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Runs(dict(zip(runs, json.loads(done.stdout.splitlines()[-1]), strict=True)), folders)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return trained(tmp_path_factory.mktemp("ours"), *dict.fromkeys([*RUNS, *LEARNT, *WAITING]))


@pytest.mark.numeric
@pytest.mark.parametrize("flags", LEARNT)
def test_what_is_learnt_there_is_what_is_learnt_here(flags: str, ours: Runs, tmp_path: Path) -> None:
    (there,) = ours.folders[flags].glob("results/*/*/*/summary.json")
    model, *more = flags.split()[1:]
    here, _, _ = run(tmp_path, *more, *SHORT, model=model)
    found = json.loads(there.read_text())["class_il"]
    assert {name: found[name] for name in ("FAA", "FAIA")} == pytest.approx(
        {name: here["class_il"][name] for name in ("FAA", "FAIA")}, abs=0.8
    )  # one image of 143, if a rounding differs


def test_no_step_of_our_methods_waits_for_the_device(ours: Runs) -> None:
    assert {flags: ours.waits[flags] for flags in RUNS} == {flags: {} for flags in RUNS}


def test_what_waits_is_noticed(ours: Runs) -> None:
    """GSS draws by scores on the host, task-free GCR chooses its coreset there."""
    scores, stretches = (ours.waits[flags] for flags in WAITING)
    assert any("gss_utils/buffer.py" in place for place in scores)
    assert any("gcr_utils/selection.py" in place for place in stretches)


def edited_er(folder: Path, name: str, backward: str) -> str:
    """Flags of a foreign ER whose call of `backward` reads otherwise."""
    text = (ROOT / "tests" / "foreign" / "er.py").read_text()
    assert text.count("loss.backward()") == 1
    (folder / name).write_text(text.replace("loss.backward()", backward))
    return f"--model er --buffer_size 30 --stop_after 1 --lr 0.1 --plugin {folder / name}"


def test_other_methods_may_have_memory_and_constants_on_the_host_and_may_not_mix_devices(tmp_path: Path) -> None:
    """Mammoth's buffers are on the host unless they are told otherwise."""
    constant = edited_er(tmp_path, "constant_loss.py", "loss_none = torch.tensor(0.0); loss.backward()")
    forgetful = edited_er(tmp_path, "forgetful.py", "(loss * torch.ones(1)).backward()")
    *allowed, mixed = trained(tmp_path, *HOST_MEMORY, constant, forgetful).waits.values()
    for counts in allowed:
        assert any("_local_scalar_dense" in place for place in counts), counts  # what `loss.item()` does
    assert "expected all tensors to be on the same device" in mixed
