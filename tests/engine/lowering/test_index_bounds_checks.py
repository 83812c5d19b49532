"""Out-of-bounds indices stop a kernel and name the line; on CPU eager's error is raised."""

from __future__ import annotations

import inspect
import linecache
from typing import Any

import pytest
import torch

import engine
from engine.ir.user_code_files import cell_names
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.runtime.verify.kernels_in_worker import BufferArgument, KernelTrial
from engine.runtime.workers.process_pool import WorkerFailed, WorkerPool
from tests.engine.lowering.trace_aten import trace_to_aten
from tests.markers import needs_triton

pytestmark = needs_triton
F = torch.nn.functional
CHECK = "tl.device_assert("
TABLE, GOOD, BAD = torch.randn(5, 4), torch.tensor([0, 4]), torch.tensor([0, 5])

LOOK_UPS: dict[str, Any] = {
    "index": lambda table, at: table[at],
    "embedding": lambda table, at: F.embedding(at, table),
    "gather": lambda table, at: table.gather(0, at[:, None].expand(2, 4)),
    "index_select": lambda table, at: table.index_select(0, at),
    "scatter": lambda table, at: table.scatter(0, at[:, None].expand(2, 4), 1.0),
    "index_add": lambda table, at: table.index_add(0, at, table[:2]),
    "index_put": lambda table, at: table.index_put((at,), table[:2]),
    "cross_entropy": lambda table, at: F.cross_entropy(table[:2, :], at),
}


def look_up(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """A look-up on a line of its own."""
    doubled = table * 2
    return doubled[at] + 1


@pytest.mark.parametrize("name", LOOK_UPS)
def test_every_look_up_is_checked(name: str) -> None:
    """Whatever reads or writes at places that come from data checks them once."""
    program = lower(trace_to_aten(LOOK_UPS[name], (TABLE, GOOD.clamp(max=3))), "cuda:90", print_triton)
    assert not program.record.externs
    assert any(CHECK in k.text for k in program.kernels)


def test_places_that_are_known_need_no_check() -> None:
    """Positions that loops count are in bounds."""
    program = lower(trace_to_aten(lambda t: t[torch.arange(3)] + t[1:4], (TABLE,)), "cuda:90", print_triton)
    assert not any(CHECK in k.text for k in program.kernels)


@pytest.mark.parametrize("name", ["_unsafe_index", "_unsafe_index_put"])
def test_places_that_a_decomposition_computed_need_no_check(name: str) -> None:
    """The unsafe forms of look-ups and writes take only places in bounds."""
    operator = getattr(torch.ops.aten, name)

    def call(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = operator(table, [at], *([table[:2]] if name == "_unsafe_index_put" else []))
        return result

    program = lower(trace_to_aten(call, (TABLE, GOOD)), "cuda:90", print_triton)
    assert not program.record.externs
    assert not any(CHECK in k.text for k in program.kernels)


@pytest.mark.thorough
@pytest.mark.parametrize(("at", "fails"), [(GOOD, False), (BAD, True), (torch.tensor([0, -6]), True)])
def test_a_kernel_stops(at: torch.Tensor, fails: bool, interpreter: WorkerPool) -> None:
    """The interpreter, like a device, goes no further than an index that is out of bounds."""
    (kernel,) = lower(trace_to_aten(lambda table, at: table[at], (TABLE, GOOD)), "cuda:90", print_triton).kernels
    values = {"arg0_1": TABLE, "arg1_1": at}
    arguments = tuple(
        BufferArgument(
            a.name,
            a.buffer,
            *_facts(values.get(a.buffer, torch.empty(2, 4))),
            values.get(a.buffer),
            written=a.is_written,
        )
        if a.kind == "pointer"
        else a.value
        for a in kernel.args
    )
    trial = KernelTrial(kernel.name, kernel.text, arguments, (1, 1, 1))  # type: ignore[arg-type]
    if not fails:
        found = interpreter.call("engine.runtime.verify.kernels_in_worker:run_and_compare", (trial,))
        assert torch.equal(found.written["index"], TABLE[at])
        return
    with pytest.raises(WorkerFailed, match="index out of bounds"):
        interpreter.call("engine.runtime.verify.kernels_in_worker:run_and_compare", (trial,))


def _facts(value: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]:
    return value.dtype, tuple(value.shape), value.stride()


def test_the_message_names_the_line() -> None:
    """File and line of the look-up stand in the kernel, and so in what the device says."""
    engine.reset()
    with engine.record() as session:
        engine.compile(look_up)(TABLE, GOOD)
    (kernel,) = (k for c in session.compilations for k in c.kernels if CHECK in k.text)
    lines, first = inspect.getsourcelines(look_up)
    number = first + next(n for n, line in enumerate(lines) if "doubled[at]" in line)
    assert f'"test_index_bounds_checks.py:{number}: index out of bounds"' in kernel.text


def test_the_message_names_a_notebook_cell_as_people_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the temporary file that a cell's code is kept in."""
    file = "/tmp/ipykernel_77/123456.py"
    monkeypatch.setitem(cell_names, file, "cell 3")
    namespace: dict[str, Any] = {}
    text = "def look_up(table, at):\n    return table[at] + 1\n"
    monkeypatch.setitem(linecache.cache, file, (len(text), None, text.splitlines(keepends=True), file))
    exec(compile(text, file, "exec"), namespace)
    engine.reset()
    with engine.record() as session:
        engine.compile(namespace["look_up"])(TABLE, GOOD)
    (kernel,) = (k for c in session.compilations for k in c.kernels)
    assert '"cell 3, line 2: index out of bounds"' in kernel.text


@pytest.mark.parametrize("name", LOOK_UPS)
def test_without_a_gpu_the_exception_is_that_of_eager(name: str) -> None:
    """The same class and message."""
    with pytest.raises(Exception) as plain:  # noqa: PT011
        LOOK_UPS[name](TABLE, BAD)
    with pytest.raises(type(plain.value)) as compiled:
        engine.compile(LOOK_UPS[name])(TABLE, BAD)
    assert str(compiled.value) == str(plain.value)
