"""Data of the explorer: an overview sent at once, and parts built on request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from engine.ir.user_code_files import is_installed_file
from engine.records.counts import aten_calls_of, compilation_counts, counts, errors_of, has_graph
from engine.records.session import CompilationRecord, Session
from engine.records.timeline import perfetto_trace, speedscope_profile
from notebook_ext.glossary import terms_by_view
from notebook_ext.views.aot_wrappers import aot_wrappers
from notebook_ext.views.backward import backward
from notebook_ext.views.breaks import breaks
from notebook_ext.views.comparison.session_comparison import comparison, entry_summary
from notebook_ext.views.compilations import artifact_keys, artifact_text, compilation_facts, compilations
from notebook_ext.views.devices import devices
from notebook_ext.views.entry_signature import entry_signature
from notebook_ext.views.format_text import one_line
from notebook_ext.views.graph.graph_between_passes import intermediate_graphs
from notebook_ext.views.graph.graphviz_layout import graphviz_layout, no_layout
from notebook_ext.views.graph.node_table import graph
from notebook_ext.views.guards import guards, names_entry
from notebook_ext.views.home import home
from notebook_ext.views.kernels import kernels
from notebook_ext.views.linked.margin_marks import margin
from notebook_ext.views.linked.row_links import (
    default_target,
    linked,
    linked_with_long_texts,
    pane_text,
    targets_of,
)
from notebook_ext.views.performance.memory import memory
from notebook_ext.views.performance.timings import timings
from notebook_ext.views.plan import NOT_RUN, plan_devices, plans
from notebook_ext.views.recipes import recipes
from notebook_ext.views.recompiles import recompiles
from notebook_ext.views.search_index import search_index
from notebook_ext.views.source_lines import frame_name
from notebook_ext.views.summary import summary
from notebook_ext.views.tracer_steps import tracer_steps

OtherSessions = Mapping[str, Session]
"""Sessions that can be compared with the displayed one, by display name."""
DEFAULT_NAME = "this session"
MAX_LAID_OUT = 8
"""Number of compilations whose small graphs Graphviz lays out for a page.

