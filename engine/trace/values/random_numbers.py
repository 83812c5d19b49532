"""Python's random numbers: a generator whose state is known while tracing is run at once; what another draws are inputs of the graph."""

from __future__ import annotations

import random
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.origin import Drawn, DrawState, Fixed, Origin
from engine.ir.value_guard import Equals
from engine.trace.graph_builder import emit, evaluate
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.methods import MethodOf
from engine.trace.values.rules import special
from engine.trace.values.sequences import ListValue, sequence_items
from engine.trace.values.tensor import TensorValue
from engine.trace.values.wrap import wraps

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]

_OF_NUMBERS = frozenset(
    "random uniform triangular randint randrange getrandbits randbytes gauss normalvariate lognormvariate expovariate vonmisesvariate "
    "gammavariate betavariate paretovariate weibullvariate".split()
)
_INPUTS = _OF_NUMBERS - {"randbytes"}
"""What can be drawn for a graph: numbers."""
_OF_ITEMS = frozenset(("choice", "choices", "sample"))


class RandomValue(Value):
    """A ``random.Random``. ``state`` is the generator as of now where it was made while tracing, None where its state is not known."""

    is_mutable = True

    def __init__(self, origin: Origin | None, state: random.Random | None, held: random.Random | None = None) -> None:
        self.origin = origin
        self.state = state
        self.held = held

    def type(self) -> type:
        return random.Random

    def key(self, tx: Tracer) -> Any:
        return self

    def truth(self, tx: Tracer) -> bool:
        return True

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if not hasattr(random.Random, name):
            tx.raise_error(AttributeError, f"'Random' object has no attribute '{name}'")
        return MethodOf(self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        if name == "seed":
            return self._seed(tx, args, kwargs)
        if self.state is None and tx.draws == "known":
            self._look(tx)
        if self.state is None:
            return self._draw(tx, name, args, kwargs)
        if name == "getstate" and not args:
            return tx.fold(self.state.getstate)
        if name == "setstate" and len(args) == 1:
            tx.mutating(self)
            return tx.fold(self.state.setstate, *tx.constants(args))
        if name == "shuffle":
            return self._shuffle(tx, args[0])
        if name in _OF_ITEMS:
            return self._items(tx, name, args, kwargs)
        if name not in _OF_NUMBERS:
            raise self.refuse(f"the method {name!r}")
        values = tx.constants(args)
        words = dict(zip(kwargs, tx.constants(kwargs.values()), strict=True))
        tx.mutating(self)
        return tx.fold(getattr(self.state, name), *values, **words)

    def _look(self, tx: Tracer) -> None:
        """Take the state in which the generator is for granted."""
        assert self.origin is not None
        if self.held is None:
            return
        at = DrawState(self.origin)
        tx.guard(Equals(at, at.read(self.held), cause=tx.cause("what is drawn from it decided what was traced")))
        self.state = random_from(self.held.getstate())

    def _draw(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        """A number drawn at each call anew, before the graph, which takes it as an input: what is drawn here and now tells nothing."""
        refused = Unsupported("unknown-call", f"random numbers are drawn ({name})")
        tx.asked_for_draws = True
        if self.origin is None or name not in _INPUTS or tx.is_nested():
            raise refused
        given = tuple(v.python(tx) for v in (force(tx, a) for a in args) if _is_number(v))
        words = tuple((k, v.python(tx)) for k, v in ((k, force(tx, a)) for k, a in kwargs.items()) if _is_number(v))
        if len(given) < len(args) or len(words) < len(kwargs):
            raise refused
        origin = Drawn(self.origin, tx.drawn, name, given, words)
        try:
            tried = getattr(random.Random(0), name)(*given, **dict(words))  # noqa: S311 - only to see that it can be drawn
        except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
            raise refused from error
        if origin.dtype is torch.int64 and not _fits(name, (*given, *dict(words).values())):
            raise refused
        fake = evaluate(tx, "call_function", lambda: torch.empty((), dtype=origin.dtype, device="cpu"), [], {})
        node = tx.graph.placeholder(origin, fake, torch.tensor(tried, dtype=origin.dtype))
        try:
            number = emit(tx, "call_method", "item", [TensorValue(node, fake)])
        except Unsupported:  # this backend takes no numbers that only the running graph knows
            tx.graph.forget_input(origin)
            raise refused from None
        tx.drawn += 1
        return number

    def _seed(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        values = tx.constants([*args, *kwargs.values()])
        if not values or values[0] is None:
            raise Unsupported("unknown-call", "random numbers are seeded by the clock")
        tx.mutating(self)
        self.state = random.Random()  # noqa: S311 - the user asked for this generator
        tx.fold(self.state.seed, *values)
        return NONE

    def _shuffle(self, tx: Tracer, over: Value) -> Value:
        items = force(tx, over)
        if not isinstance(items, ListValue) or self.state is None:
            raise self.refuse("shuffling anything but a list")
        order = list(range(len(items.items)))
        tx.mutating(self)
        tx.mutating(items)
        self.state.shuffle(order)
        items.items[:] = [items.items[n] for n in order]
        return NONE

    def _items(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        """Items are chosen by position alone: choose among positions."""
        pool = list(sequence_items(tx, args[0]))
        values = tx.constants(args[1:])
        words = dict(zip(kwargs, tx.constants(kwargs.values()), strict=True))
        tx.mutating(self)
        try:
            chosen = getattr(self.state, name)(range(len(pool)), *values, **words)
        except (IndexError, TypeError, ValueError) as error:
            raise tx.user_exception(error) from error
        return pool[chosen] if name == "choice" else ListValue([pool[n] for n in chosen])

    def reconstruct(self, cg: Codegen) -> None:
        assert self.state is not None
        cg.helper(random_from, 0)
        cg.const(self.state.getstate())
        cg.out.call(1)

    def fill(self, cg: Codegen) -> None:
        """Put the generator on top of the stack into the present state, and pop it."""
        assert self.state is not None
        cg.helper(random.Random.setstate, 1)
        cg.const(self.state.getstate())
        cg.out.call(2)
        cg.out.emit("POP_TOP")


def _is_number(value: Value) -> bool:
    return isinstance(value, Const) and type(value.value) in (int, float)


def _fits(name: str, args: tuple[Any, ...]) -> bool:
    """Whether what is drawn is a whole number that a tensor holds."""
    return args[0] < 63 if name == "getrandbits" else all(type(a) is int and abs(a) < 2**62 for a in args)


def random_from(state: Any) -> random.Random:
    """A generator in a given state."""
    made = random.Random()  # noqa: S311 - the user asked for this generator
    made.setstate(state)
    return made


@wraps(random.Random)
def _wrap(tx: Tracer, real: random.Random, origin: Origin) -> Value:
    tx.guard_type(real, origin, "random numbers are drawn from it")
    return RandomValue(origin, None, real)


@special(random.Random)
def _made(tx: Tracer, args: Args, kwargs: Words) -> Value:
    values = tx.constants([*args, *kwargs.values()])
    if not values or values[0] is None:
        raise Unsupported("unknown-call", "a generator of random numbers is seeded by the clock")
    return RandomValue(None, random.Random(values[0]))  # noqa: S311 - the user asked for this generator


_SHARED: Any = getattr(random.random, "__self__")  # noqa: B009 - the stubs know no owner of a builtin method


def _shared_rule(name: str) -> Any:
    """A function of the module: it draws from the one generator that the whole program shares."""

    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        shared = tx.wrap(_SHARED, Fixed(_SHARED, "random"))
        return shared.call_method(tx, name, args, kwargs)

    return rule


def _method_rule(name: str) -> Any:
    """A method that Python code defines, with the generator as its first argument."""

    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        of = force(tx, args[0])
        if not isinstance(of, RandomValue):
            raise Unsupported("unknown-call", f"random numbers are drawn ({name})")
        return of.call_method(tx, name, args[1:], kwargs)

    return rule


for _name, _found in vars(random).items():
    if getattr(_found, "__self__", None) is _SHARED:
        special(_found)(_shared_rule(_name))
for _name, _found in vars(random.Random).items():
    if isinstance(_found, FunctionType) and not _name.startswith("__"):
        special(_found)(_method_rule(_name))
