"""Generate the bytecode that replaces a frame's code.

It loads the graph inputs, calls the graph, reconstructs variables with their object identities and
applies side effects.
"""

from __future__ import annotations

import contextlib
import enum
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from bytecode import Bytecode, CompilerFlags, Instr, Label
from bytecode.instr import CellVar, FreeVar, InstrLocation

from engine.bytecode.assemble import Emitter
from engine.bytecode.editable_instructions import editable_instructions, resume_index
from engine.bytecode.opcodes import VERSION
from engine.ir.prefetched_params import InputRuns, PrefetchedParams, parameter_runs
from engine.ir.sources.attributes import (
    AttrSource,
    CellContentsSource,
    MethodResultSource,
    ModuleMemberSource,
    TypeSource,
)
from engine.ir.sources.base import GlobalsNamespace, Source
from engine.ir.sources.containers import (
    BuiltinValueSource,
    DictKeyAtSource,
    DictValueAtSource,
    GetItemSource,
    RawItemSource,
    raw_item,
)
from engine.ir.sources.iterators import IteratorItemSource, IteratorStateSource
from engine.ir.sources.roots import ClosureSource, ConstantSource, GlobalSource, LocalSource, TorchFunctionModeSource
from engine.ir.sources.stdlib import ContextVarSource, RandomDrawSource, WeakProxySource, WeakRefCallSource
from engine.ir.sources.tensors import NumpyTensorSource, tensor_from_array
from engine.ir.traced_frame import CALLEE_SLOT, ConstSlot, TracedGraph
from engine.trace.codegen_runtime.fallback_state import (
    check_condition,
    save_grad_context,
    save_requires_grad,
    save_rng_state,
    save_tensor,
)
from engine.trace.codegen_runtime.torch_contexts import (
    call_leaving_with_block,
    call_restoring_grad_state,
    call_without_function_modes,
)
from engine.trace.exc import Unsupported
from engine.trace.side_effects.input_mutations import (
    mutates_inputs,
    requires_grad_inputs,
    restorable_mutated_inputs,
)
from engine.trace.variables.base import ConstantVariable, LazyVariable, Variable
from engine.trace.variables.callables.cells import CellVariable
from engine.trace.variables.constants import DATETIME_TYPES
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import ListVariable
from engine.trace.variables.containers.sets import SetVariable
from engine.trace.variables.objects.repr_addresses import check_no_assigned_address
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer

_MUTABLE_VARIABLES = (ListVariable, DictVariable, SetVariable, UserDefinedObjectVariable)
"""Types for which a copy is wrong if other code has the object: it may mutate it."""
_INLINE_CONST_TYPES = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))


def _is_owned_by_new_class(made: Any, owner: Any) -> bool:
    return isinstance(owner, type) and owner in made


def _switches_torch_state(graph: torch.fx.Graph) -> bool:
    """Return True if the graph switches grad mode or autocast while it runs."""
    switches = (torch._C._set_grad_enabled, torch.amp.autocast_mode._enter_autocast)
    return any(
        node.op == "call_function" and (node.target in switches or getattr(node.target, "changes_state", False))
        for node in graph.nodes
    )


def _has_side_effects(tx: Tracer) -> bool:
    """Return True if generated code mutates Python objects or applies other side effects.

    Some of them come before an operation that may raise.
    """
    return bool(tx.side_effects.mutated_variables or tx.side_effects.global_writes or tx.side_effects.side_effect_calls)


def _is_rerunnable(tx: Tracer) -> bool:
    """Return True if the original code can run again after the graph raised.

    Nothing that the graph did may happen a second time.
    """
    is_python = any(getattr(node.target, "runs_user_python", False) for node in tx.graph.graph.nodes)
    return not is_python and not mutates_inputs(tx)


