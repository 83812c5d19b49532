"""Edit trials: recorded calls replayed with edited graphs, in a process of their own."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import engine
from engine.editing.edit_graphs import graph_text
from engine.editing.try_edits import (
    Trial,
    editable_call,
    editable_graphs,
    matching_compilation,
    prepare_trial,
    try_call,
    try_edits,
)
from engine.errors import BadArgument
from engine.find_compilation import find_compilation
from engine.records.session import CompilationRecord
from engine.replay_values import replay_with_probes
from tests.forked_backwards import skip_if_forks_run_no_backward


class Scaled(torch.nn.Module):
    """A module whose weight gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x * self.weight) * 2


def total(x: torch.Tensor) -> torch.Tensor:
    return (x * 3).sum(-1)


def record(subject: object, *sizes: int) -> engine.Session:
    engine.reset()
    run = engine.compile(subject, backend="aot_eager")
    with engine.record() as session:
        for size in sizes:
            run(torch.randn(size, 8))
    return session


@pytest.mark.forks_backward
def test_an_edit_is_compared_with_eager() -> None:
    """The result says whether the values are eager's, with times and later stages."""
    skip_if_forks_run_no_backward()
    model = Scaled()
    session = record(model, 4)
    id = session.compilations[0].id
    texts = editable_graphs(session, session.compilations[0])
    assert list(texts) == ["fx", "joint"]
    same = try_edits(session, id, {"mine": texts["fx"].replace("gelu * 2", "gelu + gelu")})
    assert same.sentence == "Results, mutations and gradients agree with eager, within the tolerance of the dtype."
    assert same.after is not None
    assert same.before is not None
    assert len(same.seconds) == 2
    after = matching_compilation(session, id, same.after)
    assert after is not None
    assert "gelu + gelu" in editable_graphs(same.after, after)["fx"]
    other = try_edits(session, id, {"mine": texts["fx"].replace("gelu * 2", "gelu * 3")})
    assert other.sentence.startswith("Result 0 differs from eager by up to")
    joint = texts["joint"]
    wrong = next(line for line in joint.splitlines() if "gelu_backward" in line and "return" not in line)
    assert "tanh" not in wrong
    edited = joint.replace(wrong, wrong.replace(")  #", ", approximate='tanh')  #", 1))
    assert "gradient" in try_edits(session, id, {"mine": edited}).difference
    assert model.weight.grad is None


@pytest.mark.forks_backward
def test_an_unedited_text_shows_no_difference() -> None:
    """The kernels of the backward, which the comparison compiles, are on both sides."""
    skip_if_forks_run_no_backward()
    engine.reset()
    with engine.record() as session:
        run = engine.compile(Scaled())
        run(torch.randn(4, 8))
    id = session.compilations[0].id
    trial = try_edits(session, id, editable_graphs(session, session.compilations[0]))
    before, after = trial.compilations(session, id)
    assert before is not None
    assert after is not None
    assert any(k.id.startswith("b") for k in after.kernels)
    assert [k.text for k in before.kernels] == [k.text for k in after.kernels]


def test_edits_of_two_stages_stack() -> None:
    """A later stage, printed after an edit, is edited on top of it."""
    session = record(total, 4)
    first = editable_graphs(session, session.compilations[0])["fx"].replace("x * 3", "x * 4")
    once = try_edits(session, session.compilations[0].id, {"fx": first})
    assert once.after is not None
    assert once.difference
    found = matching_compilation(session, session.compilations[0].id, once.after)
    assert found is not None
    second = editable_graphs(once.after, found)["aten"].replace(", 4)", ", 3)")
    both = try_edits(session, session.compilations[0].id, {"fx": first, "aten": second})
    assert (both.difference, both.unused) == ("", ())


