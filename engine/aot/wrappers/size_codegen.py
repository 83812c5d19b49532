"""Write symbolic sizes and their symbols as Python source for the AOT runtime wrappers."""

from __future__ import annotations

from collections.abc import Iterable

from engine.ir.aot.aot_metadata import AotMetadata, IntOrSymInt
from engine.ir.introspection.symbols import symbols_in
from engine.ir.kernels.symbol_locations import symbol_expr
from engine.ir.static_sizes import static_size
from engine.torch_private.sympy_functions import PythonPrinter


def sizes_expr(sizes: tuple[IntOrSymInt, ...]) -> str:
    """Return a tuple of sizes as Python source, symbols by name."""
    return f"({''.join(f'{size_expr(s)}, ' for s in sizes)})"


def offset_expr(base: str, offset: IntOrSymInt) -> str:
    """Return a storage offset as Python source, given an offset relative to ``base``."""
    return f"{base}.storage_offset() + {size_expr(offset)}"


def size_expr(size: IntOrSymInt) -> str:
    """Return a size as Python source; symbols are variables."""
    return str(size) if static_size(size) is not None else f"({PythonPrinter().doprint(size.node.expr)})"


def symbol_reads(plan: AotMetadata, sizes: Iterable[IntOrSymInt]) -> tuple[str, ...]:
    """Return statements that read the symbols in these sizes, before the call changes layouts."""
    needed = symbol_names(sizes)
    return tuple(
        f"{name} = {symbol_expr(f'i{at}', location)}" for name, at, location in plan.symbol_sources if name in needed
    )


def symbol_names(sizes: Iterable[IntOrSymInt]) -> set[str]:
    """Return the names of the symbols in sizes."""
    return set(map(str, symbols_in(list(sizes))))
