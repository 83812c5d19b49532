"""Prints the Triton module of any kernel, the same for every target."""

from __future__ import annotations

from dataclasses import replace

from engine.ir.kernels.attention_kernel import AttentionLaunch
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.loop_ir.loop_kernel import LoopKernel
from engine.kernels.source_builder import match_lines
from engine.kernels.triton.attention_template import attention_source
from engine.kernels.triton.block_heuristics import looped_variant, smaller_configurations
from engine.kernels.triton.combined_printer import combined_source
from engine.kernels.triton.loop_printer import LoopPrinter
from engine.kernels.triton.matmul_template import MatmulPrinter

MAX_SPLIT_CONFIGS = 4
"""Most configurations of the looped variant that are tried."""


def print_triton(kernel: LoopKernel | AttentionLaunch, target: str) -> GeneratedKernel:
    """Print the Triton module of a kernel. The text is the same for every target.

    It uses only features that all targets have. A long persistent row also gets a looped variant of the text, for
    targets with too few registers.
    """
    if isinstance(kernel, AttentionLaunch):
        return attention_source(kernel)
    if kernel.companions:
        return combined_source(kernel)
    if kernel.matmul is not None:
        return MatmulPrinter(kernel, kernel.matmul).source()
    printer = LoopPrinter(kernel)
    source, cut = printer.source(), looped_variant(printer.block)
    if cut is None:
        return source
    other = LoopPrinter(kernel, cut).source()
    if [(a.name, a.kind, a.buffer) for a in other.args] != [(a.name, a.kind, a.buffer) for a in source.args]:
        return source
    lines = match_lines(other.line_ops, source.line_ops)
    ways = tuple(
        replace(way, text=other.text, line_map=lines) for way in smaller_configurations(cut)[:MAX_SPLIT_CONFIGS]
    )
    return replace(source, fallback_configs=(*ways, *source.fallback_configs))
