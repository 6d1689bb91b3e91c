"""`--code_optimization`: how much exactness is traded for speed.

| level | matrix products | memory format | autocast | torch.compile |
|---|---|---|---|---|
| 0 | float32 | contiguous | – | – |
| 1 | TF32 where the GPU has it ("high") | channels_last | – | – |
| 2 | "medium" | channels_last | bfloat16 | – |
| 3 | "medium" | channels_last | bfloat16 | yes |

Levels 2 and 3 are refused on a device that would only emulate bfloat16, which is far slower than float32.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from utils.errors import UsageError

PRECISION = {0: "highest", 1: "high", 2: "medium", 3: "medium"}


# The time of a convolution in bfloat16 over that in float32.
PROBE = """
import time, torch
def seconds(dtype):
    conv, x = torch.nn.Conv2d(64, 64, 3).to(dtype), torch.randn(8, 64, 32, 32).to(dtype)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        conv(x).sum().backward()
        times.append(time.perf_counter() - start)
    return min(times)
print(seconds(torch.bfloat16) / seconds(torch.float32))
"""


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16 itself.

    A CPU is tried rather than asked, in a process of its own: a virtual machine may announce instructions that end in
    an illegal-instruction signal, and emulation gives itself away by its time.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu" or not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return False
    probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
    return probe.returncode == 0 and float(probe.stdout) < 1


def optimise(net: nn.Module, device: torch.device, level: int) -> None:
    """Set the process and the network up for a level; the network stays the same object."""
    if level >= 2 and not has_bfloat16(device):
        raise UsageError(
            f"-O {level} needs bfloat16, which this {device.type} device emulates or lacks; use -O 1 or -O 0"
        )
    torch.set_float32_matmul_precision(PRECISION[level])
    if level >= 1:
        net.to(memory_format=torch.channels_last)
    if level >= 3:
        net.compile()


def autocast(device: torch.device, level: int) -> AbstractContextManager:
    """Without torch's cache of weights in bfloat16: a method may use the network after its step."""
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False) if level >= 2 else nullcontext()
