"""ExceptionGroup variable, ``split`` and ``except*``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Args, ConstantVariable, UserErrors, Variable, is_none, realize
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable, sequence_items
from engine.trace.variables.exceptions.exceptions import ExceptionVariable, resolve_exception_class
from engine.trace.variables.objects.class_lookup import (
    call_python_method,
    call_python_new,
    find_in_class,
    find_python_method,
)
from engine.trace.variables.objects.classes import ClassVariable
from engine.trace.variables.objects.constructor_registry import register_constructor

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer

_HEAP_TYPE_FLAG = 1 << 9
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
        alike: Any = (
            type(self.cls.__name__, (BaseExceptionGroup,), {}) if self.cls.__flags__ & _HEAP_TYPE_FLAG else self.cls
        )
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
        made = realize(tx, realize(tx, self.get_attr(tx, "derive")).call(tx, [ListVariable(list(inside))], {}))
        if not isinstance(made, ExceptionGroupVariable):
            return tx.raise_type_error("derive must return an instance of BaseExceptionGroup")  # type: ignore[no-any-return]
        made.split_from = self.split_from
        made.raise_line, made.was_raised = self.raise_line, self.was_raised
        for name in _COPIED_ATTRIBUTES:
            if name in self.attributes:
                value = realize(tx, self.attributes[name])
                made.attributes[name] = ListVariable(list(value.items)) if isinstance(value, ListVariable) else value
        return made


ExceptionMatcher = Callable[[Variable], bool]


def make_group(tx: Tracer, cls: Any, args: Args) -> Variable:
    """Construct an ``ExceptionGroup``; the real class checks dummy exceptions for errors."""
    new = find_in_class(cls, "__new__")
    if new is not None and isinstance(new[1], (FunctionType, staticmethod)):
        raise Unsupported("exception-creation", f"{cls.__qualname__} is created")
    forced = [realize(tx, a) for a in args]
    inside: list[ExceptionVariable] = []
    stands: list[Any] = [a.value if isinstance(a, ConstantVariable) else object() for a in forced]
    if len(forced) == 2 and isinstance(forced[1], (ListVariable, TupleVariable)):
        members = [realize(tx, i) for i in sequence_items(tx, forced[1])]
        inside = [i for i in members if isinstance(i, ExceptionVariable)]
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
    if ran is None and isinstance(made, ExceptionVariable):
        made.set_keyword_attributes(tx, kwargs)
    return made


def _dummy_exception(value: Variable) -> Any:
    if not issubclass(value.python_type(), BaseException):
        return object()
    return Exception() if issubclass(value.python_type(), Exception) else BaseException()


def make_matcher(tx: Tracer, wanted: Variable) -> ExceptionMatcher:
    """Build the matcher of ``split`` and ``subgroup`` from a class, classes or a function."""
    classes = wanted.items if isinstance(wanted, TupleVariable) else [wanted]
    kinds = tuple(c.real_object for c in (realize(tx, c) for c in classes) if isinstance(c, ClassVariable))
    if len(kinds) == len(classes) and all(issubclass(k, BaseException) for k in kinds):
        # Python compares classes here without asking their metaclass.
        return lambda error: any(base is kind for base in error.python_type().__mro__ for kind in kinds)
    if wanted.lacks_methods("__call__") or isinstance(wanted, ClassVariable):
        tx.raise_type_error("expected a function, exception type or tuple of exception types")
    return lambda error: realize(tx, wanted.call(tx, [error], {})).is_truthy(tx)


def match_except_star(tx: Tracer, error: Variable, wanted: Variable) -> tuple[Variable, Variable]:
    """Return the part that ``except* wanted`` catches and the rest; None for an empty part."""
    if is_none(error):
        return NONE, NONE
    is_group = issubclass(error.python_type(), BaseExceptionGroup)
    if is_group and not isinstance(error, ExceptionGroupVariable):
        raise Unsupported(
            "exception-handling", f"except* of a {error.describe()} that was created outside the function"
        )
    _check_except_star_classes(tx, wanted)
    matches = make_matcher(tx, wanted)
    if matches(error):
        return (
            error if is_group else make_group(tx, ExceptionGroup, [ConstantVariable(""), TupleVariable([error])])
        ), NONE
    if not isinstance(error, ExceptionVariable):
        return NONE, error
    found, rest = error.split(tx, matches)
    return found or NONE, rest or NONE


def _check_except_star_classes(tx: Tracer, wanted: Variable) -> None:
    for cls in wanted.items if isinstance(wanted, TupleVariable) else [wanted]:
        kind = realize(tx, cls)
        if not isinstance(kind, ClassVariable) or not issubclass(kind.real_object, BaseException):
            tx.raise_type_error("catching classes that do not inherit from BaseException is not allowed")
        elif issubclass(kind.real_object, BaseExceptionGroup):
            tx.raise_type_error("catching ExceptionGroup with except* is not allowed. Use except instead.")


def prep_reraise_star(tx: Tracer, whole: Variable, raised: list[Variable]) -> Variable:
    """Return the exception that leaves a ``try`` with ``except*``, or None.

    It combines the exceptions that the handlers raised with the uncaught part.
    """
    present = [v for v in (realize(tx, r) for r in raised) if not is_none(v)]
    if not isinstance(whole, ExceptionGroupVariable):
        return present[0] if present else NONE
    again = [v for v in present if isinstance(v, ExceptionGroupVariable) and v.split_from is whole.split_from]
    anew = [v for v in present if v not in again]
    kept: Variable | None = None
    if again:
        leaves = {id(leaf) for group in again for leaf in group.leaves(tx)}
        kept, _ = whole.split(tx, lambda error: id(error) in leaves)
    if not anew:
        return kept or NONE
    return make_group(
        tx, BaseExceptionGroup, [ConstantVariable(""), ListVariable([*anew, *([] if kept is None else [kept])])]
    )
