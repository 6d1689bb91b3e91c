"""`make requirements`: the files that pip installs from, made from pyproject.toml. Needs Python 3.11 or newer.

python -m docs.requirements
"""

from __future__ import annotations

from pathlib import Path

HEADER = "# Made by `make requirements` from pyproject.toml: edit that.\n"


def requirements(pyproject: str) -> dict[str, str]:
    """The text of each requirements file."""
    import tomllib  # new in Python 3.11, which only this command needs

    project = tomllib.loads(pyproject)["project"]
    lines = {
        "requirements.txt": project["dependencies"],
        "requirements-dev.txt": ["-r requirements.txt", *project["optional-dependencies"]["dev"]],
    }
    return {name: HEADER + "".join(f"{line}\n" for line in wanted) for name, wanted in lines.items()}


if __name__ == "__main__":
    for name, text in requirements(Path("pyproject.toml").read_text(encoding="utf-8")).items():
        Path(name).write_text(text, encoding="utf-8")
