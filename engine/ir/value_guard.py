"""Guards on one Python value each: its type, identity, content, attributes or code."""

from __future__ import annotations

import enum
import types
from dataclasses import dataclass
from typing import Any, ClassVar

from engine.ir import exact
from engine.ir.guard import Guard, Known
from engine.ir.origin import MISSING, ConstName, Hooks
from engine.ir.spec import class_of
from engine.records.guards import Fix


def _name_of(cls: type) -> str:
    return cls.__name__ if cls.__name__.isidentifier() else "cls"


@dataclass(frozen=True)
class TypeIs(Guard):
    """``type(value) is type``: exact, subclasses do not pass."""

    kind: ClassVar[str] = "type"
    rank: ClassVar[int] = 10

    type: type

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: Known = None) -> str:
        return f"{const(type, 'type')}({expr}) is {const(self.type, _name_of(self.type))}"

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        return class_of(value) is self.type

    def expected_text(self) -> str:
        return exact.type_name(self.type)

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        if value is MISSING:
            return "nothing there"
        found = exact.type_name(class_of(value))
        is_twin = found == self.expected_text() and class_of(value) is not self.type
        return f"another class named {found}" if is_twin else found

    def fixes(self, value: Any, others: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        if self.type in (int, float) and type(value) in (int, float):
            return (
                Fix(
                    f"Pass {self.name} always as {self.type.__name__}",
                    f"{self.name} = {self.type.__name__}({self.name})",
                ),
            )
        if self.actual_text(value).startswith("another class"):
            return (
                Fix(
                    "The class was defined again (its cell was re-run): make the object again from the new class, or compile after the last definition."
                ),
            )
        return (Fix(f"Pass {self.name} always as one type, or write a function for each."),)


@dataclass(frozen=True)
class IsObject(Guard):
    """``value is held`` (functions, classes, modules, None, singletons). ``held`` is kept alive, so that its id is never another's."""

    kind: ClassVar[str] = "id"
    rank: ClassVar[int] = 12

    held: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IsObject) and self.origin == other.origin and self.held is other.held

    def __hash__(self) -> int:
        return hash((self.origin, id(self.held)))

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: Known = None) -> str:
        if self.held is None or type(self.held) is bool:
            return f"{expr} is {self.held}"
        return f"{expr} is {const(self.held, _held_name(self.held))}"

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        return value is self.held

    def expected_text(self) -> str:
        return "nothing there" if self.held is MISSING else exact.describe(self.held)

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        found = "nothing there" if value is MISSING else exact.describe(value)
        return f"another {found}" if found == self.expected_text() and value is not self.held else found

    def sentence(self, actual: str) -> str:
        if self.held is MISSING:
            return f"{self.name} is {actual}, there was nothing when this entry was compiled."
        return f"{self.name} is {actual}, the compiled code was made for this very object: {self.expected_text()}."

    def fixes(self, value: Any, others: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        if self.held is None or value is None:
            return (Fix(f"Give {self.name} always, or never: None and a value are compiled apart."),)
        if type(self.held) is types.FunctionType:
            return (
                Fix(
                    f"Define {self.name} once, outside of the loop that calls this: each definition is a new function object."
                ),
            )
        return (Fix(f"Keep one object for {self.name} instead of making a new one for each call."),)


def _held_name(held: Any) -> str:
    name = (
        held.__name__
        if type(held) in (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
        else type(held).__name__
    )
    return name.rpartition(".")[2] if name.rpartition(".")[2].isidentifier() else "held"


@dataclass(frozen=True)
class Equals(Guard):
    """Same type and equal value: int, float (NaN equals NaN, 0.0 does not equal -0.0), str, bytes, bool, dtype, device, enum, slice, and tuples of them."""

    kind: ClassVar[str] = "equals"
    rank: ClassVar[int] = 14
    may_change: ClassVar[bool] = True

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equals) and self.origin == other.origin and exact.same(other.value, self.value)

    def __hash__(self) -> int:
        return hash((self.origin, type(self.value)))

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: Known = None) -> str:
        value, kind = self.value, type(self.value)
        if value is None or kind is bool:
            return f"{expr} is {value}"
        if kind in exact.SINGLETONS or isinstance(value, (enum.Enum, type)):
            return f"{expr} is {const(value, _held_name(value))}"
        if kind in (int, str, bytes):
            return f"{const(type, 'type')}({expr}) is {const(kind, kind.__name__)} and {expr} == {value!r}"
        if kind is float and value == value and value not in (0.0, float("inf"), float("-inf")):
            return f"{const(type, 'type')}({expr}) is {const(float, 'float')} and {expr} == {value!r}"
        return f"{const(exact.same, 'same')}({expr}, {const(value, 'expected')})"

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        if isinstance(self.value, (enum.Enum, type)):
            return value is self.value
        return exact.same(value, self.value)

    def expected_text(self) -> str:
        return exact.describe(self.value)

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        found = exact.describe(value)
        return (
            f"{exact.type_name(type(value))} {found}"
            if found == self.expected_text() and not self.test(value)
            else found
        )

    def sentence(self, actual: str) -> str:
        return f"{self.name} is {actual}, the compiled code was specialised for {self.expected_text()}."

    def fixes(self, value: Any, others: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        if self.name.endswith(".training"):
            return (Fix("None needed: training and evaluation are compiled apart, once each."),)
        if type(self.value) in (int, float) and type(value) in (int, float):
            lift = Fix(
                f"Pass {self.name} as a tensor, so that its value is data and not part of the code",
                f"{self.name} = torch.tensor({self.name})",
            )
            symbol = Fix(f"Let {self.name} be a symbol from the start", "f = engine.compile(f, dynamic=True)")
            return (symbol, lift) if type(self.value) is int and self.origin.is_passed() else (lift,)
        return (Fix(f"Keep {self.name} constant, or move what depends on it out of the compiled function."),)

    def changed(self, value: Any) -> frozenset[int]:
        is_number = type(self.value) in (int, float) or is_numpy_number(self.value)
        return (
            frozenset((-1,)) if is_number and type(value) is type(self.value) and not self.test(value) else frozenset()
        )


def is_numpy_number(value: Any) -> bool:
    """Whether a value is a whole number or a float of numpy's."""
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__.startswith(("int", "uint", "float"))


@dataclass(frozen=True)
class LengthIs(Guard):
    """``len(value) == length`` of a builtin container whose type is already guarded."""

    kind: ClassVar[str] = "length"
    rank: ClassVar[int] = 16

    length: int

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: Known = None) -> str:
        if self._is_no_hooks:
            return f"not {expr}"
        measure = len if known in (list, tuple, dict, set, frozenset, str, bytes) else exact.length_of
        return f"{const(measure, measure.__name__)}({expr}) == {self.length}"

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        return not value if self._is_no_hooks else exact.length_of(value) == self.length

    @property
    def _is_no_hooks(self) -> bool:
        # Reading the tables of hooks has asked each whether it is empty already.
        return type(self.origin) is Hooks and self.length == 0

    def expected_text(self) -> str:
        return str(self.length)

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        return str(exact.length_of(value)) if exact.builtin_base(type(value), exact._LENGTHS) else exact.describe(value)

    def sentence(self, actual: str) -> str:
        return f"{self.name} has length {actual}, the compiled code was made for length {self.length}."

    def fixes(self, value: Any, others: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return (
            Fix(
                f"Stack the items of {self.name} into one tensor: its size can be a symbol, a container's length cannot."
            ),
        )


@dataclass(frozen=True)
class DictKeys(Guard):
    """The dict has these keys, in this order (constants compared by type and value, other keys by identity)."""

    kind: ClassVar[str] = "dict keys"
    rank: ClassVar[int] = 20

    keys: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DictKeys) and self.origin == other.origin and exact.same(other.keys, self.keys)

    def __hash__(self) -> int:
        return hash((self.origin, len(self.keys)))

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: Known = None) -> str:
        if not self.keys and known is dict:
            return f"not {expr}"
        return f"{const(exact.same_keys, 'same_keys')}({expr}, {const(self.keys, 'keys')})"

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        return exact.same_keys(value, self.keys)

    def expected_text(self) -> str:
        return _keys_text(self.keys)

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        if not exact.builtin_base(type(value), (dict, types.MappingProxyType)):
            return exact.describe(value)
        found = _keys_text(exact.keys_of(value))
        return f"{found} (other objects)" if found == self.expected_text() and not self.test(value) else found

    def sentence(self, actual: str) -> str:
        return (
            f"{self.name} has the keys {actual}, the compiled code was made for {self.expected_text()}, in this order."
        )

    def fixes(self, value: Any, others: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return (Fix(f"Always give {self.name} the same keys in the same order; fill absent ones with None."),)


def _keys_text(keys: Any) -> str:
    words = [exact.describe(k) for k in keys]
    return "[" + ", ".join(words if len(words) <= 12 else [*words[:11], f"... {len(words) - 11} more"]) + "]"


@dataclass(frozen=True)
class HasAttribute(Guard):
    """Whether an attribute is found on the value without running code of the user's: looked up through the type's MRO and the instance dict."""

    kind: ClassVar[str] = "hasattr"
    rank: ClassVar[int] = 22

    attribute: str
    present: bool

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: Known = None) -> str:
        return (
            f"{'' if self.present else 'not '}{const(exact.has_attribute, 'has_attribute')}({expr}, {self.attribute!r})"
        )

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        return exact.has_attribute(value, self.attribute) is self.present

    def expected_text(self) -> str:
        return f"{'has' if self.present else 'has no'} {self.attribute}"

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        return f"{'has' if exact.has_attribute(value, self.attribute) else 'has no'} {self.attribute}"

    def sentence(self, actual: str) -> str:
        return f"{self.name} {actual}, which was otherwise when this entry was compiled."

    def fixes(self, value: Any, others: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return (Fix(f"Set {self.name}.{self.attribute} before the first call, to None if it is not there yet."),)


@dataclass(frozen=True)
class CodeIs(Guard):
    """A function still has the code object that was traced."""

    kind: ClassVar[str] = "code"
    rank: ClassVar[int] = 18

    code: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CodeIs) and self.origin == other.origin and self.code is other.code

    def __hash__(self) -> int:
        return hash((self.origin, id(self.code)))

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: Known = None) -> str:
        function = const(types.FunctionType, "FunctionType")
        return f"{const(type, 'type')}({expr}) is {function} and {expr}.__code__ is {const(self.code, 'code')}"

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        return type(value) is types.FunctionType and value.__code__ is self.code

    def expected_text(self) -> str:
        return _code_text(self.code)

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        if type(value) is not types.FunctionType:
            return exact.describe(value)
        found = _code_text(value.__code__)
        return f"another {found}" if found == self.expected_text() and not self.test(value) else found

    def sentence(self, actual: str) -> str:
        return f"{self.name} now runs {actual}, the compiled code was made from {self.expected_text()}."

    def fixes(self, value: Any, others: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return (Fix(f"Define {self.name} once, before the first call: another definition is another program."),)


@dataclass(frozen=True)
class ReducesTo(Guard):
    """A callable of ``operator``'s (``itemgetter``, ``attrgetter``, ``methodcaller``) is made of the same constants. Its type is guarded already."""

    kind: ClassVar[str] = "made of"
    rank: ClassVar[int] = 24

    parts: Any
    """Positional arguments, and pairs of keyword arguments."""

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: Known = None) -> str:
        return f"{const(exact.same, 'same')}({const(exact.parts_of, 'parts_of')}({expr}), {const(self.parts, 'parts')})"

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        return exact.same(exact.parts_of(value), self.parts)

    def expected_text(self) -> str:
        return repr(self.parts[0])

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        try:
            return repr(exact.parts_of(value)[0])
        except TypeError:
            return exact.describe(value)

    def sentence(self, actual: str) -> str:
        return f"{self.name} is made of {actual}, the compiled code was made with {self.expected_text()}."


def _code_text(code: Any) -> str:
    return f"{code.co_qualname} (line {code.co_firstlineno})"
