"""Tests of reference counts, annotations, start methods and syntax of new Pythons."""

from __future__ import annotations

import multiprocessing
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch

import engine
from engine.autograd.graph_ops import accumulate_grad

HAS_TEMPLATE_STRINGS = sys.version_info >= (3, 14)


@pytest.mark.parametrize("holders", [1, 2])
def test_gradient_is_taken_only_from_its_last_holder(holders: int) -> None:
    """``.grad`` takes a gradient that only the caller holds, and copies any other."""
    leaf, grad = torch.ones(3, requires_grad=True), torch.ones(3)
    held = [grad][: holders - 1]
    address = grad.data_ptr()
    with torch.no_grad():
        accumulate_grad(leaf, grad)
    assert (leaf.grad.data_ptr() == address) is (not held)


def test_gradient_kept_by_a_hook_is_copied() -> None:
    """A backward of a compiled function shares a gradient with a hook exactly as eager does."""

    def shares(compile_it: bool) -> bool:
        x, kept = torch.ones(3, requires_grad=True), []
        x.register_hook(kept.append)
        run = engine.compile(lambda t: (t * 2).sum(), backend="aot_eager") if compile_it else lambda t: (t * 2).sum()
        run(x).backward()
        return kept[0].data_ptr() == x.grad.data_ptr()

    assert shares(True) == shares(False)


def run_source(source: str, name: str, *, fullgraph: bool = True) -> tuple[Any, Any]:
    """Return what a function of a module's text gives, plain and compiled with no failure."""
    space: dict[str, Any] = {"torch": torch, "__name__": __name__}
    exec(compile(textwrap.dedent(source), "<source>", "exec", dont_inherit=True), space)
    x = torch.arange(3.0)
    with engine.record() as session:
        found = engine.compile(space[name], backend="eager", fullgraph=fullgraph)(x)
    assert not session.failures
    return space[name](x), found


TEMPLATE = """
def f(x):
    n = 3
    t = t"a{n}b{x.shape!r:>{n}}{x}c"
    parts = [p if isinstance(p, str) else (p.value, p.expression, p.conversion, p.format_spec) for p in t]
    return t.strings, t.values, parts, list(t), x + 1
"""


def test_template_strings() -> None:
    """Python builds a template string; the code around it is traced."""
    if not HAS_TEMPLATE_STRINGS:
        with pytest.raises(SyntaxError):
            compile(TEMPLATE, "<source>", "exec")
        return
    expected, found = run_source(TEMPLATE, "f", fullgraph=False)
    assert str(found) == str(expected)


@pytest.mark.parametrize(
    "body",
    [
        "def g(a: int, *b: torch.Tensor, c: 'int' = 1) -> float: return a\n    return g.__annotations__, g(x)",
        "def g(a: int): return a\n    def w(*a): return g(*a)\n    functools.update_wrapper(w, g)\n    return w.__annotations__, w(x)",
    ],
    ids=["function", "wraps"],
)
def test_annotations_of_nested_definitions(body: str) -> None:
    """Annotations of functions defined in traced code are eager mode's."""
    expected, found = run_source(f"import functools\ndef f(x):\n    {body}", "f")
    assert str(found) == str(expected)


NEW_CALLS = {
    "batched": ((3, 12), "list(itertools.batched([x, x + 1, x + 2], 2))"),
    "map": ((3, 14), "list(map(operator.mul, [x, x], [2, 3], strict=True))"),
    "placeholder": ((3, 14), "functools.partial(pair, functools.partial(pair, functools.Placeholder, x)(3.0))(1)"),
    "placeholder outside": ((3, 14), "less_two(x)"),
    "reduce": ((3, 14), "functools.reduce(operator.add, [x], initial=x)"),
    "method": ((3, 14), "[type(a).__name__ for a in Partial().method(x)]"),
    "annotations": ((3, 14), "(annotations(g), x + 1)"),
}
NEW_CALLS_SOURCE = """
import functools, itertools, operator
def pair(*args): return args
less_two = functools.partial(operator.sub, getattr(functools, "Placeholder", 1), 2)
class Partial:
    method = functools.partial(pair, 1)
try:
    def g(a: Later): ...
except NameError:
    def g(a): ...
def annotations(of):
    try:
        return of.__annotations__
    except NameError as error:
        return str(error)
def f(x): return {}
"""


@pytest.mark.parametrize(("since", "call"), NEW_CALLS.values(), ids=NEW_CALLS)
def test_calls_that_new_pythons_have(since: tuple[int, int], call: str) -> None:
    """They are traced where Python has them; elsewhere eager mode decides."""
    source = NEW_CALLS_SOURCE.replace("{}", call)
    if sys.version_info >= since:
        expected, found = run_source(source, "f")
        assert str(found) == str(expected)
        return
    outcomes = []
    for compile_it in (False, True):
        space: dict[str, Any] = {"__name__": __name__}
        exec(compile(source, "<source>", "exec", dont_inherit=True), space)
        function = engine.compile(space["f"], backend="eager") if compile_it else space["f"]
        try:
            outcomes.append(str(function(torch.arange(3.0))))
        except (AttributeError, TypeError) as error:
            outcomes.append(repr(error))
    assert outcomes[0] == outcomes[1]


UNDEFINED = """
def make():
    def f(x, y: Later = 1):
        return x + y
    return f
def later(f):
    try:
        return f.__annotations__
    except NameError as error:
        return str(error)
"""


def test_compile_does_not_evaluate_annotations() -> None:
    """A function whose annotation names something undefined compiles, from Python 3.14 on."""
    space: dict[str, Any] = {}
    exec(compile(UNDEFINED, "<source>", "exec", dont_inherit=True), space)
    if sys.version_info < (3, 14):
        with pytest.raises(NameError):
            space["make"]()
        return
    function = space["make"]()
    compiled = engine.compile(function, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert space["later"](compiled) == space["later"](function) == "name 'Later' is not defined"
    space["Later"] = int
    assert space["later"](compiled) == {"y": int}


SCRIPT = """
import multiprocessing
import torch, engine

def work(x):
    return x.sin() + 1

def in_process(queue):
    queue.put(engine.compile(work, backend="eager")(torch.ones(2)).tolist())

if __name__ == "__main__":
    here = engine.compile(work, backend="eager")(torch.ones(2)).tolist()
    for method in sorted(multiprocessing.get_all_start_methods()):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        child = context.Process(target=in_process, args=(queue,))
        child.start()
        there = queue.get(timeout=120)
        child.join()
        print(method, here == there, child.exitcode)
"""


@pytest.mark.thorough
def test_every_start_method_of_processes(tmp_path: pathlib.Path) -> None:
    """A process compiles whatever way it was started; 3.14 starts them by forkserver."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200, check=False)
    methods = sorted(multiprocessing.get_all_start_methods())
    assert ran.stdout.splitlines() == [f"{method} True 0" for method in methods], ran.stderr
