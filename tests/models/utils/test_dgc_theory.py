"""Lemma 3.2 and Theorem 3.3 of the DGC paper on a strongly convex problem: what holds, and what does not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import dgc_logistic as convex
import numpy as np
import pytest
import torch
from dgc_logistic import Array, Data, G, Literal, distance, settle, union
from scipy import stats

from models.utils.dgc_draws import Draw
from models.utils.dgc_reference import Batch, Closed, Sampled

LR, PENALTY, M = 0.3, 0.1, 50
WHOLE = ["--buffer_size", "2000"]  # room for all images
THEOREM = ["--dgc_m", str(M), "--dgc_current", "1"]
ZERO = np.zeros((10, 64))


@pytest.fixture(scope="module")
def tasks() -> list[Data]:
    return convex.tasks()


@pytest.fixture(scope="module")
def past(tasks: list[Data]) -> Data:
    return union(tasks[:2])


@pytest.fixture(scope="module")
def start(past: Data) -> Array:
    """The optimum of tasks 1 and 2, where task 3 begins."""
    return settle([(1.0, past)], PENALTY, ZERO)


@pytest.fixture(scope="module")
def optimum(tasks: list[Data]) -> Array:
    """The optimum of tasks 1 to 3 together."""
    return settle([(1.0, union(tasks[:3]))], PENALTY, ZERO)


def snapshot(model: Any) -> Array:
    return model.dgc.snapshot.linear.weight.detach().numpy()


def memory_of(model: Any) -> Data:
    images, labels = model.buffer.examples, model.buffer.labels
    return convex.as_data(images[: len(model.buffer)], labels[: len(model.buffer)])


def relative(a: Array, b: Array) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


# -- Lemma 3.2 --------------------------------------------------------------------------------------------------------


def test_with_the_whole_history_gamma_is_the_gradient_of_the_past(tasks: list[Data]) -> None:
    model = convex.build("dgc_er", LR, PENALTY, *WHOLE, "--dgc_m", "4", "--dgc_stage", "buffer")
    ends = 0
    for t in range(4):
        convex.begin_task(model)
        for _ in range(10):
            convex.step(model)
            if t and model.dgc.stage_step == 0:
                assert relative(convex.calibrated(model), G(union(tasks[:t]), snapshot(model))) < 1e-13
                ends += 1
        convex.end_task(model)
        assert relative(convex.calibrated(model), G(union(tasks[: t + 1]), convex.weights(model))) < 1e-13
    assert ends == 6


@pytest.mark.parametrize("view", ["same", "plain"])
def test_then_the_correction_has_zero_mean_over_the_buffer(view: str, past: Data) -> None:
    """Over a partition of the buffer into batches, and over all single images, through the hook itself."""
    flags = ["--dgc_m", "4", "--dgc_stage", "buffer", "--dgc_view", view]
    model = convex.third_task("dgc_er", ZERO, LR, PENALTY, *WHOLE, *flags)
    for _ in range(6):  # into the second stage
        convex.step(model)
    blank = torch.zeros(1, 1, 8, 8)
    model.dgc_stream = (blank, blank, torch.zeros(1, dtype=torch.int64))
    for batch in (convex.BATCH, 1):
        added = []
        for index in torch.randperm(len(past[0])).split(batch):
            images, labels = model.buffer.get_data_by_index(index)
            model.opt.zero_grad()
            # Private, because it is no step of the base: the correction for a draw that the test chooses.
            model._dgc_draws = [Draw(images, labels, lambda index=index: model.dgc_rows(index))]
            model._dgc_before_step(model.opt)
            added.append(model.net.linear.weight.grad.numpy().copy())
        sizes = np.linalg.norm(added, axis=(1, 2))
        assert sizes.min() > 1e-3
        assert np.linalg.norm(np.mean(added, axis=0)) < 1e-13 * sizes.mean()


def gamma_along(path: Array, seed: int) -> Array:
    """Γ' after three tasks of 5 steps along prescribed θ: two stages of two steps, and a partial one."""
    flags = ["--buffer_size", "30", "--dgc_m", "2"]
    model = convex.build("dgc_er", LR, 0.0, *flags, seed=seed)
    model.args.lr = 0.0  # the methods' own steps lead nowhere
    for thetas in path:
        convex.begin_task(model)
        for theta in thetas:
            convex.set_weights(model, theta)
            convex.step(model)
        convex.end_task(model)
    return convex.calibrated(model)


