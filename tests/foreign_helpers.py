"""The command lines of the models and datasets in `tests/foreign`, which are written as Mammoth's are."""

from __future__ import annotations

from pathlib import Path

from helpers import ROOT

FOREIGN = ROOT / "tests" / "foreign"
REPLAY = ("--buffer_size", "100")
XDER = (*REPLAY, "--alpha", "0.3", "--beta", "0.8")
FLAGS: dict[str, tuple[str, ...]] = {
    "der": (*REPLAY, "--alpha", "0.5"),
    "derpp": (*REPLAY, "--alpha", "0.5", "--beta", "0.5"),
    "ewc_on": ("--e_lambda", "10", "--gamma", "1"),
    "fdr": (*REPLAY, "--alpha", "0.5"),
    "future_toy": (),
    "gdumb": (*REPLAY, "--fitting_epochs", "30"),
    "gss": (*REPLAY, "--batch_num", "4", "--gss_minibatch_size", "4"),
    "mer": (*REPLAY, "--beta", "1", "--gamma", "1"),
    "pnn": (),
    "si": ("--c", "0.5"),
    "xder_ce": XDER,
    "xder_rpc": XDER,
    **dict.fromkeys(("joint", "joint_gcl", "lwf", "lwf_mc", "sgd"), ()),
}


def flags_of(name: str) -> tuple[str, ...]:
    """The flags that choose a model's file, and those that it needs."""
    return ("--plugin", str(FOREIGN / f"{name}.py"), "--lr", "0.1", *FLAGS.get(name, REPLAY))


def on(name: str) -> list[str]:
    """The flags that choose a dataset from its file."""
    return ["--plugin", str(FOREIGN / f"{name.replace('-', '_')}.py"), "--dataset", name]


def write(folder: Path, name: str, content: str) -> str:
    """A file of that content; its path, as `--plugin` takes it."""
    (folder / name).write_text(content)
    return str(folder / name)
