"""Each kind of guard: what it admits, exactly, and what it tells."""

from __future__ import annotations

import collections
import enum
import math
import operator
import re
import types
from typing import Any

import pytest
import sympy
import torch

import engine
from engine.guards.codegen import compile_check
from engine.guards.recompile_reasons import first_guard_failure
from engine.ir.guards.aliasing import (
    DisjointStorage,
    DistinctObjects,
    MutatedStorageCheck,
    SameObject,
    SharedStorage,
)
from engine.ir.guards.base import Guard
from engine.ir.guards.computed_condition import ComputedCondition, ConditionOp, ValueRef
from engine.ir.guards.global_state import GlobalStateMatch
from engine.ir.guards.python_values import (
    CodeMatch,
    DictKeysMatch,
    EqualsMatch,
    HasAttrGuard,
    IdMatch,
    LengthMatch,
    TypeMatch,
)
from engine.ir.guards.symbolic_shapes import SymbolicShapeGuard
from engine.ir.sources.attributes import AttrSource, ModuleHooksSource, ModuleMemberSource
from engine.ir.sources.roots import LocalSource
from engine.torch_private.dispatch import dispatch_keys
from tests.engine.guards.sample_guards import current_global_state_guards, frame_scope, guard_passes, tensor_match

X, Y = LocalSource("x"), LocalSource("y")


def guard_failure(guard: Guard, **values: Any) -> Any:
    """The rejection of these values by this one guard."""
    found = first_guard_failure("0/0", compile_check((guard,), tuple(values)).guards, frame_scope(**values))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("expected", "other"),
    [
        (1, True), (1, 1.0), (True, 1), (0, False), (1.0, 1), (0.0, -0.0), (-0.0, 0.0), (0.0, 0), (1.0, math.nan), (math.nan, 1.0), ("a", b"a"), ("a", "b"),
        ((1, 2), (True, 2)), ((1, 2), [1, 2]), ((0.0,), (-0.0,)), (None, 0), (torch.float32, torch.float64), (torch.device("cpu"), torch.device("meta")),
        (slice(1, 2), slice(1, True)), (complex(0.0, 0.0), complex(0.0, -0.0)), (torch.Size((1, 2)), (1, 2)), (frozenset({1}), frozenset({True})),
    ],
)  # fmt: skip
def test_equality_is_exact(expected: Any, other: Any) -> None:
    """A value of another type, or of another sign or kind of zero, is not equal."""
    assert guard_passes(EqualsMatch(X, expected), x=expected)
    assert not guard_passes(EqualsMatch(X, expected), x=other)


def test_nan_equals_nan() -> None:
    """Code specialized for NaN serves NaN, wherever it came from."""
    assert guard_passes(EqualsMatch(X, math.nan), x=float("nan"))
    assert guard_passes(EqualsMatch(X, (math.nan, 1)), x=(float("nan"), 1))


def test_enum_members_go_by_identity() -> None:
    """An enum member is not its value, nor a member of another enum with equal values."""

    class Color(enum.IntEnum):
        RED = 1

    class Other(enum.IntEnum):
        RED = 1

    assert guard_passes(EqualsMatch(X, Color.RED), x=Color.RED)
    assert not guard_passes(EqualsMatch(X, Color.RED), x=1)
    assert not guard_passes(EqualsMatch(X, Color.RED), x=Other.RED)


def test_identity_is_not_fooled_by_a_reused_id() -> None:
    """The guarded object stays alive, so that no new object can get its id."""
    guard = IdMatch(X, object())
    assert not any(guard_passes(guard, x=object()) for _ in range(1000))


def test_type_is_exact() -> None:
    """A subclass does not pass, nor does another class of the same name, which is said."""

    class Thing:
        pass

    first = Thing

    class Thing:  # type: ignore[no-redef]
        pass

    assert not guard_passes(TypeMatch(X, int), x=True)
    assert not guard_passes(TypeMatch(X, dict), x=collections.OrderedDict())
    assert "another class" in guard_failure(TypeMatch(X, first), x=Thing()).sentence


