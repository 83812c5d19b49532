"""``RemovableHandle`` of module hooks registered in traced code.

torch numbers the handles per process, so a handle's id is unknown until the code runs.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from torch.utils.hooks import RemovableHandle

from engine.ir.sources.attributes import AttrSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.codegen_runtime.tensors import make_removable_handle
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Args, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import sequence_items


@dataclass(frozen=True, eq=False)
class HookIdVariable(Variable):
    """The id of a hook, used as a key of hook dicts. It equals no other id and no earlier key."""

    __slots__ = ("handle",)
    cls = int
    handle: ModuleHookHandleVariable

    def describe(self) -> str:
        return "the id of a hook"

    def hash_key(self, tx: Tracer) -> Any:
        return self

    def child_variables(self) -> list[Variable]:
        return [self.handle]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load(self.handle)
        cg.body.attribute("id")


class ModuleHookHandleVariable(Variable):
    """A ``RemovableHandle`` created in traced code for hook dicts of an existing module.

    ``previous_handle`` is the handle created before this one. Compiled code creates the handles in the same order,
    so that they get the same relative ids as in eager.
    """

    __slots__ = ("hook_dicts", "hook_id", "previous_handle")
    cls = RemovableHandle

    is_mutable = True

    def __init__(self, hook_dicts: list[DictVariable], previous_handle: ModuleHookHandleVariable | None) -> None:
        self.hook_dicts = hook_dicts
        self.previous_handle = previous_handle
        self.hook_id = HookIdVariable(self)

    def child_variables(self) -> list[Variable]:
        return [] if self.previous_handle is None else [self.previous_handle]

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "id":
            return self.hook_id
        return BuiltinMethodVariable(self, name) if name in _ARITY_BY_METHOD else super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if kwargs or name not in _ARITY_BY_METHOD or len(args) != _ARITY_BY_METHOD[name]:
            raise self.unsupported_method(name)
        if name == "__enter__":
            return self
        for table in self.hook_dicts:
            if self.hook_id.hash_key(tx) in table.entries:
                table.pop(tx, self.hook_id)
        return NONE

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(make_removable_handle, self.previous_handle, *self.hook_dicts)


_ARITY_BY_METHOD = {"remove": 0, "__enter__": 0, "__exit__": 3}
"""Traced methods, with their number of arguments."""


@register_rule(RemovableHandle)
def _new_handle(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    given = [realize(tx, a) for a in (*args, *kwargs.values())]
    if len(args) == 1 and set(kwargs) <= {"extra_dict"}:
        others = given[1:]
        if len(others) == 1 and others[0].sequence_contents is not None:
            others = [realize(tx, v) for v in sequence_items(tx, others[0])]
        found = [t.dict_contents for t in (given[0], *others)]
        tables = [t for t in found if t is not None and _is_hook_dict(t)]
        if len(tables) == 1 + len(others):
            before = [c for c, _ in tx.side_effects.side_effect_calls if isinstance(c, ModuleHookHandleVariable)]
            made = ModuleHookHandleVariable(tables, before[-1] if before else None)
            tx.side_effects.record_side_effect(made, "a hook id is assigned")
            return made
    raise Unsupported("module-hook", "a hook handle is created for tables other than those of an existing module")


def _is_hook_dict(table: DictVariable) -> bool:
    """Return True if the dict is a forward hook dict of an existing module.

    The tracer reads these dicts when it calls the module.
    """
    origin = table.source
    is_own = isinstance(origin, AttrSource) and origin.attribute.startswith(("_forward_hooks", "_forward_pre_hooks"))
    return is_own and table.cls is OrderedDict and not table.is_constructed
