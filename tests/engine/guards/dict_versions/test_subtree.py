"""One check of many guards below a module agrees with the separate guards.

It agrees whatever is done to the module, and it keeps nothing alive.
"""

from __future__ import annotations

import copy
import gc
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import engine
from engine.api import attach
from engine.guards.codegen import CompiledCheck, compile_check
from engine.guards.dict_versions import subtree
from engine.guards.dict_versions.subtree import SubtreeVersionGuard
from engine.guards.torch_c_helpers import HAS_DICT_VERSIONS
from engine.ir.compiler_protocol import CacheEntry
from engine.runtime.dispatch.compiled_modules import compiled_forward
from engine.runtime.dispatch.dispatcher import dispatcher_state_of

pytestmark = pytest.mark.skipif(not HAS_DICT_VERSIONS, reason="this torch does not tell versions of dictionaries")


class Part(nn.Module):
    """A block with a plain attribute, a tuple, a dictionary, a missing bias and a buffer."""

    scale = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.second = nn.Linear(4, 4, bias=False)
        self.drop = nn.Dropout(0.5)
        self.sizes = (4, 2)
        self.table = {"a": 1, "b": 2}
        self.flag = False
        self.register_buffer("mask", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.second(torch.relu(self.first(self.norm(x))))) * self.mask
        if self.flag:
            x = x + 1
        return x * self.sizes[1] * self.table["a"] * self.scale


class Model(nn.Module):
    """A few blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Part() for _ in range(2)])
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = x + part(x)
        made: torch.Tensor = self.head(x)
        return made


class OwnedModel(Model):
    """A model whose modules refer to it, as their hooks do under FSDP2."""

    def __init__(self) -> None:
        super().__init__()
        for module in self.modules():
            module.__dict__["owner"] = [self]


X = torch.randn(2, 4)


def traced(model: nn.Module) -> tuple[CacheEntry, CompiledCheck]:
    """The entry of a compiled model, its check settled, and the check that asks one by one."""
    engine.reset()
    compiled = engine.compile(model, backend="eager")
    for _ in range(3):
        compiled(X)
    state = dispatcher_state_of(compiled_forward(compiled).__func__)
    assert state is not None
    (entry,) = state.entries
    return entry, compile_check(entry.guards, ("self", "x"), helpers=False)


def subtree_guards(entry: CacheEntry) -> list[SubtreeVersionGuard]:
    """What the entry's check asks at once."""
    return [v for v in entry.check.__globals__.values() if isinstance(v, SubtreeVersionGuard)]


class SubclassedLinear(nn.Linear):
    """Another class that does the same."""


def _hook(module: nn.Module, args: Any, result: Any) -> None:
    """Does nothing."""


def _property(model: Any) -> None:
    vars_of: Any = Part
    vars_of.flag = property(lambda self: True, lambda self, v: None)


def _no_property(model: Model) -> None:
    if "flag" in vars(Part):
        delattr(Part, "flag")


