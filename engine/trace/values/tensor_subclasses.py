"""``__torch_function__``: tensors of subclasses, objects that act as tensors, and modes. The user's method is looked into, not run.

What torch passes to the method is found out by torch itself: the operation is tried on a recording tensor that notes it.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
import torch.overrides

from engine.ir.in_graph import InGraph
from engine.ir.origin import Attr, Origin
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.support import as_subclass
from engine.trace.values.base import NONE, Const, NotConstant, Value, force
from engine.trace.values.classes import ClassValue, bind_attribute, class_attribute, class_origin, find_in_class
from engine.trace.values.mappings import DictValue
from engine.trace.values.objects import ObjectValue
from engine.trace.values.rules import BY_NAME, special
from engine.trace.values.sequences import ListValue, TupleValue, sequence_items
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorValue
from engine.trace.values.torch_functions import guard_state

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]
_DEFAULT: Any = vars(torch.Tensor)["__torch_function__"].__func__


class SubclassValue(TensorValue):
    """A tensor of a subclass. Its node is the plain tensor over the same memory; ``cls`` says what it is outside."""

    __slots__ = ("cls",)

    def __init__(
        self,
        cls: type,
        node: torch.fx.Node | None,
        fake: torch.Tensor,
        origin: Origin | None = None,
        held: torch.Tensor | None = None,
    ) -> None:
        super().__init__(node, fake, origin, held)
        self.cls = cls

    def type(self) -> type:
        return self.cls

    def node(self, tx: Tracer) -> torch.fx.Node:
        if self._node is None:
            assert self.origin is not None
            outer = tx.graph.placeholder(self.origin, self.fake, self.held)
            node = tx.graph.add("call_function", InGraph("as_plain", _plain), (outer,), {}, tx.node_origin())
            node.meta["example_value"] = self.fake
            self._node = node
        return self._node

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in self.written:
            return self.written[name]
        if name == "__class__":
            return tx.wrap(self.cls, class_origin(self.cls))
        if self.held is not None and self.origin is not None and name in getattr(self.held, "__dict__", {}):
            return tx.wrap(self.held.__dict__[name], Attr(self.origin, name))
        found = find_in_class(self.cls, name)
        if found is not None and not found[0].__module__.startswith("torch."):
            return bind_attribute(tx, self.cls, found[0], name, found[1], self)
        if found is not None and not callable(found[1]) and name not in ("__dict__", "__module__", "__doc__"):
            by_protocol = dispatched(tx, "get_attr", name, [self], {})
            if by_protocol is not None:
                return by_protocol
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        found = find_in_class(self.cls, name)
        if name in self.written or (found is not None and not found[0].__module__.startswith("torch.")):
            return force(tx, self.get_attr(tx, name)).call(tx, args, kwargs)
        by_protocol = dispatched(tx, "call_method", name, [self, *args], kwargs)
        return super().call_method(tx, name, args, kwargs) if by_protocol is None else by_protocol

    def length(self, tx: Tracer) -> Value:
        found = find_in_class(self.cls, "__len__")
        is_own = found is not None and not found[0].__module__.startswith("torch.")
        return self.call_method(tx, "__len__", [], {}) if is_own else super().length(tx)

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        found = find_in_class(self.cls, name)
        if found is not None and isinstance(found[1], property):
            raise Unsupported("side-effect", f"the attribute {name!r} of a tensor is set")
        super().set_attr(tx, name, value)

    def reconstruct(self, cg: Codegen) -> None:
        cg.helper(as_subclass, 0)
        cg.graph_output(self.node(cg.tx))
        cg.const(self.cls)
        cg.out.call(2)
        if self.written:
            cg.remember(self)
            cg.fill_later(self)


class _Inherited(Value):
    """``super().name`` of a tensor: a method of ``torch.Tensor`` that its own class overrides."""

    def __init__(self, of: SubclassValue, name: str) -> None:
        self.of = of
        self.name = name

    def type(self) -> type:
        return types.MethodType

    def children(self) -> list[Value]:
        return [self.of]

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        asked = dispatched(tx, "call_method", self.name, [self.of, *args], kwargs)
        return TensorValue.call_method(self.of, tx, self.name, args, kwargs) if asked is None else asked


def inherited(tx: Tracer, of: Value, name: str) -> Value:
    """What ``torch.Tensor`` has under a name, for a tensor whose class may override it."""
    if not isinstance(of, SubclassValue):
        return of.get_attr(tx, name)
    if callable(getattr(torch.Tensor, name)):
        return _Inherited(of, name)
    asked = dispatched(tx, "get_attr", name, [of], {})
    return TensorValue.get_attr(of, tx, name) if asked is None else asked


def _plain(tensor: torch.Tensor) -> Any:
    return as_subclass(tensor, torch.Tensor)


def subclass_input(tx: Tracer, real: torch.Tensor, fake: torch.Tensor, origin: Origin) -> TensorValue:
    """The value for an argument of a subclass that has the protocol and no memory other than a plain tensor's."""
    tx.guard_type(real, origin, "its class decides what operations on it do")
    return SubclassValue(type(real), None, fake, origin, real)


