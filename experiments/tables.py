"""The paper's tables and figures, and ours, as grids: `tables/*.yaml` at the scale of `profiles/*.yaml`.

A table speaks of benchmarks and buffers (`S-CIFAR100`, 500); a profile says which flags these are at its scale. A
table may be `like` another one: what it does not say itself is as there. `paper` holds the paper's numbers, for
each metric and row one per column; `same` repeats the number to its left, where the paper has one for both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.grid import Grid, PaperValue, parse_grid
from utils.cli.yaml_io import read_yaml
from utils.errors import UsageError, nearest

FOLDER = Path(__file__).resolve().parent
INHERITED = ("flags", "columns", "rows", "methods", "changes")
PAPER_VALUE = re.compile(r"(\d+\.\d+)(?: ± (\d+\.\d+))?")
SAME = "same"
Content = dict[str, Any]


def table_names() -> list[str]:
    """The paper's tables, its figures, and ours."""
    places = {path.stem: str(read_yaml(path)["place"]) for path in sorted((FOLDER / "tables").glob("*.yaml"))}
    kinds = ["Table", "Figure", "ours"]
    return sorted(places, key=lambda name: (kinds.index(places[name].split()[0]), places[name]))


def profile_names() -> list[str]:
    return sorted(path.stem for path in (FOLDER / "profiles").glob("*.yaml"))


def load_table(name: str, profile_name: str) -> Grid:
    """A table at the scale of a profile."""
    table, profile = read_table(name), _profile(profile_name)
    special = profile.get("tables", {}).get(name, {})
    columns = {column: _column_name(column, profile) for column in table["columns"]}
    methods = read_yaml(FOLDER / "methods.yaml") | table.get("methods", {})
    rows, compared_with = {}, {}
    for row in table["rows"]:
        values = methods[row] | table.get("changes", {}).get(row, {}) | profile.get("methods", {}).get(row, {})
        compared_with[row] = values.pop("paper", row)
        rows[row] = _with_flags(values, columns, profile)
    content = {
        "title": table["title"],
        "flags": profile.get("flags", {}) | table.get("flags", {}) | special.get("flags", {}),
        "columns": {columns[column]: _flags(values, profile) for column, values in table["columns"].items()},
        "rows": rows,
        "seeds": profile["seeds"],
        "metrics": table["metrics"],
    }
    return parse_grid(
        name,
        content,
        lenient=True,
        place=table["place"],
        profile=profile_name,
        conditions=f"Profile {profile_name}: {profile['title']}.",
        notes=table.get("notes", []),
        paper=_paper(table, list(columns.values()), compared_with),
        not_run={
            columns[column]: why
            for column, values in table["columns"].items()
            if (why := profile.get("not_run", {}).get(values.get("benchmark")))
        },
        stands_for={shown: column for column, shown in columns.items() if shown != column},
    )


def _column_name(column: str, profile: Content) -> str:
    """`digits for S-CIFAR100, 500`, where a profile has other images than the table is about."""
    return f"{profile['stands_in']} for {column}" if "stands_in" in profile else column


def read_table(name: str) -> Content:
    """What the file of a table says, and what it takes from the table that it is `like`."""
    path = FOLDER / "tables" / f"{name}.yaml"
    if not path.is_file():
        raise UsageError(f"unknown table {name!r}{nearest(name, table_names())}")
    content: Content = read_yaml(path)
    if "like" not in content:
        return content
    other = read_table(content["like"])
    return {key: other[key] for key in INHERITED if key in other} | content


def _profile(name: str) -> Content:
    if name not in profile_names():
        raise UsageError(f"unknown profile {name!r}{nearest(name, profile_names())}")
    return read_yaml(FOLDER / "profiles" / f"{name}.yaml")


def _with_flags(row: Mapping[str, Any], names: dict[str, str], profile: Content) -> Content:
    columns = {names[column]: _flags(values, profile) for column, values in row.get("columns", {}).items()}
    return dict(row) | ({"columns": columns} if columns else {})


def _flags(values: Mapping[str, Any], profile: Content) -> Content:
    """What a benchmark and a buffer are at the profile's scale, and all flags as they are."""
    flags = {name: value for name, value in values.items() if name not in ("benchmark", "buffer")}
    benchmark = profile["benchmarks"][values["benchmark"]] if "benchmark" in values else {}
    buffer = {}
    if "buffer" in values:
        buffer["buffer_size"] = profile.get("buffers", {}).get(values["buffer"], values["buffer"])
    return benchmark | buffer | flags


def _paper(
    table: Content, columns: list[str], compared_with: dict[str, str]
) -> dict[str, dict[str, dict[str, PaperValue]]]:
    """Metric → row → column → the paper's number."""
    values = {}
    for metric, by_method in table.get("paper", {}).items():
        values[metric] = {
            row: dict(zip(columns, _paper_row(by_method[method]), strict=True))
            for row, method in compared_with.items()
            if method in by_method
        }
    return values


def _paper_row(cells: list[Any]) -> list[PaperValue]:
    values: list[PaperValue] = []
    for cell in cells:
        if cell == SAME:
            values.append(values[-1])
        else:
            values.append(paper_value(cell if isinstance(cell, str) else f"{cell:.2f}"))
    return values


def paper_value(text: str) -> PaperValue:
    match = PAPER_VALUE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no number of the paper, such as '61.08 ± 1.23' or '61.08'")
    return PaperValue(text, float(match[1]), float(match[2]) if match[2] else None)
