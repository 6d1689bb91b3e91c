"""AOP: the projector against its definition, the gradients of a step, what stays fixed, and forgetting."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import run, uncapturable
from method_helpers import RESNET, assert_exact_resume, begin_task, build
from torch import Tensor, nn

from backbone.ResNetBlock import resnet18
from models.aop import Aop
from models.aop_utils.projector import (
    adaptive_a,
    full_precision,
    identity_root,
    input_rows,
    leave_out,
    mean_inputs,
    project,
    projected_layers,
)
from utils.cli.parse import parse_args
from utils.errors import UsageError

pytestmark = pytest.mark.numeric


def scalar(value: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(value, dtype=dtype)


def rank_one_updates(q: Tensor, rows: Tensor, a: Tensor) -> Tensor:
    """The definition, row by row."""
    for r in rows:
        k = q @ r
        q = q - torch.outer(k, k) / (a + r @ k)
    return q


def after(batches: list[tuple[Tensor, float]], d: int = 12) -> Tensor:
    """Q after some batches of rows."""
    root = torch.eye(d, dtype=batches[0][0].dtype)
    for rows, a in batches:
        leave_out(root, rows, scalar(a, rows.dtype))
    return root @ root.T


def some_rows(p: int, d: int = 12, seed: int = 0) -> Tensor:
    return torch.randn(p, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5


# -- the projector --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 5, 12, 40])
@pytest.mark.parametrize("a", [1.0, 1e-3])
def test_one_update_is_the_sequence_of_rank_one_updates_and_the_closed_form(p: int, a: float) -> None:
    rows, identity = some_rows(p), torch.eye(12, dtype=torch.float64)
    found = after([(rows, a)])
    assert (found - rank_one_updates(identity, rows, scalar(a))).norm() < 1e-11
    assert (found - a * torch.linalg.inv(a * identity + rows.T @ rows)).norm() < 1e-11


def test_updates_add_up_in_the_inverse() -> None:
    """Q⁻¹ = I + Σ RᵀR/a, whatever came before: nothing is reset."""
    batches = [(some_rows(p, seed=p), a) for p, a in ((3, 1.0), (20, 0.3), (1, 0.02), (7, 0.1))]
    inverse = torch.eye(12, dtype=torch.float64) + sum(rows.T @ rows / a for rows, a in batches)
    assert (after(batches) @ inverse - torch.eye(12, dtype=torch.float64)).norm() < 1e-9


def test_it_is_symmetric_and_a_contraction() -> None:
    q = torch.eye(12, dtype=torch.float64)
    for count in (1, 2, 3):
        smaller = after([(some_rows(4, seed=seed), 0.1) for seed in range(count)])
        assert (smaller - smaller.T).norm() < 1e-14
        eigenvalues = torch.linalg.eigvalsh(smaller)
        assert eigenvalues.min() > 0 and eigenvalues.max() < 1 + 1e-12
        assert torch.linalg.eigvalsh(q - smaller).min() > -1e-12  # each update takes away
        q = smaller


def test_as_a_vanishes_it_is_orthogonal_to_what_it_has_seen_and_leaves_the_rest() -> None:
    rows = some_rows(5)
    unseen = torch.linalg.svd(rows).Vh[5:]
    sizes = []
    for a in (1.0, 1e-3, 1e-6, 1e-9):
        q = after([(rows, a)])
        sizes.append((q @ rows.T).norm() / rows.norm())
        assert (q @ unseen.T - unseen.T).norm() < 1e-11
    assert sizes[0] < 0.2 and all(new < 2e-3 * old for old, new in pairwise(sizes))


def difference(q: Tensor, rows: Tensor, a: float) -> Tensor:
    """Q − Q Rᵀ (a I + R Q Rᵀ)⁻¹ R Q as it is printed."""
    k = q @ rows.T
    return q - k @ torch.linalg.solve(a * torch.eye(len(rows), dtype=q.dtype) + rows @ k, k.T)


def test_float32_stays_true_where_the_plain_difference_runs_away() -> None:
    generator, d, steps = torch.Generator().manual_seed(0), 60, 400
    mixing = torch.rand(20, d, generator=generator)
    root, plain, exact = torch.eye(d), torch.eye(d), torch.eye(d, dtype=torch.float64)
    for k in range(steps):
        a, rows = 1e-5 ** (k / steps), torch.rand(8, 20, generator=generator) @ mixing
        leave_out(root, rows, scalar(a, torch.float32))
        plain, exact = difference(plain, rows, a), difference(exact, rows.double(), a)
    assert not (plain - exact).norm() < 1e3  # or NaN
    q = root @ root.T
    assert (q - exact).norm(2) < 1e-3
    assert torch.linalg.eigvalsh(q).min() > -1e-6 and torch.linalg.eigvalsh(q).max() < 1 + 1e-5
    assert (q @ rows.T).norm() < 1e-6 * rows.norm()


def test_products_are_exact_under_autocast() -> None:
    roots = torch.eye(12), torch.eye(12)
    rows, precision = some_rows(5).float(), torch.get_float32_matmul_precision()
    leave_out(roots[0], rows, scalar(0.1, torch.float32))
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (rows @ rows.T).dtype == torch.bfloat16
            with full_precision(torch.device("cpu")):
                leave_out(roots[1], rows, scalar(0.1, torch.float32))
                assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(precision)
    assert torch.equal(*roots)


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_inputs_without_a_direction_change_nothing(value: float) -> None:
    root = identity_root(nn.Linear(6, 2))
    leave_out(root, some_rows(3, 6).float(), scalar(0.1, torch.float32))
    before = root.clone()
    leave_out(root, torch.full((1, 6), value), scalar(0.0, torch.float32))
    assert torch.equal(root, before)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (1, 2, 0), (3, 1, 0), (2, 1, 1)])
@pytest.mark.parametrize("size", [8, 7])
def test_patches_lie_on_a_grid_of_two_pixels(kernel: int, stride: int, padding: int, size: int) -> None:
    layer = nn.Conv2d(3, 5, kernel, stride, padding, bias=False)
    mean = torch.rand(3, size, size)
    padded = torch.zeros(3, size + 2 * padding, size + 2 * padding)
    padded[:, padding : padding + size, padding : padding + size] = mean
    places = range(0, size + 2 * padding - kernel + 1, 2)
    expected = [padded[:, i : i + kernel, j : j + kernel].flatten() for i in places for j in places]
    rows = input_rows(layer, mean)
    assert torch.equal(rows, torch.stack(expected))
    # Unfolded as the weight is: their products are the convolution's outputs there.
    outputs = nn.functional.conv2d(mean[None], layer.weight, stride=2, padding=padding)[0]
    torch.testing.assert_close(rows @ layer.weight.flatten(1).T, outputs.flatten(1).T)


def test_a_falls_from_one_to_the_scale_of_the_layer() -> None:
    conv, linear = nn.Conv2d(1, 1, 3), nn.Linear(3, 1)
    r = torch.tensor([[1.0, 2.0, 6.0]])  # mean 3, unbiased variance (4 + 1 + 9) / 2
    own = 3**4 + 7
    expected = {0.0: (1.0, 1.0), 0.5: (1e-5**0.5, own**0.5), 1.0: (1e-5, own)}
    for progress, (of_conv, of_linear) in expected.items():
        assert float(adaptive_a(conv, r, progress)) == pytest.approx(of_conv)
        assert float(adaptive_a(linear, r, progress)) == pytest.approx(of_linear)
    assert float(adaptive_a(nn.Linear(1, 1), torch.tensor([[2.0]]), 1.0)) == 16  # one entry does not vary


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_are_projected_in_place_and_in_their_layout(layout: Any) -> None:
    root = torch.eye(18)
    leave_out(root, some_rows(4, 18).float(), scalar(0.1, torch.float32))
    gradient = torch.randn(5, 2, 3, 3).contiguous(memory_format=layout)
    expected = (gradient.reshape(5, 18) @ (root @ root.T)).reshape(5, 2, 3, 3)
    strides, address = gradient.stride(), gradient.data_ptr()
    project(gradient, root)
    torch.testing.assert_close(gradient, expected)
    assert (gradient.stride(), gradient.data_ptr()) == (strides, address)


# -- a step ---------------------------------------------------------------------------------------------------------


def literal_gradients(net: nn.Module, q: dict[str, Tensor], batch: Any, progress: float) -> dict[str, Tensor]:
    """The gradients that a step uses, by the definition in float64; updates q."""
    inputs: dict[str, Tensor] = {}
    layers = {name: layer for name, layer in net.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)}
    for name, layer in layers.items():
        layer.register_forward_pre_hook(lambda _, x, name=name: inputs.__setitem__(name, x[0].detach()))
    nn.functional.cross_entropy(net(batch[0]), batch[1]).backward()
    found = {}
    for name, layer in layers.items():
        mean = inputs[name].double().mean(0).cpu()
        if isinstance(layer, nn.Linear):
            rows, a = mean[None], (mean.mean() ** 4 + mean.var()) ** progress
        else:
            rows, a = input_rows(layer, mean), scalar(1e-5**progress)
        q[name] = rank_one_updates(q.get(name, torch.eye(rows.shape[1], dtype=torch.float64)), rows, a)
        found[name] = layer.weight.grad.double().flatten(1).cpu() @ q[name].T
    total = torch.sqrt(sum(gradient.square().sum() for gradient in found.values()))
    return {name: gradient * min(1.0, 10.0 / total) for name, gradient in found.items()}


@pytest.mark.parametrize("flags", [[], RESNET, [*RESNET, "-O", "1"]], ids=["mlp", "resnet", "channels_last"])
def test_steps_use_the_projected_gradients(flags: list[str], tmp_path: Path) -> None:
    model = build("aop", tmp_path, *flags, "--n_epochs", "1")
    batches, q = begin_task(model), {}
    layers = projected_layers(model.net)
    for step in range(4):
        expected = literal_gradients(copy.deepcopy(model.net), q, batches[step], step / 9)
        model.meta_observe(*batches[step])
        for name, layer in layers.items():
            found = layer.weight.grad.double().flatten(1).cpu()
            assert (found - expected[name]).norm() <= 1e-4 * expected[name].norm() + 1e-7, name


def test_every_matrix_is_projected_and_nothing_else_is_trained(tmp_path: Path) -> None:
    model = build("aop", tmp_path, "--backbone", "resnet18", "--num_filters", "2")
    before = copy.deepcopy(model.net.state_dict())
    batches = begin_task(model)
    for batch in batches[:2]:
        model.meta_observe(*batch)
    assert len(model.roots) == 21  # 17 convolutions of 3×3, 3 shortcuts, the classifier
    for name, parameter in model.net.named_parameters():
        projected = name.removesuffix(".weight") in model.roots
        assert (parameter.requires_grad, parameter.grad is not None) == (projected, projected), name
        assert torch.equal(parameter, before[name]) != projected, name
    assert not torch.equal(model.net.bn1.running_mean, before["bn1.running_mean"])
    # A private name of PyTorch's, which has no other way to ask for the hooks that are left.
    assert not any(module._forward_pre_hooks for module in model.net.modules())
    assert uncapturable(model) == []


def test_inputs_are_averaged_over_the_batch_without_a_graph() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.randn(6, 4)
    with mean_inputs(net) as means:
        net(x)
    net(2 * x)  # no more
    torch.testing.assert_close(means["0"], x.mean(0))
    torch.testing.assert_close(means["2"], net[0](x).relu().mean(0).detach())
    assert not means["2"].requires_grad


def test_the_projected_gradient_is_clipped(tmp_path: Path) -> None:
    model = build("aop", tmp_path, "--aop_clip", "0.01")
    model.meta_observe(*begin_task(model)[0])
    norm = torch.sqrt(sum(p.grad.square().sum() for p in model.net.parameters() if p.grad is not None))
    assert float(norm) == pytest.approx(0.01, rel=1e-3)


def test_progress_through_tasks_and_horizons(tmp_path: Path) -> None:
    def seen(*flags: str) -> list[float]:
        model = build("aop", tmp_path, *flags)
        found = []
        for batch in begin_task(model)[:6]:
            found.append(model.progress())
            model.meta_observe(*batch)
        return found

    assert seen("--n_epochs", "2") == pytest.approx([k / 18 for k in range(6)])
    assert seen("--fitting_mode", "iters", "--n_iters", "8") == pytest.approx([k / 8 for k in range(6)])
    assert seen("--task_free", "1", "--aop_horizon", "4") == [0, 0.25, 0.5, 0.75, 0, 0.25]


def test_size_of_the_projectors() -> None:
    def nbytes(width: int) -> int:
        with torch.device("meta"):
            return sum(identity_root(layer).nbytes for layer in projected_layers(resnet18(100, width)).values())

    assert nbytes(64) == pytest.approx(0.37e9, rel=0.01) and nbytes(16) == pytest.approx(23e6, rel=0.01)


# -- runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_forgets_less_than_fine_tuning_and_learns(tmp_path: Path) -> None:
    """Seeds 0 to 4, same learning rate, momentum and epochs."""
    found = {"aop": [], "sgd": []}
    for model, results in found.items():
        for seed in range(5):
            flags = ["--n_epochs", "5", "--lr", "0.02", "--optim_mom", "0.9"]
            results.append(run(tmp_path / f"{model}{seed}", *flags, model=model, seed=seed)[0]["class_il"])
    pairs = list(zip(found["aop"], found["sgd"], strict=True))
    forgetting = sum(b["FF"] - a["FF"] for a, b in pairs) / 5
    accuracy = sum(a["FAA"] - b["FAA"] for a, b in pairs) / 5
    assert forgetting > 48
    assert accuracy > 27


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [[], RESNET, ["--task_free", "1", "--aop_horizon", "5"]], ids=["mlp", "resnet", "free"]
)
def test_resume_is_exact(flags: list[str], tmp_path: Path) -> None:
    assert_exact_resume(Aop, tmp_path, *flags, tasks=2)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--task_free", "1"], ["--task_free 1", "--aop_horizon STEPS"]),
        (["--aop_horizon", "50"], ["--aop_horizon 50", "--task_free 1"]),
        (["--aop_horizon", "0"], ["--aop_horizon", "at least 1"]),
        (["--aop_clip", "0"], ["--aop_clip", "greater than 0"]),
        (["-O", "3"], ["-O 3", "compiled", "-O 2"]),
        (["--buffer_size", "10"], ["--buffer_size"]),
    ],
)
def test_contradictions_are_refused_in_one_line(flags: list[str], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_args(["--model", "aop", *flags])
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)


@pytest.mark.parametrize("dataset", ["seq-cifar10", "seq-cifar100", "seq-tinyimg"])
def test_presets(dataset: str) -> None:
    for section in ("best", "default"):
        args = parse_args(["--model", "aop", "--dataset", dataset, "--model_config", section])
        assert (args.lr, args.optim_mom, args.aop_clip, args.aop_horizon) == (0.02, 0.9, 10.0, None)
