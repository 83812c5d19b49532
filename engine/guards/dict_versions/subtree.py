"""One check for many guards, below a module or on globals and classes, by dict versions.

Nearly all guards on a module tree read dict entries that are seldom written: instance dicts, tables of
submodules and parameters. When all guards have held, the version of each such dict is recorded. While the
versions are unchanged, every value read through these dicts is unchanged. Only classes, empty hook tables
and tensor metadata remain to compare. If the check fails nothing is known; the guards are then checked one
by one.

The idea is Dynamo's dict tags.
"""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import compress
from operator import attrgetter, call, getitem, is_, itemgetter, ne
from typing import Any

from engine.guards.dict_versions.check import make_unchanged_check
from engine.guards.dict_versions.collect import ObservedWrites, SubtreeDependencies, collect_dependencies, read_own_dict
from engine.guards.torch_c_helpers import always_false, make_layout_check, make_tensor_check
from engine.ir.guards.base import Guard
from engine.ir.guards.tensors import tensor_properties
from engine.ir.introspection import python_objects
from engine.ir.prefetched_params import PrefetchedParams
from engine.ir.sources.base import MISSING, Source
from engine.ir.unwrap_compiled import OwnedByCompiledModule
from engine.torch_private.guard_helpers import dict_version

MIN_GUARDS = 24
"""With fewer guards below a module, checking them one by one is as fast."""
MAX_OBJECTS_SEARCHED = 20_000
"""Maximum number of objects visited by a reachability search.

The search proves that recorded objects do not reference the module.
"""
MAX_MODULES = 64
"""Maximum number of modules of one class with recorded versions per entry."""
MAX_EAGER_RELEARNS = 16
"""Number of recordings without delay.

Each later one waits for ``MISSES_BEFORE_RELEARN`` misses.
"""
MISSES_BEFORE_RELEARN = 64


class SubtreeVersionGuard:
    """All guards below one module, or (``root`` None) on globals and classes, as one check.

    Thread-safe: shared state is replaced atomically.
    """

    def __init__(
        self,
        root: Source | None,
        guards: Sequence[Guard],
        compile_rest: Callable[[Sequence[Guard]], Any],
        prefetched: PrefetchedParams | None = None,
    ) -> None:
        self.root = root
        self._prefetched = prefetched
        self._guards = tuple(guards)
        self._compile_rest = compile_rest
        self._facets = tensor_properties(guards)
        self._checks: dict[int, tuple[Callable[[], Any], Any, int, int]] = {}
        """Module id -> (reference, check, number of recordings, misses since the last one)."""
        self._writes = ObservedWrites()
        self._rest: tuple[frozenset[Guard], Callable[[Any], bool]] | None = None

    def __call__(self, root: Any = None) -> bool:
        """Return True if the guards are known to hold for this module; False means unknown."""
        check = self._checks.get(id(root))
        try:
            holds = check is not None and check[0]() is root and check[1]()
        except Exception:
            holds = False
        if not holds and self._prefetched is not None:
            self._prefetched.discard()  # Discard tensors of an earlier check whose compiled code did not run.
        return holds

    def record_versions(self, root: Any) -> None:
        """Record the versions for a module for which all guards have just held."""
        key = id(root)
        gone: Callable[[Any], Any] = partial(self._checks.pop, key)  # built in: a Ctrl-C in Python code would be lost
        if key not in self._checks:
            if len(self._checks) >= MAX_MODULES:
                return
            self._checks[key] = (_no_module if root is None else weakref.ref(root, gone), always_false, 0, 0)
        reference, last, learned, waited = self._checks[key]
        if learned >= MAX_EAGER_RELEARNS and waited < MISSES_BEFORE_RELEARN:
            self._checks[key] = reference, last, learned, waited + 1
            return
        if last is not always_false:
            self._writes.add(last.changed_dicts(), last.entry_ids)
        plan, other_guards = collect_dependencies(self.root, root, self._guards, self._writes)
        is_freeable = _weak_objects_are_freeable(plan) if root is None else _does_not_reach_module(plan, root)
        if not is_freeable and root is not None:
            plan.borrow_dicts(root)
            is_freeable = _does_not_reach_module(plan, root)
        check = self._build_check(plan, other_guards, root, gone) if is_freeable else None
        if check is not None:
            self._checks[key] = reference, check, learned + 1, 0
        else:  # What references the module will do so at the next call too.
            self._checks[key] = reference, always_false, MAX_EAGER_RELEARNS if learned else 1, 0

    def _build_check(
        self, plan: SubtreeDependencies, other_guards: Sequence[Guard], root: Any, gone: Callable[[Any], None]
    ) -> _VersionCheck | None:
        values = list(plan.tensors.values())
        helper: Callable[..., bool] | None = always_false
        if values:
            helper = make_tensor_check(values, [tuple(self._facets[o]) for o in plan.tensors])
        if helper is None:
            return None
        layouts = [g for g in other_guards if g.is_dtensor_layout and g.source in plan.tensors]
        others = [g for g in other_guards if g not in layouts]
        chosen = frozenset(others)
        if chosen and (self._rest is None or self._rest[0] != chosen):
            self._rest = (chosen, self._compile_rest(others))
        owner = _no_module if root is None else weakref.ref(root)
        give = None if self._prefetched is None else self._prefetched.writer(tuple(plan.tensors))
        rest = self._rest[1] if chosen and self._rest else None
        return _VersionCheck(plan, (helper, _layout_check(plan, layouts)), rest, owner, give, gone)


