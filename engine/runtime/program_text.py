"""The Python text of a program: it allocates, launches kernels, calls ATen, and frees.

The text is generated once per program and device. The functions that it calls are in program_functions.py.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from engine.graph.functionalize_rng import bernoulli_into_new
from engine.group_pairs import group_pairs
from engine.ir.introspection.operator_facts import facts_of, facts_of_node
from engine.ir.kernels.compile_triton import ALIGNMENT
from engine.ir.kernels.generated_kernel import KernelArg, Size
from engine.ir.kernels.lowered_program import (
    CPU_TARGET,
    AtenCall,
    Buffer,
    BufferRef,
    Launch,
    LoweredProgram,
    buffer_refs,
)
from engine.ir.kernels.symbol_locations import symbol_expr
from engine.ir.loop_ir.index_expr import contiguous_strides, product, symbols_of
from engine.ir.loop_ir.program_symbols import expression_of
from engine.ir.node_values import called_overload, results_of
from engine.ir.rerun_after_error import mark_inputs_written
from engine.ir.static_sizes import static_size, static_sizes
from engine.runtime.aten_executor import BERNOULLI, EMPTY_LIKE, aten_callable
from engine.runtime.graph_pools import copied_to_output_memory
from engine.runtime.huge_pages import MIN_BYTES, empty_in_huge_pages, product_into
from engine.runtime.program_functions import (
    check_size,
    raise_out_of_bounds,
    raise_unexpected_size,
    real_view,
    with_expected_layout,
    zeros_strided,
)
from engine.runtime.record_launches import LaunchReporter, launch_arguments
from engine.torch_private.cuda import current_raw_stream
from engine.torch_private.entries import Feature, why_off
from engine.torch_private.pytree import tree_map_only
from engine.torch_private.sympy_functions import PythonPrinter
from engine.torch_private.tensors import empty_strided_cpu, empty_strided_cuda, reinterpret_tensor

OutputMemory = Callable[[], AbstractContextManager[Any]]
_COMPLEX_DTYPES = {torch.float32: torch.complex64, torch.float64: torch.complex128}
PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
)
"""Operators that write their result to memory that they are given, with no copy."""
LARGE_TEMPORARIES = 8
"""Bytes of a call's temporary results per byte of its outputs, to copy the outputs."""


