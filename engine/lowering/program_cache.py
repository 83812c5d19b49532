"""Disk cache of lowered programs.

A later process that lowers an equal graph reads its kernels instead of printing them again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from engine.cache.disk_store import DiskStore, DiskStoreError
from engine.cache.environment_key import torch_flags_key, version_key
from engine.cache.fallback_kinds import CacheFallback, NotCached
from engine.cache.serialize_graph import serialize_graph
from engine.cache.serialize_symbols import SymbolTable, shape_env_facts
from engine.cache.serialize_values import deserialize_value, serialize_fake, serialize_value
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.introspection.symbols import symbolic_numbers_in
from engine.ir.kernels.lowered_program import LoweredProgram
from engine.ir.node_metadata import PADDED_ROWS_KEY, provenance_of
from engine.lowering.driver import run_passes
from engine.lowering.graph_lowering import format_user_line, reset_saved_row_stride, set_saved_row_stride
from engine.lowering.registry import COMPLEX_LOWERINGS, LOWERINGS
from engine.torch_private.operators import decomposition_table

_COMPILATION_ID = "\ue000"
"""Placeholder on disk for the compilation id, which is part of node and op ids."""


def load_or_lower(
    graph: AotGraph,
    lower: Callable[[], LoweredProgram],
    store: DiskStore,
    key_parts: Sequence[Any],
    *,
    fused_random: bool,
    with_reference: bool,
) -> LoweredProgram:
    """Return the cached program of a graph, or lower the graph and cache the program.

    The record notes where the program comes from, or why it is not cached. ``key_parts``: other plain values that
    determine the program. ``with_reference``: also restore the reference graph and the pass records. Exceptions of
    ``lower`` propagate.
    """
    try:
        key = _cache_key(graph, [*key_parts, fused_random])
    except NotCached as error:
        return _with_cache_note(lower(), f"not saved to disk: {error}")
    try:
        text = store.get(key)
        if text is not None:
            return _with_cache_note(
                _deserialize(json.loads(text), graph, fused_random=fused_random, tells=with_reference),
                "loaded from disk",
            )
        note = "saved to disk"
    except DiskStoreError as error:
        note = f"recompiled: {error}"
    except Exception as error:  # This engine wrote the file but cannot read it: lower again and overwrite it.
        note = f"recompiled: the file on disk cannot be read ({type(error).__name__})"
    program = lower()
    try:
        store.put(key, _serialize(program, graph))
    except (NotCached, DiskStoreError) as error:
        note = f"not saved to disk: {error}"
    return _with_cache_note(program, note)


def _with_cache_note(program: LoweredProgram, note: str) -> LoweredProgram:
    return replace(program, record=replace(program.record, cache=note))


def _cache_key(graph: AotGraph, settings: Sequence[Any]) -> str:
    """Return the digest that identifies a program on disk.

    Raises:
        NotCached: something in the graph cannot be serialized.
    """
    if theirs := _foreign_lowering():
        raise NotCached(CacheFallback.UNSERIALIZABLE_VALUE, f"{theirs} has a lowering that other code registered")
    nodes = list(graph.module.graph.nodes)
    values = [n.meta.get("val") for n in nodes]
    parts = {
        "made by": version_key(),
        "switches": torch_flags_key(),
        "how": serialize_value(settings),
        "stage": [
            graph.stage,
            graph.is_boxed,
            graph.num_user_outputs,
            graph.mutated_inputs,
            [p.name for p in graph.saved_placeholders],
        ],
        "inputs": [serialize_fake(i) for i in graph.inputs],
        "graph": serialize_graph(graph.module),
        "lines": [format_user_line(provenance_of(n).span) for n in nodes],
        "sizes": [shape_env_facts(values), _size_hints(values)],
    }
    text = json.dumps(parts, sort_keys=True).replace(f":{graph.compilation_id}:", f":{_COMPILATION_ID}:")
    return hashlib.sha256(text.encode()).hexdigest()


def _foreign_lowering() -> str:
    """Return an operator with a third-party lowering or decomposition; empty without one."""
    tables = ((LOWERINGS, "engine."), (COMPLEX_LOWERINGS, "engine."), (decomposition_table, "torch."))
    return next(
        (str(op) for table, ours in tables for op, fn in table.items() if not _module_of(fn).startswith(ours)), ""
    )


def _module_of(function: Any) -> str:
    return str(getattr(function, "func", function).__module__)


def _size_hints(values: Sequence[Any]) -> list[tuple[str, str]]:
    """Return the size hints of the symbols; decisions of lowering depend on them."""
    return sorted(
        {(str(n.node.expr), str(n.node.hint)) for v in values for n in symbolic_numbers_in(v) if n.node.expr.is_Symbol}
    )


def _serialize(program: LoweredProgram, graph: AotGraph) -> str:
    """Serialize a program, without its reference graph and pass records.

    Running the passes on the graph again restores them.
    """
    plain = replace(program, reference_graph=None, record=replace(program.record, passes=()))
    rows = [[n, p.meta["val"].stride(0)] for n, p in enumerate(graph.saved_placeholders) if PADDED_ROWS_KEY in p.meta]
    text = json.dumps({"program": serialize_value(plain), "rows": rows}, separators=(",", ":"), ensure_ascii=False)
    if _COMPILATION_ID in text:
        raise NotCached(CacheFallback.UNSERIALIZABLE_VALUE, "its text contains a reserved character of the file format")
    return text.replace(f":{graph.compilation_id}:", f":{_COMPILATION_ID}:")


def _deserialize(data: Any, graph: AotGraph, *, fused_random: bool, tells: bool) -> LoweredProgram:
    values = [n.meta.get("val") for n in graph.module.graph.nodes]
    env = next((n.node.shape_env for v in values for n in symbolic_numbers_in(v)), None)
    program: LoweredProgram = deserialize_value(
        _restore_compilation_id(data["program"], graph.compilation_id), symbols=SymbolTable(env, values)
    )
    for placeholder in graph.saved_placeholders:
        reset_saved_row_stride(placeholder)
    for position, row in data["rows"]:
        set_saved_row_stride(graph.saved_placeholders[position], row)
    if not tells:
        return program
    watch, _ = run_passes(graph, fused_random=fused_random)
    return replace(program, reference_graph=watch.module, record=replace(program.record, passes=tuple(watch.records)))


def _restore_compilation_id(data: Any, compilation: str) -> Any:
    """Replace the placeholder by the id of this compilation in all strings."""
    if isinstance(data, str):
        return data.replace(_COMPILATION_ID, compilation)
    if isinstance(data, list):
        return [_restore_compilation_id(d, compilation) for d in data]
    return (
        {_restore_compilation_id(k, compilation): _restore_compilation_id(v, compilation) for k, v in data.items()}
        if isinstance(data, dict)
        else data
    )
