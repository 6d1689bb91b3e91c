"""How much of replay's noise DGC takes away, one step after θ̃ was taken and later.

    python -m benchmarks.dgc_variance [--output FILE.json]

`dgc_er` with `sampled` in the second task of seq-digits, whose images are embedded. At a fixed buffer, 200 replay
batches are drawn; the figure is the variance of g(x̄;θ) + α·(Γ' − g(x̄;θ̃)) over them, relative to that of g(x̄;θ). At
θ = θ̃ it is (1−α)²; it grows as θ moves away from θ̃.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from main import initialize
from models.utils.dgc_gradients import gradient
from utils.cli.parse import parse_args
from utils.run.environment import environment
from utils.run.write_results import write_json

DRAWS, STAGE = 200, 40
ALPHAS = (0.5, 1.0)
NETWORKS = {
    "mlp": ["--backbone", "mnistmlp", "--lr", "0.03"],
    "resnet18, 16 filters": ["--backbone", "resnet18", "--num_filters", "16", "--lr", "0.03"],
}
FLAGS = "--dataset seq-digits --seed 0 --buffer_size 100 --batch_size 16 --minibatch_size 16 --dgc_alpha 0.001".split()


def flat(net: torch.nn.Module, passes: Any, model: Any) -> Tensor:
    found = gradient(net, model.loss, passes, model.dgc_names())
    return torch.cat([part.reshape(-1).double() for part in found.values()])


def variances(model: Any, draws: int = DRAWS) -> dict[str, float]:
    """Relative variance by α, over draws of DGC's own from the buffer."""
    drawn = [model.dgc_view.draw() for _ in range(draws)]
    now, before = (torch.stack([flat(net, x, model) for x in drawn]) for net in (model.net, model.dgc.snapshot))

    def spread(gradients: Tensor) -> float:
        return float((gradients - gradients.mean(0)).square().sum(1).mean())

    return {f"alpha {alpha}": spread(now - alpha * before) / spread(now) for alpha in ALPHAS}


def stage(steps: list[int], *flags: str, stage_length: int = STAGE) -> Any:
    """The model so many steps after a stage has begun inside the second task, for each number of `steps`."""
    with tempfile.TemporaryDirectory() as folder:
        line = ["--model", "dgc_er", *FLAGS, "--dgc_m", str(stage_length), "--base_path", folder, *flags]
        model, dataset, _ = initialize(parse_args(line))
    for task_steps in (30, stage_length):
        loader, _ = dataset.get_data_loaders()
        model.meta_begin_task(dataset)
        for batch in islice(cycle(loader), task_steps):
            model.meta_observe(*batch)
        if model.current_task == 0:
            model.meta_end_task(dataset)
    for step, batch in enumerate(islice(cycle(loader), max(steps)), 1):
        model.meta_observe(*batch)
        if step in steps:
            yield step, model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="also write the figures to this JSON file")
    output = parser.parse_args().output
    torch.set_num_threads(1)
    result: dict[str, Any] = {"draws": DRAWS, "m": STAGE, "flags": FLAGS}
    for name, flags in NETWORKS.items():
        result[name] = {step: variances(model) for step, model in stage([1, 10, STAGE - 1], *flags)}
        for step, found in result[name].items():
            print(f"{name}, {step} steps from θ̃: " + ", ".join(f"{k}: {v:.3f}" for k, v in found.items()))
    if output:
        write_json(output, result | {"environment": environment()})


if __name__ == "__main__":
    main()