@pytest.mark.parametrize("value", [[1, 2], (1, 2), {1: 1, 2: 2}, {1, 2}, "ab", collections.deque((1, 2))])
def test_length_of_builtin_containers(value: Any) -> None:
    """Builtin containers have their length, at and away from it."""
    assert guard_passes(LengthMatch(X, 2), x=value)
    assert not guard_passes(LengthMatch(X, 3), x=value)


def test_an_overriding_len_is_not_called() -> None:
    """LengthMatch ignores an overriding __len__; an unknown object has no length.

    A container subclass is measured as its base type.
    """

    class Liar(list[int]):
        def __len__(self) -> int:
            raise AssertionError("user code ran")

    class Other:
        def __len__(self) -> int:
            raise AssertionError("user code ran")

    assert guard_passes(LengthMatch(X, 2), x=Liar((1, 2)))
    assert not guard_passes(LengthMatch(X, 2), x=Other())


def test_dict_keys_and_their_order() -> None:
    """Keys count by type, value and order; the empty dict has none."""
    guard = DictKeysMatch(X, ("a", "b"))
    assert guard_passes(guard, x={"a": 1, "b": 2})
    assert guard_passes(guard, x=collections.OrderedDict(a=1, b=2))
    assert not guard_passes(guard, x={"b": 1, "a": 2})
    assert not guard_passes(guard, x={"a": 1})
    assert not guard_passes(DictKeysMatch(X, (1,)), x={True: 1})
    assert guard_passes(DictKeysMatch(X, ()), x={})


def test_keys_with_a_hostile_eq() -> None:
    """Keys that are objects are compared by identity, without asking them."""

    class Key:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("user code ran")

        def __hash__(self) -> int:
            return 0

    key = Key()
    assert guard_passes(DictKeysMatch(X, (key,)), x={key: 1})
    assert not guard_passes(DictKeysMatch(X, (key,)), x={Key(): 1})


def test_has_attribute_runs_no_property() -> None:
    """An attribute is looked for without reading it."""

    class Thing:
        __slots__ = ("__dict__", "slot")

        @property
        def computed(self) -> int:
            raise AssertionError("user code ran")

        def __getattr__(self, name: str) -> int:
            raise AssertionError("user code ran")

    thing = Thing()
    thing.own = 1
    for name, present in (("own", True), ("computed", True), ("slot", False), ("absent", False), ("__init__", True)):
        assert guard_passes(HasAttrGuard(X, name, present), x=thing)
        assert not guard_passes(HasAttrGuard(X, name, not present), x=thing)


def test_has_attribute_sees_parameters_and_submodules() -> None:
    """What ``nn.Module.__getattr__`` would find counts."""
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert guard_passes(HasAttrGuard(X, "0", True), x=module)
    assert guard_passes(HasAttrGuard(X, "bias", True), x=module[0])
    assert guard_passes(HasAttrGuard(X, "bias", False), x=module)


def test_code_of_a_function() -> None:
    """A function with other code is refused, also when it looks the same."""

    def make() -> Any:
        return lambda: 1

    one, other = make(), lambda: 1
    assert guard_passes(CodeMatch(X, one.__code__, one.__globals__), x=make())
    assert not guard_passes(CodeMatch(X, one.__code__, one.__globals__), x=other)
    assert not guard_passes(CodeMatch(X, one.__code__, one.__globals__), x=len)


def test_a_copy_of_a_function_is_traced_again_only_for_other_globals() -> None:
    """Equal code of one file needs no second trace; the globals that it reads do."""

    def defined(factor: float) -> dict[str, Any]:
        space: dict[str, Any] = {"factor": factor}
        exec(compile("def scale(x):\n    return x * factor", "scale.py", "exec"), space)
        return space

    def apply(x: torch.Tensor, function: Any) -> torch.Tensor:
        return function(x)

    one, other = defined(2.0), defined(5.0)
    copy = types.FunctionType(other["scale"].__code__, one)
    functions = (one["scale"], copy, other["scale"], types.FunctionType(one["scale"].__code__, other))
    with engine.record() as session:
        compiled = engine.compile(apply, backend="eager")
        results = [compiled(torch.ones(1), function).item() for function in functions]
    assert results == [2.0, 2.0, 5.0, 5.0]
    assert len(session.compilations) == 2


