"""What a compiled result depends on beside its graph and its options: versions, our own code, the machine, and torch's switches."""

from __future__ import annotations

import functools
import hashlib
import pathlib
import platform
import sys
from typing import Any

import torch


@functools.cache
def versions() -> list[Any]:
    """Versions of all that takes part. Of our own code it is the text that counts."""
    folder = pathlib.Path(__file__).parents[1]
    code = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        code.update(str(file.relative_to(folder)).encode() + b"\n" + file.read_bytes())
    made = [torch.__version__, str(torch.version.git_version), sys.version, platform.machine(), platform.processor()]
    return [code.hexdigest(), *made, torch.backends.cpu.get_cpu_capability()]


def switches() -> list[Any]:
    """Of torch's libraries, what decides which kernels are called, and what Python put in the place of ATen's own operators."""
    cuda = torch.backends.cuda
    sdp = [cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled()]
    cudnn = torch.backends.cudnn
    flags = [cudnn.enabled, cudnn.deterministic, cudnn.benchmark, torch.backends.mkldnn.is_available()]
    replaced = sorted(n for n in torch.library._impls if n.startswith("aten/") and not n.endswith("/Meta"))
    devices = [torch.cuda.get_device_capability(n) for n in range(torch.cuda.device_count())]
    return [sdp, flags, replaced, devices]
