"""Python's ``random``: a generator with known state runs while tracing.

The numbers of any other generator are graph inputs, also those of numpy.
"""

from __future__ import annotations

import inspect
import random
from typing import Any

import numpy as np
import torch

from engine.ir.guards.python_values import EqualsMatch
from engine.ir.register_once import register_table
from engine.ir.sources.base import Source
from engine.ir.sources.roots import ConstantSource
from engine.ir.sources.stdlib import RandomDrawSource, RandomStateSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.fake_tensors.evaluate import evaluate_on_fakes
from engine.trace.variables.base import NONE, Args, Kwargs, RealObjectVariable, UserErrors, Variable, realize
from engine.trace.variables.builder import guarded_builder, register_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import builtin_attribute
from engine.trace.variables.containers.sequences import ListVariable, sequence_items
from engine.trace.variables.tensors.sym_node import SymNodeVariable
from engine.trace.variables.tensors.tensor import TensorVariable

_NUMBER_METHODS = frozenset(
    "random uniform triangular randint randrange getrandbits randbytes gauss normalvariate lognormvariate expovariate vonmisesvariate "
    "gammavariate betavariate paretovariate weibullvariate".split()
)
_GRAPH_INPUT_METHODS = _NUMBER_METHODS - {"randbytes"}
"""Methods whose result can be a graph input: a number."""
_ITEM_METHODS = frozenset(("choice", "choices", "sample"))


