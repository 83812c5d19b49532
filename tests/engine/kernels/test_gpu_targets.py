"""Kernels compiled for named targets on a machine without a GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from engine.errors import UnknownTarget
from engine.ir.kernels.compile_triton import compile_unit_of, run_triton_compiler
from engine.kernels import compile_kernel as compile_kernel_module
from engine.kernels.compile_kernel import clean_listing, compile_kernel
from engine.kernels.gpu_targets import TARGETS, default_target, parse_target
from engine.kernels.to_records import kernel_record
from engine.records.base import from_jsonable, to_jsonable
from engine.records.kernels import KernelRecord, TargetRecord
from tests.engine.kernels import handwritten_kernels
from tests.markers import each_kind_of_target, needs_triton


def text_of(record: TargetRecord, stage: str) -> str:
    """The text of one listing."""
    return next(listing.text for listing in record.listings if listing.stage == stage)


def test_a_target_is_known_by_name() -> None:
    """The table's names parse to their architecture."""
    assert parse_target("cuda:90").architecture == 90
    assert parse_target("hip:gfx942").warp_size == 64


@pytest.mark.parametrize("name", ["h100", "cuda:91", "", "CUDA:90", None, 90])
def test_an_unknown_target_is_refused_with_the_known_ones(name: object) -> None:
    """The message names what was asked for and all that there is."""
    with pytest.raises(UnknownTarget, match=re.escape(repr(name))) as caught:
        parse_target(name)  # type: ignore[arg-type]
    assert all(known in str(caught.value) for known in TARGETS)


def test_the_default_target_is_one_of_the_table() -> None:
    """With or without a GPU there is a target to compile for."""
    assert default_target() in TARGETS


@needs_triton
@each_kind_of_target
def test_every_target_gives_all_its_listings(target: str) -> None:
    """From Triton's first form to machine code, with no GPU."""
    record = compile_kernel(handwritten_kernels.softmax(), target)
    assert not record.error
    last = ("amdgcn",) if target.startswith("hip") else ("ptx", "sass")
    assert tuple(listing.stage for listing in record.listings) == ("ttir", "ttgir", "llir", *last)
    assert all(listing.text.strip() and listing.instructions > 10 for listing in record.listings)
    assert record.seconds > 0


@needs_triton
@pytest.mark.parametrize(("target", "machine"), [("cuda:80", ".target sm_80"), ("cuda:100", ".target sm_100a")])
def test_the_code_is_for_the_target_asked_for(target: str, machine: str) -> None:
    """PTX names the architecture that was asked for."""
    assert machine in text_of(compile_kernel(handwritten_kernels.gelu(), target), "ptx")


@needs_triton
@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
def test_no_listing_holds_a_path_of_this_machine(target: str) -> None:
    """Library files are named from Triton's package on, the kernel by its name."""
    for listing in compile_kernel(handwritten_kernels.softmax(), target).listings:
        assert not re.search(r'"/', listing.text), listing.stage
        assert "site-packages" not in listing.text
        if listing.stage != "sass":
            assert "softmax.py" in listing.text
            assert "standard.py" in listing.text


@needs_triton
def test_shown_ptx_has_no_debug_tables_but_all_its_code() -> None:
    """What is cut off is the DWARF bytes behind the code; the lines before keep their numbers."""
    kernel = run_triton_compiler(compile_unit_of(handwritten_kernels.softmax()), ("cuda", 90, 32))
    whole, cut = kernel.asm["ptx"].splitlines(), clean_listing(kernel.asm["ptx"]).splitlines()
    assert len(cut) < len(whole)
    assert ".section" not in "\n".join(cut)
    end = whole.index("}")
    assert cut[: end + 1] == whole[: end + 1]


