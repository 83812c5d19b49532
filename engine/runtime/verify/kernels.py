"""Kernel verification, host side: compare each kernel with ATen.

Kernels for the CPU run in this process, as they did in the call. A worker process interprets those for a GPU. Each
kernel reads ATen's intermediate values, so one kernel's error cannot show in another.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import sympy
import torch
import torch.fx

from engine.errors import named_error_line
from engine.ir.introspection.operator_facts import draws_random
from engine.ir.kernels.compile_llvm import CannotCompile
from engine.ir.kernels.generated_kernel import GeneratedKernel, KernelArg, Size
from engine.ir.kernels.lowered_program import CPU_TARGET, LoweredProgram
from engine.ir.kernels.symbol_locations import read_symbol
from engine.ir.node_values import map_tensors
from engine.ir.static_sizes import static_size
from engine.records.kernels import VerifyRecord
from engine.runtime.cpu_launcher import cpu_launcher
from engine.runtime.program_text import runtime_asserts
from engine.runtime.verify.fp64_reference import fp64_values, real_parts
from engine.runtime.verify.kernels_in_worker import (
    BufferArgument,
    KernelComparison,
    KernelTrial,
    buffer_arguments,
    compare_results,
)
from engine.runtime.workers.process_pool import INTERPRETER_IDLE_SECONDS, WorkerFailed, WorkerPool

INTERPRETER_NAME = "Triton's interpreter"
CPU_NAME = "this CPU"
TIMEOUT = 120.0
"""Seconds that one kernel may take in the interpreter."""
MAX_ELEMENTS = 1 << 28
"""Maximum number of elements in one kernel's buffers; more would take hours to interpret."""

# TRITON_INTERPRET must be set before Triton is imported, so this pool is separate.
_pool = WorkerPool(1, {"TRITON_INTERPRET": "1"}, idle_seconds=INTERPRETER_IDLE_SECONDS)


class HasGraphModule(Protocol):
    """The part of ``AotGraph`` that verification needs."""

    @property
    def module(self) -> torch.fx.GraphModule:
        """The functional ATen graph."""
        ...


def verify_kernels(
    program: LoweredProgram, graph: HasGraphModule | None, inputs: Iterable[Any]
) -> dict[str, VerifyRecord]:
    """Return the verification record of every kernel, by kernel id, on these inputs.

    The inputs are not changed. The first kernel that differs is marked in its note.
    A kernel that cannot be run alone is "not verifiable", with the reason.
    """
    try:
        verification = _verification(program, graph, inputs)
    except ValueError as error:
        return _all_unverifiable(program, str(error))
    return verification.run()


def kernel_trials(
    program: LoweredProgram, graph: HasGraphModule | None, inputs: Iterable[Any]
) -> Iterator[tuple[GeneratedKernel, KernelTrial]]:
    """Yield the launches that can be run alone on these inputs, with their arguments."""
    try:
        verification = _verification(program, graph, inputs)
    except ValueError:
        return
    for kernel in program.kernels:
        with contextlib.suppress(ValueError):  # A size is not known.
            yield kernel, verification.trial(kernel)


def kernel_trial(
    program: LoweredProgram, graph: HasGraphModule | None, inputs: Iterable[Any], kernel: str
) -> tuple[GeneratedKernel, KernelTrial]:
    """Return a kernel, given by its id, with the arguments of its first launch.

    Raises:
        ValueError: why it cannot be run alone.
    """
    verification = _verification(program, graph, inputs)
    for candidate in program.kernels:
        if candidate.id == kernel:
            if reason := verification.why_unavailable(candidate):
                raise ValueError(reason)
            return candidate, verification.trial(candidate)
        if any(a.buffer not in verification.values for a in candidate.args if a.is_written):
            verification.verify_kernel(candidate)  # for its scratch buffers
    raise ValueError("the program does not launch it")


def _verification(program: LoweredProgram, graph: HasGraphModule | None, inputs: Iterable[Any]) -> _Verification:
    """Prepare to run kernels on ATen's values.

    Raises:
        ValueError: why they cannot be computed.
    """
    module = program.reference_graph
    if module is None and graph is not None:
        module = graph.module
    if module is None:
        raise ValueError("there is no ATen graph to compare with")
    inputs = tuple(_on_cpu(x) for x in inputs)
    if len(inputs) > len(module.graph.find_nodes(op="placeholder")):
        raise ValueError("inputs of the call share memory, and its graph reads them from one input in their place")
    try:
        values = _reference_values(module, inputs, _values_needed(program), program.multi_output_buffers)
        sizes = _SizeValues(program, inputs, values)
        broken = sizes.violated_assertion()
    except Exception as error:
        raise ValueError(f"the ATen graph could not be run on the CPU: {named_error_line(error)}") from error
    if broken:
        raise ValueError(f"its graph assumes {broken}, which is false for these values")
    return _Verification(program, module, _placeholders(module, inputs), sizes, values)


