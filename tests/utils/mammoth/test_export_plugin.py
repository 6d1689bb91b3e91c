"""Copying DGC into a checkout of Mammoth: what is recognised, what is refused, what is left alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

from utils.errors import UsageError, UserError
from utils.mammoth.export import FILES, export, is_untouched, main, sealed

STAND_IN = ROOT / "tests" / "upstream_stand_in"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STAND_IN, tmp_path / "mammoth"))


def tree(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_eight_files_are_added_and_nothing_else_changes(checkout: Path) -> None:
    before = tree(checkout)
    done = subprocess.run(
        [sys.executable, "-m", "utils.mammoth.export", str(checkout)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [f"{checkout / name}: written" in done.stdout for name in FILES] == [True] * len(FILES)
    after = tree(checkout)
    assert after.keys() - before.keys() == set(FILES) and all(after[name] == before[name] for name in before)
    for name in FILES:
        *body, seal = after[name].decode().splitlines(keepends=True)
        assert "".join(body) == (ROOT / name).read_text() and seal.startswith("#")


def test_our_own_files_are_brought_up_to_date(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(checkout)
    assert all(line.endswith(": up to date") for line in export(checkout))
    (checkout / FILES[1]).write_text(sealed("an older version\n"))
    (checkout / FILES[2]).write_bytes((ROOT / FILES[2]).read_bytes())  # copied by hand
    states = [line.rpartition(": ")[2] for line in export(checkout)]
    assert states == ["up to date", "updated", "updated", *["up to date"] * (len(FILES) - 3)]
    monkeypatch.setattr("utils.mammoth.export.version", lambda: "9.9")
    assert all(line.endswith(": updated") for line in export(checkout))


@pytest.mark.parametrize(
    "content", [b"class DgcEr: ...\n", b"\xff\xfe", sealed("x = 1\n").replace("1", "2", 1).encode()]
)
def test_files_of_others_are_replaced_only_if_told_so(checkout: Path, content: bytes) -> None:
    (checkout / "models/dgc_er.py").write_bytes(content)
    before = tree(checkout)
    with pytest.raises(UserError, match=r"models/dgc_er.py: not written by this program.*--overwrite 1") as caught:
        export(checkout)
    assert tree(checkout) == before and "\n" not in str(caught.value)
    assert f"{checkout / 'models/dgc_er.py'}: replaced" in export(checkout, overwrite=True)
    assert is_untouched((checkout / "models/dgc_er.py").read_text())


@pytest.mark.parametrize("missing", ["main.py", "utils/buffer.py", "models/utils/continual_model.py", "models/xder.py"])
def test_another_folder_is_refused(checkout: Path, missing: str) -> None:
    (checkout / missing).unlink()
    before = tree(checkout)
    with pytest.raises(UsageError, match=f"is no checkout of Mammoth: it has no {missing}"):
        export(checkout)
    assert tree(checkout) == before


def test_our_own_project_is_refused() -> None:
    with pytest.raises(UsageError, match="a checkout of this project"):
        export(ROOT)


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for arguments in ([str(tmp_path)], [str(tmp_path), "--overwrite", "maybe"], [str(tmp_path / "nowhere")]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1