def _layout_check(plan: SubtreeDependencies, guards: Sequence[Guard]) -> Callable[[Sequence[Any]], bool] | None:
    """Return a check that DTensors among all tensors are laid out as now; None without any."""
    if not guards:
        return None
    position = {source: n for n, source in enumerate(plan.tensors)}
    positions = [position[g.source] for g in guards]
    check = make_layout_check([plan.tensors[g.source] for g in guards], guards)
    return lambda tensors: check(*map(tensors.__getitem__, positions))


def _no_module() -> None:
    """Return None; placeholder of the weak reference if there is no module."""


class _VersionCheck:
    """Version check for one module; rebuilt when it fails although the guards held."""

    __slots__ = (
        "_borrowed",
        "_borrowed_versions",
        "_classes",
        "_dicts",
        "_entries",
        "_entry_dicts",
        "_entry_versions",
        "_helper",
        "_hooks",
        "_items",
        "_layouts",
        "_lengths",
        "_prefetch",
        "_rest",
        "_root",
        "_tensors",
        "_unchanged",
        "_versions",
        "_weak_objects",
        "entry_ids",
    )  # fmt: skip

    def __init__(
        self,
        plan: SubtreeDependencies,
        helpers: tuple[Callable[..., bool], Callable[[Sequence[Any]], bool] | None],
        rest: Callable[[Any], bool] | None,
        root: Callable[[], Any],
        give: Callable[[Sequence[Any]], None] | None,
        gone: Callable[[Any], None],
    ) -> None:
        self.entry_ids = plan.entry_ids
        self._dicts = [*plan.versioned_dicts.values(), *plan.class_dicts.values()]
        self._versions = list(map(dict_version, self._dicts))
        self._borrowed = [_borrowed_reader(owner, names) for owner, names in plan.borrowed_dicts]
        self._borrowed_versions = list(map(dict_version, self._borrowed_dicts()))
        self._entries = [
            _entries_unchanged(space, expected, plan.weak_objects) for space, expected in plan.compared_entries.values()
        ]
        self._entry_dicts = [space for space, _ in plan.compared_entries.values()]
        self._entry_versions = list(map(dict_version, self._entry_dicts))
        self._hooks = plan.empty_containers
        self._lengths = [*plan.lists.values()], [*map(len, plan.lists.values())]
        self._items = tuple([entry[n] for entry in plan.list_items.values()] for n in range(3))
        self._unchanged = make_unchanged_check(self._dicts, [*plan.objects.values()], [*plan.attributes.values()])
        self._weak_objects = [weakref.ref(o, gone) for o in plan.weak_objects.values()]
        self._classes = list(map(type, plan.weak_objects.values()))
        # Hold tensors weakly: a replaced parameter must be freed.
        self._tensors = [_tensor_reader(plan, o, t) for o, t in plan.tensors.items()]
        self._helper, self._layouts = helpers
        self._rest = rest
        self._root = root
        self._prefetch = give

    def changed_dicts(self) -> list[Any]:
        """Return the dicts that were written since the versions were recorded."""
        dicts = [*self._dicts, *self._entry_dicts, *self._borrowed_dicts()]
        versions = [*self._versions, *self._entry_versions, *self._borrowed_versions]
        return [d for d, version in zip(dicts, versions, strict=True) if dict_version(d) != version]

    def _borrowed_dicts(self) -> list[Any]:
        return [space for read in self._borrowed for space in read()]

    def __call__(self) -> bool:
        # Check the tensors last: they are the current ones only if no dict was written.
        if not self._unchanged() or any(self._hooks):
            return False
        if self._weak_objects and not all(map(is_, map(type, map(call, self._weak_objects)), self._classes)):
            return False
        if self._borrowed and [*map(dict_version, self._borrowed_dicts())] != self._borrowed_versions:
            return False
        if self._entries and not self._entries_hold():
            return False
        lists, lengths = self._lengths
        if lists and [*map(len, lists)] != lengths:
            return False
        lists, indices, items = self._items
        if lists and not all(map(is_, map(getitem, lists, indices), items)):
            return False
        tensors = tuple(map(call, self._tensors))
        if tensors and not self._helper(*tensors):
            return False
        if self._layouts is not None and not self._layouts(tensors):
            return False
        if self._rest is not None and not self._rest(self._root()):
            return False
        if self._prefetch is not None:
            self._prefetch(tensors)
        return True

    def _entries_hold(self) -> bool:
        """Return True if dicts written since the last check have the recorded entries."""
        versions = list(map(dict_version, self._entry_dicts))
        if versions != self._entry_versions:
            changed = map(ne, versions, self._entry_versions)
            if not all(unchanged() for unchanged in compress(self._entries, changed)):
                return False
            self._entry_versions = versions
        return True


