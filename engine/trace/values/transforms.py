"""``torch.func``: vmap, grad and their like. The transformed function becomes a graph of its own, the transformation one node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from engine.ir.in_graph import InGraph
from engine.trace.graph_builder import MAPPED, emit
from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, NotConstant, Value, force
from engine.trace.values.mappings import DictValue
from engine.trace.values.nested import Body, NestedBuilder, lift_all, looks_like, outer_value, trace_body, twin
from engine.trace.values.rules import BY_CODE, special
from engine.trace.values.sequences import TupleValue, sequence_items
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorValue
from engine.trace.values.trees import Tree, flatten, pack, unflatten, unpack

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


@dataclass(frozen=True)
class Kind:
    """One transformation: what makes the transformed function, which options it takes, and how its body sees the arguments."""

    make: Callable[..., Any]
    options: tuple[str, ...]
    differentiates: bool


_KINDS = (
    Kind(torch.func.vmap, ("in_dims", "out_dims", "randomness", "chunk_size"), False),
    Kind(torch.func.grad, ("argnums", "has_aux"), True),
    Kind(torch.func.grad_and_value, ("argnums", "has_aux"), True),
    Kind(torch.func.jacrev, ("argnums", "has_aux", "chunk_size"), True),
    Kind(torch.func.jacfwd, ("argnums", "has_aux", "randomness"), True),
    Kind(torch.func.hessian, ("argnums",), True),
)


class TransformedFunction(Value):
    """``torch.func.vmap(f)`` and the like."""

    def __init__(self, kind: Kind, function: Value, options: dict[str, Any]) -> None:
        self.kind = kind
        self.function = function
        self.options = options

    def type(self) -> type:
        return type(torch.func.vmap)

    def describe(self) -> str:
        return f"{self.kind.make.__name__} of {self.function.describe()}"

    def truth(self, tx: Tracer) -> bool:
        return True

    def children(self) -> list[Value]:
        return [self.function]

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        make, options = self.kind.make, self.options

        def run(function: Callable[..., Any], positional: Any, named: dict[str, Any]) -> Any:
            return make(function, **options)(*positional, **named)

        given = _Arguments(tx, args, kwargs)
        with _grad_mode(enabled=torch.is_grad_enabled() or self.kind.differentiates):
            body = _body(tx, self.function, given, self._dims(given), differentiates=self.kind.differentiates)
        return transformed(tx, make.__name__, body, given, run)

    def _dims(self, given: _Arguments) -> list[int | None] | None:
        """For vmap: which dimension of each leaf is mapped."""
        if self.kind.make is not torch.func.vmap:
            return None
        found = _broadcast(self.options.get("in_dims", 0), given.tree.parts[0])
        found += [0] * given.tree.parts[1].leaves()
        return found

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(self.kind.make))
        cg.load(self.function)
        for value in self.options.values():
            cg.const(value)
        cg.call_keywords(1, tuple(self.options))


class _Arguments:
    """What a transformed function is called with: positional and keyword arguments, taken apart."""

    def __init__(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> None:
        self.leaves: list[Value] = []
        named = DictValue.of(kwargs)
        self.tree = flatten(tx, TupleValue([TupleValue(list(args)), named]), self.leaves)
        for leaf in self.leaves:
            leaf.graph_arg(tx)  # inputs of the outer graph, in the order of the arguments


def _broadcast(dims: Any, tree: Tree) -> list[Any]:
    """One entry for each leaf, where ``dims`` may stop at any container."""
    if isinstance(dims, (tuple, list)) and tree.parts and len(dims) == len(tree.parts):
        return [d for sub, part in zip(dims, tree.parts, strict=True) for d in _broadcast(sub, part)]
    if isinstance(dims, dict) and set(dims) == set(tree.keys):
        return [d for key, part in zip(tree.keys, tree.parts, strict=True) for d in _broadcast(dims[key], part)]
    if dims is None or type(dims) is int:
        return [dims] * tree.leaves()
    raise Unsupported("unsupported-argument", "in_dims does not fit the arguments of vmap")


class _grad_mode:  # noqa: N801
    """Grad mode here, where fakes are evaluated; the graph's own is left alone."""

    def __init__(self, *, enabled: bool) -> None:
        self._wanted = enabled
        self._before = torch.is_grad_enabled()

    def __enter__(self) -> None:
        torch._C._set_grad_enabled(self._wanted)

    def __exit__(self, *_: object) -> None:
        torch._C._set_grad_enabled(self._before)


def _body(tx: Tracer, function: Value, given: _Arguments, dims: list[Any] | None, *, differentiates: bool) -> Body:
    def parameters(builder: NestedBuilder) -> list[Value]:
        seen = [
            _parameter(tx, builder, leaf, None if dims is None else dims[n], dims is not None, differentiates)
            for n, leaf in enumerate(given.leaves)
        ]
        packed = unflatten(tx, given.tree, iter(seen))
        return [packed]

    return trace_body(tx, _Spread(function), parameters, may_note=True, may_write=True)