A log can hold hundreds of compilations.
"""
NOT_LAID_OUT_MESSAGE = f"This page contains Graphviz's layout for its first {MAX_LAID_OUT} compilations only; the others use the built-in layout."


def overview(
    session: Session, others: OtherSessions | None = None, name: str = DEFAULT_NAME, *, can_edit: bool = False
) -> dict[str, Any]:
    """Return the summary, the selectable entries, the empty views and the glossary terms.

    ``name`` is the display name of the session beside ``others``. ``can_edit`` is as for ``empty_views``.
    """
    return {
        "name": one_line(name, 40),
        "others": [
            {"name": one_line(n, 40), "entries": [_entry_data(s, c) for c in s.compilations]}
            for n, s in (others or {}).items()
        ],
        "summary": summary(session).to_dict(),
        "entries": [_entry_data(session, c) for c in session.compilations],
        "start": start_entry(session),
        "empty": empty_views(session, others or (), can_edit=can_edit),
        "device": one_line(session.device, 40),
        "words": terms_by_view(),
        "margin": margin(session),
        "is_observed": session.compiler == "torch",
    }


def start_entry(session: Session) -> str:
    """Return the compilation to show first: with kernels, else with a graph, else the first.

    Where the user's function raises, its library callees are compiled alone: they come last.
    """
    compilations = session.compilations
    files = {f.id: f.file for f in session.frames}
    raises = any(not is_installed_file(files.get(c.frame, "")) for c, _ in errors_of(tuple(compilations)))
    ordered = sorted(
        compilations,
        key=lambda c: (raises and is_installed_file(files.get(c.frame, "")), not c.kernels, not has_graph(c)),
    )
    return ordered[0].id if ordered else ""


def initial_parts(session: Session, view: str) -> dict[str, Any]:
    """Return the parts to send with the overview: home, and the linked view if it opens.

    The linked view is by far the largest part: other views are painted before it arrives.
    """
    return {"home": home(session)} | (linked_part(session) if view.partition("|")[0] == "linked" else {})


def linked_part(session: Session) -> dict[str, Any]:
    """Return the linked view of the first entry by its key; empty without entries."""
    entry = start_entry(session)
    return {f"linked|{entry}|": linked(session, entry)} if entry else {}


def part(session: Session, key: str, others: OtherSessions | None = None, name: str = DEFAULT_NAME) -> Any:
    """Return one part by its key: the name of a view and its arguments, separated by ``|``.

    ``linked|ENTRY|TARGET``, ``text|ENTRY|TARGET|PANE``, ``guards|ENTRY``, ``tracer|ENTRY``, ``aot|ENTRY``, ``memory|ENTRY``,
    ``graph|ENTRY|STAGE``, ``layout|ENTRY|STAGE``, ``facts|ENTRY``, ``file|ENTRY|NUMBER``, ``brief|ENTRY``,
    ``home``, ``recompiles``, ``timings``, ``breaks``, ``kernels``, ``compilations``, ``backward``, ``index``,
    ``recipes``, ``devices``, ``perfetto``, ``speedscope``.
    ``other|NUMBER|KEY`` is a part of another session. ``comparison|FIRST|SECOND`` compares two sessions by
    number; an empty number is the displayed session.

    Raises:
        KeyError: there is no such part.
    """
    view, *arguments = key.split("|")
    if view == "other":
        return part(_find_session(session, others, arguments[0])[1], "|".join(arguments[1:]))
    if view == "difference":
        (a, first), (b, second) = (_find_session(session, others, n, name) for n in arguments)
        return comparison(first, second, (a, b))
    if view == "linked":
        entry, target = arguments
        return linked(session, entry, target)
    if view == "text":
        entry, target, pane = arguments
        return pane_text(session, entry, target or default_target(session, session.compilation(entry)), pane)
    if view in _ENTRY_VIEWS:
        return _ENTRY_VIEWS[view](session, *arguments)
    return _SESSION_VIEWS[view](session)


def _find_session(
    session: Session, others: OtherSessions | None, number: str, name: str = DEFAULT_NAME
) -> tuple[str, Session]:
    """Return (name, session) for a number in ``others``; for "", the displayed session."""
    if not number:
        return name, session
    named_sessions = list((others or {}).items())
    if not number.isdecimal() or int(number) >= len(named_sessions):
        raise KeyError(number)
    return named_sessions[int(number)]


_ENTRY_VIEWS: dict[str, Callable[..., dict[str, Any]]] = {
    "guards": guards,
    "graph": graph,
    "places": graphviz_layout,
    "tracer": tracer_steps,
    "aot": aot_wrappers,
    "memory": memory,
    "facts": compilation_facts,
    "file": artifact_text,
    "brief": entry_summary,
}
_CALL = "Call a function or a module that computes with tensors in the cell."
_WHAT_FILLS = {
    "linked": _CALL,
    "guards": "Compile a function that has inputs.",
    "recompiles": "Call a function again with other shapes, dtypes or values: the guards that fail appear here.",
    "breaks": "Nothing to do: graph breaks, exceptions and internal errors appear here.",
    "graph": _CALL,
    "kernels": "Compile with the backend triton: its kernels and ATen calls appear here.",
    "timings": _CALL,
    "tracer": "Run the cell with %%compile --steps, or record with engine.record(level='steps').",
    "aot": "Compile with the backend triton or aot_eager.",
    "memory": "Compile with the backend triton: the live memory of its programs appears here.",
    "compare": "Run the cell again, use %%compile --compare, or give %explore two sessions.",
    "compilations": _CALL,
    "edit": "Compile a function with this engine in a kernel that runs: its graphs can be edited here.",
    "devices": "Compile code with DTensors or collectives, or open a folder with the logs or saved sessions of several ranks.",
    "backward": "Run a backward under engine.compiled_autograd().",
}


def _devices(session: Session) -> dict[str, Any]:
    plan = plans.get(session)
    return devices(session) if plan is None else plan_devices(plan)


_SESSION_VIEWS = {
    "home": home,
    "recompiles": recompiles,
    "timings": timings,
    "breaks": breaks,
    "kernels": kernels,
    "compilations": compilations,
    "backward": backward,
    "index": search_index,
    "recipes": recipes,
    "devices": _devices,
    "perfetto": perfetto_trace,
    "speedscope": speedscope_profile,
}


def all_keys(session: Session) -> Iterator[str]:
    """Yield every key that a page without a kernel needs.

    Pane texts and layouts are left out: they follow from the parts.
    """
    yield from session_keys()
    for compilation in session.compilations:
        yield from entry_keys(compilation)
    yield from artifact_keys(session)


def session_keys() -> Iterator[str]:
    """Yield the keys of parts about the whole session."""
    yield from _SESSION_VIEWS
    yield "facts|"


def entry_keys(compilation: CompilationRecord) -> Iterator[str]:
    """Yield the keys of one compilation's parts without pane texts."""
    yield from (f"{view}|{compilation.id}" for view in ("guards", "tracer", "aot", "memory", "facts", "brief"))
    yield f"linked|{compilation.id}|"
    for target in targets_of(compilation)[1:]:
        yield f"linked|{compilation.id}|{target}"
    yield f"graph|{compilation.id}|"
    for record in compilation.graphs[1:]:
        yield f"graph|{compilation.id}|{record.stage}"
    yield from (f"graph|{compilation.id}|{between.stage}" for between in intermediate_graphs(compilation))


