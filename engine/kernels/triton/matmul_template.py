"""Prints the matmul template with its fused prologues and epilogue.

A program computes one tile of the result as a sum over slices of the inner dimension.
"""

from __future__ import annotations

from dataclasses import replace

from engine.ir.kernels.compile_triton import KernelConfig
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.loop_ir.index_expr import IndexExpr, LoopVar, Size
from engine.ir.loop_ir.loop_kernel import BlockConfig, LoopKernel, MatmulLoops
from engine.ir.loop_ir.ops import VARIES_WITH_XR, LoopIROp, R, X
from engine.kernels.dependences import transitive_inputs
from engine.kernels.kernel_parameters import KernelParameters
from engine.kernels.source_builder import Expression
from engine.kernels.triton.block_heuristics import block_count, is_block_multiple
from engine.kernels.triton.loop_blocks import LoopBlocks
from engine.kernels.triton.loop_printer import LoopPrinter
from engine.kernels.triton.op_codegen import TRITON_DTYPES

LEFT, RIGHT, EPILOGUE = "left", "right", "after"
"""Section of a line: left operand, right operand, or epilogue after the sum."""
TEMPLATE_NAMES = ("tile", "band", "first", "height", "matrix", "inner", "inner_down", "product", "INNER", "GROUP")


class MatmulBlocks(LoopBlocks):
    """Blocks of a tile; ``section``: an operand's lines, or those after the sum."""

    def __init__(
        self, kernel: LoopKernel, product: MatmulLoops, block: BlockConfig, parameters: KernelParameters
    ) -> None:
        super().__init__(kernel, block, parameters)
        self.product = product
        self.section = EPILOGUE
        assert kernel.r is not None
        tiled = {X: (kernel.x, block.x_block), R: (kernel.r, block.r_block)}
        self.masked_loops = {loop for loop, (var, size) in tiled.items() if not is_block_multiple(var.size, size)}
        self.masks_inner = not is_block_multiple(product.lhs_k.size, product.config.block_k)

    @property
    def masked_load_option(self) -> str:  # type: ignore[override]
        """Elements of an operand that are out of bounds count as zero."""
        return "" if self.section == EPILOGUE else ", other=0"

    @property
    def is_grouped(self) -> bool:
        """True if there is more than one row of tiles."""
        rows, _ = self.kernel.static_sizes
        return rows is None or rows > self.block.x_block

    def grid(self) -> tuple[Size, ...]:
        """Return the number of tiles, and of matrices."""
        assert self.kernel.r is not None
        across = block_count(self.kernel.r.size, self.block.r_block)
        tiles = block_count(self.kernel.x.size, self.block.x_block) * across
        return (tiles,) if self.product.batch.size == 1 else (tiles, self.product.batch.size)

    def size_args(self) -> dict[str, int]:
        """Return the sizes of a tile by parameter."""
        grouped = {"GROUP": self.product.config.group_m} if self.is_grouped else {}
        return {**super().size_args(), "INNER": self.product.config.block_k, **grouped}

    def index_lines(self, *, uses_x: bool = True) -> list[str]:
        """Return the lines that compute the indices of this program's tile."""
        wide = ".to(tl.int64)" if self.kernel.uses_int64_index else ""
        rows, cols = self.loop_size_text(X), self.loop_size_text(R)
        lines = [f"matrix = tl.program_id(1){wide}"] if self.product.batch.size != 1 else []
        if not self.is_grouped:
            lines.append("row = tl.arange(0, ROWS)[:, None]")
            return [*lines, f"col = tl.program_id(0){wide} * COLS + tl.arange(0, COLS)[None, :]"]
        return [
            *lines,
            f"tile = tl.program_id(0){wide}",
            "# GROUP rows of tiles run one after another, so that their columns stay in the L2 cache.",
            f"band = GROUP * tl.cdiv({cols}, COLS)",
            "first = tile // band * GROUP",
            f"height = tl.minimum(tl.cdiv({rows}, ROWS) - first, GROUP)",
            "row = (first + tile % band % height) * ROWS + tl.arange(0, ROWS)[:, None]",
            "col = tile % band // height * COLS + tl.arange(0, COLS)[None, :]",
        ]

    def bounds_tests(self, space: frozenset[str]) -> list[str]:
        """Return the bounds tests; the inner dimension replaces one loop of an operand."""
        inner = {LEFT: R, RIGHT: X}.get(self.section)
        masked = self.masked_loops - {inner} | ({inner} if inner and self.masks_inner else set())
        return [self.bounds_test(loop) for loop in (X, R) if loop in space & masked]

    def bounds_test(self, loop: str) -> str:
        """Return the test that a loop variable is below its size, by its name in this section."""
        if self.section == LEFT and loop == R:
            return f"inner < {self.parameters.size_text(self.product.lhs_k.size)}"
        if self.section == RIGHT and loop == X:
            return f"inner_down < {self.parameters.size_text(self.product.rhs_k.size)}"
        return super().bounds_test(loop)

    def shape_text(self, space: frozenset[str] | set[str]) -> str:
        """Return the shape of a block of values in this section."""
        rows = "INNER" if self.section == RIGHT else "ROWS"
        cols = "INNER" if self.section == LEFT else "COLS"
        return f"({rows if X in space else '1'}, {cols if R in space else '1'})"

    def loops_of_index(self, index: IndexExpr) -> set[str]:
        """Return the loops along which an index varies; the matrix number is constant in a tile."""
        loops = {self.product.lhs_k: R, self.product.rhs_k: X, self.kernel.x: X, self.kernel.r: R}
        return {loops[v] for v in index.variables() if v in loops}

    def variable_name(self, var: LoopVar) -> str:
        """Return the name of a loop variable."""
        names = {self.product.lhs_k: "inner", self.product.rhs_k: "inner_down", self.product.batch: "matrix"}
        return names.get(var) or super().variable_name(var)


