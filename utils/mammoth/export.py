"""`python -m utils.mammoth.export DIR`: copy DGC into a checkout of Mammoth, where `--model dgc_er` is then found."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

from utils import binary_to_boolean_type
from utils.args import ArgumentParser
from utils.cli.registry import ROOT
from utils.errors import UsageError, UserError
from utils.resume.files import atomic_write_text
from utils.status import say

# In the order of their imports: wherever the copying is interrupted, what is there can be imported.
FILES = (
    *("models/utils/dgc_gradients.py", "models/utils/dgc_estimators.py", "models/utils/dgc_flags.py"),
    *("models/utils/dgc_draws.py", "models/utils/dgc_views.py", "models/utils/dgc_mixin.py"),
    *("models/dgc_er.py", "models/dgc_derpp.py", "models/dgc_xder.py"),
)
# By these a checkout of Mammoth is known; the last three are what our models build on.
LANDMARKS = (
    *("main.py", "backbone/__init__.py", "datasets/__init__.py", "models/utils/continual_model.py"),
    *("utils/buffer.py", "utils/augmentations.py", "models/er.py", "models/derpp.py", "models/xder.py"),
)
SEAL = "# Written by dgc-mammoth's utils.mammoth.export"  # begins the last line of what is written


def version() -> str:
    """As pyproject.toml says it. (The standard library reads TOML from Python 3.11 on only.)"""
    (found,) = re.findall('^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    return found


def sealed(text: str) -> str:
    """The text with a last line that later tells whether it is still what was written."""
    return f"{text}{SEAL} {version()}; SHA-256 of the lines above: {hashlib.sha256(text.encode()).hexdigest()}\n"


def is_untouched(text: str) -> bool:
    """Whether some version of this program wrote a text and nobody has edited it since."""
    body, seal, rest = text.rpartition(SEAL)
    return bool(seal) and rest.endswith(f" {hashlib.sha256(body.encode()).hexdigest()}\n")


def export(directory: Path, overwrite: bool = False) -> list[str]:
    """Copy the files, all or none; a line for each that says what was done to it."""
    _check_checkout(directory)
    texts = {name: sealed((ROOT / name).read_text(encoding="utf-8")) for name in FILES}
    states = {name: _state(directory / name, text) for name, text in texts.items()}
    strange = [str(directory / name) for name, state in states.items() if state == "replaced"]
    if strange and not overwrite:
        reason = "not written by this program, or edited since"
        raise UserError(f"{', '.join(strange)}: {reason}; nothing was copied; --overwrite 1 replaces what is there")
    for name, text in texts.items():
        if states[name] != "up to date":
            atomic_write_text(directory / name, text, flag="directory")
    return [f"{directory / name}: {state}" for name, state in states.items()]


def _check_checkout(directory: Path) -> None:
    missing = next((name for name in LANDMARKS if not (directory / name).is_file()), None)
    if missing is not None:
        raise UsageError(f"{directory} is no checkout of Mammoth: it has no {missing}; give the folder of its main.py")
    if (directory / "utils" / "mammoth" / "export.py").exists():
        raise UsageError(f"{directory} is a checkout of this project, which has DGC; give a checkout of Mammoth")


def _state(path: Path, new: str) -> str:
    """What is to be done: `written`, `updated`, `replaced` (a file that is not ours), or `up to date`."""
    if not path.exists():
        return "written"
    try:
        present = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return "replaced"
    if present == new:
        return "up to date"
    return "updated" if is_untouched(present) or sealed(present) == new else "replaced"  # or copied by hand


def main(argv: list[str] | None = None) -> None:
    parser = ArgumentParser(prog="python -m utils.mammoth.export", description=__doc__)
    parser.add_argument("directory", metavar="DIR", type=Path, help="checkout of Mammoth")
    parser.add_argument("--overwrite", type=binary_to_boolean_type, default=False, help="replace files of others, too")
    try:
        args = parser.parse_args(argv)
        for line in export(args.directory, args.overwrite):
            say(line)
        say("There: python main.py --model dgc_er --dataset seq-cifar100 --buffer_size 500 --lr 0.1")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
