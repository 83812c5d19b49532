"""Program executor: a program bound to a device; it runs the Python of program_text.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from engine.errors import KernelBuildError
from engine.ir.kernels.compile_triton import ALIGNMENT, compile_unit_of
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.kernels.lowered_program import LoweredProgram
from engine.ir.node_values import tensors_by_position, tensors_in
from engine.runtime.aten_fallback import GeneratedRun
from engine.runtime.kernel_launchers import KernelBinder, Launcher, gpu_launcher
from engine.runtime.program_text import OutputMemory, ProgramWriter
from engine.runtime.record_launches import LaunchReporter, add_program, is_recording_launches
from engine.torch_private.cuda import current_device_index

Run = Callable[..., tuple[Any, ...]]
BUILD_THREADS = 4
"""Threads that load the kernels of one program."""


class ProgramExecutor(GeneratedRun):
    """``run(*inputs) -> tuple``, which runs a program on the inputs' device.

    ``text`` is the generated Python, after the first call.
    """

    def __init__(
        self,
        program: LoweredProgram,
        bind: KernelBinder = gpu_launcher,
        *,
        is_boxed: bool = False,
        compilation: str = "",
        output_memory: OutputMemory | None = None,
    ) -> None:
        """Compile the kernels now, so that their errors occur here and not in the first call.

        With ``is_boxed`` it is ``run([inputs])``, which empties the list: each input can be freed after its last use.
        A program of a ``compilation`` reports its launches to sessions that ask for them. Outputs are allocated inside
        the context that ``output_memory`` returns.

        Raises:
            KernelBuildError: a kernel does not compile for this GPU, or needs more resources than it has.
        """
        self._program = program
        self._bind = bind
        self._is_boxed = is_boxed
        self._compilation = compilation
        self._output_memory = output_memory
        self._launchers: dict[frozenset[str], dict[str, Launcher]] = {}
        self.text = ""
        self._launchers_for(frozenset())
        if compilation:
            add_program(self)

    def forget_generated_code(self) -> None:
        """Generate the Python again at the next call; the kernels stay bound."""
        self.function = None

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run the program; return its outputs."""
        return (self.function or self._compile_for_devices(self._input_values(inputs)))(*inputs)

    def _input_values(self, inputs: tuple[Any, ...]) -> Sequence[Any]:
        return inputs[0] if self._is_boxed else inputs

    def _launchers_for(self, misaligned: frozenset[str]) -> dict[str, Launcher]:
        """Return launchers by name, for inputs of which ``misaligned`` are not 16-byte aligned."""
        launchers = self._launchers.get(misaligned)
        if launchers is None:
            kernels = {f"launch{n}": k.kernel for n, s in enumerate(self._program.steps) for k in s.launches}
            bound = self._bind_kernels(tuple(kernels.values()), misaligned)
            launchers = self._launchers[misaligned] = dict(zip(kernels, bound, strict=True))
        return launchers

    def _bind_kernels(self, kernels: tuple[GeneratedKernel, ...], misaligned: frozenset[str]) -> list[Launcher]:
        """Return the launchers of all kernels; equal kernels are bound once, on a GPU in parallel."""

        def odd(kernel: GeneratedKernel) -> frozenset[str]:
            return frozenset(a.name for a in kernel.args if a.kind == "pointer" and a.buffer in misaligned)

        def bind(kernel: GeneratedKernel) -> Launcher:
            try:
                return self._bind(kernel, odd(kernel))
            except Exception as error:
                raise KernelBuildError(kernel.name, error, kernel.nodes) from error

        units = [compile_unit_of(kernel, odd(kernel)) for kernel in kernels]
        distinct = dict(zip(units, kernels, strict=True))
        bound = dict(zip(distinct, self._map_in_threads(bind, tuple(distinct.values())), strict=True))
        return [bound[unit] for unit in units]

    def _map_in_threads(
        self, bind: Callable[[GeneratedKernel], Launcher], kernels: tuple[GeneratedKernel, ...]
    ) -> list[Launcher]:
        if self._bind is not gpu_launcher or len(kernels) < 2:
            return [bind(kernel) for kernel in kernels]
        device = torch.cuda.current_device()

        def bind_there(kernel: GeneratedKernel) -> Launcher:
            with torch.cuda.device(device):  # a new thread starts on device 0
                return bind(kernel)

        with ThreadPoolExecutor(BUILD_THREADS, thread_name_prefix="engine-build") as pool:
            return list(pool.map(bind_there, kernels))

    def _compile_for_devices(self, inputs: Sequence[Any]) -> Run:
        """Generate and load the Python for the devices of these inputs (guards ensure they stay)."""
        gpu = next((x.device for x in tensors_in(inputs) if x.is_cuda), None)
        device = gpu or torch.device("cuda" if self._bind is gpu_launcher else "cpu")
        if device.type == "cuda":
            device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        scalars = frozenset(
            self._program.inputs[n]
            for n, x in tensors_by_position(inputs).items()
            if x.device.type == "cpu" != device.type
        )
        report = None
        if self._compilation and is_recording_launches():
            report = LaunchReporter(self._compilation)
        writer = ProgramWriter(self._program, device, scalars, self._is_boxed, report, self._output_memory)
        self.text = writer.text()
        if device.type != "cuda":
            self.function = self._load(writer, self._launchers_for(frozenset()))
            return self.function
        if device.index != torch.cuda.current_device():
            self._launchers.clear()
        with torch.cuda.device(device):
            self.function = self._with_device_guard(self._load(writer, self._launchers_for(frozenset())), device)
        return self.function

    def _with_device_guard(self, run: Run, device: torch.device) -> Run:
        """Return ``run`` under a device guard, which does nothing if the device is current."""
        get_device, index = current_device_index, device.index

        def on_device(*inputs: Any) -> tuple[Any, ...]:
            if get_device() == index:
                return run(*inputs)
            with torch.cuda.device(device):
                return run(*inputs)

        return on_device

    def _load(self, writer: ProgramWriter, launchers: dict[str, Launcher]) -> Run:
        namespace: dict[str, Any] = {**writer.constants, **launchers, "misaligned_run": self._misaligned_run(writer)}
        exec(compile(self.text, "<engine program>", "exec"), namespace)
        run: Run = namespace["run"]
        return run

    def _misaligned_run(self, writer: ProgramWriter) -> Run:
        """Return a ``run`` for misaligned inputs; compiles one variant per set of those."""
        loaded: dict[frozenset[str], Run] = {}

        def run(*inputs: Any) -> tuple[Any, ...]:
            odd = frozenset(
                self._program.inputs[n]
                for n, x in tensors_by_position(self._input_values(inputs)).items()
                if x.data_ptr() % ALIGNMENT
            )
            if odd not in loaded:
                namespace: dict[str, Any] = {**writer.constants, **self._launchers_for(odd)}
                exec(compile(writer.text(checks=False), "<engine program>", "exec"), namespace)
                loaded[odd] = namespace["run"]
            return loaded[odd](*inputs)

        return run
