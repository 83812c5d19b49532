"""One-line summary of a session; each fact links to the view that shows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.ir.user_code_files import is_installed_file
from engine.records.bytecode import Span
from engine.records.counts import (
    RootGroup,
    aten_calls_of,
    breaks_and_errors_of,
    breaks_of,
    causing_guard_failure,
    errors_of,
    graph_count,
    groups,
    has_graph,
    is_user_error,
    recompiles_of,
    unique_kernels,
)
from engine.records.format_amounts import format_seconds
from engine.records.guards import GuardFailure
from engine.records.kernels import KernelRecord
from engine.records.plan import Plan
from engine.records.runtime import SkippedRecord
from engine.records.session import Session
from engine.records.trace import BreakRecord
from notebook_ext.views import source_lines
from notebook_ext.views.cell_edits import cell_texts
from notebook_ext.views.compilations import program_counts, ran_on_cpu
from notebook_ext.views.format_text import format_change, is_stack_value, one_line, pluralize, shorten_floats
from notebook_ext.views.linked.row_links import CPU, for_target
from notebook_ext.views.plan import plan_figures, plan_title, plans

CPU_NAME = "this CPU"
"""Location of checks that the line does not name; it names others, such as an interpreter."""
MAX_GROUPS = 8
"""Maximum number of functions in the line; the rest is counted."""
MAX_HINTS = 6
"""Maximum number of hint lines below the headline; the rest is counted."""

Kind = Literal["text", "name", "link", "action"]


@dataclass(frozen=True)
class SummaryItem:
    """One piece of the summary line.

    ``target`` is a view, optionally with what to open in it after a ``|`` ("guards|0/0"). For an action it
    is the message that the action sends.
    """

    text: str
    target: str = ""
    kind: Kind = "text"

    def to_dict(self) -> dict[str, str]:
        """Return the item as JSON values."""
        return {"text": self.text, "target": self.target, "kind": self.kind}


@dataclass(frozen=True)
class Summary:
    """Summary line in pieces.

    ``hints`` are reasons and advice about what was not compiled, ``progress`` is filled while a compilation
    runs.
    """

    items: tuple[SummaryItem, ...]
    hints: tuple[str, ...] = ()
    progress: str = ""
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def text(self) -> str:
        """Plain text of the line, with ``[Verify]`` for an action; then hints and notes."""
        line = "".join(f"[{i.text}]" if i.kind == "action" else i.text for i in self.items)
        return "\n".join([line, *(f"  {r}" for r in self.hints), *(f"  {n}" for n in self.notes)])

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return {
            "items": [i.to_dict() for i in self.items],
            "hints": list(self.hints),
            "progress": self.progress,
            "notes": list(self.notes),
        }


def summary(session: Session, *, timed: bool = True) -> Summary:
    """Return the summary: graphs, breaks, recompiles, kernels, device, checks, time.

    With ``timed`` off it has no time, and is then equal in every run.
    """
    spent = session.seconds if timed else 0.0
    notes = tuple(one_line(n, 300) for n in session.notes)
    progress = one_line(session.stage)
    if (plan := plans.get(session)) is not None:
        return Summary(tuple(_plan_items(plan)), (), progress, notes)
    if not session.compilations and any(c.outcome != "eager" for c in session.backward_calls):
        return Summary(tuple(_backward_only_items(session, spent)), (), progress, notes)
    if not any(has_graph(c) for c in session.compilations):
        return Summary(
            tuple(_nothing_compiled_items(session, spent)),
            _limit_lines(dict.fromkeys(_hint_texts(session))),
            progress,
            notes,
        )
    items: list[SummaryItem] = []
    if session.compiler == "torch":
        items.append(SummaryItem("stock torch.compile · "))
    root_groups = groups(session)
    for i, group in enumerate(root_groups[:MAX_GROUPS]):
        items.extend([SummaryItem(" · ")] if i else [])
        items.extend(_group_items(session, group))
    if len(root_groups) > MAX_GROUPS:
        items += [
            SummaryItem(" · and "),
            SummaryItem(f"{len(root_groups) - MAX_GROUPS:,} more", "compilations", "link"),
        ]
    items.extend(_cpu_items(session))
    items.extend(_kernel_items(session))
    items.extend(_backward_items(session))
    items.extend(_failure_items(session))
    items.append(SummaryItem(f", {format_seconds(spent)}" if spent else ""))
    return Summary(tuple(i for i in items if i.text), _limit_lines(map(skipped_text, session.skipped)), progress, notes)


def skipped_text(skipped: SkippedRecord) -> str:
    """Return one line: the name that was not compiled, the reason and a hint."""
    return one_line(f"Not compiled: {skipped.name}: {skipped.reason}. {skipped.hint}".rstrip(), 400)


def break_text(session: Session, record: BreakRecord) -> str:
    """Return the cause of a graph break in short: a called name, or what library code met."""
    text = source_lines.snippet(session, record.span)
    if text.startswith(("def ", "async def ", "class ", "@")):  # The span covers the whole frame.
        return one_line(record.title, 60)
    head = text.split("(", 1)[0].strip()
    # The condition of a jump is no call, even if it ends with one: Python 3.14 gives its span without the "if".
    is_call = record.kind not in ("tensor-jump", "random-value") and head and _ends_with_first_call(text)
    if is_call and all(part.isidentifier() for part in head.split(".")):
        return head
    if record.span is not None and is_installed_file(record.span.file):
        return one_line(record.context or record.title, 60)
    return one_line(text or record.context or record.title, 40)


def _ends_with_first_call(text: str) -> bool:
    """Return True for ``f(x)`` and a call cut at a line's end, False for ``f(x) @ y``."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == ")" and depth == 0:
            return at == len(text.rstrip()) - 1
    return depth > 0


