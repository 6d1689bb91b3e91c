"""Curves of what `--dgc_diagnostics` measured: relative error and cosine of replay's gradients, and α*.

    python -m docs.figures.diagnostics RUN [RUN …] [--title TEXT] --output PNG

Each RUN is the directory of a run, and becomes a row.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml

from experiments.report.figures import draw_measured
from experiments.report.styles import GREEN, GREY, pyplot, wrapped
from experiments.results.records import read_curves

PANELS = {
    "cosine": "cosine with the true gradient",
    "error": "error, in lengths of the true gradient",
    "alpha_star": "α*, the best share of the correction",
}
PERFECT = {"cosine": 1, "error": 0}


def measured(run: Path) -> dict[str, Any]:
    found = read_curves(run / "metrics.jsonl").get("diagnostics")
    if found is None:
        raise SystemExit(f"no diagnostics in {run}: run it with --dgc_diagnostics K, over two tasks at least")
    return found


def title(run: Path) -> str:
    args = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["args"]
    parts = [args["model"], args.get("dgc_estimator"), f"buffer {args['buffer_size']}", args.get("buffer_fill")]
    if args.get("dgc_alpha") is not None:
        parts.insert(2, f"α = {args['dgc_alpha']:g}")
    if args.get("dgc_estimator") in ("sampled", "released"):  # `closed` has no stages
        parts.insert(3, f"m = {args['dgc_m']}")
    if args.get("dgc_estimator") == "sampled":  # views are never compared
        parts.append(f"view {args['dgc_view'] or 'same'}")
    return f"{args['dataset']}, seed {args['seed']}\n" + wrapped(", ".join(str(part) for part in parts if part))


def draw(runs: list[Path], output: Path, headline: str | None = None) -> None:
    found = [measured(run) for run in runs]
    panels = dict(list(PANELS.items())[: 2 + any("alpha_star" in values for values in found)])
    size = {"figsize": (3.3 * len(panels), 2.5 * len(runs) + 0.3), "layout": "constrained"}
    figure, grid = pyplot(formulas=True).subplots(
        len(runs), len(panels), sharex=True, sharey="col", squeeze=False, **size
    )
    for row, (run, values) in zip(grid, zip(runs, found, strict=True), strict=True):
        for axes, kind in zip(row, ("cosine", "error"), strict=False):
            draw_measured(axes, values, kind)
            axes.axhline(PERFECT[kind], color=GREY[0], linewidth=0.6)
        if "alpha_star" in values:
            row[2].plot(values["at"], values["alpha_star"], ".-", color=GREEN[0], markersize=3)
            row[2].axhline(1, color=GREY[0], linewidth=0.6)
            row[2].set_ylim(bottom=min(0, *row[2].get_ylim()))
        elif len(panels) == 3:
            row[2].text(0.5, 0.5, "no correction", transform=row[2].transAxes, ha="center")
        row[0].set_ylabel(title(run))
    for axes, name in zip(grid[0], panels.values(), strict=True):
        axes.set_title(name)
    for axes in grid[-1]:
        axes.set_xlabel("step")
    if headline:
        figure.suptitle(headline, fontweight="bold")
    handles = max((row[0].get_legend_handles_labels() for row in grid), key=lambda found: len(found[1]))
    figure.legend(*handles, loc="outside lower center", ncols=3)
    figure.savefig(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--title", help="what the picture shows, in one line")
    parser.add_argument("--output", type=Path, default=Path("diagnostics.png"), metavar="PNG")
    given = parser.parse_args()
    draw(given.runs, given.output, given.title)


if __name__ == "__main__":
    main()
