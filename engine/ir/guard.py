"""Guards: what compiled code takes for granted about the values it was traced with. One class per kind.

Each kind defines once how to check it fast (``condition``), how to test a value that was read (``test``), and how to tell a person
(``expected_text``, ``actual_text``, ``sentence``, ``fixes``). From one set of guards come the generated check and the explaining walk.
No kind runs code of the user's. Facets of a tensor are in ``ir.tensor_guard``.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import sympy
import torch

from engine.ir import exact
from engine.ir.global_state import GLOBAL_STATES, QUICK, same_state
from engine.ir.origin import MISSING, STACK, Closure, ConstName, Fixed, Global, Hooks, Local, MaybeGlobal, Origin
from engine.ir.relation import relation_text, relation_words
from engine.ir.spec import TensorSpec, class_of
from engine.records.bytecode import Span
from engine.records.guards import Fix


@dataclass(frozen=True)
class Cause:
    """Why a guard exists: the user's line that looked at the value, the stack that led there (outermost first), and the reason in words."""

    span: Span | None = None
    stack: tuple[Span, ...] = ()
    why: str = ""


NO_CAUSE = Cause()

Known = type | None
"""The exact type of a value, where a guard checked before has settled it."""


CARRIED = "a value carried over the graph break"
"""What a person is told of such a value."""


def spoken(origin: Origin) -> str:
    """The value as a person writes it in the frame: ``x``, ``self.weight``."""
    root = origin.chain()[0]
    if not isinstance(root, (Local, Global, MaybeGlobal, Closure)):
        return origin.expr
    return (CARRIED if root.variable.startswith(STACK) else root.variable) + origin.expr.removeprefix(root.expr)


