"""The generated check: its text, its names, its safety."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import sympy
import torch

from engine.guards.codegen import compile_check
from engine.guards.explain import explain
from engine.guards.to_records import guards_record
from engine.guards.torch_c_helpers import HAS_C_HELPERS
from engine.ir.guards.base import Guard
from engine.ir.guards.python_values import DictKeysMatch, EqualsMatch, LengthMatch, TypeMatch
from engine.ir.guards.symbolic_shapes import SymbolicShapeGuard
from engine.ir.sources.attributes import AttrSource, ModuleMemberSource
from engine.ir.sources.base import GlobalsNamespace, Source
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.roots import ClosureSource, ConstantSource, GlobalSource, LocalSource
from tests.engine.guards.sample_guards import current_global_state_guards, frame_scope, tensor_match, two_tensors

X = LocalSource("x")


def test_shared_prefixes_are_read_once() -> None:
    """A value that several guards read through is read into a local."""
    base = AttrSource(X, "a")
    text = compile_check((EqualsMatch(AttrSource(base, "b"), 1), EqualsMatch(AttrSource(base, "c"), 2)), ("x",)).text
    assert text.count("x.a") == 1


@pytest.mark.parametrize("helpers", [True, False])
def test_each_size_is_read_once(helpers: bool) -> None:
    """Relations read each size once, as an attribute where no mode can watch the read."""
    rows, columns = sympy.symbols("s0 s1", integer=True)
    where = ((rows, X, 0), (columns, X, 1))
    tensor = tensor_match(X, torch.zeros(4, 3), symbols=(0, 1))
    relations = (
        SymbolicShapeGuard(X, rows >= 2, where),
        SymbolicShapeGuard(X, sympy.Ne(rows, columns), where),
        SymbolicShapeGuard(X, columns >= 3, where),
    )
    watched = compile_check((tensor, *relations), ("x",), helpers=helpers).text
    compiled = compile_check((*current_global_state_guards(), tensor, *relations), ("x",), helpers=helpers)
    assert [watched.count(f"size_at(x, {d})") for d in (0, 1)] == [1, 1]
    assert [compiled.text.count(f"x.shape[{d}]") for d in (0, 1)] == [1, 1]
    assert [compiled.check((), torch.zeros(shape)) for shape in ((5, 3), (1, 3), (3, 3), (2, 2))] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "name", ["type", "len", "int", "Exception", "check", "_1", "same", "__cells__", "one_by_one", "Tensor", ".0", "G"]
)
def test_parameter_names_hide_nothing(name: str) -> None:
    """A parameter may be called like anything that the generated text uses."""
    origin = LocalSource(name)
    guards = (
        *current_global_state_guards(),
        TypeMatch(origin, list),
        LengthMatch(origin, 2),
        EqualsMatch(GetItemSource(origin, 0), 1),
        tensor_match(GetItemSource(origin, 1), torch.zeros(2)),
        EqualsMatch(ClosureSource("n", 0), 3),
    )
    n = 3
    cells = (lambda: n).__closure__
    for helpers in (True, False):
        check = compile_check(guards, (name,), helpers=helpers).check
        for _ in range(3):
            assert check(cells, [1, torch.zeros(2)])
            assert not check(cells, [2, torch.zeros(2)])
            assert not check(cells, [1, torch.zeros(3)])


def test_constant_dicts_are_measured_without_a_python_call() -> None:
    """The type of a table that compiled code references needs no check at each call."""
    hooks = OrderedDict[int, int]()
    hooks[1] = 2
    source = ConstantSource(hooks, "hooks")
    compiled = compile_check((LengthMatch(source, 1),), ("x",))
    assert "builtin_len" not in compiled.text
    assert compiled.check((), 0)
    assert not compile_check((LengthMatch(source, 0),), ("x",)).check((), 0)


def test_globals_are_read_from_their_own_module() -> None:
    """A global is looked up when the check runs."""
    space = {"n": 1}
    check = compile_check((EqualsMatch(GlobalSource("n", GlobalsNamespace(space, "m")), 1),), ("x",)).check
    assert check((), 0)
    space["n"] = 2
    assert not check((), 0)
    del space["n"]
    assert not check((), 0)


def test_an_empty_cell_is_a_refusal() -> None:
    """A closure cell with nothing in it is no error."""

    def make() -> Any:
        if False:
            n = 1
        return lambda: n

    check = compile_check((EqualsMatch(ClosureSource("n", 0), 1),), ()).check
    assert check(make().__closure__) is False


def test_no_guards_admit_all() -> None:
    """A check with nothing to check says yes."""
    assert compile_check((), ("x",)).check((), 1) is True


def test_the_text_is_the_program() -> None:
    """The text names each batch of tensors and is what runs."""
    check = compile_check(two_tensors(), ("x", "y"))
    compile(check.text, "t", "exec")
    assert "(x, y)" in check.text


@pytest.mark.skipif(not HAS_C_HELPERS, reason="this torch has no C helpers")
def test_one_tensor_in_two_places_is_admitted() -> None:
    """The check accepts one tensor passed twice, although the C helper rejects it.

    No guard forbids a tensor that is passed twice.
    """
    check = compile_check(two_tensors(), ("x", "y")).check
    x = torch.zeros(4, 16)
    assert check((), torch.zeros(4, 16), torch.zeros(4, 16))
    for _ in range(6):
        assert check((), x, x)
        assert check((), x, torch.zeros(4, 16))


def test_another_thread_count_is_admitted() -> None:
    """What the C helper compares beyond the guards does not refuse a call."""
    guards = tuple(g for g in two_tensors() if getattr(g, "state_name", "") != "threads")
    check = compile_check(guards, ("x", "y")).check
    x, y = torch.zeros(4, 16), torch.zeros(4, 16)
    assert check((), x, y)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert check((), x, y)
    finally:
        torch.set_num_threads(threads)


def test_inference_tensors_and_mode() -> None:
    """A check learned in inference mode tells inference tensors from ordinary ones."""
    plain = torch.zeros(4, 16)
    with torch.inference_mode():
        made = torch.zeros(4, 16)
        check = compile_check((*current_global_state_guards(), tensor_match(X, plain)), ("x",)).check
        for _ in range(3):
            assert check((), plain)
            assert not check((), made)
    assert not check((), plain)


def module_guards(module: torch.nn.Module, origin: Source) -> list[Guard]:
    """Guards as tracing a whole module makes them."""
    guards: list[Guard] = [
        TypeMatch(origin, type(module)),
        EqualsMatch(AttrSource(origin, "training"), module.training),
    ]
    for name, parameter in module._parameters.items():
        if parameter is not None:
            guards.append(tensor_match(ModuleMemberSource(origin, "_parameters", name), parameter))
    for name, child in module._modules.items():
        if child is not None:
            guards += module_guards(child, ModuleMemberSource(origin, "_modules", name))
    return guards


def test_a_module_with_many_parameters() -> None:
    """Of 148 parameters and their modules each is seen to change."""
    module = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(74)))
    check = compile_check((*current_global_state_guards(), *module_guards(module, X)), ("x",)).check
    assert check((), module)
    module[3].eval()
    assert not check((), module)
    module[3].train()
    assert check((), module)
    module[70].bias.requires_grad_(False)
    assert not check((), module)


@pytest.mark.thorough
def test_ten_thousand_guards_are_explained() -> None:
    """Each of 10,000 guards gets its verdict."""
    guards = tuple(EqualsMatch(GetItemSource(GetItemSource(X, i // 100), i % 100), i) for i in range(10_000))
    check = compile_check(guards, ("x",))
    values = [[100 * i + j for j in range(100)] for i in range(100)]
    assert [r.verdict for r in explain(check.guards, frame_scope(x=values))] == ["pass"] * 10_000
    values[50][0] = -1
    verdicts = [r.verdict for r in explain(check.guards, frame_scope(x=values))]
    assert (verdicts.count("fail"), verdicts.count("pass"), verdicts[-1]) == (1, 5000, "would pass")


def test_records_of_guards() -> None:
    """Each guard is recorded with source, path, condition and reason; ids follow check order."""
    guards = (TypeMatch(X, dict), DictKeysMatch(X, ("a",)), EqualsMatch(GetItemSource(X, "a"), 2))
    check = compile_check(guards, ("x",))
    told = guards_record(check.guards, check.text)
    assert [g.id for g in told.guards] == ["g0", "g1", "g2"]
    assert told.guards[2].path == ("L['x']", "['a']")
    assert told.guards[2].code == "type(x['a']) is int and x['a'] == 2"
    assert told.check_text == check.text


def test_past_a_failed_guard_no_user_code_runs() -> None:
    """Guards behind a failed type guard run no user code or are not reached.

    A read through a value of the wrong type bypasses the value's own methods, or does not happen.
    """

    class Loud:
        @property
        def a(self) -> int:
            raise AssertionError("user code ran")

        def __getattr__(self, name: str) -> int:
            raise AssertionError("user code ran")

        def __getitem__(self, key: object) -> int:
            raise AssertionError("user code ran")

    class Quiet:
        a = 1

    guards = compile_check(
        (
            TypeMatch(X, Quiet),
            EqualsMatch(AttrSource(X, "a"), 1),
            EqualsMatch(GetItemSource(X, 0), 1),
            EqualsMatch(AttrSource(X, "b"), 1),
        ),
        ("x",),
    ).guards
    verdicts = [r.verdict for r in explain(guards, frame_scope(x=Loud()))]
    assert verdicts == ["fail", "not reached", "not reached", "would fail"]
