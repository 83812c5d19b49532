"""Python's operators over values: arithmetic, comparison, membership, folding of pure functions."""

from __future__ import annotations

import collections
import functools
import operator
import sys
from collections.abc import Callable
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.origin import Fixed
from engine.ir.unbacked import is_unbacked
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, NotConstant, Value, force
from engine.trace.values.refusals import has_method, is_not_implemented, refuse_arguments, refuse_operands
from engine.trace.values.shown import shown

if TYPE_CHECKING:
    from engine.trace.state import Tracer

BINARY: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "+": (operator.add, "add"),
    "-": (operator.sub, "sub"),
    "*": (operator.mul, "mul"),
    "/": (operator.truediv, "truediv"),
    "//": (operator.floordiv, "floordiv"),
    "%": (operator.mod, "mod"),
    "**": (operator.pow, "pow"),
    "@": (operator.matmul, "matmul"),
    "<<": (operator.lshift, "lshift"),
    ">>": (operator.rshift, "rshift"),
    "&": (operator.and_, "and"),
    "|": (operator.or_, "or"),
    "^": (operator.xor, "xor"),
}
INPLACE: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "+=": (operator.iadd, "iadd"),
    "-=": (operator.isub, "isub"),
    "*=": (operator.imul, "imul"),
    "/=": (operator.itruediv, "itruediv"),
    "//=": (operator.ifloordiv, "ifloordiv"),
    "%=": (operator.imod, "imod"),
    "**=": (operator.ipow, "ipow"),
    "@=": (operator.imatmul, "imatmul"),
    "<<=": (operator.ilshift, "ilshift"),
    ">>=": (operator.irshift, "irshift"),
    "&=": (operator.iand, "iand"),
    "|=": (operator.ior, "ior"),
    "^=": (operator.ixor, "ixor"),
}
COMPARE: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
}
UNARY: dict[str, Callable[[Any], Any]] = {"-": operator.neg, "+": operator.pos, "~": operator.invert}


def _is_graph_value(value: Value) -> bool:
    from engine.trace.values.symbolic import SymValue
    from engine.trace.values.tensor import TensorValue

    return isinstance(value, (TensorValue, SymValue))


def _for_graph(left: Value, right: Value) -> bool:
    """Whether an operator on these two becomes a node: one is a graph's value, the other that or a constant."""
    if not (_is_graph_value(left) or _is_graph_value(right)):
        return False
    return all(_is_graph_value(v) or isinstance(v, Const) for v in (left, right))


def _is_whole(value: Value) -> bool:
    """Whether it is a symbol for a whole number."""
    from engine.trace.values.symbolic import SymValue

    return isinstance(value, SymValue) and value.type() is int


def _beside_symbols(tx: Tracer, left: Value, right: Value, *, compared: bool) -> tuple[Value, Value]:
    """Operands as symbols know them.

    A symbol beside a number of numpy's is a constant, as the result is numpy's, a tensor is compared with Python's number, and a truth beside a
    symbol is a whole number.
    """
    from engine.trace.values.symbolic import SymValue

    pair = [left, right]
    for n, (value, other) in enumerate(((left, right), (right, left))):
        if isinstance(value, Const) and type(value.value).__module__ == "numpy" and _is_graph_value(other):
            if isinstance(other, SymValue):
                pair[1 - n] = Const(other.python(tx))
            elif compared and hasattr(value.value, "item"):
                pair[n] = Const(value.value.item())
        elif isinstance(value, Const) and type(value.value) is bool and _is_whole(other):
            pair[n] = Const(int(value.value))
    return pair[0], pair[1]


def _beside_tensors(tx: Tracer, left: Value, right: Value) -> tuple[Value, Value]:
    """Operands, with symbols for changing numbers of numpy's beside a tensor."""
    from engine.trace.values.constants import ChangingNumber
    from engine.trace.values.tensor import TensorValue

    if isinstance(left, TensorValue) and isinstance(right, ChangingNumber):
        return left, right.beside_tensor(tx)
    if isinstance(right, TensorValue) and isinstance(left, ChangingNumber):
        return left.beside_tensor(tx), right
    return left, right