# Dispatch.


class _NotedError(Exception):
    """What torch passed to ``__torch_function__``."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.function = function
        self.args_given = args
        self.kwargs_given = kwargs


class _Recorder(torch.Tensor):
    """Notes how an operation on it reaches ``__torch_function__``."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _NotedError(func, args, kwargs or {})


class _RecorderMode(torch.overrides.TorchFunctionMode):
    """Notes how an operation reaches the modes in force, also one that is given no tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _NotedError(func, args, kwargs or {})


def has_protocol(value: Value) -> bool:
    """Whether operations on a value ask its class."""
    if isinstance(value, SubclassValue):
        return True
    return (
        isinstance(value, ObjectValue)
        and hasattr(value.type(), "__torch_function__")
        and not isinstance(value, TensorValue)
    )


def _inside(tx: Tracer, values: list[Value]) -> Iterator[Value]:
    for value in values:
        forced = force(tx, value)
        yield forced
        if type(forced) in (TupleValue, ListValue):
            yield from _inside(tx, forced.items)  # type: ignore[attr-defined]


def is_off(tx: Tracer) -> bool:
    """Whether no class is asked now: switched off where the frame was entered, or since."""
    return bool(tx.protocol_off) or not tx.entry_state["torch_function_enabled"]


def dispatched(tx: Tracer, op: str, target: Any, args: Args, kwargs: Words) -> Value | None:
    """What the modes and classes in force make of an operation; None where none of them is asked."""
    if (off := is_off(tx)) and not tx.function_modes:
        return None
    special_args = [] if off else [v for v in _inside(tx, [*args, *kwargs.values()]) if has_protocol(v)]
    if not special_args and not tx.function_modes:
        return None
    noted, known = _note(tx, op, target, args, kwargs, special_args)
    if noted is None:
        return None
    given = [_value(tx, a, known) for a in noted.args_given]
    words = {k: _value(tx, v, known) for k, v in noted.kwargs_given.items()}
    return ask(tx, noted.function, special_args, given, words)


def ask(tx: Tracer, function: Any, special_args: list[Value], args: Args, kwargs: Words) -> Value:
    """Ask the innermost mode, else each class in turn."""
    kinds: list[Value] = []
    for value in special_args:
        if all(value.type() is not k.type() for k in kinds):
            at = next((n for n, k in enumerate(kinds) if issubclass(value.type(), k.type())), len(kinds))
            kinds.insert(at, value)
    classes = TupleValue([tx.wrap(k.type(), class_origin(k.type())) for k in kinds])
    function_value = tx.fixed(function)
    words = DictValue.of(kwargs)
    if tx.function_modes:
        mode = tx.function_modes.pop()
        try:
            found = force(
                tx, mode.call_method(tx, "__torch_function__", [function_value, classes, TupleValue(args), words], {})
            )
        finally:
            tx.function_modes.append(mode)
        if not _is_not_implemented(found):
            return found
    for kind in kinds:
        entry = find_in_class(kind.type(), "__torch_function__")
        bound_to = kind if entry is not None and isinstance(entry[1], types.FunctionType) else None
        method = class_attribute(tx, kind.type(), "__torch_function__", bound_to)
        assert method is not None
        found = force(tx, force(tx, method).call(tx, [function_value, classes, TupleValue(args), words], {}))
        if not _is_not_implemented(found):
            return found
    return tx.raise_type_error(f"no implementation found for {function} on types that implement __torch_function__")  # type: ignore[no-any-return]


def _is_not_implemented(value: Value) -> bool:
    return isinstance(value, Const) and value.value is NotImplemented


def _note(
    tx: Tracer, op: str, target: Any, args: Args, kwargs: Words, special_args: list[Value]
) -> tuple[_NotedError | None, dict[int, Value]]:
    """Try the operation on recorders: the call that torch would make of the protocol, and which object stands for which value."""
    known: dict[int, Value] = {}
    kept: list[Any] = []

    def stand_in(value: Value) -> Any:
        value = force(tx, value)
        if type(value) in (TupleValue, ListValue):
            items = [stand_in(i) for i in value.items]  # type: ignore[attr-defined]
            return tuple(items) if isinstance(value, TupleValue) else items
        made: Any
        if isinstance(value, TensorValue) or has_protocol(value):
            made = torch.empty(0).as_subclass(_Recorder)
        elif isinstance(value, SymValue):
            made = value.type()(1)
            made = _Standing(1) if value.type() is int else made
        else:
            try:
                return value.python(tx)
            except NotConstant:
                made = torch.empty(0).as_subclass(_Recorder)
        kept.append(made)
        known[id(made)] = value
        return made

    given = [stand_in(a) for a in args]
    words = {k: stand_in(v) for k, v in kwargs.items()}
    try:
        with _RecorderMode() if tx.function_modes else contextlib.nullcontext():
            if op == "get_attr":
                getattr(given[0], target)
            elif op == "call_method":
                getattr(given[0], target)(*given[1:], **words)
            else:
                target(*given, **words)
    except _NotedError as noted:
        noted.__traceback__ = None
        noted.kept = kept  # type: ignore[attr-defined]
        return noted, known
    except Exception as error:
        raise Unsupported(
            "unsupported-operation", f"an operation on a subclass raises {type(error).__name__}"
        ) from error
    if tx.function_modes and not special_args:
        return None, known
    return None, known


class _Standing(int):
    """An int of its own, so that its identity tells it."""


def _value(tx: Tracer, real: Any, known: dict[int, Value]) -> Value:
    found = known.get(id(real))
    if found is not None:
        return found
    if type(real) is tuple:
        return TupleValue([_value(tx, r, known) for r in real])
    if type(real) is list:
        return ListValue([_value(tx, r, known) for r in real])
    return tx.from_python(real)


@contextlib.contextmanager
def _switched_off(tx: Tracer) -> Iterator[None]:
    tx.protocol_off += 1
    try:
        yield
    finally:
        tx.protocol_off -= 1


@special(_DEFAULT)
def _default(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """``torch.Tensor.__torch_function__``: the operation without the protocol, its tensors made the class's."""
    given = dict(zip(("cls", "func", "types", "args", "kwargs"), args, strict=False)) | kwargs
    cls = force(tx, given["cls"]).real()
    function = force(tx, given["func"])
    positional = list(sequence_items(tx, given["args"])) if "args" in given else []
    words = force(tx, given.get("kwargs", NONE))
    named = {str(k): v for k, (_, v) in words.entries.items()} if isinstance(words, DictValue) else {}
    with _switched_off(tx):
        result = force(tx, call_function(tx, function, positional, named))
    if function.real() in torch.overrides.get_default_nowrap_functions():
        return result
    return _converted(tx, result, cls)


