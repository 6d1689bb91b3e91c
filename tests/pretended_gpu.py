"""`PYTHONPATH=. python tests/pretended_gpu.py "FLAGS" …`: main.py on a GPU that is none, for machines without one.

Its tensors say that they are on `cuda:0` and hold their values on the host. An operation that mixes them with others
fails as it would on a GPU, and what would make the host wait for a GPU during `observe` is counted by place. The last
line is JSON: for each run the counts, or the error. Kernels, memory and speed of a GPU are not pretended.
"""

from __future__ import annotations

import collections
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

ROOT = Path(__file__).resolve().parent.parent
CUDA = torch.device("cuda:0")
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
# Operations whose result, or the size of it, the host must know.
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal"}
WAITING |= {"is_nonzero", "bincount", "repeat_interleave"}


def _is_ours(file: Path) -> bool:
    """Whether a file belongs to the project: not this one, and none of an environment inside the project's folder."""
    return ROOT in file.parents and "site-packages" not in file.parts and file.name != Path(__file__).name


class Waits:
    """Counts by place in the project's code, while a step is made."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.in_step = False

    def note(self, what: str) -> None:
        if self.in_step:
            places = [(Path(frame.filename), frame.line) for frame in traceback.extract_stack()]
            file, line = [(file, line) for file, line in places if _is_ours(file)][-1]
            self.counts[f"{what} at {file.relative_to(ROOT)}: {line}"] += 1


waits = Waits()


class PretendedTensor(torch.Tensor):
    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> PretendedTensor:
        form = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        tensor = torch.Tensor._make_wrapper_subclass(cls, values.size(), device="meta", layout=values.layout, **form)
        tensor.values = values
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: CUDA)
    is_meta = property(lambda self: False)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return execute(func, args, kwargs or {})

    def tolist(self) -> Any:
        waits.note("tolist")
        return self.values.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    __array__ = numpy


def execute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation on the values, whose result is on the GPU if its arguments are or it is asked to be there."""
    if func is torch.ops.prim.device.default:
        return CUDA
    name = func.__name__.split(".")[0]
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
    on_gpu = [tensor for tensor in tensors if isinstance(tensor, PretendedTensor)]
    to_gpu = bool(on_gpu)
    if kwargs.get("device") is not None:
        to_gpu = torch.device(kwargs["device"]).type in ("cuda", "meta")
        kwargs = {**kwargs, "device": torch.device("cpu")}
    kwargs = {**kwargs, "pin_memory": None} if kwargs.get("pin_memory") else kwargs
    if on_gpu:
        check(name, args, [tensor for tensor in tensors if not isinstance(tensor, PretendedTensor)], to_gpu)
    args, kwargs = tree_map(lambda x: x.values if isinstance(x, PretendedTensor) else x, (args, kwargs))
    result = func(*args, **kwargs)
    if not to_gpu:
        return result
    known = {id(tensor.values): tensor for tensor in on_gpu}  # in place: the same tensor again

    def wrap(value: Any) -> Any:
        if id(value) in known:
            return known[id(value)]
        return PretendedTensor(value) if isinstance(value, torch.Tensor) else value

    return tree_map(wrap, result)


def check(name: str, args: Any, on_host: list[torch.Tensor], to_gpu: bool) -> None:
    """What an operation with tensors on the GPU can't do, and what it waits for."""
    if name == "_to_copy":
        if not to_gpu:
            waits.note("copy to the host")
    elif name in ("copy_", "_copy_from"):
        if on_host:
            waits.note("copy into a tensor of another device")
    elif name in INDEXING:
        if not isinstance(args[0], PretendedTensor):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        if on_host or any(isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in args[1]):
            waits.note("indexing")
    elif any(tensor.dim() or name in ("cat", "stack") for tensor in on_host):  # numbers may be on the host
        raise RuntimeError(f"{name}: expected all tensors to be on the same device")
    if name in WAITING:
        waits.note(name)


class PretendedGpu(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return execute(func, args, kwargs or {})


def pretend() -> None:
    """Let torch and the project take it for a GPU. A checkpoint would look behind the pretence, so none is written."""
    import utils.conf
    import utils.resume.store
    import utils.run.method_state
    import utils.run.session
    from datasets.utils.image_set import ImageSet
    from models.utils.continual_model import ContinualModel

    def replace(place: Any, **members: Any) -> None:
        for name, member in members.items():
            setattr(place, name, member)

    replace(torch.Tensor, pin_memory=lambda self, *_, **__: self)
    replace(torch.cuda, _lazy_init=lambda: None, default_generators=(torch.Generator(),))
    torch._C._ensureCUDADeviceGuardSet()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    move = torch.nn.Module.to

    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:  # a network that is there keeps its parameters
        there = all(isinstance(parameter, PretendedTensor) for parameter in self.parameters())
        return self if there else move(self, *args, **kwargs)

    replace(torch.nn.Module, to=moved)
    replace(utils.conf, get_device=lambda *_, **__: CUDA)
    replace(ImageSet, data=property(lambda self: self._data), targets=property(lambda self: self._targets))
    replace(utils.run.method_state.MethodState, packed_model=lambda self: {})
    replace(utils.run.session, bytes_by_part=lambda *_: {"stored_bytes": 0})
    replace(utils.resume.store, save=lambda *_: None)
    observe = ContinualModel.meta_observe

    def watched(self: Any, *batch: Any, **extra: Any) -> Any:
        waits.in_step = True
        try:
            return observe(self, *batch, **extra)
        finally:
            waits.in_step = False

    replace(ContinualModel, meta_observe=watched)


def run(flags: str) -> Any:
    import main

    waits.counts.clear()
    try:
        with PretendedGpu():
            main.train_or_find([*flags.split(), "--device", "cuda"])
    except Exception:
        return traceback.format_exc()
    return dict(waits.counts)


if __name__ == "__main__":
    pretend()
    print(json.dumps([run(flags) for flags in sys.argv[1:]]))