CHANGES: dict[str, Callable[[Any], Any]] = {
    "eval": lambda m: m.eval(),
    "train": lambda m: m.train(),
    "eval of one part": lambda m: m.parts[1].drop.eval(),
    "another attribute": lambda m: setattr(m.parts[0], "flag", True),
    "the attribute back": lambda m: setattr(m.parts[0], "flag", False),
    "an attribute that nobody read": lambda m: setattr(m.parts[1], "unread", random.random()),
    "an equal tuple": lambda m: setattr(m.parts[1], "sizes", tuple(s for s in (4, 2))),
    "another tuple": lambda m: setattr(m.parts[1], "sizes", (4, 3)),
    "an entry of a dictionary": lambda m: m.parts[0].table.update(a=5),
    "an entry back": lambda m: m.parts[0].table.update(a=1),
    "another dtype": lambda m: m.double(),
    "the dtype back": lambda m: m.float(),
    "no gradient": lambda m: m.head.weight.requires_grad_(False),
    "a gradient again": lambda m: m.head.weight.requires_grad_(True),
    "data of another shape": lambda m: setattr(m.head.weight, "data", torch.randn(5, 4)),
    "data of the shape again": lambda m: setattr(m.head.weight, "data", torch.randn(3, 4)),
    "a parameter replaced": lambda m: setattr(m.parts[0].first, "weight", nn.Parameter(torch.randn(4, 4))),
    "a parameter of another shape": lambda m: setattr(m.parts[0].first, "bias", nn.Parameter(torch.randn(1, 4))),
    "the bias back": lambda m: setattr(m.parts[0].first, "bias", nn.Parameter(torch.randn(4))),
    "a bias where none was": lambda m: setattr(m.parts[1].second, "bias", nn.Parameter(torch.randn(4))),
    "no bias again": lambda m: setattr(m.parts[1].second, "bias", None),
    "a parameter that another module has too": lambda m: setattr(m.parts[0].second, "weight", m.parts[0].first.weight),
    "a parameter of its own": lambda m: setattr(m.parts[0].second, "weight", nn.Parameter(torch.randn(4, 4))),
    "a plain tensor as parameter": lambda m: m.parts[1].first._parameters.update(weight=torch.randn(4, 4)),
    "a parameter again": lambda m: m.parts[1].first._parameters.update(weight=nn.Parameter(torch.randn(4, 4))),
    "a buffer replaced": lambda m: setattr(m.parts[1], "mask", torch.zeros(4)),
    "a submodule replaced": lambda m: m.parts.__setitem__(1, Part()),
    "a submodule of another kind": lambda m: setattr(m.parts[0], "drop", nn.Identity()),
    "the submodule back": lambda m: setattr(m.parts[0], "drop", nn.Dropout(0.5)),
    "another class": lambda m: setattr(m.head, "__class__", SubclassedLinear),
    "the class back": lambda m: setattr(m.head, "__class__", nn.Linear),
    "a hook": lambda m: m.parts[1].norm.register_forward_hook(_hook),
    "a pre-hook": lambda m: m.head.register_forward_pre_hook(lambda module, args: None),
    "no hooks": lambda m: [s._forward_hooks.clear() or s._forward_pre_hooks.clear() for s in m.modules()],
    "a longer list": lambda m: m.parts.append(Part()),
    "a shorter list": lambda m: m.parts.__delitem__(-1) if len(m.parts) > 2 else None,
    "an instance forward": lambda m: setattr(m.head, "forward", lambda x: x),
    "no instance forward": lambda m: m.head.__dict__.pop("forward", None),
    "a class attribute": lambda m: setattr(Part, "scale", 3.0),
    "the class attribute back": lambda m: setattr(Part, "scale", 2.0),
    "a property": _property,
    "no property": _no_property,
    "another order of parameters": lambda m: m.head._parameters.update(
        weight=m.head._parameters.pop("weight"), bias=m.head._parameters["bias"]
    ),
    "parameters exchanged": lambda m: m.head._parameters.update(
        weight=m.head._parameters["bias"], bias=m.head._parameters["weight"]
    ),
}


@pytest.fixture(autouse=True)
def _class_as_it_was() -> Any:
    yield
    Part.scale = 2.0
    _no_property(Model())


def agree(entry: CacheEntry, plain: CompiledCheck, model: nn.Module, after: str) -> bool:
    """What both checks say, which must be the same, asked twice since the quick one learns."""
    expected = plain.check((), model, X)
    for _ in range(2):
        assert entry.check((), model, X) is expected, after
    return expected


@pytest.mark.parametrize("model_class", [Model, OwnedModel])
@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_seen(change: str, model_class: Callable[[], Model]) -> None:
    """After any one change the quick check says what checking guard by guard says."""
    model: Any = model_class()
    entry, plain = traced(model)
    assert subtree_guards(entry)
    assert all(s(None if s.root is None else model) for s in subtree_guards(entry))
    CHANGES[change](model)
    agree(entry, plain, model, change)


