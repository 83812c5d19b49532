"""functools.singledispatch in traced code."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from engine.ir.guards.python_values import DictKeysMatch, IdMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.roots import ConstantSource
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import (
    Args,
    Kwargs,
    Variable,
    realize,
)
from engine.trace.variables.callable_registry import RULES_BY_CODE, register_rule
from engine.trace.variables.callables.functions import (
    UserFunctionVariable,
)


def _check_has_argument(tx: Tracer, name: str, args: Args) -> None:
    if not args:
        tx.raise_type_error(f"{name} requires at least 1 positional argument")


def _call_external_singledispatch(tx: Tracer, of: UserFunctionVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Call an external singledispatch function; guard on its registry.

    The implementation depends on the class of the first argument and on the registered classes.
    """
    real: Any = of.real_object
    _check_has_argument(tx, real.__name__, args)
    registered = inspect.getclosurevars(real.dispatch).nonlocals["registry"]
    known = tx.objects.variables_by_id.get(id(registered))
    if known is not None and id(known[0]) in tx.side_effects.mutated_variables:
        raise Unsupported("singledispatch", f"{of.describe()} is called; traced code registered implementations on it")
    cls = realize(tx, args[0]).python_type()
    chosen = real.dispatch(cls)
    assert of.source is not None
    registry = AttrSource(of.source, "registry")
    why = f"its implementation for {cls.__name__} was looked up"
    tx.guard(DictKeysMatch, registry, tuple(real.registry), why=why)
    found = next(k for k, v in real.registry.items() if v is chosen)
    tx.guard(IdMatch, GetItemSource(registry, found), chosen, why=why)
    return tx.wrap(chosen, ConstantSource(chosen, chosen.__qualname__)).call(tx, args, kwargs)


_SINGLEDISPATCH_CODE = functools.singledispatch(len).__code__  # type: ignore[attr-defined]
RULES_BY_CODE[id(_SINGLEDISPATCH_CODE)] = (_SINGLEDISPATCH_CODE, _call_external_singledispatch)


@register_rule(functools.singledispatch)
def _singledispatch(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    raise Unsupported("singledispatch", "a singledispatch function is created")
