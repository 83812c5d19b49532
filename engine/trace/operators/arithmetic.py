"""Python operators over variables: arithmetic, comparison, identity, constant folding."""

from __future__ import annotations

import collections
import functools
import operator
import sys
from collections.abc import Callable
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.introspection.unbacked_symbols import has_unbacked_symbols
from engine.ir.sources.roots import ConstantSource
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.variables.base import ConstantVariable, NotPythonConstant, Variable, realize
from engine.trace.variables.exceptions.type_errors import (
    check_argument_count,
    check_operand_types,
    has_method,
    returns_not_implemented,
)
from engine.trace.variables.stdlib.string_format import format_proxy

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer

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


def _is_graph_variable(value: Variable) -> bool:
    from engine.trace.variables.tensors.sym_node import SymNodeVariable
    from engine.trace.variables.tensors.tensor import TensorVariable

    return isinstance(value, (TensorVariable, SymNodeVariable))


def _becomes_node(left: Variable, right: Variable) -> bool:
    """Return True if the operator on these two becomes a node.

    One must be a graph variable, the other a graph variable or a constant.
    """
    if not (_is_graph_variable(left) or _is_graph_variable(right)):
        return False
    return all(_is_graph_variable(v) or isinstance(v, ConstantVariable) for v in (left, right))


def _is_symint(value: Variable) -> bool:
    """Return True if the variable is a SymInt."""
    from engine.trace.variables.tensors.sym_node import SymNodeVariable

    return isinstance(value, SymNodeVariable) and value.python_type() is int


def _coerce_numpy_scalars(tx: Tracer, left: Variable, right: Variable, *, compared: bool) -> tuple[Variable, Variable]:
    """Convert operands for operators with symbols.

    Beside a numpy scalar, a symbol becomes a constant, since the result is numpy's. In a comparison with a
    tensor, a numpy scalar becomes a Python number. Beside a SymInt, a bool becomes an int.
    """
    from engine.trace.variables.tensors.sym_node import SymNodeVariable

    pair = [left, right]
    for n, (value, other) in enumerate(((left, right), (right, left))):
        if (
            isinstance(value, ConstantVariable)
            and type(value.value).__module__ == "numpy"
            and _is_graph_variable(other)
        ):
            if isinstance(other, SymNodeVariable):
                pair[1 - n] = ConstantVariable(other.as_python_constant(tx))
            elif compared and hasattr(value.value, "item"):
                pair[n] = ConstantVariable(value.value.item())
        elif isinstance(value, ConstantVariable) and type(value.value) is bool and _is_symint(other):
            pair[n] = ConstantVariable(int(value.value))
    return pair[0], pair[1]


def _symbolize_changing_scalars(tx: Tracer, left: Variable, right: Variable) -> tuple[Variable, Variable]:
    """Replace a numpy scalar that changes between calls by a symbol, if the other is a tensor."""
    from engine.trace.variables.constants import DynamicNumpyScalarVariable
    from engine.trace.variables.tensors.tensor import TensorVariable

    if isinstance(left, TensorVariable) and isinstance(right, DynamicNumpyScalarVariable):
        return left, right.as_symbol(tx)
    if isinstance(right, TensorVariable) and isinstance(left, DynamicNumpyScalarVariable):
        return left.as_symbol(tx), right
    return left, right


