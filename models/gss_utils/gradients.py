"""Inner products of the loss gradients of single images, without ever holding these gradients as a whole.

One pass forth and back over all images in eval mode, where they don't affect each other, gives for every layer its
inputs and the derivatives with respect to its outputs, per image. From these the layer's part of every image's gradient
is made, exactly, multiplied with those of the others, and thrown away: layer by layer, of a convolution one position
of the kernel after the other. So the time is that of about two more training steps on these images, instead of one pass
for each of them, and the memory that of a step and a block of `BLOCK` numbers (`vmap` over gradients needs images ×
parameters: 2.9 GB for 64 images and ResNet-18).

A module with parameters must map one tensor to one tensor; a parameter that two modules share is taken for two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.modules.batchnorm import _BatchNorm

from backbone.ResNetBlock import Projection
from utils.batch_norm import network_mode

BLOCK = 2**22  # numbers (16 MB): ResNet-18's largest layers take a quarter less time than with four times as many
Batch = tuple[Tensor, Tensor]  # images and labels


class Call(NamedTuple):
    """One use of a module that has parameters of its own."""

    module: nn.Module
    inputs: Tensor
    output: Any  # its edge in the graph, which operations in place leave behind


class Products:
    """Products of the gradients g_x of a stream batch and h_j of images from the buffer, summed up block by block."""

    def __init__(self, n_stream: int, n_stored: int, like: Tensor):
        self.n_stream = n_stream
        self.cross = like.new_zeros(n_stream, n_stored)  # ⟨g_x, h_j⟩
        self.squares = like.new_zeros(n_stream + n_stored)  # ‖g_x‖², then ‖h_j‖²
        self.batch_square = like.new_zeros(())  # ‖mean g_x‖²

    def add(self, block: Tensor) -> None:
        """Some parameters' gradients: a row for each image, those of the stream first."""
        stream, stored = block[: self.n_stream], block[self.n_stream :]
        self.cross += stream @ stored.T
        self.squares += torch.linalg.vector_norm(block, dim=1).square()
        self.batch_square += stream.mean(0).square().sum()

    def scores(self) -> Tensor:
        """1 + the highest cosine with a stored image: of the batch's gradient, mean g_x, then of each g_x.

        A gradient of zero has the cosine 0 with every other.
        """
        tiny = torch.finfo(self.squares.dtype).tiny
        lengths = self.squares.clamp(min=tiny).sqrt()
        rows = torch.cat((self.cross.mean(0, keepdim=True), self.cross)) / lengths[self.n_stream :]
        row_lengths = torch.cat((self.batch_square.clamp(min=tiny).sqrt()[None], lengths[: self.n_stream]))
        return (1 + rows.amax(1) / row_lengths).clamp(0, 2)


def gradient_products(net: nn.Module, loss: Callable[..., Tensor], stream: Batch, stored: Batch) -> Products:
    """For a `loss` that is a mean over images. Nothing of the network changes: no statistics, no mode, no `.grad`."""
    images, labels = (torch.cat(parts) for parts in zip(stream, stored, strict=True))
    calls: list[Call] = []
    # A compiled graph has no hooks, and bfloat16 too few digits.
    eager, precise = torch.compiler.set_stance("force_eager"), torch.autocast(images.device.type, enabled=False)
    with network_mode(net, training=False), recording(net, calls), eager, precise, torch.enable_grad():
        total = loss(net(images), labels) * len(labels)
        deltas = torch.autograd.grad(total, [call.output for call in calls], allow_unused=True)
    uses: dict[nn.Module, list[Batch]] = {}
    for call, delta in zip(calls, deltas, strict=True):
        if delta is not None:
            uses.setdefault(call.module, []).append((call.inputs, delta))
    products = Products(len(stream[1]), len(stored[1]), images)
    with torch.no_grad():
        for module, pairs in uses.items():
            for blocks in zip(*(gradient_blocks(module, x, delta) for x, delta in pairs), strict=True):
                products.add(torch.stack(blocks).sum(0) if len(blocks) > 1 else blocks[0])
    return products


