"""Emit one FX node in steps.

Dispatch ``__torch_function__``, normalize arguments, create the node, run it on fake tensors. After a failure, roll
back; otherwise update version counters and wrap the result. All steps are below the variable classes, whose modules
register how ``__torch_function__`` is called, and which variable represents a result of which type.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.fx

from engine.graph.fake_tensors.dtype_errors import dtype_error
from engine.ir.introspection.literal_types import TORCH_LITERAL_TYPES
from engine.ir.node_metadata import set_provenance
from engine.trace.annotations import Tracer
from engine.trace.emit.fake_state import FakeState, has_effect, repair_versions, roll_back, save_fake_state
from engine.trace.emit.operation import (
    Operation,
    OperationArguments,
    check_layouts,
    check_not_quantized,
    normalize_arguments,
    operation_arguments,
    scalarize_lists,
)
from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.fake_tensors.evaluate import evaluate_on_fakes
from engine.trace.graph_builder import emitting_into
from engine.trace.symbols.unbacked_symints import emit_runtime_asserts
from engine.trace.variables.base import Args, Kwargs, Variable, realize


def emit_node(
    tx: Tracer, op: str, target: Any, args: Args, kwargs: Kwargs | None = None, run: Callable[..., Any] | None = None
) -> Variable:
    """Add a node for ``target`` and return its result as a variable.

    ``run`` evaluates the node on fake tensors (default: the target itself).

    Raises:
        Unsupported: the result's value or size is data-dependent, or a graph cannot contain its type.
        SkipFrame: the operation raises, as it would in Python.
    """
    operation = Operation(op, target, args, kwargs or {}, run)
    owner = tx.graph if kwargs else tx.graph.owner_of(tx, target, args)
    if owner is tx.graph:
        return _emit(tx, operation)
    with emitting_into(tx, owner):
        return _emit(tx, operation)


def _emit(tx: Tracer, operation: Operation) -> Variable:
    check_not_quantized(operation.target)
    if operation.own_callable is None:
        handled = dispatch_torch_function(tx, operation.op, operation.target, operation.args, operation.kwargs)
        if handled is not None:
            return handled
    operation = normalize_arguments(tx, operation)
    arguments = operation_arguments(tx, operation)
    node = create_node(tx, operation, arguments)
    state = save_fake_state(operation, arguments)
    try:
        check_layouts(operation.target, state.tensors)
        result = run_on_fakes(tx, operation, arguments)
    except BaseException as error:
        undo(tx, node, state)
        if isinstance(error, SkipFrame) and error.kind == "raises":
            with_numbers = scalarize_lists(tx, operation)
            if with_numbers is not None:
                return _emit(tx, with_numbers)
        raise
    repair_versions(operation, arguments, state, result)
    keep = has_effect(operation, state, result)
    value = find_returned_argument(tx, operation, arguments, result)
    if value is None:
        value = wrap_result(tx, node, result, keep=keep)
    else:
        node.meta["example_value"] = result
        if not keep:
            tx.graph.erase_last_node(node)
    env = tx.symbols.shape_env
    if env.pending_fresh_unbacked_symbols or env.num_deferred_runtime_asserts:
        emit_runtime_asserts(tx)
    return value


def create_node(tx: Tracer, operation: Operation, arguments: OperationArguments) -> torch.fx.Node:
    """Append the node of an operation to the graph."""
    node = tx.graph.create_node(
        operation.op, operation.target, arguments.nodes, arguments.keyword_nodes, tx.node_provenance()
    )
    tx.fallback.update_op_in_try_block()
    return node


def run_on_fakes(tx: Tracer, operation: Operation, arguments: OperationArguments) -> Any:
    """Run the operation on fake tensors; raise the same errors as ``emit_node``."""
    if error := dtype_error(operation.target, arguments.fakes, arguments.keyword_fakes):
        raise SkipFrame("raises", error)
    return evaluate_on_fakes(
        tx, operation.op, operation.target, arguments.fakes, arguments.keyword_fakes, operation.run
    )


def undo(tx: Tracer, node: torch.fx.Node, state: FakeState) -> None:
    """Undo a failed operation: erase its node and roll back its fake arguments."""
    tx.graph.erase_last_node(node)
    roll_back(tx, state)


def find_returned_argument(
    tx: Tracer, operation: Operation, arguments: OperationArguments, result: Any
) -> Variable | None:
    """Return the argument that the operation returns, or None for a new result.

    An in-place operator returns one of its arguments. The result must then be the variable of that argument.
    """
    if not isinstance(result, torch.Tensor):
        return None
    for argument, fake in zip(operation.variables, arguments.all_fakes, strict=True):
        if fake is result:
            return realize(tx, argument)
    return None


TorchFunctionHandler = Callable[[Tracer, str, Any, Args, Kwargs, list[Variable]], Variable | None]

_HANDLERS: list[TorchFunctionHandler] = []


def register_torch_function_handler(handler: TorchFunctionHandler) -> TorchFunctionHandler:
    """Register the function that calls the user's ``__torch_function__``.

    It gets the operation and its arguments that have the method.
    """
    _HANDLERS.append(handler)
    return handler


def is_torch_function_disabled(tx: Tracer) -> bool:
    """Return True if ``__torch_function__`` of classes is disabled, at frame entry or since."""
    return (
        bool(tx.torch_state.torch_function_disabled_depth)
        or not tx.torch_state.entry_global_state["torch_function_enabled"]
    )


def arguments_with_torch_function(tx: Tracer, values: Iterable[Variable]) -> Iterator[Variable]:
    """Yield the values whose class has ``__torch_function__``, also inside lists and tuples."""
    for value in values:
        real = realize(tx, value)
        if real.has_torch_function:
            yield real
        yield from arguments_with_torch_function(tx, real.argument_items())


def dispatch_torch_function(tx: Tracer, op: str, target: Any, args: Args, kwargs: Kwargs) -> Variable | None:
    """Dispatch an operation to the active modes and classes. None if no handler applies."""
    disabled = is_torch_function_disabled(tx)
    if disabled and not tx.torch_state.function_modes:
        return None
    special = [] if disabled else list(arguments_with_torch_function(tx, (*args, *kwargs.values())))
    if not special and not tx.torch_state.function_modes:
        return None
    (handle,) = _HANDLERS
    return handle(tx, op, target, args, kwargs, special)


_CONSTANT_TYPES = (int, float, bool, str, complex, type(None), *TORCH_LITERAL_TYPES)


@functools.singledispatch
def build_node_result(result: Any, tx: Tracer, node: torch.fx.Node) -> Variable:
    """Return the variable of a node's result. Register a builder per type with ``register``."""
    raise Unsupported("operator-result", f"an operation returns a {type(result).__name__}")


