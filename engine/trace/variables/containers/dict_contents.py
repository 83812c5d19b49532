"""Contents of a dict: entries in order, loaded at the first use."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from engine.ir.sources.base import Source
from engine.trace.annotations import Tracer
from engine.trace.variables.base import AttributeDictVariable, ConstantVariable, Variable
from engine.trace.variables.objects.id_and_hash import mark_stored
from engine.trace.variables.slotted_type import fresh, state

DictEntry = tuple[Variable, Variable]


class DictContents(AttributeDictVariable):
    """Entries of a dict by hash key, the order of an OrderedDict, and its attributes."""

    loaded_entries: dict[Any, DictEntry]
    source: Source | None = None
    cls: type = dict
    default_factory: Variable | None = None
    load_entries: Callable[[], dict[Any, DictEntry]] | None = None
    pending_stores: dict[Any, DictEntry] = fresh(dict)
    subclass_instance: Variable | None = state(None)
    """The instance of a subclass whose contents these are."""
    was_reordered: bool = state(False)
    """True if ``move_to_end`` moved a key of an OrderedDict: the order of its dict differs."""
    mutation_count: int = state(0)
    """Number of key insertions, deletions and moves so far."""
    is_mutable = True
    must_not_be_copied = True

    @property
    def entries(self) -> dict[Any, DictEntry]:
        """The current entries; the first read loads an external dict and guards on its keys."""
        if self.load_entries is not None:
            read, self.load_entries = self.load_entries, None
            self.loaded_entries = read()
            for hash_key, (key, value) in self.pending_stores.items():
                self._set_entry(hash_key, key, value)
        return self.loaded_entries

    @entries.setter
    def entries(self, entries: dict[Any, DictEntry]) -> None:
        self.loaded_entries, self.load_entries = entries, None

    def pending_store(self, key: Variable) -> DictEntry | None:
        """Return the entry that was set for ``key`` while the dict is not loaded yet."""
        is_plain = self.load_entries is not None and type(key.constant) in (str, int)
        return self.pending_stores.get(key.constant) if is_plain else None

    def describe(self) -> str:
        return "dict (not read yet)" if self.load_entries else f"{self.cls.__name__} of {len(self.entries)}"

    def child_variables(self) -> list[Variable]:
        entries = self.entries if self.load_entries is None else self.pending_stores
        return [*(part for entry in entries.values() for part in entry), *self.attributes.values()]

    def is_truthy(self, tx: Tracer) -> bool:
        return bool(self.entries)

    def length(self, tx: Tracer) -> Variable:
        return ConstantVariable(len(self.entries))

    def keys(self) -> list[Variable]:
        """Return the keys in order."""
        return [k for k, _ in self.entries.values()]

    def values(self) -> list[Variable]:
        """Return the values in order."""
        return [v for _, v in self.entries.values()]

    def set_hashed_item(self, tx: Tracer, hash_key: Any, key: Variable, value: Variable) -> None:
        """Set the value of a key that is already hashed; to store the value it has is no mutation."""
        entry = self.entries.get(hash_key) if self.load_entries is None else None
        if entry is not None and entry[1].resolved is value.resolved:
            return
        tx.side_effects.record_mutation(self)
        if self.load_entries is not None and type(hash_key) in (str, int):
            self.pending_stores[hash_key] = (key, value)
        else:
            self._set_entry(hash_key, key, value)

    def _set_entry(self, hash_key: Any, key: Variable, value: Variable) -> None:
        entry = self.entries.get(hash_key)
        self.entries[hash_key] = (key if entry is None else entry[0], value)
        if entry is None:
            self.mutation_count += 1
        mark_stored(hash_key)

    def pop(self, tx: Tracer, key: Variable, default: Variable | None = None) -> Variable:
        """Remove a key and return its value or the default; raise KeyError without either."""
        hash_key = key.hash_key(tx)
        if hash_key not in self.entries:
            if default is not None:
                return default
            tx.raise_key_error(key)
        tx.side_effects.record_mutation(self)
        self.mutation_count += 1
        return self.entries.pop(hash_key)[1]

    @property
    def is_ordered(self) -> bool:
        """True for OrderedDict and its subclasses, which use the methods of ``OrderedDict``."""
        return issubclass(self.cls, collections.OrderedDict)