def binary(tx: Tracer, symbol: str, left: Value, right: Value) -> Value:
    """``left symbol right``; ``symbol`` may be in-place (``+=``)."""
    from engine.trace.values.container_objects import as_builtin
    from engine.trace.values.float_division import by_power_of_two

    left, right = _beside_tensors(tx, force(tx, left), force(tx, right))
    left, right = _beside_symbols(tx, left, right, compared=False)
    in_place = symbol in INPLACE
    function, name = INPLACE[symbol] if in_place else BINARY[symbol]
    if symbol in ("%", "%=") and isinstance(left, Const) and isinstance(left.value, str):
        text = left.value
        return tx.fold(lambda: text % shown(tx, right))
    exact = by_power_of_two(tx, symbol, left, right)
    if exact is not None:
        return exact
    left, right = _beside_truths(tx, symbol, *_settled(tx, symbol, left, right))
    if _for_graph(left, right):
        if in_place and not _mutates(left, name):
            function = BINARY[symbol[:-1]][0]
        return emit(tx, "call_function", function, [left, right])
    if isinstance(left, Const) and isinstance(right, Const):
        return tx.fold(function, left.value, right.value)
    by_kind = on_arrays(tx, function, [left, right]) or _containers(tx, symbol, left, right)
    if by_kind is not None:
        return by_kind
    by_method = by_methods(tx, name, left, right, in_place=in_place)
    if by_method is not None:
        return by_method
    by_builtins = _after_refusals(tx, function, name[1:] if in_place else name, left, right)
    if by_builtins is not None:
        return by_builtins
    left, right = as_builtin(left), as_builtin(right)
    try:
        values = tx.constants([left, right])
    except NotConstant:
        pass
    else:
        return tx.fold(BINARY[symbol.rstrip("=")][0] if in_place else function, *values)
    if _is_graph_value(left) or _is_graph_value(right):
        return emit(
            tx,
            "call_function",
            BINARY[symbol.rstrip("=")][0] if in_place and not _mutates(left, name) else function,
            [left, right],
        )
    refuse_operands(tx, function, left, right)
    raise Unsupported("unsupported-operation", f"{left.describe()} {symbol} {right.describe()}")


def _after_refusals(tx: Tracer, function: Callable[..., Any], name: str, left: Value, right: Value) -> Value | None:
    """What builtin numbers' own methods make of operands whose classes have refused: Python tells, of classes that refuse; None where none has."""
    from engine.trace.values.container_objects import ContainerObject, as_builtin

    classes: dict[type, type] = {}
    operands: list[Any] = []
    for value in (left, right):
        plain = as_builtin(value)
        if not isinstance(plain, Const):
            return None
        operand = plain.value
        own = value.own_methods() & {f"__{name}__", f"__r{name}__"} if isinstance(value, ContainerObject) else None
        if own and isinstance(operand, (int, float, complex)):
            cls = value.type()
            made = classes.setdefault(cls, type(cls.__name__, (type(operand),), dict.fromkeys(own, _refuse)))
            operand = made(operand)
        operands.append(operand)
    return tx.fold(function, *operands) if classes else None


def _refuse(*operands: Any) -> Any:
    return NotImplemented


_PYTHON_FLOATS = frozenset(("**", "//", "%"))
"""Operators that ShapeEnv refuses for some floats, for example a power of a negative one."""


def _settled(tx: Tracer, symbol: str, left: Value, right: Value) -> tuple[Value, Value]:
    """The operands, those as constants that are floats under an operator which cannot take them as symbols."""
    from engine.trace.values.symbolic import SymValue
    from engine.trace.values.tensor import TensorValue

    operands = (left, right)
    if symbol.rstrip("=") == "//" and _is_whole(left) and isinstance(right, Const) and type(right.value) is int:
        # Algebra joins divisions, which holds for positive divisors only.
        return (unary(tx, "-", left), Const(-right.value)) if right.value < 0 else operands
    if any(isinstance(v, SymValue) for v in operands) and any(v.type() is complex for v in operands):
        first, second = (Const(v.python(tx)) if isinstance(v, SymValue) else v for v in operands)
        return first, second
    has_float = any(isinstance(v, SymValue) and v.type() is float for v in operands)
    if symbol.rstrip("=") not in _PYTHON_FLOATS or not has_float or any(isinstance(v, TensorValue) for v in operands):
        return operands
    if symbol.startswith("**") and all(not isinstance(v, SymValue) or _is_positive(v) for v in operands):
        return operands
    first, second = (Const(v.python(tx)) if isinstance(v, SymValue) else v for v in operands)
    return first, second