class Slotted(torch.Tensor):
    """A tensor subclass whose inner tensor is in a slot, like that of a ``DTensor``."""

    __slots__ = ("inner",)
    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, strides=inner.stride())
        made.inner = inner
        return made

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Slotted(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [a.inner if isinstance(a, Slotted) else a for a in args]
        found = func(*plain, **(kwargs or {}))
        return Slotted(found) if isinstance(found, torch.Tensor) else found


SLOT_CHANGES: dict[str, Callable[[Any], Any]] = {
    "another inner tensor": lambda m: setattr(m.parts[0].mask, "inner", torch.ones(4)),
    "another inner dtype": lambda m: setattr(m.parts[0].mask, "inner", torch.ones(4).double()),
    "other inner strides": lambda m: setattr(m.parts[0].mask, "inner", torch.ones(8)[::2]),
    "another inner shape": lambda m: setattr(m.parts[1].mask, "inner", torch.ones(1, 4)),
    "no inner tensor": lambda m: delattr(m.parts[1].mask, "inner"),
    "another subclass instance": lambda m: setattr(m.parts[1], "mask", Slotted(torch.ones(4))),
    "a plain buffer": lambda m: setattr(m.parts[1], "mask", torch.ones(4)),
    "an attribute": lambda m: setattr(m.parts[1], "flag", True),
}


@pytest.mark.parametrize("change", SLOT_CHANGES)
def test_a_change_of_an_inner_tensor_in_a_slot_is_seen(change: str) -> None:
    """The one check, which covers inner tensors in slots, agrees with the guards one by one."""
    model = Model()
    for part in model.parts:
        part.mask = Slotted(torch.ones(4))
    entry, plain = traced(model)
    assert agree(entry, plain, model, "nothing")
    assert all(g(model if g.root else None) for g in subtree_guards(entry))
    SLOT_CHANGES[change](model)
    agree(entry, plain, model, change)


@pytest.mark.parametrize("model_class", [Model, OwnedModel])
def test_changes_in_any_order(model_class: Callable[[], Model]) -> None:
    """Both checks agree over long histories of changes, even of values mutated every call."""
    pick = random.Random(5)
    model: Any = model_class()
    entry, plain = traced(model)
    verdicts = []
    for _ in range(400):
        change = pick.choice([*CHANGES, "an attribute that nobody read", "eval", "train"])
        CHANGES[change](model)
        verdicts.append(agree(entry, plain, model, change))
    fresh = Model()
    assert agree(entry, plain, fresh, "a fresh model") is True or not verdicts[-1]


def test_what_is_written_to_at_every_call_does_not_make_it_slow_for_ever() -> None:
    """A counter in a module's dict ends the version check; its other entries are compared.

    The comparison replaces the version check after one call.
    """
    model: Any = Model()
    entry, plain = traced(model)
    (below,) = (s for s in subtree_guards(entry) if s.root is not None)
    for count in range(8):
        model.parts[0].calls = count
        assert agree(entry, plain, model, "a count")
    model.parts[0].calls = 100
    assert below(model)
    model.parts[0].flag = True
    assert agree(entry, plain, model, "the flag") is False


REPLACEMENTS: dict[str, Callable[[nn.Module], Any]] = {
    "set": lambda m: [
        setattr(part, name, nn.Parameter(value.detach().clone()))
        for part in m.modules()
        for name, value in [*part._parameters.items()]
        if value is not None
    ],
    "loaded": lambda m: m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True),
    "counted": lambda m: [vars(part).update(calls=vars(part).get("calls", 0) + 1) for part in m.modules()],
    "switched": lambda m: [m.eval(), m.train()],
}


@pytest.mark.parametrize("way", REPLACEMENTS)
def test_a_module_written_at_every_call_is_recognized_by_the_second(way: str) -> None:
    """After one call with written attributes, no later call checks guard by guard.

    The same holds for replaced parameters. Other metadata of a replaced parameter is still seen.
    """
    model: Any = Model()
    entry, plain = traced(model)
    (below,) = (s for s in subtree_guards(entry) if s.root is not None)
    REPLACEMENTS[way](model)
    assert entry.check((), model, X)
    for _ in range(3):
        REPLACEMENTS[way](model)
        assert below(model)
    model.parts[1].first.weight = nn.Parameter(torch.randn(4, 4), requires_grad=False)
    assert not below(model)
    assert agree(entry, plain, model, "a parameter without gradient") is False


EQUAL_OBJECTS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "constant": (2, lambda m: setattr(m.parts[0], "sizes", tuple(iter((4, 2))))),
    "module": (3, lambda m: setattr(m, "head", nn.Linear(4, 3))),
    "tree": (3, lambda m: m.parts.__setitem__(1, Part().eval())),
}


