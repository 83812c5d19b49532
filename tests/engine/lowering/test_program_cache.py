"""Lowered programs cached on disk load unchanged, and only for equal graphs.

Only files that a process of this user wrote are read.
"""

from __future__ import annotations

import os
import pathlib
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import engine
from engine.cache.disk_store import DiskStore
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.kernels.lowered_program import LoweredProgram
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.lowering.program_cache import load_or_lower
from engine.records.base import to_json
from engine.records.lowering import LoweringRecord
from engine.records.session import CompilationRecord
from engine.runtime.verify.kernels import verify_kernels
from tests.engine.lowering.op_cases import CASES
from tests.engine.lowering.trace_aten import trace_to_aten
from tests.markers import needs_triton

pytestmark = needs_triton


@pytest.fixture(autouse=True)
def folder(disk_cache: pathlib.Path) -> pathlib.Path:
    """Where the stage keeps what it made."""
    return disk_cache / "lowered"


def trains(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Products, a softmax, a constant tensor and a loss."""
    y = F.softmax(x @ w + torch.tensor(0.5), -1)
    return F.layer_norm(y, (4,)).sum()


def _compiled(fn: Callable[..., Any], **options: Any) -> CompilationRecord:
    engine.reset()
    torch.manual_seed(0)
    x, w = torch.randn(3, 4), torch.randn(4, 4).requires_grad_()
    with engine.record() as session:
        engine.compile(fn, backend="triton", **options)(x, w).backward()
    (found,) = session.compilations
    return found


def _cache_notes(fn: Callable[..., Any], **options: Any) -> list[str]:
    found = _compiled(fn, **options)
    return [r.cache for r in (found.lowering, found.backward_lowering) if r is not None]


def _text(found: CompilationRecord) -> str:
    kernels = [replace(k, targets=()) for k in found.kernels]  # compiled for targets behind the scenes
    programs = [_without_targets(r) for r in (found.lowering, found.backward_lowering) if r is not None]
    told = "".join(map(to_json, [*programs, *kernels]))
    return told.replace(f":{found.id}:", ":here:").replace("saved to disk", "loaded from disk")


def _without_targets(program: LoweringRecord) -> LoweringRecord:
    if program.cpu is None:
        return program
    kernels = tuple(replace(kernel, targets=()) for kernel in program.cpu.kernels)
    return replace(program, cpu=replace(program.cpu, kernels=kernels))


def test_cached_program_equals_lowered_program() -> None:
    """A loaded program has the same kernels, origins, decisions and passes as a lowered one.

    Compared for forward and backward.
    """
    made, read = _compiled(trains), _compiled(trains)
    assert made.lowering is not None
    assert read.backward_lowering is not None
    assert made.lowering.cache == "saved to disk"
    assert read.backward_lowering.cache == "loaded from disk"
    assert made.kernels
    assert made.id != ""
    assert _text(made) == _text(read)


def test_a_later_compilation_has_ids_of_its_own() -> None:
    """Ids of nodes and operations name the compilation that loads them.

    They do not name the compilation that saved them.
    """
    engine.reset()
    x, w = torch.randn(3, 4), torch.randn(4, 4)
    with engine.record() as session:
        for _ in range(2):
            engine.compile(trains, backend="triton")(x, w)
            engine.reset()
    first, second = session.compilations
    assert second.lowering is not None
    assert second.lowering.cache == "loaded from disk"
    assert first.id != second.id
    assert all(f":{second.id}:" in op.id for k in second.kernels for op in k.ops)


SAVED_SHARE = 12
"""One case in so many is saved outside the slow ring.

The fields of programs are those of few kinds of records.
"""


@pytest.mark.thorough
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, SAVED_SHARE))])
def test_programs_round_trip(part: int, tmp_path: pathlib.Path) -> None:
    """Nearly all programs load from disk field by field as they were lowered.

    The record of each other program says why it is not saved.
    """
    cases = list(CASES.items())[part::SAVED_SHARE]
    store = DiskStore(tmp_path / "programs")
    others = []
    for name, case in cases:
        graph = trace_to_aten(case.function, case.args())
        made = lower(graph, "cuda:90", print_triton)

        def program(graph: AotGraph = graph, made: LoweredProgram = made) -> LoweredProgram:
            return load_or_lower(graph, lambda: made, store, [], fused_random=False, with_reference=False)

        first, second = program(), program()
        if first.record.cache.startswith("not saved to disk: "):
            others.append((name, first.record.cache))
            continue
        assert (first.record.cache, second.record.cache) == ("saved to disk", "loaded from disk")
        read = replace(second, record=replace(second.record, passes=made.record.passes, cache=""))
        assert repr(read) == repr(replace(made, reference_graph=None)), name
    assert len(others) <= len(cases) // 10, others


@pytest.mark.parametrize(
    "name",
    [
        "equal_blocks",
        pytest.param("scatter_add_and_index_add", marks=pytest.mark.slow),  # verified as lowered outside the slow ring
    ],
)
def test_cached_program_is_verified(name: str, tmp_path: pathlib.Path) -> None:
    """Kernels loaded with their reference graph verify against ATen like lowered ones."""
    case = CASES[name]
    graph = trace_to_aten(case.function, case.args())
    store = DiskStore(tmp_path / "programs")
    found = [
        load_or_lower(
            graph, lambda: lower(graph, "cuda:90", print_triton), store, [], fused_random=False, with_reference=True
        )
        for _ in range(2)
    ]
    assert found[1].record.cache == "loaded from disk"
    outcomes = [{k: r.outcome for k, r in verify_kernels(p, graph, case.args()).items()} for p in found]
    assert outcomes[0]
    assert outcomes[0] == outcomes[1]


@pytest.mark.thorough
def test_cache_key_covers_what_decides_the_program() -> None:
    """Another target, another option, other code: each has a program of its own."""

    def otherwise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.softmax(x @ w + torch.tensor(0.25), -1), (4,)).sum()

    assert _cache_notes(trains) == ["saved to disk"] * 2
    assert _cache_notes(otherwise)[0] == "saved to disk"
    assert _cache_notes(trains, target="cuda:80") == ["saved to disk"] * 2
    assert _cache_notes(trains) == ["loaded from disk"] * 2


@pytest.mark.thorough
def test_dynamic_sizes_are_cached() -> None:
    """A program with symbols is loaded if its symbols, their facts and size hints are equal."""
    notes = []
    for _ in range(2):
        engine.reset()
        with engine.record() as session:
            f = engine.compile(lambda x: (x.sin() * x.shape[0]).sum(0), backend="triton", dynamic=True)
            f(torch.randn(5, 3))
        notes += [c.lowering.cache for c in session.compilations if c.lowering is not None]
    assert notes == ["saved to disk", "loaded from disk"]


class _Settings:
    """What no text tells."""

    kept = True


def test_an_operator_whose_fake_reads_an_object_is_named() -> None:
    """A program is not cached if an operator's fake reads an object; the record names it.

    The object may differ in the next process, so the program is lowered each time.
    """
    settings = _Settings()
    library = torch.library.Library("lowered_nowhere", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    torch.library.register_fake(
        "lowered_nowhere::twice", lambda x: torch.empty_like(x) if settings.kept else x, lib=library
    )
    engine.reset()
    with engine.record() as session:
        engine.compile(lambda x: torch.ops.lowered_nowhere.twice(x) + 1, backend="triton")(torch.randn(3))
    (found,) = session.compilations
    assert found.lowering is not None
    assert found.lowering.cache.startswith("not saved to disk: ")
    assert "twice" in found.lowering.cache


def test_switched_off_it_does_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written, and the record is silent."""
    monkeypatch.setattr(engine.config, "disk_cache", False)
    assert _cache_notes(trains) == ["", ""]
    assert not (tmp_path / "compile-explorer").exists()


class _RaisesOnUnpickle:
    def __reduce__(self) -> Any:
        return (os._exit, (3,))


CORRUPTIONS: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "tampered": lambda data: data.replace(b"tl.load", b"tl.sore"),
    "pickled": lambda _: pickle.dumps(_RaisesOnUnpickle()),
    "empty": lambda _: b"",
}


@pytest.mark.parametrize("damage", CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
def test_damaged_and_foreign_files_are_not_loaded(folder: pathlib.Path, damage: Callable[[bytes], bytes]) -> None:
    """They are lowered anew and written over, with the reason in the record."""
    made = _text(_compiled(trains))
    files = [p for p in folder.iterdir() if p.name != "key"]
    before = {p: p.read_bytes() for p in files}
    for path, data in before.items():
        path.write_bytes(damage(data))
    assert any(path.read_bytes() != data for path, data in before.items())
    again = _compiled(trains)
    assert again.lowering is not None
    assert again.lowering.cache == "recompiled: a file in the cache is damaged, or another user wrote it"
    assert _text(again).replace(again.lowering.cache, "loaded from disk") == made
    assert _cache_notes(trains) == ["loaded from disk"] * 2
