"""Arguments that a user-defined Triton kernel mutates, from pointer flow in its TTIR.

Pointers flow from operands to results, through loops, branches and calls. Every value that may reach the address
of a store is mutated. Operations that the analysis does not know count as stores.
"""

from __future__ import annotations

import contextlib
import functools
import io
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from engine.ir.kernels.compile_triton import COMPILE_LOCK
from engine.ir.reachable import reachable

_STORE_OPS = frozenset(
    "tt.store tt.atomic_rmw tt.atomic_cas tt.descriptor_store tt.descriptor_reduce tt.descriptor_scatter".split()
)
"""Operations that write through their first operand and nothing else."""
_PURE_OPS = frozenset(
    "tt.addptr tt.advance tt.assert tt.bitcast tt.broadcast tt.cat tt.clampf tt.descriptor_gather tt.descriptor_load tt.dot "
    "tt.dot_scaled tt.expand_dims tt.fp_to_fp tt.func tt.gather tt.get_num_programs tt.get_program_id tt.histogram tt.int_to_ptr "
    "tt.join tt.load tt.make_range tt.make_tensor_descriptor tt.make_tensor_ptr tt.map_elementwise tt.mulhiui tt.precise_divf "
    "tt.precise_sqrt tt.print tt.ptr_to_int tt.reduce tt.reduce.return tt.reshape tt.return tt.scan tt.scan.return tt.splat "
    "tt.split tt.trans tt.unsplat".split()
)
_PURE_DIALECTS = ("arith.", "math.", "scf.", "cf.", "ub.", "builtin.")
_LOAD_OPS = frozenset(("tt.load", "tt.descriptor_load", "tt.descriptor_gather"))
_MAX_CONFIGS = 16
_UNKNOWN_POINTER = -1
"""Marks an address that comes from no known argument."""


