"""Write the figures of docs/results/benchmarks/*.json into docs/benchmarks.md, between its two marks.

python -m docs.figures.benchmarks
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docs.figures.marks import fill

DOCS = Path(__file__).resolve().parents[1]
PAGE, RESULTS = DOCS / "benchmarks.md", DOCS / "results" / "benchmarks"
START, END = "<!-- figures: see docs/results/benchmarks -->", "<!-- end of figures -->"
HEAD = ["| benchmark | side | figure | ours is faster by |", "|---|---|---|---|"]
Rows = list[tuple[str, str, str]]


def _one_thread(figures: dict[str, Any]) -> str:
    return f"1 torch thread, CPU time, {figures['rounds']} rounds"


def _machine(figures: dict[str, Any]) -> str:
    machine = figures["environment"]
    return f"{machine['cpu']}, load {figures['load']:.1f}; torch {machine['torch']}"


def pipeline(figures: dict[str, Any]) -> tuple[Rows, str]:
    medians = {side: statistics.median(values) for side, values in figures["images_per_second"].items()}
    names = {side: "ours" if side == "ours" else f"PIL, {side} workers" for side in medians}
    rows = [
        (names[side], f"{median:,.0f} images/s", f"{medians['ours'] / median:.1f}") for side, median in medians.items()
    ]
    return rows, f"{figures['data']}; {figures['machine']}; {figures['versions']}; {figures['repetitions']} repetitions"


def strong_views(figures: dict[str, Any]) -> tuple[Rows, str]:
    rows = [
        (f"{side}, {batch}", f"{rate:,} images/s", f"{figures[batch]['ours_is_faster_by'][side]:.1f}")
        for batch in figures
        if batch.startswith("batch")
        for side, rate in figures[batch]["median_images_per_second"].items()
    ]
    return rows, f"{figures['data']}; {figures['machine']}; {figures['versions']}"


def loop(figures: dict[str, Any]) -> tuple[Rows, str]:
    low, _, high = figures["ratio_quartiles"]
    rows = [
        ("bare steps", f"{figures['bare_us_per_step']:.0f} µs/step", ""),
        ("training loop", f"{figures['loop_us_per_step']:.0f} µs/step", ""),
        ("loop : bare", f"{figures['ratio']:.3f} (quartiles {low:.3f}–{high:.3f})", ""),
        ("checkpoint", f"{1e3 * figures['checkpoint_seconds']:.0f} ms, {figures['checkpoint_bytes']:,} bytes", ""),
    ]
    return rows, f"1 torch thread, CPU time, {figures['rounds']} rounds; {_machine(figures)}"


def loop_vectors(figures: dict[str, Any]) -> tuple[Rows, str]:
    rows = []
    for kind in ("undisturbed", "median"):
        times = figures[f"{kind}_us"]
        rows.append((f"bare steps, {kind}", f"{times['bare']:.0f} µs/step", ""))
        for name in ("er", "dgc_er"):
            rows.append((f"`{name}`, {kind}", f"{times[f'{name}_on_top']:.0f} µs/step on top", ""))
    return rows, f"1 torch thread, CPU time, {figures['steps']:,} steps of each side; {_machine(figures)}"


def small_scale(figures: dict[str, Any]) -> tuple[Rows, str]:
    rows = []
    for name in ("er", "xder"):
        side = figures[name]
        low, high = side["ratio_interval"]
        text = (
            f"{side['ratio']:.2f} ({low:.2f}–{high:.2f}) × bare per step, undisturbed {side['undisturbed_ratio']:.2f}"
        )
        rows.append((f"`{name}`", f"{side['step_ms']:.0f} ms/step, bare {side['bare_ms']:.0f}; {text}", ""))
    compiled = figures["er, compiled"]
    low, high = compiled["ratio_interval"]
    text = f"{compiled['ratio']:.2f} ({low:.2f}–{high:.2f}) × `er` per step, after {compiled['seconds_before']:.0f} s"
    rows.append(("`er`, -O 3 (torch.compile)", text, ""))
    return rows, f"{_one_thread(figures)}, 95 % bootstrap intervals; {_machine(figures)}"


def by_size(values: dict[str, float]) -> list[tuple[str, float]]:
    """The largest first."""
    return sorted(values.items(), key=lambda item: -item[1])


def step_parts(figures: dict[str, Any]) -> tuple[Rows, str]:
    rows = []
    for name in ("er", "xder"):
        whole, *parts = by_size(figures[name]["milliseconds"])
        shown = [f"{part} {value:.1f}" for part, value in parts if value]
        rows.append((f"`{name}`", f"{whole[1]:.1f} ms/step: {', '.join(shown)}", ""))
        shares = [f"{kind} {100 * share:.0f} %" for kind, share in by_size(figures[name]["share_of_operations"])]
        rows.append((f"`{name}`, of torch's operations", ", ".join(shares), ""))
    return rows, f"1 torch thread, CPU time, {figures['steps']} steps; {_machine(figures)}"


def startup(figures: dict[str, Any]) -> tuple[Rows, str]:
    rows: Rows = [
        (name, f"{side['cpu_seconds']:.2f} s of CPU time, {side['wall_seconds']:.2f} s by the clock", "")
        for name, side in figures["answers"].items()
    ]
    return rows, f"best of {figures['rounds']}; {_machine(figures)}"


def first_hour(figures: dict[str, Any]) -> tuple[Rows, str]:
    rows: Rows = [(name, f"{seconds / 60:.1f} minutes", "") for name, seconds in figures["seconds"].items()]
    rows.append((".venv, for developers", f"{figures['venv_bytes'] / 1e9:.1f} GB", ""))
    machine = figures["environment"]
    return rows, f"one round by the clock; {machine['cpu']}, {figures['cores']} cores; torch {machine['torch']}"


DGC = ("sampled", "sampled plain", "released", "closed")


def dgc_overhead(figures: dict[str, Any]) -> tuple[Rows, str]:
    rows: Rows = []
    levels = [level for level in (1, 0) if f"O{level}" in figures]
    for level in levels:
        found = figures[f"O{level}"]
        rows.append((f"`er`, -O {level}", f"{found['er']['step_ms']:.0f} ms/step", ""))
        for name in [name for name in DGC if name in found]:
            side = found[name]
            low, high = side["step_interval"]
            steps = f"{side['step']:.3f} ({low:.3f}–{high:.3f}) × `er` per step, {side['all_in']:.3f} all in"
            rows.append((f"`{name}`, -O {level}", steps, ""))
    for base, side in figures.get("other_bases", {}).items():
        low, high = side["step_interval"]
        steps = f"{side['step']:.3f} ({low:.3f}–{high:.3f}) × `{base}` per step, {side['passes']:.2f} passes more"
        rows.append((f"`dgc_{base}`, -O 1", steps, ""))
    sizes = {name: figures["O1"][name]["bytes"] for name in ("sampled", "released", "closed")}
    rows.append(("buffer", f"{sizes['sampled']['buffer']:,} bytes", ""))
    for name, kept in sizes.items():
        parts = {"Γ'": kept["gamma"], "c_t": kept["c_t"], "running sum": kept["running_sum"], "θ̃": kept["snapshot"]}
        shown = [f"{part} {size:,}" for part, size in parts.items() if size]
        rows.append((f"`{name}` keeps", f"{', '.join(shown)} bytes", ""))
    formats = ", ".join(f"-O {level} is {figures[f'O{level}']['memory_format']}" for level in levels)
    conditions = f"width 16, {_one_thread(figures)}, 95 % bootstrap intervals; {formats}"
    return rows, f"{conditions}; {_machine(figures)}"


def methods(figures: dict[str, Any]) -> tuple[Rows, str]:
    rows: Rows = [("`er`", f"{figures['er_step_ms']:.0f} ms/step", "")]
    for name, side in sorted(figures["methods"].items(), key=lambda item: item[1]["step"]):
        low, high = side["interval"]
        model, *flags = name.split()
        name = " ".join([model.replace("-", "_"), *flags])
        bound = f", the paper's {side['bound']}" if side["bound"] else ""
        text = f"{side['step']:.2f} ({low:.2f}–{high:.2f}) × `er` per step{bound}; {side['all_in']:.2f} all in"
        rows.append((f"`{name}`", f"{text}; {side['stored_bytes']:,} bytes", ""))
    conditions = f"width {figures['width']}, {_one_thread(figures)}, 95 % bootstrap intervals"
    return rows, f"{conditions}; {figures['memory_format']}; {_machine(figures)}"


SECTIONS: dict[str, Callable[[dict[str, Any]], tuple[Rows, str]]] = {
    "pipeline": pipeline,
    "strong_views": strong_views,
    "loop": loop,
    "loop_vectors": loop_vectors,
    "small_scale": small_scale,
    "step_parts": step_parts,
    "startup": startup,
    "first_hour": first_hour,
    "dgc_overhead": dgc_overhead,
    "methods": methods,
}


def block(results: Path = RESULTS) -> str:
    """The table and the conditions of every benchmark that has been run; empty if none has."""
    lines, conditions = [], []
    for name, section in SECTIONS.items():
        path = results / f"{name}.json"
        if path.exists():
            rows, condition = section(json.loads(path.read_text(encoding="utf-8")))
            lines += [f"| {name} | {' | '.join(row)} |" for row in rows]
            conditions.append(f"- {name}: {condition}.")
    return "\n".join([*HEAD, *lines, "", "Conditions:", "", *conditions]) if lines else ""


def main() -> None:
    fill(PAGE, START, END, block())


if __name__ == "__main__":
    main()
