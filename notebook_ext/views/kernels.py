"""Kernels view: fused nodes, resources, bytes moved, checks, and ATen fallbacks."""

from __future__ import annotations

from typing import Any

from engine.kernels.gpu_targets import TARGETS
from engine.records.counts import aten_calls_of, nodes_by_id, unique_kernels
from engine.records.format_amounts import format_bytes, format_seconds
from engine.records.graph import NodeRecord, operator_name
from engine.records.kernels import KernelRecord, KernelResources, LaunchGroup, TargetRecord
from engine.records.lowering import FusionDecision, LoweringRecord
from engine.records.session import CompilationRecord, Session
from notebook_ext.views import source_lines
from notebook_ext.views.cell_edits import advice
from notebook_ext.views.format_text import one_line, pluralize, sanitize
from notebook_ext.views.linked.row_links import CPU, default_target, for_target, targets_of
from notebook_ext.views.performance import roofline

MAX_LAUNCH_GROUPS = 40
"""Maximum number of groups of one kernel that are shown."""
_LAUNCHER_PARAMETERS = ("extent", "item_cost")
"""Parameters of a CPU kernel that only its launcher reads, to share out the work."""


def launches_of(session: Session, compilation: str, kernel: str) -> dict[str, Any] | None:
    """Return the table of a kernel's launches, slowest first; None if there are none."""
    groups = [g for g in session.launches if (g.compilation, g.kernel) == (compilation, kernel)]
    if not groups:
        return None
    groups.sort(key=lambda g: (-(g.seconds or 0.0), -g.count))
    facts = [_launch_properties(session, g) for g in groups]
    varying = [name for name in facts[0] if len({f[name] for f in facts}) > 1]
    shown = groups[:MAX_LAUNCH_GROUPS]
    return {
        "total": sum(g.count for g in groups),
        "equal": [[name, text] for name, text in facts[0].items() if name not in varying and text],
        "varying": varying,
        "rows": [
            {"values": [f[n] for n in varying], "count": g.count, "fastest": g.fastest, "seconds": g.seconds}
            for g, f in zip(shown, facts, strict=False)
        ],
        "more": len(groups) - len(shown),
    }


def _launch_properties(session: Session, group: LaunchGroup) -> dict[str, str]:
    """Return the properties that can differ between launches of a kernel, by column title."""
    shown = {name: text for name, text in group.arguments.items() if name not in _LAUNCHER_PARAMETERS}
    arguments = {one_line(name, 40): one_line(text, 60) for name, text in shown.items()}
    return arguments | {
        "grid": " × ".join(map(str, group.grid)),
        "from": sanitize(source_lines.line_name(session, group.caller)),
        "launched by": "a CUDA graph" if group.is_replay else "",
    }


def kernels(session: Session) -> dict[str, Any]:
    """Return the rows of kernels and ATen calls, the fusion decisions and the rooflines.

    Fusion decisions are by compilation, rooflines by target.
    """
    frames = {f.id: source_lines.frame_name(session, f.id) for f in session.frames}
    compiled = [c for c in session.compilations if c.kernels or c.lowering or c.cpu_kernels]
    targets = dict.fromkeys(t for c in compiled for t in targets_of(c) or [default_target(session, c)] if t)
    shown = [x for c in compiled for x in (c, *((for_target(c, CPU),) if c.cpu_kernels else ()))]
    return {
        "target": one_line(session.target, 40),
        "targets": [one_line(t, 40) for t in targets],
        "further": [t for t in TARGETS if t not in targets] if session.compiler == "engine" else [],
        "peaks": {t: roofline.device_peak(t) for t in targets},
        "is_observed": session.compiler == "torch",
        "is_run": session.device.startswith(("cuda", "hip")),
        "aten_reason": " ".join(dict.fromkeys(sanitize(r) for c in compiled if (r := c.cpu_program.reason))),
        "later_calls": _later_calls([r for c in compiled if (r := c.cpu_program.later_calls)]),
        "rows": [
            _kernel_row(session, c, k, frames.get(c.frame, ""), nodes)
            for c in shown
            for nodes in (nodes_by_id(c, (i for k in c.kernels for i in k.fused_nodes)),)
            for k in unique_kernels(c)
        ],
        "externs": [
            {
                "compilation": c.id,
                "is_cpu": c.lowering is not None and c.lowering.target == CPU,
                "op": one_line(operator_name(e.op, nodes.get(e.node)), 60),
                "reason": sanitize(e.reason),
                "hint": sanitize(advice(session, e.hint)),
                "is_library": e.is_library,
                "text": sanitize(e.text),
            }
            for c in shown
            for calls in (aten_calls_of(c),)
            for nodes in (nodes_by_id(c, [e.node for e in calls]),)
            for e in calls
        ],
        "decisions": [_decision_data(c, d) for c in shown for lowering in _lowerings_of(c) for d in lowering.decisions],
    }


