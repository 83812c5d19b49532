"""AOT runtime wrappers around the functional graph, and the path of one call through them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.records.aot import AotRecord, CallValuesRecord, PartitionRecord, ValueFacts, WrapperAction
from engine.records.format_amounts import format_bytes
from engine.records.graph import GraphRecord
from engine.records.runtime import call_numbers
from engine.records.session import CompilationRecord, Session
from notebook_ext.views import source_lines
from notebook_ext.views.format_text import UNKNOWN_SIZE, one_line, pluralize, sanitize, tensor_type

MAX_CALLS = 50
"""Maximum number of an entry's calls that can be stepped through; the latest."""
_CONDITION = "bool"
"""Start of the type of an output that is a check of values, which the caller never sees."""


def aot_wrappers(session: Session, compilation: str) -> dict[str, Any]:
    """Return the wrappers from the outside in, their actions on values, and a call's steps.

    A step is ``[wrapper, direction, action]``. Wrapper -1 is the call, ``len(wrappers)`` the graph and
    ``len(wrappers) + 1`` the backward. The direction is "in" or "out"; the action is an index or -1.
    ``empty`` says why there are no wrappers.

    Raises:
        KeyError: there is no such compilation.
    """
    record = session.compilation(compilation)
    if record.aot is None:
        return {"compilation": record.id, "empty": _why_empty(record)}
    return _wrappers_data(session, record, record.aot)


def _wrappers_data(session: Session, record: CompilationRecord, aot: AotRecord) -> dict[str, Any]:
    graph = _forward_graph(record)
    types = _types_by_value(record, graph)
    fx = next((g for g in record.graphs if g.stage == "fx"), None)
    aot = _name_inputs(aot, fx)
    results = [v.name for v in aot.values if v.role == "output"]
    returned = _output_rows(fx)
    if len(returned) == len(results):
        types |= {name: row["type"] for name, row in zip(results, returned, strict=True)}
    values = [_value_data(v, types) for v in aot.values]
    checks = {v["name"] for v in values if v["role"] == "output" and v["type"] == _CONDITION}
    rings = [
        {"name": _title_text(w.name), "actions": _group_actions([_action_row(a, aot) for a in w.actions])}
        for w in aot.wrappers
        if w.actions
    ]
    operations = [n for n in graph.nodes if n.op not in ("placeholder", "output", "get_attr")] if graph else []
    ordinals = source_lines.ordinals(session, record)
    files = {f.id for f in session.files}
    used = sorted({ordinals.of(source_lines.node_spans(n, files).span) for n in fx.nodes} - {0}) if fx else []
    return {
        "compilation": record.id,
        "empty": "",
        "name": source_lines.frame_name(session, record.frame),
        "mode": sanitize(aot.mode),
        "note": sanitize(aot.note),
        "inputs": [v for v in values if v["role"] != "output"],
        "outputs": [v for v in values if v["role"] == "output" and v["name"] not in checks],
        "checks": len(checks),
        "rings": rings,
        "idle": [_title_text(w.name) for w in aot.wrappers if not w.actions],
        "bare": _why_bare(record, aot),
        "graph": {
            "stage": graph.stage if graph else "",
            "text": pluralize(len(operations), "operation") if graph else "No functional graph was recorded.",
            "ordinals": used,
            "outputs": [row for row in _output_rows(graph) if row["type"] != _CONDITION],
        },
        "backward": (back := _backward_data(record, aot)),
        "steps": _step_order(rings, has_backward=back is not None),
        "calls": _call_rows(session, record),
        "passages": [_call_values_row(p) for p in record.call_values],
        "can_note": record.compiler == "engine" and bool(aot.wrappers),
        "partition": None if aot.partition is None else _partition_data(aot.partition),
    }


