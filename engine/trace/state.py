"""State of tracing one frame: one owner for each concern, with the tracer's lifetime.

``CallStack`` and ``InstructionCounter``: the position in the traced code. ``GraphFallback``: when Python runs the
original code. ``GuardSet``, ``KnownObjects``, ``SideEffects``, ``TorchState``, ``InputTensors``, ``TraceSymbols`` and
``RandomState``: what the trace has read, written and drawn so far.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import sympy
import torch
import torch.fx

from engine.bytecode.decode import reraise_index
from engine.bytecode.opcodes import EXIT_FROM_TOP
from engine.bytecode.resume_functions import resume_info
from engine.graph.fake_tensors.fake_mode import make_fake_mode
from engine.graph.fake_tensors.recording_shape_env import RecordingShapeEnv
from engine.ir.guards.aliasing import SameObject
from engine.ir.guards.base import Cause, Guard
from engine.ir.guards.library_functions import LibraryFunction, LibraryFunctionsMatch
from engine.ir.guards.python_values import CodeMatch, EqualsMatch, IdMatch, TypeMatch
from engine.ir.introspection.torch_global_state import GLOBAL_STATES, TorchStateSnapshot
from engine.ir.sources.base import MISSING, GlobalsNamespace, Source
from engine.ir.sources.roots import GlobalSource
from engine.process_state import higher_recursion_limit
from engine.records.bytecode import Span
from engine.records.trace import InlinedCall
from engine.trace.annotations import Frame, NewClassVariable, Tracer
from engine.trace.exc import Unsupported
from engine.trace.external_caches import ExternallyCached, version_of
from engine.trace.variables.base import Variable, reachable_variables
from engine.trace.variables.nn_modules.optimizer_inlining import USE_GRAD_CODE


class CallStack:
    """Active frames, the root first, with inlined calls and generators that are still open."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.inlined_calls: dict[tuple[str, int, Span | None], InlinedCall] = {}
        self.direct_callee: Variable | None = None
        """Callee of a call instruction that leaves the return value on the stack unchanged."""
        self.open_generators: list[Any] = []
        """Started generators with exception handlers: closing one runs code."""
        self.called_in_except_block: bool = GLOBAL_STATES["handling"].read()
        """True if the root frame was called while an exception was being handled."""
        self.recursion_limit = higher_recursion_limit.outside()
        self._remaining_depth = 0

    def may_be_from_before_break(self, source: Source) -> bool:
        """Return True if the function may have created the object before a graph break."""
        return source.chain()[0].is_argument_link and resume_info(self.frames[0].code) is not None

    def remaining_depth(self) -> int:
        """Return the call depth that is left before Python would raise RecursionError."""
        if not self._remaining_depth:
            used = sum(1 for _ in traceback.walk_stack(sys._getframe(1)))
            self._remaining_depth = max(self.recursion_limit - used, 50)
        return self._remaining_depth

    def user_stack(self) -> tuple[Span, ...]:
        """Return the user's call stack, outermost first."""
        return self.frames[-1].user_stack() if self.frames else ()


def _do_nothing(frame: Frame) -> None:
    pass


@dataclass
class LoopPasses:
    """Number of traced passes of a loop over an iterator, and the counts when it began."""

    iterator_id: int
    instructions: int
    operations: int
    passes: int = 0


class InstructionCounter:
    """Counts the traced instructions; holds the breakpoint and the hook of the loop."""

    def __init__(self) -> None:
        self.instruction_count = 0
        self.root_instruction_number = 0
        """Number of root frame instructions that were started."""
        self.loops: dict[tuple[int, int], LoopPasses] = {}
        """Loops that are running, by ``id`` of the frame and index of their FOR_ITER."""
        self.breakpoint_at = 0
        """Instruction number at which ``on_breakpoint`` is called with the frame to end the graph."""
        self.on_breakpoint: Callable[[Frame], None] = _do_nothing
        self.instruction_hook: Any = None
        """Hook called around each instruction if steps are recorded."""

    def release(self) -> None:
        """Release the callback, which references the tracing attempt."""
        self.on_breakpoint = _do_nothing


