"""functools.lru_cache and functools.singledispatch, external or created while tracing."""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import Any

from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.external_caches import is_opaque_cache, mark_cache_opaque
from engine.trace.frame import is_trusted_module
from engine.trace.variables.base import (
    NONE,
    Args,
    AttributeDictVariable,
    ConstantVariable,
    Kwargs,
    NotPythonConstant,
    UserErrors,
    Variable,
    is_none,
    realize,
)
from engine.trace.variables.builder import register_builder, register_builder_if
from engine.trace.variables.callable_registry import find_rule
from engine.trace.variables.callables.builtin_functions import BuiltinVariable
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.callables.reconstruct_calls import CallExpressionVariable, emit_store_attributes
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import TupleVariable
from engine.trace.variables.objects.class_lookup import find_in_class, first_import_of_class
from engine.trace.variables.objects.constructor_registry import C_CLASS_CONSTRUCTORS
from engine.trace.variables.objects.instance_dicts import InstanceDictVariable
from engine.trace.variables.torch_api.trace_rules import can_constant_fold, is_in_graph_function

_CACHE_INFO: Any = vars(functools)["_CacheInfo"]


def _cache_key(tx: Tracer, args: Args, kwargs: Kwargs, *, typed: bool) -> Any:
    given = [realize(tx, a) for a in (*args, *kwargs.values())]
    kinds = tuple(v.python_type() for v in given) if typed else ()
    # CPython uses a lone int or str itself as the key, which equals no key of another form.
    is_alone = not typed and not kwargs and len(given) == 1 and given[0].python_type() in (int, str)
    return (len(args), tuple(kwargs), tuple(v.hash_key(tx) for v in given), kinds, is_alone)


class _CacheUse:
    """Results of an external cache in this trace, and the instruction of its first use."""

    def __init__(self, born: int) -> None:
        self.created_at = born
        self.results: dict[Any, Variable] = {}


class _CacheUses:
    """Uses of external caching functions in one trace."""

    def __init__(self) -> None:
        self.by_cache_id: dict[int, _CacheUse] = {}


class ExternalLruCacheVariable(BuiltinVariable):
    """An external function under ``functools.lru_cache``: traced once for equal arguments.

    Its present contents are unknown, so Python calls a function with side effects, or one with arguments that may have
    been mutated. A tensor that requires no grad is assumed unmodified between two calls.
    """

    __slots__ = ()

    def as_python_constant(self, tx: Tracer) -> Any:
        raise NotPythonConstant

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
            what = "a cache whose statistics are read or whose attributes are set"
            raise Unsupported("function-cache", f"{self.describe()} is called, {what}")
        used: _CacheUse = tx.state_of(_CacheUses).by_cache_id.setdefault(
            id(self.real_object), _CacheUse(tx.interpreter.root_instruction_number)
        )
        memo = used.results
        is_dynamic = any(
            _has_symbols(tx, a) for a in (*args, *kwargs.values())
        )  # one trace covers many values of a symbol
        key = object() if is_dynamic else _cache_key(tx, args, kwargs, typed=True)
        if key not in memo:
            before = (tx.side_effects.external_mutation_count, len(tx.side_effects.side_effect_calls))
            inner = tx.wrap(self.real_object.__wrapped__, AttrSource(self.source, "__wrapped__"))
            result = inner.call(tx, args, kwargs)
            if self._only_logs_or_warns(tx, args, kwargs, result, before):
                return NONE
            if tx.side_effects.external_mutation_count != before[0]:
                raise Unsupported(
                    "function-cache", f"{self.describe()} is called, a cache of a function with side effects"
                )
            memo[key] = result
            tx.side_effects.mark_externally_cached(result, self.real_object)
        return memo[key]

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return BuiltinMethodVariable(self, name) if name.startswith("cache_") else super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        refused = Unsupported("function-cache", f"{name}() of {self.describe()} is called")
        if name != "cache_parameters":
            mark_cache_opaque(self.real_object)
            used = tx.state_of(_CacheUses).by_cache_id.get(id(self.real_object))
            refused.created_at = used.created_at if used is not None else 0
        raise refused

    def _only_logs_or_warns(
        self, tx: Tracer, args: Args, kwargs: Kwargs, result: Variable, before: tuple[int, int]
    ) -> bool:
        """Return True if the call only logs or warns; then the call moves after the graph.

        There the real cache knows whether it already ran.
        """
        changes, effects = before
        added_effects = len(tx.side_effects.side_effect_calls) - effects
        is_only_change = tx.side_effects.external_mutation_count - changes == added_effects
        if not added_effects or not is_only_change or not is_none(realize(tx, result)):
            return False
        del tx.side_effects.side_effect_calls[effects:]
        tx.side_effects.record_side_effect(
            CallExpressionVariable(self.real_object, args, kwargs), f"{self.describe()} is called"
        )
        return True


