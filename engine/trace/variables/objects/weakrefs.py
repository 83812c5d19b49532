"""Variable for ``weakref.ref``; weak proxies are left to Python."""

from __future__ import annotations

import builtins
import types
import weakref
from typing import Any

from engine.ir.guards.python_values import IdMatch
from engine.ir.register_once import register_table
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.ir.sources.stdlib import WeakRefCallSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.variables.base import NONE, Args, Kwargs, Variable, realize
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable
from engine.trace.variables.slotted_type import state


class WeakRefVariable(Variable):
    """A ``weakref.ref``; it has no source if traced code created it.

    ``referent`` is the constant None if the object is collected.
    """

    referent: Variable
    source: Source | None = None
    real_object: Any = None
    callback: Variable | None = None
    real_referent: Any = state(NotImplemented)
    """The real referent if it exists, otherwise NotImplemented."""

    is_mutable = True

    def as_python_object(self) -> Any:
        # An object has at most one weak reference without a callback; weakref.ref returns it.
        if self.real_object is None and self.callback is None and self.real_referent is not NotImplemented:
            return weakref.ref(self.real_referent)
        return NotImplemented if self.real_object is None else self.real_object

    def python_type(self) -> builtins.type:
        return weakref.ref if self.real_object is None else type(self.real_object)

    def hash_key(self, tx: Tracer) -> Any:
        return ("weakref", self.referent.hash_key(tx))

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "key" and self.source is not None and issubclass(self.python_type(), weakref.KeyedRef):
            return tx.make_lazy(self.real_object.key, AttrSource(self.source, "key"))
        return super().get_attr(tx, name)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        if self.source is None and _may_be_collected(tx, self.referent) and not _is_held_by_frame(tx, self.referent):
            raise SkipFrame(
                "weak-reference", f"a weak reference checks whether {self.referent.describe()} is still alive"
            )
        return self.referent

    child_fields = ("referent", "callback")

    def reconstruct(self, cg: PyCodegen) -> None:
        if cg.continues_after and _may_be_collected(cg.tx, self.referent):
            raise Unsupported(
                "weak-reference", f"{self.referent.describe()} must be freed as soon as nothing refers to it"
            )
        cg.call(weakref.ref, *self.child_variables())


def _may_be_collected(tx: Tracer, of: Variable) -> bool:
    """Return True if traced code alone may hold the object.

    It was created while tracing, or by the part of the function before a graph break.
    """
    if of.source is None or of.is_constructed:
        return True
    return tx.call_stack.may_be_from_before_break(of.source)


def _is_held_by_frame(tx: Tracer, of: Variable) -> bool:
    """Return True if a local, a cell or a stack slot of an active frame holds the object."""
    variables = (
        v for frame in tx.call_stack.frames for v in (*frame.locals.values(), *frame.stack, *frame.cell_contents())
    )
    return any(v.resolved is of for v in variables)


@register_builder(weakref.ref, weakref.KeyedRef, why="the object behind the weak reference was used")
def _reference(tx: Tracer, real: Any, source: Source) -> Variable:
    referent = real()
    referent_source = WeakRefCallSource(source)
    if referent is None:
        tx.guard(IdMatch, referent_source, None, why="the object behind the weak reference was freed")
        return WeakRefVariable(NONE, source, real)
    return WeakRefVariable(tx.wrap(referent, referent_source), source, real)


_KINDS = {
    weakref.ref: "reference",
    weakref.KeyedRef: "reference with a key",
    weakref.finalize: "reference with a finalizer",
    weakref.WeakMethod: "reference to a method,",
    weakref.proxy: "proxy",
}


@register_table(register_rule, _KINDS)
def _create_weakref(make: Any, kind: str, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[0]) if args else NONE
    if (
        kind == "reference"
        and len(args) == 1
        and not kwargs
        and (not _may_be_collected(tx, of) or type(of) is UserDefinedObjectVariable or of.fake is not None)
    ):
        reference = WeakRefVariable(of)
        reference.real_referent = tx.objects.real_object(of)
        return reference
    is_method = issubclass(of.python_type(), types.MethodType)
    outlives_call = not kwargs and not is_method and not _may_be_collected(tx, of)
    if outlives_call and kind == "reference" and len(args) == 2:
        return WeakRefVariable(of, callback=args[1])
    what = f"a weak {kind} to {of.describe()} is created"
    if is_method or _may_be_collected(tx, of):
        # The referent dies with its last reference. A function split by a graph break would change that moment.
        raise SkipFrame("weak-reference", what)
    raise Unsupported("weak-reference", what)


@register_builder(weakref.ProxyType, weakref.CallableProxyType)
def _proxy(tx: Tracer, real: Any, source: Source) -> Variable:
    raise Unsupported("weak-reference", "a weak proxy is used")