OFFSET_AND_ERRORS = 3
"""Values above a handler's depth when its code calls ``__exit__``.

They are the place of the error, the error that was handled before, and the error itself.
"""


def _has_user_handler(frame: Frame) -> bool:
    """Return True if user code may handle an exception at the frame's current instruction.

    Handlers that only exit contexts of the graph itself do not count.
    """
    if frame.code is USE_GRAD_CODE:
        return False
    handler = frame.decoded.handlers[frame.op.index]
    while handler is not None:
        reraise = reraise_index(frame.decoded, handler.target)
        exit = handler.depth + OFFSET_AND_ERRORS + EXIT_FROM_TOP
        exit_method = frame.stack[exit] if 0 <= exit < len(frame.stack) else None
        if reraise < 0 and not getattr(exit_method, "is_in_graph", False):
            return True
        handler = frame.decoded.handlers[handler.target if reraise < 0 else reraise]
    return False


class GraphFallback:
    """Conditions of the fallback: handlers around operations, and assumed conditions."""

    def __init__(self, call_stack: CallStack, instruction_counter: InstructionCounter) -> None:
        self._call_stack = call_stack
        self._instruction_counter = instruction_counter
        self.needed_at: int | None = None
        """Number of the root instruction of the first operation that needs a fallback."""
        self.has_operation_before = False
        """True if an operation joined the graph before the first one that needs a fallback."""
        self.assumed_conditions: list[tuple[torch.fx.Node, bool, int]] = []
        """Tensor conditions that are assumed true or false because the other branch only raises.

        Each has its node, the assumed value and the number of the root instruction.
        """

    @property
    def op_in_try_block(self) -> bool:
        """Return True if user code may handle an exception of a graph operation."""
        return self.needed_at is not None

    def update_op_in_try_block(self) -> None:
        """Record if a user handler covers the operation that joins the graph.

        Handlers that only exit contexts of the graph do not count.
        """
        if self.needed_at is not None:
            return
        if any(map(_has_user_handler, self._call_stack.frames)):
            self.needed_at = self._instruction_counter.root_instruction_number
        else:
            self.has_operation_before = True

    def assume_condition(self, node: torch.fx.Node, *, truth: bool) -> None:
        """Assume that a tensor condition has this value.

        Code after the graph checks it. If the check fails, Python runs the original code.
        """
        number = self._instruction_counter.root_instruction_number
        self.assumed_conditions.append((node, truth, number))
        self.needed_at = number if self.needed_at is None else self.needed_at


_IMPLIED_BY_IDENTITY = (TypeMatch, IdMatch, CodeMatch, EqualsMatch)
"""Guards that cannot fail on an object which the compiled code itself holds."""


class GuardSet:
    """Guards in the order in which they were added, without duplicates."""

    def __init__(self, guards: tuple[Guard, ...] = ()) -> None:
        self._guards: dict[Any, Guard] = {_guard_key(g): g for g in guards}
        self._library_functions: dict[tuple[Any, str], LibraryFunction] = {}
        """Functions and classes of builtins and trusted modules that the user's own frames read."""
        self._library_cause: Cause | None = None

    def add(self, guard: Guard) -> None:
        """Add a guard unless an equivalent one exists, or it cannot fail."""
        if guard.source.is_fixed and isinstance(guard, _IMPLIED_BY_IDENTITY):
            return
        self._guards.setdefault(_guard_key(guard), guard)

    def record_library_function(self, tx: Tracer, namespace: GlobalsNamespace, name: str, real: Any) -> None:
        """Record a builtin or library function that is read, to guard its replacement.

        Reads by library code, and of modules, do not count.
        """
        if tx.frame.is_trusted or isinstance(real, ModuleType):
            return
        self._library_cause = self._library_cause or tx.guard_cause("it was called")
        self._library_functions[namespace, name] = LibraryFunction(namespace, name, real)

    def record_class_attribute(self, tx: Tracer, cls: type, name: str) -> None:
        """Record a read of a library class's attribute, to guard that it does not change."""
        if tx.frame.is_trusted:
            return
        self._library_cause = self._library_cause or tx.guard_cause("it was read")
        for base in cls.__mro__:
            entry = vars(base).get(name, MISSING)
            namespace = GlobalsNamespace(vars(base), base.__qualname__)
            self._library_functions[base, name] = LibraryFunction(namespace, name, entry)
            if entry is not MISSING:
                return

    def add_library_functions(self) -> None:
        """Add one guard on all recorded library functions."""
        if self._library_cause is not None:
            self.add(LibraryFunctionsMatch.of(tuple(self._library_functions.values()), self._library_cause))

    def __len__(self) -> int:
        return len(self._guards)

    def all(self) -> tuple[Guard, ...]:
        """Return all guards in order."""
        return tuple(self._guards.values())

    def since(self, count: int) -> list[Guard]:
        """Return the guards added after the first ``count``."""
        return list(self._guards.values())[count:]


