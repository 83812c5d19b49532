"""Tuning by hand: settings are timed, compared with the default, and kept."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import torch

import engine
from engine.errors import BadArgument
from engine.records.kernels import KernelRecord


def rows(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1).cos() + 1


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(a @ b)


def picked(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x[i] * 2 + 1


@pytest.fixture(autouse=True)
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine.reset()


def recorded(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor, **options: object) -> engine.Session:
    with engine.record() as session:
        engine.compile(fn, target="cuda:90", options=options)(*inputs)
    return session


def cpu_kernel(session: engine.Session) -> KernelRecord:
    return session.compilations[0].cpu_kernels[0]


@pytest.mark.thorough
def test_later_compiles_use_a_kept_setting_until_it_is_forgotten() -> None:
    """Another number of vectors prints another text, with equal results and a reason."""
    x = torch.randn(64, 256)
    session = recorded(rows, x)
    usual = cpu_kernel(session)
    tuning = engine.tune(session, session.compilations[0].id, usual.id, {"vectors": (1, 8)})
    assert [p.values["vectors"] for p in tuning.points] == [1, 8]
    assert all(p.seconds for p in tuning.points), tuning
    assert tuning.best in tuning.points
    other = next(n for n in (1, 8) if n != tuning.controls[1].default)
    assert tuning.keep({"vectors": other}).values["vectors"] == other

    engine.reset()
    later = recorded(rows, x)
    kept = cpu_kernel(later)
    assert kept.text != usual.text
    choice = later.compilations[0].cpu_program.autotune_choices[0]
    assert choice.chosen == f"vector_bits {tuning.controls[0].default}, vectors {other}"
    assert choice.reason.startswith("Chosen by hand on this CPU: ")
    torch.testing.assert_close(engine.compile(rows)(x), rows(x))

    tuning.forget()
    engine.reset()
    assert cpu_kernel(recorded(rows, x)).text == usual.text


def scaled_rows(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("columns", [24, 64])
def test_more_vectors_than_a_row_has_are_refused(columns: int) -> None:
    """Vectors beyond the end of a row would write past the buffer."""
    session = recorded(scaled_rows, torch.randn(32, columns))
    kernel = cpu_kernel(session)
    tuning = engine.tune(session, session.compilations[0].id, kernel.id)
    lanes = {p.values["vector_bits"]: p.values["vector_bits"] // 32 for p in tuning.points}
    for point in tuning.points:
        needed = -(-columns // lanes[point.values["vector_bits"]]) if point.values["vector_bits"] else 1
        is_possible = point.values["vectors"] <= needed
        assert bool(point.seconds) == is_possible, point
        assert is_possible or point.problem.startswith("not possible: "), point


@pytest.mark.thorough
def test_points_of_several_calls_are_in_the_session(tmp_path: pathlib.Path) -> None:
    """A loaded session has the points and what was kept; nothing can be tuned in it."""
    session = recorded(rows, torch.randn(64, 256))
    entry, kernel = session.compilations[0].id, cpu_kernel(session).id
    engine.tune(session, entry, kernel, {"vectors": (1,)})
    tuning = engine.tune(session, entry, kernel, {"vectors": (2, 1)})
    tuning.keep()
    session.save(tmp_path / "s.json")
    found = cpu_kernel(engine.Session.load(tmp_path / "s.json")).tuning
    assert found is not None
    assert sorted(p.values["vectors"] for p in found.points) == [1, 2]
    assert found.chosen == (tuning.best and tuning.best.values)
    assert found.device == "this CPU"
    with pytest.raises(BadArgument, match="There is no live kernel"):
        engine.tune(engine.Session.load(tmp_path / "s.json"), entry, kernel)


@pytest.mark.thorough
def test_a_triton_kernel_without_a_gpu_has_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings have registers and spills, and can be kept without a time."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    session = recorded(rows, torch.randn(64, 256))
    entry, kernel = session.compilations[0].id, session.compilations[0].kernels[0].id
    tuning = engine.tune(session, entry, kernel, {"num_warps": (4, 16), "ROWS": (8, 32)})
    assert tuning.best is None
    assert "not measured: it cannot run here" in repr(tuning)
    found = {(p.values["num_warps"], p.values["ROWS"]): p for p in tuning.points}
    few, many = found[4, 8].resources, found[16, 8].resources
    assert few is not None
    assert many is not None
    assert (few.registers or 0) > (many.registers or 0) > 0
    assert (many.occupancy or 0) >= (few.occupancy or 0) > 0
    with pytest.raises(BadArgument, match="not measured, or failed"):
        tuning.keep()
    assert tuning.keep({"num_warps": 16, "ROWS": 8}).seconds is None
    engine.reset()
    later = recorded(rows, torch.randn(64, 256)).compilations[0]
    assert (later.kernels[0].launch_args or {})["num_warps"] == "16"
    assert "Chosen by hand, not measured." in [c.reason for c in later.lowering.autotune_choices]


@pytest.mark.thorough
def test_a_product_has_the_sides_of_its_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's template is tuned by rows, columns and inner elements of a tile."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    session = recorded(product, torch.randn(64, 256), torch.randn(256, 128), templates="always")
    entry, kernel = session.compilations[0].id, session.compilations[0].kernels[0].id
    tuning = engine.tune(session, entry, kernel, {"ROWS": (16, 64), "INNER": (32,), "num_stages": (2,)})
    assert [c.name for c in tuning.controls] == ["ROWS", "COLS", "INNER", "num_warps", "num_stages"]
    assert all(p.resources for p in tuning.points), tuning


def test_what_cannot_be_tuned_says_why() -> None:
    """Unknown settings, too many, no integers, addresses that depend on values."""
    session = recorded(rows, torch.randn(64, 256))
    entry, kernel = session.compilations[0].id, cpu_kernel(session).id
    with pytest.raises(BadArgument, match="has no setting 'depth': choose from vector_bits, vectors"):
        engine.tune(session, entry, kernel, {"depth": (1,)})
    with pytest.raises(BadArgument, match="These are 65 settings"):
        engine.tune(session, entry, kernel, {"vectors": range(65)})
    with pytest.raises(BadArgument, match="must be integers"):
        engine.tune(session, entry, kernel, {"vectors": (1.5,)})  # type: ignore[dict-item]
    for values in ({"vectors": (1, 0)}, {"vectors": (-1,)}, {"vectors": (10**9,)}, {"vector_bits": (7,)}):
        with pytest.raises(BadArgument, match=f"{next(iter(values))} cannot be .*: choose from "):
            engine.tune(session, entry, kernel, values)
    with pytest.raises(BadArgument, match=f"There is no live kernel 'k9' of {entry}: choose one of k0, c0"):
        engine.tune(session, entry, "k9")
    impossible = engine.tune(session, entry, kernel, {"vector_bits": (0,), "vectors": (2,)})
    assert impossible.points[0].problem == "not possible: without vectors, an iteration computes one element"
    gather = recorded(picked, torch.randn(64, 256), torch.arange(32))
    with pytest.raises(BadArgument, match="depend on the values of an input"):
        engine.tune(gather, gather.compilations[0].id, gather.compilations[0].kernels[0].id)
