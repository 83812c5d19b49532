"""For each kind of guard a short function, a call that it is compiled for, and a call that this guard turns away."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GuardExample:
    """``code`` defines ``f``. ``first`` and ``other`` are arguments as text. ``before`` is run before the first call, ``meanwhile`` between the two.

    ``torch`` and ``engine`` are imported.
    """

    description: str
    code: str
    first_args: str
    failing_args: str
    between_calls: str = ""
    setup: str = ""


_DOUBLE = "def f(x):\n    return x * 2"

GUARD_EXAMPLES: dict[str, GuardExample] = {
    "type": GuardExample(
        "The value has exactly this type.",
        "def f(xs):\n    return xs[0] + xs[1]",
        "[torch.ones(3), torch.ones(3)]",
        "(torch.ones(3), torch.ones(3))",
    ),
    "id": GuardExample(
        "The value is this very object.",
        "act = torch.sin\n\ndef f(x):\n    return act(x)",
        "torch.ones(3)",
        "torch.ones(3)",
        "act = torch.cos",
    ),
    "equals": GuardExample(
        "The number, text or flag has this value.",
        "def f(x, mode):\n    return x.relu() if mode == 'relu' else x",
        "torch.ones(3), 'relu'",
        "torch.ones(3), 'none'",
    ),
    "length": GuardExample(
        "The list or tuple has this many items.",
        "def f(xs):\n    return sum(x.sum() for x in xs)",
        "[torch.ones(3), torch.ones(3)]",
        "[torch.ones(3)]",
    ),
    "dict keys": GuardExample(
        "The dictionary has these keys, in this order.",
        "def f(batch):\n    return sum(x.sum() for x in batch.values())",
        "{'a': torch.ones(3)}",
        "{'a': torch.ones(3), 'b': torch.ones(3)}",
    ),
    "hasattr": GuardExample(
        "The object has such an attribute, or has none.",
        "class Box:\n    pass\n\nbox = Box()\n\ndef f(x):\n    return x * 2 if hasattr(box, 'scale') else x",
        "torch.ones(3)",
        "torch.ones(3)",
        "box.scale = 2",
    ),
    "code": GuardExample(
        "The function has this code; which closure or object it belongs to does not matter.",
        "def f(x, act):\n    return act(x)",
        "torch.ones(3), lambda y: y + 1",
        "torch.ones(3), lambda y: y - 1",
    ),
    "same object": GuardExample(
        "Two arguments are one and the same object.",
        "def f(x, y):\n    return x + y",
        "*[torch.ones(3)] * 2",
        "torch.ones(3), torch.ones(3)",
    ),
    "distinct": GuardExample(
        "Arguments that were different objects still are.",
        "def f(x, y):\n    x.grad_note = 1\n    return x + y",
        "torch.ones(3), torch.ones(3)",
        "*[torch.ones(3)] * 2",
    ),
    "no overlap": GuardExample(
        "Tensors that shared no memory still share none.",
        "def f(x, y):\n    x.add_(1)\n    return x + y",
        "torch.ones(6)[:3], torch.ones(6)[3:]",
        "base[:3], base[2:5]",
        "base = torch.ones(6)",
    ),
    "shared memory": GuardExample(
        "Tensors that shared memory still share it in the same way.",
        "base = torch.ones(6)\n\ndef f(x, y):\n    x.add_(1)\n    return x + y",
        "base[:3], base[2:5]",
        "base[:3], base[3:6]",
    ),
    "global state": GuardExample(
        "A setting of the whole process is as it was: grad mode, autocast, default dtype and the like.",
        _DOUBLE,
        "torch.ones(3)",
        "torch.ones(3)",
        "torch.set_grad_enabled(False)",
    ),
    "shape relation": GuardExample(
        "An inequality or equation between sizes that are symbols.",
        "def f(x):\n    return x[:100].sum() if x.shape[0] > 100 else x.sum()",
        "x",
        "torch.ones(200)",
        setup="x = torch.ones(10)\nengine.mark_dynamic(x, 0)",
    ),
    "outcome": GuardExample(
        "A condition on what small tensors of the program's state hold comes out as it did.",
        "class Run:\n    steps = torch.tensor(0.0)\n\ndef f(x):\n    return x * 2 if Run.steps + 1 > 3 else x",
        "torch.ones(3)",
        "torch.ones(3)",
        "Run.steps.fill_(5)",
    ),
    "dtype": GuardExample(
        "The tensor has this element type.", _DOUBLE, "torch.ones(3)", "torch.ones(3, dtype=torch.float64)"
    ),
    "device": GuardExample("The tensor is on this device.", _DOUBLE, "torch.ones(3)", "torch.ones(3, device='meta')"),
    "layout": GuardExample(
        "The tensor is dense, or sparse in this way.", _DOUBLE, "torch.ones(3)", "torch.ones(3).to_sparse()"
    ),
    "dispatch keys": GuardExample(
        "The tensor's operations go the same way through PyTorch, for example because both were made in inference mode.",
        _DOUBLE,
        "torch.ones(3)",
        "torch.ones(3).conj_physical()._neg_view()",
    ),
    "requires_grad": GuardExample(
        "Gradients are wanted for the tensor, or not.", _DOUBLE, "torch.ones(3)", "torch.ones(3, requires_grad=True)"
    ),
    "ndim": GuardExample("The tensor has this many dimensions.", _DOUBLE, "torch.ones(3)", "torch.ones(3, 1)"),
    "shape": GuardExample(
        "The dimensions that are no symbols have these sizes.", _DOUBLE, "torch.ones(3)", "torch.ones(4)"
    ),
    "stride": GuardExample(
        "Neighbours lie this far apart in memory.", _DOUBLE, "torch.ones(3, 4)", "torch.ones(4, 3).t()"
    ),
    "made of": GuardExample(
        "A callable of the operator module was made with the same arguments.",
        "from operator import itemgetter\n\ndef f(xs, pick):\n    return pick(xs) * 2",
        "[torch.ones(3), torch.zeros(3)], itemgetter(0)",
        "[torch.ones(3), torch.zeros(3)], itemgetter(1)",
    ),
}
"""Not here: "tensor", which is taken apart into the kinds of its facets, and "tensor subclass", which needs a subclass with a context."""