class RandomVariable(Variable):
    """A ``random.Random``.

    ``known_generator`` is a generator with its state at this point of the trace; None if the state is unknown.
    """

    mutation_words = "the random number state is set"
    real_object: random.Random | None
    source: Source | None
    known_generator: random.Random | None = None
    cls = random.Random

    is_mutable = True

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return builtin_attribute(tx, self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name == "seed":
            return self._seed(tx, args, kwargs)
        if self.known_generator is None and tx.random_state.mode == "known":
            self._guard_state(tx)
        if self.known_generator is None:
            return self._draw(tx, name, args, kwargs)
        if name == "getstate" and not args:
            return tx.fold_constant(self.known_generator.getstate)
        if name == "setstate" and len(args) == 1:
            tx.side_effects.record_mutation(self)
            return tx.fold_constant(self.known_generator.setstate, *tx.as_python_constants(args))
        if name == "shuffle":
            return self._shuffle(tx, args[0])
        if name in _ITEM_METHODS:
            return self._choose_items(tx, name, args, kwargs)
        if name not in _NUMBER_METHODS:
            raise self.unsupported_method(name)
        values = tx.as_python_constants(args)
        keywords = tx.as_python_keywords(kwargs)
        tx.side_effects.record_mutation(self)
        return tx.fold_constant(getattr(self.known_generator, name), *values, **keywords)

    def _guard_state(self, tx: Tracer) -> None:
        """Guard the state of the generator and copy it."""
        assert self.source is not None
        if self.real_object is None:
            return
        state_source = RandomStateSource(self.source)
        why = "a random number from it decided what was traced"
        tx.guard(EqualsMatch, state_source, state_source.read(self.real_object), why=why)
        self.known_generator = random_with_state(self.real_object.getstate())

    def _draw(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        """Sample a number before the graph, at each call; it becomes a graph input.

        The number sampled while tracing is only an example.
        """
        tx.random_state.used_in_python = True
        bits = [a.constant for a in args] if name == "getrandbits" else [0]
        if name not in _GRAPH_INPUT_METHODS or len(bits) != 1 or type(bits[0]) is not int or bits[0] >= 63:
            raise _not_replayable(name)
        return draw_number(tx, self, name, args, kwargs, random.Random(0))  # noqa: S311 - only an example

    def _seed(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        values = tx.as_python_constants([*args, *kwargs.values()])
        if not values or values[0] is None:
            raise Unsupported("random-generator", "the random seed is taken from the clock")
        tx.side_effects.record_mutation(self)
        self.known_generator = random.Random()  # noqa: S311 - the user's code creates this generator
        tx.fold_constant(self.known_generator.seed, *values)
        return NONE

    def _shuffle(self, tx: Tracer, sequence: Variable) -> Variable:
        items = realize(tx, sequence).sequence_contents
        if items is None or not items.is_mutable or items is not sequence.resolved or self.known_generator is None:
            raise self.unsupported("random.shuffle()")
        order = list(range(len(items.items)))
        tx.side_effects.record_mutation(self)
        tx.side_effects.record_mutation(items)
        self.known_generator.shuffle(order)
        items.items[:] = [items.items[n] for n in order]
        return NONE

    def _choose_items(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        """Choose items by sampling their positions."""
        pool = list(sequence_items(tx, args[0]))
        values = tx.as_python_constants(args[1:])
        keywords = tx.as_python_keywords(kwargs)
        tx.side_effects.record_mutation(self)
        with UserErrors(tx, IndexError, TypeError, ValueError):
            chosen = getattr(self.known_generator, name)(range(len(pool)), *values, **keywords)
        return pool[chosen] if name == "choice" else ListVariable([pool[n] for n in chosen])

    def reconstruct(self, cg: PyCodegen) -> None:
        assert self.known_generator is not None
        cg.call(random_with_state, self.known_generator.getstate())

    def fill(self, cg: PyCodegen) -> None:
        """Emit code that sets the state of the generator at the stack top and pops it."""
        assert self.known_generator is not None
        cg.pop_into_call(random.Random.setstate, self.known_generator.getstate())


def _not_replayable(name: str) -> Unsupported:
    return Unsupported("random-generator", f"{name}() draws random numbers")


def draw_number(tx: Tracer, of: Variable, name: str, args: Args, kwargs: Kwargs, example: Any) -> Variable:
    """Sample a number before the graph, at each call; it becomes a graph input.

    ``example`` is a generator of the same class, which gives the number that is traced.

    Raises:
        Unsupported: the result is no int or float of Python, or the arguments are no such numbers.
    """
    if of.source is None or tx.in_subgraph():
        raise _not_replayable(name)
    constants = [realize(tx, a).constant for a in args]
    keywords = {k: realize(tx, a).constant for k, a in kwargs.items()}
    numbers = [*constants, *keywords.values()]
    if not all(type(n) in (int, float) and abs(n) < _MAX_INTEGER for n in numbers):
        raise _not_replayable(name)
    try:
        sample = getattr(example, name)(*constants, **keywords)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise _not_replayable(name) from error
    if type(sample) not in _DTYPES or abs(sample) >= _MAX_INTEGER:
        raise _not_replayable(name)
    source = RandomDrawSource(
        of.source, tx.random_state.input_count, name, tuple(constants), tuple(keywords.items()), _DTYPES[type(sample)]
    )
    fake = evaluate_on_fakes(tx, "call_function", lambda: torch.empty((), dtype=source.dtype, device="cpu"), [], {})
    node = tx.graph.placeholder(source, fake, torch.tensor(sample, dtype=source.dtype))
    try:
        number = emit_node(tx, "call_method", "item", [TensorVariable(node, fake)])
    except Unsupported:  # the backend does not support unbacked numbers
        tx.graph.erase_last_input(source)
        raise _not_replayable(name) from None
    tx.random_state.input_count += 1
    symbols = number.sym.node.expr.free_symbols if isinstance(number, SymNodeVariable) else ()
    tx.random_state.drawn_symbols.update(symbols)
    return number


_DTYPES: dict[type, torch.dtype] = {int: torch.int64, float: torch.float64}
_MAX_INTEGER = 2**62
"""Numbers below this one have sums and differences that int64 represents."""


def random_with_state(state: Any) -> random.Random:
    """Create a generator with this state."""
    generator = random.Random()  # noqa: S311 - the user's code creates this generator
    generator.setstate(state)
    return generator


register_builder(random.Random)(guarded_builder(RandomVariable, "random numbers are generated from it", by_type=True))


@register_rule(random.Random)
def _new_random(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    values = tx.as_python_constants([*args, *kwargs.values()])
    if not values or values[0] is None:
        raise Unsupported("random-generator", "a random number generator is seeded from the clock")
    return RandomVariable(None, None, random.Random(values[0]))  # noqa: S311 - the user's code creates this generator


_GLOBAL_RANDOM: Any = getattr(random.random, "__self__")  # noqa: B009 - the stubs declare no __self__ for builtin methods


_GLOBAL_FUNCTIONS = {f: n for n, f in vars(random).items() if getattr(f, "__self__", None) is _GLOBAL_RANDOM}


@register_table(register_rule, _GLOBAL_FUNCTIONS)
def _call_global_random(function: Any, name: str, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace a function of ``random``, which uses the global generator."""
    shared = tx.wrap(_GLOBAL_RANDOM, ConstantSource(_GLOBAL_RANDOM, "random"))
    return shared.call_method(tx, name, args, kwargs)


_PYTHON_METHODS = {f: n for n, f in inspect.getmembers(random.Random, inspect.isfunction) if not n.startswith("__")}


@register_table(register_rule, _PYTHON_METHODS)
def _call_python_method(function: Any, name: str, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace a method written in Python; the generator is its first argument."""
    of = realize(tx, args[0])
    if not isinstance(of, RandomVariable):
        raise _not_replayable(name)
    return of.call_method(tx, name, args[1:], kwargs)


class NumpyGeneratorVariable(RealObjectVariable):
    """A ``RandomState`` or ``Generator``; functions of ``numpy.random`` use a global one."""

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return builtin_attribute(tx, self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        example = np.random.RandomState(0) if self.python_type() is np.random.RandomState else np.random.default_rng(0)
        return draw_number(tx, self, name, args, kwargs, example)


class NumpyRandomFunctionVariable(RealObjectVariable):
    """A compiled function of ``numpy.random``, or a method without its generator."""

    def describe(self) -> str:
        return f"numpy.random.{self.real_object.__name__}"

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        of = realize(tx, args[0]) if args else None
        name = str(self.real_object.__name__)
        if isinstance(of, NumpyGeneratorVariable) and getattr(of.python_type(), name, None) is self.real_object:
            return of.call_method(tx, name, args[1:], kwargs)
        raise Unsupported("random-generator", f"{self.describe()} is called")


register_builder(np.random.RandomState, np.random.Generator)(
    guarded_builder(NumpyGeneratorVariable, "random numbers are sampled from it", by_type=True)
)
register_builder(type(np.random.seed))(guarded_builder(NumpyRandomFunctionVariable, "it was called"))
