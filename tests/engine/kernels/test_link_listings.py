"""Every listing line links to its source line of Triton text or says why it has none."""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest

from engine.ir.kernels.compile_triton import compile_unit_of, run_triton_compiler
from engine.kernels import debug_locations
from engine.kernels.compile_kernel import clean_listing, compile_kernel
from engine.kernels.debug_locations import InlineFrame
from engine.kernels.link_listings import NO_LOCATION_LABEL, PADDING_LABEL, link_instruction, link_listing
from engine.kernels.sass import disassemble, read_cubin
from engine.records.kernels import Listing, TargetRecord
from tests.engine.kernels import handwritten_kernels
from tests.markers import needs_triton

KERNELS = {make.__name__: make for make in handwritten_kernels.ALL_KERNELS}


def listing_of(record: TargetRecord, stage: str) -> Listing:
    """One listing of a record."""
    return next(found for found in record.listings if found.stage == stage)


def line_of(text: str, part: str) -> int:
    """The number of the line that holds ``part``."""
    return next(i for i, line in enumerate(text.splitlines(), 1) if part in line)


@needs_triton
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("stage", ["ptx", "sass"])
def test_nearly_all_machine_code_is_linked_or_labelled(name: str, stage: str) -> None:
    """At least 95% of instructions link to a Triton line or have a specific label.

    A label "unknown" is not specific. Padding is not counted.
    """
    found = listing_of(compile_kernel(KERNELS[name](), "cuda:90"), stage)
    code = [k for k in found.links if k.label != "generated: padding"]
    assert len(code) > 15
    assert sum(1 for k in code if k.triton_line or k.label not in ("", NO_LOCATION_LABEL)) >= 0.95 * len(code)
    assert sum(1 for k in code if k.triton_line) >= 0.9 * len(code)


@needs_triton
@pytest.mark.parametrize("stage", ["ttir", "ttgir", "llir", "ptx", "sass"])
def test_counts_agree_with_the_links(stage: str) -> None:
    """Each instruction has one link, in order; linked and labelled are counted apart.

    Padding does not count. At every stage 95 of 100 instructions reach a Triton line.
    """
    found = listing_of(compile_kernel(handwritten_kernels.softmax(), "cuda:90"), stage)
    lines = [k.line for k in found.links]
    assert lines == sorted(set(lines))
    code = [k for k in found.links if k.label != PADDING_LABEL]
    assert found.instructions == len(code) == found.linked + found.labelled
    assert found.linked == sum(1 for k in code if k.triton_line) >= 0.95 * len(code)
    assert all(bool(k.triton_line) != bool(k.label) for k in found.links)


@needs_triton
@pytest.mark.parametrize(("target", "stage"), [("cuda:90", "ptx"), ("hip:gfx942", "amdgcn")])
def test_what_was_inlined_from_the_library_leads_to_the_call(target: str, stage: str) -> None:
    """Instructions of tl.max in standard.py link to the line that calls tl.max.

    The link goes through the functions between.
    """
    source = handwritten_kernels.softmax()
    found = listing_of(compile_kernel(source, target), stage)
    lines = found.text.splitlines()
    call = line_of(source.text, "tl.max(")
    maxima = [k for k in found.links if re.search(r"\bmax\.f32|v_max3?_f32", lines[k.line - 1]) and k.triton_line]
    assert maxima
    assert {k.triton_line for k in maxima} == {call}
    assert any(len(k.library) == 2 and re.fullmatch(r"standard\.py:\d+ max", k.library[0]) for k in maxima)


@needs_triton
@pytest.mark.parametrize("name", KERNELS)
def test_loads_and_stores_link_to_their_own_lines(name: str) -> None:
    """Global loads and stores in PTX and SASS link only to tl.load and tl.store lines."""
    source = KERNELS[name]()
    record = compile_kernel(source, "cuda:90")
    text = source.text.splitlines()
    for stage, pattern in (("ptx", r"(ld|st)\.global"), ("sass", r"\b(LDG|STG)\b")):
        found = listing_of(record, stage)
        lines = found.text.splitlines()
        accesses = [k for k in found.links if re.search(pattern, lines[k.line - 1])]
        assert accesses
        for access in accesses:
            word = "tl.store" if re.search(r"st\.global|STG", lines[access.line - 1]) else "tl.load"
            assert word in text[access.triton_line - 1]


