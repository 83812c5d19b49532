"""What tracing one frame holds: active frames, guards, side effects, known objects, the graph builder. One owner per lifetime."""

from __future__ import annotations

import builtins
import enum
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import CodeType, MethodType
from typing import Any
from weakref import WeakSet

import torch

from engine.bytecode.decode import Decoded, Op, decode, raises_again
from engine.bytecode.spans import span_of
from engine.ir.fake import fake_mode
from engine.ir.files import innermost_of_user
from engine.ir.frame import FrameRequest
from engine.ir.global_state import GLOBAL_STATES
from engine.ir.graph import NodeOrigin
from engine.ir.guard import Cause, Guard
from engine.ir.origin import Fixed, Global, Namespace, Origin
from engine.ir.relation_guard import SameObject
from engine.ir.value_guard import CodeIs, Equals, IsObject, TypeIs
from engine.ir.view_history import unasked
from engine.options import Options
from engine.records.bytecode import Span
from engine.records.trace import InlinedCall
from engine.trace.checkpoint import TorchState
from engine.trace.convertible import convertible
from engine.trace.graph_builder import GraphBuilder
from engine.trace.kept import Kept, written_to
from engine.trace.shape_env import NotingShapeEnv
from engine.trace.signals import TraceSignal, Unsupported, UserException
from engine.trace.values.base import Const, Lazy, NotConstant, Value, force, reached
from engine.trace.values.optimizers import RESTORES
from engine.trace.values.wrap import build, from_python

_STATES = (
    "grad_mode",
    "inference_mode",
    "autocast",
    "torch_function_modes",
    "torch_function_enabled",
    "dispatch_modes",
    "functorch",
    "default_dtype",
    "deterministic",
)
"""Pieces of torch's global state that every graph depends on."""

_FIXED_TRUTHS = (TypeIs, IsObject, CodeIs, Equals)
"""Guards that cannot fail on an object which the compiled code itself holds."""


class Frame:
    """One activation of a code object: the root's, or one traced inline."""

    __slots__ = (
        "begun",
        "builtins",
        "caller_stack",
        "cells",
        "code",
        "decoded",
        "finished",
        "function",
        "globals",
        "handled",
        "index",
        "is_direct",
        "kw_names",
        "locals",
        "module",
        "op",
        "operands",
        "operations",
        "parent",
        "result",
        "stack",
        "trusted",
    )

    def __init__(
        self, code: CodeType, namespace: Namespace, parent: Frame | None, caller_stack: tuple[Span, ...]
    ) -> None:
        self.code = code
        self.decoded: Decoded = decode(code)
        self.index = 0
        self.op: Op = self.decoded.ops[0]
        self.stack: list[Value] = []
        self.operands: list[Value] = []
        """The stack as the current instruction found it: what it takes lives until it is done."""
        self.locals: dict[str, Value] = {}
        self.cells: dict[str, Any] = {}
        self.globals = namespace
        self.builtins = namespace.values.get("__builtins__", builtins)
        self.parent = parent
        self.caller_stack = caller_stack
        self.module: str = parent.module if parent is not None else ""
        self.kw_names: tuple[str, ...] = ()
        self.result: Value | None = None
        self.handled: list[Value] = []
        self.function: Value | None = None
        self.finished = False
        self.begun = 0
        """Which of all instructions the current one is."""
        self.is_direct = False
        """Whether what it returns is what the calling instruction leaves on the caller's stack."""
        self.operations = 0
        """How many operations the graph held when the call began."""
        self.trusted = is_trusted(namespace.name)

    def forget(self) -> None:
        """Let go of all values."""
        for held in (self.stack, self.operands, self.locals, self.cells, self.handled):
            held.clear()

    def push(self, value: Value) -> None:
        """Push."""
        self.stack.append(value)

    def pop(self) -> Value:
        """Pop, as it is (maybe lazy)."""
        return self.stack.pop()

    def popn(self, count: int) -> list[Value]:
        """Pop ``count`` values, bottom first."""
        if not count:
            return []
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def spans(self) -> tuple[Span, ...]:
        """The user's call stack at this frame's current instruction, outermost first."""
        return (*self.caller_stack, span_of(self.code, self.op.offset))


