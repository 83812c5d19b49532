"""Guards on one Python value: type, identity, equality, length, keys, attributes, code."""

from __future__ import annotations

import builtins
import enum
import types
from collections import deque
from dataclasses import field
from typing import Any, ClassVar

from engine.ir.guards.base import Guard, ImpliedFacts, ValueCode
from engine.ir.introspection import describe_values, python_objects
from engine.ir.introspection.tensor_spec import described_type
from engine.ir.sources.attributes import ModuleHooksSource
from engine.ir.sources.base import MISSING
from engine.ir.sources.containers import LengthSource
from engine.records.guards import NO_FIX, Fix, separate_entries


def _name_of(cls: type) -> str:
    return cls.__name__ if cls.__name__.isidentifier() else "cls"


FIXED_CLASS_TYPES = (type(None), bool, types.FunctionType, types.BuiltinFunctionType)
"""Types whose instances cannot change their ``__class__``."""


class TypeMatch(Guard):
    """Guard ``type(value) is type``: exact; subclasses fail."""

    kind: ClassVar[str] = "type"
    rank: ClassVar[int] = 10
    is_type_test: ClassVar[bool] = True

    type: type

    @property
    def implied_type(self) -> builtins.type:
        return self.type

    def is_redundant(self, implied: ImpliedFacts) -> bool:
        return implied.types.get(self.source) is self.type

    def condition(self, code: ValueCode) -> str:
        return f"{code.call(type, 'type', code.expr)} is {code.const(self.type, _name_of(self.type))}"

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        found = type(value)
        return found is self.type or described_type(value) is self.type

    def expected_text(self) -> str:
        return describe_values.type_name(self.type)

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        if value is MISSING:
            return "missing"
        actual = describe_values.type_name(described_type(value))
        is_namesake = actual == self.expected_text() and described_type(value) is not self.type
        return f"another class named {actual}" if is_namesake else actual

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        if self.type in (int, float) and type(value) in (int, float):
            name, expr = self.type.__name__, self.user_expr
            return (Fix(f"Always pass {expr} as {name}", f"{expr} = {name}({expr})"),)
        if self.actual_text(value).startswith("another class"):
            problem = "The class was defined again (its cell was re-run)."
            return (
                Fix(f"{problem} Create the object again from the new class, or compile after the last definition."),
            )
        if described_type(value) is getattr(self.type, "cls_to_become", None):
            return (Fix("Call the module once before it is compiled: a lazy module has another type afterwards."),)
        return (Fix(f"Always pass {self.user_expr} with the same type, or write one function per type."),)


class IdMatch(Guard):
    """Guard ``value is expected``: functions, classes, modules, None, singletons.

    The guard holds a reference to ``expected``, so that its id is not reused.
    """

    kind: ClassVar[str] = "id"
    rank: ClassVar[int] = 12

    expected: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdMatch) and self.source == other.source and self.expected is other.expected

    def __hash__(self) -> int:
        return hash((self.source, id(self.expected)))

    @property
    def implied_type(self) -> type | None:
        return type(self.expected) if type(self.expected) in FIXED_CLASS_TYPES else None

    def condition(self, code: ValueCode) -> str:
        if self.expected is None or type(self.expected) is bool:
            return f"{code.expr} is {self.expected}"
        return f"{code.expr} is {code.const(self.expected, _const_name(self.expected))}"

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return value is self.expected

    def expected_text(self) -> str:
        return "missing" if self.expected is MISSING else describe_values.describe(self.expected)

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        actual = "missing" if value is MISSING else describe_values.describe(value)
        return f"another {actual}" if actual == self.expected_text() and value is not self.expected else actual

    def failure_message(self, actual: str) -> str:
        if self.expected is MISSING:
            return f"{self.user_expr} is {actual}; it was missing when this entry was compiled."
        same = "" if self.expected is None else "the same object as before: "
        return f"{self.user_expr} is {actual}; the compiled code expects {same}{self.expected_text()}."

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        if self.expected is None or value is None:
            return (Fix(f"{NO_FIX}: calls with and without {self.user_expr} need one cache entry each."),)
        if type(self.expected) is types.FunctionType:
            return (
                Fix(f"Define {self.user_expr} once, outside the loop: each definition creates a new function object."),
            )
        return (Fix(f"Reuse one object for {self.user_expr} instead of creating a new one for each call."),)


