"""Observing torch.compile agrees with torch's counters and never disturbs the compile."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.observe import session_builder
from engine.observe.observe_torch import observe_torch
from engine.records.findings import find_problems
from engine.records.session import Session
from engine.torch_private.inductor import inductor_config
from engine.torch_private.torch_compile import set_guard_complete_hook, torch_logging
from tests.differential import differences
from tests.programs import program_names
from tests.torch_internals import dynamo_config, dynamo_counters, trace_structured

HERE = Path(__file__)
BREAK_TORCH = ("aliasing.written_in_inference_mode",)
"""Programs after which torch cannot be used any more.

Its compiler fails on them and does not restore the dispatcher: "PythonDispatcherTLS was not set" from then on.
"""
UNLIKE_TORCH = dict.fromkeys(
    (
        "special_methods.arithmetic_of_own",
        "module_hooks.HookRegisteredInside",
        "module_mutation.WrapsInForward",
        "numpy_interop.array_methods",
    ),
    1,
) | {"numpy_constant_arrays.changed_before_a_break_inside": -2}
"""How many breaks more than torch counts.

A break without resuming is reported and not counted. A jump in an inlined function is counted.
"""
TEN_PROGRAMS = (
    "aliasing.one_tensor_as_two_arguments",
    "break_positions.break_in_closure",
    "control_flow.for_over_range",
    "functools_decorators.cache_made_inside",
    "inplace_mutation.an_argument_with_history",
    "module_mutation.LayerOnFirstCall",
    "numpy_interop.tensor_compared_with_numpys_number",
    "reductions.layer_norm",
    "resume_functions.iterator_goes_on",
    "torch_function_modes.modes_counted",
)
"""Programs of ten files, in every run; the slow ring observes all of them."""
TEXT = HERE.read_text(encoding="utf-8").splitlines()


@pytest.fixture(autouse=True)
def fresh_torch() -> Iterator[None]:
    """torch.compile with empty caches and counters, before and after."""
    torch.compiler.reset()
    dynamo_counters.clear()
    yield
    torch.compiler.reset()


def line_of(text: str) -> int:
    """The line of this file that holds ``text``."""
    return next(number for number, line in enumerate(TEXT, 1) if text in line)


def helper(y: torch.Tensor) -> torch.Tensor:
    print("in the helper")
    return y * 3


def breaks_twice(x: torch.Tensor, n: int) -> torch.Tensor:
    y = x * 2  # the product
    if y.sum() > 0:  # the branch
        y = y + n
    return helper(y).softmax(0)


def observed(fn: Any, *calls: tuple[Any, ...], backend: str = "eager", **options: Any) -> Session:
    """Compile with stock torch and make the calls under observation."""
    with observe_torch() as session:
        compiled = torch.compile(fn, backend=backend, **options)
        for args in calls:
            compiled(*args)
    assert session.failures == ()
    return session


def graphs(session: Session, stage: str = "fx") -> int:
    """How many graphs of one stage were recorded."""
    return sum(graph.stage == stage for c in session.compilations for graph in c.graphs)


def breaks(session: Session) -> list[Any]:
    """All breaks of all compilations."""
    return [b for c in session.compilations if c.trace for b in c.trace.breaks]


def counted_breaks(session: Session) -> int:
    """Count the graph breaks that torch counts.

    Torch leaves out data-dependent jumps and frames that it skips.
    """
    return sum(b.count for b in breaks(session) if b.kind != "data-dependent-branching" and not b.skips_frame)


@pytest.mark.thorough
def test_breaks_have_reason_and_line() -> None:
    """Each break tells its reason, and the line of the user's that caused it."""
    session = observed(breaks_twice, (torch.ones(3), 2))
    branch = next(b for b in breaks(session) if b.kind == "data-dependent-branching")
    assert branch.span is not None
    assert (branch.span.file, branch.span.line) == (str(HERE), line_of("# the branch"))
    assert any("torch.where" in hint or "torch.cond" in hint for hint in branch.hints)
    printing = [b for b in breaks(session) if "print" in b.context]
    assert printing
    assert {b.span.line for b in printing} == {line_of('print("in the helper")')}
    assert [s.line for s in printing[0].stack][-2:] == [line_of("return helper(y)"), line_of('print("in the helper")')]


@pytest.mark.thorough
def test_a_break_that_torch_asks_for_is_not_the_users() -> None:
    """An optimizer's step breaks the graph in torch's own code, at the user's line."""
    optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)])
    session = observed(optimizer.step, ())
    own = [b for b in breaks(session) if b.kind == "call-to-torch-dynamo-graph-break"]
    assert own
    assert {(b.title, b.hints) for b in own} == {("graph_break() in torch's own code", ())}
    assert {b.span.file for b in own} == {str(HERE)}
    assert "wrapper (optimizer.py)" in {f.name for f in session.frames}  # not by its caller


