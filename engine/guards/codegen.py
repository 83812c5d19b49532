"""Generate the guard check of a cache entry: one Python function, true if all guards hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from engine.guards.codegen_names import CELLS_PARAM, CheckNames, SourceReads
from engine.guards.dict_versions.subtree import MIN_GUARDS, SubtreeVersionGuard
from engine.guards.order import order_guards
from engine.guards.slow_path import MakeHelper, SlowPath
from engine.guards.torch_c_helpers import (
    HAS_C_HELPERS,
    HAS_DICT_VERSIONS,
    HELPER_STATES,
    MIN_HELPER_STATES,
    STATES_IMPLIED_BY_DISPATCH_KEYS,
    batchable_tensors,
    dispatch_keys_show_modes,
    make_layout_check,
    make_tensor_check,
)
from engine.ir.generated_sources import store_source
from engine.ir.guards.base import Guard, ValueCode
from engine.ir.guards.symbolic_shapes import NUMBER_TYPES, size_at
from engine.ir.guards.tensors import PLAIN_TENSOR_TYPES, TensorPropertyGuard
from engine.ir.prefetched_params import PrefetchedParams
from engine.ir.sources.base import Source

Check = Callable[..., bool]

_numbers = itertools.count()


@dataclass(frozen=True)
class CompiledCheck:
    """``check(__cells__, *arguments)``, its source, and the guards in executed order."""

    check: Check
    text: str
    guards: tuple[Guard, ...]


def compile_check(
    guards: Iterable[Guard],
    parameters: tuple[str, ...],
    *,
    helpers: bool = HAS_C_HELPERS,
    prefetched: PrefetchedParams | None = None,
) -> CompiledCheck:
    """Compile the check of one entry.

    ``parameters`` are the frame's, in ``co_varnames`` order. With ``helpers``, one call of torch's C helper
    checks all tensors of a tier; the guards are checked one by one only if it fails. If one such call reads all
    tensors that ``prefetched_params`` needs, it stores them there.
    """
    in_order = order_guards(guards)
    tensors = batchable_tensors(in_order)
    if not helpers or not tensors:
        check, text, _ = _compile_body(one_by_one_body(in_order, CheckNames(parameters)))
        return CompiledCheck(check, text, in_order)
    names = CheckNames(parameters)
    slow_path = SlowPath(
        in_order, parameters, lambda: _compile_body(one_by_one_body(in_order, CheckNames(parameters)))[0]
    )
    check, text, space = _compile_body(_fast_path_body(in_order, tensors, names, slow_path, prefetched))
    slow_path.install_helpers(space)
    return CompiledCheck(check, text, in_order)


@dataclass(frozen=True)
class CheckBody:
    """The statements of a check and their names."""

    lines: tuple[str, ...]
    names: CheckNames


def _compile_body(body: CheckBody) -> tuple[Check, str, dict[str, Any]]:
    names = body.names
    error = names.const(Exception, "Exception")
    name = names.fresh("check")
    arguments = ", ".join((CELLS_PARAM, *names.parameters.values()))
    inner = "\n        ".join(body.lines)
    text = f"def {name}({arguments}):\n    try:\n        {inner}\n    except {error}:\n        return False\n"
    file = f"<check {next(_numbers)}>"
    space = names.namespace
    exec(compile(text, file, "exec"), space)
    store_source(file, text)
    check: Check = space[name]
    return check, text, space


def one_by_one_body(in_order: Sequence[Guard], names: CheckNames) -> CheckBody:
    """Return a check body with one statement per guard, in executed order."""
    writer = CheckWriter(in_order, names)
    lines: list[str] = []
    for guard in in_order:
        writer.write(guard, lines)
    return CheckBody((*lines, "return True"), names)


class CheckWriter:
    """Writes guards as statements and tracks the types that earlier statements have checked."""

    def __init__(self, guards: Sequence[Guard], names: CheckNames, *, no_modes: bool = False) -> None:
        self.names = names
        self.reads = SourceReads(
            names,
            (o for g in guards if g.reads_value for o in (*g.sources, *(g.sources if g.reads_source_twice else ()))),
        )
        self._known: dict[Source, type] = {}
        self._sizes: dict[tuple[Source, int], str] = {}
        self._no_modes = no_modes

    def write(self, guard: Guard, lines: list[str]) -> None:
        """Append the guard's statement to ``lines``."""
        condition = self.condition(guard, lines)
        if condition != "True":
            lines.append(f"if not ({condition}): return False")

    def condition(self, guard: Guard, lines: list[str]) -> str:
        """Return the guard's condition; append the reads that it needs to ``lines``."""
        self._no_modes = self._no_modes or guard.forbids_modes
        if not guard.reads_value:
            return guard.condition(ValueCode(self.names.const))
        if guard.size_reads:
            return guard.condition_on_sizes(
                tuple(self._size(o, d, lines) for o, d in guard.size_reads), self.names.const
            )
        expr, *other_texts = (self.reads.text(o, lines) for o in guard.sources)
        text = guard.condition(ValueCode(self.names.const, expr, tuple(other_texts), self._known_type(guard)))
        implied_type = guard.implied_type
        if implied_type is not None:
            self._known[guard.source] = implied_type
        return text

    def _size(self, origin: Source, dimension: int, lines: list[str]) -> str:
        """Return the local that holds a size or a number; the first read assigns it."""
        local = self._sizes.get((origin, dimension))
        if local is not None:
            return local
        text = self.reads.text(origin, lines)
        if dimension < 0:
            local = self._sizes[origin, dimension] = self.names.fresh("number")
            number_types = self.names.const(NUMBER_TYPES, "number_types")
            lines += (f"{local} = {text}", f"if type({local}) not in {number_types}: return False")
            return local
        if self._no_modes and self._known.get(origin) in PLAIN_TENSOR_TYPES:
            read = f"{text}.shape[{dimension}]"
        else:
            read = f"{self.names.const(size_at, 'size_at')}({text}, {dimension})"
        local = self._sizes[origin, dimension] = self.names.fresh("size")
        lines.append(f"{local} = {read}")
        return local

    def _known_type(self, guard: Guard) -> type | None:
        implied_type = self._known.get(guard.source, guard.source.exact_type)
        return None if guard.is_tensor_property and not self._no_modes else implied_type

    def assume_type(self, origin: Source, kind: type) -> None:
        """Record that a source's exact type has been checked by other means."""
        self._known[origin] = kind