@dataclass
class ProgramWriter:
    """Generates the Python of one program for one device.

    ``cpu_scalars``: CPU inputs that GPU kernels read.
    """

    program: LoweredProgram
    device: torch.device
    cpu_scalars: frozenset[str]
    is_boxed: bool = False
    report: LaunchReporter | None = None
    """Runs and reports each launch; None to launch directly."""
    output_memory: OutputMemory | None = None
    constants: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = dict.fromkeys([*self.program.inputs, *self.program.buffers])
        self._names = {name: f"b{i}_{re.sub(r'[^A-Za-z0-9_]', '_', name)}" for i, name in enumerate(names)}
        self._printer = PythonPrinter()
        defined_symbols = (*self.program.symbol_sources, *self.program.unbacked_symbols)
        self._symbols = {name: f"s_{re.sub(r'[^A-Za-z0-9_]', '_', name)}" for name in defined_symbols}
        numbers = {name for name, dimension in self.program.unbacked_symbols.values() if dimension < 0}
        numbers |= self.program.assumed_numbers.keys()
        self._names |= {name: f"n{i}_{re.sub(r'[^A-Za-z0-9_]', '_', name)}" for i, name in enumerate(sorted(numbers))}
        self._symbols |= {name: self._names[name] for name in self.program.assumed_numbers}
        self._defined_names: set[str] = set()
        self._numbers: dict[str, str] = {}
        self.output_buffers = set() if self.output_memory is None else _output_allocations(self.program)
        inputs = set(self.program.inputs)
        self._allocated = {
            a.buffer
            for k in self.program.kernels
            for a in k.args
            if a.kind == "pointer"
            and a.is_written
            and a.buffer not in inputs
            and not self.program.buffers[a.buffer].reuses
        }
        self._allocated -= {
            r for s in self.program.steps for call in s.calls for r in call.result_buffers if r is not None
        }
        self._by_address = set() if self.report is not None else _complex_by_address(self.program, self._allocated)
        self.constants |= {
            "math": math,
            "torch": torch,  # sympy prints float(size) as torch.sym_float
            "empty_strided": torch.empty_strided,
            "with_layout": with_expected_layout,
            "of_these_sizes": check_size,
            "other_sizes": raise_unexpected_size,
            "out_of_bounds": raise_out_of_bounds,
            "real_view": real_view,
            "view_as_complex": torch.view_as_complex,
            "device": self.device,
            "output_memory": self.output_memory,
        }
        if self.device.type == "cuda":
            self.constants["raw_stream"] = current_raw_stream
        elif not why_off(Feature.FAST_ALLOCATION) and not any(
            _may_write(c.target) for s in self.program.steps for c in s.calls
        ):
            self.constants["untracked_view"] = reinterpret_tensor

    def text(self, *, checks: bool = True) -> str:
        """Return the text of ``run``; without ``checks``, inputs may be misaligned."""
        self._defined_names.clear()
        self._numbers.clear()
        lines = [*self._symbol_lines(), *self._input_lines(checks)]
        deaths = self._last_uses()
        if self.is_boxed:
            names = "".join(f"{self._names[name]}, " for name in self.program.inputs)
            unused = [self._names[name] for name in deaths.get(-1, ())]
            lines = [f"{names}= arguments"] * bool(names) + lines + ["arguments.clear()"]
            lines += [f"del {', '.join(unused)}"] * bool(unused)
        lines.append(f"stream = raw_stream({self.device.index})" if self.device.type == "cuda" else "stream = 0")
        written = set(self.program.inputs)
        first_write = self._first_input_write()
        for number, step in enumerate(self.program.steps):
            if number == first_write:
                lines += [*_number_lines(self, number), "are_inputs_written = True"]
            lines += [line for launch in step.launches for line in self._launch_lines(number, launch, written)]
            lines += [line for call in step.calls for line in _call_lines(self, number, call)]
            if dead := deaths.get(number):
                lines.append(f"del {', '.join(self._names[name] for name in dead)}")
        views = self._view_positions()
        outputs = "".join(f"{self._output(out, n in views)}, " for n, out in enumerate(self.program.outputs))
        lines.append(f"return ({outputs})")
        lines = lines if first_write is None else self._with_written_inputs_marked(lines)
        return f"def run({self._parameters()}):\n" + "".join(f"    {line}\n" for line in lines)

    def _view_positions(self) -> set[int]:
        """Return the positions of outputs that are views in ATen's graph, too."""
        if self.program.reference_graph is None:
            return set()
        (output,) = self.program.reference_graph.graph.find_nodes(op="output")
        nodes = dict(enumerate(results_of(output.args[0])))
        return {n for n, node in nodes.items() if node in output.all_input_nodes and facts_of_node(node).is_view}

    def _output(self, out: Any, is_view: bool) -> str:
        """Return the text of an output; autograd sees a view only where ATen returns one."""
        for ref in buffer_refs(out):
            if ref.buffer in self._returned_complex_inputs and ref.is_complex and _is_whole_buffer(ref):
                return f"original_{self._names[ref.buffer]}"
        refs = buffer_refs(out)
        if is_view and refs:
            return self._tensor(refs[0], is_tracked=True)
        text = self._value(out)
        return text if not refs or text.isidentifier() or text.startswith("untracked_view(") else f"{text}.data"

    @functools.cached_property
    def _returned_complex_inputs(self) -> set[str]:
        """Return complex inputs that are outputs: autograd saves the input, not a view of it."""
        refs = [
            ref for out in self.program.outputs for ref in buffer_refs(out) if ref.is_complex and _is_whole_buffer(ref)
        ]
        return {ref.buffer for ref in refs} & set(self.program.inputs)

    def _first_input_write(self) -> int | None:
        """Return the number of the first step that writes an input; None without one."""
        written = set(self.program.written_inputs)
        touched = enumerate(
            {self.program.buffers[n].reuses for k in step.launches for n in k.touched_buffers()}
            for step in self.program.steps
        )
        return next((number for number, touched_names in touched if touched_names & written), None)

    def _with_written_inputs_marked(self, lines: list[str]) -> list[str]:
        """Return the lines in a block that marks errors after the first write to an input."""
        self.constants["mark_inputs_written"] = mark_inputs_written
        written = "".join(f"{self._names[name]}, " for name in dict.fromkeys(self.program.written_inputs))
        return [
            "are_inputs_written = False",
            "try:",
            *(f"    {line}" for line in lines),
            "except Exception as error:",
            f"    if are_inputs_written: mark_inputs_written(error, ({written}))",
            "    raise",
        ]

    def _parameters(self) -> str:
        return "arguments" if self.is_boxed else ", ".join(self._names[name] for name in self.program.inputs)

    def _symbol_lines(self) -> Iterator[str]:
        for symbol, (index, location) in self.program.symbol_sources.items():
            yield f"{self._symbols[symbol]} = {symbol_expr(self._names[self.program.inputs[index]], location)}"

    def _input_lines(self, checks: bool) -> Iterator[str]:
        read = {a.buffer for k in self.program.kernels for a in k.args if a.kind == "pointer"}
        tensors = [n for n in dict.fromkeys(self.program.inputs) if n in read and n in self.program.buffers]
        input_names = [name for name in self.program.inputs if name in self.program.buffers]
        for name in input_names if self.is_boxed else ():
            if _has_padded_rows(self.program.buffers[name]):
                yield from self._expected_layout_lines(name)  # saved tensor hooks may have packed and unpacked it
        near = [f"{self._names[n]}.data_ptr()" for n in tensors if n not in self.cpu_scalars]
        if checks and near and self.device.type == "cuda":
            yield f"if ({' | '.join(near)}) & {ALIGNMENT - 1}:"
            yield f"    return misaligned_run({self._parameters()})"
        for name in tensors:
            if name in self.cpu_scalars:
                yield f"{self._names[name]} = {self._names[name]}.to(device)"
        for name in dict.fromkeys(self.program.inputs):
            if name in self.program.buffers and self.program.buffers[name].is_complex:
                if name in self._by_address:
                    yield f"if {self._names[name]}.is_conj(): {self._names[name]} = {self._names[name]}.resolve_conj()"
                    continue
                if name in self._returned_complex_inputs:
                    yield f"original_{self._names[name]} = {self._names[name]}"
                yield f"{self._names[name]} = real_view({self._names[name]})"

    def _launch_lines(self, number: int, step: Launch, written: set[str]) -> Iterator[str]:
        for argument in step.kernel.args:
            if argument.kind == "pointer" and argument.is_written and argument.buffer not in written:
                written.add(argument.buffer)
                reused = self.program.buffers[argument.buffer].reuses
                memory = self._names[reused] if reused else self._allocation(self.program.buffers[argument.buffer])
                line = f"{self._names[argument.buffer]} = {memory}"
                yield from _in_output_memory([line], not reused and argument.buffer in self.output_buffers)
                if argument.copied_buffer and argument.copied_buffer == reused:
                    continue  # The kernel updates it in place.
                if argument.copied_buffer:
                    yield f"{self._names[argument.buffer]}.copy_({self._names[argument.copied_buffer]})"
                elif argument.initial_value is not None:
                    yield f"{self._names[argument.buffer]}.fill_({self._value(argument.initial_value)})"
        if self.program.target == CPU_TARGET:
            yield self._cpu_launch_line(number, step)
            return
        grid = [*step.kernel.grid, 1, 1, 1][:3]
        static = [static_size(size) for size in grid]
        if 0 in static:
            return
        arguments = ", ".join(self._argument(a) for a in step.kernel.args)
        sizes = [self._size(size) for size in grid]
        call = self._with_launch_report(number, step, f"launch{number}({', '.join(sizes)}, stream, {arguments})")
        symbolic = [text for text, number_of_size in zip(sizes, static, strict=True) if number_of_size is None]
        # The driver rejects an empty grid.
        yield f"if {' and '.join(symbolic)}: {call}" if symbolic else call

    def _cpu_launch_line(self, number: int, step: Launch) -> str:
        """Return the call of a CPU kernel; it takes addresses and returns a failed check."""
        arguments = ", ".join(
            f"{self._names[a.buffer]}.data_ptr()" if a.kind == "pointer" else self._argument(a)
            for a in step.kernel.args
        )
        call = self._with_launch_report(number, step, f"launch{number}({arguments})")
        return f"if {call}: out_of_bounds()" if step.kernel.checks else call

    def _with_launch_report(self, number: int, step: Launch, call: str) -> str:
        """Return the call of a launcher, with a report if a session asks for it."""
        if self.report is None:
            return call
        kernel = step.kernel
        self.constants |= {f"kernel{number}": kernel, "report": self.report}
        grid = kernel.grid[: 1 if self.program.target == CPU_TARGET else 3]
        values = "".join(f"{self._argument(a)}, " for a in launch_arguments(kernel))
        return f"report(kernel{number}, {self._sizes(grid)}, ({values}), lambda: {call})"

    def _argument(self, argument: KernelArg) -> str:
        if argument.kind == "pointer":
            return self._names[argument.buffer]
        text = self._size(argument.value) if argument.kind == "size" else self._value(argument.value)
        return self._numbers.get(text, text)

    def _aten_call_lines(self, number: int, step: AtenCall) -> Iterator[str]:
        self.constants[f"extern{number}"] = self._aten_callable(step)
        shorten = functools.partial(_without_equal_layout, self.program.buffers)
        arguments = [self._value(a) for a in tree_map_only(BufferRef, shorten, step.args)]
        arguments += [f"{key}={self._value(value)}" for key, value in step.kwargs.items()]
        call = _call_into_huge_pages(self, number, step, arguments) or f"extern{number}({', '.join(arguments)})"
        if not any(step.result_buffers):
            yield call
            return
        is_single = _returns_one_value(step.target)
        if not is_single:
            yield f"r = {call}"
        for position, name in enumerate(step.result_buffers):
            if name is None:
                continue
            result_text = (
                f"r[{position}]" if len(step.result_buffers) > 1 else "(r[0] if isinstance(r, (tuple, list)) else r)"
            )
            result_text = call if is_single else result_text
            is_complex = name in self.program.buffers and self.program.buffers[name].is_complex
            if name not in self._names:
                continue  # a number that introduces no new symbol
            yield f"{self._names[name]} = " + (f"real_view({result_text})" if is_complex else result_text)
            for symbol, (telling, dimension) in self.program.unbacked_symbols.items():
                if telling == name:
                    value = self._names[name]
                    yield f"{self._symbols[symbol]} = {value}" + (f".size({dimension})" if dimension >= 0 else " + 0")
            if name in self.program.buffers and _has_data_dependent_size(step.target):
                sizes = self._sizes(self.program.buffers[name].shape)
                yield f"of_these_sizes({self._names[name]}, {sizes}, {name!r})"
            yield from self._expected_layout_lines(name)
        if not is_single:
            yield "del r"
        yield from self._runtime_assert_lines({name for name in step.result_buffers if name})

    def _aten_callable(self, step: AtenCall) -> Any:
        """Return the callable of an ATen call; on the CPU, the one that eager uses."""
        if self.program.target != CPU_TARGET:
            return step.target
        empty = {r for s in self.program.steps for c in s.calls if c.target is EMPTY_LIKE for r in c.result_buffers}
        fills = step.target is BERNOULLI and any(r.buffer in empty for r in buffer_refs(step.args))
        return bernoulli_into_new if fills else aten_callable(step.target)

    def _runtime_assert_lines(self, defined: set[str]) -> Iterator[str]:
        """Yield runtime asserts as soon as their symbols are known, before kernels use the sizes."""
        for relation in runtime_asserts(self.program):
            needs = {
                self.program.unbacked_symbols[s][0]
                for s in map(str, relation.free_symbols)
                if s in self.program.unbacked_symbols
            }
            needs |= {s for s in map(str, relation.free_symbols) if s in self.program.assumed_numbers}
            if needs and needs <= self._defined_names | defined and not needs <= self._defined_names:
                yield f"if not {self._size(relation)}: other_sizes({str(relation)!r})"
        self._defined_names |= defined

    def _expected_layout_lines(self, name: str) -> Iterator[str]:
        """Yield a fixup of an ATen result: kernels need the buffer's strides and its alignment."""
        buffer = self.program.buffers.get(name)
        if buffer is None:
            return
        local, dtype = self._names[name], self._constant_name(buffer.dtype)
        sizes, strides = self._sizes(buffer.shape), self._sizes(buffer.stride)
        # CPU kernels take any address.
        aligned = "" if self.device.type == "cpu" else f"{local}.data_ptr() & {ALIGNMENT - 1} or "
        yield f"if {local}.stride() != {strides} or {aligned}{local}.dtype is not {dtype}:"
        yield f"    {local} = with_layout({local}, {sizes}, {strides}, {dtype}, {name!r})"

    def _allocation(self, buffer: Buffer) -> str:
        if buffer.name in self._by_address:
            buffer = _complex_layout(buffer) or buffer
        sizes, strides = self._sizes(buffer.shape), self._sizes(buffer.stride)
        if self.device.type == "cpu" and _has_padded_rows(buffer):
            self.constants["zeros_strided"] = zeros_strided
            return f"zeros_strided({sizes}, {strides}, {self._constant_name(buffer.dtype)})"
        dtype = self._constant_name(buffer.dtype)
        text = f"({sizes}, {strides}, dtype={dtype}, device=device)"
        in_huge_pages = f"empty_in_huge_pages{text}"
        self.constants["empty_in_huge_pages"] = empty_in_huge_pages
        count = _bytes(buffer) if self.device.type == "cpu" else 0
        known = static_size(count)
        if known is not None and known >= MIN_BYTES:
            return in_huge_pages
        if why_off(Feature.FAST_ALLOCATION):
            text = f"empty_strided{text}"
        else:
            # The program's device is current.
            make = f"empty_strided_{self.device.type}"
            self.constants[make] = empty_strided_cpu if self.device.type == "cpu" else empty_strided_cuda
            text = f"{make}({sizes}, {strides}, {dtype})"
        return text if known is not None else f"{in_huge_pages} if {self._size(count)} >= {MIN_BYTES} else {text}"

    def _sizes(self, sizes: tuple[Size, ...]) -> str:
        return f"({', '.join(self._size(size) for size in sizes)}{',' if len(sizes) == 1 else ''})"

    def _size(self, size: Any) -> str:
        size = expression_of(size)
        if (number := static_size(size)) is not None:
            return str(number)
        renamed = {s: sympy.Symbol(self._symbols[str(s)], **s.assumptions0) for s in size.free_symbols}
        return f"({self._printer.doprint(size.xreplace(renamed))})"

    @functools.singledispatchmethod
    def _value(self, value: Any) -> str:
        """Return the text of an argument or output; bind values without a literal to a constant."""
        if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
            return repr(value)
        return self._constant_name(value)

    @_value.register(sympy.Basic)
    @_value.register(torch.SymInt)
    @_value.register(torch.SymFloat)
    @_value.register(torch.SymBool)
    def _(self, value: Any) -> str:
        return self._size(value)

    @_value.register
    def _(self, value: tuple) -> str:  # type: ignore[type-arg]
        return f"({''.join(f'{self._value(v)}, ' for v in value)})"

    @_value.register
    def _(self, value: list) -> str:  # type: ignore[type-arg]
        return f"[{', '.join(self._value(v) for v in value)}]"

    @_value.register
    def _(self, ref: BufferRef) -> str:
        return self._tensor(ref, is_tracked="untracked_view" not in self.constants)

    def _tensor(self, ref: BufferRef, *, is_tracked: bool) -> str:
        """Return the text of a tensor; it shares its buffer's version counter if ``is_tracked``."""
        text = self._view_text(ref, is_tracked=is_tracked)
        return f"view_as_complex({text})" if ref.is_complex and ref.buffer not in self._by_address else text

    def _view_text(self, ref: BufferRef, *, is_tracked: bool) -> str:
        local, buffer = self._names[ref.buffer], self.program.buffers.get(ref.buffer)
        if _is_whole_buffer(ref):
            return local
        if is_tracked and buffer is not None and _is_transpose(ref, buffer):
            return f"{local}.t()"
        if buffer is None:
            raise ValueError(f"{ref.buffer} is not a tensor, so it has no view.")
        shape = self._sizes(buffer.shape if ref.shape is None else ref.shape)
        stride = self._sizes(buffer.stride if ref.stride is None else ref.stride)
        if not is_tracked:
            return f"untracked_view({local}, {shape}, {stride}, {self._size(ref.offset)})"
        if static_size(ref.offset) == 0:
            return f"{local}.as_strided({shape}, {stride})"
        # An allocation starts at offset 0 of its storage; inputs and ATen results may be views.
        base = "" if ref.buffer in self._allocated else f"{local}.storage_offset() + "
        return f"{local}.as_strided({shape}, {stride}, {base}{self._size(ref.offset)})"

    def _constant_name(self, value: Any) -> str:
        for name, constant in self.constants.items():
            if constant is value:
                return name
        name = f"constant{len(self.constants)}"
        self.constants[name] = value
        return name

    def _last_uses(self) -> dict[int, list[str]]:
        """Return the buffers whose last use each step is; the key -1 has unused boxed inputs.

        Outputs are excluded, and inputs too unless they are boxed: their owner is the caller.
        """
        last: dict[str, int] = {}
        for number, step in enumerate(self.program.steps):
            for name in step.touched_buffers():
                reused = self.program.buffers[name].reuses if name in self.program.buffers else ""
                if reused and name not in last:
                    last[reused] = number
                last[name] = number
        outputs = {r.buffer for r in buffer_refs(self.program.outputs)}
        if self.is_boxed:
            last = dict.fromkeys(self.program.inputs, -1) | last
        else:
            outputs.update(self.program.inputs)
        mortal = self.program.buffers.keys() - outputs
        return group_pairs((number, name) for name, number in last.items() if name in mortal)


