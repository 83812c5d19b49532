"""Text views: one stage of a session as text to print and as JSON values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from engine.records.aot import NodeValuesRecord
from engine.records.base import to_jsonable
from engine.records.bytecode import Instruction, Span
from engine.records.format_amounts import format_seconds
from engine.records.graph import GraphRecord
from engine.records.guards import entry_name
from engine.records.kernels import KernelResources, LaunchGroup
from engine.records.runtime import call_numbers
from engine.records.trace import InlinedCall

if TYPE_CHECKING:
    from engine.records.session import CompilationRecord, Session

Lines = Iterator[str]
MAX_LINE_WIDTH = 160
"""Maximum number of characters per line; longer lines are truncated."""


class TextView:
    """One stage of a session, to ``print`` or as ``to_dict()``.

    The keys are compilation ids, and "session" for data of no compilation.
    """

    def __init__(self, session: Session, stage: str) -> None:
        self._session = session
        self._stage = stage

    def __repr__(self) -> str:
        text = "\n".join(_sanitize_line(line) for line in _STAGE_LINES[self._stage](self._session))
        return text or f"Nothing was recorded for this stage: {self._stage}."

    def to_dict(self) -> dict[str, Any]:
        """Return the records of this stage as JSON-serializable values."""
        of_one, of_all = _STAGE_FIELDS[self._stage]
        records: dict[str, Any] = {
            c.id: {name: to_jsonable(getattr(c, name)) for name in of_one} for c in self._session.compilations
        }
        if self._stage in ("bytecode", "trace"):
            for c in self._session.compilations:
                records[c.id] = _split_trace(records[c.id]["trace"], is_bytecode=self._stage == "bytecode")
        return records | {"session": {name: to_jsonable(getattr(self._session, name)) for name in of_all}}


_STAGE_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bytecode": (("trace",), ("files",)),
    "trace": (("trace",), ("skipped", "frames")),
    "guards": (("guards", "cause"), ("calls",)),
    "graph": (("graphs",), ()),
    "aot": (("aot", "call_values"), ()),
    "autograd": ((), ("backwards", "backward_calls")),
    "lowering": (("lowering", "backward_lowering"), ()),
    "memory": (("memory",), ()),
    "kernels": (("kernels",), ("target", "launches")),
    "runtime": (("timings", "failures"), ("calls", "skipped", "failures", "notes", "seconds")),
}
"""Field names by stage: of a compilation, and of the session."""
BYTECODE_FIELDS = ("instructions", "modified_instructions")


def _split_trace(trace: dict[str, Any] | None, *, is_bytecode: bool) -> dict[str, Any]:
    """Return either the instructions of a trace or everything else."""
    return {name: value for name, value in (trace or {}).items() if (name in BYTECODE_FIELDS) is is_bytecode}


def _sanitize_line(line: str) -> str:
    """Return a line without control characters, truncated."""
    clean = "".join(c if c.isprintable() else " " if c == "\t" else "�" for c in line)
    return clean if len(clean) <= MAX_LINE_WIDTH else clean[: MAX_LINE_WIDTH - 1] + "…"


def _format_span(session: Session, span: Span | None) -> str:
    """Format a span as ``line 4 of model.py``; empty if unknown."""
    if span is None:
        return ""
    name = next((f.name for f in session.files if f.id == span.file), span.file.replace("\\", "/").rpartition("/")[2])
    return f"line {span.line} of {name}"


def _compilation_title(session: Session, compilation: CompilationRecord) -> str:
    frame = next((f for f in session.frames if f.id == compilation.frame), None)
    return f"{frame.name if frame else compilation.frame}, {entry_name(compilation.id)}"


def _per_compilation(one: Callable[[Session, CompilationRecord], Lines]) -> Callable[[Session], Lines]:
    """Return a function that prints each compilation's lines below its title."""

    def print_all(session: Session) -> Lines:
        for compilation in session.compilations:
            lines = list(one(session, compilation))
            if lines:
                yield f"{_compilation_title(session, compilation)}:"
                yield from (f"  {line}" for line in lines)

    return print_all


def _bytecode(session: Session, compilation: CompilationRecord) -> Lines:
    if compilation.trace is None:
        return
    for title, code in (
        ("as written", compilation.trace.instructions),
        ("as it runs", compilation.trace.modified_instructions),
    ):
        if code:
            yield f"{title}:"
            yield from _instructions(code)


def _instructions(code: tuple[Instruction, ...]) -> Lines:
    line = -1
    for op in code:
        now = op.span.line if op.span else -1
        number = "" if now == line or now < 0 else str(now)
        line = now
        yield f"  {number:>5} {op.offset:>5} {op.opname:<24} {op.argument}".rstrip()