def test_same_object_and_not() -> None:
    """Aliasing is guarded both ways."""
    a: list[int] = []
    assert guard_passes(SameObject(X, Y, True), x=a, y=a)
    assert not guard_passes(SameObject(X, Y, True), x=a, y=[])
    assert not guard_passes(SameObject(X, Y, False), x=a, y=a)
    assert (
        guard_failure(SameObject(X, Y, True), x=a, y=[]).sentence
        == "x is a different object than y; the compiled code expects the same object as y."
    )


def test_tensors_sharing_storage_fail() -> None:
    """DisjointStorage fails for views of one storage of any size and names the two tensors.

    Storage overlap among the other tensors does not matter.
    """
    x = torch.zeros(4)
    guard = DisjointStorage(X, (Y, LocalSource("z")))
    assert guard_passes(guard, x=x, y=torch.zeros(4), z=torch.zeros(4))
    assert "x and z" in guard_failure(guard, x=x, y=torch.zeros(4), z=x[2:]).sentence
    other = torch.zeros(4)
    assert guard_passes(guard, x=x, y=other, z=other[2:])


def test_mutated_tensors_sharing_storage_fail_also_after_a_passed_check() -> None:
    """The check of mutated tensors sees another object, address and storage."""
    x, y, z = torch.zeros(4), torch.zeros(4), torch.zeros(4)
    check = MutatedStorageCheck(2)
    assert check(x, y, z)
    assert check(x, y, z)
    assert not check(x, x, z)
    assert not check(x, y, y[2:])
    assert not check(z[2:], y, z)
    assert check(x, y, torch.zeros(4))
    assert check(x, y, z)
    z.set_(y.untyped_storage(), 2, (2,))
    assert not check(x, y, z)
    assert check(x, z[:0].clone(), torch.zeros(0))
    assert not check(x, y, y[:0])


def test_storages_of_tensors_that_are_new_at_each_call_are_checked() -> None:
    """A check that knows which tensors stay sees one that moved, and memory of another."""
    x, y, empty = torch.zeros(4), torch.zeros(4), torch.zeros(8)
    check = MutatedStorageCheck(2)
    for new in (torch.zeros(4), torch.zeros(4), torch.zeros(4)):
        assert check(x, y, new)
    assert not check(x, y, y[2:])
    assert check(x, y, torch.zeros(4))
    for new in (empty[:0], torch.zeros(4), torch.zeros(4), torch.zeros(4)):
        assert check(x, y, new)
    y.set_(x.untyped_storage(), 0, (4,))
    assert not check(x, y, torch.zeros(4))
    assert not check(x, y, torch.zeros(4))
    for other in (torch.zeros(4), torch.zeros(4)):
        assert check(x, other, torch.zeros(4))
        assert check(x, other, empty[2:])
    assert not check(x, x[1:], empty)


def test_new_tensors_that_are_only_read_may_share_a_buffer() -> None:
    """Gradients that are views of one buffer pass; those in a mutated tensor's memory fail."""
    x, y = torch.zeros(4), torch.zeros(4)
    check = MutatedStorageCheck(2)
    for _ in range(3):
        assert check(x, y, *torch.zeros(4).split(2))
    assert not check(x, y, *y.split(2))
    for _ in range(3):
        assert check(x, y, *torch.zeros(4).split(2))
    assert not check(x, y, torch.zeros(4), x[2:])


def test_one_object_in_two_places_fails() -> None:
    """DistinctObjects fails if two are one object, one of them counted, and names the two."""
    x, y = torch.zeros(4), torch.zeros(4)
    guard = DistinctObjects(X, (Y, LocalSource("z")), 3)
    assert guard_passes(guard, x=x, y=y, z=x[2:])
    assert "Y and x are the same object".lower() in guard_failure(guard, x=x, y=x, z=y).sentence.lower()
    assert "z and y are the same object" in guard_failure(guard, x=x, y=y, z=y).sentence.lower()
    assert guard_passes(DistinctObjects(X, guard.others, 1), x=x, y=y, z=y)


