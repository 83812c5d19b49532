"""Measure one cold compile in a process of its own.

``python -m tests.bench.cold WAY`` prints seconds as JSON.

Every variant first compiles another model, so that imports and toolchains are warm. The disk caches are the
empty folders that the caller names in TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from tests.bench.subjects import compilers, small_gpt, throw_away


def engine_times(target: Any, args: tuple[Any, ...]) -> dict[str, float]:
    """Return seconds to results with Triton text recorded, and to all kernels for cuda:90."""
    import engine

    start = time.perf_counter()
    with engine.record(target="cuda:90") as session:
        engine.compile(target, target="cuda:90")(*args)
    results = time.perf_counter() - start
    engine.wait(session)
    kernels = [k for c in session.compilations for k in c.kernels]
    compiled = sum(bool(k.targets) and not k.targets[0].error for k in kernels)
    return {
        "results": results,
        "cubins": time.perf_counter() - start,
        "kernels": len(kernels),
        "compiled": compiled,
        "breaks": sum(len(c.trace.breaks) for c in session.compilations if c.trace),
    }


def magic_times(target: Any, args: tuple[Any, ...]) -> dict[str, float]:
    """Return the seconds a ``%%compile`` cell takes to show results and summary in IPython."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    if "notebook_ext" not in shell.extension_manager.loaded:
        shell.run_line_magic("load_ext", "notebook_ext")
    shell.user_ns.update(target=target, args=args)
    start = time.perf_counter()
    ran = shell.run_cell("%%compile\nwith __import__('torch').no_grad():\n    result = target(*args)\n")
    ran.raise_error()
    return {"results": time.perf_counter() - start}


def torch_times(way: str, target: Any, args: tuple[Any, ...]) -> dict[str, float]:
    """Seconds to the first results of stock torch.compile."""
    start = time.perf_counter()
    compilers()[way](target)(*args)
    return {"results": time.perf_counter() - start}


def once(way: str, subject: tuple[Any, tuple[Any, ...]]) -> dict[str, float]:
    """Compile one subject one way."""
    if way == "engine":
        return engine_times(*subject)
    if way == "%%compile":
        return magic_times(*subject)
    return torch_times(way, *subject)


if __name__ == "__main__":
    with torch.no_grad():
        once(sys.argv[1], throw_away())
        sys.stdout.flush()
        print("\n" + json.dumps(once(sys.argv[1], small_gpt())))
