"""What tracing one frame holds: active frames, guards, side effects, known objects, the graph builder. One owner per lifetime."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import MethodType
from typing import Any
from weakref import WeakSet

import torch

from engine.bytecode.decode import reraise_index
from engine.graph.fake_tensors.fake_mode import make_fake_mode
from engine.ir.compiler_protocol import CompileRequest
from engine.ir.guards.aliasing import SameObject
from engine.ir.guards.base import Cause, Guard
from engine.ir.guards.python_values import IdMatch, TypeMatch
from engine.ir.introspection.torch_global_state import GLOBAL_STATES
from engine.ir.node_metadata import NodeProvenance
from engine.ir.sources.base import GlobalsNamespace, Source
from engine.ir.sources.roots import ConstantSource, GlobalSource
from engine.ir.user_code_files import innermost_user_span
from engine.options import Options
from engine.records.bytecode import Span
from engine.records.trace import InlinedCall
from engine.trace.exc import TracerException, Unsupported, UserException
from engine.trace.external_caches import ExternallyCached, version_of
from engine.trace.frame import Frame
from engine.trace.graph_builder import GraphBuilder
from engine.trace.guard_set import GuardSet
from engine.trace.symbols.shape_env import RecordingShapeEnv
from engine.trace.torch_state_snapshot import TorchStateSnapshot
from engine.trace.variables.base import (
    ConstantVariable,
    LazyVariable,
    NotPythonConstant,
    Variable,
    reachable_variables,
    realize,
)
from engine.trace.variables.builder import build_sourceless, build_variable
from engine.trace.variables.nn_modules.optimizer_inlining import USE_GRAD_CODE

_GUARDED_GLOBAL_STATES = (
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


def _has_user_handler(frame: Frame) -> bool:
    """Whether one of the handlers around a frame's instruction does more than leave a context that the graph itself enters and leaves."""
    if frame.code is USE_GRAD_CODE:
        return False
    handler = frame.decoded.handlers[frame.op.index]
    while handler is not None:
        again = reraise_index(frame.decoded, handler.target)
        leave = frame.stack[handler.depth - 1] if 0 < handler.depth <= len(frame.stack) else None
        if again < 0 and not getattr(leave, "is_in_graph", False):
            return True
        handler = frame.decoded.handlers[handler.target if again < 0 else again]
    return False


