"""Decides how each output of the traced graph comes about: a result, an input, or a view made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch._subclasses.functional_tensor import FunctionalTensor

from engine.ir.frame import GraphInput
from engine.ir.plan import OutputKind, OutputPlan, View, is_same_layout


class NotFunctional(Exception):
    """The graph cannot be made functional without changing what a person could notice; the text says why."""


class OutputPlanner:
    """Takes outputs one by one; ``results`` are what the functional graph must return for them.

    Eager's truth about aliasing is in the traced fake values (``meta["example_value"]``): their storages, ``_base`` and layouts.
    """

    def __init__(
        self, inputs: Sequence[GraphInput], args: Sequence[Any], by_fake: Mapping[int, Any], outputs: Sequence[Any]
    ) -> None:
        self._inputs = inputs
        self._given = {_storage(a) for a in args if isinstance(a, torch.Tensor)}
        self._by_fake = by_fake
        self._known: dict[int, OutputPlan] = {}
        self._by_id: dict[int, int] = {}
        self._by_storage: dict[int, tuple[int, torch.Tensor]] = {}
        self._sharing = _sharing(outputs)
        self.plans: list[OutputPlan] = []
        self.results: list[Any] = []

    def add(self, node: Any, value: Any) -> None:
        """Plan one output: ``node`` is what the traced graph returns, ``value`` what the functional run made of it."""
        name = node.name if isinstance(node, torch.fx.Node) else repr(node)
        self.plans.append(self._plan(name, node, value))

    def _plan(self, name: str, node: Any, value: Any) -> OutputPlan:
        if not isinstance(node, torch.fx.Node):
            return OutputPlan(name, "constant", constant=value)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return OutputPlan(name, "result", self._result(value))
        if not isinstance(value, torch.Tensor):
            return OutputPlan(name, "constant", constant=value)
        fake = node.meta.get("example_value")
        if not isinstance(value, FunctionalTensor) or not isinstance(fake, torch.Tensor):
            raise NotFunctional(f"{name} is a tensor that tracing did not follow")
        if id(fake) not in self._known:
            self._known[id(fake)] = self._tensor(name, fake, value)
        return self._known[id(fake)]

    def _result(self, value: Any) -> int:
        self.results.append(value)
        return len(self.results) - 1

    def _tensor(self, name: str, fake: torch.Tensor, value: FunctionalTensor) -> OutputPlan:
        for n, i in enumerate(self._inputs):
            if i.fake is fake:
                return OutputPlan(name, "input", n)
        aliased = self._aliased(fake)
        if aliased is not None:
            return self._alias(name, "alias of input", aliased, self._inputs[aliased].fake, fake)
        base = fake._base if fake._is_view() else fake
        shares = self._sharing[_storage(fake)] > 1
        if base is not fake and (shares or _is_mutated(value)):
            return self._alias_of_intermediate(name, base, fake)
        if id(fake) not in self._by_id and shares and _storage(fake) in self._by_storage:
            index, first = self._by_storage[_storage(fake)]
            return self._alias(name, "alias of result", index, first, fake)
        return OutputPlan(name, "result", self._whole(name, fake, value))

    def _aliased(self, fake: torch.Tensor) -> int | None:
        sharing = [
            n
            for n, i in enumerate(self._inputs)
            if isinstance(i.fake, torch.Tensor) and _storage(i.fake) == _storage(fake)
        ]
        exact = [n for n in sharing if self._inputs[n].fake is fake._base]
        return next(iter(exact or sharing), None)

    def _alias_of_intermediate(self, name: str, base: Any, fake: torch.Tensor) -> OutputPlan:
        value = self._by_fake.get(id(base))
        if not isinstance(value, FunctionalTensor):
            raise NotFunctional(f"{name} is a view of something inside an operator, and is mutated")
        index = self._whole(name, base, value)
        return self._alias(name, "alias of result", index, base, fake)

    def _alias(self, name: str, kind: OutputKind, index: int, base: torch.Tensor, fake: torch.Tensor) -> OutputPlan:
        if base.is_conj() != fake.is_conj() or base.is_neg() != fake.is_neg():
            raise NotFunctional(f"{name} is a lazily conjugated or negated view")
        dtype = None
        if base.dtype != fake.dtype:
            if base.element_size() != fake.element_size() or base.is_complex() or fake.is_complex():
                raise NotFunctional(f"{name} sees its memory as elements of another width")
            dtype = fake.dtype
        if kind == "alias of result" and not _covers(base, fake):
            raise NotFunctional(f"{name} sees more of its memory than the result that it shares it with")
        offset = fake.storage_offset() - base.storage_offset()
        view = View(tuple(fake.shape), tuple(fake.stride()), offset, not fake._is_view(), dtype)
        return OutputPlan(name, kind, index, view)

    def _whole(self, name: str, fake: torch.Tensor, value: FunctionalTensor) -> int:
        """The result that holds this tensor, laid out as eager lays it out, once however often it is asked for."""
        if id(fake) in self._by_id:
            return self._by_id[id(fake)]
        torch._sync(value)  # type: ignore[attr-defined, no-untyped-call]
        plain = torch._from_functional_tensor(value.elem)
        if plain.dtype != fake.dtype or plain.is_conj() or plain.is_neg():
            raise NotFunctional(f"{name} would have another type, or be lazily conjugated")
        if not is_same_layout(plain, fake):
            empty = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
            plain = torch.ops.aten.copy.default(empty, plain)
        elif _storage(plain) in self._given:
            plain = plain.clone()
        if not is_same_layout(plain, fake):
            raise NotFunctional(f"{name} would have another layout")
        self._by_id[id(fake)] = len(self.results)
        self._by_storage.setdefault(_storage(fake), (len(self.results), fake))
        return self._result(plain)


def _storage(t: torch.Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def _is_mutated(value: FunctionalTensor) -> bool:
    """Whether the memory that this tensor sees was written to since it was made."""
    return bool(torch._functionalize_has_data_mutation(value.elem))  # type: ignore[attr-defined]


def _sharing(outputs: Sequence[Any]) -> Counter[int]:
    """How many different output tensors each storage has."""
    fakes = {id(f): f for f in (n.meta.get("example_value") for n in outputs if isinstance(n, torch.fx.Node))}
    return Counter(_storage(f) for f in fakes.values() if isinstance(f, torch.Tensor))


def _covers(base: torch.Tensor, fake: torch.Tensor) -> bool:
    """Whether the base's own memory holds all that ``fake`` sees, wherever a program puts the base."""
    if base.storage_offset() != 0 or not isinstance(base.numel(), int) or not isinstance(fake.numel(), int):
        return fake._base is base or is_same_layout(base, fake)
    return bool(_reach(fake) <= _reach(base))


def _reach(t: torch.Tensor) -> Any:
    if t.numel() == 0:
        return 0
    return t.storage_offset() + 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
