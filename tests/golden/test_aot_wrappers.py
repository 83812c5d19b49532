"""Golden pairs of the AOT runtime wrappers.

They show what a wrapper takes out of the graph, and the code that it puts around the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from tests.engine.aot.tracing import compiled
from tests.golden.pairs import Pair, compile_and_run, generated_code, graph_lines, graph_of, shows, wrapper_actions
from tests.torch_internals import TwoTensor

Tensor = torch.Tensor
Show = Callable[..., None]


@pytest.fixture
def show(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Show:
    """Compile a function through AOT and write the pair.

    The pair has the traced graph, the compiled graph, the generated code and the actions.
    """

    def write(function: Callable[..., Any], *args: Any, wrapper: str) -> None:
        with generated_code(monkeypatch) as texts:
            record, _ = compile_and_run(function, *args, backend="aot_eager")
        after = ["the graph that is compiled:", *graph_lines(record.graphs[1])]
        for text in texts:
            after += ["", "the code around it:", *text.split("\n")]
        actions = wrapper_actions(record, wrapper)
        assert actions
        pair(function, before=graph_of(record, "fx"), after=after, actions_and_reasons=actions)

    return write


@shows("engine/aot/wrappers/input_mutations.py")
def test_input_mutations(show: Show) -> None:
    """The graph returns the new value of a mutated input; the wrapper copies it back."""

    def f(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    show(f, torch.ones(4), wrapper="input mutation")


@shows("engine/aot/wrappers/input_mutations.py")
def test_input_mutation_of_sizes(show: Show) -> None:
    """An input whose sizes change in place gets its new sizes and strides after the graph."""

    def f(x: Tensor) -> Tensor:
        x.t_()
        return x + 1

    show(f, torch.ones(2, 3), wrapper="input mutation")


@shows("engine/aot/wrappers/output_aliases.py")
def test_output_alias_of_input(show: Show) -> None:
    """A result that is a view of an input is made from the input again.

    A write to one then shows in the other.
    """

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x[1:]

    show(f, torch.ones(4), wrapper="output aliasing")


@shows("engine/aot/wrappers/output_aliases.py")
def test_output_alias_in_training(show: Show) -> None:
    """The view function of eager's autograd node makes a view of an input that requires grad.

    The gradient then flows as in eager.
    """

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x[1:]

    show(f, torch.ones(4, requires_grad=True) * 2, wrapper="output aliasing")


@shows("engine/aot/wrappers/output_aliases.py")
def test_output_aliases_of_one_value(show: Show) -> None:
    """Two results that are views of one computed value are made from that value.

    The graph returns the value once.
    """

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return y, y.view(2, 2)

    show(f, torch.ones(4), wrapper="output aliasing")


@shows("engine/aot/wrappers/dedup_inputs.py", "engine/aot/wrappers/replace_placeholders.py")
def test_dedup_inputs(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that is passed twice becomes one graph input.

    A write through one name then shows in the other.
    """

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x.add_(1)
        return (y * 2,)

    x = torch.ones(4)
    with generated_code(monkeypatch) as texts:
        result, _ = compiled(f, (x, x))
    before, after = map(graph_lines, result.graphs)
    actions = [f"{a.argument} {a.action}, because {a.why}" for w in result.record.wrappers for a in w.actions]
    code = [line for text in texts for line in ("", "the code around it:", *text.split("\n"))]
    pair(f, before=before, after=["the graph that is compiled:", *after, *code], actions_and_reasons=actions)


@shows("engine/aot/wrappers/synthetic_bases.py", "engine/aot/view_replay.py")
def test_synthetic_bases(show: Show) -> None:
    """Inputs with storage overlap become one flat synthetic base if one is mutated.

    The graph makes the views itself and returns the new base.
    """

    def f(first: Tensor, second: Tensor) -> Tensor:
        first.mul_(2)
        return second + 1

    whole = torch.ones(6)
    show(f, whole[:4], whole[2:], wrapper="synthetic bases")


