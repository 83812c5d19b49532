"""Conversion of kernels to records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.group_pairs import group_pairs
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.loop_ir.index_expr import Size, concrete_size, symbols_of
from engine.kernels.cpu.line_ops import complete_line_ops
from engine.records.kernels import KernelRecord, LaunchRecord, LoopOp, TargetRecord


def kernel_record(
    source: GeneratedKernel,
    targets: Sequence[TargetRecord] = (),
    launches: Sequence[GeneratedKernel] = (),
    language: str = "triton",
    hints: Mapping[str, int] | None = None,
) -> KernelRecord:
    """Return the record of one kernel; symbolic sizes become their expressions.

    ``hints`` are the values of symbols that bytes and FLOPs are counted for.

    ``launches`` are all launches of the kernel, which differ in their buffers and in the nodes of their ops. Without
    them, ``source`` is the only launch.
    """
    launches = launches or (source,)
    launch = {a.name: a.buffer if a.kind == "pointer" else str(a.value) for a in source.args}
    return KernelRecord(
        id=source.id,
        name=source.name,
        text=source.text,
        line_ops=complete_line_ops(source.text, source.line_ops) if language == "llvm" else source.line_ops,
        ops=_merge_op_origins(launches),
        grid=f"({', '.join(str(size) for size in source.grid[: 1 if language == 'llvm' else 3])})",
        launch_args=launch if language == "llvm" else launch | _launch_configuration(source),
        **_counts(source, hints or {}),
        fused_nodes=tuple(dict.fromkeys(n for launched in launches for n in launched.nodes)),
        targets=tuple(targets),
        language=language,
        launches=tuple(
            LaunchRecord({a.name: a.buffer for a in launched.args if a.kind == "pointer"}, launched.nodes)
            for launched in launches
        ),
    )


def _launch_configuration(source: GeneratedKernel) -> dict[str, str]:
    return {"num_warps": str(source.num_warps), "num_stages": str(source.num_stages)}


def _counts(source: GeneratedKernel, hints: Mapping[str, int]) -> dict[str, Any]:
    """Return the fields of bytes and FLOPs: numbers, and expressions where sizes are symbolic."""
    moved, flops = source.bytes_moved, source.flops
    counts = {"bytes_moved": _count(moved, hints), "flops": _count(flops, hints)}
    symbols = symbols_of((moved, flops))
    if not symbols:
        return counts
    texts = {f"{n}_expression": "" if size is None else str(size) for n, size in (("bytes", moved), ("flops", flops))}
    return counts | texts | {"size_hints": {s: hints[s] for s in sorted(symbols) if s in hints}}


def _count(size: Size | None, hints: Mapping[str, int]) -> int | None:
    """Return a count at the size hints; None if it is unknown."""
    return None if size is None or symbols_of((size,)) - hints.keys() else concrete_size(size, hints.__getitem__)


def kernel_records(
    launched: Iterable[GeneratedKernel], language: str = "triton", hints: Mapping[str, int] | None = None
) -> tuple[KernelRecord, ...]:
    """Return a record of each distinct kernel, in the order of their first launches."""
    by_id = group_pairs((source.id, source) for source in launched)
    return tuple(
        kernel_record(launches[0], launches=launches, language=language, hints=hints) for launches in by_id.values()
    )


def _merge_op_origins(launches: Sequence[GeneratedKernel]) -> tuple[LoopOp, ...]:
    """Merge the ops of all launches; each op lists its nodes in any launch."""
    if len(launches) == 1:
        return launches[0].ops
    return tuple(
        LoopOp(same[0].id, same[0].text, tuple(dict.fromkeys(o for op in same for o in op.origins)))
        for same in zip(*(launched.ops for launched in launches), strict=True)
    )
