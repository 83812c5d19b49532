"""Which functions drive training and so run as Python."""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from notebook_ext.training_drivers import TrainingCalls, builds_module, driver_reason, with_intercepted_calls


def reason(source: str, **names: Any) -> str:
    """The reason for the function ``f`` of a notebook's source."""
    namespace = {"torch": torch, **names}
    exec(source, namespace)
    function = namespace["f"]
    assert isinstance(function, FunctionType)
    return driver_reason(function, lambda other: other.__globals__ is namespace)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def f(x):\n    x.sum().backward()", "backward()"),
        ("def f(loss):\n    loss.backward()", "it calls loss.backward()"),
        ("def f(x):\n    x.sum().backward()", "it calls backward()"),
        ("def f(optimizer):\n    optimizer.step()", "it calls optimizer.step()"),
        ("def f(self):\n    self.opt.step()", "it calls self.opt.step()"),
        ("def f():\n    o.step()", "it calls o.step()"),
        ("def f(opt):\n    def closure():\n        l = opt()\n        l.backward()\n    opt(closure)", "l.backward()"),
        (
            "def g(l):\n    l.backward()\ndef f(x):\n    for _ in range(2):\n        g(x)",
            "it calls g, and that calls l.backward()",
        ),
    ],
)
def test_drivers_are_recognized(source: str, why: str) -> None:
    """By what they call themselves, in closures, or through functions of the notebook."""
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1)
    assert why in reason(source, o=optimizer)


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    return x.sum()",
        "def f(cell, x):\n    return cell.step(x)",
        "def f(x):\n    return f(x - 1) if x else 0",
        "def f(x):\n    backward = x\n    return backward",
        "def update(l):\n    l.backward()\ndef f(state, x):\n    state.update(x)\n    return x",
    ],
)
def test_computations_are_not_drivers(source: str) -> None:
    """Steps of other objects, recursion, mere names and methods named as drivers do not count."""
    assert reason(source) == ""


def block(width: int) -> torch.nn.Module:
    """Return a new module."""
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU())


def ready(width: int) -> torch.nn.Module:
    """Return a new module that was named and put into eval mode."""
    model = torch.nn.Linear(width, width)
    return model.eval() if width else torch.nn.Identity()


def both(width: int) -> torch.nn.Module:
    """Return a new module in eval mode, named before."""
    model = torch.nn.Linear(width, width)
    model.weight.data.zero_()
    return model.eval()


def applied(x: torch.Tensor) -> torch.Tensor:
    """Return what a new module computes."""
    return torch.nn.Linear(2, 2).forward(x)


def called(x: torch.Tensor, flag: bool) -> object:
    """Return a new module or what one computes."""
    return torch.nn.Identity() if flag else torch.nn.ReLU()(x)


def test_a_function_that_only_builds_a_module_is_no_root() -> None:
    """A function whose results are all new modules is none; one that applies a module is."""
    assert builds_module(block)
    assert builds_module(both)
    assert not builds_module(ready)  # A conditional expression is not followed.
    assert not builds_module(applied)
    assert not builds_module(called)
    assert not builds_module(reason)


def test_a_method_that_calls_a_driving_method_is_a_driver() -> None:
    """Methods of the same object are looked into."""
    namespace: dict[str, Any] = {}
    exec(
        "class T:\n    def one(self, l):\n        l.backward()\n    def fit(self, l):\n        self.one(l)\n    def show(self):\n        self.name",
        namespace,
    )
    made = namespace["T"]()

    def is_notebook(function: FunctionType) -> bool:
        return function.__globals__ is namespace

    assert driver_reason(made.fit.__func__, is_notebook, made) == "it calls self.one, and that calls l.backward()"
    assert driver_reason(made.show.__func__, is_notebook, made) == ""


def test_a_routed_driver_asks_for_each_call_and_does_the_same() -> None:
    """Calls in loops, closures and comprehensions go through the hook.

    Defaults and keywords stay unchanged.
    """
    asked: list[str] = []

    def callee(called: Any) -> Any:
        asked.append(getattr(called, "__name__", ""))
        return called

    outside = 2

    def driver(n: int, *, start: int = 1) -> list[int]:
        total = [abs(i) * outside for i in range(start, n)]
        for _ in range(1):
            total.append(len(total))
        return total

    copy = with_intercepted_calls(driver, callee)
    assert copy(3) == driver(3) == [2, 4, 2]
    assert {"abs", "range", "append", "len"} <= set(asked)
    assert copy.__name__ == "driver"


def test_a_training_cell_says_what_ran_as_python() -> None:
    """Losses and optimizers have the cell's names; a scheduler need not be compiled."""
    namespace: dict[str, Any] = {}
    weight, calls = torch.ones(1, requires_grad=True), TrainingCalls(namespace)
    calls.note_function(F.cross_entropy)
    calls.note_function(F.normalize)  # no loss
    assert calls.record("engine") is None  # a cell that only computes a loss does not train
    optimizer = namespace["_"] = namespace["opt"] = torch.optim.SGD([weight], 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)  # replaces the optimizer's step by a function
    calls.note_method(scheduler.step)
    assert calls.record("engine") is None
    called: tuple[Any, ...] = (weight.backward, optimizer.step, optimizer.zero_grad)
    for call in called:
        (calls.note_method if isinstance(call, MethodType) else calls.note_function)(call)
    found = calls.record("torch")
    assert found is not None
    assert found.name == "F.cross_entropy and opt.step"
    assert "a function that calls the model but not backward()" in found.hint
    assert "compiled_step = torch.compile(opt.step)" in found.hint


def test_a_training_cell_names_its_gradient_clipping() -> None:
    """Gradients are clipped between backward and step; one compiled function can do both."""
    weight, calls = torch.ones(1, requires_grad=True), TrainingCalls({})
    calls.note_function(torch.nn.utils.clip_grad_norm_)
    assert calls.record("engine") is None  # nothing trains here
    for method in (weight.backward, torch.optim.SGD([weight], 0.1).zero_grad):
        calls.note_method(method)
    calls.note_function(torch.optim.AdamW([weight]).step.__func__)
    training = calls.record("engine")
    assert training is not None
    assert training.name == "clip_grad_norm_ and optimizer.step"
    assert training.hint.startswith("Call clip_grad_norm_ and optimizer.step() in one function")