def _const_name(value: Any) -> str:
    name = (
        value.__name__
        if type(value) in (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
        else type(value).__name__
    )
    return name.rpartition(".")[2] if name.rpartition(".")[2].isidentifier() else "held"


class EqualsMatch(Guard):
    """Guard on type and value.

    For int, float (NaN equals NaN, 0.0 does not equal -0.0), str, bytes, bool, dtype, device, enum, slice, and
    tuples of them.
    """

    kind: ClassVar[str] = "equals"
    rank: ClassVar[int] = 14
    reports_changed_dims: ClassVar[bool] = True
    message: ClassVar[str] = "{value} is {actual}; the compiled code was specialized for {expected}."

    expected: Any

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, EqualsMatch)
            and self.source == other.source
            and python_objects.constants_equal(other.expected, self.expected)
        )

    def __hash__(self) -> int:
        return hash((self.source, type(self.expected)))

    @property
    def reads_source_twice(self) -> bool:
        return type(self.expected) in (int, float, str, bytes)

    @property
    def implied_type(self) -> type:
        return type(self.expected)

    def condition(self, code: ValueCode) -> str:
        value, kind = self.expected, type(self.expected)
        if value is None or kind is bool:
            return f"{code.expr} is {value}"
        if kind in python_objects.SINGLETON_TYPES or isinstance(value, (enum.Enum, type)):
            return f"{code.expr} is {code.const(value, _const_name(value))}"
        if kind in (int, str, bytes):
            return self._equality(code)
        if kind is float and value == value and value not in (0.0, float("inf"), float("-inf")):
            return self._equality(code)
        return code.call(python_objects.constants_equal, "same", code.expr, code.const(value, "expected"))

    def _equality(self, code: ValueCode) -> str:
        kind = type(self.expected)
        return f"{code.call(type, 'type', code.expr)} is {code.const(kind, kind.__name__)} and {code.expr} == {self.expected!r}"

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        if isinstance(self.expected, (enum.Enum, type)):
            return value is self.expected
        return python_objects.constants_equal(value, self.expected)

    def expected_text(self) -> str:
        return describe_values.describe(self.expected)

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        actual = describe_values.describe(value)
        return (
            f"{describe_values.type_name(type(value))} {actual}"
            if actual == self.expected_text() and not self.test(value)
            else actual
        )

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        if self.user_expr.endswith(".training"):
            return (Fix(f"{NO_FIX}: training and evaluation need one cache entry each."),)
        if type(self.expected) in (int, float) and type(value) in (int, float):
            verb = "Pass" if self.user_expr.isidentifier() else "Store"
            lift = Fix(
                f"{verb} {self.user_expr} as a tensor: its value is then data, not part of the code",
                f"{self.user_expr} = torch.tensor({self.user_expr})",
            )
            symbol = Fix(f"Make {self.user_expr} a symbol from the first call", "f = engine.compile(f, dynamic=True)")
            return (symbol, lift) if type(self.expected) is int and self.source.is_argument_or_item() else (lift,)
        return (
            separate_entries(
                self.user_expr, is_flag={self.expected_text(), describe_values.describe(value)} == {"True", "False"}
            ),
        )

    def changed_dims(self, value: Any, other_values: tuple[Any, ...] = ()) -> frozenset[int]:
        is_number = type(self.expected) in (int, float, bool) or is_numpy_number(self.expected)
        return (
            frozenset((-1,))
            if is_number and type(value) is type(self.expected) and not self.test(value)
            else frozenset()
        )


