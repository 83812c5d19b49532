"""ExceptionGroup variable, ``split`` and ``except*``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.ir.introspection.python_objects import is_heap_type
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Args, ConstantVariable, UserErrors, Variable, is_none, realize
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable, items_or_value, sequence_items
from engine.trace.variables.exceptions.exceptions import ExceptionVariable, resolve_exception_class
from engine.trace.variables.objects.class_lookup import (
    call_python_method,
    call_python_new,
    find_in_class,
    find_python_method,
)
from engine.trace.variables.objects.constructor_registry import register_constructor

_COPIED_ATTRIBUTES = ("__cause__", "__context__", "__suppress_context__", "__notes__")


class ExceptionGroupVariable(ExceptionVariable):
    """An ``ExceptionGroup``.

    ``split_from`` is the group that it was split from, or itself for a newly created group.
    """

    __slots__ = ("members", "split_from")

    def __init__(self, cls: type[BaseException], args: Args, inside: list[ExceptionVariable]) -> None:
        super().__init__(cls, args)
        self.members = inside
        self.split_from: ExceptionGroupVariable = self

    def as_exception_group(self) -> ExceptionGroupVariable:
        return self

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "message":
            return self.args[0]
        if name == "exceptions":
            return TupleVariable(list(self.members))
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: dict[str, Variable]) -> Variable:
        match name:
            case "split":
                return TupleVariable([part or NONE for part in self.split(tx, make_matcher(tx, realize(tx, args[0])))])
            case "subgroup":
                return self.split(tx, make_matcher(tx, realize(tx, args[0])))[0] or NONE
            case "derive":
                return make_group(tx, BaseExceptionGroup, [self.args[0], args[0]])
        return super().call_method(tx, name, args, kwargs)

    def as_builtin_exception(self, tx: Tracer) -> BaseException:
        if any(find_python_method(i.python_type(), "__repr__") is not None for i in self.members):
            raise self.unsupported("formatting it", "traceback")
        alike: Any = type(self.cls.__name__, (BaseExceptionGroup,), {}) if is_heap_type(self.cls) else self.cls
        shown = [i.as_builtin_exception(tx) for i in self.members]
        given = tuple(shown) if issubclass(realize(tx, self.args[1]).python_type(), tuple) else shown
        made: BaseException = alike(realize(tx, self.args[0]).as_python_constant(tx), given)
        return made

    def split(self, tx: Tracer, matches: ExceptionMatcher) -> tuple[ExceptionVariable | None, ExceptionVariable | None]:
        """Split into the matching part and the rest, both with the nesting of the group."""
        if matches(self):
            return self, None
        pairs = [member.split(tx, matches) for member in self.members]
        found, rest = [p for p, _ in pairs if p is not None], [r for _, r in pairs if r is not None]
        return self._derive(tx, found), self._derive(tx, rest)

    def leaves(self, tx: Tracer) -> list[Variable]:
        return [leaf for member in self.members for leaf in member.leaves(tx)]

    def _derive(self, tx: Tracer, inside: Sequence[Variable]) -> ExceptionVariable | None:
        if not inside:
            return None
        derived = realize(tx, self.get_attr(tx, "derive")).call(tx, [ListVariable(list(inside))], {})
        made = realize(tx, derived).as_exception_group()
        if made is None:
            return tx.raise_type_error("derive must return an instance of BaseExceptionGroup")  # type: ignore[no-any-return]
        made.split_from = self.split_from
        made.raise_line, made.was_raised = self.raise_line, self.was_raised
        for name in _COPIED_ATTRIBUTES:
            if name in self.attributes:
                value = realize(tx, self.attributes[name])
                notes = value.sequence_contents
                made.attributes[name] = value if notes is None else ListVariable(list(notes.items))
        return made


ExceptionMatcher = Callable[[Variable], bool]


def make_group(tx: Tracer, cls: Any, args: Args) -> Variable:
    """Construct an ``ExceptionGroup``; the real class checks dummy exceptions for errors."""
    new = find_in_class(cls, "__new__")
    if new is not None and is_heap_type(new[0]):
        raise Unsupported("exception-creation", f"{cls.__qualname__} is created")
    forced = [realize(tx, a) for a in args]
    inside: list[ExceptionVariable] = []
    stands: list[Any] = [a.constant if a.is_constant else object() for a in forced]
    if len(forced) == 2 and forced[1].sequence_contents is not None:
        members = [realize(tx, i) for i in sequence_items(tx, forced[1])]
        inside = [error for i in members if (error := i.as_exception()) is not None]
        stands[1] = [_dummy_exception(i) for i in members]
    alike = next(c for c in cls.__mro__ if c in (ExceptionGroup, BaseExceptionGroup))
    with UserErrors(tx, TypeError, ValueError):
        made = alike(*stands)
    if len(inside) < len(made.exceptions):
        raise Unsupported("exception-creation", f"{cls.__qualname__} of exceptions of unknown kind is created")
    return ExceptionGroupVariable(type(made) if cls is BaseExceptionGroup else cls, forced, inside)


def _is_exception_class(cls: Any) -> bool:
    return issubclass(cls, BaseException)


@register_constructor(10, _is_exception_class)
def _construct_exception(tx: Tracer, of: Variable, args: Args, kwargs: dict[str, Variable]) -> Variable:
    """Run ``__new__`` and ``__init__`` of an exception class."""
    cls = of.as_python_object()
    made = call_python_new(tx, of, args, kwargs)
    if made is not None and not issubclass(made.python_type(), cls):
        return made
    if made is None and issubclass(cls, BaseExceptionGroup):
        made = make_group(tx, cls, args)
    made = made or ExceptionVariable(resolve_exception_class(tx, cls, args), args)
    ran = call_python_method(tx, cls, "__init__", [made, *args], kwargs)
    error = made.as_exception()
    if ran is None and error is not None:
        error.set_keyword_attributes(tx, kwargs)
    return made


def _dummy_exception(value: Variable) -> Any:
    if not issubclass(value.python_type(), BaseException):
        return object()
    return Exception() if issubclass(value.python_type(), Exception) else BaseException()


def make_matcher(tx: Tracer, wanted: Variable) -> ExceptionMatcher:
    """Build the matcher of ``split`` and ``subgroup`` from a class, classes or a function."""
    kinds = _classes_in(tx, wanted)
    if all(k is not None and issubclass(k, BaseException) for k in kinds):
        # Python compares classes here without asking their metaclass.
        return lambda error: any(base is kind for base in error.python_type().__mro__ for kind in kinds)
    if wanted.lacks_methods("__call__") or wanted.as_class() is not None:
        tx.raise_type_error("expected a function, exception type or tuple of exception types")
    return lambda error: realize(tx, wanted.call(tx, [error], {})).is_truthy(tx)


def _classes_in(tx: Tracer, wanted: Variable) -> list[Any]:
    """Return the class or the classes of a tuple; None for anything that is no class."""
    return [realize(tx, c).as_class() for c in items_or_value(tx, wanted)]


def match_except_star(tx: Tracer, error: Variable, wanted: Variable) -> tuple[Variable, Variable]:
    """Return the part that ``except* wanted`` catches and the rest; None for an empty part."""
    if is_none(error):
        return NONE, NONE
    is_group = issubclass(error.python_type(), BaseExceptionGroup)
    if is_group and error.as_exception_group() is None:
        raise Unsupported(
            "exception-handling", f"except* of a {error.describe()} that was created outside the function"
        )
    _check_except_star_classes(tx, wanted)
    matches = make_matcher(tx, wanted)
    if matches(error):
        return (
            error if is_group else make_group(tx, ExceptionGroup, [ConstantVariable(""), TupleVariable([error])])
        ), NONE
    own = error.as_exception()
    if own is None:
        return NONE, error
    found, rest = own.split(tx, matches)
    return found or NONE, rest or NONE


def _check_except_star_classes(tx: Tracer, wanted: Variable) -> None:
    for cls in _classes_in(tx, wanted):
        if cls is None or not issubclass(cls, BaseException):
            tx.raise_type_error("catching classes that do not inherit from BaseException is not allowed")
        elif issubclass(cls, BaseExceptionGroup):
            tx.raise_type_error("catching ExceptionGroup with except* is not allowed. Use except instead.")


def prep_reraise_star(tx: Tracer, whole: Variable, raised: list[Variable]) -> Variable:
    """Return the exception that leaves a ``try`` with ``except*``, or None.

    It combines the exceptions that the handlers raised with the uncaught part.
    """
    present = [v for v in (realize(tx, r) for r in raised) if not is_none(v)]
    group = whole.as_exception_group()
    if group is None:
        return present[0] if present else NONE
    groups = [g for v in present if (g := v.as_exception_group()) is not None]
    again = [g for g in groups if g.split_from is group.split_from]
    anew = [v for v in present if v not in again]
    kept: Variable | None = None
    if again:
        leaves = {id(leaf) for part in again for leaf in part.leaves(tx)}
        kept, _ = group.split(tx, lambda error: id(error) in leaves)
    if not anew:
        return kept or NONE
    return make_group(
        tx, BaseExceptionGroup, [ConstantVariable(""), ListVariable([*anew, *([] if kept is None else [kept])])]
    )
