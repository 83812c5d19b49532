"""Registered passes: run, checked, undone, keyed, recorded; patterns with replacements."""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import engine
from engine import errors
from engine.ir.pass_set import active_passes
from engine.records.graph import PassRecord

aten = torch.ops.aten


def bias_gelu(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + b) * 2


def gelu_to_relu(module: torch.fx.GraphModule) -> None:
    for node in list(module.graph.nodes):
        if node.target is aten.gelu.default:
            with module.graph.inserting_after(node):
                made = module.graph.call_function(aten.relu.default, node.args[:1])
            node.replace_all_uses_with(made)
            module.graph.erase_node(node)


@pytest.fixture(autouse=True)
def _no_pass_stays() -> Iterator[None]:
    """No test leaves a pass registered, nor finds entries of another."""
    engine.reset()
    yield
    assert active_passes.passes == ()


def user_passes(session: engine.Session) -> list[PassRecord]:
    found = [p for c in session.compilations for g in c.graphs for p in g.passes]
    lowered = [p for c in session.compilations if c.lowering for p in c.lowering.passes]
    return [p for p in (*found, *lowered) if p.is_user]


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 8), torch.randn(8)


@pytest.mark.parametrize("trains", [False, True])
def test_a_pass_rewrites_the_aten_graph(trains: bool) -> None:
    """The result is the rewritten graph's; new nodes have the lines of those they replace."""
    x, b = inputs()
    b.requires_grad_(trains)
    run = engine.compile(bias_gelu, backend="aot_eager")
    with engine.register_pass(gelu_to_relu, stage="aten"), engine.record() as session:
        made = run(x, b)
    torch.testing.assert_close(made, F.relu(x + b) * 2)
    (record,) = user_passes(session)
    assert (record.name, record.failure) == ("gelu_to_relu", "")
    assert any("aten.relu" in line for line in record.added)
    assert any("aten.gelu" in line for line in record.removed)
    graph = next(g for g in session.compilations[0].graphs if g.stage in ("aten", "joint"))
    node = next(n for n in graph.nodes if n.target == "aten.relu")
    assert (node.shape, node.note) == (("4", "8"), "made by the pass gelu_to_relu")
    assert node.origins == (f"fx:{session.compilations[0].id}:gelu",)
    assert node.span is not None


def test_entries_are_keyed_by_the_set_of_passes() -> None:
    """Entering and leaving a pass switches cache entries; the same pass finds its entry again."""
    x, b = inputs()
    run = engine.compile(bias_gelu, backend="aot_eager")
    plain = run(x, b)
    with engine.record() as session:
        for _ in range(2):
            with engine.register_pass(gelu_to_relu, stage="aten"):
                torch.testing.assert_close(run(x, b), F.relu(x + b) * 2)
            torch.testing.assert_close(run(x, b), plain)
    assert [c.cause for c in session.compilations] == ["the registered passes changed"]


