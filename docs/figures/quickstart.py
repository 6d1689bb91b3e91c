"""Run `docs/quickstart.ipynb` and store it with its outputs:

    python -m docs.figures.quickstart

Needs nbclient and ipykernel (requirements-dev.txt).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[1] / "quickstart.ipynb"


def execute(notebook: Any) -> Any:
    """Where it lies, as Jupyter would; without the times, so that only what has changed differs."""
    place = {"metadata": {"path": str(NOTEBOOK.parent)}}
    return NotebookClient(notebook, resources=place, record_timing=False, coalesce_streams=True).execute()


def main() -> None:
    notebook = execute(nbformat.read(NOTEBOOK, as_version=4))
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}  # not which Python it was
    anywhere = nbformat.writes(notebook).replace(str(NOTEBOOK.parents[1]), "dgc")  # not where it was
    NOTEBOOK.write_text(f"{anywhere}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
