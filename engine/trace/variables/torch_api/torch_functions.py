"""Classification of torch functions: graph nodes, constant folding, inlining, own rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nested
import torch.nn.functional as F
import torch.overrides

from engine.ir.annotations import TracerSnapshot, graph_break, while_tracing
from engine.ir.guards.global_state import GlobalStateMatch
from engine.ir.introspection.symbols import has_unbacked_symbols
from engine.ir.register_once import register_each
from engine.ir.sources.roots import ConstantSource
from engine.options import config
from engine.torch_private import operators
from engine.torch_private.autograd import is_checkpoint_valid
from engine.torch_private.global_state import get_tracing_state, is_compiling, is_tracing, symbolic_trace_queries
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import BreakGraph, Unsupported
from engine.trace.variables.base import FALSE, NONE, Args, ConstantVariable, Kwargs, Variable, is_none, realize
from engine.trace.variables.callable_registry import (
    RULES_BY_NAME,
    CallRule,
    register_bound_rule,
    register_rule,
    register_rule_by_name,
)
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable, sequence_items
from engine.trace.variables.nn_modules.optimizer_inlining import is_optimizer_module


@register_rule(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, is_compiling)
@register_rule_by_name(("torch._dynamo.external_utils", "is_compiling"))
def _is_compiling(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    tx.torch_state.read_is_compiling = True
    return ConstantVariable(
        tx.torch_state.is_compiling
        and not (is_optimizer_module(tx.frame.globals.name) and config.capture_scalar_outputs)
    )


register_bound_rule(torch.jit.annotate)(lambda tx, the_type, the_value: the_value)


@register_bound_rule(torch.compiler.nested_compile_region)
def _nested_region(tx: Tracer, fn: Variable) -> Variable:
    """Inline the region like any call; others compile it once and reuse it.

    Equal kernels are shared by their source text anyway.
    """
    return fn


@register_rule(operators.infer_size)
def _infer_size(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Return the broadcast size; Python broadcasts if a size is symbolic."""
    return tx.fold_constant(operators.infer_size, *map(torch.Size, tx.as_python_constants(args)))


