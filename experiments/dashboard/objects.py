"""A dashboard as objects of wandb's own library for them, `wandb-workspaces`, which is imported here and only here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import wandb_workspaces.reports.v2 as reports
import wandb_workspaces.workspaces as workspaces
from wandb_workspaces import expr

from experiments.dashboard.layout import BARS, IMAGES, LINES, Block, Dashboard, Panel, Runs, Section

FEWEST_CURVES, MOST_CURVES = 10, 100  # that a chart draws
WIDTH, HEIGHT, PER_LINE = 24, 8, 2  # of a report, in wandb's units; of a panel; panels side by side
HEADINGS = {1: reports.H1, 2: reports.H2, 3: reports.H3}
# The library changes these inside of texts, too, before it reads a filter.
ESCAPES = {character: f"\\x{ord(character):02x}" for character in "\\'=<>"}


def workspace(dashboard: Dashboard, project: str, entity: str) -> workspaces.Workspace:
    runs = dashboard.runs
    found = workspaces.RunsetSettings(filters=filter_text(runs), groupby=[expr.Config(name) for name in runs.by])
    return workspaces.Workspace(
        name=dashboard.title[:128],
        entity=entity,
        project=project,
        sections=[_section(section, runs) for section in dashboard.sections],
        settings=workspaces.WorkspaceSettings(max_runs=_curves(runs)),
        runset_settings=found,
        auto_generate_panels=False,
    )


def report(dashboard: Dashboard, project: str, entity: str) -> reports.Report:
    blocks = [part for block in dashboard.blocks for part in _parts(block, project, entity)]
    return reports.Report(
        project=project, entity=entity, title=dashboard.title[:128], blocks=[reports.TableOfContents(), *blocks],
        width="fluid",
    )  # fmt: skip


def filter_text(runs: Runs) -> str:
    """In the library's language: a run must have a tag of each group."""
    groups = (", ".join(f"'{_escaped(tag)}'" for tag in group) for group in runs.tags)
    return " and ".join(f"Metric('tags') in [{group}]" for group in groups)


def _escaped(text: str) -> str:
    return "".join(ESCAPES.get(character, character) for character in text)


def _section(section: Section, runs: Runs) -> workspaces.Section:
    return workspaces.Section(name=section.name, panels=[_panel(p, runs) for p in section.panels], is_open=True)


def _parts(block: Block, project: str, entity: str) -> Iterable[Any]:
    yield HEADINGS[block.level](text=block.title)
    if block.text:
        yield reports.MarkdownBlock(text=block.text)
    if block.runs is not None:
        runs = block.runs
        runset = reports.Runset(
            entity=entity, project=project, name=runs.name, filters=filter_text(runs),
            groupby=[f"config.{name}" for name in runs.by],
        )  # fmt: skip
        panels = [_panel(panel, runs, place) for place, panel in enumerate(block.panels)]
        yield reports.PanelGrid(runsets=[runset], panels=panels)


def _panel(panel: Panel, runs: Runs, place: int = 0) -> Any:
    """Charts of grouped runs: mean and standard error over the seeds."""
    row, column = divmod(place, PER_LINE)
    width = WIDTH // PER_LINE
    layout = reports.Layout(x=width * column, y=HEIGHT * row, w=width, h=HEIGHT)
    over_seeds: dict[str, Any] = {
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stderr",
        "max_runs_to_show": _curves(runs),
    }
    if panel.kind == LINES:
        if panel.smoothing:
            over_seeds |= {"smoothing_type": "exponential", "smoothing_factor": panel.smoothing}
        return reports.LinePlot(
            title=panel.title, x=panel.x, y=list(panel.keys), title_x=panel.x_title or None, layout=layout,
            **over_seeds,
        )  # fmt: skip
    if panel.kind == BARS:
        over_seeds["max_bars_to_show"] = _curves(runs)
        return reports.BarPlot(title=panel.title, metrics=list(panel.keys), layout=layout, **over_seeds)
    if panel.kind == IMAGES:
        return reports.MediaBrowser(title=panel.title, media_keys=list(panel.keys), num_columns=4, layout=layout)
    return reports.MarkdownPanel(markdown=panel.text, layout=layout)


def _curves(runs: Runs) -> int:
    return min(max(runs.curves, FEWEST_CURVES), MOST_CURVES)