FAULTS = {
    "does not parse": ("x * 3", "x * (3", "Line 3: syntax error"),
    "another signature": ("graph(x)", "graph(x, y)", "Line 2: the text must begin with: def graph(x):"),
    "another result": ("return (", "return (mul, ", "Line 5: the graph returns 2 results, and returned 1 before."),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_sentence_at_its_line(fault: str) -> None:
    """An edit that cannot be used gives its line and one sentence."""
    session = record(total, 4)
    old, new, sentence = FAULTS[fault]
    text = editable_graphs(session, session.compilations[0])["fx"].replace(old, new)
    found = try_edits(session, session.compilations[0].id, {"mine": text})
    assert found.problem.startswith(sentence)
    assert (found.edit, found.line) == ("mine", int(sentence[5]))


def test_text_that_does_not_parse_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is named before anything is compiled."""
    session = record(total, 4)
    text = editable_graphs(session, session.compilations[0])["fx"].replace("x * 3", "x * (3")
    monkeypatch.setattr("engine.editing.try_edits.WaitingRun", None)
    found = try_edits(session, session.compilations[0].id, {"mine": text})
    assert (found.problem.partition(":")[0], found.edit, found.line) == ("Line 3", "mine", 3)


@pytest.mark.forks_backward
@pytest.mark.parametrize("factor", [3, 4])
def test_the_call_without_edits_is_compiled_ahead(monkeypatch: pytest.MonkeyPatch, factor: int) -> None:
    """A prepared trial compiles only what is edited, and its result is the same."""
    skip_if_forks_run_no_backward()
    engine.reset()
    with engine.record() as session:
        engine.compile(total)(torch.randn(4, 8, requires_grad=True))
    id = session.compilations[0].id
    text = editable_graphs(session, session.compilations[0])["fx"].replace("x * 3", f"x * {factor}.0")
    expected = try_edits(session, id, {"mine": text})
    prepared = prepare_trial(session, id)
    monkeypatch.setattr(Trial, "_compile_plain", None)
    found = try_edits(session, id, {"mine": text}, prepared)
    assert not prepared.is_ready
    assert found.difference == expected.difference
    for side, reference in ((found.before, expected.before), (found.after, expected.after)):
        assert side is not None
        assert reference is not None
        graphs = [[(g.stage, len(g.nodes)) for g in s.compilations[0].graphs] for s in (side, reference)]
        assert graphs[0] == graphs[1]
    kernels = [[k.name for k in s.compilations[0].cpu_kernels] for s in (found.before, found.after) if s]
    assert len(kernels[0]) == len(kernels[1])
    assert bool(found.difference) == (factor == 4)


def test_an_edited_call_uses_the_prepared_process_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is read there; a call that fails in eager does not fail its edits."""

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    session = record(total, 4)
    id = session.compilations[0].id
    text = editable_call(session, id).replace("[4, 8]", "[6, 8]")
    prepared = prepare_trial(session, id)
    monkeypatch.setattr("engine.editing.try_edits.run_in_fork", None)
    found = try_call(session, id, text, prepared)
    assert (found.problem, found.difference) == ("", "")
    assert found.after is not None
    with engine.record() as session, pytest.raises(RuntimeError):
        engine.compile(product)(torch.ones(2, 3), torch.ones(2, 3))
    id = session.compilations[0].id
    mended = editable_call(session, id).replace("y: float32[2, 3]", "y: float32[3, 2]")
    assert try_call(session, id, mended, prepare_trial(session, id)).sentence.startswith("Results, mutations")


def test_a_wrong_gradient_names_its_parameter() -> None:
    """The weight is a parameter of the module, and no argument of the call."""
    skip_if_forks_run_no_backward()
    scaled = Scaled()
    session = record(scaled, 4)
    text = editable_graphs(session, session.compilations[0])["fx"]
    edited = text.replace("gelu(mul", "gelu(mul.detach() + (mul - mul.detach()) * 2")
    assert edited != text
    found = try_edits(session, session.compilations[0].id, {"mine": edited})
    assert found.difference.startswith("the gradient of self.weight differs from eager's"), found.sentence


def test_a_later_entry_is_replayed_after_the_earlier_ones() -> None:
    """The graph with symbols of a recompile is made again, so that its edit applies."""
    session = record(total, 4, 5)
    last = session.compilations[-1]
    assert last.id.endswith("/1")
    text = editable_graphs(session, last)["fx"]
    assert try_edits(session, last.id, {"mine": text}).unused == ()


def test_what_cannot_be_replayed_says_why() -> None:
    """A session from a file has no call to replay; a text without its comment is refused."""
    session = record(total, 4)
    text = editable_graphs(session, session.compilations[0])["fx"]
    loaded = engine.Session.from_data(session.to_data())
    found = try_edits(loaded, session.compilations[0].id, {"mine": text})
    assert found.problem == (
        "The call cannot be replayed: the session was loaded from a file, or its function was deleted."
    )
    with pytest.raises(BadArgument, match="must begin with the comment"):
        try_edits(session, session.compilations[0].id, {"mine": "def graph(x): pass"})


class Dropped(Scaled):
    """A module whose random mask is packed when the joint graph is partitioned."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * self.weight, 0.25) * 2


@pytest.mark.forks_backward
def test_a_joint_graph_that_the_partitioner_changes_is_edited() -> None:
    """The text shows the graph after the partitioner; the edit finds the one before."""
    skip_if_forks_run_no_backward()
    model = Dropped()
    session = record(model, 4)
    (compilation,) = session.compilations
    text = editable_graphs(session, compilation)["joint"]
    assert "dtype=torch.bool" in text
    edited = re.sub(r"aten\.mul\.Tensor\((\w+), (\w+)\)", r"aten.mul.Tensor(\2, \1)", text, count=1)
    same = try_edits(session, compilation.id, {"mine": edited})
    assert same.sentence == "Results, mutations and gradients agree with eager, within the tolerance of the dtype."
    assert same.after is not None
    after = matching_compilation(session, compilation.id, same.after)
    assert after is not None
    changed = set(edited.splitlines()[1:]) - set(text.splitlines())
    assert changed <= set(editable_graphs(same.after, after)["joint"].splitlines())


def test_an_unknown_compilation_is_answered_with_those_that_exist() -> None:
    """All functions that take the id of a compilation name it and list the session's."""
    session = record(total, 4)
    (compilation,) = session.compilations
    text = editable_graphs(session, compilation)["fx"]
    wanted = rf"^The session has no compilation 'nope'. It has {compilation.id}\.$"
    for ask in (
        lambda: try_edits(session, "nope", {"mine": text}),
        lambda: graph_text(session, "nope"),
        lambda: session.reproducer("nope"),
        lambda: replay_with_probes(session, "nope"),
        lambda: engine.tune(session, "nope", "k0"),
    ):
        with pytest.raises(BadArgument, match=wanted):
            ask()
    with pytest.raises(BadArgument, match=rf"{compilation.id} has no 'nope' to edit. It has fx, aten"):
        graph_text(session, compilation.id, "nope")
    with pytest.raises(BadArgument, match="It has none"):
        find_compilation(engine.Session(), "nope")


def test_an_endless_edit_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that does not end is stopped; the session is as before."""
    monkeypatch.setattr("engine.forked_run.MAX_SECONDS", 0.0)
    session = record(total, 4)
    text = editable_graphs(session, session.compilations[0])["fx"]
    assert "took more than" in try_edits(session, session.compilations[0].id, {"mine": text}).problem


@pytest.mark.thorough
def test_a_gpu_in_use_forbids_only_what_is_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work on the CPU is replayed and minimized beside a GPU in use."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    session = record(total, 4)
    text = editable_graphs(session, session.compilations[0])["fx"]
    id = session.compilations[0].id
    assert (
        try_edits(session, id, {"same": text}).sentence
        == "Results, mutations and gradients agree with eager, within the tolerance of the dtype."
    )
    with pytest.raises(engine.errors.NotReproduced):
        engine.minimize(total, torch.randn(4, 8), backend="eager")

    def on_gpu(compilation: CompilationRecord) -> CompilationRecord:
        graphs = [replace(g, nodes=tuple(replace(n, device="cuda:0") for n in g.nodes)) for g in compilation.graphs]
        return replace(compilation, graphs=tuple(graphs))

    session.update_compilation(id, on_gpu)
    assert "the GPU cannot be used" in try_edits(session, id, {"same": text}).problem
