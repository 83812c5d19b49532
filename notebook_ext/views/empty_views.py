"""Views that hold nothing in a session, each with what would fill it."""

from __future__ import annotations

from collections.abc import Collection

from engine.records.counts import aten_calls_of, counts, has_graph
from engine.records.session import Session


def empty_views(session: Session, others: Collection[str] = (), *, can_edit: bool = False) -> dict[str, str]:
    """Return what would fill each empty view, by view.

    ``others`` are sessions to compare with. ``can_edit``: a kernel runs that can compile edited graphs.
    """
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