_TRUSTED = frozenset(
    "torch math operator functools itertools collections builtins _operator _functools _collections contextlib enum types typing "
    "copy dataclasses abc numbers warnings inspect random re string weakref unittest einops".split()
)


def is_trusted(module: str | None) -> bool:
    """Whether a module's functions and classes are taken not to change while a program runs."""
    return module is not None and module.partition(".")[0] in _TRUSTED


class GuardSet:
    """Guards in the order in which values were looked at, each once."""

    def __init__(self) -> None:
        self._known: dict[Any, Guard] = {}

    def add(self, guard: Guard) -> None:
        """Keep ``guard`` unless the same one is there."""
        if isinstance(guard.origin, Fixed) and isinstance(guard, _FIXED_TRUTHS):
            return
        key = _guard_key(guard)
        if key not in self._known:
            self._known[key] = guard

    def __len__(self) -> int:
        return len(self._known)

    def all(self) -> tuple[Guard, ...]:
        """In order."""
        return tuple(self._known.values())

    def since(self, count: int) -> list[Guard]:
        """Those added after the first ``count``."""
        return list(self._known.values())[count:]


def _guard_key(guard: Guard) -> Any:
    match guard:
        case SameObject():
            return SameObject, guard.origin, guard.other
        case TypeIs() | CodeIs() | Equals() | IsObject():
            return type(guard), guard.origin
        case _:
            with suppress(TypeError):
                hash(guard)
                return guard
            return type(guard), guard.origin, repr(guard)


def _catches(frame: Frame) -> bool:
    """Whether one of the handlers around a frame's instruction does more than leave a context that the graph itself enters and leaves."""
    if frame.code is RESTORES:
        return False
    handler = frame.decoded.handlers[frame.op.index]
    while handler is not None:
        again = raises_again(frame.decoded, handler.target)
        leave = frame.stack[handler.depth - 1] if 0 < handler.depth <= len(frame.stack) else None
        if again < 0 and not getattr(leave, "is_in_graph", False):
            return True
        handler = frame.decoded.handlers[handler.target if again < 0 else again]
    return False