@pytest.mark.slow
def test_along_a_fixed_trajectory_gamma_is_unbiased_over_reservoirs(tasks: list[Data]) -> None:
    """n = 80 buffers with their draws: 99 % t intervals (Bonferroni) of 5 projections, and jointly Hotelling's T²."""
    random, n, k = np.random.default_rng(0), 80, 5
    path = random.normal(0, 0.3, (3, 5, 10, 64)).cumsum(1) + random.normal(0, 1, (3, 1, 10, 64))
    true = G(union(tasks[:3]), path[-1, -1])
    directions = np.stack([true, *random.normal(size=(k - 1, 10, 64))]).reshape(k, -1)
    gammas = np.stack([gamma_along(path, seed) for seed in range(n)])
    values = (gammas - true).reshape(n, -1) @ directions.T
    mean, covariance = values.mean(0), np.cov(values.T)
    t = mean / np.sqrt(np.diag(covariance) / n)
    assert np.abs(t).max() < stats.t.ppf(1 - 0.005 / k, n - 1)
    hotelling = n * mean @ np.linalg.solve(covariance, mean)
    assert stats.f.sf(hotelling * (n - k) / (k * (n - 1)), k, n - k) > 0.01
    assert values.std(0).min() > 0


def after_task_2(seed: int, start: Array, path_end: Array | None) -> tuple[Array, Array]:
    """θ and c_2 + G(M_2;θ), the Γ' of `closed` for the past at the end of task 2: trained, or put there."""
    flags = ["--buffer_size", "20", "--dgc_estimator", "closed"]
    model = convex.build("dgc_er", 1.0, 0.001, *flags, seed=seed)
    convex.begin_task(model)
    convex.set_weights(model, start)
    convex.end_task(model)
    convex.begin_task(model)
    if path_end is None:
        convex.stages(model, 1, 400)
    else:
        convex.set_weights(model, path_end)
    calibrator, memory = model.dgc.calibrator["linear.weight"].numpy(), memory_of(model)
    return convex.weights(model), G(memory, convex.weights(model)) + calibrator


@pytest.mark.slow
def test_in_training_gamma_is_biased(tasks: list[Data]) -> None:
    """The lemma's proof treats θ as independent of the buffer; but θ is fitted to the images in it.

    n = 24 buffers. Γ' understates how the past's gradient changes, because θ goes where *these* images object least;
    along the path that belongs to another buffer it does not.
    """
    n, start = 24, settle([(1.0, tasks[0])], 0.001, ZERO)
    own = [after_task_2(seed, start, None) for seed in range(n)]
    other = [after_task_2(seed, start, own[seed - 1][0]) for seed in range(n)]
    shares = [[float(convex.understated(g, tasks[0], start, theta)) for theta, g in runs] for runs in (own, other)]
    t = [np.mean(share) / (np.std(share, ddof=1) / np.sqrt(n)) for share in shares]
    assert t[0] > 5 and np.mean(shares[0]) > 0.1
    assert abs(t[1]) < stats.t.ppf(0.995, n - 1)


# -- closed = the mean of sampled -------------------------------------------------------------------------------------


