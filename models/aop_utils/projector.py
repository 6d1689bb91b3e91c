"""The arithmetic of AOP: the inputs that a layer has seen, and a projector that leaves their directions out.

A projector Q [d × d] starts as the identity. A row r of inputs takes its direction out of Q, more so the smaller a is:

    k = Q rᵀ,   Q ← Q − k kᵀ / (a + r k)

p of these updates with the same a are one update with all rows R [p × d] (the matrix inversion lemma),

    Q ← Q − Q Rᵀ (a I + R Q Rᵀ)⁻¹ R Q,

a few matrix products in place of p passes over Q. The difference is not computed as it stands: in float32 its rounding
errors make eigenvalues of Q negative after a while, and from there the recursion runs away. We keep a root S of
Q = S Sᵀ, which is symmetric and has no negative eigenvalues whatever the errors, and update it as a square-root Kalman
filter does (Andrews 1968). With B = R S, and L the Cholesky factor of a I + B Bᵀ,

    S ← S − S Bᵀ L⁻ᵀ (L + √a I)⁻¹ B.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Layer = nn.Conv2d | nn.Linear
GRID = 2  # pixels from one patch to the next
CONV_A = 1e-5  # where a of a convolution ends


def projected_layers(net: nn.Module) -> dict[str, Layer]:
    """The layers that own a projector: those that multiply their input by a matrix."""
    return {name: layer for name, layer in net.named_modules() if isinstance(layer, Layer)}


@contextmanager
def mean_inputs(net: nn.Module) -> Iterator[dict[str, Tensor]]:
    """By layer, the input of a forward pass made inside, averaged over the batch."""
    means: dict[str, Tensor] = {}

    def keep(name: str, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        means[name] = inputs[0].detach().mean(0, dtype=next(layer.parameters()).dtype)  # bfloat16 under autocast

    with ExitStack() as hooks:
        for name, layer in projected_layers(net).items():
            hooks.enter_context(layer.register_forward_pre_hook(partial(keep, name)))
        yield means


def input_rows(layer: Layer, mean: Tensor) -> Tensor:
    """R: the mean input, or the patches on a grid of the zero-padded mean map, unfolded as `weight.flatten(1)` is."""
    if isinstance(layer, nn.Linear):
        return mean[None]
    patches = F.unfold(mean[None], layer.kernel_size, layer.dilation, layer.padding, GRID)  # type: ignore[arg-type]
    return patches[0].T


def adaptive_a(layer: Layer, rows: Tensor, progress: float) -> Tensor:
    """From 1 to the layer's own scale: (10⁻⁵)^λ, in linear layers (mean(r)⁴ + var(r))^λ over the entries of r.

    The variance divides by n − 1, as the published code does; a layer with a single input has none.
    """
    if isinstance(layer, nn.Conv2d):
        return rows.new_full((), CONV_A**progress)
    return (rows.mean() ** 4 + rows.var(correction=min(rows.numel() - 1, 1))) ** progress


def identity_root(layer: Layer) -> Tensor:
    """S of a projector that has seen nothing."""
    weight = layer.weight
    return torch.eye(weight[0].numel(), dtype=weight.dtype, device=weight.device)


def leave_out(root: Tensor, rows: Tensor, a: Tensor) -> None:
    """Take the directions of the rows out of Q; changes its root in place."""
    if len(rows) > rows.shape[1]:  # Q depends on RᵀR alone, and d rows can have the same
        rows = torch.linalg.qr(rows, mode="r").R
    b = rows @ root
    gram = b @ b.T
    # Not less than the rounding error of the products, or there may be no factor. A larger a only leaves out less.
    a = torch.maximum(a, 4 * torch.finfo(root.dtype).eps * gram.trace())
    gram.diagonal().add_(a)
    factor, failed = torch.linalg.cholesky_ex(gram)  # which, unlike `cholesky`, does not make the host wait
    left = torch.linalg.solve_triangular(factor, b @ root.T, upper=False)
    factor.diagonal().add_(a.sqrt())
    right = torch.linalg.solve_triangular(factor, b, upper=False)
    # There is no factor if all inputs are zero, or one is not finite: then Q stays as it is.
    left, right = (torch.where(failed == 0, side, 0.0) for side in (left, right))
    root.addmm_(left.T, right, alpha=-1)


def project(gradient: Tensor, root: Tensor) -> None:
    """∇W ← ∇W Qᵀ in place, a convolution's W unfolded."""
    gradient.copy_((gradient.flatten(1) @ root @ root.T).view(gradient.shape))


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Matrix products in float32 whatever `--code_optimization` says: errors in a projector stay in it."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
