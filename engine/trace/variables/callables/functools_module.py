"""Rules for functools: callables built from other callables."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import reprlib
import types
from typing import Any

from engine.ir.guards.python_values import DictKeysMatch, IdMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.roots import ConstantSource
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import RULES_BY_CODE, register_break, register_rule
from engine.trace.variables.callables.functions import UserFunctionVariable
from engine.trace.variables.callables.methods import BoundMethodVariable
from engine.trace.variables.callables.partials import make_partial
from engine.trace.variables.objects.attribute_binding import AttributeRead, binds, call_user_descriptor


class _ReprsInProgress(set[tuple[int, int]]):
    """Calls of functions under ``recursive_repr`` in one trace that have not returned.

    Each is a pair: the ids of the function's code and of the object's variable.
    """


def _recursive_repr(tx: Tracer, of: UserFunctionVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Implement ``recursive_repr``: an object inside its own repr shows the fill value."""
    cells = dict(zip(of.code.co_freevars, of.cells(tx), strict=True))
    fill_value = cells["fillvalue"].content if "fillvalue" in cells else None
    call_key = (id(of.code), id(realize(tx, args[0])))
    in_progress = tx.state_of(_ReprsInProgress)
    if call_key in in_progress:
        return fill_value or ConstantVariable("...")
    function = cells["user_function"].content
    assert function is not None
    in_progress.add(call_key)
    try:
        return realize(tx, function).call(tx, args, kwargs)
    finally:
        in_progress.discard(call_key)


for _wrap in (reprlib.recursive_repr(), vars(dataclasses).get("_recursive_repr")):
    if _wrap is not None:  # dataclasses has its own copy before Python 3.12
        _code = _wrap(repr).__code__
        RULES_BY_CODE[id(_code)] = (_code, _recursive_repr)


@binds(functools.partialmethod)
def _bind_partialmethod(tx: Tracer, read: AttributeRead) -> Variable:
    if read.instance is None:
        return call_user_descriptor(tx, read)
    method = read.raw
    tx.guard(IdMatch, read.dict_source, method, why=f"the method {read.name!r} was used")
    source = ConstantSource(method, read.name)
    inner = realize(tx, tx.wrap(method.func, AttrSource(source, "func")))
    if not issubclass(inner.python_type(), types.FunctionType):
        raise Unsupported("descriptor", "a partialmethod of an object that is not a function")
    args = [tx.make_lazy(a, GetItemSource(AttrSource(source, "args"), n)) for n, a in enumerate(method.args)]
    keywords: dict[str, Variable] = {
        k: tx.make_lazy(v, GetItemSource(AttrSource(source, "keywords"), k)) for k, v in method.keywords.items()
    }
    return make_partial(BoundMethodVariable(read.instance, inner), list(args), keywords)


register_rule(types.MethodType)(lambda tx, args, kwargs: BoundMethodVariable(args[1], realize(tx, args[0])))


def _call_external_singledispatch(tx: Tracer, of: UserFunctionVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Call an external singledispatch function; guard on its registry.

    The implementation depends on the class of the first argument and on the registered classes.
    """
    real: Any = of.real_object
    if not args:
        tx.raise_type_error(f"{real.__name__} requires at least 1 positional argument")
    registered = inspect.getclosurevars(real.dispatch).nonlocals["registry"]
    variable = tx.objects.variables_by_id.get(id(registered))
    if variable is not None and id(variable[0]) in tx.side_effects.mutated_variables:
        raise Unsupported("singledispatch", f"{of.describe()} is called; traced code registered implementations on it")
    cls = realize(tx, args[0]).python_type()
    chosen = real.dispatch(cls)
    assert of.source is not None
    registry = AttrSource(of.source, "registry")
    why = f"its implementation for {cls.__name__} was looked up"
    tx.guard(DictKeysMatch, registry, tuple(real.registry), why=why)
    registered_class = next(k for k, v in real.registry.items() if v is chosen)
    tx.guard(IdMatch, GetItemSource(registry, registered_class), chosen, why=why)
    return tx.wrap(chosen, ConstantSource(chosen, chosen.__qualname__)).call(tx, args, kwargs)


_SINGLEDISPATCH_CODE = functools.singledispatch(len).__code__  # type: ignore[attr-defined]
RULES_BY_CODE[id(_SINGLEDISPATCH_CODE)] = (_SINGLEDISPATCH_CODE, _call_external_singledispatch)


register_break("singledispatch", "a singledispatch function is created", functools.singledispatch)
