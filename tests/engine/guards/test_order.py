"""The order of guards, and what is left out."""

from __future__ import annotations

import torch

from engine.guards.order import ordered
from engine.ir.guard import Cause
from engine.ir.origin import Attr, Item, Local
from engine.ir.relation_guard import SameObject
from engine.ir.state_guard import current_global_state_guards
from engine.ir.value_guard import DictKeys, Equals, LengthIs, TypeIs
from tests.engine.guards.examples import match, two_tensors

X, Y = Local("x"), Local("y")


def test_a_value_is_checked_before_what_is_read_through_it() -> None:
    """However the guards came, a prefix's guards stand before those of deeper origins."""
    deep = Item(Attr(Item(X, 0), "a"), "k")
    guards = [TypeIs(o, dict) for o in reversed(deep.chain())] + [LengthIs(X, 1)]
    places = {g.origin: i for i, g in reversed(list(enumerate(ordered(guards))))}
    last_of_x = max(i for i, g in enumerate(ordered(guards)) if g.origin == X)
    assert [places[o] for o in deep.chain()] == sorted(places[o] for o in deep.chain())
    assert last_of_x < places[Item(X, 0)]


def test_relations_come_after_the_guards_of_all_they_read() -> None:
    """A guard on two values waits for both."""
    found = ordered((SameObject(X, Y, False), match(Y, torch.zeros(2)), match(X, torch.zeros(2))))
    assert isinstance(found[-1], SameObject)


def test_global_state_first_then_arguments() -> None:
    """What is cheapest and decides most comes first: global state, then arguments, then what is reached through them."""
    found = ordered((*two_tensors(), match(Attr(X, "a"), torch.zeros(3))))
    names = [g.origin.expr for g in found]
    assert names.index("L['x']") > names.index("torch")
    assert max(i for i, n in enumerate(names) if n == "L['y']") < names.index("L['x'].a")


def test_the_first_of_equal_guards_is_kept() -> None:
    """Of two guards that differ only in their cause the one that came first stays."""
    first, again = Equals(X, 1, cause=Cause(why="first")), Equals(X, 1, cause=Cause(why="again"))
    assert [g.cause.why for g in ordered((first, again))] == ["first"]


def test_equal_guards_of_different_types_are_both_kept() -> None:
    """1 and True, 0.0 and -0.0 are different guards."""
    assert len(ordered((Equals(X, 1), Equals(X, True)))) == 2
    assert len(ordered((Equals(X, 0.0), Equals(X, -0.0)))) == 2


def test_implied_guards_are_dropped() -> None:
    """A value's equality settles its type, a dict's keys its length, an empty mode stack the default device."""
    found = ordered((TypeIs(X, int), Equals(X, 1), LengthIs(Y, 2), DictKeys(Y, ("a", "b"))))
    assert {type(g) for g in found} == {Equals, DictKeys}
    assert ordered((TypeIs(X, float), Equals(X, 1)))[0] == TypeIs(X, float)
    assert "default_device" not in {getattr(g, "state", "") for g in ordered(current_global_state_guards())}


def test_ten_thousand_guards_are_ordered_quickly() -> None:
    """Ordering is not quadratic in the number of guards."""
    guards = [Equals(Item(Attr(Item(X, i // 100), "a"), i), i) for i in range(10_000)]
    assert len(ordered(guards)) == 10_000