def _fast_path_body(
    in_order: Sequence[Guard],
    tensors: Mapping[Source, tuple[TensorPropertyGuard, ...]],
    names: CheckNames,
    slow_path: SlowPath,
    prefetched: PrefetchedParams | None,
) -> CheckBody:
    """Return the fast check body, which checks the guards of ``tensors`` in one call.

    The tensors of a tier go to one C helper; all guards below a module go to one subtree guard. Order:
    arguments, then values read through something, then values read through tensors. Subtree guards of modules
    are the most expensive; only relations of sizes below these modules run later, when the types are known.
    """
    structured = _group_by_subtree(in_order, tensors) if HAS_DICT_VERSIONS and len(in_order) >= MIN_GUARDS else {}
    if structured:
        below = {id(g) for guards_here in structured.values() for g in guards_here}
        in_order = [g for g in in_order if id(g) not in below]
        tensors = batchable_tensors(in_order)
    layouts = [g for g in in_order if g.is_dtensor_layout]
    dtensors = batchable_tensors(in_order, dtensors=True) if layouts else {}
    tensors = {**dtensors, **tensors}
    early: list[Guard] = []
    late: list[Guard] = []
    last: list[Guard] = []
    types: list[Guard] = []
    for guard in in_order:
        if guard.source in tensors and _is_batched_test(guard):
            types += [guard] * guard.is_type_test
        elif guard.size_reads and _reads_through(guard, structured):
            last.append(guard)
        else:
            (late if _reads_through(guard, tensors) else early).append(guard)
    writer = CheckWriter([*early, *late, *last, *types], names)
    lines: list[str] = []
    if dispatch_keys_show_modes(tensors):
        early = [g for g in early if g.global_state is None or g.global_state not in STATES_IMPLIED_BY_DISPATCH_KEYS]
    early = _global_state_line(early, writer, slow_path, lines)
    if None in structured:
        lines.append(_subtree_line(None, structured[None], writer, slow_path, lines))
    below_modules: list[str] = []
    for level in (0, 1, 2, 3):  # relations last
        for guard in early:
            if min(guard.tier, 3) == level:
                writer.write(guard, lines)
                if guard.is_type_test and guard.source in structured:
                    guards_here = structured[guard.source]
                    below_modules.append(_subtree_line(guard, guards_here, writer, slow_path, lines, prefetched))
        at_level = {o: guards_here for o, guards_here in tensors.items() if o.tier == level}
        if at_level:
            _tensor_lines(at_level, dtensors, writer, slow_path, lines)
    _layout_line(layouts, tensors, writer, slow_path, lines)
    for guard in late:
        writer.write(guard, lines)
    lines += below_modules
    for guard in itertools.chain.from_iterable(structured.values()):
        if guard.implied_type is not None:
            writer.assume_type(guard.source, guard.implied_type)
    for guard in last:
        writer.write(guard, lines)
    return CheckBody((*lines, "return True"), names)


