"""The page on what torch.compile gained since 2.13: complete for this torch, and true."""

from __future__ import annotations

import inspect
import pathlib
import re
from typing import NamedTuple

import pytest
import torch
import torch.compiler

import engine
from engine.errors import BadArgument
from tests.torch_internals import dynamo_decorators

PAGE = pathlib.Path(__file__).parents[2] / "notebooks" / "reference" / "TORCH.md"
TORCH = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
NAMES_OF_2_13 = frozenset(
    """allow_in_graph assume_constant_result compile config cudagraph_mark_step_begin disable get_default_backend is_compiling
    is_dynamo_compiling is_exporting keep_portable_guards_unsafe keep_tensor_guards_unsafe list_backends load_cache_artifacts
    load_compiled_function nested_compile_region reset save_cache_artifacts set_default_backend set_enable_guard_collectives set_stance
    skip_all_guards_unsafe skip_guard_on_all_nn_modules_unsafe skip_guard_on_globals_unsafe skip_guard_on_inbuilt_nn_modules_unsafe
    substitute_in_graph wrap_numpy""".split()
)
"""``torch.compiler.__all__`` of torch 2.13."""
SETTINGS_OF_2_13 = frozenset(
    """cache_key_tag dynamic_sources dynamic_values force_cudagraph_gc force_disable_caches job_id pgo_extra_read_key
    pgo_extra_write_key unbacked_sources""".split()
)
"""Settings of ``torch.compiler.config`` of torch 2.13."""
KEYWORDS_OF_2_13 = {
    "torch.compile": {
        "model", "fullgraph", "dynamic", "backend", "mode", "options", "name", "disable", "recompile_limit", "isolate_recompiles",
        "shapes_spec",
    },
    "torch.compiler.NestedCompileRegionOptions": {"fw_compiler", "bw_compiler", "partitioner", "decompositions"},
    "torch._dynamo.maybe_mark_dynamic": {"t", "index"},
}  # fmt: skip


class Row(NamedTuple):
    """One row of the table."""

    name: str
    since: str
    in_torch: str
    here: str
    how: str


ROWS = [
    Row(*found)
    for found in re.findall(
        r"^\| `(.*?)` \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
]
since_2_14 = pytest.mark.skipif(TORCH < (2, 14), reason="torch has these names since 2.14")


def test_the_page_has_every_name_that_this_torch_gained() -> None:
    """Names and keywords that torch 2.13 lacks are the rows up to the installed version."""
    gained = {f"torch.compiler.{name}" for name in set(torch.compiler.__all__) - NAMES_OF_2_13}
    settings = set(torch.compiler.config.get_config_copy())
    gained |= {f"torch.compiler.config.{name}" for name in settings - SETTINGS_OF_2_13}
    subjects = (
        torch.compile,
        getattr(torch.compiler, "NestedCompileRegionOptions", None),
        dynamo_decorators.maybe_mark_dynamic,
    )
    for subject, (path, known) in zip(subjects, KEYWORDS_OF_2_13.items(), strict=True):
        if subject is not None and TORCH >= (2, 13):
            gained |= {f"{path}({keyword}=)" for keyword in set(inspect.signature(subject).parameters) - known}
    assert gained == {row.name for row in ROWS if tuple(map(int, row.since.split("."))) <= TORCH}


def test_rows_say_what_the_engine_has() -> None:
    """Each row answers yes, partly or no, and says how."""
    assert len(ROWS) == 11
    for row in ROWS:
        assert row.here in {"yes", "partly", "no"}, row.name
        assert row.how
        for name in re.findall(r"`engine\.(\w+)\(", row.how):
            assert callable(getattr(engine, name))


@since_2_14
def test_nonstrict_trace_is_one_node_with_gradients() -> None:
    """A nonstrict function stays in one graph; gradients are eager's, also the module's."""
    inner = torch.nn.Linear(3, 3)

    @torch.compiler.nonstrict_trace
    def traced(module: torch.nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": module(x)}

    def f(x: torch.Tensor) -> torch.Tensor:
        return traced(inner, x)["y"] * 2

    x = torch.randn(2, 3, requires_grad=True)
    wanted = torch.autograd.grad(f(x).sum(), (x, inner.weight))
    with engine.record() as session:
        result = engine.compile(f, backend="aot_eager", fullgraph=True)(x)
    assert len(session.compilations) == 1
    torch.testing.assert_close(torch.autograd.grad(result.sum(), (x, inner.weight)), wanted)


@since_2_14
def test_the_warmup_mark_breaks_the_graph() -> None:
    """The mark for Inductor's CUDA graphs runs between two graphs."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch.compiler.cudagraph_mark_warmup_incomplete()
        return y * 2

    x = torch.randn(3)
    with engine.record() as session:
        assert torch.equal(engine.compile(f, backend="eager")(x), f(x))
    assert sum(len(c.trace.breaks) for c in session.compilations if c.trace is not None) == 1


@pytest.mark.skipif(TORCH < (2, 15), reason="torch has this setting since 2.15")
@pytest.mark.parametrize(
    ("listed", "dynamic", "count"),
    [("L['x']", None, 3), (r"L\['x'\]:0", True, 3), ("L['x']:1", None, 2), ("L['n']", True, 1)],
)
def test_static_sources_stay_static(*, listed: str, dynamic: bool | None, count: int) -> None:
    """A listed size is compiled for each of its values; another one becomes a symbol."""
    engine.reset()
    compiled = engine.compile(lambda x, n: x * n, backend="eager", dynamic=dynamic)
    with engine.record() as session, torch.compiler.config.patch(static_sources=listed):  # type: ignore[attr-defined]
        for size in (4, 5, 6):
            assert compiled(torch.ones(size, 3), 2).shape == (size, 3)
    assert len(session.compilations) == count


def test_settings_of_inductor_have_no_effect() -> None:
    """A setting that Inductor has is warned of; one that it lacks fails."""
    told = (
        pytest.warns(UserWarning, match="numerics")
        if TORCH >= (2, 14)
        else pytest.raises(BadArgument, match="numerics")
    )
    with told:
        engine.compile(torch.sin, options={"numerics": "strict"})


def test_strides_are_those_of_eager() -> None:
    """Results of kernels have the strides of eager without a setting."""
    x = torch.randn(4, 3, 5).permute(2, 0, 1)
    result = engine.compile(lambda x: x.exp() + 1)(x)
    assert result.stride() == (x.exp() + 1).stride()
