"""A kernel as it is shown."""

from __future__ import annotations

from collections.abc import Sequence

from engine.ir.kernel import KernelSource
from engine.records.kernels import KernelRecord, TargetRecord, VerifyRecord


def kernel_record(
    source: KernelSource, targets: Sequence[TargetRecord] = (), verify: VerifyRecord | None = None
) -> KernelRecord:
    """The record of one kernel. Symbolic sizes are told as their expressions."""
    launch = {a.name: a.buffer if a.kind == "pointer" else str(a.value) for a in source.args}
    return KernelRecord(
        id=source.id,
        name=source.name,
        text=source.text,
        line_ops=source.line_ops,
        ops=source.ops,
        grid=f"({', '.join(str(size) for size in source.grid)})",
        launch={**launch, "num_warps": str(source.num_warps), "num_stages": str(source.num_stages)},
        bytes_moved=source.bytes_moved,
        flops=source.flops,
        fused_nodes=source.nodes,
        targets=tuple(targets),
        verify=verify,
    )
