"""Protocol and stack of the AOT runtime wrappers.

A wrapper has a compile-time half, ``pre_compile``, and a run-time half, ``post_compile``, which writes
Python. ``engine.aot.wrappers.order`` lists the wrappers in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import torch.fx

from engine.aot.autograd_function_metadata import AutogradMetadata
from engine.aot.node_properties import may_mutate, output_args
from engine.aot.version_counters import write_count
from engine.aot.wrappers.codegen import WrapperCode, compile_wrapper_code, join_wrapper_code, record_values_of
from engine.aot.wrappers.lazy_backward import BackwardProbe, LazyBackward
from engine.aot.wrappers.value_probe import ValueProbe
from engine.ir.aot.aot_metadata import AotMetadata
from engine.ir.graph_callable import Run
from engine.ir.guards.base import Guard
from engine.ir.traced_frame import GraphInput
from engine.options import config
from engine.records.aot import WrapperAction, WrapperRecord
from engine.torch_private.dispatch import is_traceable_wrapper_subclass


@dataclass(frozen=True)
class TracedCall:
    """Traced graph that is still to be compiled, and its inputs in placeholder order."""

    graph: torch.fx.GraphModule
    inputs: tuple[GraphInput, ...]
    reruns_after_error: bool = False
    """Field of ``TracedGraph``."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(i.name for i in self.inputs)

    @property
    def asserts_inputs(self) -> bool:
        """True if the compiled call checks properties of its inputs."""
        return config.debug_assertions

    @property
    def has_several_inputs(self) -> bool:
        """True if two inputs may be one tensor or share memory."""
        return len(self.inputs) > 1

    @property
    def has_subclasses(self) -> bool:
        """True if an input or an output is a wrapper subclass."""
        outputs = [getattr(o, "meta", {}).get("example_value") for o in output_args(self.graph.graph)]
        return any(map(is_traceable_wrapper_subclass, (*[i.fake for i in self.inputs], *outputs)))

    @cached_property
    def written_inputs(self) -> tuple[int, ...]:
        """Positions of the inputs that the graph may mutate."""
        return tuple([n for n, i in enumerate(self.inputs) if i.is_tensor and self._may_write(i)])

    def _may_write(self, i: GraphInput) -> bool:
        if i.fake.is_inference():
            return any(map(may_mutate, self.graph.graph.nodes))
        return write_count(i.fake) != i.initial_version

    @property
    def needs_error_fallback(self) -> bool:
        """True if an error may leave inputs or random state other than in eager."""
        return self.reruns_after_error or bool(self.written_inputs)

    def without_real_inputs(self) -> TracedCall:
        """Return an equal call that does not retain the real inputs."""
        return replace(self, inputs=tuple(replace(i, example_value=None) for i in self.inputs))


@dataclass(frozen=True)
class FunctionalCall:
    """Call of a functional graph, described by its metadata."""

    metadata: AotMetadata
    run_eager: Run
    """Runs the traced graph on the same inputs."""
    requires_grad: bool = False
    """True if an input requires grad, even if no result does."""
    autograd: AutogradMetadata | None = None
    """Metadata of the autograd node; None for a call without a backward."""
    backward: LazyBackward | None = None

    def through_aten(self) -> FunctionalCall:
        """Return an equal call whose backward runs through ATen."""
        return self if self.backward is None else replace(self, backward=self.backward.through_aten())

    def probed_by(self, probe: ValueProbe | None) -> FunctionalCall:
        """Return an equal call whose backward records its values in ``probe``."""
        if probe is None or self.backward is None or self.autograd is None:
            return self
        gradients = tuple(f"gradient of {self.input_names[n]}" for n in self.autograd.grad_inputs)
        return replace(self, backward=replace(self.backward, probe=BackwardProbe(probe, gradients)))

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the functional graph's inputs, in order."""
        return tuple(i.name for i in self.metadata.inputs)

    def without_real_inputs(self) -> FunctionalCall:
        """Return the call, which has no real inputs."""
        return self


Call = TypeVar("Call", TracedCall, FunctionalCall)


@dataclass(frozen=True)
class PreCompileResult(Generic[Call]):
    """Result of a wrapper's ``pre_compile``.

    It has the call that is left to compile, the actions for the record, and the data for ``post_compile``.
    """

    call: Call
    actions: tuple[WrapperAction, ...]
    runtime_metadata: Any = None
    """A frozen value that only the wrapper itself reads."""
    guards: tuple[Guard, ...] = ()
    """Further guards on the inputs that make the change correct."""