@pytest.mark.thorough
def test_counts_equal_torch_s_counters() -> None:
    """Graphs and breaks are as many as torch's own counters say."""
    session = observed(breaks_twice, (torch.ones(3), 2), (torch.ones(4), 2), (torch.ones(4), 3), (-torch.ones(4), 3))
    assert graphs(session) == dynamo_counters["stats"]["unique_graphs"] > 0
    assert counted_breaks(session) == sum(dynamo_counters["graph_break"].values()) > 0


@pytest.mark.thorough
def test_frames_tell_resume_functions_and_callees() -> None:
    """Frames after a break are resume frames of their function; functions called are callees."""
    session = observed(breaks_twice, (torch.ones(3), 2))
    frames = {f.name: f for f in session.frames}
    root = frames["breaks_twice"]
    resume = frames[f"breaks_twice (from line {line_of('# the branch')})"]
    assert (root.role, resume.role, frames["helper"].role) == ("root", "resume", "callee")
    assert resume.parent == root.id


def test_recompile_reason_names_value_expected_and_actual() -> None:
    """A recompile names the rejected entry, the source, and the expected and actual values."""

    def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n

    session = observed(scaled, (torch.ones(3), 2), (torch.ones(4), 2), (torch.ones(4), 5))
    first, second = (c for c in session.calls if c.guard_failures)
    by_size, by_value = first.guard_failures[0], second.guard_failures[0]
    assert (by_size.entry, by_size.source, by_size.actual) == (session.compilations[0].id, "L['x']", "4")
    assert by_size.expected.startswith("3")
    assert [f.code for f in by_size.fixes] == ["torch._dynamo.mark_dynamic(x, 0)", "torch.compile(..., dynamic=True)"]
    assert [f.code for f in by_value.fixes] == ["torch.compile(..., dynamic=True)"]
    assert (by_value.source, by_value.expected) == ("L['n']", "2")
    assert by_value.span is not None
    assert by_value.span.line == line_of("return x * n")
    assert session.compilations[1].cause == "x has size 4 in dimension 0; the compiled code expects 3."
    assert session.compilations[0].inputs == {"x": "f32[3]"}


@pytest.mark.thorough
def test_graph_nodes_have_types_inputs_and_lines() -> None:
    """The traced graph is read back into nodes with shape, dtype, inputs and the user's line."""
    session = observed(breaks_twice, (torch.ones(3), 2))
    nodes = {n.name: n for n in session.compilations[0].graphs[0].nodes}
    product = nodes["y"]
    assert product.span is not None
    assert (product.shape, product.dtype, product.bytes) == (("3",), "float32", 12)
    assert product.span.line == line_of("# the product")
    assert [nodes["sum_1"].inputs, nodes["output"].op] == [(product.id,), "output"]
    known = {n.id for n in nodes.values()}
    assert all(i in known for n in nodes.values() for i in n.inputs)


@pytest.mark.thorough
def test_source_of_the_user_is_kept() -> None:
    """The user's file is in the session; torch's own files are not."""
    session = observed(breaks_twice, (torch.ones(3), 2))
    files = {f.id: f.text for f in session.files}
    assert files[str(HERE)] == HERE.read_text(encoding="utf-8")
    assert not [f for f in files if f.startswith(str(Path(torch.__file__).parent))]


@pytest.mark.thorough
def test_guards_are_listed_with_their_value_and_line() -> None:
    """Guards are a flat list with source, kind, expected value and the user's line.

    The line is the one that read the value.
    """
    session = observed(breaks_twice, (torch.ones(3), 2))
    guards = session.compilations[0].guards
    assert guards is not None
    tensor = next(g for g in guards.guards if g.kind == "TENSOR_MATCH")
    assert tensor.span is not None
    assert (tensor.source, tensor.path, tensor.span.line) == ("L['x']", ("L['x']",), line_of("# the product"))
    assert tensor.expected == "f32[3] on cpu, stride [1]"
    assert len({g.id for g in guards.guards}) == len(guards.guards)