def _call_into_huge_pages(writer: ProgramWriter, number: int, step: AtenCall, arguments: list[str]) -> str:
    """Return the call of a product that writes a large result to huge pages, or ""."""
    buffer = writer.program.buffers.get(step.result_buffers[0] or "") if step.target in PRODUCTS else None
    if buffer is None or writer.device.type != "cpu" or buffer.is_complex or not _is_row_major(buffer):
        return ""
    if (static_size(_bytes(buffer)) or 0) < MIN_BYTES:
        return ""
    writer.constants["product_into"] = product_into
    return f"product_into({', '.join((writer._allocation(buffer), f'extern{number}', *arguments))})"


def _bytes(buffer: Buffer) -> Any:
    """Return the bytes of a buffer's elements, an expression if its sizes are symbolic."""
    return product((*buffer.shape, buffer.dtype.itemsize))


def _call_lines(writer: ProgramWriter, number: int, step: AtenCall) -> list[str]:
    """Return the lines of an ATen call, which allocates its outputs in their memory.

    Its workspaces are there too. Where it also returns larger temporaries, outputs are copied instead.
    """
    lines, results = list(writer._aten_call_lines(number, step)), {r for r in step.result_buffers if r is not None}
    outputs = sorted(results & writer.output_buffers)
    if not outputs or not _has_large_temporaries(writer.program, results, outputs):
        return _in_output_memory(lines, bool(outputs))
    writer.constants["copied_to_output_memory"] = copied_to_output_memory
    return lines + [f"{writer._names[r]} = copied_to_output_memory({writer._names[r]})" for r in outputs]