def _partition_data(partition: PartitionRecord) -> dict[str, Any]:
    """Return the values saved or recomputed for the backward, largest first, and byte sums."""
    rows = sorted(partition.values, key=lambda v: (v.action != "saved", -v.bytes))
    unknown = f" and {one_line(text, 60)} B" if (text := partition.unknown_saved_bytes) else ""
    spared = max(0, partition.bytes_without_recompute - partition.saved_bytes)
    return {
        "sums": [
            ["saved", partition.saved_bytes],
            ["recomputed, so not saved", spared],
            ["inputs saved for backward", partition.saved_input_bytes],
        ],
        "sizes": [format_bytes(partition.saved_bytes), format_bytes(spared), format_bytes(partition.saved_input_bytes)],
        "text": (
            f"{format_bytes(partition.saved_bytes)}{unknown} of activations saved between forward and backward ({partition.method}); "
            f"{format_bytes(partition.bytes_without_recompute)} without recompute. Inputs saved for backward: {format_bytes(partition.saved_input_bytes)}."
            + _peak_text(partition)
            + (f" These sums are without sizes that are {UNKNOWN_SIZE}." if unknown else "")
        ),
        "rows": [
            {
                "name": one_line(v.name, 40),
                "action": sanitize(v.action),
                "bytes": f"{one_line(v.unknown_bytes, 40)} B"
                if v.unknown_bytes
                else format_bytes(v.bytes)
                if v.bytes
                else "",
                "count": v.bytes,
                "reason": one_line(v.reason, 200),
            }
            for v in rows
        ],
    }


def _backward_data(record: CompilationRecord, aot: AotRecord) -> dict[str, Any] | None:
    """Return the inputs of the backward graph and the gradients that it returns, else None."""
    graph = next((g for g in record.graphs if g.stage == "backward"), None)
    if aot.partition is None or graph is None:
        return None
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    operations = sum(n.op not in ("placeholder", "output", "get_attr") for n in graph.nodes)
    saved = {v.name for v in aot.partition.values if v.action == "saved"}
    gradients = [a.argument for w in aot.wrappers for a in w.actions if a.action.startswith("gets a gradient")]
    return {
        "text": pluralize(operations, "operation"),
        "inputs": [
            {
                "name": one_line(n.name, 40),
                "type": tensor_type(n.dtype, n.shape) if n.dtype else "",
                "facts": ["saved by the forward"] if n.name in saved else [],
            }
            for n in inputs
        ],
        "outputs": [{"name": f"gradient of {one_line(g, 30)}", "type": "", "facts": []} for g in gradients],
    }


def _peak_text(partition: PartitionRecord) -> str:
    if not partition.forward_peak_bytes and not partition.backward_peak_bytes:
        return ""
    return f" Peak memory before fusion: {format_bytes(partition.forward_peak_bytes)} in the forward, {format_bytes(partition.backward_peak_bytes)} in the backward."


def _why_bare(record: CompilationRecord, aot: AotRecord) -> str:
    """Return why a functional graph is shown without wrappers."""
    if record.compiler == "torch":
        return _OF_TORCH
    return "No wrapper was needed." if aot.mode == "inference" else "This graph has no wrappers."


_OF_TORCH = "torch.compile's trace does not list runtime wrappers."


def _why_empty(record: CompilationRecord) -> str:
    if record.compiler == "torch":
        return _OF_TORCH
    if record.failures:
        return f"The graph was not functionalized: {sanitize(record.failures[0].sentence)}"
    return "This compilation has no graph, so it has no wrappers."


def _title_text(text: str) -> str:
    flat = one_line(text, 60)
    return flat[:1].upper() + flat[1:]


def _forward_graph(record: CompilationRecord) -> GraphRecord | None:
    """Return the functional forward graph; None without one."""
    later = [g for g in record.graphs if g.stage != "fx"]
    return next((g for g in later if g.stage in ("aten", "forward")), later[0] if later else None)


def _output_rows(graph: GraphRecord | None) -> list[dict[str, str]]:
    """Return the names and types of a graph's outputs."""
    if graph is None:
        return []
    node_by_id = {n.id: n for n in graph.nodes}
    outputs = [node_by_id[i] for n in graph.nodes if n.op == "output" for i in n.inputs if i in node_by_id]
    return [{"name": one_line(n.name, 40), "type": tensor_type(n.dtype, n.shape) if n.dtype else ""} for n in outputs]