_SYMBOL = re.compile(r"\b(\w+) is ([^,();]+)")
"""Matches a symbol and its size, ``s0 is x.size(0)``, in the text of a failed relation."""


_CARRIED = re.compile(r"a value carried over the graph break( at line \d+)?")


def guard_failure_text(rejection: GuardFailure) -> str:
    """Return a guard failure in its shortest form: ``x.size(0) 4 -> 8``."""
    if rejection.kind == "dispatch keys" or (rejection.kind == "shape relation" and rejection.actual == "None"):
        return one_line(rejection.sentence.partition(";")[0].rstrip("."), 80)
    if rejection.kind == "shape relation":
        text = shorten_floats(f"needs {rejection.expected}, but {rejection.actual}")
        for symbol, name in _SYMBOL.findall(rejection.sentence):
            if _CARRIED.fullmatch(name):
                text, name = f"{text} ({name.removeprefix('a value ')})", "value"
            text = re.sub(rf"\b{symbol}\b", name.replace("\\", ""), text)
        return one_line(text, 80)
    return format_change(rejection.source, rejection.kind, rejection.expected, rejection.actual)


def _plan_items(plan: Plan) -> Iterator[SummaryItem]:
    """Yield what was planned, with the main figures."""
    yield SummaryItem(one_line(plan.name, 60), "devices", "name")
    figures = dict(plan_figures(plan))
    yield SummaryItem(f": {plan_title(plan)}, not run: peak memory ")
    yield SummaryItem(figures["Peak memory"], "devices", "link")
    yield SummaryItem(", ")
    yield SummaryItem(pluralize(len(plan.worst.collectives), "collective"), "devices", "link")
    yield SummaryItem(f" of {figures['Bytes of collectives']} in a step, modeled step ")
    yield SummaryItem(figures["Modeled step"], "devices", "link")


def _group_items(session: Session, group: RootGroup) -> Iterator[SummaryItem]:
    yield SummaryItem(source_lines.frame_name(session, group.root.id), f"linked|{group.compilations[0].id}", "name")
    yield SummaryItem(": ")
    yield SummaryItem(pluralize(graph_count(group), "graph"), f"graph|{group.compilations[0].id}", "link")
    yield from _break_items(session, group)
    yield from _error_items(session, group)
    yield from _recompile_items(session, group)


def _break_items(session: Session, group: RootGroup) -> Iterator[SummaryItem]:
    breaks = breaks_of(group.compilations)
    if not breaks:
        yield SummaryItem(", no breaks")
        return
    yield SummaryItem(", ")
    yield SummaryItem(pluralize(len(breaks), "break"), f"breaks|{breaks[0][0].id}", "link")
    first = breaks[0][1]
    where = _line_prefix(session, first.span)
    more = ", …" if len(breaks) > 1 else ""
    yield SummaryItem(f" ({where}{break_text(session, first)}{more})")


def _error_items(session: Session, group: RootGroup) -> Iterator[SummaryItem]:
    errors = errors_of(group.compilations)
    if errors:
        compilation, record = errors[0]
        yield SummaryItem(", ")
        yield SummaryItem("raises an exception", f"breaks|{compilation.id}", "link")
        yield SummaryItem(f" ({_line_prefix(session, record.span)}{break_text(session, record)})")


