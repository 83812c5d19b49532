"""Rules for functools: callables built from other callables."""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import types
from dataclasses import dataclass
from typing import Any

from engine.ir.guards.python_values import IdMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.roots import ConstantSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.operators import arithmetic
from engine.trace.operators.table import COMPARE
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import RULES_BY_CODE, register_rule
from engine.trace.variables.callables.functions import UserFunctionVariable
from engine.trace.variables.callables.methods import BoundMethodVariable
from engine.trace.variables.callables.partials import make_partial
from engine.trace.variables.objects.attribute_binding import AttributeRead, binds, call_user_descriptor
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable


class _ReprsInProgress:
    """Calls of functions under ``recursive_repr`` in one trace that have not returned."""

    def __init__(self) -> None:
        self.keys: set[tuple[int, int]] = set()
        """Pairs of the ids of the function's code and of the object's variable."""


def _recursive_repr(tx: Tracer, of: UserFunctionVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Implement ``recursive_repr``: an object inside its own repr shows the fill value."""
    cells = dict(zip(of.code.co_freevars, of.cells(tx), strict=True))
    fill = cells["fillvalue"].content if "fillvalue" in cells else None
    shown = (id(of.code), id(realize(tx, args[0])))
    in_progress = tx.state_of(_ReprsInProgress).keys
    if shown in in_progress:
        return fill or ConstantVariable("...")
    function = cells["user_function"].content
    assert function is not None
    in_progress.add(shown)
    try:
        return realize(tx, function).call(tx, args, kwargs)
    finally:
        in_progress.discard(shown)


_RECURSIVE_REPR_WRAPPERS: tuple[tuple[Any, Any], ...] = (
    (reprlib.recursive_repr()(repr), _recursive_repr),
    # dataclasses has its own copy before Python 3.12
    *((wrap(repr), _recursive_repr) for name, wrap in vars(dataclasses).items() if name == "_recursive_repr"),
)


for _wrapper, _rule in _RECURSIVE_REPR_WRAPPERS:
    RULES_BY_CODE[id(_wrapper.__code__)] = (_wrapper.__code__, _rule)


@binds(functools.partialmethod)
def _bind_partialmethod(tx: Tracer, read: AttributeRead) -> Variable:
    if read.instance is None:
        return call_user_descriptor(tx, read)
    found = read.found
    tx.guard(IdMatch, read.dict_source, found, why=f"the method {read.name!r} was used")
    origin = ConstantSource(found, read.name)
    inner = realize(tx, tx.wrap(found.func, AttrSource(origin, "func")))
    if not issubclass(inner.python_type(), types.FunctionType):
        raise Unsupported("descriptor", "a partialmethod of an object that is not a function")
    args = [tx.make_lazy(a, GetItemSource(AttrSource(origin, "args"), n)) for n, a in enumerate(found.args)]
    words = {k: tx.make_lazy(v, GetItemSource(AttrSource(origin, "keywords"), k)) for k, v in found.keywords.items()}
    return make_partial(BoundMethodVariable(read.instance, inner), list(args), dict(words))


class CmpKeyVariable(UserDefinedObjectVariable):
    """The key object that ``functools.cmp_to_key(cmp_function)`` creates for an item."""

    __slots__ = ("cmp_function", "item")

    def __init__(self, compare: Variable, item: Variable) -> None:
        super().__init__(type(functools.cmp_to_key(max)(1)), None, NotImplemented)
        self.cmp_function = compare
        self.item = item

    def lookup_special_method(self, tx: Tracer, name: str) -> Variable | None:
        symbol = _COMPARE_SYMBOLS.get(name)
        return None if symbol is None else _CmpKeyMethodVariable(self, symbol)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return self.item if name == "obj" else super().get_attr(tx, name)

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        if name != "obj":
            super().set_attr(tx, name, value)
        tx.side_effects.record_mutation(self)
        self.item = value

    def child_variables(self) -> list[Variable]:
        return [self.cmp_function, self.item]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.body.callable(lambda: cg.call(functools.cmp_to_key, self.cmp_function))
        cg.load(self.item)
        cg.body.call(1)


_COMPARE_SYMBOLS = {op.method: symbol for symbol, op in COMPARE.items()}


@dataclass(frozen=True, eq=False)
class _CmpKeyMethodVariable(Variable):
    """A rich comparison method of a key object, bound to the left key."""

    __slots__ = ("key_variable", "symbol")
    cls = type(len)
    key_variable: CmpKeyVariable
    symbol: str

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        other = realize(tx, args[0])
        if not isinstance(other, CmpKeyVariable):
            return ConstantVariable(NotImplemented)
        number = realize(tx, self.key_variable.cmp_function).call(tx, [self.key_variable.item, other.item], {})
        return arithmetic.compare_op(tx, self.symbol, number, ConstantVariable(0))


@dataclass(frozen=True, eq=False)
class _CmpToKeyVariable(Variable):
    """The result of ``functools.cmp_to_key(cmp_function)``."""

    __slots__ = ("cmp_function",)
    cls = type(functools.cmp_to_key(max))
    cmp_function: Variable

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        if len(args) + len(kwargs) != 1 or not (args or "obj" in kwargs):
            tx.fold_constant(functools.cmp_to_key(max), *[None] * len(args), **dict.fromkeys(kwargs))
        return CmpKeyVariable(self.cmp_function, args[0] if args else kwargs["obj"])

    def child_variables(self) -> list[Variable]:
        return [self.cmp_function]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(functools.cmp_to_key, self.cmp_function)


@register_rule(functools.cmp_to_key)
def _cmp_to_key(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if len(args) + len(kwargs) != 1 or not (args or "mycmp" in kwargs):
        tx.fold_constant(functools.cmp_to_key, *[None] * len(args), **dict.fromkeys(kwargs))
    return _CmpToKeyVariable(args[0] if args else kwargs["mycmp"])


@register_rule(types.MethodType)
def _method(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return BoundMethodVariable(args[1], realize(tx, args[0]))