def _placeholders(module: torch.fx.GraphModule, inputs: tuple[Any, ...]) -> dict[str, Any]:
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    return dict(zip(names, inputs, strict=True))


def _matches_buffer(exact: torch.Tensor | None, pointer: BufferArgument) -> bool:
    return (
        exact is not None and pointer.written and exact.dtype is torch.float64 and tuple(exact.shape) == pointer.shape
    )


def _place_of(target: str) -> str:
    return CPU_NAME if target == CPU_TARGET else INTERPRETER_NAME


def _all_unverifiable(program: LoweredProgram, reason: str) -> dict[str, VerifyRecord]:
    return {k.id: _unverifiable(reason, _place_of(program.target)) for k in program.kernels}


def _unverifiable(reason: str, target_text: str) -> VerifyRecord:
    return VerifyRecord("not verifiable", target_text, note=f"not verifiable: {reason}")


def _on_cpu(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    # A copy with the same strides: the ATen graph may mutate its inputs.
    return value.detach().to("cpu", copy=True, memory_format=torch.preserve_format)


def _device_on_cpu(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _values_needed(program: LoweredProgram) -> frozenset[str]:
    arguments = [a for k in program.kernels for a in k.args]
    starts = frozenset(a.copied_buffer for a in arguments if a.copied_buffer)
    telling = frozenset(name for name, _ in program.unbacked_symbols.values()) | program.assumed_numbers.keys()
    return starts | telling | frozenset(a.buffer for a in arguments if a.kind == "pointer")


class _ValueRecorder(torch.fx.Interpreter):
    """Runs the ATen graph and stores the values of nodes that kernels read or write."""

    def __init__(
        self, module: torch.fx.GraphModule, needed: frozenset[str], parts: Mapping[str, tuple[str, int]]
    ) -> None:
        super().__init__(module)
        self._needed = needed
        self._parts = {location: name for name, location in parts.items()}
        self.values: dict[str, Any] = {}

    def fetch_args_kwargs_from_env(self, n: torch.fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a node's arguments with devices replaced by the CPU."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        moved: tuple[tuple[Any, ...], dict[str, Any]] = torch.fx.node.map_aggregate((args, kwargs), _device_on_cpu)
        return moved

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return a constant of the graph, on the CPU."""
        return map_tensors(torch.Tensor.cpu, (super().get_attr(target, args, kwargs),))[0]

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one node and store a copy of its value, as a later node may mutate it."""
        value = super().run_node(n)
        several = enumerate(value) if isinstance(value, (tuple, list)) else ()
        results = {self._parts[n.name, i]: v for i, v in several if (n.name, i) in self._parts} or {n.name: value}
        for name, result in results.items():
            if name in self._needed:
                is_tensor = isinstance(result, torch.Tensor)
                self.values.setdefault(name, real_parts(result.detach()).clone() if is_tensor else result)
        return value


def _reference_values(
    module: torch.fx.GraphModule, inputs: tuple[Any, ...], needed: frozenset[str], parts: Mapping[str, tuple[str, int]]
) -> dict[str, Any]:
    recorder = _ValueRecorder(module, needed, parts)
    # The state is put back only after a graph that may draw: a cell can draw in another thread meanwhile.
    with torch.no_grad(), torch.random.fork_rng(devices=[], enabled=any(map(_may_draw, module.graph.nodes))):
        recorder.run(*(v.clone_state() if isinstance(v, torch.Generator) else v for v in inputs))
    return recorder.values


def _may_draw(node: torch.fx.Node) -> bool:
    is_known = getattr(node.target, "namespace", "") == "aten" or node.target is operator.getitem
    return draws_random(node) or not (is_known or node.op != "call_function")


class _SizeValues:
    """Values of the program's sizes and numbers for these inputs."""

    def __init__(self, program: LoweredProgram, inputs: tuple[Any, ...], values: Mapping[str, Any]) -> None:
        self._known = {
            symbol: read_symbol(inputs[index], location) for symbol, (index, location) in program.symbol_sources.items()
        }
        self._known |= {name: values[name] for name in program.assumed_numbers if name in values}
        self._assumptions = tuple(runtime_asserts(program))
        for symbol, (name, dimension) in program.unbacked_symbols.items():
            if name in values:
                self._known[symbol] = values[name] if dimension < 0 else values[name].shape[dimension]

    def concrete(self, size: Any) -> int:
        """Return the integer value of a size.

        Raises:
            ValueError: it has a symbol that no input provides.
        """
        number = static_size(size)
        if number is not None:
            return number
        values = {s: self._known[str(s)] for s in size.free_symbols if str(s) in self._known}
        number = static_size(size.subs(values))
        if number is None:
            raise ValueError(f"the size {size} is not known")
        return number

    def float_value(self, number: Any) -> float:
        """Return the value of a float expression over sizes and inputs.

        Raises:
            ValueError: it has a symbol that no input provides.
        """
        values = {s: self._known[str(s)] for s in number.free_symbols if str(s) in self._known}
        value = number.subs(values)
        if not value.is_number:
            raise ValueError(f"the number {number} is not known")
        return float(value)

    def violated_assertion(self) -> str:
        """Return the first runtime assert of the graph that these inputs violate; empty if none."""
        for relation in self._assumptions:
            values = {s: self._known[str(s)] for s in relation.free_symbols if str(s) in self._known}
            if relation.subs(values) == sympy.false:
                return str(relation)
        return ""

    def concrete_all(self, sizes: Iterable[Size]) -> tuple[int, ...]:
        """Return the integer values of several sizes."""
        return tuple(self.concrete(size) for size in sizes)


@dataclass
class _Verification:
    """Verification of one program's kernels.

    ``kernel_written``: buffers without an ATen node, as earlier kernels wrote them.
    """

    program: LoweredProgram
    module: torch.fx.GraphModule
    placeholder_values: dict[str, Any]
    sizes: _SizeValues
    values: dict[str, Any]
    kernel_written: dict[str, torch.Tensor] = field(default_factory=dict)

    def run(self) -> dict[str, VerifyRecord]:
        """Verify all kernels in launch order; repeated launches record the worst outcome."""
        records: dict[str, VerifyRecord] = {}
        differs = False
        for kernel in self._launched_kernels():
            record = self.verify_kernel(kernel)
            if record.outcome == "different" and not differs:
                differs = True
                record = replace(record, note=f"first kernel that differs: {record.note}")
            previous = records.get(kernel.id)
            if previous is None or _rank(record) > _rank(previous):
                records[kernel.id] = record
        return records

    def _launched_kernels(self) -> Iterator[GeneratedKernel]:
        return iter(self.program.kernels)

    def verify_kernel(self, kernel: GeneratedKernel) -> VerifyRecord:
        """Run one kernel and compare its results with ATen's."""
        target_text = _place_of(self.program.target)
        try:
            if reason := self.why_unavailable(kernel):
                return _unverifiable(reason, target_text)
            trial = self.trial(kernel)
        except ValueError as error:  # a size is not known
            return _unverifiable(str(error), target_text)
        if reason := _why_too_large(trial):
            return _unverifiable(reason, target_text)
        try:
            outcome = _run_on_cpu(kernel, trial) if target_text == CPU_NAME else _interpret(trial)
        except (WorkerFailed, CannotCompile) as error:
            return _unverifiable(f"{'on' if target_text == CPU_NAME else 'in'} {target_text}, {error}", target_text)
        self.kernel_written.update(outcome.written)
        return VerifyRecord(outcome.outcome, target_text, outcome.max_error, outcome.tolerance, outcome.note)

    def trial(self, kernel: GeneratedKernel) -> KernelTrial:
        """Return the launch of a kernel with ATen's values as its arguments."""
        arguments = self._with_fp64_reference(tuple(self._argument(a) for a in kernel.args))
        x, y, z = (*self.sizes.concrete_all(kernel.grid), 1, 1, 1)[:3]
        return KernelTrial(kernel.name, kernel.text, arguments, (x, y, z))

    def _with_fp64_reference(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Add float64 reference values to the arguments that the kernel writes, where possible."""
        pointers = buffer_arguments(arguments)
        buffers = [p.buffer for p in pointers if p.expected is not None and p.expected.is_floating_point()]
        known_values = {
            **self.placeholder_values,
            **{p.buffer: p.value for p in pointers if p.value is not None and p.buffer not in buffers},
        }
        exact = fp64_values(self.module, known_values, buffers, self.program.multi_output_buffers) if buffers else {}
        return tuple(
            replace(a, fp64_reference=reference)
            if isinstance(a, BufferArgument) and _matches_buffer(reference := exact.get(a.buffer), a)
            else a
            for a in arguments
        )

    def _argument(self, argument: KernelArg) -> BufferArgument | int | float | bool | str | None:
        if argument.kind == "pointer":
            return self._pointer(argument)
        value: Any = argument.value
        if argument.is_fraction:
            return self.sizes.float_value(value)
        return value if value is None or isinstance(value, (bool, float, str)) else self.sizes.concrete(value)

    def why_unavailable(self, kernel: GeneratedKernel) -> str:
        """Return why a kernel cannot run alone; empty if it can."""
        return next(filter(None, map(self._why_unavailable, kernel.args)), "")

    def _why_unavailable(self, argument: KernelArg) -> str:
        """Return why the kernel cannot run alone because of a buffer; empty if it can."""
        if argument.kind != "pointer":
            return ""
        name, buffer = argument.buffer, self.program.buffers[argument.buffer]
        shape, reference = self.sizes.concrete_all(buffer.shape), self.values.get(name)
        if reference is not None and (tuple(reference.shape) != shape or reference.dtype != buffer.dtype):
            actual = f"{reference.dtype} {tuple(reference.shape)}"
            return f"{name} is {buffer.dtype} {shape}, but the ATen node of that name {actual}"
        if argument.is_written and buffer.kind == "input":
            return f"it writes to the input {name}"
        read, verb = (argument.initial_value, "updates a copy of") if argument.is_written else (name, "reads")
        if read is not None and self._contents(argument, buffer.dtype, shape) is None:
            return f"it {verb} {read}, which has no ATen node and no earlier kernel computed"
        return ""

    def _contents(self, argument: KernelArg, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor | None:
        """Return the contents of a buffer before the launch; None if they are not known."""
        start = argument.initial_value if argument.is_written else argument.buffer
        if start is None:
            return self.kernel_written.get(argument.buffer)
        if not isinstance(start, str):
            return torch.full(shape, start, dtype=dtype)
        tensor: torch.Tensor | None = self.values.get(start)
        return self.kernel_written.get(start) if tensor is None else tensor

    def _pointer(self, argument: KernelArg) -> BufferArgument:
        name = argument.buffer
        buffer = self.program.buffers[name]
        shape, stride = self.sizes.concrete_all(buffer.shape), self.sizes.concrete_all(buffer.stride)
        contents = self._contents(argument, buffer.dtype, shape)
        reference = self.values.get(name) if argument.is_written else None
        return BufferArgument(
            argument.name, name, buffer.dtype, shape, stride, contents, reference, written=argument.is_written
        )


def _interpret(trial: KernelTrial) -> KernelComparison:
    """Run a kernel in Triton's interpreter, in a worker.

    Raises:
        WorkerFailed: the kernel takes too long, or the interpreter raises.
    """
    _pool.call("engine.runtime.verify.kernels_in_worker:warm_up", ())  # excludes loading Triton from the timeout
    outcome: KernelComparison = _pool.call(
        "engine.runtime.verify.kernels_in_worker:run_and_compare", (trial,), timeout=TIMEOUT
    )
    return outcome


def _run_on_cpu(kernel: GeneratedKernel, trial: KernelTrial) -> KernelComparison:
    """Run the compiled kernel in this process.

    Raises:
        CannotCompile: LLVM rejects the kernel.
    """
    launch, failed_checks = cpu_launcher(kernel), list[int]()

    def run(*values: Any) -> None:
        pairs = zip(kernel.args, values, strict=True)
        status = launch(*(v.data_ptr() if a.kind == "pointer" else v for a, v in pairs))
        failed_checks.append(status)

    outcome = compare_results(trial, run)
    if any(failed_checks):
        return KernelComparison("not verifiable", note="not verifiable: a check of its indices fails, and ATen raises")
    return outcome


def _why_too_large(trial: KernelTrial) -> str:
    elements = sum(map(_extent, buffer_arguments(trial.arguments)))
    return f"its buffers hold {elements:,} elements, too many to interpret" if elements > MAX_ELEMENTS else ""


def _extent(pointer: BufferArgument) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(pointer.shape, pointer.stride, strict=True)) if all(pointer.shape) else 0


def _rank(record: VerifyRecord) -> int:
    return ("equal", "close", "not verifiable", "different").index(record.outcome)
