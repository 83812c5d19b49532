"""The contract with torch: entries do on tiny inputs what the engine expects."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.torch_private import (
    autograd,
    contract,
    dispatch,
    entries,
    fake_tensors,
    functionalization,
    functorch,
    fx,
    global_state,
    guard_helpers,
    higher_order_ops,
    inductor,
    lazily_loaded,
    modules,
    operators,
    pytree,
    symbolic_shapes,
    sympy_functions,
    tensors,
    torch_compile,
    torch_function,
)
from engine.torch_private.entries import Entry, Kind

X = torch.arange(6.0).reshape(2, 3)


def in_context(make: Callable[[], Any]) -> bool:
    """Enter and leave a context."""
    with make():
        return True


def functional() -> Any:
    """Return a functional tensor."""
    with functionalization.FunctionalTensorMode():
        return functionalization.FunctionalTensor.to_functional(X.clone())


def mutated() -> Any:
    """Return a functional tensor that was written."""
    with functionalization.FunctionalTensorMode():
        t = functionalization.FunctionalTensor.to_functional(X.clone())
        t.add_(1)
        functionalization.sync_functional(t)
        return t


def traced() -> Any:
    """Return the ATen graph of a sine."""
    return fx.make_fx(lambda x: x.sin(), tracing_mode="symbolic")(X)


def unbacked() -> Any:
    """Return an unbacked symbol."""
    return symbolic_shapes.ShapeEnv().create_unbacked_symint()


def inside_vmap(ask: Callable[[torch.Tensor], Any]) -> Any:
    """Return an answer about a tensor under vmap."""
    found: list[Any] = []
    torch.vmap(lambda t: (found.append(ask(t)), t.sin())[1])(X)
    return found[0]


def version_after_set() -> int:
    """Set a version counter, and return it."""
    t = X.clone()
    autograd.unsafe_set_version_counter((t,), (7,))
    return t._version


def guards_check() -> bool:
    """Compare a tensor with itself in C."""
    guards = guard_helpers.TensorGuards(X, dynamic_dims_sizes=[[2, 3]], dynamic_dims_strides=[[3, 1]])
    return guards.check(X) and not guards.check(X[:1])


def versions_differ() -> bool:
    """Compare the version of a dict before and after a write."""
    d: dict[str, int] = {}
    before = guard_helpers.dict_version(d)
    d["a"] = 1
    return guard_helpers.dict_version(d) != before


def keeps_mode(stack: list[Any]) -> bool:
    """Push a torch-function mode, read it, and pop it."""
    mode = torch_function.DeviceContext("cpu")
    torch_function.push_on_torch_function_stack(mode)
    found = torch_function.get_function_stack_at(torch_function.len_torch_function_stack() - 1)
    return found is mode and torch_function.pop_torch_function_stack() is mode


def switches_grad() -> bool:
    """Switch grad mode off and on."""
    autograd.set_grad_enabled(False)
    off = torch.is_grad_enabled()
    autograd.set_grad_enabled(True)
    return not off and torch.is_grad_enabled()


FAKE = fake_tensors.FakeTensorMode

EXAMPLES: dict[str, Callable[[], Any]] = {
    "torch._C:DispatchKeySet": lambda: dispatch.DispatchKeySet.from_raw_repr(0).raw_repr() == 0,
    "torch._C:_dispatch_keys": lambda: "CPU" in str(dispatch.dispatch_keys(X)) and dispatch.dispatch_keys(X).raw_repr(),
    "torch._C:_dispatch_dump": lambda: "registered at" in dispatch.dispatch_dump("aten::sin"),
    "torch._C:_dispatch_has_kernel": lambda: dispatch.dispatch_has_kernel("aten::sin"),
    "torch._C:_dispatch_key_parse": lambda: dispatch.dispatch_key_parse("CPU") == dispatch.DispatchKey.CPU,
    "torch._C:_dispatch_tls_local_exclude_set": lambda: not dispatch.dispatch_tls_local_exclude_set().has(
        dispatch.DispatchKey.AutogradCPU
    ),
    "torch._C:_AutoDispatchBelowAutograd": lambda: in_context(dispatch.AutoDispatchBelowAutograd),
    "torch._C:_DisablePythonDispatcher": lambda: in_context(dispatch.DisablePythonDispatcher),
    "torch._C:_DisableTorchDispatch": lambda: in_context(dispatch.DisableTorchDispatch),
    "torch._C:_get_dispatch_mode": lambda: dispatch.get_dispatch_mode(dispatch.TorchDispatchModeKey.FAKE) is None,
    "torch._C:_len_torch_dispatch_stack": lambda: dispatch.len_torch_dispatch_stack() == 0,
    "torch._dispatch.python:enable_python_dispatcher": lambda: in_context(dispatch.enable_python_dispatcher),
    "torch.utils._python_dispatch:_disable_current_modes": lambda: in_context(dispatch.disable_current_modes),
    "torch.utils._python_dispatch:is_traceable_wrapper_subclass": lambda: (
        not dispatch.is_traceable_wrapper_subclass(X)
    ),
    "torch._C:DisableTorchFunction": lambda: in_context(torch_function.DisableTorchFunction),
    "torch._C:DisableTorchFunctionSubclass": lambda: in_context(torch_function.DisableTorchFunctionSubclass),
    "torch._C:_get_function_stack_at": lambda: keeps_mode([]),
    "torch._C:_is_torch_function_enabled": torch_function.is_torch_function_enabled,
    "torch._C:_is_torch_function_all_disabled": lambda: not torch_function.is_torch_function_all_disabled(),
    "torch._C:_are_functorch_transforms_active": lambda: (
        not functorch.are_functorch_transforms_active()
        and inside_vmap(lambda t: functorch.are_functorch_transforms_active())
    ),
    "torch._C._functorch:is_batchedtensor": lambda: inside_vmap(functorch.is_batchedtensor),
    "torch._C._functorch:is_functorch_wrapped_tensor": lambda: inside_vmap(functorch.is_functorch_wrapped_tensor),
    "torch._C._functorch:get_unwrapped": lambda: inside_vmap(lambda t: functorch.get_unwrapped(t).shape == (2, 3)),
    "torch._C._functorch:is_legacy_batchedtensor": lambda: not functorch.is_legacy_batchedtensor(X),
    "torch._C._functorch:peek_interpreter_stack": lambda: functorch.peek_interpreter_stack() is None,
    "torch._subclasses.fake_tensor:FakeTensorMode": lambda: FAKE().from_tensor(X).shape == (2, 3),
    "torch._subclasses.fake_tensor:FakeTensor": lambda: isinstance(FAKE().from_tensor(X), fake_tensors.FakeTensor),
    "torch._guards:detect_fake_mode": lambda: fake_tensors.detect_fake_mode([FAKE().from_tensor(X)]) is not None,
    "torch._guards:tracing": lambda: in_context(lambda: fake_tensors.tracing(fake_tensors.TracingContext(FAKE()))),
    "torch:_is_functional_tensor": lambda: functionalization.is_functional_tensor(functional().elem),
    "torch:_from_functional_tensor": lambda: torch.equal(
        functionalization.from_functional_tensor(mutated().elem), X + 1
    ),
    "torch:_functionalize_has_data_mutation": lambda: (
        functionalization.functionalize_has_data_mutation(mutated().elem)
        and not functionalization.functionalize_has_data_mutation(functional().elem)
    ),
    "torch.fx.experimental.symbolic_shapes:free_unbacked_symbols": lambda: (
        len(symbolic_shapes.free_unbacked_symbols(unbacked())) == 1
    ),
    "torch.fx.experimental.symbolic_shapes:has_free_unbacked_symbols": lambda: (
        symbolic_shapes.has_free_unbacked_symbols(unbacked())
    ),
    "torch.fx.experimental.symbolic_shapes:guard_or_false": lambda: not symbolic_shapes.guard_or_false(unbacked() == 3),
    "torch.fx.experimental.symbolic_shapes:guard_or_true": lambda: symbolic_shapes.guard_or_true(unbacked() == 3),
    "torch.fx.experimental.symbolic_shapes:statically_known_true": lambda: (
        not symbolic_shapes.statically_known_true(unbacked() == 3)
    ),
    "torch.fx.experimental.symbolic_shapes:is_nested_int": lambda: not symbolic_shapes.is_nested_int(3),
    "torch.utils._sympy.functions:FloorDiv": lambda: sympy_functions.FloorDiv(7, 2) == 3,
    "torch.utils._sympy.functions:Mod": lambda: sympy_functions.Mod(7, 2) == 1,
    "torch.utils._sympy.numbers:int_oo": lambda: sympy_functions.int_oo > 1 << 70,
    "torch.utils._sympy.printers:PythonPrinter": lambda: (
        sympy_functions.PythonPrinter().doprint(sympy_functions.FloorDiv(7, 2)) == "3"
    ),
    "torch.utils._sympy.value_ranges:ValueRanges": lambda: sympy_functions.ValueRanges(1, 4).upper == 4,
    "torch.fx.experimental.proxy_tensor:make_fx": lambda: (
        [n.target for n in traced().graph.nodes][1] is torch.ops.aten.sin.default
    ),
    "torch.fx.experimental.proxy_tensor:get_proxy_mode": lambda: fx.get_proxy_mode() is None,
    "torch._C:_set_grad_enabled": switches_grad,
    "torch._C._autograd:_get_creation_meta": lambda: (
        autograd.get_creation_meta(X.clone().view(-1)) == autograd.CreationMeta.DEFAULT
    ),
    "torch._C._autograd:_unsafe_set_version_counter": lambda: version_after_set() == 7,
    "torch._C._autograd:_get_sequence_nr": lambda: autograd.get_sequence_nr() >= 0,
    "torch._C._autograd:_top_saved_tensors_default_hooks": lambda: (
        autograd.top_saved_tensors_default_hooks(False) is None
    ),
    "torch._C:_current_graph_task_id": lambda: autograd.current_graph_task_id() == -1,
    "torch._C:_DisableAutocast": lambda: in_context(autograd.DisableAutocast),
    "torch._C:_is_any_autocast_enabled": lambda: not autograd.is_any_autocast_enabled(),
    "torch.autograd:_is_checkpoint_valid": autograd.is_checkpoint_valid,
    "torch.autograd:forward_ad": lambda: autograd.forward_ad._current_level == -1,
    "torch.autograd:Variable._execution_engine": lambda: autograd.execution_engine() is not None,
    "torch._ops:OpOverload": lambda: isinstance(torch.ops.aten.sin.default, operators.OpOverload),
    "torch._ops:OpOverloadPacket": lambda: isinstance(torch.ops.aten.sin, operators.OpOverloadPacket),
    "torch._decomp:decomposition_table": lambda: torch.ops.aten.gelu.default in operators.decomposition_table,
    "torch._prims_common:elementwise_dtypes": lambda: (
        operators.elementwise_dtypes(X, type_promotion_kind=operators.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)[1]
        == torch.float32
    ),
    "torch._C:_infer_size": lambda: operators.infer_size(torch.Size((2, 1)), torch.Size((1, 3))) == (2, 3),
    "torch:_check": lambda: operators.torch_check(True) is None,
    "torch:_debug_has_internal_overlap": lambda: (
        operators.debug_has_internal_overlap(X) == 0 and operators.debug_has_internal_overlap(X[:, :1].expand(2, 3)) == 1
    ),
    "torch:_neg_view": lambda: torch.equal(operators.neg_view(X), -X),
    "torch:_shape_as_tensor": lambda: operators.shape_as_tensor(X).tolist() == [2, 3],
    "torch._refs:tensor": lambda: operators.tensor_from_symbols(3).item() == 3,
    "torch.utils._pytree:tree_flatten": lambda: pytree.tree_flatten({"a": [1, 2]})[0] == [1, 2],
    "torch.utils._pytree:tree_unflatten": lambda: pytree.tree_unflatten(*pytree.tree_flatten([1, (2,)])) == [1, (2,)],
    "torch.utils._pytree:tree_leaves": lambda: pytree.tree_leaves([1, (2,)]) == [1, 2],
    "torch.utils._pytree:tree_map": lambda: pytree.tree_map(str, [1, (2,)]) == ["1", ("2",)],
    "torch._C:TensorBase": lambda: isinstance(X, tensors.TensorBase) and "sin" in vars(tensors.TensorBase),
    "torch._C:_storage_Use_Count": lambda: tensors.storage_Use_Count(X.untyped_storage()._cdata) >= 1,
    "torch.nn:Module._call_impl": lambda: modules.call_impl(torch.nn.Identity(), X) is X,
    "torch.nn.modules:module": lambda: modules.module_hooks._global_forward_hooks == {},
    "torch._C:_get_tracing_state": lambda: global_state.get_tracing_state() is None,
    "torch._C:_get_float32_matmul_precision": lambda: global_state.get_float32_matmul_precision() == "highest",
    "torch._C:_get_sdp_priority_order": lambda: len(global_state.get_sdp_priority_order()) > 1,
    "torch._C._dynamo.guards:TensorGuards": guards_check,
    "torch._C._dynamo.guards:GlobalStateGuard": lambda: guard_helpers.GlobalStateGuard().check(),
    "torch._C._dynamo.guards:RootGuardManager": lambda: guard_helpers.RootGuardManager().check({}),
    "torch._C._dynamo.guards:dict_version": versions_differ,
    "torch._C._dynamo.eval_frame:_debug_get_cache_entry_list": lambda: (
        list(torch_compile.debug_get_cache_entry_list(functional.__code__)) == []
    ),
    "torch._higher_order_ops.cond:cond_op": lambda: isinstance(
        higher_order_ops.cond_op, operators.HigherOrderOperator
    ),
}  # fmt: skip
"""An example for each entry with a behavior of its own; each returns true."""


@pytest.mark.parametrize("path", EXAMPLES)
def test_an_entry_does_what_the_engine_expects(path: str) -> None:
    """Called on a tiny input, the entry returns what the engine relies on."""
    assert path in {entry.path for entry in contract.ENTRIES}
    assert EXAMPLES[path]()


def test_nothing_is_off_here() -> None:
    """With a tested version of torch, all entries are as declared."""
    assert entries.sentence() == ""


WRITTEN_FOR_2_13 = (
    Entry(
        "torch.autograd:Function.apply",
        Kind.FUNCTION,
        "Recognizes calls of custom functions.",
        without="calls of custom functions are not recognized",
        members=("__func__",),
    ),
    Entry(
        "torch.distributed.tensor.experimental._func_map:_local_map_wrapped",
        Kind.FUNCTION,
        "Called with the function, placements, mesh and redistribution.",
        without="local_map breaks the graph",
        calls=("(a, b, c, d, e, f)",),
    ),
)
"""Names whose form changed after 2.13, in the form that the engine relied on then."""


@pytest.mark.parametrize(
    ("written", "fault"),
    [(WRITTEN_FOR_2_13[0], "has no __func__"), (WRITTEN_FOR_2_13[1], "does not take (a, b, c, d, e, f)")],
)
def test_a_name_of_another_version_is_named(written: Entry, fault: str) -> None:
    """The entry as written for torch 2.13 says what changed in 2.14."""
    found = entries.check(written, entries.resolve(written.path))
    assert found == "" if entries.torch_version() < (2, 14) else found.endswith(fault)


def run_with_faults(lines: list[str], cache: pathlib.Path) -> list[dict[str, Any]]:
    """Run programs in child processes with one fault each."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.engine.torch_private.run_with_fault"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        cwd=pathlib.Path(__file__).parents[3],
    )
    assert ran.returncode == 0, ran.stderr
    with contextlib.closing(io.StringIO(ran.stdout)) as answers:
        return [json.loads(line) for line in answers if line.startswith("{")]