def _borrowed_reader(owner: Any, names: tuple[str, ...]) -> Callable[[], tuple[Any, ...]]:
    """Return a function that reads a module's own dict and tables in it, and holds none."""
    find = weakref.ref(owner)

    def read() -> tuple[Any, ...]:
        own = read_own_dict(find())
        return (own, *map(own.get, names))

    return read


def _tensor_reader(plan: SubtreeDependencies, source: Source, tensor: Any) -> Callable[[], Any]:
    """Return a function that reads the current tensor of a source, and holds none."""
    if source in plan.replaced_tensors:
        return partial(getitem, *plan.replaced_tensors[source])
    if source not in plan.inner_tensors:
        return weakref.ref(tensor)
    outer, name = plan.inner_tensors[source]
    find, read = weakref.ref(outer), attrgetter(name)
    return lambda: read(find())


def _entries_unchanged(space: Any, entries: dict[Any, Any], weak_objects: dict[int, Any]) -> Callable[[], bool]:
    """Return a check that these dict entries are the recorded objects or still absent.

    ``weak_objects``, by id, are not held; the caller compares their classes, so they are alive.
    """
    absent = [k for k, v in entries.items() if v is MISSING]
    weak = [(k, weakref.ref(v)) for k, v in entries.items() if id(v) in weak_objects]
    present = [k for k, v in entries.items() if v is not MISSING and id(v) not in weak_objects]
    expected = [entries[k] for k in present]
    # One key more than needed, so that the getter always returns a tuple.
    get = itemgetter(*present, present[0]) if present else None

    def unchanged() -> bool:
        if get is not None and not all(map(is_, get(space), expected)):
            return False
        return all(space[k] is reference() for k, reference in weak) and not any(k in space for k in absent)

    def guarded() -> bool:
        try:
            return unchanged()
        except KeyError:
            return False

    return guarded


def _does_not_reach_module(plan: SubtreeDependencies, root: Any) -> bool:
    """Return True if the recorded objects do not reach the module.

    Otherwise the module would never be freed.
    """
    reached = _reachable_ids((*plan.held_containers(), *plan.objects.values()))
    return reached is not None and id(root) not in reached


def _weak_objects_are_freeable(plan: SubtreeDependencies) -> bool:
    """Return True if the weakly held objects can be freed with their last user.

    Neither their own attributes, which are held until then, nor other recorded objects may reach them.
    """
    owned: set[int] = set()
    for value in plan.weak_objects.values():
        reached = _reachable_ids((python_objects.instance_dict(value),))
        if reached is None or id(value) in reached:
            return False
        owned |= reached
    kept = (*(d for d in plan.held_containers() if id(d) not in plan.globals_ids), *plan.objects.values())
    reached = _reachable_ids([k for k in kept if id(k) not in owned]) if plan.weak_objects else set()
    return reached is not None and reached.isdisjoint(plan.weak_objects)


def _reachable_ids(kept: Iterable[Any]) -> set[int] | None:
    """Return the ids of all objects reachable from these; None if there are too many."""
    seen: set[int] = set()
    stack = list(kept)
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if not gc.is_tracked(value) or isinstance(value, _UNSEARCHED_TYPES):
            continue
        if len(seen) > MAX_OBJECTS_SEARCHED:
            return None
        is_function = type(value) is types.FunctionType
        stack.extend((value.__closure__ or ()) if is_function else gc.get_referents(value))
    return seen


_UNSEARCHED_TYPES = (type, types.ModuleType, types.CodeType, types.FrameType, OwnedByCompiledModule)
"""Types that are not searched: their objects have lifetimes of their own.

The compiler of a module that is compiled in place owns the recorded versions itself, and all it has compiled.
"""
