"""External backends: Inductor, and callables ``(graph_module, example_inputs)`` of users."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_origin

import torch

from engine.aot.layout_mutation import is_layout_mutated, original_fake
from engine.backends.registry import backend_callable, backend_name
from engine.compilation import Compilation
from engine.graph.passes.lift_requires_grad import requires_grad_calls
from engine.interrupts.deferred_interrupts import allow_interrupts
from engine.ir.graph_callable import Run
from engine.ir.node_values import fake_tensors
from engine.ir.traced_frame import GraphInput, TracedGraph
from engine.options import MODES, Options
from engine.torch_private import inductor
from engine.torch_private.fake_tensors import FakeTensor, FakeTensorMode, TracingContext, tracing


def compile_externally(options: Options, traced: TracedGraph, work: Compilation) -> Run:
    """Compile the graph with Inductor or a user's callable.

    If sizes are symbols, the compiler gets symbolic fake tensors, as torch passes them: with real tensors it
    would specialize their sizes without a guard. Else it gets the call's inputs.

    Raises:
        NotImplementedError: Inductor cannot compile the graph.
        Exception: any error of the compiler.
    """
    backend = options.backend
    if backend == "inductor" and requires_grad_calls(traced.graph.graph):
        raise NotImplementedError("requires_grad of an input changes between two of its uses")
    compiler = inductor_with(inductor_patches(options.extra)) if backend == "inductor" else backend_callable(backend)
    assert compiler is not None
    work.record_fx_graph(traced)
    with work.stage(backend_name(backend)), allow_interrupts():
        run = _call_compiler(compiler, traced)
    if not callable(run):
        raise TypeError(f"it returned {run!r}, which cannot be called")
    work.guards = (*work.guards, *traced.late_shape_guards())
    return run


def inductor_option_names() -> list[str]:
    """Return the names of Inductor's settings."""
    return inductor.list_options()


def inductor_option_type(name: str) -> type | None:
    """Return the type of a setting of Inductor; None if it is generic, and not checked."""
    settings: Any = inductor.inductor_config
    kind = settings.get_type(name.replace("-", "_"))
    return kind if get_origin(kind) is None else None


def inductor_patches(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of Inductor for the options of a function with backend "inductor"."""
    mode = extra.get("mode", "default")
    patches = inductor.list_mode_options(mode if mode in MODES else "default")
    return {**patches, **dict(extra.get("inductor", ()))}


def inductor_with(patches: Mapping[str, Any]) -> Callable[..., Run]:
    """Return torch's AOTAutograd and Inductor as a backend with these settings of Inductor."""

    def compile_graph(graph: torch.fx.GraphModule, examples: list[Any]) -> Run:
        compiled: Any = inductor.compile_fx(graph, examples, config_patches=dict(patches) or None)
        run: Run = compiled
        return run

    return compile_graph


def _call_compiler(compiler: Callable[..., Run], traced: TracedGraph) -> Run:
    if not any(_is_symbolic(i.fake) for i in traced.inputs):
        return compiler(traced.graph, [i.example_value for i in traced.inputs])
    mode = next((f.fake_mode for f in fake_tensors([i.fake for i in traced.inputs])), None)
    with tracing(TracingContext(mode)):
        return compiler(traced.graph, [_example_input(mode, i) for i in traced.inputs])


def _example_input(mode: FakeTensorMode | None, i: GraphInput) -> Any:
    """Return an example input: its fake tensor, or a new one if tracing changed its layout."""
    if not isinstance(i.fake, FakeTensor) or mode is None:
        return i.fake
    if i.fake.dtype == i.example_value.dtype and not is_layout_mutated(i.fake, i.example_value):
        return i.fake
    with mode:
        return original_fake(i).requires_grad_(i.example_value.requires_grad)


def _is_symbolic(fake: Any) -> bool:
    if isinstance(fake, torch.Tensor):
        return bool(fake._has_symbolic_sizes_strides)
    return isinstance(fake, (torch.SymInt, torch.SymFloat))