@needs_triton
@pytest.mark.parametrize("name", KERNELS)
def test_sass_joins_the_ptx_lines_that_the_disassembler_itself_names(name: str) -> None:
    """The line table gives each instruction the PTX line that nvdisasm annotates.

    nvdisasm reads the whole cubin.
    """
    from triton import knobs

    kernel = run_triton_compiler(compile_unit_of(KERNELS[name]()), ("cuda", 90, 32))
    own = dict(read_cubin(kernel.asm["cubin"]).ptx_lines)
    theirs: dict[int, int] = {}
    for line in _nvdisasm(str(knobs.nvidia.nvdisasm.path), kernel.asm["cubin"]).splitlines():
        if note := re.search(r'File "\.nv_debug_ptx_txt", line (\d+)', line):
            theirs[-1] = int(note[1])
        elif (code := re.match(r"\s*/\*([0-9a-f]{4})\*/", line)) and -1 in theirs:
            theirs[int(code[1], 16)] = theirs.pop(-1)
    assert len(theirs) > 10
    assert {address: own.get(address) for address in theirs} == theirs


def _nvdisasm(path: str, cubin: bytes) -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "k.cubin"
        file.write_bytes(cubin)
        return subprocess.run([path, "-c", "-gp", str(file)], capture_output=True, text=True, check=True).stdout


@pytest.mark.thorough
@needs_triton
def test_disassembling_many_kernels_at_once_gives_each_its_own_code() -> None:
    """Disassembling many kernels in one run gives the same listings as one by one.

    Branches stay inside their kernel.
    """
    makers = (handwritten_kernels.gelu, handwritten_kernels.softmax, handwritten_kernels.embedding)
    kernels = [run_triton_compiler(compile_unit_of(make()), ("cuda", 90, 32)) for make in makers]
    units = [compile_unit_of(make()) for make in makers]
    ptx = [link_listing("ptx", clean_listing(k.asm["ptx"]), u) for k, u in zip(kernels, units, strict=True)]
    cubins = [k.asm["cubin"] for k in kernels]
    together = disassemble(cubins, 90, ptx)
    apart = tuple(disassemble([c], 90, [p])[0] for c, p in zip(cubins, ptx, strict=True))
    assert together == apart
    for found in together:
        labels = set(re.findall(r"^(\.L_\d+):", found.text, re.MULTILINE))
        assert labels
        assert labels == set(re.findall(r" (\.L_\d+);", found.text))


@needs_triton
def test_sass_lines_name_the_ptx_line_they_were_assembled_from() -> None:
    """A store of SASS names a PTX line that stores."""
    record = compile_kernel(handwritten_kernels.gelu(), "cuda:90")
    sass, ptx = listing_of(record, "sass"), listing_of(record, "ptx").text.splitlines()
    stores = [k for k in sass.links if "STG" in sass.text.splitlines()[k.line - 1]]
    assert stores
    assert all("st.global" in ptx[k.ptx_line - 1] for k in stores)


def test_a_damaged_cubin_is_refused() -> None:
    """Bytes that are no ELF file give a reason, not garbage."""
    with pytest.raises(ValueError, match="not an ELF file"):
        read_cubin(b"nothing of the kind")


