"""``types.MappingProxyType``: a window on a dict through which nothing can be changed."""

from __future__ import annotations

import collections
import gc
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from engine.ir.origin import Origin
from engine.trace.signals import Unsupported
from engine.trace.values.base import Value, force
from engine.trace.values.mappings import DictValue, Entry, dict_value
from engine.trace.values.rules import special
from engine.trace.values.wrap import wraps

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class ProxyDict(DictValue):
    """Shows what ``of`` holds now. One from outside stands for its dict as well, which nothing else is known to hold."""

    def __init__(self, of: DictValue, origin: Origin | None) -> None:
        self.of_dict = of
        super().__init__({}, origin, MappingProxyType)

    @property
    def entries(self) -> dict[Any, Entry]:
        return self.of_dict.entries

    @entries.setter
    def entries(self, entries: Any) -> None:
        if entries:
            raise self.refuse("replacing its contents")

    def children(self) -> list[Value]:
        return [self.of_dict]

    def set_item(self, tx: Tracer, key: Value, value: Value) -> None:
        tx.raise_type_error("'mappingproxy' object does not support item assignment")

    def del_item(self, tx: Tracer, key: Value) -> None:
        tx.raise_type_error("'mappingproxy' object doesn't support item deletion")

    def get_item(self, tx: Tracer, key: Value) -> Value:
        return self.of_dict.get_item(tx, key)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not hasattr(MappingProxyType, name):
            tx.raise_error(AttributeError, f"'mappingproxy' object has no attribute '{name}'")
        if name == "copy" and self.of_dict.cls not in (dict, collections.OrderedDict):
            raise self.refuse("a copy of what it shows")
        return self.of_dict.call_method(tx, name, args, kwargs)

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(MappingProxyType))
        cg.load(self.of_dict)
        cg.out.call(1)


@wraps(MappingProxyType)
def _proxy(tx: Tracer, real: Any, origin: Origin) -> Value:
    of = dict_value(tx, real, origin)
    tx.viewed.update(map(id, gc.get_referents(real)))
    of.cls = type(next((r for r in gc.get_referents(real) if isinstance(r, dict)), real))
    return ProxyDict(of, origin)


@special(MappingProxyType)
def _made(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    of = force(tx, args[0]) if len(args) == 1 and not kwargs else None
    if type(of) is not DictValue:
        raise Unsupported("unknown-call", "types.MappingProxyType is created of what is no dict")
    return ProxyDict(of, None)