def test_guard_paths_go_through_modules() -> None:
    """A guard on a parameter holds the steps from the root, which together spell its source."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    session = observed(Model(), (torch.ones(1, 3),))
    guards = session.compilations[0].guards
    assert guards is not None
    weight = next(g for g in guards.guards if g.kind == "TENSOR_MATCH" and "weight" in g.source)
    assert "".join(weight.path) == weight.source
    assert len(weight.path) > 3


def test_forward_and_backward_graphs_under_aot() -> None:
    """With gradients the forward and backward ATen graphs appear, with node ids of their own."""
    x = torch.ones(3, requires_grad=True)
    with observe_torch() as session:
        torch.compile(lambda x: (x.sin() * 2).sum(), backend="aot_eager")(x).backward()
    stages = {g.stage: g for g in session.compilations[0].graphs}
    assert {"fx", "forward", "backward"} <= set(stages)
    assert any("aten.cos" in n.target for n in stages["backward"].nodes)
    ids = [n.id for g in session.compilations[0].graphs for n in g.nodes]
    assert len(set(ids)) == len(ids)


@pytest.mark.thorough
def test_times_are_told() -> None:
    """The whole compile and the backend's part have times, on the session's clock."""
    session = observed(breaks_twice, (torch.ones(3), 2), backend="aot_eager")
    times = {t.stage: t for t in session.compilations[0].timings}
    assert 0 < times["backend"].seconds < times["compile"].seconds < session.seconds
    assert 0 <= times["compile"].start < session.seconds


def test_recompile_limit_is_told() -> None:
    """A function skipped at the recompile limit is listed as not compiled, with torch's words.

    The call beyond the limit is one finding, with the last reason and a fix: no recompile.
    """

    def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n

    with dynamo_config.patch(recompile_limit=2):
        session = observed(scaled, *[(torch.ones(2), n) for n in range(2, 7)], dynamic=False)
    assert [c.outcome for c in session.calls] == ["compiled", "compiled", "python"]
    assert "recompile limit" in session.skipped[0].reason
    assert session.skipped[0].name == "scaled"
    assert not any(c.failures for c in session.compilations)
    limit, recompiled = find_problems(session)
    assert limit.kind == "not-compiled"
    assert "limit exceeded. The last reason was: n has changed; the compiled code expects 3" in limit.cause
    assert "torch._dynamo.config.recompile_limit" in limit.fixes[0].text
    assert limit.gain == "this call and all later calls without a cache hit would run compiled"
    assert (recompiled.kind, recompiled.count) == ("recompiles", 1)


def test_frame_left_to_python_is_told() -> None:
    """A break that torch cannot resume is marked, and its function is listed as not compiled."""

    def prints_in_loop(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            print("value", float(x[0]))
        return x

    session = observed(prints_in_loop, (torch.ones(2),))
    (told,) = breaks(session)
    assert told.skips_frame
    assert [s.name for s in session.skipped] == ["prints_in_loop"]
    assert (session.calls[0].outcome, counted_breaks(session)) == (
        "python",
        sum(dynamo_counters["graph_break"].values()),
    )


def test_a_break_in_a_loop_below_is_no_failure_of_torch() -> None:
    """A frame whose loop calls a function with a break has that break, and no failure."""

    def halved(x: torch.Tensor) -> torch.Tensor:
        return x / 2 if x.sum() > 1e9 else x + 1

    def looping(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = halved(x)
        return x

    with observe_torch() as session:
        torch.compile(looping, backend="eager")(torch.ones(3))
    assert [b.skips_frame for c in session.compilations[:1] for b in (c.trace.breaks if c.trace else ())] == [True]
    assert not any(c.failures for c in session.compilations)


@pytest.mark.parametrize(
    "name",
    [
        n if n in TEN_PROGRAMS else pytest.param(n, marks=pytest.mark.slow)
        for n in program_names()
        if n not in BREAK_TORCH
    ],
)
def test_programs_agree_with_torch_s_counters(name: str) -> None:
    """Every program has as many graphs and breaks as torch counts.

    Each break has its line, and each graph has its nodes.
    """
    with observe_torch() as session:
        differences(name, lambda target: torch.compile(target, backend="aot_eager"))
    assert session.failures == ()
    assert graphs(session) == dynamo_counters["stats"]["unique_graphs"]
    assert counted_breaks(session) - UNLIKE_TORCH.get(name, 0) == sum(dynamo_counters["graph_break"].values())
    assert all(b.span is not None for b in breaks(session))
    assert all(g.nodes for c in session.compilations for g in c.graphs)


@pytest.mark.thorough
def test_session_goes_to_a_file_and_back(tmp_path: Path) -> None:
    """An observed session is saved and loaded like any other."""
    session = observed(breaks_twice, (torch.ones(3), 2), (torch.ones(4), 2), backend="aot_eager")
    loaded = Session.load(session.save(tmp_path / "session.json"))
    assert loaded.to_dict() == session.to_dict()
    assert (loaded.compiler, {c.compiler for c in loaded.compilations}) == ("torch", {"torch"})


def test_failure_of_ours_leaves_the_compile_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """If reading an event fails, the compile continues and the session records the failure."""

    def broken(*_: Any, **__: Any) -> Any:
        raise LookupError("made to fail")

    monkeypatch.setattr(session_builder, "LazyGraph", broken)
    with observe_torch() as session:
        result = torch.compile(breaks_twice, backend="eager")(torch.ones(3), 2)
    assert torch.equal(result, breaks_twice(torch.ones(3), 2))
    assert [f.stage for f in session.failures] == ["observe"]
    assert "made to fail" in session.failures[0].sentence
    assert breaks(session)


def test_unknown_events_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace records of unknown kind or odd shape are neither an error nor a failure."""
    del monkeypatch
    with observe_torch() as session:
        trace_structured("invented_kind", lambda: {"a": 1}, payload_fn=lambda: "text")
        torch_logging.trace_log.debug("", extra={"metadata": {"one": 1, "two": 2}, "payload": None})
    assert (session.failures, session.compilations) == ((), ())


