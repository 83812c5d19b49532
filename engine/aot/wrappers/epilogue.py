"""After the functional graph: new values go back into mutated inputs, outputs that are inputs or views of them are made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.ir.plan import OutputPlan, Plan, is_identity
from engine.records.aot import WrapperAction, WrapperRecord

Run = Callable[..., Any]
NAME = "runtime epilogue"


def pre_compile(plan: Plan) -> WrapperRecord:
    """What the wrapper will do, argument by argument."""
    actions = [
        WrapperAction(
            plan.inputs[n],
            "copied back",
            "the functional graph returns its new value instead of mutating it",
        )
        for n in plan.mutated
    ]
    for position, o in enumerate(plan.outputs):
        actions.extend(_action(plan, position, o))
    return WrapperRecord(NAME, tuple(actions))


def _action(plan: Plan, position: int, o: OutputPlan) -> tuple[WrapperAction, ...]:
    name = f"output {position}"
    match o.kind:
        case "input":
            return (WrapperAction(name, f"is {plan.inputs[o.index]} itself", "eager returns the same object"),)
        case "view":
            why = f"eager returns a view of {plan.inputs[o.index]}, and what is written through one must show in the other"
            return (WrapperAction(name, "regenerated as a view", why),)
        case "same":
            return (WrapperAction(name, f"is output {o.index} once more", "eager returns the same object twice"),)
        case "constant":
            return (WrapperAction(name, "returned as a constant", "it does not depend on any tensor"),)
        case "fresh":
            return ()


def post_compile(run: Run, plan: Plan) -> Run:
    """``run`` (the functional graph) as the user's graph: same inputs, the user's outputs as a tuple.

    Flat code is generated for the plan; where there is nothing to do ``run`` itself is returned.
    """
    if is_identity(plan):
        return run
    names = [f"a{n}" for n in range(len(plan.inputs))]
    scope: dict[str, Any] = {"run": run, "as_strided": torch.as_strided}
    lines = [f"def epilogue({', '.join(names)}):", f"    r = run({', '.join(names)})"]
    lines += [f"    a{n}.copy_(r[{k}])" for k, n in enumerate(plan.mutated)]
    lines += [f"    o{position} = {_output(plan, position, o, scope)}" for position, o in enumerate(plan.outputs)]
    returned = "".join(f"o{n}, " for n in range(len(plan.outputs)))
    lines.append(f"    return ({returned})")
    exec(compile("\n".join(lines), "<engine aot epilogue>", "exec"), scope)
    made: Run = scope["epilogue"]
    return made


def _output(plan: Plan, position: int, o: OutputPlan, scope: dict[str, Any]) -> str:
    match o.kind:
        case "fresh":
            return f"r[{len(plan.mutated) + o.index}]"
        case "input":
            return f"a{o.index}"
        case "same":
            return f"o{o.index}"
        case "constant":
            scope[f"c{position}"] = o.value
            return f"c{position}"
        case "view":
            sizes = (_tuple(o.shape), _tuple(o.stride), int(o.offset))
            view = f"as_strided(a{o.index}, {sizes[0]}, {sizes[1]}, {sizes[2]})"
            return f"{view}.detach()" if o.is_detached else view


def _tuple(values: tuple[Any, ...]) -> str:
    return "(" + "".join(f"{int(v)}, " for v in values) + ")"