def _guard_key(guard: Guard) -> Any:
    match guard:
        case SameObject():
            return SameObject, guard.source, guard.other
        case TypeMatch() | CodeMatch() | EqualsMatch() | IdMatch():
            return type(guard), guard.source
        case _:
            with contextlib.suppress(TypeError):
                hash(guard)
                return guard
            return type(guard), guard.source, repr(guard)


class KnownObjects:
    """Variables of real objects by identity.

    A reference to each object is held while its id is a key, so that no other object gets this id.
    """

    def __init__(self) -> None:
        self.variables_by_id: dict[int, tuple[Variable, Any]] = {}
        self.variables_by_dict_id: dict[int, Variable] = {}
        """Variables of objects that were read, by the ids of their instance dicts."""
        self.real_by_variable_id: dict[int, tuple[Variable, Any]] = {}
        """Wrapped objects with an identity that their variables do not hold, by variable id."""
        self.identity_keys: dict[int, Variable] = {}
        """External objects used as dict keys or set elements by identity, by variable id."""
        self.viewed_dict_ids: set[int] = set()
        """Ids of dicts that have external views."""
        self.new_classes: dict[type, NewClassVariable] = {}
        """Classes that the traced code creates, by their placeholder classes."""

    def real_object(self, value: Variable) -> Any:
        """Return the object that the variable represents; NotImplemented if tracing created it."""
        variable_and_real = self.real_by_variable_id.get(id(value))
        return value.as_python_object() if variable_and_real is None else variable_and_real[1]

    def object_from_outside(self, value: Variable) -> Any:
        """Return the object that was wrapped as the variable; else NotImplemented."""
        real = self.real_object(value)
        mutable = (r for v, r in self.variables_by_id.values() if v is value)
        return next(mutable, NotImplemented) if real is NotImplemented else real

    def is_compiled_module(self, value: Variable) -> bool:
        """Return True for the lazy variable of a compiled module, which resolves to its original."""
        real = self.real_object(value)
        return issubclass(type(real), torch.nn.Module) and self.real_object(value.resolved) is not real

    def as_identity_key(self, value: Variable) -> Variable:
        """Return the key of a variable that is compared by identity.

        For external objects, guards at the end require that distinct keys stay distinct.
        """
        if value.source is not None:
            self.identity_keys[id(value)] = value
        return value

    def release(self) -> None:
        """Release the objects and their variables."""
        self.variables_by_id.clear()
        self.variables_by_dict_id.clear()
        self.real_by_variable_id.clear()
        self.identity_keys.clear()
        self.new_classes.clear()


