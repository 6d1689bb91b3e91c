"""Find the finished run of a command line without the model's flags, and so without torch.

Which directory a command means follows from all flags and their defaults, of which many are the model's. But the same
command line, with the same sources, always means the same one: so a run notes a checksum of both in its `config.yaml`.
"""

from __future__ import annotations

import hashlib
import json
from argparse import Action
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from utils.cli import registry
from utils.cli.flags import framework_parser
from utils.cli.registry import ROOT, normalise
from utils.cli.roles import Role

SOURCES = ("models", "datasets", "backbone", "utils")


@cache
def _neutral() -> set[str]:
    """Single-valued flags outside the hash."""
    return _named(lambda role, action: role is Role.PLACE and action.type is None and action.nargs is None)


@cache
def _unanswerable() -> set[str]:
    """Flags with which the command alone does not identify a finished run."""
    return _named(lambda role, action: role in (Role.ONCE, Role.ORIGIN, Role.FILE))


def _named(fits: Callable[[Role, Action], bool]) -> set[str]:
    parser = framework_parser()
    found = [a for name, a in parser.actions_by_dest().items() if fits(parser.declared[name].role, a)]
    return {option.removeprefix("--") for action in found for option in action.option_strings}


def finished_run(argv: list[str]) -> Path | None:
    """The directory of the finished run that this command line has made, or names by `--resume` alone."""
    flags = _flags(argv)
    given = {name: values[0] for name, values in flags.items() if len(values) == 1}
    if "resume" in given and flags.keys() <= _neutral() | {"resume"}:
        return _finished([Path(given["resume"])])
    if flags.keys() & (_unanswerable() | {"debug_mode"}) or not given.keys() >= {"model", "seed"}:
        return None
    results = Path(given.get("base_path") or ROOT / "data", given.get("results_path") or "results")
    folder = results / normalise(given.get("dataset") or registry.DEFAULT_DATASET)
    model, note = normalise(given["model"]), f"\ncommand_sha256: {command_sha256(argv)}\n"
    found = [run for name in (model, f"dgc-{model}") for run in folder.glob(f"{name}/seed{given['seed']}-*")]
    return _finished([run for run in found if note in _text(run / "config.yaml")])


def _finished(runs: list[Path]) -> Path | None:
    return next((run for run in runs if (run / "summary.json").is_file()), None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def command_sha256(argv: list[str]) -> str:
    """Checksum of the flags that matter, in any order, and of the sources."""
    mattering = {n: values for n, values in _flags(argv).items() if n not in _neutral() or len(values) != 1}
    return hashlib.sha256(json.dumps([mattering, sources_sha256()], sort_keys=True).encode()).hexdigest()


def _flags(argv: list[str]) -> dict[str, list[str]]:
    """Values by flag. A flag given twice, and a value without a flag, get names that no valid command line has."""
    flags: dict[str, list[str]] = {}
    name = ""
    for token in argv:
        if token.startswith("-") and not token[1:2].isdigit():
            name, equals, value = token.partition("=")
            name = name.removeprefix("--") + "'" * (name.removeprefix("--") in flags)
            flags[name] = [value] if equals else []
        else:
            flags.setdefault(name, []).append(token)
    return flags


@cache
def sources_sha256() -> str:
    """Checksum of the files that flags, and defaults of flags, may come from."""
    digest = hashlib.sha256()
    for file in sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*")):
        with suppress(FileNotFoundError):  # removed since it was listed, as an editor does with its own
            if file.suffix in (".py", ".yaml", ".npz"):
                digest.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return digest.hexdigest()
