"""Prints the matmul template with its fused prologues and epilogue.

A program computes one tile of the result as a sum over slices of the inner dimension.
"""

from __future__ import annotations

from dataclasses import replace

from engine.ir.kernels.compile_triton import KernelConfig
from engine.ir.kernels.generated_kernel import GeneratedKernel, KernelArg
from engine.ir.loop_ir.index_expr import IndexExpr, LoopVar, Size
from engine.ir.loop_ir.loop_kernel import BlockConfig, LoopKernel, MatmulLoops
from engine.ir.loop_ir.ops import VARIES_WITH_XR, LoopIROp, R, X
from engine.kernels.dependences import transitive_inputs
from engine.kernels.source_builder import Expression
from engine.kernels.triton.block_heuristics import block_count, is_block_multiple
from engine.kernels.triton.op_codegen import SIGNATURE_DTYPES
from engine.kernels.triton.printer import TritonPrinter

LEFT, RIGHT, EPILOGUE = "left", "right", "after"
"""Section of a line: left operand, right operand, or epilogue after the sum."""
TEMPLATE_NAMES = ("tile", "band", "first", "height", "matrix", "inner", "inner_down", "product", "INNER", "GROUP")


class MatmulPrinter(TritonPrinter):
    """Prints the ops of the operands inside the loop over the inner dimension.

    All other ops follow the loop.
    """

    def __init__(self, kernel: LoopKernel, product: MatmulLoops) -> None:
        super().__init__(kernel)
        self.product = product
        tiling = product.config
        self.block = BlockConfig(tiling.block_m, tiling.block_n, False, tiling.num_warps, has_2d_grid=True)
        self.used_names.update(TEMPLATE_NAMES)
        self.x_name, self.section = "row", EPILOGUE
        assert kernel.r is not None
        self.x_masked = not is_block_multiple(kernel.x.size, tiling.block_m)
        self.r_masked = not is_block_multiple(kernel.r.size, tiling.block_n)
        self.masks_inner = not is_block_multiple(product.lhs_k.size, tiling.block_k)
        self.dot = next(op for op in self.live_ops if op.name == "dot")
        self.operand_ops = {
            side: transitive_inputs([root], kernel.ops) for side, root in zip((LEFT, RIGHT), self.dot.args, strict=True)
        }

    def source(self) -> GeneratedKernel:
        """Print the kernel and return all data about it."""
        tiling, made = self.product.config, super().source()
        return replace(made, num_stages=tiling.num_stages, fallback_configs=self._smaller_configurations())

    def _smaller_configurations(self) -> tuple[KernelConfig, ...]:
        """Return the same tiles with smaller inner blocks and fewer stages.

        They are for targets with little shared memory.
        """
        tiling, found = self.product.config, []
        for inner, stages in ((tiling.block_k, 2), (tiling.block_k // 2, 2), (tiling.block_k // 2, 1), (16, 1)):
            if inner >= 16 and (inner, stages) != (tiling.block_k, tiling.num_stages):
                found.append(KernelConfig((("INNER", inner),), tiling.num_warps, stages))
        return tuple(found)

    def _grid(self) -> tuple[Size, ...]:
        kernel, tiling = self.kernel, self.product.config
        assert kernel.r is not None
        tiles = block_count(kernel.x.size, tiling.block_m) * block_count(kernel.r.size, tiling.block_n)
        return (tiles,) if self.product.batch.size == 1 else (tiles, self.product.batch.size)

    def _block_args(self) -> list[KernelArg]:
        tiling = self.product.config
        sizes = {"ROWS": tiling.block_m, "COLS": tiling.block_n, "INNER": tiling.block_k}
        if self._is_grouped():
            sizes["GROUP"] = tiling.group_m
        return [KernelArg(name, "constexpr", "constexpr", value=size) for name, size in sizes.items()]

    def _is_grouped(self) -> bool:
        rows = self.kernel.x.size
        return not isinstance(rows, int) or rows > self.product.config.block_m

    def _print_body(self) -> None:
        self._print_tile_indices()
        p, inner = self.product, self._size_text(self.product.lhs_k.size)
        self.add_line("product = tl.zeros((ROWS, COLS), tl.float32)", (self.dot.number,))
        self.add_line(f"for start in range(0, {inner}, INNER):", (self.dot.number,))
        self.indent = "        "
        self.add_line("inner = start + tl.arange(0, INNER)[None, :]")
        self.add_line("inner_down = start + tl.arange(0, INNER)[:, None]")
        operands = [self._print_operand(side, op) for side, op in zip((LEFT, RIGHT), self.dot.args, strict=True)]
        precise = f', input_precision="{p.precision}"' if p.precision else ""
        self.add_line(f"product = tl.dot({', '.join(o.text for o in operands)}, product{precise})", (self.dot.number,))
        self.indent, self.section = "    ", EPILOGUE
        self.expressions[self.dot.number] = Expression("product", True, ())
        needed = transitive_inputs(
            [op for op in self.live_ops if op.name == "store"], self.kernel.ops, in_one_loop=True
        )
        for op in self.live_ops:
            if op.number in needed and op is not self.dot:
                self.expressions.pop(op.number, None)
                self.print_op(op)

    def _print_tile_indices(self) -> None:
        wide = ".to(tl.int64)" if self.kernel.uses_int64_index else ""
        rows, cols = self.loop_size_text(X), self.loop_size_text(R)
        if self.product.batch.size != 1:
            self.add_line(f"matrix = tl.program_id(1){wide}")
        if not self._is_grouped():
            self.add_line("row = tl.arange(0, ROWS)[:, None]")
            self.add_line(f"col = tl.program_id(0){wide} * COLS + tl.arange(0, COLS)[None, :]")
            return
        self.add_line(f"tile = tl.program_id(0){wide}")
        self.add_line("# GROUP rows of tiles are done together: they find each other's columns in the card's cache.")
        self.add_line(f"band = GROUP * tl.cdiv({cols}, COLS)")
        self.add_line("first = tile // band * GROUP")
        self.add_line(f"height = tl.minimum(tl.cdiv({rows}, ROWS) - first, GROUP)")
        self.add_line("row = (first + tile % band % height) * ROWS + tl.arange(0, ROWS)[:, None]")
        self.add_line("col = tile % band // height * COLS + tl.arange(0, COLS)[None, :]")

    def _print_operand(self, side: str, root: LoopIROp) -> Expression:
        """Print the ops of one operand; elements beyond the inner dimension count as zero."""
        self.section = side
        for op in self.live_ops:
            if op.number in self.operand_ops[side]:
                self.expressions.pop(op.number, None)
                self.print_op(op)
        made = self.expression_of(root)
        if root.loops != VARIES_WITH_XR:
            made = Expression(f"tl.broadcast_to({made.text}, {self.block_shape_text(VARIES_WITH_XR)})", True, made.ops)
        if root.name == "load" or not self.masks_inner:
            return made
        masked = f"tl.where({self.bounds_test(R if side == LEFT else X)}, {made.text}, 0.0).to(tl.{_triton_dtype_name(root)})"
        return Expression(masked, True, made.ops)

    def _load_expression(self, op: LoopIROp) -> Expression:
        made = super()._load_expression(op)
        if self.section == EPILOGUE or "mask=" not in made.text:
            return made
        return Expression(f"{made.text[:-1]}, other=0)", True, made.ops)

    def _mask_text(self, op: LoopIROp, space: frozenset[str]) -> str:
        kept = self.x_masked, self.r_masked
        if self.section == LEFT:
            self.r_masked = self.masks_inner
        elif self.section == RIGHT:
            self.x_masked = self.masks_inner
        try:
            return super()._mask_text(op, space)
        finally:
            self.x_masked, self.r_masked = kept

    def bounds_test(self, loop: str) -> str:
        """Return the test that a loop variable is below its size, by its name in this section."""
        if self.section == LEFT and loop == R:
            return f"inner < {self._size_text(self.product.lhs_k.size)}"
        if self.section == RIGHT and loop == X:
            return f"inner_down < {self._size_text(self.product.rhs_k.size)}"
        return super().bounds_test(loop)

    def block_shape_text(self, space: frozenset[str] | set[str]) -> str:
        """Return the shape of a block of values in this section."""
        rows = "INNER" if self.section == RIGHT else "ROWS"
        cols = "INNER" if self.section == LEFT else "COLS"
        return f"({rows if X in space else '1'}, {cols if R in space else '1'})"

    def loops_of_index(self, index: IndexExpr) -> set[str]:
        """Return the loops along which an index varies; the matrix number is constant in a tile."""
        known = {self.product.lhs_k: R, self.product.rhs_k: X, self.kernel.x: X, self.kernel.r: R}
        return {known[v] for v in index.variables() if v in known}

    def _loop_variable_name(self, var: LoopVar) -> str:
        known = {self.product.lhs_k: "inner", self.product.rhs_k: "inner_down", self.product.batch: "matrix"}
        return known.get(var) or super()._loop_variable_name(var)

    def _is_inlined(self, op: LoopIROp, made: Expression) -> bool:
        return op is not self.dot and super()._is_inlined(op, made)


def _triton_dtype_name(op: LoopIROp) -> str:
    return {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}[SIGNATURE_DTYPES[op.dtype]]
