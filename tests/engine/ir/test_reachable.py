"""Tests of walks over a graph."""

from engine.ir.reachable import reachable


def test_each_item_is_yielded_once_nearest_first():
    """Items come nearest first and once, also where the graph joins again or has a cycle."""
    following = {"a": "bc", "b": "d", "c": "d", "d": "ea", "e": ""}
    assert list(reachable("a", following.__getitem__)) == ["a", "b", "c", "d", "e"]
    assert list(reachable(["c", "b", "c"], following.__getitem__)) == ["c", "b", "d", "e", "a"]
    assert list(reachable((), following.__getitem__)) == []
