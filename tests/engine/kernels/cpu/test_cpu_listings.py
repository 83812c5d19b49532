"""Test listings of CPU kernels: lines of instructions, and what the code needs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.kernels.host_vectors import AVX2, AVX512, NEON
from engine.ir.kernels.llvm_machine import function_attributes, llvm, optimize, parse_module
from engine.kernels.cpu.instruction_lines import lines_by_use
from engine.kernels.cpu.line_ops import complete_line_ops
from engine.kernels.cpu.line_tables import with_line_table
from engine.kernels.cpu.listings import CpuMachine, compile_for_cpu
from engine.kernels.cpu.printer import print_llvm
from engine.kernels.debug_locations import InlineFrame, InstructionLocation, aarch64_locations, x86_locations
from engine.lowering.driver import lower
from engine.records.kernels import Listing, TargetRecord
from tests.engine.lowering.trace_aten import trace_to_aten

F = nn.functional
X86 = CpuMachine("x86_64-unknown-linux-gnu", "skylake-avx512", "", AVX512)
OLD_X86 = CpuMachine("x86_64-unknown-linux-gnu", "haswell", "", AVX2)
ARM = CpuMachine("aarch64-unknown-linux-gnu", "neoverse-n1", "", NEON)


def pointwise(x: torch.Tensor) -> torch.Tensor:
    """Three operations on each element."""
    return torch.sigmoid(torch.sin(F.gelu(x)))


def normalize(x: torch.Tensor) -> torch.Tensor:
    """Reduce each row twice."""
    return F.layer_norm(x * 2, (x.shape[-1],))


def attention_weights(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Softmax with a mask."""
    return torch.softmax(torch.where(y > 0, x, -1e9), -1)


def column_sums(x: torch.Tensor) -> torch.Tensor:
    """Reduce the outer dimension."""
    return (x * x).sum(0)


def half_transpose(x: torch.Tensor) -> torch.Tensor:
    """Convert, transpose and add."""
    return x.to(torch.bfloat16).t().contiguous() + 1


X = torch.zeros(64, 200)
PROGRAMS: dict[Callable[..., Any], tuple[torch.Tensor, ...]] = {
    pointwise: (X,),
    normalize: (X,),
    attention_weights: (X, X),
    column_sums: (X,),
    half_transpose: (X,),
}


def kernels_for(function: Callable[..., Any], machine: CpuMachine) -> list[GeneratedKernel]:
    """Return the kernels of a program for a CPU, this one or another."""
    graph = trace_to_aten(function, PROGRAMS[function])
    program = lower(graph, "cpu", lambda kernel, target: print_llvm(kernel, machine.unit))  # type: ignore[arg-type]
    return list(program.kernels)