@needs_triton
def test_aligned_pointers_are_loaded_four_words_at_a_time() -> None:
    """The compiler is told of the alignment that a launch has, and makes use of it."""
    aligned = handwritten_kernels.softmax(cols=128)
    assert "ld.global.v4" in clean_listing(
        run_triton_compiler(compile_unit_of(replace(aligned, num_warps=1)), ("cuda", 90, 32)).asm["ptx"]
    )
    odd = compile_unit_of(replace(aligned, num_warps=1), frozenset({"x"}))
    assert "ld.global.v4" not in clean_listing(run_triton_compiler(odd, ("cuda", 90, 32)).asm["ptx"])


@needs_triton
@pytest.mark.parametrize("switch", [None, "0", "1"])
def test_products_and_sums_are_fused_unless_switched_off(switch: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton is told to fuse, whatever its default; the user's switch decides first."""
    monkeypatch.delenv("TRITON_DEFAULT_FP_FUSION", raising=False)
    if switch is not None:
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", switch)
    made = run_triton_compiler(compile_unit_of(handwritten_kernels.gelu()), ("cuda", 90, 32))
    assert made.metadata.enable_fp_fusion == (switch != "0")


def test_sizes_are_marked_as_multiples_of_16_only_where_they_are() -> None:
    """A static size tells; a symbol does not."""
    import sympy

    assert "count" in compile_unit_of(handwritten_kernels.gelu(1024)).aligned
    assert "count" not in compile_unit_of(handwritten_kernels.gelu(1000)).aligned
    assert "count" not in compile_unit_of(handwritten_kernels.gelu(sympy.Symbol("s0") * 16)).aligned


@needs_triton
def test_a_kernel_that_triton_refuses_has_an_error_of_one_sentence() -> None:
    """The target, the line and the reason are told; nothing is raised."""
    good = handwritten_kernels.softmax()
    bad = replace(good, text=good.text.replace("tl.exp(shifted)", "tl.exponential(shifted)"))
    record = compile_kernel(bad, "cuda:90")
    assert not record.listings
    assert "\n" not in record.error
    assert record.error.startswith("Triton could not compile softmax for cuda:90")
    assert "exponential" in record.error


@needs_triton
def test_a_kernel_that_is_not_python_has_an_error() -> None:
    """A syntax error in the text is told like any other failure."""
    record = compile_kernel(replace(handwritten_kernels.softmax(), text="def softmax(:"), "cuda:90")
    assert "invalid syntax" in record.error


def test_without_triton_the_error_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere than on Linux there is no Triton to install."""
    monkeypatch.setattr(compile_kernel_module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(compile_kernel_module.platform, "system", lambda: "Darwin")
    assert compile_kernel(handwritten_kernels.softmax(), "cuda:90").error.startswith("PTX and SASS need Linux")
    monkeypatch.setattr(compile_kernel_module.platform, "system", lambda: "Linux")
    assert "pip install triton" in compile_kernel(handwritten_kernels.softmax(), "cuda:90").error


@needs_triton
def test_listings_survive_a_disk_cache_that_holds_binaries_only(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's cache may have been filled with cubins alone: the texts are made again."""
    from triton import knobs

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_STORE_BINARY_ONLY", "1")
    assert "ptx" not in run_triton_compiler(compile_unit_of(handwritten_kernels.embedding()), ("cuda", 90, 32)).asm
    record = compile_kernel(handwritten_kernels.embedding(), "cuda:90")
    assert {"ttir", "ttgir", "llir", "ptx", "sass"} == {listing.stage for listing in record.listings}
    assert knobs.compilation.store_binary_only


@needs_triton
def test_a_kernel_record_survives_json() -> None:
    """Everything told about a kernel and its targets can be saved and read."""
    source = handwritten_kernels.layernorm()
    record = kernel_record(source, (compile_kernel(source, "cuda:90"),))
    assert from_jsonable(KernelRecord, to_jsonable(record), "kernel") == record
    assert record.launch_args is not None
    assert record.launch_args["cols"] == "100"
    assert record.grid == "(4)"