class SideEffects:
    """Mutations, writes of globals, and calls that generated code applies after the graph."""

    def __init__(self, instruction_counter: InstructionCounter) -> None:
        self._instruction_counter = instruction_counter
        self.mutated_variables: dict[int, Variable] = {}
        """Variables with a source that were mutated, in the order of their first mutation."""
        self._recordings: list[list[Variable]] = []
        """Variables that were mutated in each block of ``recording_mutations``, innermost last."""
        self.global_writes: dict[tuple[GlobalsNamespace, str], Variable | None] = {}
        self.reordered_globals: set[tuple[GlobalsNamespace, str]] = set()
        """Globals that were deleted and set again: they come last in the order of their module."""
        self.side_effect_calls: list[tuple[Variable, str]] = []
        """Calls without a result, run in order after the graph: the call and its description."""
        self.mutation_count = 0
        """Number of mutations of any kind; an equal count means that nothing changed."""
        self.external_mutation_count = 0
        """Number of mutations of objects that existed before the call."""
        self.externally_cached: dict[int, ExternallyCached] = {}
        """Variables in external caches that the traced code may mutate, by variable id."""
        self.checks_at_end: list[Callable[[Tracer], None]] = []
        """Run at the end of the graph, after all mutations; they may raise ``RestartTracing``."""

    @property
    def writes_objects(self) -> bool:
        """True if code after the graph mutates objects or sets globals."""
        return bool(self.mutated_variables or self.global_writes)

    @property
    def has_effects(self) -> bool:
        """True if code after the graph mutates objects, sets globals or makes calls."""
        return self.writes_objects or bool(self.side_effect_calls)

    def check_opaque_call(self, name: str) -> None:
        """Raise if a function that is not traced would read objects before their mutation.

        Raises:
            Unsupported: the traced code mutated an object or set a global.
        """
        if self.writes_objects:
            raise Unsupported("opaque-after-mutation", f"{name} is called after a mutation of objects that it may read")

    @contextlib.contextmanager
    def recording_mutations(self) -> Iterator[list[Variable]]:
        """Record the variables that the block mutates."""
        recorded: list[Variable] = []
        self._recordings.append(recorded)
        try:
            yield recorded
        finally:
            self._recordings.pop()

    def record_mutation(self, value: Variable) -> None:
        """Record that a variable is about to be mutated; its contents are written after the graph."""
        self.mutation_count += 1
        value.before_mutation()
        for recorded in self._recordings:
            recorded.append(value)
        if id(value) in self.externally_cached:
            raise self.externally_cached[id(value)].graph_break("is mutated")
        if value.source is None or value.is_constructed:
            return
        self.external_mutation_count += 1
        if id(value) not in self.mutated_variables:
            self.mutated_variables[id(value)] = value

    def mark_externally_cached(self, value: Variable, cache: Any) -> None:
        """Record that an external cache holds a variable and all that is reachable from it."""
        for real in reachable_variables([value]):
            if real.is_mutable and real.source is None:
                number = self._instruction_counter.root_instruction_number
                self.externally_cached.setdefault(id(real), ExternallyCached(real, cache, version_of(real), number))

    def record_side_effect(self, call: Variable, description: str) -> None:
        """Record a call that generated code makes after the graph, in this order."""
        self.mutation_count += 1
        self.external_mutation_count += 1
        self.side_effect_calls.append((call, description))

    def record_global_write(self, namespace: GlobalsNamespace, name: str, value: Variable | None) -> None:
        """Record that a global is set, or deleted if ``value`` is None.

        Generated code does this after the graph.
        """
        self.mutation_count += 1
        self.external_mutation_count += 1
        key = (namespace, name)
        if key in self.global_writes and self.global_writes[key] is None:
            del self.global_writes[key]  # set after it was deleted: it comes last in the module
            self.reordered_globals.add(key)
        has_original_value = value is not None and value.source == GlobalSource(name, namespace)
        if has_original_value and key in self.global_writes and key not in self.reordered_globals:
            del self.global_writes[key]
        else:
            self.global_writes[key] = value

    def describe(self) -> tuple[str, ...]:
        """Return a description of each mutated variable and of each call."""
        calls = tuple(description for _, description in self.side_effect_calls)
        mutated = (v.describe().removesuffix(" (not read yet)") for v in self.mutated_variables.values())
        return (*(f"mutation of {name}" for name in mutated), *calls)

    def release(self) -> None:
        """Release the variables that may hold objects of the call."""
        self.mutated_variables.clear()
        self.externally_cached.clear()
        self.checks_at_end.clear()


_GUARDED_GLOBAL_STATES = tuple(
    (
        "grad_mode inference_mode autocast torch_function_modes torch_function_enabled dispatch_modes "
        "functorch default_dtype deterministic"
    ).split()
)
"""Parts of torch's global state that every graph depends on.

ATen reads the number of threads, reduced precision of fp16 sums and warn-only at each call, as eager does, so they need
no guard. Precision of float32 products is guarded where kernels have it as a constant.
"""


