"""Compiled modules behave as the originals."""

from __future__ import annotations

import collections
import copy
import functools
import gc
import inspect
import io
import pickle
import weakref
from typing import Any, ClassVar

import pytest
import torch

import engine
from engine.errors import BadArgument
from engine.ir.unwrap_compiled import unwrap_compiled
from engine.runtime.dispatch.compiled_modules import attach, compiled_module, detach
from engine.runtime.dispatch.dispatcher import dispatcher_state_of
from tests.engine.runtime.fake_compiler import FakeCompiler


class Net(torch.nn.Module):
    """A small module with a parameter, a buffer and state that its forward writes."""

    registered: ClassVar[list[type]] = []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        Net.registered.append(cls)

    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.scale = scale
        self.calls = 0

    def forward(self, x: torch.Tensor, *, twice: bool = False) -> torch.Tensor:
        """Scale what the linear gives."""
        assert type(self) is Net
        self.calls += 1
        return self.linear(x) * self.scale * (2 if twice else 1)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Call itself."""
        return self(x)


class Legacy(Net):
    """A subclass with slots and a call through super."""

    def forward(self, x: torch.Tensor, *, twice: bool = False) -> torch.Tensor:
        """Go through the base."""
        self.calls += 1
        return self.linear(x)


X = torch.ones(2, 3)


def test_it_is_a_module_of_the_same_class() -> None:
    """A compiled module keeps the class, name, parameters, keys and signature of the original.

    The user's class sees no new subclass through ``__init_subclass__``.
    """
    net = Net()
    before = len(Net.registered)
    twin = compiled_module(net, FakeCompiler())
    assert isinstance(twin, Net)
    assert (type(twin).__name__, type(twin).__module__) == ("Net", __name__)
    assert all(a is b for a, b in zip(twin.parameters(), net.parameters(), strict=True))
    assert list(twin.state_dict()) == list(net.state_dict())
    assert inspect.signature(twin.forward) == inspect.signature(net.forward)
    assert inspect.signature(twin) == inspect.signature(net)
    assert len(Net.registered) == before
    assert repr(twin) == repr(net)
    assert unwrap_compiled(twin) is net
    assert unwrap_compiled(twin.forward) == net.forward


def test_tables_keyed_by_a_module_find_it_by_its_compiled_form() -> None:
    """A compiled module equals the original alone, unless the class compares by itself."""

    class Sized(torch.nn.Linear):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Sized) and self.in_features == other.in_features

        __hash__ = torch.nn.Linear.__hash__

    module = torch.nn.Linear(2, 2)
    compiled = engine.compile(module, backend="eager")
    assert {module: "name"}[compiled] == "name"
    assert compiled == module == compiled != torch.nn.Linear(2, 2)
    assert engine.compile(Sized(2, 2), backend="eager") == Sized(2, 3)


def test_a_traced_function_tells_a_compiled_module_from_its_original() -> None:
    """Identity is eager's; the compiled module that is returned is that object."""
    module = torch.nn.Linear(3, 3)
    compiled = engine.compile(module, backend="eager")
    use = engine.compile(lambda x: (compiled(x), compiled is module, compiled is compiled, compiled), backend="eager")
    _, is_module, is_itself, returned = use(X)
    assert (is_module, is_itself) == (False, True)
    assert returned is compiled


def test_calls_and_forward_are_compiled() -> None:
    """Calling it, its forward, and its own methods that call it, all dispatch."""
    compiler = FakeCompiler()
    net = Net()
    twin = compiled_module(net, compiler)
    expected = net(X)
    for result in (twin(X), twin.forward(X), twin.predict(X)):
        assert torch.equal(result, expected)
    assert torch.equal(twin(X, twice=True), expected * 2)
    assert net.calls == twin.calls == 5
    assert compiler.names == ["forward", "forward"]


def test_state_is_shared_both_ways() -> None:
    """train, eval, to, attribute writes, new submodules and loaded weights show on both."""
    net = Net()
    twin = compiled_module(net, FakeCompiler())
    twin.eval()
    assert not net.training
    twin.scale = 5.0
    assert net.scale == 5.0
    net.extra = torch.nn.Linear(1, 1)
    assert twin.extra is net.extra
    del twin.extra
    assert not hasattr(net, "extra")
    assert twin.double() is twin
    assert net.linear.weight.dtype is torch.float64
    twin.load_state_dict({k: torch.zeros_like(v) for k, v in net.state_dict().items()})
    assert net.linear.weight.eq(0).all()
    with pytest.raises(AttributeError, match="absent"):
        twin.absent  # noqa: B018


def test_hooks_run() -> None:
    """Forward hooks and pre-hooks of either module run around the compiled forward.

    They receive its values.
    """
    net = Net()
    twin = compiled_module(net, FakeCompiler())
    plain = net(X)
    seen = []
    net.register_forward_pre_hook(lambda module, args: seen.append("before"))
    twin.register_forward_hook(lambda module, args, output: output + 1)
    assert torch.equal(twin(X), plain + 1)
    assert seen == ["before"]


