"""Reproducers of graphs, kernels, breaks, recompiles and failures: files that run alone."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import engine
from engine import errors
from engine.records.graph import NodeRecord
from engine.records.kernels import KernelRecord
from engine.records.lowering import LoweringRecord
from engine.records.scripts.graph_script import CannotWrite, input_statement
from engine.records.scripts.inductor_script import inductor_kernel_program
from engine.records.session import CompilationRecord


def bias_gelu(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = F.gelu(x + b)
    y += 1
    return y.sum(-1)


def broken_twice(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    print("first")
    y = y * 2
    print("second")
    return y.sin()


def talks(x: torch.Tensor) -> torch.Tensor:
    print("hi")
    return x + 1


@pytest.fixture(scope="module")
def session() -> engine.Session:
    """A session with a graph, kernels, a recompile and a graph break."""
    engine.reset()
    known, engine.config.cpu_kernels = engine.config.cpu_kernels, True
    try:
        with engine.record() as made:
            engine.compile(bias_gelu)(torch.randn(64, 32), torch.randn(32))
            engine.compile(bias_gelu)(torch.randn(16, 32), torch.randn(32))
            engine.compile(talks)(torch.randn(3))
    finally:
        engine.config.cpu_kernels = known
    return made


def imports_of(text: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(a.name.partition(".")[0] for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"__future__"}


NEEDS = {"k0": {"torch", "triton"}, "fx": {"torch"}, "aten": {"torch"}, "c0": {"torch", "llvmlite"}}
RUN_ALL = """
import contextlib, io, json, runpy, sys
for path in sys.argv[1:]:
    error, shown = "", io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            runpy.run_path(path, run_name="__main__")
    except AssertionError as caught:
        error = str(caught)
    print(json.dumps([shown.getvalue(), error]))
"""
"""Runs the files that it is given, and prints what each one printed and failed with."""


@pytest.mark.thorough
def test_graphs_and_kernels_need_no_compiler(session: engine.Session, tmp_path: pathlib.Path) -> None:
    """The files run where this project is not, and show the digests written into them."""
    paths = []
    for what, needs in NEEDS.items():
        if what == "c0" and importlib.util.find_spec("llvmlite") is None:
            continue
        found = session.reproducer(session.compilations[0].id, what)
        assert imports_of(found.text) == needs
        paths.append(found.save(tmp_path / f"{what}.py"))
    changed = paths[2].read_text(encoding="utf-8").replace("gelu", "relu").replace("0.7071067811865476", "0.5")
    paths.append(tmp_path / "changed.py")
    paths[-1].write_text(changed, encoding="utf-8")
    command = [sys.executable, "-P", "-c", RUN_ALL, *map(str, paths)]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    *outcomes, (_, error) = map(json.loads, ran.stdout.splitlines())
    assert [(shown.split()[-1], why) for shown, why in outcomes] == [("reproduced", "")] * (len(paths) - 1)
    assert "the values differ" in error


class Attends(torch.nn.Module):
    """A recurrent layer, attention and a float argument that becomes a symbol."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.GRU(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        y = self.layer(x)[0] * scale
        return F.scaled_dot_product_attention(y, y, y)


@pytest.mark.thorough
def test_operators_and_symbols_of_this_compiler_are_written_with_torch() -> None:
    """A script calls torch's function for the engine's operator; a symbol has its hint."""
    engine.reset()
    run = engine.compile(Attends(), backend="aot_eager")
    with torch.no_grad(), engine.record() as session:
        for scale in (1.5, 2.5):
            run(torch.randn(2, 3, 4), scale)
    id = session.compilations[-1].id
    for stage in ("fx", "aten"):
        text = engine.reproducer(session, id, stage).text
        assert "= 2.5" in text
        assert "engine." not in text
        assert imports_of(text) == {"torch"}


@pytest.mark.thorough
def test_triton_scripts_bring_what_the_interpreter_lacks() -> None:
    """A kernel that calls libdevice runs on a machine without a GPU."""
    engine.reset()
    with engine.record() as session:
        engine.compile(lambda x: (x * 2).tanh() + x.atan())(torch.randn(8))
    text = engine.reproducer(session, session.compilations[0].id, "k0").text
    assert "libdevice.atan(" in text
    assert imports_of(text) == {"torch", "triton", "numpy"}