def test_several_tensors_that_are_written_to_stand_alone() -> None:
    """One guard checks that no mutated tensor shares storage with any other tensor.

    Tensors that are only read may share storage.
    """
    z, other = LocalSource("z"), LocalSource("other")
    guard = DisjointStorage(X, (Y, z, other), 2)
    x, y, read = torch.zeros(4), torch.zeros(4), torch.zeros(8)
    assert guard_passes(guard, x=x, y=y, z=read[2:], other=read[:4])
    assert "x and y" in guard_failure(guard, x=x, y=x[1:], z=read, other=read).sentence
    assert "y and other" in guard_failure(guard, x=x, y=y, z=read, other=y[2:]).sentence
    assert "y and z" in guard_failure(guard, x=x, y=read[4:], z=read[:6], other=x.clone()).sentence


def test_tensors_are_refused_where_they_see_shared_memory_otherwise() -> None:
    """Views of one storage must start where they did; the sentence says where each starts."""
    x = torch.zeros(8)
    guard = SharedStorage(X, (Y,), (0, 16))
    assert guard_passes(guard, x=x, y=x[4:])
    assert "y from byte 8" in guard_failure(guard, x=x, y=x[2:]).sentence
    assert "y in another storage" in guard_failure(guard, x=x, y=torch.zeros(8)).sentence
    assert not guard_passes(guard, x=x[1:], y=x[5:])


def test_computed_condition_is_evaluated_again() -> None:
    """ComputedCondition runs on copies and fails on another outcome or on an error."""
    steps = (
        ConditionOp("add_", (ValueRef(0), 1)),
        ConditionOp("item", (ValueRef(0),)),
        ConditionOp(operator.gt, (ValueRef(3), ValueRef(1))),
    )
    guard = ComputedCondition(X, (Y,), steps, expected=True)
    x = torch.tensor(2.0)
    assert guard_passes(guard, x=x, y=2.5)
    assert x.item() == 2
    assert "x, y was true" in guard_failure(guard, x=x, y=3.0).sentence
    assert "condition cannot be evaluated" in guard_failure(guard, x=x, y="3").sentence


FACETS = {
    "type": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "dispatch keys": torch._neg_view,
    "dtype": lambda x: x.double(),
    "device": lambda x: x.to("meta"),
    "requires_grad": lambda x: x.clone().requires_grad_(),
    "ndim": lambda x: x[None],
    "shape": lambda x: x[:2],
    "stride": lambda x: x.t().contiguous().t(),
}


@pytest.mark.parametrize("facet", FACETS)
def test_each_tensor_property(facet: str) -> None:
    """A tensor that differs in one facet is refused, and that facet is named."""
    x = torch.zeros(4, 16)
    found = guard_failure(tensor_match(X, x), x=FACETS[facet](x))
    assert found.kind == facet
    if facet == "dispatch keys":
        assert found.sentence == "x is a negated view; the compiled code was specialized for an ordinary tensor."
    assert guard_passes(tensor_match(X, x), x=x.clone())


def test_symbolic_dimensions_are_free() -> None:
    """A dimension that is a symbol admits any size; the others stay fixed."""
    guard = tensor_match(X, torch.zeros(4, 16), symbols=(0,))
    assert guard_passes(guard, x=torch.zeros(7, 16))
    assert not guard_passes(guard, x=torch.zeros(7, 17))


def test_a_changed_size_says_which_dimension_and_what_to_do() -> None:
    """A size guard failure names sizes and dimension; its first fix is to mark it dynamic.

    Sizes 0 and 1 have no such fix.
    """
    found = guard_failure(tensor_match(X, torch.zeros(4, 16)), x=torch.zeros(5, 16))
    assert found.sentence == "x has size 5 in dimension 0; the compiled code was specialized for size 4."
    assert found.fixes[0].code == "engine.mark_dynamic(x, 0)"
    assert "0 and 1" in guard_failure(tensor_match(X, torch.zeros(4, 16)), x=torch.zeros(1, 16)).fixes[0].text


