"""``torch.autograd.Function.apply`` in traced code.

The bodies are traced for their guards; autograd runs the function as one node. If that is not possible, the bodies
become subgraphs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction, Function, FunctionCtx

from engine.ir.graph_callable import GraphCallable
from engine.ir.introspection.transformed_functions import APPLY, bind_apply
from engine.ir.sources.base import Source
from engine.torch_private.autograd import CreationMeta, FunctionBase, set_creation_meta, set_grad_enabled
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import RestartTracing, Unsupported, UserException
from engine.trace.variables.autograd.autograd_function_apply import (
    check_no_attribute_writes,
    outputs_of,
    pack_outputs,
    trace_forward_and_backward,
)
from engine.trace.variables.autograd.mutable_backward_state import find_mutable_capture, is_mutable_state, names_read_by
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, reachable_variables, realize
from engine.trace.variables.builder import register_builder_if
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import VariableWithMethods
from engine.trace.variables.containers.sequences import TupleVariable
from engine.trace.variables.higher_order.pytrees import flatten_variable, unflatten_variable
from engine.trace.variables.higher_order.subgraph import (
    SubgraphBuilder,
    add_parameter_for,
    add_parameter_like,
    building_subgraph,
)
from engine.trace.variables.objects.attribute_binding import class_attribute
from engine.trace.variables.objects.class_lookup import CLASS_ATTR_WRITES
from engine.trace.variables.objects.constructor_registry import C_CLASS_CONSTRUCTORS
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable
from engine.trace.variables.slotted_type import fresh, state
from engine.trace.variables.torch_api.grad_and_autocast_contexts import set_grad_mode


class AutogradFunctionContextVariable(VariableWithMethods, UserDefinedObjectVariable):
    """The ``ctx`` of an ``autograd.Function`` while its bodies are traced."""

    needs_input_grad: list[bool]
    saved_tensors: list[Variable] = fresh(list)
    non_differentiable: list[Variable] = fresh(list)
    """Outputs marked as non-differentiable."""
    materialize_grads: bool = state(True)
    dirty_tensors: list[Variable] = fresh(list)
    methods = tuple(
        "save_for_backward mark_non_differentiable set_materialize_grads save_for_forward mark_dirty".split()
    )

    def has_no_grad(self, tx: Tracer, output: Variable) -> bool:
        """Return True if the backward always gets None for an output."""
        if output.fake is None or self.materialize_grads:
            return output.fake is None
        is_marked = any(realize(tx, marked) is output for marked in self.non_differentiable)
        return is_marked or not (output.fake.is_floating_point() or output.fake.is_complex())

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        match name:
            case "saved_tensors":
                return TupleVariable(list(self.saved_tensors))
            case "needs_input_grad":
                return TupleVariable([ConstantVariable(n) for n in self.needs_input_grad])
            case "mark_shared_storage":
                raise Unsupported("autograd-function-ctx", f"{name} of an autograd.Function is called")
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        match name:
            case "save_for_backward":
                self.saved_tensors = list(args)
            case "mark_non_differentiable":
                self.non_differentiable = list(args)
            case "set_materialize_grads":
                self.materialize_grads = realize(tx, args[0]).is_truthy(tx)
            case "mark_dirty":
                self.dirty_tensors = list(args)
        return NONE if name in self.methods else super().call_method(tx, name, args, kwargs)


@register_rule(APPLY)
def _apply(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    cls: Any = realize(tx, args[0]).as_python_object()
    if not (isinstance(cls, type) and issubclass(cls, Function)):
        raise Unsupported("autograd-function", "an autograd.Function has arguments other than tensors and constants")
    inputs = [realize(tx, a) for a in _bind_positional(tx, cls, args[1:], kwargs)]
    if not torch.is_grad_enabled() and not tx.in_subgraph():
        return _trace_forward_only(tx, cls, inputs)
    try:
        # A node that calls the function would read objects as they are before the mutations of the traced code.
        bodies = (
            layer for body in (cls.forward, cls.setup_context, cls.backward) for layer in _wrapped_functions(body)
        )
        is_stale = tx.side_effects.writes_objects and bool(find_mutable_capture(bodies))
        if is_stale or cls in _FUNCTIONS_WITH_SIDE_EFFECTS or not _can_be_graph_inputs(tx, inputs):
            return _trace_bodies_to_graphs(tx, cls, inputs)
        for value in inputs:
            value.as_node_arg(tx)
        num_tensors, mutations = len(tx.inputs.input_tensors), tx.side_effects.external_mutation_count
        try:
            _trace_for_guards(tx, cls, inputs)
        except _NeedsBodyGraphs:
            return _trace_bodies_to_graphs(tx, cls, inputs)
        except Unsupported as error:
            if tx.side_effects.external_mutation_count == mutations and not isinstance(
                error, _MutatesContainerArgument
            ):
                raise
            _FUNCTIONS_WITH_SIDE_EFFECTS.add(cls)
            raise RestartTracing(0, error) from error
        if len(tx.inputs.input_tensors) != num_tensors:
            return _trace_bodies_to_graphs(tx, cls, inputs)
    except UserException as error:
        raise Unsupported("autograd-function", f"{cls.__name__} raises {error} while it is traced") from error
    has_backward = any(_needs_input_grad(inputs)) and torch.is_grad_enabled()
    read_late = find_mutable_capture(_wrapped_functions(cls.backward)) if has_backward else ""
    effect = f"has a backward that reads {read_late} when it runs"
    target = GraphCallable(cls.__name__, bind_apply(cls), is_python=True, changes_state=bool(read_late), effect=effect)
    return emit_node(tx, "call_function", target, inputs)


_FUNCTIONS_WITH_SIDE_EFFECTS: weakref.WeakSet[type] = weakref.WeakSet()
"""Functions that mutate outer Python objects.

