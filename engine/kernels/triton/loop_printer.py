"""Prints a loop kernel as readable Triton, and records the ops of each line."""

from __future__ import annotations

import json

from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.loop_ir.loop_kernel import BlockConfig, LoopKernel
from engine.ir.loop_ir.ops import WRITE_OPS, LoopIROp, R, X
from engine.kernels import dependences
from engine.kernels.kernel_parameters import KernelParameters
from engine.kernels.online_reductions import match_online_softmax, match_welford
from engine.kernels.source_builder import Expression, SourceLine, name_from_label
from engine.kernels.triton.block_heuristics import default_blocking, loop_stages, smaller_configurations
from engine.kernels.triton.jit_helpers import JIT_HELPERS
from engine.kernels.triton.loop_blocks import LoopBlocks
from engine.kernels.triton.looped_reduction import ReductionLoop
from engine.kernels.triton.op_codegen import constant_text
from engine.kernels.triton.op_expressions import OpExpressions
from engine.records.kernels import LoopOp

MAX_INLINE_LENGTH = 56
"""Longest expression, in characters, that is inlined into its only use."""
_VALUE_LABELS = {"index": "place", "where": "chosen", "lt": "below", "ge": "from_here", "and": "inside"}
"""Names of values whose op says too little."""


class LoopPrinter:
    """Prints one kernel. Values that vary along the inner loop are inside it, others outside."""

    def __init__(self, kernel: LoopKernel, block: BlockConfig | None = None) -> None:
        self.kernel = kernel
        self.block = block or kernel.block_config or default_blocking(kernel)
        self.live_ops = dependences.live_ops(kernel.ops)
        self.parameters = KernelParameters(kernel)
        self.blocks = self.make_blocks()
        self.expressions = OpExpressions(kernel, self.blocks, self.parameters, self.live_ops)
        self.lines: list[SourceLine] = []
        self.indent = "    "
        self.value_names: dict[int, str] = {}
        self.streams_stores = False
        self.users = dependences.users_of(self.live_ops)
        self.online_softmax = match_online_softmax(self.live_ops) if self.block.is_looped else {}
        self.welford = match_welford(self.live_ops) if self.block.is_looped else {}
        self.loop_levels = dependences.loop_levels(kernel.ops, {*self.online_softmax, *self.welford})

    def make_blocks(self) -> LoopBlocks:
        """Return the mapping of loops to blocks."""
        return LoopBlocks(self.kernel, self.block, self.parameters)

    def source(self) -> GeneratedKernel:
        """Print the kernel and return all data about it."""
        kernel, parameters = self.kernel, self.parameters
        parameters.name_pointers(kernel, self.live_ops)
        self.print_body()
        args = (*parameters.pointer_args, *parameters.size_args(), *self.blocks.block_args())
        signature = ", ".join(f"{a.name}: tl.constexpr" if a.kind == "constexpr" else a.name for a in args)
        head = [*self.head(), "@triton.jit", f"def {parameters.kernel_name}({signature}):"]
        lines = [*map(SourceLine, head), *self.lines]
        values = {buffer: pointer.removesuffix("_ptr") for buffer, pointer in parameters.pointers.items()}
        return GeneratedKernel(
            id=kernel.id,
            name=parameters.kernel_name,
            text="\n".join(line.text for line in lines) + "\n",
            args=args,
            grid=self.blocks.grid(),
            line_ops=tuple(tuple(f"{kernel.prefix}:{n}" for n in sorted(set(line.ops))) for line in lines),
            ops=tuple(
                LoopOp(f"{kernel.prefix}:{op.number}", op.to_text(values), tuple(op.node_ids)) for op in self.live_ops
            ),
            nodes=kernel.nodes,
            num_warps=self.block.num_warps,
            num_stages=loop_stages(self.block),
            bytes_moved=kernel.bytes_moved,
            flops=kernel.flops,
            fallback_configs=smaller_configurations(self.block),
        )

    def head(self) -> list[str]:
        """Return the lines before the kernel: imports and helpers."""
        head = ["import triton", "import triton.language as tl"]
        if self.expressions.uses_libdevice:
            head.append("from triton.language.extra import libdevice")
        helpers = [line for name in self.expressions.helpers for line in JIT_HELPERS[name].rstrip("\n").split("\n")]
        return [*head, "", *helpers, *([""] if helpers else []), ""]

    def add_line(self, text: str, ops: tuple[int, ...] = ()) -> None:
        """Print a line."""
        self.lines.append(SourceLine(self.indent + text, list(ops)))

    def print_body(self) -> None:
        """Print the lines of the function."""
        for line in self.blocks.index_lines(uses_x=any(X in op.loops for op in self.live_ops)):
            self.add_line(line)
        self.blocks.loop_size_text(X)
        if self.kernel.r is None or not self.block.is_looped:
            for op in self.live_ops:
                self.print_op(op)
            return
        runs = [ReductionLoop(self, level) for level in range(max(self.loop_levels.values(), default=0) + 1)]
        for level, run in enumerate(runs):
            for op in self.live_ops:
                if R not in op.loops and self.loop_levels[op.number] == level and op.name != "reduce":
                    self.print_op(op)
            before, after = runs[:level], runs[level + 1 :]
            run.print_loop(set().union(*(r.needed_ops for r in before)), set().union(*(r.needed_ops for r in after)))

    def print_op(self, op: LoopIROp) -> None:
        """Print the line of an op, unless it is inlined into its use."""
        if op.name in WRITE_OPS:
            self._print_store(op)
        elif op.name == "check":
            self._print_bounds_check(op)
        else:
            expression = self.expressions.make(op)
            if self.is_inlined(op, expression):
                self.expressions.known[op.number] = expression
            else:
                self.assign_value(op, expression)

    def is_inlined(self, op: LoopIROp, expression: Expression) -> bool:
        """Return True if an expression stands in its only use instead of having a name."""
        if op.name == "constant":
            return True
        if op.name in ("reduce", "scan"):
            return False
        users = self.users.get(op.number, [])
        if op.name == "load":
            return len(users) == 1 and users[0].name == "to" and op.number not in self._index_and_mask_ops
        if op.name == "index" and (len(expression.text) <= 12 or len(users) == 1):
            return True
        if len(users) != 1 or op.number in self._index_and_mask_ops or len(expression.text) > MAX_INLINE_LENGTH:
            return False
        return not op.label and users[0].name not in ("reduce", "scan")

    @property
    def _index_and_mask_ops(self) -> set[int]:
        return {n for op in self.live_ops if op.index is not None for n in op.index.indirect_ops()} | {
            op.mask.number for op in self.live_ops if op.mask is not None
        }

    def assign_value(self, op: LoopIROp, expression: Expression) -> None:
        """Assign the value of an op to a new name."""
        name = self.value_names.get(op.number)
        if name is None:
            name = self.value_names[op.number] = self.parameters.unique_name(name_from_label(_value_label(op)))
        self.add_line(f"{name} = {expression.text}", expression.ops)
        self.expressions.known[op.number] = Expression(name, True, ())

    def _print_bounds_check(self, op: LoopIROp) -> None:
        """Print a device assertion that an index is in bounds; its message names the user line."""
        assert op.index is not None
        value, masked = self.expressions.of(op.args[0]), (op.mask.number,) if op.mask is not None else ()
        at, limit = f"{op.value}: " if op.value else "", op.index.text(self.expressions.names)
        inside = f"({value.parenthesized} >= 0) & ({value.parenthesized} < {limit})"
        message, mask = json.dumps(f"{at}index out of bounds"), self.expressions.mask_text(op, op.loops)
        self.add_line(f"tl.device_assert({inside}, {message}{mask})", (*value.ops, op.number, *masked))

    def _print_store(self, op: LoopIROp) -> None:
        value = self.expressions.of(op.args[0])
        if op.args[0].name == "constant":
            value = Expression(constant_text(op.args[0].value, op.args[0].dtype), True, value.ops)
        masked = () if op.mask is None else (op.mask.number,)
        streamed = ', cache_modifier=".cs"' if self.streams_stores else ""
        order = ', sem="relaxed"' if op.name == "atomic_add" else streamed
        pointer, mask = self.expressions.pointer_text(op), self.expressions.mask_text(op, op.loops)
        self.add_line(f"tl.{op.name}({pointer}, {value.text}{mask}{order})", (*value.ops, op.number, *masked))


def _value_label(op: LoopIROp) -> str:
    if op.label:
        return op.label
    if op.name == "to" and op.args[0].name == "load":
        return op.args[0].label
    return _VALUE_LABELS.get(op.name, op.name)