def mutated_arguments(kernel: Any, arguments: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of tensor arguments that a launch may mutate.

    The mapping has all arguments by name, tensors as fakes.
    """
    tensors = frozenset(name for name, value in arguments.items() if isinstance(value, torch.Tensor))
    try:
        choices, also = _autotune_configs(kernel)
        mutated = set(also)
        function = kernel.fn if choices else kernel
        if type(function).__name__ != "JITFunction" or len(choices) > _MAX_CONFIGS or function.pre_run_hooks:
            return tensors
        for choice in choices or ({},):
            mutated |= _mutated_by_config(function, {**arguments, **choice})
    except Exception:  # errors of Triton's compiler or another Triton version: assume that every tensor is mutated
        return tensors
    return tensors & mutated


def _autotune_configs(kernel: Any) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the autotuner's configs and the arguments that it resets; empty if not autotuned.

    Raises:
        ValueError: user-defined hooks run before or after a launch.
    """
    if type(kernel).__name__ != "Autotuner":
        return [], []
    if kernel.user_defined_pre_hook or kernel.user_defined_post_hook or any(c.pre_hook for c in kernel.configs):
        raise ValueError("hooks")
    return [config.kwargs for config in kernel.configs], [*kernel.reset_to_zero, *kernel.restore_value]


def _mutated_by_config(kernel: Any, arguments: Mapping[str, Any]) -> frozenset[str]:
    signature: dict[str, str] = {}
    constants: list[tuple[int, type, Any]] = []
    for n, param in enumerate(kernel.params):
        value = arguments.get(param.name, param.default)
        kind = "constexpr" if param.is_constexpr else signature_type(value)
        signature[param.name] = kind
        if kind == "constexpr":
            constants.append((n, type(value), value))
    return _mutated_pointers(kernel, tuple(signature.items()), tuple(constants))


@functools.lru_cache(maxsize=64)
def _mutated_pointers(
    kernel: Any, signature: tuple[tuple[str, str], ...], constants: tuple[tuple[int, type, Any], ...]
) -> frozenset[str]:
    pointers = [name for name, kind in signature if kind != "constexpr"]
    constant_values: dict[tuple[int, ...], Any] = {(n,): value for n, _, value in constants}
    with contextlib.ExitStack() as quiet:
        quiet.enter_context(COMPILE_LOCK)
        quiet.enter_context(contextlib.redirect_stdout(io.StringIO()))  # the kernel may print while it is compiled
        quiet.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        flow = _PointerFlow(quiet.enter_context(_ttir_module(kernel, dict(signature), constant_values)))
        entry = flow.entries[str(kernel.fn.__name__)]
        if len(entry) != len(pointers):
            raise ValueError("an argument has several entries in the kernel")
        sources = flow.store_address_origins()
    if _UNKNOWN_POINTER in sources:
        return frozenset(pointers)
    return frozenset(name for name, value in zip(pointers, entry, strict=True) if value in sources)


@functools.singledispatch
def signature_type(value: Any) -> str:
    """Return Triton's type of an argument: ``*fp32``, ``i64``, ``constexpr``."""
    raise TypeError(type(value).__name__)


@signature_type.register
def _(value: torch.Tensor) -> str:
    from triton._utils import canonicalize_dtype

    return f"*{canonicalize_dtype(str(value.dtype).removeprefix('torch.'))}"


def _register_signature_type(name: str, *types: type) -> None:
    for cls in types:
        signature_type.register(cls, lambda value: name)


_register_signature_type("constexpr", type(None), str)
_register_signature_type("i1", bool, torch.SymBool)
_register_signature_type("i64", int, torch.SymInt)
_register_signature_type("fp32", float, torch.SymFloat)


@contextlib.contextmanager
def _ttir_module(kernel: Any, signature: dict[str, str], constants: dict[tuple[int, ...], Any]) -> Iterator[Any]:
    """Compile the kernel to TTIR. The module is valid inside the context."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, make_backend

    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    options = backend.parse_options({})
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    parts = backend.get_codegen_implementation(options), backend.get_module_map()
    yield source.make_ir(target, options, *parts, context)


class _PointerFlow:
    """Pointer flow between the values of a module, by value id."""

    def __init__(self, module: Any) -> None:
        self.entries: dict[str, list[int]] = {}
        self._predecessors: dict[int, set[int]] = defaultdict(set)
        self._store_addresses: set[int] = set()
        self._operations: list[Any] = []
        self._blocks: dict[int, dict[int, list[int]]] = defaultdict(dict)
        """Arguments of each block, by region."""
        self._terminators: dict[int, list[Any]] = defaultdict(list)
        """Terminators that pass values out of a region, by region."""
        module.walk(self._operations.append)
        for op in self._operations:
            block = op.get_block()
            if block is None:
                continue
            region = block.get_parent().id()
            arguments = [block.get_argument(n).id() for n in range(block.get_num_arguments())]
            self._blocks[region][block.id()] = arguments
            if op.get_name().rpartition(".")[2] in ("yield", "condition", "return", "br", "cond_br"):
                self._terminators[region].append(op)
        self._functions = {op.get_str_attr("sym_name"): op for op in self._operations if op.get_name() == "tt.func"}
        for name, op in self._functions.items():
            inside = self._blocks[op.get_region(0).id()]
            self.entries[name] = next(iter(inside.values()), [])
        for op in self._operations:
            self._add_operation(op)

    def store_address_origins(self) -> set[int]:
        """Return every value that may reach the address of a store."""
        return set(reachable(self._store_addresses, lambda value: self._predecessors.get(value, ())))

    def _add_operation(self, op: Any) -> None:
        name = op.get_name()
        operands = [op.get_operand(n).id() for n in range(op.get_num_operands())]
        results = [op.get_result(n).id() for n in range(op.get_num_results())]
        if name in _STORE_OPS:
            self._store_addresses.update(operands[:1])
        elif name not in _PURE_OPS and not name.startswith(_PURE_DIALECTS) and name != "tt.call":
            self._store_addresses.update(operands)
            if "asm" in name and not op.get_bool_attr("pure"):
                self._store_addresses.add(_UNKNOWN_POINTER)
        if name in _LOAD_OPS:
            for n, result in enumerate(results):
                if "ptr" in str(op.get_result(n).get_type()):
                    self._predecessors[result].add(_UNKNOWN_POINTER)
        elif name == "tt.int_to_ptr":
            self._predecessors[results[0]].add(_UNKNOWN_POINTER)
        elif name == "tt.call":
            self._call(op, operands, results)
        elif op.get_num_regions() and name not in ("tt.func", "builtin.module"):
            self._regions(op, name, operands, results)
        else:
            for result in results:
                self._predecessors[result].update(operands)
        if name in ("cf.br", "cf.cond_br"):
            for arguments in self._blocks[op.get_block().get_parent().id()].values():
                self._flow(operands, arguments)

    def _flow(self, values: Iterable[int], to: Iterable[int]) -> None:
        """Record that any of these values may flow to any of those."""
        values = list(values)
        for target in to:
            self._predecessors[target].update(values)

    def _flow_pairwise(self, values: list[int], to: list[int]) -> None:
        if len(values) != len(to):
            self._flow(values, to)
            return
        for value, target in zip(values, to, strict=True):
            self._predecessors[target].add(value)

    def _call(self, op: Any, operands: list[int], results: list[int]) -> None:
        callee = self._functions[op.get_flat_symbol_ref_attr("callee")]
        self._flow_pairwise(operands, self.entries[callee.get_str_attr("sym_name")])
        for end in self._terminators[callee.get_region(0).id()]:
            if end.get_name() == "tt.return":
                self._flow_pairwise(_operands(end), results)

    def _regions(self, op: Any, name: str, operands: list[int], results: list[int]) -> None:
        regions = [op.get_region(n).id() for n in range(op.get_num_regions())]
        block_arguments = [[a for block in self._blocks[r].values() for a in block] for r in regions]
        ends = [[_operands(e) for e in self._terminators[r]] for r in regions]
        if name == "scf.if":
            for operand in (e for inside in ends for e in inside):
                self._flow_pairwise(operand, results)
        elif name == "scf.for":
            for operand in (operands[3:], *ends[0]):
                self._flow_pairwise(operand, block_arguments[0][1:])
                self._flow_pairwise(operand, results)
        elif name == "scf.while":
            for operand in (operands, *ends[1]):
                self._flow_pairwise(operand, block_arguments[0])
            for operand in ends[0]:
                self._flow_pairwise(operand[1:], block_arguments[1])
                self._flow_pairwise(operand[1:], results)
        else:
            every = [*operands, *(v for inside in ends for e in inside for v in e)]
            self._flow(every, [*results, *(a for inside in block_arguments for a in inside)])


def _operands(op: Any) -> list[int]:
    return [op.get_operand(n).id() for n in range(op.get_num_operands())]
