"""The report as one page for browsers, which needs no other file and no network: verdict, tables, figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from string import Template

from experiments.report.environment import environment
from experiments.report.figures import ALL, CAPTIONS, PAIRS, DrawnPanel
from experiments.report.page_tables import ONLY_ALL, ONLY_PAIRS, Looks, data_of, escape, scale_notice, section
from experiments.report.styles import BASE_DASH, Style, styles
from experiments.report.tables import columns, heading, slug
from experiments.report.verdict import verdict
from experiments.results.collection import Results
from utils.run.look import FAINT, GREY, INK, LINE, PALETTE, SOFT

FOLDER = Path(__file__).resolve().parent / "static"
TITLES = {
    "accuracy": "Accuracy over the tasks",
    "matrices": "Accuracy matrices",
    "memory": "FAIA against memory",
    "loss": "Loss over all images so far",
    "gradients": "Errors of gradients",
}
COLOURS = dict((*PALETTE, GREY, INK, SOFT, LINE, FAINT))  # on white → on black
VIEWS = (
    '<fieldset class="views"><legend class="unseen">Methods</legend>'
    '<label><input type="radio" name="view" checked> <span>Pairs only</span></label>'
    '<label><input type="radio" name="view" id="show-all"> <span>All methods</span></label></fieldset>'
)


def page(results: Sequence[Results], panels: Sequence[DrawnPanel] = ()) -> str:
    looks, anchors = styles(results), [f"table-{slug(r.grid.name)}" for r in results]
    profiles = dict.fromkeys(r.grid.conditions for r in results if r.grid.conditions)
    headings = [heading(r.grid) for r in results] if len(results) > 1 else ["Table"]
    named = list(zip(results, anchors, headings, strict=True))
    contents = "".join(f'<li><a href="#{anchor}">{escape(title)}</a></li>' for _, anchor, title in named)
    both = len({look.of_interest for look in looks.values()}) > 1
    return Template(_static("page.html")).substitute(
        title=escape(heading(results[0].grid) if len(results) == 1 else "Results of the experiments"),
        style=_static("page.css") + _colours(looks),
        conditions="".join(f"<p>{escape(text)}</p>" for text in profiles),
        views=VIEWS if both else "",
        filters=_filters(results),
        contents=contents,
        verdict=verdict(results, looks),
        notice=scale_notice(results),
        tables="\n".join(section(*table, looks) for table in named),
        figures=_figures(panels),
        environment=_environment(results),
        script=_static("page.js"),
    )


def _static(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _colours(looks: Looks) -> str:
    """Variables named after the colours on white, so that figures follow the colour scheme; and the methods' keys."""
    light = "".join(f"--c{colour[1:]}:{colour};" for colour in COLOURS)
    dark = "".join(f"--c{colour[1:]}:{other};" for colour, other in COLOURS.items())
    keys = [f".k{i}{{{_key(look)}}}\n" for i, look in enumerate(looks.values())]
    schemes = f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    return schemes + "".join(keys)


def _key(look: Style) -> str:
    """Hollow if only a base, striped if another row of interest has the colour."""
    colour = f"var(--c{look.light[1:]})"
    if look.dash == BASE_DASH:
        return f"border:2px solid {colour}"
    stripes = f"repeating-linear-gradient(90deg,{colour} 0 3px,#0000 3px 4px)"
    return f"background:{stripes if look.dash and look.of_interest else colour}"


def _filters(results: Sequence[Results]) -> str:
    every = [column for result in results for column in columns(result.grid, "")]
    parts = []
    for kind in ("dataset", "buffer"):
        values = list(dict.fromkeys(value for column in every if (value := getattr(column, kind)) is not None))
        values.sort(key=lambda value: int(value) if value.isdecimal() else 0)
        boxes = [
            f'<label><input type="checkbox" name="{kind}" value="{escape(value)}" checked> '
            f"<span>{escape(value)}</span></label>"
            for value in values
        ]
        if len(boxes) > 1:
            parts.append(f"<fieldset><legend>{kind.title()}</legend>{''.join(boxes)}</fieldset>")
    return f"<details><summary>Filter</summary>{''.join(parts)}</details>" if parts else ""


def _figures(panels: Sequence[DrawnPanel]) -> str:
    """Benchmark by benchmark, and in it kind by kind."""
    parts = []
    for benchmark, members in groupby(panels, key=lambda panel: panel.benchmark):
        parts.append(f'<h3>{escape(benchmark)}</h3><div class="figures">')
        for kind, of_kind in groupby(members, key=lambda panel: panel.kind):
            words = f"<strong>{TITLES[kind]}.</strong> {escape(CAPTIONS[kind])}"
            panes = "".join(map(_panel, of_kind))
            parts.append(f'<figure><div class="panels">{panes}</div><figcaption>{words}</figcaption></figure>')
        parts.append("</div>")
    return f'<section id="figures"><h2>Figures</h2>{"".join(parts)}</section>' if parts else ""


def _panel(panel: DrawnPanel) -> str:
    view = {PAIRS: f" {ONLY_PAIRS}", ALL: f" {ONLY_ALL}"}.get(panel.view, "")
    label = ", ".join(filter(None, [TITLES[panel.kind], panel.benchmark, panel.title]))
    return f'<div class="panel{view}"{data_of(panel)}>{_inline(panel.svg, label)}</div>'


def _inline(svg: str, label: str) -> str:
    """A picture as part of the page: with its colours, without names that nothing refers to."""
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.S)
    used = set(re.findall(r'#(\w+)["\)]', svg))
    svg = re.sub(r' id="(\w+)"', lambda found: found[0] if found[1] in used else "", svg)
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda found: f"var(--c{found[0][1:]})" if found[0] in COLOURS else found[0], svg)
    return re.sub(r' width="\S+pt"| height="\S+pt"', "", svg).replace(
        "<svg", f'<svg role="img" aria-label="{escape(label)}"', 1
    )


def _environment(results: Sequence[Results]) -> str:
    facts = environment(results).items()
    rows = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in facts)
    return f'<table class="facts"><tbody>{rows}</tbody></table>'