@shows("engine/aot/wrappers/tensor_subclasses.py", "engine/aot/subclass_spec.py")
def test_tensor_subclasses(show: Show) -> None:
    """A tensor subclass is unwrapped before the graph, and its results are wrapped again.

    The graph computes on the plain tensors that the subclass wraps.
    """

    def f(x: Any) -> Any:
        return x * 2

    show(f, TwoTensor(torch.ones(4), torch.zeros(4)), wrapper="tensor subclasses")


@shows("engine/aot/wrappers/error_fallback.py")
def test_error_fallback(show: Show) -> None:
    """If the compiled graph raises, the traced graph runs eagerly on the same inputs.

    The error is then eager's, and the inputs hold what eager wrote before the error.
    """

    def f(x: Tensor, index: Tensor) -> Tensor:
        x.add_(1)
        return x[index]

    show(f, torch.ones(4), torch.tensor([1]), wrapper="errors")


@shows("engine/aot/wrappers/debug_assertions.py")
def test_debug_assertions(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    """With config.debug_assertions, each call checks its inputs against the compiled ones.

    A wrong guard then raises an error instead of giving wrong numbers.
    """
    monkeypatch.setattr(engine.config, "debug_assertions", True)

    def f(x: Tensor) -> Tensor:
        return x + 1

    show(f, torch.ones(4), wrapper="debug assertions")


@shows("engine/aot/wrappers/disable_autocast.py")
def test_disable_autocast(show: Show) -> None:
    """Autocast is off while the graph runs, because the graph contains its casts.

    No value is cast twice.
    """

    def f(x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    with torch.autocast("cpu", torch.bfloat16):
        show(f, torch.ones(4, 4), torch.ones(4, 4), wrapper="autocast off")


@shows("engine/aot/wrappers/effect_order.py", "engine/graph/effect_tokens.py")
def test_effect_order(show: Show) -> None:
    """Operators with side effects take and return a token.

    No pass can then drop or reorder them.
    """
    library = torch.library.Library("golden_effects", "DEF")
    library.define("note(Tensor x) -> ()")
    library.impl("note", lambda x: None, "CompositeExplicitAutograd")
    torch.library.register_fake("golden_effects::note", lambda x: None, lib=library)

    def f(x: Tensor) -> Tensor:
        torch.ops.golden_effects.note.default(x)
        y = x + 1
        torch.ops.golden_effects.note.default(y)
        return y

    show(f, torch.ones(4), wrapper="effects in order")


@shows("engine/aot/wrappers/autograd_function.py", "engine/aot/joint.py", "engine/aot/autograd_function_metadata.py")
def test_autograd_function(show: Show) -> None:
    """A call that needs gradients becomes an autograd.Function.

    Its forward saves what the backward graph reads. Its backward is compiled when it is first needed.
    """

    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x * w).sin()

    show(f, torch.ones(4), torch.ones(4, requires_grad=True), wrapper="autograd")


@shows("engine/aot/wrappers/autograd_function.py", "engine/aot/wrappers/double_backward.py")
def test_autograd_function_with_integer_result(show: Show) -> None:
    """A result that eager does not differentiate is marked as non-differentiable.

    The forward does not save tensors that only this result needs.
    """

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.argmax()

    show(f, torch.ones(4, requires_grad=True), wrapper="autograd")


@shows("engine/aot/wrappers/freed_history.py")
def test_freed_history(show: Show) -> None:
    """A result whose history the graph has freed requires grad; a backward from it raises."""

    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        loss = (x * w).sin().sum()
        (g,) = torch.autograd.grad(loss, w)
        return w - g, loss

    show(f, torch.ones(4), torch.ones(4, requires_grad=True), wrapper="autograd")


@shows("engine/aot/wrappers/eager_conditions.py")
def test_eager_conditions(show: Show) -> None:
    """A call runs as traced where compiled code is unsupported.

    This is so under transforms, and where a leaf is written in place, for which eager raises an error.
    """

    def f(x: Tensor) -> Tensor:
        x.mul_(2)
        return x.sin()

    show(f, torch.ones(4, requires_grad=True) * 1, wrapper="autograd")
