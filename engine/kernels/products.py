"""Prints a product of matrices with what is computed around it: tiles of the result, each summed up over slices of the inner dimension."""

from __future__ import annotations

from dataclasses import replace

from engine.ir.binary import Configuration
from engine.ir.index import Index, Size, Var
from engine.ir.kernel import KernelArg, KernelSource
from engine.ir.loops import INNER, Blocking, LoopKernel, Op, Product, R, X
from engine.kernels.expressions import SIGNATURE
from engine.kernels.indexing import blocks, is_divisible
from engine.kernels.needs import closure
from engine.kernels.text import Text
from engine.kernels.triton import Printer

LEFT, RIGHT, AFTER = "left", "right", "after"
"""Where a line stands: with the left operand, with the right one, or after the sum."""
NAMES = ("tile", "band", "first", "height", "matrix", "inner", "inner_down", "product", "INNER", "GROUP")


class ProductPrinter(Printer):
    """Prints the operands' operations inside the loop over the inner dimension, all else after it."""

    def __init__(self, kernel: LoopKernel, product: Product) -> None:
        super().__init__(kernel)
        self.product = product
        tiling = product.tiling
        self.block = Blocking(tiling.rows, tiling.cols, False, tiling.num_warps, is_tiled=True)
        self.taken.update(NAMES)
        self.x_name, self.section = "row", AFTER
        assert kernel.r is not None
        self.x_masked = not is_divisible(kernel.x.size, tiling.rows)
        self.r_masked = not is_divisible(kernel.r.size, tiling.cols)
        self.inner_masked = not is_divisible(product.across.size, tiling.inner)
        self.dot = next(op for op in self.live if op.name == "dot")
        self.sides = {
            side: closure([root], kernel.ops) for side, root in zip((LEFT, RIGHT), self.dot.args, strict=True)
        }

    def source(self) -> KernelSource:
        """Everything about the kernel."""
        tiling, made = self.product.tiling, super().source()
        return replace(made, num_stages=tiling.num_stages, smaller=self._smaller())

    def _smaller(self) -> tuple[Configuration, ...]:
        """The same tiles with less of the operands on the way at once, for targets with little shared memory."""
        tiling, found = self.product.tiling, []
        for inner, stages in ((tiling.inner, 2), (tiling.inner // 2, 2), (tiling.inner // 2, 1), (16, 1)):
            if inner >= 16 and (inner, stages) != (tiling.inner, tiling.num_stages):
                found.append(Configuration((("INNER", inner),), tiling.num_warps, stages))
        return tuple(found)

    def _grid(self) -> tuple[Size, ...]:
        kernel, tiling = self.kernel, self.product.tiling
        assert kernel.r is not None
        tiles = blocks(kernel.x.size, tiling.rows) * blocks(kernel.r.size, tiling.cols)
        return (tiles,) if self.product.batch.size == 1 else (tiles, self.product.batch.size)

    def _block_args(self) -> list[KernelArg]:
        tiling = self.product.tiling
        sizes = {"ROWS": tiling.rows, "COLS": tiling.cols, "INNER": tiling.inner}
        if self._is_banded():
            sizes["GROUP"] = tiling.group
        return [KernelArg(name, "constexpr", "constexpr", value=size) for name, size in sizes.items()]

    def _is_banded(self) -> bool:
        rows = self.kernel.x.size
        return not isinstance(rows, int) or rows > self.product.tiling.rows

    def _body(self) -> None:
        self._tile_lines()
        p, inner = self.product, self._size(self.product.across.size)
        self.add("product = tl.zeros((ROWS, COLS), tl.float32)", (self.dot.number,))
        self.add(f"for start in range(0, {inner}, INNER):", (self.dot.number,))
        self.indent = "        "
        self.add("inner = start + tl.arange(0, INNER)[None, :]")
        self.add("inner_down = start + tl.arange(0, INNER)[:, None]")
        operands = [self._operand(side, op) for side, op in zip((LEFT, RIGHT), self.dot.args, strict=True)]
        precise = f', input_precision="{p.precision}"' if p.precision else ""
        self.add(f"product = tl.dot({', '.join(o.text for o in operands)}, product{precise})", (self.dot.number,))
        self.indent, self.section = "    ", AFTER
        self.texts[self.dot.number] = Text("product", True, ())
        needed = closure([op for op in self.live if op.name == "store"], self.kernel.ops, in_one_run=True)
        for op in self.live:
            if op.number in needed and op is not self.dot:
                self.texts.pop(op.number, None)
                self.write(op)

    def _tile_lines(self) -> None:
        wide = ".to(tl.int64)" if self.kernel.is_wide else ""
        rows, cols = self.extent(X), self.extent(R)
        if self.product.batch.size != 1:
            self.add(f"matrix = tl.program_id(1){wide}")
        if not self._is_banded():
            self.add("row = tl.arange(0, ROWS)[:, None]")
            self.add(f"col = tl.program_id(0){wide} * COLS + tl.arange(0, COLS)[None, :]")
            return
        self.add(f"tile = tl.program_id(0){wide}")
        self.add("# GROUP rows of tiles are done together: they find each other's columns in the card's cache.")
        self.add(f"band = GROUP * tl.cdiv({cols}, COLS)")
        self.add("first = tile // band * GROUP")
        self.add(f"height = tl.minimum(tl.cdiv({rows}, ROWS) - first, GROUP)")
        self.add("row = (first + tile % band % height) * ROWS + tl.arange(0, ROWS)[:, None]")
        self.add("col = tile % band // height * COLS + tl.arange(0, COLS)[None, :]")

    def _operand(self, side: str, root: Op) -> Text:
        """Print what one side of the product is computed from; what lies beyond the inner dimension counts as zero."""
        self.section = side
        for op in self.live:
            if op.number in self.sides[side]:
                self.texts.pop(op.number, None)
                self.write(op)
        made = self.text_of(root)
        if root.space != INNER:
            made = Text(f"tl.broadcast_to({made.text}, {self.shape(INNER)})", True, made.ops)
        if root.name == "load" or not self.inner_masked:
            return made
        masked = f"tl.where({self.inside(R if side == LEFT else X)}, {made.text}, 0.0).to(tl.{_word(root)})"
        return Text(masked, True, made.ops)

    def _load(self, op: Op) -> Text:
        made = super()._load(op)
        if self.section == AFTER or "mask=" not in made.text:
            return made
        return Text(f"{made.text[:-1]}, other=0)", True, made.ops)

    def _mask(self, op: Op, space: frozenset[str]) -> str:
        kept = self.x_masked, self.r_masked
        if self.section == LEFT:
            self.r_masked = self.inner_masked
        elif self.section == RIGHT:
            self.x_masked = self.inner_masked
        try:
            return super()._mask(op, space)
        finally:
            self.x_masked, self.r_masked = kept

    def inside(self, loop: str) -> str:
        """The test that a loop's variable is below its size, as this section calls it."""
        if self.section == LEFT and loop == R:
            return f"inner < {self._size(self.product.across.size)}"
        if self.section == RIGHT and loop == X:
            return f"inner_down < {self._size(self.product.down.size)}"
        return super().inside(loop)

    def shape(self, space: frozenset[str] | set[str]) -> str:
        """The shape of a block of values in this section."""
        rows = "INNER" if self.section == RIGHT else "ROWS"
        cols = "INNER" if self.section == LEFT else "COLS"
        return f"({rows if X in space else '1'}, {cols if R in space else '1'})"

    def space_of(self, index: Index) -> set[str]:
        """Along which loops an index varies; the number of a matrix is the same for a whole tile."""
        known = {self.product.across: R, self.product.down: X, self.kernel.x: X, self.kernel.r: R}
        return {known[v] for v in index.variables() if v in known}

    def _var(self, var: Var) -> str:
        known = {self.product.across: "inner", self.product.down: "inner_down", self.product.batch: "matrix"}
        return known.get(var) or super()._var(var)

    def _is_inlined(self, op: Op, made: Text) -> bool:
        return op is not self.dot and super()._is_inlined(op, made)


def _word(op: Op) -> str:
    return {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}[SIGNATURE[op.dtype]]
