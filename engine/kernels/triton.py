"""Prints a kernel's loops as Triton that a person can read, and keeps which operations are behind each line."""

from __future__ import annotations

import json
import keyword
import re
from dataclasses import replace

import sympy
import torch

from engine.ir.attention import Attention
from engine.ir.index import Index, Size, Var, text_of
from engine.ir.kernel import KernelArg, KernelSource
from engine.ir.loops import WRITES, Blocking, LoopKernel, Op, R, X
from engine.kernels import needs
from engine.kernels.expressions import (
    HELPERS,
    HELPERS_WITH_LIBDEVICE,
    SIGNATURE,
    TYPES,
    constant_text,
    is_infix,
    needs_libdevice,
    operation_text,
)
from engine.kernels.indexing import blocking, blocks, in_parts, is_divisible, is_linear, smaller, stages
from engine.kernels.online import squares_with_sum, sums_with_largest
from engine.kernels.rows import Run
from engine.kernels.text import Line, Text, identifier, role, same_lines
from engine.records.lowering import LoopOp

PARTS = 4
"""Sizes of the parts of rows that are tried."""
LONGEST_INLINE = 56
"""Characters up to which a value that is used once is written where it is used."""
RESERVED = frozenset(
    ("tl", "triton", "row", "col", "at", "start", "cols", "rows", "ROWS", "COLS", "BLOCK", "float", "range", *HELPERS)
)
NEUTRAL = {"sum": "0", "prod": "1", "logaddexp": 'float("-inf")'}
COMBINES = {
    "max": ("larger", "larger_or_nan"),
    "min": ("smaller", "smaller_or_nan"),
    "logaddexp": ("add_exponents", "add_exponents"),
}
"""What puts two parts of a running result together: for whole numbers, for floats."""
HELPED = {"tanh": "tanh_of_half", "sigmoid": "sigmoid_of_half", "sin": "sine_of_half"}
"""Helpers that take an operation's place where everything that is read has 16 bits."""


def emit(kernel: LoopKernel | Attention, target: str) -> KernelSource:
    """The kernel's Triton module. The text is the same for every target: it uses only what all of them have.

    Long rows that are held whole come with a text that reads them part by part, for targets with too few registers.
    """
    if isinstance(kernel, Attention):
        from engine.kernels.attention import attention_source

        return attention_source(kernel)
    if kernel.product is not None:
        from engine.kernels.products import ProductPrinter

        return ProductPrinter(kernel, kernel.product).source()
    printer = Printer(kernel)
    source, cut = printer.source(), in_parts(printer.block)
    if cut is None:
        return source
    other = Printer(kernel, cut).source()
    if [(a.name, a.kind, a.buffer) for a in other.args] != [(a.name, a.kind, a.buffer) for a in source.args]:
        return source
    lines = same_lines(other.line_ops, source.line_ops)
    ways = tuple(replace(way, text=other.text, lines=lines) for way in smaller(cut)[:PARTS])
    return replace(source, smaller=(*ways, *source.smaller))


