"""Variable for ``functools.partial``, external or created while tracing.

Python creates and calls instances of its subclasses.
"""

from __future__ import annotations

import functools
from typing import Any

from engine.ir.introspection.literal_types import PLACEHOLDER_TYPES
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.ir.sources.containers import GetItemSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Args, Kwargs, Variable, realize
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import builtin_attribute
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import TupleVariable
from engine.trace.variables.objects.instance_dicts import has_string_keys
from engine.trace.variables.stdlib.string_format import format_proxy


class FunctoolsPartialVariable(Variable):
    """A ``functools.partial``: the wrapped function and its bound arguments."""

    function: Variable
    positional: TupleVariable
    keywords: DictVariable
    source: Source | None = None
    real_object: Any = NotImplemented
    cls = functools.partial

    is_mutable = True

    def as_python_object(self) -> Any:
        return self.real_object

    @property
    def keyword_arguments(self) -> Kwargs:
        """The keyword arguments by name."""
        if not has_string_keys(self.keywords):
            raise self.unsupported("keywords that are not strings", "builtin-arguments")
        return {str(k): v for k, (_, v) in self.keywords.entries.items()}

    def format_contents(self, tx: Tracer, proxies: dict[int, Any]) -> Any:
        keywords = {name: format_proxy(tx, value) for name, value in self.keyword_arguments.items()}
        function = realize(tx, self.function).as_python_constant(tx)
        return functools.partial(function, *(format_proxy(tx, item) for item in self.positional.items), **keywords)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        parts = {"func": self.function, "args": self.positional, "keywords": self.keywords}
        if name in parts:
            return parts[name]
        if self.source is not None and name in vars(self.real_object):
            return tx.wrap(vars(self.real_object)[name], AttrSource(self.source, name))
        if not self.lacks_methods(name):
            return builtin_attribute(tx, self, name)
        return tx.fold_constant(getattr, functools.partial(len), name)

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        raise self.unsupported_attribute("setting", name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name != "__call__":
            raise self.unsupported_method(name)
        return self.call(tx, args, kwargs)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        function = realize(tx, self.function)
        if tx.call_stack.direct_callee is self:
            tx.call_stack.direct_callee = function
        needed = sum(map(_is_placeholder, self.positional.items))
        if len(args) < needed:
            tx.raise_type_error(
                f"missing positional arguments in 'partial' call; expected at least {needed}, got {len(args)}"
            )
        filled = _fill_placeholders(self.positional.items, args)
        return function.call(tx, filled, {**self.keyword_arguments, **kwargs})

    child_fields = ("function", "positional", "keywords")

    def reconstruct(self, cg: PyCodegen) -> None:
        if cg.is_cyclic(self):
            raise Unsupported("rebuild-value", "rebuilding a partial function that contains itself after the graph")
        cg.call(functools.partial, self.function, *self.positional.items, **self.keyword_arguments)


def _is_placeholder(value: Variable) -> bool:
    """Return True for ``functools.Placeholder``, which Python has from version 3.14 on."""
    return value.python_type() in PLACEHOLDER_TYPES


def _fill_placeholders(bound: Args, call_args: Args) -> Args:
    """Replace placeholders among bound arguments by given ones; append the other given ones."""
    left = iter(call_args)
    return [*(next(left, item) if _is_placeholder(item) else item for item in bound), *left]


def make_partial(function: Variable, args: Args, kwargs: Kwargs) -> FunctoolsPartialVariable:
    """Create a new partial."""
    return FunctoolsPartialVariable(function, TupleVariable(list(args)), DictVariable.from_str_keys(kwargs))


@register_rule(functools.partial)
def _construct_partial(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if not args:
        tx.raise_type_error("type 'partial' takes at least one argument")
    inner = realize(tx, args[0])
    if inner.lacks_methods("__call__"):
        tx.raise_type_error("the first argument must be callable")
    if _is_placeholder(args[-1]):
        tx.raise_type_error("trailing Placeholders are not allowed")
    if any(map(_is_placeholder, kwargs.values())):
        tx.raise_type_error("Placeholder cannot be passed as a keyword argument")
    # A partial of a partial is flattened, unless the inner one has attributes.
    if isinstance(inner, FunctoolsPartialVariable) and not (inner.source and vars(inner.real_object)):
        keywords = {**inner.keyword_arguments, **kwargs}
        return make_partial(inner.function, _fill_placeholders(inner.positional.items, args[1:]), keywords)
    return make_partial(inner, list(args[1:]), kwargs)


@register_builder(functools.partial, why="it was called")
def _partial(tx: Tracer, real: functools.partial[Any], source: Source) -> Variable:
    args: Any = tx.wrap(real.args, AttrSource(source, "args"))
    if PLACEHOLDER_TYPES:  # an argument that is never used is not guarded otherwise
        for n, arg in enumerate(real.args):
            tx.guard_type(arg, GetItemSource(AttrSource(source, "args"), n), "placeholders take arguments of the call")
    kwargs: Any = tx.wrap(real.keywords, AttrSource(source, "keywords"))
    return FunctoolsPartialVariable(tx.wrap(real.func, AttrSource(source, "func")), args, kwargs, source, real)
