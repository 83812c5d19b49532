"""Prints one Triton kernel for equal computations on many tensors.

Each program computes a block of one of the tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from engine.ir.kernels.generated_kernel import GeneratedKernel, KernelArg
from engine.ir.loop_ir.index_expr import Size, as_size
from engine.ir.loop_ir.loop_kernel import LoopKernel
from engine.ir.loop_ir.ops import X
from engine.ir.static_sizes import static_size
from engine.kernels.source_builder import SourceLine
from engine.kernels.triton.block_heuristics import block_count, default_blocking, smaller_configurations
from engine.kernels.triton.loop_blocks import LoopBlocks
from engine.kernels.triton.loop_printer import LoopPrinter
from engine.records.kernels import LoopOp

ONE_TENSOR = "one_tensor"
"""Name of the function that computes a block of one of the tensors."""


class _OneTensorBlocks(LoopBlocks):
    """Blocks of one tensor: its number of elements and the number of the block are parameters."""

    def index_lines(self, *, uses_x: bool) -> list[str]:
        """Return the line that computes the indices of this program's block."""
        return ["at = block * BLOCK + tl.arange(0, BLOCK)"] if uses_x else []

    def loop_size_text(self, loop: str) -> str:
        """Return the parameter that holds the number of elements."""
        return "numel"


class _OneTensorPrinter(LoopPrinter):
    """Prints the function that computes a block of one tensor."""

    def make_blocks(self) -> LoopBlocks:
        """Return the mapping of a tensor's elements to blocks."""
        self.parameters.used_names |= {"block", "numel", ONE_TENSOR}
        blocks = _OneTensorBlocks(self.kernel, self.block, self.parameters)
        blocks.masked_loops = {X}
        return blocks


def combined_source(kernel: LoopKernel) -> GeneratedKernel:
    """Print a kernel and its companions: each program computes one of all their blocks.

    The idea is that of multi-tensor-apply in NVIDIA's apex and of Inductor's foreach kernels.
    """
    members = (kernel, *kernel.companions)
    largest = max(members, key=_numel)
    block = largest.block_config or default_blocking(largest)
    printer = _OneTensorPrinter(kernel, block)
    printer.parameters.name_pointers(printer.kernel, printer.live_ops)
    printer.print_body()
    sizes = printer.parameters.size_args()
    own = (*printer.parameters.pointer_args, *(a for a in sizes if a.is_fraction))
    shared = (*(a for a in sizes if not a.is_fraction), *printer.blocks.block_args())
    of_members = [_args_of_member(member, kernel, own, number) for number, member in enumerate(members)]
    args = (*sorted((a for row in of_members for a in row), key=lambda a: (a.is_fraction, a.is_written)), *shared)
    passed = [a.name for a in shared]
    lines = [
        *map(SourceLine, printer.head()),
        *map(SourceLine, ("@triton.jit", _signature(ONE_TENSOR, (*own, *shared), ("block", "numel")))),
        *printer.lines,
        *map(SourceLine, ("", "", "@triton.jit", _signature(kernel.name, args))),
        SourceLine("    program, end = tl.program_id(0), 0"),
    ]
    for member, row in zip(members, of_members, strict=True):
        call = f"{ONE_TENSOR}({', '.join(['program - first', str(_numel(member)), *(a.name for a in row), *passed])})"
        lines.append(SourceLine(f"    first, end = end, end + tl.cdiv({_numel(member)}, BLOCK)"))
        lines.append(SourceLine("    if (program >= first) & (program < end):"))
        lines.append(SourceLine(f"        {call}"))
    prefix, values = kernel.prefix, {a.buffer: a.name.removesuffix("_ptr") for a in printer.parameters.pointer_args}
    return GeneratedKernel(
        id=kernel.id,
        name=kernel.name,
        text="\n".join(line.text for line in lines) + "\n",
        args=args,
        grid=(sum(static_size(block_count(_numel(m), block.x_block)) or 0 for m in members),),
        line_ops=tuple(tuple(f"{prefix}:{n}" for n in sorted(set(line.ops))) for line in lines),
        ops=tuple(
            LoopOp(
                f"{prefix}:{op.number}",
                op.to_text(values),
                _unique_ids(member.ops[op.number].node_ids for member in members),
            )
            for op in printer.live_ops
        ),
        nodes=_unique_ids(member.nodes for member in members),
        num_warps=block.num_warps,
        bytes_moved=_total([member.bytes_moved for member in members]),
        flops=_total([member.flops for member in members]),
        fallback_configs=smaller_configurations(block),
    )


def _numel(kernel: LoopKernel) -> int:
    numel, _ = kernel.static_sizes
    assert numel is not None, "tensors of one launch have known sizes"
    return numel


def _args_of_member(member: LoopKernel, printed: LoopKernel, own: Sequence[KernelArg], number: int) -> list[KernelArg]:
    """Return the pointers and fractions of one kernel, in the order of the printed one's."""
    return [replace(a, name=_numbered(a.name, number)) for a in member.args_like(printed, own)]


def _numbered(name: str, number: int) -> str:
    label, pointer = name.removesuffix("_ptr"), "_ptr" * name.endswith("_ptr")
    return f"{label}_{number}{pointer}"


def _signature(name: str, args: Sequence[KernelArg], more: tuple[str, ...] = ()) -> str:
    parameters = [f"{a.name}: tl.constexpr" if a.kind == "constexpr" else a.name for a in args]
    return f"def {name}({', '.join([*more, *parameters])}):"


def _unique_ids(ids: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(ids)))


def _total(counts: Sequence[Size | None]) -> Size | None:
    present = [count for count in counts if count is not None]
    return as_size(sum(present)) if len(present) == len(counts) else None