def _is_truth(value: Value) -> bool:
    """Whether it is a symbol that is true or false."""
    from engine.trace.values.symbolic import SymValue

    return isinstance(value, SymValue) and value.type() is bool


def _beside_truths(tx: Tracer, symbol: str, left: Value, right: Value) -> tuple[Value, Value]:
    """The operands, truths as constants where the operator is none that symbols of this kind know."""
    if not (_is_truth(left) or _is_truth(right)) or symbol.rstrip("=") in ("+", "-", "*"):
        return left, right
    if symbol.rstrip("=") in ("&", "|") and all(v.type() is bool for v in (left, right)):
        return left, right
    first, second = (Const(v.python(tx)) if _is_truth(v) else v for v in (left, right))
    return first, second


def _equal_truths(tx: Tracer, symbol: str, left: Value, right: Value) -> Value | None:
    """``truth == constant`` and ``truth != constant``; None for anything else."""
    truth, other = (left, right) if _is_truth(left) else (right, left)
    if symbol not in ("==", "!=") or not _is_truth(truth):
        return None
    if not isinstance(other, Const) or other.value not in (0, 1):
        return None
    return truth if bool(other.value) == (symbol == "==") else emit(tx, "call_function", torch.sym_not, [truth])


def _is_positive(value: Any) -> bool:
    """Whether a symbol is greater than zero in this call; one that only the graph knows is not looked at."""
    return is_unbacked(value.sym) or value.sym.node.hint > 0


def on_arrays(tx: Tracer, function: Callable[..., Any], operands: list[Value]) -> Value | None:
    """An operator on numpy arrays; None where no operand is one, or where numpy was never imported."""
    if "numpy" not in sys.modules:
        return None
    from engine.trace.values.numpy_arrays import array_operator

    return array_operator(tx, function, operands)


def _mutates(left: Value, name: str) -> bool:
    """Whether the in-place operator writes to its left operand: a tensor has no ``__imatmul__``, and gives its name to another one."""
    from engine.trace.values.tensor import TensorValue

    return isinstance(left, TensorValue) and hasattr(torch.Tensor, f"__{name}__")


def _containers(tx: Tracer, symbol: str, left: Value, right: Value) -> Value | None:
    from engine.trace.values.mappings import DictValue, DictView
    from engine.trace.values.sequences import ListValue, SequenceValue, TupleValue
    from engine.trace.values.sets import SetValue

    plain = symbol.rstrip("=")
    if symbol == "+=" and isinstance(left, ListValue):
        left.call_method(tx, "extend", [right], {})
        return left
    if plain == "+" and isinstance(left, SequenceValue) and isinstance(right, SequenceValue):
        if isinstance(left, ListValue) and isinstance(right, ListValue) and left.cls is right.cls:
            return left.part([*left.items, *right.items])
        if isinstance(left, TupleValue) and isinstance(right, TupleValue):
            import torch

            if left.cls is right.cls is tuple and not (left.items and right.items):
                return left if left.items else right
            makes_size = left.cls is torch.Size or (right.cls is torch.Size and hasattr(torch.Size, "__radd__"))
            return TupleValue([*left.items, *right.items], torch.Size if makes_size else tuple)
    if plain == "*" and isinstance(left, SequenceValue) and isinstance(right, Const):
        return _repeat(tx, symbol, left, right)
    if plain == "*" and isinstance(right, SequenceValue) and isinstance(left, Const):
        return _repeat(tx, "*", right, left)
    if symbol == "|=" and isinstance(left, DictValue) and left.cls is not MappingProxyType:
        left.update(tx, right)
        return left
    if plain == "|" and isinstance(left, DictValue) and isinstance(right, DictValue):
        of = right if left.cls is dict and right.cls is not dict else left
        merged = DictValue(dict(left.entries), None, dict if of.cls is MappingProxyType else of.cls, of.factory)
        merged.entries.update(right.entries)
        return merged
    if plain in _SET_METHODS and any(isinstance(v, DictView) and v.kind != "values" for v in (left, right)):
        return _with_view(tx, plain, left, right)
    if plain in _SET_METHODS and isinstance(left, SetValue) and isinstance(right, SetValue):
        combined = left.combine(tx, _SET_METHODS[plain], right)
        if symbol.endswith("=") and isinstance(left, SetValue) and left.base is set:
            tx.mutating(left)
            left.elements = combined.elements
            return left
        return combined
    return None