def binary_op(tx: Tracer, symbol: str, left: Variable, right: Variable) -> Variable:
    """Trace ``left symbol right``; ``symbol`` may be in-place (``+=``)."""
    from engine.trace.variables.containers.builtin_subclasses import as_builtin
    from engine.trace.variables.tensors.sym_float_division import floor_divide_by_power_of_two

    left, right = _symbolize_changing_scalars(tx, realize(tx, left), realize(tx, right))
    left, right = _coerce_numpy_scalars(tx, left, right, compared=False)
    in_place = symbol in INPLACE
    function, name = INPLACE[symbol] if in_place else BINARY[symbol]
    if symbol in ("%", "%=") and isinstance(left, ConstantVariable) and isinstance(left.value, str):
        text = left.value
        return tx.fold_constant(lambda: text % format_proxy(tx, right))
    exact = floor_divide_by_power_of_two(tx, symbol, left, right)
    if exact is not None:
        return exact
    left, right = _specialize_symbools(tx, symbol, *_specialize_symfloats(tx, symbol, left, right))
    if _becomes_node(left, right):
        if in_place and not _has_inplace_method(left, name):
            function = BINARY[symbol[:-1]][0]
        return emit_node(tx, "call_function", function, [left, right])
    if isinstance(left, ConstantVariable) and isinstance(right, ConstantVariable):
        return tx.fold_constant(function, left.value, right.value)
    by_kind = numpy_op(tx, function, [left, right]) or _container_op(tx, symbol, left, right)
    if by_kind is not None:
        return by_kind
    by_method = call_user_operators(tx, name, left, right, in_place=in_place)
    if by_method is not None:
        return by_method
    by_builtins = _builtin_after_not_implemented(tx, function, name[1:] if in_place else name, left, right)
    if by_builtins is not None:
        return by_builtins
    left, right = as_builtin(left), as_builtin(right)
    try:
        values = tx.as_python_constants([left, right])
    except NotPythonConstant:
        pass
    else:
        return tx.fold_constant(BINARY[symbol.rstrip("=")][0] if in_place else function, *values)
    if _is_graph_variable(left) or _is_graph_variable(right):
        return emit_node(
            tx,
            "call_function",
            BINARY[symbol.rstrip("=")][0] if in_place and not _has_inplace_method(left, name) else function,
            [left, right],
        )
    check_operand_types(tx, function, left, right)
    raise Unsupported("unsupported-operation", f"{left.describe()} {symbol} {right.describe()}")


def _builtin_after_not_implemented(
    tx: Tracer, function: Callable[..., Any], name: str, left: Variable, right: Variable
) -> Variable | None:
    """Apply the builtin number operator after user-defined methods returned NotImplemented.

    Return None if no operand's class defines such a method. CPython's dispatch runs on stand-in classes that
    return NotImplemented.
    """
    from engine.trace.variables.containers.builtin_subclasses import BuiltinSubclassVariable, as_builtin

    classes: dict[type, type] = {}
    operands: list[Any] = []
    for value in (left, right):
        plain = as_builtin(value)
        if not isinstance(plain, ConstantVariable):
            return None
        operand = plain.value
        own = (
            value.overridden_methods() & {f"__{name}__", f"__r{name}__"}
            if isinstance(value, BuiltinSubclassVariable)
            else None
        )
        if own and isinstance(operand, (int, float, complex)):
            cls = value.python_type()
            made = classes.setdefault(
                cls, type(cls.__name__, (type(operand),), dict.fromkeys(own, _return_not_implemented))
            )
            operand = made(operand)
        operands.append(operand)
    return tx.fold_constant(function, *operands) if classes else None


def _return_not_implemented(*operands: Any) -> Any:
    return NotImplemented


_SPECIALIZED_FLOAT_OPS = frozenset(("**", "//", "%"))
"""Operators that ShapeEnv rejects for some floats, e.g. the power of a negative float."""


def _specialize_symfloats(tx: Tracer, symbol: str, left: Variable, right: Variable) -> tuple[Variable, Variable]:
    """Specialize symbolic floats if the operator does not support them as symbols."""
    from engine.trace.variables.tensors.sym_node import SymNodeVariable
    from engine.trace.variables.tensors.tensor import TensorVariable

    operands = (left, right)
    if (
        symbol.rstrip("=") == "//"
        and _is_symint(left)
        and isinstance(right, ConstantVariable)
        and type(right.value) is int
    ):
        # sympy merges nested floor divisions; that is right for positive divisors only
        return (unary_op(tx, "-", left), ConstantVariable(-right.value)) if right.value < 0 else operands
    if any(isinstance(v, SymNodeVariable) for v in operands) and any(v.python_type() is complex for v in operands):
        first, second = (
            ConstantVariable(v.as_python_constant(tx)) if isinstance(v, SymNodeVariable) else v for v in operands
        )
        return first, second
    has_float = any(isinstance(v, SymNodeVariable) and v.python_type() is float for v in operands)
    if (
        symbol.rstrip("=") not in _SPECIALIZED_FLOAT_OPS
        or not has_float
        or any(isinstance(v, TensorVariable) for v in operands)
    ):
        return operands
    if symbol.startswith("**") and all(not isinstance(v, SymNodeVariable) or _is_positive(v) for v in operands):
        return operands
    first, second = (
        ConstantVariable(v.as_python_constant(tx)) if isinstance(v, SymNodeVariable) else v for v in operands
    )
    return first, second


