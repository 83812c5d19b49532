"""When a cell's own body is the frame, and that it then means the same."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch

from notebook_ext.compile_cell_body import cell_function, check_eligibility, setup_length
from notebook_ext.run_cell import is_root


def namespace() -> dict[str, Any]:
    """Names as a notebook has them."""
    names: dict[str, Any] = {"torch": torch, "a": torch.ones(2), "m": torch.nn.Linear(2, 2), "n": 3}
    names["t"] = torch.nn.MultiheadAttention(2, 1)
    exec("def f(x):\n    return x", names)
    return names


def verdict(source: str) -> Any:
    """What the judge says of a cell."""
    names = namespace()
    return check_eligibility(ast.parse(source).body, names, lambda value: is_root(value, names))


@pytest.mark.parametrize(
    "source",
    [
        "b = a + 1",
        "b = torch.sin(a)\nb.sum()",
        "for i in range(n):\n    a = a * i",
        "with torch.no_grad():\n    c = (a @ a).item()",
        "b = a if n > 2 else -a\nprint(b)",
        "b = torch.randn(3)\nb.relu().mean()",
    ],
)
def test_tensor_code_without_roots_can_be_the_frame(source: str) -> None:
    """Every call is known to be torch's, Python's, or a tensor's method."""
    assert verdict(source).is_eligible, verdict(source).reason


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("n + 1", "does not compute with tensors"),
        ("g = [abs]\ng[0](a)", "known only once line 2 runs"),
        ("h = a\nh(1)", "known only once"),
        ("del a", "a del"),
        ("(lambda: a)()", "lambda"),
        ("a.sum().backward()", "backward"),
        ("x = locals()\na + 1", "looks at the cell's own frame"),
        ("try:\n    a + 1\nexcept ValueError:\n    pass", "a try"),
    ],
)
def test_a_doubt_means_python(source: str, why: str) -> None:
    """The reason is in words."""
    told = verdict(source)
    assert not told.is_eligible
    assert not told.has_roots
    assert why in told.reason


@pytest.mark.parametrize(
    "source",
    ["m(a)", "f(a)", "t.merge_masks(None, None, a)", "l = torch.nn.Linear(2, 2)\nl(a)", "b = [f(x) for x in a]"],
)
def test_calls_of_roots_are_seen(source: str) -> None:
    """Then roots are compiled, not the cell."""
    assert verdict(source).has_roots


def test_setup_comes_before_the_frame() -> None:
    """Leading imports and definitions run as Python first."""
    assert setup_length(ast.parse("import math\ndef f():\n    pass\nclass C:\n    pass\nx = 1\nimport os").body) == 3


def test_the_function_assigns_globals_and_returns_the_last_value() -> None:
    """Names land in the namespace, loops' and withs' names too; its errors read as the cell's."""
    names = namespace()
    body = ast.parse("with torch.no_grad() as w:\n    for i in range(3):\n        b = a * i\n(c, *d) = b, i\nc").body
    run = cell_function(body, returns_last=True, compile_module=lambda t: compile(t, "<cell>", "exec"), namespace=names)
    assert run().tolist() == [2.0, 2.0]
    assert names["i"] == 2
    assert names["d"] == [2]
    assert "w" in names
    assert run.__code__.co_name == "<module>"