class Wrapper(Protocol[Call]):
    """Module protocol of a wrapper.

    Both functions are stateless: the ``PreCompileResult`` is all that passes between them.
    """

    NAME: str
    """Name in the record; a wrapper without a name is not recorded.

    A wrapper may also declare ``NEEDS``: reads a fact of the call without which there is nothing to do.
    """

    def pre_compile(self, call: Call) -> PreCompileResult[Call] | None:
        """Remove what inner stages do not support; return None if there is nothing to do.

        Raises:
            FallbackRequired: it cannot be removed; the graph then runs as traced.
        """
        ...

    def post_compile(self, change: PreCompileResult[Call]) -> WrapperCode:
        """Return the code around the run of ``change.call``.

        It takes the inputs of the call that ``pre_compile`` got, and returns its outputs as a tuple.
        """
        ...


@dataclass(frozen=True)
class WrapperStack(Generic[Call]):
    """Call left to compile after every ``pre_compile``, and their results, outermost first."""

    original: Call
    call: Call
    results: tuple[tuple[Wrapper[Call], PreCompileResult[Call] | None], ...]

    def apply_post_compile(self, run: Run, probe: ValueProbe | None = None) -> Run:
        """Put each wrapper's code around ``run`` as a separate function, innermost first.

        ``probe`` records the values at each wrapper boundary.
        """
        outer = self.original
        changes: list[tuple[Wrapper[Call], PreCompileResult[Call], int]] = []
        for wrapper, change in self.results:
            if change is not None:
                changes.append((wrapper, change, len(outer.input_names)))
                outer = change.call
        for wrapper, change, num_inputs in reversed(changes):
            if probe is not None:
                run = probe.wrap_wrapper(wrapper.NAME, run, change.call.input_names)
            run = compile_wrapper_code(wrapper.post_compile(change), run, num_inputs)
        return run if probe is None else probe.wrap_call(run, self.original.input_names)

    def apply_post_compile_at_once(self, run: Run, probe: ValueProbe | None = None) -> Run:
        """Put the code of all wrappers around ``run`` as one function.

        ``probe`` records the values after each part of a wrapper that changes something.
        """
        codes = [(w.NAME, w.post_compile(c)) for w, c in self.results if c is not None]
        if probe is not None:
            codes = record_values_of(codes, self.original.input_names, probe.record_values)
        return compile_wrapper_code(join_wrapper_code(c for _, c in codes), run, len(self.original.input_names))

    def without_real_inputs(self) -> WrapperStack[Call]:
        """Return an equal stack without the real inputs, so that it does not retain them."""
        results = tuple((w, c and replace(c, call=c.call.without_real_inputs())) for w, c in self.results)
        return WrapperStack(self.original.without_real_inputs(), self.call.without_real_inputs(), results)

    def result_of(self, wrapper: Wrapper[Call]) -> PreCompileResult[Call] | None:
        """Return the ``pre_compile`` result of a wrapper; None if it has nothing to do."""
        return next((c for w, c in self.results if w is wrapper), None)

    def guards(self) -> tuple[Guard, ...]:
        """Return the guards on the inputs that the wrappers require."""
        return tuple(g for _, c in self.results if c is not None for g in c.guards)

    def records(self) -> tuple[WrapperRecord, ...]:
        """Return one record per wrapper, outermost first."""
        return tuple(WrapperRecord(w.NAME, () if c is None else c.actions) for w, c in self.results if w.NAME)


def apply_pre_compile(wrappers: Sequence[Wrapper[Call]], call: Call) -> WrapperStack[Call]:
    """Run every ``pre_compile``, outermost first.

    Raises:
        FallbackRequired: a wrapper could not remove what inner stages do not support.
    """
    original = call
    changes: list[tuple[Wrapper[Call], PreCompileResult[Call] | None]] = []
    for wrapper in wrappers:
        needs = getattr(wrapper, "NEEDS", None)
        change = wrapper.pre_compile(call) if needs is None or needs(call) else None
        changes.append((wrapper, change))
        call = call if change is None else change.call
    return WrapperStack(original, call, tuple(changes))
