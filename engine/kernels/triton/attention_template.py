"""Prints the attention template, forward and backward, by FlashAttention-2 (Dao, 2023).

Scores exist only in a block; the row maximum and the sum of weights accumulate over the keys. The backward
recomputes the weights from each row's logsumexp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from engine.ir.kernels.attention_kernel import (
    DELTA_KERNEL,
    FORWARD_KERNEL,
    GRAD_KEY_VALUE_KERNEL,
    GRAD_QUERY_KERNEL,
    AttentionKernel,
    AttentionLaunch,
    AttentionOperand,
)
from engine.ir.kernels.compile_triton import KernelConfig
from engine.ir.kernels.generated_kernel import GeneratedKernel, KernelArg, Size
from engine.kernels.triton.op_codegen import SIGNATURE_DTYPES
from engine.records.kernels import LoopOp

LOG2E = 1 / math.log(2)
OP_TEXTS = (
    "query = load(query)", "key = load(key)", "value = load(value)", "scores = dot(query, key) * scale", "scores = masked(scores)",
    "weights = softmax(scores)", "out = dot(weights, value)", "logsumexp = log(sum(exp(scores)))", "sums = sum(grad * out)",
    "grad_weights = dot(grad, value)", "grad_scores = weights * (grad_weights - sums)", "grad_value = dot(weights, grad)",
    "grad_key = dot(grad_scores, query) * scale", "grad_query = dot(grad_scores, key) * scale",
    "grad_mask = grad_scores",
)  # fmt: skip
QUERY, KEY, VALUE, SCORES, MASKED, WEIGHTS, OUT, LOGSUMEXP, DELTA = range(9)
GRAD_WEIGHTS, GRAD_SCORES, GRAD_VALUE, GRAD_KEY, GRAD_QUERY, GRAD_MASK = range(9, 15)
KERNEL_NAMES = {
    FORWARD_KERNEL: "attention",
    DELTA_KERNEL: "attention_sums",
    GRAD_KEY_VALUE_KERNEL: "attention_keys_backward",
    GRAD_QUERY_KERNEL: "attention_queries_backward",
}


@dataclass
class _SourceLines:
    lines: list[str] = field(default_factory=list)
    ops: list[tuple[int, ...]] = field(default_factory=list)
    indent: int = 1

    def add(self, text: str, *ops: int) -> None:
        self.lines.append("    " * self.indent + text)
        self.ops.append(ops)


def attention_source(attention: AttentionLaunch) -> GeneratedKernel:
    """Print the Triton module of an attention kernel."""
    kernel, text = attention.kernel, _SourceLines()
    printer = _AttentionPrinter(kernel, text)
    printer.print_kernel()
    name, prefix, nodes = KERNEL_NAMES[kernel.kind], attention.prefix, attention.nodes
    ordered = sorted(kernel.tensors, key=lambda t: t.is_written)
    args = [
        KernelArg(
            f"{t.role}_ptr", "pointer", f"*{SIGNATURE_DTYPES[t.dtype]}", attention.buffers[t.role], None, t.is_written
        )
        for t in ordered
    ]
    args += [KernelArg(n, "constexpr", "constexpr", value=v) for n, v in printer.block_sizes.items()]
    parameters = ", ".join(f"{a.name}: tl.constexpr" if a.kind == "constexpr" else a.name for a in args)
    head = ["import triton", "import triton.language as tl", "", "", "@triton.jit", f"def {name}({parameters}):"]
    used = sorted({n for ops in text.ops for n in ops})
    blocks = kernel.blocks
    return GeneratedKernel(
        id=attention.id,
        name=name,
        text="\n".join(head + text.lines) + "\n",
        args=tuple(args),
        grid=printer.grid(),
        line_ops=((),) * len(head) + tuple(tuple(f"{prefix}:{n}" for n in ops) for ops in text.ops),
        ops=tuple(LoopOp(f"{prefix}:{n}", OP_TEXTS[n], nodes) for n in used),
        nodes=nodes,
        num_warps=blocks.num_warps,
        num_stages=blocks.num_stages,
        bytes_moved=_bytes(kernel),
        flops=_flops(kernel),
        fallback_configs=printer.smaller_configurations(),
    )


class _AttentionPrinter:
    def __init__(self, kernel: AttentionKernel, text: _SourceLines) -> None:
        self.kernel, self.text, self.add = kernel, text, text.add
        k = kernel
        self.block_sizes = {
            "ROWS": k.blocks.query_block,
            "COLS": k.blocks.key_block,
            "WIDTH": _block_side(k.head_dim),
            "VALUES": _block_side(k.value_dim),
        }
        if k.kind == DELTA_KERNEL:
            self.block_sizes = {"ROWS": k.blocks.query_block, "VALUES": _block_side(k.value_dim)}
        self.rows, self.cols = ("row[:, None]", k.query_len, "ROWS"), ("col[None, :]", k.key_len, "COLS")
        self.keys = ("col[:, None]", k.key_len, "COLS")
        self.width, self.values = ("width[None, :]", k.head_dim, "WIDTH"), ("values[None, :]", k.value_dim, "VALUES")
        self.precision_arg = f', input_precision="{k.precision}"' if k.precision else ""

    def grid(self) -> tuple[Size, ...]:
        k = self.kernel
        if k.kind == GRAD_KEY_VALUE_KERNEL:
            return (-(-k.key_len // k.blocks.key_block), k.batch * k.kv_heads)
        return (-(-k.query_len // k.blocks.query_block), k.batch * k.heads)

    def smaller_configurations(self) -> tuple[KernelConfig, ...]:
        """Return configurations with smaller blocks of the inner loop, and with fewer stages.

        The inner loop is over queries in the kernel of the key gradient, over keys in others.
        """
        k = self.kernel
        through = "ROWS" if k.kind == GRAD_KEY_VALUE_KERNEL else "COLS"
        if k.kind == DELTA_KERNEL:
            return ()
        size, sizes = self.block_sizes[through], [self.block_sizes[through]]
        while size > 16:
            size //= 2
            sizes.append(size)
        planned = self.block_sizes[through], k.blocks.num_stages
        cuts = [(n, stages) for n in sizes for stages in (2, 1) if (n, stages) != planned]
        return tuple(KernelConfig(((through, n),), k.blocks.num_warps, stages) for n, stages in cuts)

    def print_kernel(self) -> None:
        writers: dict[str, Callable[[], None]] = {
            FORWARD_KERNEL: self._print_forward,
            DELTA_KERNEL: self._print_delta,
            GRAD_KEY_VALUE_KERNEL: self._print_key_value_backward,
            GRAD_QUERY_KERNEL: self._print_query_backward,
        }
        writers[self.kernel.kind]()

    # Parts of kernels.

    def _pointer_text(self, role: str, row: str, col: str) -> str:
        """Return the pointer of a tensor's block; ``row`` and ``col`` are index texts.

        The texts include the dimensions, such as ``row[:, None]``.
        """
        t = self._operand(role)
        is_key = role in ("key", "value", "grad_key", "grad_value")
        parts = [f"{role}_ptr"]
        if t.offset:
            parts.append(str(t.offset))
        terms = [("batch", t.stride[0]), ("key_head" if is_key else "head", t.stride[1]), (row, t.stride[2])]
        if len(t.stride) > 3:
            terms.append((col, t.stride[3]))
        parts += [n if s == 1 else f"{n} * {s}" for n, s in terms if s]
        return " + ".join(parts)

    def _operand(self, role: str) -> AttentionOperand:
        operand = self.kernel.operand(role)
        assert operand is not None
        return operand

    def _bounds_tests(self, *tests: tuple[str, int, int]) -> list[str]:
        """Return the bounds tests that are needed, from (index text, size, block size)."""
        return [f"({text} < {size})" for text, size, block in tests if size % block]

    def _print_block_load(
        self, name: str, role: str, row: tuple[str, int, str], col: tuple[str, int, str], op: int
    ) -> None:
        """Print a block load; ``row`` and ``col`` are (index, size, block name).

        Elements out of bounds are zero.
        """
        tests = self._bounds_tests(*((text, size, self.block_sizes[block]) for text, size, block in (row, col)))
        mask = f", mask={' & '.join(tests)}, other=0" if tests else ""
        self.add(f"{name} = tl.load({self._pointer_text(role, row[0], col[0])}{mask})", op)

    def _print_block_store(
        self, role: str, value: str, row: tuple[str, int, str], col: tuple[str, int, str], op: int
    ) -> None:
        tests = self._bounds_tests(*((text, size, self.block_sizes[block]) for text, size, block in (row, col)))
        mask = f", mask={' & '.join(tests)}" if tests else ""
        self.add(f"tl.store({self._pointer_text(role, row[0], col[0])}, {value}{mask})", op)

    def _print_head_indices(self) -> None:
        k = self.kernel
        wide = ".to(tl.int64)" if k.uses_int64_index else ""
        self.add(f"batch = tl.program_id(1){wide} // {k.kv_heads if k.kind == GRAD_KEY_VALUE_KERNEL else k.heads}")
        if k.kind == GRAD_KEY_VALUE_KERNEL:
            self.add(f"key_head = tl.program_id(1){wide} % {k.kv_heads}")
            return
        self.add(f"head = tl.program_id(1){wide} % {k.heads}")
        if k.kind != DELTA_KERNEL:
            shared = k.heads // k.kv_heads
            self.add("key_head = head" if shared == 1 else f"key_head = head // {shared}")

    def _print_indices(self, along: str) -> None:
        """Print the indices of a program: its head, its block of rows or columns, the features."""
        block = f"{along.upper()}S"
        self._print_head_indices()
        self.add(f"{along} = tl.program_id(0) * {block} + tl.arange(0, {block})")
        self.add("width, values = tl.arange(0, WIDTH), tl.arange(0, VALUES)")

    def _print_key_load(self) -> None:
        width = ("width[:, None]", self.kernel.head_dim, "WIDTH")
        self._print_block_load("key", "key", self.cols, width, KEY)

    def _print_row_load(self, op: int, name: str, role: str, beyond: str) -> None:
        """Print a load of one number per row: its logsumexp or its delta."""
        tests = self._bounds_tests(("row", self.kernel.query_len, self.block_sizes["ROWS"]))
        mask = f", mask={tests[0]}, other={beyond}" if tests else ""
        self.add(f"{name} = tl.load({self._pointer_text(role, 'row', '')}{mask})", op)

    def _print_row_store(self, op: int, role: str, value: str) -> None:
        tests = self._bounds_tests(("row", self.kernel.query_len, self.block_sizes["ROWS"]))
        mask = f", mask={tests[0]}" if tests else ""
        self.add(f"tl.store({self._pointer_text(role, 'row', '')}, {value}{mask})", op)

    def _print_scores(self) -> None:
        """Print the scores for base-2 exponentials; masked scores are -inf."""
        k = self.kernel
        factor = k.scale * LOG2E
        self.add(f"scores = tl.dot(query, key{self.precision_arg}) * {factor!r}", SCORES)
        mask = k.operand("mask")
        tests = self._bounds_tests(("col[None, :]", k.key_len, self.block_sizes["COLS"]))
        if mask is not None:
            self._print_block_load("mask", "mask", self.rows, self.cols, MASKED)
            if mask.dtype == torch.bool:
                tests.append("mask")
            else:
                self.add(f"scores += mask.to(tl.float32) * {LOG2E!r}", MASKED)
        if k.is_causal:
            tests.append("(col[None, :] <= row[:, None])")
        if tests:
            self.add(f'scores = tl.where({" & ".join(tests)}, scores, float("-inf"))', MASKED)

    # Kernels.

    def _print_forward(self) -> None:
        k = self.kernel
        self._print_indices("row")
        self._print_block_load("query", "query", self.rows, self.width, QUERY)
        self.add('largest = tl.full((ROWS,), float("-inf"), tl.float32)', WEIGHTS)
        self.add("total = tl.zeros((ROWS,), tl.float32)", WEIGHTS)
        self.add("out = tl.zeros((ROWS, VALUES), tl.float32)", OUT)
        self.add(f"for start in range(0, {self._key_limit()}, COLS):")
        self.text.indent = 2
        self.add("col = start + tl.arange(0, COLS)")
        self._print_key_load()
        self._print_scores()
        self.add("new_largest = tl.maximum(largest, tl.max(scores, 1))", WEIGHTS)
        self.add('base = tl.where(new_largest == float("-inf"), 0.0, new_largest)', WEIGHTS)
        self.add("weights = tl.exp2(scores - base[:, None])", WEIGHTS)
        self.add("rescale = tl.exp2(largest - base)", WEIGHTS)
        self.add("total = total * rescale + tl.sum(weights, 1)", WEIGHTS)
        self._print_block_load("value", "value", self.keys, self.values, VALUE)
        self.add(f"out = tl.dot(weights.to(value.dtype), value, out * rescale[:, None]{self.precision_arg})", OUT)
        self.add("largest = new_largest", WEIGHTS)
        self.text.indent = 1
        self.add("# A fully masked row gives zeros.")
        self.add("out = out / tl.where(total == 0.0, 1.0, total)[:, None]", OUT)
        self._print_block_store("out", "out", self.rows, self.values, OUT)
        if k.operand("logsumexp") is not None:
            self._print_row_store(LOGSUMEXP, "logsumexp", f"(largest + tl.log2(total)) * {math.log(2)!r}")

    def _key_limit(self) -> str:
        k = self.kernel
        return f"tl.minimum({k.key_len}, (tl.program_id(0) + 1) * ROWS)" if k.is_causal else str(k.key_len)

    def _print_delta(self) -> None:
        self._print_head_indices()
        self.add("row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)")
        self.add("values = tl.arange(0, VALUES)")
        self._print_block_load("out", "out", self.rows, self.values, DELTA)
        self._print_block_load("grad", "grad", self.rows, self.values, DELTA)
        self.add("sums = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)", DELTA)
        self._print_row_store(DELTA, "sums", "sums")

    def _print_recomputed_weights(self) -> None:
        """Print the recomputed weights and the gradients of the scores of the current block."""
        self._print_scores()
        self.add("weights = tl.exp2(scores - logarithm[:, None])", WEIGHTS)
        self.add(f"grad_weights = tl.dot(grad, tl.trans(value){self.precision_arg})", GRAD_WEIGHTS)
        self.add("grad_scores = (weights * (grad_weights - sums[:, None])).to(query.dtype)", GRAD_SCORES)

    def _print_row_loads(self) -> None:
        """Print the loads of a block of rows: query, gradient, logsumexp, delta.

        Beyond the last row, and in rows without visible keys, logsumexp is inf, so that the weights are zero.
        """
        self._print_block_load("query", "query", self.rows, self.width, QUERY)
        self._print_block_load("grad", "grad", self.rows, self.values, GRAD_WEIGHTS)
        self._print_row_load(LOGSUMEXP, "logarithm", "logsumexp", 'float("inf")')
        counted = 'tl.where(logarithm == float("-inf"), float("inf"), logarithm)'
        self.add(f"logarithm = {counted} * {LOG2E!r}", LOGSUMEXP)
        self._print_row_load(DELTA, "sums", "sums", "0.0")

    def _print_key_value_backward(self) -> None:
        k = self.kernel
        self._print_indices("col")
        self._print_key_load()
        self._print_block_load("value", "value", self.keys, self.values, VALUE)
        self.add("grad_key = tl.zeros((COLS, WIDTH), tl.float32)", GRAD_KEY)
        self.add("grad_value = tl.zeros((COLS, VALUES), tl.float32)", GRAD_VALUE)
        shared = k.heads // k.kv_heads
        if shared > 1:
            self.add(f"for head in range(key_head * {shared}, (key_head + 1) * {shared}):")
            self.text.indent = 2
        else:
            self.add("head = key_head")
        first = "tl.program_id(0) * COLS // ROWS * ROWS" if k.is_causal else "0"
        self.add(f"for start in range({first}, {k.query_len}, ROWS):")
        self.text.indent += 1
        self.add("row = start + tl.arange(0, ROWS)")
        self._print_row_loads()
        self._print_recomputed_weights()
        self.add(
            f"grad_value = tl.dot(tl.trans(weights.to(grad.dtype)), grad, grad_value{self.precision_arg})", GRAD_VALUE
        )
        self.add(f"grad_key = tl.dot(tl.trans(grad_scores), query, grad_key{self.precision_arg})", GRAD_KEY)
        self.text.indent = 1
        self._print_block_store("grad_key", f"grad_key * {k.scale!r}", self.keys, self.width, GRAD_KEY)
        self._print_block_store("grad_value", "grad_value", self.keys, self.values, GRAD_VALUE)

    def _print_query_backward(self) -> None:
        k = self.kernel
        self._print_indices("row")
        self._print_row_loads()
        self.add("grad_query = tl.zeros((ROWS, WIDTH), tl.float32)", GRAD_QUERY)
        tells_mask = (
            k.operand("grad_mask") is not None
        )  # The gradient of the mask covers every score, also masked ones.
        self.add(f"for start in range(0, {k.key_len if tells_mask else self._key_limit()}, COLS):")
        self.text.indent = 2
        self.add("col = start + tl.arange(0, COLS)")
        self._print_key_load()
        self._print_block_load("value", "value", self.keys, self.values, VALUE)
        self._print_recomputed_weights()
        if tells_mask:
            self._print_block_store("grad_mask", "grad_scores", self.rows, self.cols, GRAD_MASK)
        self.add(f"grad_query = tl.dot(grad_scores, tl.trans(key), grad_query{self.precision_arg})", GRAD_QUERY)
        self.text.indent = 1
        self._print_block_store("grad_query", f"grad_query * {k.scale!r}", self.rows, self.width, GRAD_QUERY)


def _block_side(size: int) -> int:
    return max(16, 1 << max(size - 1, 0).bit_length())


def _flops(k: AttentionKernel) -> int:
    scores = k.batch * k.heads * k.query_len * k.key_len // (2 if k.is_causal else 1)
    each = {
        FORWARD_KERNEL: 2 * (k.head_dim + k.value_dim) + 10,
        DELTA_KERNEL: 0,
        GRAD_KEY_VALUE_KERNEL: 2 * (2 * k.head_dim + 2 * k.value_dim) + 10,
        GRAD_QUERY_KERNEL: 2 * (2 * k.head_dim + k.value_dim) + 10,
    }[k.kind]
    return scores * each + (2 * k.batch * k.heads * k.query_len * k.value_dim if k.kind == DELTA_KERNEL else 0)


def _bytes(k: AttentionKernel) -> int:
    """Count the bytes of all tensors, each once; a mask that heads share counts once."""
    lengths = {"row": k.query_len, "col": k.key_len}

    def count(t: AttentionOperand) -> int:
        heads = k.kv_heads if t.role in ("key", "value", "grad_key", "grad_value") else k.heads
        if t.role in ("mask", "grad_mask"):
            sizes: Sequence[int] = [
                n for n, s in zip((k.batch, k.heads, k.query_len, k.key_len), t.stride, strict=True) if s
            ]
            return math.prod(sizes)
        length = lengths["col" if heads == k.kv_heads and t.role.endswith(("key", "value")) else "row"]
        wide = (
            1 if len(t.stride) == 3 else k.value_dim if t.role in ("value", "out", "grad", "grad_value") else k.head_dim
        )
        return k.batch * heads * length * wide

    return sum(count(t) * t.dtype.itemsize for t in k.tensors)
