"""Run passes of users on a graph: check what each did, and undo one that breaks a rule."""

from __future__ import annotations

import operator
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine.errors import PassUndone, WrongResult, error_line, named_error_line
from engine.graph.lazy_module import LazyGraphModule
from engine.graph.passes.eliminate_dead_code import eliminate_dead_code
from engine.graph.passes.recorder import PassNotes, PassRecorder
from engine.graph.user_passes.fake_run import GraphFacts, GraphOutcome, creates_symbols, has_same_layout, run_on_fakes
from engine.graph.user_passes.provenance import set_sources
from engine.graph.user_passes.watched_graph import (
    InvalidPassResult,
    WatchedGraph,
    forget_lines,
    line_of,
    line_of_error,
    text_line_of,
)
from engine.graph.verify import FUNCTIONAL_RULES, WELL_FORMED_RULES, GraphVerificationError, verify_graph
from engine.ir.node_values import nodes_in
from engine.ir.pass_set import Compare, UserPass
from engine.ir.reachable import reachable
from engine.ir.user_code_files import display_name
from engine.records.bytecode import Span
from engine.torch_private.torch_function import EnableTorchFunction


@dataclass(frozen=True)
class PassStage:
    """Facts about the graphs of a stage, to run and check passes on them.

    ``facts`` is None if the graph has no tensors. ``real_inputs`` returns inputs to compare values on.
    """

    facts: GraphFacts | None
    is_functional: bool
    compare: Compare | None = None
    real_inputs: Callable[[], Sequence[Any]] | None = None


def run_user_passes(watch: PassRecorder, passes: Iterable[UserPass], stage: PassStage) -> None:
    """Run passes on ``watch.module``.

    A pass that raises or breaks a rule is undone, with a warning. The record of the pass has the reason and the line at fault.
    """
    for item in passes:
        with watch.record_pass(item.name) as notes:
            notes.is_user = True
            notes.span = item.span
            try:
                module = _run_one(watch.module, item, stage, notes)
            except InvalidPassResult as error:
                span = error.span if error.node is None else _line_at_fault(error.node)
                _note_failure(notes, item, error_line(error), span, error)
            except GraphVerificationError as error:
                _note_failure(notes, item, error_line(error), None, error)
            except Exception as error:
                sentence = f"it raised {named_error_line(error)}"
                _note_failure(notes, item, sentence, line_of_error(error), error)
            else:
                watch.module = module


def _run_one(module: torch.fx.GraphModule, item: UserPass, stage: PassStage, notes: PassNotes) -> torch.fx.GraphModule:
    """Return the graph that a pass made; ``module`` itself if nothing changed.

    Raises:
        Exception: any error of the pass.
        InvalidPassResult, GraphVerificationError: the pass broke a rule.
    """
    copy, graph = _copy(module)
    before = _snapshot(graph)
    graph.is_watching = True
    try:
        with EnableTorchFunction():  # proxies are subclasses of no tensor, but overrides like those
            result = item.run(copy)
    finally:
        graph.is_watching = False
    result_module = copy if result is None else result
    if not hasattr(result_module, "graph") or not hasattr(result_module, "recompile"):
        raise InvalidPassResult(f"it returned {type(result_module).__name__}, not a torch.fx.GraphModule or None")
    if result_module is copy and result_module.graph is graph and _is_same(before, _snapshot(graph)):
        return module
    ops_before = {n.name: (n.op, n.target) for n in module.graph.nodes}
    created = [n for n in result_module.graph.nodes if ops_before.get(n.name) != (n.op, n.target)]
    result_module.meta = {**module.meta, **result_module.meta}
    if stage.is_functional:
        eliminate_dead_code(result_module)
        created = [n for n in created if n in set(result_module.graph.nodes)]
    _check_inputs(module, result_module)
    set_sources(module.graph, result_module.graph, created, item.name)
    verify_graph(result_module, WELL_FORMED_RULES, "the graph is not well-formed")
    result_module.graph.lint()
    if stage.facts is not None:
        _check_and_set_values(module, result_module, stage.facts)
    if stage.is_functional:
        _verify_functional(result_module)
    if result_module is copy:
        result_module = torch.fx.GraphModule(copy, copy.graph)
        result_module.meta = copy.meta
    else:
        result_module.recompile()
    if item.reports_difference:
        _report_difference(notes, item, _value_difference(module, result_module, stage))
    if item.verify and (difference := _value_difference(module, result_module, stage)):
        raise InvalidPassResult(
            f"values differ from those before the pass: {difference}", _last_created_node(result_module)
        )
    for node in result_module.graph.nodes:
        forget_lines(node)
    return result_module


