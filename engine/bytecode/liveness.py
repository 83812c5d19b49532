"""Find live local variables and reachable instructions, for resume functions."""

from __future__ import annotations

from engine.bytecode.decode import DecodedCode, DecodedInstruction

_READS = frozenset(
    "LOAD_FAST LOAD_FAST_BORROW LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_FAST_LOAD_FAST "
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW DELETE_FAST".split()
)
_WRITES = frozenset("STORE_FAST STORE_FAST_STORE_FAST STORE_FAST_MAYBE_NULL".split())
_STORES = _WRITES | {"STORE_FAST_LOAD_FAST", "STORE_DEREF"}
_ENDS = frozenset("RETURN_VALUE RETURN_CONST RAISE_VARARGS RERAISE".split())
_ALWAYS_JUMP = frozenset("JUMP JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_NO_INTERRUPT".split())


def live_before(decoded: DecodedCode) -> tuple[frozenset[str], ...]:
    """Return for each instruction the locals that may be read from there on before a write."""
    live: list[frozenset[str]] = [frozenset()] * (len(decoded.ops) + 1)
    changed = True
    while changed:
        changed = False
        for op in reversed(decoded.ops):
            new = _transfer(op, _live_after(decoded, op, live))
            if new != live[op.index]:
                live[op.index] = new
                changed = True
    return tuple(live)


def reachable_from(decoded: DecodedCode, index: int) -> frozenset[int]:
    """Return the indexes of all instructions reachable from ``index``, including it."""
    reachable: set[int] = set()
    due = [index]
    while due:
        at = due.pop()
        if at in reachable or not 0 <= at < len(decoded.ops):
            continue
        reachable.add(at)
        op, handler = decoded.ops[at], decoded.handlers[at]
        if op.opname not in _ENDS and op.opname not in _ALWAYS_JUMP:
            due.append(at + 1)
        due.append(op.target)
        if handler is not None:
            due.append(handler.target)
    return frozenset(reachable)


def assigned_in_loop(decoded: DecodedCode, index: int) -> frozenset[str]:
    """Return the locals that are assigned in a loop around the instruction."""
    inside = (
        op for end in decoded.ops[index:] if 0 <= end.target <= index for op in decoded.ops[end.target : end.index]
    )
    stored = (
        op.argval[:1] if op.opname == "STORE_FAST_LOAD_FAST" else _names(op) for op in inside if op.opname in _STORES
    )
    return frozenset().union(*stored)


def _live_after(decoded: DecodedCode, op: DecodedInstruction, live: list[frozenset[str]]) -> frozenset[str]:
    result: frozenset[str] = frozenset()
    if op.opname not in _ENDS and op.opname not in _ALWAYS_JUMP:
        result = live[op.index + 1]
    if op.target >= 0:
        result |= live[op.target]
    handler = decoded.handlers[op.index]
    return result if handler is None else result | live[handler.target]


def _transfer(op: DecodedInstruction, after: frozenset[str]) -> frozenset[str]:
    if op.opname in _READS:
        return after | _names(op)
    if op.opname in _WRITES:
        return after - _names(op)
    if op.opname == "STORE_FAST_LOAD_FAST":
        stored, loaded = op.argval
        return (after - {stored}) | {loaded} if stored != loaded else after - {stored}
    return after


def _names(op: DecodedInstruction) -> frozenset[str]:
    return frozenset(op.argval) if isinstance(op.argval, tuple) else frozenset((op.argval,))
