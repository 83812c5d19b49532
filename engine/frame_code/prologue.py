"""Code before the body: loads the graph inputs, calls the graph, unpacks its outputs.

``ConstantTable`` holds the constants of the whole generated code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any

import torch.fx
from bytecode import Bytecode, CompilerFlags, Instr, Label
from bytecode.instr import CellVar, FreeVar, InstrLocation

from engine.bytecode.assemble import Emitter, drop_unused_temporaries
from engine.bytecode.editable_instructions import editable_instructions, resume_index
from engine.bytecode.opcodes import CO_HAS_DOCSTRING
from engine.frame_code.codegen_runtime.fallback_state import (
    check_condition,
    save_grad_context,
    save_requires_grad,
    save_rng_state,
)
from engine.frame_code.codegen_runtime.torch_contexts import (
    call_leaving_with_block,
    call_restoring_grad_mode,
    call_restoring_torch_state,
    call_without_function_modes,
)
from engine.ir.prefetched_params import MIN_PARAMETERS, InputRuns, PrefetchedParams, parameter_runs
from engine.ir.rerun_after_error import can_rerun, save_random_state, save_tensor
from engine.ir.sources.base import GlobalsNamespace, Source
from engine.ir.sources.stdlib import RandomDrawSource
from engine.ir.traced_frame import ConstSlot, TracedGraph
from engine.torch_private.autograd import enter_autocast, set_grad_enabled

_INLINE_CONST_TYPES = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))


class UnhashableConstant:
    """Holds an unhashable constant, so that the code stays hashable.

    IPython hashes the code of each frame of a traceback.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class ConstantTable:
    """Entries for ``co_consts``; an object that code cannot contain gets a slot."""

    def __init__(self) -> None:
        self.slot_values: dict[ConstSlot, Any] = {}
        self._slots: dict[int, ConstSlot] = {}
        """Slots by the id of their objects, which ``slot_values`` holds."""

    def entry(self, value: Any) -> Any:
        """Return the entry for ``co_consts``: the object itself, or a ``ConstSlot`` for it."""
        if (
            type(value) in _INLINE_CONST_TYPES
            or (type(value) is tuple and all(type(v) in _INLINE_CONST_TYPES for v in value))
            or isinstance(value, CodeType)
        ):
            return value
        if isinstance(value, ConstSlot):
            return value
        slot = self._slots.get(id(value))
        if slot is None:
            slot = ConstSlot(type(value).__name__)
            self._slots[id(value)] = slot
            self.slot_values[slot] = value
        return slot

    def emit(self, value: Any, out: Emitter) -> None:
        """Push a constant of any type."""
        if type(value).__hash__ is not None:
            out.const(self.entry(value))
            return
        out.const(self.entry(UnhashableConstant(value)))
        out.attribute("value")


@dataclass(frozen=True, slots=True)
class GraphCallPlan:
    """Call of the graph, and what to restore before the fallback runs."""

    globals: dict[str, Any]
    """Global variables of the frame's function."""
    restoring_call: Callable[..., Any] | None = None
    """Calls a graph that switches grad mode or autocast, and restores them if it raises."""
    outer_grad_mode: bool | None = None
    """Grad mode to set if the graph raises inside a resumed ``with`` block; None outside one."""
    hides_function_modes: bool = False
    """True if torch-function modes are active, which tracing has applied already."""
    assumed_conditions: tuple[tuple[torch.fx.Node, bool], ...] = ()
    """Outputs of the graph that must have these boolean values."""
    in_try_block: bool = False
    """True if Python runs the original code after any exception in the graph."""
    mutated_inputs: tuple[Source, ...] = ()
    """Inputs in a try block whose data the graph may change."""
    draws_random: bool = False
    """True if the graph draws torch's random numbers in a try block."""
    requires_grad_inputs: tuple[Source, ...] = ()
    """Inputs on which the graph calls ``requires_grad_``."""


def restoring_call(graph: torch.fx.Graph) -> Callable[..., Any] | None:
    """Return what calls a graph that switches grad mode or autocast; None for others."""
    targets = {node.target for node in graph.nodes if node.op == "call_function"}
    if enter_autocast in targets or any(getattr(target, "changes_state", False) for target in targets):
        return call_restoring_torch_state
    return call_restoring_grad_mode if set_grad_enabled in targets else None