class _Spread(Value):
    """Calls a function with the arguments that one tuple holds: positional ones, then keywords."""

    def __init__(self, function: Value) -> None:
        self.function = function

    def type(self) -> type:
        return self.function.type()

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        positional, named = sequence_items(tx, args[0])
        words = {str(k): v for k, (_, v) in force(tx, named).entries.items()}  # type: ignore[attr-defined]
        return self.function.call(tx, list(sequence_items(tx, positional)), words)


def _parameter(
    tx: Tracer, builder: NestedBuilder, leaf: Value, dim: int | None, is_mapped: bool, differentiates: bool
) -> Value:
    """What the body sees of a leaf of the arguments."""
    if isinstance(leaf, SymValue):
        return SymValue(builder.parameter(leaf.sym), leaf.sym)
    assert isinstance(leaf, TensorValue)
    fake = leaf.fake
    if is_mapped:
        if dim is None:
            return twin(tx, builder, fake)
        if not -fake.dim() <= dim < fake.dim():
            raise Unsupported("unsupported-argument", "in_dims does not fit the arguments of vmap")
        shape, strides = list(fake.shape), list(fake.stride())
        del shape[dim], strides[dim]
        with tx.fake_mode, torch.no_grad():
            row = torch.empty_strided(shape, strides, dtype=fake.dtype, device=fake.device)
        node = builder.parameter(row.requires_grad_(fake.requires_grad))
        node.meta[MAPPED] = True
        return TensorValue(node, row)
    copy = looks_like(tx, fake.detach())
    if differentiates and (copy.is_floating_point() or copy.is_complex()):
        copy.requires_grad_()
    return TensorValue(builder.parameter(copy), copy)


Run = Callable[[Callable[..., Any], Any, dict[str, Any]], Any]


def transformed(tx: Tracer, name: str, body: Body, given: _Arguments, run: Run) -> Value:
    """The node that calls ``run(function, args, kwargs)``, and its result packed as Python would."""
    outside = lift_all([body])
    module = body.module()
    runner = _Runner(module, given.tree, len(given.leaves), body.tree, run)
    result = emit(
        tx,
        "call_function",
        InGraph(name, runner),
        [*given.leaves, *(outer_value(n) for n in outside)],
        run=runner.first,
    )
    assert runner.tree is not None
    leaves = iter(sequence_items(tx, result))
    return unflatten(tx, runner.tree, leaves)


class _Runner:
    """What a transformation's node runs: the body under the transformation, its results as one flat tuple."""

    def __init__(self, body: Callable[..., Any], given: Tree, count: int, returned: Tree, run: Run) -> None:
        self._body = body
        self._given = given
        self._count = count
        self._returned = returned
        self._run = run
        self.tree: Tree | None = None

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        leaves: list[Any] = []
        self._unpacked(args, leaves)
        return tuple(leaves)

    def first(self, *args: Any) -> tuple[Any, ...]:
        """The run over fakes, which also finds out how results are packed."""
        leaves: list[Any] = []
        self.tree = self._unpacked(args, leaves)
        return tuple(leaves)

    def _unpacked(self, args: tuple[Any, ...], leaves: list[Any]) -> Tree:
        given, lifted = args[: self._count], args[self._count :]

        def function(*positional: Any, **named: Any) -> Any:
            inside: list[Any] = []
            unpack((positional, named), inside)
            return pack(self._returned, iter(self._body(*inside, *lifted)))

        positional, named = pack(self._given, iter(given))
        return unpack(self._run(function, positional, named), leaves)


def _options(tx: Tracer, name: str, given: dict[str, Value]) -> dict[str, Any]:
    try:
        return {key: force(tx, value).python(tx) for key, value in given.items()}
    except NotConstant:
        raise Unsupported("unsupported-argument", f"an option of {name} is not constant") from None