def test_deep_copies_are_compiled_and_apart() -> None:
    """A deep copy dispatches, has parameters of its own, and keeps tied ones tied."""
    compiler = FakeCompiler()
    net = Net()
    net.tied = net.linear
    twin = compiled_module(net, compiler)
    other = copy.deepcopy(twin)
    assert isinstance(other, Net)
    assert other.tied is other.linear
    assert other.linear.weight is not net.linear.weight
    assert torch.equal(other(X), net(X))
    assert compiler.names == ["forward"]
    other.scale = 9.0
    assert net.scale == 2.0


def test_pickles_are_the_originals() -> None:
    """A pickle opens as the user's class, with or without this package."""
    net = Net()
    twin = compiled_module(net, FakeCompiler())
    loaded = pickle.loads(pickle.dumps(twin))
    assert type(loaded) is Net
    assert torch.equal(loaded(X), net(X))
    buffer = io.BytesIO()
    torch.save(twin, buffer)
    buffer.seek(0)
    assert type(torch.load(buffer, weights_only=False)) is Net


def test_a_forward_put_on_the_instance_is_used() -> None:
    """``m.forward = f`` replaces the forward on both, and deleting it brings the class's back."""
    net = Net()
    twin = compiled_module(net, FakeCompiler())
    plain = net(X)
    twin.forward = functools.partial(lambda x, y: x + y, torch.ones(()))
    assert torch.equal(twin(X), X + 1)
    assert torch.equal(net(X), X + 1)
    del twin.forward
    assert torch.equal(twin(X), plain)


@pytest.mark.thorough
def test_a_forward_that_is_exchanged_for_a_call_compiles_once() -> None:
    """A trainer puts its own forward on the module for a call, and the old one back inside it."""
    net = Net()
    twin = engine.compile(net, backend="eager")

    def call(other: Any) -> torch.Tensor:
        old = twin.forward

        def redirected(x: torch.Tensor) -> Any:
            twin.forward = old
            return other(x)

        twin.forward = redirected
        return twin(X)  # type: ignore[no-any-return]

    with engine.record() as session:
        results = [call(torch.sin) for _ in range(4)]
    assert all(torch.equal(r, X.sin()) for r in results)
    assert torch.equal(twin(X), net(X))
    assert len(session.compilations) == 1


def test_as_a_part_of_another_module() -> None:
    """A compiled module works as a submodule: parameters count once, under their usual names."""
    net = Net()
    outer = torch.nn.Sequential(compiled_module(net, FakeCompiler()))
    assert list(outer.state_dict()) == [f"0.{k}" for k in net.state_dict()]
    assert torch.equal(outer(X), net(X))


def test_a_scripted_module_is_refused() -> None:
    """A TorchScript module has no Python forward: one sentence says so."""
    with pytest.raises(BadArgument, match="TorchScript"):
        compiled_module(torch.jit.trace(torch.nn.Linear(3, 3), X), FakeCompiler())


def test_training_through_it() -> None:
    """Gradients reach the shared parameters."""
    net = Net()
    compiled_module(net, FakeCompiler())(X).sum().backward()
    assert net.linear.weight.grad is not None


def test_attach_and_detach() -> None:
    """A module compiled in place keeps identity, type, state_dict and pickle.

    Its hooks run, and detaching undoes the compilation.
    """
    compiler = FakeCompiler()
    net = Net()
    plain = net(X)
    keys = list(net.state_dict())
    attach(net, compiler)
    assert type(net) is Net
    assert list(net.state_dict()) == keys
    assert torch.equal(net(X), plain)
    assert compiler.names == ["forward"]
    handle = net.register_forward_hook(lambda module, args, output: (module is net, output))
    found = net(X)
    assert found[0] is True
    assert torch.equal(found[1], plain)
    handle.remove()
    assert type(pickle.loads(pickle.dumps(net))) is Net
    assert torch.equal(copy.deepcopy(net)(X), plain)
    detach(net)
    assert torch.equal(net(X), plain)
    assert "_compiled_call_impl" not in net.__dict__
    detach(net)


def test_attach_respects_torchs_own_compile() -> None:
    """A module that torch's ``compile()`` holds is not taken over."""
    net = Net()
    net.compile(backend="eager")
    with pytest.raises(BadArgument, match="already compiled"):
        attach(net, FakeCompiler())


def test_modules_die() -> None:
    """Neither way of compiling keeps a module alive."""
    compiler = FakeCompiler()
    net, other = Net(), Net()
    gone = [weakref.ref(net), weakref.ref(other)]
    twin = compiled_module(net, compiler)
    attach(other, compiler)
    twin(X)
    other(X)
    compiler.requests.clear()
    del net, other, twin
    gc.collect()
    assert [r() for r in gone] == [None, None]