@pytest.mark.thorough
def test_graphs_of_stock_compile_run_alone() -> None:
    """Its traced graph names inputs twice; its ATen graph returns over several lines."""
    torch.compiler.reset()
    with engine.observe_torch() as observed:
        torch.compile(bias_gelu, backend="aot_eager")(torch.randn(8, 4), torch.randn(4))
    entry = observed.compilations[0]
    stages = [g.stage for g in entry.graphs]
    assert "fx" in stages
    assert len(stages) > 1
    for stage in ("fx", stages[-1]):
        symptom = engine.reproducer(observed, entry.id, stage).symptom
        assert symptom == "The graph returns 1 result with the recorded dtypes, shapes and strides."


def asks_too_much(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.ones(3, 3)


@pytest.mark.thorough
def test_a_break_at_an_exception_of_the_function_is_shown() -> None:
    """The script goes on after the exception, and prints its type."""
    engine.reset()
    with engine.record() as session, pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        engine.compile(asks_too_much)(torch.randn(4, 4))
    found = engine.reproducer(session, session.compilations[0].id, "break")
    # Torch 2.15 names the operator, "mm", before the rest of its message.
    assert found.symptom.startswith("matmul raises RuntimeError: ")
    assert "mat1 and mat2 shapes cannot be multiplied" in found.symptom
    assert "except Exception as error:" in found.text


@pytest.mark.thorough
def test_events_are_shown_by_the_compiler_they_accuse(session: engine.Session) -> None:
    """A break and a recompile happen again; the file names the compiler and its version."""
    first, second, third = session.compilations[:3]
    assert session.reproducer(third.id).symptom == "The graph breaks: Output is printed."
    found = session.reproducer(second.id, "recompile")
    assert "16" in found.symptom
    calls = [line for line in found.text.splitlines() if line.startswith("    results = ")]
    assert calls == ["    results = engine.compile(bias_gelu, backend='triton')(x=x, b=b)"] * 2
    assert f"torch {torch.__version__}" in found.text
    with pytest.raises(errors.NotReproduced, match="no break was recorded"):
        session.reproducer(first.id, "break")
    with pytest.raises(errors.BadArgument, match="has no 'ttir'"):
        session.reproducer(first.id, "ttir")


def pooled(batch: dict[str, torch.Tensor], *weights: torch.Tensor) -> torch.Tensor:
    x = batch["x"]
    for w in weights:
        x = x @ w
    return x.relu()


@pytest.mark.thorough
def test_a_recompile_for_tensors_in_containers_has_a_script() -> None:
    """The script passes a dict, and two tensors as ``*weights``."""
    engine.reset()
    with engine.record() as made:
        run = engine.compile(pooled, backend="eager")
        run({"x": torch.randn(3, 8)}, torch.randn(8, 8))
        run({"x": torch.randn(3, 8)}, torch.randn(8, 8), torch.randn(8, 4))
    found = made.reproducer(made.compilations[1].id, "recompile")
    assert "weights" in found.symptom
    assert "(batch, *weights)" in found.text


@pytest.mark.thorough
def test_events_after_a_graph_break_are_shown_by_calls_of_the_function() -> None:
    """Nobody can call a resume function: calls of the function that broke lead to its events."""
    engine.reset()
    compiled = engine.compile(broken_twice)
    with engine.record() as recorded_session:
        for shape in ((3,), (3, 3)):
            compiled(torch.randn(shape))
    resumed = {f.id for f in recorded_session.frames if f.role == "resume"}
    first = next(c.id for c in recorded_session.compilations if c.frame in resumed)
    again = next(c.id for c in recorded_session.compilations if c.frame in resumed and not c.id.endswith("/0"))
    assert "The graph breaks" in recorded_session.reproducer(first, "break").symptom
    recompile = recorded_session.reproducer(again, "recompile")
    assert recompile.symptom.startswith("It recompiles: ")
    calls = [line for line in recompile.text.splitlines() if line.startswith("    results = ")]
    assert len(calls) == 2


@pytest.mark.thorough
def test_values_are_written_only_with_consent(session: engine.Session) -> None:
    """Without ``values`` the file has seeds; with it, the values given."""
    b = torch.arange(32.0)
    id = session.compilations[0].id
    assert "31.0" not in session.reproducer(id, "fx").text
    assert "30.0, 31.0" in session.reproducer(id, "fx", values={"b": b}).text


@pytest.mark.thorough
def test_a_script_that_shows_something_else_is_not_offered(session: engine.Session, tmp_path: pathlib.Path) -> None:
    """A session whose record was altered has no reproducer."""
    path = session.save(tmp_path / "session.json")
    text = path.read_text(encoding="utf-8").replace('["64"]', '["65"]')
    path.write_text(text, encoding="utf-8")
    loaded = engine.Session.load(path)
    with pytest.raises(errors.NotReproduced, match="does not show what was recorded"):
        loaded.reproducer(loaded.compilations[0].id, "aten")
    with pytest.raises(errors.NotReproduced, match="the session was loaded"):
        loaded.reproducer(loaded.compilations[0].id, "k0")


@pytest.mark.thorough
def test_cpp_kernels_of_stock_compile_run_alone() -> None:
    """What an operator returns has the layout that the program asserts."""

    def two_convolutions(x: torch.Tensor, w: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        made = torch.nn.functional.conv2d(x, w).relu().flatten(1)
        return made.gather(1, index).to(torch.bfloat16).softmax(1).cumsum(1).argmax(1)

    torch.compiler.reset()
    with engine.observe_torch() as observed:
        torch.compile(two_convolutions)(torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), torch.randint(0, 9, (2, 5)))
    (entry,) = observed.compilations
    found = {kernel.id: observed.reproducer(entry.id, kernel.id) for kernel in entry.kernels}
    assert {frozenset(imports_of(script.text)) for script in found.values()} == {frozenset({"torch"})}
    assert {script.symptom for script in found.values()} == {"The kernel runs on inputs of the recorded layouts."}
    assert "buf2 = make((2, 4, 4, 4), (64, 1, 16, 4), torch.float32" in found["k1"].text


@pytest.mark.parametrize(
    ("kernel", "program", "why"),
    [
        ("void kernel(const float* a, float* b) {", "def call(self, args):\n    k0(x", "could not be parsed"),
        ("void kernel(const float* a, float* b) {", "def call(self, args):\n    k0(x)", "could not be parsed"),
        (
            "void kernel(const float* a, float* b) {",
            "def call(self, args):\n    k0(x, y)",
            "whose type was not recorded",
        ),
        ("void kernel(const float* a, float* b) {", "pass", "was not recorded"),
        ("void run(float* b) {", "pass", "parameters of the kernel"),
        ("void kernel(float* b) { // '''", "pass", "cannot be quoted"),
    ],
)
def test_a_damaged_program_of_a_kernel_is_a_sentence(kernel: str, program: str, why: str) -> None:
    """A log that was cut, or that another torch wrote, gives no traceback."""
    wrapper = f"async_compile = AsyncCompile()\nk0 = async_compile.cpp_pybinding(...  # 1 lines)\n{program}\n"
    record = CompilationRecord(
        "0/0", "0", "", compiler="torch", kernels=(KernelRecord("k0", "k0", kernel, language="cpp"),),
        lowering=LoweringRecord("", wrapper_text=wrapper),
    )  # fmt: skip
    with pytest.raises(CannotWrite, match=why):
        inductor_kernel_program(record, record.kernels[0], 0)


def test_a_triton_kernel_of_stock_compile_has_a_program() -> None:
    """Arguments are made on the GPU; what the kernel writes is the result."""
    kernel = """
@triton_heuristics.pointwise(
    filename=__file__,
    triton_meta={'signature': {'in_out_ptr0': '*bf16', 'in_ptr0': '*i64', 'ks0': 'i64', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}},
    inductor_meta={'mutated_arg_names': ['in_ptr0']},
)
@triton.jit
def triton_poi_fused_0(in_out_ptr0, in_ptr0, ks0, xnumel, XBLOCK : tl.constexpr):
    pass
"""
    program = """
def call(self, args):
    arg0_1, arg1_1 = args
    s0 = arg0_1
    with torch.cuda._DeviceGuard(0):
        buf0 = torch.ops.aten.nonzero_static(arg1_1)
        assert_size_stride(buf0, (s0, 3), (3, 1))
        buf1 = empty_strided_cuda((s0, 3), (3, 1), torch.bfloat16)
        buf2 = reinterpret_tensor(buf1, (s0, 1, 3), (3, 3, 1), 0); del buf1  # reuse
        triton_poi_fused_0_xnumel = 3*s0
        stream0 = get_raw_stream(0)
        triton_poi_fused_0.run(buf2, buf0, s0, triton_poi_fused_0_xnumel, stream=stream0)

def get_args():
    arg0_1 = 17
    arg1_1 = rand_strided((17, 3), (3, 1), device='cuda:0', dtype=torch.float32)
"""
    wrapper = f"async_compile = AsyncCompile()\ntriton_poi_fused_0 = async_compile.triton(...  # 9 lines)\n{program}\n"
    record = CompilationRecord(
        "0/0", "0", "", compiler="torch", kernels=(KernelRecord("k0", "triton_poi_fused_0", kernel, language="triton"),),
        lowering=LoweringRecord("", wrapper_text=wrapper),
    )  # fmt: skip
    text = inductor_kernel_program(record, record.kernels[0], 0)
    assert text.partition("compiler.wait(globals())\n\n")[2].splitlines() == [
        "arg0_1 = 17",
        "s0 = arg0_1",
        'buf0 = make((s0, 3), (3, 1), torch.int64, "cuda", seed=3)',
        'buf1 = make((s0, 3), (3, 1), torch.bfloat16, "cuda", seed=2)',
        "buf2 = torch.as_strided(buf1, (s0, 1, 3), (3, 3, 1), 0)",
        "triton_poi_fused_0_xnumel = 3 * s0",
        "kernel.run(buf2, buf0, s0, triton_poi_fused_0_xnumel, stream=torch.cuda.current_stream().cuda_stream)",
        "results = (buf2, buf0, )",
    ]


OFFSET = 0.5


def _shift(x: torch.Tensor) -> torch.Tensor:
    """A function of the user that an operator's kernel calls."""
    return x + OFFSET * math.pi


@torch.library.custom_op("reproduced::shifted", mutates_args=())
def shifted(x: torch.Tensor, by: float) -> torch.Tensor:
    """An operator with a gradient."""
    return _shift(x) * by


@shifted.register_fake
def _(x: torch.Tensor, by: float) -> torch.Tensor:
    return torch.empty_like(x)


def _save_factor(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.by = inputs[1]


def _scale_gradient(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    return gradient * ctx.by, None


shifted.register_autograd(_scale_gradient, setup_context=_save_factor)


@torch.library.custom_op("reproduced::fill_row", mutates_args=("x",), device_types="cpu")
def fill_row(x: torch.Tensor, value: float) -> None:
    """An operator that writes to its argument."""
    x[0] = value


@pytest.mark.thorough
def test_operators_of_the_user_are_defined_in_the_script() -> None:
    """A script brings kernel, fake, gradient and all that they read; it runs with torch alone."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = shifted(x.sin(), 2.0)
        fill_row(y, 1.5)
        return y * 3

    x = torch.randn(4, 8)
    with engine.record() as session:
        engine.compile(program, backend="aot_eager")(x)
    (record,) = session.compilations
    for stage in ("fx", "aten"):
        text = session.reproducer(record.id, stage).text
        assert imports_of(text) == {"torch"}
        assert "\nOFFSET = 0.5\n" in text
        assert "def _shift(" in text
        assert ".register_autograd(" in text


def test_an_operator_whose_code_is_unknown_is_a_sentence() -> None:
    """A kernel that reads a tensor of the program has no script; the sentence says so."""
    table = torch.ones(3)

    @torch.library.custom_op("reproduced::looked_up", mutates_args=())
    def looked_up(x: torch.Tensor) -> torch.Tensor:
        return x + table.sum()

    looked_up.register_fake(torch.empty_like)
    with engine.record() as session:
        engine.compile(lambda x: looked_up(x) * 2, backend="eager")(torch.randn(3))
    with pytest.raises(errors.NotReproduced, match="looked_up reads table, which is a Tensor"):
        session.reproducer(session.compilations[0].id, "fx")


def test_a_graph_inside_a_graph_is_named_as_that() -> None:
    """It is no input of unknown size, and the ATen graph may have a script."""
    score = NodeRecord("n1", "score_mod_0", "get_attr", "score_mod_0", "score_mod_0 = self.score_mod_0")
    with pytest.raises(CannotWrite, match="score_mod_0 is a graph inside this graph: copy the ATen graph instead"):
        input_statement(score, {}, 0)
