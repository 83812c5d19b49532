"""``functools.lru_cache`` and ``functools.singledispatch`` around functions: made in traced code, or met from outside."""

from __future__ import annotations

import functools
import inspect
import types
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from engine.bytecode.resume import resumed
from engine.ir.origin import Attr, Fixed, Item, Local, Origin
from engine.ir.value_guard import DictKeys, IsObject
from engine.trace.kept import is_left, leave
from engine.trace.signals import Unsupported
from engine.trace.support import dispatched_function
from engine.trace.values.base import NONE, Attributed, Const, NotConstant, Value, force, is_none
from engine.trace.values.classes import MADE_BY, ClassValue, find_in_class, imported_first
from engine.trace.values.functions import FunctionDict, FunctionValue, MadeFunction, RealFunction
from engine.trace.values.iteration import CallOf
from engine.trace.values.mappings import DictValue
from engine.trace.values.methods import BoundMethod, BuiltinValue, MethodOf
from engine.trace.values.objects import ObjectValue
from engine.trace.values.rules import BY_CODE, special, special_of
from engine.trace.values.sequences import TupleValue
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorValue
from engine.trace.values.torch_functions import is_leaf, is_pure
from engine.trace.values.wrap import wraps, wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]

_INFO: Any = vars(functools)["_CacheInfo"]
_OWN_NAMES = ("__name__", "__qualname__", "__module__", "__doc__")


def _memo_key(tx: Tracer, args: Args, kwargs: Words, *, typed: bool) -> Any:
    given = [force(tx, a) for a in (*args, *kwargs.values())]
    kinds = tuple(v.type() for v in given) if typed else ()
    # CPython keeps a lone number or text under itself, which is no other key's equal.
    is_alone = not typed and not kwargs and len(given) == 1 and given[0].type() in (int, str)
    return (len(args), tuple(kwargs), tuple(v.key(tx) for v in given), kinds, is_alone)


class _Memo:
    """What a cache from outside gave in this trace, and before which instruction it was first used."""

    def __init__(self, born: int) -> None:
        self.born = born
        self.results: dict[Any, Value] = {}


class CachedFunction(BuiltinValue):
    """A function from outside under ``functools.lru_cache``: looked into, once for equal arguments.

    What it has cached already is not known: a function that changes anything outside itself is Python's to call, and one that is given what
    changes from call to call. Tensors that are no parameters are taken not to be changed in place between two calls that are given the same one.
    """

    def python(self, tx: Tracer) -> Any:
        raise NotConstant

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        if any(_may_be_kept(tx, force(tx, a)) for a in (*args, *kwargs.values())):
            raise Unsupported("unknown-call", f"{self.describe()} caches results for values that are not constant")
        assert self.origin is not None
        if _may_be_own(tx, self.origin):
            raise Unsupported("unknown-call", f"{self.describe()} is called, a cache from before a break")
        if is_left(self.held):
            what = "a cache that is asked how often it is used, or of which something is changed"
            raise Unsupported("unknown-call", f"{self.describe()} is called, {what}")
        used: _Memo = tx.memos.setdefault(id(self.held), _Memo(tx.root_executed))
        memo = used.results
        is_dynamic = any(_has_symbols(tx, a) for a in (*args, *kwargs.values()))  # one run for many values
        key = object() if is_dynamic else _memo_key(tx, args, kwargs, typed=True)
        if key not in memo:
            before = (tx.outside_changes, len(tx.effects))
            inner = tx.wrap(self.held.__wrapped__, Attr(self.origin, "__wrapped__"))
            result = inner.call(tx, args, kwargs)
            if self._only_reports(tx, args, kwargs, result, before):
                return NONE
            if tx.outside_changes != before[0]:
                raise Unsupported("unknown-call", f"{self.describe()} is called, a cache for a function with effects")
            memo[key] = result
            tx.keep(result, self.held)
        return memo[key]

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return MethodOf(self, name) if name.startswith("cache_") else super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        refused = Unsupported("unknown-call", f"{name}() of {self.describe()} is called")
        if name != "cache_parameters":
            leave(self.held)
            used = tx.memos.get(id(self.held))
            refused.born = used.born if used is not None else 0
        raise refused

    def _only_reports(self, tx: Tracer, args: Args, kwargs: Words, result: Value, before: tuple[int, int]) -> bool:
        """Whether all it does is to log or warn: then it is called after the graph, where it knows what it has said already."""
        changes, effects = before
        told = len(tx.effects) - effects
        found = force(tx, result)
        if not told or tx.outside_changes - changes != told or not isinstance(found, Const) or found.value is not None:
            return False
        del tx.effects[effects:]
        tx.happens(CallOf(self.held, args, kwargs), f"{self.describe()} is called")
        return True