def _reads_through(guard: Guard, sources: Collection[Source | None]) -> bool:
    """Return True if a guard reads one of these sources, or a value through one."""
    return guard.reads_value and any(link in sources for origin in guard.sources for link in origin.chain())


def _group_by_subtree(in_order: Sequence[Guard], tensors: Mapping[Source, object]) -> dict[Source | None, list[Guard]]:
    """Group guards below each outermost module, and (None) on globals and classes.

    Groups with fewer than ``MIN_GUARDS`` guards are dropped. Guards on values read through a tensor are left
    out.
    """
    modules = {g.source for g in in_order if g.is_type_test and issubclass(g.implied_type or object, torch.nn.Module)}
    groups: dict[Source | None, list[Guard]] = {}
    module_above: dict[Source, Source | None] = {}
    below_tensors: set[Source] = set()
    for guard in in_order:
        if (guard.is_relational or not guard.reads_value) and guard.same_object is None:
            continue
        above = guard.source.ancestors
        if guard.source not in module_above:
            module_above[guard.source] = next((o for o in above if o in modules), None)
            below_tensors.update((guard.source,) if any(o in tensors for o in above) else ())
        root = module_above[guard.source]
        if guard.source in below_tensors:
            continue
        first = above[0] if above else guard.source
        if root is None or first.is_constant:
            if not first.outlives_calls or guard.same_object is not None:
                continue
            if guard.source in tensors or guard.source in modules:
                continue
            root = None
        elif guard.same_object is not None and root not in guard.same_object.ancestors:
            continue
        if guard.source in tensors and not (guard.is_tensor_property or guard.is_type_test):
            continue
        groups.setdefault(root, []).append(guard)
    return {root: guards for root, guards in groups.items() if len(guards) >= MIN_GUARDS}


def _subtree_line(
    root: Guard | None,
    guards: Sequence[Guard],
    writer: CheckWriter,
    slow_path: SlowPath,
    lines: list[str],
    prefetched: PrefetchedParams | None = None,
) -> str:
    """Return the statement that checks one subtree guard; append its reads to ``lines``.

    It covers the guards below one module, or on globals and classes.
    """
    structure = SubtreeVersionGuard(
        root.source if root else None, guards, lambda rest: _compile_subtree_check(root, rest), prefetched
    )
    slow_path.add_subtree(structure)
    if root is None:
        same = writer.names.const(structure, "same_surroundings")
        return f"if not {same}(): return {_slow_path_call(writer.names, slow_path)}"
    text = writer.reads.text(root.source, lines)
    same = writer.names.const(structure, f"same_below_{text.strip('_')}" if text.isidentifier() else "same_below")
    return f"if not {same}({text}): return {_slow_path_call(writer.names, slow_path)}"