def is_numpy_number(value: Any) -> bool:
    """Return True for an integer or floating point scalar of NumPy."""
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__.startswith(("int", "uint", "float"))


class LengthMatch(Guard):
    """Guard ``len(value) == length`` on a builtin container whose type is already guarded."""

    kind: ClassVar[str] = "length"
    rank: ClassVar[int] = 16
    reports_changed_dims: ClassVar[bool] = True
    message: ClassVar[str] = "{value} has length {actual}; the compiled code was specialized for length {expected}."
    advice: ClassVar[str] = (
        "Stack the items of {value} into one tensor: a tensor's size can be a symbol, a container's length cannot."
    )

    length: int

    def is_redundant(self, implied: ImpliedFacts) -> bool:
        return (self.source, self.length) in implied.lengths

    def condition(self, code: ValueCode) -> str:
        if self._checks_no_hooks:
            return f"not {code.expr}"
        measure = len if code.known_type in python_objects._LEN_METHODS else python_objects.builtin_len
        return f"{code.call(measure, measure.__name__, code.expr)} == {self.length}"

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return not value if self._checks_no_hooks else python_objects.builtin_len(value) == self.length

    @property
    def _checks_no_hooks(self) -> bool:
        # Reading the hook tables has already tested each of them for emptiness.
        return type(self.source) is ModuleHooksSource and self.length == 0

    def expected_text(self) -> str:
        return str(self.length)

    @property
    def dynamic_expr(self) -> str:
        return LengthSource(self.source).expr

    def changed_dims(self, value: Any, other_values: tuple[Any, ...] = ()) -> frozenset[int]:
        return frozenset((-1,)) if type(value) in (list, deque) and len(value) != self.length else frozenset()

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        return (
            str(python_objects.builtin_len(value))
            if python_objects.builtin_base(type(value), python_objects._LEN_METHODS)
            else describe_values.describe(value)
        )


class DictKeysMatch(Guard):
    """Guard on the keys of a dict and their order.

    Constants are compared by type and value, other keys by identity.
    """

    kind: ClassVar[str] = "dict keys"
    rank: ClassVar[int] = 20
    message: ClassVar[str] = "{value} has the keys {actual}; the compiled code expects {expected}, in this order."
    advice: ClassVar[str] = "Always give {value} the same keys in the same order; use None for missing items."

    keys: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DictKeysMatch)
            and self.source == other.source
            and python_objects.constants_equal(other.keys, self.keys)
        )

    def __hash__(self) -> int:
        return hash((self.source, len(self.keys)))

    @property
    def implied_length(self) -> int:
        return len(self.keys)

    def condition(self, code: ValueCode) -> str:
        if not self.keys and code.known_type in python_objects.EXACT_DICTS:
            return f"not {code.expr}"
        return code.call(python_objects.dict_keys_equal, "same_keys", code.expr, code.const(self.keys, "keys"))

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return python_objects.dict_keys_equal(value, self.keys)

    def expected_text(self) -> str:
        return _keys_text(self.keys)

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        if not python_objects.builtin_base(type(value), (dict, types.MappingProxyType)):
            return describe_values.describe(value)
        actual = _keys_text(python_objects.builtin_dict_keys(value))
        return f"{actual} (other objects)" if actual == self.expected_text() and not self.test(value) else actual


def _keys_text(keys: Any) -> str:
    key_texts = [describe_values.describe(k) for k in keys]
    return (
        "["
        + ", ".join(key_texts if len(key_texts) <= 12 else [*key_texts[:11], f"... {len(key_texts) - 11} more"])
        + "]"
    )