def _may_be_own(tx: Tracer, origin: Origin) -> bool:
    """Whether the function itself may have made a cache, before a break: it may ask what is in it."""
    return resumed(tx.frames[0].code) is not None and isinstance(origin.chain()[0], Local)


def _stays(cls: type) -> bool:
    """Whether instances of a class are found again only as they were: they hash by what they hold, or nobody changes them."""
    from engine.trace.state import is_trusted

    found = find_in_class(cls, "__hash__")
    return is_trusted(cls.__module__) or (found is not None and found[0] is not object)


def _has_symbols(tx: Tracer, value: Value) -> bool:
    found = force(tx, value)
    return isinstance(found, SymValue) or (
        isinstance(found, TupleValue) and any(_has_symbols(tx, item) for item in found.items)
    )


def _may_be_kept(tx: Tracer, value: Value) -> bool:
    """Whether an argument may have been given before, and be other than it was then."""
    if isinstance(value, SymValue) or (isinstance(value, ObjectValue) and _stays(value.cls)):
        return False
    if isinstance(value, TensorValue):
        return value.origin is not None and value.fake.requires_grad
    if isinstance(value, TupleValue):
        return any(_may_be_kept(tx, force(tx, item)) for item in value.items)
    return value.origin is not None and not tx.is_constant(value)


@wraps(functools._lru_cache_wrapper)
def _cached(tx: Tracer, real: Any, origin: Origin) -> Value:
    if _may_be_own(tx, origin):
        tx.guard_type(real, origin, "it was called")
        return CachedFunction(real, origin)
    tx.guard_object(real, origin, "it was called")
    if special_of(real) is not None or is_leaf(real) or is_pure(real):
        return BuiltinValue(real, origin)
    return CachedFunction(real, origin)


@wraps_if(22, lambda real: imported_first(type(real)) is functools._lru_cache_wrapper)
def _cached_again(tx: Tracer, real: Any, origin: Origin) -> Value:
    return _cached(tx, real, origin)


class MadeCache(Attributed):
    """``functools.lru_cache(maxsize, typed)(function)`` in traced code. ``memo`` is what it has cached, the least recently used first."""

    is_mutable = True

    def __init__(
        self, function: Value, maxsize: int | None, typed: bool, born: int, cls: Any = None, info: Any = _INFO
    ) -> None:
        self.cls: type = cls or functools._lru_cache_wrapper
        self.info = info
        self.function = function
        self.maxsize = maxsize
        self.typed = typed
        self.born = born
        self.attributes: dict[str, Value] = {}
        self.memo: OrderedDict[Any, Value] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def type(self) -> type:
        return self.cls

    def truth(self, tx: Tracer) -> bool:
        return True

    def key(self, tx: Tracer) -> Any:
        return self

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        key = _memo_key(tx, args, kwargs, typed=self.typed)
        tx.changes += 1
        if key in self.memo:
            self.hits += 1
            self.memo.move_to_end(key)
            return self.memo[key]
        self.misses += 1
        result = force(tx, self.function).call(tx, args, kwargs)
        self.memo[key] = result
        if self.maxsize is not None and len(self.memo) > self.maxsize:
            self.memo.popitem(last=False)
        return result

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        if name in ("cache_info", "cache_clear", "cache_parameters"):
            return MethodOf(self, name)
        if name == "__dict__":
            return FunctionDict(self)
        if name == "__wrapped__":
            return self.function
        return force(tx, self.function).get_attr(tx, name)

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        tx.mutating(self)
        self.attributes[name] = value

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        match name:
            case "cache_info":
                counts = (self.hits, self.misses, self.maxsize, len(self.memo))
                return TupleValue([Const(n) for n in counts], self.info)
            case "cache_clear":
                tx.changes += 1
                self.memo.clear()
                self.hits = self.misses = 0
                return NONE
            case "cache_parameters":
                parts = {"maxsize": Const(self.maxsize), "typed": Const(self.typed)}
                return DictValue.of(parts)
        return super().call_method(tx, name, args, kwargs)

    def children(self) -> list[Value]:
        return [self.function, *self.attributes.values()]

    def reconstruct(self, cg: Codegen) -> None:
        if self.hits or self.misses:
            error = Unsupported("side-effect", "rebuilding a cache that holds results after the graph")
            error.born = self.born
            raise error
        cg.out.callable(lambda: cg.const(self.cls))
        cg.load(self.function)
        for part in (self.maxsize, self.typed, self.info):
            cg.const(part)
        cg.out.call(4)
        cg.helper(functools.update_wrapper, 1)
        cg.load(self.function)
        cg.out.call(2)
        for name, value in self.attributes.items():
            cg.out.emit("COPY", 1)
            cg.load(value)
            cg.out.emit("SWAP", 2)
            cg.out.emit("STORE_ATTR", name)


