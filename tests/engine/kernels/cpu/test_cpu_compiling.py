"""Test how CPU kernels are compiled: what is missing, forks, threads, and the disk cache."""

from __future__ import annotations

import mmap
import os
import pathlib
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import engine
from engine.backends import cpu_executor
from engine.cache import disk_store
from engine.cache.disk_store import DiskStore
from engine.ir.kernels import llvm_machine
from engine.ir.kernels.compile_llvm import CannotCompile, compile_object, host_unit
from engine.runtime import cpu_launcher as launchers
from engine.runtime.aten_fallback import UnexpectedSize
from tests.engine.kernels.cpu.test_cpu_kernels import run_on_cpu

CALLS_NOTHING = "define i32 @k(ptr %a, i64 %b, i64 %e) {\n  call void @no_such_function()\n  ret i32 0\n}\n"


@pytest.fixture
def cpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled functions run CPU kernels."""
    monkeypatch.setattr(engine.config, "cpu_kernels", True)
    engine.reset()


def chain(x: torch.Tensor) -> torch.Tensor:
    """Two operators that fuse."""
    return x.sin() * 2 + x


@pytest.mark.usefixtures("cpu_kernels")
def test_a_function_that_torch_lacks_is_a_recorded_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """ATen runs a kernel that calls an unknown function: LLVM would end the process."""
    with pytest.raises(CannotCompile, match="no_such_function"):
        compile_object("k", CALLS_NOTHING + "declare void @no_such_function()\n")

    def refuse(name: str, text: str) -> bytes:
        raise CannotCompile(f"{name} calls no_such_function")

    monkeypatch.setattr(launchers, "compile_object", refuse)
    launchers._load_kernel.cache_clear()
    x = torch.randn(300, 300)
    with engine.record() as session:
        torch.testing.assert_close(engine.compile(chain)(x), chain(x))
    (failure,) = session.compilations[0].failures
    assert "no_such_function" in failure.sentence


@pytest.mark.skipif(not hasattr(mmap, "PROT_EXEC"), reason="needs mprotect")
def test_memory_that_cannot_be_executed_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system forbids machine code in memory, one sentence says so."""
    assert not llvm_machine.why_llvm_is_missing()
    monkeypatch.setattr(llvm_machine, "_can_execute_memory", lambda: False)
    assert "forbids" in llvm_machine.why_llvm_is_missing()


FORKS = textwrap.dedent(
    """
    import os, signal, threading
    import torch, engine
    engine.config.cpu_kernels = True

    x = torch.randn(200, 300)  # drawn here only: a fork may copy the generator while a thread has locked it

    def compile_and_run(number):
        f = lambda x: (x * number).sin() + x
        found = engine.compile(f)(x)
        # Eager gets single rows: OpenMP's threads, which it would wait for, do not survive a fork.
        return all(torch.allclose(found[row], f(x[row]), atol=1e-5) for row in range(0, 200, 40))

    def compile_forever():
        for number in range(10_000_000):
            engine.reset()
            compile_and_run(1 + number / 7)

    assert compile_and_run(0.5)
    threading.Thread(target=compile_forever, daemon=True).start()
    good = 0
    for n in range(4):
        child = os.fork()
        if not child:
            signal.alarm(100)  # ends a child that hangs
            engine.reset()
            os._exit(0 if compile_and_run(1000.5 + n) else 1)
        good += os.waitpid(child, 0)[1] == 0
    print(good, flush=True)
    os._exit(0)
    """
)


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_compiles_although_another_thread_was_compiling() -> None:
    """LLVM's locks are free in a child, and its kernels run on one thread."""
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS], capture_output=True, text=True, timeout=280, check=False
    )
    assert made.stdout.strip() == "4", made.stderr[-2000:]


