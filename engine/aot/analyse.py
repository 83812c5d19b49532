"""What can be told from a traced graph before anything is run: whether it may be functional, needs gradients, and what its values are."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from engine.aot.views import (
    at_hand,
    end_of,
    here_of,
    is_apart,
    is_dense,
    is_same_place,
    overlaps,
    start_of,
    storage_of,
)
from engine.ir.frame import GraphInput
from engine.ir.in_graph import InGraph
from engine.ir.plan import InputPlan, OutputPlan, Plan
from engine.ir.relation_guard import SharesMemory
from engine.records.aot import ValueFacts

GRAD_MODE = (torch._C._set_grad_enabled, torch.set_grad_enabled)
"""Calls that switch gradients on or off from inside a graph."""

_CHANGES_MORE_THAN_DATA = frozenset(
    (
        "requires_grad_",
        "retain_grad",
        "detach_",
        "set_",
        "resize_",
        "resize_as_",
        "backward",
        "register_hook",
        "share_memory_",
        "grad",
        "rename_",
        "_coalesced_",
        "apply_",
        "map_",
    )
)
"""Methods and attributes whose effect a functional graph cannot carry."""


_PROMOTING = frozenset(
    (
        "add sub mul div subtract multiply divide true_divide truediv floordiv floor_divide remainder mod fmod pow "
        "addcmul addcdiv lerp"
    ).split()
)
"""Operators that, in place, compute in a type wide enough for all that they are given."""
_DIVIDING = frozenset(("div", "divide", "true_divide", "truediv"))
"""Those of them that give fractions, of integers too."""

_ORDERING = frozenset("gt lt ge le greater less greater_equal less_equal maximum minimum fmax fmin clamp clip".split())
"""Operators that ask which of two numbers is larger."""


_DRAWING = (
    "rand",
    "drop",
    "normal",
    "uniform",
    "bernoulli",
    "multinomial",
    "exponential",
    "poisson",
    "geometric",
    "cauchy",
    "engine.",
)


def is_drawing(node: torch.fx.Node) -> bool:
    """Whether a traced node may draw random numbers. Errs towards yes."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", str(node.target))
    return any(d in name for d in _DRAWING)


def output_args(graph: torch.fx.Graph) -> tuple[Any, ...]:
    """What the output node returns, as a flat tuple."""
    returned = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)


def needs_gradients(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> bool:
    """Whether autograd must see this call: under grad mode an input requires grad, or something made inside does."""
    if any(n.kwargs.get("requires_grad") is True for n in graph.graph.nodes):
        return True
    switched_on = any(n.target in GRAD_MODE and n.args[:1] != (False,) for n in graph.graph.nodes)
    # Without grad mode nothing made from an input requires grad, though fake views may say so.
    if not torch.is_grad_enabled() and not switched_on:
        return False
    return any(isinstance(i.real, torch.Tensor) and i.real.requires_grad for i in inputs) or any(
        isinstance(v, torch.Tensor) and v.requires_grad for v in _values(graph)
    )


def _values(graph: torch.fx.GraphModule) -> Iterator[Any]:
    for node in graph.graph.nodes:
        value = node.meta.get("example_value")
        yield from value if isinstance(value, (tuple, list)) else (value,)


def refusal(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput], *, trains: bool) -> str:
    """Why this graph must run as traced; empty when nothing stands against making it functional."""
    for i in inputs:
        if isinstance(i.real, torch.Tensor) and (reason := _strange(i.real, trains=trains)):
            return f"{i.name} is {reason}"
        if isinstance(i.real, torch.Generator):
            return f"{i.name} is a generator of random numbers"
        if isinstance(i.real, torch.Tensor) and i.real.requires_grad and is_reshaped(i.fake, i.real):
            return f"the shape or layout of {i.name}, which requires grad, is changed in place"
    for node in graph.graph.nodes:
        if reason := _unfit(node) or _overlapping(node) or _miscast(node):
            return f"{node.name} {reason}"
    whole = (_behind_autograd, _viewed_without_grad_mode, _straying, _numbers_in_truths, _uncounted, _sharing_unsaid)
    return next((reason for rule in whole if (reason := rule(graph, inputs))), "")