def _copy(module: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, WatchedGraph]:
    """Copy a graph, with the names of its nodes; constants are shared."""
    graph = WatchedGraph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    copy = LazyGraphModule(module, graph)
    copy.meta = dict(module.meta)
    return copy, graph


_State = list[tuple[torch.fx.Node, Any, tuple[Any, ...], dict[str, Any]]]


def _snapshot(graph: torch.fx.Graph) -> _State:
    return [(n, n.target, n.args, n.kwargs) for n in graph.nodes]


def _is_same(first: _State, second: _State) -> bool:
    """Return True if two snapshots have the same nodes with the same arguments."""
    return len(first) == len(second) and all(
        a[0] is b[0]
        and a[1] is b[1]
        and _same_items(a[2], b[2])
        and a[3].keys() == b[3].keys()
        and _same_items(tuple(a[3].values()), tuple(b[3].values()))
        for a, b in zip(first, second, strict=True)
    )


def _same_items(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    return first is second or (len(first) == len(second) and all(map(operator.is_, first, second)))


def _check_inputs(before: torch.fx.GraphModule, after: torch.fx.GraphModule) -> None:
    names, names_after = ([n.name for n in m.graph.find_nodes(op="placeholder")] for m in (before, after))
    if names != names_after:
        raise InvalidPassResult(f"the graph's inputs are ({', '.join(names_after)}), and were ({', '.join(names)})")


def _verify_functional(module: torch.fx.GraphModule) -> None:
    for node in module.graph.nodes:
        if line_of(node) is None:
            continue
        for rule in FUNCTIONAL_RULES:
            if fault := next((f for f in rule(module) if f.startswith(f"{node.name} ")), ""):
                raise InvalidPassResult(f"the graph is not functional: {fault}", node)
    verify_graph(module, FUNCTIONAL_RULES, "the graph is not functional")


def _check_and_set_values(before: torch.fx.GraphModule, after: torch.fx.GraphModule, facts: GraphFacts) -> None:
    """Compare what callers see of two graphs, and give the nodes of the second their values."""
    names = {n.name for n in after.graph.nodes}
    changed = _changed_nodes(before, after)
    own_symbols = [
        n for n in after.graph.nodes if n.name in changed and creates_symbols(n, n.meta.get(facts.value_key))
    ]
    unchanged = (names - changed).union(n.name for n in own_symbols)
    old = run_on_fakes(before, facts, unchanged)
    new = _run_changed(after, facts, unchanged)
    for node in own_symbols:
        _check_created_symbols(node, old, new)
    _compare_outcomes(old, new, after)
    for node, value in new.values.items():
        stored = node.meta.get(facts.value_key)
        if node.op != "output" and (stored is None or (node.name in changed and not has_same_layout(stored, value))):
            node.meta[facts.value_key] = value


def _check_created_symbols(node: torch.fx.Node, old: GraphOutcome, new: GraphOutcome) -> None:
    """Check that a node that creates symbols, and the layouts of its inputs, are as before."""
    earlier = next((n for n in old.values if n.name == node.name), None)
    if earlier is not None and (earlier.op, earlier.target, _arguments(earlier)) == (
        node.op,
        node.target,
        _arguments(node),
    ):
        pairs = zip(earlier.all_input_nodes, node.all_input_nodes, strict=True)
        if all(has_same_layout(old.values[a], new.values[b]) for a, b in pairs):
            return
    raise InvalidPassResult(
        f"{node.name} has another operator, or inputs of other shapes or dtypes: "
        "its result is known only at run time, and must stay as it was traced",
        node,
    )


def _run_changed(after: torch.fx.GraphModule, facts: GraphFacts, unchanged: set[str]) -> GraphOutcome:
    """Run the graph that a pass made; an error names the node that raised it."""
    try:
        return run_on_fakes(after, facts, unchanged)
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0]
        node = _node_that_raised(error, after)
        name = f" at {node.name}" if node is not None else ""
        raise InvalidPassResult(f"the graph cannot run{name}: {type(error).__name__}: {text}", node) from error


