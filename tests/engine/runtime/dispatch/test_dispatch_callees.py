"""What calls from frames left to Python are exchanged for."""

from __future__ import annotations

import contextlib
import functools
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine.ir.annotations import disable
from engine.ir.unwrap_compiled import unwrap_compiled
from engine.runtime.dispatch.dispatcher import dispatcher_state_of, make_dispatcher
from tests.engine.runtime.fake_compiler import FakeCompiler, InterceptingCompiler


def user(x: Any) -> Any:
    """A function of the user's."""
    return x + 1


class Thing:
    """An object of the user's."""

    def method(self, x: Any) -> Any:
        """A method."""
        return x + 1

    @staticmethod
    def static(x: Any) -> Any:
        """A static method."""
        return x + 1

    @classmethod
    def of_class(cls, x: Any) -> Any:
        """A class method."""
        return (cls, x)


@pytest.fixture
def compiler() -> FakeCompiler:
    """A compiler, kept alive for the length of a test."""
    return FakeCompiler()


def test_functions_become_their_dispatchers(compiler: FakeCompiler) -> None:
    """A function is exchanged for one dispatcher, again and again the same."""
    found = compiler.dispatch_callee(user)
    assert dispatcher_state_of(found) is not None
    assert compiler.dispatch_callee(user) is found
    assert compiler.dispatch_callee(found) is found
    assert found(1) == 2


def test_library_functions_stay_themselves_but_bound_forwards_are_dispatched(compiler: FakeCompiler) -> None:
    """A function of torch is called as it is; a bound forward of its modules is not."""
    x, layer = torch.ones(2), torch.nn.Identity()
    for _ in range(2):
        assert compiler.dispatch_callee_at_break(x.backward) == x.backward
    assert compiler.dispatch_callee(torch.nn.Identity.forward) is torch.nn.Identity.forward
    assert dispatcher_state_of(compiler.dispatch_callee(layer.forward).__func__) is not None


def test_methods_and_partials(compiler: FakeCompiler) -> None:
    """Bound, static and class methods and partials keep what they are bound to."""
    thing = Thing()
    assert compiler.dispatch_callee(thing.method)(1) == 2
    assert compiler.dispatch_callee(Thing.static)(1) == 2
    assert compiler.dispatch_callee(Thing.of_class)(1) == (Thing, 1)
    assert compiler.dispatch_callee(functools.partial(user, 1))() == 2
    assert compiler.names == ["method", "static", "of_class", "user"]


def total(one: Any, two: Any) -> Any:
    """What joins two values."""
    return one + two


@pytest.mark.parametrize(
    ("call", "expected", "names"),
    [
        (lambda callee: callee(list)(map(user, [1, 2])), [2, 3], ["user"]),
        (lambda callee: callee(sum)(filter(user, [1, 2])), 3, ["user"]),
        (lambda callee: callee(functools.reduce)(total, map(user, [1, 2])), 5, ["total", "user"]),
        (lambda callee: callee(map)(user, []).__reduce__()[1][0] is user, True, []),
        (lambda callee: callee(next)([map(user, [1])].pop()), 2, ["user"]),
        (lambda callee: callee(sorted)([2, 1], key=user), [1, 2], ["user"]),
        (lambda callee: callee(max)(1, 2, key=user), 2, ["user"]),
        (lambda callee: callee(functools.reduce)(total, [1, 2, 3]), 6, ["total"]),
        (lambda callee: callee([2, 1].sort)(key=user), None, ["user"]),
        (lambda callee: callee(min)(3, 2), 2, []),
        (lambda callee: next(callee(iter)([7])), 7, []),
    ],
)
def test_builtins_that_call_a_function(call: Any, expected: Any, names: list[str], compiler: FakeCompiler) -> None:
    """A builtin that calls a function of the user's calls its dispatcher."""
    assert call(compiler.dispatch_callee) == expected
    assert sorted(set(compiler.names)) == names