class TorchState:
    """Modes, contexts and flags of torch: at entry, and those that traced code entered."""

    def __init__(self) -> None:
        self.snapshot = TorchStateSnapshot.capture()
        """Settings when the attempt began, to restore at its end."""
        self.entry_global_state: dict[str, Any] = {name: GLOBAL_STATES[name].read() for name in _GUARDED_GLOBAL_STATES}
        """torch's global state when the frame was entered."""
        self.function_modes: list[Variable] = []
        """Active torch-function modes that the traced code entered, innermost last."""
        self.entry_function_modes: list[Variable] = []
        """Torch-function modes that are active when the frame is entered."""
        self.suspended_function_modes: list[list[Variable]] = []
        """Suspended torch-function modes: one list per active ``DisableTorchFunction``."""
        self.torch_function_disabled_depth = 0
        """Nesting depth of disabled ``__torch_function__`` of subclasses."""
        self.contexts_to_exit: list[Any] = []
        """Contexts that were really entered while tracing and not exited yet."""
        self.open_graph_contexts: list[tuple[Any, torch.fx.Node]] = []
        """Contexts that the graph has entered and not exited, with the nodes that entered them."""
        self.resumed_grad_modes: dict[int, bool] = {}
        """Grad mode outside each ``with`` block in which the frame resumes, by stack position."""
        self.is_compiling = True
        """Value that traced code gets from ``is_compiling()``."""
        self.read_is_compiling = False
        self.scalar_tensors_index = False
        """True if a one-integer tensor indexes like any tensor: in functions of flex_attention."""

    def outer_grad_mode(self) -> bool | None:
        """Return the grad mode to set when an exception leaves the frame; None if nothing to set.

        It is set if the frame resumes inside ``with`` blocks that switched grad mode.
        """
        return self.resumed_grad_modes[min(self.resumed_grad_modes)] if self.resumed_grad_modes else None

    def restore(self) -> None:
        """Exit the contexts that are still entered, and restore the settings of the entry."""
        for context in reversed(self.contexts_to_exit):
            context.__exit__(None, None, None)
        self.snapshot.restore()


class InputTensors:
    """Input tensors with their original layouts, and how their ``data`` was assigned."""

    def __init__(self) -> None:
        self.input_tensors: list[tuple[Any, int]] = []
        """Variables of input tensors, with the versions of their fakes at read."""
        self.input_layouts: dict[int, tuple[Sequence[Any], Sequence[Any], Any]] = {}
        """Original sizes, strides and storage offsets of inputs, by the id of their fakes.

        Later mutations do not change these entries.
        """
        self.saw_tensor = False
        self.may_be_marked = False
        """True if the user may have marked sizes of an input as dynamic."""
        self.graph_sets_data = False
        """True if the graph sets the data of an external tensor."""
        self.data_assigned_inputs: list[Any] = []
        """External tensors whose ``data`` was assigned."""


class TraceSymbols:
    """The shape environment with its fake mode, and the inputs that became symbols."""

    def __init__(self, guard_cause: Callable[[str], Cause]) -> None:
        self.shape_env = RecordingShapeEnv(guard_cause)
        self.fake_mode = make_fake_mode(self.shape_env)
        self.symbolic_input_scalars: list[Any] = []
        """Symbolic scalars read from sources."""
        self.symbol_reasons: dict[Any, str] = {}
        """Reason why a number became a symbol, by symbol."""
        self.dynamic_size_reasons: dict[Source, dict[int, str]] = {}
        """Reason why input sizes became symbols, by source and dimension."""
        self.known_dynamic_sources: set[Source] = set()
        """Sources of numbers known to change between calls before any call has shown it."""


class RandomState:
    """Use of Python's random numbers by the traced code."""

    def __init__(self) -> None:
        self.mode = ""
        """Treatment of Python's random numbers, see ``RestartTracing``."""
        self.used_in_python = False
        """True if code needed random results that the graph cannot take as inputs."""
        self.input_count = 0
        """Number of random numbers that the graph takes as inputs."""
        self.drawn_symbols: set[sympy.Symbol] = set()
        """Symbols of these numbers."""

    @property
    def is_used(self) -> bool:
        """Return True if the traced code drew a random number."""
        return self.used_in_python or bool(self.input_count)