def check_faults(lines: list[str], cache: pathlib.Path) -> None:
    """Check that each fault is said in one sentence, and that programs are right nevertheless."""
    answers = run_with_faults(lines, cache)
    assert [f"{a['how']} {a['path']}" for a in answers] == lines
    expected = {entry.path: entry for entry in contract.ENTRIES}
    for answer in answers:
        assert "failed" not in answer, answer["failed"]
        entry = expected[answer["path"]]
        assert answer["differing"] == [], (answer["path"], answer["differing"])
        (sentence,) = answer["said"]
        assert entry.public_path in sentence
        assert sentence.endswith(f"{entry.off.value}.")


def is_loaded_at_import(entry: Entry) -> bool:
    """Return True for entries that importing the engine loads."""
    return entry.is_expected_here and entry not in (*lazily_loaded.ENTRIES, *inductor.ENTRIES)


FAULTS = [f"{how} {e.path}" for e in contract.ENTRIES if is_loaded_at_import(e) for how in ("removed", "changed")]


@pytest.mark.thorough
def test_a_fault_turns_off_its_feature_only(tmp_path: pathlib.Path) -> None:
    """Without a name, the import says one sentence and programs are right."""
    drawn = random.Random(torch.__version__).sample(FAULTS, 2)
    check_faults(["removed torch._C._dynamo.guards:TensorGuards", *drawn], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_each_fault_turns_off_its_feature_only(part: int, tmp_path: pathlib.Path) -> None:
    """Each entry is removed, and given another kind or signature."""
    check_faults(FAULTS[part::8], tmp_path)
