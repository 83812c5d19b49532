"""Run a generated case plainly and compiled; report differences its caller could notice."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import engine
from engine.aot.saved_tensors import CAN_UNPACK_SINGLE
from engine.torch_private import pytree
from tests.engine.aot.aliasing.generate_programs import Case
from tests.engine.aot.aliasing.program_features import STRIDED_TANGENTS, go_backward, go_further
from tests.torch_internals import TwoTensor

Run = Callable[..., Any]
_OVERWRITTEN = "modified by an inplace operation"
_SECOND_BACKWARD_ERRORS = ("derivative for set_ is not implemented", "backward through the graph a second time")
_STRIDES = "Tensor must have a last dimension with stride 1"
_DOUBLE_BACKWARD_ERROR = "cannot compute a second derivative through this compiled graph"
_RESHAPED = "returned an invalid gradient"


@dataclass
class Observation:
    """Results of one call: exceptions per phase, and facts for each tensor and tensor pair."""

    errors: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    is_overwritten: bool = False
    """The caller changed what needs a gradient without its version counter noticing."""
    is_trained: bool = False
    """The caller wrote to a parameter between the call and the backward."""
    unfilled: set[str] = field(default_factory=set)
    """Tensors whose memory the call made larger before it raised: nobody says what lies there."""


def observe(case: Case, space: dict[str, Any], run: Run, *, apart: bool = False, larger: int = 0) -> Observation:
    """Make inputs, call, inspect, run the caller's code, inspect again and go backward.

    The inputs are larger by ``larger``.
    """
    seen = Observation()
    torch.manual_seed(5)
    torch.set_grad_enabled(True)
    with torch.enable_grad():
        args, kept = space["make"](larger)
        if apart:
            args = kept = tuple(_own(a) for a in args)
        leaves = _leaves((*args, *kept))
    sizes = {name: _storage_bytes(t) for name, t in (*_named("input", args), *_named("kept", kept))}
    result = _phase(seen, "call", run, args)
    named = [*_named("input", args), *_named("kept", kept), *_named("output", pytree.tree_leaves(result))]
    seen.facts["result"] = str(pytree.tree_map(lambda v: "tensor" if isinstance(v, torch.Tensor) else v, result))
    seen.facts["grad mode"] = torch.is_grad_enabled()
    if "call" in seen.errors:
        seen.unfilled = {name for name, t in named if _storage_bytes(t) > sizes[name]}
    _observe_tensors(seen, "after the call", named)
    outputs = [v for v in pytree.tree_leaves(result) if isinstance(v, torch.Tensor)]
    _phase(
        seen,
        "after",
        space["after"],
        (args, result, lambda _: _nth(outputs or args, 0), lambda _: _nth(outputs or args, -1)),
    )
    _observe_tensors(seen, "after the caller", named)
    seen.is_overwritten = any(_is_overwritten(seen, name) for name, t in named if t.requires_grad)
    seen.is_trained = any(_version_changed(seen, name) for name, t in named if isinstance(t, torch.nn.Parameter))
    _phase(seen, "backward", _backward, (named, leaves, case.backward))
    _observe_tensors(seen, "after the backward", named)
    for n, leaf in enumerate(leaves):
        _tensor(seen, f"gradient of leaf {n}", leaf.grad)
        if (
            case.backward in STRIDED_TANGENTS
        ):  # it may lie in the tangent, which compiled code lays out in its own memory
            seen.facts.pop(f"size of the storage of gradient of leaf {n}", None)
    return seen


def _storage_bytes(t: torch.Tensor) -> int:
    """Return the size of a tensor's memory; a wrapper's parts have memories of their own."""
    parts = (t.a, t.b) if isinstance(t, TwoTensor) else (t,)
    return sum(part.untyped_storage().nbytes() for part in parts)


def _version_changed(seen: Observation, name: str) -> bool:
    return bool(seen.facts[f"version of {name} after the call"] != seen.facts[f"version of {name} after the caller"])


def _is_overwritten(seen: Observation, name: str) -> bool:
    before, after = f"{name} after the call", f"{name} after the caller"
    if _version_changed(seen, name):
        return False
    parts = [k.removeprefix(before) for k in seen.values if k == before or k.startswith(f"{before} part")]
    pairs = [(seen.values[before + p], seen.values[after + p]) for p in parts]
    return not all(torch.equal(b.nan_to_num(), a.nan_to_num()) for b, a in pairs)


def _nth(tensors: Sequence[Any], n: int) -> Any:
    return tensors[n]


def _own(t: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        reach = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
        new = torch.zeros(reach, dtype=t.dtype).as_strided(t.shape, t.stride())
        if 0 in t.stride():
            new = t.clone()
        else:
            new.copy_(t)
        new = new.data
    return new.requires_grad_(t.requires_grad)


def _phase(seen: Observation, name: str, run: Run, args: tuple[Any, ...]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return run(*args)
        except Exception as error:
            seen.errors[name] = f"{type(error).__name__}: {error}"
            return None


def _leaves(values: Sequence[Any]) -> list[torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    todo: list[Any] = []
    for t in (v for v in values if isinstance(v, torch.Tensor)):
        if t.requires_grad and t.is_leaf:
            found[id(t)] = t
        todo.append(t.grad_fn)
    while todo:
        node = todo.pop()
        if node is None:
            continue
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        todo += [n for n, _ in node.next_functions]
    return list(found.values())


def _named(kind: str, values: Sequence[Any]) -> list[tuple[str, torch.Tensor]]:
    return [(f"{kind} {n}", v) for n, v in enumerate(values) if isinstance(v, torch.Tensor)]


def _observe_tensors(seen: Observation, when: str, named: Sequence[tuple[str, torch.Tensor]]) -> None:
    for name, t in named:
        _tensor(seen, f"{name} {when}", t)
    for n, (name, t) in enumerate(named):
        for other, u in named[:n]:
            pair = f"{name} and {other} {when}"
            seen.facts[f"identity of {pair}"] = t is u
            seen.facts[f"_base of {pair}"] = (t._base is u, u._base is t, t._base is not None and t._base is u._base)
            shared = t.untyped_storage()._cdata == u.untyped_storage()._cdata
            seen.facts[f"memory of {pair}"] = shared


def _tensor(seen: Observation, where: str, t: torch.Tensor | None) -> None:
    if t is None:
        seen.facts[where] = None
        return
    if t.layout is not torch.strided:
        seen.facts[f"layout of {where}"] = t.layout
        t = t.to_dense()
    for fact in ("dtype", "shape", "requires_grad", "is_leaf"):
        try:
            seen.facts[f"{fact} of {where}"] = getattr(t, fact)
        except (RuntimeError, IndexError) as error:  # a view whose history was spoilt says so when it is asked
            seen.facts[f"{fact} of {where}"] = _without_maker(str(error))
    seen.facts[f"type of {where}"] = type(t).__name__
    # A dimension of size 1 is never stepped along, and fake tensors do not always agree with real ones about it.
    seen.facts[f"stride of {where}"] = (
        [s for n, s in zip(t.shape, t.stride(), strict=True) if n != 1] if t.numel() else []
    )
    seen.facts[f"offset of {where}"] = t.storage_offset() if t.numel() else 0
    seen.facts[f"is_view of {where}"] = t._is_view()
    seen.facts[f"conj of {where}"] = (t.is_conj(), t.is_neg(), t.is_inference())
    seen.facts[f"version of {where}"] = None if t.is_inference() else t._version
    seen.facts[f"size of the storage of {where}"] = t.untyped_storage().nbytes()
    if isinstance(t, TwoTensor):
        for part in ("a", "b"):
            _tensor(seen, f"{where} part {part}", getattr(t, part))
        return
    seen.values[where] = t.detach().resolve_conj().resolve_neg().clone()


def _backward(named: Sequence[tuple[str, torch.Tensor]], leaves: Sequence[torch.Tensor], how: str) -> None:
    met: dict[int, torch.Tensor] = {}
    for name, t in named:
        if not name.startswith("kept") and t.requires_grad and t.grad_fn is not None:
            met.setdefault(id(t), t)
    if met:
        go_backward(list(met.values()), how)
        if how == "higher":
            go_further(leaves)


def differences(eager: Observation, ours: Observation) -> Iterator[str]:
    """Each difference as one line.

    How often gradients are added up shows in their version counters, and is the compiler's affair, as is whether they are conjugated lazily. So is what a backward reads: where
    eager complains that a value of its own was overwritten, or would if the caller had not done it behind its back (``.data``), compiled
    code may still have what it needs, and go on to what eager would complain about next; where both complain, which gradients had been
    added up before is a matter of order. A parameter is in memory anyway, and is what compiled code reads (torch's does, too) where eager
    saves what was made of it: written to before the backward, it is complained about. Tangents are laid out as the compiled backward expects them, so that none is refused for its strides.
    """
    raised = eager.errors.get("backward", "")
    # That a leaf was given other sizes shows only while something made before that is alive.
    is_overwritten = _OVERWRITTEN in raised or _RESHAPED in raised or eager.is_overwritten
    goes_on = is_overwritten and (
        not ours.errors.get("backward") or any(e in ours.errors["backward"] for e in _SECOND_BACKWARD_ERRORS)
    )
    is_refused = _DOUBLE_BACKWARD_ERROR in ours.errors.get("backward", "")  # whatever eager may find fault with then
    goes_on, is_overwritten = goes_on or is_refused, is_overwritten or is_refused
    goes_on = goes_on or (_STRIDES in raised and not ours.errors.get("backward"))
    goes_on = goes_on or (ours.is_trained and _OVERWRITTEN in ours.errors.get("backward", ""))
    is_overwritten = is_overwritten or goes_on or bool(raised and ours.errors.get("backward"))
    for phase in ("call", "after", "backward"):
        one, other = eager.errors.get(phase, ""), ours.errors.get(phase, "")
        if _message(one, phase) != _message(other, phase) and not (phase == "backward" and goes_on):
            yield f"{phase}: raises {one!r}, compiled {other!r}"
    for key, fact in eager.facts.items():
        if key.startswith(("version of gradient", "conj of gradient")) or (is_overwritten and "gradient of" in key):
            continue
        if ours.facts.get(key, "nothing") != fact:
            yield f"{key}: {fact}, compiled {ours.facts.get(key, 'nothing')}"
    for key, value in eager.values.items():
        found = ours.values.get(key)
        if found is None or found.shape != value.shape or found.dtype != value.dtype:
            continue  # told as a fact
        if (is_overwritten and "gradient of" in key) or key.partition(" after")[0] in eager.unfilled:
            continue
        # A gradient rounds as its largest summands do: second derivatives of norms cancel most of them.
        largest = float(value.abs().nan_to_num(posinf=0).max()) if "gradient of" in key and value.numel() else 0.0
        if not torch.allclose(found, value, rtol=1e-5, atol=max(1e-6, 1e-5 * largest), equal_nan=True):
            yield f"values of {key}: {value.tolist()}, compiled {found.tolist()}"


def _message(text: str, phase: str) -> str:
    """Return the part of an exception that must equal eager's.

    It is all of it, except in a backward, where only the first clause counts: the rest names nodes.
    """
    text = _without_maker(text)
    return text.partition(":")[2].partition(":")[0] if phase != "call" else text


def _without_maker(text: str) -> str:
    """An error about a view, or of an autograd function, without the function's name.

    Compiled code sees a view's whole chain as one ``AsStrided``, as ``grad_fn`` shows; that there is an error, and the rest of what it
    says, must be eager's.
    """
    text = text.partition("\nException raised from")[0]  # where in C++
    text = re.sub(r"Function [\w:]+ returned", "A function returned", text)
    return re.sub(r"Output \d+ of \w+ is a view", "A view", text)


def check(case: Case, backend: str, *, dynamic: bool | None = None) -> list[str]:
    """Return every difference of a case over repeated calls and one without shared memory.

    The calls are the first, the same again, and one on inputs that share no memory.

    A case whose sizes grow makes calls with three sizes; the second makes them symbols (or the first, with
    ``dynamic``).
    """
    engine.reset()
    plain, compiled = case.functions("plain"), case.functions("compiled")
    run = engine.compile(compiled["program"], backend=backend, dynamic=dynamic)
    found: list[str] = []
    for number, (apart, larger) in enumerate(_calls(case)):
        if not _can_be_made(plain, larger):
            continue
        eager = observe(case, plain, plain["program"], apart=apart, larger=larger)
        ours = observe(case, compiled, run, apart=apart, larger=larger)
        told = list(differences(eager, ours))
        if told and _breaks_checkpoint(case, told):
            whole = case.functions("whole")
            whole["program"].__globals__["cached_call"] = _kept
            seen = observe(case, whole, whole["program"], apart=apart, larger=larger)
            told = list(differences(seen, ours))
        if told and not CAN_UNPACK_SINGLE and _complains_of_overwritten_values(told):
            told = []  # before torch 2.13 a backward unpacks all saved tensors, also those that it does not need
        if told and case.backward == "hooked" and _complains_of_overwritten_values(told):
            every = observe(replace(case, backward="once"), plain, plain["program"], apart=apart, larger=larger)
            told = [] if _OVERWRITTEN in every.errors.get("backward", "") else told
        found += [f"call {number}{' apart' if apart else ''}: {d}" for d in told]
    torch.set_grad_enabled(True)
    return found


def _breaks_checkpoint(case: Case, told: Sequence[str]) -> bool:
    """Return whether only gradients differ because a hidden write breaks a checkpoint.

    The program writes, behind autograd's back, to memory that a checkpoint may read again: through ``.data``, or by a
    function of lists to a wrapper subclass, which no version counter of torch counts. Eager's checkpoint then
    recomputes something else. Compiled code has no checkpoint where it runs as traced: it must match eager without
    one.
    """
    is_hidden = ".data" in case.text or (case.kind == "wrapped" and "_foreach_" in case.text)
    return "cached_call(" in case.text and is_hidden and all("values of gradient of" in d for d in told)


def _complains_of_overwritten_values(told: Sequence[str]) -> bool:
    """Return whether only compiled code complains of a value overwritten before.

    A compiled call is one autograd node: where the backward starts from one result, it recomputes the values of that
    result from inputs that eager saves for another one. Eager must complain where the backward starts from all results.
    """
    is_complaint = any(d.startswith("backward: raises ''") and _OVERWRITTEN in d for d in told)
    return is_complaint and all("backward" in d or "gradient of" in d for d in told)


def _kept(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return function(x)


def _can_be_made(space: dict[str, Any], larger: int) -> bool:
    try:
        space["make"](larger)
    except RuntimeError:
        return False
    return True


def _calls(case: Case) -> tuple[tuple[bool, int], ...]:
    if case.kind == "sizes":
        return ((False, 0), (False, 1), (False, 2))
    if case.kind == "wrapped":
        return ((False, 0), (False, 0))
    return {0: ((False, 0), (True, 0)), 1: ((True, 0), (False, 0)), 2: ((False, 0), (False, 0))}.get(
        case.seed % 5, ((False, 0),)
    )
