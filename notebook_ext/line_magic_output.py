"""Text that ``%guards``, ``%recompiles`` and ``%kernels`` print."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from engine import api, errors
from engine.records.guards import CallExplanation, Fix, GuardsRecord, entry_name
from engine.records.session import CompilationRecord, FrameRecord, Session
from notebook_ext.views.format_text import one_line, pluralize, sanitize
from notebook_ext.views.kernels import kernels
from notebook_ext.views.recompiles import recompiles
from notebook_ext.views.source_lines import full_name


def frame_name_of(value: Any) -> str:
    """Return the name that the session gives to the frame of a function or module."""
    if isinstance(value, torch.nn.Module):
        return f"{type(value).__name__}.forward"
    inner = inspect.unwrap(value)
    return str(getattr(inner, "__qualname__", type(inner).__name__))


def related_frames(session: Session, value: Any) -> tuple[FrameRecord, ...]:
    """Return the frame of a function or module, and frames compiled because of it.

    These are resume functions and callees.
    """
    name = frame_name_of(value)
    ids = {f.id for f in session.frames if f.name in {name, name.rpartition(".")[2]} or f.name.endswith(f".{name}")}
    more = True
    while more:
        below = {f.id for f in session.frames if f.parent in ids} - ids
        more = bool(below)
        ids |= below
    return tuple(f for f in session.frames if f.id in ids)


def guards_text(value: Any, session: Session | None) -> str:
    """Return the guards of all cache entries as text, in the order of their checks.

    If ``value`` is not compiled any more, these are the entries of the last cell's session.
    """
    try:
        entries = [(entry_name(id), record) for id, record in api.guards_by_entry(value).items()]
    except errors.BadArgument:
        entries = []
        if session is not None:
            ids = {f.id for f in related_frames(session, value)}
            entries = [(full_name(session, c), c.guards) for c in session.compilations if c.frame in ids and c.guards]
    if not entries:
        return f"{frame_name_of(value)} has no cache entries: it was not compiled in the last %%compile cell."
    return "\n".join(line for name, entry in entries for line in _entry_lines(name, entry))


def _entry_lines(name: str, entry: GuardsRecord) -> Iterator[str]:
    yield f"{name}: {pluralize(len(entry.guards), 'guard')}"
    for guard in entry.guards:
        line_text = f"   line {guard.span.line}" if guard.span else ""
        yield f"  {guard.source}  {guard.kind}: {one_line(guard.expected, 80)}{line_text}"


def explain_call(value: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> CallExplanation | str:
    """Explain which entry a call would use, or return why this is unknown; runs nothing."""
    try:
        return api.explain_call(value, *arguments, **keywords)
    except (errors.BadArgument, TypeError) as error:
        return str(error)


def explanation_text(explanation: CallExplanation) -> str:
    """Return as lines of text which entry a call would use, or which guards fail."""
    return "\n".join(_call_lines(explanation))


def _call_lines(explanation: CallExplanation) -> Iterator[str]:
    if explanation.hit is not None:
        yield f"This call would use {entry_name(explanation.hit)}."
    elif not explanation.entries:
        yield "This call would be compiled: the function has no cache entry."
    else:
        yield f"This call would recompile: guards of {pluralize(len(explanation.entries), 'entry')} fail."
    for rejection in explanation.guard_failures:
        yield f"  {entry_name(rejection.entry)}: {sanitize(rejection.sentence) or f'{rejection.source} {rejection.kind}: expected {rejection.expected}, found {rejection.actual}'}"
        yield from (f"    {_fix_text(fix)}" for fix in rejection.fixes)
        if rejection.hint:
            yield f"    {rejection.hint}"


def _fix_text(fix: Fix) -> str:
    outcome = fix.verified or fix.unverified_reason
    return f"{fix.text}{f': {fix.code}' if fix.code else ''}{f' ({outcome})' if outcome else ''}"


def recompiles_text(session: Session, value: Any) -> str:
    """Return as text why each entry after the first was compiled."""
    ids = {f.id for f in related_frames(session, value)}
    lines: list[str] = []
    for lane in recompiles(session)["lanes"]:
        if lane["frame"] not in ids:
            continue
        lines.append(f"{lane['name']}: {pluralize(len(lane['entries']), 'entry')}")
        for column in lane["columns"]:
            if column["outcome"] != "hit":
                reasons = [r["sentence"] or r["short"] for r in column["rejections"]]
                lines += [f"  call {column['first']} {column['outcome']}: {' '.join(reasons) or 'first call'}"]
                fixes = [f for r in column["rejections"][:1] for f in r["fixes"]]
                lines += [f"    {_fix_text(Fix(**f))}" for f in fixes]
    return "\n".join(lines) or f"{frame_name_of(value)} was not called in the last recorded cell."


def kernels_text(session: Session, value: Any) -> str:
    """Return the kernels of a function or module as text: fused nodes and Triton code."""
    ids = {f.id for f in related_frames(session, value)}
    mine = [c for c in session.compilations if c.frame in ids]
    if not mine:
        return f"{frame_name_of(value)} was not compiled in the last recorded cell."
    rows = {(r["compilation"], r["kernel"]): r for r in kernels(session)["rows"]}
    return (
        "\n".join(line for c in mine for line in _kernel_lines(full_name(session, c), c, rows))
        or f"{frame_name_of(value)} has no kernels."
    )


def _kernel_lines(name: str, compilation: CompilationRecord, rows: dict[tuple[str, str], Any]) -> Iterator[str]:
    for kernel in {k.id: k for k in (*compilation.cpu_kernels, *compilation.kernels)}.values():
        row = rows.get((compilation.id, kernel.id), {})
        where = ", ran on this CPU" if kernel.language == "llvm" else ""
        yield f"{name} {kernel.id} {kernel.name}{where}: {', '.join(row.get('nodes', ()))}"
        yield from (f"    {line}" for line in sanitize(kernel.text).splitlines())
