"""A class from a notebook is known by its source and by what it uses: nothing that moves its numbers goes unnoticed."""

from __future__ import annotations

import importlib.util
import itertools
import linecache
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from utils.cli.fingerprint import fingerprint
from utils.errors import UsageError

METHOD = """
class Method(Base):
    RATE = 2

    def observe(self, batch):
        net = self.net
        return scaled(batch) * SCALE + self.RATE

def scaled(batch):
    return [OFFSET + item for item in batch]
"""
USED: dict[str, Any] = {"SCALE": 3, "OFFSET": 0.5, "Base": object}
numbers = itertools.count()


def cell(source: str, **names: Any) -> Any:
    """What `Method` is after a notebook's cell was run in which these names are known."""
    file = f"/cells/{next(numbers)}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    known = {"__name__": "__main__", **USED, **names}
    exec(compile(source, file, "exec"), known)
    return known["Method"]


def test_the_same_cell_is_the_same_method() -> None:
    assert fingerprint(cell(METHOD)) == fingerprint(cell(METHOD)) == fingerprint(cell(f"import json\n\n{METHOD}"))


@pytest.mark.parametrize(
    "changed",
    [
        cell(METHOD.replace("+ self.RATE", "- self.RATE")),
        cell(METHOD.replace("RATE = 2", "RATE = 3")),
        cell(METHOD.replace("OFFSET + item", "OFFSET - item")),
        cell(METHOD, SCALE=4),
        cell(METHOD, OFFSET=0.25),
        cell(METHOD, Base=type("Base", (), {"__module__": "__main__", "RATE": 5})),
    ],
    ids=["its step", "its attribute", "a function it calls", "a value", "a value of that function", "its base"],
)
def test_what_it_computes_with_makes_another_method(changed: type) -> None:
    assert fingerprint(changed) != fingerprint(cell(METHOD))


def test_names_that_only_look_alike_do_not_matter() -> None:
    """`net` is a local variable and an attribute there, whatever else the notebook calls so."""
    assert fingerprint(cell(METHOD, net=torch.nn.Linear(2, 2), batch=3)) == fingerprint(cell(METHOD))


def test_what_is_set_or_replaced_afterwards_counts() -> None:
    method, patched = cell(METHOD), cell(METHOD)
    method.RATE = 7
    patched.observe = cell(METHOD.replace("* SCALE", "/ SCALE")).observe
    assert len({fingerprint(cell(METHOD)), fingerprint(method), fingerprint(patched)}) == 3


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_arrays_count_by_their_content(make: Any) -> None:
    first, second, other = (fingerprint(cell(METHOD, SCALE=make(v))) for v in ([1.0, 2.0], [1.0, 2.0], [1.0, 3.0]))
    assert first == second != other


def test_closures_defaults_and_wrappers_count() -> None:
    source = """
def made(power):
    class Method:
        @property
        def rate(self):
            return power
        @staticmethod
        def step(x, factor=FACTOR):
            return x * factor
    return Method
Method = made(POWER)
"""
    known = [
        fingerprint(cell(source, **{"POWER": 2, "FACTOR": 3} | change)) for change in ({}, {"POWER": 4}, {"FACTOR": 5})
    ]
    assert len(set(known)) == 3


def test_what_is_bound_to_a_function_counts() -> None:
    method = METHOD.replace("SCALE", "h(2)")
    source = "from functools import partial\ndef g(a, b): return a + b\nh = partial(g, {})\n" + method
    assert fingerprint(cell(source.format(1))) == fingerprint(cell(source.format(1)))
    assert fingerprint(cell(source.format(1))) != fingerprint(cell(source.format(2)))
    with pytest.raises(UsageError, match="from outside the class"):
        fingerprint(cell("class A:\n    def m(self, a): return a\nh = A().m\n" + method))


def test_a_file_of_the_users_counts_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_helper(text: str) -> str:
        file = tmp_path / "my_helper.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location("my_helper", file)
        assert spec is not None and spec.loader is not None
        helper = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "my_helper", helper)
        spec.loader.exec_module(helper)
        return fingerprint(
            cell("class Method:\n    def observe(self):\n        return my_helper.f()\n", my_helper=helper)
        )

    assert with_helper("def f(): return 1\n") != with_helper("def f(): return 2\n")


def test_an_object_whose_content_is_hidden_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^Method uses 'SCALE', a Linear from outside the class, .*; make it inside"):
        fingerprint(cell(METHOD, SCALE=torch.nn.Linear(2, 2)))


def test_code_without_a_source_is_refused() -> None:
    known: dict[str, Any] = {"__name__": "__main__"}
    exec("class Method:\n    def observe(self): return 1\n", known)
    with pytest.raises(UsageError, match=r"^the source of Method.observe can't be read, .*; define it in a notebook's"):
        fingerprint(known["Method"])