def test_subclass_properties_run_no_user_code() -> None:
    """A tensor subclass is measured past its overrides."""

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError("user code ran")

        @property
        def dtype(self) -> Any:
            raise AssertionError("user code ran")

    with torch._C.DisableTorchFunctionSubclass():
        loud = torch.zeros(4, 16).as_subclass(Loud)
        plain = tensor_match(X, torch.zeros(4, 16))
    guard = type(plain)(
        X,
        Loud,
        plain.dtype,
        plain.device,
        plain.layout,
        False,
        plain.sizes,
        plain.strides,
        str(dispatch_keys(loud)),
    )
    assert guard_passes(guard, x=loud)


STATES = {
    "grad_mode": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "torch_function_modes": lambda: torch.device("meta"),
    "functorch": None,
    "default_dtype": None,
    "deterministic": None,
}


def test_global_state() -> None:
    """Each context that changes what code means is refused, and admitted again after it."""
    check = compile_check((*current_global_state_guards(), tensor_match(X, torch.zeros(2))), ("x",)).check
    x = torch.zeros(2)
    assert check((), x)
    for enter in STATES.values():
        if enter is not None:
            with enter():
                assert not check((), x)
    assert check((), x)
    torch.set_default_dtype(torch.float64)
    try:
        assert not check((), x)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        assert not check((), x)
    finally:
        torch.use_deterministic_algorithms(False)
    seen = []
    torch.vmap(lambda v: (seen.append(check((), x)), v)[1])(torch.zeros(3))
    assert seen == [False]


def test_global_state_in_words() -> None:
    """The sentence says which state, how it is and how it was."""
    guard = next(g for g in current_global_state_guards() if g.state_name == "grad_mode")
    with torch.no_grad():
        found = guard_failure(guard, x=1)
    assert (found.kind, found.expected, found.actual) == ("grad mode", "on", "off")
    assert found.sentence == "Grad mode is off; this entry was compiled with on."


def test_every_state_is_offered_to_the_tracer() -> None:
    """The tracer gets one guard a state, all of which hold now."""
    guards = current_global_state_guards()
    assert len({g.state_name for g in guards}) == len(guards) >= 10
    assert all(g.test(None) for g in guards)
    assert isinstance(guards[0], GlobalStateMatch)


def test_shape_relations() -> None:
    """Relations over sizes and ints hold where sympy says so.

    The guard failure says where each symbol is read.
    """
    s, t = sympy.Symbol("s0", integer=True), sympy.Symbol("s1", integer=True)
    guard = SymbolicShapeGuard(X, sympy.Eq(s, 2 * t), ((s, X, 0), (t, Y, -1)))
    assert guard_passes(guard, x=torch.zeros(8, 3), y=4)
    assert not guard_passes(guard, x=torch.zeros(8, 3), y=5)
    assert not guard_passes(guard, x=torch.zeros(8, 3), y=4.0 + 1)
    found = guard_failure(guard, x=torch.zeros(8, 3), y=5)
    assert (
        found.sentence
        == "The compiled code requires s0 == (2*s1) (s0 is x.shape[0], s1 is y); in this call s0 = 8, s1 = 5."
    )


def test_a_value_that_is_gone() -> None:
    """A missing key or attribute is a refusal with words of its own, not an error."""
    guard = EqualsMatch(AttrSource(ModuleMemberSource(X, "_modules", "a"), "training"), True)
    found = guard_failure(guard, x=torch.nn.Linear(2, 2))
    assert found.sentence == "x.a.training is missing: no 'a'; the compiled code expects equals True."


def test_missing_values_of_parameters_in_place_of_none() -> None:
    """A bias that was None and is now a parameter is refused."""
    guard = IdMatch(ModuleMemberSource(X, "_parameters", "bias"), None)
    assert guard_passes(guard, x=torch.nn.Linear(2, 2, bias=False))
    assert not guard_passes(guard, x=torch.nn.Linear(2, 2))


