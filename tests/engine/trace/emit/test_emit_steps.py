"""The steps of ``emit_node``, each called alone on a tracer without frames."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

from engine.ir.graph_callable import GraphCallable
from engine.options import Options
from engine.trace.driver import trace_frame
from engine.trace.emit.fake_state import has_effect, repair_versions, roll_back, save_fake_state
from engine.trace.emit.operation import (
    Operation,
    check_not_quantized,
    normalize_arguments,
    operation_arguments,
    scalarize_lists,
)
from engine.trace.emit_node import (
    arguments_with_torch_function,
    create_node,
    dispatch_torch_function,
    emit_node,
    find_returned_argument,
    run_on_fakes,
    undo,
    wrap_result,
)
from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.tracer import Tracer
from engine.trace.variables.base import ConstantVariable, Variable
from tests.engine.trace.harness import request_for

assert trace_frame  # importing the driver fills the registries of variables


def new_tracer() -> Tracer:
    """A tracer that has traced nothing."""
    return Tracer(request_for(new_tracer, (), {}), Options())


def new_tensor(tx: Tracer, *sizes: int, dtype: torch.dtype = torch.float32) -> Any:
    """A tensor that a node of the graph creates."""
    return emit_node(tx, "call_function", torch.zeros, [tx.from_python(sizes)], {"dtype": ConstantVariable(dtype)})


def new_number(tx: Tracer) -> Any:
    """A tensor with one integer, which is known only when the graph runs."""
    return emit_node(tx, "call_function", torch.randint, [tx.from_python(9), tx.from_python(())])


def call(target: Any, *args: Variable, op: str = "call_function", **kwargs: Variable) -> Operation:
    """An operation on these variables."""
    return Operation(op, target, list(args), kwargs)


def targets(tx: Tracer) -> list[Any]:
    """The targets of the graph's nodes, in order."""
    return [node.target for node in tx.graph.graph.nodes]


def test_normalize_makes_numbers_of_size_tensors() -> None:
    """A tensor with one integer among sizes becomes a number; the tensor itself stays one."""
    tx = new_tracer()
    tensor, size = new_tensor(tx, 4), new_number(tx)
    normal = normalize_arguments(tx, call("reshape", tensor, size, op="call_method"))
    assert normal.args[0] is tensor
    assert normal.args[1].python_type() is int
    assert targets(tx)[-1] == "item"


def test_normalize_leaves_other_functions_alone() -> None:
    """Normalization keeps tensor arguments of functions that take no sizes.

    The same holds for a user's function with the name of a torch function.
    """
    tx = new_tracer()
    size = new_tensor(tx, dtype=torch.int64)
    for target in (torch.add, GraphCallable("reshape", torch.reshape)):
        assert normalize_arguments(tx, call(target, size, size)).args == [size, size]


def test_new_with_a_size_creates_an_empty_tensor() -> None:
    """``x.new(y.size())`` has a shape, ``x.new((2, 3))`` elements."""
    tx = new_tracer()
    tensor = new_tensor(tx, 2, 3)
    shape = tx.from_python(torch.Size((2, 3)))
    assert normalize_arguments(tx, call("new", tensor, shape, op="call_method")).target == "new_empty"
    assert normalize_arguments(tx, call("new", tensor, tx.from_python((2, 3)), op="call_method")).target == "new"


def test_scalarize_lists_finds_tensors_in_lists_only() -> None:
    """Sizes in a list become numbers; without such a list there is nothing to try again."""
    tx = new_tracer()
    size = new_tensor(tx, dtype=torch.int64)
    changed = scalarize_lists(tx, call(torch.empty, tx.from_python([size, 3])))
    assert changed is not None
    assert [item.python_type() for item in changed.args[0].argument_items()] == [int, int]
    assert scalarize_lists(tx, call(torch.empty, size)) is None


@pytest.mark.parametrize("target", [torch.quantize_per_tensor, torch.ops.aten.quantize_per_channel])
def test_quantizing_functions_are_refused(target: Any) -> None:
    """A graph holds no quantized tensors; a user's function may have such a name."""
    with pytest.raises(Unsupported, match="quantized tensor"):
        check_not_quantized(target)
    check_not_quantized(GraphCallable("quantized_linear", torch.add))


