"""``nn.Module`` instances: members read from their tables, calls looked into, hooks run."""

from __future__ import annotations

import re
import types
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.marks import ORIGINAL_MODULE, behind_torch_compile
from engine.ir.origin import Attr, Fixed, Hooks, Item, Member, Origin
from engine.ir.value_guard import DictKeys, HasAttribute, LengthIs
from engine.trace.signals import Restart, Unsupported, UserException
from engine.trace.values.base import Const, Value, force
from engine.trace.values.classes import find_in_class
from engine.trace.values.mappings import DictValue
from engine.trace.values.objects import ObjectValue
from engine.trace.values.rules import BY_CODE
from engine.trace.values.wrap import wraps_if

if TYPE_CHECKING:
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
REGISTRATION_HOOKS = (
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
)
"""Tables of hooks that run when any module gets a member."""
_CALL_OF_GRAPHS = next(c for c in torch.fx.GraphModule.recompile.__code__.co_consts if isinstance(c, types.CodeType))
"""The code of the ``__call__`` that torch gives to the class of each graph."""
_GLOBAL_HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


_NO_HOOKS: dict[Any, Any] = {}


class ModuleValue(ObjectValue):
    """A module. Parameters, buffers and submodules come from their tables, everything else as for any instance."""

    def __init__(self, cls: type, origin: Origin | None, held: Any) -> None:
        super().__init__(cls, origin, held)
        self.replaced: dict[str, Value] = {}
        """What stands for parameters and buffers during a ``functional_call``."""
        self.tables: dict[str, DictValue] = {}
        """Tables of members that were looked at as a whole or changed; another member is read from the real one."""

    def describe(self) -> str:
        return f"module {self.cls.__name__}" + (f" ({self.path})" if self.path else "")

    @property
    def path(self) -> str:
        """Its name as ``named_modules`` of the root gives it."""
        return module_path(self.origin)

    def own_attr(self, tx: Tracer, name: str) -> Value | None:
        if name in self.written or name in self.held.__dict__:
            if name in _TABLES and name not in self.written:
                return self.table(tx, name)
            return super().own_attr(tx, name)
        return None

    def table(self, tx: Tracer, name: str) -> DictValue:
        """All parameters, buffers or submodules by name: the dict itself, which traced code may change."""
        known = self.tables.get(name)
        if known is not None and not self.replaced:
            return known
        assert self.origin is not None
        real = self.held.__dict__[name]
        place = Attr(self.origin, name)
        tx.guard(DictKeys(place, tuple(real), cause=tx.cause("the module's members were listed")))
        entries: dict[Any, tuple[Value, Value]] = {k: (Const(k), self.member(tx, name, k)) for k in real}
        if self.is_made or self.replaced:
            return FixedTable(entries, None, type(real))
        made = self.tables[name] = DictValue(entries, place, type(real))
        tx.known[id(real)] = (made, real)
        return made

    def has_member(self, table: str, name: str) -> bool:
        """Whether a table holds the name now."""
        known = self.tables.get(table)
        return name in (self.held.__dict__.get(table, {}) if known is None else known.entries)

    def member(self, tx: Tracer, table: str, name: str) -> Value:
        """A parameter, buffer or submodule by its table."""
        assert self.origin is not None
        if name in self.replaced:
            return self.replaced[name]
        known = self.tables.get(table)
        if known is not None:
            return known.entries[name][1]
        return tx.lazy(self.held.__dict__[table][name], Member(self.origin, table, name))

    def missing_attr(self, tx: Tracer, name: str) -> Value:
        getter = find_in_class(self.cls, "__getattr__")
        if getter is not None and getter[0] is _MODULE:
            return self.module_getattr(tx, name)
        return super().missing_attr(tx, name)

    def module_getattr(self, tx: Tracer, name: str) -> Value:
        """``nn.Module.__getattr__``."""
        for table in _TABLES:
            if self.has_member(table, name):
                return force(tx, self.member(tx, table, name))
        assert self.origin is not None
        if not any(name in self.held.__dict__.get(table, {}) for table in _TABLES):
            tx.guard(HasAttribute(self.origin, name, False, cause=tx.cause(f"it has no attribute {name!r}")))
        return tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")  # type: ignore[no-any-return]

    def sets_plainly(self, base: type) -> bool:
        return base is _MODULE

    def set_plainly(self, tx: Tracer, name: str, value: Value | None) -> None:
        table = None if value is None else self._table_for(tx, name, force(tx, value))
        if table is None:
            super().set_plainly(tx, name, value)
            return
        assert value is not None
        if any(torch.nn.modules.module.__dict__[hooks] for hooks in REGISTRATION_HOOKS):
            raise Unsupported("side-effect", f"{name!r} of a module is set while registration hooks are set")
        for other in _TABLES:
            if other != table and self.has_member(other, name):
                self.table(tx, other).pop(tx, Const(name))
        if name in self.written or name in self.held.__dict__:
            super().set_plainly(tx, name, None)
        self.table(tx, table).set_item(tx, Const(name), value)

    def _table_for(self, tx: Tracer, name: str, value: Value) -> str | None:
        """Where ``nn.Module.__setattr__`` puts a value; None for a plain attribute."""
        from engine.trace.values.tensor import TensorValue

        if isinstance(value, TensorValue) and issubclass(value.type(), torch.nn.Parameter):
            return "_parameters"
        is_none = isinstance(value, Const) and value.value is None
        if self.has_member("_parameters", name):
            return "_parameters" if is_none else self._wrong_kind(tx, value, "parameter", name)
        if isinstance(value, ModuleValue):
            return "_modules"
        if self.has_member("_modules", name):
            return "_modules" if is_none else self._wrong_kind(tx, value, "child module", name)
        if isinstance(value, TensorValue) and issubclass(value.type(), torch.nn.Buffer):
            raise Unsupported("side-effect", f"the buffer {name!r} of a module is set to a Buffer")
        if self.has_member("_buffers", name):
            return (
                "_buffers" if is_none or isinstance(value, TensorValue) else self._wrong_kind(tx, value, "buffer", name)
            )
        return None

    def _wrong_kind(self, tx: Tracer, value: Value, kind: str, name: str) -> Any:
        """The user's TypeError for a member set to what it cannot be; Python words it."""
        raise Unsupported("raises", f"the {kind} {name!r} of a module is set to a {value.type().__name__}")

    def del_attr(self, tx: Tracer, name: str) -> None:
        deleter = find_in_class(self.cls, "__delattr__")
        if deleter is not None and deleter[0] is _MODULE:
            for table in _TABLES:
                if self.has_member(table, name):
                    self.table(tx, table).pop(tx, Const(name))
                    if table == "_buffers":
                        unsaved = force(tx, self.get_attr(tx, "_non_persistent_buffers_set"))
                        unsaved.call_method(tx, "discard", [Const(name)], {})
                    return
            if self.own_attr(tx, name) is None:
                tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")
            super().set_plainly(tx, name, None)
            return
        super().del_attr(tx, name)

    def key(self, tx: Tracer) -> Any:
        tx.keyed_by_identity(self)
        return self.held

    # Calling.

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        found = find_in_class(self.cls, "__call__")
        if found is not None and getattr(found[1], "__code__", None) is _CALL_OF_GRAPHS:
            return self._call_as_graph(tx, args, kwargs)
        if found is None or found[0] is not _MODULE:
            return super().call(tx, args, kwargs)
        return self._call_noted(tx, args, kwargs)

    def _call_as_graph(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``__call__`` of a ``GraphModule``: that of any module, but for a text that torch prints when it raises.

        Raises:
            Unsupported: it raises, or its class had another ``__call__`` before.
        """
        around = self.cls._wrapped_call  # type: ignore[attr-defined]
        if around.cls_call is not None or "_wrapped_call" in self.held.__dict__ or "_wrapped_call" in self.written:
            raise Unsupported("unknown-call", f"{self.describe()}, whose class has a call of its own, is called")
        try:
            return self._call_noted(tx, args, kwargs)
        except UserException as error:
            raise Unsupported("unknown-call", f"the graph of {self.describe()} raises") from error

    def _call_noted(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Call it with its path noted for the records."""
        frame = tx.frames[-1]
        outer, frame.module = frame.module, self.path or frame.module
        try:
            return self._call(tx, args, kwargs)
        finally:
            frame.module = outer

    def _call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        assert self.origin is not None
        direct = tx.direct is self
        around = self._global_hooks(tx)
        own = any(self._hook_table(tx, table) for table in Hooks.TABLES)
        if not own and not self.written and not self.is_made:
            why = "the module was called, and hooks would run with it"
            tx.guard(LengthIs(Hooks(self.origin), 0, cause=tx.cause(why)))
        if not own and not around:
            forward = force(tx, self.get_attr(tx, "forward"))
            tx.direct = forward if direct else None
            return forward.call(tx, args, kwargs)
        return self._call_with_hooks(tx, args, kwargs)

    def _hook_table(self, tx: Tracer, table: str) -> dict[Any, Any]:
        """A table of hooks as it is now: the real one's, or entries of values where traced code looked at it."""
        real: dict[Any, Any] = self.held.__dict__.get(table, _NO_HOOKS)
        if table not in self.written and id(real) not in tx.known:
            return real
        found = force(tx, self.get_attr(tx, table))
        return found.entries if isinstance(found, DictValue) else {}

    def _global_hooks(self, tx: Tracer) -> bool:
        """Whether hooks run around all modules."""
        namespace = torch.nn.modules.module.__dict__
        for name in _GLOBAL_HOOKS:
            if namespace[name] and "backward" in name:
                raise Unsupported("unknown-call", "a module is called while global backward hooks are set")
            why = "a module was called, and global hooks would run with it"
            place = Fixed(namespace[name], name)
            tx.guard(
                DictKeys(place, tuple(namespace[name]), cause=tx.cause(why))
                if namespace[name]
                else LengthIs(place, 0, cause=tx.cause(why))
            )
        return any(namespace[name] for name in _GLOBAL_HOOKS)

    def _call_with_hooks(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from engine.trace.values.sequences import TupleValue

        if isinstance(self.held, torch.nn.modules.lazy.LazyModuleMixin):
            materialise(tx, self, args, kwargs)
        if self._hook_table(tx, "_backward_hooks") or self._hook_table(tx, "_backward_pre_hooks"):
            raise Unsupported("unknown-call", f"the hooks of {self.describe()} run")
        for hook, with_keywords in self._hooks(tx, "_forward_pre_hooks"):
            words = DictValue.of(kwargs)
            given: list[Value] = [self, TupleValue(list(args)), *([words] if with_keywords else [])]
            result = force(tx, hook.call(tx, given, {}))
            if isinstance(result, Const) and result.value is None:
                continue
            if with_keywords:
                args, kwargs = self._replaced_arguments(tx, result)
            else:
                args = list(result.items) if isinstance(result, TupleValue) else [result]
        output = self._forward(tx, args, kwargs)
        for hook, with_keywords in self._hooks(tx, "_forward_hooks"):
            words = DictValue.of(kwargs)
            given = [self, TupleValue(list(args)), *([words] if with_keywords else []), output]
            result = force(tx, hook.call(tx, given, {}))
            if not (isinstance(result, Const) and result.value is None):
                output = result
        return output

    def _forward(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``forward``, where hooks that run even after an exception are left to Python should one occur."""
        always = self._hook_table(tx, "_forward_hooks_always_called")
        always_around = torch.nn.modules.module.__dict__["_global_forward_hooks_always_called"]
        try:
            return force(tx, self.get_attr(tx, "forward")).call(tx, args, kwargs)
        except UserException as error:
            if always or always_around:
                raise Unsupported(
                    "raises", f"{error.value.describe()} is raised where a hook is always called"
                ) from error
            raise

    def _replaced_arguments(self, tx: Tracer, result: Value) -> tuple[list[Value], dict[str, Value]]:
        """Arguments as a pre-hook with keywords returns them."""
        from engine.trace.values.sequences import TupleValue

        if isinstance(result, TupleValue) and len(result.items) == 2:
            positional, words = (force(tx, i) for i in result.items)
            if isinstance(positional, TupleValue) and isinstance(words, DictValue):
                return list(positional.items), {str(k): v for k, (_, v) in words.entries.items()}
        raise Unsupported("unknown-call", f"a hook of {self.describe()} returns what is not known to be arguments")

    def _hooks(self, tx: Tracer, table: str) -> list[tuple[Value, bool]]:
        """The hooks in order, those around all modules first, each with whether it takes keyword arguments."""
        assert self.origin is not None
        everywhere = torch.nn.modules.module.__dict__
        real = everywhere[f"_global{table}"]
        words = everywhere.get(f"_global{table}_with_kwargs", {})
        place: Origin = Fixed(real, f"_global{table}")
        found = [(tx.wrap(hook, Item(place, key)), key in words) for key, hook in real.items()]
        own = self._hook_table(tx, table)
        with_keywords = self._hook_table(tx, f"{table}_with_kwargs")
        base = Attr(self.origin, table)
        if own is not self.held.__dict__[table]:
            return [*found, *((force(tx, hook), key in with_keywords) for key, (_, hook) in own.items())]
        tx.guard(DictKeys(base, tuple(own), cause=tx.cause("its hooks ran")))
        if with_keywords:
            keywords = Attr(self.origin, f"{table}_with_kwargs")
            tx.guard(DictKeys(keywords, tuple(with_keywords), cause=tx.cause("its hooks ran")))
        return [*found, *((tx.wrap(hook, Item(base, key)), key in with_keywords) for key, hook in own.items())]

    # Containers: their members in order, without running their Python code.

    def _is_container(self, method: str) -> bool:
        found = find_in_class(self.cls, method)
        return found is not None and found[0] in _CONTAINERS and issubclass(self.cls, _CONTAINERS[:3])

    def _members(self, tx: Tracer) -> dict[str, Value]:
        return {k: v for k, (_, v) in self.table(tx, "_modules").entries.items()}

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
            from engine.trace.values.mappings import DictView

            return DictView(DictValue.of(self._members(tx)), name)
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
            if found is not None and found[0] is _MODULE and not self._has_changed(tx):
                return self._walk(tx, name, args, kwargs)
        return super().call_method(tx, name, args, kwargs)

    def _has_changed(self, tx: Tracer) -> bool:
        """Whether traced code changed the members of any module: the real ones are then no longer what they are."""
        tables = (t for v, _ in tx.known.values() if isinstance(v, ModuleValue) for t in v.tables.values())
        return self.is_made or any(id(t) in tx.mutated for t in tables)

    def _walk(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Members as torch's own walk gives them; the real objects are found again through their paths."""
        from engine.trace.values.iterators import SequenceIterator
        from engine.trace.values.sequences import TupleValue

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
            table = next(t for t in _TABLES if value.has_member(t, part))
            value = force(tx, value.member(tx, table, part))
        return value


class FixedTable(DictValue):
    """The members of a module that may not change now: their changes could not be put in place."""

    def put(self, tx: Tracer, stands_for: Any, key: Value, value: Value) -> None:
        raise self.refuse("changing the members of a module that stands for another")

    def pop(self, tx: Tracer, key: Value, default: Value | None = None) -> Value:
        raise self.refuse("changing the members of a module that stands for another")

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in ("clear", "popitem", "move_to_end"):
            raise self.refuse(f"{name}() of the members of a module that stands for another")
        return super().call_method(tx, name, args, kwargs)


def materialise(tx: Tracer, module: ModuleValue, args: list[Value], kwargs: dict[str, Value]) -> None:
    """Let a lazy module take its sizes from the fake arguments, as its own hook would, and trace again with what it has become.

    Raises:
        Unsupported: random numbers drawn earlier in the graph would be drawn later than the parameters, or code that
            makes them and is not torch's own could look at what was changed.
        Restart: it was done.
    """
    held: Any = module.held
    hooks = module.held.__dict__["_forward_pre_hooks"]
    first = next(iter(hooks.values()), None)
    if getattr(first, "__func__", None) is not torch.nn.modules.lazy.LazyModuleMixin._infer_parameters:
        raise Unsupported("unknown-call", f"the hooks of the lazy {module.describe()} run")
    random = next(
        (n for n in tx.graph.graph.nodes if _RANDOM.search(str(getattr(n.target, "__name__", n.target)))), None
    )
    if random is not None or (tx.mutated and (module.written or not _is_made_by_torch(type(held)))):
        raise Unsupported("unknown-call", f"the lazy {module.describe()} is used after random numbers or side effects")
    fakes = [force(tx, a).graph_arg(tx)[1] for a in args]
    words = {k: force(tx, v).graph_arg(tx)[1] for k, v in kwargs.items()}
    try:
        held._infer_parameters(held, tuple(fakes), words)
    except Exception as error:
        raise Unsupported("unknown-call", f"the parameters of the lazy {module.describe()} are made") from error
    again = Unsupported("unknown-call", f"the lazy {module.describe()} took its sizes")
    raise Restart(0, again)


def _is_made_by_torch(cls: Any) -> bool:
    """Whether only torch's own code, which reads nothing but sizes, makes the parameters of a lazy class."""
    makers = (cls.initialize_parameters, cls.reset_parameters, cls._infer_parameters)
    return all(m.__module__.startswith("torch.nn.modules.") for m in makers)


_RANDOM = re.compile(
    "rand|dropout|bernoulli|multinomial|normal_|normal$|uniform|exponential|geometric|cauchy|poisson|binomial|rrelu|attention|rnn|lstm|gru|checkpoint"
)
"""Operations that may draw random numbers."""


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
    behind = behind_torch_compile(real)
    if behind is not None:
        tx.guard_type(real, origin, "torch.compile made it, and its original was looked into")
        return tx.wrap(behind, Member(origin, "_modules", "_orig_mod"))
    tx.guard_type(real, origin, "the module's members or methods were used")
    if id(real.__dict__) in tx.known:
        raise Unsupported("unsupported-operation", f"a {type(real).__name__} beside the dict that holds its attributes")
    made = ModuleValue(type(real), origin, real)
    tx.namespaces.setdefault(id(real.__dict__), made)
    return made


def _graph_by_its_class(tx: Tracer, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``type(graph).__call__(graph, ...)``.

    Raises:
        Unsupported: it is called on another object than a graph of that class.
    """
    graph = force(tx, args[0]) if args else None
    if not isinstance(graph, ModuleValue) or vars(graph.cls).get("__call__") is not function.held:
        raise Unsupported("unknown-call", f"{function.describe()} is called")
    return graph.call(tx, args[1:], kwargs)


BY_CODE[id(_CALL_OF_GRAPHS)] = (_CALL_OF_GRAPHS, _graph_by_its_class)