def _recompile_items(session: Session, group: RootGroup) -> Iterator[SummaryItem]:
    recompiles = recompiles_of(session, group)
    if not recompiles:
        return
    yield SummaryItem(", ")
    yield SummaryItem(pluralize(len(recompiles), "recompile"), f"recompiles|{recompiles[0].frame}", "link")
    rejections = [r for c in recompiles if (r := causing_guard_failure(session, c.id)) is not None]
    if not rejections:
        return
    # Prefer values that the user can change to values that a break left on the stack.
    rejection = min(rejections, key=lambda r: is_stack_value(r.source))
    where = _line_prefix(session, rejection.span)
    more = ", …" if len(recompiles) > 1 else ""
    yield SummaryItem(" (")
    is_here = any(c.id == rejection.entry for c in session.compilations)
    yield SummaryItem(
        f"{where}{guard_failure_text(rejection)}",
        f"guards|{rejection.entry}" if is_here else "",
        "link" if is_here else "text",
    )
    yield SummaryItem(f"{more})")


def _cpu_items(session: Session) -> Iterator[SummaryItem]:
    """Yield the items about kernels and ATen calls that ran on this CPU."""
    kernels = [k for c in session.compilations for k in unique_kernels(for_target(c, CPU))]
    if kernels:
        _, calls = program_counts(session, session.compilations)
        yield SummaryItem(", ")
        yield SummaryItem(pluralize(len(kernels), "kernel"), "kernels|cpu", "link")
        also = f" and {pluralize(calls, 'ATen call')}" if calls else ""
        yield SummaryItem(f"{also} ran on this CPU")
        yield from _check_items(kernels)


def _kernel_items(session: Session) -> Iterator[SummaryItem]:
    kernels = [k for c in session.compilations for k in unique_kernels(c)]
    calls = sum(len(aten_calls_of(c)) for c in session.compilations)
    if not kernels and not calls:
        yield from _no_kernel_items(session)
        yield from _observed_check_items(session)
        return
    target = next((c.lowering.target for c in session.compilations if c.lowering and c.lowering.target), session.target)
    if not kernels:
        yield SummaryItem(", no kernels, ")
        yield SummaryItem(pluralize(calls, "ATen call"), "kernels", "link")
        return
    yield SummaryItem(", ")
    kind = "C++ kernel" if kernels and all(k.language == "cpp" for k in kernels) else "kernel"
    where = f" for {one_line(target, 40)}" if target else ""
    yield SummaryItem(f"{pluralize(len(kernels), kind)}{where}", "kernels", "link")
    if calls and not ran_on_cpu(session):
        yield SummaryItem(f" and {pluralize(calls, 'ATen call')}")
    if session.compiler == "torch":
        yield from _observed_check_items(session)
        return
    yield SummaryItem(f", {_where_run_text(session)}")
    if not ran_on_cpu(session):
        yield from _check_items(kernels)


def _observed_check_items(session: Session) -> Iterator[SummaryItem]:
    """Yield how to check a cell's results of torch.compile, which has no kernel to verify."""
    if session.compiler == "torch" and cell_texts.get(session) is not None:
        yield SummaryItem(", not checked (run with --compare instead of --backend)")


def _where_run_text(session: Session) -> str:
    """Return where the kernels ran, and if they computed the results."""
    if ran_on_cpu(session):
        return "compiled only"
    if not session.device.startswith(("cuda", "hip")):
        return "not run here (results: ATen)"
    return f"run on {one_line(session.device, 20)}"


def _no_kernel_items(session: Session) -> Iterator[SummaryItem]:
    backends = {c.backend for c in session.compilations if c.backend} - {"triton"}
    if backends and session.compiler != "torch":
        yield SummaryItem(f", backend {one_line(', '.join(sorted(backends)), 60)}")
    yield SummaryItem(", no kernels")


def _check_items(kernels: list[KernelRecord]) -> Iterator[SummaryItem]:
    checked = [k.verify for k in kernels if k.verify is not None]
    if not kernels:
        return
    if not checked:
        yield SummaryItem(", not checked ")
        yield SummaryItem("Verify", "verify", "action")
        return
    outcomes = [v.outcome for v in checked]
    good = sum(o in ("equal", "close") for o in outcomes)
    wrong, left = outcomes.count("different"), len(kernels) - good - outcomes.count("different")
    errors = [v.max_error for v in checked if v.max_error is not None]
    where = one_line(next((v.where for v in checked if v.where), ""), 40)
    text = f"{good} of {len(kernels)} checked" if good < len(kernels) else "all checked"
    text += f" in {where}" if where and where != CPU_NAME and good else ""
    text += f" (largest difference {max(errors):.2g})" if errors else ""
    text += f", {wrong} DIFFERENT from ATen" if wrong else ""
    text += f", {left} not verifiable" if left else ""
    yield SummaryItem(", ")
    yield SummaryItem(text, "kernels", "link")


