"""The graph under construction: nodes with fake results, inputs made when first needed, outputs when the code needs them."""

from __future__ import annotations

import contextlib
import keyword
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
import torch.fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from engine.ir.frame import ConstSlot, GraphInput, TracedGraph
from engine.ir.graph import CHECKPOINT_KEY, CHECKPOINT_POLICY_KEY, NodeProvenance, set_provenance
from engine.ir.in_graph import GraphCallable
from engine.ir.origin import Source
from engine.ir.unbacked import has_unbacked_symbols
from engine.trace.refused_types import check_dtypes
from engine.trace.signals import SkipFrame, Unsupported
from engine.trace.unbacked import data_dependent_break, emit_runtime_asserts, is_unbacked_float
from engine.trace.unwritten import save_fake_metadata
from engine.trace.values.base import Variable, realize

if TYPE_CHECKING:
    from engine.trace.state import Tracer

_DATA_DEPENDENT = (DataDependentOutputException, GuardOnDataDependentSymNode)
_CONSTANTS = (int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


VMAP_META = "mapped"
"""In the metadata of inputs: whether each row of a ``vmap`` has its own."""


class GraphBuilder:
    """Owns the fx graph. Nodes carry the user's span and stack, and their fake value in ``meta["example_value"]``."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.inputs: list[GraphInput] = []
        self._placeholders: dict[Source, torch.fx.Node] = {}
        self._first_op: torch.fx.Node | None = None
        self.tensor_variables: WeakValueDictionary[torch.fx.Node, Variable] = WeakValueDictionary()
        """The one value of each tensor that a node makes, as long as something has it."""
        self.op_count = 0
        """How many nodes compute something."""
        self.submodules: dict[str, torch.fx.GraphModule] = {}
        """Graphs of bodies, by the name under which nodes reach them."""
        self._checkpoint_region: int | None = None
        self._checkpoint_count = 0
        self._sac_policy: Any = None

    def placeholder(self, origin: Source, fake: Any, real: Any) -> torch.fx.Node:
        """The input that reads ``origin``, made at the first call."""
        known = self._placeholders.get(origin)
        if known is not None:
            return known
        name = self._placeholder_name(origin)
        with self.graph.inserting_before(self._first_op) if self._first_op is not None else contextlib.nullcontext():
            node = self.graph.placeholder(name)
        node.target = node.name  # the parameter's name in the graph's code; of two origins it may be the same
        node.meta["example_value"] = fake
        node.meta[VMAP_META] = _is_vmapped(real)
        self._placeholders[origin] = node
        version = fake._version if isinstance(fake, torch.Tensor) and not fake.is_inference() else 0
        self.inputs.append(GraphInput(node.name, origin, fake, real, version))
        return node

    def _placeholder_name(self, origin: Source) -> str:
        text = re.sub(r"L\['(\w+)'\]|G\['(\w+)'\]|C\['(\w+)'\]", lambda m: m[1] or m[2] or m[3], origin.expr)
        text = re.sub(r"\W+", "_", text).strip("_")
        text = text.removeprefix("self_") or "input"
        # fx drops underscores at the ends, calls its module self, and reaches operators through the name torch.
        text = f"self_{text}" if text[0].isdigit() or text.strip("_").lower() in ("torch", "self", "") else text
        return f"{text}_" if keyword.iskeyword(text) else text

    def create_node(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], origin: NodeProvenance
    ) -> torch.fx.Node:
        """Append a node that computes something."""
        node = self.graph.create_node(op, _printable_target(target, args), args, kwargs)
        if self._first_op is None:
            self._first_op = node
        set_provenance(node, origin)
        if self._checkpoint_region is not None:
            node.meta["custom"][CHECKPOINT_KEY] = self._checkpoint_region
            if self._sac_policy is not None:
                node.meta["custom"][CHECKPOINT_POLICY_KEY] = self._sac_policy
        self.op_count += 1
        return node

    @contextlib.contextmanager
    def checkpoint_region(self, policy: Any = None) -> Iterator[None]:
        """Nodes added meanwhile stand in an activation checkpoint; one inside of another is part of it.

        ``policy`` says of each operator whether its result is saved after all (``create_selective_checkpoint_contexts``).
        """
        outer, last = self._checkpoint_region, self._sac_policy
        self._sac_policy = policy if outer is None else last
        if outer is None:
            self._checkpoint_region, self._checkpoint_count = self._checkpoint_count, self._checkpoint_count + 1
        try:
            yield
        finally:
            self._checkpoint_region, self._sac_policy = outer, last

    def add_subgraph(self, name: str, module: torch.fx.GraphModule, origin: NodeProvenance) -> torch.fx.Node:
        """Hold a body's graph; the node that reaches it."""
        number = sum(known.startswith(f"{name}_") for known in self.submodules)
        self.submodules[f"{name}_{number}"] = module
        node = self.create_node("get_attr", f"{name}_{number}", (), {}, origin)
        node.meta["example_value"] = module
        return node

    def to_graph_module(self, class_name: str) -> torch.fx.GraphModule:
        """The graph as a module that holds its bodies."""
        return torch.fx.GraphModule(self.submodules, self.graph, class_name=class_name)

    def erase_last_node(self, node: torch.fx.Node) -> None:
        """Take back the node appended last."""
        if node is self._first_op:
            self._first_op = None
        self.graph.erase_node(node)
        self.op_count -= 1

    def erase_last_input(self, origin: Source) -> None:
        """Take back the input made last, which no node reads."""
        self.graph.erase_node(self._placeholders.pop(origin))
        self.inputs.pop()

    def finish(self, outputs: list[torch.fx.Node]) -> TracedGraph | None:
        """The graph with these outputs as a module, None when it does nothing.

        Raises:
            Unsupported: a tensor made inside a nested graph is used outside it.
        """
        self._check_no_foreign_nodes(outputs)
        self._erase_unused_getitems(set(outputs))
        if not outputs and not self.op_count:
            return None
        self.graph.output(tuple(outputs))
        module = self.to_graph_module("TracedGraph")
        order = {node.name: n for n, node in enumerate(n for n in self.graph.nodes if n.op == "placeholder")}
        inputs = sorted(self.inputs, key=lambda i: order[i.name])
        return TracedGraph(ConstSlot("graph"), module, tuple(inputs))

    def _check_no_foreign_nodes(self, outputs: list[torch.fx.Node]) -> None:
        used = (n for node in self.graph.nodes for n in node.all_input_nodes)
        if any(node.graph is not self.graph for node in (*outputs, *used)):
            raise Unsupported(
                "side-effect", "a tensor leaves the body of a higher-order operation other than as its result"
            )

    def _erase_unused_getitems(self, outputs: set[torch.fx.Node]) -> None:
        for node in reversed(list(self.graph.nodes)):
            if node.op == "call_function" and node.meta.get("is_item") and not node.users and node not in outputs:
                self.graph.erase_node(node)


def _is_vmapped(real: Any) -> bool:
    """Whether a tensor is a row of a ``vmap`` that runs now."""
    while isinstance(real, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(real):
        if torch._C._functorch.is_batchedtensor(real):
            return True
        real = torch._C._functorch.get_unwrapped(real)
    return False


def _printable_target(target: Any, args: tuple[Any, ...]) -> Any:
    """What computes ``target`` in the text that fx writes: a power is written without brackets, and ``-1 ** n`` negates it."""
    is_negated = target is operator.pow and isinstance(args[0], (int, float)) and repr(args[0]).startswith("-")
    return pow if is_negated else target


def emit_node(
    tx: Tracer,
    op: str,
    target: Any,
    args: list[Variable],
    kwargs: dict[str, Variable] | None = None,
    run: Callable[..., Any] | None = None,
) -> Variable:
    """Add a node for ``target`` and return its result as a value; ``run`` evaluates it over fakes (default: the target itself).

    Raises:
        Unsupported: the result's value or size depends on data, or it is of a kind that a graph cannot hold.
        Skip: the operation raises, as it would in Python.
    """
    from engine.trace.values.tensor import TensorVariable

    home = _owning_graph(tx, target, args) if not kwargs else tx.graph
    if home is not tx.graph:
        inside, tx.graph = tx.graph, home
        try:
            return emit_node(tx, op, target, args, None, run)
        finally:
            tx.graph = inside
    _check_not_quantized(target)
    if not isinstance(target, GraphCallable):
        from engine.trace.values.tensor_subclasses import dispatch_torch_function

        by_protocol = dispatch_torch_function(tx, op, target, args, kwargs or {})
        if by_protocol is not None:
            return by_protocol
    if op == "call_method" and target == "new" and len(args) == 2 and realize(tx, args[1]).python_type() is torch.Size:
        target = "new_empty"  # any other tuple, which it is in a graph, holds the elements
    args = _scalarize_sizes(tx, target, [_specialize_symbool(tx, target, a) for a in args])
    kwargs = {k: _specialize_symbool(tx, target, v) for k, v in (kwargs or {}).items()}
    pairs = [_graph_arg(tx, a) for a in args]
    keyword_pairs = {k: _graph_arg(tx, v) for k, v in kwargs.items()}
    node = tx.graph.create_node(
        op, target, tuple(p[0] for p in pairs), {k: p[0] for k, p in keyword_pairs.items()}, tx.node_provenance()
    )
    tx.update_op_in_try_block()
    fakes = [p[1] for p in pairs]
    keyword_fakes = {k: p[1] for k, p in keyword_pairs.items()}
    before = tensor_versions((fakes, keyword_fakes))
    listed = _foreach_targets(target, fakes)
    layouts = save_fake_metadata(target, fakes, keyword_fakes)
    try:
        check_dtypes(target, fakes, keyword_fakes)
        result = evaluate_on_fakes(tx, op, target, fakes, keyword_fakes, run)
    except BaseException as error:
        tx.graph.erase_last_node(node)
        for layout in layouts:
            layout.restore(tx)
        if isinstance(error, SkipFrame) and error.kind == "raises":
            again = _scalarize_list_items(tx, args, kwargs)
            if again is not None:
                return emit_node(tx, op, target, *again, run)
        raise
    bump_custom_op_versions(target, fakes, keyword_fakes)
    for fake in [fake for fake, version in listed if fake._version == version]:  # views of one tensor count each
        torch.autograd.graph.increment_version(fake)
    bump_inference_mode_version(op, target, fakes, keyword_fakes, result, before)
    has_effect = isinstance(target, GraphCallable) and target.changes_state
    changed = has_effect or before is None or result is None or before != tensor_versions((fakes, keyword_fakes))
    for given in (*args, *kwargs.values()):
        # In-place operators return one of their arguments: the same Python object, so the same value.
        value = realize(tx, given)
        if isinstance(value, TensorVariable) and value.fake is result and result is not None:
            node.meta["example_value"] = result
            if not changed:
                tx.graph.erase_last_node(node)
            emit_runtime_asserts(tx)
            return value
    made = wrap_result(tx, node, result, keep=changed)
    emit_runtime_asserts(tx)
    return made


def _owning_graph(tx: Tracer, target: Any, args: list[Variable]) -> GraphBuilder:
    """The graph for a node: of arithmetic on numbers from outside a nested graph the outer one, since its result may outlive the nested one."""
    from engine.trace.values.base import ConstantVariable
    from engine.trace.values.symbolic import SymNodeVariable

    builder = tx.graph
    outer = getattr(builder, "outer", None)
    if outer is None or getattr(target, "__module__", "") != "_operator":
        return builder
    given = [realize(tx, a) for a in args]
    numbers = [v for v in given if isinstance(v, SymNodeVariable)]
    if not numbers or any(v.depends_on_unbacked_float or has_unbacked_symbols(v.sym) for v in numbers):
        return builder
    if not all(isinstance(v, (SymNodeVariable, ConstantVariable)) for v in given):
        return builder
    while outer is not None and all(v.node.graph is not builder.graph for v in numbers):
        builder, outer = outer, getattr(outer, "outer", None)
    return builder


def _check_not_quantized(target: Any) -> None:
    """Fakes do not tell quantised tensors from the floats that they were made of."""
    name = str(target if isinstance(target, str) else getattr(target, "__name__", ""))
    if name.startswith(("quantize_per_", "quantized_", "quantize_dynamic", "_make_per_")):
        raise Unsupported("unsupported-operation", f"{name} makes a quantised tensor")


def _foreach_targets(target: Any, fakes: list[Any]) -> list[tuple[torch.Tensor, int]]:
    """The tensors that a ``_foreach_..._`` operator writes to, which fakes do not count, with their versions."""
    name = getattr(target, "__name__", "").partition(".")[0]
    if (
        not name.startswith("_foreach_")
        or not name.endswith("_")
        or not fakes
        or not isinstance(fakes[0], (list, tuple))
    ):
        return []
    given = [t for a in fakes if isinstance(a, (list, tuple)) for t in a if isinstance(t, torch.Tensor)]
    # What a subclass does to lists is not counted for real tensors either.
    if not all(isinstance(t, FakeTensor) for t in given):
        return []
    return [(t, t._version) for t in fakes[0] if not t.is_inference()]


def bump_custom_op_versions(target: Any, fakes: list[Any], keyword_fakes: dict[str, Any]) -> None:
    """A custom operator's fake need not change what the operator itself changes: its schema tells."""
    overload = (
        target.default
        if isinstance(target, torch._ops.OpOverloadPacket) and "default" in target.overloads()
        else target
    )
    if (
        not isinstance(overload, torch._ops.OpOverload)
        or not overload._schema.is_mutable
        or overload.namespace == "aten"
    ):
        return
    for n, argument in enumerate(overload._schema.arguments):
        given = keyword_fakes.get(argument.name, fakes[n] if n < len(fakes) else None)
        written = argument.alias_info is not None and argument.alias_info.is_write
        for t in given if isinstance(given, (list, tuple)) else (given,):
            if written and isinstance(t, torch.Tensor) and not t.is_inference():
                torch.autograd.graph.increment_version(t)


def bump_inference_mode_version(
    op: str,
    target: Any,
    fakes: list[Any],
    keyword_fakes: dict[str, Any],
    result: Any,
    before: list[tuple[int, bool]] | None,
) -> None:
    """In inference mode fakes do not count what operators that are made of others (``absolute_``) write; real tensors do."""
    if not torch.is_inference_mode_enabled() or not isinstance(result, torch.Tensor) or result.is_inference():
        return
    name = str(target) if op == "call_method" else getattr(target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__") and name != "requires_grad_" and bool(fakes)
    written = keyword_fakes.get("out", fakes[0] if in_place else None)
    if isinstance(written, torch.Tensor) and written is result and before == tensor_versions((fakes, keyword_fakes)):
        torch.autograd.graph.increment_version(written)


def tensor_versions(values: Any) -> list[tuple[int, bool]] | None:
    """Versions of all tensors inside, and whether they require grad; None when one does not count its versions."""
    found: list[tuple[int, bool]] = []
    todo = [values]
    while todo:
        value = todo.pop()
        if isinstance(value, torch.Tensor):
            if value.is_inference():
                return None
            found.append((value._version, value.requires_grad))
        elif isinstance(value, (list, tuple)):
            todo.extend(value)
        elif isinstance(value, dict):
            todo.extend(value.values())
    return found


def evaluate_on_fakes(
    tx: Tracer, op: str, target: Any, args: list[Any], kwargs: dict[str, Any], run: Callable[..., Any] | None = None
) -> Any:
    """The operation over fake tensors; see ``emit`` for what it raises."""
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    try:
        with tx.fake_mode:
            if run is None:
                run, args = (getattr(args[0], target), args[1:]) if op == "call_method" else (target, args)
            by_python = bool(tx.shape_env.var_to_range)
            try:
                return call_on_fakes(run, args, kwargs, by_python=by_python)
            except _DATA_DEPENDENT:
                if by_python:
                    raise
                # Composites in C++ look at values where Python forms need not, and do not see a fake under torch.func's wrappers.
                return call_on_fakes(run, args, kwargs, by_python=True)
    except _DATA_DEPENDENT as error:
        condition = getattr(error, "cond", None)
        raise data_dependent_break(tx, condition, "data-dependent", f"{name} needs the value of a tensor") from error
    except DynamicOutputShapeException as error:
        raise Unsupported("dynamic-output", f"the size of the result of {name} depends on values") from error
    except UnsupportedOperatorException as error:
        raise Unsupported("unsupported-operation", f"{name} cannot be evaluated without real tensors") from error
    except NotImplementedError as error:
        raise Unsupported(
            "unsupported-operation", f"{name} cannot be evaluated without real tensors: {_first_line(error)}"
        ) from error
    except (
        RuntimeError,
        TypeError,
        ValueError,
        IndexError,
        KeyError,
        AttributeError,
        AssertionError,
        ZeroDivisionError,
        OverflowError,
    ) as error:
        if has_unbacked_symbols((args, kwargs)):
            raise Unsupported("data-dependent", f"{name} needs to know a size: {_first_line(error)}") from error
        raise SkipFrame("raises", f"{name} raises {type(error).__name__}: {_first_line(error)}") from error


_MAY_RETURN_INPUT = frozenset(("dropout", "dropout_"))
"""Operators that may give back their operand, of which the Python form makes a copy; that in C++ keeps symbols."""


def call_on_fakes(run: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *, by_python: bool) -> Any:
    """What ``run`` gives; by torch's Python forms of composites where that is asked, as for symbols: those in C++ make plain numbers of them, or fail."""
    by_python = by_python and getattr(run, "__name__", "") not in _MAY_RETURN_INPUT
    with enable_python_dispatcher() if by_python else contextlib.nullcontext():
        return run(*args, **kwargs)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else ""


_SIZE_TAKING_OPS = frozenset(
    "empty expand expand_copy full new_empty new_full new_ones new_zeros ones pad rand randn repeat reshape tile view zeros".split()
)
"""Operations to whose sizes Python gives the number that a tensor of none holds."""


def _scalarize_sizes(tx: Tracer, target: Any, args: list[Variable]) -> list[Variable]:
    """Arguments with numbers for the tensors of one integer that stand where sizes do."""
    name = getattr(target, "__name__", target)
    if name not in _SIZE_TAKING_OPS:
        return args
    first = 0 if name in ("empty", "full", "ones", "rand", "randn", "zeros") else 1
    return [*args[:first], *(_scalarize(tx, a) for a in args[first:])]


def _scalarize_list_items(
    tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]
) -> tuple[list[Variable], dict[str, Variable]] | None:
    """Arguments of an operation that raises, with numbers for tensors of one integer that stand in lists, as sizes may; None where none do."""
    from engine.trace.values.sequences import SequenceVariable

    def in_list(value: Variable) -> Variable:
        return _scalarize(tx, value) if isinstance(realize(tx, value), SequenceVariable) else value

    found = [in_list(a) for a in args], {k: in_list(v) for k, v in kwargs.items()}
    same = all(a is b for a, b in zip((*args, *kwargs.values()), (*found[0], *found[1].values()), strict=True))
    return None if same else found


_SYMBOOL_OPS = frozenset((operator.and_, operator.or_, operator.iand, operator.ior, torch.sym_not, torch.sym_ite))


def _specialize_symbool(tx: Tracer, target: Any, given: Variable) -> Variable:
    """A symbol that is true or false as a constant, where its value is known and the operation is none of logic."""
    from engine.trace.values.base import ConstantVariable
    from engine.trace.values.symbolic import SymNodeVariable, has_hint

    if not isinstance(given, SymNodeVariable) or not isinstance(given.sym, torch.SymBool) or not has_hint(given.sym):
        return given
    is_logic = target in _SYMBOOL_OPS or isinstance(target, GraphCallable)
    return given if is_logic else ConstantVariable(given.as_python_constant(tx))


def _scalarize(tx: Tracer, given: Variable) -> Variable:
    from engine.trace.values.sequences import SequenceVariable, TupleVariable
    from engine.trace.values.tensor import TensorVariable

    found = realize(tx, given)
    if isinstance(found, TensorVariable):
        fake = found.fake
        is_number = (
            fake.dim() == 0 and not fake.is_floating_point() and not fake.is_complex() and fake.dtype != torch.bool
        )
        return found.call_method(tx, "item", [], {}) if is_number else given
    if not isinstance(found, SequenceVariable) or len(found.items) > _MAX_SIZES:
        return given
    items = [_scalarize(tx, item) for item in found.items]
    return TupleVariable(items) if any(a is not b for a, b in zip(items, found.items, strict=True)) else given


_MAX_SIZES = 16


def _graph_arg(tx: Tracer, value: Variable) -> tuple[Any, Any]:
    return realize(tx, value).as_node_arg(tx)


def wrap_result(tx: Tracer, node: torch.fx.Node, result: Any, *, keep: bool = False) -> Variable:
    """A value for the result of a node; the node is taken back when the result is a plain constant, unless it must be kept."""
    from engine.trace.values.base import ConstantVariable
    from engine.trace.values.symbolic import SymNodeVariable, collect_rounding_symbols
    from engine.trace.values.tensor import TensorVariable

    node.meta["example_value"] = result
    if isinstance(result, torch.Tensor):
        node.meta["version"] = 0 if result.is_inference() else result._version
        tensor = tx.graph.tensor_variables[node] = TensorVariable(node, result)
        return tensor
    if isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        number = SymNodeVariable(
            node,
            result,
            depends_on_unbacked_float=_derives_from_unbacked_float(node, result),
            rounding_symbols=collect_rounding_symbols(node, result),
        )
        return (
            ConstantVariable(number.as_python_constant(tx))
            if number.rounding_symbols and isinstance(result, torch.SymInt)
            else number
        )
    if _is_constant_result(result):
        if not keep:
            tx.graph.erase_last_node(node)
        return tx.from_python(result)
    if isinstance(result, (tuple, list)):
        return _wrap_items(tx, node, result)
    if callable(result):
        from engine.trace.values.transforms import GraphFunctionVariable

        return GraphFunctionVariable(node, result)
    raise Unsupported("unsupported-operation", f"an operation returns a {type(result).__name__}")


def _derives_from_unbacked_float(node: torch.fx.Node, result: Any) -> bool:
    """Whether a symbol is, or was computed from, a float that only the running graph knows."""
    found = is_unbacked_float(result) or any(n.meta.get("is_opaque") for n in node.all_input_nodes)
    node.meta["is_opaque"] = found
    return found


def _is_constant_result(result: Any) -> bool:
    if isinstance(result, (tuple, list, torch.Size)):
        return all(_is_constant_result(r) for r in result)
    return isinstance(result, (*_CONSTANTS, torch.finfo, torch.iinfo))


def _wrap_items(tx: Tracer, node: torch.fx.Node, result: Any) -> Variable:
    import operator

    from engine.trace.values.sequences import ListVariable, TupleVariable

    items: list[Variable] = []
    for n, item in enumerate(result):
        if _is_constant_result(item):
            items.append(tx.from_python(item))
            continue
        part = tx.graph.graph.create_node("call_function", operator.getitem, (node, n))
        part.meta["is_item"] = True
        set_provenance(part, tx.node_provenance())
        items.append(wrap_result(tx, part, item))
    if isinstance(result, list):
        return ListVariable(items)
    return TupleVariable(items, type(result))