def _with_view(tx: Tracer, symbol: str, left: Value, right: Value) -> Value | None:
    """A set operation of a dict's view and anything that can be iterated: always a new set; None where the left side's own method decides."""
    from engine.trace.values.objects import ObjectValue
    from engine.trace.values.sequences import sequence_items
    from engine.trace.values.sets import SetValue

    if isinstance(left, ObjectValue) and not isinstance(getattr(left, "inner", None), SetValue):
        return None
    if isinstance(left, ObjectValue) and isinstance(_operator_of(left, BINARY[symbol][1]), FunctionType):
        return None
    mine, other = (SetValue.of(tx, sequence_items(tx, side)) for side in (left, right))
    return mine.combine(tx, _SET_METHODS[symbol], other)


def _operator_of(value: Value, name: str) -> Any:
    """The entry of a value's class for an operator's method."""
    from engine.trace.values.classes import find_in_class

    found = find_in_class(value.type(), f"__{name}__")
    return None if found is None else found[1]


_SET_METHODS = {"|": "union", "&": "intersection", "-": "difference", "^": "symmetric_difference"}


_TOO_MANY = sys.maxsize // 8
"""More items than a list can have."""


def _repeat(tx: Tracer, symbol: str, sequence: Any, times: Const) -> Value | None:
    from engine.trace.values.sequences import TupleValue

    if not isinstance(times.value, int):
        return None
    if len(sequence.items) * times.value >= _TOO_MANY:
        if abs(times.value) > sys.maxsize:
            tx.raise_error(OverflowError, "cannot fit 'int' into an index-sized integer")
        raise tx.user_exception(MemoryError())
    if isinstance(sequence, TupleValue):
        if times.value == 1 and sequence.cls is tuple:
            return sequence
        return TupleValue(sequence.items * times.value, sequence.cls if sequence.cls.__name__ == "Size" else tuple)
    if symbol == "*=":
        tx.mutating(sequence)
        sequence.items[:] = sequence.part(sequence.items * times.value).items
        return sequence  # type: ignore[no-any-return]
    return sequence.part(sequence.items * times.value)  # type: ignore[no-any-return]


def by_methods(tx: Tracer, name: str, left: Value, right: Value, *, in_place: bool = False) -> Value | None:
    """What the operands' own methods for an operator give; None where they have none, or refuse."""
    from engine.trace.values.objects import ObjectValue

    plain = name[1:] if in_place else name
    tries: list[tuple[Value, str, Value]] = []
    if in_place:
        tries.append((left, f"__{name}__", right))
    first, second = (left, f"__{plain}__", right), (right, f"__r{plain}__", left)
    reflected_first = (
        isinstance(right, ObjectValue) and right.type() is not left.type() and issubclass(right.type(), left.type())
    )
    if left.type() is right.type():  # then what is reflected is not asked
        tries.append(first)
    else:
        tries.extend([second, first] if reflected_first else [first, second])
    for of, method_name, other in tries:
        if not isinstance(of, ObjectValue):
            continue
        method = of.method(tx, method_name)
        if method is None:
            continue
        result = force(tx, method.call(tx, [other], {}))
        if not (isinstance(result, Const) and result.value is NotImplemented):
            return result
    return None


