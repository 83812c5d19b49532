"""Exception groups: made, split, caught by ``except*``."""

import sys
from typing import Any

import torch

from tests.programs import program


def handled(error: BaseException) -> list[Any]:
    """What the handlers saw, and what left them."""
    told: list[Any] = []
    try:
        try:
            raise error
        except* (TypeError, KeyError) as caught:
            told.append(("types", repr(caught)))
        except* ValueError as caught:
            told.append(("values", repr(caught)))
            raise
        except* OSError as caught:
            raise RuntimeError("new") from caught
        else:
            told.append("else")
        finally:
            told.append("finally")
    except BaseException as left:  # noqa: BLE001 - whatever leaves
        told.append(("left", repr(left), repr(left.__cause__)))
    return told


@program(lambda: (torch.ones(2),), breaks=7)
def caught_in_parts(x: torch.Tensor) -> tuple[Any, ...]:
    """Each handler gets its part; what none gets, and what handlers raise, goes on as a group."""
    return x + 1, [
        handled(ExceptionGroup("a", [TypeError(1), ValueError(2)])),
        handled(ExceptionGroup("a", [TypeError(1), KeyError(2)])),
        handled(ExceptionGroup("a", [ValueError(1), OSError(2), IndexError(3)])),
        handled(ExceptionGroup("a", [ExceptionGroup("b", [ValueError(1), OSError(2)]), IndexError(3)])),
        handled(BaseExceptionGroup("a", [KeyboardInterrupt(), TypeError(1)])),
    ]


@program(lambda: (torch.ones(2),), breaks=2)
def single_exceptions(x: torch.Tensor) -> tuple[Any, ...]:
    """An exception alone is wrapped for its handler, and stays alone otherwise."""
    return x + 1, [handled(e) for e in (ValueError(3), OSError(3), IndexError(3), TypeError(2))]


@program(lambda: (torch.ones(2),), breaks=12)
def split_by_hand(x: torch.Tensor) -> tuple[Any, ...]:
    """``split``, ``subgroup`` and ``derive``, by class and by function."""
    group = ExceptionGroup("m", [ValueError(1), ExceptionGroup("n", [TypeError(2), ValueError(3)])])
    found, rest = group.split(ValueError)
    some = group.subgroup(lambda error: isinstance(error, TypeError))
    shown = (repr(found), repr(rest), repr(some), repr(group.derive([OSError(1)])), str(group))
    return x + len(group.exceptions), shown, group.message, group


@program(lambda: (torch.ones(2),), breaks=2)
def refused(x: torch.Tensor) -> tuple[Any, ...]:
    """Groups that cannot be made, and classes that cannot be caught."""
    told: list[str] = []
    for message, inside in (("a", []), (1, [ValueError()]), ("a", [1]), ("a", [KeyboardInterrupt()]), ("a", 3)):
        try:
            ExceptionGroup(message, inside)  # type: ignore[arg-type, type-var]
        except (TypeError, ValueError) as error:
            told.append(str(error))
    try:
        try:
            raise ValueError("a")
        except* ExceptionGroup:  # type: ignore[misc]
            pass
    except TypeError as error:
        told.append(str(error))
    return x + 1, told


# From 3.12 on a comprehension has no frame of its own (PEP 709), whose break would be a fourth place.
@program(lambda: (torch.ones(2),), breaks=3 if sys.version_info >= (3, 12) else 4)
def raised_again(x: torch.Tensor) -> tuple[Any, ...]:
    """``raise caught`` makes a new group around it, ``raise`` does not."""
    try:
        try:
            raise ExceptionGroup("a", [ValueError(1), TypeError(2)])
        except* ValueError as caught:
            raise caught
    except BaseExceptionGroup as left:
        return x + 1, repr(left), [repr(e) for e in left.exceptions]
    return x, "", []