def _is_symbool(value: Variable) -> bool:
    """Return True if the variable is a SymBool."""
    from engine.trace.variables.tensors.sym_node import SymNodeVariable

    return isinstance(value, SymNodeVariable) and value.python_type() is bool


def _specialize_symbools(tx: Tracer, symbol: str, left: Variable, right: Variable) -> tuple[Variable, Variable]:
    """Specialize SymBool operands when SymBool does not implement the operator."""
    if not (_is_symbool(left) or _is_symbool(right)) or symbol.rstrip("=") in ("+", "-", "*"):
        return left, right
    if symbol.rstrip("=") in ("&", "|") and all(v.python_type() is bool for v in (left, right)):
        return left, right
    first, second = (ConstantVariable(v.as_python_constant(tx)) if _is_symbool(v) else v for v in (left, right))
    return first, second


def _compare_symbool(tx: Tracer, symbol: str, left: Variable, right: Variable) -> Variable | None:
    """Trace ``==`` and ``!=`` of a SymBool and a constant; return None for anything else."""
    truth, other = (left, right) if _is_symbool(left) else (right, left)
    if symbol not in ("==", "!=") or not _is_symbool(truth):
        return None
    if not isinstance(other, ConstantVariable) or other.value not in (0, 1):
        return None
    return truth if bool(other.value) == (symbol == "==") else emit_node(tx, "call_function", torch.sym_not, [truth])


def _is_positive(value: Any) -> bool:
    """Return True if the symbol's hint is positive, or if it is unbacked and has no hint."""
    return has_unbacked_symbols(value.sym) or value.sym.node.hint > 0


def numpy_op(tx: Tracer, function: Callable[..., Any], operands: list[Variable]) -> Variable | None:
    """Apply the operator to numpy arrays; return None if no operand is one.

    Return None too if numpy was never imported.
    """
    if "numpy" not in sys.modules:
        return None
    from engine.trace.variables.tensors.numpy_arrays import numpy_operator

    return numpy_operator(tx, function, operands)


def _has_inplace_method(left: Variable, name: str) -> bool:
    """Return True if the in-place operator mutates its left operand.

    ``torch.Tensor`` has no ``__imatmul__``: ``@=`` binds the name to a new tensor.
    """
    from engine.trace.variables.tensors.tensor import TensorVariable

    return isinstance(left, TensorVariable) and hasattr(torch.Tensor, f"__{name}__")


