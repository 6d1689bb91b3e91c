"""The report as one page for browsers, which needs no other file and no network."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

from experiments.cells import merged_flags
from experiments.report.conditions import conditions
from experiments.report.page_data import page_data
from experiments.report.page_tables import scale_notice, section, swatch
from experiments.report.styles import Style, styles
from experiments.results.collection import Results

FOLDER = Path(__file__).resolve().parent / "static"
SCRIPTS = ("plot.js", "charts.js", "filters.js", "page.js")
ALL_NONE = '<button type="button" data-choose="all">all</button><button type="button" data-choose="none">none</button>'
PAIRS_ONLY = '<button type="button" data-choose="pair">pairs only</button>'
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
    columns = [column for table in data["tables"] for column in table["columns"]]
    parts = []
    for kind, title in (("dataset", "Dataset"), ("buffer", "Buffer")):
        values = list(dict.fromkeys(c[kind] for c in columns if c[kind] is not None))
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
    facts = conditions(results).items()
    rows = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in facts)
    return f'<table class="facts"><tbody>{rows}</tbody></table>'