class MatmulPrinter(LoopPrinter):
    """Prints the ops of the operands inside the loop over the inner dimension.

    All other ops follow the loop.
    """

    blocks: MatmulBlocks

    def __init__(self, kernel: LoopKernel, product: MatmulLoops) -> None:
        self.product, tiling = product, product.config
        super().__init__(kernel, BlockConfig(tiling.block_m, tiling.block_n, False, tiling.num_warps, has_2d_grid=True))
        self.parameters.used_names.update(TEMPLATE_NAMES)
        self.dot = next(op for op in self.live_ops if op.name == "dot")

    def make_blocks(self) -> MatmulBlocks:
        """Return the mapping of loops to tiles."""
        return MatmulBlocks(self.kernel, self.product, self.block, self.parameters)

    def source(self) -> GeneratedKernel:
        """Print the kernel and return all data about it."""
        tiling, kernel = self.product.config, super().source()
        return replace(kernel, num_stages=tiling.num_stages, fallback_configs=self._smaller_configurations())

    def _smaller_configurations(self) -> tuple[KernelConfig, ...]:
        """Return the same tiles with smaller inner blocks and fewer stages.

        They are for targets with little shared memory.
        """
        tiling, configurations = self.product.config, []
        for inner, stages in ((tiling.block_k, 2), (tiling.block_k // 2, 2), (tiling.block_k // 2, 1), (16, 1)):
            if inner >= 16 and (inner, stages) != (tiling.block_k, tiling.num_stages):
                configurations.append(KernelConfig((("INNER", inner),), tiling.num_warps, stages))
        return tuple(configurations)

    def print_body(self) -> None:
        """Print the loop over the inner dimension, and the epilogue."""
        for line in self.blocks.index_lines():
            self.add_line(line)
        p, inner = self.product, self.parameters.size_text(self.product.lhs_k.size)
        self.add_line("product = tl.zeros((ROWS, COLS), tl.float32)", (self.dot.number,))
        self.add_line(f"for start in range(0, {inner}, INNER):", (self.dot.number,))
        self.indent = "        "
        self.add_line("inner = start + tl.arange(0, INNER)[None, :]")
        self.add_line("inner_down = start + tl.arange(0, INNER)[:, None]")
        operands = [self._print_operand(side, op) for side, op in zip((LEFT, RIGHT), self.dot.args, strict=True)]
        precise = f', input_precision="{p.precision}"' if p.precision else ""
        self.add_line(f"product = tl.dot({', '.join(o.text for o in operands)}, product{precise})", (self.dot.number,))
        self.indent, self.blocks.section = "    ", EPILOGUE
        self.expressions.known[self.dot.number] = Expression("product", True, ())
        self._print_inputs([op for op in self.live_ops if op.name == "store"])

    def _print_inputs(self, roots: list[LoopIROp]) -> None:
        """Print all ops that these depend on, once more if another section has printed them."""
        needed = transitive_inputs(roots, self.kernel.ops, in_one_loop=True)
        for op in self.live_ops:
            if op.number in needed and op is not self.dot:
                self.expressions.known.pop(op.number, None)
                self.print_op(op)

    def _print_operand(self, side: str, root: LoopIROp) -> Expression:
        """Print the ops of one operand; elements beyond the inner dimension count as zero."""
        self.blocks.section = side
        self._print_inputs([root])
        expression = self.expressions.of(root)
        if root.loops != VARIES_WITH_XR:
            shape = self.blocks.shape_text(VARIES_WITH_XR)
            expression = Expression(f"tl.broadcast_to({expression.text}, {shape})", True, expression.ops)
        if root.name == "load" or not self.blocks.masks_inner:
            return expression
        test = self.blocks.bounds_test(R if side == LEFT else X)
        return Expression(
            f"tl.where({test}, {expression.text}, 0.0).to({TRITON_DTYPES[root.dtype]})", True, expression.ops
        )

    def is_inlined(self, op: LoopIROp, expression: Expression) -> bool:
        """Return True if an expression stands in its only use instead of having a name."""
        return op is not self.dot and super().is_inlined(op, expression)