@pytest.fixture(scope="module", autouse=True)
def other_machines() -> None:
    """Load LLVM's code generators for CPUs other than this one."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def user_share(kernel: GeneratedKernel, listing: Listing) -> tuple[int, int]:
    """Return how many instructions reach an op of the loop IR, and how many there are."""
    ops = complete_line_ops(kernel.text, kernel.line_ops)
    return sum(1 for link in listing.links if link.triton_line and ops[link.triton_line - 1]), listing.instructions


@pytest.mark.parametrize("machine", [X86, OLD_X86, ARM], ids=["avx512", "avx2", "neon"])
def test_instructions_reach_the_users_lines(machine: CpuMachine) -> None:
    """Over five programs, 95 of 100 instructions reach an op, at both stages.

    The rest is labelled.
    """
    for stage in (0, 1):
        counts = [0, 0]
        for function in PROGRAMS:
            for kernel in kernels_for(function, machine):
                made = compile_for_cpu(kernel.name, kernel.text, machine)
                assert made.error == ""
                listing = made.listings[stage]
                assert listing.linked + listing.labelled == listing.instructions
                for i, count in enumerate(user_share(kernel, listing)):
                    counts[i] += count
        assert counts[0] >= 0.95 * counts[1], (stage, counts)


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_each_op_has_instructions(function: Callable[..., Any]) -> None:
    """Each op that computes is reached by an instruction of the assembly."""
    for kernel in kernels_for(function, X86):
        listing = compile_for_cpu(kernel.name, kernel.text, X86).listings[1]
        own = [kernel.line_ops[link.triton_line - 1] for link in listing.links if link.triton_line]
        reached = {op for ops in own for op in ops}
        wanted = {op for ops in kernel.line_ops for op in ops}
        # An op may be folded into its neighbors; most stay.
        assert len(reached) >= 0.7 * len(wanted), sorted(wanted - reached)


def test_line_tables_change_no_instruction() -> None:
    """The code with a line table is the code without one, which is what runs."""
    (kernel,) = kernels_for(normalize, X86)
    codes = []
    for text in (kernel.text, with_line_table(kernel.text, "kernel.ll")):
        generator = X86.code_generator()
        module = parse_module(text + function_attributes(512), X86.triple, generator)
        optimize(module, generator)
        codes.append([p.text for p in x86_locations(generator.emit_assembly(module))])
    assert codes[0] == codes[1]
    assert len(codes[0]) > 50


def shape_of(made: TargetRecord) -> dict[str, Any]:
    """Return what a compile result says about a kernel."""
    assert made.resources is not None
    fields = ("cpu", "vector_bits", "lanes", "instruction_mix")
    return {name: getattr(made.resources, name) for name in fields}


def test_resources_of_a_kernel_for_each_cpu() -> None:
    """Vector width, lanes and kinds of instructions come from the code for a CPU."""
    found = {}
    for machine in (X86, OLD_X86, ARM):
        (kernel,) = kernels_for(column_sums, machine)
        found[machine.unit.name] = shape_of(compile_for_cpu(kernel.name, kernel.text, machine))
    assert {name: (f["cpu"], f["vector_bits"], f["lanes"]) for name, f in found.items()} == {
        "AVX-512": ("skylake-avx512 (x86-64, AVX-512)", 512, 16),
        "AVX2": ("haswell (x86-64, AVX2)", 256, 8),
        "NEON": ("neoverse-n1 (AArch64, NEON)", 128, 4),
    }
    for facts in found.values():
        assert facts["instruction_mix"]["loads"] >= 4
        assert facts["instruction_mix"]["stores"] >= 1
        assert facts["instruction_mix"]["vector arithmetic"] >= 4
        assert "calls" not in facts["instruction_mix"]


def test_spills_are_counted() -> None:
    """A kernel with more values than registers spills; a small one does not."""
    names = " ".join(f"%v{i}" for i in range(48)).split()
    loads = [f"  %p{i} = getelementptr <16 x float>, ptr %arguments, i64 {i}" for i in range(48)]
    loads += [f"  {n} = load volatile <16 x float>, ptr %p{i}" for i, n in enumerate(names)]
    stores = [f"  store volatile <16 x float> {n}, ptr %p{i}" for i, n in enumerate(names)]
    text = "\n".join(
        ["; many: 16 lanes", "define i32 @many(ptr %arguments) #0 {", *loads, *stores, "  ret i32 0", "}", ""]
    )
    used = compile_for_cpu("many", text, X86).resources
    assert used is not None
    assert used.spills == used.reloads
    assert 16 <= (used.spills or 0) <= 20
    (kernel,) = kernels_for(column_sums, X86)
    assert getattr(compile_for_cpu(kernel.name, kernel.text, X86).resources, "spills", None) == 0


def test_math_functions_name_their_function() -> None:
    """An inlined instruction has the caller's line and its function as library."""
    (kernel,) = kernels_for(pointwise, X86)
    listing = compile_for_cpu(kernel.name, kernel.text, X86).listings[0]
    chains = {link.library for link in listing.links if link.library}
    assert ("exp.v16f32",) in chains or any("exp.v16f32" in chain for chain in chains)
    line = next(link.triton_line for link in listing.links if "sin.v16f32" in link.library)
    assert "@sin.v16f32" in kernel.text.split("\n")[line - 1]


def test_listings_have_no_debug_information() -> None:
    """The text that is recorded has code only, and links count its own lines."""
    (kernel,) = kernels_for(column_sums, X86)
    for listing in compile_for_cpu(kernel.name, kernel.text, X86).listings:
        assert not re.search(r"!dbg|\.loc\b|\.cfi|DILocation|debug_info", listing.text)
        lines = listing.text.split("\n")
        assert all(lines[link.line - 1].strip() for link in listing.links)


def test_a_rejected_text_is_an_error() -> None:
    """What LLVM rejects becomes a sentence in the record."""
    made = compile_for_cpu("broken", "define i32 @broken() {\n  ret i64 0\n}\n", X86)
    assert made.error.startswith("LLVM could not compile broken: ")
    assert not made.listings


