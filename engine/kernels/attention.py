"""Prints attention: scores stay in a block, a row's largest one and the sum of its weights are kept up as keys go by.

Forward and backward follow FlashAttention-2 (Dao, 2023): the backward makes the weights again from each row's logarithm of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from engine.ir.attention import FORWARD, KEYS, QUERIES, SUMS, Attention, AttentionKernel, Lying
from engine.ir.binary import Configuration
from engine.ir.kernel import KernelArg, KernelSource, Size
from engine.kernels.expressions import SIGNATURE
from engine.records.lowering import LoopOp

LOG2E = 1 / math.log(2)
OPS = (
    "query = load(query)", "key = load(key)", "value = load(value)", "scores = dot(query, key) * scale", "scores = masked(scores)",
    "weights = softmax(scores)", "out = dot(weights, value)", "logsumexp = log(sum(exp(scores)))", "sums = sum(grad * out)",
    "grad_weights = dot(grad, value)", "grad_scores = weights * (grad_weights - sums)", "grad_value = dot(weights, grad)",
    "grad_key = dot(grad_scores, query) * scale", "grad_query = dot(grad_scores, key) * scale",
    "grad_mask = grad_scores",
)  # fmt: skip
(
    QUERY,
    KEY,
    VALUE,
    SCORES,
    MASKED,
    WEIGHTS,
    OUT,
    LOG,
    SUM,
    GRAD_WEIGHTS,
    GRAD_SCORES,
    GRAD_VALUE,
    GRAD_KEY,
    GRAD_QUERY,
    GRAD_MASK,
) = range(15)
NAMES = {
    FORWARD: "attention",
    SUMS: "attention_sums",
    KEYS: "attention_keys_backward",
    QUERIES: "attention_queries_backward",
}


@dataclass
class _Text:
    lines: list[str] = field(default_factory=list)
    ops: list[tuple[int, ...]] = field(default_factory=list)
    indent: int = 1

    def add(self, text: str, *ops: int) -> None:
        self.lines.append("    " * self.indent + text)
        self.ops.append(ops)


def attention_source(attention: Attention) -> KernelSource:
    """The kernel's Triton module."""
    kernel, text = attention.kernel, _Text()
    printer = _Printer(kernel, text)
    printer.write()
    name, prefix, nodes = NAMES[kernel.kind], attention.prefix, attention.nodes
    ordered = sorted(kernel.tensors, key=lambda t: t.written)
    args = [
        KernelArg(f"{t.role}_ptr", "pointer", f"*{SIGNATURE[t.dtype]}", attention.buffers[t.role], None, t.written)
        for t in ordered
    ]
    args += [KernelArg(n, "constexpr", "constexpr", value=v) for n, v in printer.sizes.items()]
    parameters = ", ".join(f"{a.name}: tl.constexpr" if a.kind == "constexpr" else a.name for a in args)
    head = ["import triton", "import triton.language as tl", "", "", "@triton.jit", f"def {name}({parameters}):"]
    used = sorted({n for ops in text.ops for n in ops})
    blocks = kernel.blocks
    return KernelSource(
        id=attention.id,
        name=name,
        text="\n".join(head + text.lines) + "\n",
        args=tuple(args),
        grid=printer.grid(),
        line_ops=((),) * len(head) + tuple(tuple(f"{prefix}:{n}" for n in ops) for ops in text.ops),
        ops=tuple(LoopOp(f"{prefix}:{n}", OPS[n], nodes) for n in used),
        nodes=nodes,
        num_warps=blocks.num_warps,
        num_stages=blocks.num_stages,
        bytes_moved=_bytes(kernel),
        flops=_flops(kernel),
        smaller=printer.smaller(),
    )


