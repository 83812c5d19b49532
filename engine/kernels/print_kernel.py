"""Prints a kernel for its target: Triton for GPUs, LLVM IR for this machine's CPU."""

from __future__ import annotations

from typing import cast

from engine.errors import KernelBuildError
from engine.ir.kernels.attention_kernel import AttentionLaunch
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.kernels.llvm_machine import host_unit
from engine.ir.kernels.lowered_program import CPU_TARGET
from engine.ir.loop_ir.loop_kernel import LoopKernel
from engine.kernels import dependences
from engine.kernels.cpu.llvm_types import NotPrintable
from engine.kernels.cpu.loop_plan import make_plan
from engine.kernels.cpu.printer import print_llvm
from engine.kernels.kernel_parameters import KernelParameters
from engine.kernels.triton.printer import print_triton


def print_kernel(kernel: LoopKernel | AttentionLaunch, target: str) -> GeneratedKernel:
    """Print the text of a kernel for a target.

    Raises:
        KernelBuildError: the target's printer has no code for an op of the kernel.
    """
    if target != CPU_TARGET:
        return print_triton(kernel, target)
    loops = cast(LoopKernel, kernel)
    try:
        return print_llvm(loops, host_unit())
    except NotPrintable as error:
        nodes = tuple(node for node in loops.nodes if node in error.nodes)
        raise KernelBuildError(loops.name, error, nodes or loops.nodes) from error


def outline_kernel(kernel: LoopKernel | AttentionLaunch, target: str) -> GeneratedKernel:
    """Return a kernel for the CPU without its text: its nodes, its pointers and what it costs."""
    loops = cast(LoopKernel, kernel)
    live_ops = dependences.live_ops(loops.ops, keeps_checks=True)
    parameters = KernelParameters(loops)
    parameters.name_pointers(loops, live_ops)
    return GeneratedKernel(
        id=loops.id,
        name=parameters.kernel_name,
        text="",
        args=parameters.pointer_args,
        grid=(),
        line_ops=(),
        ops=(),
        nodes=loops.nodes,
        bytes_moved=loops.bytes_moved,
        flops=loops.flops,
        loads_tiles=len(loops.nodes) == 1 and make_plan(loops, live_ops, host_unit()).tile_var is not None,
    )
