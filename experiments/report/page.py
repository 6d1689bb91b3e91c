"""The report as one page for browsers, which needs no other file and no network."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

from experiments.cells import merged_flags
from experiments.report.aggregate import Cell, Values, aggregated, records_of
from experiments.report.environment import environment
from experiments.report.page_tables import scale_notice, section, swatch
from experiments.report.styles import Style, styles
from experiments.report.tables import columns, heading, slug
from experiments.results.collection import Results
from experiments.results.records import Record
from experiments.results.statistics import Summary
from utils.run.heatmap import COLOURS

FOLDER = Path(__file__).resolve().parent / "static"
SCRIPTS = ("plot.js", "charts.js", "filters.js", "page.js")
ALL_NONE = '<button type="button" data-choose="all">all</button><button type="button" data-choose="none">none</button>'
PAIRS_ONLY = '<button type="button" data-choose="pair">pairs only</button>'
DIGITS = 5  # significant ones of what is drawn
Data = dict[str, Any]
escape = html.escape


def page(results: Sequence[Results]) -> str:
    looks = styles(results)
    data = page_data(results, looks)
    profiles = list(dict.fromkeys(r.grid.conditions for r in results if r.grid.conditions))
    done, wanted = _progress(results)
    return Template(_static("page.html")).substitute(
        title=escape(_title(results)),
        style=_static("page.css") + _colours(looks),
        summary=f"{_count(len(results), 'table')}, {done} of {wanted} cells have runs",
        conditions="".join(f"<p>{escape(text)}</p>" for text in profiles),
        notice=scale_notice(results),
        filters=_filters(data),
        contents="".join(f'<li><a href="#{t["id"]}">{escape(t["heading"])}</a></li>' for t in data["tables"]),
        sections="\n".join(section(result, table, data) for result, table in zip(results, data["tables"], strict=True)),
        environment=_environment(results),
        data=_json(data),
        script="\n".join(map(_static, SCRIPTS)),
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _static(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _title(results: Sequence[Results]) -> str:
    return results[0].grid.title if len(results) == 1 else "Results of the experiments"


def _progress(results: Sequence[Results]) -> tuple[int, int]:
    """Cells with a finished run, and all cells that the grids have."""
    done = sum(len({place[:2] for place in r.records}) for r in results)
    places = [(r.grid, row, column) for r in results for row in r.grid.rows for column in r.grid.columns]
    return done, sum(merged_flags(*place) is not None for place in places)


def _json(data: Any) -> str:
    """For a script element, which ends at the first `</script` whatever it is part of."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _colours(looks: dict[str, Style]) -> str:
    """Variables, so that figures follow the colour scheme without being drawn again."""

    def block(kind: str) -> str:
        return "".join(f"--m{i}:{getattr(style, kind)};" for i, style in enumerate(looks.values()))

    schemes = f":root{{{block('light')}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{block('dark')}}}}}\n"
    filled = {True: "border:2px solid var(--m{0})", False: "background:var(--m{0})"}
    keys = [filled[look.dash is not None].format(i) for i, look in enumerate(looks.values())]
    return schemes + "".join(f".k{i}{{{rule}}}\n" for i, rule in enumerate(keys))


def _filters(data: dict[str, Any]) -> str:
    every = [column for table in data["tables"] for column in table["columns"]]
    parts = []
    for kind, title in (("dataset", "Dataset"), ("buffer", "Buffer")):
        values = list(dict.fromkeys(c[kind] for c in every if c[kind] is not None))
        if kind == "buffer":
            values.sort(key=lambda value: (not value.isdecimal(), int(value) if value.isdecimal() else 0, value))
        parts.append(_choices(kind, title, {value: value for value in values}, ""))
    methods = {str(i): method["name"] for i, method in enumerate(data["methods"])}
    buttons = ALL_NONE + (PAIRS_ONLY if any(method["pair"] for method in data["methods"]) else "")
    return "".join([*parts, _choices("method", "Method", methods, f'<p class="all">{buttons}</p>')])


