"""Generators of ``numpy.random``: numbers that they sample are graph inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.ir.sources.base import Source
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Args, Kwargs, RealObjectVariable, Variable, realize
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callables.methods import builtin_attribute
from engine.trace.variables.stdlib.random_numbers import draw_number


class NumpyGeneratorVariable(RealObjectVariable):
    """A ``RandomState`` or ``Generator``; functions of ``numpy.random`` use a global one."""

    __slots__ = ()

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return builtin_attribute(tx, self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        example = np.random.RandomState(0) if self.python_type() is np.random.RandomState else np.random.default_rng(0)
        return draw_number(tx, self, name, args, kwargs, example)


class NumpyRandomFunctionVariable(RealObjectVariable):
    """A compiled function of ``numpy.random``, or a method without its generator."""

    __slots__ = ()

    def describe(self) -> str:
        return f"numpy.random.{self.real_object.__name__}"

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        of = realize(tx, args[0]) if args else None
        name = str(self.real_object.__name__)
        if isinstance(of, NumpyGeneratorVariable) and getattr(of.python_type(), name, None) is self.real_object:
            return of.call_method(tx, name, args[1:], kwargs)
        raise Unsupported("random-generator", f"{self.describe()} is called")


@register_builder(np.random.RandomState, np.random.Generator)
def _build_generator(tx: Tracer, real: Any, source: Source) -> Variable:
    tx.guard_type(real, source, "random numbers are sampled from it")
    return NumpyGeneratorVariable(real, source)


@register_builder(type(np.random.seed))
def _build_function(tx: Tracer, real: Any, source: Source) -> Variable:
    tx.guard_identity(real, source, "it was called")
    return NumpyRandomFunctionVariable(real, source)