def _later_calls(reasons: list[str]) -> str:
    """Return why later calls run in ATen: the first reason, and how many others do."""
    others = f" The same holds for {pluralize(len(reasons) - 1, 'other compilation')}." if len(reasons) > 1 else ""
    return sanitize(reasons[0]) + others if reasons else ""


def _lowerings_of(compilation: CompilationRecord) -> list[LoweringRecord]:
    return [lowering for lowering in (compilation.lowering, compilation.backward_lowering) if lowering is not None]


def _kernel_row(
    session: Session, compilation: CompilationRecord, kernel: KernelRecord, name: str, nodes: dict[str, NodeRecord]
) -> dict[str, Any]:
    numbers = source_lines.ordinals(session, compilation) if nodes else source_lines.LineOrdinals()
    files = {f.id for f in session.files}
    used = [source_lines.node_spans(nodes[i], files).span for i in kernel.fused_nodes if i in nodes]
    verify = kernel.verify
    return {
        "compilation": compilation.id,
        "is_cpu": kernel.language == "llvm",
        "frame": one_line(name, 60),
        "kernel": kernel.id,
        "name": one_line(kernel.name, 60),
        "nodes": [one_line(i.rpartition(":")[2], 40) for i in kernel.fused_nodes],
        "origins": ""
        if kernel.fused_nodes or session.compiler != "torch"
        else "Inductor records the nodes of a kernel only if INDUCTOR_PROVENANCE=1 is set before compiling.",
        "ordinals": sorted({numbers.of(s) for s in used} - {0}),
        "grid": sanitize(kernel.grid),
        "warps": sanitize((kernel.launch_args or {}).get("num_warps", "")),
        "launches": len(kernel.launches) or sum(k.id == kernel.id for k in compilation.kernels),
        "bytes": format_bytes(kernel.bytes_moved),
        "flops": kernel.flops,
        "counts": _symbolic_counts(kernel),
        "launch": {
            one_line(k, 40): one_line(v, 60) for k, v in (kernel.launch_args or {}).items() if not k.endswith("_ptr")
        },
        "targets": {one_line(t.target, 40): _target_data(t, kernel) for t in kernel.targets},
        "estimates": {
            t: roofline.estimate(t, kernel.bytes_moved, kernel.flops)
            for t in targets_of(compilation) or [default_target(session, compilation)]
        },
        "measured": _measured_time(kernel),
        "launched": launches_of(session, compilation.id, kernel.id),
        "tuning": _tuning_data(kernel),
        "choices": autotune_choices(compilation, kernel),
        "check": one_line(verify.outcome, 40) if verify else "not checked",
        "check_note": one_line(
            verify.note or (f"largest difference {verify.max_error:.2g}" if verify.max_error is not None else ""), 200
        )
        if verify
        else "",
    }


def _symbolic_counts(kernel: KernelRecord) -> str:
    """Return a sentence on bytes and FLOP with symbolic sizes; empty for static ones."""
    expressions = (("moves", kernel.bytes_expression, "B"), ("computes", kernel.flops_expression, "FLOP"))
    counts = [f"{verb} {expression} {unit}" for verb, expression, unit in expressions if expression]
    if not counts:
        return ""
    values = ", ".join(f"{symbol} = {value:,}" for symbol, value in (kernel.size_hints or {}).items())
    return sanitize(f"It {' and '.join(counts)}{f', counted here for {values}' if values else ''}.")