def _choices(kind: str, title: str, values: dict[str, str], before: str) -> str:
    if len(values) < 2:
        return ""
    keys = [swatch(number) if kind == "method" else "" for number in range(len(values))]
    boxes = [
        f'<label><input type="checkbox" name="{kind}" value="{escape(value)}" checked>{key}'
        f"<span>{escape(name)}</span></label>"
        for key, (value, name) in zip(keys, values.items(), strict=True)
    ]
    shown = f'<div class="choices">{"".join(boxes)}</div>'
    return f'<fieldset class="{kind}"><legend>{title}</legend>{before}{shown}</fieldset>'


def _environment(results: Sequence[Results]) -> str:
    facts = environment(results).items()
    rows = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in facts)
    return f'<table class="facts"><tbody>{rows}</tbody></table>'


# -- what the page's script draws and filters: methods, tables, and the cells that tables share ------------------


def page_data(results: Sequence[Results], looks: dict[str, Style]) -> Data:
    """A cell is listed once, however many tables have it."""
    numbers = {row: number for number, row in enumerate(looks)}
    cells = _Cells()
    tables = [_table(result, numbers, cells) for result in results]
    _make_distinct(tables)
    methods = [{"name": row, "dash": s.dash, "width": s.width, "pair": s.of_interest} for row, s in looks.items()]
    return {
        "methods": methods,
        "tables": tables,
        "cells": [_shown(cell) for cell in cells.found],
        "colours": COLOURS.tolist(),
    }


class _Cells:
    """Distinct ones, by the runs that they consist of."""

    def __init__(self) -> None:
        self.found: list[Cell] = []
        self._numbers: dict[tuple[int, ...], int] = {}

    def number(self, records: Sequence[Record]) -> int | None:
        """None without records."""
        if not records:
            return None
        runs = tuple(map(id, records))  # tables that share a run share the record
        if runs not in self._numbers:
            self._numbers[runs] = len(self.found)
            self.found.append(aggregated(records))
        return self._numbers[runs]


def _table(result: Results, numbers: dict[str, int], cells: _Cells) -> Data:
    grid = result.grid
    found = columns(grid, grid.metrics[0])
    places = [[cells.number(records_of(result, row, column.name)) for column in found] for row in grid.rows]
    return {
        "id": slug(grid.name),
        "heading": heading(grid),
        "columns": [{"name": c.name or c.label, "dataset": c.dataset, "buffer": c.buffer} for c in found],
        "rows": [numbers[row] for row in grid.rows],
        "cells": places,
    }


def _make_distinct(tables: list[Data]) -> None:
    """Two grids may have the same name for an anchor."""
    seen: dict[str, int] = {}
    for table in tables:
        seen[table["id"]] = count = seen.get(table["id"], 0) + 1
        if count > 1:
            table["id"] += f"-{count}"


def _shown(cell: Cell) -> Data:
    """What there is of a cell; nothing is said twice, because there may be hundreds."""
    steps, losses = cell.loss
    every = {
        "n": cell.n,
        "aa": [_rounded(s.mean) for s in cell.average_accuracy],
        "se": [_rounded(s.se) for s in cell.average_accuracy],
        "matrix": [_list(row) for row in cell.matrix],
        "starts": cell.task_starts[1:],
        "steps": _list(list(steps)),
        "loss": _list(losses),
        "memory": cell.memory,
        "faia": _pair(cell.faia),
        "gradients": {name: _list(values) for name, values in cell.gradients.items()},
    }
    return {name: value for name, value in every.items() if value not in (None, [], {})}


def _pair(summary: Summary | None) -> Values | None:
    return None if summary is None else [_rounded(summary.mean), _rounded(summary.se)]


def _list(values: Values) -> Values:
    return [_rounded(value) for value in values]


def _rounded(value: float | None) -> float | None:
    if value is None:
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short