def test_the_disk_cache_keeps_object_files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of an earlier process is loaded, but not on a CPU with other features."""
    program, _ = run_on_cpu(chain, (torch.randn(100),), host_unit())
    (kernel,) = program.kernels
    store, compiled = DiskStore(tmp_path / "objects"), list[str]()

    def compile_noted(name: str, text: str) -> bytes:
        compiled.append(name)
        return compile_object(name, text)

    monkeypatch.setattr(launchers, "compile_object", compile_noted)
    made = [launchers._object_file(kernel.name, kernel.text, store) for _ in range(2)]
    assert made[0] == made[1]
    assert len(compiled) == 1
    monkeypatch.setattr(launchers, "code_version", lambda: "another CPU")
    launchers._object_file(kernel.name, kernel.text, store)
    assert len(compiled) == 2


def test_users_of_one_cache_compile_a_kernel_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first claims the kernel, the others wait for it, but no longer than the limit."""
    store, compiled = DiskStore(tmp_path / "objects"), list[str]()

    def compile_slowly(name: str, text: str) -> bytes:
        compiled.append(name)
        time.sleep(0.1)
        return text.encode()

    def compile_in_threads(name: str) -> set[bytes]:
        # A lock belongs to the opened file, so threads exclude each other as processes do.
        with ThreadPoolExecutor(4) as pool:
            return set(pool.map(lambda _: launchers._object_file(name, name, store), range(4)))

    monkeypatch.setattr(launchers, "compile_object", compile_slowly)
    assert [compile_in_threads("first"), compile_in_threads("second")] == [{b"first"}, {b"second"}]
    assert compiled == ["first", "second"]
    monkeypatch.setattr(disk_store, "MAX_WAIT_SECONDS", 0.01)
    assert compile_in_threads("third") == {b"third"}
    assert compiled.count("third") == 4


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize(
    ("function", "kernels"),
    [
        (lambda x: x + 1, []),
        (lambda x: x.tanh(), ["tanh_kernel"]),
        (lambda x: x.tanh() + 1, ["fused_tanh_add"]),
        (lambda x: (x + 1) @ x, []),
        (lambda x: x.abs().cumsum(-1).sin(), ["fused_abs_cumsum", "sin_kernel"]),
        (lambda x: x.abs().cumsum(0).sin(), ["fused_abs_cumsum_sin"]),
        (lambda x: (x * 2).cummax(-1).values.exp(), ["exp_kernel"]),
        (lambda x: (x * 2).cummax(0).values.exp(), ["fused_mul_cummax_exp"]),
    ],
    ids=["addition", "tanh", "chain", "product", "row sums", "column sums", "row maxima", "column maxima"],
)
def test_operators_fused_with_nothing(
    function: Callable[[Any], Any], kernels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel of one operator runs where it is faster than ATen's loop; no other is printed."""
    names: list[str] = []
    printed: list[str] = []
    print_kernel = cpu_executor.print_kernel

    def print_and_note(kernel: Any, target: str) -> Any:
        generated = print_kernel(kernel, target)
        printed.append(generated.name)
        return generated

    monkeypatch.setattr(cpu_executor, "cpu_launcher", _noting(names))
    monkeypatch.setattr(cpu_executor, "print_kernel", print_and_note)
    x = torch.randn(200, 200)
    torch.testing.assert_close(engine.compile(function)(x), function(x))
    assert names == printed == kernels


@pytest.mark.usefixtures("cpu_kernels")
def test_an_operator_left_to_aten_is_one_call() -> None:
    """ATen gets an operator as it was written, not the parts of its decomposition."""
    weight = torch.randn(200, 200, dtype=torch.float64)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(chain(x) @ weight)

    x = torch.randn(200, 200, dtype=torch.float64, requires_grad=True)
    with engine.record() as session:
        found, expected = (torch.autograd.grad(run(x).sum(), x)[0] for run in (engine.compile(function), function))
    torch.testing.assert_close(found, expected)
    calls = [call.op for call in session.compilations[0].cpu_program.externs]
    assert [name for name in calls if "mm" not in name] == ["aten.silu.default", "aten.silu_backward.default"]


@pytest.mark.usefixtures("cpu_kernels")
def test_a_stack_of_a_long_chain_computes_it_once() -> None:
    """A kernel that concatenates computes few steps in every part, and loads the others."""

    def function(x: torch.Tensor) -> torch.Tensor:
        steps = [x[0]]
        for row in range(1, 16):
            steps.append(steps[-1] * 0.9 + x[row])
        return torch.stack(steps)

    x = torch.randn(16, 256)
    with engine.record() as session:
        torch.testing.assert_close(engine.compile(function)(x), function(x))
    ops = [op.text for kernel in session.compilations[0].cpu_program.kernels for op in kernel.ops]
    assert 15 <= sum(" add(" in text for text in ops) < 60  # 120 in one kernel


def _noting(names: list[str]) -> Callable[..., Any]:
    def launcher(source: Any, *given: Any, **options: Any) -> Any:
        names.append(source.name)
        return launchers.cpu_launcher(source, *given, **options)

    return launcher


@pytest.mark.usefixtures("cpu_kernels")
def test_a_call_that_kernels_are_not_valid_for_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """ATen runs the call, and the session says why."""
    x = torch.randn(300, 300)
    compiled = engine.compile(chain, backend="triton")
    executor = cpu_executor.ProgramExecutor

    def invalid(*args: Any, **kwargs: Any) -> Any:
        made = executor(*args, **kwargs)

        def run(*inputs: torch.Tensor) -> Any:
            raise UnexpectedSize("a size is 3, and 4 was assumed")

        made.function = run
        return made

    monkeypatch.setattr(cpu_executor, "ProgramExecutor", invalid)
    with engine.record() as session:
        torch.testing.assert_close(compiled(x), chain(x))
    (failure,) = session.failures
    assert "a size is 3, and 4 was assumed" in failure.sentence
    assert "ATen" in failure.fallback


@pytest.mark.thorough
@pytest.mark.usefixtures("cpu_kernels")
def test_an_input_with_unknown_strides_is_saved_itself() -> None:
    """The backward gets the caller's tensor: a copy has no history, as if it were detached."""

    def call(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x.sin() * y).sum(0), x @ y.t()

    compiled = engine.compile(call, backend="triton")
    wide = torch.randn(20, 10)
    for rows, columns in ((20, 3), (9, 4), (8, 5)):
        leaf = wide[:rows, : columns + 2].clone().requires_grad_()
        gradients = []
        for fn in (call, compiled):
            results = fn(leaf[:, :columns], wide[:rows, 5 : 5 + columns])
            gradients.append(torch.autograd.grad(results[0].sum() + results[1].square().sum(), leaf)[0])
        torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.usefixtures("cpu_kernels")
def test_the_record_says_why_aten_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph without a gain, and a machine without LLVM, are reasons in one sentence."""

    def reason(function: Callable[[Any], Any]) -> str:
        engine.reset()
        with engine.record() as session:
            x = torch.randn(300, 300)
            torch.testing.assert_close(engine.compile(function)(x), function(x))
        (compilation,) = session.compilations
        assert not compilation.failures
        return compilation.cpu_program.reason

    assert reason(chain) == ""
    assert "ATen moves the same bytes" in reason(lambda x: x @ x)
    monkeypatch.setattr(cpu_executor, "why_llvm_is_missing", lambda: "CPU kernels need llvmlite.")
    assert reason(chain) == "CPU kernels need llvmlite."


@pytest.mark.usefixtures("cpu_kernels")
def test_a_symbolic_index_counts_from_the_right_end() -> None:
    """A position that becomes a symbol has the sign that its guards know."""

    def rows(x: torch.Tensor, at: int) -> tuple[torch.Tensor, ...]:
        return x[at] * 2 + 1, (x[at:] * 2 + 1).relu(), x[-1, at % 3] + x[at][0]

    compiled = engine.compile(rows)
    x = torch.randn(10, 4)
    for at in (5, 6, 8, -2, -9, -3, 1):
        torch.testing.assert_close(compiled(x, at), rows(x, at))