def _uncounted(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> str:
    """Which views of inference tensors count writes, and may be written to, fake tensors do not know, nor can a view be made so again."""
    if torch.is_inference_mode_enabled():
        return ""
    given = [i for i in inputs if isinstance(i.real, torch.Tensor) and i.real.is_inference()]
    storages = {storage_of(i.fake) for i in given if isinstance(i.fake, torch.Tensor)}
    for node in output_args(graph.graph) if storages else ():
        seen = _fake_of(node)
        if seen is not None and storage_of(seen) in storages and all(seen is not i.fake for i in given):
            return f"{node.name} is another tensor over the memory of an inference tensor"
    return ""


def _numbers_in_truths(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> str:
    """Memory seen as truth values and as numbers: eager writes any number there, a functional graph gives back 0 or 1."""
    tensors = [v for v in (*(i.fake for i in inputs), *_values(graph)) if isinstance(v, torch.Tensor)]
    truths = {storage_of(v) for v in tensors if v.dtype is torch.bool}
    both = truths & {storage_of(v) for v in tensors if v.dtype is not torch.bool}
    for node in graph.graph.nodes if both else ():
        if is_mutating(node) and any(
            storage_of(v) in both for a in node.all_input_nodes if (v := _fake_of(a)) is not None
        ):
            return f"{node.name} writes to memory that is seen as truth values and as numbers"
    return ""


def _behind_autograd(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> str:
    """Where gradients are needed, what is written or seen past autograd's own account of views is left to eager."""
    if not torch.is_grad_enabled():
        return ""
    values = [*(i.fake for i in inputs), *_values(graph)]
    needing = {storage_of(v) for v in values if isinstance(v, torch.Tensor) and v.requires_grad}
    retyped: set[int] = set()
    for node in graph.graph.nodes:
        seen = _fake_of(node.args[0]) if needing and node.args else None
        if seen is None or storage_of(seen) not in needing:
            continue
        if id(seen) in retyped and is_mutating(node):
            return f"{node.name} writes to a view of another type, whose history autograd keeps apart"
        made = _fake_of(node)
        if (
            made is not None
            and made.dtype != seen.dtype
            and not made._is_view()
            and storage_of(made) == storage_of(seen)
        ):
            retyped.add(id(made))
        if is_as_strided(node):
            return f"{node.name} sees memory by place, and gradients are needed through it"
        detached = _fake_of(node) if "detach" in str(node.target) or _is_data(node) else None
        if detached is not None and detached._version != node.meta.get("version", 0):
            return f"the memory of {node.name} is written to, and gradients are needed through what it is detached from"
        if is_mutating(node) and not seen.requires_grad:
            return f"{node.name} writes past autograd to what needs gradients"
    return ""


def _viewed_without_grad_mode(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> str:
    """Autograd refuses a backward through a view made under ``no_grad`` of memory that is written to in grad mode later."""
    unseen = set[int]()
    for node, is_on in with_grad_mode(graph, is_on=torch.is_grad_enabled()):
        seen = _fake_of(node.args[0]) if node.args else None
        if seen is None:
            continue
        if is_on and is_mutating(node) and storage_of(seen) in unseen and seen.requires_grad:
            return f"{node.name} writes in grad mode to memory that was viewed under no_grad"
        if not is_on and not is_mutating(node):
            made = node.meta.get("example_value")
            views = [v for v in (made if isinstance(made, (tuple, list)) else (made,)) if isinstance(v, torch.Tensor)]
            unseen.update(storage_of(v) for v in views if v._is_view() and storage_of(v) == storage_of(seen))
    return ""


def _sharing_unsaid(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> str:
    """Results that share memory with what they were made from and are no views of it (``unsafe_chunk``): a functional graph makes new ones."""
    shared: dict[int, torch.fx.Node] = {}
    for node in graph.graph.nodes:
        # A view of another type is none to autograd either, but its operator says that it shares.
        if "unsafe" not in (str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")):
            continue
        given = [t for a in node.all_input_nodes for t in _tensors_of(a)]
        for made in _tensors_of(node):
            if made._is_view() or made.is_inference() or any(made is t for t in given):
                continue
            if (storage := storage_of(made)) in map(storage_of, given):
                shared.setdefault(storage, node)
    for node in graph.graph.nodes if shared else ():
        touched = [t for a in node.all_input_nodes for t in _tensors_of(a)]
        part = next((n for t in touched if (n := shared.get(storage_of(t))) is not None), None)
        if part is not None and (node.op == "output" or is_mutating(node)):
            what = "returned" if node.op == "output" else "written to"
            return f"{part.name} shares memory that is {what}, and is no view"
    return ""


def _tensors_of(node: torch.fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("example_value")
    return [v for v in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(v, torch.Tensor)]


def _is_data(node: torch.fx.Node) -> bool:
    return node.target is getattr and node.args[1] == "data"


def _overlapping(node: torch.fx.Node) -> str:
    """Eager refuses to write where it reads the same memory seen otherwise, or writes in an order of its own."""
    if not is_mutating(node):
        return ""
    named = node.kwargs.get("out")
    target = named if named is not None else node.args[0] if node.args else None
    if isinstance(target, (list, tuple)):
        return _overlapping_in_a_row(node, target)
    if _is_normalisation(node):
        return _overlapping_statistics(node)
    into = _fake_of(target)
    if into is None:
        return ""
    if overlaps(into):
        return "writes to memory that it sees twice"
    if named is not None and named in node.args and not _goes_by_element(node):
        return "writes where it reads, in an order of its own"
    storage = storage_of(into)
    into = at_hand(into)
    if into._has_symbolic_sizes_strides:
        return ""
    into = _written_part(node, into)
    for other in node.all_input_nodes:
        read = _fake_of(other)
        if read is None or storage_of(read) != storage or (other is target and not _is_given_to_itself(node)):
            continue
        read = at_hand(read)
        if read._has_symbolic_sizes_strides:
            continue
        apart = is_apart(read, into)
        if not apart and not is_same_place(read, into):
            return "writes where it reads the same memory seen otherwise"
        if not apart and named is not None and not _goes_by_element(node):
            return "writes where it reads, in an order of its own"
    return ""


def _overlapping_in_a_row(node: torch.fx.Node, targets: Sequence[Any]) -> str:
    """Of a list, eager writes one after another; a functional operator reads all of them first."""
    written = [(n, t) for n, a in enumerate(targets) if (t := _fake_of(a)) is not None]
    read: list[tuple[int, torch.Tensor]] = []
    for argument in (*node.args, *node.kwargs.values()):
        if argument is targets:
            continue
        items = list(enumerate(argument)) if isinstance(argument, (list, tuple)) else [(-1, argument)]
        read += [(n, t) for n, a in items if (t := _fake_of(a)) is not None]
    for n, into in written:
        if overlaps(into):
            return "writes to memory that it sees twice"
        others = [(m, t) for m, t in (*written, *read) if t is not into or m != n]
        shared = [(m, t) for m, t in others if storage_of(t) == storage_of(into) and not is_apart(into, t)]
        if any(m != n or not is_same_place(at_hand(into), at_hand(t)) for m, t in shared):
            return "writes to memory that it reads for another tensor of its list"
    return ""


def _goes_by_element(node: torch.fx.Node) -> bool:
    """Whether each element that an operator writes depends on the elements at its own place only."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "").partition(".")[0]
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else [getattr(packet, o) for o in packet.overloads()]
    return any(torch.Tag.pointwise in o.tags for o in overloads)


def _is_given_to_itself(node: torch.fx.Node) -> bool:
    """Whether an assignment to an item reads what it writes to: eager fills the part with one element, and copies others."""
    return node.target in (operator.setitem, "__setitem__") and node.args[2] is node.args[0]


def _written_part(node: torch.fx.Node, into: torch.Tensor) -> torch.Tensor:
    """What an assignment to an item writes to: the part that its index names, where that is a view."""
    if node.target not in (operator.setitem, "__setitem__"):
        return into
    index: Any = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if not all(type(i) in (int, slice, type(None), type(...)) for i in index):
        return into
    if any(isinstance(v, torch.fx.Node) for i in index if isinstance(i, slice) for v in (i.start, i.stop, i.step)):
        return into
    mode = into.fake_mode if isinstance(into, FakeTensor) else contextlib.nullcontext()
    with mode, torch.no_grad():
        part: torch.Tensor = into.detach()[index]
    return part


def _miscast(node: torch.fx.Node) -> str:
    """Eager refuses to write what its target cannot hold, or to order complex numbers; fake tensors do not, and unread nodes are dropped."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "").partition(".")[0]
    values = [_fake_of(a) if isinstance(a, torch.fx.Node) else a for a in node.args]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if name.strip("_") in _ORDERING and any(t.is_complex() for t in tensors):
        return "orders complex numbers"
    into = _fake_of(node.args[0]) if node.args else None
    written = name.removesuffix("_") if name.endswith("_") else name.removeprefix("i")
    if into is None or name == written or written not in _PROMOTING:
        return ""
    fractions = written in _DIVIDING and not node.kwargs.get("rounding_mode")
    for other in (v for v in values[1:] if isinstance(v, (torch.Tensor, bool, int, float, complex))):
        wide = torch.result_type(into, other)
        if fractions and not (wide.is_floating_point or wide.is_complex):
            wide = torch.get_default_dtype()
        if not torch.can_cast(wide, into.dtype):
            return "writes what its target cannot hold"
    return ""


def _is_normalisation(node: torch.fx.Node) -> bool:
    """Whether a node writes to its second and third argument only: running statistics."""
    return getattr(node.target, "__name__", "") in ("batch_norm", "instance_norm")


def _overlapping_statistics(node: torch.fx.Node) -> str:
    """Eager writes running statistics before it has read all else."""
    named = [node.kwargs.get(name) for name in ("running_mean", "running_var")]
    statistics = [s for a in (*node.args[1:3], *named) if (s := _fake_of(a)) is not None]
    given = [r for a in (*node.args, *node.kwargs.values()) if (r := _fake_of(a)) is not None]
    for into in statistics:
        if overlaps(into):
            return "writes to memory that it sees twice"
        if sum(storage_of(r) == storage_of(into) and not is_apart(r, into) for r in given) > 1:
            return "writes running statistics where it reads something else"
    return ""


def _fake_of(node: Any) -> torch.Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _straying(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> str:
    """``as_strided`` sees what its tensor does not: eager writes and reads there, a functional graph knows the tensor only."""
    reads = [(n, seen) for n in graph.graph.nodes if is_as_strided(n) and (seen := _fake_of(n)) is not None]
    if not reads:
        return ""
    # Seen past its end, the storage of a fake tensor grows: what was first made over it tells how much there really is.
    first = {storage_of(v): v for v in reversed(list(_values(graph))) if isinstance(v, torch.Tensor)}
    given = {storage_of(i.fake) for i in inputs if isinstance(i.fake, torch.Tensor)}
    for node, seen in reads:
        made = first[storage_of(seen)]
        if storage_of(seen) in given or seen._has_symbolic_sizes_strides or made._has_symbolic_sizes_strides:
            continue
        if end_of(seen) > end_of(made):
            return f"{node.name} sees more than the memory that was made for it"
    writes = any(is_mutating(n) for n in graph.graph.nodes)
    for i in inputs:
        if not isinstance(i.real, torch.Tensor) or not isinstance(i.fake, torch.Tensor):
            continue
        for node, seen in reads:
            if storage_of(seen) != storage_of(i.fake):
                continue
            if seen._has_symbolic_sizes_strides or end_of(seen) > i.real.untyped_storage().nbytes():
                return f"{node.name} sees more than the memory of {i.name}"
            inside = start_of(i.real) <= start_of(seen) and end_of(seen) <= end_of(i.real) and is_dense(i.real)
            if writes and not inside:
                return f"{node.name} sees memory beside {i.name}, and something is written to"
    return ""


def reads_objects(graph: torch.fx.GraphModule) -> str:
    """Why a graph cannot be traced before Python objects were changed as the frame changes them; empty when it can."""
    for node in graph.graph.nodes:
        if isinstance(node.target, InGraph) and node.target.is_python:
            return f"{node.name} runs Python of the user's, which may read objects that the frame changes"
    return ""


def _strange(real: torch.Tensor, *, trains: bool) -> str:
    if type(real) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return f"a {type(real).__name__}, a tensor subclass"
    if real.layout != torch.strided or real.is_quantized or real.is_meta or real.is_mkldnn:
        return "not a plain strided tensor"
    if trains and real.is_inference():
        return "an inference tensor, which may not be saved for a backward"
    if real.is_conj() or real.is_neg():
        return "a lazily conjugated or negated view"
    if real._base is not None and storage_of(real._base) != storage_of(real):
        return "a view that was given other memory than what it is a view of"
    return ""


def as_it_came(i: GraphInput) -> torch.Tensor:
    """A tensor that looks as an input did before the traced code gave it another layout; made in the fake mode that is in force."""
    shape, stride = (i.real.shape, i.real.stride()) if i.came is None else i.came[:2]
    return torch.empty_strided(tuple(shape), tuple(stride), dtype=i.real.dtype, device=i.real.device)


def is_reshaped(fake: torch.Tensor, real: Any) -> bool:
    """Whether tracing changed an input's sizes, strides or offset (``t_``, ``unsqueeze_``); of symbols, what they are in this call tells."""
    if not isinstance(real, torch.Tensor):
        return False
    if fake.layout != real.layout or fake.ndim != real.ndim:
        return True
    pairs = [
        *zip(fake.shape, real.shape, strict=True),
        *zip(fake.stride(), real.stride(), strict=True),
        (fake.storage_offset(), real.storage_offset()),
    ]
    return any(here_of(a) not in (None, b) for a, b in pairs)


def _unfit(node: torch.fx.Node) -> str:
    if node.op == "get_attr":
        return "is held by the graph, not passed to it"
    if node.op == "call_module":
        return "calls a module"
    if isinstance(node.target, InGraph) and node.target.changes_state:
        return node.target.effect
    name = str(node.target) if node.op == "call_method" else ""
    if node.op == "call_function" and node.target in (getattr, setattr) and len(node.args) > 1:
        name = str(node.args[1])
    if name in _CHANGES_MORE_THAN_DATA:
        return f"uses .{name}, which changes more than data"
    if node.op == "call_function" and getattr(node.target, "__module__", "") == "torch.autograd":
        return "computes gradients inside the graph"
    value = node.meta.get("example_value")
    for v in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(v, torch.Tensor) and (v.layout != torch.strided or v.is_quantized):
            return "makes a sparse or quantised tensor"
    return ""


def offset_guards(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> tuple[SharesMemory, ...]:
    """Where inputs that ``as_strided`` is called on start in their storage, and how much it holds: that counts, not the tensor itself."""
    reach: dict[int, int] = {}
    for node in graph.graph.nodes:
        seen = node.meta.get("example_value")
        if is_as_strided(node) and isinstance(seen, torch.Tensor) and not seen._has_symbolic_sizes_strides:
            storage = storage_of(seen)
            reach[storage] = max(reach.get(storage, 0), end_of(seen))
    placed = [i for i in inputs if isinstance(i.real, torch.Tensor) and isinstance(i.fake, torch.Tensor)]
    return tuple(
        SharesMemory(i.origin, (), (int(i.real.storage_offset()) * i.real.element_size(),), reach[storage_of(i.fake)])
        for i in placed
        if storage_of(i.fake) in reach
    )


def is_as_strided(node: torch.fx.Node) -> bool:
    """Whether a node sees memory by place, past the tensor that it is given."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return name.startswith("as_strided")


_LAYOUTS_IN_PLACE = frozenset(("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_"))


def is_layout_in_place(n: torch.fx.Node) -> bool:
    """Whether a traced node changes sizes or strides of a tensor in place."""
    return name_of(n) in _LAYOUTS_IN_PLACE and isinstance(n.args[0], torch.fx.Node)


def name_of(n: torch.fx.Node) -> str:
    """The method, or the operator without its overload."""
    return str(n.target) if n.op == "call_method" else getattr(n.target, "__name__", "").partition(".")[0]


def with_grad_mode(graph: torch.fx.GraphModule, *, is_on: bool) -> Iterator[tuple[torch.fx.Node, bool]]:
    """All nodes but switches of grad mode, each with whether it is on there; ``is_on``: where the graph begins."""
    for node in graph.graph.nodes:
        if node.target in GRAD_MODE:
            is_on = node.args[:1] != (False,)
        else:
            yield node, is_on


def laid_out_in_grad_mode(graph: torch.fx.GraphModule, *, is_on: bool) -> set[int]:
    """Positions of inputs whose layout an operator changes in place in grad mode."""
    changed = [
        _fake_of(node.args[0]) for node, on in with_grad_mode(graph, is_on=is_on) if on and is_layout_in_place(node)
    ]
    inputs = [n.meta.get("example_value") for n in graph.graph.nodes if n.op == "placeholder"] if changed else []
    return {k for k, given in enumerate(inputs) if any(given is c for c in changed)}


def read_since_written(graph: torch.fx.GraphModule, *, is_on: bool) -> frozenset[int]:
    """Positions of inputs whose history autograd looks at after the last write to their memory."""
    places = {n: k for k, n in enumerate(n for n in graph.graph.nodes if n.op == "placeholder")}
    found: dict[int, int] = {}
    for node, on in with_grad_mode(graph, is_on=is_on):
        if is_mutating(node):
            touched = {storage_of(t) for a in node.all_input_nodes for t in _tensors_of(a)}
            found = {k: storage for k, storage in found.items() if storage not in touched}
        elif on and any(t.requires_grad for t in _tensors_of(node)):
            read = (a for a in node.all_input_nodes if a in places)
            found |= {places[a]: storage_of(t) for a in read for t in _tensors_of(a)}
    return frozenset(found)


def is_mutating(node: torch.fx.Node) -> bool:
    """Whether a traced node may write to a tensor that it is given. Errs towards yes."""
    if "out" in node.kwargs or node.kwargs.get("inplace") is True:
        return True
    if node.op == "call_method":
        name = str(node.target)
        if name.endswith("__"):
            return name == "__setitem__" or (
                name.startswith("__i") and name not in ("__invert__", "__index__", "__int__")
            )
        return name.endswith("_")
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    name = getattr(node.target, "__name__", "")
    if getattr(node.target, "__module__", "") == "_operator":
        return name in ("setitem", "delitem") or (
            name[:1] == "i" and name not in ("invert", "inv", "index", "is_", "is_not", "itemgetter", "indexOf")
        )
    if any(a is True for a in node.args) and "inplace" in getattr(
        getattr(node.target, "__code__", None), "co_varnames", ()
    ):
        return True
    return (name.endswith("_") and not name.endswith("__")) or name in ("batch_norm", "instance_norm")


def facts(plan: Plan) -> tuple[ValueFacts, ...]:
    """The analysis in words, inputs first."""
    rows = [ValueFacts(i.name, "input", _input_facts(i)) for i in plan.inputs]
    return (*rows, *(ValueFacts(f"output {n}", "output", (_fact(plan, o),)) for n, o in enumerate(plan.outputs)))


def _input_facts(i: InputPlan) -> tuple[str, ...]:
    data = ("data mutated",) if i.written else ()
    return (*data, "layout mutated") if i.layout is not None else data


def _fact(plan: Plan, output: OutputPlan) -> str:
    match output.kind:
        case "input":
            return f"is input {plan.inputs[output.index].name} itself"
        case "alias of input":
            return f"alias of input {plan.inputs[output.index].name}"
        case "alias of result":
            return f"alias of {output.name}, an intermediate"
        case "root":
            return "no view, over the memory of an input or intermediate"
        case "alias of root":
            return "view of a tensor that is no view, over the memory of an input or intermediate"
        case "constant":
            return "constant"
        case "result":
            return "fresh"