def _container_op(tx: Tracer, symbol: str, left: Variable, right: Variable) -> Variable | None:
    from engine.trace.variables.containers.dicts import DictVariable, DictViewVariable
    from engine.trace.variables.containers.sequences import ListVariable, SequenceVariable, TupleVariable
    from engine.trace.variables.containers.sets import SetVariable

    plain = symbol.rstrip("=")
    if symbol == "+=" and isinstance(left, ListVariable):
        left.call_method(tx, "extend", [right], {})
        return left
    if plain == "+" and isinstance(left, SequenceVariable) and isinstance(right, SequenceVariable):
        if isinstance(left, ListVariable) and isinstance(right, ListVariable) and left.cls is right.cls:
            return left.make_slice([*left.items, *right.items])
        if isinstance(left, TupleVariable) and isinstance(right, TupleVariable):
            import torch

            if left.cls is right.cls is tuple and not (left.items and right.items):
                return left if left.items else right
            makes_size = left.cls is torch.Size or (right.cls is torch.Size and hasattr(torch.Size, "__radd__"))
            return TupleVariable([*left.items, *right.items], torch.Size if makes_size else tuple)
    if plain == "*" and isinstance(left, SequenceVariable) and isinstance(right, ConstantVariable):
        return _repeat_sequence(tx, symbol, left, right)
    if plain == "*" and isinstance(right, SequenceVariable) and isinstance(left, ConstantVariable):
        return _repeat_sequence(tx, "*", right, left)
    if symbol == "|=" and isinstance(left, DictVariable) and left.cls is not MappingProxyType:
        left.update(tx, right)
        return left
    if plain == "|" and isinstance(left, DictVariable) and isinstance(right, DictVariable):
        of = right if left.cls is dict and right.cls is not dict else left
        merged = DictVariable(
            dict(left.entries), None, dict if of.cls is MappingProxyType else of.cls, of.default_factory
        )
        merged.entries.update(right.entries)
        return merged
    if plain in _SET_METHODS and any(
        isinstance(v, DictViewVariable) and v.view_kind != "values" for v in (left, right)
    ):
        return _dict_view_op(tx, plain, left, right)
    if plain in _SET_METHODS and isinstance(left, SetVariable) and isinstance(right, SetVariable):
        combined = left.combine(tx, _SET_METHODS[plain], right)
        if symbol.endswith("=") and isinstance(left, SetVariable) and left.builtin_class is set:
            tx.side_effects.record_mutation(left)
            left.elements = combined.elements
            return left
        return combined
    return None


def _dict_view_op(tx: Tracer, symbol: str, left: Variable, right: Variable) -> Variable | None:
    """Apply a set operator to a dict view and an iterable: the result is always a new set.

    Return None if the left operand's class defines the operator itself.
    """
    from engine.trace.variables.containers.sequences import sequence_items
    from engine.trace.variables.containers.sets import SetVariable
    from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

    if isinstance(left, UserDefinedObjectVariable) and not isinstance(getattr(left, "inner", None), SetVariable):
        return None
    if isinstance(left, UserDefinedObjectVariable) and isinstance(
        _class_entry_of(left, BINARY[symbol][1]), FunctionType
    ):
        return None
    mine, other = (SetVariable.from_items(tx, sequence_items(tx, side)) for side in (left, right))
    return mine.combine(tx, _SET_METHODS[symbol], other)


def _class_entry_of(value: Variable, name: str) -> Any:
    """Return the class entry for an operator's special method."""
    from engine.trace.variables.objects.class_lookup import find_in_class

    found = find_in_class(value.python_type(), f"__{name}__")
    return None if found is None else found[1]


_SET_METHODS = {"|": "union", "&": "intersection", "-": "difference", "^": "symmetric_difference"}


_MAX_LIST_LENGTH = sys.maxsize // 8
"""A list cannot have more items than this."""


def _repeat_sequence(tx: Tracer, symbol: str, sequence: Any, times: ConstantVariable) -> Variable | None:
    from engine.trace.variables.containers.sequences import TupleVariable

    if not isinstance(times.value, int):
        return None
    if len(sequence.items) * times.value >= _MAX_LIST_LENGTH:
        if abs(times.value) > sys.maxsize:
            tx.raise_error(OverflowError, "cannot fit 'int' into an index-sized integer")
        raise tx.make_user_exception(MemoryError())
    if isinstance(sequence, TupleVariable):
        if times.value == 1 and sequence.cls is tuple:
            return sequence
        return TupleVariable(sequence.items * times.value, sequence.cls if sequence.cls.__name__ == "Size" else tuple)
    if symbol == "*=":
        tx.side_effects.record_mutation(sequence)
        sequence.items[:] = sequence.make_slice(sequence.items * times.value).items
        return sequence  # type: ignore[no-any-return]
    return sequence.make_slice(sequence.items * times.value)  # type: ignore[no-any-return]