class PyCodegen:
    """Generator of the code that runs instead of a frame's code.

    ``prologue`` loads the inputs and calls the graph. ``body`` runs after the graph. ``fallback`` runs the
    original code.
    """

    def __init__(self, tx: Tracer, code: CodeType, location: InstrLocation | None) -> None:
        self.tx = tx
        self.original_code = code
        self.body = Emitter(location)
        self.prologue = Emitter(location)
        self.fallback = Emitter(location)
        self._fallback_label = Label()
        self.constants: dict[ConstSlot, Any] = {}
        self.prefetched_params: PrefetchedParams | None = None
        self.writes_root_cells = False
        self.continues_after = False
        """True if the function continues after this code, at a graph break."""
        self._slots: dict[int, ConstSlot] = {}
        self._alive: list[Any] = []
        self._temps: dict[int, str] = {}
        self._source_temps: dict[Source, str] = {}
        self._prologue_temps: dict[Source, str] = {}
        self._table_temps: dict[tuple[Source, str], str] = {}
        self._outputs: dict[torch.fx.Node, str] = {}
        self._unfilled: list[Any] = []
        self._cyclic: set[int] = set()
        self._shared: set[int] = set()
        self._state_restorers: list[str] = []
        self._has_fallback = False
        """True if Python runs the original code when the graph raises."""
        self._count = 0
        self._cells = frozenset(code.co_cellvars)
        self._free = frozenset(code.co_freevars)

    # Load variables.

    def find_cycles_and_shared(self, roots: Iterable[Variable]) -> None:
        """Find cycles among the variables to load, and variables that are loaded more than once.

        Objects in a cycle are created empty first and filled later.
        """
        done: set[int] = set()
        path: set[int] = set()
        for root in roots:
            self._visit_children(root, done, path)

    def _visit_children(self, value: Variable, done: set[int], path: set[int]) -> None:
        if isinstance(value, LazyVariable):
            if value.realized is None:
                return
            value = value.realized
        key = id(value)
        if key in path:
            self._cyclic.add(key)
            return
        if isinstance(value, ConstantVariable):
            return
        if key in done:
            self._shared.add(key)
            return
        done.add(key)
        path.add(key)
        for child in value.child_variables():
            self._visit_children(child, done, path)
        path.discard(key)

    def is_cyclic(self, value: Variable) -> bool:
        """Return True if the variable contains itself, directly or not."""
        return id(value) in self._cyclic

    def load(self, value: Variable) -> None:
        """Push a variable; one variable is the same object at every load."""
        if isinstance(value, LazyVariable):
            if value.realized is None or (
                isinstance(value.realized, ConstantVariable) and type(value.realized.value) in DATETIME_TYPES
            ):
                assert value.source is not None
                if isinstance(value.source, (CellContentsSource, ClosureSource, GlobalSource)):
                    # The variable may be unbound at the next call. Python raises only at the instruction that reads it.
                    self.tx.guard_type(value.real_object, value.source, "it is passed on without being read")
                self.load_source(value.source)  # a date must retain its identity, unlike a number
                return
            value = value.realized
        if isinstance(value, ConstantVariable):
            self.load_const(value.value)
            return
        temp = self._temps.get(id(value))
        if temp is not None:
            self.body.load(temp)
            return
        if value.source is not None and not isinstance(value, CellVariable) and not value.is_constructed:
            self.load_source(value.source)
            return
        kept = self.tx.side_effects.externally_cached.get(id(value))
        if kept is not None and isinstance(value, _MUTABLE_VARIABLES):
            raise kept.graph_break("is used after the graph")
        value.reconstruct(self)
        if (value.is_mutable or id(value) in self._shared) and id(value) not in self._temps:
            self.cache_top(value)

    def store_root_cell(self, name: str, cell: CellVariable) -> None:
        """Store the current content of a cell that the root frame creates.

        Before this, only the cells of parameters have a content.
        """
        if cell.content is not None:
            self.load(cell.content)
            self.fill_deferred()
            self.body.emit("STORE_DEREF", CellVar(name))
        elif cell.root_frame_name and not cell.was_empty:
            self.body.emit("DELETE_DEREF", CellVar(name))

    def load_all(self, values: Iterable[Variable]) -> None:
        """Push variables in order."""
        for value in values:
            self.load(value)

    def cache_top(self, value: Variable) -> None:
        """Store the top of the stack in a temporary, for later loads of this variable."""
        name = self.new_temp("v")
        self._temps[id(value)] = name
        self._alive.append(value)
        self.body.emit("COPY", 1)
        self.body.store(name)

    def temps_of_type(self, kind: type[Variable]) -> list[str]:
        """Return the temporaries of cached variables of this type."""
        return [self._temps[id(v)] for v in self._alive if isinstance(v, kind) and id(v) in self._temps]

    def defer_fill(self, value: Variable) -> None:
        """Defer filling a variable that was created empty: ``fill_deferred`` fills it."""
        self._unfilled.append(value)

    def fill_deferred(self) -> None:
        """Fill the objects that were created empty."""
        while self._unfilled:
            value = self._unfilled.pop(0)
            self.load(value)
            value.fill(self)

    def new_temp(self, prefix: str) -> str:
        """Return a new name for a local variable."""
        self._count += 1
        return f"__{prefix}{self._count}"

    def load_const(self, value: Any) -> None:
        """Push a constant of any type.

        A class that the traced code creates, its enum members, methods and functions are loaded from the class
        created by this call.
        """
        made = self.tx.objects.new_classes
        if made and isinstance(value, type) and value in made:
            self.load(made[value])
        elif made and isinstance(value, enum.Enum) and type(value) in made:
            cls = type(value)
            if cls.__members__.get(value.name) is value:
                self.load(made[cls])
                self.body.attribute(value.name)
            else:  # a combination of flags has no name
                self.body.callable(lambda: self.load(made[cls]))
                self.load_const(value.value)
                self.body.call(1)
        elif made and isinstance(value, BuiltinFunctionType) and _is_owned_by_new_class(made, value.__self__):
            owner: Any = value.__self__
            self.load(made[owner])
            self.body.attribute(value.__name__)
        elif made and isinstance(value, FunctionType) and self._new_function_of(value) is not None:
            self.load(self._new_function_of(value))
        else:
            self.body.const(self.as_co_const(value))

    def _new_function_of(self, real: Any) -> Any:
        """Return the variable of the function in a placeholder class, if tracing created it."""
        known = self.tx.objects.variables_by_id.get(id(real))
        return known[0] if known is not None and known[0].source is None else None

    @contextlib.contextmanager
    def alternative_path(self) -> Iterator[None]:
        """Emit code for one of several alternative paths.

        Objects reconstructed on this path are not reused on the others.
        """
        before = dict(self._temps)
        yield
        self._temps = before

    def is_cached(self, value: Variable) -> bool:
        """Return True if the variable has been reconstructed already."""
        return id(value) in self._temps

    def as_co_const(self, value: Any) -> Any:
        """Return the entry for ``co_consts``: the object itself, or a ``ConstSlot`` for it."""
        check_no_assigned_address(self.tx, value)
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
            self._alive.append(value)
            self.constants[slot] = value
        return slot

    def load_helper(self, function: Callable[..., Any], loaded: int) -> None:
        """Push a helper function to call.

        With ``loaded`` 1, push it below its argument, which is on top of the stack already.
        """
        if not loaded:
            self.body.callable(lambda: self.load_const(function))
            return
        if VERSION >= (3, 13):
            self.load_const(function)
            self.body.emit("SWAP", 2)
            self.body.emit("PUSH_NULL")
            self.body.emit("SWAP", 2)
            return
        self.body.emit("PUSH_NULL")
        self.body.emit("SWAP", 2)
        self.load_const(function)
        self.body.emit("SWAP", 2)

    def load_dispatched(self, load: Callable[[], None]) -> None:
        """Push a replacement of the object that ``load`` pushes: its callees are compiled.

        The object is about to be called or consumed.
        """
        self.body.callable_const(CALLEE_SLOT)
        load()
        self.body.call(1)

    def load_callable_dispatched(self, load: Callable[[], None]) -> None:
        """Push the callable that ``load`` pushes.

        If the function continues after this code, replace it so that the functions it calls are compiled.
        """
        self.body.callable((lambda: self.load_dispatched(load)) if self.continues_after else load)

    def call_with_keywords(self, count: int, names: tuple[str, ...]) -> None:
        """Emit a call with ``count`` positional arguments, followed by these keyword arguments."""
        if not names:
            self.body.call(count)
            return
        if VERSION >= (3, 13):
            self.body.const(names)
            self.body.emit("CALL_KW", count + len(names))
            return
        self.body.emit("KW_NAMES", names)
        self.body.call(count + len(names))

    def load_namespace(self, namespace: GlobalsNamespace) -> None:
        """Push a globals dictionary."""
        self.load_const(namespace.values)

    def cell_arg(self, name: str) -> CellVar | FreeVar:
        """Return the instruction argument of a cell or free variable of this frame."""
        self.writes_root_cells = True
        return CellVar(name) if name in self._cells else FreeVar(name)

    # Graph outputs and sources.

    def load_graph_output(self, node: torch.fx.Node) -> None:
        """Push a graph output."""
        name = self._outputs.get(node)
        if name is None:
            name = self._outputs[node] = self.new_temp("out")
        self.body.load(name)

    def load_source(self, origin: Source) -> None:
        """Push the object that a source reached before the graph ran."""
        if isinstance(origin, LocalSource) and origin.variable_name not in self._cells:
            self.body.load(origin.variable_name)
            return
        if isinstance(origin, ConstantSource):
            self.load_const(origin.value)
            return
        name = self._source_temps.get(origin)
        if name is None:
            name = self._source_temps[origin] = self.new_temp("in")
        self.body.load(name)

    def finish(self) -> tuple[CodeType, TracedGraph | None]:
        """Assemble the generated code and finish the graph."""
        for node, _, _ in self.tx.fallback.assumed_conditions:
            if node not in self._outputs:
                self._outputs[node] = self.new_temp("out")
        graph = self.tx.graph.finish(list(self._outputs))
        self._has_fallback = self.tx.fallback.op_in_try_block or (
            _has_side_effects(self.tx) and _is_rerunnable(self.tx)
        )
        if graph is not None and (self.tx.side_effects.mutated_variables or self.tx.side_effects.global_writes):
            graph = replace(graph, has_object_side_effects=True)
        if graph is not None:
            came = self.tx.inputs.input_layouts
            graph = replace(graph, inputs=tuple(replace(i, original_layout=came.get(id(i.fake))) for i in graph.inputs))
        inputs = () if graph is None else graph.inputs
        self._load_inputs([i.source for i in inputs])
        if graph is not None:
            begin = self.prologue.try_begin(self._fallback_label, 0) if self._has_fallback else None
            self._call_graph(graph)
            self._unpack_outputs()
            for node, truth, _ in self.tx.fallback.assumed_conditions:
                self.prologue.callable_const(self.as_co_const(check_condition))
                self.prologue.load(self._outputs[node])
                self.prologue.const(truth)
                self.prologue.call(2)
                self.prologue.emit("POP_TOP")
            if begin is not None:
                self.prologue.try_end(begin)
                self._release_restorers()
                self._emit_fallback()
        return self._assemble(), graph

    def _call_graph(self, graph: TracedGraph) -> None:
        """Push the result of the graph call.

        Parameters that the guard check has read are taken from ``prefetched_params``.
        """
        origins = [i.source for i in graph.inputs]
        outside = self.tx.torch_state.outer_grad_mode()
        if outside is not None:
            around = [self.as_co_const(call_leaving_with_block), outside]
        else:
            around = [self.as_co_const(call_restoring_grad_state)] if _switches_torch_state(graph.graph.graph) else []
        if self.tx.torch_state.entry_function_modes:
            around = [self.as_co_const(call_without_function_modes), *around]

        def call(load_inputs: Callable[[], None]) -> None:
            first, *rest = *around, graph.slot
            self.prologue.callable_const(first)
            for value in rest:
                self.prologue.const(value)
            load_inputs()
            self.prologue.call(len(origins) + len(rest))

        def read() -> None:
            for origin in origins:
                self._load_in_prologue(origin)

        runs = parameter_runs(origins)
        if not runs:
            call(read)
            return
        self.prefetched_params = PrefetchedParams(runs)
        name, otherwise, end = self.new_temp("handed"), Label(), Label()
        self.prologue.callable_const(self.as_co_const(self.prefetched_params))
        self.prologue.call(0)
        self.prologue.emit("COPY", 1)
        self.prologue.store(name)
        self.prologue.const(None)
        self.prologue.emit("IS_OP", 1)
        self.prologue.jump_if_false(otherwise)
        before = dict(self._prologue_temps), dict(self._table_temps)
        call(lambda: self._load_prefetched(name, origins, runs))
        self.prologue.jump(end)
        self._prologue_temps, self._table_temps = before  # the other path does not store these temporaries
        self.prologue.label(otherwise)
        call(read)
        self.prologue.label(end)

    def _load_prefetched(self, name: str, origins: Sequence[Source], runs: InputRuns) -> None:
        first = {run[0]: number for number, run in enumerate(runs)}
        left = 0
        for origin in origins:
            if left:
                left -= 1
            elif origin in first:
                run = runs[first[origin]]
                self.prologue.load(name)
                self.prologue.subscript(first[origin])
                self.prologue.emit("UNPACK_SEQUENCE", len(run))
                left = len(run) - 1
            else:
                self._load_in_prologue(origin)
        self.prologue.const(None)
        self.prologue.store(name)

    def _save_states(self, inputs: list[Source]) -> None:
        """Save the state that the original code needs if Python runs it as the fallback.

        RNG states: it samples the same random numbers as the graph inputs. Tensors: it finds them as they were
        before the graph. Grad mode and autocast, if the graph switches them.
        """
        owners: list[tuple[Source, Any]] = [(o.base, save_rng_state) for o in inputs if isinstance(o, RandomDrawSource)]
        owners.extend((o, save_tensor) for o in restorable_mutated_inputs(self.tx) or ())
        owners.extend((o, save_requires_grad) for o in requires_grad_inputs(self.tx))
        for owner, keep in dict.fromkeys(owners):
            self._load_in_prologue(owner)
            self._call_in_prologue(keep)
            self._store_restorer()
        outside = self.tx.torch_state.outer_grad_mode()
        if outside is not None or _switches_torch_state(self.tx.graph.graph):
            self.prologue.callable_const(self.as_co_const(save_grad_context))
            self.prologue.call(0)
            self._store_restorer()

    def _store_restorer(self) -> None:
        self._state_restorers.append(self.new_temp("rewind"))
        self.prologue.store(self._state_restorers[-1])

    def _release_restorers(self) -> None:
        """Release the saved states after the graph has run."""
        for rewind in self._state_restorers:
            self.prologue.const(None)
            self.prologue.store(rewind)

    def _emit_fallback(self) -> None:
        """Emit the fallback: after an exception in the graph, Python runs the original code.

        User code may handle the exception, or objects may change before it. The graph left no effects, so the
        code can run from its start.
        """
        out = self.fallback
        interrupted = Label()
        out.label(self._fallback_label)
        out.emit("PUSH_EXC_INFO")
        out.const(self.as_co_const(Exception))
        out.emit("CHECK_EXC_MATCH")
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

    def _unpack_outputs(self) -> None:
        if not self._outputs:
            self.prologue.emit("POP_TOP")
            return
        self.prologue.emit("UNPACK_SEQUENCE", len(self._outputs))
        for name in self._outputs.values():
            self.prologue.store(name)

    def _load_inputs(self, graph_inputs: list[Source]) -> None:
        uses: Counter[Source] = Counter()
        for origin in {**dict.fromkeys(self._source_temps), **dict.fromkeys(graph_inputs)}:
            for link in origin.chain():
                uses[link] += 1
        self._uses = uses
        # Reading a module attribute is slow (``Module.__getattr__``). Read each member table once for all its members.
        self._table_uses = Counter((o.base, o.table) for o in uses if isinstance(o, ModuleMemberSource))
        if self._has_fallback:
            self._save_states(graph_inputs)
        for origin, name in self._source_temps.items():
            self._load_in_prologue(origin)
            self.prologue.store(name)
            self._prologue_temps[origin] = name

    def _load_in_prologue(self, origin: Source) -> None:
        name = self._prologue_temps.get(origin)
        if name is not None:
            self.prologue.load(name)
            return
        if isinstance(origin, ModuleMemberSource):
            self._load_member_table(origin)
        elif origin.parent is not None:
            self._load_in_prologue(origin.parent)
        self._load_source_step(origin)
        if self._uses[origin] > 1 and not isinstance(origin, (LocalSource, ConstantSource)):
            name = self._prologue_temps[origin] = self.new_temp("in")
            self.prologue.emit("COPY", 1)
            self.prologue.store(name)

    def _load_member_table(self, origin: ModuleMemberSource) -> None:
        key = (origin.base, origin.table)
        name = self._table_temps.get(key)
        if name is not None:
            self.prologue.load(name)
            return
        self._load_in_prologue(origin.base)
        self.prologue.attribute(origin.table)
        if self._table_uses[key] > 1:
            name = self._table_temps[key] = self.new_temp("in")
            self.prologue.emit("COPY", 1)
            self.prologue.store(name)

    def _load_source_step(self, origin: Source) -> None:
        head = self.prologue
        match origin:
            case LocalSource(variable):
                if variable in self._cells:
                    head.emit("LOAD_DEREF", CellVar(variable))
                else:
                    head.load(variable)
            case ClosureSource(variable):
                head.emit("LOAD_DEREF", FreeVar(variable))
            case TorchFunctionModeSource(index):
                head.callable_const(torch._C._get_function_stack_at)
                head.const(index)
                head.call(1)
            case GlobalSource(namespace, variable):
                if namespace.values is self.tx.request.function.__globals__:
                    head.load_global(variable)
                else:
                    head.const(self.as_co_const(namespace.values))
                    head.subscript(variable)
            case ConstantSource(held):
                head.const(self.as_co_const(held))
            case AttrSource(_, attribute):
                head.attribute(attribute)
            case ModuleMemberSource(_, _, member):
                head.subscript(member)
            case GetItemSource(_, key):
                head.subscript(self.as_co_const(key))
            case CellContentsSource(_, index):
                head.attribute("__closure__")
                head.subscript(index)
                head.attribute("cell_contents")
            case DictKeyAtSource(_, index):
                self._call_in_prologue(list)
                head.subscript(index)
            case DictValueAtSource(_, index):
                self._call_in_prologue(DictValueAtSource.value_at, index)
            case TypeSource():
                self._call_in_prologue(type)
            case NumpyTensorSource():
                self._call_in_prologue(tensor_from_array)
            case WeakRefCallSource():
                self._call_in_prologue(operator.call)
            case (
                BuiltinValueSource()
                | RandomDrawSource()
                | IteratorStateSource()
                | IteratorItemSource()
                | ContextVarSource()
                | WeakProxySource()
                | MethodResultSource()
            ):
                self._call_in_prologue(origin.read)
            case RawItemSource(_, key):
                self._call_in_prologue(raw_item, key)
            case _:
                raise Unsupported("rebuild-value", f"loading {origin.expr} again")

    def _call_in_prologue(self, function: Any, *constants: Any) -> None:
        out, self.body = self.body, self.prologue
        try:
            self.load_helper(function, 1)
        finally:
            self.body = out
        for constant in constants:
            self.prologue.const(self.as_co_const(constant))
        self.prologue.call(1 + len(constants))

    def _assemble(self) -> CodeType:
        code = self.original_code
        result = Bytecode()
        start: list[Instr | Label] = []
        if code.co_freevars:
            start.append(Instr("COPY_FREE_VARS", len(code.co_freevars), location=self.body.location))
        start.extend(Instr("MAKE_CELL", CellVar(n), location=self.body.location) for n in code.co_cellvars)
        start.append(Instr("RESUME", 0, location=self.body.location))
        result.extend([*start, *self.prologue.code, *self.body.code])
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
        result.flags = CompilerFlags(code.co_flags)
        if not self.fallback.code:
            return result.to_code()
        return self._append_fallback(result)

    def _append_fallback(self, result: Bytecode) -> CodeType:
        """Assemble the code with the original code appended as the fallback.

        Stack depths are given: a resume function starts in the middle of its code, where they cannot be computed.
        """
        end = len(result)
        result.extend([self._fallback_label, Instr("RERAISE", 0, location=self.body.location)])
        depth = max(result.compute_stacksize(), self.original_code.co_stacksize, 4)
        del result[end:]
        result.extend(self.fallback.code)
        return result.to_code(stacksize=depth, compute_exception_stack_depths=False)

    # torch state.

    def restore_grad_mode(self) -> None:
        """Set grad mode as the traced code left it, whatever the graph switched."""
        if torch.is_grad_enabled() != self.tx.torch_state.entry_global_state["grad_mode"]:
            self.body.callable(lambda: self.load_const(torch._C._set_grad_enabled))
            self.body.const(torch.is_grad_enabled())
            self.body.call(1)
            self.body.emit("POP_TOP")
