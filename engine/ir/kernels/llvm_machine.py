"""LLVM for this machine: its CPU, its vector registers, and the passes over a kernel.

The module imports no torch: worker processes that only print assembly start with it.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
from typing import Any

from engine.ir.kernels.host_vectors import SCALAR, VectorUnit, vector_unit

try:
    import llvmlite.binding as _binding
except ImportError:
    _binding = None
llvm: Any = _binding
"""LLVM's bindings; None if they are not installed."""

PASSES = 1
"""Version of the passes over a kernel; raised when they change."""
_ATTRIBUTES = 'attributes #0 = {{ nounwind "min-legal-vector-width"="{bits}" "prefer-vector-width"="{bits}" }}\n'


def why_llvm_is_missing() -> str:
    """Return one sentence why no CPU kernels can be compiled; empty if they can."""
    if llvm is None:
        return "CPU kernels need llvmlite, which is not installed: pip install llvmlite."
    if not _can_execute_memory():
        return "CPU kernels need memory that may be executed, which this system forbids."
    return ""


@functools.cache
def _can_execute_memory() -> bool:
    """Return True if this process may write machine code and run it; SELinux can forbid that."""
    if not hasattr(mmap, "PROT_EXEC"):
        return True
    protect = ctypes.CDLL(None).mprotect
    with mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
        start = ctypes.c_char.from_buffer(page)
        address, size = ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(mmap.PAGESIZE)
        is_allowed: bool = protect(address, size, mmap.PROT_READ | mmap.PROT_EXEC) == 0
        del start
    return is_allowed


@functools.cache
def host_features() -> frozenset[str]:
    """Return LLVM's names of this CPU's features, such as ``avx2``."""
    initialize()
    return frozenset(name for name, is_there in llvm.get_host_cpu_features().items() if is_there)


@functools.cache
def host_unit() -> VectorUnit:
    """Return the vector registers of this CPU."""
    return SCALAR if why_llvm_is_missing() else vector_unit(host_features(), platform.machine())


@functools.cache
def initialize() -> None:
    """Load LLVM's code generator for this CPU."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@functools.cache
def target_machine() -> Any:
    """Return LLVM's code generator for this CPU."""
    return new_target_machine()


def new_target_machine() -> Any:
    """Return a code generator for one engine, which ends it together with itself."""
    initialize()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=_host_feature_text(), opt=3, jit=True
    )


@functools.cache
def _host_feature_text() -> str:
    return str(llvm.get_host_cpu_features().flatten())


@functools.cache
def code_version() -> str:
    """Return what machine code depends on besides its text: LLVM, this CPU, the passes."""
    features = ",".join(sorted(host_features()))
    return f"{PASSES} {llvm.llvm_version_info} {llvm.get_host_cpu_name()} {features} {host_unit().bits}"


def function_attributes(bits: int) -> str:
    """Return the attributes of a kernel's functions, given the vector width in bits."""
    return _ATTRIBUTES.format(bits=bits or 128)


def parse_module(text: str, triple: str, machine: Any) -> Any:
    """Return the verified module of a text for a machine.

    Raises:
        RuntimeError: LLVM rejects the text.
    """
    module = llvm.parse_assembly(text, llvm.create_context())  # the context of the process keeps each constant
    module.triple, module.data_layout = triple, str(machine.target_data)
    module.verify()
    return module


def optimize(module: Any, machine: Any) -> None:
    """Run LLVM's passes over a kernel, which is vectorized already."""
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    # llvmlite has this method in a base class that comes too late: 0.25 MB for each kernel would not be freed.
    llvm.newpassmanagers.NewPassManager._dispose(passes)
