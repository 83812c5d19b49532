"""Lowered programs on disk: a later process that lowers an equal graph reads its kernels instead of printing them again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch._decomp import decomposition_table

from engine.graph.made_by import switches, versions
from engine.graph.plain import NotPlain, from_plain, graph_to_plain, to_plain, to_shape
from engine.graph.symbols import Symbols, assumptions, numbers_in
from engine.ir.aot import AotGraph
from engine.ir.graph import ROWS_APART, origin_of
from engine.ir.kernel import Program
from engine.ir.store import NotStored, Store
from engine.lowering.driver import forget_rows, line_of, rewritten, tell_rows
from engine.lowering.table import COMPLEX, TABLE

_HERE = "\ue000"
"""Stands on disk for the id of the compilation, which is part of the ids of nodes and operations."""


def kept(
    graph: AotGraph, make: Callable[[], Program], store: Store, how: Sequence[Any], *, fused_random: bool, tells: bool
) -> Program:
    """The program that ``make`` lowers ``graph`` to, read from ``store`` where it was kept there; its record says which, or why not.

    ``how``: what else decides the outcome, as plain values. ``tells``: the reference and the passes are wanted, too. What ``make`` raises is
    raised.
    """
    try:
        key = _key(graph, [*how, fused_random])
    except NotPlain as error:
        return _told(make(), f"not kept on disk: {error}")
    try:
        text = store.get(key)
        if text is not None:
            return _told(_read(json.loads(text), graph, fused_random=fused_random, tells=tells), "read from disk")
        note = "kept on disk"
    except NotStored as error:
        note = f"made anew: {error}"
    except Exception as error:  # written by us, and yet not understood: it is made anew and written over
        note = f"made anew: the form on disk was not understood ({type(error).__name__})"
    made = make()
    try:
        store.put(key, _written(made, graph))
    except (NotPlain, NotStored) as error:
        note = f"not kept on disk: {error}"
    return _told(made, note)


def _told(program: Program, note: str) -> Program:
    return replace(program, record=replace(program.record, cache=note))


def _key(graph: AotGraph, how: Sequence[Any]) -> str:
    """The digest that a program is found by.

    Raises:
        NotPlain: something in the graph has no form on disk.
    """
    if theirs := _lowered_by_others():
        raise NotPlain(f"{theirs} is lowered by somebody else's code")
    nodes = list(graph.module.graph.nodes)
    values = [n.meta.get("val") for n in nodes]
    parts = {
        "made by": versions(),
        "switches": switches(),
        "how": to_plain(how),
        "stage": [graph.stage, graph.is_boxed, graph.results, [p.name for p in graph.saved]],
        "inputs": [to_shape(i) for i in graph.inputs],
        "graph": graph_to_plain(graph.module),
        "lines": [line_of(origin_of(n).span) for n in nodes],
        "sizes": [assumptions(values), _at_hand(values)],
    }
    text = json.dumps(parts, sort_keys=True).replace(f":{graph.compilation}:", f":{_HERE}:")
    return hashlib.sha256(text.encode()).hexdigest()


def _lowered_by_others() -> str:
    """An operator whose lowering or decomposition is neither ours nor torch's; empty when there is none."""
    tables = ((TABLE, "engine."), (COMPLEX, "engine."), (decomposition_table, "torch."))
    return next(
        (str(op) for table, ours in tables for op, fn in table.items() if not _module_of(fn).startswith(ours)), ""
    )


def _module_of(function: Any) -> str:
    return str(getattr(function, "func", function).__module__)


def _at_hand(values: Sequence[Any]) -> list[tuple[str, str]]:
    """What symbols are in the call at hand: choices are made with it."""
    return sorted(
        {(str(n.node.expr), str(n.node.hint)) for v in values for n in numbers_in(v) if n.node.expr.is_Symbol}
    )


def _written(program: Program, graph: AotGraph) -> str:
    """A program as text: what is found again by decomposing the graph, its reference and the passes that made it, is left out."""
    plain = replace(program, reference=None, record=replace(program.record, passes=()))
    rows = [[n, p.meta["val"].stride(0)] for n, p in enumerate(graph.saved) if ROWS_APART in p.meta]
    text = json.dumps({"program": to_plain(plain), "rows": rows}, separators=(",", ":"), ensure_ascii=False)
    if _HERE in text:
        raise NotPlain("its text holds a character that has a meaning of its own on disk")
    return text.replace(f":{graph.compilation}:", f":{_HERE}:")


def _read(data: Any, graph: AotGraph, *, fused_random: bool, tells: bool) -> Program:
    values = [n.meta.get("val") for n in graph.module.graph.nodes]
    env = next((n.node.shape_env for v in values for n in numbers_in(v)), None)
    program: Program = from_plain(_here(data["program"], graph.compilation), symbols=Symbols(env, values))
    for placeholder in graph.saved:
        forget_rows(placeholder)
    for position, row in data["rows"]:
        tell_rows(graph.saved[position], row)
    if not tells:
        return program
    watch, _ = rewritten(graph, fused_random=fused_random)
    return replace(program, reference=watch.module, record=replace(program.record, passes=tuple(watch.records)))


def _here(data: Any, compilation: str) -> Any:
    """The same with the id of this compilation in every text."""
    if isinstance(data, str):
        return data.replace(_HERE, compilation)
    if isinstance(data, list):
        return [_here(d, compilation) for d in data]
    return {_here(k, compilation): _here(v, compilation) for k, v in data.items()} if isinstance(data, dict) else data
