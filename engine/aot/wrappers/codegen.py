"""Code of the AOT runtime wrappers: joined, and compiled to one function around a call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from engine.aot.wrappers.value_probe import RecordValues
from engine.ir.aot.aot_metadata import AotMetadata, IntOrSymInt
from engine.ir.graph_callable import Run
from engine.ir.introspection.symbols import symbols_in
from engine.ir.kernels.symbol_locations import symbol_expr
from engine.ir.static_sizes import static_size
from engine.torch_private.autograd import set_grad_enabled
from engine.torch_private.sympy_functions import PythonPrinter


@dataclass(frozen=True)
class WrapperCode:
    """Lines of Python that a wrapper adds around a call of ``run``.

    They read the inputs as ``i0, i1, ...`` and the names in ``namespace``.
    """

    definitions: tuple[str, ...] = ()
    """Lines above the function; they may define what is called in place of ``run``."""
    callee: str = ""
    """Name of what is called in place of ``run``."""
    before: tuple[str, ...] = ()
    """Lines before the call; those of inner wrappers come last."""
    arguments: tuple[str, ...] | None = None
    """Arguments of the call, if they are not the inputs in order."""
    context_manager: str = ""
    """Expression for a context manager around the call."""
    disables_grad: bool = False
    """True if the call runs without grad mode."""
    on_error: tuple[str, ...] = ()
    """Lines after ``try: return run(...)``: except clauses, and what follows them."""
    num_results: int | None = None
    """Number of results, which ``after`` and ``output_exprs`` read as ``r0, r1, ...``."""
    after_call: tuple[str, ...] = ()
    """Lines between the call and ``after`` that complete its results."""
    after: tuple[str, ...] = ()
    """Lines after the call; those of inner wrappers come first."""
    output_exprs: tuple[str, ...] | None = None
    """Expressions that the function returns, if they are not the results in order."""
    namespace: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True if the outputs are just the results of ``run`` with the inputs in order."""
        results = tuple(f"r{n}" for n in range(self.num_results or 0))
        other_lines = (self.definitions, self.before, self.context_manager, self.on_error, self.after)
        return (
            not (self.disables_grad or any(other_lines))
            and self.arguments is None
            and self.output_exprs in (None, results)
        )


def join_wrapper_code(codes: Iterable[WrapperCode]) -> WrapperCode:
    """Return the code of several wrappers, outermost first, as the code of one."""
    all_codes = list(codes)
    return WrapperCode(
        definitions=tuple(line for c in all_codes for line in c.definitions),
        callee=next((c.callee for c in reversed(all_codes) if c.callee), ""),
        before=tuple(line for c in all_codes for line in c.before),
        arguments=next((c.arguments for c in reversed(all_codes) if c.arguments is not None), None),
        context_manager=", ".join(c.context_manager for c in all_codes if c.context_manager),
        disables_grad=any(c.disables_grad for c in all_codes),
        num_results=next((c.num_results for c in all_codes if c.num_results is not None), None),
        after_call=tuple(line for c in all_codes for line in c.after_call),
        after=tuple(line for c in reversed(all_codes) for line in c.after),
        output_exprs=next((c.output_exprs for c in all_codes if c.output_exprs is not None), None),
        namespace={name: value for c in all_codes for name, value in c.namespace.items()},
    )


def compile_wrapper_code(code: WrapperCode, run: Run, num_inputs: int) -> Run:
    """Return the function that the code describes; ``run`` itself if the code is empty."""
    if code.is_empty:
        return run
    # Generated size expressions use ``math`` and ``torch``.
    scope: dict[str, Any] = {"run": run, "as_strided": torch.as_strided, "math": math, "torch": torch}
    scope |= {"is_grad_enabled": torch.is_grad_enabled, "set_grad_enabled": set_grad_enabled, **code.namespace}
    inputs = [f"i{n}" for n in range(num_inputs)]
    call = f"{code.callee or 'run'}({', '.join(inputs if code.arguments is None else code.arguments)})"
    lines = [f"def call({', '.join(inputs)}):", *(f"    {line}" for line in (*code.before, *_call_lines(code, call)))]
    exec(compile("\n".join((*code.definitions, *lines)), "<engine aot wrappers>", "exec"), scope)
    wrapped: Run = scope["call"]
    return wrapped


def _call_lines(code: WrapperCode, call: str) -> tuple[str, ...]:
    """Return the source lines from the call to the return of a wrapper."""
    if code.on_error:
        return ("try:", f"    return {call}", *code.on_error)
    if code.num_results is None:
        return (f"return {call}",)
    results = "".join(f"r{n}, " for n in range(code.num_results))
    called = f"{results}= {call}" if results else call
    call_lines: tuple[str, ...] = (
        (f"with {code.context_manager}:", f"    {called}") if code.context_manager else (called,)
    )
    if code.disables_grad:  # torch.no_grad costs six times as much
        inner_lines = tuple(f"    {line}" for line in ("set_grad_enabled(False)", *call_lines))
        call_lines = "grad = is_grad_enabled()", "try:", *inner_lines, "finally:", "    set_grad_enabled(grad)"
    outputs = [f"r{n}" for n in range(code.num_results)] if code.output_exprs is None else code.output_exprs
    return (*call_lines, *code.after_call, *code.after, f"return ({''.join(f'{o}, ' for o in outputs)})")


def record_values_of(
    codes: Sequence[tuple[str, WrapperCode]], names: Sequence[str], record: RecordValues
) -> list[tuple[str, WrapperCode]]:
    """Return the code of wrappers, by name, with lines that record the values between them."""
    count = next((c.num_results for _, c in codes if c.num_results is not None), 0)
    results = "".join(f"r{n}, " for n in range(count))
    inputs = ", ".join(f"i{n}" for n in range(len(names)))
    noted = []
    for name, code in codes:
        passed = (f"_tell({name!r}, 'in', _names, ({inputs},))",) if name and code.before else ()
        returned = (
            (f"_tell({name!r}, 'out', (*_results, *_names), ({results}{inputs}))",) if name and code.after else ()
        )
        noted.append((name, replace(code, before=(*code.before, *passed), after=(*code.after, *returned))))
    scope = {"_tell": record, "_names": tuple(names), "_results": tuple(f"result {n}" for n in range(count))}
    graph = WrapperCode(after=(f"_tell('graph', 'out', _results, ({results}))",), namespace=scope)
    return [*noted, ("graph", graph)]


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