def compare(tx: Tracer, symbol: str, left: Value, right: Value) -> Value:
    """``left symbol right`` for the six comparisons."""
    from engine.trace.values.container_objects import as_builtin
    from engine.trace.values.identity import equal_ids
    from engine.trace.values.objects import ObjectValue
    from engine.trace.values.sequences import SequenceValue
    from engine.trace.values.storages import equal_addresses

    left, right = _beside_tensors(tx, force(tx, left), force(tx, right))
    left, right = _beside_symbols(tx, left, right, compared=True)
    function, name, reflected = COMPARE[symbol]
    if isinstance(left, Const) and isinstance(right, Const):
        return tx.fold(function, left.value, right.value)
    if symbol in ("==", "!=") and (same := equal_ids(tx, left, right)) is not None:
        return Const(same == (symbol == "=="))
    if symbol in ("==", "!=") and (same := equal_addresses(tx, left, right)) is not None:
        return Const(same == (symbol == "=="))
    by_truth = _equal_truths(tx, symbol, left, right)
    if by_truth is not None:
        return by_truth
    left, right = _beside_truths(tx, symbol, left, right)
    if isinstance(left, Const) and isinstance(right, Const):
        return tx.fold(function, left.value, right.value)
    if _for_graph(left, right):
        if any(isinstance(v, Const) and not _is_number(v.value) for v in (left, right)) and symbol in ("==", "!="):
            return Const(symbol == "!=")
        return emit(tx, "call_function", function, [left, right])
    found = on_arrays(tx, function, [left, right])
    if found is not None:
        return found
    for of, method_name, other in ((left, name, right), (right, reflected, left)):
        if isinstance(of, ObjectValue) and (method := of.method(tx, method_name)) is not None:
            result = force(tx, method.call(tx, [other], {}))
            if not (isinstance(result, Const) and result.value is NotImplemented):
                return result
        elif symbol == "!=" and isinstance(of, ObjectValue) and (method := of.method(tx, "__eq__")) is not None:
            result = force(tx, method.call(tx, [other], {}))
            if not (isinstance(result, Const) and result.value is NotImplemented):
                return Const(not result.truth(tx))
    if symbol in ("==", "!=") and isinstance(left, SequenceValue) and isinstance(right, SequenceValue):
        return Const(_equal_sequences(tx, left, right) == (symbol == "=="))
    if isinstance(left, SequenceValue) and isinstance(right, SequenceValue):
        for base in (tuple, list):
            if issubclass(left.type(), base) and issubclass(right.type(), base):
                return _first_difference(tx, symbol, left, right)
    if as_builtin(left) is left or as_builtin(right) is right:
        left, right = (
            as_builtin(left),
            as_builtin(right),
        )  # own methods have been asked; the builtin's, of the other side, knows both
    try:
        values = tx.constants([left, right])
    except NotConstant:
        pass
    else:
        return tx.fold(function, *values)
    by_elements = _compare_sets(tx, symbol, left, right)
    if by_elements is not None:
        return by_elements
    if symbol in ("==", "!="):
        equal = _equal(tx, left, right)
        if equal is not None:
            return Const(equal == (symbol == "=="))
    refuse_operands(tx, function, left, right)
    raise Unsupported("unsupported-operation", f"{left.describe()} {symbol} {right.describe()}")


def _compare_sets(tx: Tracer, symbol: str, left: Value, right: Value) -> Value | None:
    """The six comparisons of sets and of dicts' views that behave as sets; None for anything else."""
    from engine.trace.values.mappings import DictView
    from engine.trace.values.sequences import sequence_items
    from engine.trace.values.sets import SetValue

    sides: list[set[Any]] = []
    for side in (left, right):
        if not isinstance(side, SetValue) and not (isinstance(side, DictView) and side.kind != "values"):
            return None
        made = side if isinstance(side, SetValue) else SetValue.of(tx, sequence_items(tx, side))
        sides.append(set(made.elements))
    return Const(COMPARE[symbol][0](*sides))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex, bool))


def _equal_sequences(tx: Tracer, left: Any, right: Any) -> bool:
    if issubclass(left.type(), tuple) != issubclass(right.type(), tuple) or len(left.items) != len(right.items):
        return False
    at = 0
    while at < min(len(left.items), len(right.items)):  # which comparing may change
        if not same_or_equal(tx, force(tx, left.items[at]), force(tx, right.items[at])):
            return False
        at += 1
    return len(left.items) == len(right.items)


def _first_difference(tx: Tracer, symbol: str, left: Any, right: Any) -> Value:
    """Order of two tuples or two lists: that of their first items that differ, else of their lengths."""
    for a, b in zip(left.items, right.items, strict=False):
        if not same_or_equal(tx, force(tx, a), force(tx, b)):
            return compare(tx, symbol, a, b)
    return tx.fold(COMPARE[symbol][0], len(left.items), len(right.items))