def test_handlers_are_as_before() -> None:
    """Observation leaves no handler on torch's trace, even after an exception inside it."""
    before = [h for h in torch_logging.trace_log.handlers if type(h).__name__ != "LazyTraceHandler"]
    with pytest.raises(ZeroDivisionError), observe_torch():
        _ = 1 / 0
    after = [h for h in torch_logging.trace_log.handlers if type(h).__name__ != "LazyTraceHandler"]
    assert after == before


def test_nothing_compiled_is_said() -> None:
    """A recording in which torch compiled nothing says so, with the remedy."""
    compiled = torch.compile(breaks_twice, backend="eager")
    compiled(torch.ones(3), 2)
    with observe_torch() as session:
        compiled(torch.ones(3), 2)
    assert session.compilations == ()
    assert "torch.compiler.reset()" in session.notes[0]


@pytest.mark.thorough
def test_two_observers_see_the_same() -> None:
    """Observations nest: both sessions tell of the same compilations."""
    with observe_torch() as outer, observe_torch() as inner:
        torch.compile(breaks_twice, backend="eager")(torch.ones(3), 2)
    assert [c.id for c in outer.compilations] == [c.id for c in inner.compilations] != []


@pytest.mark.thorough
def test_calls_served_from_the_cache_are_told() -> None:
    """Cache hits are recorded as calls with entry and line, for roots, resumes and callees.

    Torch's trace leaves them out.
    """
    session = observed(breaks_twice, (torch.ones(3), 2), (torch.ones(3), 2), (torch.ones(4), 2), (torch.ones(3), 2))
    frames = {f.id: f for f in session.frames}
    hits = [(frames[c.frame].name.partition(" ")[0], c.entry) for c in session.calls if c.outcome == "hit"]
    assert {"breaks_twice", "helper"} <= {name for name, _ in hits}
    assert all(any(c.id == entry for c in session.compilations) for _, entry in hits)
    roots = [c for c in session.calls if frames[c.frame].role == "root"]
    assert [c.outcome for c in roots] == ["compiled", "hit", "compiled", "hit"]
    assert roots[3].caller is not None
    assert roots[3].caller.file == str(HERE)


def test_hits_of_modules_and_of_what_was_compiled_before() -> None:
    """A module's cache hits are recorded, and a hook installed before is still called.

    This holds even if nothing is compiled during the recording.
    """
    asked: list[bool] = []

    def hook(hit: bool) -> bool:
        asked.append(hit)
        return hit

    compiled = torch.compile(torch.nn.Sequential(torch.nn.ReLU()), backend="eager")
    compiled(torch.ones(3))
    before = set_guard_complete_hook(hook)
    try:
        with observe_torch() as session:
            compiled(torch.ones(3))
        assert set_guard_complete_hook(hook) is hook
    finally:
        set_guard_complete_hook(before)
    assert [c.outcome for c in session.calls] == ["hit"]
    assert asked == [True]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_library_model_agrees_with_torch_s_counters(kind: str) -> None:
    """Transformers models have as many graphs and breaks as torch counts.

    The counts cover two input shapes.
    """
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "bert":
        config = transformers.BertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
        )
        model = transformers.BertModel(config).eval()
    else:
        model = transformers.GPT2Model(
            transformers.GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=2, n_head=2)
        ).eval()
    with observe_torch() as session, torch.no_grad():
        compiled = torch.compile(model, backend="eager")
        compiled(input_ids=torch.randint(0, 50, (2, 8)))
        compiled(input_ids=torch.randint(0, 50, (3, 9)), attention_mask=torch.ones(3, 9, dtype=torch.long))
    assert session.failures == ()
    assert graphs(session) == dynamo_counters["stats"]["unique_graphs"] > 0
    assert counted_breaks(session) == sum(dynamo_counters["graph_break"].values())
    lines = [n for c in session.compilations for g in c.graphs for n in g.nodes if n.span is not None]
    assert len(lines) > 20
    assert all(n.span.file in {f.id for f in session.files} for n in lines)
    assert json.dumps(session.to_dict())