@dataclass(frozen=True)
class Guard:
    """Base of all kinds. ``origin`` is the value guarded; ``cause`` does not take part in equality, so that de-duplication keeps the first."""

    kind: ClassVar[str] = ""
    rank: ClassVar[int] = 50
    """Order in the check: lower first (cheap and selective), but never before the guards of the origins it reads through."""

    may_change: ClassVar[bool] = False
    """Whether ``changed`` can say anything."""

    origin: Origin
    cause: Cause = field(default=NO_CAUSE, compare=False, kw_only=True)

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Every value that the guard reads, ``origin`` first."""
        return (self.origin,)

    @property
    def name(self) -> str:
        """What the guard is on, as a person writes it."""
        return spoken(self.origin)

    @property
    def kind_words(self) -> str:
        """The kind as the field calls it."""
        return self.kind

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: Known = None) -> str:
        """Python text that is true when the guard holds.

        ``expr`` reads the value, ``others`` the rest of ``origins``. For tensors ``known`` is given only where no torch-function mode is active.
        """
        raise NotImplementedError

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        """Whether the guard holds for values that were read; agrees with ``condition`` on every input. A raise counts as no."""
        raise NotImplementedError

    def expected_text(self) -> str:
        """What the guard asks for, in a few words."""
        raise NotImplementedError

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        """What the value is, in the same terms as ``expected_text``."""
        return exact.describe(value)

    def sentence(self, actual: str) -> str:
        """A plain sentence that says why the guard failed."""
        return f"{self.name}: {self.kind} is {actual}, the compiled code expects {self.expected_text()}."

    def fixes(self, value: Any, others: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        """What a person can do so that it holds, best first."""
        return ()

    def changed(self, value: Any) -> frozenset[int]:
        """Dimensions whose size differs from the expected one (-1: the number itself): what automatic dynamic makes a symbol."""
        return frozenset()


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
        numbers = (int, float)
        return (
            frozenset((-1,))
            if type(self.value) in numbers and type(value) is type(self.value) and not self.test(value)
            else frozenset()
        )


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


@dataclass(frozen=True)
class TensorMatch(Guard):
    """What tracing took from a tensor; ``ir.tensor_guard.facets`` expands it to one guard a facet before ordering.

    ``sizes`` and ``strides`` have None where the dimension is a symbol.
    """

    kind: ClassVar[str] = "tensor"

    type: type
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    dispatch_keys: str


@dataclass(frozen=True)
class WrapperIs(Guard):
    """A tensor subclass around others comes apart into the same names and the same context (``__tensor_flatten__``)."""

    kind: ClassVar[str] = "tensor subclass"
    rank: ClassVar[int] = 58

    names: tuple[str, ...]
    context: Any = field(hash=False)

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: Known = None) -> str:
        return f"{const(self.test, 'comes_apart')}({expr})"

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        names, context = value.__tensor_flatten__()
        return tuple(names) == self.names and bool(context == self.context)

    def expected_text(self) -> str:
        return f"{', '.join(self.names)} and {self.context!r}"

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        if not hasattr(value, "__tensor_flatten__"):
            return exact.describe(value)
        names, context = value.__tensor_flatten__()
        return f"{', '.join(names)} and {context!r}"


@dataclass(frozen=True)
class SameObject(Guard):
    """Two origins reach the same object (``same``), or must not."""

    kind: ClassVar[str] = "same object"
    rank: ClassVar[int] = 30

    other: Origin
    same: bool

    @property
    def origins(self) -> tuple[Origin, ...]:
        return (self.origin, self.other)

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: Known = None) -> str:
        return f"{expr} is {'' if self.same else 'not '}{others[0]}"

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        return (value is others[0]) is self.same

    def expected_text(self) -> str:
        return f"{'the same object as' if self.same else 'another object than'} {spoken(self.other)}"

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        return f"{'the same object as' if value is others[0] else 'another object than'} {spoken(self.other)}"

    def sentence(self, actual: str) -> str:
        return f"{self.name} is {actual}, which was otherwise when this entry was compiled."

    def fixes(self, value: Any, others: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        if self.same:
            return (Fix(f"Pass one object as {self.name} and {spoken(self.other)} in every call."),)
        return (
            Fix(
                f"Pass a copy, so that {self.name} and {spoken(self.other)} are never one object",
                f"{self.name} = {self.name}.clone()",
            ),
        )


@dataclass(frozen=True)
class Apart(Guard):
    """Base of guards that keep this tensor and the others apart; ``apart`` asks it of all their values at once."""

    rank: ClassVar[int] = 80
    copied_so_that: ClassVar[str]

    others: tuple[Origin, ...]

    @property
    def origins(self) -> tuple[Origin, ...]:
        return (self.origin, *self.others)

    @staticmethod
    def apart(*values: Any) -> bool:
        """Whether the values are as far apart as the compiled code needs."""
        raise NotImplementedError

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: Known = None) -> str:
        return f"{const(self.apart, self.apart.__name__)}({', '.join((expr, *others))})"

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        return self.apart(value, *others)

    def fixes(self, value: Any, others: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return (
            Fix(f"Pass a copy of one of them, so that {self.copied_so_that}", f"{self.name} = {self.name}.clone()"),
        )


def storages_differ(tensor: Any, *others: Any) -> bool:
    """Whether the first tensor shares its storage with none of the others."""
    storage = _storage(tensor)
    return all(_storage(t) != storage for t in others)


def all_distinct(*values: Any) -> bool:
    """Whether no object is given twice."""
    return len({id(v) for v in values}) == len(values)


@dataclass(frozen=True)
class NoOverlap(Apart):
    """This tensor shares its storage with none of the others (needed only where a mutation of it could be seen through one of them)."""

    kind: ClassVar[str] = "no overlap"
    copied_so_that: ClassVar[str] = "a write to one is not seen in the other"
    apart = staticmethod(storages_differ)

    def expected_text(self) -> str:
        return "no storage shared with " + ", ".join(spoken(o) for o in self.others)

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        names = [spoken(o) for o in self.origins]
        storages = [_storage(t) for t in (value, *others)]
        shared = [f"{names[0]} and {names[n]}" for n in range(1, len(names)) if storages[n] == storages[0]]
        return f"shared by {shared[0]}" if shared else "no storage shared"

    def sentence(self, actual: str) -> str:
        return f"Storage is {actual}; the compiled code writes to one of them and was made for tensors of their own."


@dataclass(frozen=True)
class Distinct(Apart):
    """This tensor and the others are all different objects (needed only where what is set on one would be found on another)."""

    kind: ClassVar[str] = "distinct"
    copied_so_that: ClassVar[str] = "what is set on one is not found on the other"
    apart = staticmethod(all_distinct)

    def expected_text(self) -> str:
        return "another object than each of " + ", ".join(spoken(o) for o in self.others)

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        first: dict[int, Origin] = {}
        for found, origin in zip((value, *others), self.origins, strict=True):
            if (known := first.setdefault(id(found), origin)) != origin:
                return f"{spoken(origin)} and {spoken(known)} are one object"
        return "all are different objects"

    def sentence(self, actual: str) -> str:
        return f"{actual[0].upper()}{actual[1:]}; the compiled code sets attributes on one of them and was made for different objects."


def _storage(tensor: Any) -> int:
    if type(tensor) is TensorSpec:
        return id(tensor)
    with torch._C.DisableTorchFunction():
        return int(torch.Tensor.untyped_storage(tensor)._cdata)


@dataclass(frozen=True)
class SharesMemory(Guard):
    """These tensors share one storage of at least ``held`` bytes, and start this many bytes after its start."""

    kind: ClassVar[str] = "shared memory"
    rank: ClassVar[int] = 80

    others: tuple[Origin, ...]
    starts: tuple[int, ...]
    held: int = 0

    @property
    def origins(self) -> tuple[Origin, ...]:
        return (self.origin, *self.others)

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: Known = None) -> str:
        text = f"{const(starts_in_one, 'starts_in_one')}({', '.join((expr, *others))}) == {self.starts!r}"
        return f"{text} and {const(_bytes_held, 'bytes_held')}({expr}) >= {self.held}" if self.held else text

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        return starts_in_one(value, *others) == self.starts and (not self.held or _bytes_held(value) >= self.held)

    def expected_text(self) -> str:
        return self._words(self.starts, f"at least {self.held}")

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        return self._words(starts_in_one(value, *others), str(_bytes_held(value)))

    def _words(self, starts: tuple[int | None, ...], held: str) -> str:
        names = map(spoken, self.origins)
        pairs = zip(names, starts, strict=True)
        text = ", ".join(f"{n} in other memory" if s is None else f"{n} from byte {s}" for n, s in pairs)
        return f"{text} of {held}" if self.held else text

    def sentence(self, actual: str) -> str:
        return f"The tensors see their memory as {actual}; the compiled code writes to it and was made for {self.expected_text()}."

    def fixes(self, value: Any, others: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return (
            Fix("Pass tensors that see their shared memory in the same way in every call, or copies of their own."),
        )


def starts_in_one(first: Any, *others: Any) -> tuple[int | None, ...]:
    """How many bytes after the start of the first one's storage each tensor starts; None in another storage."""
    storage = _storage(first)
    return (_start(first), *(_start(t) if _storage(t) == storage else None for t in others))