def test_arguments_come_as_nodes_and_as_fakes() -> None:
    """Each argument has its node for the graph and its fake for the evaluation."""
    tx = new_tracer()
    tensor = new_tensor(tx, 2)
    arguments = operation_arguments(tx, call(torch.add, tensor, ConstantVariable(1), alpha=ConstantVariable(2)))
    assert arguments.nodes == (tensor.node(tx), 1)
    assert arguments.all_fakes == (tensor.fake, 1, 2)
    assert arguments.keyword_nodes == {"alpha": 2}


def test_create_node_appends_one_node() -> None:
    """The node has the target and the arguments, and is the graph's last."""
    tx = new_tracer()
    operation = call(torch.add, new_tensor(tx, 2), ConstantVariable(1))
    node = create_node(tx, operation, operation_arguments(tx, operation))
    assert node is list(tx.graph.graph.nodes)[-1]
    assert (node.target, node.args[1]) == (torch.add, 1)


def test_run_on_fakes_computes_the_result() -> None:
    """The run returns a fake tensor of the result's metadata."""
    tx = new_tracer()
    operation = call(torch.add, new_tensor(tx, 2, 1), new_tensor(tx, 3, dtype=torch.float64))
    result = run_on_fakes(tx, operation, operation_arguments(tx, operation))
    assert (tuple(result.shape), result.dtype) == ((2, 3), torch.float64)


def test_run_on_fakes_reports_what_eager_raises() -> None:
    """An operation that raises in Python raises SkipFrame with torch's message."""
    tx = new_tracer()
    operation = call(torch.add, new_tensor(tx, 2), new_tensor(tx, 3))
    with pytest.raises(SkipFrame, match="raises RuntimeError"):
        run_on_fakes(tx, operation, operation_arguments(tx, operation))


def test_roll_back_restores_a_resized_result() -> None:
    """Rolling back a failed operation restores the size and version of its ``out``."""
    tx = new_tracer()
    out = new_tensor(tx, 0)
    operation = call(torch.add, new_tensor(tx, 2), new_tensor(tx, 2), out=out)
    state = save_fake_state(operation, operation_arguments(tx, operation))
    version = out.fake._version
    with tx.symbols.fake_mode:
        out.fake.resize_(5)
        out.fake.zero_()
    roll_back(tx, state)
    assert (tuple(out.fake.shape), out.fake._version) == ((0,), version)


@pytest.mark.parametrize(
    ("target", "op"),
    [("add_", "call_method"), (operator.iadd, "call_function"), (torch.ops.aten.add_.Tensor, "call_function")],
)
def test_in_place_operators_are_known_by_schema(target: Any, op: str) -> None:
    """The fake state of mutated arguments is saved for in-place operators.

    The operator's schema tells what it mutates, or it is a Python in-place operator.
    """
    tx = new_tracer()
    operation = call(target, new_tensor(tx, 2), new_tensor(tx, 2), op=op)
    state = save_fake_state(operation, operation_arguments(tx, operation))
    assert [metadata.fake for metadata in state.resizable] == [operation.args[0].fake]  # type: ignore[attr-defined]


def test_undo_erases_the_node() -> None:
    """A failed operation leaves no node."""
    tx = new_tracer()
    operation = call(torch.add, new_tensor(tx, 2), ConstantVariable(1))
    arguments = operation_arguments(tx, operation)
    before = targets(tx)
    undo(tx, create_node(tx, operation, arguments), save_fake_state(operation, arguments))
    assert targets(tx) == before


@pytest.mark.parametrize(("target", "bump"), [(torch._foreach_add_, 1), (torch._foreach_add, 0)])
def test_repair_counts_writes_to_lists(target: Any, bump: int) -> None:
    """Fake tensors do not count what ``_foreach_add_`` writes; after the repair they do."""
    tx = new_tracer()
    tensor = new_tensor(tx, 2)
    operation = call(target, tx.from_python([tensor]), ConstantVariable(1))
    arguments = operation_arguments(tx, operation)
    state, version = save_fake_state(operation, arguments), tensor.fake._version
    result = run_on_fakes(tx, operation, arguments)
    repair_versions(operation, arguments, state, result)
    assert tensor.fake._version == version + bump


def test_repair_leaves_fused_optimizer_steps_alone() -> None:
    """``_fused_sgd_`` writes to lists, and eager does not count it."""
    tx = new_tracer()
    lists = [tx.from_python([new_tensor(tx, 2)]) for _ in range(3)]
    operation = call(torch._fused_sgd_, *lists)
    assert save_fake_state(operation, operation_arguments(tx, operation)).written_list == []


