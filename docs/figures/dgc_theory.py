"""DGC's lemma and theorem on a strongly convex problem: the raw results in docs/results/dgc_theory, and their picture.

python -m docs.figures.dgc_theory run       repeat the experiments (minutes on one core)
python -m docs.figures.dgc_theory picture   draw dgc_theory.png

Softmax regression with an L2 penalty on scikit-learn's digits in float64, tasks 1–3 of `seq-digits` (all five for the
recursion). `convergence` runs the real methods; the others numpy formulas of the same steps, in many
repetitions (tests/dgc_logistic.py). Their floors of `sampled` agree: 0.095 ± 0.007 (real) and 0.088 ± 0.003 (numpy).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.report.styles import name_lines, pyplot
from tests import dgc_logistic as convex
from tests.dgc_logistic import Array, Data, G, Literal, distance, settle, union
from utils.run.look import BLUE, GREY, INK, ORANGE, VERMILION

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "dgc_theory"
PICTURE = ROOT / "docs" / "figures" / "dgc_theory.png"
SETUP = "softmax regression, seq-digits, float64, pixels / 4, batches of 16 + 16, α = 1, task weights"
LR, PENALTY, M = 0.3, 0.1, 50
WEAK = 0.01  # a penalty that leaves the buffer room to mislead
SIZES = (25, 50, 100, 200, 400)
Json = dict[str, Any]


def summary(values: Sequence[float] | Array) -> Json:
    """Over repetitions: n, mean, standard deviation (n − 1) and standard error."""
    deviation = float(np.std(values, ddof=1))
    return {"n": len(values), "mean": float(np.mean(values)), "sd": deviation, "se": deviation / math.sqrt(len(values))}


def repeat(data: Data, n: int) -> Data:
    return tuple(np.broadcast_to(part, (n, *part.shape)) for part in data)  # type: ignore[return-value]


# -- Theorem 3.3 with the whole history in the buffer -----------------------------------------------------------------


def convergence() -> Json:
    """Distance to the optimum of tasks 1–3 at the ends of stages; `er` with the same number of steps."""
    tasks = convex.tasks()[:3]
    start, optimum = (settle([(1.0, union(part))], PENALTY, np.zeros((10, 64))) for part in (tasks[:2], tasks))
    dgc, curves = ["--dgc_m", str(M), "--dgc_current", "1", "--dgc_stage"], {}
    for label, name, flags in (
        ("er", "er", []),
        ("sampled, batch", "dgc_er", [*dgc, "batch"]),
        ("sampled, buffer", "dgc_er", [*dgc, "buffer"]),
    ):
        found = []
        for seed in range(10):
            model = convex.third_task(name, start, LR, PENALTY, "--buffer_size", "2000", *flags, seed=seed)
            found.append(distance(convex.stages(model, 25, M), optimum))
        curves[label] = [summary(values) for values in np.transpose(found)]
    return {"conditions": f"{SETUP}; real methods, task 3, buffer = tasks 1 and 2, lr {LR}, penalty {PENALTY}, m {M}",
            "norm_of_optimum": float(np.linalg.norm(optimum)), "distance_by_stage": curves}  # fmt: skip


def floors() -> Json:
    """The distance that remains, by learning rate and by m; and the theorem's rate with η = γ/(10L²)."""
    tasks, n, rows = convex.tasks()[:3], 50, []
    past, joint = union(tasks[:2]), union(tasks)
    start, optimum = (settle([(1.0, data)], PENALTY, np.zeros((10, 64))) for data in (past, joint))
    share, smooth = len(past[0]) / len(joint[0]), convex.smoothness(joint, PENALTY)

    def path(rule: str, lr: float, m: int, stages: int, stage: str = "batch") -> Array:
        literal = Literal(rule, tasks[2], repeat(past, n), share, lr, PENALTY, m, stage)
        thetas, gamma = np.broadcast_to(start, (n, 10, 64)), np.broadcast_to(G(past, start), (n, 10, 64))
        return np.array(literal.train(thetas, gamma, stages, np.random.default_rng(0))[0])

    for lr, m in ((0.3, 5), (0.3, 15), (0.3, 50), (0.3, 150), (0.1, 150), (0.03, 500)):
        for rule in ("er", "sampled"):
            ends = path(rule, lr, m, max(12, round(1000 / m)))[-1]
            rows.append({"rule": rule, "lr": lr, "m": m, **summary(distance(ends, optimum))})
    slow, m = PENALTY / (10 * smooth**2), math.ceil(10 * smooth**2 / PENALTY**2)
    squared = (distance(path("sampled", slow, m, 5, "buffer"), optimum) ** 2).mean(1)
    return {"conditions": f"{SETUP}; numpy, task 3, buffer = tasks 1 and 2, penalty {PENALTY}; at least 12 stages",
            "distance_at_the_end": rows,
            "theorem": {"L": smooth, "gamma": PENALTY, "lr": slow, "m": m, "n": n, "stage": "buffer",
                        "ratio_of_mean_squared_distance_by_stage": (squared[1:] / squared[:-1]).tolist()}}  # fmt: skip