@pytest.mark.parametrize(
    "obj",
    [
        len,
        print,
        torch.add,
        torch.nn.functional.relu,
        torch.zeros(1).add,
        os.path.join,
        random.choice,
        contextlib.suppress,
        Thing,
        int,
        [].append,
        3,
    ],
)
def test_what_is_left_alone(obj: Any, compiler: FakeCompiler) -> None:
    """Builtins, classes, torch's and the standard library's functions are called as they are."""
    assert compiler.dispatch_callee(obj) is obj


def test_disabled_functions_are_left_alone(compiler: FakeCompiler) -> None:
    """Functions marked by ``disable`` are called as they are, as functions and as methods."""

    @disable
    def quiet(x: Any) -> Any:
        return x

    assert compiler.dispatch_callee(quiet) is quiet


def test_installed_packages_that_are_models_are_compiled(compiler: FakeCompiler) -> None:
    """A library such as transformers is the user's program; its functions are exchanged."""
    source = "def helper(x):\n    return x\n"
    space: dict[str, Any] = {"__name__": "transformers.models.made_up"}
    exec(compile(source, "/usr/lib/python3/site-packages/transformers/models/made_up.py", "exec"), space)
    assert dispatcher_state_of(compiler.dispatch_callee(space["helper"])) is not None


def test_modules_with_and_without_hooks() -> None:
    """A module's forward is dispatched, and hooks run, dispatched as well."""
    compiler = InterceptingCompiler()

    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1

    def hook(module: Any, args: Any, output: Any) -> Any:
        return output * 10

    net = Net()
    assert compiler.dispatch_callee(net)(1) == 2
    assert compiler.names == ["forward"]
    net.register_forward_hook(hook)
    assert compiler.dispatch_callee(net)(1) == 20
    assert compiler.names == ["forward", "hook"]
    layer = torch.nn.Identity()
    layer.register_forward_hook(hook)
    assert compiler.dispatch_callee(layer)(1) == 10
    assert compiler.names.count("forward") == 2


def test_torchs_containers_reach_the_modules_in_them() -> None:
    """A Sequential is dispatched, and the user's module inside it too."""
    compiler = InterceptingCompiler()

    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1

    stack = torch.nn.Sequential(Net(), torch.nn.ReLU())
    assert torch.equal(compiler.dispatch_callee(stack)(torch.zeros(2)), torch.ones(2))
    assert len(compiler.requests) == 3


def test_a_module_with_its_own_call() -> None:
    """A class that overrides ``__call__`` is called its way."""
    compiler = FakeCompiler()

    class Odd(torch.nn.Module):
        def __call__(self, x: Any) -> Any:
            return x + 5

    assert compiler.dispatch_callee(Odd())(1) == 6
    assert compiler.names == ["__call__"]


def test_a_librarys_wrapper_does_not_hide_the_user() -> None:
    """Functions under ``torch.no_grad()`` or ``functools.wraps`` compile in their context."""
    compiler = FakeCompiler()

    @torch.no_grad()
    def inside(x: Any) -> Any:
        return torch.is_grad_enabled()

    assert compiler.dispatch_callee(inside)(1) is False
    assert compiler.names == ["inside"]

    @contextlib.contextmanager
    def context() -> Iterator[int]:
        yield 3

    with compiler.dispatch_callee(context)() as three:
        assert three == 3


def test_a_dispatcher_of_another_compiler_stays() -> None:
    """What the user compiled with other options keeps them."""
    other, compiler = FakeCompiler(), FakeCompiler()
    compiled = make_dispatcher(user, other)  # type: ignore[arg-type]
    assert compiler.dispatch_callee(compiled) is compiled
    assert unwrap_compiled(compiled) is user


def test_results_are_those_of_the_plain_call() -> None:
    """Exceptions pass through exchanged calls unchanged."""
    compiler = InterceptingCompiler()

    def fails(x: Any) -> Any:
        raise ValueError(f"no {x}")

    def frame(x: Any) -> Any:
        try:
            return fails(x)
        except ValueError as error:
            return str(error)

    assert make_dispatcher(frame, compiler)(1) == "no 1"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no 2"):
        compiler.dispatch_callee(fails)(2)