def _compile_subtree_check(root: Guard | None, guards: Sequence[Guard]) -> Callable[[Any], bool]:
    """Return a check of the guards below a module; the check takes the module."""
    names = CheckNames(("module",))
    writer = CheckWriter(guards, names)
    if root is not None:
        writer.reads.set_text(root.source, "module")
        writer.assume_type(root.source, root.implied_type or object)
    lines: list[str] = []
    for guard in guards:
        writer.write(guard, lines)
    check, _, _ = _compile_body(CheckBody((*lines, "return True"), names))
    return lambda module: check((), module)


def _global_state_line(early: list[Guard], writer: CheckWriter, slow_path: SlowPath, lines: list[str]) -> list[Guard]:
    """Replace guards on plain global state by one C helper call; return the remaining guards."""
    states = {g.global_state[0] for g in early if g.global_state is not None}
    if not states >= MIN_HELPER_STATES:
        return early
    name = writer.names.fresh("same_global_state")
    slow_path.add_global_state(name)
    lines.append(f"if not {name}(): return {_slow_path_call(writer.names, slow_path)}")
    return [g for g in early if g.global_state is None or g.global_state[0] not in HELPER_STATES]


def _is_batched_test(guard: Guard) -> bool:
    return guard.is_tensor_property or guard.is_type_test or guard.is_dtensor_layout


def _tensor_lines(
    members: Mapping[Source, tuple[TensorPropertyGuard, ...]],
    dtensors: Collection[Source],
    writer: CheckWriter,
    slow_path: SlowPath,
    lines: list[str],
) -> None:
    """Append the statements that check tensors.

    DTensors come first, as local tensors are read through them.
    """
    plain = [o for o in members if o not in dtensors]
    for sources in ([o for o in members if o in dtensors], plain):
        make = partial(make_tensor_check, facets=[members[o] for o in sources])
        _batch_line("tensors_match", sources, make, writer, slow_path, lines)
    for origin in plain:
        writer.assume_type(origin, PLAIN_TENSOR_TYPES[0])


def _layout_line(
    layouts: Sequence[Guard], tensors: Collection[Source], writer: CheckWriter, slow_path: SlowPath, lines: list[str]
) -> None:
    """Append the statement that checks the layouts of DTensors, if there are any."""
    if not layouts:
        return
    guards = [g for g in layouts if g.source in tensors]
    make = partial(make_layout_check, guards=guards)
    _batch_line("same_layouts", [g.source for g in guards], make, writer, slow_path, lines)


def _batch_line(
    name: str, sources: Sequence[Source], make: MakeHelper, writer: CheckWriter, slow_path: SlowPath, lines: list[str]
) -> None:
    """Append the statement that checks the values of these sources in one call."""
    if not sources:
        return
    name = writer.names.fresh(name)
    slow_path.add_batch(name, sources, make)
    values = ", ".join(writer.reads.text(o, lines) for o in sources)
    lines.append(f"if not {name}({values}): return {_slow_path_call(writer.names, slow_path)}")


def _slow_path_call(names: CheckNames, slow_path: SlowPath) -> str:
    return f"{names.const(slow_path, 'one_by_one')}({', '.join((CELLS_PARAM, *names.parameters.values()))})"


def condition_texts(in_order: Sequence[Guard]) -> tuple[str, ...]:
    """Return each guard's condition as one expression over the frame's own names, for reading."""
    texts: dict[Source, str] = {}

    def const(_held: object, preferred: str) -> str:
        return preferred

    def text(origin: Source) -> str:
        if origin not in texts:
            parent = origin.parent
            texts[origin] = origin.parameter_name or origin.code("" if parent is None else text(parent), const)
        return texts[origin]

    known_types: dict[Source, type] = {}
    conditions = []
    for guard in in_order:
        expr, *other_texts = tuple(text(o) for o in guard.sources) if guard.reads_value else ("",)
        code = ValueCode(const, expr, tuple(other_texts), known_types.get(guard.source))
        conditions.append(guard.condition(code))
        implied_type = guard.implied_type
        if implied_type is not None:
            known_types[guard.source] = implied_type
    return tuple(conditions)