LOOP = """\
; sum: 16 lanes
define i32 @k(ptr %arguments) #0 {
entry:
  %x_ptr = load ptr, ptr %arguments
  %limit = sub i64 100, 15
  br label %i0.head
i0.head:
  %i0 = phi i64 [ 0, %entry ], [ %i0.next, %i0.latch ]
  %i0.more = icmp slt i64 %i0, %limit
  br i1 %i0.more, label %i0.body, label %i0.exit
i0.body:
  %place = getelementptr float, ptr %x_ptr, i64 %i0
  %x = load float, ptr %place
  %e = call float @exp(float %x)
  br label %i0.latch
i0.latch:
  %i0.next = add i64 %i0, 16
  br label %i0.head
i0.exit:
  ret i32 0
}
define internal float @exp(float %x) alwaysinline {
  %made = fmul float %x, %x
  ret float %made
}
"""


def test_lines_without_ops_get_those_that_need_them() -> None:
    """Loop control belongs to the loop, an address to its users, math to its callers."""
    own: list[tuple[str, ...]] = [()] * LOOP.count("\n")
    own[12], own[13] = ("load",), ("exp",)
    found = dict(zip(LOOP.split("\n"), complete_line_ops(LOOP, own), strict=True))
    both = ("load", "exp")
    assert found["  %x_ptr = load ptr, ptr %arguments"] == both
    assert found["  %place = getelementptr float, ptr %x_ptr, i64 %i0"] == both
    assert set(found["  %limit = sub i64 100, 15"]) == set(both)
    assert set(found["  br i1 %i0.more, label %i0.body, label %i0.exit"]) == set(both)
    assert found["  %made = fmul float %x, %x"] == ("exp",)
    assert found["  %x = load float, ptr %place"] == ("load",)
    assert found["  ret i32 0"] == ()


def at(line: int, text: str) -> InstructionLocation:
    """Return an instruction from a line of the kernel's text; 0 for none."""
    return InstructionLocation(0, text.replace(" ", "\t", 1), (InlineFrame("kernel.ll", line),))


def test_a_moved_constant_has_the_line_of_its_use() -> None:
    """A hoisted constant, also one on the stack, belongs to its reader."""
    code = [
        at(2, "pushq %rbx"),
        at(9, "vbroadcastss (%rcx), %zmm1"),
        at(9, "vbroadcastss (%rdx), %zmm2"),
        at(0, "vmovups %zmm2, 64(%rsp)"),
        at(9, "jge .L1"),
        at(14, "vmulps %zmm1, %zmm0, %zmm3"),
        at(17, "vaddps 64(%rsp), %zmm3, %zmm4"),
    ]
    found = lines_by_use(code, frozenset((2, 9)), destination_first=False)
    assert [p.chain[-1].line for p in found] == [2, 14, 17, 17, 9, 14, 17]
    arm = [at(0, "movi v1.4s, #1"), at(5, "fmul v2.4s, v0.4s, v1.4s")]
    assert [p.chain[-1].line for p in lines_by_use(arm, frozenset(), destination_first=True)] == [5, 5]


def test_readers_of_both_assemblies() -> None:
    """Both syntaxes give instructions with their ``.loc`` and its inlined calls."""
    x86 = '\t.file\t1 "kernel.ll"\nf:\n\t.loc\t1 7 1 # kernel.ll:7:1 @[ kernel.ll:3:1 ]\n\tvaddps\t%zmm0, %zmm1, %zmm2 # note\n\tretq\n'
    arm = '\t.file\t1 "kernel.ll"\nf:\n\t.loc\t1 7 1 // kernel.ll:7:1\n\tb.lt\t.L1\n\tret\n'
    assert [(p.text, [f.line for f in p.chain]) for p in x86_locations(x86)] == [
        ("vaddps\t%zmm0, %zmm1, %zmm2", [7, 3]),
        ("retq", [7, 3]),
    ]
    assert [(p.text, [f.line for f in p.chain]) for p in aarch64_locations(arm)] == [("b.lt\t.L1", [7]), ("ret", [7])]


def test_a_record_of_another_cpu_keeps_its_name() -> None:
    """The record names the CPU, also for a session that is opened elsewhere."""
    assert dataclasses.replace(X86, cpu="").architecture == "x86-64"
    (kernel,) = kernels_for(column_sums, ARM)
    made = compile_for_cpu(kernel.name, kernel.text, ARM)
    assert "ld1" in made.listings[1].text or "ldr\tq" in made.listings[1].text or "ldp\tq" in made.listings[1].text