def _backward_items(session: Session) -> Iterator[SummaryItem]:
    if session.backward_calls:
        yield SummaryItem(", ")
        yield SummaryItem(pluralize(len(session.backwards), "captured backward"), "backward", "link")


def _backward_only_items(session: Session, spent: float) -> Iterator[SummaryItem]:
    """Yield the items of a session that only captured backwards."""
    yield SummaryItem(pluralize(len(session.backward_calls), "backward"), "backward", "name")
    yield SummaryItem(": ")
    yield SummaryItem(pluralize(len(session.backwards), "capture"), "backward", "link")
    eager = sum(c.outcome == "eager" for c in session.backward_calls)
    yield SummaryItem(f", {eager:,} run by autograd's engine" if eager else "")
    yield SummaryItem(", run operator by operator")
    yield SummaryItem(f", {format_seconds(spent)}" if spent else "")


def _failure_items(session: Session) -> Iterator[SummaryItem]:
    failures = [*session.failures, *(f for c in session.compilations for f in c.failures)]
    undone = sum(f.stage == "pass" for f in failures)
    errors = len(failures) - undone
    passes = f"{undone} pass{'es' if undone > 1 else ''} undone"
    for text in (pluralize(errors, "internal error") if errors else "", passes if undone else ""):
        if text:
            yield SummaryItem(", ")
            yield SummaryItem(text, "breaks", "link")


def hits_of_earlier_entries(session: Session) -> int:
    """Count the calls that hit earlier sessions' entries, if this session compiled nothing."""
    return 0 if session.compilations else session.calls_dropped + sum(c.outcome == "hit" for c in session.calls)


def _nothing_compiled_items(session: Session, spent: float) -> Iterator[SummaryItem]:
    if served := hits_of_earlier_entries(session):
        yield SummaryItem("Nothing new was compiled", "recompiles", "name")
        yield SummaryItem(f": {pluralize(served, 'call')} used earlier compilations")
        yield SummaryItem(f", {format_seconds(spent)}" if spent else "")
        return
    yield SummaryItem("Nothing was compiled", "breaks", "name")
    frames = [f for f in session.frames if any(c.frame == f.id for c in session.compilations)]
    if frames:
        stops = breaks_and_errors_of(session.compilations)
        does = "raises an exception" if stops and is_user_error(stops[0][1]) else "ran as Python"
        yield SummaryItem(f": {one_line(frames[0].name, 60)} {does}")
        if stops:
            yield SummaryItem(" (")
            yield SummaryItem(
                _line_prefix(session, stops[0][1].span) + break_text(session, stops[0][1]), "breaks", "link"
            )
            yield SummaryItem(")")
    elif any(c.outcome == "python" for c in session.calls):
        yield SummaryItem(
            ": the called functions run as Python because of an earlier cell; its summary gives the reason"
        )
    elif not session.skipped:
        yield SummaryItem(": no function or module that computes with tensors was called")
    if spent:
        yield SummaryItem(f", {format_seconds(spent)}")


def _line_prefix(session: Session, span: Span | None) -> str:
    """Return the line, with the name of its file if it is a library's."""
    if span is None:
        return ""
    return f"{source_lines.line_name(session, span) if is_installed_file(span.file) else f'line {span.line}'}: "


def _limit_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the first lines, and the number of omitted ones."""
    all_lines = tuple(lines)
    return (
        all_lines
        if len(all_lines) <= MAX_HINTS
        else (*all_lines[:MAX_HINTS], f"… and {len(all_lines) - MAX_HINTS} more.")
    )


def _hint_texts(session: Session) -> Iterator[str]:
    for skipped in session.skipped:
        yield f"{one_line(skipped.name, 60)}: {one_line(skipped.reason, 200).rstrip('.')}. {one_line(skipped.hint, 200)}".rstrip()
    for _, record in breaks_and_errors_of(session.compilations):
        yield f"{one_line(record.title, 200).rstrip('.')}. {one_line(record.hints[0], 200) if record.hints else ''}".rstrip()
    if not session.skipped and not session.compilations and not session.calls:
        yield "Call a function or an nn.Module in the cell, or name what to compile: %%compile NAME."
