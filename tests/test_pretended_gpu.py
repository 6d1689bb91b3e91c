"""Every method on a pretended GPU: nothing mixes devices, and no step waits for the device (`pretended_gpu.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT, run

REPLAY = "--buffer_size 30 --stop_after 2"
DGC = f"{REPLAY} --dgc_m 3 --dgc_alpha 0.3"
DERPP = "--alpha 0.1 --beta 0.5"
RUNS = [
    "--model sgd --stop_after 2 --backbone resnet18 --num_filters 2",
    f"--model er {REPLAY} --noise_rate 0.2",
    f"--model er {REPLAY} --task_free 1",
    f"--model dgc_er {DGC} --backbone resnet18 --num_filters 2",
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
    "--model aop --stop_after 2 --backbone resnet18 --num_filters 2",
    f"--model ssvrg {REPLAY} --ssvrg_m 4",
    f"--model ssvrg {REPLAY} --ssvrg_m 4 --task_free 1",
    "--model joint",
]
FOREIGN = "--buffer_size 30 --stop_after 2 --lr 0.1 --plugin {}/tests/foreign/{}.py"
HOST_MEMORY = [  # Mammoth's buffers lie on the host unless they are told otherwise
    f"--model er {FOREIGN.format(ROOT, 'er')}",
    f"--model er {FOREIGN.format(ROOT, 'er')} --dgc 1",
    f"--model derpp {FOREIGN.format(ROOT, 'derpp')} {DERPP}",
]


def waits(tmp_path: Path, *runs: str) -> list[Any]:
    common = f"--seed 0 --n_epochs 1 --base_path {tmp_path} --non_verbose 1"
    command = [sys.executable, "tests/pretended_gpu.py", *(f"{flags} {common}" for flags in runs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.numeric
@pytest.mark.parametrize("flags", [f"--model dgc_er {DGC}", f"--model er {REPLAY} --task_free 1"])
def test_what_is_learnt_there_is_what_is_learnt_here(flags: str, tmp_path: Path) -> None:
    waits(tmp_path, flags)
    (there,) = tmp_path.glob("results/*/*/*/summary.json")
    model, *more = flags.split()[1:]
    here, _, _ = run(tmp_path / "here", *more, "--n_epochs", "1", model=model)
    found = json.loads(there.read_text())["class_il"]
    assert {name: found[name] for name in ("FAA", "FAIA")} == pytest.approx(
        {name: here["class_il"][name] for name in ("FAA", "FAIA")}, abs=0.8
    )  # one image of 143, if a rounding differs


def test_no_step_of_our_methods_waits_for_the_device(tmp_path: Path) -> None:
    assert dict(zip(RUNS, waits(tmp_path, *RUNS), strict=True)) == {flags: {} for flags in RUNS}


def test_what_mixes_or_waits_is_noticed(tmp_path: Path) -> None:
    """GSS draws by scores on the host, task-free GCR chooses its coreset there; the third forgets to move a tensor."""
    plugin = tmp_path / "forgetful.py"
    text = (ROOT / "tests" / "foreign" / "er.py").read_text()
    plugin.write_text(text.replace("loss.backward()", "(loss * torch.ones(1)).backward()"))
    forgetful = f"--model er --buffer_size 30 --stop_after 1 --lr 0.1 --plugin {plugin}"
    gcr = f"--model gcr {REPLAY} {DERPP} --task_free 1"
    scores, stretches, mixed = waits(tmp_path, f"--model gss {REPLAY}", gcr, forgetful)
    assert any("gss_buffer.py" in place for place in scores)
    assert any("gcr_selection.py" in place for place in stretches)
    assert "expected all tensors to be on the same device" in mixed


def test_memory_and_constants_of_other_methods_may_be_on_the_host(tmp_path: Path) -> None:
    """Mammoth's buffers are unless they are told otherwise."""
    plugin = tmp_path / "constant_loss.py"
    text = (ROOT / "tests" / "foreign" / "er.py").read_text()
    plugin.write_text(text.replace("loss.backward()", "loss_none = torch.tensor(0.0); loss.backward()"))
    assert "loss_none" in plugin.read_text()
    constant = f"--model er --buffer_size 30 --stop_after 1 --lr 0.1 --plugin {plugin}"
    for counts in waits(tmp_path, *HOST_MEMORY, constant):
        assert any("_local_scalar_dense" in place for place in counts), counts  # what `loss.item()` does
