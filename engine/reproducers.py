"""Reproducers: files that show again what a session recorded, checked beforehand."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from engine import session_jobs
from engine.errors import BadArgument, NotReproduced
from engine.find_compilation import find_compilation
from engine.ir.kernels.lowered_program import CPU_TARGET
from engine.operator_definitions import operator_definitions
from engine.records.counts import is_user_error
from engine.records.graph import GraphRecord
from engine.records.kernels import KernelRecord
from engine.records.scripts.graph_script import (
    IMPORTS,
    CannotWrite,
    graph_function,
    graph_inputs,
    input_statement,
    result_layouts,
    symbol_values,
)
from engine.records.scripts.inductor_script import inductor_kernel_program
from engine.records.session import CompilationRecord, FrameRecord, Session
from engine.runtime.triton_interpreter import libdevice
from engine.runtime.verify.kernels import kernel_trials
from engine.runtime.verify.kernels_in_worker import BufferArgument, KernelTrial, buffer_arguments

TIMEOUT = 120.0
"""Seconds that a script may take in the child process."""
MAX_VALUES = 4096
"""Maximum number of elements of a tensor whose values are written into a script."""
DONE = "reproduced"
"""Last word of a script that shows what was recorded."""

Values = Mapping[str, torch.Tensor]

_MAKE = '''
def make(shape, stride, dtype, device="cpu", seed=0, low=None, high=None):
    """Return a tensor with this layout: seeded random values in a range."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    if dtype.is_floating_point or dtype.is_complex:
        low, high = (-1.0, 1.0) if low is None else (low, high)
        values = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
    else:
        low, high = (0, 1) if low is None else (int(low), int(high))
        values = torch.randint(low, high + 1, shape, generator=generator)
    return made.copy_(values.to(dtype))


def digest(values):
    """Return a digest of the layouts and of the values, to four digits."""
    text = []
    for value in values:
        if not isinstance(value, torch.Tensor):
            text.append(str(value))
            continue
        text.append(f"{value.dtype} {tuple(value.shape)} {value.stride()}")
        numbers = value.detach().cpu().to(torch.complex128 if value.is_complex() else torch.float64).flatten()
        text.append(" ".join(f"{v:.3e}" for v in numbers[:64].tolist()))
    return hashlib.sha256("\\n".join(text).encode()).hexdigest()[:16]
