"""The notebook runs from top to bottom, its stored outputs are there, and `pip install .` says where to go instead."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from helpers import ROOT
from packaging.requirements import Requirement

from docs import not_for_pip
from docs.figures.quickstart import NOTEBOOK, execute
from docs.lock import lock
from docs.requirements import requirements
from utils.mammoth.export import version

# One epoch instead of ten, and runs elsewhere than in the reader's folder.
SHORT = "from functools import partial\nrun = partial(run, n_epochs=1, base_path={folder!r})"


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def pictures(notebook: Any) -> list[str]:
    data = [output.get("data", {}) for cell in code_cells(notebook) for output in cell.outputs]
    return [part["image/png"] for part in data if "image/png" in part]


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [index for index, cell in enumerate(notebook.cells) if "import run" in cell.source]
    notebook.cells.insert(cells[0] + 1, nbformat.v4.new_code_cell(SHORT.format(folder=str(tmp_path))))
    assert len(pictures(execute(notebook))) == 4
    runs = sorted(path.parent.parent.name for path in tmp_path.glob("results/seq-embeddings/*/*/summary.json"))
    assert runs == ["dgc-er", "dgc-er", "dgc-er", "er", "er-ace", "sgd"]


def test_the_notebook_is_stored_with_its_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in code_cells(notebook)] == list(range(1, len(code_cells(notebook)) + 1))
    assert not [o for cell in code_cells(notebook) for o in cell.outputs if o.output_type == "error"]
    assert len(pictures(notebook)) == 4 and NOTEBOOK.stat().st_size < 300_000


@pytest.mark.slow
def test_pip_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for file in ("pyproject.toml", "docs/not_for_pip.py"):
        shutil.copy(ROOT / file, tmp_path / file)
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", str(tmp_path)]
    done = subprocess.run(pip, capture_output=True, text=True)
    output = done.stdout + done.stderr
    assert done.returncode == 1 and "[1 lines of output]" in output and "Traceback" not in output
    assert not_for_pip.SENTENCE in output and not_for_pip.SENTENCE.count(".") == 1


def test_a_lock_file_names_versions_and_the_platform() -> None:
    environment = {"python_full_version": "3.12.1", "platform_system": "Linux", "platform_machine": "x86_64"}
    packages = [{"metadata": {"name": name, "version": version}} for name, version in (("torch", "2"), ("Ab", "1"))]
    *header, first, second = lock(json.dumps({"environment": environment, "install": packages})).splitlines()
    assert (first, second) == ("Ab==1", "torch==2") and "Python 3.12.1 on Linux x86_64" in header[1]


def test_requirements_and_citation_say_what_pyproject_says() -> None:
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    made = requirements(text)
    assert {name: (ROOT / name).read_text(encoding="utf-8") for name in made} == made and len(made) == 2
    assert version() == tomllib.loads(text)["project"]["version"]
    assert f"\nversion: {version()}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_lock_file_meets_every_requirement_and_names_no_address() -> None:
    lines = [line for line in (ROOT / "requirements-lock.txt").read_text().splitlines() if not line.startswith("#")]
    locked = {line.name: line.specifier for line in map(Requirement, lines)}
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if not line.startswith("#"):
            wanted = Requirement(line.partition("#")[0])
            (exact,) = locked[wanted.name]
            assert exact.version in wanted.specifier, line
    assert not [line for line in lines if "/" in line or "@" in line]
