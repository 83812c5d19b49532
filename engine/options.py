"""What a person can ask of ``engine.compile``, as one frozen value, and the process-wide limits."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""How kernels are launched on a GPU: one by one, or recorded once for each shape and launched as one (CUDA graphs). The last two also
measure where a template is faster than a library, and how the loops of kernels are best cut, recorded and not."""
TEMPLATE_CHOICES = ("never", "known", "measured", "always")
"""When templates compute products and attention: never; on a GPU, where they are known to be faster, or where that was measured; wherever one
fits."""


@dataclass(frozen=True)
class Options:
    """Arguments of ``engine.compile``. ``target`` None: the GPU at hand, else ``cuda:90``. ``dynamic`` None: static first, then automatic."""

    backend: str | Callable[..., Any] = "triton"
    fullgraph: bool = False
    dynamic: bool | None = None
    target: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    compiled_autograd: bool = False
    """Backwards that run inside of a compiled function, or go back through what it returned, are captured."""

    @property
    def uses_cuda_graphs(self) -> bool:
        """Whether kernels on a GPU are recorded and launched as one."""
        return self.extra.get("mode") in ("reduce-overhead", "max-autotune")

    @property
    def templates(self) -> str:
        """When templates take the place of library calls: as told, else where the mode measures."""
        is_tuned = str(self.extra.get("mode", "")).startswith("max-autotune")
        return str(self.extra.get("templates", "measured" if is_tuned else "known"))


@dataclass
class Config:
    """Process-wide limits; assign to change them.

    ``recompile_limit``: cache entries per code object before it is left to Python. ``inline_depth``: nested calls traced into one frame.
    ``instruction_budget``: bytecode instructions traced for one frame before it breaks. ``automatic_dynamic``: a size seen to change becomes a symbol.
    ``capture_scalar_outputs``: numbers read from tensors (``item()``, ``tolist()``) are symbols of the graph, not breaks.
    ``capture_dynamic_output_shape_ops``: so are sizes that depend on values (``nonzero``, ``unique``, boolean masks).
    ``debug_assertions``: each call of a compiled graph is held against what the graph was compiled for.
    ``verify_correctness``: the first call of each compiled graph, gradients included, is compared with the graph run operator by operator, on copies of the inputs.
    What differs is a ``WrongResult`` warning and recorded, and the graph then runs as traced. Values are compared, not gradients.
    ``disk_cache``: functional graphs, and the kernels that they are lowered to, are kept in the user's cache folder, and later processes read them from there (``ENGINE_DISK_CACHE=1``
    switches it on for a process).
    """

    recompile_limit: int = 8
    inline_depth: int = 1000
    instruction_budget: int = 500_000
    automatic_dynamic: bool = True
    capture_scalar_outputs: bool = True
    capture_dynamic_output_shape_ops: bool = True
    debug_assertions: bool = False
    verify_correctness: bool = False
    disk_cache: bool = os.environ.get("ENGINE_DISK_CACHE") == "1"


config = Config()
