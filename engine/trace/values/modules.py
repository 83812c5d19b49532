"""``nn.Module`` instances: members read from their tables, calls looked into, hooks run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from engine.ir.guard import DictKeys, HasAttribute, LengthIs
from engine.ir.marks import ORIGINAL_MODULE
from engine.ir.origin import Attr, Fixed, Hooks, Item, Member, Origin
from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, Value, force
from engine.trace.values.classes import find_in_class
from engine.trace.values.objects import ObjectValue
from engine.trace.values.wrap import wraps_if

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.trace.state import Tracer

_TABLES = ("_parameters", "_buffers", "_modules")
_MODULE = torch.nn.Module
_CONTAINERS = (
    torch.nn.ModuleList,
    torch.nn.Sequential,
    torch.nn.ModuleDict,
    torch.nn.ParameterList,
    torch.nn.ParameterDict,
)
_GLOBAL_HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


class ModuleValue(ObjectValue):
    """A module. Parameters, buffers and submodules come from their tables, everything else as for any instance."""

    def __init__(self, cls: type, origin: Origin | None, held: Any) -> None:
        super().__init__(cls, origin, held)
        self.replaced: dict[str, Value] = {}
        """What stands for parameters and buffers during a ``functional_call``."""

    def describe(self) -> str:
        return f"module {self.cls.__name__}" + (f" ({self.path})" if self.path else "")

    @property
    def path(self) -> str:
        """Its name as ``named_modules`` of the root gives it."""
        return module_path(self.origin)

    def own_attr(self, tx: Tracer, name: str) -> Value | None:
        if name in self.written or name in self.held.__dict__:
            if name in _TABLES and name not in self.written:
                assert self.origin is not None
                return self._table(tx, name)
            return super().own_attr(tx, name)
        return None

    def _table(self, tx: Tracer, table: str) -> Value:
        from engine.trace.values.mappings import DictValue

        assert self.origin is not None
        real = self.held.__dict__[table]
        tx.guard(DictKeys(Attr(self.origin, table), tuple(real), cause=tx.cause("the module's members were listed")))
        entries: dict[Any, tuple[Value, Value]] = {k: (Const(k), self.member(tx, table, k)) for k in real}
        for name, value in self.written.items():
            if value is not None and name in entries:
                entries[name] = (Const(name), value)
        return DictValue(entries, None, dict)

    def member(self, tx: Tracer, table: str, name: str) -> Value:
        """A parameter, buffer or submodule by its table."""
        assert self.origin is not None
        if name in self.replaced:
            return self.replaced[name]
        return tx.lazy(self.held.__dict__[table][name], Member(self.origin, table, name))

    def missing_attr(self, tx: Tracer, name: str) -> Value:
        getter = find_in_class(self.cls, "__getattr__")
        if getter is not None and getter[0] is _MODULE:
            for table in _TABLES:
                if name in self.held.__dict__.get(table, {}):
                    return force(tx, self.member(tx, table, name))
            assert self.origin is not None
            tx.guard(HasAttribute(self.origin, name, False, cause=tx.cause(f"it has no attribute {name!r}")))
            tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")
        return super().missing_attr(tx, name)

    def sets_plainly(self, base: type) -> bool:
        return base is _MODULE

    def set_plainly(self, tx: Tracer, name: str, value: Value | None) -> None:
        from engine.trace.values.tensor import TensorValue

        if value is not None:
            forced = force(tx, value)
            if isinstance(forced, ModuleValue) or (
                isinstance(forced, TensorValue) and issubclass(forced.type(), torch.nn.Parameter)
            ):
                raise Unsupported("side-effect", f"the parameter or submodule {name!r} of a module is set")
            if name in self.held.__dict__.get("_parameters", {}) or name in self.held.__dict__.get("_modules", {}):
                raise Unsupported("side-effect", f"the parameter or submodule {name!r} of a module is replaced")
        super().set_plainly(tx, name, value)

    def setter(self) -> Callable[..., None] | None:
        from engine.trace.support import set_module_attributes

        return set_module_attributes

    def key(self, tx: Tracer) -> Any:
        return self.held

    # Calling.

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        found = find_in_class(self.cls, "__call__")
        if found is None or found[0] is not _MODULE:
            return super().call(tx, args, kwargs)
        frame = tx.frames[-1]
        outer, frame.module = frame.module, self.path or frame.module
        try:
            return self._call(tx, args, kwargs)
        finally:
            frame.module = outer

    def _call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        assert self.origin is not None
        hooks = any(self.held.__dict__.get(t) for t in Hooks.TABLES) and not self.written
        if not hooks:
            why = "the module was called, and hooks would run with it"
            tx.guard(LengthIs(Hooks(self.origin), 0, cause=tx.cause(why)))
        self._global_hooks(tx)
        if not hooks:
            return force(tx, self.get_attr(tx, "forward")).call(tx, args, kwargs)
        return self._call_with_hooks(tx, args, kwargs)

    def _global_hooks(self, tx: Tracer) -> None:
        namespace = torch.nn.modules.module.__dict__
        for name in _GLOBAL_HOOKS:
            if namespace[name]:
                raise Unsupported("unknown-call", "a module is called while global module hooks are set")
            tx.guard(
                LengthIs(
                    Fixed(namespace[name], name),
                    0,
                    cause=tx.cause("a module was called, and global hooks would run with it"),
                )
            )

    def _call_with_hooks(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from engine.trace.values.mappings import DictValue
        from engine.trace.values.sequences import TupleValue

        own = self.held.__dict__
        lazy = isinstance(self.held, torch.nn.modules.lazy.LazyModuleMixin)
        if own["_backward_hooks"] or own["_backward_pre_hooks"] or own.get("_forward_hooks_always_called") or lazy:
            raise Unsupported("unknown-call", f"the hooks of {self.describe()} run")
        for hook, with_keywords in self._hooks(tx, "_forward_pre_hooks"):
            words = DictValue({k: (Const(k), v) for k, v in kwargs.items()})
            given: list[Value] = [self, TupleValue(list(args)), *([words] if with_keywords else [])]
            result = force(tx, hook.call(tx, given, {}))
            if isinstance(result, Const) and result.value is None:
                continue
            if with_keywords:
                args, kwargs = self._replaced_arguments(tx, result)
            else:
                args = list(result.items) if isinstance(result, TupleValue) else [result]
        output = force(tx, self.get_attr(tx, "forward")).call(tx, args, kwargs)
        for hook, with_keywords in self._hooks(tx, "_forward_hooks"):
            words = DictValue({k: (Const(k), v) for k, v in kwargs.items()})
            given = [self, TupleValue(list(args)), *([words] if with_keywords else []), output]
            result = force(tx, hook.call(tx, given, {}))
            if not (isinstance(result, Const) and result.value is None):
                output = result
        return output

    def _replaced_arguments(self, tx: Tracer, result: Value) -> tuple[list[Value], dict[str, Value]]:
        """Arguments as a pre-hook with keywords returns them."""
        from engine.trace.values.mappings import DictValue
        from engine.trace.values.sequences import TupleValue

        if isinstance(result, TupleValue) and len(result.items) == 2:
            positional, words = (force(tx, i) for i in result.items)
            if isinstance(positional, TupleValue) and isinstance(words, DictValue):
                return list(positional.items), {str(k): v for k, (_, v) in words.entries.items()}
        raise Unsupported("unknown-call", f"a hook of {self.describe()} returns what is not known to be arguments")

    def _hooks(self, tx: Tracer, table: str) -> list[tuple[Value, bool]]:
        """The hooks in order, each with whether it takes keyword arguments."""
        assert self.origin is not None
        real = self.held.__dict__[table]
        with_keywords = self.held.__dict__.get(f"{table}_with_kwargs", {})
        base = Attr(self.origin, table)
        tx.guard(DictKeys(base, tuple(real), cause=tx.cause("its hooks ran")))
        if with_keywords:
            keywords = Attr(self.origin, f"{table}_with_kwargs")
            tx.guard(DictKeys(keywords, tuple(with_keywords), cause=tx.cause("its hooks ran")))
        return [(tx.wrap(hook, Item(base, key)), key in with_keywords) for key, hook in real.items()]

    # Containers: their members in order, without running their Python code.

    def _is_container(self, method: str) -> bool:
        found = find_in_class(self.cls, method)
        return found is not None and found[0] in _CONTAINERS and issubclass(self.cls, _CONTAINERS[:3])

    def _members(self, tx: Tracer) -> dict[str, Value]:
        assert self.origin is not None
        real = self.held.__dict__["_modules"]
        tx.guard(DictKeys(Attr(self.origin, "_modules"), tuple(real), cause=tx.cause("the container was iterated")))
        return {k: self.member(tx, "_modules", k) for k in real}

    def iterate(self, tx: Tracer) -> Value:
        from engine.trace.values.iterators import SequenceIterator

        if not self._is_container("__iter__"):
            return super().iterate(tx)
        members = self._members(tx)
        over = [Const(k) for k in members] if issubclass(self.cls, torch.nn.ModuleDict) else list(members.values())
        return SequenceIterator(list(over), type(iter(())))

    def length(self, tx: Tracer) -> Value:
        return Const(len(self._members(tx))) if self._is_container("__len__") else super().length(tx)

    def truth(self, tx: Tracer) -> bool:
        return bool(self._members(tx)) if self._is_container("__len__") else super().truth(tx)

    def get_item(self, tx: Tracer, key: Value) -> Value:
        if self._is_container("__getitem__") and isinstance(key, Const):
            members = self._members(tx)
            if issubclass(self.cls, torch.nn.ModuleDict):
                return members[key.value] if key.value in members else tx.raise_error(KeyError, key.value)
            values = list(members.values())
            if type(key.value) is int:
                if not -len(values) <= key.value < len(values):
                    tx.raise_error(IndexError, f"index {key.value} is out of range")
                return values[key.value]
        if self._is_container("__getitem__") and issubclass(self.cls, torch.nn.ModuleList):
            from engine.trace.values.sequences import ListValue, SliceValue

            if isinstance(key, SliceValue):
                return ListValue(list(self._members(tx).values())[key.python(tx)])
        return super().get_item(tx, key)

    def contains(self, tx: Tracer, item: Value) -> bool:
        if self._is_container("__contains__") and issubclass(self.cls, torch.nn.ModuleDict):
            return item.key(tx) in self._members(tx)
        return super().contains(tx, item)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in ("items", "keys", "values") and issubclass(self.cls, torch.nn.ModuleDict) and not args:
            from engine.trace.values.mappings import DictValue, DictView

            return DictView(DictValue({k: (Const(k), v) for k, v in self._members(tx).items()}), name)
        if name in (
            "parameters",
            "named_parameters",
            "buffers",
            "named_buffers",
            "modules",
            "named_modules",
            "children",
            "named_children",
        ):
            found = find_in_class(self.cls, name)
            if found is not None and found[0] is _MODULE:
                return self._walk(tx, name, args, kwargs)
        return super().call_method(tx, name, args, kwargs)

    def _walk(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Members as torch's own walk gives them; the real objects are found again through their paths."""
        from engine.trace.values.iterators import SequenceIterator
        from engine.trace.values.sequences import TupleValue

        if self.written:
            raise self.refuse(f"{name}() after an attribute was set")
        constant = [force(tx, a).python(tx) for a in args]
        words = {k: force(tx, v).python(tx) for k, v in kwargs.items()}
        if name in ("parameters", "buffers", "modules", "children"):
            found = {n: (n, v) for n, v in getattr(self.held, f"named_{name}")(**words)}
        else:
            prefix = words.pop("prefix", constant[0] if constant else "")
            found = {
                n: ((f"{prefix}." if prefix else "") + n if n else prefix, v)
                for n, v in getattr(self.held, name)(**words)
            }
        guard_structure(tx, self)
        values: list[Value] = []
        for path, (shown, _) in found.items():
            value = self.at(tx, path)
            values.append(TupleValue([Const(shown), value]) if name.startswith("named_") else value)
        return SequenceIterator(values, type(iter(())))

    def at(self, tx: Tracer, path: str) -> Value:
        """A member by its dotted path."""
        value: Value = self
        for part in path.split(".") if path else ():
            assert isinstance(value, ModuleValue)
            table = next(t for t in _TABLES if part in value.held.__dict__[t])
            value = force(tx, value.member(tx, table, part))
        return value