def _in_output_memory(lines: list[str], is_output: bool) -> list[str]:
    """Return lines that allocate outputs, in a block that does so in their memory."""
    return ["with output_memory():", *(f"    {line}" for line in lines)] if is_output else lines


def _has_large_temporaries(program: LoweredProgram, results: set[str], outputs: Sequence[str]) -> bool:
    """Return True if the temporary results of a call take far more memory than its outputs."""

    def size(names: Iterable[str]) -> int | None:
        buffers = [program.buffers[name] for name in names if name in program.buffers]
        numbers = static_sizes(product((*b.shape, b.dtype.itemsize)) for b in buffers)
        return None if numbers is None else sum(numbers)

    temporary, output = size(results.difference(outputs)), size(outputs)
    return temporary is not None and output is not None and temporary >= LARGE_TEMPORARIES * output


def _output_allocations(program: LoweredProgram) -> set[str]:
    """Return the buffers whose memory the outputs have."""
    names = {ref.buffer for ref in buffer_refs(program.outputs)}
    while taken := {b.reuses for n in names if (b := program.buffers.get(n)) and b.reuses} - names:
        names |= taken
    return names - set(program.inputs)


def _number_lines(writer: ProgramWriter, first: int) -> Iterator[str]:
    """Yield the numbers that launches from step ``first`` on take.

    To compute one may raise, as it does in eager.
    """
    unbacked = writer.program.unbacked_symbols
    launches = (k for step in writer.program.steps[first:] for k in step.launches)
    for argument in (a for k in launches for a in k.kernel.args if a.kind != "pointer"):
        read = symbols_of([argument.value]) & unbacked.keys()
        if read and {unbacked[symbol][0] for symbol in read} <= writer._defined_names:
            text = writer._argument(argument)
            if text not in writer._numbers.values():
                name = writer._numbers[text] = f"v{len(writer._numbers)}"
                yield f"{name} = {text}"


