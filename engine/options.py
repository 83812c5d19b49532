"""Compile options as one frozen value, and process-wide configuration."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""Compile modes: how kernels are launched and tuned on a GPU.

"default": launched one by one. "reduce-overhead": CUDA graphs, one per input shape. "max-autotune":
autotunes templates against library calls and the block sizes of loop kernels, with CUDA graphs.
"max-autotune-no-cudagraphs": the same without CUDA graphs.
"""
OPTION_NAMES = tuple("fused_random guard_filter_fn inductor mode recompile_limit recompute_random templates".split())
"""Names that ``options`` of ``engine.compile`` accepts."""
TEMPLATE_CHOICES = ("never", "known", "measured", "always")
"""Policies of template use for matmul and attention.

"never"; "known": on a GPU, in the cases known to be faster; "measured": if autotuning found it faster;
"always": in all supported cases.
"""


@dataclass(frozen=True)
class Options:
    """Arguments of ``engine.compile``.

    ``target`` None: the current GPU, else ``cuda:90``. ``dynamic`` None: static first, then automatic dynamic.
    """

    backend: str | Callable[..., Any] = "triton"
    fullgraph: bool = False
    dynamic: bool | None = None
    target: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    guard_filter: Callable[..., Any] | None = None
    """The user's ``guard_filter_fn``: takes guards and returns which of them to check."""
    compiled_autograd: bool = False
    """Capture backwards that run inside a compiled function or go through its outputs."""
    recompile_limit: int | None = None
    """Compiles of one code object for one module; None: ``config.recompile_limit``."""
    dynamic_sources: tuple[str, ...] = ()
    """Patterns of sources whose sizes or values are symbols."""
    dynamic_ranges: tuple[tuple[str, int | None, int | None], ...] = ()
    """Patterns of sources with the least and the greatest size or value that the user gave."""
    is_isolated: bool = False
    """Share no cache entries with another call of ``engine.compile``."""

    @property
    def uses_cuda_graphs(self) -> bool:
        """True if kernels on a GPU are launched as CUDA graphs."""
        return self.extra.get("mode") in ("reduce-overhead", "max-autotune")

    @property
    def templates(self) -> str:
        """The policy of template use: the option if given, else the mode's default."""
        is_tuned = str(self.extra.get("mode", "")).startswith("max-autotune")
        return str(self.extra.get("templates", "measured" if is_tuned else "known"))


@dataclass
class Config:
    """Process-wide configuration; assign to its attributes to change it.

    - ``recompile_limit``: compiles of one code object, for one module if it is a method; later misses run as Python.
    - ``inline_depth``: nesting depth of calls inlined into one frame.
    - ``instruction_budget``: bytecode instructions traced for one frame before a graph break.
    - ``automatic_dynamic``: a size that changes between calls becomes a symbol.
    - ``capture_scalar_outputs``: numbers read from tensors (``item()``, ``tolist()``) are symbols, not graph
      breaks.
    - ``capture_dynamic_output_shape_ops``: so are data-dependent sizes (``nonzero``, ``unique``, boolean
      masks).
    - ``debug_assertions``: check at each call of a compiled graph that its inputs match what it was compiled
      for.
    - ``verify_correctness``: compare the first call of each compiled graph, gradients included, with eager on
      copies of the inputs. A difference is a ``WrongResult`` warning and recorded; this call and later ones
      then run eagerly. ``warnings.simplefilter("error", engine.errors.WrongResult)`` makes it an error.
    - ``cpu_kernels``: backend "triton" runs graphs whose tensors are on the CPU in kernels compiled by LLVM;
      if False (``ENGINE_CPU_KERNELS=0`` for a process), ATen runs them.
    - ``suppress_errors``: if a user's backend fails, the failure is recorded and the graph runs eagerly.
    - ``disk_cache``: store functional graphs and lowered programs in the user's cache folder for later
      processes (``ENGINE_DISK_CACHE=1`` turns it on for a process).
    """

    recompile_limit: int = 8
    inline_depth: int = 1000
    instruction_budget: int = 500_000
    automatic_dynamic: bool = True
    capture_scalar_outputs: bool = True
    capture_dynamic_output_shape_ops: bool = True
    debug_assertions: bool = False
    verify_correctness: bool = False
    cpu_kernels: bool = os.environ.get("ENGINE_CPU_KERNELS") != "0"
    suppress_errors: bool = False
    disk_cache: bool = os.environ.get("ENGINE_DISK_CACHE") == "1"


config = Config()


def user_cache_dir() -> pathlib.Path:
    """Return the user's cache folder, below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    root = pathlib.Path(named) if pathlib.Path(named).is_absolute() else pathlib.Path.home() / ".cache"
    return root / "compile-explorer"