class _Printer:
    def __init__(self, kernel: AttentionKernel, text: _Text) -> None:
        self.kernel, self.text, self.add = kernel, text, text.add
        k = kernel
        self.sizes = {"ROWS": k.blocks.rows, "COLS": k.blocks.cols, "WIDTH": _side(k.width), "VALUES": _side(k.values)}
        if k.kind == SUMS:
            self.sizes = {"ROWS": k.blocks.rows, "VALUES": _side(k.values)}
        self.precise = f', input_precision="{k.precision}"' if k.precision else ""

    def grid(self) -> tuple[Size, ...]:
        k = self.kernel
        if k.kind == KEYS:
            return (-(-k.cols // k.blocks.cols), k.batch * k.key_heads)
        return (-(-k.rows // k.blocks.rows), k.batch * k.heads)

    def smaller(self) -> tuple[Configuration, ...]:
        """Fewer keys at a time (queries, where those are gone through), and then fewer on the way."""
        k = self.kernel
        through = "ROWS" if k.kind == KEYS else "COLS"
        if k.kind == SUMS:
            return ()
        size, sizes = self.sizes[through], [self.sizes[through]]
        while size > 16:
            size //= 2
            sizes.append(size)
        planned = self.sizes[through], k.blocks.num_stages
        cuts = [(n, stages) for n in sizes for stages in (2, 1) if (n, stages) != planned]
        return tuple(Configuration(((through, n),), k.blocks.num_warps, stages) for n, stages in cuts)

    def write(self) -> None:
        writers: dict[str, Callable[[], None]] = {
            FORWARD: self._forward,
            SUMS: self._sums,
            KEYS: self._keys,
            QUERIES: self._queries,
        }
        writers[self.kernel.kind]()

    # Pieces.

    def _place(self, role: str, row: str, col: str) -> str:
        """The pointer of a block of a tensor; ``row`` and ``col`` are index texts with their dimensions."""
        t = self._tensor(role)
        is_key = role in ("key", "value", "grad_key", "grad_value")
        parts = [f"{role}_ptr"]
        if t.offset:
            parts.append(str(t.offset))
        terms = [("batch", t.stride[0]), ("key_head" if is_key else "head", t.stride[1]), (row, t.stride[2])]
        if len(t.stride) > 3:
            terms.append((col, t.stride[3]))
        parts += [n if s == 1 else f"{n} * {s}" for n, s in terms if s]
        return " + ".join(parts)

    def _tensor(self, role: str) -> Lying:
        found = self.kernel.lying(role)
        assert found is not None
        return found

    def _inside(self, *tests: tuple[str, int, int]) -> list[str]:
        """Tests that are not known: index text, size, and what the blocks reach."""
        return [f"({text} < {size})" for text, size, block in tests if size % block]

    def _block(self, name: str, role: str, row: tuple[str, int, str], col: tuple[str, int, str], op: int) -> None:
        """Load a block: (index, size, block's name) both ways; zero beyond the tensor."""
        tests = self._inside(*((text, size, self.sizes[block]) for text, size, block in (row, col)))
        mask = f", mask={' & '.join(tests)}, other=0" if tests else ""
        self.add(f"{name} = tl.load({self._place(role, row[0], col[0])}{mask})", op)

    def _store(self, role: str, value: str, row: tuple[str, int, str], col: tuple[str, int, str], op: int) -> None:
        tests = self._inside(*((text, size, self.sizes[block]) for text, size, block in (row, col)))
        mask = f", mask={' & '.join(tests)}" if tests else ""
        self.add(f"tl.store({self._place(role, row[0], col[0])}, {value}{mask})", op)

    def _heads(self) -> None:
        k = self.kernel
        wide = ".to(tl.int64)" if k.is_wide else ""
        self.add(f"batch = tl.program_id(1){wide} // {k.key_heads if k.kind == KEYS else k.heads}")
        if k.kind == KEYS:
            self.add(f"key_head = tl.program_id(1){wide} % {k.key_heads}")
            return
        self.add(f"head = tl.program_id(1){wide} % {k.heads}")
        if k.kind != SUMS:
            shared = k.heads // k.key_heads
            self.add("key_head = head" if shared == 1 else f"key_head = head // {shared}")

    def _row_numbers(self, op: int, name: str, role: str, beyond: str) -> None:
        """One number a row: the logarithm of its sum, or its sum of results times gradients."""
        tests = self._inside(("row", self.kernel.rows, self.sizes["ROWS"]))
        mask = f", mask={tests[0]}, other={beyond}" if tests else ""
        self.add(f"{name} = tl.load({self._place(role, 'row', '')}{mask})", op)

    def _store_row_numbers(self, op: int, role: str, value: str) -> None:
        tests = self._inside(("row", self.kernel.rows, self.sizes["ROWS"]))
        mask = f", mask={tests[0]}" if tests else ""
        self.add(f"tl.store({self._place(role, 'row', '')}, {value}{mask})", op)

    def _score_lines(self) -> None:
        """Scores in powers of two, those that do not count minus infinity."""
        k = self.kernel
        factor = k.scale * LOG2E
        self.add(f"scores = tl.dot(query, key{self.precise}) * {factor!r}", SCORES)
        mask = k.lying("mask")
        tests = self._inside(("col[None, :]", k.cols, self.sizes["COLS"]))
        if mask is not None:
            rows, cols = ("row[:, None]", k.rows, "ROWS"), ("col[None, :]", k.cols, "COLS")
            self._block("mask", "mask", rows, cols, MASKED)
            if mask.dtype == torch.bool:
                tests.append("mask")
            else:
                self.add(f"scores += mask.to(tl.float32) * {LOG2E!r}", MASKED)
        if k.is_causal:
            tests.append("(col[None, :] <= row[:, None])")
        if tests:
            self.add(f'scores = tl.where({" & ".join(tests)}, scores, float("-inf"))', MASKED)

    # Kernels.

    def _forward(self) -> None:
        k = self.kernel
        self._heads()
        self.add("row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)")
        self.add("width, values = tl.arange(0, WIDTH), tl.arange(0, VALUES)")
        rows, width = ("row[:, None]", k.rows, "ROWS"), ("width[None, :]", k.width, "WIDTH")
        values = ("values[None, :]", k.values, "VALUES")
        self._block("query", "query", rows, width, QUERY)
        self.add('largest = tl.full((ROWS,), float("-inf"), tl.float32)', WEIGHTS)
        self.add("total = tl.zeros((ROWS,), tl.float32)", WEIGHTS)
        self.add("out = tl.zeros((ROWS, VALUES), tl.float32)", OUT)
        self.add(f"for start in range(0, {self._last_key()}, COLS):")
        self.text.indent = 2
        self.add("col = start + tl.arange(0, COLS)")
        self._block("key", "key", ("col[None, :]", k.cols, "COLS"), ("width[:, None]", k.width, "WIDTH"), KEY)
        self._score_lines()
        self.add("raised = tl.maximum(largest, tl.max(scores, 1))", WEIGHTS)
        self.add('base = tl.where(raised == float("-inf"), 0.0, raised)', WEIGHTS)
        self.add("weights = tl.exp2(scores - base[:, None])", WEIGHTS)
        self.add("kept = tl.exp2(largest - base)", WEIGHTS)
        self.add("total = total * kept + tl.sum(weights, 1)", WEIGHTS)
        self._block("value", "value", ("col[:, None]", k.cols, "COLS"), values, VALUE)
        self.add(f"out = tl.dot(weights.to(value.dtype), value, out * kept[:, None]{self.precise})", OUT)
        self.add("largest = raised", WEIGHTS)
        self.text.indent = 1
        self.add("# A row that may look at nothing gives zeros.")
        self.add("out = out / tl.where(total == 0.0, 1.0, total)[:, None]", OUT)
        self._store("out", "out", rows, values, OUT)
        if k.lying("logsumexp") is not None:
            self._store_row_numbers(LOG, "logsumexp", f"(largest + tl.log2(total)) * {math.log(2)!r}")

    def _last_key(self) -> str:
        k = self.kernel
        return f"tl.minimum({k.cols}, (tl.program_id(0) + 1) * ROWS)" if k.is_causal else str(k.cols)

    def _sums(self) -> None:
        k = self.kernel
        self._heads()
        self.add("row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)")
        self.add("values = tl.arange(0, VALUES)")
        rows, values = ("row[:, None]", k.rows, "ROWS"), ("values[None, :]", k.values, "VALUES")
        self._block("out", "out", rows, values, SUM)
        self._block("grad", "grad", rows, values, SUM)
        self.add("sums = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)", SUM)
        self._store_row_numbers(SUM, "sums", "sums")

    def _weights_again(self) -> None:
        """The weights and the gradients of scores, for the block at hand."""
        self._score_lines()
        self.add("weights = tl.exp2(scores - logarithm[:, None])", WEIGHTS)
        self.add(f"grad_weights = tl.dot(grad, tl.trans(value){self.precise})", GRAD_WEIGHTS)
        self.add("grad_scores = (weights * (grad_weights - sums[:, None])).to(query.dtype)", GRAD_SCORES)

    def _row_lines(self) -> None:
        """Gradient, logarithm and sum of a block of rows. Beyond the last row, and where nothing counts, weights become zero."""
        k = self.kernel
        rows = ("row[:, None]", k.rows, "ROWS")
        self._block("query", "query", rows, ("width[None, :]", k.width, "WIDTH"), QUERY)
        self._block("grad", "grad", rows, ("values[None, :]", k.values, "VALUES"), GRAD_WEIGHTS)
        self._row_numbers(LOG, "logarithm", "logsumexp", 'float("inf")')
        counted = 'tl.where(logarithm == float("-inf"), float("inf"), logarithm)'
        self.add(f"logarithm = {counted} * {LOG2E!r}", LOG)
        self._row_numbers(SUM, "sums", "sums", "0.0")

    def _keys(self) -> None:
        k = self.kernel
        self._heads()
        self.add("col = tl.program_id(0) * COLS + tl.arange(0, COLS)")
        self.add("width, values = tl.arange(0, WIDTH), tl.arange(0, VALUES)")
        cols, width = ("col[:, None]", k.cols, "COLS"), ("width[None, :]", k.width, "WIDTH")
        values = ("values[None, :]", k.values, "VALUES")
        self._block("key", "key", ("col[None, :]", k.cols, "COLS"), ("width[:, None]", k.width, "WIDTH"), KEY)
        self._block("value", "value", cols, values, VALUE)
        self.add("grad_key = tl.zeros((COLS, WIDTH), tl.float32)", GRAD_KEY)
        self.add("grad_value = tl.zeros((COLS, VALUES), tl.float32)", GRAD_VALUE)
        shared = k.heads // k.key_heads
        if shared > 1:
            self.add(f"for head in range(key_head * {shared}, (key_head + 1) * {shared}):")
            self.text.indent = 2
        else:
            self.add("head = key_head")
        first = "tl.program_id(0) * COLS // ROWS * ROWS" if k.is_causal else "0"
        self.add(f"for start in range({first}, {k.rows}, ROWS):")
        self.text.indent += 1
        self.add("row = start + tl.arange(0, ROWS)")
        self._row_lines()
        self._weights_again()
        self.add(f"grad_value = tl.dot(tl.trans(weights.to(grad.dtype)), grad, grad_value{self.precise})", GRAD_VALUE)
        self.add(f"grad_key = tl.dot(tl.trans(grad_scores), query, grad_key{self.precise})", GRAD_KEY)
        self.text.indent = 1
        self._store("grad_key", f"grad_key * {k.scale!r}", cols, width, GRAD_KEY)
        self._store("grad_value", "grad_value", cols, values, GRAD_VALUE)

    def _queries(self) -> None:
        k = self.kernel
        self._heads()
        self.add("row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)")
        self.add("width, values = tl.arange(0, WIDTH), tl.arange(0, VALUES)")
        self._row_lines()
        self.add("grad_query = tl.zeros((ROWS, WIDTH), tl.float32)", GRAD_QUERY)
        tells_mask = k.lying("grad_mask") is not None  # of every score, also of those that do not count
        self.add(f"for start in range(0, {k.cols if tells_mask else self._last_key()}, COLS):")
        self.text.indent = 2
        self.add("col = start + tl.arange(0, COLS)")
        self._block("key", "key", ("col[None, :]", k.cols, "COLS"), ("width[:, None]", k.width, "WIDTH"), KEY)
        self._block("value", "value", ("col[:, None]", k.cols, "COLS"), ("values[None, :]", k.values, "VALUES"), VALUE)
        self._weights_again()
        if tells_mask:
            rows, cols = ("row[:, None]", k.rows, "ROWS"), ("col[None, :]", k.cols, "COLS")
            self._store("grad_mask", "grad_scores", rows, cols, GRAD_MASK)
        self.add(f"grad_query = tl.dot(grad_scores, tl.trans(key), grad_query{self.precise})", GRAD_QUERY)
        self.text.indent = 1
        rows, width = ("row[:, None]", k.rows, "ROWS"), ("width[None, :]", k.width, "WIDTH")
        self._store("grad_query", f"grad_query * {k.scale!r}", rows, width, GRAD_QUERY)


def _side(size: int) -> int:
    return max(16, 1 << max(size - 1, 0).bit_length())


def _flops(k: AttentionKernel) -> int:
    scores = k.batch * k.heads * k.rows * k.cols // (2 if k.is_causal else 1)
    each = {
        FORWARD: 2 * (k.width + k.values) + 10,
        SUMS: 0,
        KEYS: 2 * (2 * k.width + 2 * k.values) + 10,
        QUERIES: 2 * (2 * k.width + k.values) + 10,
    }[k.kind]
    return scores * each + (2 * k.batch * k.heads * k.rows * k.values if k.kind == SUMS else 0)


def _bytes(k: AttentionKernel) -> int:
    """Bytes of all tensors, each read or written once; a mask that is the same for several heads counts once."""
    lengths = {"row": k.rows, "col": k.cols}

    def count(t: Lying) -> int:
        heads = k.key_heads if t.role in ("key", "value", "grad_key", "grad_value") else k.heads
        if t.role in ("mask", "grad_mask"):
            sizes: Sequence[int] = [n for n, s in zip((k.batch, k.heads, k.rows, k.cols), t.stride, strict=True) if s]
            return math.prod(sizes)
        length = lengths["col" if heads == k.key_heads and t.role.endswith(("key", "value")) else "row"]
        wide = 1 if len(t.stride) == 3 else k.values if t.role in ("value", "out", "grad", "grad_value") else k.width
        return k.batch * heads * length * wide

    return sum(count(t) * t.dtype.itemsize for t in k.tensors)
