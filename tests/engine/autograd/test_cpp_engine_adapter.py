"""The methods that different versions of torch call come to the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.autograd import cpp_engine_adapter
from engine.autograd.execution_order import AutogradNode, eager_execution_order, pop_heap, push_heap
from engine.torch_private.compiled_autograd import capture_protocol


class Told:
    """A recorder that keeps what it was told."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.failed: list[BaseException] = []

    def __getattr__(self, name: str) -> Any:
        def hear(*args: Any, **kwargs: Any) -> Any:
            self.heard.append((name, *args))
            return args[0]

        return hear

    def begin(self, *lists: Any) -> Any:
        """Three lists back."""
        self.heard.append(("begin", *lists))
        return lists

    def fail(self, error: BaseException) -> None:
        """Keep it."""
        self.failed.append(error)

    def add_gradients(self, old: Any, new: Any) -> Any:
        """Something breaks."""
        raise KeyError("broken")


def test_both_ways_to_accumulate_come_to_the_same() -> None:
    """The adapter accepts both accumulate_grad signatures and returns what each expects.

    Older versions of torch pass (variable, grad, ...) and expect no result. Version 2.13 passes the
    variable's grad before the new gradient and expects a result.
    """
    told = Told()
    protocol = cpp_engine_adapter.AutogradCompilerAdapter(told)  # type: ignore[arg-type]
    assert protocol.accumulate_grad("variable", "grad") is None
    assert protocol.accumulate_grad("variable", "grad", False) is None
    assert protocol.accumulate_grad("variable", "old", "grad", False) == "variable"
    assert told.heard == [("accumulate_grad", "variable", "grad", old) for old in (None, None, "old")]


def test_both_ways_to_begin_come_to_the_same() -> None:
    """Newer versions say what kind of call it is, and want an id first."""
    protocol = cpp_engine_adapter.AutogradCompilerAdapter(Told())  # type: ignore[arg-type]
    assert protocol.begin_capture([1], (2,), [3], []) == ([1], (2,), [3])
    assert protocol.begin_capture([1], (2,), [3], [], True, False) == ("engine", [1], (2,), [3])


def test_no_method_raises() -> None:
    """The adapter stores errors until torch's traversal ends and returns a usable value."""
    told = Told()
    protocol = cpp_engine_adapter.AutogradCompilerAdapter(told)  # type: ignore[arg-type]
    assert protocol.accumulate("old", "new") == "old"
    assert [str(e) for e in told.failed] == ["'broken'"]


def test_torch_has_what_the_adapter_calls() -> None:
    """This version's module has the functions that the adapter leans on."""
    for name in ("set_autograd_compiler", "clear_cache", "is_cache_empty"):
        assert callable(getattr(capture_protocol, name))
    assert cpp_engine_adapter.restore_compiler(cpp_engine_adapter.set_compiler(None)) == (None, False)


def test_equals_leave_the_heap_as_in_the_c_library() -> None:
    """Equal items leave the heap in the order of GNU's std::priority_queue.

    There the last item rises from the hole that the right-hand child left.
    """
    heap: list[int] = []
    for item in range(4):
        push_heap(heap, item, lambda a, b: False)
    assert [pop_heap(heap, lambda a, b: False) for _ in range(4)] == [0, 2, 1, 3]


def test_later_operations_run_first_and_leaves_at_once() -> None:
    """Eager's order: by sequence number from the latest, leaves as soon as they are ready."""
    most = 2**64 - 1
    nodes = [
        AutogradNode("root", most, ((1, 0), (2, 0))),
        AutogradNode("early", 1, ((3, 0),)),
        AutogradNode("late", 2, ((4, 0), (3, 0))),
        AutogradNode("leaf of both", most, ()),
        AutogradNode("leaf of late", most, ()),
    ]
    assert eager_execution_order(nodes) == (0, 2, 4, 1, 3)


@pytest.mark.parametrize("name", ["validate_outputs", "MulBackward0"])
def test_a_formula_is_found_wherever_torch_bound_it(name: str) -> None:
    """After one captured backward its formulas can be called by name."""
    import engine

    x = torch.randn(3, requires_grad=True)
    with engine.compiled_autograd("eager"):
        (x * x).sum().backward()
    assert callable(cpp_engine_adapter.formula(name))