def call_user_operators(
    tx: Tracer, name: str, left: Variable, right: Variable, *, in_place: bool = False
) -> Variable | None:
    """Call the operands' own methods for an operator.

    Return None if they have none, or if all return NotImplemented.
    """
    from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

    plain = name[1:] if in_place else name
    tries: list[tuple[Variable, str, Variable]] = []
    if in_place:
        tries.append((left, f"__{name}__", right))
    first, second = (left, f"__{plain}__", right), (right, f"__r{plain}__", left)
    reflected_first = (
        isinstance(right, UserDefinedObjectVariable)
        and right.python_type() is not left.python_type()
        and issubclass(right.python_type(), left.python_type())
    )
    if left.python_type() is right.python_type():  # CPython does not try the reflected method for operands of one type
        tries.append(first)
    else:
        tries.extend([second, first] if reflected_first else [first, second])
    for of, method_name, other in tries:
        if not isinstance(of, UserDefinedObjectVariable):
            continue
        method = of.lookup_special_method(tx, method_name)
        if method is None:
            continue
        result = realize(tx, method.call(tx, [other], {}))
        if not (isinstance(result, ConstantVariable) and result.value is NotImplemented):
            return result
    return None


def compare_op(tx: Tracer, symbol: str, left: Variable, right: Variable) -> Variable:
    """Trace ``left symbol right`` for the six comparisons."""
    from engine.trace.variables.containers.builtin_subclasses import as_builtin
    from engine.trace.variables.containers.sequences import SequenceVariable
    from engine.trace.variables.objects.id_and_hash import compare_ids
    from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable
    from engine.trace.variables.tensors.storages import compare_data_ptrs

    left, right = _symbolize_changing_scalars(tx, realize(tx, left), realize(tx, right))
    left, right = _coerce_numpy_scalars(tx, left, right, compared=True)
    function, name, reflected = COMPARE[symbol]
    if isinstance(left, ConstantVariable) and isinstance(right, ConstantVariable):
        return tx.fold_constant(function, left.value, right.value)
    if symbol in ("==", "!=") and (same := compare_ids(tx, left, right)) is not None:
        return ConstantVariable(same == (symbol == "=="))
    if symbol in ("==", "!=") and (same := compare_data_ptrs(tx, left, right)) is not None:
        return ConstantVariable(same == (symbol == "=="))
    by_truth = _compare_symbool(tx, symbol, left, right)
    if by_truth is not None:
        return by_truth
    left, right = _specialize_symbools(tx, symbol, left, right)
    if isinstance(left, ConstantVariable) and isinstance(right, ConstantVariable):
        return tx.fold_constant(function, left.value, right.value)
    if _becomes_node(left, right):
        if any(isinstance(v, ConstantVariable) and not _is_number(v.value) for v in (left, right)) and symbol in (
            "==",
            "!=",
        ):
            return ConstantVariable(symbol == "!=")
        return emit_node(tx, "call_function", function, [left, right])
    found = numpy_op(tx, function, [left, right])
    if found is not None:
        return found
    for of, method_name, other in ((left, name, right), (right, reflected, left)):
        if (
            isinstance(of, UserDefinedObjectVariable)
            and (method := of.lookup_special_method(tx, method_name)) is not None
        ):
            result = realize(tx, method.call(tx, [other], {}))
            if not (isinstance(result, ConstantVariable) and result.value is NotImplemented):
                return result
        elif (
            symbol == "!="
            and isinstance(of, UserDefinedObjectVariable)
            and (method := of.lookup_special_method(tx, "__eq__")) is not None
        ):
            result = realize(tx, method.call(tx, [other], {}))
            if not (isinstance(result, ConstantVariable) and result.value is NotImplemented):
                return ConstantVariable(not result.is_truthy(tx))
    if symbol in ("==", "!=") and isinstance(left, SequenceVariable) and isinstance(right, SequenceVariable):
        return ConstantVariable(_equal_sequences(tx, left, right) == (symbol == "=="))
    if isinstance(left, SequenceVariable) and isinstance(right, SequenceVariable):
        for base in (tuple, list):
            if issubclass(left.python_type(), base) and issubclass(right.python_type(), base):
                return _order_sequences(tx, symbol, left, right)
    if as_builtin(left) is left or as_builtin(right) is right:
        left, right = (
            as_builtin(left),
            as_builtin(right),
        )  # user methods were called above; the builtin method of the other side handles both
    try:
        values = tx.as_python_constants([left, right])
    except NotPythonConstant:
        pass
    else:
        return tx.fold_constant(function, *values)
    by_elements = _compare_sets(tx, symbol, left, right)
    if by_elements is not None:
        return by_elements
    if symbol in ("==", "!="):
        equal = _default_equal(tx, left, right)
        if equal is not None:
            return ConstantVariable(equal == (symbol == "=="))
    check_operand_types(tx, function, left, right)
    raise Unsupported("unsupported-operation", f"{left.describe()} {symbol} {right.describe()}")