class _SourceReader:
    """Emitter of the instructions by which sources read their values."""

    def __init__(self, out: Emitter, code: CodeType, global_values: Any, constants: ConstantTable) -> None:
        self._out = out
        self._cell_names = code.co_cellvars
        self._global_values = global_values
        self._constants = constants

    def local(self, name: str) -> None:
        if name in self._cell_names:
            self._out.emit("LOAD_DEREF", CellVar(name))
        else:
            self._out.load(name)

    def free_variable(self, name: str) -> None:
        self._out.emit("LOAD_DEREF", FreeVar(name))

    def global_variable(self, namespace: GlobalsNamespace, name: str) -> None:
        if namespace.values is self._global_values:
            self._out.load_global(name)
        else:
            self.constant(namespace.values)
            self._out.subscript(name)

    def constant(self, value: Any) -> None:
        self._constants.emit(value, self._out)

    def locals_tuple(self, names: tuple[str, ...]) -> None:
        for name in names:
            self.local(name)
        self._out.emit("BUILD_TUPLE", len(names))

    def call_root(self, function: Callable[..., Any], *constants: Any) -> None:
        self._out.callable_const(self._constants.entry(function))
        self._call_with(constants)

    def attribute(self, name: str) -> None:
        self._out.attribute(name)

    def subscript(self, key: Any) -> None:
        self._out.subscript(self._constants.entry(key))

    def call(self, function: Callable[..., Any], *constants: Any) -> None:
        self._out.insert_callable(lambda: self.constant(function))
        self._call_with(constants, 1)

    def _call_with(self, constants: tuple[Any, ...], count: int = 0) -> None:
        for constant in constants:
            self.constant(constant)
        self._out.call(count + len(constants))