@special(torch._C._disabled_torch_function_impl)
def _without_protocol(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """What a parameter's class has for the protocol: the operation without it, its results as they are."""
    given = (
        dict(zip(("func", "types", "args", "kwargs"), args[-4:] if len(args) != 5 else args[1:], strict=False)) | kwargs
    )
    positional = list(sequence_items(tx, given["args"])) if "args" in given else []
    words = force(tx, given.get("kwargs", NONE))
    with _switched_off(tx):
        return call_function(
            tx, force(tx, given["func"]), positional, tx.entries(words) if isinstance(words, DictValue) else {}
        )


def call_function(tx: Tracer, function: Value, args: Args, kwargs: Words) -> Value:
    """Call what the protocol was given: a function, a method of ``torch.Tensor``, or the getter of an attribute."""
    real = function.real()
    if isinstance(real, types.MethodWrapperType) and real.__name__ == "__get__":
        descriptor: Any = real.__self__
        of = force(tx, args[0])
        return (
            TensorValue.get_attr(of, tx, descriptor.__name__)
            if isinstance(of, SubclassValue)
            else of.get_attr(tx, descriptor.__name__)
        )
    if getattr(real, "__objclass__", None) in (torch.Tensor, torch._C.TensorBase) and args:
        of = force(tx, args[0])
        if isinstance(of, SubclassValue):  # the method of the base, which the class may override
            return TensorValue.call_method(of, tx, real.__name__, args[1:], kwargs)
    return function.call(tx, args, kwargs)


def _converted(tx: Tracer, value: Value, cls: Any) -> Value:
    value = force(tx, value)
    if cls is torch.Tensor:
        return value
    if isinstance(value, TensorValue) and not issubclass(value.type(), cls):
        return in_subclass(tx, value, cls)
    if type(value) in (TupleValue, ListValue):
        items = [_converted(tx, i, cls) for i in value.items]  # type: ignore[attr-defined]
        return TupleValue(items, value.cls) if isinstance(value, TupleValue) else ListValue(items)
    return value


def in_subclass(tx: Tracer, value: TensorValue, cls: type) -> Value:
    """``value.as_subclass(cls)``."""
    if not isinstance(value, SubclassValue) and cls is torch.Tensor:
        return emit(tx, "call_function", torch.ops.aten.alias.default, [value])
    if cls.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl and "__torch_dispatch__" in dir(cls):  # type: ignore[attr-defined]
        raise Unsupported("unsupported-operation", f"a tensor of the subclass {cls.__name__}")
    if cls is torch.Tensor:
        return TensorValue(value.node(tx), value.fake)
    return SubclassValue(cls, value.node(tx), value.fake)


def _is_made_of_one(cls: type) -> bool:
    """Whether a class makes its instances of another tensor, over the same memory, as ``torch.Tensor`` does."""
    own = find_in_class(cls, "__new__")
    return issubclass(cls, torch.Tensor) and own is not None and own[0] in (torch.Tensor, torch._C.TensorBase)


def constructed(tx: Tracer, cls: type, args: Args, kwargs: Words) -> Value | None:
    """``cls(tensor)`` for a subclass with ``torch.Tensor``'s own ``__new__``, or one in Python; None for all others."""
    if cls is torch.Tensor:
        return None
    if hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__"):
        from engine.trace.values.compiler_api import made_wrapper

        return made_wrapper(tx, cls, args, kwargs)
    new = find_in_class(cls, "__new__")
    made: Value
    if _is_made_of_one(cls) and args and isinstance(of := force(tx, args[0]), TensorValue):
        made = _made_of_one(tx, cls, of)
    elif new is not None and isinstance(raw := getattr(new[1], "__func__", new[1]), types.FunctionType):
        origin = Attr(class_origin(new[0]), "__new__")
        made = force(tx, tx.wrap(raw, origin).call(tx, [tx.wrap(cls, class_origin(cls)), *args], kwargs))
    else:
        return None
    init = find_in_class(cls, "__init__")
    if init is not None and isinstance(init[1], types.FunctionType) and issubclass(made.type(), cls):
        tx.wrap(init[1], Attr(class_origin(init[0]), "__init__")).call(tx, [made, *args], kwargs)
    return made


def _made_of_one(tx: Tracer, cls: type, of: TensorValue) -> Value:
    with _switched_off(tx):
        alias = force(tx, emit(tx, "call_function", torch.ops.aten.alias.default, [of]))
        assert isinstance(alias, TensorValue)
        return in_subclass(tx, alias, cls)


def _new(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """``super().__new__(cls, tensor)`` in a subclass."""
    cls, *given = (force(tx, a) for a in args)
    is_subclass = isinstance(cls, ClassValue) and issubclass(cls.held, torch.Tensor) and cls.held is not torch.Tensor
    if kwargs or not is_subclass or len(given) != 1 or not isinstance(given[0], TensorValue):
        raise Unsupported("unknown-call", "TensorBase.__new__ is called")
    assert isinstance(cls, ClassValue)
    return _made_of_one(tx, cls.held, given[0])


BY_NAME["TensorBase", "__new__"] = _new


@special(torch.Tensor._make_subclass)
def _make_subclass(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """A detached alias in another class."""
    given = dict(zip(("cls", "data", "require_grad"), args, strict=False)) | kwargs
    cls, data = force(tx, given["cls"]), force(tx, given["data"])
    wanted = force(tx, given.get("require_grad", Const(value=False)))
    if (
        not isinstance(cls, ClassValue)
        or not isinstance(data, TensorValue)
        or set(given) - {"cls", "data", "require_grad"}
    ):
        raise Unsupported("unknown-call", "TensorBase._make_subclass is called")
    with _switched_off(tx):
        plain = force(tx, emit(tx, "call_method", "detach", [data]))
    assert isinstance(plain, TensorValue)
    if wanted.truth(tx):
        plain = force(tx, TensorValue(plain.node(tx), plain.fake).call_method(tx, "requires_grad_", [], {}))
        assert isinstance(plain, TensorValue)
    return in_subclass(tx, TensorValue(plain.node(tx), plain.fake), cls.held)


@special(torch.Tensor.as_subclass)
def _as_subclass(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of, cls = force(tx, args[0]), force(tx, args[1] if len(args) > 1 else kwargs["cls"])
    if not isinstance(of, TensorValue) or not isinstance(cls, ClassValue):
        raise Unsupported("unknown-call", "as_subclass is called")
    return in_subclass(tx, of, cls.held)


@special(
    torch.overrides.has_torch_function,
    torch.overrides.has_torch_function_unary,
    torch.overrides.has_torch_function_variadic,
)
def _has_torch_function(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if tx.function_modes:
        return Const(value=True)
    return Const(not is_off(tx) and any(has_protocol(v) for v in _inside(tx, args)))


@special(torch.overrides.handle_torch_function)
def _handle(tx: Tracer, args: Args, kwargs: Words) -> Value:
    function, relevant, *rest = args
    special_args = [v for v in _inside(tx, list(sequence_items(tx, relevant))) if has_protocol(v)]
    return ask(tx, force(tx, function).real(), special_args, rest, kwargs)


# Modes.


@special(torch._C._push_on_torch_function_stack)
def _push(tx: Tracer, args: Args, kwargs: Words) -> Value:
    tx.changes += 1
    tx.function_modes.append(force(tx, args[0]))
    return NONE


@special(torch._C._pop_torch_function_stack)
def _pop(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if not tx.function_modes:
        raise Unsupported("unknown-call", "a torch-function mode that was entered outside is left")
    tx.changes += 1
    return tx.function_modes.pop()


@special(torch.device.__enter__)
def _enter_device(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """``with torch.device("meta")``: a mode that says where factories make their tensors."""
    context = tx.fixed(torch.utils._device.DeviceContext).call(tx, [args[0]], {})
    tx.changes += 1
    tx.function_modes.append(force(tx, context))
    return args[0]


@special(torch.device.__exit__)
def _leave_device(tx: Tracer, args: Args, kwargs: Words) -> Value:
    _pop(tx, [], {})
    return NONE


_OFF: Any = torch._C.DisableTorchFunctionSubclass


class ProtocolOff(Value):
    """``torch._C.DisableTorchFunctionSubclass()``."""

    is_mutable = True

    def type(self) -> type:
        return _OFF  # type: ignore[no-any-return]

    def get_attr(self, tx: Tracer, name: str) -> Value:
        from engine.trace.values.methods import MethodOf

        return MethodOf(self, name) if name in ("__enter__", "__exit__") else super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        if name not in ("__enter__", "__exit__"):
            return super().call_method(tx, name, args, kwargs)
        tx.changes += 1
        tx.protocol_off += 1 if name == "__enter__" else -1
        return NONE


class AllOff(ProtocolOff):
    """``torch._C.DisableTorchFunction()``: modes are not asked either."""

    def type(self) -> type:
        cls: Any = torch._C.DisableTorchFunction
        return cls  # type: ignore[no-any-return]

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        if name == "__enter__":
            tx.modes_put_by.append(tx.function_modes)
            tx.function_modes = []
        elif name == "__exit__":
            tx.function_modes = tx.modes_put_by.pop()
        return super().call_method(tx, name, args, kwargs)


@special(torch._C.DisableTorchFunction)
def _all_off(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return AllOff()


@special(torch._C._is_torch_function_all_disabled)
def _is_all_off(tx: Tracer, args: Args, kwargs: Words) -> Value:
    entry = tx.entry_state["torch_function_enabled"]
    guard_state(tx, "torch_function_enabled", entry)
    return Const(entry is None or bool(tx.modes_put_by))


@special(torch._C._get_function_stack_at)
def _mode_at(tx: Tracer, args: Args, kwargs: Words) -> Value:
    index = int(force(tx, args[0]).python(tx))
    if len(tx.modes_outside) != len(tx.entry_state["torch_function_modes"]) or not 0 <= index < len(tx.function_modes):
        raise Unsupported("unknown-call", "torch._C._get_function_stack_at is called")
    return tx.function_modes[index]


@special(torch._C._is_torch_function_enabled)
def _is_enabled(tx: Tracer, args: Args, kwargs: Words) -> Value:
    guard_state(tx, "torch_function_enabled", tx.entry_state["torch_function_enabled"])
    return Const(bool(tx.entry_state["torch_function_enabled"]) and not tx.protocol_off)


@special(torch._C._len_torch_function_stack)
def _number_of_modes(tx: Tracer, args: Args, kwargs: Words) -> Value:
    guard_state(tx, "torch_function_modes", tx.entry_state["torch_function_modes"])
    modes = sum(map(len, tx.modes_put_by), len(tx.function_modes))
    return Const(len(tx.entry_state["torch_function_modes"]) - len(tx.modes_outside) + modes)


@special(torch._C._len_torch_dispatch_stack)
def _number_of_dispatch_modes(tx: Tracer, args: Args, kwargs: Words) -> Value:
    guard_state(tx, "dispatch_modes", tx.entry_state["dispatch_modes"])
    return Const(len(tx.entry_state["dispatch_modes"]))


@special(_OFF)
def _protocol_off(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return ProtocolOff()
