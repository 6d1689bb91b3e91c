"""Tensors that code written for numpy arrays can use as well."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map


class ArrayTensor(Tensor):
    """A tensor, on any device, that numpy's functions take, and that has an array's methods beside its own.

    Mammoth's models expect images in a numpy array and labels in a tensor that numpy can read; ours keep both on the
    device. Parts of one are of this class, too; what torch computes from it is a plain tensor.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Shares memory if it is on the CPU, so that what numpy writes there stays."""
        array = self.as_subclass(Tensor).cpu().numpy()  # type: ignore[arg-type]
        return array if dtype is None and not copy else np.array(array, dtype=dtype)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = tree_map(_to_array, (args, kwargs))
        return function(*args, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index).as_subclass(ArrayTensor)  # type: ignore[arg-type]

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, torch.from_numpy(value) if isinstance(value, np.ndarray) else value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__array__(), name)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """For PIL, which then asks for the bytes because there are strides. It shows memory, so the host's only."""
        if self.device.type != "cpu":
            raise AttributeError("__array_interface__")
        array = self.__array__()
        return array.__array_interface__ | {"strides": array.strides}


def _to_array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, ArrayTensor) else value
