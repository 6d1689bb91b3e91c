"""States of random generators as tensors and plain containers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def generator_state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def set_generator_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def global_rng_state() -> dict[str, Any]:
    """The state of every generator that code can draw from without naming one."""
    numpy_state: Any = np.random.get_state(legacy=False)
    numpy_state["state"]["key"] = numpy_state["state"]["key"].tolist()  # weights_only refuses arrays
    state = {"torch": torch.get_rng_state(), "numpy": numpy_state, "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # a run on the CPU leaves the GPU alone
        state["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_global_rng_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
    if torch.cuda.is_available():
        for index, cuda_state in enumerate(state.get("cuda", [])[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(cuda_state, index)
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


class HostGenerators:
    """A state of its own of the global generators on the host, in force while entered.

    What other code draws from them inside neither shifts what is drawn outside nor depends on it.
    """

    def __init__(self, seed: int):
        self._others = self._states()
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        self._exchange()

    @staticmethod
    def _states() -> tuple[Any, ...]:
        return torch.get_rng_state(), np.random.get_state(), random.getstate()

    def _exchange(self) -> None:
        """Put the states in force away, and those that were put away in force."""
        (torch_state, numpy_state, python_state), self._others = self._others, self._states()
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)

    def __enter__(self) -> HostGenerators:
        self._exchange()
        return self

    def __exit__(self, *exception: object) -> None:
        self._exchange()