@register_rule(F.multi_head_attention_forward)
def _multi_head_attention(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Replace a data-dependent ``is_causal``, as in ``nn.Transformer``, by a mask."""
    names = "is_causal", "attn_mask", "key_padding_mask", "need_weights"
    is_causal, mask, padding, weights = (realize(tx, kwargs.get(name, NONE)) for name in names)
    if has_unbacked_symbols(is_causal.sym) and mask.fake is not None and not mask.fake.requires_grad:
        if is_none(padding) and weights.as_python_object() is False:
            mask = _mask_if_causal(tx, is_causal, mask)
        kwargs = {**kwargs, "is_causal": FALSE, "attn_mask": mask}
    return emit_node(tx, "call_function", F.multi_head_attention_forward, args, kwargs)


def _mask_if_causal(tx: Tracer, is_causal: Variable, mask: Any) -> Variable:
    """Return the causal mask of the same kind if ``is_causal``, else the mask."""
    options: Kwargs = {"dtype": ConstantVariable(torch.bool)}
    condition = emit_node(tx, "call_function", torch.scalar_tensor, [is_causal], options)
    condition = emit_node(tx, "call_method", "to", [condition, ConstantVariable(mask.fake.device)])
    causal = emit_node(tx, "call_function", torch.ones_like, [mask], options)
    causal = emit_node(tx, "call_method", "triu", [causal, ConstantVariable(1)])
    if mask.fake.dtype is not torch.bool:
        zeros = emit_node(tx, "call_function", torch.zeros_like, [mask])
        causal = emit_node(tx, "call_method", "masked_fill", [zeros, causal, ConstantVariable(-math.inf)])
    return emit_node(tx, "call_function", torch.where, [condition, causal, mask])


@register_rule(graph_break)
def _graph_break(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if is_optimizer_module(
        tx.frame.globals.name
    ):  # it exists for compilers whose graphs cannot contain grad mode changes
        return NONE
    message = [str(v) for v in tx.as_python_constants([*args, *kwargs.values()]) if v]
    raise Unsupported("explicit-break", message[0] if message else "graph_break() is called")


@register_bound_rule(while_tracing)
def _while_tracing(tx: Tracer, look: Variable = NONE) -> Variable:
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


RULES_BY_NAME["torch._dynamo.decorators", "graph_break"] = _graph_break


def _constant_rule(value: bool | None) -> CallRule:
    return lambda tx, args, kwargs: ConstantVariable(value)


_CONSTANT_FUNCTIONS: dict[Any, bool | None] = {
    get_tracing_state: None,
    is_tracing: False,  # nn.Module's __call__ asks since torch 2.15
    operators.log_api_usage_once: None,
    torch.compiler.is_exporting: False,
    vars(torch.jit)["is_scripting"]: False,
    vars(torch.jit)["is_tracing"]: False,
    torch.onnx.is_in_onnx_export: False,
    **{f: False for n, f in vars(symbolic_trace_queries).items() if n in ("is_fx_tracing", "is_fx_symbolic_tracing")},
}
"""Functions whose result is known in traced code."""
_IGNORED_FUNCTIONS = (
    *(("torch._dynamo.decorators", f"mark_{name}") for name in ("static", "dynamic", "unbacked", "static_address")),
    ("torch._dynamo.decorators", "maybe_mark_dynamic"),
    ("torch._dynamo.mutation_guard", "tag"),
)
"""Functions that do nothing in traced code.

Marks on tensors concern the compiler of the code that receives them. ``tag`` records modules for ``torch.compile``.
"""
for _function, _value in _CONSTANT_FUNCTIONS.items():
    register_rule(_function)(_constant_rule(_value))
RULES_BY_NAME.update(dict.fromkeys(_IGNORED_FUNCTIONS, _constant_rule(None)))


@register_each(
    register_rule,
    torch.is_autocast_enabled,
    torch.is_autocast_cpu_enabled,
    torch.backends.mha.get_fastpath_enabled,
    torch.backends.mps.is_available,
    torch.cuda.is_available,
    torch.accelerator.is_available,
    torch.accelerator.current_accelerator,
    is_checkpoint_valid,
    operators.get_privateuse1_backend_name,
    torch.device,
)
def _fold_function(function: Callable[..., Any], tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Call a function of constants while tracing."""
    return tx.fold_constant(function, *tx.as_python_constants(args), **tx.as_python_keywords(kwargs))


@register_bound_rule(torch.overrides.is_tensor_like)
def _is_tensor_like(tx: Tracer, inp: Variable) -> Variable:
    kind = inp.python_type()
    return ConstantVariable(issubclass(kind, torch.Tensor) or hasattr(kind, "__torch_function__"))


register_bound_rule(torch.is_tensor)(lambda tx, obj: ConstantVariable(issubclass(obj.python_type(), torch.Tensor)))


@register_rule(torch.finfo, torch.iinfo)
def _finfo_or_iinfo(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    dtype = tx.as_python_constants(args)[0] if args else torch.get_default_dtype()
    return ConstantVariable(torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype))


@register_rule(torch.Size)
def _size(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return TupleVariable(list(sequence_items(tx, args[0])) if args else [], torch.Size)


def guard_global_state(tx: Tracer, state: str, value: Any) -> None:
    """Guard a piece of torch's global state on its value at frame entry."""
    if state in tx.torch_state.entry_global_state and tx.torch_state.entry_global_state[state] != value:
        return
    why = "the global state of torch decided what was traced"
    tx.guard(GlobalStateMatch, ConstantSource(torch, "torch"), state, value, why=why)


@register_bound_rule(operators.group_tensors_by_device_and_dtype)
def _group_by_device_and_dtype(tx: Tracer, tensorlistlist: Variable, with_indices: Variable = FALSE) -> Variable:
    """Group the fake tensors with torch's own function and apply the groups to the variables."""
    lists = [[realize(tx, t) for t in sequence_items(tx, row)] for row in sequence_items(tx, tensorlistlist)]
    if not all(t.fake is not None or t.python_type() is type(None) for row in lists for t in row):
        raise Unsupported("torch-internals", "tensors are grouped together with other objects")
    fakes = [[t.fake for t in row] for row in lists]
    what = "grouping tensors by device and dtype raises"
    with BreakGraph("torch-internals", what, (RuntimeError, TypeError)):
        groups = operators.group_tensors_by_device_and_dtype(fakes, True)
    entries: dict[object, tuple[Variable, Variable]] = {}
    for (device, dtype), (_, positions) in groups.items():
        key = TupleVariable([ConstantVariable(device), ConstantVariable(dtype)])
        rows = ListVariable([ListVariable([row[n] for n in positions] if row else []) for row in lists])
        indices = ListVariable([ConstantVariable(n) for n in positions] if with_indices.is_truthy(tx) else [])
        entries[key.hash_key(tx)] = (key, TupleVariable([rows, indices]))
    return DictVariable(entries)
