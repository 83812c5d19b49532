"""Classification of torch functions: graph nodes, constant folding, inlining, own rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nested
import torch.nn.functional

from engine.ir.annotations import TracerSnapshot, graph_break, while_tracing
from engine.ir.guards.global_state import GlobalStateMatch
from engine.ir.sources.roots import ConstantSource
from engine.options import config
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, ConstantVariable, Variable, is_none, realize
from engine.trace.variables.callable_registry import RULES_BY_NAME, register_rule
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.nn_modules.optimizer_inlining import is_optimizer_module

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer


@register_rule(
    torch.compiler.is_compiling,
    torch.compiler.is_dynamo_compiling,
    torch._utils.is_compiling if hasattr(torch._utils, "is_compiling") else torch.compiler.is_compiling,
)
def _is_compiling(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    tx.torch_state.read_is_compiling = True
    return ConstantVariable(
        tx.torch_state.is_compiling
        and not (is_optimizer_module(tx.frame.globals.name) and config.capture_scalar_outputs)
    )


@register_rule(
    *(vars(torch.jit)[n] for n in ("is_scripting", "is_tracing")),
    torch.compiler.is_exporting,
    torch._jit_internal.is_scripting,
    torch.onnx.is_in_onnx_export,
)
def _is_scripting(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return ConstantVariable(False)


@register_rule(torch.jit.annotate)
def _jit_annotate(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return args[1] if len(args) > 1 else kwargs["the_value"]


@register_rule(torch._C._log_api_usage_once)
def _log_usage(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return NONE


if hasattr(torch.compiler, "nested_compile_region"):

    @register_rule(torch.compiler.nested_compile_region)
    def _nested_region(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        """Inline the region like any call; others compile it once and reuse it.

        Equal kernels are shared by their source text anyway.
        """
        if len(args) != 1 or kwargs:
            raise Unsupported("compiler-api", "nested_compile_region is called with options")
        return args[0]


@register_rule(torch._C._infer_size)
def _infer_size(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """Return the broadcast size; Python broadcasts if a size is symbolic."""
    return tx.fold_constant(torch._C._infer_size, *map(torch.Size, tx.as_python_constants(args)))


@register_rule(torch._C._get_tracing_state)
def _tracing_state(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return NONE


@register_rule(graph_break)
def _graph_break(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    if is_optimizer_module(
        tx.frame.globals.name
    ):  # it exists for compilers whose graphs cannot contain grad mode changes
        return NONE
    message = [str(v) for v in tx.as_python_constants([*args, *kwargs.values()]) if v]
    raise Unsupported("asked", message[0] if message else "graph_break() is called")


@register_rule(while_tracing)
def _while_tracing(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    look = realize(tx, args[0] if args else kwargs.get("look", NONE))
    call = print if is_none(look) else look.as_python_object()
    if not callable(call):
        raise Unsupported(
            "compiler-api", f"while_tracing is given a {look.python_type().__name__} that traced code created"
        )
    frame = tx.frame
    view = TracerSnapshot(
        tuple(f"{s.file}:{s.line}" for s in tx.user_stack()),
        {name: value.describe() for name, value in frame.locals.items()},
        str(tx.graph.graph),
        tuple(f"{g.kind} {g.source.expr}: {g.cause.reason}" for g in tx.guards.all()),
    )
    call(view)
    return NONE


RULES_BY_NAME[("torch._dynamo.external_utils", "is_compiling")] = _is_compiling


RULES_BY_NAME[("torch._dynamo.decorators", "graph_break")] = _graph_break


def _ignored_mark(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """Ignore marks on tensors: they concern the compiler of the code that receives the tensor."""
    return NONE


for _mark in ("mark_static", "mark_dynamic", "maybe_mark_dynamic", "mark_unbacked", "mark_static_address"):
    RULES_BY_NAME[("torch._dynamo.decorators", _mark)] = _ignored_mark


def _ignored_tag(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """Ignore the call: it records new modules in a table that only ``torch.compile`` reads."""
    return NONE


RULES_BY_NAME[("torch._dynamo.mutation_guard", "tag")] = _ignored_tag


@register_rule(torch.is_tensor)
def _is_tensor(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return ConstantVariable(issubclass(realize(tx, args[0]).python_type(), torch.Tensor))


@register_rule(torch._C._is_any_autocast_enabled)
def _any_autocast(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    guard_global_state(tx, "autocast", tx.torch_state.entry_global_state["autocast"])
    return ConstantVariable(bool(torch._C._is_any_autocast_enabled()))


@register_rule(torch.is_autocast_enabled)
def _is_autocast(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    values = tx.as_python_constants(args)
    return ConstantVariable(torch.is_autocast_enabled(*values) if values else torch.is_autocast_enabled())


@register_rule(torch.is_autocast_cpu_enabled)
def _is_cpu_autocast(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return ConstantVariable(torch.is_autocast_enabled("cpu"))


@register_rule(torch.backends.mha.get_fastpath_enabled)
def _mha_fastpath(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return ConstantVariable(torch.backends.mha.get_fastpath_enabled())


@register_rule(torch.cuda.is_available, torch.backends.mps.is_available)
def _is_available(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return ConstantVariable(torch.cuda.is_available())


@register_rule(torch.finfo, torch.iinfo)
def _finfo_or_iinfo(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    dtype = tx.as_python_constants(args)[0] if args else torch.get_default_dtype()
    return ConstantVariable(torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype))


@register_rule(torch.device)
def _device(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    words = dict(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True))
    return tx.fold_constant(torch.device, *tx.as_python_constants(args), **words)


@register_rule(torch.Size)
def _size(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return TupleVariable(list(sequence_items(tx, args[0])) if args else [], torch.Size)


def guard_global_state(tx: Tracer, state: str, value: Any) -> None:
    """Guard a piece of torch's global state on its value at frame entry."""
    if state in tx.torch_state.entry_global_state and tx.torch_state.entry_global_state[state] != value:
        return
    tx.add_guard(
        GlobalStateMatch(
            ConstantSource(torch, "torch"),
            state,
            value,
            cause=tx.guard_cause("the global state of torch decided what was traced"),
        )
    )