# -- the recursion along one trajectory -------------------------------------------------------------------------------


def trajectory(tasks: list[Data], stages: int) -> list[list[Array]]:
    """θ at the ends of stages in every task, of ER that replays all of the past: independent of any buffer."""
    random, theta, paths = np.random.default_rng(1), np.zeros((1, 10, 64)), []
    for t, task in enumerate(tasks):
        past = union(tasks[:t]) if t else task
        share = len(past[0]) / (len(past[0]) + len(task[0])) if t else 0.0
        literal = Literal("er", task, repeat(past, 1), share, LR, WEAK, M)
        path, _ = literal.train(theta, np.zeros_like(theta), stages, random)
        theta = path[-1]
        paths.append([point[0] for point in path])
    return paths


def recursion() -> Json:
    """E‖Γ' − G(past;θ̃)‖² over buffers and draws, for tasks 2–5; and the share that is due to the draws alone."""
    tasks, n, size, stages = convex.tasks(), 400, 100, 20
    pool, paths, random = union(tasks), trajectory(tasks, stages), np.random.default_rng(2)
    buffers = [convex.reservoir(tasks, size, seed) for seed in range(n)]
    counts = [len(x) for x, _ in tasks]
    rows, past = [], counts[0]
    closed = sampled = np.tile(G(tasks[0], paths[0][-1]).ravel(), (n, 1))
    for t in range(1, 5):
        members = np.array([content[t - 1] for content in buffers])
        old = convex.each(pool, paths[t][0])
        for s, theta in enumerate(paths[t]):
            new = convex.each(pool, theta)
            move = new - old
            if s:
                draws = np.take_along_axis(members, convex.draw(random, n, size), 1)
                sampled = sampled + np.array([move[index].mean(0) for index in draws])
                closed = closed + np.array([move[index].mean(0) for index in members])
            truth = new[:past].mean(0)
            plain = np.array([new[index].mean(0) for index in members])
            errors = {"closed": closed - truth, "sampled": sampled - truth, "buffer": plain - truth,
                      "draws": sampled - closed}  # fmt: skip
            squared = {name: summary((error**2).sum(1)) for name, error in errors.items()}
            rows.append({"task": t + 1, "stage": s, "truth": float((truth**2).sum()), **squared})
            old = new
        now = old[past : past + counts[t]].mean(0)
        total = past + counts[t]
        closed, sampled = ((past * value + counts[t] * now) / total for value in (closed, sampled))
        past = total
    return {"conditions": f"{SETUP}; numpy, θ from ER that replays all of the past, lr {LR}, penalty {WEAK}, m {M}, "
            f"{stages} stages a task, {n} buffers of {size}", "squared_error": rows}  # fmt: skip


# -- where the methods settle with a small buffer ---------------------------------------------------------------------