def _returns_one_value(target: Any) -> bool:
    """Return True if an operator returns one tensor or number, not a tuple or a list."""
    called = called_overload(target)
    returns = () if called is None else called._schema.returns
    return len(returns) == 1 and str(returns[0].type) in ("Tensor", "number")


def _may_write(target: Any) -> bool:
    """Return True if a call may write its arguments, whose version counters then count it."""
    called = called_overload(target)
    return called is None or called.namespace not in ("aten", "engine") or facts_of(called).writes


def _has_data_dependent_size(target: Any) -> bool:
    """Return True if an operator's result size may depend on data.

    The graph may have assumed that size.
    """
    called = called_overload(target)
    if called is None or called.namespace not in ("aten", "engine"):
        return True
    return torch.Tag.dynamic_output_shape in called.tags


def runtime_asserts(program: LoweredProgram) -> Iterator[Any]:
    """Yield relations that the graph assumes and only its values can check.

    They are deferred runtime asserts: assumed numbers, and conditions that the graph assumes and returns.
    """
    for name, expected in program.assumed_numbers.items():
        yield sympy.Eq(sympy.Symbol(name, integer=True), expected, evaluate=False)
    yield from program.assumed_relations


def _has_padded_rows(buffer: Buffer) -> bool:
    """Return True if the buffer holds row-major matrices, or one, with several padded rows."""
    rank = len(buffer.shape)
    numbers = [n for n in map(static_size, (*buffer.shape, *buffer.stride)) if n is not None]
    if rank < 2 or len(numbers) < 2 * rank:
        return False
    shape, stride = numbers[:rank], numbers[rank:]
    is_row_major = all(stride[n] == shape[n + 1] * stride[n + 1] for n in range(rank - 2))
    return is_row_major and math.prod(shape[:-1]) > 1 and stride[-1] == 1 and stride[-2] > shape[-1]