def test_only_writes_are_effects() -> None:
    """A node that computes a constant may be erased; one with side effects may not.

    Side effects are writes and changes of state.
    """
    tx = new_tracer()
    tensor = new_tensor(tx, 2)
    for target, expected in (("add_", True), ("add", False)):
        operation = call(target, tensor, ConstantVariable(1), op="call_method")
        arguments = operation_arguments(tx, operation)
        state = save_fake_state(operation, arguments)
        result = run_on_fakes(tx, operation, arguments)
        assert has_effect(operation, state, result) is expected
    operation = call(GraphCallable("set", abs, changes_state=True), tensor)
    arguments = operation_arguments(tx, operation)
    assert has_effect(operation, save_fake_state(operation, arguments), result=1)


def test_the_result_of_an_in_place_operator_is_its_argument() -> None:
    """``x.add_(1)`` is ``x``, so it has the same variable."""
    tx = new_tracer()
    tensor = new_tensor(tx, 2)
    operation = call("add_", tensor, ConstantVariable(1), op="call_method")
    arguments = operation_arguments(tx, operation)
    assert find_returned_argument(tx, operation, arguments, tensor.fake) is tensor
    assert find_returned_argument(tx, operation, arguments, torch.zeros(2)) is None
    assert emit_node(tx, "call_method", "add_", [tensor, ConstantVariable(1)]) is tensor


def test_wrap_result_erases_the_node_of_a_constant() -> None:
    """A result that is a Python constant needs no node, unless the node has an effect."""
    tx = new_tracer()
    tensor = new_tensor(tx, 2)
    for keep in (False, True):
        before = targets(tx)
        operation = call("dim", tensor, op="call_method")
        node = create_node(tx, operation, operation_arguments(tx, operation))
        assert wrap_result(tx, node, (1, torch.float32), keep=keep).as_python_constant(tx) == (1, torch.float32)
        assert targets(tx) == before + ["dim"] * keep


def test_wrap_result_wraps_items_by_their_type() -> None:
    """Each tensor of a tuple gets a node that reads it; constants stay constants."""
    tx = new_tracer()
    values, indices = new_tensor(tx, 3).fake, new_tensor(tx, 3, dtype=torch.int64).fake
    node = tx.graph.create_node("call_function", torch.max, (), {}, tx.node_provenance())
    wrapped = wrap_result(tx, node, torch.return_types.max((values, indices)))
    assert wrapped.python_type() is torch.return_types.max
    assert targets(tx)[-2:] == [operator.getitem, operator.getitem]
    assert wrap_result(tx, node, [values, 7]).argument_items()[1].as_python_constant(tx) == 7


def test_wrap_result_refuses_other_types() -> None:
    """A graph cannot hold a set."""
    tx = new_tracer()
    node = tx.graph.create_node("call_function", torch.max, (), {}, tx.node_provenance())
    with pytest.raises(Unsupported, match="returns a set"):
        wrap_result(tx, node, {1.5})


def test_nothing_dispatches_without_modes_and_subclasses() -> None:
    """Operations on plain tensors, also in lists, have no ``__torch_function__``."""
    tx = new_tracer()
    tensor = new_tensor(tx, 2)
    assert list(arguments_with_torch_function(tx, [tensor, tx.from_python([tensor])])) == []
    assert dispatch_torch_function(tx, "call_function", torch.add, [tensor, tensor], {}) is None


def test_a_failed_emission_leaves_the_graph_unchanged() -> None:
    """``emit_node`` of an operation that raises erases its node and restores its operands."""
    tx = new_tracer()
    tensor, other = new_tensor(tx, 2), new_tensor(tx, 3)
    before, version = targets(tx), tensor.fake._version
    with pytest.raises(SkipFrame):
        emit_node(tx, "call_method", "add_", [tensor, other])
    assert (targets(tx), tensor.fake._version) == (before, version)


def test_a_list_of_sizes_is_tried_again_with_numbers() -> None:
    """An operator that raises for a list of tensors may take it as a list of sizes."""
    tx = new_tracer()

    def take_numbers(tensor: torch.Tensor, sizes: list[Any]) -> torch.Tensor:
        if any(isinstance(size, torch.Tensor) for size in sizes):
            raise TypeError("sizes must be numbers")
        return tensor.clone()

    sizes = tx.from_python([new_number(tx), 2])
    made = emit_node(tx, "call_function", take_numbers, [new_tensor(tx, 5), sizes])
    assert tuple(made.fake.shape) == (5,)  # type: ignore[attr-defined]
    assert targets(tx)[-2:] == ["item", take_numbers]
