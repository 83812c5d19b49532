"""Prints a loop kernel as readable Triton, and records the ops behind each line."""

from __future__ import annotations

import json
import keyword
import re
from dataclasses import replace

import sympy
import torch

from engine.ir.kernels.attention_kernel import AttentionLaunch
from engine.ir.kernels.generated_kernel import GeneratedKernel, KernelArg
from engine.ir.loop_ir.index_expr import IndexExpr, LoopVar, Size, index_text
from engine.ir.loop_ir.loop_kernel import BlockConfig, LoopKernel
from engine.ir.loop_ir.ops import WRITE_OPS, LoopIROp, R, X
from engine.kernels import dependences
from engine.kernels.online_reductions import match_online_softmax, match_welford
from engine.kernels.source_builder import Expression, SourceLine, match_lines, name_from_label, to_identifier
from engine.kernels.triton.block_heuristics import (
    block_count,
    default_blocking,
    is_block_multiple,
    is_printable_size,
    loop_stages,
    looped_variant,
    smaller_configurations,
)
from engine.kernels.triton.jit_helpers import JIT_HELPERS, LIBDEVICE_HELPERS
from engine.kernels.triton.looped_reduction import ReductionLoop
from engine.kernels.triton.op_codegen import (
    SIGNATURE_DTYPES,
    TRITON_DTYPES,
    constant_text,
    needs_libdevice,
    needs_parentheses,
    operation_text,
)
from engine.records.lowering import LoopOp

MAX_SPLIT_CONFIGS = 4
"""Most configurations of the looped variant that are tried."""
MAX_INLINE_LENGTH = 56
"""Longest expression, in characters, that is inlined into its only use."""
RESERVED_NAMES = frozenset(
    (
        "tl",
        "triton",
        "row",
        "col",
        "at",
        "start",
        "cols",
        "rows",
        "ROWS",
        "COLS",
        "BLOCK",
        "float",
        "range",
        *JIT_HELPERS,
    )
)
REDUCTION_IDENTITIES = {"sum": "0", "prod": "1", "logaddexp": 'float("-inf")'}
SCAN_COMBINE_HELPERS = {
    "max": ("larger", "larger_or_nan"),
    "min": ("smaller", "smaller_or_nan"),
    "logaddexp": ("add_exponents", "add_exponents"),
}
"""Helpers that combine two parts of a scan: for integers, for floats."""
HALF_PRECISION_HELPERS = {"tanh": "tanh_of_half", "sigmoid": "sigmoid_of_half", "sin": "sine_of_half"}
"""Faster helpers for kernels that read only 16-bit floats."""


def print_triton(kernel: LoopKernel | AttentionLaunch, target: str) -> GeneratedKernel:
    """Print the Triton module of a kernel. The text is the same for every target.

    It uses only features that all targets have. A long persistent row also gets a looped variant of the text, for
    targets with too few registers.
    """
    if isinstance(kernel, AttentionLaunch):
        from engine.kernels.triton.attention_template import attention_source

        return attention_source(kernel)
    if kernel.matmul is not None:
        from engine.kernels.triton.matmul_template import MatmulPrinter

        return MatmulPrinter(kernel, kernel.matmul).source()
    printer = TritonPrinter(kernel)
    source, cut = printer.source(), looped_variant(printer.block)
    if cut is None:
        return source
    other = TritonPrinter(kernel, cut).source()
    if [(a.name, a.kind, a.buffer) for a in other.args] != [(a.name, a.kind, a.buffer) for a in source.args]:
        return source
    lines = match_lines(other.line_ops, source.line_ops)
    ways = tuple(
        replace(way, text=other.text, line_map=lines) for way in smaller_configurations(cut)[:MAX_SPLIT_CONFIGS]
    )
    return replace(source, fallback_configs=(*ways, *source.fallback_configs))


