"""Blocks of a kernel's loops: grid, index variables, masks and shapes."""

from __future__ import annotations

from engine.ir.kernels.generated_kernel import KernelArg
from engine.ir.loop_ir.index_expr import IndexExpr, LoopVar, Size
from engine.ir.loop_ir.loop_kernel import BlockConfig, LoopKernel
from engine.ir.loop_ir.ops import LoopIROp, R, X
from engine.ir.static_sizes import static_size
from engine.kernels.kernel_parameters import KernelParameters
from engine.kernels.triton.block_heuristics import block_count, is_block_multiple, row_divisors


class LoopBlocks:
    """Blocks of the outer loop ``x`` and the inner loop ``r`` of a kernel."""

    masked_load_option = ""
    """Further arguments of a masked load."""

    def __init__(self, kernel: LoopKernel, block: BlockConfig, parameters: KernelParameters) -> None:
        self.kernel = kernel
        self.block = block
        self.parameters = parameters
        self.x_name = "at" if kernel.r is None else "row"
        # A symbolic size is one parameter; the launcher raises an error if it does not fit in 32 bits.
        x, _ = kernel.static_sizes
        is_exact = x is not None and is_block_multiple(x, block.x_block)
        self.masked_loops = set() if is_exact else {X}
        if kernel.r is not None and not is_block_multiple(kernel.r.size, block.r_block):
            self.masked_loops.add(R)
        self.row_quotients = {} if X in self.masked_loops else self._name_row_quotients()

    def _name_row_quotients(self) -> dict[int, str]:
        """Return names of quotients ``row // divisor`` that all rows of a program share.

        An index in which they occur with the column then costs divisions per column, not per element.
        """
        rows = self.block.x_block
        shared = [d for d in sorted(row_divisors(self.kernel)) if rows > 1 and d % rows == 0]
        return {d: self.parameters.unique_name(f"row_{d}") for d in shared}

    def quotient_name(self, var: LoopVar, divisor: Size) -> str | None:
        """Return the name of a quotient that all rows of a program share; None for others."""
        static = static_size(divisor)
        return None if var != self.kernel.x or static is None else self.row_quotients.get(static)

    def grid(self) -> tuple[Size, ...]:
        """Return the number of programs in each dimension."""
        across = block_count(self.kernel.x.size, self.block.x_block)
        if self.kernel.r is None or not self.block.has_2d_grid:
            return (across,)
        return across, block_count(self.kernel.r.size, self.block.r_block)

    def size_args(self) -> dict[str, int]:
        """Return the values of the ``constexpr`` parameters by name."""
        if self.block.r_block == 0:
            return {"BLOCK": self.block.x_block}
        rows = {} if self.block.is_one_row_per_program else {"ROWS": self.block.x_block}
        return {**rows, "COLS": self.block.r_block}

    def block_args(self) -> tuple[KernelArg, ...]:
        """Return the parameters for block sizes."""
        return tuple(KernelArg(n, "constexpr", "constexpr", value=size) for n, size in self.size_args().items())

    def index_lines(self, *, uses_x: bool) -> list[str]:
        """Return the lines that compute the indices of this program's block."""
        wide = ".to(tl.int64)" if self.kernel.uses_int64_index else ""
        program, is_row = f"tl.program_id(0){wide}", self.block.is_one_row_per_program
        if self.block.r_block == 0:
            return [f"at = {program} * BLOCK + tl.arange(0, BLOCK)"] if uses_x else []
        rows = f"row = {program}" if is_row else f"row = {program} * ROWS + tl.arange(0, ROWS)[:, None]"
        span = "tl.arange(0, COLS)" if is_row else "tl.arange(0, COLS)[None, :]"
        if self.block.has_2d_grid:
            span = f"tl.program_id(1){wide} * COLS + {span}"
        shared = [f"{name} = {program} * ROWS // {divisor}" for divisor, name in self.row_quotients.items()]
        return [*([rows, *shared] if uses_x else []), f"{'cols' if self.block.is_looped else 'col'} = {span}"]

    def bounds_test(self, loop: str) -> str:
        """Return the test that a loop variable is below its size."""
        return f"{self.x_name if loop == X else 'col'} < {self.loop_size_text(loop)}"

    def bounds_tests(self, space: frozenset[str]) -> list[str]:
        """Return the tests that a block of values along these loops needs."""
        return [self.bounds_test(loop) for loop in (X, R) if loop in space & self.masked_loops]

    def loop_size_text(self, loop: str) -> str:
        """Return the size of a loop; a symbolic size is a parameter."""
        var = self.kernel.x if loop == X else self.kernel.r
        assert var is not None
        if (static := static_size(var.size)) is not None:
            return str(static)
        name = "width" if loop == R else "numel" if self.kernel.r is None else "height"
        return self.parameters.size_name(var.size, name)

    def shape_text(self, space: frozenset[str] | set[str]) -> str:
        """Return the shape of a block of values that vary along these loops."""
        if self.block.r_block == 0:
            return "(BLOCK,)"
        if self.block.is_one_row_per_program:
            return "(COLS,)"
        return f"({'ROWS' if X in space else '1'}, {'COLS' if R in space else '1'})"

    def is_block(self, op: LoopIROp) -> bool:
        """Return True if a value is a block, which has a maximum element, and not a scalar."""
        needed = {X} if self.block.r_block == 0 else {R} if self.block.is_one_row_per_program else set()
        return op.loops >= needed and bool(op.loops)

    def loops_of_index(self, index: IndexExpr) -> set[str]:
        """Return the loops along which an index varies; indirect parts do not count."""
        return {X if v == self.kernel.x else R for v in index.variables()}

    def variable_name(self, var: LoopVar) -> str:
        """Return the name of a loop variable."""
        return self.x_name if var == self.kernel.x else "col"
