"""Leases: one holder for each cell, whoever races, dies or is slow."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import IO

import pytest
from helpers import ROOT

from experiments.running import leases
from experiments.running.leases import Lease, age, claim, held, remove_leases
from utils.errors import UserError

ELSEWHERE = "1 another-machine pid:[1] 0123456789abcdef"

# Claims what it can of many cells, all of them held by a process of another machine that died long ago.
RACER = """
import sys, time
from pathlib import Path
from experiments.running.leases import claim
root, name, n = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
Path(root / f"ready-{name}").touch()
while not (root / "go").exists():
    time.sleep(0.001)
order = list(range(n)) if int(name) % 2 else list(reversed(range(n)))
for cell in order:
    if claim(root / str(cell), stale_seconds=60) is not None:
        print(cell)
"""


def touched(directory: Path, seconds_ago: float, content: str = ELSEWHERE, number: int = 0) -> Path:
    """A lease as another machine would have left it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"lease.{number}"
    path.write_text(content)
    now = path.stat().st_mtime
    os.utime(path, (now - seconds_ago, now - seconds_ago))
    return path


def taken(directory: Path, stale_seconds: float = 60) -> Lease:
    lease = claim(directory, stale_seconds)
    assert lease is not None
    return lease


@pytest.mark.parametrize("stale", [False, True])
def test_processes_that_race_never_get_the_same_cell(tmp_path: Path, stale: bool) -> None:
    cells, racers = 60, 4
    if stale:
        for cell in range(cells):
            touched(tmp_path / str(cell), 1000)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, tmp_path, str(name), str(cells)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for name in range(racers)
    ]
    while len(list(tmp_path.glob("ready-*"))) < racers:
        time.sleep(0.001)
    (tmp_path / "go").touch()
    claimed = Counter(line for process in processes for line in process.communicate()[0].split())
    assert all(process.returncode == 0 for process in processes)
    assert claimed == {str(cell): 1 for cell in range(cells)}


def test_a_held_cell_is_refused_until_it_is_released(tmp_path: Path) -> None:
    lease = taken(tmp_path / "cell")
    assert held(tmp_path / "cell") and claim(tmp_path / "cell") is None
    lease.release()
    assert not held(tmp_path / "cell")
    assert taken(tmp_path / "cell").path.name == "lease.1"
    assert not lease.beat()  # the first holder is told that it has lost the cell


def test_a_stale_lease_is_taken_over_and_its_holder_told(tmp_path: Path) -> None:
    path = touched(tmp_path / "cell", seconds_ago=50)
    assert claim(tmp_path / "cell", stale_seconds=60) is None
    late = Lease(path, ELSEWHERE)
    os.utime(path, (path.stat().st_mtime - 20,) * 2)
    new = taken(tmp_path / "cell", stale_seconds=60)
    assert not late.beat()
    assert new.beat() and claim(tmp_path / "cell", stale_seconds=60) is None


def test_one_who_saw_the_stale_lease_but_was_slow_gets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its look and its act another process takes the cell over and begins to work."""
    touched(tmp_path / "cell", seconds_ago=1000)
    quick: list[Lease] = []
    create = leases.create

    def slow_create(path: Path) -> Lease | None:
        monkeypatch.setattr(leases, "create", create)
        quick.append(taken(tmp_path / "cell"))
        return create(path)

    monkeypatch.setattr(leases, "create", slow_create)
    assert claim(tmp_path / "cell", stale_seconds=60) is None
    assert quick[0].beat()


def test_beating_keeps_a_lease(tmp_path: Path) -> None:
    path = touched(tmp_path / "cell", seconds_ago=1000)
    assert age(path) > 900
    assert Lease(path, ELSEWHERE).beat()
    assert age(path) < 60 and claim(tmp_path / "cell", stale_seconds=60) is None


def test_the_time_of_the_machine_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ages are differences between times of the file server."""
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert age(touched(tmp_path / "cell", seconds_ago=500)) == pytest.approx(500, abs=30)
    assert not list((tmp_path / "cell").glob(".clock*"))


def test_a_holder_that_died_on_this_machine_is_known_at_once(tmp_path: Path) -> None:
    imports = "import sys; from pathlib import Path; from experiments.running.leases import claim"
    code = f"{imports}; claim(Path(sys.argv[1]), 9999)"
    subprocess.run([sys.executable, "-c", code, tmp_path / "cell"], cwd=ROOT, check=True)
    assert taken(tmp_path / "cell", stale_seconds=9999).path.name == "lease.1"


def test_leases_of_a_finished_cell_go_away(tmp_path: Path) -> None:
    lease = taken(tmp_path / "cell")
    (tmp_path / "cell" / ".clock.1.abc").touch()  # of a process that was killed while it looked
    remove_leases(tmp_path / "cell")
    assert list((tmp_path / "cell").iterdir()) == []
    assert not lease.beat()
    lease.release()
    assert list((tmp_path / "cell").iterdir()) == []


def test_a_beat_that_fails_is_tried_again_until_others_may_take_the_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = taken(tmp_path / "cell")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def stale_handle(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", stale_handle)
        now += 100
        assert lease.beat(stale_seconds=180)
    now += 50
    assert lease.beat(stale_seconds=180)
    monkeypatch.setattr(os, "utime", stale_handle)
    now += 100
    assert lease.beat(stale_seconds=180)  # counted from the last beat that reached the server
    now += 30
    with pytest.raises(UserError, match=r"^cannot renew the claim .*lease.0: Stale file handle; repeat the command"):
        lease.beat(stale_seconds=180)
    lease.release()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_who_may_not_write_goes_by_the_clock_of_the_machine(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = touched(tmp_path / "cell", seconds_ago=50)

    def refusing(file: Path, mode: str) -> IO[bytes]:
        if "x" in mode:
            raise OSError(number, "no")
        return open(file, mode)

    def refused(path: Path, missing_ok: bool = False) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(leases, "open", refusing, raising=False)
    monkeypatch.setattr(Path, "unlink", refused)
    assert held(tmp_path / "cell", stale_seconds=60)
    os.utime(path, (0, 0))
    assert not held(tmp_path / "cell", stale_seconds=60)