def test_sampled_recursions_average_to_the_closed_form(tasks: list[Data]) -> None:
    """One trajectory, one buffer, n = 4000 recursions: the mean's squared error is the variance / n (99.8 % interval).

    The variance is the sum over stages of that of a mean of 16 rows out of 60.
    """
    random, n, size, count = np.random.default_rng(0), 4000, 60, 12
    memory = convex.rows(tasks[0], convex.reservoir(tasks[:1], size, 0)[0])
    path = random.normal(0, 0.3, (count + 1, 10, 64)).cumsum(0)
    gradients = [convex.each(memory, theta) for theta in path]
    exact = G(tasks[0], path[0]).ravel()
    sampled, expected, variances = np.tile(exact, (n, 1)), 0.0, []
    draws = []
    for old, new in pairwise(gradients):
        draws.append(convex.draw(random, n, size))
        move = new - old
        sampled += np.array([move[index].mean(0) for index in draws[-1]])
        expected += (1 - convex.BATCH / size) * move.var(0, ddof=1).sum() / convex.BATCH
        variances.append(sampled.var(0, ddof=1).sum())
        assert variances[-1] == pytest.approx(expected, rel=0.1)
    assert all(a < b for a, b in pairwise(variances))
    assert variances[-1] > 8 * variances[0]
    closed = gradients[-1].mean(0) + exact - gradients[0].mean(0)
    covariance = np.cov(sampled.T)
    freedom = np.trace(covariance) ** 2 / (covariance**2).sum()  # Satterthwaite: few directions carry the variance
    low, high = stats.chi2.ppf((0.001, 0.999), freedom) / freedom
    for part in (40, 400, 4000):
        squared = ((sampled[:part].mean(0) - closed) ** 2).sum()
        assert low < squared * part / variances[-1] < high
    assert_literal(memory, tasks[0], path, draws, sampled[0], closed)


def assert_literal(memory: Data, first: Data, path: Array, draws: list, sampled: Array, closed: Array) -> None:
    """The same numbers from the reference's equations: the first recursion, and the closed form."""

    def batch(data: Data) -> Batch:
        return Batch(torch.from_numpy(data[0] / convex.SCALE), torch.from_numpy(data[1].argmax(1)))

    thetas = [{"linear.weight": torch.from_numpy(theta)} for theta in path]
    sampled_twin, closed_twin = Sampled(convex.LinearNet()), Closed(convex.LinearNet())
    closed_twin.end_closed_task([], [batch(first)], [batch(memory)], len(first[0]), thetas[0])
    sampled_twin.end_task([batch(first)], len(first[0]), thetas[0])
    sampled_twin.theta_tilde = thetas[0]
    for index, theta in zip(draws, thetas[1:], strict=True):
        drawn = [batch(convex.rows(memory, index[0]))]
        sampled_twin.move(drawn, drawn, theta)
    of_closed = closed_twin.G([batch(memory)], thetas[-1]) + closed_twin.calibrator
    for found, expected in ((sampled_twin.gamma, sampled), (of_closed, closed)):
        assert relative(found.numpy(), expected) < 1e-12


# -- Theorem 3.3 ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_stages_over_the_buffer_converge_linearly_to_float_precision(start: Array, optimum: Array) -> None:
    model = convex.third_task("dgc_er", start, LR, PENALTY, *WHOLE, *THEOREM, "--dgc_stage", "buffer")
    found = distance(convex.stages(model, 23, M), optimum)
    assert (found[1:17] / found[:16]).max() < 0.3
    assert found[-1] < 1e-13 * np.linalg.norm(optimum)


@pytest.mark.slow
def test_the_bound_of_one_half_holds_with_mended_constants(tasks: list[Data]) -> None:
    """η = γ/(10L²) and m = 10L²/γ²: E‖v‖² ≤ 2L²(…) gives p' ≤ (e^−1.8 + 1/9)·p < ½·p. One path stays below, too.

    The printed η = γ/(10L) has the wrong dimension: it stays the same if the loss is measured in other units, say
    5000 times smaller ones, and then even full gradient steps diverge.
    """
    penalty, joint = 0.4, union(tasks[:3])
    start, optimum = (settle([(1.0, data)], penalty, ZERO) for data in (union(tasks[:2]), joint))
    smooth = convex.smoothness(joint, penalty)
    lr, m = penalty / (10 * smooth**2), int(np.ceil(10 * smooth**2 / penalty**2))
    model = convex.third_task(
        "dgc_er", start, lr, penalty, *WHOLE, "--dgc_m", str(m), "--dgc_current", "1", "--dgc_stage", "buffer"
    )
    squared = distance(convex.stages(model, 6, m), optimum) ** 2
    assert (squared[1:] / squared[:-1]).max() < 0.5
    steepest = np.linalg.eigvalsh(convex.hessian(joint, optimum)).max() + penalty
    assert abs(1 - penalty / (10 * smooth) * 5000 * steepest) > 1


