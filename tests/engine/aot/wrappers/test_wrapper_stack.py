"""Wrappers of one protocol run their halves in order and leave the identity unchanged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.fx

from engine.aot.wrappers import disable_autocast, effect_order, input_mutations, output_aliases
from engine.aot.wrappers.base import FunctionalCall, PreCompileResult, TracedCall, apply_pre_compile
from engine.aot.wrappers.codegen import WrapperCode, compile_wrapper_code, join_wrapper_code
from engine.aot.wrappers.order import FUNCTIONAL_CALL_WRAPPERS, TRACED_CALL_WRAPPERS, WRAPPERS
from engine.ir.aot.aot_metadata import AotMetadata, InputAliasInfo, OutputAliasInfo
from engine.records.aot import WrapperAction


@dataclass
class _Noted:
    """Log when each half of the wrapper runs; drop the last input if there are two or more."""

    NAME: str
    log: list[str]

    def pre_compile(self, call: TracedCall) -> PreCompileResult[TracedCall] | None:
        self.log.append(f"{self.NAME} before")
        if len(call.inputs) < 2:
            return None
        action = WrapperAction("input", "taken away", "a test")
        return PreCompileResult(replace(call, inputs=call.inputs[:-1]), (action,), len(call.inputs))

    def post_compile(self, change: PreCompileResult[TracedCall]) -> WrapperCode:
        self.log.append(f"{self.NAME} after {change.runtime_metadata}")
        return WrapperCode(arguments=tuple(f"i{n}" for n in range(change.runtime_metadata - 1)))


@dataclass(frozen=True)
class _Input:
    name: str


def _call(inputs: int) -> TracedCall:
    given: Any = tuple(_Input(f"x{n}") for n in range(inputs))
    return TracedCall(torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph()), given)


def _functional_call(**changes: Any) -> FunctionalCall:
    plan = AotMetadata((InputAliasInfo("x"),), (OutputAliasInfo("output", "result", 0),), 1)
    return FunctionalCall(replace(plan, **changes), lambda x: (x,))


def test_first_halves_run_outermost_first_and_second_halves_innermost_first() -> None:
    """Each wrapper sees what the one outside left, and is closed around the one inside."""
    log: list[str] = []
    stack = apply_pre_compile((_Noted("outer", log), _Noted("inner", log)), _call(3))
    run = stack.apply_post_compile(lambda *args: args)
    assert log == ["outer before", "inner before", "inner after 2", "outer after 3"]
    assert run("a", "b", "c") == ("a",)
    assert [(r.name, len(r.actions)) for r in stack.records()] == [("outer", 1), ("inner", 1)]


def test_a_wrapper_with_nothing_to_do_adds_nothing() -> None:
    """The callable is the very one that was given, and the record has no action."""
    log: list[str] = []
    stack = apply_pre_compile((_Noted("only", log),), _call(1))

    def run(*args: Any) -> Any:
        return args

    assert stack.apply_post_compile(run) is run
    assert [r.actions for r in stack.records()] == [()]


def test_all_wrappers_follow_one_protocol() -> None:
    """The list holds each wrapper once; each has a name and two halves of one argument."""
    assert len(set(WRAPPERS)) == len(WRAPPERS) == len(TRACED_CALL_WRAPPERS) + len(FUNCTIONAL_CALL_WRAPPERS)
    names = [w.NAME for w in WRAPPERS if w.NAME]
    assert len(set(names)) == len(names)
    for wrapper in WRAPPERS:
        for half in (wrapper.pre_compile, wrapper.post_compile):
            assert half.__code__.co_argcount == 1, wrapper


def test_functional_wrappers_around_the_identity_change_nothing() -> None:
    """A call without mutation, alias, effect and backward gets no function around it."""
    stack = apply_pre_compile(FUNCTIONAL_CALL_WRAPPERS, _functional_call())

    def run(x: Any) -> Any:
        return (x,)

    assert stack.apply_post_compile_at_once(run) is run


@pytest.mark.parametrize("wrapper", [disable_autocast, effect_order])
def test_wrappers_without_work_do_not_appear(wrapper: Any) -> None:
    """A wrapper returns None without its reason in the metadata, and a result with it."""
    assert apply_pre_compile((wrapper,), _functional_call()).result_of(wrapper) is None
    call = _functional_call(autocast_devices=("cpu",), effectful_ops=("print",))
    assert apply_pre_compile((wrapper,), call).result_of(wrapper) is not None


def test_code_of_inner_wrappers_is_closest_to_the_call() -> None:
    """Code before the call follows wrapper order; code after it follows the reverse order."""
    log: list[str] = []
    outer = WrapperCode(before=("log('outer')",), after=("log('outer')",), namespace={"log": log.append})
    inner = WrapperCode(before=("log('inner')",), after=("log('inner')",), num_results=1, output_exprs=("r0", "r0"))
    call = compile_wrapper_code(join_wrapper_code((outer, inner)), lambda x: (log.append("run"), (x + 1,))[1], 1)
    assert call(1) == (2, 2)
    assert log == ["outer", "inner", "run", "inner", "outer"]


def test_mutations_and_aliases_are_written_around_the_call() -> None:
    """The code copies the new value into the input and returns the other result."""
    inputs = (replace(InputAliasInfo("x"), is_mutated=True, result_index=1, version_bumps=1),)
    call = _functional_call(inputs=inputs, num_results=2)
    stack = apply_pre_compile((output_aliases, input_mutations), call)
    x = torch.ones(2)
    (result,) = stack.apply_post_compile_at_once(lambda v: (v + 1, v * 3))(x)
    assert torch.equal(x, torch.full((2,), 3.0)) and torch.equal(result, torch.full((2,), 2.0))