def _is_row_major(buffer: Buffer) -> bool:
    """Return True if the elements of a buffer are in memory in their order, without gaps."""
    shape, stride = static_sizes(buffer.shape), static_sizes(buffer.stride)
    return stride is not None and shape is not None and stride == contiguous_strides(shape)


def _is_whole_buffer(ref: BufferRef) -> bool:
    """Return True if the reference is to the buffer as it was allocated or given."""
    return ref.shape is None and ref.stride is None and static_size(ref.offset) == 0


def _complex_by_address(program: LoweredProgram, allocated: Collection[str]) -> set[str]:
    """Return complex inputs and outputs that only CPU kernels access, by address."""
    buffers, outputs = program.buffers, buffer_refs(program.outputs)
    if program.target != CPU_TARGET:
        return set()
    whole = {r.buffer for r in outputs if r.is_complex and _is_whole_buffer(r) and r.buffer in allocated}
    made = {name for name in whole if _complex_layout(buffers[name]) is not None}
    filled = [a for k in program.kernels for a in k.args if a.copied_buffer or a.initial_value is not None]
    others = {r.buffer for r in outputs if r.buffer not in made or not r.is_complex or r.shape is not None}
    others |= {ref.buffer for s in program.steps for c in s.calls for ref in buffer_refs((*c.args, c.kwargs))}
    others |= {name for b in buffers.values() if b.reuses for name in (b.name, b.reuses)}
    others |= {name for a in filled for name in (a.buffer, a.copied_buffer)}
    return (made | {n for n in program.inputs if n in buffers and buffers[n].is_complex}) - others