@pytest.mark.slow
def test_single_batch_stages_come_to_rest_at_a_wrong_point(
    tasks: list[Data], past: Data, start: Array, optimum: Array
) -> None:
    """The error that Γ' has picked up stays, and θ converges to the root that this error shifts."""
    model = convex.third_task("dgc_er", start, LR, PENALTY, *WHOLE, *THEOREM)
    path = convex.stages(model, 18, M)
    share = len(past[0]) / len(union(tasks[:3])[0])
    error = convex.calibrated(model) - G(past, snapshot(model))
    shifted = settle([(1 - share, tasks[2]), (share, past)], PENALTY, optimum, share * error)
    assert distance(path[-1], optimum) > 0.02
    assert distance(path[-1], path[-2]) < 1e-8
    assert distance(path[-1], shifted) < 1e-8


@pytest.mark.slow
def test_a_smaller_step_lowers_the_floor_of_er_but_not_of_sampled(
    tasks: list[Data], past: Data, start: Array, optimum: Array
) -> None:
    """n = 12 repetitions, as many units of lr·steps: ER's floor falls below that of `sampled`."""
    n, floors = 12, {}
    share = len(past[0]) / len(union(tasks[:3])[0])
    memory = tuple(np.broadcast_to(part, (n, *part.shape)) for part in past)
    begin = [np.broadcast_to(value, (n, 10, 64)) for value in (start, G(past, start))]
    for rule in ("er", "sampled"):
        for lr, m in ((LR, M), (LR / 10, 10 * M)):
            literal = Literal(rule, tasks[2], memory, share, lr, PENALTY, m)
            ends = literal.train(*begin, 4, np.random.default_rng(0))[0][-1]
            floors[rule, lr] = distance(ends, optimum).mean()
    assert floors["er", LR / 10] < 0.5 * floors["er", LR]
    assert floors["sampled", LR / 10] == pytest.approx(floors["sampled", LR], rel=0.3)
    assert floors["er", LR / 10] < 0.8 * floors["sampled", LR / 10] < floors["er", LR]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_with_a_small_buffer(seed: int, tasks: list[Data], past: Data, start: Array, optimum: Array) -> None:
    """`sampled` with stages over the buffer settles where `closed` would, nearer to the joint optimum than ER."""
    small = ["--buffer_size", "50"]
    sampled = convex.third_task("dgc_er", start, LR, PENALTY, *small, *THEOREM, "--dgc_stage", "buffer", seed=seed)
    memory, share = memory_of(sampled), len(past[0]) / len(union(tasks[:3])[0])
    parts, calibrator = [(1 - share, tasks[2]), (share, memory)], G(past, start) - G(memory, start)
    er, closed = (settle(parts, PENALTY, start, share * alpha * calibrator) for alpha in (0, 1))
    assert distance(convex.stages(sampled, 17, M)[-1], closed) < 1e-9
    assert distance(closed, optimum) < 0.3 * distance(er, optimum)
    for name, flags, point in (("er", [], er), ("dgc_er", ["--dgc_estimator", "closed"], closed)):
        model = convex.third_task(name, start, LR, PENALTY, *small, *flags, seed=seed)
        average = convex.stages(model, 300, 2)[50:].mean(0)  # of the last 500 steps
        assert distance(average, point) < 0.2 * distance(er, closed)
