"""``engine.compile`` spelled as ``torch.compile``; this engine as a backend of Dynamo."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tomllib
from collections.abc import Callable

import pytest
import torch

import engine
from engine.api import torch_backend
from engine.backends.torch_compile_arguments import options_of_torch
from engine.errors import BadArgument, ExpectationFailed

ROOT = pathlib.Path(__file__).parents[2]


def scaled(x: torch.Tensor) -> torch.Tensor:
    """Two operations."""
    return (x * 2).relu()


def test_mode_and_disable() -> None:
    """``mode`` is checked like the option; a disabled function is returned as it is."""
    assert engine.compile(scaled, disable=True) is scaled
    assert engine.compile(disable=True)(scaled) is scaled
    torch.testing.assert_close(engine.compile(scaled, mode="reduce-overhead")(torch.ones(3)), scaled(torch.ones(3)))
    with pytest.raises(BadArgument, match="fastest"):
        engine.compile(scaled, mode="fastest")


@pytest.mark.parametrize("compile", [engine.compile, torch.compile])
@pytest.mark.parametrize("options", [{}, {"max_autotune": True}])
def test_a_mode_with_options_raises(compile: Callable[..., object], options: dict[str, object]) -> None:
    """``mode=`` and ``options=`` exclude each other, as for ``torch.compile``."""
    with pytest.raises(RuntimeError, match="both"):
        compile(scaled, mode="max-autotune", options=options)


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({"triton.cudagraphs": True}, "reduce-overhead"),
        ({"max_autotune": True}, "max-autotune-no-cudagraphs"),
        ({"max_autotune": True, "triton.cudagraphs": True}, "max-autotune"),
        ({"max_autotune": False}, None),
    ],
)
def test_options_of_inductor_are_modes(given: dict[str, bool], mode: str | None) -> None:
    """Options of Inductor that mean the same as a mode are that mode."""
    assert options_of_torch(given).get("mode") == mode
    torch.testing.assert_close(engine.compile(scaled, options=given)(torch.ones(3)), scaled(torch.ones(3)))


@pytest.mark.thorough
def test_torch_compile_with_this_backend() -> None:
    """Dynamo traces, this engine compiles: results and gradients are eager's."""
    torch.compiler.reset()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    compiled = torch.compile(model, backend=torch_backend)
    with engine.record() as session:
        for rows in (3, 5, 7):
            x = torch.randn(rows, 4)
            expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
            found = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
            torch.testing.assert_close(compiled(x), model(x))
            torch.testing.assert_close(found, expected)
    assert any(g.stage in ("aten", "forward") for c in session.compilations for g in c.graphs)
    assert not any(c.trace.breaks for c in session.compilations if c.trace)
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"options": {"guard_filter_fn": 3}}, "must be a function of a list of guards, not 3"),
        ({"recompile_limit": "many"}, "must be a positive integer or None, not 'many'"),
        ({"recompile_limit": 0}, "must be a positive integer or None, not 0"),
        ({"backend": "inductor", "options": {"max_autotune_gem": True}}, "no option 'max_autotune_gem'"),
    ],
)
def test_wrong_arguments_are_told_at_once(given: dict[str, object], said: str) -> None:
    """A misspelled option or a wrong value raises where it is given, for every backend."""
    with pytest.raises(BadArgument, match=said):
        engine.compile(torch.sin, **given)  # type: ignore[arg-type]


def test_a_guard_filter_that_fails_is_told() -> None:
    """What the user's filter raised, and what it must return, are one sentence."""
    compiled = engine.compile(torch.sin, backend="eager", options={"guard_filter_fn": lambda guards: 1 / 0})
    with pytest.raises(BadArgument, match="one flag for each guard; it failed with ZeroDivisionError"):
        compiled(torch.ones(2))


@pytest.mark.thorough
def test_entry_points_are_found(tmp_path: pathlib.Path) -> None:
    """An installed package makes the backend and the pytest plugin known by name."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    folder = tmp_path / "compile_explorer-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: compile-explorer\nVersion: 0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups.items()]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    program = (
        "import torch\nf = torch.compile(lambda x: x * 2 + 1, backend='compile_explorer')\n"
        "assert 'compile_explorer' in torch.compiler.list_backends()\nassert f(torch.ones(2)).tolist() == [3.0, 3.0]\n"
        "from importlib.metadata import entry_points\n"
        "[p] = [p for p in entry_points(group='pytest11') if p.name == 'compile-explorer']\nassert p.load().pytest_addoption\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=240,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def test_limits_on_guards_and_memory() -> None:
    """``engine.expect`` fails with the numbers if guards or the peak exceed a limit."""
    x = torch.ones(64, 64, requires_grad=True)
    with pytest.raises(ExpectationFailed, match=r"at most 1 guard, got \d+"), engine.expect(guards=1):
        engine.compile(lambda x: x * 3, backend="eager")(x)
    with pytest.raises(ExpectationFailed, match="peak of at most 10 bytes, got"), engine.expect(peak_bytes=10):
        engine.compile(lambda x: x.sin().exp().sum(), backend="aot_eager")(x).backward()
    with engine.expect(guards=1000, peak_bytes=10**9):
        engine.compile(lambda x: x.cos().exp().sum(), backend="aot_eager")(x).backward()