Their node must not run the user's code, because it would repeat the mutation.
"""


# An instance of a Function class has no state: the methods are static.
C_CLASS_CONSTRUCTORS[FunctionBase] = lambda tx, cls, args, kwargs: UserDefinedObjectVariable(cls, None, NotImplemented)


@register_rule(torch.autograd.Function.__init__)
def _function_init(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    text = f"{realize(tx, args[0]).python_type()}{_INSTANTIATION_WARNING}"
    return realize(
        tx, tx.wrap_static(warnings.warn).call(tx, [ConstantVariable(text), tx.wrap_static(DeprecationWarning)], {})
    )


_INSTANTIATION_WARNING = next(
    (c for c in torch.autograd.Function.__init__.__code__.co_consts if " should not be" in str(c)), ""
)


class _KwargsProbe(torch.autograd.Function):
    """Probe if this torch version passes keyword arguments to ``forward``."""

    @staticmethod
    def forward(_: Any, value: int) -> int:
        return value


@functools.cache
def _apply_accepts_kwargs() -> bool:
    try:
        _KwargsProbe.apply(value=1)  # type: ignore[no-untyped-call, unused-ignore]
    except TypeError:
        return False
    return True


def _bind_positional(tx: Tracer, cls: type[Function], args: Args, kwargs: Kwargs) -> list[Variable]:
    """Return all arguments by position, as autograd binds them.

    With ``setup_context``, the defaults of ``forward`` are filled in.

    Raises:
        Unsupported: the arguments do not fit ``forward``, or this torch version takes no keyword arguments.
    """
    has_context = cls.setup_context is torch.autograd.Function.setup_context
    code = getattr(cls.forward, "__code__", None)
    if not kwargs and (has_context or code is None):
        return args
    if code is None or code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        if not kwargs:
            return args
        raise Unsupported("autograd-function", f"{cls.__name__} is applied with keyword arguments")
    names = code.co_varnames[int(has_context) : code.co_argcount]
    by_name = dict(zip(names, args, strict=False))
    defaults = () if has_context else cls.forward.__defaults__ or ()
    values = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    twice = by_name.keys() & kwargs.keys()
    by_name |= kwargs
    last = max((names.index(n) for n in by_name if n in names), default=-1) if has_context else len(names) - 1
    needed = names[: last + 1]
    fits = len(args) <= len(names) and not twice and set(by_name) <= set(names) and set(needed) <= {*by_name, *values}
    if not fits or (has_context and not _apply_accepts_kwargs()):
        raise Unsupported(
            "autograd-function", f"{cls.__name__} is applied to arguments that its forward does not accept"
        )
    return [by_name[n] if n in by_name else tx.from_python(values[n]) for n in needed]


class _NeedsBodyGraphs(Exception):
    """Raised if one node that calls the function is not enough.

    A body reads a tensor that is not an argument, the forward returns Python objects, or the backward stores a
    container argument.
    """


def _can_be_graph_inputs(tx: Tracer, inputs: list[Variable]) -> bool:
    """Return True if all arguments can be graph inputs."""
    try:
        flatten_variable(tx, TupleVariable(inputs), [])
    except Unsupported:
        return False
    return True


def _trace_bodies_to_graphs(tx: Tracer, cls: type[Function], inputs: list[Variable]) -> Variable:
    """Trace forward and backward into subgraphs.

    For functions that take Python objects or read tensors that are not arguments.

    Raises:
        Unsupported: the function calls ``mark_dirty`` or ``set_materialize_grads(False)``.
    """
    ctx = AutogradFunctionContextVariable(FunctionCtx, None, NotImplemented, _needs_input_grad(inputs))
    if not any(ctx.needs_input_grad) and not tx.in_subgraph():
        grad = torch.is_grad_enabled()
        set_grad_mode(tx, mode=False)
        result = _trace_forward_only(tx, cls, inputs)
        set_grad_mode(tx, mode=grad)
        return result
    once = getattr(cls.backward, "__code__", None) is _ONCE_DIFFERENTIABLE_CODE

    def result_of(name: str, args: Args) -> Variable:
        if name == "forward":
            result = _call_forward(tx, cls, ctx, args)
            if ctx.dirty_tensors or not ctx.materialize_grads:
                raise Unsupported(
                    "autograd-function-ctx", f"{cls.__name__} calls mark_dirty or set_materialize_grads(False)"
                )
            return result
        _check_backward(tx, cls, ctx)
        return _static_method(tx, cls, name).call(tx, args, {})

    return trace_forward_and_backward(tx, cls, inputs, ctx, result_of, once=once)


def _check_backward(tx: Tracer, cls: type[Function], ctx: AutogradFunctionContextVariable) -> None:
    """Check that a traced backward reads no mutable state.

    Eager runs the backward later and would see later mutations.

    Raises:
        Unsupported: it may read such state.
    """
    backward = _TracedBackward(
        cls.__name__, list(_wrapped_functions(cls.backward)), ctx, tx.instruction_counter.root_instruction_number
    )
    if any(type(layer) is not types.FunctionType for layer in backward.wrapped_functions):
        raise Unsupported("autograd-function-backward", f"the backward of {cls.__name__} is not a plain function")
    if backward.reads_mutated_state(tx) or backward.reads_deferred_state():
        raise backward.graph_break()
    tx.side_effects.checks_at_end.append(backward.check_at_end)


def _wrapped_functions(function: Any) -> Iterator[Any]:
    """Yield a function and the functions that it wraps, by ``__wrapped__``."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


