"""Sessions with recorded steps and with layers around the graph, made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.records.aot import AotRecord, ValueFacts, WrapperAction, WrapperRecord
from engine.records.bytecode import Instruction, SourceFile, Span
from engine.records.graph import GraphRecord, NodeRecord
from engine.records.session import CompilationRecord, FrameRecord, Session
from engine.records.trace import BreakRecord, StepRecord, TraceRecord

CELL = "<ipython-input-1-cell>"
SOURCE = """def scaled(x, k):
    return x * k

def f(x, out):
    a = scaled(x, 2)
    out.append(a)
    print(a)
"""
NULL, FN, T, X = "NULL", "function scaled", "tensor float32[4]", "Tensor (not read yet)"


def piece(line: int, start: int = -1, end: int = -1) -> Span:
    """A piece of one line of the cell."""
    return Span(CELL, line, line, start, end)


def step(
    op: str,
    line: int,
    stack: tuple[str, ...] = (),
    changed: dict[str, str] | None = None,
    *,
    inner: bool = False,
    nodes: dict[str, str] | None = None,
    **more: Any,
) -> StepRecord:
    """Build one step; ``nodes`` maps texts of stack and variables to graph nodes.

    The node of a text is the one that computes it.
    """
    name, _, argument = op.partition(" ")
    known = nodes or {}
    changed = changed or {}
    return StepRecord(
        0, int(inner), "scaled" if inner else "f", 0, name, argument, piece(line, 4, 8), stack, changed, frame=int(inner),
        stack_nodes=tuple(known.get(v, "") for v in stack), locals_nodes={n: known[v] for n, v in changed.items() if v in known}, **more,
    )  # fmt: skip


def steps() -> tuple[StepRecord, ...]:
    """A call that is inlined, a list that is changed, and a print that breaks the graph."""
    mul = {T: "mul"}
    told = [
        step("RESUME", 4, (), {"x": X, "out": "list of 0 []"}),
        step("LOAD_GLOBAL NULL + scaled", 5, (NULL, FN), guards=("G['scaled']: code",)),
        step("LOAD_FAST x", 5, (NULL, FN, X)),
        step("LOAD_CONST 2", 5, (NULL, FN, X, "2")),
        step("CALL", 5, (T,), {"x": T}, nodes=mul, event="inline"),
        step("RESUME", 1, (), {"x": X, "k": "2"}, inner=True),
        step("LOAD_FAST x", 2, (X,), inner=True),
        step("LOAD_FAST k", 2, (X, "2"), inner=True),
        step("BINARY_OP *", 2, (T,), inner=True, nodes=mul, guards=("L['x']: tensor",)),
        step("RETURN_VALUE", 2, inner=True, event="return"),
        step("STORE_FAST a", 5, (), {"a": T}, nodes=mul),
        step("LOAD_FAST out", 6, ("list of 0 []",)),
        step("LOAD_METHOD append", 6, (NULL, "list.append")),
        step("LOAD_FAST a", 6, (NULL, "list.append", T), nodes=mul),
        step("CALL", 6, ("None",), {"out": f"list of 1 [{T}]"}, side_effects=("L['out']: contents of the list are replaced",)),
        step("POP_TOP", 6),
        step("LOAD_GLOBAL NULL + print", 7, (NULL, "print")),
        step("LOAD_FAST a", 7, (NULL, "print", T), nodes=mul),
        step("CALL", 7, (), event="break"),
    ]  # fmt: skip
    return tuple(_numbered(told, {8: ("x", "mul")}))


def _numbered(told: list[StepRecord], nodes: dict[int, tuple[str, ...]]) -> list[StepRecord]:
    offsets = {0: 0, 1: 0}
    found = []
    for i, s in enumerate(told):
        found.append(replace(s, index=i, offset=offsets[s.frame], nodes=nodes.get(i, ())))
        offsets[s.frame] += 2
    return found


def traced(recorded: tuple[StepRecord, ...]) -> Session:
    """A session with one compilation of these steps."""
    session = Session(level="steps")
    session.add_file(SourceFile(CELL, "cell 1", SOURCE))
    session.add_frame(FrameRecord("0", "f", CELL, 4))
    stack = (piece(5, 8, 20), piece(2, 11, 16))
    nodes = (
        NodeRecord("fx:0/0:x", "x", "placeholder", "x", "x", shape=("4",), dtype="float32"),
        NodeRecord(
            "fx:0/0:mul",
            "mul",
            "call_function",
            "mul",
            "mul = x * 2",
            ("fx:0/0:x",),
            ("4",),
            dtype="float32",
            span=stack[-1],
            stack=stack,
        ),
    )
    trace = TraceRecord(
        (Instruction(0, "RESUME", "", piece(4)), Instruction(100, "RETURN_VALUE", "", piece(7))),
        breaks=(BreakRecord("print", "Output is printed", "print(a)", span=piece(7)),),
        steps=recorded,
    )
    graphs = (GraphRecord("fx:0/0", "fx", "FX", nodes),)
    session.put_compilation(CompilationRecord("0/0", "0", "first call", {"x": "f32[4]"}, trace, graphs=graphs))
    return session


def steps_session() -> Session:
    """Nineteen steps: an inlined call, a guard, a changed list and a break."""
    return traced(steps())


def many_steps_session(count: int = 10_000) -> Session:
    """A loop that calls an inlined function, adding a node and a guard each time."""
    once = steps()[1:16]
    told = [steps()[0]]
    for turn in range(-(-(count - 1) // len(once))):
        for s in once:
            guards = tuple(f"{g} {turn}" for g in s.guards)
            nodes = tuple(f"{n}_{turn}" for n in s.nodes)
            frame = turn + 1 if s.frame else 0
            told.append(replace(s, index=len(told), frame=frame, nodes=nodes, guards=guards))
    return traced(tuple(told[:count]))


def wrappers_session() -> Session:
    """A function that writes an input in place and returns a view, with gradients off."""
    session = steps_session()
    node = NodeRecord("aten:0/0:x", "x", "placeholder", "x", "x", shape=("4", "4"), dtype="float32")
    add = NodeRecord(
        "aten:0/0:add", "add", "call_function", "add", "aten.add(x, 1)", (node.id,), ("4", "4"), dtype="float32"
    )
    out = NodeRecord("aten:0/0:output", "output", "output", "output", "return (add,)", (add.id,))
    aot = AotRecord(
        "inference",
        (
            ValueFacts("x", "input", ("data mutated",)),
            ValueFacts("y", "input"),
            ValueFacts("output 0", "output", ("alias of input x",)),
        ),
        (
            WrapperRecord(
                "output aliasing",
                (WrapperAction("output 0", "created again as a view of x", "eager returns a view of x"),),
            ),
            WrapperRecord("input mutation", (WrapperAction("x", "copied back", "the graph returns its new value"),)),
            WrapperRecord("autocast off", ()),
        ),
    )  # fmt: skip
    session.update_compilation(
        "0/0", lambda c: _with_aot(c, GraphRecord("aten:0/0", "aten", "ATen", (node, add, out)), aot)
    )
    return session


def _with_aot(compilation: CompilationRecord, graph: GraphRecord, aot: AotRecord) -> CompilationRecord:
    return replace(compilation, graphs=(*compilation.graphs, graph), aot=aot)
