"""Minimize a failing call: the smallest graph and inputs that fail in the same way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine import api, session_jobs
from engine.editing.measure_slowdown import (
    MAX_SPREAD,
    MIN_RATIO,
    Slowdown,
    is_similarly_slow,
    measure_slowdown,
    repeated_slowdown,
)
from engine.editing.try_edits import SEED
from engine.errors import BadArgument, NotReproduced
from engine.forked_run import ForkedResult, RunEnd, run_in_fork
from engine.ir.node_values import copy_leaf, map_tensors, tensors_in
from engine.ir.unwrap_compiled import unwrap_compiled
from engine.records.session import Session
from engine.runtime.verify.first_call import difference_of_calls

SLOWER = "slower"
FAILURES = ("wrong value", "exception", "crash", "hang", SLOWER)
TRIAL_SECONDS = 20.0
"""Seconds after which a trial hangs."""
HANG_RATIO, MIN_HANG_SECONDS = 5.0, 2.0
"""A part hangs too if it takes this many times the longest trial that ended."""
CALLS = ("call_function", "call_method", "call_module")

Backend = str | Callable[..., Any]


@dataclass(frozen=True)
class Outcome:
    """Failure of a graph: one of ``FAILURES`` or "", the exception's type, and a sentence.

    ``slowdown``: the times, if it is slower than eager.
    """

    kind: str = ""
    error: str = ""
    sentence: str = ""
    slowdown: Slowdown = Slowdown()

    def is_same_failure(self, other: Outcome) -> bool:
        """Return True if both failed in the same way."""
        return (self.kind, self.error) == (other.kind, other.error)


@dataclass(frozen=True)
class MinimizedGraph:
    """Result of ``minimize``: a graph whose operations the failure needs.

    ``module`` takes ``inputs`` and returns a tuple. ``is_minimal``: no node of it can be removed. Else ``note`` says
    why the search ended.
    """

    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    backend: Backend
    outcome: Outcome
    nodes_before: int
    trials: int
    is_minimal: bool
    note: str = ""

    @property
    def nodes(self) -> int:
        """Number of operations of the graph."""
        return len(_calls(self.module))

    @property
    def text(self) -> str:
        """The graph as Python."""
        return str(self.module.code).strip()

    def record(self) -> Session:
        """Compile and run the graph in this process, and return the recording for the explorer.

        Raises:
            BadArgument: the graph crashes or hangs.
        """
        if self.outcome.kind in ("crash", "hang"):
            raise BadArgument(
                f"Running this graph would {'crash' if self.outcome.kind == 'crash' else 'hang'} this process: read its text instead."
            )
        with api.record() as session:
            api.compile(self.module, backend=self.backend)(*map_tensors(copy_leaf, self.inputs))
        return session

    def __repr__(self) -> str:
        rest = "" if self.is_minimal else f" ({self.note}: it may not be the smallest)"
        count = f"{self.nodes} of {self.nodes_before} operations"
        return f"{self.outcome.sentence} {count} show it{rest}, found in {self.trials} trials:\n{self.text}"


def minimize(
    fn: Any,
    *args: Any,
    fails: str = "",
    backend: Backend = "triton",
    seconds: float = 60.0,
    on_progress: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    **kwargs: Any,
) -> MinimizedGraph:
    """Return the smallest graph of a call that fails in the same way, with small inputs.

    Each trial runs in a forked process and compares with eager: a wrong value or gradient, an exception (also one that the
    engine recorded before it fell back), a crash of the process, or a hang. An operation is removed by making its
    result in eager an input. Interrupt it, or set ``stop``, to get the smallest graph so far. The call itself runs
    once in eager, in this process, on ``args`` as they are.

    "slower" compares the times of a call with eager, called in turns: over 1.2 times eager's. A part fails in the same
    way if it also has half of the seconds that the graph loses.

    Args:
        fn: a function or module.
        *args: its arguments.
        fails: "wrong value", "exception", "crash", "hang" or "slower". Default: the first failure found, times aside.
        backend: as for ``compile``: a name, or a callable such as one of torch's.
        seconds: limit of the search, without the time for which other processes have the processors.
        on_progress: called with a sentence after each trial.
        stop: set it in another thread to end the search.
        **kwargs: its keyword arguments.

    Raises:
        BadArgument: there is no such failure, ``fn`` cannot be compiled, or this process cannot be forked (no
            Linux, or a GPU in use).
        NotReproduced: no graph of the call fails in this way.
    """
    if fails and fails not in FAILURES:
        raise BadArgument(f"A graph does not fail with {fails!r}: choose one of {', '.join(FAILURES)}.")
    search = _Search(backend, time.monotonic() + seconds, on_progress, stop or threading.Event())
    failing_graph = None
    for module, inputs in _traced_graphs(fn, args, kwargs):
        try:
            outcome = search.timed_outcome(module, inputs) if fails == SLOWER else search.outcome_of(module, inputs)
        except _Stopped:
            raise NotReproduced("The search was stopped before a failure was found.") from None
        if outcome.kind and fails in ("", outcome.kind):
            failing_graph = module, inputs, outcome
            break
    if failing_graph is None:
        if fails == SLOWER:
            raise NotReproduced(f"No graph of the call takes over {MIN_RATIO} times the time of eager.")
        raise NotReproduced(f"No graph of the call fails{f' with a {fails}' if fails else ''}: it agrees with eager.")
    return search.minimize(*failing_graph)


def _traced_graphs(fn: Any, args: Any, kwargs: Any) -> list[tuple[torch.fx.GraphModule, tuple[Any, ...]]]:
    """Return the graphs of a call, which runs in eager, each with its first inputs."""
    graphs: list[tuple[torch.fx.GraphModule, tuple[Any, ...]]] = []

    def capture(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        calls: list[int] = []

        def run(*inputs: Any) -> Any:
            if not calls:
                calls.append(1)
                graphs.append((graph, map_tensors(copy_leaf, inputs)))
            return graph(*inputs)

        return run

    api.compile(unwrap_compiled(fn), backend=capture)(*args, **kwargs)
    return graphs


class _Stopped(Exception):
    """The search was stopped from another thread."""


class _Search:
    """Trials with one backend until a time."""

    def __init__(
        self, backend: Backend, end: float, on_progress: Callable[[str], None] | None, stop: threading.Event
    ) -> None:
        self._backend = backend
        self._end = end
        self._on_progress = on_progress
        self._stop = stop
        self._trials = 0
        self._left = ""
        self._longest = 0.0
        """Seconds of the longest trial that ended by itself."""
        self._limit = TRIAL_SECONDS

    def outcome_of(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Outcome:
        """Run a graph compiled and in eager, in a forked process, and compare."""
        result = self._fork(lambda: self._run(module, inputs), module, inputs)
        match result.ending:
            case RunEnd.RETURNED:
                return Outcome(*result.value)
            case RunEnd.CRASHED:
                return Outcome("crash", sentence="The process crashes.")
            case RunEnd.TIMED_OUT:
                return Outcome("hang", sentence=f"The call does not end within {TRIAL_SECONDS:.0f} s.")
            case _:
                return Outcome("exception", result.error, f"{result.problem}.")

    def timed_outcome(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Outcome:
        """Time a graph in turns with eager, several times; no failure if it is as fast.

        Raises:
            NotReproduced: the measurements differ too much.
        """
        slowdown, spread = repeated_slowdown(lambda: self._slowdown(module, inputs))
        if slowdown.ratio <= MIN_RATIO:
            return Outcome(sentence=slowdown.sentence)
        if spread > MAX_SPREAD:
            raise NotReproduced(
                "The measured slowdown varies too much to say which operations cause it. "
                f"Close other programs, or use larger inputs. {slowdown.sentence}"
            )
        return Outcome(SLOWER, sentence=slowdown.sentence, slowdown=slowdown)

    def _slowdown(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Slowdown:
        """Time a graph in a forked process; zeros if it has no result."""
        result = self._fork(lambda: self._time(module, inputs), module, inputs)
        return Slowdown(*result.value) if result.ending is RunEnd.RETURNED else Slowdown()

    def _fork(self, work: Callable[[], Any], module: torch.fx.GraphModule, inputs: Sequence[Any]) -> ForkedResult:
        if self._stop.is_set():
            raise _Stopped
        self._trials += 1
        start = time.monotonic()
        result = run_in_fork(
            work, seconds=self._limit, blocks_effects=False, uses_gpu=_uses_gpu(module, inputs), stop=self._stop
        )
        if self._stop.is_set():
            raise _Stopped
        if result.ending in (RunEnd.NOT_FORKED, RunEnd.BLOCKED):
            raise BadArgument(f"The call cannot be tried in another process: {result.problem}.")
        self._end += result.waited
        if result.ending is not RunEnd.TIMED_OUT:
            self._longest = max(self._longest, time.monotonic() - start - result.waited)
        if self._on_progress is not None:
            self._on_progress(f"trial {self._trials}{self._left}")
        return result

    def _fails_same_way(self, module: torch.fx.GraphModule, inputs: Sequence[Any], outcome: Outcome) -> bool:
        """Return True if a smaller graph fails like the original one."""
        if outcome.kind == SLOWER:
            return is_similarly_slow(lambda: self._slowdown(module, inputs), outcome.slowdown)
        if outcome.kind == "hang" and self._longest:
            self._limit = min(TRIAL_SECONDS, max(MIN_HANG_SECONDS, HANG_RATIO * self._longest))
        return self.outcome_of(module, inputs).is_same_failure(outcome)

    def _time(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[float, float]:
        """Return the seconds in eager and compiled, in the forked process."""
        run = api.compile(module, backend=self._backend)
        slowdown = measure_slowdown(module, run, lambda: _copy_with_seed(inputs))
        return slowdown.eager, slowdown.compiled

    def _run(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[str, str, str]:
        """Return an outcome, in the forked process."""
        with api.record() as session:
            session_jobs.stop_event_of(session).set()
            run = api.compile(module, backend=self._backend)
            names = [n.name for n in module.graph.nodes if n.op == "placeholder"]
            difference = difference_of_calls(module, run, lambda: _copy_with_seed(inputs), names)
        for failure in (f for c in session.compilations for f in c.failures):
            last = (failure.detail.strip().splitlines() or [""])[-1]
            return "exception", last.partition(":")[0], failure.sentence
        text = f"{difference[:1].upper()}{difference[1:]}."
        if difference.startswith("it raised "):
            return "exception", difference.removeprefix("it raised ").partition("(")[0], text
        return ("wrong value", "", text) if difference else ("", "", "")

    def minimize(self, module: torch.fx.GraphModule, inputs: tuple[Any, ...], outcome: Outcome) -> MinimizedGraph:
        """Remove operations, then shrink sizes, while the graph fails in the same way."""
        before, is_minimal, note = len(_calls(module)), False, "time ran out"
        best = module, inputs
        self._left = f": {before} of {before} operations left"
        try:
            for smaller in self._smaller_graphs(module, inputs, outcome):
                best = smaller
                self._left = f": {len(_calls(best[0]))} of {before} operations left"
            is_minimal = time.monotonic() < self._end
            for shrunk in self._smaller_inputs(*best, outcome):
                best = best[0], shrunk
            self._limit = TRIAL_SECONDS
            last = self.timed_outcome(*best) if outcome.kind == SLOWER else self.outcome_of(*best)
            if outcome.kind == "hang" and not last.is_same_failure(outcome):
                is_minimal, note = False, "with more time, its last trial ends"
            outcome = last if last.is_same_failure(outcome) else outcome
        except (KeyboardInterrupt, _Stopped):
            note = "the search was stopped"  # the smallest so far
        except NotReproduced:
            is_minimal, note = False, "the times of its last measurements vary"
        return MinimizedGraph(
            *best, self._backend, outcome, before, self._trials, is_minimal, "" if is_minimal else note
        )

    def _smaller_graphs(
        self, module: torch.fx.GraphModule, inputs: tuple[Any, ...], outcome: Outcome
    ) -> Iterable[tuple[torch.fx.GraphModule, tuple[Any, ...]]]:
        """Yield smaller graphs: keep a part, else leave one out, in finer and finer parts."""
        values = _values(module, inputs)
        kept, parts = _calls(module), 2
        while len(kept) > 1 and time.monotonic() < self._end:
            size = -(-len(kept) // parts)
            chunks = [kept[i : i + size] for i in range(0, len(kept), size)]
            rests = [[n for n in kept if n not in set(chunk)] for chunk in chunks] if len(chunks) > 2 else []
            for candidate in (*chunks, *rests):
                if time.monotonic() > self._end:
                    return
                smaller = _extract_subgraph(module, set(candidate), values)
                if len(candidate) < len(kept) and self._fails_same_way(*smaller, outcome):
                    kept, parts = candidate, max(2, parts - 1) if len(candidate) > size else 2
                    yield smaller
                    break
            else:
                if size == 1:
                    return
                parts = min(len(kept), parts * 2)

    def _smaller_inputs(
        self, module: torch.fx.GraphModule, inputs: tuple[Any, ...], outcome: Outcome
    ) -> Iterable[tuple[Any, ...]]:
        """Yield smaller and smaller inputs: all dimensions of one size become shorter."""
        for size in sorted({n for t in tensors_in(inputs) for n in t.shape if n > 1}, reverse=True):
            for shorter in dict.fromkeys((1, 2, 3, size // 2)):
                if 0 < shorter < size and time.monotonic() < self._end:
                    shrunk = tuple(_shorten_dims(value, size, shorter) for value in inputs)
                    if self._fails_same_way(module, shrunk, outcome):
                        inputs = shrunk
                        yield inputs
                        break


def _calls(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [n for n in module.graph.nodes if n.op in CALLS]


def _values(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> dict[torch.fx.Node, Any]:
    """Return a copy of each node's value in eager."""
    values: dict[torch.fx.Node, Any] = {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            value = super().run_node(n)
            values[n] = torch.fx.node.map_aggregate(value, lambda v: map_tensors(copy_leaf, [v])[0])
            return value

    torch.manual_seed(SEED)
    Recorder(module).run(*map_tensors(copy_leaf, inputs))
    return values


def _extract_subgraph(
    module: torch.fx.GraphModule, kept: Collection[torch.fx.Node], values: dict[torch.fx.Node, Any]
) -> tuple[torch.fx.GraphModule, tuple[Any, ...]]:
    """Return the graph of some operations, with the other values that they need as inputs."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    inputs = []
    for node in module.graph.nodes:
        is_needed = any(user in kept for user in node.users)
        if is_needed and node not in kept and node.op != "get_attr":
            copies[node] = graph.placeholder(node.name)
            inputs.append(values[node])
    for node in module.graph.nodes:
        if node in kept or (node.op == "get_attr" and any(user in kept for user in node.users)):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    results = [n for n in module.graph.nodes if n in kept and not (n.users and all(u in kept for u in n.users))]
    graph.output(tuple(copies[n] for n in results))
    return torch.fx.GraphModule(module, graph), tuple(inputs)


def _copy_with_seed(inputs: Sequence[Any]) -> list[Any]:
    torch.manual_seed(SEED)
    return list(map_tensors(copy_leaf, inputs))


def _uses_gpu(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Return True if a graph, its attributes or its inputs name a device other than the CPU."""
    held = [
        *tensors_in(inputs),
        *tensors_in([getattr(module, str(n.target), None) for n in module.graph.nodes if n.op == "get_attr"]),
    ]
    return any(t.device.type != "cpu" for t in held) or "cuda" in module.code


def _shorten_dims(value: Any, size: int, shorter: int) -> Any:
    """Return a tensor with each dimension of one size cut to another."""
    if not torch.is_tensor(value) or size not in value.shape:
        return value
    shortened = value.detach()[tuple(slice(shorter) if n == size else slice(None) for n in value.shape)]
    return shortened.clone().requires_grad_(value.requires_grad)