class Printer:
    """Prints one kernel. Values that vary along the inner loop live inside it; the others stand before or after."""

    def __init__(self, kernel: LoopKernel, block: Blocking | None = None) -> None:
        self.kernel = kernel
        self.block = block or kernel.block or blocking(kernel)
        self.lines: list[Line] = []
        self.names: dict[int, str] = {}
        self.carries: dict[int, str] = {}
        """By a running result's number, what a block of a long row runs on from."""
        self.taken: set[str] = set(RESERVED)
        self.texts: dict[int, Text] = {}
        self.helpers: dict[str, None] = {}
        self.uses_libdevice = False
        self.indent = "    "
        self.loads_kept: dict[int, str] = {}
        self.stores_pass = False
        self.sizes: dict[Size, str] = {}
        self.numbers: dict[tuple[sympy.Expr, torch.dtype], str] = {}
        """Names of the fractions that a kernel is given."""
        self.live = needs.live(kernel.ops)
        self.uses = needs.uses(self.live)
        self.online = sums_with_largest(self.live) if self.block.is_looped else {}
        self.welford = squares_with_sum(self.live) if self.block.is_looped else {}
        self.levels = needs.levels(kernel.ops, {*self.online, *self.welford})
        read = [op.dtype for op in self.live if op.name == "load" and op.dtype.is_floating_point]
        self.reads_half = bool(read) and all(dtype in (torch.float16, torch.bfloat16) for dtype in read)
        pointwise = kernel.r is None
        self.x_name = "at" if pointwise else "row"
        # A symbolic size is always passed as a whole: a launcher refuses one that does not fit in 32 bits.
        self.x_masked = not isinstance(kernel.x.size, int) or not is_divisible(kernel.x.size, self.block.x_block)
        self.r_masked = kernel.r is not None and not is_divisible(kernel.r.size, self.block.r_block)
        self.name = identifier(kernel.name or "kernel")
        self.taken.add(self.name)

    def source(self) -> KernelSource:
        """Everything about the kernel."""
        pointers = self._pointers()
        self._body()
        args = (*pointers, *self._size_args(), *self._block_args())
        head = [Line("import triton"), Line("import triton.language as tl")]
        if self.uses_libdevice:
            head.append(Line("from triton.language.extra import libdevice"))
        head.append(Line(""))
        for helper in self.helpers:
            head += [Line(text) for text in HELPERS[helper].rstrip("\n").split("\n")]
        if self.helpers:
            head.append(Line(""))
        head += [Line(""), Line("@triton.jit"), Line(self._signature(args))]
        lines = head + self.lines
        kernel = self.kernel
        values = {buffer: pointer.removesuffix("_ptr") for buffer, pointer in self.pointers.items()}
        return KernelSource(
            id=kernel.id,
            name=self.name,
            text="\n".join(line.text for line in lines) + "\n",
            args=args,
            grid=self._grid(),
            line_ops=tuple(tuple(f"{kernel.prefix}:{n}" for n in sorted(set(line.ops))) for line in lines),
            ops=tuple(LoopOp(f"{kernel.prefix}:{op.number}", op.told(values), tuple(op.origins)) for op in self.live),
            nodes=kernel.nodes,
            num_warps=self.block.num_warps,
            num_stages=stages(self.block),
            bytes_moved=kernel.bytes_moved,
            flops=kernel.flops,
            smaller=smaller(self.block),
        )

    def _grid(self) -> tuple[Size, ...]:
        kernel = self.kernel
        across = blocks(kernel.x.size, self.block.x_block)
        if kernel.r is None or not self.block.is_tiled:
            return (across,)
        return across, blocks(kernel.r.size, self.block.r_block)

    def _pointers(self) -> list[KernelArg]:
        written = {op.buffer for op in self.live if op.name in WRITES}
        read = {op.buffer for op in self.live if op.name == "load"}
        args: list[KernelArg] = []
        for name, buffer in self.kernel.buffers.items():
            if name in read or name in written:
                label = next(op.label for op in self.live if op.buffer == name)
                pointer, kind = self._pointer_name(role(label), name in written), f"*{SIGNATURE[buffer.dtype]}"
                args.append(KernelArg(pointer, "pointer", kind, name, None, name in written))
        args.sort(key=lambda a: a.written)
        self.pointers = {a.buffer: a.name for a in args}
        return args

    def _pointer_name(self, label: str, is_written: bool) -> str:
        if is_written and f"{label}_ptr" in self.taken:
            label = f"{label}_out"
        wanted, count = f"{label}_ptr", 1
        while wanted in self.taken:
            wanted, count = f"{label}_{count}_ptr", count + 1
        return self.unique(wanted)

    def _size_args(self) -> list[KernelArg]:
        width = "i64" if self.kernel.is_wide else "i32"
        sizes = [KernelArg(name, "size", width, value=size) for size, name in self.sizes.items()]
        numbers = [KernelArg(n, "size", SIGNATURE[dtype], value=v) for (v, dtype), n in self.numbers.items()]
        return [*sizes, *numbers]

    def _block_args(self) -> list[KernelArg]:
        if self.block.r_block == 0:
            return [KernelArg("BLOCK", "constexpr", "constexpr", value=self.block.x_block)]
        rows = [KernelArg("ROWS", "constexpr", "constexpr", value=self.block.x_block)]
        return [
            *([] if self.block.is_row else rows),
            KernelArg("COLS", "constexpr", "constexpr", value=self.block.r_block),
        ]

    def _size(self, size: Size) -> str:
        """A size as text; symbols, and expressions that a kernel had better not compute, become parameters."""
        if isinstance(size, int):
            return str(size)
        if is_linear(size):
            symbols = [s for s in size.free_symbols if isinstance(s, sympy.Symbol)]
            return str(size.xreplace({s: sympy.Symbol(self._size_name(s, str(s))) for s in symbols}))
        return self._size_name(size, "size")

    def _size_name(self, size: Size, wanted: str) -> str:
        if size not in self.sizes:
            self.sizes[size] = self.unique(identifier(wanted))
        return self.sizes[size]

    def _number_name(self, op: Op) -> str:
        key = (op.value, op.dtype)
        if key not in self.numbers:
            self.numbers[key] = self.unique("number")
        return self.numbers[key]

    def _signature(self, args: tuple[KernelArg, ...]) -> str:
        parameters = [f"{a.name}: tl.constexpr" if a.kind == "constexpr" else a.name for a in args]
        return f"def {self.name}({', '.join(parameters)}):"

    def unique(self, wanted: str) -> str:
        """A name that nothing in the kernel has yet."""
        name, count = wanted, 1
        while name in self.taken or keyword.iskeyword(name):
            name, count = f"{wanted}_{count}", count + 1
        self.taken.add(name)
        return name

    def add(self, text: str, ops: tuple[int, ...] = ()) -> None:
        """Print a line."""
        self.lines.append(Line(self.indent + text, list(ops)))

    def _body(self) -> None:
        self._loop_variables()
        self.extent(X)
        if self.kernel.r is None or not self.block.is_looped:
            for op in self.live:
                self.write(op)
            return
        runs = [Run(self, level) for level in range(max(self.levels.values(), default=0) + 1)]
        for level, run in enumerate(runs):
            for op in self.live:
                if R not in op.space and self.levels[op.number] == level and op.name != "reduce":
                    self.write(op)
            before, after = runs[:level], runs[level + 1 :]
            run.write(set().union(*(r.needed for r in before)), set().union(*(r.needed for r in after)))

    def _loop_variables(self) -> None:
        wide = ".to(tl.int64)" if self.kernel.is_wide else ""
        program = f"tl.program_id(0){wide}"
        uses_x = any(X in op.space for op in self.live)
        if self.block.r_block == 0:
            if uses_x:
                self.add(f"at = {program} * BLOCK + tl.arange(0, BLOCK)")
            return
        if uses_x:
            self.add(
                f"row = {program}" if self.block.is_row else f"row = {program} * ROWS + tl.arange(0, ROWS)[:, None]"
            )
        span = "tl.arange(0, COLS)" if self.block.is_row else "tl.arange(0, COLS)[None, :]"
        if self.block.is_tiled:
            span = f"tl.program_id(1){wide} * COLS + {span}"
        self.add(f"{'cols' if self.block.is_looped else 'col'} = {span}")

    def neutral(self, op: Op) -> str:
        """What a reduction ignores, as text."""
        if op.value in NEUTRAL:
            return NEUTRAL[op.value]
        if op.dtype.is_floating_point:
            return 'float("-inf")' if op.value == "max" else 'float("inf")'
        limits = torch.iinfo(op.dtype)
        return str(limits.min if op.value == "max" else limits.max)

    def masked_value(self, op: Op) -> Text:
        """The reduced value over the whole block, what lies beyond the row replaced by what the reduction ignores."""
        value = self.text_of(op.args[0])
        text = value.text
        if R not in op.args[0].space:
            zeros = f"tl.zeros({self.shape(op.args[0].space | {R})}, {TYPES[op.dtype]})"
            value = Text(f"{value.closed} + {zeros}", False, value.ops)
            text = value.text
        if not self.r_masked:
            return value
        return Text(f"tl.where({self.inside(R)}, {text}, {self.neutral(op)})", True, value.ops)

    def shape(self, space: frozenset[str] | set[str]) -> str:
        """The shape of a block of values that vary along these loops."""
        if self.block.r_block == 0:
            return "(BLOCK,)"
        if self.block.is_row:
            return "(COLS,)"
        return f"({'ROWS' if X in space else '1'}, {'COLS' if R in space else '1'})"

    def reduced(self, op: Op, value: str) -> str:
        """A block reduced to one value a row."""
        axis = "0" if self.block.is_row else "1, keep_dims=True"
        if op.value == "prod":
            self.helpers["multiply"] = None
            axis = "0, multiply" if self.block.is_row else "1, multiply, keep_dims=True"
            return f"tl.reduce({value}, {axis})"
        text = f"tl.{op.value}({value}, {axis})"
        return f"{text}.to({TYPES[op.dtype]})" if op.dtype in (torch.int8, torch.int16, torch.uint8) else text

    def inside(self, loop: str) -> str:
        """The test that a loop's variable is below its size."""
        if loop == X:
            return f"{self.x_name} < {self.extent(X)}"
        return f"col < {self.extent(R)}"

    def extent(self, loop: str) -> str:
        """The size of a loop; a symbolic one is a parameter of its own."""
        var = self.kernel.x if loop == X else self.kernel.r
        assert var is not None
        if isinstance(var.size, int):
            return str(var.size)
        return self._size_name(var.size, "width" if loop == R else "numel" if self.kernel.r is None else "height")

    def write(self, op: Op) -> None:
        """Print an operation's line, unless it is written where it is used."""
        if op.name in WRITES:
            self._store(op)
            return
        if op.name == "check":
            self._check(op)
            return
        made = self._made(op)
        if self._is_inlined(op, made):
            self.texts[op.number] = made
            return
        self.assign(op, made)

    def _is_inlined(self, op: Op, made: Text) -> bool:
        if op.name == "constant":
            return True
        if op.name in ("reduce", "scan"):
            return False
        users = self.uses.get(op.number, [])
        if op.name == "load":
            return len(users) == 1 and users[0].name == "to" and op.number not in self._picked
        if op.name == "index" and (len(made.text) <= 12 or len(users) == 1):
            return True
        if len(users) != 1 or op.number in self._picked or len(made.text) > LONGEST_INLINE:
            return False
        return not op.label and users[0].name not in ("reduce", "scan")

    @property
    def _picked(self) -> set[int]:
        return {n for op in self.live if op.index is not None for n in op.index.picks()} | {
            op.mask.number for op in self.live if op.mask is not None
        }

    def assign(self, op: Op, made: Text) -> None:
        """Print an operation's value under a name of its own."""
        name = self.names.get(op.number)
        if name is None:
            name = self.names[op.number] = self.unique(role(_label(op)))
        self.add(f"{name} = {made.text}", made.ops)
        self.texts[op.number] = Text(name, True, ())

    def text_of(self, op: Op) -> Text:
        """How an operation that was printed is referred to."""
        return self.texts[op.number]

    def _made(self, op: Op) -> Text:
        if op.name == "constant":
            return Text(
                constant_text(op.value, op.dtype),
                not (isinstance(op.value, (int, float)) and op.value < 0),
                (op.number,),
            )
        if op.name == "number":
            return Text(f"tl.full((), {self._number_name(op)}, {TYPES[op.dtype]})", True, (op.number,))
        if op.name == "index":
            return self._index_value(op)
        if op.name == "load":
            return self._load(op)
        if op.name == "reduce":
            value = self.masked_value(op)
            return Text(self.reduced(op, value.text), True, (*value.ops, op.number))
        if op.name == "scan":
            return self._scan(op)
        if (helped := self._helped(op)) is not None:
            return helped
        args = [self.text_of(a) for a in op.args]
        if args and all(a.name == "constant" for a in op.args):
            args = [Text(constant_text(a.value, a.dtype, typed=True), True, (a.number,)) for a in op.args]
        behind = (*(n for a in args for n in a.ops), op.number)
        if op.name in ("rand", "randint") and op.args[1].name == "constant":
            args[1] = Text(constant_text(op.args[1].value, op.args[1].dtype, typed=True), True, args[1].ops)
        if (
            op.name == "where"
            and all(a.name == "constant" for a in op.args[1:])
            and op.dtype not in (torch.float32, torch.int32)
        ):
            args[1] = Text(constant_text(op.args[1].value, op.dtype, typed=True), True, args[1].ops)
        if op.name == "to":
            return Text(f"{args[0].closed}.to({TYPES[op.dtype]})", True, behind)
        if op.name == "round" and isinstance(op.value, torch.dtype):
            return Text(f"{args[0].closed}.to({TYPES[op.value]}).to(tl.float32)", True, behind)
        if op.name == "bitcast":
            own, wanted = op.value
            narrow = args[0].closed if own == op.args[0].dtype else f"{args[0].closed}.to({TYPES[own]})"
            wide = "" if wanted == op.dtype else f".to({TYPES[op.dtype]})"
            return Text(f"{narrow}.to({TYPES[wanted]}, bitcast=True){wide}", True, behind)
        if op.name in HELPERS:
            self.helpers[op.name] = None
        self.uses_libdevice |= needs_libdevice(op.name)
        infix = is_infix(op.name)
        return Text(
            operation_text(op.name, [a.closed if infix else a.text for a in args], op.args[0].dtype),
            not infix,
            behind,
        )

    def _helped(self, op: Op) -> Text | None:
        """Operations that need fewer instructions where everything that is read has 16 bits: their errors are far below those bits."""
        if not self.reads_half or op.dtype != torch.float32:
            return None
        name, value = HELPED.get(op.name, ""), op.args[0] if op.args else op
        if op.name == "sin" and not self._fills_block(op):
            name = ""
        elif op.name == "add" and value.name == "erf" and op.args[1].name == "constant" and op.args[1].value == 1.0:
            name, value = "one_plus_erf", value.args[0]
        if not name:
            return None
        self.helpers[name] = None
        self.uses_libdevice |= name in HELPERS_WITH_LIBDEVICE
        text = self.text_of(value)
        return Text(f"{name}({text.text})", True, (*text.ops, op.args[0].number, op.number))

    def _fills_block(self, op: Op) -> bool:
        """Whether a value is a block, of which a largest element can be asked, and no single number."""
        return op.space >= ({X} if self.block.r_block == 0 else {R} if self.block.is_row else set()) and bool(op.space)

    def _scan(self, op: Op) -> Text:
        value, axis = self.masked_value(op), "0" if self.block.is_row else "1"
        before, behind = self.carries.get(op.number), (*value.ops, op.number)
        if op.value not in COMBINES:
            text = f"tl.cum{op.value}({value.text}, {axis})"
            if before is None:
                return Text(text, True, behind)
            return Text(f"{before} {'+' if op.value == 'sum' else '*'} {text}", False, behind)
        combine = COMBINES[op.value][op.dtype.is_floating_point]
        self.helpers[combine] = None
        text = f"tl.associative_scan({value.text}, {axis}, {combine})"
        return Text(text if before is None else f"{combine}({before}, {text})", True, behind)

    def _index_value(self, op: Op) -> Text:
        assert op.index is not None
        text = self._index(op.index)
        is_one_term = len(op.index.terms) == 1 and op.index.const == 0 and next(iter(op.index.terms.values())) == 1
        return Text(text, is_one_term or text.isalnum(), (op.number,))

    def _index(self, index: Index) -> str:
        return text_of(index, lambda number: self.text_of(self.kernel.ops[number]).closed, self._var, self._size)

    def _var(self, var: Var) -> str:
        return self.x_name if var is self.kernel.x or var == self.kernel.x else "col"

    def _place(self, op: Op) -> str:
        """The pointer of a load or store, as wide as its mask."""
        assert op.index is not None
        pointer = self.pointers[op.buffer]
        index = self._index(op.index)
        text = pointer if index == "0" else f"{pointer} + {index}"
        space = self.space_of(op.index)
        for number in op.index.picks():
            space |= self.kernel.ops[number].space
        is_scattered = op.name == "atomic_add" or (op.name == "store" and op.mask is not None)
        wanted = op.space if op.name == "load" or is_scattered else space
        varies = wanted & {R} if self.block.is_row else wanted  # a row is one number
        if varies - space:
            text = f"{text} + tl.zeros({self.shape(wanted)}, tl.int32)"
        return text

    def space_of(self, index: Index) -> set[str]:
        """Along which loops an index varies, not counting what it reads."""
        return {X if v == self.kernel.x else R for v in index.variables()}

    def _mask(self, op: Op, space: frozenset[str]) -> str:
        parts = []
        if self.x_masked and X in space:
            parts.append(self.inside(X))
        if self.r_masked and R in space:
            parts.append(self.inside(R))
        if op.mask is not None:
            parts.append(self.text_of(op.mask).text)
        if not parts:
            return ""
        return ", mask=" + (
            parts[0] if len(parts) == 1 else " & ".join(p if re.fullmatch(r"\w+", p) else f"({p})" for p in parts)
        )

    def _load(self, op: Op) -> Text:
        masked = (op.mask.number,) if op.mask is not None else ()
        hint = self.loads_kept.get(op.number, "")
        return Text(f"tl.load({self._place(op)}{self._mask(op, op.space)}{hint})", True, (op.number, *masked))

    def _check(self, op: Op) -> None:
        """Stop the device where an index is out of bounds, naming the user's line."""
        assert op.index is not None
        value, masked = self.text_of(op.args[0]), (op.mask.number,) if op.mask is not None else ()
        at = f"{op.value}: " if op.value else ""
        inside = f"({value.closed} >= 0) & ({value.closed} < {self._index(op.index)})"
        message = json.dumps(f"{at}index out of bounds")
        self.add(f"tl.device_assert({inside}, {message}{self._mask(op, op.space)})", (*value.ops, op.number, *masked))

    def _store(self, op: Op) -> None:
        value = self.text_of(op.args[0])
        if op.args[0].name == "constant":
            value = Text(constant_text(op.args[0].value, op.args[0].dtype), True, value.ops)
        masked = () if op.mask is None else (op.mask.number,)
        order = ', sem="relaxed"' if op.name == "atomic_add" else ', cache_modifier=".cs"' if self.stores_pass else ""
        self.add(
            f"tl.{op.name}({self._place(op)}, {value.text}{self._mask(op, op.space)}{order})",
            (*value.ops, op.number, *masked),
        )


def _label(op: Op) -> str:
    if op.label:
        return op.label
    if op.name == "to" and op.args[0].name == "load":
        return op.args[0].label
    return {"index": "place", "where": "chosen", "lt": "below", "ge": "from_here", "and": "inside"}.get(
        op.name, op.name
    )