def settled(tasks: list[Data], contents: list[Any], alpha: float, penalty: float) -> Array:
    """ER's (α = 0) or `closed`'s point after the last task, every task trained to the end: roots, no noise."""
    pool, past = union(tasks), len(tasks[0][0])
    theta = settle([(1.0, tasks[0])], penalty, np.zeros((10, 64)))
    gamma = G(tasks[0], theta)
    for t in range(1, len(tasks)):
        memory, total = convex.rows(pool, contents[t - 1]), past + len(tasks[t][0])
        calibrator, share = gamma - G(memory, theta), past / total
        parts = [(1 - share, tasks[t]), (share, memory)]
        theta = settle(parts, penalty, theta, share * alpha * calibrator)
        gamma = share * (G(memory, theta) + calibrator) + (1 - share) * G(tasks[t], theta)
        past = total
    return theta


def sampled_point(tasks: list[Data], buffers: list[list[Any]], penalty: float, stages: int) -> Array:
    """The points at which `sampled` (single-batch stages, current-task term on) comes to rest."""
    n, random, past, pool = len(buffers), np.random.default_rng(3), len(tasks[0][0]), union(tasks)
    start = settle([(1.0, tasks[0])], penalty, np.zeros((10, 64)))
    theta, gamma = (np.broadcast_to(value, (n, 10, 64)) for value in (start, G(tasks[0], start)))
    for t in range(1, len(tasks)):
        total = past + len(tasks[t][0])
        memory = convex.rows(pool, np.array([content[t - 1] for content in buffers]))
        literal = Literal("sampled", tasks[t], memory, past / total, LR, penalty, M)
        path, gamma = literal.train(theta, gamma, stages, random)
        theta, gamma = path[-1], (past * gamma + len(tasks[t][0]) * G(tasks[t], path[-1])) / total
        past = total
    return theta


def small_buffer() -> Json:
    tasks, n, rows = convex.tasks()[:3], 20, []
    joint = union(tasks)
    for penalty, stages in ((PENALTY, 30), (WEAK, 100)):
        optimum = settle([(1.0, joint)], penalty, np.zeros((10, 64)))
        for size in SIZES:
            buffers = [convex.reservoir(tasks, size, seed) for seed in range(n)]
            points = {f"α = {a:g}" if 0 < a < 1 else ("closed" if a else "er"):
                      np.array([settled(tasks, content, a, penalty) for content in buffers])
                      for a in ((0.0, 0.001, 0.1, 0.5, 1.0) if size == 100 else (0.0, 1.0))}  # fmt: skip
            points["sampled"] = sampled_point(tasks, buffers, penalty, stages)
            distances = {rule: distance(point, optimum) for rule, point in points.items()}
            rows += [{"penalty": penalty, "buffer": size, "rule": rule, **summary(values),
                      "difference_to_er": summary(values - distances["er"])}
                     for rule, values in distances.items()]  # fmt: skip
    return {"conditions": f"{SETUP}; after task 3, every task trained to the end: er, closed and α (closed at other α) "
            f"as roots of their mean step, sampled as it comes to rest (numpy, lr {LR}, m {M})",
            "distance_to_joint_optimum": rows}  # fmt: skip


# -- Lemma 3.2 in training --------------------------------------------------------------------------------------------


def bias() -> Json:
    """Γ'(2) of `closed` at the end of task 2: trained on buffer and task, or along the path of another buffer.

    In two settings, because the bias depends on how closely θ is fitted: the milder one is that of `recursion`.
    """
    tasks, rows = convex.tasks()[:2], []
    for lr, penalty, steps in ((1.0, 0.001, 500), (LR, WEAK, 200)):
        setting = {"lr": lr, "penalty": penalty, "steps": steps}
        for rule, size in [(rule, size) for rule in ("er", "closed") for size in SIZES[:-1]]:
            shares = understated_shares(tasks, rule, size, lr, penalty, steps)
            for path, values in shares.items():
                row: Json = {**setting, "steps_of": rule, "buffer": size, "path": path, **summary(values)}
                rows.append({**row, "standard_errors": row["mean"] / row["se"]})
    return {"conditions": f"{SETUP}; numpy, task 2 from the optimum of task 1, n buffers",
            "understated_share_of_the_change": rows}  # fmt: skip