def test_twins_of_subclasses_and_state_behind_the_forward() -> None:
    """A subclass has a twin class of its own, and its dispatcher can be inspected."""
    legacy = Legacy()
    twin = compiled_module(legacy, FakeCompiler())
    assert isinstance(twin, Legacy)
    assert torch.equal(twin(X), legacy.linear(X))
    assert dispatcher_state_of(twin.forward.__func__) is not None


def test_a_lazy_module_takes_its_sizes_through_the_twin() -> None:
    """The first call of a compiled lazy module initializes its parameters.

    The original and the compiled module then have the class that the lazy one becomes.
    """
    for cls, arguments, x in (
        (torch.nn.LazyLinear, (3,), torch.ones(2, 4)),
        (torch.nn.LazyConv2d, (3, 2), torch.ones(1, 2, 4, 4)),
        (torch.nn.LazyBatchNorm1d, (), torch.ones(2, 4)),
    ):
        plain = cls(*arguments)
        twin = engine.compile(plain, backend="eager")
        twin(x)
        assert type(plain) is cls.cls_to_become
        assert isinstance(twin, cls.cls_to_become)
        assert unwrap_compiled(twin) is plain
        assert torch.equal(twin.eval()(x), plain(x))


def test_a_lazy_module_inside_is_traced_with_its_sizes() -> None:
    """Lazy layers are initialized during tracing, in one graph, with eager's random numbers."""

    def made() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.ReLU(), torch.nn.LazyLinear(2))

    plain, net = made(), made()
    torch.manual_seed(1)
    expected = plain(X)
    torch.manual_seed(1)
    with engine.expect(graphs=1, breaks=0):
        found = engine.compile(net, backend="eager")(X)
    assert torch.equal(found, expected)


def test_what_a_method_makes_of_its_own_class_is_plain() -> None:
    """``self.__class__(...)`` in a compiled module makes a module of the user's class.

    An example is a slice of a Sequential.
    """
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    part = engine.compile(net, backend="eager")[:2]
    assert type(part) is torch.nn.Sequential
    assert torch.equal(part(X), net[:2](X))


def test_hooks_on_all_modules() -> None:
    """Hooks around all modules run in compiled code, and are noticed when they come and go."""
    net = Net()
    twin = engine.compile(net, backend="eager")
    before = twin(X)
    seen: list[str] = []
    handles = [
        torch.nn.modules.module.register_module_forward_pre_hook(
            lambda module, args: seen.append(type(module).__name__)
        ),
        torch.nn.modules.module.register_module_forward_hook(lambda module, args, output: output * 2),
    ]
    try:
        doubled = twin(X)
        expected = net(X)
    finally:
        for handle in handles:
            handle.remove()
    assert seen == ["Net", "Linear"] * 2
    assert torch.equal(doubled, expected)
    assert torch.equal(twin(X), before)


def test_a_class_of_modules_is_compiled_as_a_decorator() -> None:
    """Instances of a decorated class run its compiled forward; the class itself is unchanged.

    This includes calls through ``super()``.
    """

    @engine.compile(backend="eager")
    class Doubling(torch.nn.Module):
        """Doubles what a layer gives."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Twice the layer."""
            return self.linear(x) * 2

    class More(Doubling):
        """Adds one."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """One more than the base."""
            return super().forward(x) + 1

    net, more = Doubling(), More()
    with engine.expect(graphs=3, breaks=0):
        assert torch.equal(net(X), net.linear(X) * 2)
        assert torch.equal(more(X), more.linear(X) * 2 + 1)
        assert torch.equal(engine.compile(more, backend="eager")(X), more(X))
    assert isinstance(net, Doubling)


def test_containers_store_the_compiled_module() -> None:
    """Traced code that stores a compiled module stores it itself, not its original."""
    module = engine.compile(torch.nn.Linear(3, 3), backend="eager")
    stored: list[Any] = [None]
    queue: collections.deque[Any] = collections.deque()
    members: set[Any] = set()
    keys: dict[Any, int] = {}

    def step(x: torch.Tensor) -> tuple[torch.Tensor, int, bool, list[Any]]:
        stored.append(module)
        stored.insert(0, module)
        stored.extend([module])
        stored[2] = module
        queue.appendleft(module)
        members.add(module)
        keys[module] = 1
        displays = [{module: 1}, {m: n for n, m in enumerate([module])}, {module}, {m for m in [module] if m}]
        return module(x), stored.index(module), module in queue, [keys[module], *displays]

    with engine.expect(graphs=1, breaks=0):
        _, index, is_member, (value, *displays) = engine.compile(step, backend="eager")(X)
    assert (index, is_member, value) == (0, True, 1)
    created = [item for container in displays for item in container]
    assert all(item is module for item in [stored[0], *stored[2:], *queue, *members, *keys, *created])