def test_entries_of_resume_functions_are_keyed_too() -> None:
    """Behind a graph break, the entry compiled with a pass is not used after it was removed."""

    def broken(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = x + 1
        print(end="")
        return F.gelu(y + b)

    x, b = inputs()
    run = engine.compile(broken, backend="aot_eager")
    with engine.register_pass(gelu_to_relu, stage="aten"):
        torch.testing.assert_close(run(x, b), F.relu(x + 1 + b))
    torch.testing.assert_close(run(x, b), F.gelu(x + 1 + b))


def changes_the_result(module: torch.fx.GraphModule) -> None:
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        made = module.graph.call_function(aten.sum.default, (output.args[0][0],))
    output.args = ((made,),)


def returns_a_view(module: torch.fx.GraphModule) -> None:
    output = module.graph.output_node()
    source = next(iter(module.graph.nodes))
    with module.graph.inserting_before(output):
        made = module.graph.call_function(aten.view.default, (source, [4, 8]))
    output.args = ((made,),)


def writes_in_place(module: torch.fx.GraphModule) -> None:
    for node in list(module.graph.nodes):
        if node.target is aten.gelu.default:
            with module.graph.inserting_after(node):
                module.graph.call_function(aten.add_.Tensor, (node, 1))


def cannot_run(module: torch.fx.GraphModule) -> None:
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        made = module.graph.call_function(aten.mm.default, (output.args[0][0], output.args[0][0]))
    output.args = ((made,),)


def raises(module: torch.fx.GraphModule) -> None:
    raise ValueError("not today")


def never_ends(module: torch.fx.GraphModule) -> None:
    for node in module.graph.nodes:
        if node.op == "call_function":
            with module.graph.inserting_after(node):
                module.graph.call_function(aten.relu.default, (node,))


def takes_the_module_for_its_graph(module: Any) -> None:
    for node in module.nodes:  # it is a module, whose graph has the nodes
        print(node)


BAD = {
    takes_the_module_for_its_graph: ("has no attribute 'nodes'", "for node in module.nodes"),
    changes_the_result: ("result 0 has shape (), and had (4, 8) before", "aten.sum.default"),
    returns_a_view: ("result 0 has the memory of input 0, and had its own memory before", "aten.view.default"),
    writes_in_place: ("the graph is not functional", "aten.add_.Tensor"),
    cannot_run: ("the graph cannot run at mm", "aten.mm.default"),
    raises: ("it raised ValueError: not today", "raise ValueError"),
    never_ends: ("a loop may not end", "aten.relu.default"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_pass_that_breaks_a_rule_is_undone(bad: Any) -> None:
    """The result is right, and the record names the pass and the line at fault."""
    x, b = inputs()
    sentence, text = BAD[bad]
    with engine.register_pass(bad, stage="aten"), engine.record() as session:
        with pytest.warns(errors.PassUndone, match=f"The pass {bad.__name__} was undone"):
            made = engine.compile(bias_gelu, backend="aot_eager")(x, b)
    torch.testing.assert_close(made, bias_gelu(x, b))
    (record,) = user_passes(session)
    assert sentence in record.failure
    assert not record.removed
    assert record.span is not None
    assert text in linecache.getline(record.span.file, record.span.line)
    (failure,) = session.compilations[0].failures
    assert (failure.stage, failure.sentence) == ("pass", record.failure)


def test_values_are_compared_on_request() -> None:
    """With ``verify``, a pass that changes values is undone."""
    x, b = inputs()
    for stage in ("aten", "decomposed"):
        with engine.register_pass(gelu_to_relu, stage=stage, verify=True), engine.record() as session:
            with pytest.warns(errors.PassUndone, match="values differ"):
                made = engine.compile(bias_gelu)(x, b)
        torch.testing.assert_close(made, bias_gelu(x, b))
        assert all("values differ" in p.failure for p in user_passes(session))


def test_a_pass_on_the_traced_graph_sees_torch_functions() -> None:
    """A traced pass gets torch's functions; a mutation that it adds is refused."""
    x, b = inputs()

    def to_tanh(module: torch.fx.GraphModule) -> None:
        for node in module.graph.nodes:
            if node.target is F.gelu or getattr(node.target, "__name__", "") == "gelu":
                node.target = torch.tanh

    def write_input(module: torch.fx.GraphModule) -> None:
        first = next(iter(module.graph.nodes))
        with module.graph.inserting_before(module.graph.output_node()):
            module.graph.call_method("add_", (first, 1))

    with engine.register_pass(to_tanh, stage="traced"):
        torch.testing.assert_close(engine.compile(bias_gelu, backend="eager")(x, b), torch.tanh(x + b) * 2)
    known = x.clone()
    with (
        engine.register_pass(write_input, stage="traced"),
        pytest.warns(errors.PassUndone, match="input 0 is mutated, and was not before"),
    ):
        engine.compile(bias_gelu, backend="eager")(x, b)
    assert torch.equal(x, known)


def test_passes_run_in_the_order_asked_for() -> None:
    """``before`` and ``after`` name passes of the user and of the engine."""
    seen: list[str] = []

    def first(module: torch.fx.GraphModule) -> None:
        seen.append("first")

    def second(module: torch.fx.GraphModule) -> None:
        seen.append("second")

    with (
        engine.register_pass(second, stage="decomposed", after="decompose", version=1),
        engine.register_pass(first, stage="decomposed", before="second", version=1),
        engine.record() as session,
    ):
        engine.compile(bias_gelu)(*inputs())
    assert seen[:2] == ["first", "second"]
    names = [p.name for p in session.compilations[0].lowering.passes]
    assert names.index("decompose") < names.index("first") < names.index("second") < names.index("fuse_attention")
    with pytest.raises(errors.BadArgument, match="No pass 'nothing' runs at the stage 'aten'"):
        engine.register_pass(first, stage="aten", before="nothing")
    with pytest.raises(errors.BadArgument, match="There is no stage 'ttir'"):
        engine.register_pass(first, stage="ttir")


@pytest.mark.thorough
def test_a_pattern_is_traced_as_the_graph_was() -> None:
    """``F.gelu(x + b)`` is found at each stage, for other shapes, in training too."""

    def pattern(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(x + b)

    def replacement(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(x - (-b))

    x, b = inputs()
    for stage in ("traced", "aten", "decomposed"):
        with (
            engine.replace_pattern(pattern, replacement, (torch.randn(2, 2), torch.randn(2)), stage=stage, verify=True),
            engine.record() as session,
        ):
            run = engine.compile(bias_gelu)
            torch.testing.assert_close(run(x, b), bias_gelu(x, b))
            grad_b = b.clone().requires_grad_()
            run(x, grad_b).sum().backward()
            want = torch.autograd.grad(bias_gelu(x, grad_b).sum(), grad_b)[0]
            torch.testing.assert_close(grad_b.grad, want)
        changed = [p for p in user_passes(session) if p.added]
        assert changed, stage
        assert not any(p.failure for p in user_passes(session)), stage
        assert any("neg" in line for p in changed for line in p.added)


def test_a_pattern_with_sizes_matches_other_sizes() -> None:
    """A pattern whose ATen graph holds sizes is traced again for the sizes found."""

    def pattern(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w).relu()

    def replacement(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w).clamp(min=0)

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w).relu() + 1

    x, w = torch.randn(2, 5, 7), torch.randn(3, 7)
    example = (torch.randn(2, 2, 4), torch.randn(6, 4))
    with engine.replace_pattern(pattern, replacement, example, verify=True), engine.record() as session:
        torch.testing.assert_close(engine.compile(program)(x, w), program(x, w))
    assert any("clamp" in line for p in user_passes(session) for line in p.added)


def test_a_write_between_matched_nodes_refuses_the_match() -> None:
    """In a traced graph, a write between the matched nodes prevents the replacement."""

    def pattern(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.sin())

    def replacement(x: torch.Tensor) -> torch.Tensor:
        return x.sin().clamp(min=0)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y.add_(1)
        return torch.relu(y)

    x = torch.randn(5)
    with engine.replace_pattern(pattern, replacement, (x,), stage="traced"), engine.record() as session:
        torch.testing.assert_close(engine.compile(program)(x), program(x))
    assert [p.added for p in user_passes(session)] == [()]


def test_the_disk_cache_knows_the_passes(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph on disk is used only with its set of passes, if the code can be hashed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(engine.config, "disk_cache", True)
    x, b = inputs()
    hidden = [torch.nn.Linear(1, 1)]

    def unhashable(module: torch.fx.GraphModule) -> None:
        assert hidden
        gelu_to_relu(module)

    def note(*passes: Any) -> str:
        engine.reset()
        for item in passes:
            item.__enter__()
        with engine.record() as session:
            made = engine.compile(lambda x, b: F.gelu(x + b), backend="aot_eager")(x, b)
        for item in passes:
            item.remove()
        torch.testing.assert_close(made, F.relu(x + b) if passes else F.gelu(x + b))
        return session.compilations[0].aot.cache

    item = engine.register_pass(gelu_to_relu, stage="aten")
    item.remove()
    assert [note(), note(), note(item), note(item)] == ["saved to disk", "loaded from disk"] * 2
    other = engine.register_pass(unhashable, stage="aten")
    other.remove()
    assert note(other).startswith("not saved to disk: the pass unhashable has no version")


def test_a_pass_that_does_nothing_leaves_the_graph_alone() -> None:
    """No warning, no changed line, and a symbolic size stays a symbol."""

    def nothing(module: torch.fx.GraphModule) -> None:
        list(module.graph.nodes)

    with engine.register_pass(nothing, stage="aten"), engine.record() as session, warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.compile(bias_gelu, dynamic=True, backend="aot_eager")(*inputs())
    assert [(p.name, p.added) for p in user_passes(session)] == [("nothing", ())]


def test_a_pass_works_with_symbolic_sizes() -> None:
    """A pass on a graph with symbols keeps them, so that another size hits the same entry."""
    run = engine.compile(bias_gelu, dynamic=True, backend="aot_eager")
    with engine.register_pass(gelu_to_relu, stage="aten"), engine.record() as session:
        for rows in (4, 9):
            x, b = torch.randn(rows, 8), torch.randn(8)
            torch.testing.assert_close(run(x, b), F.relu(x + b) * 2)
    assert len(session.compilations) == 1
    assert not user_passes(session)[0].failure