class TritonPrinter:
    """Prints one kernel. Values that vary along the inner loop are inside it, others outside."""

    def __init__(self, kernel: LoopKernel, block: BlockConfig | None = None) -> None:
        self.kernel = kernel
        self.block = block or kernel.block_config or default_blocking(kernel)
        self.lines: list[SourceLine] = []
        self.value_names: dict[int, str] = {}
        self.scan_carries: dict[int, str] = {}
        """Name of each scan's carry: the result before the current block of a long row."""
        self.used_names: set[str] = set(RESERVED_NAMES)
        self.expressions: dict[int, Expression] = {}
        self.helpers: dict[str, None] = {}
        self.uses_libdevice = False
        self.indent = "    "
        self.eviction_hints: dict[int, str] = {}
        self.streams_stores = False
        self.size_params: dict[Size, str] = {}
        self.float_params: dict[tuple[sympy.Expr, torch.dtype], str] = {}
        """Names of float parameters of the kernel."""
        self.live_ops = dependences.live_ops(kernel.ops)
        self.users = dependences.users_of(self.live_ops)
        self.online_softmax = match_online_softmax(self.live_ops) if self.block.is_looped else {}
        self.welford = match_welford(self.live_ops) if self.block.is_looped else {}
        self.loop_levels = dependences.loop_levels(kernel.ops, {*self.online_softmax, *self.welford})
        read = [op.dtype for op in self.live_ops if op.name == "load" and op.dtype.is_floating_point]
        self.reads_only_half = bool(read) and all(dtype in (torch.float16, torch.bfloat16) for dtype in read)
        pointwise = kernel.r is None
        self.x_name = "at" if pointwise else "row"
        # A symbolic size is one parameter; the launcher raises an error if it does not fit in 32 bits.
        self.x_masked = not isinstance(kernel.x.size, int) or not is_block_multiple(kernel.x.size, self.block.x_block)
        self.r_masked = kernel.r is not None and not is_block_multiple(kernel.r.size, self.block.r_block)
        self.name = to_identifier(kernel.name or "kernel")
        self.used_names.add(self.name)

    def source(self) -> GeneratedKernel:
        """Print the kernel and return all data about it."""
        pointers = self._pointer_args()
        self._print_body()
        args = (*pointers, *self._size_args(), *self._block_args())
        head = [SourceLine("import triton"), SourceLine("import triton.language as tl")]
        if self.uses_libdevice:
            head.append(SourceLine("from triton.language.extra import libdevice"))
        head.append(SourceLine(""))
        for helper in self.helpers:
            head += [SourceLine(text) for text in JIT_HELPERS[helper].rstrip("\n").split("\n")]
        if self.helpers:
            head.append(SourceLine(""))
        head += [SourceLine(""), SourceLine("@triton.jit"), SourceLine(self._signature(args))]
        lines = head + self.lines
        kernel = self.kernel
        values = {buffer: pointer.removesuffix("_ptr") for buffer, pointer in self.pointers.items()}
        return GeneratedKernel(
            id=kernel.id,
            name=self.name,
            text="\n".join(line.text for line in lines) + "\n",
            args=args,
            grid=self._grid(),
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

    def _grid(self) -> tuple[Size, ...]:
        kernel = self.kernel
        across = block_count(kernel.x.size, self.block.x_block)
        if kernel.r is None or not self.block.has_2d_grid:
            return (across,)
        return across, block_count(kernel.r.size, self.block.r_block)

    def _pointer_args(self) -> list[KernelArg]:
        written = {op.buffer for op in self.live_ops if op.name in WRITE_OPS}
        read = {op.buffer for op in self.live_ops if op.name == "load"}
        args: list[KernelArg] = []
        for name, buffer in self.kernel.buffers.items():
            if name in read or name in written:
                label = next(op.label for op in self.live_ops if op.buffer == name)
                pointer, kind = (
                    self._pointer_name(name_from_label(label), name in written),
                    f"*{SIGNATURE_DTYPES[buffer.dtype]}",
                )
                args.append(KernelArg(pointer, "pointer", kind, name, None, name in written))
        args.sort(key=lambda a: a.is_written)
        self.pointers = {a.buffer: a.name for a in args}
        return args

    def _pointer_name(self, label: str, is_written: bool) -> str:
        if is_written and f"{label}_ptr" in self.used_names:
            label = f"{label}_out"
        wanted, count = f"{label}_ptr", 1
        while wanted in self.used_names:
            wanted, count = f"{label}_{count}_ptr", count + 1
        return self.unique_name(wanted)

    def _size_args(self) -> list[KernelArg]:
        width = "i64" if self.kernel.uses_int64_index else "i32"
        sizes = [KernelArg(name, "size", width, value=size) for size, name in self.size_params.items()]
        numbers = [
            KernelArg(n, "size", SIGNATURE_DTYPES[dtype], value=v) for (v, dtype), n in self.float_params.items()
        ]
        return [*sizes, *numbers]

    def _block_args(self) -> list[KernelArg]:
        if self.block.r_block == 0:
            return [KernelArg("BLOCK", "constexpr", "constexpr", value=self.block.x_block)]
        rows = [KernelArg("ROWS", "constexpr", "constexpr", value=self.block.x_block)]
        return [
            *([] if self.block.is_one_row_per_program else rows),
            KernelArg("COLS", "constexpr", "constexpr", value=self.block.r_block),
        ]

    def _size_text(self, size: Size) -> str:
        """Format a size; symbols and expressions too complex for a kernel become parameters."""
        if isinstance(size, int):
            return str(size)
        if is_printable_size(size):
            symbols = [s for s in size.free_symbols if isinstance(s, sympy.Symbol)]
            return str(size.xreplace({s: sympy.Symbol(self._size_name(s, str(s))) for s in symbols}))
        return self._size_name(size, "size")

    def _size_name(self, size: Size, wanted: str) -> str:
        if size not in self.size_params:
            self.size_params[size] = self.unique_name(to_identifier(wanted))
        return self.size_params[size]

    def _float_param_name(self, op: LoopIROp) -> str:
        key = (op.value, op.dtype)
        if key not in self.float_params:
            self.float_params[key] = self.unique_name("number")
        return self.float_params[key]

    def _signature(self, args: tuple[KernelArg, ...]) -> str:
        parameters = [f"{a.name}: tl.constexpr" if a.kind == "constexpr" else a.name for a in args]
        return f"def {self.name}({', '.join(parameters)}):"

    def unique_name(self, wanted: str) -> str:
        """Return a name that is not used in the kernel yet."""
        name, count = wanted, 1
        while name in self.used_names or keyword.iskeyword(name):
            name, count = f"{wanted}_{count}", count + 1
        self.used_names.add(name)
        return name

    def add_line(self, text: str, ops: tuple[int, ...] = ()) -> None:
        """Print a line."""
        self.lines.append(SourceLine(self.indent + text, list(ops)))

    def _print_body(self) -> None:
        self._print_loop_variables()
        self.loop_size_text(X)
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

    def _print_loop_variables(self) -> None:
        wide = ".to(tl.int64)" if self.kernel.uses_int64_index else ""
        program = f"tl.program_id(0){wide}"
        uses_x = any(X in op.loops for op in self.live_ops)
        if self.block.r_block == 0:
            if uses_x:
                self.add_line(f"at = {program} * BLOCK + tl.arange(0, BLOCK)")
            return
        if uses_x:
            self.add_line(
                f"row = {program}"
                if self.block.is_one_row_per_program
                else f"row = {program} * ROWS + tl.arange(0, ROWS)[:, None]"
            )
        span = "tl.arange(0, COLS)" if self.block.is_one_row_per_program else "tl.arange(0, COLS)[None, :]"
        if self.block.has_2d_grid:
            span = f"tl.program_id(1){wide} * COLS + {span}"
        self.add_line(f"{'cols' if self.block.is_looped else 'col'} = {span}")

    def identity_text(self, op: LoopIROp) -> str:
        """Return the identity of a reduction as text."""
        if op.value in REDUCTION_IDENTITIES:
            return REDUCTION_IDENTITIES[op.value]
        if op.dtype.is_floating_point:
            return 'float("-inf")' if op.value == "max" else 'float("inf")'
        limits = torch.iinfo(op.dtype)
        return str(limits.min if op.value == "max" else limits.max)

    def masked_value(self, op: LoopIROp) -> Expression:
        """Return the reduced value of a block; out of bounds it is the identity of the reduction."""
        value = self.expression_of(op.args[0])
        text = value.text
        if R not in op.args[0].loops:
            zeros = f"tl.zeros({self.block_shape_text(op.args[0].loops | {R})}, {TRITON_DTYPES[op.dtype]})"
            value = Expression(f"{value.parenthesized} + {zeros}", False, value.ops)
            text = value.text
        if not self.r_masked:
            return value
        return Expression(f"tl.where({self.bounds_test(R)}, {text}, {self.identity_text(op)})", True, value.ops)

    def block_shape_text(self, space: frozenset[str] | set[str]) -> str:
        """Return the shape of a block of values that vary along these loops."""
        if self.block.r_block == 0:
            return "(BLOCK,)"
        if self.block.is_one_row_per_program:
            return "(COLS,)"
        return f"({'ROWS' if X in space else '1'}, {'COLS' if R in space else '1'})"

    def reduction_text(self, op: LoopIROp, value: str) -> str:
        """Return the text that reduces a block to one value per row."""
        axis = "0" if self.block.is_one_row_per_program else "1, keep_dims=True"
        if op.value == "prod":
            self.helpers["multiply"] = None
            axis = "0, multiply" if self.block.is_one_row_per_program else "1, multiply, keep_dims=True"
            return f"tl.reduce({value}, {axis})"
        text = f"tl.{op.value}({value}, {axis})"
        return f"{text}.to({TRITON_DTYPES[op.dtype]})" if op.dtype in (torch.int8, torch.int16, torch.uint8) else text

    def bounds_test(self, loop: str) -> str:
        """Return the test that a loop variable is below its size."""
        if loop == X:
            return f"{self.x_name} < {self.loop_size_text(X)}"
        return f"col < {self.loop_size_text(R)}"

    def loop_size_text(self, loop: str) -> str:
        """Return the size of a loop; a symbolic size is a parameter."""
        var = self.kernel.x if loop == X else self.kernel.r
        assert var is not None
        if isinstance(var.size, int):
            return str(var.size)
        return self._size_name(var.size, "width" if loop == R else "numel" if self.kernel.r is None else "height")

    def print_op(self, op: LoopIROp) -> None:
        """Print the line of an op, unless it is inlined into its use."""
        if op.name in WRITE_OPS:
            self._print_store(op)
            return
        if op.name == "check":
            self._print_bounds_check(op)
            return
        made = self._op_expression(op)
        if self._is_inlined(op, made):
            self.expressions[op.number] = made
            return
        self.assign_value(op, made)

    def _is_inlined(self, op: LoopIROp, made: Expression) -> bool:
        if op.name == "constant":
            return True
        if op.name in ("reduce", "scan"):
            return False
        users = self.users.get(op.number, [])
        if op.name == "load":
            return len(users) == 1 and users[0].name == "to" and op.number not in self._index_and_mask_ops
        if op.name == "index" and (len(made.text) <= 12 or len(users) == 1):
            return True
        if len(users) != 1 or op.number in self._index_and_mask_ops or len(made.text) > MAX_INLINE_LENGTH:
            return False
        return not op.label and users[0].name not in ("reduce", "scan")

    @property
    def _index_and_mask_ops(self) -> set[int]:
        return {n for op in self.live_ops if op.index is not None for n in op.index.indirect_ops()} | {
            op.mask.number for op in self.live_ops if op.mask is not None
        }

    def assign_value(self, op: LoopIROp, made: Expression) -> None:
        """Assign the value of an op to a new name."""
        name = self.value_names.get(op.number)
        if name is None:
            name = self.value_names[op.number] = self.unique_name(name_from_label(_value_label(op)))
        self.add_line(f"{name} = {made.text}", made.ops)
        self.expressions[op.number] = Expression(name, True, ())

    def expression_of(self, op: LoopIROp) -> Expression:
        """Return the expression that refers to a printed op."""
        return self.expressions[op.number]

    def _op_expression(self, op: LoopIROp) -> Expression:
        if op.name == "constant":
            return Expression(
                constant_text(op.value, op.dtype),
                not (isinstance(op.value, (int, float)) and op.value < 0),
                (op.number,),
            )
        if op.name == "number":
            return Expression(
                f"tl.full((), {self._float_param_name(op)}, {TRITON_DTYPES[op.dtype]})", True, (op.number,)
            )
        if op.name == "index":
            return self._index_expression(op)
        if op.name == "load":
            return self._load_expression(op)
        if op.name == "reduce":
            value = self.masked_value(op)
            return Expression(self.reduction_text(op, value.text), True, (*value.ops, op.number))
        if op.name == "scan":
            return self._scan_expression(op)
        if (helped := self._half_precision_expression(op)) is not None:
            return helped
        args = [self.expression_of(a) for a in op.args]
        if args and all(a.name == "constant" for a in op.args):
            args = [Expression(constant_text(a.value, a.dtype, typed=True), True, (a.number,)) for a in op.args]
        behind = (*(n for a in args for n in a.ops), op.number)
        if op.name in ("rand", "randint") and op.args[1].name == "constant":
            args[1] = Expression(constant_text(op.args[1].value, op.args[1].dtype, typed=True), True, args[1].ops)
        if (
            op.name == "where"
            and all(a.name == "constant" for a in op.args[1:])
            and op.dtype not in (torch.float32, torch.int32)
        ):
            args[1] = Expression(constant_text(op.args[1].value, op.dtype, typed=True), True, args[1].ops)
        if op.name == "to":
            return Expression(f"{args[0].parenthesized}.to({TRITON_DTYPES[op.dtype]})", True, behind)
        if op.name == "round" and isinstance(op.value, torch.dtype):
            return Expression(f"{args[0].parenthesized}.to({TRITON_DTYPES[op.value]}).to(tl.float32)", True, behind)
        if op.name == "bitcast":
            own, wanted = op.value
            narrow = (
                args[0].parenthesized
                if own == op.args[0].dtype
                else f"{args[0].parenthesized}.to({TRITON_DTYPES[own]})"
            )
            wide = "" if wanted == op.dtype else f".to({TRITON_DTYPES[op.dtype]})"
            return Expression(f"{narrow}.to({TRITON_DTYPES[wanted]}, bitcast=True){wide}", True, behind)
        if op.name in JIT_HELPERS:
            self.helpers[op.name] = None
        self.uses_libdevice |= needs_libdevice(op.name)
        infix = needs_parentheses(op.name)
        return Expression(
            operation_text(op.name, [a.parenthesized if infix else a.text for a in args], op.args[0].dtype),
            not infix,
            behind,
        )

    def _half_precision_expression(self, op: LoopIROp) -> Expression | None:
        """Return a faster expression if the kernel reads only 16-bit floats, else None.

        The error of the helper is far below 16-bit precision.
        """
        if not self.reads_only_half or op.dtype != torch.float32:
            return None
        name, value = HALF_PRECISION_HELPERS.get(op.name, ""), op.args[0] if op.args else op
        if op.name == "sin" and not self._is_block(op):
            name = ""
        elif op.name == "add" and value.name == "erf" and op.args[1].name == "constant" and op.args[1].value == 1.0:
            name, value = "one_plus_erf", value.args[0]
        if not name:
            return None
        self.helpers[name] = None
        self.uses_libdevice |= name in LIBDEVICE_HELPERS
        text = self.expression_of(value)
        return Expression(f"{name}({text.text})", True, (*text.ops, op.args[0].number, op.number))

    def _is_block(self, op: LoopIROp) -> bool:
        """Return True if a value is a block, which has a maximum element, and not a scalar."""
        return op.loops >= (
            {X} if self.block.r_block == 0 else {R} if self.block.is_one_row_per_program else set()
        ) and bool(op.loops)

    def _scan_expression(self, op: LoopIROp) -> Expression:
        value, axis = self.masked_value(op), "0" if self.block.is_one_row_per_program else "1"
        before, behind = self.scan_carries.get(op.number), (*value.ops, op.number)
        if op.value not in SCAN_COMBINE_HELPERS:
            text = f"tl.cum{op.value}({value.text}, {axis})"
            if before is None:
                return Expression(text, True, behind)
            return Expression(f"{before} {'+' if op.value == 'sum' else '*'} {text}", False, behind)
        combine = SCAN_COMBINE_HELPERS[op.value][op.dtype.is_floating_point]
        self.helpers[combine] = None
        text = f"tl.associative_scan({value.text}, {axis}, {combine})"
        return Expression(text if before is None else f"{combine}({before}, {text})", True, behind)

    def _index_expression(self, op: LoopIROp) -> Expression:
        assert op.index is not None
        text = self._index_text(op.index)
        is_one_term = len(op.index.terms) == 1 and op.index.const == 0 and next(iter(op.index.terms.values())) == 1
        return Expression(text, is_one_term or text.isalnum(), (op.number,))

    def _index_text(self, index: IndexExpr) -> str:
        return index_text(
            index,
            lambda number: self.expression_of(self.kernel.ops[number]).parenthesized,
            self._loop_variable_name,
            self._size_text,
        )

    def _loop_variable_name(self, var: LoopVar) -> str:
        return self.x_name if var is self.kernel.x or var == self.kernel.x else "col"

    def _pointer_text(self, op: LoopIROp) -> str:
        """Return the pointer of a load or store, broadcast to the shape of its mask."""
        assert op.index is not None
        pointer = self.pointers[op.buffer]
        index = self._index_text(op.index)
        text = pointer if index == "0" else f"{pointer} + {index}"
        space = self.loops_of_index(op.index)
        for number in op.index.indirect_ops():
            space |= self.kernel.ops[number].loops
        is_scattered = op.name == "atomic_add" or (op.name == "store" and op.mask is not None)
        wanted = op.loops if op.name == "load" or is_scattered else space
        varies = wanted & {R} if self.block.is_one_row_per_program else wanted  # The row index is a scalar.
        if varies - space:
            text = f"{text} + tl.zeros({self.block_shape_text(wanted)}, tl.int32)"
        return text

    def loops_of_index(self, index: IndexExpr) -> set[str]:
        """Return the loops along which an index varies; indirect parts do not count."""
        return {X if v == self.kernel.x else R for v in index.variables()}

    def _mask_text(self, op: LoopIROp, space: frozenset[str]) -> str:
        parts = []
        if self.x_masked and X in space:
            parts.append(self.bounds_test(X))
        if self.r_masked and R in space:
            parts.append(self.bounds_test(R))
        if op.mask is not None:
            parts.append(self.expression_of(op.mask).text)
        if not parts:
            return ""
        return ", mask=" + (
            parts[0] if len(parts) == 1 else " & ".join(p if re.fullmatch(r"\w+", p) else f"({p})" for p in parts)
        )

    def _load_expression(self, op: LoopIROp) -> Expression:
        masked = (op.mask.number,) if op.mask is not None else ()
        hint = self.eviction_hints.get(op.number, "")
        return Expression(
            f"tl.load({self._pointer_text(op)}{self._mask_text(op, op.loops)}{hint})", True, (op.number, *masked)
        )

    def _print_bounds_check(self, op: LoopIROp) -> None:
        """Print a device assertion that an index is in bounds; its message names the user line."""
        assert op.index is not None
        value, masked = self.expression_of(op.args[0]), (op.mask.number,) if op.mask is not None else ()
        at = f"{op.value}: " if op.value else ""
        inside = f"({value.parenthesized} >= 0) & ({value.parenthesized} < {self._index_text(op.index)})"
        message = json.dumps(f"{at}index out of bounds")
        self.add_line(
            f"tl.device_assert({inside}, {message}{self._mask_text(op, op.loops)})", (*value.ops, op.number, *masked)
        )

    def _print_store(self, op: LoopIROp) -> None:
        value = self.expression_of(op.args[0])
        if op.args[0].name == "constant":
            value = Expression(constant_text(op.args[0].value, op.args[0].dtype), True, value.ops)
        masked = () if op.mask is None else (op.mask.number,)
        order = (
            ', sem="relaxed"' if op.name == "atomic_add" else ', cache_modifier=".cs"' if self.streams_stores else ""
        )
        self.add_line(
            f"tl.{op.name}({self._pointer_text(op)}, {value.text}{self._mask_text(op, op.loops)}{order})",
            (*value.ops, op.number, *masked),
        )


def _value_label(op: LoopIROp) -> str:
    if op.label:
        return op.label
    if op.name == "to" and op.args[0].name == "load":
        return op.args[0].label
    return {"index": "place", "where": "chosen", "lt": "below", "ge": "from_here", "and": "inside"}.get(
        op.name, op.name
    )
