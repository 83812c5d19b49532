"""Examples of guards: for each kind a short function, a compiled call and a failing call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GuardExample:
    """One example. ``code`` defines ``f``; ``torch`` and ``engine`` are imported.

    ``first_args`` and ``failing_args`` are arguments as Python code. ``setup`` runs before the first call,
    ``between_calls`` between the two calls.
    """

    description: str
    code: str = "def f(x):\n    return x * 2"
    first_args: str = "torch.ones(3)"
    failing_args: str = "torch.ones(3)"
    between_calls: str = ""
    setup: str = ""


GUARD_EXAMPLES: dict[str, GuardExample] = {
    "type": GuardExample(
        "The value has exactly this type.",
        "def f(xs):\n    return xs[0] + xs[1]",
        "[torch.ones(3), torch.ones(3)]",
        "(torch.ones(3), torch.ones(3))",
    ),
    "id": GuardExample(
        "The value is the same object (identity).",
        "act = torch.sin\n\ndef f(x):\n    return act(x)",
        between_calls="act = torch.cos",
    ),
    "equals": GuardExample(
        "The number, string or flag equals this value.",
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
        "The object has this attribute, or does not have it.",
        "class Box:\n    pass\n\nbox = Box()\n\ndef f(x):\n    return x * 2 if hasattr(box, 'scale') else x",
        between_calls="box.scale = 2",
    ),
    "code": GuardExample(
        "The function has this code and these globals. Its closure and its instance do not matter.",
        "def f(x, act):\n    return act(x)",
        "torch.ones(3), lambda y: y + 1",
        "torch.ones(3), lambda y: y - 1",
    ),
    "same object": GuardExample(
        "Two arguments are the same object.",
        "def f(x, y):\n    return x + y",
        "*[torch.ones(3)] * 2",
        "torch.ones(3), torch.ones(3)",
    ),
    "distinct": GuardExample(
        "The arguments are different objects.",
        "def f(x, y):\n    x.grad_note = 1\n    return x + y",
        "torch.ones(3), torch.ones(3)",
        "*[torch.ones(3)] * 2",
    ),
    "no overlap": GuardExample(
        "The tensors share no memory (no storage overlap).",
        "def f(x, y):\n    x.add_(1)\n    return x + y",
        "torch.ones(6)[:3], torch.ones(6)[3:]",
        "base[:3], base[2:5]",
        "base = torch.ones(6)",
    ),
    "shared memory": GuardExample(
        "The tensors share memory in the same way: the same offsets in one storage.",
        "base = torch.ones(6)\n\ndef f(x, y):\n    x.add_(1)\n    return x + y",
        "base[:3], base[2:5]",
        "base[:3], base[3:6]",
    ),
    "global state": GuardExample(
        "A setting of the whole process has the same value: grad mode, autocast, default dtype and similar.",
        between_calls="torch.set_grad_enabled(False)",
    ),
    "shape relation": GuardExample(
        "An equation or inequality between symbols holds (a shape guard).",
        "def f(x):\n    return x[:100].sum() if x.shape[0] > 100 else x.sum()",
        "x",
        "torch.ones(200)",
        setup="x = torch.ones(10)\nengine.mark_dynamic(x, 0)",
    ),
    "outcome": GuardExample(
        "A condition on the values of small state tensors has the same outcome.",
        "class Run:\n    steps = torch.tensor(0.0)\n\ndef f(x):\n    return x * 2 if Run.steps + 1 > 3 else x",
        between_calls="Run.steps.fill_(5)",
    ),
    "dtype": GuardExample("The tensor has this dtype.", failing_args="torch.ones(3, dtype=torch.float64)"),
    "device": GuardExample("The tensor is on this device.", failing_args="torch.ones(3, device='meta')"),
    "layout": GuardExample(
        "The tensor has this layout: dense, or a certain sparse layout.", failing_args="torch.ones(3).to_sparse()"
    ),
    "dispatch keys": GuardExample(
        "The tensor has these dispatch keys. For example, a tensor that was created in inference mode has others.",
        failing_args="torch.ones(3).conj_physical()._neg_view()",
    ),
    "requires_grad": GuardExample(
        "The tensor requires gradients, or does not.", failing_args="torch.ones(3, requires_grad=True)"
    ),
    "ndim": GuardExample("The tensor has this many dimensions.", failing_args="torch.ones(3, 1)"),
    "shape": GuardExample("The static dimensions have these sizes.", failing_args="torch.ones(4)"),
    "stride": GuardExample(
        "The tensor has these strides.", first_args="torch.ones(3, 4)", failing_args="torch.ones(4, 3).t()"
    ),
    "made of": GuardExample(
        "An itemgetter, attrgetter or methodcaller was created with the same arguments.",
        "from operator import itemgetter\n\ndef f(xs, pick):\n    return pick(xs) * 2",
        "[torch.ones(3), torch.zeros(3)], itemgetter(0)",
        "[torch.ones(3), torch.zeros(3)], itemgetter(1)",
    ),
}
"""Examples by guard kind.

Not included: "tensor", which is expanded into its properties, and "tensor subclass", which needs a subclass
with a context.
"""
