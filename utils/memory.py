"""What a method stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from utils.state import FRAMEWORK, pack


def stored_bytes(model: Any, known: Mapping[str, Any] | None = None) -> int:
    """Of the tensors and arrays that a checkpoint would hold of the model, without its network and its optimizer.

    So: memory, vectors, copies of the network. What is `known` is not the method's (see `pack`).
    """
    tensors: dict[int, int] = {}
    arrays: list[int] = []

    def walk(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            tensors[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, bytes):  # the content of a packed array
            arrays.append(len(value))
        elif isinstance(value, dict):
            walk(list(value.values()))
        elif isinstance(value, list | tuple):
            for item in value:
                walk(item)

    walk(pack(model, FRAMEWORK | {"net", "opt"}, known)["model"])
    of_the_network = {t.untyped_storage().data_ptr() for t in model.net.state_dict(keep_vars=True).values()}
    return sum(size for pointer, size in tensors.items() if pointer not in of_the_network) + sum(arrays)
