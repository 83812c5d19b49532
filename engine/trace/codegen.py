"""From values back to bytecode: loads inputs, calls the graph, rebuilds values with their identities, replays side effects."""

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

from engine.bytecode.apart import first_real, take_apart
from engine.bytecode.assemble import Emitter
from engine.bytecode.opcodes import VERSION
from engine.ir.frame import CALLEE, GraphSlot, Slot
from engine.ir.handed import Handed, Runs, runs_of
from engine.ir.origin import (
    ArrayTensor,
    Asked,
    Attr,
    CellOf,
    Closure,
    ContextContent,
    Drawn,
    EntryAt,
    Fixed,
    FunctionMode,
    Global,
    Item,
    IteratorState,
    Key,
    Local,
    Member,
    Namespace,
    Origin,
    Plain,
    Proxied,
    Referent,
    Stored,
    TypeOf,
    Upcoming,
    stored_item,
    tensor_of_array,
)
from engine.trace.side_effects import changed_inputs, changes_inputs, switched_inputs
from engine.trace.signals import Unsupported
from engine.trace.support import (
    call_leaving,
    call_restoring,
    call_without_modes,
    check_truth,
    regaining,
    requiring,
    restoring,
    rewinding,
)
from engine.trace.values.addresses import check_addresses
from engine.trace.values.base import Const, Lazy, Value
from engine.trace.values.cells import CellValue
from engine.trace.values.constants import DATES
from engine.trace.values.mappings import DictValue
from engine.trace.values.objects import ObjectValue
from engine.trace.values.sequences import ListValue
from engine.trace.values.sets import SetValue

if TYPE_CHECKING:
    from engine.trace.state import Tracer

_CHANGEABLE = (ListValue, DictValue, SetValue, ObjectValue)
"""Kinds of which a copy does not do where others hold the object too: whoever gets it may change it."""
_EMBEDDED = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))


def _in_made(made: Any, owner: Any) -> bool:
    return isinstance(owner, type) and owner in made


def _switches_state(graph: torch.fx.Graph) -> bool:
    """Whether a graph switches grad mode or autocast while it runs."""
    switches = (torch._C._set_grad_enabled, torch.amp.autocast_mode._enter_autocast)
    return any(
        node.op == "call_function" and (node.target in switches or getattr(node.target, "changes_state", False))
        for node in graph.nodes
    )


def _has_effects(tx: Tracer) -> bool:
    """Whether Python objects are changed after the graph, of which some are changed before an operation that may raise."""
    return bool(tx.mutated or tx.globals_written or tx.effects)


def _leaves_nothing(tx: Tracer) -> bool:
    """Whether a graph that raises half-way has done nothing that the same code run by Python would do again."""
    is_python = any(getattr(node.target, "is_python", False) for node in tx.graph.graph.nodes)
    return not is_python and not changes_inputs(tx)