def _compare_sets(tx: Tracer, symbol: str, left: Variable, right: Variable) -> Variable | None:
    """Compare sets and set-like dict views; return None for anything else."""
    from engine.trace.variables.containers.dicts import DictViewVariable
    from engine.trace.variables.containers.sequences import sequence_items
    from engine.trace.variables.containers.sets import SetVariable

    sides: list[set[Any]] = []
    for side in (left, right):
        if not isinstance(side, SetVariable) and not (
            isinstance(side, DictViewVariable) and side.view_kind != "values"
        ):
            return None
        made = side if isinstance(side, SetVariable) else SetVariable.from_items(tx, sequence_items(tx, side))
        sides.append(set(made.elements))
    return ConstantVariable(COMPARE[symbol][0](*sides))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex, bool))


def _equal_sequences(tx: Tracer, left: Any, right: Any) -> bool:
    if issubclass(left.python_type(), tuple) != issubclass(right.python_type(), tuple) or len(left.items) != len(
        right.items
    ):
        return False
    at = 0
    while at < min(len(left.items), len(right.items)):  # comparing may mutate the lists
        if not identical_or_equal(tx, realize(tx, left.items[at]), realize(tx, right.items[at])):
            return False
        at += 1
    return len(left.items) == len(right.items)


def _order_sequences(tx: Tracer, symbol: str, left: Any, right: Any) -> Variable:
    """Order two tuples or two lists by their first items that differ, else by length."""
    for a, b in zip(left.items, right.items, strict=False):
        if not identical_or_equal(tx, realize(tx, a), realize(tx, b)):
            return compare_op(tx, symbol, a, b)
    return tx.fold_constant(COMPARE[symbol][0], len(left.items), len(right.items))


def _default_equal(tx: Tracer, left: Variable, right: Variable) -> bool | None:
    """Return equality where neither side defines ``__eq__``: identity, or container equality.

    Return None if it is unknown.
    """
    from engine.trace.variables.callables.builtin_functions import BuiltinVariable
    from engine.trace.variables.callables.functions import FunctionVariable
    from engine.trace.variables.containers.dicts import DictVariable
    from engine.trace.variables.exceptions.exceptions import ExceptionVariable
    from engine.trace.variables.objects.classes import ClassVariable
    from engine.trace.variables.objects.python_modules import PythonModuleVariable
    from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

    if isinstance(left, DictVariable) and isinstance(right, DictVariable):
        if set(left.entries) != set(right.entries):
            return False
        if not all(
            identical_or_equal(tx, realize(tx, v), realize(tx, right.entries[k][1]))
            for k, (_, v) in left.entries.items()
        ):
            return False
        in_order = all(issubclass(side.cls, collections.OrderedDict) for side in (left, right))
        return not in_order or list(left.entries) == list(right.entries)
    if not has_method(left.python_type(), "__eq__", below=object) and not has_method(
        right.python_type(), "__eq__", below=object
    ):
        return is_same_object(tx, left, right)
    by_identity = (
        UserDefinedObjectVariable,
        FunctionVariable,
        ClassVariable,
        BuiltinVariable,
        PythonModuleVariable,
        ExceptionVariable,
    )
    if isinstance(left, by_identity) or isinstance(right, by_identity):
        return is_same_object(tx, left, right)
    if type(left) is not type(right) or isinstance(left, ConstantVariable) != isinstance(right, ConstantVariable):
        return False if all(_has_builtin_eq(v.python_type()) for v in (left, right)) else None
    return None


def _has_builtin_eq(cls: type) -> bool:
    """Return True for builtin types: their instances never equal instances of other types."""
    owner = next(base for base in cls.__mro__ if "__eq__" in vars(base))
    return owner.__module__ in ("builtins", "collections", "torch")


