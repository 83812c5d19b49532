"""``torch.autograd.Function``: its bodies are traced for what they take for granted, and autograd itself runs it as one node."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import warnings
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd.function import Function, FunctionCtx

from engine.ir.in_graph import InGraph
from engine.trace.graph_builder import emit
from engine.trace.signals import Restart, Unsupported, UserException
from engine.trace.values.base import NONE, Const, Value, force, reached
from engine.trace.values.classes import MADE_BY, WRITTEN, class_attribute
from engine.trace.values.contexts import set_grad
from engine.trace.values.function_bodies import check_no_marks, trace_bodies
from engine.trace.values.late_reads import late_read, may_change, names_in
from engine.trace.values.methods import MethodOf
from engine.trace.values.nested import NestedBuilder, nested, twin
from engine.trace.values.objects import ObjectValue
from engine.trace.values.rules import special
from engine.trace.values.sequences import TupleValue
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorValue
from engine.trace.values.trees import flatten, unflatten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.trace.state import Tracer


class FunctionContext(ObjectValue):
    """The ``ctx`` of an ``autograd.Function`` while its bodies are looked into."""

    def __init__(self, needed: list[bool]) -> None:
        super().__init__(FunctionCtx, None, NotImplemented)
        self.saved: list[Value] = []
        self.needed = needed
        self.fixed: list[Value] = []
        """Results that have no gradient."""
        self.materializes = True
        self.dirty: list[Value] = []

    def get_attr(self, tx: Tracer, name: str) -> Value:
        match name:
            case "saved_tensors":
                return TupleValue(list(self.saved))
            case "needs_input_grad":
                return TupleValue([Const(n) for n in self.needed])
            case "save_for_backward" | "mark_non_differentiable" | "set_materialize_grads" | "save_for_forward":
                return MethodOf(self, name)
            case "mark_dirty":
                return MethodOf(self, name)
            case "mark_shared_storage":
                raise Unsupported("unknown-call", f"{name} of an autograd.Function is called")
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "save_for_backward":
            self.saved = list(args)
            return NONE
        if name == "mark_non_differentiable":
            self.fixed = list(args)
        if name == "set_materialize_grads":
            self.materializes = force(tx, args[0]).truth(tx)
        if name == "mark_dirty":
            self.dirty = list(args)
        if name in ("mark_non_differentiable", "set_materialize_grads", "save_for_forward", "mark_dirty"):
            return NONE
        return super().call_method(tx, name, args, kwargs)


@special(vars(torch.autograd.Function)["apply"].__func__)
def _apply(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls: Any = force(tx, args[0]).real()
    if not (isinstance(cls, type) and issubclass(cls, Function)):
        raise Unsupported("unknown-call", "an autograd.Function is applied to more than tensors and constants")
    given = [force(tx, a) for a in _in_order(tx, cls, args[1:], kwargs)]
    if not torch.is_grad_enabled() and not isinstance(tx.graph, NestedBuilder):
        return _forward_alone(tx, cls, given)
    try:
        if cls in _NOTING or not _is_graphs(tx, given):
            return _with_objects(tx, cls, given)
        for value in given:
            value.graph_arg(tx)
        known, outside = len(tx.input_tensors), tx.outside_changes
        try:
            _look_into(tx, cls, given)
        except _NeedsGraphs:
            return _with_objects(tx, cls, given)
        except Unsupported as error:
            if tx.outside_changes == outside and not isinstance(error, _ChangesArgument):
                raise
            _NOTING.add(cls)
            raise Restart(0, error) from error
        if len(tx.input_tensors) != known:
            return _with_objects(tx, cls, given)
    except UserException as error:
        raise Unsupported("unknown-call", f"{cls.__name__} raises while it is looked into") from error
    late = late_read(_layers(cls.backward)) if any(_needed(given)) and torch.is_grad_enabled() else ""
    effect = f"has a backward that reads {late} when it runs"
    target = InGraph(cls.__name__, cls.apply, is_python=True, changes_state=bool(late), effect=effect)
    return emit(tx, "call_function", target, given)


_NOTING: weakref.WeakSet[type] = weakref.WeakSet()
"""Functions seen to change Python objects outside of themselves: their node must not run their own code, which would change them once more."""


def _instance(tx: Tracer, cls: type[Function], args: list[Value], kwargs: dict[str, Value]) -> Value:
    """An object of a function's class, which nobody needs: its methods are static."""
    return ObjectValue(cls, None, NotImplemented)


