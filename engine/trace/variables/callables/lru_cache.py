"""functools.lru_cache and functools.singledispatch, external or created while tracing."""

from __future__ import annotations

import functools
from typing import Any

from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.external_caches import is_opaque_cache, mark_cache_opaque
from engine.trace.frame import is_trusted_module
from engine.trace.variables.base import NONE, Args, Kwargs, NotPythonConstant, Variable, is_none, realize
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callable_registry import find_rule
from engine.trace.variables.callables.builtin_functions import BuiltinVariable
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.callables.reconstruct_calls import record_call
from engine.trace.variables.objects.class_lookup import find_in_class
from engine.trace.variables.objects.constructor_registry import C_CLASS_CONSTRUCTORS
from engine.trace.variables.torch_api.trace_rules import can_constant_fold, is_in_graph_function


def _cache_key(tx: Tracer, args: Args, kwargs: Kwargs) -> Any:
    arguments = [realize(tx, a) for a in (*args, *kwargs.values())]
    return (len(args), tuple(kwargs), tuple((v.hash_key(tx), v.python_type()) for v in arguments))


class _CacheUse:
    """Results of an external cache in this trace, and the instruction of its first use."""

    def __init__(self, created_at: int) -> None:
        self.created_at = created_at
        self.results: dict[Any, Variable] = {}


class _CacheUses(dict[int, _CacheUse]):
    """Uses of external caching functions in one trace, by the id of the cache."""


class ExternalLruCacheVariable(BuiltinVariable):
    """An external function under ``functools.lru_cache``: traced once for equal arguments.

    Its present contents are unknown, so Python calls a function with side effects, or one with arguments that may have
    been mutated. A tensor that requires no grad is assumed unmodified between two calls.
    """

    def as_python_constant(self, tx: Tracer) -> Any:
        raise NotPythonConstant(self)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        if any(_may_have_mutated(tx, realize(tx, a)) for a in (*args, *kwargs.values())):
            raise Unsupported(
                "function-cache", f"{self.describe()} caches results for arguments that are not constants"
            )
        assert self.source is not None
        if tx.call_stack.may_be_from_before_break(self.source):
            raise Unsupported(
                "function-cache", f"{self.describe()} is called, and its cache was created before a graph break"
            )
        if is_opaque_cache(self.real_object):
            description = "a cache whose statistics are read or whose attributes are set"
            raise Unsupported("function-cache", f"{self.describe()} is called, {description}")
        used: _CacheUse = tx.state_of(_CacheUses).setdefault(
            id(self.real_object), _CacheUse(tx.instruction_counter.root_instruction_number)
        )
        memo = used.results
        is_dynamic = any(_has_symbols(tx, a) for a in (*args, *kwargs.values()))
        # One trace covers many values of a symbol, so no result is reused.
        key = object() if is_dynamic else _cache_key(tx, args, kwargs)
        if key not in memo:
            counts_before = (tx.side_effects.external_mutation_count, len(tx.side_effects.side_effect_calls))
            inner = tx.wrap(self.real_object.__wrapped__, AttrSource(self.source, "__wrapped__"))
            result = inner.call(tx, args, kwargs)
            if self._only_logs_or_warns(tx, args, kwargs, result, counts_before):
                return NONE
            if tx.side_effects.external_mutation_count != counts_before[0]:
                raise Unsupported(
                    "function-cache", f"{self.describe()} is called, a cache of a function with side effects"
                )
            memo[key] = result
            tx.side_effects.mark_externally_cached(result, self.real_object)
        return memo[key]

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name.startswith("cache_"):
            return BuiltinMethodVariable(self, name)
        if name in vars(self.real_object) and not name.startswith("__"):
            assert self.source is not None
            return tx.wrap(vars(self.real_object)[name], AttrSource(self.source, name))
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        first_use: _CacheUse | None = None
        if name != "cache_parameters":
            mark_cache_opaque(self.real_object)
            first_use = tx.state_of(_CacheUses).get(id(self.real_object))
        created_at = 0 if first_use is None else first_use.created_at
        raise Unsupported("function-cache", f"{name}() of {self.describe()} is called", created_at=created_at)

    def _only_logs_or_warns(
        self, tx: Tracer, args: Args, kwargs: Kwargs, result: Variable, counts_before: tuple[int, int]
    ) -> bool:
        """Return True if the call only logs or warns; then the call moves after the graph.

        There the real cache knows whether it already ran.
        """
        changes, effects = counts_before
        added_effects = len(tx.side_effects.side_effect_calls) - effects
        is_only_change = tx.side_effects.external_mutation_count - changes == added_effects
        if not added_effects or not is_only_change or not is_none(realize(tx, result)):
            return False
        del tx.side_effects.side_effect_calls[effects:]
        record_call(tx, f"{self.describe()} is called", self.real_object, args, kwargs)
        return True


def _hashes_by_contents(cls: type) -> bool:
    """Return True if an equal instance is unchanged: it hashes by contents or is immutable."""
    hash_method = find_in_class(cls, "__hash__")
    return is_trusted_module(cls.__module__) or (hash_method is not None and hash_method.owner is not object)


def _has_symbols(tx: Tracer, value: Variable) -> bool:
    realized = realize(tx, value)
    return realized.is_symbolic or any(_has_symbols(tx, item) for item in realized.argument_items())


def _may_have_mutated(tx: Tracer, value: Variable) -> bool:
    """Return True if an argument may have been passed before and mutated since."""
    if value.is_symbolic or (value.is_user_object and _hashes_by_contents(value.python_type())):
        return False
    if value.fake is not None:
        return value.source is not None and bool(value.fake.requires_grad)
    if value.argument_items():
        return any(_may_have_mutated(tx, realize(tx, item)) for item in value.argument_items())
    return value.source is not None and not tx.is_python_constant(value)


@register_builder(functools._lru_cache_wrapper)
def _cached(tx: Tracer, real: Any, source: Source) -> Variable:
    if tx.call_stack.may_be_from_before_break(source):
        tx.guard_type(real, source, "it was called")
        return ExternalLruCacheVariable(real, source)
    tx.guard_identity(real, source, "it was called")
    if find_rule(real) is not None or is_in_graph_function(real) or can_constant_fold(real):
        return BuiltinVariable(real, source)
    return ExternalLruCacheVariable(real, source)


def _construct_cache_wrapper(tx: Tracer, cls: Any, args: Args, kwargs: Kwargs) -> Variable:
    raise Unsupported("function-cache", "a cache is created")


C_CLASS_CONSTRUCTORS[functools._lru_cache_wrapper] = _construct_cache_wrapper
