"""What a method stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from utils.resume.state import FRAMEWORK, pack


def bytes_by_part(model: Any, known: Mapping[str, Any] | None = None) -> dict[str, int]:
    """All that a method stores and, of it, the buffer and DGC's vectors and copies of the network, if it has them."""
    total = stored_bytes(model, known)
    parts = {"buffer_bytes": "buffer", "calibrator_bytes": "dgc"}
    return {"stored_bytes": total} | {
        name: total - stored_bytes(model, known, frozenset({attribute}))
        for name, attribute in parts.items()
        if hasattr(model, attribute)
    }


def stored_bytes(model: Any, known: Mapping[str, Any] | None = None, without: frozenset[str] = frozenset()) -> int:
    """Bytes of the tensors and arrays that a checkpoint would hold of the model, without its network and its optimizer.

    So: buffer, vectors, copies of the network. What is `known` is not the method's (see `pack`). A view counts as much
    as it shows, because that is what a checkpoint writes, and so what a resumed run has. `without` names attributes
    that are left out.
    """
    of_the_network = {t.untyped_storage().data_ptr() for t in model.net.state_dict(keep_vars=True).values()}
    whole: dict[int, int] = {}  # by storage, which several tensors may show in full
    parts = 0
    for value in tree_leaves(pack(model, FRAMEWORK | {"net", "opt"} | without, known)["model"]):
        if isinstance(value, bytes):  # the content of a packed array
            parts += len(value)
        elif isinstance(value, torch.Tensor) and (storage := value.untyped_storage()).data_ptr() not in of_the_network:
            if value.nbytes < storage.nbytes():
                parts += value.nbytes
            else:
                whole[storage.data_ptr()] = storage.nbytes()
    return sum(whole.values()) + parts