def _hashes_by_contents(cls: type) -> bool:
    """Return True if an equal instance is unchanged: it hashes by contents or is immutable."""
    found = find_in_class(cls, "__hash__")
    return is_trusted_module(cls.__module__) or (found is not None and found[0] is not object)


def _has_symbols(tx: Tracer, value: Variable) -> bool:
    found = realize(tx, value)
    return found.is_symbolic or any(_has_symbols(tx, item) for item in found.argument_items())


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
def _cached(tx: Tracer, real: Any, origin: Source) -> Variable:
    if tx.call_stack.may_be_from_before_break(origin):
        tx.guard_type(real, origin, "it was called")
        return ExternalLruCacheVariable(real, origin)
    tx.guard_identity(real, origin, "it was called")
    if find_rule(real) is not None or is_in_graph_function(real) or can_constant_fold(real):
        return BuiltinVariable(real, origin)
    return ExternalLruCacheVariable(real, origin)


@register_builder_if(22, lambda real: first_import_of_class(type(real)) is functools._lru_cache_wrapper)
def _cached_from_reimport(tx: Tracer, real: Any, origin: Source) -> Variable:
    return _cached(tx, real, origin)


class LruCacheVariable(AttributeDictVariable):
    """``functools.lru_cache(maxsize, typed)(function)`` created while tracing.

    ``memo`` maps cache keys to results, least recently used first.
    """

    __slots__ = (
        "attributes",
        "cls",
        "created_at",
        "function",
        "hits",
        "info_class",
        "maxsize",
        "memo",
        "misses",
        "typed",
    )

    is_mutable = True
    is_copied_by_reference = True

    def __init__(
        self, function: Variable, maxsize: int | None, typed: bool, born: int, cls: Any = None, info: Any = _CACHE_INFO
    ) -> None:
        self.cls: type = cls or functools._lru_cache_wrapper
        self.info_class = info
        self.function = function
        self.maxsize = maxsize
        self.typed = typed
        self.created_at = born
        self.attributes: dict[str, Variable] = {}
        self.memo: OrderedDict[Any, Variable] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        key = _cache_key(tx, args, kwargs, typed=self.typed)
        tx.side_effects.mutation_count += 1
        if key in self.memo:
            self.hits += 1
            self.memo.move_to_end(key)
            return self.memo[key]
        self.misses += 1
        result = realize(tx, self.function).call(tx, args, kwargs)
        self.memo[key] = result
        if self.maxsize is not None and len(self.memo) > self.maxsize:
            self.memo.popitem(last=False)
        return result

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in self.attributes:
            return self.attributes[name]
        if name in ("cache_info", "cache_clear", "cache_parameters"):
            return BuiltinMethodVariable(self, name)
        if name == "__dict__":
            return InstanceDictVariable(tx, self)
        if name == "__wrapped__":
            return self.function
        return realize(tx, self.function).get_attr(tx, name)

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        self.write_attr(tx, name, value)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        match name:
            case "cache_info":
                counts = (self.hits, self.misses, self.maxsize, len(self.memo))
                return TupleVariable([ConstantVariable(n) for n in counts], self.info_class)
            case "cache_clear":
                tx.side_effects.mutation_count += 1
                self.memo.clear()
                self.hits = self.misses = 0
                return NONE
            case "cache_parameters":
                parts = {"maxsize": ConstantVariable(self.maxsize), "typed": ConstantVariable(self.typed)}
                return DictVariable.from_str_keys(parts)
        return super().call_method(tx, name, args, kwargs)

    def child_variables(self) -> list[Variable]:
        return [self.function, *self.attributes.values()]

    def reconstruct(self, cg: PyCodegen) -> None:
        if self.hits or self.misses:
            error = Unsupported("rebuild-value", "rebuilding a cache that holds results after the graph")
            error.created_at = self.created_at
            raise error
        cg.call(self.cls, self.function, self.maxsize, self.typed, self.info_class)
        cg.call_on_top(functools.update_wrapper, self.function)
        emit_store_attributes(cg, self.attributes.items())


def _construct_cache_wrapper(tx: Tracer, cls: Any, args: Args, kwargs: Kwargs) -> Variable:
    """Construct the C cache wrapper, without the attributes that ``lru_cache`` copies to it."""
    names = ("user_function", "maxsize", "typed", "cache_info_type")
    given = dict(zip(names, args, strict=False)) | kwargs
    if set(given) != set(names):
        raise Unsupported("function-cache", "a cache is created")
    if realize(tx, given["user_function"]).lacks_methods("__call__"):
        tx.raise_type_error("the first argument must be callable")
    size, typed, info = tx.as_python_constants([given[n] for n in names[1:]])
    with UserErrors(tx, TypeError):
        cls(len, size, typed, info)
    function = realize(tx, given["user_function"])
    return LruCacheVariable(
        function, size if size is None else max(0, size), bool(typed), tx.interpreter.root_instruction_number, cls, info
    )


C_CLASS_CONSTRUCTORS[functools._lru_cache_wrapper] = _construct_cache_wrapper