def _trace(session: Session, compilation: CompilationRecord) -> Lines:
    trace = compilation.trace
    yield f"compiled because: {compilation.cause}"
    if trace is None:
        return
    for graph_break in trace.breaks:
        at = _format_span(session, graph_break.span)
        yield f"{'runs as Python' if graph_break.skips_frame else 'break'}{f' at {at}' if at else ''}: {graph_break.title}: {graph_break.context}"
        yield from (f"  {hint}" for hint in graph_break.hints)
    yield from (
        f"abandoned attempt at {_format_span(session, a.span) or 'an unknown line'}: {a.context}"
        for a in trace.discarded_attempts
    )
    yield from (f"side effect after the graph: {effect}" for effect in trace.side_effects)
    yield from (symbol.constraint for symbol in trace.symbols)
    yield from _inlined(session, trace.inlined)
    for step in trace.steps:
        products = ", ".join((*step.nodes, *step.side_effects, *([step.event] if step.event else [])))
        line = step.span.line if step.span else ""
        yield f"{step.index + 1:>6} {'  ' * step.depth}{line:>5} {step.opname} {step.argument}{f'  -> {products}' if products else ''}"


def _inlined(session: Session, calls: tuple[InlinedCall, ...]) -> Lines:
    """Yield each inlined function once, with its first call site and count."""
    counts = Counter(call.name for call in calls)
    firsts = {call.name: call.caller for call in reversed(calls)}
    for name, count in counts.items():
        at = _format_span(session, firsts[name])
        yield f"inlined {name}{f', first called at {at}' if at else ''}{f', {count} times' if count > 1 else ''}"


def _guards(session: Session, compilation: CompilationRecord) -> Lines:
    for number, guard in enumerate(compilation.guards.guards if compilation.guards else (), 1):
        at = _format_span(session, guard.span)
        yield f"{number}. {guard.source} {guard.kind}: {guard.expected}{f'  ({at})' if at else ''}"
    numbers = call_numbers(session.calls)
    for call in session.calls:
        for refusal in call.guard_failures:
            if refusal.entry == compilation.id:
                yield f"guard failure in call {numbers[call.index]}: {refusal.sentence}"


def _graph(session: Session, compilation: CompilationRecord) -> Lines:
    for graph in compilation.graphs:
        yield from format_graph(graph)


def format_graph(graph: GraphRecord) -> Lines:
    """Yield the lines of a graph as Python, with types."""
    yield f"{graph.title or graph.stage}:"
    if not graph.nodes:
        yield from (f"  {line}" for line in graph.text.splitlines())
    for node in graph.nodes:
        kind = f"  # {node.dtype}[{', '.join(node.shape or ())}]" if node.dtype else ""
        yield f"  {node.text}{kind}"


def _aot(session: Session, compilation: CompilationRecord) -> Lines:
    aot = compilation.aot
    if aot is None:
        return
    yield f"mode: {aot.mode}{f' ({aot.note})' if aot.note else ''}"
    yield from (f"{v.role} {v.name}: {', '.join(v.facts)}" for v in aot.values if v.facts)
    for wrapper in aot.wrappers:
        yield from (f"{wrapper.name}: {a.argument} {a.action}, because {a.why}" for a in wrapper.actions)
    if aot.partition is not None:
        yield f"between forward and backward: {aot.partition.saved_bytes:,} bytes saved ({aot.partition.method})"
        yield from (f"  {v.name} {v.action}, {v.bytes:,} bytes: {v.reason}" for v in aot.partition.values)
    for number, passage in enumerate(compilation.call_values, 1):
        yield f"call {number}{f', replayed on {passage.replayed_on}' if passage.replayed_on else ''}:"
        for moment in passage.wrapper_values:
            yield f"  {moment.wrapper}, {moment.direction}:"
            yield from (f"    {name} = {text}" for name, text in moment.values)
        yield from (f"  {node_values_text(v)}" for v in passage.nodes)


def node_values_text(values: NodeValuesRecord) -> str:
    """Format the statistics of one node: range, mean, NaN and infinite elements."""
    name, elements = values.node.rpartition(":")[2], "1 element" if values.count == 1 else f"{values.count:,} elements"
    text = f"{name}: {elements}"
    if values.low is not None and values.high is not None:
        text += f", {values.low:.4g} to {values.high:.4g}"
    if values.mean is not None:
        text += f", mean {values.mean:.4g}"
    return text + "".join(f", {n:,} {word}" for n, word in ((values.nans, "NaN"), (values.infinities, "infinite")) if n)


def _autograd(session: Session) -> Lines:
    for backward in session.backwards:
        yield f"capture {backward.id}, {len(backward.nodes)} nodes of autograd: {backward.cause.sentence}"
        yield from (f"  {detail}" for detail in backward.cause.details)
        yield from (
            f"  {n.position:>4} {n.name}{f'  ({chr(44).join(n.hooks)})' if n.hooks else ''}" for n in backward.nodes
        )
        for graph in backward.graphs:
            yield from (f"  {line}" for line in format_graph(graph))
    for call in session.backward_calls:
        yield f"backward {call.index + 1}: {call.outcome} {call.backward}{f', {call.reason}' if call.reason else ''}".rstrip()


