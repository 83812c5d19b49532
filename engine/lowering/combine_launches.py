"""Combine launches of equal computations on different tensors into one launch.

A step of an optimizer is an example: each of its kernels updates one parameter, most of them in less time than a
launch takes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.ir.kernels.lowered_program import Buffer, Launch, ProgramStep
from engine.ir.loop_ir.index_expr import LoopVar, variable
from engine.ir.loop_ir.loop_kernel import LoopKernel
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.static_sizes import static_size
from engine.lowering.dedup_kernels import KernelDeduplicator, structural_key
from engine.lowering.memory.buffer_reuse import bytes_of, returns_fresh_memory
from engine.records.lowering import FusionDecision

MAX_COMBINED_BYTES = 1 << 25
"""A kernel that moves more bytes takes much longer than its launch."""
MAX_DELAYED_BYTES = 1 << 20
"""Bytes of memory that a launch may keep alive while it waits for the others."""
MAX_EARLY_SHARE = 1 / 32
"""Fraction by which results that are computed early, such as casts, may raise peak memory."""
MAX_POINTERS = 240
"""Pointers of one launch, whose parameters take at most 4 KB."""
ANY_SIZE = LoopVar("any", 1 << 30)
"""Stands for the loops of kernels that differ only in their number of elements."""


def combine_launches(
    steps: Sequence[ProgramStep],
    loops: Mapping[int, LoopKernel],
    buffers: Mapping[str, Buffer],
    printed: KernelDeduplicator,
    stage: str,
) -> tuple[list[ProgramStep], tuple[FusionDecision, ...]]:
    """Return the steps with launches combined, and the reasons.

    A launch waits for later ones of equal computations until a step depends on it; one that reads only inputs joins an
    earlier one. ``loops`` maps the number of a step to its loop kernel. ``stage``: the graph's; what a backward reads
    is freed after its last use.
    """
    memory = _Memory(steps, buffers, is_freed=("input", "intermediate") if stage == "backward" else ("intermediate",))
    keys = {
        number: key
        for number, kernel in loops.items()
        if (key := _key_on_any_size(kernel)) is not None and memory.delayed_bytes(steps[number]) <= MAX_DELAYED_BYTES
    }
    order = _order_with_early_steps(steps, keys, memory)
    combinations = _combinations(steps, order, keys, memory)
    keys = {
        number: keys[number] for combined in combinations if len(combined.numbers) > 1 for number in combined.numbers
    }
    if not keys:
        return list(steps), ()
    ordered: list[ProgramStep] = []
    decisions = []
    for combined in _combinations(steps, order, keys, memory):
        first = steps[combined.numbers[0]]
        if len(combined.numbers) == 1:
            ordered.append(first)
            continue
        members, (launch,) = tuple(loops[n] for n in combined.numbers), first.launches
        kernel = replace(members[0], companions=members[1:])
        ordered.append(Launch(printed.combined_source(kernel, launch.kernel)))
        decisions.append(
            FusionDecision(
                members[0].nodes,
                tuple(dict.fromkeys(node for member in members[1:] for node in member.nodes)),
                True,
                f"They do the same computation on {len(members)} tensors, so one launch runs all of them.",
            )
        )
    return ordered, tuple(decisions)


@dataclass
class _Combination:
    """Steps that become one launch, by number; any other step stands alone, without a key."""

    key: Hashable
    numbers: list[int]
    touched: set[str]
    written: set[str]
    pointers: int

    def conflicts_with(self, other: _Combination) -> bool:
        """Return True if one writes what the other reads or writes: their order matters."""
        return not (self.written.isdisjoint(other.touched) and self.touched.isdisjoint(other.written))

    def add(self, other: _Combination) -> None:
        """Add the steps of another combination."""
        self.numbers += other.numbers
        self.touched |= other.touched
        self.written |= other.written
        self.pointers += other.pointers


def _order_with_early_steps(steps: Sequence[ProgramStep], keys: Mapping[int, Hashable], memory: _Memory) -> list[int]:
    """Order the steps: those that read only inputs follow the first of their key."""
    early: dict[Hashable, list[int]] = {}
    live = memory.live_bytes(len(steps))
    peak = max(live, default=0)
    limit = peak + max(MAX_DELAYED_BYTES, peak * MAX_EARLY_SHARE)
    for number, key in keys.items():
        size = memory.new_bytes(steps[number])
        if size > MAX_DELAYED_BYTES or not memory.can_run_early(number, steps[number]):
            continue
        between = range(early.get(key, [number])[0], number)
        if all(live[n] + size <= limit for n in between):
            early.setdefault(key, []).append(number)
            for n in between:
                live[n] += size
    moved = {number for numbers in early.values() for number in numbers[1:]}
    following = {numbers[0]: numbers for numbers in early.values()}
    return [n for number in range(len(steps)) if number not in moved for n in following.get(number, [number])]


def _combinations(
    steps: Sequence[ProgramStep], order: Sequence[int], keys: Mapping[int, Hashable], memory: _Memory
) -> list[_Combination]:
    """Return the launches and calls in a valid order; steps without a key keep theirs."""
    complete: list[_Combination] = []
    waiting: list[_Combination] = []
    for number in order:
        alone = _Combination(keys.get(number), [number], *memory.accesses(steps[number]))
        before = _needed_before(alone, waiting)
        if alone.key is None:
            complete += [*(c for n, c in enumerate(waiting) if n in before), alone]
            waiting = [c for n, c in enumerate(waiting) if n not in before]
            continue
        ready = max(before, default=-1) + 1
        home = next((c for c in waiting[ready:] if _can_join(alone, c)), None)
        if home is None:
            waiting.append(alone)
        else:
            home.add(alone)
    return [*complete, *waiting]


def _needed_before(step: _Combination, waiting: Sequence[_Combination]) -> set[int]:
    """Return the positions of the waiting launches that a step depends on, directly or not."""
    needed: set[int] = set()
    for position in reversed(range(len(waiting))):
        other = waiting[position]
        if other.conflicts_with(step) or any(other.conflicts_with(waiting[n]) for n in needed):
            needed.add(position)
    return needed


def _can_join(alone: _Combination, combined: _Combination) -> bool:
    return alone.key == combined.key and alone.pointers + combined.pointers <= MAX_POINTERS


class _Memory:
    """Knows which buffers of a program share memory."""

    def __init__(self, steps: Sequence[ProgramStep], buffers: Mapping[str, Buffer], *, is_freed: Sequence[str]) -> None:
        self._buffers = buffers
        self._freed_kinds = is_freed
        self._owner: dict[str, str] = {}
        for buffer in buffers.values():
            if buffer.reuses:
                self._unite(buffer.name, buffer.reuses)
        for call in (call for step in steps for call in step.calls if not returns_fresh_memory(call)):
            names = [name for name in call.touched_buffers() if name in buffers]
            for name in names[1:]:
                self._unite(names[0], name)
        self._first_touch: dict[str, int] = {}
        self._last_touch: dict[str, int] = {}
        self._written: set[str] = set()
        for number, (touched, written, _) in enumerate(map(self.accesses, steps)):
            self._written |= written
            for root in touched:
                self._first_touch.setdefault(root, number)
                self._last_touch[root] = number

    def _unite(self, first: str, second: str) -> None:
        self._owner[self._root(first)] = self._root(second)

    def _root(self, name: str) -> str:
        while name in self._owner and self._owner[name] != name:
            name = self._owner[name]
        return name

    def accesses(self, step: ProgramStep) -> tuple[set[str], set[str], int]:
        """Return the memory that a step touches, that it writes, and its number of pointers."""
        touched = list(step.touched_buffers())
        written = [a.buffer for launch in step.launches for a in launch.kernel.args if a.is_written]
        written += [name for call in step.calls for name in call.result_buffers if name is not None]
        return set(map(self._root, touched)), set(map(self._root, written)), len(touched)

    def can_run_early(self, number: int, step: ProgramStep) -> bool:
        """Return True if a step reads unwritten inputs, and no earlier step uses its memory.

        A fraction may be computed by an earlier step.
        """
        if any(a.is_fraction for launch in step.launches for a in launch.kernel.args):
            return False
        touched, written, _ = self.accesses(step)
        read = touched - written
        are_inputs = all(
            self._buffers[name].kind == "input" for name in step.touched_buffers() if self._root(name) in read
        )
        return are_inputs and read.isdisjoint(self._written) and all(self._first_touch[r] == number for r in written)

    def new_bytes(self, step: ProgramStep) -> int:
        """Return the bytes of memory that a step's results take."""
        written = (self._buffers[a.buffer] for launch in step.launches for a in launch.kernel.args if a.is_written)
        return sum(bytes_of(b) or 0 for b in written if b.kind != "input" and not b.reuses)

    def live_bytes(self, count: int) -> list[int]:
        """Return the bytes of results and intermediate values that are alive at each step."""
        live = [0] * count
        for name, buffer in self._buffers.items():
            if buffer.kind == "input" or buffer.reuses or name not in self._first_touch:
                continue
            end = count - 1 if buffer.kind == "output" else self._last_touch[self._root(name)]
            for n in range(self._first_touch[name], end + 1):
                live[n] += bytes_of(buffer) or 0
        return live

    def delayed_bytes(self, step: ProgramStep) -> int:
        """Return the bytes that stay alive as long as a step has not run."""
        freed = [self._buffers[name] for name in step.touched_buffers()]
        return sum(bytes_of(b) or 0 for b in freed if b.kind in self._freed_kinds)


def _key_on_any_size(kernel: LoopKernel) -> Hashable | None:
    """Return a key of the computation on each element; None if it needs a launch alone."""
    numel, _ = kernel.static_sizes
    if numel is None or kernel.r is not None or kernel.matmul is not None or kernel.initial_values:
        return None
    if kernel.uses_int64_index or (static_size(kernel.bytes_moved) or 0) > MAX_COMBINED_BYTES:
        return None
    ops = [_on_any_size(op, kernel.x) for op in kernel.ops]
    if any(op is None for op in ops):
        return None
    return structural_key(replace(kernel, ops=tuple(ops), x=ANY_SIZE, block_config=None))  # type: ignore[arg-type]


def _on_any_size(op: LoopIROp, x: LoopVar) -> LoopIROp | None:
    """Return an op for any size; None if its index is not just the loop's variable."""
    if op.name in ("check", "atomic_add"):
        return None
    if op.index is None or op.index.is_constant:
        return op
    return replace(op, index=variable(ANY_SIZE)) if op.index == variable(x) else None
