"""The wrapper program as text: launches, extern calls, buffers."""

from __future__ import annotations

from typing import Any

from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.kernels.lowered_program import AtenCall, BufferRef, LoweredProgram
from engine.ir.kernels.symbol_locations import symbol_expr
from engine.ir.node_values import called_overload


def _op_name(target: Any) -> str:
    called = called_overload(target)
    return str(called) if called is not None else getattr(target, "__name__", type(target).__name__)


def wrapper_text(program: LoweredProgram) -> str:
    """Return the whole program as readable Python."""
    lines = [f"def run({', '.join(program.inputs)}):"]
    for symbol, (position, location) in program.symbol_sources.items():
        lines.append(f"    {symbol} = {symbol_expr(program.inputs[position], location)}")
    last_use = _last_uses(program)
    defined: set[str] = set(program.inputs)
    for number, step in enumerate(program.steps):
        for launch in step.launches:
            lines += _launch_lines(launch.kernel, program, defined)
        for call in step.calls:
            lines.append("    " + _call_text(call))
            defined.update(r for r in call.result_buffers if r is not None)
            unbacked = {
                s: location for s, location in program.unbacked_symbols.items() if location[0] in call.result_buffers
            }
            lines += [
                f"    {s} = {name}" + (f".shape[{dim}]" if dim >= 0 else "") for s, (name, dim) in unbacked.items()
            ]
        dead = [
            name
            for name, at in last_use.items()
            if at == number and name in program.buffers and program.buffers[name].kind == "intermediate"
        ]
        if dead:
            lines.append(f"    del {', '.join(dead)}")
    lines.append(f"    return ({''.join(_value_text(o) + ', ' for o in program.outputs).rstrip()})")
    return "\n".join(lines) + "\n"


def _last_uses(program: LoweredProgram) -> dict[str, int]:
    uses: dict[str, int] = {}
    for number, step in enumerate(program.steps):
        names = list(step.touched_buffers())
        new = [program.buffers[name] for name in names if name in program.buffers and name not in uses]
        names += [buffer.reuses for buffer in new if buffer.reuses]
        uses.update(dict.fromkeys(names, number))
    return uses


def _launch_lines(kernel: GeneratedKernel, program: LoweredProgram, defined: set[str]) -> list[str]:
    lines: list[str] = []
    for arg in kernel.args:
        if arg.kind == "pointer" and arg.buffer not in defined:
            defined.add(arg.buffer)
            buffer = program.buffers[arg.buffer]
            if buffer.reuses:
                lines.append(f"    {arg.buffer} = {buffer.reuses}  # the memory is reused")
                continue
            shape, stride = _tuple_text(buffer.shape), _tuple_text(buffer.stride)
            filled = (
                "" if arg.initial_value is None else f".{'copy' if arg.copied_buffer else 'fill'}_({arg.initial_value})"
            )
            lines.append(f"    {arg.buffer} = empty_strided({shape}, {stride}, {buffer.dtype}){filled}")
    grid = _tuple_text(kernel.grid)
    arguments = [arg.buffer if arg.kind == "pointer" else f"{arg.name}={arg.value}" for arg in kernel.args]
    lines.append(f"    {kernel.name}[{grid}]({', '.join(arguments)}, num_warps={kernel.num_warps})")
    return lines


def _tuple_text(values: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, values))}{',' if len(values) == 1 else ''})"


def _call_text(step: AtenCall) -> str:
    results = ", ".join(r or "_" for r in step.result_buffers)
    args = [_value_text(a) for a in step.args] + [f"{k}={_value_text(v)}" for k, v in step.kwargs.items()]
    name = _op_name(step.target)
    return f"{results} = {name}({', '.join(args)})  # {step.reason}"


def _value_text(value: Any) -> str:
    if isinstance(value, BufferRef):
        text = value.buffer
        if value.shape is not None:
            text = f"view({text}, {_tuple_text(value.shape)}, {_tuple_text(value.stride or ())}, {value.offset})"
        return f"view_as_complex({text})" if value.is_complex else text
    if isinstance(value, (tuple, list)):
        inside = ", ".join(_value_text(v) for v in value)
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    return repr(value) if type(value) is str else str(value)