def _bytes_held(tensor: Any) -> int:
    with torch._C.DisableTorchFunction():
        return int(torch.Tensor.untyped_storage(tensor).nbytes())


def _start(tensor: Any) -> int:
    with torch._C.DisableTorchFunction():
        return int(torch.Tensor.storage_offset(tensor)) * int(torch.Tensor.element_size(tensor))


@dataclass(frozen=True)
class GlobalState(Guard):
    """A piece of torch's global state. ``state`` is a name in GLOBAL_STATES; ``origin`` is ``Fixed(torch, "torch")``."""

    kind: ClassVar[str] = "global state"
    rank: ClassVar[int] = 0

    state: str
    value: Any

    @property
    def name(self) -> str:
        return GLOBAL_STATES[self.state].words

    @property
    def kind_words(self) -> str:
        return self.name

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: Known = None) -> str:
        if self._is_plain and (self.state, self.value) in QUICK:
            template, function = QUICK[self.state, self.value]
            return str(template).format(const(function, function.__name__.lstrip("_")))
        read = GLOBAL_STATES[self.state].read
        call = f"{const(read, read.__name__.lstrip('_'))}()"
        if self.value is None or type(self.value) is bool:
            return f"{call} is {self.value}"
        if type(self.value) is torch.dtype:
            return f"{call} is {const(self.value, exact.dtype_word(self.value))}"
        return f"{const(same_state, 'same_state')}({call}, {const(self.value, self.state)})"

    @property
    def _is_plain(self) -> bool:
        return self.value is None or (type(self.value) is tuple and not self.value)

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        return same_state(GLOBAL_STATES[self.state].read(), self.value)

    def expected_text(self) -> str:
        return _state_text(self.value)

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        found = _state_text(GLOBAL_STATES[self.state].read())
        return f"another {found}" if found == self.expected_text() and not self.test(value) else found

    def sentence(self, actual: str) -> str:
        return f"{self.name[0].upper()}{self.name[1:]} is {actual}, the compiled code was made with {self.expected_text()}."

    def fixes(self, value: Any, others: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        if self.state == "grad_mode":
            wanted = "enable_grad" if self.value else "no_grad"
            return (
                Fix(
                    "Call it always under the same grad mode, or accept one entry for each",
                    f"with torch.{wanted}():\n    ...",
                ),
            )
        return (Fix(f"Set the {self.name} once, before the first call, or accept one entry for each setting."),)


def _state_text(value: Any) -> str:
    if type(value) is bool:
        return "on" if value else "off"
    if value is None or (type(value) is tuple and not value):
        return "none"
    return exact.describe(value)


TORCH = Fixed(torch, "torch")
"""The origin of every guard on global state."""


def current_global_state_guards(cause: Cause = NO_CAUSE) -> tuple[GlobalState, ...]:
    """One guard for each piece of torch's global state, as it is now."""
    return tuple(GlobalState(TORCH, state.name, state.read(), cause=cause) for state in GLOBAL_STATES.values())


@dataclass(frozen=True)
class ShapeRelation(Guard):
    """A sympy relation over sizes. ``symbols`` says where each symbol is read: (symbol, origin, dimension), dimension -1 for an int's own value.

    ``origin`` is the first symbol's.
    """

    kind: ClassVar[str] = "shape relation"
    rank: ClassVar[int] = 70

    relation: sympy.Basic
    symbols: tuple[tuple[sympy.Symbol, Origin, int], ...]

    @property
    def origins(self) -> tuple[Origin, ...]:
        return (self.origin, *dict.fromkeys(o for _, o, _ in self._used if o != self.origin))

    @property
    def _used(self) -> tuple[tuple[sympy.Symbol, Origin, int], ...]:
        """The symbols that the relation speaks of."""
        free = self.relation.free_symbols
        return tuple(place for place in self.symbols if place[0] in free)

    def condition(self, expr: str, const: ConstName, others: tuple[str, ...] = (), known: Known = None) -> str:
        texts = dict(zip(self.origins, (expr, *others), strict=True))
        size = const(_size_at, "size_at")
        reads = {s: f"{size}({texts[o]}, {d})" for s, o, d in self._used}
        if self.relation.has(sympy.Or, sympy.Not, sympy.ITE, sympy.Piecewise):
            # What holds without reading all of its sizes must not admit a value that has no such size.
            return f"{const(_evaluator(self.relation, tuple(reads)), 'relation')}({', '.join(reads.values())})"
        return relation_text(self.relation, reads, const)

    def test(self, value: Any, others: tuple[Any, ...] = ()) -> bool:
        sizes = self._sizes(value, others)
        return bool(_evaluator(self.relation, tuple(sizes))(*sizes.values()))

    def _sizes(self, value: Any, others: tuple[Any, ...]) -> dict[sympy.Symbol, int | float]:
        values = dict(zip(self.origins, (value, *others), strict=True))
        return {s: _size_at(values[o], d) for s, o, d in self._used}

    def expected_text(self) -> str:
        return relation_words(self.relation)

    def actual_text(self, value: Any, others: tuple[Any, ...] = ()) -> str:
        try:
            sizes = self._sizes(value, others)
        except (TypeError, IndexError, RuntimeError):
            return exact.describe(value)
        return ", ".join(f"{s.name} = {v}" for s, v in sizes.items())

    def sentence(self, actual: str) -> str:
        where = ", ".join(f"{s.name} is {_place(o, d)}" for s, o, d in self._used)
        return f"The compiled code holds where {self.expected_text()} ({where}); here {actual}."

    def fixes(self, value: Any, others: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return (
            Fix(
                f"Keep sizes to {self.expected_text()}, for example by padding, or accept one entry on each side of it."
            ),
        )


def _place(origin: Origin, dimension: int) -> str:
    return spoken(origin) if dimension < 0 else f"{spoken(origin)}.shape[{dimension}]"


def _size_at(value: Any, dimension: int) -> int | float:
    """One size of a tensor, or a number itself (dimension -1).

    Raises:
        TypeError: not a tensor, or not a number.
        IndexError: no such dimension.
    """
    if dimension >= 0 and type(value) is TensorSpec:
        return int(value.shape[dimension])
    if dimension >= 0:
        with torch._C.DisableTorchFunction():
            size: int = torch.Tensor.size(value)[dimension]
            return size
    if type(value) not in (int, float):
        raise TypeError(f"{type(value).__name__} is no number")
    number: int | float = value
    return number


@functools.lru_cache(maxsize=4096)
def _evaluator(relation: sympy.Basic, symbols: tuple[sympy.Symbol, ...]) -> Callable[..., bool]:
    names = [f"v{i}" for i in range(len(symbols))]
    space: dict[str, Any] = {}

    def const(held: object, name: str) -> str:
        space[name] = held
        return name

    text = relation_text(relation, dict(zip(symbols, names, strict=True)), const)
    made: Callable[..., bool] = eval(f"lambda {', '.join(names)}: {text}", space)
    return made