@pytest.mark.slow
def test_inductor_kernels_are_shown() -> None:
    """Under Inductor a session shows each kernel's text and language, and the wrapper code."""
    session = observed(lambda x: (x.sin() + 1).relu(), (torch.ones(64),), backend="inductor")
    (compilation,) = session.compilations
    assert [k.language for k in compilation.kernels] == ["cpp"]
    assert "void" in compilation.kernels[0].text
    ids = {node.id for graph in compilation.graphs for node in graph.nodes}
    assert len(set(compilation.kernels[0].fused_nodes) & ids) == 3
    assert inductor_config.trace.provenance_tracking_level == 0
    assert compilation.lowering is not None
    assert compilation.kernels[0].name in compilation.lowering.wrapper_text


def test_the_root_logger_gets_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    """Observing sends no records to handlers of the program, and leaves the logger as it was."""
    log = logging.getLogger("torch.__trace")
    before = log.level, log.propagate
    torch.compiler.reset()
    with caplog.at_level(logging.DEBUG, "root"), observe_torch() as session:
        torch.compile(lambda x: x * 2, backend="eager")(torch.ones(3))
    assert session.compilations
    assert not [r for r in caplog.records if r.name == "torch.__trace"]
    assert (log.level, log.propagate) == before


class Tripling:
    """A callable object."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return thrice the tensor."""
        return x * 3


WITHOUT_SOURCE: dict[str, Any] = {}
exec("def thrice(x):\n    y = x * 3\n    return y + 0\n", WITHOUT_SOURCE)


@pytest.mark.parametrize(
    ("compiled", "name"),
    [
        (torch.nn.Linear(4, 4), "Linear.forward"),
        (torch.nn.ReLU(), "ReLU.forward"),
        (torch.nn.TransformerEncoderLayer(4, 2, 8), "TransformerEncoderLayer.forward"),
        (torch.sin, "sin"),
        (torch.nn.functional.gelu, "gelu"),
        (torch.nn.functional.softmax, "softmax"),
        (Tripling(), "Tripling.__call__"),
        (WITHOUT_SOURCE["thrice"], "thrice"),
    ],
)  # fmt: skip
def test_a_frame_of_dynamo_is_named_by_what_it_calls(compiled: Any, name: str) -> None:
    """Frames of Dynamo's own call a callable of torch or one without a source file."""
    with observe_torch() as session:
        torch.compile(compiled, backend="eager")(torch.ones(3, 4))
    assert [f.name for f in session.frames] == [name]


@pytest.mark.parametrize("silence", ["disable", "existing loggers"])
def test_a_program_that_silences_its_logs_is_observed(silence: str) -> None:
    """Silenced loggers hide no compilation, and are silent again afterwards."""
    log, existing = logging.getLogger("torch.__trace"), silence == "existing loggers"
    torch.compiler.reset()
    logging.disable(logging.NOTSET if existing else logging.CRITICAL)
    log.disabled = existing
    before = dict(vars(log), _cache={})
    try:
        with observe_torch() as session:
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        assert len(session.compilations) == 1
        assert dict(vars(log), _cache={}) == before
    finally:
        logging.disable(logging.NOTSET)
        log.disabled = False


def test_what_fullgraph_raises_is_a_break_with_its_line() -> None:
    """A graph break that torch raises is no internal error, and nothing runs as Python."""

    def branches(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x

    torch.compiler.reset()
    with observe_torch() as session, pytest.raises(RuntimeError, match="Data-dependent"):
        torch.compile(branches, fullgraph=True, backend="eager")(torch.ones(2))
    (compilation,) = session.compilations
    assert compilation.trace is not None
    (found,) = compilation.trace.breaks
    assert found.title.endswith("an error with fullgraph=True")
    assert found.span is not None
    assert (Path(found.span.file), found.span.line) == (HERE, branches.__code__.co_firstlineno + 1)
    assert any("Remove fullgraph=True" in hint for hint in found.hints)
    assert any("if x.sum() > 0 else x" in f.text for f in session.files)
    assert (compilation.failures, session.skipped, session.calls) == ((), (), ())