def is_same_object(tx: Tracer, left: Variable, right: Variable) -> bool:
    """Return ``left is right``."""
    from engine.trace.variables.objects.instance_dicts import InstanceDictVariable
    from engine.trace.variables.tensors.storages import compare_storages

    left, right = realize(tx, left), realize(tx, right)
    if left is right:
        return True
    if (same := compare_storages(tx, left, right)) is not None:
        return same
    if isinstance(left, InstanceDictVariable) and isinstance(right, InstanceDictVariable):
        return left.owner is right.owner
    if isinstance(left, ConstantVariable) and isinstance(right, ConstantVariable):
        return _is_same_constant(tx, left, right)
    if _is_inner_tensor(left, right) or _is_inner_tensor(right, left):
        return True
    if left.python_type() is right.python_type() and (_is_symbolic_number(left) or _is_symbolic_number(right)):
        return _is_same_constant(
            tx, ConstantVariable(left.as_python_constant(tx)), ConstantVariable(right.as_python_constant(tx))
        )
    mine, other = tx.objects.real_object(left), tx.objects.real_object(right)
    if mine is not NotImplemented and other is not NotImplemented:
        is_guarded = [v.is_mutable or v.as_python_object() is NotImplemented for v in (left, right)]
        if all(is_guarded):
            tx.guard_same_object(left, right, mine is other)
        return mine is other
    return is_empty_tuple(left) and is_empty_tuple(right)


def _is_symbolic_number(value: Variable) -> bool:
    from engine.trace.variables.tensors.sym_node import SymNodeVariable

    return isinstance(value, SymNodeVariable)


def _is_inner_tensor(value: Variable, other: Variable) -> bool:
    """Return True if ``value`` is an inner tensor of a wrapper and is the tensor ``other``.

    It was read from a wrapper subclass built around ``other``, or one that has it under another name too.
    """
    from engine.trace.variables.tensors.tensor import TensorVariable
    from engine.trace.variables.tensors.wrapper_subclasses import is_wrapper_subclass

    if not (isinstance(value, TensorVariable) and isinstance(other, TensorVariable)) or value.fake is not other.fake:
        return False
    node = value.node_or_none
    return node is not None and node.target is getattr and is_wrapper_subclass(node.args[0].meta.get("example_value"))  # type: ignore[union-attr]


def is_empty_tuple(value: Variable) -> bool:
    """Return True for the empty tuple, which is a singleton."""
    from engine.trace.variables.containers.sequences import TupleVariable

    return isinstance(value, TupleVariable) and value.cls is tuple and not value.items


_UNINTERNED_TYPES = (int, float, complex, str, bytes)  # equal instances of these types may be distinct objects


def _is_same_constant(tx: Tracer, left: ConstantVariable, right: ConstantVariable) -> bool:
    a, b = left.value, right.value
    if a is not b and (type(a) is not type(b) or a != b or type(a) not in _UNINTERNED_TYPES):
        return type(a) is type(b) and bool(a == b)
    if type(a) in _UNINTERNED_TYPES and (left.source is not None or right.source is not None):
        mine, other = (
            v if v.source is not None else ConstantVariable(v.value, ConstantSource(v.value, repr(v.value)))
            for v in (left, right)
        )
        tx.guard_same_object(mine, other, a is b)
    return a is b


def identical_or_equal(tx: Tracer, left: Variable, right: Variable) -> bool:
    """Compare two items as ``in``, ``index`` and container equality do: identity or equality."""
    if left is right:
        return True
    if isinstance(left, ConstantVariable) and isinstance(right, ConstantVariable) and left.value is right.value:
        return True  # also for values that do not equal themselves, such as NaN
    return realize(tx, compare_op(tx, "==", left, right)).is_truthy(tx)


