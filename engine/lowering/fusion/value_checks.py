"""Find definitions that check values but are not read in full: eager checks all elements.

A kernel computes only the elements that something reads. A definition that may raise is therefore stored, so that its
kernel computes all of them, unless another definition that is computed in full reads each of its elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from engine.group_pairs import group_pairs
from engine.ir.loop_ir.index_expr import is_bijection, sizes_equal
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.loop_ir.tensor_def import MemoryRead, TensorDef
from engine.ir.static_sizes import static_sizes
from engine.lowering.fusion.fusion_cost import build_unfused


def checks_values(ops: Iterable[LoopIROp]) -> bool:
    """Return True if a CPU kernel checks indices or divisors."""
    return any(
        op.name == "check"
        or (op.name in ("truncdiv", "rem") and not (op.args[1].name == "constant" and op.args[1].value))
        for op in ops
    )


def partly_read_checks(defs: Sequence[TensorDef], in_memory: set[TensorDef], *, is_cpu: bool) -> set[TensorDef]:
    """Return the definitions to store, so that all their elements are checked.

    ``in_memory``: definitions that are stored anyway. A GPU reports a bad index after the call and ends the process's
    use of it, so that there only definitions without a reader count.
    """
    computed = [d for d in defs if d.is_computed]
    if not any(checks_values(build_unfused(d).ops) for d in computed):
        return set()
    readers = group_pairs((read.source, (d, read)) for d in computed for read in build_unfused(d).memory_reads)
    complete, stored = set(in_memory), set[TensorDef]()
    for tensor_def in reversed(computed):
        own = readers.get(tensor_def, ())
        if tensor_def in complete or any(d in complete and _reads_all(d, read) for d, read in own):
            complete.add(tensor_def)
        elif (is_cpu or not own) and checks_values(build_unfused(tensor_def).ops):
            complete.add(tensor_def)
            stored.add(tensor_def)
    return stored


def _reads_all(reader: TensorDef, read: MemoryRead) -> bool:
    """Return True if a definition is known to read each element of another one."""
    if not read.is_masked:
        return is_bijection(read.index, read.source.shape, set(chain.from_iterable(i.variables() for i in read.index)))
    # The mask of a concatenation or of padding only selects the operand's elements: the reader has more.
    pairs = [(size, position) for size, position in zip(read.source.shape, read.index, strict=True) if position.terms]
    variables = [next(iter(position.terms)).as_variable() for _, position in pairs]
    has_more = len(set(variables)) < len(reader.loop_ranges)
    for variable, (size, position) in zip(variables, pairs, strict=True):
        if variable is None or [*position.terms.values()] != [1]:
            return False
        if position.const == 0 and sizes_equal(variable.size, size):
            continue
        numbers = static_sizes((position.const, variable.size, size))
        if numbers is None or numbers[0] > 0 or numbers[0] + numbers[1] < numbers[2]:
            return False
        has_more = True
    return has_more
