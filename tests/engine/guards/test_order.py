"""The order of guards, and what is left out."""

from __future__ import annotations

import pytest
import torch

from engine.guards.order import order_guards
from engine.ir.guards.aliasing import SameObject
from engine.ir.guards.base import Cause
from engine.ir.guards.python_values import DictKeysMatch, EqualsMatch, LengthMatch, TypeMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.roots import LocalSource
from tests.engine.guards.sample_guards import current_global_state_guards, tensor_match, two_tensors

X, Y = LocalSource("x"), LocalSource("y")


def test_a_value_is_checked_before_what_is_read_through_it() -> None:
    """However the guards came, a prefix's guards stand before those of deeper origins."""
    deep = GetItemSource(AttrSource(GetItemSource(X, 0), "a"), "k")
    guards = [TypeMatch(o, dict) for o in reversed(deep.chain())] + [LengthMatch(X, 1)]
    places = {g.source: i for i, g in reversed(list(enumerate(order_guards(guards))))}
    last_of_x = max(i for i, g in enumerate(order_guards(guards)) if g.source == X)
    assert [places[o] for o in deep.chain()] == sorted(places[o] for o in deep.chain())
    assert last_of_x < places[GetItemSource(X, 0)]


def test_relations_come_after_the_guards_of_all_they_read() -> None:
    """A guard on two values waits for both."""
    found = order_guards((SameObject(X, Y, False), tensor_match(Y, torch.zeros(2)), tensor_match(X, torch.zeros(2))))
    assert isinstance(found[-1], SameObject)


def test_global_state_first_then_arguments() -> None:
    """Guards run in order: global state, arguments, then values reached through arguments.

    The cheapest and most decisive guards come first.
    """
    found = order_guards((*two_tensors(), tensor_match(AttrSource(X, "a"), torch.zeros(3))))
    names = [g.source.expr for g in found]
    assert names.index("L['x']") > names.index("torch")
    assert max(i for i, n in enumerate(names) if n == "L['y']") < names.index("L['x'].a")


def test_the_first_of_equal_guards_is_kept() -> None:
    """Of two guards that differ only in their cause the one that came first stays."""
    first, again = EqualsMatch(X, 1, cause=Cause(reason="first")), EqualsMatch(X, 1, cause=Cause(reason="again"))
    assert [g.cause.reason for g in order_guards((first, again))] == ["first"]


def test_equal_guards_of_different_types_are_both_kept() -> None:
    """1 and True, 0.0 and -0.0 are different guards."""
    assert len(order_guards((EqualsMatch(X, 1), EqualsMatch(X, True)))) == 2
    assert len(order_guards((EqualsMatch(X, 0.0), EqualsMatch(X, -0.0)))) == 2


def test_implied_guards_are_dropped() -> None:
    """Implied guards are dropped.

    A value's equality implies its type, a dict's keys imply its length, and an empty mode stack implies the
    default device.
    """
    found = order_guards((TypeMatch(X, int), EqualsMatch(X, 1), LengthMatch(Y, 2), DictKeysMatch(Y, ("a", "b"))))
    assert {type(g) for g in found} == {EqualsMatch, DictKeysMatch}
    assert order_guards((TypeMatch(X, float), EqualsMatch(X, 1)))[0] == TypeMatch(X, float)
    assert "default_device" not in {getattr(g, "state_name", "") for g in order_guards(current_global_state_guards())}


@pytest.mark.thorough
def test_ten_thousand_guards_are_ordered_quickly() -> None:
    """Ordering is not quadratic in the number of guards."""
    guards = [EqualsMatch(GetItemSource(AttrSource(GetItemSource(X, i // 100), "a"), i), i) for i in range(10_000)]
    assert len(order_guards(guards)) == 10_000