def _wrapper(tx: Tracer, cls: Any, args: Args, kwargs: Words) -> Value:
    """What ``lru_cache`` itself calls: the wrapper without the function's names."""
    names = ("user_function", "maxsize", "typed", "cache_info_type")
    given = dict(zip(names, args, strict=False)) | kwargs
    if set(given) != set(names):
        raise Unsupported("unknown-call", "a cache is created")
    if force(tx, given["user_function"]).lacks("__call__"):
        tx.raise_type_error("the first argument must be callable")
    size, typed, info = tx.constants([given[n] for n in names[1:]])
    if size is not None and not isinstance(size, int):
        tx.raise_type_error("maxsize should be integer or None")
    function = force(tx, given["user_function"])
    return MadeCache(function, size if size is None else max(0, size), bool(typed), tx.root_executed, cls, info)


MADE_BY[functools._lru_cache_wrapper] = _wrapper


class _Caching(Value):
    """``functools.lru_cache(maxsize, typed)``: what decorates a function."""

    def __init__(self, maxsize: int | None, typed: bool) -> None:
        self.maxsize = maxsize
        self.typed = typed

    def type(self) -> type:
        return types.FunctionType

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        return MadeCache(force(tx, args[0]), self.maxsize, self.typed, tx.root_executed)

    def reconstruct(self, cg: Codegen) -> None:
        cg.const(functools.lru_cache(self.maxsize, self.typed))


@special(functools.lru_cache)
def _lru_cache(tx: Tracer, args: Args, kwargs: Words) -> Value:
    given: Words = dict(zip(("maxsize", "typed"), args, strict=False)) | kwargs
    size, typed = force(tx, given.get("maxsize", Const(128))), force(tx, given.get("typed", Const(False)))
    if isinstance(size, Const) and (size.value is None or isinstance(size.value, int)):
        return _Caching(None if size.value is None else max(0, size.value), typed.truth(tx))
    if isinstance(size, (FunctionValue, BoundMethod)):
        return MadeCache(size, 128, typed.truth(tx), tx.root_executed)
    raise Unsupported("unknown-call", f"lru_cache() of {size.describe()}")