class _TracedBackward(NamedTuple):
    """A backward traced with the external state at the time of ``apply``."""

    name: str
    wrapped_functions: list[Any]
    ctx: AutogradFunctionContextVariable
    applied_at: int
    """Number of the root frame's instruction that applied the function."""

    def reads_mutated_state(self, tx: Tracer) -> bool:
        """Return True if the backward may read state that the traced code mutated so far."""
        for layer in self.wrapped_functions:
            names = names_read_by(layer.__code__)
            cells = [cell for cell in layer.__closure__ or () if cell != _EMPTY_CELL]
            named = [layer.__globals__.get(name) for name in names]
            named += [*cells, *(cell.cell_contents for cell in cells)]
            variables = [tx.objects.variables_by_id[id(v)][0] for v in named if id(v) in tx.objects.variables_by_id]
            variables += [value for name, value in self.ctx.attr_writes.items() if name in names and value is not None]
            written = (n for space, n in tx.side_effects.global_writes if space.values is layer.__globals__)
            if not names.isdisjoint(written) or any(
                id(v) in tx.side_effects.mutated_variables for v in reachable_variables(variables)
            ):
                return True
            if any(of is v for of, _ in CLASS_ATTR_WRITES for v in named):
                return True
        return False

    def check_at_end(self, tx: Tracer) -> None:
        """Check at the end of the graph for state that was mutated after the function was applied.

        Raises:
            RestartTracing: the backward reads such state.
        """
        if self.reads_mutated_state(tx):
            raise RestartTracing(self.applied_at, self.graph_break())

    def reads_deferred_state(self) -> bool:
        """Return True if the backward may read state that other code can mutate before it runs."""
        names = set().union(*(names_read_by(layer.__code__) for layer in self.wrapped_functions))
        values_read = [value for name, value in self.ctx.attr_writes.items() if name in names and value is not None]
        return bool(find_mutable_capture(self.wrapped_functions)) or any(
            map(_is_external_and_mutable, reachable_variables(values_read))
        )

    def graph_break(self) -> Unsupported:
        """Return the graph break that lets Python apply the function."""
        what = f"the backward of {self.name} reads values that may change before it runs"
        return Unsupported("autograd-function-backward", what, created_at=self.applied_at)