def test_a_module_without_hooks() -> None:
    """Code traced without hooks is refused as soon as the module has one of any kind."""
    guard = LengthMatch(ModuleHooksSource(X), 0)
    module = torch.nn.Linear(2, 2)
    assert guard_passes(guard, x=module)
    handle = module.register_forward_pre_hook(lambda module, args: None)
    assert not guard_passes(guard, x=module)
    handle.remove()
    assert guard_passes(guard, x=module)
    module.register_full_backward_hook(lambda module, given, made: None)
    assert not guard_passes(guard, x=module)


def test_keys_that_look_alike() -> None:
    """Objects as keys that print the same are told apart in the message."""

    class Key:
        pass

    assert guard_failure(DictKeysMatch(X, (Key(),)), x={Key(): 1}).actual == "[Key object] (other objects)"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("shares", [(False, True), (True, False)])
def test_requires_grad_on_a_base_recompiles_for_a_view_of_it(backend: str, shares: tuple[bool, bool]) -> None:
    """``requires_grad_`` reaches views, so inputs that share memory need another graph."""

    def flag(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        b.requires_grad_()
        return a.sum(0), b

    engine.reset()
    compiled = engine.compile(flag, backend=backend)
    for is_view in shares:
        for run in (flag, compiled):
            base = torch.ones(4)
            total, _ = run(base.view(-1) if is_view else base.clone(), base)
            assert total.requires_grad is is_view


def _set_fp16_reduction(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = allowed


def _raise_for_nondeterministic(raises: bool) -> None:
    torch.use_deterministic_algorithms(True, warn_only=not raises)


@pytest.mark.parametrize(
    ("change", "first", "second"),
    [
        (torch.set_num_threads, 2, 1),
        (torch.set_float32_matmul_precision, "highest", "medium"),
        (_set_fp16_reduction, True, False),
        (_raise_for_nondeterministic, False, True),
    ],
    ids=["threads", "matmul precision", "fp16 reduction", "warn only"],
)
@pytest.mark.filterwarnings("ignore:put_ does not have")
def test_a_setting_that_aten_reads_needs_no_guard(change: Any, first: Any, second: Any) -> None:
    """A cache hit after the change has eager's result or error."""

    def place(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).put_(torch.tensor([0, 1]), torch.ones(2))

    compiled, x, outcomes = engine.compile(place, backend="aot_eager"), torch.randn(3, 3), []
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        change(first)
        assert torch.equal(compiled(x), place(x))
        change(second)
        with engine.record() as session:
            for run in (place, compiled):
                try:
                    outcomes.append(run(x).tolist())
                except RuntimeError as error:
                    outcomes.append(str(error))
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(False)
        _set_fp16_reduction(True)
    assert outcomes[0] == outcomes[1]
    assert isinstance(outcomes[0], str) == (change is _raise_for_nondeterministic)
    assert not session.compilations


def test_recorded_conditions_have_no_names_of_generated_code() -> None:
    """Sizes, numbers, values and keys read as the user would write them."""

    def scaled(x: torch.Tensor, y: torch.Tensor, k: float, options: dict[str, int]) -> torch.Tensor:
        return torch.cat([x, y]).view(2, -1) * (k if k > 1 else 1.0) * options["a"]

    with engine.record() as session:
        run = engine.compile(scaled, dynamic=True, backend="eager")
        run(torch.ones(4), torch.ones(6), 2.5, {"a": 2})
    guards = session.compilations[0].guards
    assert guards is not None
    texts = {g.code for g in guards.guards}
    assert {"list(options) == ['a']", "k > 1.0", "y.device == cpu", "x.size(0) >= 2"} <= texts
    assert not any(re.search(r"size_at|same_?|relation\(|_\d\b", text) for text in texts)
    with engine.record() as session:
        engine.compile(scaled, dynamic=False, backend="eager")(torch.ones(4), torch.ones(6), -0.0, {"a": 2})
    assert session.compilations[0].guards is not None
    assert all(g.span is None for g in guards.guards if g.source == "torch")  # no line reads torch's state
    assert "k == -0.0" in {g.code for g in session.compilations[0].guards.guards}
