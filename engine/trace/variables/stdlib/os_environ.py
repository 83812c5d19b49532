"""os.environ, os.getenv and os.fspath in traced code."""

from __future__ import annotations

import os

from engine.ir.guards.python_values import EqualsMatch, IdMatch
from engine.ir.sources.base import MISSING
from engine.ir.sources.containers import DictGetSource
from engine.ir.sources.roots import ConstantSource
from engine.trace.annotations import Tracer
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, RealObjectVariable, Variable, realize
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callable_registry import register_bound_rule, register_rule
from engine.trace.variables.callables.methods import builtin_attribute


class OsEnvironVariable(RealObjectVariable):
    """``os.environ``. Each variable read is guarded."""

    def _read(self, tx: Tracer, key: Variable) -> str | None:
        name = key.as_python_constant(tx)
        source = DictGetSource(ConstantSource(os.environ, "os.environ"), name)
        setting = os.environ.get(name)
        cause = tx.guard_cause("an environment variable decided what was traced")
        tx.guards.add(
            IdMatch(source, MISSING, cause=cause) if setting is None else EqualsMatch(source, setting, cause=cause)
        )
        return setting

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        setting = self._read(tx, key)
        if setting is None:
            raise tx.make_user_exception(KeyError(key.as_python_constant(tx)))
        return ConstantVariable(setting)

    def contains(self, tx: Tracer, item: Variable) -> bool:
        return self._read(tx, item) is not None

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return builtin_attribute(tx, self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name != "get":
            raise self.unsupported_method(name)
        setting = self._read(tx, realize(tx, args[0]))
        if setting is not None:
            return ConstantVariable(setting)
        return args[1] if len(args) > 1 else kwargs.get("default", NONE)


register_builder(type(os.environ))(lambda tx, real, source: OsEnvironVariable(real, source))


@register_bound_rule(os.fspath)
def _fspath(tx: Tracer, path: Variable) -> Variable:
    if path.is_constant:
        return tx.fold_constant(os.fspath, path.constant)
    if not hasattr(path.python_type(), "__fspath__"):
        tx.raise_type_error(f"expected str, bytes or os.PathLike object, not {path.python_type().__name__}")
    return realize(tx, path.get_attr(tx, "__fspath__")).call(tx, [], {})


@register_rule(os.getenv)
def _getenv(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return OsEnvironVariable(os.environ, ConstantSource(os.environ, "os.environ")).call_method(tx, "get", args, kwargs)
