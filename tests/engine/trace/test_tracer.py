"""Test how the tracer's state is divided, kept apart between traces, and released."""

import gc

import torch

from engine.ir.compiler_protocol import CompileRequest
from engine.ir.sources.base import GlobalsNamespace
from engine.ir.sources.roots import GlobalSource
from engine.options import Options
from engine.trace.driver import trace_frame
from engine.trace.tracer import Tracer
from engine.trace.variables.base import ConstantVariable
from engine.trace.variables.containers.sequences import ListVariable


def _tracer() -> Tracer:
    return Tracer(CompileRequest(_tracer, {"x": object()}, "0", 0, "first call"), Options())


class _Counts:
    def __init__(self) -> None:
        self.by_name: dict[str, int] = {}


def test_tracer_and_owners_are_small():
    """The tracer and each owner of its state have at most 15 attributes."""
    tx = _tracer()
    owners = [tx, *(v for v in vars(tx).values() if type(v).__module__.startswith("engine.trace"))]
    assert len(owners) > 8
    assert all(len(vars(owner)) <= 15 for owner in owners)


def test_state_of_module_belongs_to_one_trace():
    """A module's state is made once per trace, and each trace has its own."""
    first, second = _tracer(), _tracer()
    first.state_of(_Counts).by_name["calls"] = 1
    assert first.state_of(_Counts).by_name == {"calls": 1}
    assert second.state_of(_Counts).by_name == {}


def test_release_drops_objects_of_the_call():
    """After the release, the tracer holds no argument, variable or module state."""
    tx = _tracer()
    value = ListVariable([])
    tx.objects.variables_by_id[1] = (value, [])
    tx.side_effects.mutated_variables[id(value)] = value
    tx.state_of(_Counts).by_name["calls"] = 1
    tx.release()
    assert not tx.request.arguments
    assert not tx.objects.variables_by_id
    assert not tx.side_effects.mutated_variables
    assert not tx.state_of(_Counts).by_name


def test_global_set_to_its_original_value_is_no_side_effect():
    """A global that is set back to its original value is no side effect.

    It needs no write after the graph.
    """

    effects = _tracer().side_effects
    namespace = GlobalsNamespace({}, "module")
    original = ListVariable([], GlobalSource("name", namespace))
    effects.record_global_write(namespace, "name", ConstantVariable(1))
    assert effects.global_writes
    effects.record_global_write(namespace, "name", original)
    assert not effects.global_writes


def test_global_set_after_deletion_is_written():
    """A global that is deleted and set to its original value again is written.

    The write is needed because the name then comes last in its module.
    """

    effects = _tracer().side_effects
    namespace = GlobalsNamespace({}, "module")
    original = ListVariable([], GlobalSource("name", namespace))
    effects.record_global_write(namespace, "name", None)
    effects.record_global_write(namespace, "name", original)
    assert effects.global_writes == {(namespace, "name"): original}


def _breaks_after_list_write(x: torch.Tensor, items: list[object]) -> torch.Tensor:
    items.append(x + 1)
    print("graph break")
    return x.sum() * len(items)


def test_result_of_trace_holds_no_tracer():
    """What a trace returns holds no tracer, although a backend may ask it for guards later."""
    arguments = {"x": torch.ones(3, 4), "items": []}
    dynamic = {"L['x']": frozenset((0,))}
    traced = trace_frame(CompileRequest(_breaks_after_list_write, arguments, "0", 0, "first call", dynamic), Options())
    gc.collect()
    assert traced.graph is not None
    assert traced.graph.late_shape_guards() == ()
    assert not [held for held in gc.get_objects() if type(held) is Tracer]


def test_late_assumption_gets_guard_and_line():
    """A backend's late assumption becomes a guard with the line where the trace ended."""
    request = CompileRequest(
        _breaks_after_list_write,
        {"x": torch.ones(3, 4), "items": []},
        "0",
        0,
        "first call",
        {"L['x']": frozenset((0,))},
    )
    traced = trace_frame(request, Options())
    assert traced.graph is not None
    size = next(i.fake for i in traced.graph.inputs if isinstance(i.fake, torch.Tensor)).shape[0]
    assert size < 100
    added = traced.graph.late_shape_guards()
    assert added
    assert all(guard.cause.span is not None and guard.cause.span.file == __file__ for guard in added)