MADE_BY[torch._C._FunctionBase] = _instance


@special(torch.autograd.Function.__init__)
def _warned(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    text = f"{force(tx, args[0]).type()}{_INSTEAD}"
    return force(tx, tx.fixed(warnings.warn).call(tx, [Const(text), tx.fixed(DeprecationWarning)], {}))


_INSTEAD = next((c for c in torch.autograd.Function.__init__.__code__.co_consts if " should not be" in str(c)), "")


class _Named(torch.autograd.Function):
    """Asks whether this torch passes arguments by name on."""

    @staticmethod
    def forward(_: Any, given: int) -> int:
        return given


@functools.cache
def _takes_names() -> bool:
    try:
        _Named.apply(given=1)  # type: ignore[no-untyped-call]
    except TypeError:
        return False
    return True


def _in_order(tx: Tracer, cls: type[Function], args: list[Value], kwargs: dict[str, Value]) -> list[Value]:
    """All arguments by position, as autograd binds them: with a context of its own, a forward has its defaults filled in.

    Raises:
        Unsupported: they do not fit the forward, or this torch takes none by name.
    """
    has_context = cls.setup_context is torch.autograd.Function.setup_context
    code = getattr(cls.forward, "__code__", None)
    if not kwargs and (has_context or code is None):
        return args
    if code is None or code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        if not kwargs:
            return args
        raise Unsupported("unknown-call", f"{cls.__name__} takes arguments by name")
    names = code.co_varnames[int(has_context) : code.co_argcount]
    given = dict(zip(names, args, strict=False))
    defaults = () if has_context else cls.forward.__defaults__ or ()
    values = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    both = given.keys() & kwargs.keys()
    given |= kwargs
    last = max((names.index(n) for n in given if n in names), default=-1) if has_context else len(names) - 1
    wanted = names[: last + 1]
    fits = len(args) <= len(names) and not both and set(given) <= set(names) and set(wanted) <= {*given, *values}
    if not fits or (has_context and not _takes_names()):
        raise Unsupported("unknown-call", f"{cls.__name__} is applied to arguments that its forward does not take")
    return [given[n] if n in given else tx.from_python(values[n]) for n in wanted]


class _NeedsGraphs(Exception):
    """A node that calls the function does not do.

    A body reads a tensor that is no argument, the forward gives back objects that it made, or the backward keeps a container that it is given.
    """


def _is_graphs(tx: Tracer, given: list[Value]) -> bool:
    """Whether a graph can hold all arguments."""
    try:
        flatten(tx, TupleValue(given), [])
    except Unsupported:
        return False
    return True


def _with_objects(tx: Tracer, cls: type[Function], given: list[Value]) -> Value:
    """The function where it takes objects, or reads tensors that it is not given: its bodies are traced into graphs of their own.

    Raises:
        Unsupported: it marks what it changes, or wants to be told of missing gradients.
    """
    ctx = FunctionContext(_needed(given))
    if not any(ctx.needed) and not isinstance(tx.graph, NestedBuilder):
        grad = torch.is_grad_enabled()
        set_grad(tx, mode=False)
        result = _forward_alone(tx, cls, given)
        set_grad(tx, mode=grad)
        return result
    once = getattr(cls.backward, "__code__", None) is _ONCE

    def result_of(name: str, args: list[Value]) -> Value:
        if name == "forward":
            found = _result(tx, cls, ctx, args)
            if ctx.dirty or not ctx.materializes:
                raise Unsupported("unknown-call", f"{cls.__name__} marks what it changes, or takes missing gradients")
            return found
        _check_backward(tx, cls, ctx)
        return _method(tx, cls, name).call(tx, args, {})

    return trace_bodies(tx, cls, given, ctx, result_of, once=once)


def _check_backward(tx: Tracer, cls: type[Function], ctx: FunctionContext) -> None:
    """Python would run the backward later, when what is changed before or after this point has changed: it must not get at that.

    Raises:
        Unsupported: it may.
    """
    backward = _Backward(cls.__name__, list(_layers(cls.backward)), ctx, tx.root_executed)
    if any(type(layer) is not types.FunctionType for layer in backward.layers):
        raise Unsupported("unknown-call", f"the backward of {cls.__name__} is no plain function")
    if backward.reads_changed(tx) or backward.reads_late():
        raise backward.refused()
    tx.backwards.append(backward)


def _layers(function: Any) -> Iterator[Any]:
    """A function and those that it is wrapped around, by decorators that say so."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


class _Backward(NamedTuple):
    """A backward that was traced with what it reads from outside as it was then."""

    name: str
    layers: list[Any]
    ctx: FunctionContext
    born: int
    """Which of the root's instructions applied the function."""

    def reads_changed(self, tx: Tracer) -> bool:
        """Whether it may get at what the traced code has changed so far."""
        for layer in self.layers:
            names = names_in(layer.__code__)
            cells = [cell for cell in layer.__closure__ or () if cell != _EMPTY]
            named = [layer.__globals__.get(name) for name in names]
            named += [*cells, *(cell.cell_contents for cell in cells)]
            known = [tx.known[id(v)][0] for v in named if id(v) in tx.known]
            known += [value for name, value in self.ctx.written.items() if name in names and value is not None]
            written = (n for space, n in tx.globals_written if space.values is layer.__globals__)
            if not names.isdisjoint(written) or any(id(v) in tx.mutated for v in reached(known)):
                return True
            if any(of is v for of, _ in WRITTEN for v in named):
                return True
        return False

    def reads_late(self) -> bool:
        """Whether it may get at what other code may have changed by the time it runs."""
        names = set().union(*(names_in(layer.__code__) for layer in self.layers))
        kept = [value for name, value in self.ctx.written.items() if name in names and value is not None]
        return bool(late_read(self.layers)) or any(map(_is_from_outside, reached(kept)))

    def refused(self) -> Unsupported:
        """Python must apply the function, whose backward runs later."""
        reason = Unsupported("side-effect", f"the backward of {self.name} reads what may be changed before it runs")
        reason.born = self.born
        return reason


def check_backwards(tx: Tracer) -> None:
    """Look once more where the graph ends: what a backward reads may have been changed after the function was applied.

    Raises:
        Restart: it was.
    """
    for backward in tx.backwards:
        if backward.reads_changed(tx):
            raise Restart(backward.born, backward.refused())


def _is_from_outside(value: Value) -> bool:
    if value.origin is None or isinstance(value, (TensorValue, SymValue, Const)):
        return False
    return may_change(value.real())


def _needed(given: list[Value]) -> list[bool]:
    """Which arguments want a gradient."""
    return [isinstance(a, TensorValue) and a.fake.requires_grad for a in given]


_EMPTY = types.CellType()
_ONCE = torch.autograd.function.once_differentiable(lambda *_: None).__code__
"""The code that marks a backward as one that cannot be differentiated."""


def _forward_alone(tx: Tracer, cls: type[Function], given: list[Value]) -> Value:
    """Nothing records gradients: the forward is an ordinary call, whatever its arguments are, but for what it marks or gives back."""
    ctx = FunctionContext(_needed(given))
    result = _result(tx, cls, ctx, given)
    dirty = [force(tx, d) for d in ctx.dirty]
    for marked in dirty:  # autograd counts it as one write more
        if isinstance(marked, TensorValue):
            emit(tx, "call_function", torch.autograd.graph.increment_version, [marked])
    if isinstance(result, TupleValue):
        return TupleValue([_given_back(tx, force(tx, o), given, dirty) for o in result.items])
    return _given_back(tx, result, given, dirty)


def _given_back(tx: Tracer, output: Value, given: list[Value], dirty: list[Value]) -> Value:
    """A result, or another tensor over its memory where it is an argument, as autograd has it where no gradient is recorded."""
    if not isinstance(output, TensorValue) or (output in dirty and output in given and not output.fake.requires_grad):
        return output
    if output in given:
        method = "detach" if output.fake.requires_grad else "view_as"
        return emit(tx, "call_method", method, [output] if method == "detach" else [output, output])
    if output.fake.requires_grad and output.fake._is_view():
        emit(tx, "call_function", _MADE_BY_HAND, [output])
    return output


def _mark(view: torch.Tensor) -> None:
    if view._is_view() and view.requires_grad:
        torch._C._autograd._set_creation_meta(view, torch._C._autograd.CreationMeta.IN_CUSTOM_FUNCTION)


_MADE_BY_HAND = InGraph("made_by_hand", _mark)
"""Autograd remembers that a function of the user's own made a view, though it records no gradient: it may not be written to."""


def _look_into(tx: Tracer, cls: type[Function], given: list[Value]) -> None:
    """Trace forward and backward for their guards, and for what cannot be part of a graph; the nodes are thrown away."""
    needed = _needed(given)
    ctx = FunctionContext(needed)
    numbers = len(tx.input_ints)
    with nested(tx) as builder:
        builder.is_function_body = True
        grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        inputs = [_inside(tx, builder, a) for a in given]
        with _unchanged(tx, cls, inputs) as containers:
            outputs = _forward(tx, cls, ctx, inputs)
            check_no_marks(cls, [*inputs, *outputs])
            if any(id(o) in containers for o in outputs):
                raise _ChangesArgument("side-effect", f"{cls.__name__} gives back a container that it is given")
            if grad and any(needed):
                grads: list[Value] = [
                    twin(tx, builder, o.fake.detach()) if isinstance(o, TensorValue) else NONE for o in outputs
                ]
                _method(tx, cls, "backward").call(tx, [ctx, *grads], {})
                kept = reached(v for v in ctx.written.values() if v is not None)
                if any(id(v) in containers and not isinstance(v, TupleValue) for v in kept):
                    raise _NeedsGraphs
        torch._C._set_grad_enabled(grad)
        if builder.reads_outside() or not all(isinstance(o, (TensorValue, SymValue, Const)) for o in outputs):
            raise _NeedsGraphs
        builder.discard()
    for number in tx.input_ints[numbers:]:  # the node runs the function's own code, which reads it anew
        number.python(tx)


class _ChangesArgument(Unsupported):
    """A body changes a container that it is given, or gives it back."""


@contextlib.contextmanager
def _unchanged(tx: Tracer, cls: type[Function], inputs: list[Value]) -> Iterator[set[int]]:
    """What stands for arguments must not be changed: the containers themselves would not be.

    Raises:
        _ChangesArgument: one was.
    """
    given = {id(v) for v in reached(inputs) if not isinstance(v, (TensorValue, SymValue, Const))}
    before, tx.changed = tx.changed, []
    try:
        yield given
    finally:
        changed, tx.changed = tx.changed, before
        if before is not None:
            before.extend(changed)
    if any(id(v) in given for v in changed):
        raise _ChangesArgument("side-effect", f"{cls.__name__} changes a container that it is given")


def _inside(tx: Tracer, builder: NestedBuilder, value: Value) -> Value:
    """What a body sees of an argument."""
    leaves: list[Value] = []
    tree = flatten(tx, value, leaves)
    twins: list[Value] = []
    for leaf in leaves:
        if isinstance(leaf, TensorValue):
            twins.append(twin(tx, builder, leaf.fake))
        elif isinstance(leaf, SymValue):
            twins.append(SymValue(builder.parameter(leaf.sym), leaf.sym))
    return unflatten(tx, tree, iter(twins))


def _forward(tx: Tracer, cls: type[Function], ctx: FunctionContext, inputs: list[Value]) -> list[Value]:
    result = _result(tx, cls, ctx, inputs)
    return [force(tx, i) for i in result.items] if isinstance(result, TupleValue) else [result]


def _result(tx: Tracer, cls: type[Function], ctx: FunctionContext, inputs: list[Value]) -> Value:
    if cls.setup_context is torch.autograd.Function.setup_context:
        return force(tx, _method(tx, cls, "forward").call(tx, [ctx, *inputs], {}))
    result = force(tx, _method(tx, cls, "forward").call(tx, list(inputs), {}))
    _method(tx, cls, "setup_context").call(tx, [ctx, TupleValue(list(inputs)), result], {})
    return result


def _method(tx: Tracer, cls: type[Function], name: str) -> Value:
    found = class_attribute(tx, cls, name, None)
    if found is None:
        raise Unsupported("unknown-call", f"{cls.__name__} has no {name}")
    return force(tx, found)