def _register(kind: Kind) -> None:
    def rule(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = dict(zip(("func", *kind.options), args, strict=False)) | kwargs
        function = force(tx, given.pop("func"))
        return TransformedFunction(kind, function, _options(tx, kind.make.__name__, given))

    special(kind.make)(rule)


def _register_made(kind: Kind) -> None:
    """Functions that were transformed before: their wrapper's cells hold what they were made of."""
    code = kind.make(torch.dot).__code__

    def rule(tx: Tracer, of: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        cells = {c: cell.content for c, cell in zip(of.code.co_freevars, of.cells(tx), strict=True)}
        options = {name: cells[name] for name in kind.options if name in cells}
        function = force(tx, cells["func"])
        made = TransformedFunction(kind, function, _options(tx, kind.make.__name__, options))
        return made.call(tx, args, kwargs)

    BY_CODE[id(code)] = (code, rule)


for _kind in _KINDS:
    _register(_kind)
    if _kind.make is not torch.func.hessian:  # it is made of the others
        _register_made(_kind)


@special(torch.func.jvp)
def _jvp(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ("func", "primals", "tangents")
    words = dict(zip(names, args, strict=False)) | kwargs
    function, primals, tangents = (force(tx, words.pop(name)) for name in names)
    options = _options(tx, "jvp", words)
    given = _Arguments(tx, list(sequence_items(tx, primals)), {})
    with _grad_mode(enabled=True):
        body = _body(tx, function, given, None, differentiates=False)
    both = _Arguments(tx, [TupleValue(list(sequence_items(tx, primals))), tangents], {})

    def run(function: Callable[..., Any], positional: Any, named: dict[str, Any]) -> Any:
        return torch.func.jvp(function, *positional, **options)

    return transformed(tx, "jvp", body, both, run)


@special(torch.func.vjp)
def _vjp(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    words = dict(kwargs)
    function = force(tx, args[0] if args else words.pop("func"))
    options = _options(tx, "vjp", words)
    given = _Arguments(tx, list(args[1:]), {})
    with _grad_mode(enabled=True):
        body = _body(tx, function, given, None, differentiates=True)

    def run(function: Callable[..., Any], positional: Any, named: dict[str, Any]) -> Any:
        return torch.func.vjp(function, *positional, **options)

    return transformed(tx, "vjp", body, given, run)


@special(torch.func.linearize)
def _linearize(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function = force(tx, args[0] if args else kwargs["func"])
    primals = list(args[1:])
    return TupleValue([function.call(tx, primals, {}), Pushforward(tx, function, primals)])


class Pushforward(Value):
    """The function that ``linearize`` returns: the derivative at a point, by ``jvp``."""

    def __init__(self, tx: Tracer, function: Value, primals: list[Value]) -> None:
        self.function = function
        self.primals = primals
        self._before = self._versions(tx)

    def _versions(self, tx: Tracer) -> list[int]:
        leaves: list[Value] = []
        flatten(tx, TupleValue(self.primals), leaves)
        return [v.fake._version for v in leaves if isinstance(v, TensorValue) and not v.fake.is_inference()]

    def type(self) -> type:
        return type(torch.func.vmap)

    def truth(self, tx: Tracer) -> bool:
        return True

    def children(self) -> list[Value]:
        return [self.function, *self.primals]

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self._before != self._versions(tx):
            raise Unsupported("side-effect", "the point at which linearize was called has changed since")
        both = _jvp(tx, [self.function, TupleValue(self.primals), TupleValue(list(args))], {})
        return both.get_item(tx, Const(1))

    def reconstruct(self, cg: Codegen) -> None:
        raise Unsupported("side-effect", "rebuilding the function that linearize returned after the graph")


class GraphFunction(Value):
    """A function that a node of the graph returned: the pullback of ``vjp``. Calling it is a further node."""

    def __init__(self, node: torch.fx.Node, function: Callable[..., Any]) -> None:
        self.node = node
        self.function = function

    def type(self) -> type:
        return type(self.function)

    def describe(self) -> str:
        return f"the function {self.node.name}"

    def truth(self, tx: Tracer) -> bool:
        return True

    def graph_arg(self, tx: Tracer) -> tuple[Any, Any]:
        return self.node, self.function

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = _Arguments(tx, args, kwargs)
        caller = _Caller(given.tree)
        result = emit(tx, "call_function", InGraph("call", caller), [self, *given.leaves], run=caller.first)
        assert caller.tree is not None
        return unflatten(tx, caller.tree, iter(sequence_items(tx, result)))

    def reconstruct(self, cg: Codegen) -> None:
        if cg.tx.options.backend != "eager":  # any other may run the graph once only, while it compiles
            raise Unsupported("side-effect", "rebuilding the function that vjp returned after the graph")
        cg.graph_output(self.node)


class _Caller:
    """Calls a function made in the graph; its results as one flat tuple."""

    def __init__(self, given: Tree) -> None:
        self._given = given
        self.tree: Tree | None = None

    def __call__(self, function: Callable[..., Any], *leaves: Any) -> tuple[Any, ...]:
        found: list[Any] = []
        self._called(function, leaves, found)
        return tuple(found)

    def first(self, function: Callable[..., Any], *leaves: Any) -> tuple[Any, ...]:
        """The call over fakes."""
        found: list[Any] = []
        self.tree = self._called(function, leaves, found)
        return tuple(found)

    def _called(self, function: Callable[..., Any], leaves: tuple[Any, ...], found: list[Any]) -> Tree:
        positional, named = pack(self._given, iter(leaves))
        return unpack(function(*positional, **named), found)