'''


@dataclass(frozen=True)
class Reproducer:
    """A script that showed the same as the session when it ran in a child process.

    ``symptom`` is one sentence about what it shows.
    """

    name: str
    text: str
    symptom: str

    def save(self, path: str | Path) -> Path:
        """Write the script to a file."""
        target = Path(path)
        target.write_text(self.text, encoding="utf-8")
        return target


def reproducer(
    session: Session, compilation: str, what: str = "", *, seed: int = 0, values: Values | None = None
) -> Reproducer:
    """Return one file that shows again what a session recorded of a compilation.

    Graphs and Inductor's C++ kernels need torch alone; Triton kernels torch and Triton, those of Inductor also a GPU;
    CPU kernels torch and llvmlite. Graph breaks, recompiles and failures need this compiler, whose version the file
    names. Inputs are made from shape, stride, dtype, value range and a seed. The file is run in a child process first.

    Args:
        session: a live or loaded session; kernels of this compiler need a live one.
        compilation: id of the compilation ("0/0").
        what: stage of a graph ("fx", "aten", "forward", ...), id of a kernel ("k0", "c0"), "break", "recompile" or
            "failure". Default: the failure, break or recompile that was recorded, else the first graph.
        seed: seed of the inputs.
        values: tensors whose values are written into the file, by name of the input. Nothing else of your data is.

    Raises:
        BadArgument: the compilation has no such graph, kernel or event.
        NotReproduced: the script cannot be written, or did not show the same in the child process.
    """
    record = find_compilation(session, compilation)
    what = what or _default_subject(record)
    kernels = {k.id: k for k in (*record.kernels, *record.cpu_kernels)}
    graphs = {g.stage: g for g in record.graphs}
    try:
        if what in graphs:
            script = _graph_script(session, record, graphs[what], seed, values or {})
        elif what in kernels:
            script = _kernel_script(session, record, kernels[what], seed)
        elif what in ("break", "recompile", "failure"):
            script = _engine_script(session, record, what)
        else:
            subjects = [*graphs, *kernels, "break", "recompile", "failure"]
            raise BadArgument(f"{compilation} has no {what!r}: choose one of {', '.join(subjects)}.")
    except CannotWrite as error:
        raise NotReproduced(f"No script can show {what} of {compilation}: {error}.") from error
    return _run_and_add_digest(script)


def _default_subject(record: CompilationRecord) -> str:
    if record.failures:
        return "failure"
    if record.trace is not None and record.trace.breaks:
        return "break"
    return record.graphs[0].stage if record.graphs else "recompile"


@dataclass(frozen=True)
class _Draft:
    """A script before its check, and what the child process needs to run it."""

    name: str
    text: str
    symptom: str
    environment: Mapping[str, str]


def _graph_script(session: Session, record: CompilationRecord, graph: GraphRecord, seed: int, values: Values) -> _Draft:
    symbols = symbol_values(record)
    statements = []
    for number, node in enumerate(graph_inputs(graph)):
        inputs = (
            input_statement(node, symbols, seed + number) if node.name not in values else _values(values[node.name])
        )
        statements.append(f"{node.name} = {inputs}")
    layouts = [
        None if layout is None else (f"torch.{layout[0]}", *(tuple(_concrete(part, symbols)) for part in layout[1:]))
        for layout in result_layouts(graph)
    ]
    names = ", ".join(n.name for n in graph_inputs(graph))
    body = f"""\
{graph_function(graph)}


{chr(10).join(statements)}
torch.manual_seed({seed})
results = graph({names})
LAYOUTS = {layouts!r}  # as recorded: dtype, shape, strides
for number, (value, layout) in enumerate(zip(results, LAYOUTS)):
    found = (str(value.dtype), tuple(value.shape), value.stride()) if layout else None
    print(f"result {{number}}: {{found}}")
    assert found == layout, f"result {{number}} was recorded as {{layout}}"
"""
    title = f"{graph.title} of {record.id}"
    results = "1 result" if len(layouts) == 1 else f"{len(layouts)} results"
    symptom = f"The graph returns {results} with the recorded dtypes, shapes and strides."
    operators = operator_definitions(n.text for n in graph.nodes)
    return _make_draft(session, record, title, symptom, f"{IMPORTS}import hashlib\n{_MAKE}\n\n{operators}{body}")


def _concrete(sizes: Iterable[str], symbols: Mapping[str, int | float]) -> Iterable[int]:
    for size in sizes:
        if not size.isdigit() and size not in symbols:
            raise CannotWrite(f"the size {size} of a result is not known")
        yield int(size) if size.isdigit() else int(symbols[size])


def _values(value: torch.Tensor) -> str:
    """Return an expression that rebuilds a tensor with its strides, dtype, device and values."""
    if value.numel() > MAX_VALUES:
        raise CannotWrite(f"{value.numel():,} values are more than the {MAX_VALUES:,} that a script may hold")
    text = repr(value.detach().cpu().tolist())
    return f'torch.empty_strided({tuple(value.shape)}, {value.stride()}, dtype={value.dtype}, device="{value.device}").copy_(torch.tensor({text}))'


def _make_draft(
    session: Session,
    record: CompilationRecord,
    title: str,
    symptom: str,
    program: str,
    environment: Mapping[str, str] | None = None,
) -> _Draft:
    versions = ", ".join(f"{name} {version}" for name, version in session.versions.items())
    head = f'"""{title} ({record.compiler}, backend {record.backend or "none"}), with {versions}.\n\n{symptom}\n"""\n\n'
    check = f"""\
EXPECTED = ""
print("digest", digest(results))
assert EXPECTED in ("", digest(results)), "the values differ from those when this file was written"
print("{DONE}")
"""
    return _Draft(title, f"{head}{program}{check}", symptom, environment or {})


def _kernel_script(session: Session, record: CompilationRecord, kernel: KernelRecord, seed: int) -> _Draft:
    for lowered in session_jobs.lowered_graphs_of(session).get(record.id, ()):
        for source, trial in kernel_trials(lowered.program, lowered.graph, lowered.inputs):
            if source.id == kernel.id and (lowered.program.target == CPU_TARGET) == (kernel.language == "llvm"):
                return _trial_script(session, record, kernel, trial, seed)
    if record.compiler == "torch" and kernel.language in ("cpp", "triton"):
        if kernel.language == "triton" and not torch.cuda.is_available():
            raise CannotWrite(
                "a Triton kernel of Inductor needs a GPU, and this machine has none; its graph has a script"
            )
        symptom = "The kernel runs on inputs of the recorded layouts."
        program = f"{_INDUCTOR_HEAD}{_MAKE}\n\n{inductor_kernel_program(record, kernel, seed)}"
        return _make_draft(session, record, f"kernel {kernel.name} of {record.id}", symptom, program)
    raise CannotWrite("the session was loaded, or the kernel's arguments are not known without a call")


def _trial_script(
    session: Session, record: CompilationRecord, kernel: KernelRecord, trial: KernelTrial, seed: int
) -> _Draft:
    statements, names, written = [], [], []
    for number, argument in enumerate(trial.arguments):
        name = f"argument{number}"
        names.append(name)
        if buffer_arguments([argument]):
            statements.append(f"{name} = {_buffer(argument, seed + number, kernel.language)}")  # type: ignore[arg-type]
            written += [name] if argument.written else []  # type: ignore[union-attr]
        else:
            statements.append(f"{name} = {argument!r}")
    inputs = "\n".join(statements)
    results = f"results = ({', '.join(written)},)\n"
    title = f"kernel {trial.name} of {record.id}"
    symptom = "The kernel runs on inputs of the recorded layouts and value ranges."
    if kernel.language == "llvm":
        program = f'{_LLVM_HEAD}{_MAKE}\n\nTEXT = r"""\n{trial.text}"""\n\n{_LLVM_LAUNCH}\n{inputs}\n'
        program += f"run({trial.name!r}, [{', '.join(names)}], {trial.grid[0]})\n{results}"
        return _make_draft(session, record, title, symptom, program)
    head = _TRITON_HEAD
    if "libdevice." in trial.text:
        head += f"{inspect.getsource(libdevice).partition(_FUTURE)[2]}{_INSTALL_LIBDEVICE}"
    program = f"{head}{_MAKE}\n\n{trial.text}\n\n{inputs}\n"
    program += f"{trial.name}[{trial.grid}]({', '.join(names)})\n{results}"
    return _make_draft(session, record, title, symptom, program, {"TRITON_INTERPRET": "1"})


def _buffer(argument: BufferArgument, seed: int, language: str) -> str:
    span = ""
    value = argument.value
    if value is not None and value.numel() and not value.is_complex():
        numbers = value.double()
        numbers = numbers[numbers.isfinite()]
        if numbers.numel():
            low, high = float(numbers.min()), float(numbers.max())
            span = f", low={low:.6g}, high={high:.6g}"
    device = '"cpu"' if language == "llvm" else '"cuda" if torch.cuda.is_available() else "cpu"'
    return f"make({argument.shape}, {argument.stride}, {argument.dtype}, {device}, seed={seed}{span})"


_TRITON_HEAD = """\
import hashlib
import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: its interpreter runs the kernel
"""
_FUTURE = "from __future__ import annotations\n"
_INSTALL_LIBDEVICE = """

if not torch.cuda.is_available():
    install_libdevice()  # the functions that Triton's interpreter lacks

"""
_INDUCTOR_HEAD = """\
import hashlib

import torch
from torch._inductor.async_compile import AsyncCompile
"""
_LLVM_HEAD = """\
import ctypes
import hashlib

import llvmlite.binding as llvm
import torch
"""
_LLVM_LAUNCH = '''
def run(name, arguments, extent):
    """Compile the kernel for this CPU and run all its iterations on one thread."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    module = llvm.parse_assembly(TEXT + "\\nattributes #0 = { nounwind }\\n")
    module.triple, module.data_layout = llvm.get_default_triple(), str(machine.target_data)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    slots = (ctypes.c_uint64 * max(1, len(arguments)))()
    for number, value in enumerate(arguments):
        kind = ctypes.c_double if isinstance(value, float) else ctypes.c_int64
        given = value.data_ptr() if isinstance(value, torch.Tensor) else value
        ctypes.memmove(ctypes.addressof(slots) + 8 * number, ctypes.byref(kind(given)), 8)
    status = function(engine.get_function_address(name))(ctypes.addressof(slots), 0, extent)
    assert status == 0, f"check {status} of the kernel's indices failed"

'''


def _engine_script(session: Session, record: CompilationRecord, what: str) -> _Draft:
    """Return a script that compiles the recorded calls again by the same compiler."""
    frame = _called_frame(session, record)
    until = session.compilations[: session.compilations.index(record) + 1]
    compilations = [c for c in until if c.frame == frame.id]
    scripts = [session.repro_script(c.id) for c in (compilations if what == "recompile" else compilations[-1:])]
    calls = [script.strip().splitlines()[-1] for script in scripts]
    if any("= ..." in script for script in scripts):
        raise CannotWrite("an input is neither a tensor nor a constant")
    if not calls or not all(c.startswith("engine.compile(") for c in calls):
        raise CannotWrite("the frame is not a function at the top level of a file, but for example a method")
    head, _, _ = scripts[-1].rstrip().rpartition("\n\n")
    blocks = []
    for script in scripts:
        *setup, call = script.rstrip().rpartition("\n\n")[2].splitlines()
        statement = f"results = {_with_backend(call, record)}"
        if what == "break" and _raises(record):
            statement = f"try:\n    {statement}\nexcept Exception as error:\n    print(type(error).__name__)"
        blocks.append("\n".join([*setup, statement]))
    check, symptom = _event_check(record, what)
    body = textwrap.indent("\n".join(blocks), "    ")
    text = f"{head}\n\nwith engine.record() as session:\n{body}\n{check}\nprint({DONE!r})\n"
    return _Draft(f"{what} of {record.id}", text, symptom, {})


def _called_frame(session: Session, record: CompilationRecord) -> FrameRecord:
    """Return the frame that a user calls: of a resume function, the one that broke."""
    frames = {frame.id: frame for frame in session.frames}
    frame = frames[record.frame]
    while frame.role == "resume":
        frame = frames[frame.parent]
    return frame


def _raises(record: CompilationRecord) -> bool:
    """Return True if the function itself raised in the recorded call."""
    return record.trace is not None and any(b.kind == "raises" for b in record.trace.breaks)


def _with_backend(call: str, record: CompilationRecord) -> str:
    name, _, rest = call.removeprefix("engine.compile(").partition(")")
    backend = f", backend={record.backend!r}" if record.backend in ("eager", "aot_eager", "triton", "inductor") else ""
    return f"engine.compile({name}{backend}){rest}"


def _event_check(record: CompilationRecord, what: str) -> tuple[str, str]:
    """Return statements that compare an event with the recorded one, and a sentence."""
    if what == "failure" and record.failures:
        failure = record.failures[0].sentence
        return _assertion("[f.sentence for c in session.compilations for f in c.failures]", failure), failure
    if what == "break" and record.trace is not None and record.trace.breaks:
        stop = record.trace.breaks[0]
        title = stop.title
        listed = "[b.title for c in session.compilations if c.trace for b in c.trace.breaks]"
        sentence = stop.context if is_user_error(stop) else f"The graph breaks: {title}"
        return _assertion(listed, title), f"{sentence.rstrip('.')}."
    if what == "recompile" and not record.id.endswith("/0"):
        return _assertion("[c.cause for c in session.compilations]", record.cause), f"It recompiles: {record.cause}"
    raise CannotWrite(f"no {what} was recorded for this compilation")


def _assertion(listed: str, wanted: str) -> str:
    return f"found = {listed}\nprint(*found, sep='\\n')\nassert {wanted!r} in found, found"


_DRIVER = """\
import pathlib, runpy, sys
path = pathlib.Path(sys.argv[1])
found = runpy.run_path(str(path))
if "EXPECTED" in found:
    made = path.read_text(encoding="utf-8").replace('EXPECTED = ""', f"EXPECTED = {found['digest'](found['results'])!r}")
    path.write_text(made, encoding="utf-8")
    runpy.run_path(str(path))
"""


def _run_and_add_digest(draft: _Draft) -> Reproducer:
    """Run a script in a child process; write the digest of its results into it.

    Raises:
        NotReproduced: it failed, or did not end.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reproducer.py"
        path.write_text(draft.text, encoding="utf-8")
        root = str(Path(__file__).parents[1])
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        environment |= {"PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1"}
        if not torch.cuda.is_available():
            environment |= draft.environment
        try:
            ran = subprocess.run(
                [sys.executable, "-c", _DRIVER, str(path)],
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                env=environment,
                cwd=folder,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise NotReproduced(f"The script for {draft.name} did not end within {TIMEOUT:g} s.") from None
        text = path.read_text(encoding="utf-8")
    if ran.returncode or not ran.stdout.rstrip().endswith(DONE):
        last = (ran.stderr.strip().splitlines() or [f"exit status {ran.returncode}"])[-1]
        raise NotReproduced(f"The script for {draft.name} does not show what was recorded: {last}")
    return Reproducer(draft.name, text, draft.symptom)