@contextmanager
def recording(net: nn.Module, calls: list[Call]) -> Iterator[None]:
    """Note the calls of all modules that have parameters to train."""

    def note(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
        calls.append(Call(module, args[0].detach(), get_gradient_edge(output)))

    with ExitStack() as hooks:
        for module in net.modules():
            if any(p.requires_grad for p in module.parameters(recurse=False)):
                hooks.enter_context(module.register_forward_hook(note))
        yield


# -- the gradients of a module's own parameters, [images, numbers], in blocks ------------------------------------------


def gradient_blocks(module: nn.Module, x: Tensor, delta: Tensor) -> Iterator[Tensor]:
    """From inputs x and derivatives δ with respect to the outputs, which have one entry per image."""
    if not all(p.requires_grad for p in module.parameters(recurse=False)):
        return _of_any_module(module, x, delta)
    if type(module) is nn.Linear:
        return _of_linear(module, x, delta)
    if type(module) is nn.Conv2d or type(module) is Projection:
        if module.groups == 1 and module.padding_mode == "zeros":
            return _of_convolution(module, x, delta)
        return _of_any_module(module, x, delta)
    if isinstance(module, _BatchNorm) and module.running_mean is not None:
        return _of_batch_norm(module, x, delta)
    return _of_any_module(module, x, delta)


def _of_linear(module: nn.Linear, x: Tensor, delta: Tensor) -> Iterator[Tensor]:
    x, delta = x.reshape(len(x), -1, x.shape[-1]).mT, delta.reshape(len(x), -1, delta.shape[-1]).mT
    yield from _outer_products(x, delta)
    if module.bias is not None:
        yield delta.sum(2)


def _of_convolution(module: nn.Conv2d, x: Tensor, delta: Tensor) -> Iterator[Tensor]:
    """At position k of the kernel, the gradient is Σ_p δ_p x_{s·p+k}ᵀ over the positions p of the output.

    Rows of δ are made as long as those of x by zeros. Then all x that meet δ at k are a slice of the memory of x: no
    patches are copied. For a stride s > 1, x is first sorted into s × s images of every s-th pixel.
    """
    (height, width), (out_height, out_width) = x.shape[2:], delta.shape[2:]
    (top, left), (down, right) = _padding(module), module.stride
    last = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    rows, columns = out_height + last[0] // down, out_width + last[1] // right
    padded = F.pad(x, (left, columns * right - width - left, top, rows * down - height - top))
    phases = padded.unflatten(3, (columns, right)).unflatten(2, (rows, down)).permute(3, 5, 0, 1, 2, 4).flatten(4)
    flat = F.pad(delta, (0, columns - out_width)).flatten(2)[..., : out_height * columns - (columns - out_width)]
    for i in range(0, last[0] + 1, module.dilation[0]):
        for j in range(0, last[1] + 1, module.dilation[1]):
            start = (i // down) * columns + j // right
            yield from _outer_products(phases[i % down, j % right, ..., start : start + flat.shape[2]], flat)
    if module.bias is not None:
        yield flat.sum(2)


def _padding(module: nn.Conv2d) -> tuple[int, int]:
    """Above and left; what is needed below and right follows from the size of the output."""
    if module.padding == "same":
        top, left = (d * (k - 1) // 2 for d, k in zip(module.dilation, module.kernel_size, strict=True))
        return top, left
    return (0, 0) if isinstance(module.padding, str) else module.padding  # type: ignore[return-value]


def _outer_products(x: Tensor, delta: Tensor) -> Iterator[Tensor]:
    """Σ_p δ_p x_pᵀ for x [N, I, P] and δ [N, O, P], as many outputs at a time as a block holds."""
    for part in delta.split(max(1, BLOCK // x[..., 0].numel()), 1):
        yield (part @ x.mT).flatten(1)


def _of_batch_norm(module: _BatchNorm, x: Tensor, delta: Tensor) -> Iterator[Tensor]:
    """In eval mode: y = γ · (x − mean) / √(var + ε) + β."""
    assert module.running_mean is not None and module.running_var is not None
    x, delta = x.reshape(*x.shape[:2], -1), delta.reshape(*x.shape[:2], -1)
    yield torch.linalg.vecdot(delta, x - module.running_mean[:, None]) * (module.running_var + module.eps).rsqrt()
    yield delta.sum(2)


def _of_any_module(module: nn.Module, x: Tensor, delta: Tensor) -> Iterator[Tensor]:
    """By automatic differentiation of the module, vectorised over the images."""
    own = {name: p for name, p in module.named_parameters(recurse=False) if p.requires_grad}

    def gradient(image: Tensor, derivative: Tensor) -> Tensor:
        pull_back = torch.func.vjp(lambda p: torch.func.functional_call(module, p, (image[None],)), own)[1]
        return torch.cat([g.flatten() for g in pull_back(derivative[None])[0].values()])

    yield torch.func.vmap(gradient)(x, delta)