def parts(session: Session, wanted: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield parts by key, each followed by the long texts of its panes or its Graphviz layout."""
    first = {c.id for c in session.compilations[:MAX_LAID_OUT]}
    for key in wanted:
        if key.startswith("linked|"):
            _, entry, target = key.split("|")
            structure, texts = linked_with_long_texts(session, entry, target)
            yield key, structure
            yield from ((f"text|{entry}|{target}|{pane}", text) for pane, text in texts.items())
            continue
        value = part(session, key)
        yield key, value
        if key.startswith("graph|") and value["is_small"]:
            where = key.replace("graph", "places", 1)
            yield where, part(session, where) if value["compilation"] in first else no_layout(NOT_LAID_OUT_MESSAGE)


def all_parts(session: Session, others: OtherSessions | None = None, name: str = DEFAULT_NAME) -> dict[str, Any]:
    """Return all parts by key, for a page without a kernel.

    Of the other sessions it has only the parts for comparison.
    """
    return dict(parts(session, all_keys(session))) | dict(comparison_parts(session, others, name))


def comparison_parts(
    session: Session, others: OtherSessions | None, name: str = DEFAULT_NAME
) -> Iterator[tuple[str, Any]]:
    """Yield by key the parts of other sessions that a comparison needs."""
    numbers = [""]
    for number, other in enumerate((others or {}).values()):
        wanted = [k for c in other.compilations for k in entry_keys(c) if k.startswith(("linked|", "brief|"))]
        yield from ((f"other|{number}|{key}", value) for key, value in parts(other, wanted))
        numbers.append(str(number))
    for key in (f"difference|{a}|{b}" for a in numbers for b in numbers if a != b):
        yield key, part(session, key, others, name)


def _entry_data(session: Session, compilation: CompilationRecord) -> dict[str, Any]:
    rejected = sum(names_entry(r.entry, compilation) for call in session.calls for r in call.guard_failures)
    return {
        "id": compilation.id,
        "frame": compilation.frame,
        "name": frame_name(session, compilation.frame),
        "entry": compilation.id.rpartition("/")[2],
        "inputs": one_line(entry_signature(session, compilation), 80),
        "cause": one_line(compilation.cause, 200),
        "kernels": compilation_counts(compilation).kernels,
        "targets": [one_line(t, 40) for t in targets_of(compilation)],
        "rejected": rejected,
        "has_graph": has_graph(compilation),
        "steps": len(compilation.trace.steps) if compilation.trace else 0,
    }


def empty_views(session: Session, others: Collection[str] = (), *, can_edit: bool = False) -> dict[str, str]:
    """Return what would fill each empty view, by view.

    ``others`` are sessions to compare with. ``can_edit``: a kernel runs that can compile edited graphs.
    """
    if plans.get(session) is not None:
        return {view: NOT_RUN for view in _WHAT_FILLS if view != "devices"}
    compiled = session.compilations
    found = counts(session)
    traces = [c.trace for c in compiled if c.trace]
    failed = any(call.guard_failures or call.outcome == "python" for call in session.calls)
    problems = (found.breaks, found.errors, session.skipped, session.failures, any(c.failures for c in compiled))
    holds = {
        "linked": bool(compiled),
        "guards": any(c.guards and c.guards.guards for c in compiled),
        "recompiles": bool(found.recompiles) or failed or (not compiled and bool(session.calls)),
        "breaks": any(problems) or any(t.discarded_attempts for t in traces) or not compiled,
        "graph": any(g.nodes or g.text for c in compiled for g in c.graphs),
        "kernels": bool(found.kernels) or any(aten_calls_of(c) for c in compiled),
        "timings": any(c.timings for c in compiled),
        "tracer": any(t.steps for t in traces),
        "aot": any(c.aot for c in compiled),
        "memory": any(found.steps for c in compiled for found in c.memory),
        "compare": bool(others) or sum(map(has_graph, compiled)) > 1,
        "compilations": bool(compiled or session.artifacts),
        "backward": bool(session.backward_calls),
        "devices": session.ranks is not None or any(g.mesh for c in compiled for g in c.graphs),
        "edit": can_edit and session.compiler == "engine" and any(g.nodes for c in compiled for g in c.graphs),
    }
    return {view: text for view, text in _WHAT_FILLS.items() if not holds[view]}
