"""On a GPU: kernels compiled, launched and compared with eager PyTorch.

Includes programs end to end.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
from torch.nn import functional

from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.kernels.lowered_program import AtenCall, Buffer, BufferRef, Launch, LoweredProgram
from engine.kernels.compile_kernel import compile_kernel
from engine.kernels.gpu_targets import default_target
from engine.runtime.kernel_launchers import gpu_launcher
from engine.runtime.program_executor import ProgramExecutor
from tests.engine.kernels import handwritten_kernels

pytestmark = pytest.mark.gpu
aten = torch.ops.aten


def buffer(name: str, *shape: Any, kind: Any = "intermediate", dtype: torch.dtype = torch.float32) -> Buffer:
    """A contiguous buffer of at most two dimensions."""
    return Buffer(name, dtype, shape, (shape[1], 1) if len(shape) == 2 else (1,), kind)


def one_kernel(kernel: GeneratedKernel, *made: Buffer, **more: Any) -> LoweredProgram:
    """A program of one launch that returns ``out``."""
    inputs = tuple(b.name for b in made if b.kind == "input")
    return LoweredProgram(
        default_target(), inputs, {b.name: b for b in made}, (Launch(kernel),), (BufferRef("out"),), **more
    )


def gelu_program(count: Any, **more: Any) -> LoweredProgram:
    """gelu of a vector."""
    made = (buffer("x", count, kind="input"), buffer("out", count, kind="output"))
    return one_kernel(handwritten_kernels.gelu(count), *made, **more)


@pytest.mark.parametrize("cols", [1, 7, 100, 1000, 8192])
def test_softmax(cols: int) -> None:
    """Rows of any width, masked where the block is wider."""
    made = (buffer("x", 33, cols, kind="input"), buffer("out", 33, cols, kind="output"))
    run = ProgramExecutor(one_kernel(handwritten_kernels.softmax(33, cols), *made))
    x = torch.randn(33, cols, device="cuda")
    torch.testing.assert_close(run(x)[0], functional.softmax(x, -1))


@pytest.mark.parametrize(
    ("dtype", "word"), [(torch.float32, "*fp32"), (torch.float16, "*fp16"), (torch.bfloat16, "*bf16")]
)
def test_layernorm(dtype: torch.dtype, word: str) -> None:
    """Float32 inside, every dtype outside."""
    kernel = handwritten_kernels.layernorm(64, 768)
    args = tuple(replace(a, triton_type=word) if a.kind == "pointer" else a for a in kernel.args)
    made = (
        buffer("x", 64, 768, kind="input", dtype=dtype), buffer("weight", 768, kind="input", dtype=dtype),
        buffer("bias", 768, kind="input", dtype=dtype), buffer("out", 64, 768, kind="output", dtype=dtype),
    )  # fmt: skip
    run = ProgramExecutor(one_kernel(replace(kernel, args=args), *made))
    x, weight, bias = (torch.randn(*shape, device="cuda", dtype=dtype) for shape in ((64, 768), (768,), (768,)))
    torch.testing.assert_close(run(x, weight, bias)[0], functional.layer_norm(x, (768,), weight, bias))


def test_embedding_gathers() -> None:
    """64-bit indices into a table."""
    made = (
        buffer("index", 10, kind="input", dtype=torch.int64), buffer("table", 20, 48, kind="input"),
        buffer("out", 10, 48, kind="output"),
    )  # fmt: skip
    index, table = torch.randint(0, 20, (10,), device="cuda"), torch.randn(20, 48, device="cuda")
    assert torch.equal(
        ProgramExecutor(one_kernel(handwritten_kernels.embedding(), *made))(index, table)[0], table[index]
    )


def test_symbolic_sizes() -> None:
    """One compiled kernel for every size, an empty one included."""
    s0 = sympy.Symbol("s0", integer=True)
    run = ProgramExecutor(gelu_program(s0, symbol_sources={"s0": (0, 0)}))
    for count in (1000, 1, 0, 65537, 16):
        x = torch.randn(count, device="cuda")
        torch.testing.assert_close(run(x)[0], functional.gelu(x))


def test_a_misaligned_input_is_right() -> None:
    """Kernels are compiled for aligned pointers; a view at an odd offset gets its own variant."""
    run = ProgramExecutor(gelu_program(4096))
    base = torch.randn(4100, device="cuda")
    for offset in (0, 1, 3, 4, 0, 1):
        x = base[offset : offset + 4096]
        torch.testing.assert_close(run(x)[0], functional.gelu(x))


def test_a_scalar_on_the_cpu_is_brought_over() -> None:
    """A kernel takes 0-dimensional CPU tensors mixed with GPU tensors, as PyTorch does.

    A kernel cannot read them in place.
    """
    text = handwritten_kernels.HEAD + (
        "@triton.jit\n"
        "def scale(x, factor, out, count, BLOCK: tl.constexpr):\n"
        "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    tl.store(out + i, tl.load(x + i, i < count) * tl.load(factor), i < count)\n"
    )
    args = (
        handwritten_kernels.pointer("x"), handwritten_kernels.pointer("factor"), handwritten_kernels.pointer("out", written=True), handwritten_kernels.size("count", 100),
        handwritten_kernels.constexpr("BLOCK", 128),
    )  # fmt: skip
    factor = Buffer("factor", torch.float32, (), (), "input")
    made = (buffer("x", 100, kind="input"), factor, buffer("out", 100, kind="output"))
    run = ProgramExecutor(one_kernel(handwritten_kernels.source("scale", text, args, (1,)), *made))
    x = torch.randn(100, device="cuda")
    torch.testing.assert_close(run(x, torch.tensor(3.0))[0], x * 3)


def test_kernels_library_calls_and_views_together() -> None:
    """softmax(gelu(a @ w)) with a transposed view returned."""
    names = ("a", "w", "mm", "x", "out")
    shapes = ((64, 32), (32, 100), (64, 100), (64, 100), (64, 100))
    kinds = ("input", "input", "intermediate", "intermediate", "output")
    made = {n: buffer(n, *s, kind=k) for n, s, k in zip(names, shapes, kinds, strict=True)}
    steps = (
        AtenCall("aten:mm", aten.mm.default, (BufferRef("a"), BufferRef("w")), {}, ("mm",), is_library_call=True),
        Launch(handwritten_kernels.gelu(6400, "k0", x="mm", out="x")),
        Launch(handwritten_kernels.softmax(64, 100, "k1")),
    )
    run = ProgramExecutor(
        LoweredProgram(
            default_target(), ("a", "w"), made, steps, (BufferRef("out"), BufferRef("out", (100, 64), (1, 100)))
        )
    )
    a, w = torch.randn(64, 32, device="cuda"), torch.randn(32, 100, device="cuda")
    out, turned = run(a, w)
    torch.testing.assert_close(out, functional.softmax(functional.gelu(a @ w), -1), rtol=1e-3, atol=1e-5)
    assert torch.equal(turned, out.t())


def test_other_streams_and_threads() -> None:
    """Launches go to the stream that is current where the call is made."""
    run = ProgramExecutor(gelu_program(1 << 20))
    x = torch.randn(1 << 20, device="cuda")
    expected = functional.gelu(x)
    failures: list[str] = []

    def work() -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            results = [torch.allclose(run(x)[0], expected, atol=1e-6) for _ in range(20)]
        failures.extend("different" for is_right in results if not is_right)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_inputs_on_another_device_than_the_current_one() -> None:
    """The program runs where its inputs are."""
    run = ProgramExecutor(gelu_program(1000))
    x = torch.randn(1000, device="cuda:1")
    assert torch.cuda.current_device() == 0
    (out,) = run(x)
    assert out.device == x.device
    torch.testing.assert_close(out, functional.gelu(x))


def test_a_program_can_be_captured_in_a_cuda_graph() -> None:
    """Nothing in it synchronizes or allocates outside torch's allocator."""
    run = ProgramExecutor(gelu_program(1000))
    x = torch.randn(1000, device="cuda")
    run(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (out,) = run(x)
    x.copy_(torch.randn(1000, device="cuda"))
    graph.replay()
    torch.testing.assert_close(out, functional.gelu(x))


def test_what_is_shown_is_what_runs() -> None:
    """The recorded PTX for the GPU's own target equals the PTX of the launched kernel.

    So do the registers and spills.
    """
    major, minor = torch.cuda.get_device_capability()
    if default_target() != f"cuda:{major}{minor}":
        pytest.skip("this GPU's own architecture is not among the targets")
    from engine.ir.kernels.compile_triton import compile_unit_of, run_triton_compiler
    from engine.kernels.compile_kernel import clean_listing

    source = handwritten_kernels.softmax(64, 1000)
    gpu_launcher(source)
    record = compile_kernel(source, default_target())
    assert not record.error
    kernel = run_triton_compiler(compile_unit_of(source))
    kernel.run  # noqa: B018 - loads it
    assert next(x.text for x in record.listings if x.stage == "ptx") == clean_listing(kernel.asm["ptx"])
    assert record.resources is not None
    assert record.resources.registers == kernel.n_regs
    assert record.resources.spills == kernel.n_spills
