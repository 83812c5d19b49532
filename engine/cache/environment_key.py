"""Environment part of a disk-cache key: versions, our own code, machine, torch's flags."""

from __future__ import annotations

import functools
import hashlib
import pathlib
import platform
import sys
from typing import Any

import torch
from torch.backends import opt_einsum

from engine.ir.introspection.torch_global_state import GLOBAL_STATES
from engine.torch_private.dispatch import dispatch_dump
from engine.torch_private.global_state import get_mkldnn_enabled
from engine.torch_private.operators import python_kernels

_GLOBAL_STATE_NAMES = ("attention_kernels", "deterministic", "deterministic_warn_only", "float32_matmul_precision")


@functools.cache
def version_key() -> list[Any]:
    """Return the versions of all components; of our own code, a hash of its text."""
    folder = pathlib.Path(__file__).parents[1]
    code = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        code.update(str(file.relative_to(folder)).encode() + b"\n" + file.read_bytes())
    versions = [
        torch.__version__,
        str(torch.version.git_version),
        sys.version,
        platform.machine(),
        platform.processor(),
    ]
    return [code.hexdigest(), *versions, torch.backends.cpu.get_cpu_capability()]


def torch_flags_key() -> list[Any]:
    """Return torch's flags that select kernels, overridden ATen ops, and GPU capabilities."""
    states = [str(GLOBAL_STATES[name].read()) for name in _GLOBAL_STATE_NAMES]
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    flags = [cudnn.enabled, cudnn.deterministic, cudnn.benchmark, mkldnn.is_available(), get_mkldnn_enabled()]
    products = [opt_einsum.is_available(), str(opt_einsum.enabled), str(opt_einsum.strategy)]
    devices = [torch.cuda.get_device_capability(n) for n in range(torch.cuda.device_count())]
    return [states, flags, products, overridden_aten_kernels(), devices]


def overridden_aten_kernels() -> list[str]:
    """Return the ATen kernels that Python outside of torch overrides, as "operator/key"."""
    put = (name.split("/") for name in python_kernels if name.startswith("aten/") and not name.endswith("/Meta"))
    return sorted(f"{name}/{key}" for _, name, key in put if not _is_registered_by_torch(name, key))


def _is_registered_by_torch(name: str, key: str) -> bool:
    """Return True if a file of torch registered this kernel.

    Files through which anybody can register kernels do not count.
    """
    start = f"{key}: registered at {pathlib.Path(torch.__file__).parent}/"
    lines = dispatch_dump(f"aten::{name}").splitlines()
    return any(
        line.startswith(start) and not line.removeprefix(start).startswith(("library.py", "_library/"))
        for line in lines
    )