class Tracer:
    """The state of tracing one frame once."""

    def __init__(self, request: FrameRequest, options: Options) -> None:
        self.request = request
        self.options = options
        self.shape_env = NotingShapeEnv(self.cause)
        self.fake_mode = fake_mode(self.shape_env)
        self.graph = GraphBuilder()
        self.guards = GuardSet()
        self.known: dict[int, tuple[Value, Any]] = {}
        self.namespaces: dict[int, Value] = {}
        """Objects that were read, by the ids of the dicts that hold their attributes."""
        self._read: dict[int, tuple[Value, Any]] = {}
        """Objects with an identity that were wrapped, by id; the object is kept so that its id stays its own."""
        self.mutated: dict[int, Value] = {}
        """Values with an origin whose contents changed, in the order of their first change."""
        self.keyed: dict[int, Value] = {}
        """Objects from outside that were keys of dicts or elements of sets by their identity, by the ids of their values."""
        self.viewed: set[int] = set()
        """Ids of dicts of which views came from outside."""
        self.changed: list[Value] | None = None
        """While the body of a higher-order operation is traced: every value whose contents changed."""
        self.globals_written: dict[tuple[Namespace, str], Value | None] = {}
        self.globals_gone: set[tuple[Namespace, str]] = set()
        """Globals that were deleted and set again: they come last among the names of their module."""
        self.frames: list[Frame] = []
        self.inlined: dict[tuple[str, int, Span | None], InlinedCall] = {}
        self.executed = 0
        self.cut_at = 0
        """At which of all instructions ``cut`` is called with the frame: the graph ends there."""
        self.cut: Callable[[Frame], None] = lambda frame: None
        self.direct: Value | None = None
        """What is being called by a call instruction that leaves the result on the stack as it is."""
        self.changes = 0
        """Counts mutations of any kind; equal counts mean that nothing changed."""
        self.draws = ""
        """How numbers are drawn from Python's random generators: see ``Restart``."""
        self.asked_for_draws = False
        """Whether anything but a number for the graph was to be drawn from a random generator."""
        self.drawn = 0
        """How many random numbers the graph takes as inputs."""
        self.outside_changes = 0
        """Those of what existed before the call."""
        self.memos: dict[int, Any] = {}
        """What functions from outside that cache their results gave for which arguments, by their ids."""
        self.kept: dict[int, Kept] = {}
        """What is in such caches that the traced code may change, by the ids of the values."""
        self.backwards: list[Any] = []
        """Backwards of the user's that were traced, which Python would run later."""
        self.showing: set[tuple[int, int]] = set()
        """Objects whose text is being made by functions that look out for recursion: what looks out, and the ids of their values."""
        self.stand_ins: dict[int, Any] | None = None
        """While a container is shown: what stands for it, and for those inside, by the ids of their values."""
        self.made_up: dict[int, tuple[str, int, Value]] = {}
        """Addresses that stand for those of objects made while tracing, by the ids of their values: which of the root's instructions asked."""
        self.proxies: dict[int, Value] = {}
        """The weak proxy that was made of each object, by the ids of their values."""
        self.effects: list[tuple[Value, str]] = []
        """Calls that have no result but happen, in order, after the graph: how to make them, and in words."""
        self.context: dict[int, list[Any]] = {}
        """What was done to context variables and still holds, by the ids of their values; what the call found there is not in it."""
        self.contexts_entered = 0
        """How many copies of the context the traced code runs in."""
        self.open_generators: list[Any] = []
        """Generators that have begun and have handlers: closing one runs code."""
        self.quiet: list[bool] = [False]
        """For each ``catch_warnings`` entered, outermost first: whether a filter set inside takes every warning without raising."""
        self.input_ints: list[Any] = []
        """Ints read from origins that are symbols."""
        self.symbols_why: dict[Any, str] = {}
        """Why a number became a symbol, by symbol."""
        self.sizes_why: dict[Origin, dict[int, str]] = {}
        """Why sizes of an input became symbols, by its dimension."""
        self.input_tensors: list[tuple[Any, int]] = []
        self.changing: set[Origin] = set()
        """Numbers that are known to differ from call to call before any call has shown it."""
        self.input_layouts: dict[int, tuple[Sequence[Any], Sequence[Any], Any]] = {}
        """Sizes, strides and places in memory that inputs came with, whatever was changed of them since, by the identity of their fakes."""
        """Tensors read from origins, with the version of their fakes at that time."""
        self.watch: Any = None
        """With steps recorded: called around each instruction."""
        self.global_cache: dict[tuple[int, str], Value] = {}
        self.made_classes: dict[type, Value] = {}
        """Classes that the traced code made, by their twins."""
        self.tensors_seen = False
        self.function_modes: list[Value] = []
        """Torch-function modes that the traced code has entered, innermost last."""
        self.modes_outside: list[Value] = []
        """Those that are in force where the frame is entered."""
        self.modes_put_by: list[list[Value]] = []
        """Those not asked while all of ``__torch_function__`` is switched off: one list for each time that it was."""
        self.protocol_off = 0
        """How often ``__torch_function__`` of subclasses is switched off."""
        self.indexes_by_tensor = False
        """Whether a tensor of one integer is an index like any tensor: in functions that flex_attention maps over positions."""
        self.torch_before = TorchState.now()
        """torch's global state when the attempt began."""
        self.undo_at_end: list[Any] = []
        """Contexts that are entered for real while tracing and not left yet."""
        self.flags_set: set[tuple[Any, str]] = set()
        """Switches of torch's that the traced code set, as modules and names."""
        self.entered: list[tuple[Any, torch.fx.Node]] = []
        """Contexts that the graph has entered and not left, with the nodes that entered them."""
        self.root_executed = 0
        """How many instructions of the root frame were begun."""
        self.is_caught = False
        """Whether the user's code does something when an operation of the graph raises."""
        self.checks: list[tuple[torch.fx.Node, bool, int]] = []
        """Truths of tensors taken for granted, as something is raised otherwise; and which of the root's instructions asked."""
        self.is_compiling = True
        """What traced code learns when it asks whether it is compiled."""
        self.asked_for_compiler = False
        self.gives_data = False
        """Whether the graph gives a tensor from outside other memory."""
        self.moved: list[Any] = []
        """Tensors from outside whose ``data`` was set."""
        self.addresses: WeakSet[Any] = WeakSet()
        """Those of tensors' memory that the traced code holds."""
        self.storages: dict[int, Any] = {}
        """The memory of tensors that were asked for it, and of inputs, by the addresses of the fakes' storages."""
        self.storages_noted = 0
        """Of how many inputs it is known whose memory they came with."""
        self.unbacked_born: dict[Any, int] = {}
        """Which of the root's instructions made each symbol that only the graph knows."""
        self.deferred = 0
        """How many assumptions of numbers that only the graph knows are checked in it."""
        self.assumed: set[Any] = set()
        """Those assumptions."""
        self.entry_state: dict[str, Any] = {name: GLOBAL_STATES[name].read() for name in _STATES}
        """torch's global state when the frame was entered."""
        self.resumed_grad: dict[int, bool] = {}
        """Grad mode outside of each ``with`` statement in which the frame resumes, by its place on the stack."""
        self.is_handling_outside: bool = GLOBAL_STATES["handling"].read()
        """Whether the frame was called while an exception was being handled."""

        self.recursion_limit = sys.getrecursionlimit()
        self._room = 0

    # Where we are.

    def forget(self) -> None:
        """Let go of the call's objects: values that read elements when they are asked for hold the tracer, a backend may ask it for guards."""
        self.request = replace(self.request, arguments={})
        values: tuple[dict[Any, Any], ...] = (self.known, self.mutated, self.namespaces, self._read, self.keyed)
        values += (self.proxies, self.memos, self.kept, self.made_up, self.global_cache, self.made_classes)
        for held in values:
            held.clear()
        self.open_generators.clear()
        del self.cut

    def is_nested(self) -> bool:
        """Whether operations go into the graph of a body."""
        return hasattr(self.graph, "outer")

    def room(self) -> int:
        """How many calls deep the traced code may go before Python would raise RecursionError."""
        if not self._room:
            used, frame = 0, sys._getframe()
            while frame.f_back is not None:
                used, frame = used + 1, frame.f_back
            self._room = max(self.recursion_limit - used, 50)
        return self._room

    @property
    def frame(self) -> Frame:
        """The innermost active frame."""
        return self.frames[-1]

    def spans(self) -> tuple[Span, ...]:
        """The user's stack, outermost first."""
        return self.frames[-1].spans() if self.frames else ()

    def node_origin(self, note: str = "") -> NodeOrigin:
        """Provenance for a node made now."""
        stack = self.spans()
        return NodeOrigin((), innermost_of_user(stack), stack, self.frames[-1].module if self.frames else "", note)

    def cause(self, why: str) -> Cause:
        """Why a guard is added now."""
        stack = self.spans()
        return Cause(innermost_of_user(stack), stack, why)

    def grad_outside(self) -> bool | None:
        """Grad mode where an exception leaves the frame, if it resumes inside of ``with`` statements that switched it."""
        return self.resumed_grad[min(self.resumed_grad)] if self.resumed_grad else None

    def note_handlers(self) -> None:
        """An operation joins the graph: look whether a handler covers it, other than the end of a context that the graph holds."""
        if not self.is_caught:
            self.is_caught = any(_catches(f) for f in self.frames)

    # Guards and wrapping.

    def guard(self, guard: Guard) -> None:
        """Take something for granted from here on."""
        self.guards.add(guard)

    def guard_type(self, real: Any, origin: Origin, why: str) -> None:
        """Guard the exact type of a value."""
        self.guards.add(TypeIs(origin, type(real), cause=self.cause(why)))

    def take_for_granted(self, node: torch.fx.Node, *, truth: bool) -> None:
        """Go on as if a tensor had this truth; code after the graph looks, and lets Python run the function's own code if it has not."""
        self.checks.append((node, truth, self.root_executed))
        self.is_caught = True

    def guard_object(self, real: Any, origin: Origin, why: str) -> None:
        """Guard the identity of a value."""
        self.guards.add(IsObject(origin, real, cause=self.cause(why)))

    def wrap(self, real: Any, origin: Origin) -> Value:
        """The value for a real object reached through ``origin``; guards what that takes. One value per object."""
        known = self.known.get(id(real))
        if known is None:
            value = build(self, real, origin)
            if value.is_mutable:
                self.known[id(real)] = (value, real)
            elif not isinstance(value, Const) and value.real() is NotImplemented:
                self._read[id(value)] = (value, real)
            return value
        value = known[0]
        if value.origin is not None and value.origin != origin:
            why = "the same object is reached in two ways, and a change through one must be seen through the other"
            self.guards.add(SameObject(origin, value.origin, True, cause=self.cause(why)))
        return value

    def real_of(self, value: Value) -> Any:
        """The object that a value is or was read from; ``NotImplemented`` where the traced code makes it."""
        read = self._read.get(id(value))
        return value.real() if read is None else read[1]

    def guard_same(self, left: Value, right: Value, same: bool) -> None:
        """Take for granted that two read objects are one, or are not."""
        if left.origin is not None and right.origin is not None and left.origin != right.origin:
            self.guards.add(
                SameObject(left.origin, right.origin, same, cause=self.cause("the two were compared by identity"))
            )

    def lazy(self, real: Any, origin: Origin) -> Value:
        """A value that is wrapped when it is first looked at."""
        return Lazy(real, origin)

    def fixed(self, real: Any, text: str = "") -> Value:
        """The value for an object that does not change while a program runs (torch's functions, classes)."""
        return self.wrap(
            real,
            Fixed(
                real,
                text or getattr(real, "__qualname__", None) or getattr(real, "__name__", None) or type(real).__name__,
            ),
        )

    def from_python(self, value: Any) -> Value:
        """A fresh value for a plain Python object made while tracing."""
        return from_python(self, value)

    def fold(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Value:
        """Run a pure function on Python values now; an exception of its becomes the user's."""
        try:
            return self.from_python(fn(*args, **kwargs))
        except (RecursionError, MemoryError, NotConstant, TraceSignal):
            raise
        except Exception as error:
            raise self.user_exception(error) from error

    def sliced(self, items: list[Value], index: slice) -> list[Value]:
        """``items[index]``, with the user's exception where the slice is none."""
        try:
            return items[index]
        except (TypeError, ValueError) as error:
            raise self.user_exception(error) from error

    def constants(self, values: Iterable[Value]) -> list[Any]:
        """Python objects of values.

        Raises:
            NotConstant: one is not fully known.
        """
        return [force(self, v).python(self) for v in values]

    def sequence(self, value: Value) -> list[Value]:
        """The items of anything that can be iterated."""
        from engine.trace.values.sequences import sequence_items

        return list(sequence_items(self, value))

    def entries(self, value: Value) -> dict[str, Value]:
        """What a mapping with names as keys holds."""
        from engine.trace.values.mappings import entries_of

        return {str(force(self, key).python(self)): item for key, item in entries_of(self, value)}

    def is_constant(self, value: Value) -> bool:
        """Whether ``python`` gives an object."""
        try:
            force(self, value).python(self)
        except NotConstant:
            return False
        return True

    def constant_attr(self, value: Const, name: str) -> Value:
        """An attribute of a constant: a method to be folded, or a plain value."""
        from engine.trace.values.methods import BoundMethod, ConstMethod

        try:
            found = getattr(value.value, name)
        except AttributeError as error:
            raise self.user_exception(error) from error
        if isinstance(value.value, enum.Enum) and isinstance(found, MethodType) and found.__self__ is value.value:
            return BoundMethod(value, self.fixed(found.__func__))
        if name in ("now", "utcnow", "today"):
            return self.fixed(found)
        if callable(found) and not isinstance(found, type):
            return ConstMethod(value, name)
        return self.from_python(found)

    # Exceptions of the user's.

    def user_exception(self, error: BaseException) -> UserException:
        """The traced code raises ``error``."""
        from engine.trace.values.exceptions import ExceptionValue

        return UserException(ExceptionValue(type(error), [self.known_or_text(a) for a in error.args], error))

    def known_or_text(self, value: Any) -> Value:
        """An argument of an exception as a value."""
        try:
            return self.from_python(value)
        except Unsupported:
            return Const(str(value))

    def stop_iteration(self, value: Value | None = None) -> UserException:
        """The traced code raises StopIteration, with the value that a generator returned."""
        from engine.trace.values.exceptions import ExceptionValue

        return UserException(ExceptionValue(StopIteration, [] if value is None else [value]))

    def raise_error(self, kind: type[BaseException], text: str) -> Any:
        """Raise ``kind(text)`` in the traced code."""
        error = kind(text)
        if isinstance(error, AttributeError) and text.endswith("'"):
            error.name = text.rpartition(" attribute '")[2].removesuffix("'")
        elif type(error) is NameError:
            error.name = text.split("'")[1]
        raise self.user_exception(error)

    def raise_missing_key(self, key: Value) -> Any:
        """Raise KeyError(key) in the traced code."""
        from engine.trace.values.exceptions import ExceptionValue

        raise UserException(ExceptionValue(KeyError, [key]))

    def raise_type_error(self, text: str) -> Any:
        """Raise a TypeError in the traced code."""
        raise self.user_exception(TypeError(text))

    # Mutation.

    def mutating(self, value: Value) -> None:
        """Call before a value's contents change: remembers that they must be put in place after the graph."""
        self.changes += 1
        if self.changed is not None:
            self.changed.append(value)
        if id(value) in self.kept:
            raise self.kept[id(value)].refused("is changed")
        if value.origin is None or value.is_made:
            return
        self.outside_changes += 1
        if id(value) not in self.mutated:
            self.mutated[id(value)] = value

    def keep(self, value: Value, cache: Any) -> None:
        """A cache from outside holds a value and what is in it from here on."""
        for held in reached([value]):
            if held.is_mutable and held.origin is None:
                self.kept.setdefault(id(held), Kept(held, cache, written_to(held), self.root_executed))

    def keyed_by_identity(self, value: Value) -> Value:
        """What stands for a value as a key, where its identity decides; which of those from outside differ is guarded at the end."""
        if value.origin is not None:
            self.keyed[id(value)] = value
        return value

    def happens(self, call: Value, words: str) -> None:
        """Something that generated code does after the graph, in the order in which it is told here."""
        self.changes += 1
        self.outside_changes += 1
        self.effects.append((call, words))

    def write_global(self, namespace: Namespace, name: str, value: Value | None) -> None:
        """Set (or with None delete) a global, to be done after the graph."""
        self.changes += 1
        self.outside_changes += 1
        was = None if value is None else value.origin
        if (namespace, name) in self.globals_written and self.globals_written[namespace, name] is None:
            del self.globals_written[namespace, name]  # set again after it was deleted: it comes last
            self.globals_gone.add((namespace, name))
        if (
            was == Global(namespace, name)
            and (namespace, name) in self.globals_written
            and (namespace, name) not in self.globals_gone
        ):
            del self.globals_written[namespace, name]  # it holds what it held before
        else:
            self.globals_written[namespace, name] = value
        self.global_cache.pop((id(namespace.values), name), None)


def fake_of(tx: Tracer, tensor: torch.Tensor, origin: Origin) -> torch.Tensor:
    """The fake tensor that stands for an input: an inference tensor only where the input is one, whatever mode the tracer is in."""
    from engine.trace.values.symbolic import keep_shapes_alike, symbolic_context

    if torch.is_inference_mode_enabled() and not tensor.is_inference():
        with torch.inference_mode(False):
            return fake_of(tx, tensor, origin)
    with unasked(tensor):
        seen = _as_seen(tensor) if torch._C._functorch.is_functorch_wrapped_tensor(tensor) else convertible(tensor)
        context = symbolic_context(tx, seen, origin)
        if context is None:
            return tx.fake_mode.from_tensor(seen, static_shapes=True, source=origin)
        fake = tx.fake_mode.from_tensor(seen, source=origin, symbolic_context=context)
        keep_shapes_alike(fake, seen)
        return fake


def _as_seen(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of its own that looks like one inside a transformation of ``torch.func``: one row of ``vmap``, say."""
    with torch.no_grad():
        twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return twin.requires_grad_(tensor.requires_grad)