def _equal(tx: Tracer, left: Value, right: Value) -> bool | None:
    """Equality where neither side defines its own: identity, or the equality of containers; None where unknown."""
    from engine.trace.values.classes import ClassValue
    from engine.trace.values.exceptions import ExceptionValue
    from engine.trace.values.functions import FunctionValue
    from engine.trace.values.mappings import DictValue
    from engine.trace.values.methods import BuiltinValue
    from engine.trace.values.objects import ObjectValue, PythonModule

    if isinstance(left, DictValue) and isinstance(right, DictValue):
        if set(left.entries) != set(right.entries):
            return False
        if not all(
            same_or_equal(tx, force(tx, v), force(tx, right.entries[k][1])) for k, (_, v) in left.entries.items()
        ):
            return False
        in_order = all(issubclass(side.cls, collections.OrderedDict) for side in (left, right))
        return not in_order or list(left.entries) == list(right.entries)
    if not has_method(left.type(), "__eq__", below=object) and not has_method(right.type(), "__eq__", below=object):
        return is_same(tx, left, right)
    by_identity = (ObjectValue, FunctionValue, ClassValue, BuiltinValue, PythonModule, ExceptionValue)
    if isinstance(left, by_identity) or isinstance(right, by_identity):
        return is_same(tx, left, right)
    if type(left) is not type(right) or isinstance(left, Const) != isinstance(right, Const):
        return False if all(_compares_plainly(v.type()) for v in (left, right)) else None
    return None


def _compares_plainly(cls: type) -> bool:
    """Whether instances equal none of another kind: those of builtin classes."""
    owner = next(base for base in cls.__mro__ if "__eq__" in vars(base))
    return owner.__module__ in ("builtins", "collections", "torch")


def is_same(tx: Tracer, left: Value, right: Value) -> bool:
    """``left is right``."""
    from engine.trace.values.instance_dicts import InstanceDict
    from engine.trace.values.storages import same_storage

    left, right = force(tx, left), force(tx, right)
    if left is right:
        return True
    if (same := same_storage(tx, left, right)) is not None:
        return same
    if isinstance(left, InstanceDict) and isinstance(right, InstanceDict):
        return left.of_object is right.of_object
    if isinstance(left, Const) and isinstance(right, Const):
        return _is_same_constant(tx, left, right)
    if _is_inside(left, right) or _is_inside(right, left):
        return True
    if left.type() is right.type() and (_is_number_symbol(left) or _is_number_symbol(right)):
        return _is_same_constant(tx, Const(left.python(tx)), Const(right.python(tx)))
    mine, other = tx.real_of(left), tx.real_of(right)
    if mine is not NotImplemented and other is not NotImplemented:
        is_guarded = [v.is_mutable or v.real() is NotImplemented for v in (left, right)]
        if all(is_guarded):
            tx.guard_same(left, right, mine is other)
        return mine is other
    return is_empty_tuple(left) and is_empty_tuple(right)


def _is_number_symbol(value: Value) -> bool:
    from engine.trace.values.symbolic import SymValue

    return isinstance(value, SymValue)


def _is_inside(value: Value, other: Value) -> bool:
    """Whether a tensor was read from inside a wrapper that was made of the other one, or has it under another name, too."""
    from engine.trace.values.tensor import TensorValue, is_subclass

    if not (isinstance(value, TensorValue) and isinstance(other, TensorValue)) or value.fake is not other.fake:
        return False
    node = value.made_by
    return node is not None and node.target is getattr and is_subclass(node.args[0].meta.get("example_value"))  # type: ignore[union-attr]


def is_empty_tuple(value: Value) -> bool:
    """Of these there is one."""
    from engine.trace.values.sequences import TupleValue

    return isinstance(value, TupleValue) and value.cls is tuple and not value.items


_MADE_ANEW = (int, float, complex, str, bytes)  # of these, equal ones may be two objects


def _is_same_constant(tx: Tracer, left: Const, right: Const) -> bool:
    a, b = left.value, right.value
    if a is not b and (type(a) is not type(b) or a != b or type(a) not in _MADE_ANEW):
        return type(a) is type(b) and bool(a == b)
    if type(a) in _MADE_ANEW and (left.origin is not None or right.origin is not None):
        mine, other = (
            v if v.origin is not None else Const(v.value, Fixed(v.value, repr(v.value))) for v in (left, right)
        )
        tx.guard_same(mine, other, a is b)
    return a is b


def same_or_equal(tx: Tracer, left: Value, right: Value) -> bool:
    """What ``in``, ``index`` and container equality ask of two items."""
    if left is right:
        return True
    if isinstance(left, Const) and isinstance(right, Const) and left.value is right.value:
        return True  # also what does not equal itself, as NaN
    return force(tx, compare(tx, "==", left, right)).truth(tx)