def guard_structure(tx: Tracer, module: ModuleValue) -> None:
    """Take for granted which members a module has, all the way down."""
    assert module.origin is not None
    for table in _TABLES:
        real = module.held.__dict__[table]
        tx.guard(DictKeys(Attr(module.origin, table), tuple(real), cause=tx.cause("the module's members were listed")))
    for name, child in module.held.__dict__["_modules"].items():
        if child is not None:
            value = force(tx, module.member(tx, "_modules", name))
            if isinstance(value, ModuleValue) and value.origin == Member(module.origin, "_modules", name):
                guard_structure(tx, value)


def module_path(origin: Origin | None) -> str:
    """Dotted path below the root module: ``blocks.0.attn``."""
    parts: list[str] = []
    while origin is not None:
        if isinstance(origin, Member):
            parts.append(origin.member)
        elif isinstance(origin, Item) and parts:
            parts.append(str(origin.key))
        origin = origin.parent
    return ".".join(reversed(parts))


def _is_module(real: Any) -> bool:
    return isinstance(real, torch.nn.Module)


@wraps_if(2, _is_module)
def _module(tx: Tracer, real: torch.nn.Module, origin: Origin) -> Value:
    if isinstance(real, torch.jit.ScriptModule):
        raise Unsupported("unknown-call", f"the scripted module {type(real).__name__} is used")
    tx.tensors_seen = True
    if ORIGINAL_MODULE in type(real).__dict__:
        tx.guard_type(real, origin, "it is a compiled module, and its original was looked into")
        return tx.wrap(getattr(real, ORIGINAL_MODULE), Attr(origin, ORIGINAL_MODULE))
    tx.guard_type(real, origin, "the module's members or methods were used")
    return ModuleValue(type(real), origin, real)
