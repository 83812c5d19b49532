"""Kernels as a table: what was fused into each, what it needs of the target, what it moves, whether it was checked; and what went to ATen."""

from __future__ import annotations

from typing import Any

from engine.records.graph import NodeRecord
from engine.records.kernels import KernelRecord
from engine.records.session import CompilationRecord, Session
from notebook_ext.views import places
from notebook_ext.views.text import clean, one_line, size


def kernels(session: Session) -> dict[str, Any]:
    """Rows of kernels and of ATen calls, with the fusion decisions of each compilation."""
    frames = {f.id: f.name for f in session.frames}
    shown = [c for c in session.compilations if c.kernels or c.lowering]
    return {
        "target": one_line(session.target, 40),
        "is_run": session.device.startswith(("cuda", "hip")),
        "rows": [
            _row(session, c, k, frames.get(c.frame, ""), nodes)
            for c in shown
            for nodes in (_fused(c),)
            for k in {k.id: k for k in c.kernels}.values()
        ],
        "externs": [
            {
                "compilation": c.id,
                "op": one_line(e.op, 60).removesuffix(".default"),
                "reason": clean(e.reason),
                "is_library": e.is_library,
            }
            for c in shown
            if c.lowering
            for e in c.lowering.externs
        ],
        "decisions": [_decision(c, d) for c in shown if c.lowering for d in c.lowering.decisions],
    }


def _fused(compilation: CompilationRecord) -> dict[str, NodeRecord]:
    """The nodes that went into kernels, by id; graphs are looked at only where there are such."""
    wanted = {i for k in compilation.kernels for i in k.fused_nodes}
    return {n.id: n for g in compilation.graphs for n in g.nodes if n.id in wanted} if wanted else {}


def _row(
    session: Session, compilation: CompilationRecord, kernel: KernelRecord, name: str, nodes: dict[str, NodeRecord]
) -> dict[str, Any]:
    target = kernel.targets[-1] if kernel.targets else None
    resources = target.resources if target else None
    numbers = places.ordinals(session, compilation) if nodes else places.Ordinals()
    files = {f.id for f in session.files}
    used = [places.places_of(nodes[i], files).span for i in kernel.fused_nodes if i in nodes]
    verify = kernel.verify
    return {
        "compilation": compilation.id,
        "frame": one_line(name, 60),
        "kernel": kernel.id,
        "name": one_line(kernel.name, 60),
        "nodes": [one_line(i.rpartition(":")[2], 40) for i in kernel.fused_nodes],
        "ordinals": sorted({numbers.of(s) for s in used} - {0}),
        "grid": clean(kernel.grid),
        "warps": clean((kernel.launch or {}).get("num_warps", "")),
        "launches": len(kernel.launches) or sum(k.id == kernel.id for k in compilation.kernels),
        "bytes": size(kernel.bytes_moved),
        "flops": kernel.flops,
        "target": one_line(target.target, 40) if target else "",
        "error": one_line(target.error, 300) if target else "",
        "registers": resources.registers if resources else None,
        "spills": resources.spills if resources else None,
        "shared": size(resources.shared_bytes) if resources else "",
        "occupancy": resources.occupancy if resources else None,
        "check": one_line(verify.outcome, 40) if verify else "not checked",
        "check_note": one_line(
            verify.note or (f"largest difference {verify.max_error:.2g}" if verify.max_error is not None else ""), 200
        )
        if verify
        else "",
    }


def _decision(compilation: CompilationRecord, decision: Any) -> dict[str, Any]:
    return {
        "compilation": compilation.id,
        "first": [one_line(i.rpartition(":")[2], 40) for i in decision.first],
        "second": [one_line(i.rpartition(":")[2], 40) for i in decision.second],
        "fused": decision.fused,
        "reason": clean(decision.reason),
        "saved": size(decision.bytes_saved),
    }