class Tracer:
    """The state of tracing one frame once."""

    def __init__(self, request: CompileRequest, options: Options) -> None:
        self.request = request
        self.options = options
        self.shape_env = RecordingShapeEnv(self.guard_cause)
        self.fake_mode = make_fake_mode(self.shape_env)
        self.graph = GraphBuilder()
        self.guards = GuardSet()
        self.variables_by_id: dict[int, tuple[Variable, Any]] = {}
        self.variables_by_dict_id: dict[int, Variable] = {}
        """Objects that were read, by the ids of the dicts that hold their attributes."""
        self._real_by_variable_id: dict[int, tuple[Variable, Any]] = {}
        """Objects with an identity that were wrapped, by id; the object is kept so that its id stays its own."""
        self.mutated_variables: dict[int, Variable] = {}
        """Values with an origin whose contents changed, in the order of their first change."""
        self.identity_keys: dict[int, Variable] = {}
        """Objects from outside that were keys of dicts or elements of sets by their identity, by the ids of their values."""
        self.viewed_dict_ids: set[int] = set()
        """Ids of dicts of which views came from outside."""
        self.subgraph_mutations: list[Variable] | None = None
        """While the body of a higher-order operation is traced: every value whose contents changed."""
        self.global_writes: dict[tuple[GlobalsNamespace, str], Variable | None] = {}
        self.reordered_globals: set[tuple[GlobalsNamespace, str]] = set()
        """Globals that were deleted and set again: they come last among the names of their module."""
        self.frames: list[Frame] = []
        self.inlined_calls: dict[tuple[str, int, Span | None], InlinedCall] = {}
        self.instruction_count = 0
        self.breakpoint_at = 0
        """At which of all instructions ``cut`` is called with the frame: the graph ends there."""
        self.on_breakpoint: Callable[[Frame], None] = lambda frame: None
        self.direct_callee: Variable | None = None
        """What is being called by a call instruction that leaves the result on the stack as it is."""
        self.mutation_count = 0
        """Counts mutations of any kind; equal counts mean that nothing changed."""
        self.rng_mode = ""
        """How numbers are drawn from Python's random generators: see ``RestartTracing``."""
        self.rng_used_in_python = False
        """Whether anything but a number for the graph was to be drawn from a random generator."""
        self.rng_input_count = 0
        """How many random numbers the graph takes as inputs."""
        self.external_mutation_count = 0
        """Those of what existed before the call."""
        self.cache_results: dict[int, Any] = {}
        """What functions from outside that cache their results gave for which arguments, by their ids."""
        self.externally_cached: dict[int, ExternallyCached] = {}
        """What is in such caches that the traced code may change, by the ids of the values."""
        self.traced_backwards: list[Any] = []
        """Backwards of the user's that were traced, which Python would run later."""
        self.repr_in_progress: set[tuple[int, int]] = set()
        """Objects whose text is being made by functions that look out for recursion: what looks out, and the ids of their values."""
        self.repr_placeholders: dict[int, Any] | None = None
        """While a container is shown: what stands for it, and for those inside, by the ids of their values."""
        self.assigned_ids: dict[int, tuple[str, int, Variable]] = {}
        """Addresses that stand for those of objects made while tracing, by the ids of their values: which of the root's instructions asked."""
        self.weak_proxies: dict[int, Variable] = {}
        """The weak proxy that was made of each object, by the ids of their values."""
        self.side_effect_calls: list[tuple[Variable, str]] = []
        """Calls that have no result but happen, in order, after the graph: how to make them, and in words."""
        self.context_var_writes: dict[int, list[Any]] = {}
        """What was done to context variables and still holds, by the ids of their values; what the call found there is not in it."""
        self.context_copy_depth = 0
        """How many copies of the context the traced code runs in."""
        self.open_generators: list[Any] = []
        """Generators that have begun and have handlers: closing one runs code."""
        self.silenced_warnings: list[bool] = [False]
        """For each ``catch_warnings`` entered, outermost first: whether a filter set inside takes every warning without raising."""
        self.symbolic_input_scalars: list[Any] = []
        """Ints read from origins that are symbols."""
        self.symbol_reasons: dict[Any, str] = {}
        """Why a number became a symbol, by symbol."""
        self.dynamic_size_reasons: dict[Source, dict[int, str]] = {}
        """Why sizes of an input became symbols, by its dimension."""
        self.input_tensors: list[tuple[Any, int]] = []
        self.known_dynamic_sources: set[Source] = set()
        """Numbers that are known to differ from call to call before any call has shown it."""
        self.input_layouts: dict[int, tuple[Sequence[Any], Sequence[Any], Any]] = {}
        """Sizes, strides and places in memory that inputs came with, whatever was changed of them since, by the identity of their fakes."""
        """Tensors read from origins, with the version of their fakes at that time."""
        self.instruction_hook: Any = None
        """With steps recorded: called around each instruction."""
        self.loaded_globals: dict[tuple[int, str], Variable] = {}
        self.new_classes: dict[type, Variable] = {}
        """Classes that the traced code made, by their twins."""
        self.saw_tensor = False
        self.function_modes: list[Variable] = []
        """Torch-function modes that the traced code has entered, innermost last."""
        self.entry_function_modes: list[Variable] = []
        """Those that are in force where the frame is entered."""
        self.suspended_function_modes: list[list[Variable]] = []
        """Those not asked while all of ``__torch_function__`` is switched off: one list for each time that it was."""
        self.torch_function_disabled_depth = 0
        """How often ``__torch_function__`` of subclasses is switched off."""
        self.scalar_tensors_index = False
        """Whether a tensor of one integer is an index like any tensor: in functions that flex_attention maps over positions."""
        self.torch_state_snapshot = TorchStateSnapshot.capture()
        """torch's global state when the attempt began."""
        self.contexts_to_exit: list[Any] = []
        """Contexts that are entered for real while tracing and not left yet."""
        self.written_torch_flags: set[tuple[Any, str]] = set()
        """Switches of torch's that the traced code set, as modules and names."""
        self.open_graph_contexts: list[tuple[Any, torch.fx.Node]] = []
        """Contexts that the graph has entered and not left, with the nodes that entered them."""
        self.root_instruction_number = 0
        """How many instructions of the root frame were begun."""
        self.op_in_try_block = False
        """Whether the user's code does something when an operation of the graph raises."""
        self.assumed_conditions: list[tuple[torch.fx.Node, bool, int]] = []
        """Truths of tensors taken for granted, as something is raised otherwise; and which of the root's instructions asked."""
        self.is_compiling = True
        """What traced code learns when it asks whether it is compiled."""
        self.read_is_compiling = False
        self.graph_sets_data = False
        """Whether the graph gives a tensor from outside other memory."""
        self.data_assigned_inputs: list[Any] = []
        """Tensors from outside whose ``data`` was set."""
        self.data_ptr_variables: WeakSet[Any] = WeakSet()
        """Those of tensors' memory that the traced code holds."""
        self.storage_variables: dict[int, Any] = {}
        """The memory of tensors that were asked for it, and of inputs, by the addresses of the fakes' storages."""
        self.storages_recorded = 0
        """Of how many inputs it is known whose memory they came with."""
        self.unbacked_created_at: dict[Any, int] = {}
        """Which of the root's instructions made each symbol that only the graph knows."""
        self.runtime_assert_count = 0
        """How many assumptions of numbers that only the graph knows are checked in it."""
        self.runtime_assert_exprs: set[Any] = set()
        """Those assumptions."""
        self.entry_global_state: dict[str, Any] = {name: GLOBAL_STATES[name].read() for name in _GUARDED_GLOBAL_STATES}
        """torch's global state when the frame was entered."""
        self.resumed_grad_modes: dict[int, bool] = {}
        """Grad mode outside of each ``with`` statement in which the frame resumes, by its place on the stack."""
        self.called_in_except_block: bool = GLOBAL_STATES["handling"].read()
        """Whether the frame was called while an exception was being handled."""

        self.recursion_limit = sys.getrecursionlimit()
        self._remaining_depth = 0

    # Where we are.

    def release(self) -> None:
        """Let go of the call's objects: values that read elements when they are asked for hold the tracer, a backend may ask it for guards."""
        self.request = replace(self.request, arguments={})
        values: tuple[dict[Any, Any], ...] = (
            self.variables_by_id,
            self.mutated_variables,
            self.variables_by_dict_id,
            self._real_by_variable_id,
            self.identity_keys,
        )
        values += (
            self.weak_proxies,
            self.cache_results,
            self.externally_cached,
            self.assigned_ids,
            self.loaded_globals,
            self.new_classes,
        )
        for held in values:
            held.clear()
        self.open_generators.clear()
        del self.on_breakpoint

    def in_subgraph(self) -> bool:
        """Whether operations go into the graph of a body."""
        return hasattr(self.graph, "outer")

    def remaining_depth(self) -> int:
        """How many calls deep the traced code may go before Python would raise RecursionError."""
        if not self._remaining_depth:
            used, frame = 0, sys._getframe()
            while frame.f_back is not None:
                used, frame = used + 1, frame.f_back
            self._remaining_depth = max(self.recursion_limit - used, 50)
        return self._remaining_depth

    @property
    def frame(self) -> Frame:
        """The innermost active frame."""
        return self.frames[-1]

    def user_stack(self) -> tuple[Span, ...]:
        """The user's stack, outermost first."""
        return self.frames[-1].user_stack() if self.frames else ()

    def node_provenance(self, note: str = "") -> NodeProvenance:
        """Provenance for a node made now."""
        stack = self.user_stack()
        return NodeProvenance(
            (), innermost_user_span(stack), stack, self.frames[-1].module_path if self.frames else "", note
        )

    def guard_cause(self, why: str) -> Cause:
        """Why a guard is added now."""
        stack = self.user_stack()
        return Cause(innermost_user_span(stack), stack, why)

    def outer_grad_mode(self) -> bool | None:
        """Grad mode where an exception leaves the frame, if it resumes inside of ``with`` statements that switched it."""
        return self.resumed_grad_modes[min(self.resumed_grad_modes)] if self.resumed_grad_modes else None

    def update_op_in_try_block(self) -> None:
        """An operation joins the graph: look whether a handler covers it, other than the end of a context that the graph holds."""
        if not self.op_in_try_block:
            self.op_in_try_block = any(_has_user_handler(f) for f in self.frames)

    # Guards and wrapping.

    def add_guard(self, guard: Guard) -> None:
        """Take something for granted from here on."""
        self.guards.add(guard)

    def guard_type(self, real: Any, origin: Source, why: str) -> None:
        """Guard the exact type of a value."""
        self.guards.add(TypeMatch(origin, type(real), cause=self.guard_cause(why)))

    def assume_condition(self, node: torch.fx.Node, *, truth: bool) -> None:
        """Go on as if a tensor had this truth; code after the graph looks, and lets Python run the function's own code if it has not."""
        self.assumed_conditions.append((node, truth, self.root_instruction_number))
        self.op_in_try_block = True

    def guard_identity(self, real: Any, origin: Source, why: str) -> None:
        """Guard the identity of a value."""
        self.guards.add(IdMatch(origin, real, cause=self.guard_cause(why)))

    def wrap(self, real: Any, origin: Source) -> Variable:
        """The value for a real object reached through ``origin``; guards what that takes. One value per object."""
        known = self.variables_by_id.get(id(real))
        if known is None:
            value = build_variable(self, real, origin)
            if value.is_mutable:
                self.variables_by_id[id(real)] = (value, real)
            elif not isinstance(value, ConstantVariable) and value.as_python_object() is NotImplemented:
                self._real_by_variable_id[id(value)] = (value, real)
            return value
        value = known[0]
        if value.source is not None and value.source != origin:
            why = "the same object is reached in two ways, and a change through one must be seen through the other"
            self.guards.add(SameObject(origin, value.source, True, cause=self.guard_cause(why)))
        return value

    def real_object(self, value: Variable) -> Any:
        """The object that a value is or was read from; ``NotImplemented`` where the traced code makes it."""
        read = self._real_by_variable_id.get(id(value))
        return value.as_python_object() if read is None else read[1]

    def guard_same_object(self, left: Variable, right: Variable, same: bool) -> None:
        """Take for granted that two read objects are one, or are not."""
        if left.source is not None and right.source is not None and left.source != right.source:
            self.guards.add(
                SameObject(left.source, right.source, same, cause=self.guard_cause("the two were compared by identity"))
            )

    def make_lazy(self, real: Any, origin: Source) -> Variable:
        """A value that is wrapped when it is first looked at."""
        return LazyVariable(real, origin)

    def wrap_static(self, real: Any, text: str = "") -> Variable:
        """The value for an object that does not change while a program runs (torch's functions, classes)."""
        return self.wrap(
            real,
            ConstantSource(
                real,
                text or getattr(real, "__qualname__", None) or getattr(real, "__name__", None) or type(real).__name__,
            ),
        )

    def from_python(self, value: Any) -> Variable:
        """A fresh value for a plain Python object made while tracing."""
        return build_sourceless(self, value)

    def fold_constant(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Variable:
        """Run a pure function on Python values now; an exception of its becomes the user's."""
        try:
            return self.from_python(fn(*args, **kwargs))
        except (RecursionError, MemoryError, NotPythonConstant, TracerException):
            raise
        except Exception as error:
            raise self.make_user_exception(error) from error

    def slice_items(self, items: list[Variable], index: slice) -> list[Variable]:
        """``items[index]``, with the user's exception where the slice is none."""
        try:
            return items[index]
        except (TypeError, ValueError) as error:
            raise self.make_user_exception(error) from error

    def as_python_constants(self, values: Iterable[Variable]) -> list[Any]:
        """Python objects of values.

        Raises:
            NotConstant: one is not fully known.
        """
        return [realize(self, v).as_python_constant(self) for v in values]

    def unpack_iterable(self, value: Variable) -> list[Variable]:
        """The items of anything that can be iterated."""
        from engine.trace.variables.containers.sequences import sequence_items

        return list(sequence_items(self, value))

    def unpack_string_mapping(self, value: Variable) -> dict[str, Variable]:
        """What a mapping with names as keys holds."""
        from engine.trace.variables.containers.dicts import mapping_entries

        return {str(realize(self, key).as_python_constant(self)): item for key, item in mapping_entries(self, value)}

    def is_python_constant(self, value: Variable) -> bool:
        """Whether ``python`` gives an object."""
        try:
            realize(self, value).as_python_constant(self)
        except NotPythonConstant:
            return False
        return True

    def get_constant_attr(self, value: ConstantVariable, name: str) -> Variable:
        """An attribute of a constant: a method to be folded, or a plain value."""
        from engine.trace.variables.callables.methods import BoundMethodVariable, ConstantMethodVariable

        try:
            found = getattr(value.value, name)
        except AttributeError as error:
            raise self.make_user_exception(error) from error
        if isinstance(value.value, enum.Enum) and isinstance(found, MethodType) and found.__self__ is value.value:
            return BoundMethodVariable(value, self.wrap_static(found.__func__))
        if name in ("now", "utcnow", "today"):
            return self.wrap_static(found)
        if callable(found) and not isinstance(found, type):
            return ConstantMethodVariable(value, name)
        return self.from_python(found)

    # Exceptions of the user's.

    def make_user_exception(self, error: BaseException) -> UserException:
        """The traced code raises ``error``."""
        from engine.trace.variables.exceptions.exceptions import ExceptionVariable

        return UserException(ExceptionVariable(type(error), [self.exception_argument(a) for a in error.args], error))

    def exception_argument(self, value: Any) -> Variable:
        """An argument of an exception as a value."""
        try:
            return self.from_python(value)
        except Unsupported:
            return ConstantVariable(str(value))

    def make_stop_iteration(self, value: Variable | None = None) -> UserException:
        """The traced code raises StopIteration, with the value that a generator returned."""
        from engine.trace.variables.exceptions.exceptions import ExceptionVariable

        return UserException(ExceptionVariable(StopIteration, [] if value is None else [value]))

    def raise_error(self, kind: type[BaseException], text: str) -> Any:
        """Raise ``kind(text)`` in the traced code."""
        error = kind(text)
        if isinstance(error, AttributeError) and text.endswith("'"):
            error.name = text.rpartition(" attribute '")[2].removesuffix("'")
        elif type(error) is NameError:
            error.name = text.split("'")[1]
        raise self.make_user_exception(error)

    def raise_key_error(self, key: Variable) -> Any:
        """Raise KeyError(key) in the traced code."""
        from engine.trace.variables.exceptions.exceptions import ExceptionVariable

        raise UserException(ExceptionVariable(KeyError, [key]))

    def raise_type_error(self, text: str) -> Any:
        """Raise a TypeError in the traced code."""
        raise self.make_user_exception(TypeError(text))

    # Mutation.

    def record_mutation(self, value: Variable) -> None:
        """Call before a value's contents change: remembers that they must be put in place after the graph."""
        self.mutation_count += 1
        if self.subgraph_mutations is not None:
            self.subgraph_mutations.append(value)
        if id(value) in self.externally_cached:
            raise self.externally_cached[id(value)].unsupported("is changed")
        if value.source is None or value.is_constructed:
            return
        self.external_mutation_count += 1
        if id(value) not in self.mutated_variables:
            self.mutated_variables[id(value)] = value

    def mark_externally_cached(self, value: Variable, cache: Any) -> None:
        """A cache from outside holds a value and what is in it from here on."""
        for held in reachable_variables([value]):
            if held.is_mutable and held.source is None:
                self.externally_cached.setdefault(
                    id(held), ExternallyCached(held, cache, version_of(held), self.root_instruction_number)
                )

    def as_identity_key(self, value: Variable) -> Variable:
        """What stands for a value as a key, where its identity decides; which of those from outside differ is guarded at the end."""
        if value.source is not None:
            self.identity_keys[id(value)] = value
        return value

    def record_side_effect(self, call: Variable, words: str) -> None:
        """Something that generated code does after the graph, in the order in which it is told here."""
        self.mutation_count += 1
        self.external_mutation_count += 1
        self.side_effect_calls.append((call, words))

    def record_global_write(self, namespace: GlobalsNamespace, name: str, value: Variable | None) -> None:
        """Set (or with None delete) a global, to be done after the graph."""
        self.mutation_count += 1
        self.external_mutation_count += 1
        was = None if value is None else value.source
        if (namespace, name) in self.global_writes and self.global_writes[namespace, name] is None:
            del self.global_writes[namespace, name]  # set again after it was deleted: it comes last
            self.reordered_globals.add((namespace, name))
        if (
            was == GlobalSource(namespace, name)
            and (namespace, name) in self.global_writes
            and (namespace, name) not in self.reordered_globals
        ):
            del self.global_writes[namespace, name]  # it holds what it held before
        else:
            self.global_writes[namespace, name] = value
        self.loaded_globals.pop((id(namespace.values), name), None)