def _is_external_and_mutable(value: Variable) -> bool:
    if value.source is None or value.is_graph_value or value.is_constant:
        return False
    return is_mutable_state(value.as_python_object())


def _needs_input_grad(inputs: list[Variable]) -> list[bool]:
    """Return for each argument whether it requires a gradient."""
    return [a.fake is not None and a.fake.requires_grad for a in inputs]


_EMPTY_CELL = types.CellType()
_ONCE_DIFFERENTIABLE_CODE = torch.autograd.function.once_differentiable(lambda *_: None).__code__
"""Code of the wrapper that ``once_differentiable`` puts around a backward."""


def _trace_forward_only(tx: Tracer, cls: type[Function], inputs: list[Variable]) -> Variable:
    """Trace the forward as an ordinary call, because no gradient is recorded.

    Dirty tensors and returned inputs are handled as autograd does.
    """
    ctx = AutogradFunctionContextVariable(FunctionCtx, None, NotImplemented, _needs_input_grad(inputs))
    result = _call_forward(tx, cls, ctx, inputs)
    dirty = [realize(tx, d) for d in ctx.dirty_tensors]
    for marked in dirty:  # autograd bumps the version once more
        if marked.fake is not None:
            emit_node(tx, "call_function", torch.autograd.graph.increment_version, [marked])
    return pack_outputs(tx, result, [_alias_returned_input(tx, o, inputs, dirty) for o in outputs_of(tx, result)])


def _alias_returned_input(tx: Tracer, output: Variable, inputs: list[Variable], dirty: list[Variable]) -> Variable:
    """Return the output, or an alias if it is an input, as autograd does without gradients."""
    if output.fake is None or (output in dirty and output in inputs and not output.fake.requires_grad):
        return output
    if output in inputs:
        method = "detach" if output.fake.requires_grad else "view_as"
        return emit_node(tx, "call_method", method, [output] if method == "detach" else [output, output])
    if output.fake.requires_grad and output.fake._is_view():
        emit_node(tx, "call_function", _MARK_CUSTOM_FUNCTION_VIEW, [output])
    return output


def _mark_custom_function_view(view: torch.Tensor) -> None:
    if view._is_view() and view.requires_grad:
        set_creation_meta(view, CreationMeta.IN_CUSTOM_FUNCTION)


_MARK_CUSTOM_FUNCTION_VIEW = GraphCallable("mark_custom_function_view", _mark_custom_function_view)
"""Marks a view from a custom function, even without gradient. Autograd forbids writing it."""


def _trace_for_guards(tx: Tracer, cls: type[Function], arguments: list[Variable]) -> None:
    """Trace forward and backward for their guards and graph breaks, then discard the nodes."""
    needed = _needs_input_grad(arguments)
    ctx = AutogradFunctionContextVariable(FunctionCtx, None, NotImplemented, needed)
    numbers = len(tx.symbols.symbolic_input_scalars)
    with building_subgraph(tx) as builder:
        builder.is_autograd_function_body = True
        grad = torch.is_grad_enabled()
        set_grad_enabled(False)
        inputs = [_subgraph_input(tx, builder, a) for a in arguments]
        with _check_containers_unmutated(tx, cls, inputs) as containers:
            outputs = outputs_of(tx, _call_forward(tx, cls, ctx, inputs))
            check_no_attribute_writes(cls, [*inputs, *outputs])
            if any(id(o) in containers for o in outputs):
                raise _MutatesContainerArgument("autograd-function", f"{cls.__name__} returns a container argument")
            if grad and any(needed):
                grads: list[Variable] = [
                    NONE if ctx.has_no_grad(tx, o) else add_parameter_like(tx, builder, o.fake.detach())
                    for o in outputs
                ]
                _static_method(tx, cls, "backward").call(tx, [ctx, *grads], {})
                stored = reachable_variables(v for v in ctx.attr_writes.values() if v is not None)
                if any(id(v) in containers and not issubclass(v.python_type(), tuple) for v in stored):
                    raise _NeedsBodyGraphs
        set_grad_enabled(grad)
        if builder.has_free_tensors() or not all(o.is_graph_value or o.is_constant for o in outputs):
            raise _NeedsBodyGraphs
        builder.discard()
    for number in tx.symbols.symbolic_input_scalars[
        numbers:
    ]:  # the node runs the user's code, which reads the number again
        number.as_python_constant(tx)