def _types_by_value(record: CompilationRecord, graph: GraphRecord | None) -> dict[str, str]:
    graphs = [g for g in record.graphs if g.stage == "fx"] + ([graph] if graph else [])
    inputs_of_graphs = [
        [(n.name, tensor_type(n.dtype, n.shape) if n.dtype else "") for n in g.nodes if n.op == "placeholder"]
        for g in graphs
    ]
    return {name: type for nodes in inputs_of_graphs for name, type in nodes if type}


def _name_inputs(aot: AotRecord, fx: GraphRecord | None) -> AotRecord:
    """Return the record with the inputs' names of the traced graph.

    torch's trace only numbers them.
    """
    names = [n.name for n in fx.nodes if n.op == "placeholder"] if fx else []
    numbers = {f"input {i}": name for i, name in enumerate(names)}
    if [v.name for v in aot.values if v.role == "input"] != list(numbers):
        return aot
    return replace(aot, values=tuple(replace(v, name=numbers.get(v.name, v.name)) for v in aot.values))


def _value_data(value: ValueFacts, types: dict[str, str]) -> dict[str, Any]:
    return {
        "name": one_line(value.name, 40),
        "role": sanitize(value.role),
        "type": types.get(value.name, ""),
        "facts": [one_line(f, 120) for f in value.facts],
    }


def _action_row(action: WrapperAction, aot: AotRecord) -> dict[str, Any]:
    roles = {v.name: v.role for v in aot.values}
    # Actions that restore or recreate something run after the graph; all others run before it.
    is_out = roles.get(action.argument) == "output" or "back" in action.action or "again" in action.action
    return {
        "argument": one_line(action.argument, 40),
        "action": one_line(action.action, 120),
        "why": sanitize(action.why),
        "direction": "out" if is_out else "in",
    }


def _group_actions(actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge actions that do the same for the same reason; the merged action names all values."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for action in actions:
        groups.setdefault((action["action"], action["why"], action["direction"]), []).append(action)
    return [
        group[0]
        | {
            "argument": group[0]["argument"]
            if len(group) == 1
            else f"{group[0]['argument']} and {len(group) - 1} more",
            "action": group[0]["action"]
            if len(group) == 1
            else group[0]["action"].replace("gets a gradient", "get gradients"),
            "all": [a["argument"] for a in group],
        }
        for group in groups.values()
    ]


def _call_rows(session: Session, record: CompilationRecord) -> list[dict[str, Any]]:
    """Return the calls that used this entry, the latest last, with their inputs."""
    served, numbers = [c for c in session.calls if c.entry == record.id and c.inputs], call_numbers(session.calls)
    return [
        {
            "text": f"call {numbers[c.index]}: "
            + one_line(", ".join(f"{k} {v}" for k, v in (c.inputs or {}).items()), 80),
            "inputs": {sanitize(k): one_line(v, 60) for k, v in (c.inputs or {}).items()},
        }
        for c in served[-MAX_CALLS:]
    ]


def _call_values_row(record: CallValuesRecord) -> dict[str, Any]:
    moments = [
        {
            "ring": _title_text(m.wrapper),
            "direction": sanitize(m.direction),
            "values": [[one_line(name, 40), one_line(text, 200)] for name, text in m.values],
            "cut": m.dropped,
        }
        for m in record.wrapper_values
    ]
    return {"how": one_line(record.replayed_on, 200), "moments": moments}


def _step_order(rings: list[dict[str, Any]], *, has_backward: bool) -> list[list[Any]]:
    steps: list[list[Any]] = [[-1, "in", -1]]
    for i, ring in enumerate(rings):
        steps += [[i, "in", j] for j, a in enumerate(ring["actions"]) if a["direction"] == "in"]
    steps.append([len(rings), "in", -1])
    for i in reversed(range(len(rings))):
        steps += [[i, "out", j] for j, a in enumerate(rings[i]["actions"]) if a["direction"] == "out"]
    back = [[len(rings) + 1, "in", -1], [len(rings) + 1, "out", -1]] if has_backward else []
    return [*steps, [-1, "out", -1], *back]