def autotune_choices(compilation: CompilationRecord, kernel: KernelRecord) -> list[dict[str, Any]]:
    """Return the autotuning choices of a kernel, with the reason and the measured candidates.

    Candidates are ordered by time, the fastest first.
    """
    nodes = set(kernel.fused_nodes)
    return [
        {
            "taken": one_line(c.chosen, 120),
            "reason": sanitize(c.reason),
            "ways": [
                f"{one_line(way, 120)}: {format_seconds(took) if took is not None else 'not measured'}"
                for way, took in sorted(c.candidates, key=lambda w: (w[1] is None, w[1] or 0.0))
            ],
        }
        for lowering in _lowerings_of(compilation)
        for c in lowering.autotune_choices
        if nodes and nodes.issuperset(c.nodes)
    ]


def _tuning_data(kernel: KernelRecord) -> dict[str, Any] | None:
    """Return the settings of a kernel that were tried by hand."""
    tuning = kernel.tuning
    if tuning is None:
        return None
    return {
        "device": one_line(tuning.device, 60),
        "controls": [
            {"name": one_line(c.name, 40), "values": list(c.values), "default": c.default} for c in tuning.controls
        ],
        "points": [
            {
                "values": _settings_data(p.values),
                "seconds": p.seconds,
                "registers": p.resources.registers if p.resources else None,
                "spills": p.resources.spills if p.resources else None,
                "occupancy": p.resources.occupancy if p.resources else None,
                "problem": one_line(p.problem, 300),
            }
            for p in tuning.points
        ],
        "chosen": _settings_data(tuning.chosen) if tuning.chosen else None,
    }


def _settings_data(values: dict[str, int]) -> dict[str, int]:
    return {one_line(name, 40): value for name, value in values.items()}


def _measured_time(kernel: KernelRecord) -> dict[str, Any] | None:
    """Return the measured time of a kernel on the present card.

    ``rate`` is in bytes per second; ``share`` is the part of the card's copy rate.
    """
    measured = kernel.measured
    if measured is None:
        return None
    rate = kernel.bytes_moved / measured.seconds if kernel.bytes_moved else None
    share = rate / measured.copy_rate if rate and measured.copy_rate else None
    return {
        "device": one_line(measured.device, 60),
        "seconds": measured.seconds,
        "rate": rate,
        "share": share,
        "copy": measured.copy_rate,
    }


def _target_data(target: TargetRecord, kernel: KernelRecord) -> dict[str, Any]:
    """Return the compile result of a kernel for one target."""
    resources = target.resources
    return {
        "error": one_line(target.error, 300),
        "configuration": one_line(target.smaller_blocks_note, 300),
        "registers": resources.registers if resources else None,
        "spills": resources.spills if resources else None,
        "shared": format_bytes(resources.shared_bytes) if resources else "",
        "occupancy": resources.occupancy if resources else None,
        "limit": one_line(resources.limit, 60) if resources else "",
        "seconds": target.seconds,
        "instructions": {x.stage: x.instructions for x in target.listings},
        "fill": roofline.grid_fill_text(target.target, kernel.grid),
        "reloads": resources.reloads if resources else None,
        "cpu": one_line(resources.cpu, 80) if resources else "",
        "vector": _vector_text(resources) if resources else "",
        "mix": dict(resources.instruction_mix or {}) if resources else {},
    }


def _vector_text(resources: KernelResources) -> str:
    """Return the elements of one instruction and its registers; empty for a GPU."""
    if resources.lanes is None:
        return ""
    return f"{resources.lanes} lanes, {resources.vector_bits}-bit" if (resources.lanes or 1) > 1 else "1 (no vectors)"


def _decision_data(compilation: CompilationRecord, decision: FusionDecision) -> dict[str, Any]:
    """Return a fusion decision with the kernels that it concerns.

    For a fusion this is the kernel that holds both sides, otherwise the kernels that hold either side.
    """
    both = {*decision.first, *decision.second}
    touches = both.issubset if decision.fused else (lambda nodes: not both.isdisjoint(nodes))
    return {
        "compilation": compilation.id,
        "kernels": list(dict.fromkeys(k.id for k in compilation.kernels if touches(k.fused_nodes))),
        "first": [one_line(i.rpartition(":")[2], 40) for i in decision.first],
        "second": [one_line(i.rpartition(":")[2], 40) for i in decision.second],
        "fused": decision.fused,
        "reason": sanitize(decision.reason),
        "saved": format_bytes(decision.bytes_saved),
    }