class Codegen:
    """Builds the code that runs instead of a frame's. ``out`` is what runs after the graph; inputs are loaded before it."""

    def __init__(self, tx: Tracer, code: CodeType, location: InstrLocation | None) -> None:
        self.tx = tx
        self.source = code
        self.out = Emitter(location)
        self.head = Emitter(location)
        self.tail = Emitter(location)
        self._again = Label()
        self.constants: dict[Slot, Any] = {}
        self.handed: Handed | None = None
        self.uses_cells = False
        self.at_break = False
        """Whether the function goes on after this code."""
        self._slots: dict[int, Slot] = {}
        self._kept: list[Any] = []
        self._temps: dict[int, str] = {}
        self._origins: dict[Origin, str] = {}
        self._loaded: dict[Origin, str] = {}
        self._tables: dict[tuple[Origin, str], str] = {}
        self._outputs: dict[torch.fx.Node, str] = {}
        self._pending: list[Any] = []
        self._cyclic: set[int] = set()
        self._shared: set[int] = set()
        self._rewinds: list[str] = []
        self._is_run_again = False
        """Whether Python runs the function's own code where the graph raises."""
        self._count = 0
        self._cells = frozenset(code.co_cellvars)
        self._free = frozenset(code.co_freevars)

    # Loading values.

    def prepare(self, roots: Iterable[Value]) -> None:
        """Look for cycles among what will be loaded, which are made empty first and filled afterwards, and for what is loaded twice."""
        done: set[int] = set()
        path: set[int] = set()
        for root in roots:
            self._visit(root, done, path)

    def _visit(self, value: Value, done: set[int], path: set[int]) -> None:
        if isinstance(value, Lazy):
            if value.known is None:
                return
            value = value.known
        key = id(value)
        if key in path:
            self._cyclic.add(key)
            return
        if isinstance(value, Const):
            return
        if key in done:
            self._shared.add(key)
            return
        done.add(key)
        path.add(key)
        for child in value.children():
            self._visit(child, done, path)
        path.discard(key)

    def is_reaching(self, value: Value) -> bool:
        """Whether a value holds itself, directly or not."""
        return id(value) in self._cyclic

    def load(self, value: Value) -> None:
        """Push a value; the same value is the same object each time."""
        if isinstance(value, Lazy):
            if value.known is None or (isinstance(value.known, Const) and type(value.known.value) in DATES):
                assert value.origin is not None
                if isinstance(value.origin, (CellOf, Closure, Global)):
                    # It may be gone at the next call, where Python raises only at the instruction that reads it.
                    self.tx.guard_type(value.held, value.origin, "it is handed on unread")
                self.load_origin(value.origin)  # a date's own identity is kept, unlike a number's
                return
            value = value.known
        if isinstance(value, Const):
            self.const(value.value)
            return
        temp = self._temps.get(id(value))
        if temp is not None:
            self.out.load(temp)
            return
        if value.origin is not None and not isinstance(value, CellValue) and not value.is_made:
            self.load_origin(value.origin)
            return
        kept = self.tx.kept.get(id(value))
        if kept is not None and isinstance(value, _CHANGEABLE):
            raise kept.refused("outlives the graph")
        value.reconstruct(self)
        if (value.is_mutable or id(value) in self._shared) and id(value) not in self._temps:
            self.remember(value)

    def fill_root_cell(self, name: str, cell: CellValue) -> None:
        """Put into a cell that the root frame makes what it holds by now; only those of parameters are full before."""
        if cell.content is not None:
            self.load(cell.content)
            self.flush()
            self.out.emit("STORE_DEREF", CellVar(name))
        elif cell.root_name and not cell.was_empty:
            self.out.emit("DELETE_DEREF", CellVar(name))

    def load_all(self, values: Iterable[Value]) -> None:
        """Push values in order."""
        for value in values:
            self.load(value)

    def remember(self, value: Value) -> None:
        """What is on top of the stack is this value: keep it for later loads."""
        name = self.temp("v")
        self._temps[id(value)] = name
        self._kept.append(value)
        self.out.emit("COPY", 1)
        self.out.store(name)

    def kept_of(self, kind: type[Value]) -> list[str]:
        """The variables that keep values of a kind for later loads."""
        return [self._temps[id(v)] for v in self._kept if isinstance(v, kind) and id(v) in self._temps]

    def fill_later(self, value: Value) -> None:
        """A value was made empty: ``flush`` gives it its contents."""
        self._pending.append(value)

    def flush(self) -> None:
        """Fill what was made empty."""
        while self._pending:
            value = self._pending.pop(0)
            self.load(value)
            value.fill(self)

    def temp(self, prefix: str) -> str:
        """A fresh local variable."""
        self._count += 1
        return f"__{prefix}{self._count}"

    def const(self, value: Any) -> None:
        """Push a constant of any kind; what belongs to a class that the traced code makes comes from the one made now."""
        made = self.tx.made_classes
        if made and isinstance(value, type) and value in made:
            self.load(made[value])
        elif made and isinstance(value, enum.Enum) and type(value) in made:
            cls = type(value)
            if cls.__members__.get(value.name) is value:
                self.load(made[cls])
                self.out.attribute(value.name)
            else:  # several flags at once, which have no name of their own
                self.out.callable(lambda: self.load(made[cls]))
                self.const(value.value)
                self.out.call(1)
        elif made and isinstance(value, BuiltinFunctionType) and _in_made(made, value.__self__):
            owner: Any = value.__self__
            self.load(made[owner])
            self.out.attribute(value.__name__)
        elif made and isinstance(value, FunctionType) and self._stands_for(value) is not None:
            self.load(self._stands_for(value))
        else:
            self.out.const(self.embed(value))

    def _stands_for(self, real: Any) -> Any:
        """The value made while tracing that a function inside a twin stands for."""
        known = self.tx.known.get(id(real))
        return known[0] if known is not None and known[0].origin is None else None

    @contextlib.contextmanager
    def forked(self) -> Iterator[None]:
        """Inside, code for one of several ways: what it builds is forgotten where the others begin."""
        before = dict(self._temps)
        yield
        self._temps = before

    def has(self, value: Value) -> bool:
        """Whether a value has been made already."""
        return id(value) in self._temps

    def embed(self, value: Any) -> Any:
        """What stands for an object among the constants: itself, or a slot."""
        if self.tx.made_up:
            check_addresses(self.tx, value)
        if (
            type(value) in _EMBEDDED
            or (type(value) is tuple and all(type(v) in _EMBEDDED for v in value))
            or isinstance(value, CodeType)
        ):
            return value
        if isinstance(value, Slot):
            return value
        slot = self._slots.get(id(value))
        if slot is None:
            slot = Slot(type(value).__name__)
            self._slots[id(value)] = slot
            self._kept.append(value)
            self.constants[slot] = value
        return slot

    def helper(self, function: Callable[..., Any], loaded: int) -> None:
        """Push a helper to be called; with ``loaded`` 1, below the value that is on top of the stack already."""
        if not loaded:
            self.out.callable(lambda: self.const(function))
            return
        if VERSION >= (3, 13):
            self.const(function)
            self.out.emit("SWAP", 2)
            self.out.emit("PUSH_NULL")
            self.out.emit("SWAP", 2)
            return
        self.out.emit("PUSH_NULL")
        self.out.emit("SWAP", 2)
        self.const(function)
        self.out.emit("SWAP", 2)

    def exchanged(self, load: Callable[[], None]) -> None:
        """Push what is to be called, or consumed, in place of what ``load`` pushes, so that what it calls is compiled."""
        self.out.callable_const(CALLEE)
        load()
        self.out.call(1)

    def callable_exchanged(self, load: Callable[[], None]) -> None:
        """Push what ``load`` pushes to be called; where the function goes on in Python, so that what is called below is compiled."""
        self.out.callable((lambda: self.exchanged(load)) if self.at_break else load)

    def call_keywords(self, count: int, names: tuple[str, ...]) -> None:
        """Call with ``count`` positional arguments and then these keyword arguments."""
        if not names:
            self.out.call(count)
            return
        if VERSION >= (3, 13):
            self.out.const(names)
            self.out.emit("CALL_KW", count + len(names))
            return
        self.out.emit("KW_NAMES", names)
        self.out.call(count + len(names))

    def namespace(self, namespace: Namespace) -> None:
        """Push a globals dictionary."""
        self.const(namespace.values)

    def cell_arg(self, name: str) -> CellVar | FreeVar:
        """How instructions name a cell or free variable of this frame."""
        self.uses_cells = True
        return CellVar(name) if name in self._cells else FreeVar(name)

    # Graph outputs and origins.

    def graph_output(self, node: torch.fx.Node) -> None:
        """Push an output of the graph."""
        name = self._outputs.get(node)
        if name is None:
            name = self._outputs[node] = self.temp("out")
        self.out.load(name)

    def load_origin(self, origin: Origin) -> None:
        """Push what an origin reached before the graph ran."""
        if isinstance(origin, Local) and origin.variable not in self._cells:
            self.out.load(origin.variable)
            return
        if isinstance(origin, Fixed):
            self.const(origin.held)
            return
        name = self._origins.get(origin)
        if name is None:
            name = self._origins[origin] = self.temp("in")
        self.out.load(name)

    def finish(self) -> tuple[CodeType, GraphSlot | None]:
        """Put the pieces together."""
        for node, _, _ in self.tx.checks:
            if node not in self._outputs:
                self._outputs[node] = self.temp("out")
        graph = self.tx.graph.finish(list(self._outputs))
        self._is_run_again = self.tx.is_caught or (_has_effects(self.tx) and _leaves_nothing(self.tx))
        if graph is not None and (self.tx.mutated or self.tx.globals_written):
            graph = replace(graph, changes_objects=True)
        if graph is not None:
            came = self.tx.input_layouts
            graph = replace(graph, inputs=tuple(replace(i, came=came.get(id(i.fake))) for i in graph.inputs))
        inputs = () if graph is None else graph.inputs
        self._load_inputs([i.origin for i in inputs])
        if graph is not None:
            begin = self.head.try_begin(self._again, 0) if self._is_run_again else None
            self._call_graph(graph)
            self._unpack_outputs()
            for node, truth, _ in self.tx.checks:
                self.head.callable_const(self.embed(check_truth))
                self.head.load(self._outputs[node])
                self.head.const(truth)
                self.head.call(2)
                self.head.emit("POP_TOP")
            if begin is not None:
                self.head.try_end(begin)
                self._forget_states()
                self._run_again()
        return self._assemble(), graph

    def _call_graph(self, graph: GraphSlot) -> None:
        """Push the graph's result. Parameters that the check has read already are taken from it, where it left them."""
        origins = [i.origin for i in graph.inputs]
        outside = self.tx.grad_outside()
        if outside is not None:
            around = [self.embed(call_leaving), outside]
        else:
            around = [self.embed(call_restoring)] if _switches_state(graph.graph.graph) else []
        if self.tx.modes_outside:
            around = [self.embed(call_without_modes), *around]

        def call(load_inputs: Callable[[], None]) -> None:
            first, *rest = *around, graph.slot
            self.head.callable_const(first)
            for value in rest:
                self.head.const(value)
            load_inputs()
            self.head.call(len(origins) + len(rest))

        def read() -> None:
            for origin in origins:
                self._head_load(origin)

        runs = runs_of(origins)
        if not runs:
            call(read)
            return
        self.handed = Handed(runs)
        name, otherwise, end = self.temp("handed"), Label(), Label()
        self.head.callable_const(self.embed(self.handed))
        self.head.call(0)
        self.head.emit("COPY", 1)
        self.head.store(name)
        self.head.const(None)
        self.head.emit("IS_OP", 1)
        self.head.jump_if_false(otherwise)
        before = dict(self._loaded), dict(self._tables)
        call(lambda: self._take_handed(name, origins, runs))
        self.head.jump(end)
        self._loaded, self._tables = before  # what only the other way has stored
        self.head.label(otherwise)
        call(read)
        self.head.label(end)

    def _take_handed(self, name: str, origins: Sequence[Origin], runs: Runs) -> None:
        first = {run[0]: number for number, run in enumerate(runs)}
        left = 0
        for origin in origins:
            if left:
                left -= 1
            elif origin in first:
                run = runs[first[origin]]
                self.head.load(name)
                self.head.item(first[origin])
                self.head.emit("UNPACK_SEQUENCE", len(run))
                left = len(run) - 1
            else:
                self._head_load(origin)
        self.head.const(None)
        self.head.store(name)

    def _keep_states(self, inputs: list[Origin]) -> None:
        """Where Python may have to run the function's own code after all, it draws the numbers that the graph was given.

        It finds tensors as they were, too.
        """
        owners: list[tuple[Origin, Any]] = [(o.base, rewinding) for o in inputs if isinstance(o, Drawn)]
        owners.extend((o, restoring) for o in changed_inputs(self.tx) or ())
        owners.extend((o, requiring) for o in switched_inputs(self.tx))
        for owner, keep in dict.fromkeys(owners):
            self._head_load(owner)
            self._head_call(keep)
            self._keep_rewind()
        outside = self.tx.grad_outside()
        if outside is not None or _switches_state(self.tx.graph.graph):
            self.head.callable_const(self.embed(regaining))
            self.head.call(0)
            self._keep_rewind()

    def _keep_rewind(self) -> None:
        self._rewinds.append(self.temp("rewind"))
        self.head.store(self._rewinds[-1])

    def _forget_states(self) -> None:
        """The graph has run: what was kept for Python is not needed."""
        for rewind in self._rewinds:
            self.head.const(None)
            self.head.store(rewind)

    def _run_again(self) -> None:
        """An exception in the graph that the user's code may handle, or before which it changed objects.

        Nothing has happened yet, so Python runs the function's own code.
        """
        out = self.tail
        interrupted = Label()
        out.label(self._again)
        out.emit("PUSH_EXC_INFO")
        out.const(self.embed(Exception))
        out.emit("CHECK_EXC_MATCH")
        out.jump_if_false(interrupted)
        out.emit("POP_TOP")
        out.emit("POP_EXCEPT")
        for rewind in self._rewinds:
            out.callable(partial(out.load, rewind))
            out.call(0)
            out.emit("POP_TOP")
        start = first_real(self.source)
        for item, n in take_apart(self.source):
            if n >= start or not isinstance(item, Instr):
                out.extend([item])
        out.label(interrupted)
        out.emit("SWAP", 2)
        out.emit("POP_EXCEPT")
        out.emit("RERAISE", 0)

    def _unpack_outputs(self) -> None:
        if not self._outputs:
            self.head.emit("POP_TOP")
            return
        self.head.emit("UNPACK_SEQUENCE", len(self._outputs))
        for name in self._outputs.values():
            self.head.store(name)

    def _load_inputs(self, graph_inputs: list[Origin]) -> None:
        uses: Counter[Origin] = Counter()
        for origin in {**dict.fromkeys(self._origins), **dict.fromkeys(graph_inputs)}:
            for link in origin.chain():
                uses[link] += 1
        self._uses = uses
        # A module's attribute is slow to read, because its class answers for what is missing: a table is read once for all its members.
        self._table_uses = Counter((o.base, o.table) for o in uses if isinstance(o, Member))
        if self._is_run_again:
            self._keep_states(graph_inputs)
        for origin, name in self._origins.items():
            self._head_load(origin)
            self.head.store(name)
            self._loaded[origin] = name

    def _head_load(self, origin: Origin) -> None:
        name = self._loaded.get(origin)
        if name is not None:
            self.head.load(name)
            return
        if isinstance(origin, Member):
            self._head_table(origin)
        elif origin.parent is not None:
            self._head_load(origin.parent)
        self._head_step(origin)
        if self._uses[origin] > 1 and not isinstance(origin, (Local, Fixed)):
            name = self._loaded[origin] = self.temp("in")
            self.head.emit("COPY", 1)
            self.head.store(name)

    def _head_table(self, origin: Member) -> None:
        key = (origin.base, origin.table)
        name = self._tables.get(key)
        if name is not None:
            self.head.load(name)
            return
        self._head_load(origin.base)
        self.head.attribute(origin.table)
        if self._table_uses[key] > 1:
            name = self._tables[key] = self.temp("in")
            self.head.emit("COPY", 1)
            self.head.store(name)

    def _head_step(self, origin: Origin) -> None:
        head = self.head
        match origin:
            case Local(variable):
                if variable in self._cells:
                    head.emit("LOAD_DEREF", CellVar(variable))
                else:
                    head.load(variable)
            case Closure(variable):
                head.emit("LOAD_DEREF", FreeVar(variable))
            case FunctionMode(index):
                head.callable_const(torch._C._get_function_stack_at)
                head.const(index)
                head.call(1)
            case Global(namespace, variable):
                if namespace.values is self.tx.request.function.__globals__:
                    head.load_global(variable)
                else:
                    head.const(self.embed(namespace.values))
                    head.item(variable)
            case Fixed(held):
                head.const(self.embed(held))
            case Attr(_, attribute):
                head.attribute(attribute)
            case Member(_, _, member):
                head.item(member)
            case Item(_, key):
                head.item(self.embed(key))
            case CellOf(_, index):
                head.attribute("__closure__")
                head.item(index)
                head.attribute("cell_contents")
            case Key(_, index):
                self._head_call(list)
                head.item(index)
            case EntryAt(_, index):
                self._head_call(EntryAt.of, index)
            case TypeOf():
                self._head_call(type)
            case ArrayTensor():
                self._head_call(tensor_of_array)
            case Referent():
                self._head_call(operator.call)
            case Plain() | Drawn() | IteratorState() | Upcoming() | ContextContent() | Proxied() | Asked():
                self._head_call(origin.read)
            case Stored(_, key):
                self._head_call(stored_item, key)
            case _:
                raise Unsupported("side-effect", f"loading {origin.expr} again")

    def _head_call(self, function: Any, *constants: Any) -> None:
        out, self.out = self.out, self.head
        try:
            self.helper(function, 1)
        finally:
            self.out = out
        for constant in constants:
            self.head.const(self.embed(constant))
        self.head.call(1 + len(constants))

    def _assemble(self) -> CodeType:
        code = self.source
        result = Bytecode()
        start: list[Instr | Label] = []
        if code.co_freevars:
            start.append(Instr("COPY_FREE_VARS", len(code.co_freevars), location=self.out.location))
        start.extend(Instr("MAKE_CELL", CellVar(n), location=self.out.location) for n in code.co_cellvars)
        start.append(Instr("RESUME", 0, location=self.out.location))
        result.extend([*start, *self.head.code, *self.out.code])
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
        if not self.tail.code:
            return result.to_code()
        return self._with_tail(result)

    def _with_tail(self, result: Bytecode) -> CodeType:
        """With the function's own code at the end. A resume function starts in its middle, where no search finds its depths: they are kept."""
        end = len(result)
        result.extend([self._again, Instr("RERAISE", 0, location=self.out.location)])
        depth = max(result.compute_stacksize(), self.source.co_stacksize, 4)
        del result[end:]
        result.extend(self.tail.code)
        return result.to_code(stacksize=depth, compute_exception_stack_depths=False)

    # The state of torch.

    def restore_grad_mode(self) -> None:
        """Leave grad mode as the traced code left it, whatever the graph's own switches came to."""
        if torch.is_grad_enabled() != self.tx.entry_state["grad_mode"]:
            self.out.callable(lambda: self.const(torch._C._set_grad_enabled))
            self.out.const(torch.is_grad_enabled())
            self.out.call(1)
            self.out.emit("POP_TOP")