def wrap_result(tx: Tracer, node: torch.fx.Node, result: Any, *, keep: bool = False) -> Variable:
    """Wrap the result of a node in a variable.

    If the result is a Python constant, the node is erased unless ``keep`` is true.

    Raises:
        Unsupported: a graph cannot contain a value of this type.
    """
    node.meta["example_value"] = result
    if is_constant_result(result):
        if not keep:
            tx.graph.erase_last_node(node)
        return tx.from_python(result)
    return build_node_result(result, tx, node)


def wrap_items(tx: Tracer, node: torch.fx.Node, result: Iterable[Any]) -> list[Variable]:
    """Wrap the items of a node's result: constants as they are, each other item as a node."""
    items: list[Variable] = []
    for index, item in enumerate(result):
        if is_constant_result(item):
            items.append(tx.from_python(item))
            continue
        item_node = tx.graph.graph.create_node("call_function", operator.getitem, (node, index))
        item_node.meta["is_item"] = True
        set_provenance(item_node, tx.node_provenance())
        items.append(wrap_result(tx, item_node, item))
    return items


@functools.singledispatch
def is_constant_result(result: Any) -> bool:
    """Return True for a Python constant, or a list or tuple of constants."""
    return False


for _type in _CONSTANT_TYPES:
    is_constant_result.register(_type, lambda result: True)


@is_constant_result.register(list)
@is_constant_result.register(tuple)
def _(result: Iterable[Any]) -> bool:
    return all(map(is_constant_result, result))
