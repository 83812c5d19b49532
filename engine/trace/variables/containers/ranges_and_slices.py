"""Variables for range and slice, whose bounds may be symbols."""

from __future__ import annotations

from typing import Any

from engine.ir.guards.python_values import EqualsMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.operators.arithmetic import binary_op, compare_op
from engine.trace.variables.base import ConstantVariable, NotPythonConstant, Variable, realize
from engine.trace.variables.builder import register_builder, register_sourceless_builder
from engine.trace.variables.containers.iterators import RangeIteratorVariable
from engine.trace.variables.containers.sequences import ListVariable


class RangeVariable(Variable):
    """A range; each bound may be a symbol, which iteration compares without specializing it."""

    bounds: tuple[Variable, Variable, ConstantVariable]
    source: Source | None = None
    cls = range
    is_copied_by_reference = True

    @classmethod
    def of(cls, value: range, source: Source | None = None) -> RangeVariable:
        """Return the variable of a range with constant bounds."""
        return cls((ConstantVariable(value.start), ConstantVariable(value.stop), ConstantVariable(value.step)), source)

    def describe(self) -> str:
        bounds = [b.describe() for b in self.bounds[: 3 if self.step != 1 else 2]]
        return f"range({', '.join(bounds)})"

    @property
    def step(self) -> int:
        return int(self.bounds[2].value)

    def as_python_constant(self, tx: Tracer) -> range:
        return range(*tx.as_python_constants(list(self.bounds)))

    def as_tensor_index(self, tx: Tracer, *, in_tuple: bool) -> Variable:
        return ListVariable([ConstantVariable(n) for n in self.as_python_constant(tx)])

    def hash_key(self, tx: Tracer) -> Any:
        return self.as_python_constant(tx)

    def is_truthy(self, tx: Tracer) -> bool:
        return self.item_at(tx, 0) is not None

    def length(self, tx: Tracer) -> Variable:
        return tx.fold_constant(len, self.as_python_constant(tx))

    def contains(self, tx: Tracer, item: Variable) -> bool:
        return item.as_python_constant(tx) in self.as_python_constant(tx)

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return tx.fold_constant(lambda: self.as_python_constant(tx)[key.as_python_constant(tx)])

    def item_at(self, tx: Tracer, index: int) -> Variable | None:
        """Return an item, None after the last one; a guard covers only which of both it is."""
        start, stop, _ = self.bounds
        number = binary_op(tx, "+", start, ConstantVariable(index * self.step)) if index else start
        is_inside = compare_op(tx, "<" if self.step > 0 else ">", number, stop)
        return number if realize(tx, is_inside).is_truthy(tx) else None

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return tx.get_constant_attr(ConstantVariable(self.as_python_constant(tx)), name)

    def get_iterator(self, tx: Tracer) -> Variable:
        return RangeIteratorVariable(self)

    def child_variables(self) -> list[Variable]:
        return list(self.bounds)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(range, *self.bounds)


class SliceVariable(Variable):
    """A slice ``a:b:c``; each bound may be a symbol."""

    bounds: list[Variable]
    source: Source | None = None
    cls = slice

    def as_python_constant(self, tx: Tracer) -> Any:
        forced = [realize(tx, p) for p in self.bounds]
        if (tensor := next((p for p in forced if p.fake is not None), None)) is not None:
            raise NotPythonConstant(tensor)
        return slice(*(p.as_python_constant(tx) for p in forced))

    def as_tensor_index(self, tx: Tracer, *, in_tuple: bool) -> Variable:
        bounds = [realize(tx, p) for p in self.bounds]
        has_array = any(p.is_numpy_array for p in bounds)
        return SliceVariable([p.as_tensor_index(tx, in_tuple=True) for p in bounds]) if has_array else self

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        pairs = [realize(tx, p).as_node_arg(tx) for p in self.bounds]
        return slice(*(p[0] for p in pairs)), slice(*(p[1] for p in pairs))

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in ("start", "stop", "step"):
            return self.bounds[("start", "stop", "step").index(name)]
        return tx.get_constant_attr(ConstantVariable(self.as_python_constant(tx)), name)

    def child_variables(self) -> list[Variable]:
        return self.bounds

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.build("BUILD_SLICE", self.bounds)


@register_builder(range, why="it was iterated")
def _range(tx: Tracer, real: range, source: Source) -> Variable:
    for name in ("start", "stop", "step"):
        tx.guard(EqualsMatch, AttrSource(source, name), getattr(real, name), why="it was iterated")
    return RangeVariable.of(real, source)


@register_builder(slice, why="it was used as an index")
def _slice(tx: Tracer, real: slice, source: Source) -> Variable:
    return SliceVariable(
        [tx.make_lazy(getattr(real, n), AttrSource(source, n)) for n in ("start", "stop", "step")], source
    )


@register_sourceless_builder(slice)
def _make_slice(tx: Tracer, value: slice) -> Variable:
    return SliceVariable([tx.from_python(v) for v in (value.start, value.stop, value.step)])


register_sourceless_builder(range)(lambda tx, value: RangeVariable.of(value))