def unary_op(tx: Tracer, symbol: str, value: Variable) -> Variable:
    """Trace ``-x``, ``+x`` or ``~x``."""
    from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

    value = realize(tx, value)
    if isinstance(value, UserDefinedObjectVariable):
        return value.call_special_method(tx, {"-": "__neg__", "+": "__pos__", "~": "__invert__"}[symbol], [])
    if _is_symbool(value):
        value = ConstantVariable(value.as_python_constant(tx))
    if symbol == "~" and _is_symint(value):
        return binary_op(tx, "-", ConstantVariable(-1), value)
    if _is_graph_variable(value):
        return emit_node(tx, "call_function", UNARY[symbol], [value])
    found = numpy_op(tx, UNARY[symbol], [value])
    if found is not None:
        return found
    try:
        return tx.fold_constant(UNARY[symbol], value.as_python_constant(tx))
    except NotPythonConstant:
        raise value.unsupported(f"the operator {symbol}") from None


def fold_constant_call(tx: Tracer, fn: Any, args: list[Variable], kwargs: dict[str, Variable], what: str) -> Variable:
    """Call a pure function at trace time; all arguments must be constants."""
    try:
        values = tx.as_python_constants(args)
        words = dict(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True))
    except NotPythonConstant:
        raise Unsupported("non-constant-arguments", f"{what}") from None
    return tx.fold_constant(fn, *values, **words)


_OPERATOR_METHODS = {f"__{name}__": symbol for symbol, (_, name) in (*BINARY.items(), *INPLACE.items())}
COMPARE_METHODS = {entry[1]: symbol for symbol, entry in COMPARE.items()}


_OPERATOR_METHOD_NAMES = frozenset((*_OPERATOR_METHODS, *COMPARE_METHODS, "__rmul__"))


def call_special_by_name(
    tx: Tracer, of: Variable, name: str, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """Call a special method by its name on a builtin container, or any method on constants."""
    if len(args) == 1 and name in _OPERATOR_METHOD_NAMES and returns_not_implemented(tx, of, name, args[0]):
        return ConstantVariable(NotImplemented)
    if name == "__rmul__" and len(args) == 1:
        return binary_op(tx, "*", of, args[0])
    if name in _OPERATOR_METHODS and len(args) == 1:
        return binary_op(tx, _OPERATOR_METHODS[name], of, args[0])
    if name in COMPARE_METHODS and len(args) == 1:
        return compare_op(tx, COMPARE_METHODS[name], of, args[0])
    if name == "__setitem__":
        of.set_item(tx, args[0], args[1])
        return ConstantVariable(None)
    if name == "__delitem__":
        of.del_item(tx, args[0])
        return ConstantVariable(None)
    if name == "__bool__":
        return ConstantVariable(of.is_truthy(tx))
    if name == "__init__":
        return ConstantVariable(None)
    if name == "__reversed__" and not args and hasattr(of.python_type(), name):
        return realize(tx, tx.wrap_static(reversed).call(tx, [of], {}))
    method = getattr(of.python_type(), name, None)
    if method is None:
        return tx.raise_error(AttributeError, f"'{of.python_type().__name__}' object has no attribute '{name}'")  # type: ignore[no-any-return]
    if of.python_type() in (tuple, frozenset) or name in (
        "__repr__",
        "__str__",
        "__format__",
        "__hash__",
        "__reduce__",
    ):
        return fold_constant_call(tx, method, [of, *args], kwargs, f"{of.describe()}.{name}")
    check_argument_count(tx, of.python_type(), name, len(args), list(kwargs))
    raise of.unsupported_method(name)


def sort_items(tx: Tracer, items: list[Variable], kwargs: dict[str, Variable]) -> list[Variable]:
    """Return the items in the order of ``sorted(items, key=..., reverse=...)``.

    Comparisons run traced code where needed.
    """
    key = realize(tx, kwargs["key"]) if "key" in kwargs else ConstantVariable(None)
    reverse = realize(tx, kwargs["reverse"]).is_truthy(tx) if "reverse" in kwargs else False
    by_key = isinstance(key, ConstantVariable) and key.value is None
    keys = [realize(tx, i) if by_key else realize(tx, key.call(tx, [i], {})) for i in items]

    def less(a: int, b: int) -> int:  # sorting calls only ``<``
        return -realize(tx, compare_op(tx, "<", keys[a], keys[b])).is_truthy(tx)

    order = sorted(range(len(items)), key=functools.cmp_to_key(less), reverse=reverse)
    return [items[n] for n in order]