@special(functools.cache)
def _cache(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return MadeCache(force(tx, args[0]), None, False, tx.root_executed)


# singledispatch.


def _needs_argument(tx: Tracer, name: str, args: Args) -> None:
    if not args:
        tx.raise_type_error(f"{name} requires at least 1 positional argument")


def _outside_dispatch(tx: Tracer, of: RealFunction, args: Args, kwargs: Words) -> Value:
    """Which implementation is chosen depends on the class alone, as long as none is registered."""
    real: Any = of.held
    _needs_argument(tx, real.__name__, args)
    registered = inspect.getclosurevars(real.dispatch).nonlocals["registry"]
    known = tx.known.get(id(registered))
    if known is not None and id(known[0]) in tx.mutated:
        raise Unsupported("unknown-call", f"{of.describe()} is called, which implementations were just added to")
    cls = force(tx, args[0]).type()
    chosen = real.dispatch(cls)
    assert of.origin is not None
    registry = Attr(of.origin, "registry")
    why = f"which implementation it has for {cls.__name__} was looked up"
    tx.guard(DictKeys(registry, tuple(real.registry), cause=tx.cause(why)))
    found = next(k for k, v in real.registry.items() if v is chosen)
    tx.guard(IsObject(Item(registry, found), chosen, cause=tx.cause(why)))
    return tx.wrap(chosen, Fixed(chosen, chosen.__qualname__)).call(tx, args, kwargs)


_WRAPPER = functools.singledispatch(len).__code__  # type: ignore[attr-defined]
BY_CODE[id(_WRAPPER)] = (_WRAPPER, _outside_dispatch)


class MadeDispatch(Attributed):
    """``functools.singledispatch(function)`` in traced code. ``registry`` is by class, ``object`` first."""

    is_mutable = True

    def __init__(self, function: Value) -> None:
        self.registry: dict[Any, Value] = {object: function}
        self.attributes: dict[str, Value] = {}

    def type(self) -> type:
        return types.FunctionType

    def truth(self, tx: Tracer) -> bool:
        return True

    def key(self, tx: Tracer) -> Any:
        return self

    def _chosen(self, cls: Any) -> Value:
        found = self.registry.get(cls)
        return vars(functools)["_find_impl"](cls, self.registry) if found is None else found

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        name = force(tx, self.get_attr(tx, "__name__")).python(tx)
        _needs_argument(tx, name, args)
        return force(tx, self._chosen(force(tx, args[0]).type())).call(tx, args, kwargs)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        if name in ("register", "dispatch"):
            return MethodOf(self, name)
        if name == "__wrapped__":
            return self.registry[object]
        if name in _OWN_NAMES:
            return force(tx, self.registry[object]).get_attr(tx, name)
        if name == "registry":
            raise self.refuse("reading the registry")
        return super().get_attr(tx, name)

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        tx.mutating(self)
        self.attributes[name] = value

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        if name == "dispatch":
            return self._chosen(_class_of(tx, args[0]))
        if name == "register":
            given = dict(zip(("cls", "func"), args, strict=False)) | kwargs
            return self._register(tx, force(tx, given["cls"]), force(tx, given.get("func", NONE)))
        return super().call_method(tx, name, args, kwargs)

    def _register(self, tx: Tracer, cls: Value, function: Value) -> Value:
        if not is_none(function):
            tx.mutating(self)
            self.registry[_class_of(tx, cls)] = function
            return function
        if isinstance(cls, FunctionValue):
            return self._register(tx, _annotated(tx, cls), cls)
        return _Registering(self, cls)

    def children(self) -> list[Value]:
        return [*self.registry.values(), *self.attributes.values()]

    def reconstruct(self, cg: Codegen) -> None:
        cg.helper(dispatched_function, 0)
        cg.const(tuple(self.registry))
        cg.load(TupleValue(list(self.registry.values())))
        cg.load(DictValue.of(self.attributes))
        cg.out.call(3)


class _Registering(Value):
    """``dispatched.register(cls)``: what decorates an implementation."""

    def __init__(self, of: MadeDispatch, cls: Value) -> None:
        self.of = of
        self.cls = cls

    def type(self) -> type:
        return types.FunctionType

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        return self.of.call_method(tx, "register", [self.cls, *args], kwargs)


def _class_of(tx: Tracer, value: Value) -> Any:
    found = force(tx, value)
    if not isinstance(found, ClassValue):
        raise Unsupported("unknown-call", f"singledispatch on {found.describe()}")
    return found.held


def _annotated(tx: Tracer, function: FunctionValue) -> Value:
    """The class that the first annotated parameter of an implementation names."""
    if isinstance(function, MadeFunction):
        found = next(iter(function.annotations.values()), None)
    else:
        real = function.real()
        name = next(iter(getattr(real, "__annotations__", {})), None)
        found = None if name is None else tx.from_python(real.__annotations__[name])
    if found is None or not isinstance(force(tx, found), ClassValue):
        raise Unsupported("unknown-call", f"singledispatch on the annotations of {function.describe()}")
    return found


@special(functools.singledispatch)
def _singledispatch(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return MadeDispatch(force(tx, args[0] if args else kwargs["func"]))