TTGIR = """#loc = loc("softmax.py":6:0)
#loc1 = loc(unknown)
#loc5 = loc("m"(#loc10))
#loc10 = loc("softmax.py":11:18 to :24)
#loc9 = loc("/a/b/triton/language/standard.py":191:40)
#loc11 = loc(fused[#loc1, "softmax.py":12:3])
#loc36 = loc(callsite(#loc9 at #loc5))
#loc40 = loc(callsite(callsite(#loc1 at #loc9) at #loc5))
module attributes {"ttg.num-warps" = 4 : i32} {
  tt.func public @softmax(%x: !tt.ptr<f32> loc("x"(#loc))) attributes {noinline = false} {
    %cst = arith.constant dense<1000> : tensor<1024xi32> loc(#loc1)
    %m = "tt.reduce"(%x) <{axis = 0 : i32}> ({
    ^bb0(%a: f32 loc(callsite(#loc1 at #loc5)), %b: f32 loc(callsite(#loc1 at #loc5))):
      %c = arith.maxnumf %a, %b : f32 loc(#loc40)
      tt.reduce.return %c : f32 loc(#loc36)
    }) : (tensor<1024xf32>) -> f32 loc(#loc36)
    %d = arith.addf %m, %m : f32 loc(#loc11)
    tt.return loc(#loc99)
  } loc(#loc)
} loc(#loc)
"""


def test_mlir_locations_are_followed_through_calls_names_and_fusions() -> None:
    """MLIR callsite, named, fused, aliased, unknown and missing locations are resolved.

    An operation with a region has the location that follows the region.
    """
    places = list(debug_locations.mlir_locations(TTGIR))
    call = (InlineFrame("standard.py", 191), InlineFrame("softmax.py", 11))
    assert [(p.line, p.chain) for p in places] == [
        (11, ()),
        (12, call),
        (14, call),
        (15, call),
        (17, (InlineFrame("softmax.py", 12),)),
        (18, ()),
    ]


def test_llvm_locations_are_followed_to_where_they_were_inlined() -> None:
    """inlinedAt leads from the library's file to the kernel's, through scopes without a file."""
    text = """define void @k() !dbg !4 {
  %1 = add i32 1, 2, !dbg !12
  ret void
}
!1 = !DIFile(filename: "k.py", directory: "")
!2 = !DIFile(filename: "standard.py", directory: "/x/triton/language")
!4 = distinct !DISubprogram(name: "k", file: !1, line: 3)
!5 = distinct !DISubprogram(name: "k", file: !2, line: 3)
!6 = distinct !DILexicalBlock(scope: !5, line: 8)
!12 = !DILocation(line: 9, column: 7, scope: !6, inlinedAt: !13)
!13 = distinct !DILocation(line: 5, column: 2, scope: !4)
"""
    places = list(debug_locations.llvm_locations(text))
    assert [p.chain for p in places] == [(InlineFrame("standard.py", 9), InlineFrame("k.py", 5)), ()]


def test_a_helper_of_the_kernels_own_text_links_to_the_line_that_calls_it() -> None:
    """The outermost frame in the kernel text is the linked line; a helper joins the chain.

    The outermost line is the one with the loop ops.
    """
    unit = compile_unit_of(
        handwritten_kernels.source("k", "def helper():\n    pass\n\ndef k():\n    helper()\n", (), (1,))
    )
    place = debug_locations.InstructionLocation(
        1, "add.f32", (InlineFrame("standard.py", 0), InlineFrame("k.py", 2), InlineFrame("k.py", 5))
    )
    found = link_instruction(place, unit)
    assert found.triton_line == 5
    assert found.library == ("k.py:2 helper",)


def test_a_call_over_several_lines_of_ptx_is_one_instruction() -> None:
    """The parts of a call sequence are not instructions of their own, and directives are none."""
    text = """.visible .entry k(
\t.param .u64 k_param_0
)
{
\t.reg .b32 \t%r<5>;
\t.loc\t1 3 5
\t{ // callseq 0, 0
\t.param .b32 param0;
\tcall.uni (retval0),
\tvprintf,
\t(
\tparam0
\t);
\t} // callseq 0
$L__BB0:
\t@%p1 bra \t$L__BB0;
\tret;
}
\t.file\t1 "k.py"
"""
    places = list(debug_locations.ptx_locations(text))
    assert [(p.line, p.text.split()[0]) for p in places] == [(9, "call.uni"), (16, "@%p1"), (17, "ret;")]
    assert {p.chain for p in places} == {(InlineFrame("k.py", 3),)}
