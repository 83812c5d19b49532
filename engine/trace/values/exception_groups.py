"""Exception groups: made, split, and caught by ``except*``."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, Value, force, is_none
from engine.trace.values.classes import ClassValue, find_in_class
from engine.trace.values.exceptions import ExceptionValue
from engine.trace.values.sequences import ListValue, TupleValue, sequence_items

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
_HEAP = 1 << 9
_CARRIED = ("__cause__", "__context__", "__suppress_context__", "__notes__")


class GroupValue(ExceptionValue):
    """An ``ExceptionGroup``. ``stem`` is the group that it was split off, as long as it was not raised anew."""

    def __init__(self, cls: type[BaseException], args: Args, inside: list[Value]) -> None:
        super().__init__(cls, args)
        self.inside = inside
        self.stem: GroupValue = self

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "message":
            return self.args[0]
        if name == "exceptions":
            return TupleValue(list(self.inside))
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: dict[str, Value]) -> Value:
        match name:
            case "split":
                return TupleValue([part or NONE for part in self.split(tx, condition(tx, force(tx, args[0])))])
            case "subgroup":
                return self.split(tx, condition(tx, force(tx, args[0])))[0] or NONE
            case "derive":
                return make_group(tx, BaseExceptionGroup, [self.args[0], args[0]])
        return super().call_method(tx, name, args, kwargs)

    def in_c(self, tx: Tracer) -> BaseException:
        inside = [force(tx, i) for i in self.inside]
        own = (find_in_class(i.type(), "__repr__") for i in inside)
        if not all(isinstance(i, ExceptionValue) for i in inside) or any(
            o and isinstance(o[1], FunctionType) for o in own
        ):
            raise self.refuse("showing it")
        alike: Any = type(self.cls.__name__, (BaseExceptionGroup,), {}) if self.cls.__flags__ & _HEAP else self.cls
        shown = [i.in_c(tx) for i in inside if isinstance(i, ExceptionValue)]
        given = tuple(shown) if isinstance(force(tx, self.args[1]), TupleValue) else shown
        made: BaseException = alike(force(tx, self.args[0]).python(tx), given)
        return made

    def split(self, tx: Tracer, matches: Condition) -> tuple[Value | None, Value | None]:
        """What is inside and matches, and what does not: groups of the same shape, None where there is nothing."""
        if matches(self):
            return self, None
        found: list[Value] = []
        rest: list[Value] = []
        for value in self.inside:
            one = force(tx, value)
            if isinstance(one, GroupValue):
                part, left = one.split(tx, matches)
                found.extend([] if part is None else [part])
                rest.extend([] if left is None else [left])
            else:
                (found if matches(one) else rest).append(one)
        return self._derived(tx, found), self._derived(tx, rest)

    def _derived(self, tx: Tracer, inside: list[Value]) -> Value | None:
        if not inside:
            return None
        made = force(tx, force(tx, self.get_attr(tx, "derive")).call(tx, [ListValue(inside)], {}))
        if not isinstance(made, GroupValue):
            return tx.raise_type_error("derive must return an instance of BaseExceptionGroup")  # type: ignore[no-any-return]
        made.stem = self.stem
        made.line, made.was_raised = self.line, self.was_raised
        for name in _CARRIED:
            if name in self.attributes:
                value = force(tx, self.attributes[name])
                made.attributes[name] = ListValue(list(value.items)) if isinstance(value, ListValue) else value
        return made


Condition = Callable[[Value], bool]


def make_group(tx: Tracer, cls: Any, args: Args) -> Value:
    """``ExceptionGroup(message, exceptions)``; errors as of the real class, with exceptions that stand in."""
    new = find_in_class(cls, "__new__")
    if new is not None and isinstance(new[1], (FunctionType, staticmethod)):
        raise Unsupported("unknown-call", f"{cls.__qualname__} is created")
    forced = [force(tx, a) for a in args]
    inside: list[Value] = []
    stands: list[Any] = [a.value if isinstance(a, Const) else object() for a in forced]
    if len(forced) == 2 and isinstance(forced[1], (ListValue, TupleValue)):
        inside = [force(tx, i) for i in sequence_items(tx, forced[1])]
        stands[1] = [_stand_in(i) for i in inside]
    alike = next(c for c in cls.__mro__ if c in (ExceptionGroup, BaseExceptionGroup))
    try:
        made = alike(*stands)
    except (TypeError, ValueError) as error:
        raise tx.user_exception(error) from error
    return GroupValue(type(made) if cls is BaseExceptionGroup else cls, forced, inside)


def _stand_in(value: Value) -> Any:
    if not issubclass(value.type(), BaseException):
        return object()
    return Exception() if issubclass(value.type(), Exception) else BaseException()


def condition(tx: Tracer, wanted: Value) -> Condition:
    """What ``split`` and ``subgroup`` take: a class, classes, or a function of an exception."""
    classes = wanted.items if isinstance(wanted, TupleValue) else [wanted]
    kinds = tuple(c.held for c in (force(tx, c) for c in classes) if isinstance(c, ClassValue))
    if len(kinds) == len(classes) and all(issubclass(k, BaseException) for k in kinds):
        return lambda error: issubclass(error.type(), kinds)
    if wanted.lacks("__call__") or isinstance(wanted, ClassValue):
        tx.raise_type_error("expected a function, exception type or tuple of exception types")
    return lambda error: force(tx, wanted.call(tx, [error], {})).truth(tx)


def caught_part(tx: Tracer, error: Value, wanted: Value) -> tuple[Value, Value]:
    """What ``except* wanted`` catches of an exception, and what is left; None for nothing."""
    if is_none(error):
        return NONE, NONE
    is_group = issubclass(error.type(), BaseExceptionGroup)
    if is_group and not isinstance(error, GroupValue):
        raise Unsupported("unsupported-operation", f"except* of a {error.describe()} that came from outside")
    _check_classes(tx, wanted)
    matches = condition(tx, wanted)
    if matches(error):
        return (error if is_group else make_group(tx, ExceptionGroup, [Const(""), TupleValue([error])])), NONE
    if isinstance(error, GroupValue):
        found, rest = error.split(tx, matches)
        return found or NONE, rest or NONE
    return NONE, error


def _check_classes(tx: Tracer, wanted: Value) -> None:
    for cls in wanted.items if isinstance(wanted, TupleValue) else [wanted]:
        kind = force(tx, cls)
        if not isinstance(kind, ClassValue) or not issubclass(kind.held, BaseException):
            tx.raise_type_error("catching classes that do not inherit from BaseException is not allowed")
        elif issubclass(kind.held, BaseExceptionGroup):
            tx.raise_type_error("catching ExceptionGroup with except* is not allowed. Use except instead.")


def left_to_raise(tx: Tracer, whole: Value, raised: list[Value]) -> Value:
    """What leaves a ``try`` with ``except*``: what its handlers raised, and what none of them caught; None for nothing."""
    present = [v for v in (force(tx, r) for r in raised) if not is_none(v)]
    if not isinstance(whole, GroupValue):
        return present[0] if present else NONE
    again = [v for v in present if isinstance(v, GroupValue) and v.stem is whole.stem]
    anew = [v for v in present if v not in again]
    kept: Value | None = None
    if again:
        leaves = {id(leaf) for group in again for leaf in _leaves(tx, group)}
        kept, _ = whole.split(tx, lambda error: id(error) in leaves)
    if not anew:
        return kept or NONE
    return make_group(tx, BaseExceptionGroup, [Const(""), ListValue([*anew, *([] if kept is None else [kept])])])


def _leaves(tx: Tracer, group: GroupValue) -> list[Value]:
    found: list[Value] = []
    for value in group.inside:
        one = force(tx, value)
        found.extend(_leaves(tx, one) if isinstance(one, GroupValue) else [one])
    return found
