"""Emit one FX node: normalize arguments, create the node, run the fake, wrap the result."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from engine.ir.graph_callable import GraphCallable
from engine.ir.introspection.unbacked_symbols import has_unbacked_symbols
from engine.ir.node_metadata import set_provenance
from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.fake_tensors.dtype_checks import check_dtypes
from engine.trace.fake_tensors.evaluate import evaluate_on_fakes
from engine.trace.fake_tensors.rollback import save_fake_metadata
from engine.trace.fake_tensors.version_counters import (
    _foreach_targets,
    bump_custom_op_versions,
    bump_inference_mode_version,
    tensor_versions,
)
from engine.trace.graph_builder import GraphBuilder
from engine.trace.symbols.unbacked_symints import emit_runtime_asserts, is_unbacked_float
from engine.trace.variables.base import Variable, realize

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer


_CONSTANTS = (int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def emit_node(
    tx: Tracer,
    op: str,
    target: Any,
    args: list[Variable],
    kwargs: dict[str, Variable] | None = None,
    run: Callable[..., Any] | None = None,
) -> Variable:
    """Add a node for ``target`` and return its result as a variable.

    ``run`` evaluates the node on fake tensors (default: the target itself).

    Raises:
        Unsupported: the result's value or size is data-dependent, or a graph cannot contain its type.
        SkipFrame: the operation raises, as it would in Python.
    """
    from engine.trace.variables.tensors.tensor import TensorVariable

    home = _owning_graph(tx, target, args) if not kwargs else tx.graph
    if home is not tx.graph:
        inside, tx.graph = tx.graph, home
        try:
            return emit_node(tx, op, target, args, None, run)
        finally:
            tx.graph = inside
    _check_not_quantized(target)
    if not isinstance(target, GraphCallable):
        from engine.trace.variables.tensors.torch_function_protocol import dispatch_torch_function

        by_protocol = dispatch_torch_function(tx, op, target, args, kwargs or {})
        if by_protocol is not None:
            return by_protocol
    if op == "call_method" and target == "new" and len(args) == 2 and realize(tx, args[1]).python_type() is torch.Size:
        target = "new_empty"  # ``new`` reads a plain tuple, which the graph has, as elements
    args = _scalarize_sizes(tx, target, [_specialize_symbool(tx, target, a) for a in args])
    kwargs = {k: _specialize_symbool(tx, target, v) for k, v in (kwargs or {}).items()}
    pairs = [_graph_arg(tx, a) for a in args]
    keyword_pairs = {k: _graph_arg(tx, v) for k, v in kwargs.items()}
    node = tx.graph.create_node(
        op, target, tuple(p[0] for p in pairs), {k: p[0] for k, p in keyword_pairs.items()}, tx.node_provenance()
    )
    tx.fallback.update_op_in_try_block()
    fakes = [p[1] for p in pairs]
    keyword_fakes = {k: p[1] for k, p in keyword_pairs.items()}
    before = tensor_versions((fakes, keyword_fakes))
    listed = _foreach_targets(target, fakes)
    layouts = save_fake_metadata(target, fakes, keyword_fakes)
    try:
        check_dtypes(target, fakes, keyword_fakes)
        result = evaluate_on_fakes(tx, op, target, fakes, keyword_fakes, run)
    except BaseException as error:
        tx.graph.erase_last_node(node)
        for layout in layouts:
            layout.restore(tx)
        if isinstance(error, SkipFrame) and error.kind == "raises":
            again = _scalarize_list_items(tx, args, kwargs)
            if again is not None:
                return emit_node(tx, op, target, *again, run)
        raise
    bump_custom_op_versions(target, fakes, keyword_fakes)
    for fake in [fake for fake, version in listed if fake._version == version]:  # each view of one tensor counts
        torch.autograd.graph.increment_version(fake)
    bump_inference_mode_version(op, target, fakes, keyword_fakes, result, before)
    has_effect = isinstance(target, GraphCallable) and target.changes_state
    changed = has_effect or before is None or result is None or before != tensor_versions((fakes, keyword_fakes))
    for given in (*args, *kwargs.values()):
        # An in-place operator returns one of its arguments: the same Python object, so the same variable.
        value = realize(tx, given)
        if isinstance(value, TensorVariable) and value.fake is result and result is not None:
            node.meta["example_value"] = result
            if not changed:
                tx.graph.erase_last_node(node)
            emit_runtime_asserts(tx)
            return value
    made = wrap_result(tx, node, result, keep=changed)
    emit_runtime_asserts(tx)
    return made


def _owning_graph(tx: Tracer, target: Any, args: list[Variable]) -> GraphBuilder:
    """Return the graph that owns a new node.

    Arithmetic on numbers from outside a subgraph goes to the outer graph: its result may be used after the
    subgraph.
    """
    from engine.trace.variables.base import ConstantVariable
    from engine.trace.variables.tensors.sym_node import SymNodeVariable

    builder = tx.graph
    outer = getattr(builder, "outer", None)
    if outer is None or getattr(target, "__module__", "") != "_operator":
        return builder
    given = [realize(tx, a) for a in args]
    numbers = [v for v in given if isinstance(v, SymNodeVariable)]
    if not numbers or any(v.depends_on_unbacked_float or has_unbacked_symbols(v.sym) for v in numbers):
        return builder
    if not all(isinstance(v, (SymNodeVariable, ConstantVariable)) for v in given):
        return builder
    while outer is not None and all(v.node.graph is not builder.graph for v in numbers):
        builder, outer = outer, getattr(outer, "outer", None)
    return builder


def _check_not_quantized(target: Any) -> None:
    """Raise Unsupported for quantizing operators: their fake results look like float tensors."""
    name = str(target if isinstance(target, str) else getattr(target, "__name__", ""))
    if name.startswith(("quantize_per_", "quantized_", "quantize_dynamic", "_make_per_")):
        raise Unsupported("unsupported-operation", f"{name} returns a quantized tensor")


_SIZE_TAKING_OPS = frozenset(
    "empty expand expand_copy full new_empty new_full new_ones new_zeros ones pad rand randn repeat reshape tile view zeros".split()
)
"""Operators that accept tensors with one integer as sizes; eager converts them to numbers."""


def _scalarize_sizes(tx: Tracer, target: Any, args: list[Variable]) -> list[Variable]:
    """Replace tensors with one integer by numbers where the operator takes sizes."""
    name = getattr(target, "__name__", target)
    if name not in _SIZE_TAKING_OPS:
        return args
    first = 0 if name in ("empty", "full", "ones", "rand", "randn", "zeros") else 1
    return [*args[:first], *(_scalarize(tx, a) for a in args[first:])]


def _scalarize_list_items(
    tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]
) -> tuple[list[Variable], dict[str, Variable]] | None:
    """Replace tensors with one integer inside list arguments by numbers.

    Return None if there are none. This is for operators that raise: such a list may be a list of sizes.
    """
    from engine.trace.variables.containers.sequences import SequenceVariable

    def in_list(value: Variable) -> Variable:
        return _scalarize(tx, value) if isinstance(realize(tx, value), SequenceVariable) else value

    found = [in_list(a) for a in args], {k: in_list(v) for k, v in kwargs.items()}
    same = all(a is b for a, b in zip((*args, *kwargs.values()), (*found[0], *found[1].values()), strict=True))
    return None if same else found


_SYMBOOL_OPS = frozenset((operator.and_, operator.or_, operator.iand, operator.ior, torch.sym_not, torch.sym_ite))


def _specialize_symbool(tx: Tracer, target: Any, given: Variable) -> Variable:
    """Specialize a SymBool that has a hint, unless the target is a logical operator."""
    from engine.trace.variables.base import ConstantVariable
    from engine.trace.variables.tensors.sym_node import SymNodeVariable, has_hint

    if not isinstance(given, SymNodeVariable) or not isinstance(given.sym, torch.SymBool) or not has_hint(given.sym):
        return given
    is_logic = target in _SYMBOOL_OPS or isinstance(target, GraphCallable)
    return given if is_logic else ConstantVariable(given.as_python_constant(tx))


def _scalarize(tx: Tracer, given: Variable) -> Variable:
    from engine.trace.variables.containers.sequences import SequenceVariable, TupleVariable
    from engine.trace.variables.tensors.tensor import TensorVariable

    found = realize(tx, given)
    if isinstance(found, TensorVariable):
        fake = found.fake
        is_number = (
            fake.dim() == 0 and not fake.is_floating_point() and not fake.is_complex() and fake.dtype != torch.bool
        )
        return found.call_method(tx, "item", [], {}) if is_number else given
    if not isinstance(found, SequenceVariable) or len(found.items) > _MAX_SIZES:
        return given
    items = [_scalarize(tx, item) for item in found.items]
    return TupleVariable(items) if any(a is not b for a, b in zip(items, found.items, strict=True)) else given


_MAX_SIZES = 16


def _graph_arg(tx: Tracer, value: Variable) -> tuple[Any, Any]:
    return realize(tx, value).as_node_arg(tx)


def wrap_result(tx: Tracer, node: torch.fx.Node, result: Any, *, keep: bool = False) -> Variable:
    """Wrap the result of a node in a variable.

    If the result is a Python constant, the node is erased unless ``keep`` is true.
    """
    from engine.trace.variables.base import ConstantVariable
    from engine.trace.variables.tensors.sym_node import SymNodeVariable, collect_rounding_symbols
    from engine.trace.variables.tensors.tensor import TensorVariable

    node.meta["example_value"] = result
    if isinstance(result, torch.Tensor):
        node.meta["version"] = 0 if result.is_inference() else result._version
        tensor = tx.graph.tensor_variables[node] = TensorVariable(node, result)
        return tensor
    if isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        number = SymNodeVariable(
            node,
            result,
            depends_on_unbacked_float=_derives_from_unbacked_float(node, result),
            rounding_symbols=collect_rounding_symbols(node, result),
        )
        return (
            ConstantVariable(number.as_python_constant(tx))
            if number.rounding_symbols and isinstance(result, torch.SymInt)
            else number
        )
    if _is_constant_result(result):
        if not keep:
            tx.graph.erase_last_node(node)
        return tx.from_python(result)
    if isinstance(result, (tuple, list)):
        return _wrap_items(tx, node, result)
    if callable(result):
        from engine.trace.variables.higher_order.functorch import GraphFunctionVariable

        return GraphFunctionVariable(node, result)
    raise Unsupported("unsupported-operation", f"an operation returns a {type(result).__name__}")


def _derives_from_unbacked_float(node: torch.fx.Node, result: Any) -> bool:
    """Return True if the symbol is, or was computed from, an unbacked float."""
    found = is_unbacked_float(result) or any(n.meta.get("is_opaque") for n in node.all_input_nodes)
    node.meta["is_opaque"] = found
    return found


def _is_constant_result(result: Any) -> bool:
    if isinstance(result, (tuple, list, torch.Size)):
        return all(_is_constant_result(r) for r in result)
    return isinstance(result, (*_CONSTANTS, torch.finfo, torch.iinfo))


def _wrap_items(tx: Tracer, node: torch.fx.Node, result: Any) -> Variable:
    import operator

    from engine.trace.variables.containers.sequences import ListVariable, TupleVariable

    items: list[Variable] = []
    for n, item in enumerate(result):
        if _is_constant_result(item):
            items.append(tx.from_python(item))
            continue
        part = tx.graph.graph.create_node("call_function", operator.getitem, (node, n))
        part.meta["is_item"] = True
        set_provenance(part, tx.node_provenance())
        items.append(wrap_result(tx, part, item))
    if isinstance(result, list):
        return ListVariable(items)
    return TupleVariable(items, type(result))