def _lowering(session: Session, compilation: CompilationRecord) -> Lines:
    for title, lowering in (("call", compilation.lowering), ("backward", compilation.backward_lowering)):
        if lowering is None:
            continue
        yield f"{title}, for {lowering.target}: {lowering.error or f'{lowering.lowered} of {lowering.total} operations were lowered to loops'}"
        for d in lowering.decisions:
            names = " + ".join(", ".join(n.rpartition(":")[2] for n in side) for side in (d.first, d.second) if side)
            yield f"  {'fused' if d.fused else 'not fused'} {names}: {d.reason}"
        yield from (f"  {e.op} stays an ATen call: {e.reason}" for e in lowering.externs)
        yield from (
            f"  {c.chosen} for {', '.join(n.rpartition(':')[2] for n in c.nodes)}: {c.reason}"
            for c in lowering.autotune_choices
        )
    if later := compilation.cpu_program.later_calls:
        yield later


def _memory(_: Session, compilation: CompilationRecord) -> Lines:
    for memory in compilation.memory:
        if not memory.steps:
            continue
        peak = memory.peak_step
        yield f"{memory.stage}: peak {memory.peak_bytes:,} bytes at step {peak + 1} of {len(memory.steps)}, {memory.steps[peak].name}"
        yield from (f"  {b.bytes:>14,} {b.kind:<12} {b.name}" for b in memory.live_blocks(peak))
        yield "  bytes live at each step:"
        yield from (f"  {n:>6} {step.live_bytes:>14,} {step.name}" for n, step in enumerate(memory.steps, 1))


def _registers(used: KernelResources) -> str:
    if used.lanes is None:
        return f", {used.registers} registers, {used.spills} spilled" if used.registers is not None else ""
    return f", {used.cpu}: {used.lanes} lanes, {used.spills} spills, {used.reloads} reloads"


def _kernels(session: Session, compilation: CompilationRecord) -> Lines:
    for kernel in {k.id: k for k in (*compilation.cpu_kernels, *compilation.kernels)}.values():
        size = f"ran on this CPU, iterations {kernel.grid}" if kernel.language == "llvm" else f"grid {kernel.grid}"
        yield f"{kernel.id} {kernel.name}, {size}, computes {', '.join(n.rpartition(':')[2] for n in kernel.fused_nodes)}"
        yield from (f"    {line}" for line in kernel.text.splitlines())
        for compiled in kernel.targets:
            used = compiled.resources
            lines = ", ".join(
                f"{listing.stage} {len(listing.text.splitlines())} lines" for listing in compiled.listings
            )
            registers = _registers(used) if used is not None else ""
            yield f"  {compiled.target}: {compiled.error or lines}{registers}"
        if kernel.measured is not None:
            yield f"  measured on {kernel.measured.device}: {format_seconds(kernel.measured.seconds, 3)}"
        for group in session.launches:
            if (group.compilation, group.kernel) == (compilation.id, kernel.id):
                yield f"  {_launches(group)}"
        if kernel.verify is not None:
            preposition = "on" if kernel.language == "llvm" else "in"
            yield f"  verified {preposition} {kernel.verify.where}: {kernel.verify.outcome} {kernel.verify.note}".rstrip()


def _launches(group: LaunchGroup) -> str:
    """Return one line about launches with equal arguments."""
    arguments = ", ".join(f"{name} {text}" for name, text in group.arguments.items())
    caller = f" from line {group.caller.line}" if group.caller is not None else ""
    time = f", fastest {format_seconds(group.fastest, 3)}" if group.fastest is not None else " by a CUDA graph"
    return f"launched {group.count} times{caller}{time}, grid {group.grid}: {arguments}"


def _runtime(session: Session) -> Lines:
    names, numbers = {f.id: f.name for f in session.frames}, call_numbers(session.calls)
    for call in session.calls:
        inputs = ", ".join(f"{k} {v}" for k, v in (call.inputs or {}).items())
        yield f"call {numbers[call.index]} of {names.get(call.frame, call.frame)}: {call.outcome} {call.entry}  {inputs}".rstrip()
    for compilation in session.compilations:
        stages = ", ".join(f"{t.stage} {t.seconds:.3f} s" for t in compilation.timings)
        if stages:
            yield f"{_compilation_title(session, compilation)}: {stages}"
        yield from (f"  internal error: {f.sentence} Fallback: {f.fallback}" for f in compilation.failures)
    yield from (f"not compiled: {s.name}: {s.reason} {s.hint}".rstrip() for s in session.skipped)
    yield from session.notes


_STAGE_LINES: dict[str, Callable[[Session], Lines]] = {
    "bytecode": _per_compilation(_bytecode),
    "trace": _per_compilation(_trace),
    "guards": _per_compilation(_guards),
    "graph": _per_compilation(_graph),
    "aot": _per_compilation(_aot),
    "autograd": _autograd,
    "lowering": _per_compilation(_lowering),
    "memory": _per_compilation(_memory),
    "kernels": _per_compilation(_kernels),
    "runtime": _runtime,
}
STAGES = tuple(_STAGE_LINES)