def _node_that_raised(error: Exception, module: torch.fx.GraphModule) -> torch.fx.Node | None:
    """Return the node whose run an error came from, which the interpreter's frames hold."""
    nodes = set(module.graph.nodes)
    raised_at = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        node = frame.f_locals.get("n") if frame.f_code.co_name == "run_node" else None
        raised_at = node if node in nodes else raised_at
    return raised_at


def _changed_nodes(before: torch.fx.GraphModule, after: torch.fx.GraphModule) -> set[str]:
    """Return the names of nodes that are new or changed, or are computed from such nodes."""
    before_by_name = {n.name: n for n in before.graph.nodes}
    changed: set[str] = set()
    for node in after.graph.nodes:
        old = before_by_name.get(node.name)
        is_same = old is not None and (old.op, old.target) == (node.op, node.target)
        if not is_same or _arguments(old) != _arguments(node) or any(i.name in changed for i in node.all_input_nodes):
            changed.add(node.name)
    return changed


def _arguments(node: Any) -> str:
    return repr((node.args, node.kwargs))


def _compare_outcomes(old: GraphOutcome, new: GraphOutcome, module: torch.fx.GraphModule) -> None:
    output = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    if len(old.results) != len(new.results):
        sentence = f"the graph returns {len(new.results)} results, and returned {len(old.results)} before"
        raise InvalidPassResult(sentence, output)
    returned = output.args[0]
    for kind, before, after in (("result", old.results, new.results), ("input", old.inputs, new.inputs)):
        for number, (expected, actual) in enumerate(zip(before, after, strict=True)):
            if expected == actual:
                continue
            name, was, now = next(
                ((n, w, f) for (n, w), (m, f) in zip(expected, actual, strict=False) if (n, w) != (m, f)),
                ("type", "another type", "this type"),
            )
            at = nodes_in(returned[number : number + 1]) if kind == "result" else []
            suspect = _nearest_created_node(at[0]) if at else _last_created_node(module)
            raise InvalidPassResult(_changed_fact(f"{kind} {number}", name, now, was), suspect)


def _changed_fact(subject: str, name: str, now: str, was: str) -> str:
    """Return the sentence on a fact of a result or input that a pass changed."""
    if name == "mutations":
        return f"{subject} is mutated, and was not before" if now == "True" else f"{subject} is no longer mutated"
    if name == "memory":
        now, was = ("its own memory" if v == "its own" else v.replace("that", "the memory") for v in (now, was))
        return f"{subject} has {now}, and had {was} before"
    return f"{subject} has {name} {now}, and had {was} before"


def _line_at_fault(node: torch.fx.Node) -> Span | None:
    """Return the line of the closest created node behind a node, else its own in a text."""
    created = _nearest_created_node(node)
    return text_line_of(node) if created is None else line_of(created)


def _nearest_created_node(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the closest node that the pass made, among a node and what it is computed from."""
    sources = reachable([node], lambda n: n.all_input_nodes)
    return next((n for n in sources if line_of(n) is not None), None)


def _last_created_node(module: torch.fx.GraphModule) -> torch.fx.Node | None:
    return next((n for n in reversed(module.graph.nodes) if line_of(n) is not None), None)


def _value_difference(before: torch.fx.GraphModule, after: torch.fx.GraphModule, stage: PassStage) -> str:
    if stage.compare is None or stage.real_inputs is None:
        return ""
    return stage.compare(before, after, stage.real_inputs())


def _report_difference(notes: PassNotes, item: UserPass, difference: str) -> None:
    """Record and warn that values differ from those of the graph before."""
    notes.difference = difference.replace("from eager", "from the graph before").replace("in eager", "before")
    if difference:
        sentence = f"The {item.name} changes values: {notes.difference}."
        warnings.warn_explicit(sentence, WrongResult, item.span.file, item.span.line)


def _note_failure(notes: PassNotes, item: UserPass, sentence: str, span: Span | None, error: Exception) -> None:
    """Record and warn that a pass was undone."""
    notes.span = span or item.span
    location = f"{display_name(notes.span.file)}, line {notes.span.line}"
    notes.failure = f"The pass {item.name} was undone: {sentence} ({location})."
    notes.detail = "".join(traceback.format_exception(error))
    warnings.warn_explicit(notes.failure, PassUndone, notes.span.file, notes.span.line)