class HasAttrGuard(Guard):
    """Guard that an attribute exists, or does not, on a value.

    The lookup covers the MRO of the type and the instance dict, and runs no user code.
    """

    kind: ClassVar[str] = "hasattr"
    rank: ClassVar[int] = 22
    is_attribute_test: ClassVar[bool] = True
    message: ClassVar[str] = "{value} {actual}; the compiled code expects that it {expected}."

    attribute: str
    present: bool

    def condition(self, code: ValueCode) -> str:
        exists = code.call(python_objects.has_static_attribute, "has_attribute", code.expr, repr(self.attribute))
        return exists if self.present else f"not {exists}"

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return python_objects.has_static_attribute(value, self.attribute) is self.present

    def expected_text(self) -> str:
        return f"{'has' if self.present else 'has no'} {self.attribute}"

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        return f"{'has' if python_objects.has_static_attribute(value, self.attribute) else 'has no'} {self.attribute}"

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return (Fix(f"Set {self.user_expr}.{self.attribute} before the first call, to None if it has no value yet."),)


class CodeMatch(Guard):
    """Guard that a function still has the traced code and globals.

    Equal code of the same file is the same: torch 2.15 copies the code of each function that a context decorates.
    """

    kind: ClassVar[str] = "code"
    rank: ClassVar[int] = 18
    message: ClassVar[str] = "{value} is now {actual}; the compiled code was traced from {expected}."
    advice: ClassVar[str] = "Define {value} once, before the first call: each new definition causes a recompile."

    code: Any
    namespace: Any = field(repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CodeMatch) and self.source == other.source and self.code is other.code

    def __hash__(self) -> int:
        return hash((self.source, id(self.code)))

    @property
    def implied_type(self) -> type:
        return types.FunctionType

    def condition(self, code: ValueCode) -> str:
        function, traced_code = code.const(types.FunctionType, "FunctionType"), code.const(self.code, "code")
        actual_code, namespace = f"{code.expr}.__code__", code.const(self.namespace, "globals")
        is_equal = code.call(codes_equal, "codes_equal", actual_code, traced_code)
        return (
            f"{code.call(type, 'type', code.expr)} is {function} and {code.expr}.__globals__ is {namespace}"
            f" and ({actual_code} is {traced_code} or {is_equal})"
        )

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return (
            type(value) is types.FunctionType
            and value.__globals__ is self.namespace
            and codes_equal(value.__code__, self.code)
        )

    def expected_text(self) -> str:
        return _code_text(self.code)

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        if type(value) is not types.FunctionType:
            return describe_values.describe(value)
        actual = _code_text(value.__code__)
        return f"another {actual}" if actual == self.expected_text() and not self.test(value) else actual


class OperatorArgsMatch(Guard):
    """Guard on the constructor arguments of an operator callable.

    Operator callables are ``itemgetter``, ``attrgetter`` and ``methodcaller``. The type is already guarded.
    """

    kind: ClassVar[str] = "made of"
    rank: ClassVar[int] = 24
    message: ClassVar[str] = "{value} was created with {actual}; the compiled code expects {expected}."

    constructor_args: Any
    """Positional arguments, and (name, value) pairs of keyword arguments."""

    def condition(self, code: ValueCode) -> str:
        actual = code.call(python_objects.operator_callable_args, "parts_of", code.expr)
        return code.call(python_objects.constants_equal, "same", actual, code.const(self.constructor_args, "parts"))

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return python_objects.constants_equal(python_objects.operator_callable_args(value), self.constructor_args)

    def expected_text(self) -> str:
        return repr(self.constructor_args[0])

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        try:
            return repr(python_objects.operator_callable_args(value)[0])
        except TypeError:
            return describe_values.describe(value)


def codes_equal(first: types.CodeType, second: types.CodeType) -> bool:
    """Return True for code objects that differ in identity only."""
    return first is second or (
        first == second and (first.co_filename, first.co_qualname) == (second.co_filename, second.co_qualname)
    )


def _code_text(code: Any) -> str:
    return f"{code.co_qualname} (line {code.co_firstlineno})"
