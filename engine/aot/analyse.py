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
    end_byte,
    has_internal_overlap,
    is_dense,
    is_disjoint,
    is_same_view,
    size_hint,
    start_byte,
    storage_id,
    with_hint_sizes,
)
from engine.ir.frame import GraphInput
from engine.ir.in_graph import GraphCallable
from engine.ir.plan import AotMetadata, InputAliasInfo, OutputAliasInfo
from engine.ir.relation_guard import SharedStorage
from engine.records.aot import ValueFacts

GRAD_MODE_CALLS = (torch._C._set_grad_enabled, torch.set_grad_enabled)
"""Calls that switch gradients on or off from inside a graph."""

_UNSUPPORTED_ATTRS = frozenset(
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
_TRUE_DIVISION_OPS = frozenset(("div", "divide", "true_divide", "truediv"))
"""Those of them that give fractions, of integers too."""

_COMPARISON_OPS = frozenset(
    "gt lt ge le greater less greater_equal less_equal maximum minimum fmax fmin clamp clip".split()
)
"""Operators that ask which of two numbers is larger."""


_RANDOM_NAME_PARTS = (
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


def may_draw_random(node: torch.fx.Node) -> bool:
    """Whether a traced node may draw random numbers. Errs towards yes."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", str(node.target))
    return any(d in name for d in _RANDOM_NAME_PARTS)


def output_args(graph: torch.fx.Graph) -> tuple[Any, ...]:
    """What the output node returns, as a flat tuple."""
    returned = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)


def needs_autograd(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> bool:
    """Whether autograd must see this call: under grad mode an input requires grad, or something made inside does."""
    if any(n.kwargs.get("requires_grad") is True for n in graph.graph.nodes):
        return True
    switched_on = any(n.target in GRAD_MODE_CALLS and n.args[:1] != (False,) for n in graph.graph.nodes)
    # Without grad mode nothing made from an input requires grad, though fake views may say so.
    if not torch.is_grad_enabled() and not switched_on:
        return False
    return any(isinstance(i.example_value, torch.Tensor) and i.example_value.requires_grad for i in inputs) or any(
        isinstance(v, torch.Tensor) and v.requires_grad for v in flat_example_values(graph)
    )


def flat_example_values(graph: torch.fx.GraphModule) -> Iterator[Any]:
    for node in graph.graph.nodes:
        value = node.meta.get("example_value")
        yield from value if isinstance(value, (tuple, list)) else (value,)


def why_not_functional(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput], *, trains: bool) -> str:
    """Why this graph must run as traced; empty when nothing stands against making it functional."""
    for i in inputs:
        if isinstance(i.example_value, torch.Tensor) and (reason := check_input_tensor(i.example_value, trains=trains)):
            return f"{i.name} is {reason}"
        if isinstance(i.example_value, torch.Generator):
            return f"{i.name} is a generator of random numbers"
        if (
            isinstance(i.example_value, torch.Tensor)
            and i.example_value.requires_grad
            and is_layout_mutated(i.fake, i.example_value)
        ):
            return f"the shape or layout of {i.name}, which requires grad, is changed in place"
    for node in graph.graph.nodes:
        if reason := check_unsupported_op(node) or check_overlapping_write(node) or check_dtype_errors(node):
            return f"{node.name} {reason}"
    whole = (
        check_untracked_writes,
        check_no_grad_views,
        check_as_strided_bounds,
        check_bool_alias_write,
        check_inference_tensor_views,
        check_unsafe_views,
    )
    return next((reason for rule in whole if (reason := rule(graph, inputs))), "")


def check_inference_tensor_views(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> str:
    """Which views of inference tensors count writes, and may be written to, fake tensors do not know, nor can a view be made so again."""
    if torch.is_inference_mode_enabled():
        return ""
    given = [i for i in inputs if isinstance(i.example_value, torch.Tensor) and i.example_value.is_inference()]
    storages = {storage_id(i.fake) for i in given if isinstance(i.fake, torch.Tensor)}
    for node in output_args(graph.graph) if storages else ():
        seen = example_tensor(node)
        if seen is not None and storage_id(seen) in storages and all(seen is not i.fake for i in given):
            return f"{node.name} is another tensor over the memory of an inference tensor"
    return ""


def check_bool_alias_write(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> str:
    """Memory seen as truth values and as numbers: eager writes any number there, a functional graph gives back 0 or 1."""
    tensors = [v for v in (*(i.fake for i in inputs), *flat_example_values(graph)) if isinstance(v, torch.Tensor)]
    truths = {storage_id(v) for v in tensors if v.dtype is torch.bool}
    both = truths & {storage_id(v) for v in tensors if v.dtype is not torch.bool}
    for node in graph.graph.nodes if both else ():
        if may_mutate(node) and any(
            storage_id(v) in both for a in node.all_input_nodes if (v := example_tensor(a)) is not None
        ):
            return f"{node.name} writes to memory that is seen as truth values and as numbers"
    return ""


def check_untracked_writes(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> str:
    """Where gradients are needed, what is written or seen past autograd's own account of views is left to eager."""
    if not torch.is_grad_enabled():
        return ""
    values = [*(i.fake for i in inputs), *flat_example_values(graph)]
    needing = {storage_id(v) for v in values if isinstance(v, torch.Tensor) and v.requires_grad}
    retyped: set[int] = set()
    for node in graph.graph.nodes:
        seen = example_tensor(node.args[0]) if needing and node.args else None
        if seen is None or storage_id(seen) not in needing:
            continue
        if id(seen) in retyped and may_mutate(node):
            return f"{node.name} writes to a view of another type, whose history autograd keeps apart"
        made = example_tensor(node)
        if (
            made is not None
            and made.dtype != seen.dtype
            and not made._is_view()
            and storage_id(made) == storage_id(seen)
        ):
            retyped.add(id(made))
        if is_as_strided(node):
            return f"{node.name} sees memory by place, and gradients are needed through it"
        detached = example_tensor(node) if "detach" in str(node.target) or is_data_access(node) else None
        if detached is not None and detached._version != node.meta.get("version", 0):
            return f"the memory of {node.name} is written to, and gradients are needed through what it is detached from"
        if may_mutate(node) and not seen.requires_grad:
            return f"{node.name} writes past autograd to what needs gradients"
    return ""


def check_no_grad_views(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> str:
    """Autograd refuses a backward through a view made under ``no_grad`` of memory that is written to in grad mode later."""
    unseen = set[int]()
    for node, is_on in nodes_with_grad_mode(graph, is_on=torch.is_grad_enabled()):
        seen = example_tensor(node.args[0]) if node.args else None
        if seen is None:
            continue
        if is_on and may_mutate(node) and storage_id(seen) in unseen and seen.requires_grad:
            return f"{node.name} writes in grad mode to memory that was viewed under no_grad"
        if not is_on and not may_mutate(node):
            made = node.meta.get("example_value")
            views = [v for v in (made if isinstance(made, (tuple, list)) else (made,)) if isinstance(v, torch.Tensor)]
            unseen.update(storage_id(v) for v in views if v._is_view() and storage_id(v) == storage_id(seen))
    return ""


def check_unsafe_views(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> str:
    """Results that share memory with what they were made from and are no views of it (``unsafe_chunk``): a functional graph makes new ones."""
    shared: dict[int, torch.fx.Node] = {}
    for node in graph.graph.nodes:
        # A view of another type is none to autograd either, but its operator says that it shares.
        if "unsafe" not in (str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")):
            continue
        given = [t for a in node.all_input_nodes for t in example_tensors(a)]
        for made in example_tensors(node):
            if made._is_view() or made.is_inference() or any(made is t for t in given):
                continue
            if (storage := storage_id(made)) in map(storage_id, given):
                shared.setdefault(storage, node)
    for node in graph.graph.nodes if shared else ():
        touched = [t for a in node.all_input_nodes for t in example_tensors(a)]
        part = next((n for t in touched if (n := shared.get(storage_id(t))) is not None), None)
        if part is not None and (node.op == "output" or may_mutate(node)):
            what = "returned" if node.op == "output" else "written to"
            return f"{part.name} shares memory that is {what}, and is no view"
    return ""


def example_tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("example_value")
    return [v for v in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(v, torch.Tensor)]


def is_data_access(node: torch.fx.Node) -> bool:
    return node.target is getattr and node.args[1] == "data"


def check_overlapping_write(node: torch.fx.Node) -> str:
    """Eager refuses to write where it reads the same memory seen otherwise, or writes in an order of its own."""
    if not may_mutate(node):
        return ""
    named = node.kwargs.get("out")
    target = named if named is not None else node.args[0] if node.args else None
    if isinstance(target, (list, tuple)):
        return _check_tensor_list_write(node, target)
    if _updates_running_stats(node):
        return _check_running_stats_write(node)
    into = example_tensor(target)
    if into is None:
        return ""
    if has_internal_overlap(into):
        return "writes to memory that it sees twice"
    if named is not None and named in node.args and not _is_pointwise(node):
        return "writes where it reads, in an order of its own"
    storage = storage_id(into)
    into = with_hint_sizes(into)
    if into._has_symbolic_sizes_strides:
        return ""
    into = _assigned_slice(node, into)
    for other in node.all_input_nodes:
        read = example_tensor(other)
        if read is None or storage_id(read) != storage or (other is target and not _assigns_to_itself(node)):
            continue
        read = with_hint_sizes(read)
        if read._has_symbolic_sizes_strides:
            continue
        apart = is_disjoint(read, into)
        if not apart and not is_same_view(read, into):
            return "writes where it reads the same memory seen otherwise"
        if not apart and named is not None and not _is_pointwise(node):
            return "writes where it reads, in an order of its own"
    return ""


def _check_tensor_list_write(node: torch.fx.Node, targets: Sequence[Any]) -> str:
    """Of a list, eager writes one after another; a functional operator reads all of them first."""
    written = [(n, t) for n, a in enumerate(targets) if (t := example_tensor(a)) is not None]
    read: list[tuple[int, torch.Tensor]] = []
    for argument in (*node.args, *node.kwargs.values()):
        if argument is targets:
            continue
        items = list(enumerate(argument)) if isinstance(argument, (list, tuple)) else [(-1, argument)]
        read += [(n, t) for n, a in items if (t := example_tensor(a)) is not None]
    for n, into in written:
        if has_internal_overlap(into):
            return "writes to memory that it sees twice"
        others = [(m, t) for m, t in (*written, *read) if t is not into or m != n]
        shared = [(m, t) for m, t in others if storage_id(t) == storage_id(into) and not is_disjoint(into, t)]
        if any(m != n or not is_same_view(with_hint_sizes(into), with_hint_sizes(t)) for m, t in shared):
            return "writes to memory that it reads for another tensor of its list"
    return ""


def _is_pointwise(node: torch.fx.Node) -> bool:
    """Whether each element that an operator writes depends on the elements at its own place only."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "").partition(".")[0]
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else [getattr(packet, o) for o in packet.overloads()]
    return any(torch.Tag.pointwise in o.tags for o in overloads)


def _assigns_to_itself(node: torch.fx.Node) -> bool:
    """Whether an assignment to an item reads what it writes to: eager fills the part with one element, and copies others."""
    return node.target in (operator.setitem, "__setitem__") and node.args[2] is node.args[0]


def _assigned_slice(node: torch.fx.Node, into: torch.Tensor) -> torch.Tensor:
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


def check_dtype_errors(node: torch.fx.Node) -> str:
    """Eager refuses to write what its target cannot hold, or to order complex numbers; fake tensors do not, and unread nodes are dropped."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "").partition(".")[0]
    values = [example_tensor(a) if isinstance(a, torch.fx.Node) else a for a in node.args]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if name.strip("_") in _COMPARISON_OPS and any(t.is_complex() for t in tensors):
        return "orders complex numbers"
    into = example_tensor(node.args[0]) if node.args else None
    written = name.removesuffix("_") if name.endswith("_") else name.removeprefix("i")
    if into is None or name == written or written not in _PROMOTING:
        return ""
    fractions = written in _TRUE_DIVISION_OPS and not node.kwargs.get("rounding_mode")
    for other in (v for v in values[1:] if isinstance(v, (torch.Tensor, bool, int, float, complex))):
        wide = torch.result_type(into, other)
        if fractions and not (wide.is_floating_point or wide.is_complex):
            wide = torch.get_default_dtype()
        if not torch.can_cast(wide, into.dtype):
            return "writes what its target cannot hold"
    return ""


def _updates_running_stats(node: torch.fx.Node) -> bool:
    """Whether a node writes to its second and third argument only: running statistics."""
    return getattr(node.target, "__name__", "") in ("batch_norm", "instance_norm")


def _check_running_stats_write(node: torch.fx.Node) -> str:
    """Eager writes running statistics before it has read all else."""
    named = [node.kwargs.get(name) for name in ("running_mean", "running_var")]
    statistics = [s for a in (*node.args[1:3], *named) if (s := example_tensor(a)) is not None]
    given = [r for a in (*node.args, *node.kwargs.values()) if (r := example_tensor(a)) is not None]
    for into in statistics:
        if has_internal_overlap(into):
            return "writes to memory that it sees twice"
        if sum(storage_id(r) == storage_id(into) and not is_disjoint(r, into) for r in given) > 1:
            return "writes running statistics where it reads something else"
    return ""


def example_tensor(node: Any) -> torch.Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def check_as_strided_bounds(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> str:
    """``as_strided`` sees what its tensor does not: eager writes and reads there, a functional graph knows the tensor only."""
    reads = [(n, seen) for n in graph.graph.nodes if is_as_strided(n) and (seen := example_tensor(n)) is not None]
    if not reads:
        return ""
    # Seen past its end, the storage of a fake tensor grows: what was first made over it tells how much there really is.
    first = {storage_id(v): v for v in reversed(list(flat_example_values(graph))) if isinstance(v, torch.Tensor)}
    given = {storage_id(i.fake) for i in inputs if isinstance(i.fake, torch.Tensor)}
    for node, seen in reads:
        made = first[storage_id(seen)]
        if storage_id(seen) in given or seen._has_symbolic_sizes_strides or made._has_symbolic_sizes_strides:
            continue
        if end_byte(seen) > end_byte(made):
            return f"{node.name} sees more than the memory that was made for it"
    writes = any(may_mutate(n) for n in graph.graph.nodes)
    for i in inputs:
        if not isinstance(i.example_value, torch.Tensor) or not isinstance(i.fake, torch.Tensor):
            continue
        for node, seen in reads:
            if storage_id(seen) != storage_id(i.fake):
                continue
            if seen._has_symbolic_sizes_strides or end_byte(seen) > i.example_value.untyped_storage().nbytes():
                return f"{node.name} sees more than the memory of {i.name}"
            inside = (
                start_byte(i.example_value) <= start_byte(seen)
                and end_byte(seen) <= end_byte(i.example_value)
                and is_dense(i.example_value)
            )
            if writes and not inside:
                return f"{node.name} sees memory beside {i.name}, and something is written to"
    return ""


def check_python_callables(graph: torch.fx.GraphModule) -> str:
    """Why a graph cannot be traced before Python objects were changed as the frame changes them; empty when it can."""
    for node in graph.graph.nodes:
        if isinstance(node.target, GraphCallable) and node.target.runs_user_python:
            return f"{node.name} runs Python of the user's, which may read objects that the frame changes"
    return ""


def check_input_tensor(real: torch.Tensor, *, trains: bool) -> str:
    if type(real) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return f"a {type(real).__name__}, a tensor subclass"
    if real.layout != torch.strided or real.is_quantized or real.is_meta or real.is_mkldnn:
        return "not a plain strided tensor"
    if trains and real.is_inference():
        return "an inference tensor, which may not be saved for a backward"
    if real.is_conj() or real.is_neg():
        return "a lazily conjugated or negated view"
    if real._base is not None and storage_id(real._base) != storage_id(real):
        return "a view that was given other memory than what it is a view of"
    return ""


def original_fake(i: GraphInput) -> torch.Tensor:
    """A tensor that looks as an input did before the traced code gave it another layout; made in the fake mode that is in force."""
    shape, stride = (
        (i.example_value.shape, i.example_value.stride()) if i.original_layout is None else i.original_layout[:2]
    )
    return torch.empty_strided(tuple(shape), tuple(stride), dtype=i.example_value.dtype, device=i.example_value.device)


def is_layout_mutated(fake: torch.Tensor, real: Any) -> bool:
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
    return any(size_hint(a) not in (None, b) for a, b in pairs)


def check_unsupported_op(node: torch.fx.Node) -> str:
    if node.op == "get_attr":
        return "is held by the graph, not passed to it"
    if node.op == "call_module":
        return "calls a module"
    if isinstance(node.target, GraphCallable) and node.target.changes_state:
        return node.target.effect_description
    name = str(node.target) if node.op == "call_method" else ""
    if node.op == "call_function" and node.target in (getattr, setattr) and len(node.args) > 1:
        name = str(node.args[1])
    if name in _UNSUPPORTED_ATTRS:
        return f"uses .{name}, which changes more than data"
    if node.op == "call_function" and getattr(node.target, "__module__", "") == "torch.autograd":
        return "computes gradients inside the graph"
    value = node.meta.get("example_value")
    for v in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(v, torch.Tensor) and (v.layout != torch.strided or v.is_quantized):
            return "makes a sparse or quantised tensor"
    return ""


def storage_offset_guards(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> tuple[SharedStorage, ...]:
    """Where inputs that ``as_strided`` is called on start in their storage, and how much it holds: that counts, not the tensor itself."""
    reach: dict[int, int] = {}
    for node in graph.graph.nodes:
        seen = node.meta.get("example_value")
        if is_as_strided(node) and isinstance(seen, torch.Tensor) and not seen._has_symbolic_sizes_strides:
            storage = storage_id(seen)
            reach[storage] = max(reach.get(storage, 0), end_byte(seen))
    placed = [i for i in inputs if isinstance(i.example_value, torch.Tensor) and isinstance(i.fake, torch.Tensor)]
    return tuple(
        SharedStorage(
            i.source,
            (),
            (int(i.example_value.storage_offset()) * i.example_value.element_size(),),
            reach[storage_id(i.fake)],
        )
        for i in placed
        if storage_id(i.fake) in reach
    )


def is_as_strided(node: torch.fx.Node) -> bool:
    """Whether a node sees memory by place, past the tensor that it is given."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return name.startswith("as_strided")


_INPLACE_LAYOUT_OPS = frozenset(("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_"))


def mutates_layout(n: torch.fx.Node) -> bool:
    """Whether a traced node changes sizes or strides of a tensor in place."""
    return op_name(n) in _INPLACE_LAYOUT_OPS and isinstance(n.args[0], torch.fx.Node)


def op_name(n: torch.fx.Node) -> str:
    """The method, or the operator without its overload."""
    return str(n.target) if n.op == "call_method" else getattr(n.target, "__name__", "").partition(".")[0]


def nodes_with_grad_mode(graph: torch.fx.GraphModule, *, is_on: bool) -> Iterator[tuple[torch.fx.Node, bool]]:
    """All nodes but switches of grad mode, each with whether it is on there; ``is_on``: where the graph begins."""
    for node in graph.graph.nodes:
        if node.target in GRAD_MODE_CALLS:
            is_on = node.args[:1] != (False,)
        else:
            yield node, is_on


def inputs_with_layout_mutated_in_grad_mode(graph: torch.fx.GraphModule, *, is_on: bool) -> set[int]:
    """Positions of inputs whose layout an operator changes in place in grad mode."""
    changed = [
        example_tensor(node.args[0])
        for node, on in nodes_with_grad_mode(graph, is_on=is_on)
        if on and mutates_layout(node)
    ]
    inputs = [n.meta.get("example_value") for n in graph.graph.nodes if n.op == "placeholder"] if changed else []
    return {k for k, given in enumerate(inputs) if any(given is c for c in changed)}


def inputs_read_after_last_write(graph: torch.fx.GraphModule, *, is_on: bool) -> frozenset[int]:
    """Positions of inputs whose history autograd looks at after the last write to their memory."""
    places = {n: k for k, n in enumerate(n for n in graph.graph.nodes if n.op == "placeholder")}
    found: dict[int, int] = {}
    for node, on in nodes_with_grad_mode(graph, is_on=is_on):
        if may_mutate(node):
            touched = {storage_id(t) for a in node.all_input_nodes for t in example_tensors(a)}
            found = {k: storage for k, storage in found.items() if storage not in touched}
        elif on and any(t.requires_grad for t in example_tensors(node)):
            read = (a for a in node.all_input_nodes if a in places)
            found |= {places[a]: storage_id(t) for a in read for t in example_tensors(a)}
    return frozenset(found)


def may_mutate(node: torch.fx.Node) -> bool:
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


def metadata_to_records(plan: AotMetadata) -> tuple[ValueFacts, ...]:
    """The analysis in words, inputs first."""
    rows = [ValueFacts(i.name, "input", _input_facts(i)) for i in plan.inputs]
    return (*rows, *(ValueFacts(f"output {n}", "output", (_output_fact(plan, o),)) for n, o in enumerate(plan.outputs)))


def _input_facts(i: InputAliasInfo) -> tuple[str, ...]:
    data = ("data mutated",) if i.is_mutated else ()
    return (*data, "layout mutated") if i.new_layout is not None else data


def _output_fact(plan: AotMetadata, output: OutputAliasInfo) -> str:
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