@pytest.mark.thorough
@pytest.mark.parametrize("way", EQUAL_OBJECTS)
def test_objects_replaced_by_equal_ones_end_the_recordings(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such an object is checked by its own guards; the module is no longer walked."""
    engine.reset()
    calls, recordings = [0], list[int]()
    collect = subtree.collect_dependencies

    def collect_noted(*args: Any) -> Any:
        recordings.append(calls[-1])
        return collect(*args)

    monkeypatch.setattr(subtree, "collect_dependencies", collect_noted)
    model: Any = Model().eval()
    compiled = engine.compile(model, backend="eager")
    allowed, replace_object = EQUAL_OBJECTS[way]
    for _ in range(8):
        calls.append(len(calls))
        replace_object(model)
        torch.testing.assert_close(compiled(X), model.forward(X))
    state = dispatcher_state_of(compiled_forward(compiled).__func__)
    assert state is not None
    assert len(state.entries) == 1
    assert max(recordings) <= allowed
    model.head = nn.Linear(4, 3).double()
    with pytest.raises(RuntimeError):
        compiled(X)


def test_a_model_that_its_dicts_refer_to_is_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check holds such a model's modules weakly: it is recognized, and freed."""
    engine.reset()
    recordings = list[int]()
    collect = subtree.collect_dependencies
    monkeypatch.setattr(subtree, "collect_dependencies", lambda *a: recordings.append(id(a[1])) or collect(*a))
    model: Any = OwnedModel().eval()
    compiled = engine.compile(model, backend="eager")
    for _ in range(8):
        torch.testing.assert_close(compiled(X), model.forward(X))
    assert recordings.count(id(model)) == 1
    gone = weakref.ref(model)
    del model, compiled
    gc.collect()
    assert gone() is None


def test_a_model_that_its_list_refers_to_is_walked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """No check can be kept without keeping the model: later calls do not search again."""
    engine.reset()
    recordings = list[Any]()
    collect = subtree.collect_dependencies
    monkeypatch.setattr(subtree, "collect_dependencies", lambda *a: recordings.append(a[1]) or collect(*a))
    model: Any = Model().eval()
    model.parts[0].table = [model, 1]
    model.parts[0].forward = lambda x, table=model.parts[0].table: x * table[1] * len(table)
    compiled = engine.compile(model, backend="eager")
    for _ in range(8):
        torch.testing.assert_close(compiled(X), model.forward(X))
    assert recordings.count(model) == 2


def test_several_models_of_one_class() -> None:
    """Each model of the class is remembered by itself."""
    model: Any = Model()
    other: Any = Model()
    entry, plain = traced(model)
    assert agree(entry, plain, other, "another model")
    (below,) = (s for s in subtree_guards(entry) if s.root is not None)
    assert below(model)
    assert below(other)
    other.parts[0].flag = True
    assert agree(entry, plain, other, "its flag") is False
    assert below(model)


def test_nothing_is_kept_alive() -> None:
    """A model, and a parameter that was replaced, are freed as without the check."""
    model: Any = Model()
    entry, plain = traced(model)
    parameter = weakref.ref(model.head.weight)
    model.head.weight = nn.Parameter(torch.randn(3, 4))
    gc.collect()
    assert parameter() is None
    assert agree(entry, plain, model, "a parameter replaced")
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_model_that_its_parts_refer_to_is_freed() -> None:
    """Where what would be kept leads back to the model, nothing is kept."""
    model: Any = Model()
    model.parts[0].__dict__["owner"] = [model]
    entry, plain = traced(model)
    assert agree(entry, plain, model, "nothing")
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_model_compiled_in_place_is_recognized_and_freed() -> None:
    """The compiler that such a model refers to does not count as a way back to the model."""
    engine.reset()
    model: Any = Model()
    attach(model, backend="eager")
    for _ in range(3):
        model(X)
    state = dispatcher_state_of(compiled_forward(model).__func__)
    assert state is not None
    (below,) = (s for s in subtree_guards(state.entries[0]) if s.root is not None)
    assert below(model)
    model.parts[0].flag = True
    assert not below(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_threads_share_a_check() -> None:
    """Calls from several threads with models that differ get each its own answer."""
    models: list[Any] = [Model() for _ in range(4)]
    models[1].parts[0].flag = True
    models[3].eval()
    entry, plain = traced(models[0])
    expected = [plain.check((), m, X) for m in models]
    wrong: list[int] = []

    def ask(index: int) -> None:
        wrong.extend(index for _ in range(200) if entry.check((), models[index], X) is not expected[index])

    threads = [threading.Thread(target=ask, args=(i % 4,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert expected == [True, False, True, False]
    assert not wrong


def test_a_copy_is_another_model() -> None:
    """A deep copy with a change of its own is refused, and the original is not."""
    model: Any = Model()
    entry, plain = traced(model)
    twin: Any = copy.deepcopy(model)
    assert agree(entry, plain, twin, "a copy")
    twin.head.bias = None
    assert agree(entry, plain, twin, "no bias") is False
    assert agree(entry, plain, model, "nothing")


class Settings:
    """What a program reads its numbers from."""


def _named(source: str, **names: Any) -> dict[str, Any]:
    """The globals of a program of its own."""
    space = {"__name__": "program", "torch": torch, **names}
    exec(compile(source, "<program>", "exec"), space)
    return space


@pytest.mark.parametrize("shape", ["tree", "cycle", "container"])
def test_what_globals_name_is_freed(shape: str) -> None:
    """An object that only a global names is freed with that name, and so are its parts.

    The global is one that a compiled function reads.
    """
    whole, part = Settings(), Settings()
    for n in range(40):
        setattr(part, f"k{n}", n)
    whole.part = part  # type: ignore[attr-defined]
    if shape == "cycle":
        part.whole = whole  # type: ignore[attr-defined]
    given = {"whole": whole}
    if shape == "container":
        space = _named(
            "def fn(x):\n    return x * sum(getattr(held['whole'].part, f'k{n}') for n in range(40))", held=given
        )
    else:
        space = _named("def fn(x):\n    return x * sum(getattr(whole.part, f'k{n}') for n in range(40))", whole=whole)
    compiled = engine.compile(space["fn"], backend="eager")
    for _ in range(4):
        assert compiled(torch.ones(1)).item() == sum(range(40))
    part.k3 = 103  # type: ignore[attr-defined]
    assert compiled(torch.ones(1)).item() == sum(range(40)) + 100
    gone = weakref.ref(whole), weakref.ref(part)
    space.pop("whole", None), space.pop("held", None), given.clear()
    del whole, part
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_optimizers_that_globals_name_are_freed() -> None:
    """Though the compiled step is still there."""
    layers = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    space = _named("def step():\n    optimizer.step()", optimizer=torch.optim.Adam(layers.parameters()))
    compiled = engine.compile(space["step"], backend="eager")
    layers(torch.ones(1, 2)).sum().backward()
    for _ in range(4):
        compiled()
    gone = weakref.ref(space["optimizer"])
    del space["optimizer"]
    gc.collect()
    assert gone() is None


_STEP = "def step(x):\n    opt.zero_grad()\n    model(x).sum().backward()\n    opt.step()\n"
_OPTIMIZER_CHANGES: dict[str, Callable[[dict[str, Any], list[str]], Any]] = {
    "rate": lambda names, _: names["opt"].param_groups[0].update(lr=1.0),
    "another optimizer": lambda names, _: names.update(opt=torch.optim.SGD(names["model"].parameters(), lr=2.0)),
    "one parameter less": lambda names, _: names["opt"].param_groups[0]["params"].pop(),
    "another group": lambda names, _: names["opt"].param_groups.__setitem__(0, {**names["opt"].param_groups[0], "lr": 3.0}),
    "hook": lambda names, called: names["opt"].register_step_post_hook(lambda *_: called.append("hook")),
}  # fmt: skip


@pytest.mark.parametrize("change", _OPTIMIZER_CHANGES)
def test_changes_below_an_optimizer_are_seen(change: str) -> None:
    """Changes of an optimizer are noticed: numbers, the object, parameters, groups, hooks."""

    def parameters_after(compiled: bool) -> tuple[list[torch.Tensor], list[str]]:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        called: list[str] = []
        names = _named(_STEP, model=model, opt=torch.optim.SGD(model.parameters(), lr=0.1))
        step = engine.compile(names["step"], backend="eager") if compiled else names["step"]
        for count in range(7):
            names["count"] = count
            if count == 4:
                _OPTIMIZER_CHANGES[change](names, called)
            step(torch.ones(2, 4))
        return list(model.parameters()), called

    expected, found = parameters_after(compiled=False), parameters_after(compiled=True)
    assert found[1] == expected[1]
    torch.testing.assert_close(found[0], expected[0])