def unary(tx: Tracer, symbol: str, value: Value) -> Value:
    """``-x``, ``+x``, ``~x``."""
    from engine.trace.values.objects import ObjectValue

    value = force(tx, value)
    if isinstance(value, ObjectValue):
        return value.call_special(tx, {"-": "__neg__", "+": "__pos__", "~": "__invert__"}[symbol], [])
    if _is_truth(value):
        value = Const(value.python(tx))
    if symbol == "~" and _is_whole(value):
        return binary(tx, "-", Const(-1), value)
    if _is_graph_value(value):
        return emit(tx, "call_function", UNARY[symbol], [value])
    found = on_arrays(tx, UNARY[symbol], [value])
    if found is not None:
        return found
    try:
        return tx.fold(UNARY[symbol], value.python(tx))
    except NotConstant:
        raise value.refuse(f"the operator {symbol}") from None


def fold_call(tx: Tracer, fn: Any, args: list[Value], kwargs: dict[str, Value], what: str) -> Value:
    """Call a pure function now, on constants only."""
    try:
        values = tx.constants(args)
        words = dict(zip(kwargs, tx.constants(kwargs.values()), strict=True))
    except NotConstant:
        raise Unsupported("unknown-call", f"{what}") from None
    return tx.fold(fn, *values, **words)


_OPERATOR_METHODS = {f"__{name}__": symbol for symbol, (_, name) in (*BINARY.items(), *INPLACE.items())}
COMPARE_METHODS = {entry[1]: symbol for symbol, entry in COMPARE.items()}


_BY_NAME = frozenset((*_OPERATOR_METHODS, *COMPARE_METHODS, "__rmul__"))


def operator_method(tx: Tracer, of: Value, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A special method called by its name on a builtin container, or any other method on constants."""
    if len(args) == 1 and name in _BY_NAME and is_not_implemented(tx, of, name, args[0]):
        return Const(NotImplemented)
    if name == "__rmul__" and len(args) == 1:
        return binary(tx, "*", of, args[0])
    if name in _OPERATOR_METHODS and len(args) == 1:
        return binary(tx, _OPERATOR_METHODS[name], of, args[0])
    if name in COMPARE_METHODS and len(args) == 1:
        return compare(tx, COMPARE_METHODS[name], of, args[0])
    if name == "__setitem__":
        of.set_item(tx, args[0], args[1])
        return Const(None)
    if name == "__delitem__":
        of.del_item(tx, args[0])
        return Const(None)
    if name == "__bool__":
        return Const(of.truth(tx))
    if name == "__init__":
        return Const(None)
    if name == "__reversed__" and not args and hasattr(of.type(), name):
        return force(tx, tx.fixed(reversed).call(tx, [of], {}))
    method = getattr(of.type(), name, None)
    if method is None:
        return tx.raise_error(AttributeError, f"'{of.type().__name__}' object has no attribute '{name}'")  # type: ignore[no-any-return]
    if of.type() in (tuple, frozenset) or name in ("__repr__", "__str__", "__format__", "__hash__", "__reduce__"):
        return fold_call(tx, method, [of, *args], kwargs, f"{of.describe()}.{name}")
    refuse_arguments(tx, of.type(), name, len(args), list(kwargs))
    raise of.refuse(f"the method {name!r}")


def sorted_items(tx: Tracer, items: list[Value], kwargs: dict[str, Value]) -> list[Value]:
    """Items in the order of ``sorted(items, key=..., reverse=...)``; comparing runs traced code where needed."""
    key = force(tx, kwargs["key"]) if "key" in kwargs else Const(None)
    reverse = force(tx, kwargs["reverse"]).truth(tx) if "reverse" in kwargs else False
    by_key = isinstance(key, Const) and key.value is None
    keys = [force(tx, i) if by_key else force(tx, key.call(tx, [i], {})) for i in items]

    def less(a: int, b: int) -> int:  # sorting asks nothing else
        return -force(tx, compare(tx, "<", keys[a], keys[b])).truth(tx)

    order = sorted(range(len(items)), key=functools.cmp_to_key(less), reverse=reverse)
    return [items[n] for n in order]