def _complex_layout(buffer: Buffer) -> Buffer | None:
    """Return the complex tensor whose real view a buffer is; None if its layout is not of one."""
    strides, dtype = static_sizes(buffer.stride), _COMPLEX_DTYPES.get(buffer.dtype)
    if dtype is None or strides is None or strides[-1] != 1 or any(stride % 2 for stride in strides[:-1]):
        return None
    return replace(buffer, dtype=dtype, shape=buffer.shape[:-1], stride=tuple(s // 2 for s in strides[:-1]))


def _without_equal_layout(buffers: Mapping[str, Buffer], ref: BufferRef) -> BufferRef:
    """Return a reference to the whole buffer if it has the buffer's layout: a view takes time."""
    buffer = buffers.get(ref.buffer)
    has_layout = buffer is not None and (ref.shape, ref.stride) == (tuple(buffer.shape), tuple(buffer.stride))
    return replace(ref, shape=None, stride=None) if has_layout else ref


def _is_transpose(ref: BufferRef, buffer: Buffer) -> bool:
    """Return True if the reference is to a transposed matrix; strides of size 1 are not known."""
    if ref.shape is None or ref.stride is None or len(buffer.shape) != 2 or static_size(ref.offset) != 0:
        return False
    has_layout = (*ref.shape, *ref.stride) == (*buffer.shape[::-1], *buffer.stride[::-1])
    return has_layout and all((static_size(size) or 0) > 1 for size in buffer.shape)