class PrologueCodegen:
    """Generator of the code before the body, and of the fallback after it.

    The fallback is the original code: it runs if the graph raises.
    """

    def __init__(
        self,
        plan: GraphCallPlan,
        code: CodeType,
        constants: ConstantTable,
        new_temp: Callable[[str], str],
        location: InstrLocation | None,
    ) -> None:
        self._plan = plan
        self.original_code = code
        self.prologue = Emitter(location)
        self.fallback = Emitter(location)
        self._constants = constants
        self._reader = _SourceReader(self.prologue, code, plan.globals, constants)
        self._new_temp = new_temp
        self._fallback_label = Label()
        self.prefetched_params: PrefetchedParams | None = None
        self._temps: dict[Source, str] = {}
        self._table_temps: dict[tuple[Source, str], str] = {}
        self._uses: Counter[Source] = Counter()
        self._table_uses: Counter[tuple[Source | None, str]] = Counter()
        self._state_restorers: list[str] = []
        self._has_fallback = False
        """True if Python runs the original code when the graph raises."""

    def emit(
        self, graph: TracedGraph | None, source_temps: Mapping[Source, str], outputs: Mapping[torch.fx.Node, str]
    ) -> None:
        """Store the objects of sources and the outputs of the graph in these temporaries."""
        self._has_fallback = graph is not None and (self._plan.in_try_block or graph.reruns_after_error)
        self._load_inputs(source_temps, [] if graph is None else [i.source for i in graph.inputs])
        if graph is None:
            return
        begin = self.prologue.try_begin(self._fallback_label, 0) if self._has_fallback else None
        self._call_graph(graph)
        self._unpack_outputs(outputs)
        for node, truth in self._plan.assumed_conditions:
            self.prologue.callable_const(self._constants.entry(check_condition))
            self.prologue.load(outputs[node])
            self.prologue.const(truth)
            self.prologue.call(2)
            self.prologue.emit("POP_TOP")
        if begin is not None:
            self.prologue.try_end(begin)
            self._release_restorers()
            self._emit_fallback(is_checked=graph.reruns_after_error)

    def _call_graph(self, graph: TracedGraph) -> None:
        """Push the result of the graph call.

        Parameters that the guard check has read are taken from ``prefetched_params``.
        """
        origins = [i.source for i in graph.inputs]
        around: list[Any] = []
        if self._plan.outer_grad_mode is not None:
            around = [self._constants.entry(call_leaving_with_block), self._plan.outer_grad_mode]
        elif self._plan.restoring_call is not None:
            around = [self._constants.entry(self._plan.restoring_call)]
        if self._plan.hides_function_modes:
            around = [self._constants.entry(call_without_function_modes), *around]

        def call(load_inputs: Callable[[], None]) -> None:
            first, *other_slots = *around, graph.slot
            self.prologue.callable_const(first)
            for value in other_slots:
                self.prologue.const(value)
            load_inputs()
            self.prologue.call(len(origins) + len(other_slots))

        def read() -> None:
            for source in origins:
                self._load(source)

        runs = parameter_runs(origins) if len(origins) >= MIN_PARAMETERS else ()
        if not runs:
            call(read)
            return
        self.prefetched_params = PrefetchedParams(runs)
        name, otherwise, end = self._new_temp("handed"), Label(), Label()
        self.prologue.callable_const(self._constants.entry(self.prefetched_params))
        self.prologue.call(0)
        self.prologue.emit("COPY", 1)
        self.prologue.store(name)
        self.prologue.const(None)
        self.prologue.emit("IS_OP", 1)
        self.prologue.jump_if_false(otherwise)
        before = dict(self._temps), dict(self._table_temps)
        call(lambda: self._load_prefetched(name, origins, runs))
        self.prologue.jump(end)
        self._temps, self._table_temps = before  # the other path does not store these temporaries
        self.prologue.label(otherwise)
        call(read)
        self.prologue.label(end)

    def _load_prefetched(self, name: str, origins: Sequence[Source], runs: InputRuns) -> None:
        first = {run[0]: number for number, run in enumerate(runs)}
        num_to_skip = 0
        for source in origins:
            if num_to_skip:
                num_to_skip -= 1
            elif source in first:
                run = runs[first[source]]
                self.prologue.load(name)
                self.prologue.subscript(first[source])
                self.prologue.emit("UNPACK_SEQUENCE", len(run))
                num_to_skip = len(run) - 1
            else:
                self._load(source)
        self.prologue.const(None)
        self.prologue.store(name)

    def _save_states(self, inputs: list[Source]) -> None:
        """Save the state that the original code needs if Python runs it as the fallback.

        RNG states: it samples the same random numbers as the graph and its inputs. Tensors: it finds them as they were
        before the graph. Grad mode and autocast, if the graph switches them.
        """
        owners: list[tuple[Source, Any]] = [(o.base, save_rng_state) for o in inputs if isinstance(o, RandomDrawSource)]
        owners.extend((o, save_tensor) for o in self._plan.mutated_inputs)
        owners.extend((o, save_requires_grad) for o in self._plan.requires_grad_inputs)
        for owner, keep in dict.fromkeys(owners):
            self._load(owner)
            self._reader.call(keep)
            self._store_restorer()
        contexts: list[Callable[[], Any]] = [save_random_state] if self._plan.draws_random else []
        if self._plan.outer_grad_mode is not None or self._plan.restoring_call is not None:
            contexts.append(save_grad_context)
        for save in contexts:
            self.prologue.callable_const(self._constants.entry(save))
            self.prologue.call(0)
            self._store_restorer()

    def _store_restorer(self) -> None:
        self._state_restorers.append(self._new_temp("rewind"))
        self.prologue.store(self._state_restorers[-1])

    def _release_restorers(self) -> None:
        """Release the saved states after the graph has run."""
        for rewind in self._state_restorers:
            self.prologue.const(None)
            self.prologue.store(rewind)

    def _emit_fallback(self, *, is_checked: bool) -> None:
        """Emit the fallback: after an exception in the graph, Python runs the original code.

        User code may handle the exception, or objects may change before it. The graph left no effects, so the
        code can run from its start. If ``is_checked``, it does not run if the backend marked the exception.
        """
        out = self.fallback
        interrupted = Label()
        out.label(self._fallback_label)
        out.emit("PUSH_EXC_INFO")
        out.const(self._constants.entry(Exception))
        out.emit("CHECK_EXC_MATCH")
        out.jump_if_false(interrupted)
        if is_checked:
            out.emit("COPY", 1)
            out.insert_callable(lambda: out.const(self._constants.entry(can_rerun)))
            out.call(1)
            out.jump_if_false(interrupted)
        out.emit("POP_TOP")
        out.emit("POP_EXCEPT")
        for rewind in self._state_restorers:
            out.callable(partial(out.load, rewind))
            out.call(0)
            out.emit("POP_TOP")
        start = resume_index(self.original_code)
        for item, n in editable_instructions(self.original_code):
            if n >= start or not isinstance(item, Instr):
                out.extend([item])
        out.label(interrupted)
        out.emit("SWAP", 2)
        out.emit("POP_EXCEPT")
        out.emit("RERAISE", 0)

    def _unpack_outputs(self, outputs: Mapping[torch.fx.Node, str]) -> None:
        if not outputs:
            self.prologue.emit("POP_TOP")
            return
        self.prologue.emit("UNPACK_SEQUENCE", len(outputs))
        for name in outputs.values():
            self.prologue.store(name)

    def _load_inputs(self, source_temps: Mapping[Source, str], graph_inputs: list[Source]) -> None:
        loaded = dict.fromkeys([*source_temps, *graph_inputs])
        self._uses = Counter(link for source in loaded for link in source.chain())
        # Reading a module attribute is slow (``Module.__getattr__``). Read each member table once for all its members.
        self._table_uses = Counter((o.parent, o.member_table) for o in self._uses if o.member_table)
        if self._has_fallback:
            self._save_states(graph_inputs)
        for source, name in source_temps.items():
            self._load(source)
            self.prologue.store(name)
            self._temps[source] = name

    def _load(self, source: Source) -> None:
        name = self._temps.get(source)
        if name is not None:
            self.prologue.load(name)
            return
        if source.member_table:
            self._load_table(source.parent, source.member_table)
        elif source.parent is not None:
            self._load(source.parent)
        source.emit(self._reader)
        if self._uses[source] > 1 and not source.is_load_cheap:
            self._temps[source] = self._store_copy()

    def _load_table(self, owner: Any, table: str) -> None:
        key = (owner, table)
        name = self._table_temps.get(key)
        if name is not None:
            self.prologue.load(name)
            return
        self._load(owner)
        self.prologue.attribute(table)
        if self._table_uses[key] > 1:
            self._table_temps[key] = self._store_copy()

    def _store_copy(self) -> str:
        """Store a copy of the top of the stack in a new temporary, and return its name."""
        name = self._new_temp("in")
        self.prologue.emit("COPY", 1)
        self.prologue.store(name)
        return name

    def assemble(self, body: Emitter) -> CodeType:
        """Return the code object of the prologue, the body and the fallback."""
        code = self.original_code
        result = Bytecode()
        start: list[Instr | Label] = []
        if code.co_freevars:
            start.append(Instr("COPY_FREE_VARS", len(code.co_freevars), location=body.location))
        start.extend(Instr("MAKE_CELL", CellVar(n), location=body.location) for n in code.co_cellvars)
        start.append(Instr("RESUME", 0, location=body.location))
        result.extend([*start, *drop_unused_temporaries([*self.prologue.code, *body.code], code.co_varnames)])
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        result.argnames = list(code.co_varnames[:count])
        result.argcount = code.co_argcount
        result.posonlyargcount = code.co_posonlyargcount
        result.kwonlyargcount = code.co_kwonlyargcount
        result.name = code.co_name
        result.qualname = code.co_qualname
        result.filename = code.co_filename
        result.first_lineno = code.co_firstlineno
        result.freevars = list(code.co_freevars)
        result.cellvars = list(code.co_cellvars)
        result.flags = CompilerFlags(code.co_flags & ~CO_HAS_DOCSTRING)
        if not self.fallback.code:
            return result.to_code()
        return self._append_fallback(result, body.location)

    def _append_fallback(self, result: Bytecode, location: InstrLocation | None) -> CodeType:
        """Assemble the code with the original code appended as the fallback.

        Stack depths are given: a resume function starts in the middle of its code, where they cannot be computed.
        """
        end = len(result)
        result.extend([self._fallback_label, Instr("RERAISE", 0, location=location)])
        depth = max(result.compute_stacksize(), self.original_code.co_stacksize, 6)
        del result[end:]
        result.extend(self.fallback.code)
        return result.to_code(stacksize=depth, compute_exception_stack_depths=False)