def understated_shares(
    tasks: list[Data], rule: str, size: int, lr: float, penalty: float, steps: int, n: int = 200
) -> dict[str, Array]:
    start = settle([(1.0, tasks[0])], penalty, np.zeros((10, 64)))
    exact = G(tasks[0], start)
    members = np.array([convex.reservoir(tasks[:1], size, seed)[0] for seed in range(n)])
    memory = convex.rows(tasks[0], members)
    literal = Literal(rule, tasks[1], memory, 0.5, lr, penalty, steps)
    starts, gammas = (np.broadcast_to(value, (n, 10, 64)) for value in (start, exact))
    own = literal.train(starts, gammas, 1, np.random.default_rng(0))[0][-1]
    shares = {}
    for label, path in (("own", own), ("another buffer's", np.roll(own, 1, 0))):
        gamma = exact + G(memory, path) - G(memory, start)
        shares[label] = convex.understated(gamma, tasks[0], start, path)
    return shares


# -- output -----------------------------------------------------------------------------------------------------------

EXPERIMENTS: dict[str, Callable[[], Json]] = {
    "convergence": convergence, "floors": floors, "recursion": recursion, "small_buffer": small_buffer, "bias": bias
}  # fmt: skip


def rounded(value: Any) -> Any:
    """Six digits are enough for what is committed."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def run(names: list[str]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in names or EXPERIMENTS:
        text = json.dumps(rounded(EXPERIMENTS[name]()), indent=1, ensure_ascii=False)
        (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(name)


# -- the picture ------------------------------------------------------------------------------------------------------

COLOURS = {
    "er": INK[0],
    "buffer": INK[0],
    "sampled": VERMILION[0],
    "sampled, batch": VERMILION[0],
    "sampled, buffer": ORANGE[0],
    "closed": BLUE[0],
}
WORDS = {
    "er": "replay",
    "sampled": "calibrated, one batch a stage",
    "sampled, batch": "calibrated, one batch a stage",
    "sampled, buffer": "calibrated, whole buffer a stage",
    "closed": "calibrated, closed form",
}
HEADLINE = """\
On a convex problem calibration in closed form ends {} times nearer to the optimum than replay.
With one batch a stage, as printed, it gathers noise, stops short of it, and hardly gains from a larger buffer.\
"""


def load(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def times(better: Sequence[float], worse: Sequence[float]) -> str:
    """From how many to how many times smaller the first are."""
    ratios = [b / a for a, b in zip(better, worse, strict=True)]
    return f"{min(ratios):.1f}".removesuffix(".0") + f" to {max(ratios):.0f}"


def draw_convergence(axes: Any) -> None:
    for label, stages in load("convergence")["distance_by_stage"].items():
        axes.semilogy([stage["mean"] for stage in stages], ".-", color=COLOURS[label], label=WORDS[label])
    axes.set(xlabel=f"stages of {M} steps", ylabel="distance to the optimum",
             title="All of the past stored: calibration reaches the\n"
                   "optimum, but not with one batch a stage")  # fmt: skip


def draw_recursion(axes: Any) -> None:
    rows = load("recursion")["squared_error"]
    names = {"buffer": "the buffer's own gradient", "sampled": "Γ′, one batch a stage", "closed": "Γ′, closed form"}
    for t in range(2, 6):
        places = [i for i, row in enumerate(rows) if row["task"] == t]
        for name, label in names.items():
            values = [rows[i][name]["mean"] for i in places]
            axes.semilogy(places, values, color=COLOURS[name], label=label if t == 5 else None)
        draws = [rows[i]["draws"]["mean"] for i in places]
        axes.semilogy(places, draws, ":", color=GREY[0], label="noise of the batches in it" if t == 5 else None)
        axes.axvline(places[0], color="#dfe3e9", zorder=0)
        axes.text(places[0] + 1, 1.3e-2, f"task {t}", fontsize=8)
    last = [max(i for i, row in enumerate(rows) if row["task"] == t) for t in range(2, 6)]
    closed, buffer = ([rows[i][name]["mean"] for i in last] for name in ("closed", "buffer"))
    axes.set(xlabel=f"stages of {M} steps, along one given path, 100 images stored", ylim=(5e-5, 2e-2),
             ylabel="mean squared error of the past's gradient",
             title=f"The closed form's error ends {times(closed, buffer)} times below the\n"
                   "buffer's; single batches add noise that stays")  # fmt: skip


def small_buffer_points(rule: str, penalty: float) -> list[Json]:
    rows = load("small_buffer")["distance_to_joint_optimum"]
    return [row for row in rows if row["rule"] == rule and row["penalty"] == penalty]


def nearer() -> str:
    """How many times nearer to the optimum `closed` ends than replay."""
    closed, replay = (
        [row["mean"] for penalty in (PENALTY, WEAK) for row in small_buffer_points(rule, penalty)]
        for rule in ("closed", "er")
    )
    return times(closed, replay)


def draw_small_buffer(axes: Any) -> None:
    for penalty, style in ((PENALTY, "-"), (WEAK, "--")):
        for rule in ("er", "sampled", "closed"):
            points = small_buffer_points(rule, penalty)
            values, bars = ([row[key] for row in points] for key in ("mean", "se"))
            label = f"{WORDS[rule]}, penalty {penalty:g}"
            axes.plot(SIZES, values, "." + style, color=COLOURS[rule], label=label)
            axes.errorbar(SIZES, values, bars, fmt="none", ecolor=COLOURS[rule])
    axes.set(xscale="log", yscale="log", xlabel="images stored", ylabel="distance to the joint optimum, mean ± se",
             title="Few images stored: the closed form ends nearest;\n"
                   "one batch a stage hardly gains from more images")  # fmt: skip
    axes.set_xticks(SIZES, [str(size) for size in SIZES])
    axes.minorticks_off()


def draw_bias(axes: Any) -> None:
    rows = [row for row in load("bias")["understated_share_of_the_change"] if row["penalty"] == 0.001]
    for rule in ("er", "closed"):
        for path, style in (("own", "-"), ("another buffer's", "--")):
            points = [row for row in rows if row["steps_of"] == rule and row["path"] == path]
            sizes, means, errors = ([row[key] for row in points] for key in ("buffer", "mean", "se"))
            shares, bars = 100 * np.array(means), 200 * np.array(errors)
            label = f"{WORDS[rule].partition(',')[0]}, on {'its own' if path == 'own' else path} path"
            axes.plot(sizes, shares, "." + style, color=COLOURS[rule], label=label)
            axes.errorbar(sizes, shares, bars, fmt="none", ecolor=COLOURS[rule], elinewidth=0.8)
    axes.axhline(0, color=GREY[0], linewidth=0.8)
    axes.set(xscale="log", xlabel="images stored (lr 1, penalty 0.001, 500 steps, 200 buffers)",
             ylabel="share of the change missed, % ± 2 se",
             title="In training Γ′ understates how the past's gradient\n"
                   "changes: θ is fitted to the very images stored")  # fmt: skip
    axes.set_xticks(SIZES[:-1], [str(size) for size in SIZES[:-1]])
    axes.minorticks_off()


def picture() -> None:
    figure, axes = pyplot(formulas=True).subplots(2, 2, figsize=(10.5, 7.4), layout="constrained")
    for draw, place in zip((draw_convergence, draw_recursion, draw_small_buffer, draw_bias), axes.flat, strict=True):
        draw(place)
        place.set_title(place.get_title(), loc="left", fontweight="bold")
        place.set_title("")
    figure.suptitle(HEADLINE.format(nearer()), fontweight="bold", x=0.01, ha="left")
    figure.get_layout_engine().set(h_pad=0.1)
    name_lines(figure)
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "picture"))
    parser.add_argument("names", nargs="*", help="experiments to repeat (default: all)")
    args = parser.parse_args()
    if args.what == "run":
        run(args.names)
    else:
        picture()


if __name__ == "__main__":
    main()