class _MutatesContainerArgument(Unsupported):
    """Raised if a body mutates or returns a container argument."""


@contextlib.contextmanager
def _check_containers_unmutated(tx: Tracer, cls: type[Function], inputs: list[Variable]) -> Iterator[set[int]]:
    """Check that the variables of container arguments are not mutated.

    The mutation would not reach the real containers.

    Raises:
        _MutatesContainerArgument: one was mutated.
    """
    container_ids = {id(v) for v in reachable_variables(inputs) if not v.is_graph_value and not v.is_constant}
    with tx.side_effects.recording_mutations() as changed:
        yield container_ids
    if any(id(v) in container_ids for v in changed):
        raise _MutatesContainerArgument("autograd-function", f"{cls.__name__} mutates a container argument")


def _subgraph_input(tx: Tracer, builder: SubgraphBuilder, value: Variable) -> Variable:
    """Create the subgraph input of an argument."""
    leaves: list[Variable] = []
    tree = flatten_variable(tx, value, leaves)
    return unflatten_variable(tx, tree, iter([add_parameter_for(tx, builder, leaf) for leaf in leaves]))


def _call_forward(
    tx: Tracer, cls: type[Function], ctx: AutogradFunctionContextVariable, inputs: list[Variable]
) -> Variable:
    if cls.setup_context is torch.autograd.Function.setup_context:
        return realize(tx, _static_method(tx, cls, "forward").call(tx, [ctx, *inputs], {}))
    result = realize(tx, _static_method(tx, cls, "forward").call(tx, list(inputs), {}))
    _static_method(tx, cls, "setup_context").call(tx, [ctx, TupleVariable(list(inputs)), result], {})
    return result


def _static_method(tx: Tracer, cls: type[Function], name: str) -> Variable:
    method = class_attribute(tx, cls, name, None)
    if method is None:
        raise Unsupported("autograd-function", f"{cls.__name__} has no {name}")
    return realize(tx, method)


_CTX_ATTRIBUTES = {
    "save_for_backward": "to_save",
    "save_for_forward": "saved_for_forward",
    "mark_dirty": "dirty_tensors",
    "mark_non_differentiable": "non_differentiable",
}
"""Methods that store their arguments on ctx, and the attribute that autograd reads later."""


class RealAutogradContextVariable(VariableWithMethods, UserDefinedObjectVariable):
    """A real ctx. Its attributes are set after the graph, before the forward returns."""

    methods = (*_CTX_ATTRIBUTES, "set_materialize_grads")

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if kwargs or name not in self.methods:
            return super().call_method(tx, name, args, kwargs)
        stored = TupleVariable([realize(tx, a) for a in args]) if name in _CTX_ATTRIBUTES else args[0]
        self.write_attr(tx, _CTX_ATTRIBUTES.get(name, "materialize_grads"), stored)
        return NONE

    def generic_set_attr(self, tx: Tracer, name: str, value: Variable | None) -> None:
        if name in (*_CTX_ATTRIBUTES.values(), "materialize_grads"):
            raise Unsupported("autograd-function-ctx", f"setting {name} of an autograd.Function's context")
        super().generic_set_attr(tx, name, value)

    def has_no_dict(self) -> bool:
        return False


def _is_autograd_ctx(real: object) -> bool:
    methods = RealAutogradContextVariable.methods
    return isinstance(real, BackwardCFunction) and all(
        getattr(type(real), n) is getattr(FunctionCtx, n) for n in methods
    )


@register_builder_if(54, _is_autograd_ctx, why="it is the context of an autograd.Function")
def _build_autograd_ctx(tx: Tracer, real: Any, source: Source) -> Variable:
    return RealAutogradContextVariable(type(real), source, real)
