"""numpy arrays as graph tensors; numpy functions run through ``torch._numpy``.

Real numpy runs on probe arrays of the same dtype, shape and strides. If ``torch._numpy`` returns another dtype,
shape or aliasing, the graph breaks.

Arrays that traced code creates from constants are computed while tracing; each call of the compiled code gets new
ones. If torch or code after the graph uses one, its memory becomes a graph tensor, or it is copied.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.bytecode.source_positions import expression_text
from engine.frame_code.codegen_runtime.tensors import make_array_view, to_numpy
from engine.ir.graph_callable import GraphCallable
from engine.ir.introspection.python_operators import Operator
from engine.ir.introspection.symbols import has_unbacked_symbols
from engine.ir.register_once import register_each
from engine.ir.sources.base import Source
from engine.ir.sources.roots import ConstantSource
from engine.ir.sources.tensors import NumpyTensorSource, tensor_from_array
from engine.torch_private import lazily_loaded
from engine.torch_private.pytree import tree_leaves
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.computed_conditions import compute_numbers
from engine.trace.emit_node import emit_node
from engine.trace.exc import BreakGraph, SkipFrame, Unsupported
from engine.trace.graph_builder import emitting_into
from engine.trace.operators.arithmetic import call_special_by_name, fold_constant_call
from engine.trace.operators.operand import OperatorResult
from engine.trace.symbols.unbacked_symints import data_dependent_break
from engine.trace.symbols.value_names import name_value
from engine.trace.variables.base import (
    NONE,
    Args,
    ConstantVariable,
    FixedObjectVariable,
    Kwargs,
    NotPythonConstant,
    Variable,
    realize,
)
from engine.trace.variables.builder import guarded_builder, register_builder, register_builder_if
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import builtin_attribute
from engine.trace.variables.containers.iterators import SequenceIteratorVariable
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable
from engine.trace.variables.higher_order.pytrees import (
    TreeSpec,
    arguments_variable,
    flatten_python,
    flatten_variable,
    unflatten_python,
    unflatten_variable,
)
from engine.trace.variables.slotted_type import SlottedType, fresh, state
from engine.trace.variables.tensors.sym_node import has_hint, hint
from engine.trace.variables.tensors.tensor import TensorVariable
from engine.trace.variables.tensors.tensor_members import register_tensor_method
from engine.trace.variables.tensors.tensor_methods import can_tolist

_Function = Callable[..., Any]

_MAX_PROBE_ELEMENTS = 1 << 24
"""Maximum number of elements of a probe array."""


_INDEX_DTYPES = frozenset((torch.int32, torch.int64, torch.bool))
_MIN_NESTED_DIM = 2
"""Number of dims that make an array a nested sequence, which torch may read as a tuple."""


_NOT_UNIQUE = ("eig", "eigh", "svd")
"""Functions whose vectors have any sign: NumPy's LAPACK and torch's choose differently."""
_VIEW_ATTRIBUTES = ("T", "real", "imag")


_UNSUPPORTED_METHODS = frozenset(
    "tolist item tobytes tofile dump dumps getfield byteswap setflags __array__ __reduce__".split()
)


class NumpyNdarrayVariable(Variable):
    """A numpy array, or a numpy scalar if ``is_scalar``, over the memory of a tensor."""

    _tensor: TensorVariable
    is_scalar: bool = False
    source: Source | None = None
    real_object: Any = NotImplemented

    is_mutable = True
    is_numpy_array = True

    @property
    def tensor(self) -> TensorVariable:
        """The graph tensor whose memory the array uses."""
        return self._tensor

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the elements."""
        return _numpy_dtype(self.tensor.fake.dtype)

    def python_type(self) -> type:
        return self.dtype.type if self.is_scalar else np.ndarray

    def describe(self) -> str:
        sizes = ", ".join(str(s) for s in self.tensor.fake.shape)
        return f"numpy.{self.dtype.name}" if self.is_scalar else f"array {self.dtype}[{sizes}]"

    def as_python_object(self) -> Any:
        return self.real_object

    child_fields = ("tensor",)

    def is_truthy(self, tx: Tracer) -> bool:
        raise Unsupported("data-dependent", f"bool() of {name_value(tx, self)}")

    def length(self, tx: Tracer) -> Variable:
        if not self.tensor.fake.dim():
            tx.raise_type_error("len() of unsized object")
        return self.tensor.size(tx, 0)

    def get_iterator(self, tx: Tracer) -> Variable:
        if not self._ndim(tx):
            tx.raise_type_error("iteration over a 0-d array")
        count = int(self.length(tx).as_python_constant(tx))
        return SequenceIteratorVariable([self.get_item(tx, ConstantVariable(n)) for n in range(count)], type(iter(())))

    def _ndim(self, tx: Tracer) -> int:
        return self.tensor.fake.dim()

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return call_numpy(tx, "ndarray.__getitem__", operator.getitem, [self, key], {})

    def set_item(self, tx: Tracer, key: Variable, value: Variable) -> None:
        call_numpy(tx, "ndarray.__setitem__", operator.setitem, [self, key, value], {})

    def as_graph_operand(self, tx: Tracer) -> Variable | None:
        """Return the Python number of a scalar: torch computes with it beside a tensor."""
        is_number = self.is_scalar and self.dtype.kind in "fi"
        return self.call_method(tx, "item", [], {}) if is_number else None

    def binary(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        if right.fake is not None and self.is_scalar and self.dtype.kind in "fi":
            return NotImplemented
        return _apply_operator(tx, op, self, right)

    compare = binary

    def inplace(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        return NotImplemented if self.is_scalar else _apply_operator(tx, op, self, right)

    def reflected(self, tx: Tracer, op: Operator, left: Variable) -> OperatorResult:
        return _apply_operator(tx, op, left, self)

    def unary(self, tx: Tracer, op: Operator) -> Variable:
        return _apply_operator(tx, op, self)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        attribute = self._layout_attribute(tx, name)
        if attribute is not None:
            return attribute
        if name in _VIEW_ATTRIBUTES:
            return call_numpy(tx, f"ndarray.{name}", operator.attrgetter(name), [self], {})
        return builtin_attribute(tx, self, name)

    def _layout_attribute(self, tx: Tracer, name: str) -> Variable | None:
        """Return an attribute of the array's layout, or None for any other attribute."""
        fake, itemsize = self.tensor.fake, self.dtype.itemsize
        match name:
            case "shape":
                return TupleVariable([self.tensor.size(tx, d) for d in range(fake.dim())])
            case "size":
                return self.tensor.call_method(tx, "numel", [], {})
            case "strides":
                return TupleVariable([tx.fold_constant(int, s * itemsize) for s in fake.stride()])
            case "nbytes":
                return tx.fold_constant(int, fake.numel() * itemsize)
        constants = {"ndim": fake.dim(), "dtype": self.dtype, "itemsize": itemsize}
        return ConstantVariable(constants[name]) if name in constants else None

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        as_numbers = name in ("tolist", "item") and not args and not kwargs and can_tolist(tx, self.tensor)
        if as_numbers and (name == "tolist" or self.tensor.fake.numel() == 1):
            return self.tensor.call_method(tx, name, [], {})
        if name in _UNSUPPORTED_METHODS:
            raise Unsupported("data-dependent", f"ndarray.{name} is called")
        if name in ("__len__", "__iter__") or (name.startswith("__") and len(args) == 1):
            return call_special_by_name(tx, self, name, args, kwargs)
        return call_numpy(tx, f"ndarray.{name}", lambda a, *p, **k: getattr(a, name)(*p, **k), [self, *args], kwargs)

    def as_tensor_index(self, tx: Tracer, *, in_tuple: bool) -> Variable:
        fake = self.tensor.fake
        if not in_tuple and fake.dim() >= _MIN_NESTED_DIM:
            return self
        is_index = fake.dtype in _INDEX_DTYPES and not (self.is_scalar and fake.dtype is torch.bool)
        return self.tensor if is_index else self

    def copy_to_tensor(self, tx: Tracer) -> Variable | None:
        """Copy the elements to a graph tensor without a tensor over the array's memory, or None."""
        return None

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        raise Unsupported("unsupported-argument", f"{name_value(tx, self)} as an argument of a torch operation")

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(to_numpy, self.tensor, self.is_scalar)


@functools.cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype


def _functions_of(module: Any) -> dict[str, _Function]:
    """Return the public functions of a module by name."""
    return {n: f for n, f in vars(module).items() if not n.startswith("_") and callable(f) and not isinstance(f, type)}


@functools.cache
def _torch_numpy_functions() -> dict[int, tuple[Any, _Function]]:
    """Return numpy functions that ``torch._numpy`` also has, by id."""
    ours = lazily_loaded.torch_numpy
    functions: dict[int, tuple[Any, _Function]] = {}
    for theirs, same in ((np, ours), (np.linalg, ours.linalg), (np.fft, ours.fft)):
        same_named = _functions_of(same) | {"array": _stack_nested_arrays}
        names = same_named.keys() - _NOT_UNIQUE
        functions |= {id(f): (f, same_named[n]) for n, f in _functions_of(theirs).items() if n in names}
    return functions


def _stack_nested_arrays(data: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``numpy.array``, also on sequences of arrays, which ``torch._numpy`` rejects."""
    torch_numpy = lazily_loaded.torch_numpy
    if isinstance(data, (list, tuple)) and any(isinstance(d, (list, tuple, torch_numpy.ndarray)) for d in data):
        data = torch_numpy.stack([_stack_nested_arrays(d) for d in data])
    return torch_numpy.array(data, *args, **kwargs)


class NumpyFunctionVariable(FixedObjectVariable):
    """A numpy function."""

    def describe(self) -> str:
        return f"numpy.{self.real_object.__name__}"

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        torch_function = _torch_numpy_functions().get(id(self.real_object))
        if torch_function is None:
            raise Unsupported("numpy-function", f"{self.describe()} is called")
        return call_numpy(tx, self.real_object.__name__, self.real_object, list(args), kwargs, torch_function[1])


@dataclass(frozen=True)
class _RaisingUfunc:
    """A numpy function of numbers that raises where numpy warns by default."""

    ufunc: Any

    @property
    def __name__(self) -> str:
        return str(self.ufunc.__name__)

    def __call__(self, *numbers: float) -> Any:
        with np.errstate(divide="raise", over="raise", invalid="raise"):
            return self.ufunc(*numbers)


@dataclass(frozen=True)
class _Leaf:
    """An array, tensor or symbol among the arguments of a numpy call."""

    value: Any
    is_array: bool

    @property
    def operand(self) -> Any:
        """Variable that the node takes."""
        return self.value.tensor if self.is_array else self.value

    @property
    def is_tensor(self) -> bool:
        """True if the node takes a tensor; numpy reads its memory or calls its methods."""
        return self.is_array or self.value.fake is not None


def call_numpy(
    tx: Tracer, name: str, function: _Function, args: Args, kwargs: Kwargs, torch_function: _Function | None = None
) -> Variable:
    """Trace ``function(*args, **kwargs)`` as a node that calls ``torch_function``.

    None for ``torch_function`` stands for ``function``.
    Without array arguments and an array result, numpy runs while tracing.

    Raises:
        Unsupported: ``torch._numpy`` returns another dtype, shape or aliasing, or the result depends on array elements.
    """
    values: Args = []
    tree = flatten_variable(tx, arguments_variable(args, kwargs), values, _is_leaf, _constant_argument)
    for value in values:
        if value.fake is not None:
            tensor_to_numpy(value)  # raises Unsupported if numpy cannot read the tensor
    constant = _compute_constant(tx, name, function, tree, values)
    args = [realize(tx, a) for a in args]
    numbers = [a for a in args if a.python_type() in (int, float)]
    if constant is None and getattr(function, "nout", 0) == 1 and numbers == args and not kwargs:
        constant = compute_numbers(tx, _RaisingUfunc(function), numbers)
    if constant is not None:
        return constant
    leaves = [_Leaf(value, value.is_numpy_array) for value in values]
    probes = [_probe_array(tx, leaf) for leaf in leaves]
    probe_args, probe_kwargs = unflatten_python(tree, iter(probes))
    on_error: Any = "ignore" if any(leaf.is_tensor for leaf in leaves) else "raise"
    try:
        with np.errstate(divide=on_error, over=on_error, invalid=on_error, under="ignore"):
            expected = function(*probe_args, **probe_kwargs)
    except Exception as error:
        raise Unsupported("numpy-function", f"numpy.{name} can raise {type(error).__name__}") from error
    if not leaves and not any(isinstance(part, np.ndarray) for part in tree_leaves(expected)):
        return non_array_result(tx, expected)
    if name in ("allclose", "array_equal", "array_equiv"):
        raise Unsupported("data-dependent", f"numpy.{name} needs the values of arrays")
    torch_function = torch_function or function
    if name in _COMPARISONS and not probe_kwargs:
        torch_function = _compare_like_numpy(torch_function, probe_args)
    runners = _candidate_runners(torch_function, tree, leaves, probes)
    for runner in runners:
        target = GraphCallable(f"numpy.{name}", runner)
        with BreakGraph("numpy-function", f"{_call_text(tx, name)} does not run on fake tensors", SkipFrame):
            result = emit_node(tx, "call_function", target, [leaf.operand for leaf in leaves], run=runner)
        try:
            return _wrap_result(tx, realize(tx, result), expected, leaves, probes)
        except _ResultMismatch:
            for node in tx.graph.graph.find_nodes(op="call_function", target=target):
                if runner is not runners[-1] and not node.users:  # it would run, and may raise
                    tx.graph.erase_last_node(node)
    raise Unsupported(
        "numpy-function", f"{_call_text(tx, name)} returns another dtype, shape or aliasing than torch._numpy"
    )


def _call_text(tx: Tracer, name: str) -> str:
    """Return the name of a numpy function, or the expression of an operator."""
    text = expression_text(tx.user_stack()[-1]) if "__" in name else ""
    return text or f"numpy.{name}"


def _candidate_runners(function: _Function, tree: TreeSpec, leaves: list[_Leaf], probes: list[Any]) -> list[_Function]:
    """Return ways to compute a call with ``torch._numpy``.

    The first that returns numpy's dtype is right. Torch does not subtract booleans, which numpy promotes as the smallest integers. Integers promote to doubles.
    """
    are_tensors = [leaf.is_tensor for leaf in leaves]
    kinds = [leaf.value.dtype.kind for leaf in leaves if leaf.is_array and leaf.value.dtype != float]
    plain, *promoted, doubles = (
        _TorchNumpyCall(function, tree, are_tensors, dtype) for dtype in (None, torch.int8, torch.int64, torch.double)
    )
    last = [doubles] if set(kinds) & set("iubf") else []
    if _runs_on_probes(plain, probes):
        return [plain, *last]
    return [r for r in [*(promoted if "b" in kinds else ()), *last] if _runs_on_probes(r, probes)]


def _runs_on_probes(runner: _Function, probes: Sequence[Any]) -> bool:
    """Return False if ``torch._numpy`` raises on the probe arrays.

    Fake tensors do not see all errors.
    """
    try:
        runner(*(torch.as_tensor(p) if isinstance(p, (np.ndarray, np.generic)) else p for p in probes))
    except Exception:
        return False
    return True


class _ResultMismatch(Exception):
    """Raised if ``torch._numpy`` returns another dtype, shape or aliasing than numpy."""


def _is_leaf(value: Variable) -> bool:
    return value.fake is not None or value.is_numpy_array or (value.sym is not None and has_hint(value.sym))


def _constant_argument(tx: Tracer, value: Variable) -> TreeSpec:
    with BreakGraph("numpy-function", f"numpy is called on a {value.python_type().__name__}", NotPythonConstant):
        return TreeSpec(constant=value.as_python_constant(tx))


def _probe_array(tx: Tracer, of: _Leaf) -> Any:
    """Create a probe array, tensor or number with the metadata of this one.

    Raises:
        Unsupported: the size depends on tensor elements, or it is too large.
    """
    if not of.is_tensor:
        return hint(of.value.sym)
    fake = of.operand.fake
    _check_size_is_known(tx, fake, "numpy on an array whose size depends on data")
    shape, strides = tuple(map(hint, fake.shape)), tuple(map(hint, fake.stride()))
    if math.prod(shape) > _MAX_PROBE_ELEMENTS:
        raise Unsupported("numpy-function", f"numpy is called on an array of more than {_MAX_PROBE_ELEMENTS} elements")
    tensor = torch.empty_strided(shape, strides, dtype=fake.dtype).fill_(1)
    if not of.is_array:
        return tensor
    array = tensor.numpy()
    return array[()] if of.value.is_scalar else array


def _check_size_is_known(tx: Tracer, fake: Any, what: str) -> None:
    unknown = next((size for size in fake.shape if has_unbacked_symbols(size)), None)
    if unknown is not None:
        raise data_dependent_break(tx, unknown, Unsupported("dynamic-output", what))


def non_array_result(tx: Tracer, result: Any) -> Variable:
    """Build the variable of a numpy result without arrays."""
    leaves: list[Any] = []
    tree = flatten_python(result, leaves)
    if other := [leaf for leaf in leaves if not isinstance(leaf, (np.generic, np.dtype, complex, type))]:
        raise Unsupported("numpy-function", f"numpy returns a {type(other[0]).__name__}")
    return unflatten_variable(tx, tree, map(tx.from_python, leaves))


class _TorchNumpyCall(metaclass=SlottedType):
    """Callable of a graph node: calls ``torch._numpy`` on tensors and returns tensors."""

    _function: _Function
    _tree: TreeSpec
    _is_tensor: list[bool]
    _converted: torch.dtype | None
    """Convert booleans to this dtype first; for double, all real numbers."""

    def __call__(self, *values: Any) -> Any:
        leaves = (self._as_array(v) if tensor else v for v, tensor in zip(values, self._is_tensor, strict=True))
        args, kwargs = unflatten_python(self._tree, leaves, _as_torch_constant)
        return _arrays_to_tensors(self._function(*args, **kwargs))

    def _as_array(self, tensor: torch.Tensor) -> Any:
        is_converted = tensor.dtype is torch.bool or (self._converted is torch.double and not tensor.is_complex())
        converted = tensor.to(self._converted) if self._converted and is_converted else tensor
        return lazily_loaded.torch_numpy.ndarray(converted)


_COMPARISONS = frozenset("gt ge lt le eq ne greater greater_equal less less_equal equal not_equal".split())


def _compare_like_numpy(function: _Function, operands: Sequence[Any]) -> _Function:
    """Compare floats in the dtype that numpy takes for arrays, scalars and numbers together."""
    with contextlib.suppress(TypeError):  # a list or a string has no dtype
        common = np.result_type(*operands)
        if common.kind == "f":
            return functools.partial(_compare_in_dtype, function, getattr(torch, common.name))
    return function


def _compare_in_dtype(function: _Function, dtype: torch.dtype, *operands: Any) -> Any:
    # Beside an array with dimensions, torch gives a number the array's dtype.
    torch_numpy = lazily_loaded.torch_numpy
    arrays = (torch_numpy.ndarray(o.tensor.to(dtype)[None]) if hasattr(o, "tensor") else o for o in operands)
    return function(*arrays)[0]


def _as_torch_constant(constant: Any) -> Any:
    """Return a constant for ``torch._numpy``: its own dtypes, numbers for numpy scalars."""
    if isinstance(constant, np.generic):
        return constant.item()
    is_dtype = isinstance(constant, np.dtype) or (isinstance(constant, type) and issubclass(constant, np.generic))
    return getattr(lazily_loaded.torch_numpy, np.dtype(constant).name) if is_dtype else constant


def _arrays_to_tensors(result: Any) -> Any:
    if isinstance(result, (tuple, list)):
        items = map(_arrays_to_tensors, result)
        return list(items) if type(result) is list else tuple(items)
    return getattr(result, "tensor", result)


def _wrap_result(tx: Tracer, result: Variable, expected: Any, leaves: list[_Leaf], probes: list[Any]) -> Variable:
    """Wrap a result, if its metadata and aliasing match those of numpy's result."""
    if isinstance(expected, (tuple, list)):
        parts = result.argument_items()
        if len(parts) != len(expected):
            raise _ResultMismatch
        items = [_wrap_result(tx, realize(tx, r), w, leaves, probes) for r, w in zip(parts, expected, strict=True)]
        return ListVariable(items) if type(expected) is list else TupleVariable(items, type(expected))
    if not isinstance(expected, (np.ndarray, np.generic)):
        constant = NotImplemented if result.fake is not None else result.as_python_object()
        if constant is NotImplemented or (expected is not None and type(expected) is not type(constant)):
            raise _ResultMismatch
        return NONE if expected is None else result
    array: Any = result
    is_scalar = isinstance(expected, np.generic)
    if array.fake is None:
        raise _ResultMismatch
    if is_scalar and array.fake.shape == (1,):  # the shape of a percentile
        array = realize(tx, array.call_method(tx, "squeeze", [], {}))
    fake, text = array.fake, expression_text(tx.user_stack()[-1])
    _check_size_is_known(tx, fake, f"the size of {text} depends on the elements of an array")
    sizes = tuple(map(hint, fake.shape))
    if sizes != expected.shape or fake.device.type != "cpu" or _numpy_dtype(fake.dtype) != expected.dtype:
        raise _ResultMismatch
    layouts = zip(expected.shape, fake.stride(), expected.strides, strict=True)
    if any(size > 1 and hint(stride) * expected.itemsize != wanted for size, stride, wanted in layouts):
        if not expected.flags.c_contiguous:
            raise _ResultMismatch
        array = realize(tx, array.call_method(tx, "contiguous", [], {}))
    for leaf, probe in zip(leaves, probes, strict=True):
        if not leaf.is_tensor:
            continue
        if leaf.is_array and leaf.operand is result and expected is probe:
            return leaf.value  # type: ignore[no-any-return]
        numpy_shares = not is_scalar and np.shares_memory(expected, np.asarray(probe))
        torch_shares = array.fake.untyped_storage()._cdata == leaf.operand.fake.untyped_storage()._cdata
        if numpy_shares != torch_shares and not is_scalar:
            if numpy_shares:
                raise _ResultMismatch
            array = realize(tx, array.call_method(tx, "clone", [], {}))
    return NumpyNdarrayVariable(array, is_scalar=is_scalar)


def _apply_operator(tx: Tracer, op: Operator, *operands: Variable) -> Variable:
    """Trace a Python operator on arrays."""
    return call_numpy(tx, op.function.__name__, op.function, list(operands), {})


_SCALAR_TYPES = frozenset(v for v in vars(np).values() if isinstance(v, type) and issubclass(v, (np.number, np.bool_)))


@register_each(
    register_rule, np.dtype, np.finfo, np.iinfo, *(s for s in _SCALAR_TYPES if "Abstract" not in (s.__doc__ or ""))
)
def _construct_constant(cls: Any, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Construct a constant: a scalar, ``dtype``, ``finfo`` or ``iinfo``."""
    real = realize(tx, args[0]).as_python_object() if len(args) == 1 and not kwargs else NotImplemented
    if isinstance(real, (type, np.finfo, np.iinfo)):
        return tx.fold_constant(cls, real)
    return fold_constant_call(tx, cls, args, kwargs)


def tensor_to_numpy(tensor: Any) -> Variable:
    """Trace ``tensor.numpy()``."""
    fake = tensor.fake
    is_plain = tensor.python_type() in _PLAIN_TENSOR_TYPES and fake.dtype not in _DTYPES_WITHOUT_NUMPY
    is_readable = is_plain and (fake.device.type, fake.layout) == ("cpu", torch.strided)
    if not is_readable or fake.requires_grad or fake.is_conj() or fake.is_neg():
        raise Unsupported("data-dependent", "Tensor.numpy is called on a tensor that numpy cannot represent")
    return NumpyNdarrayVariable(tensor)


@register_tensor_method("numpy")
def _numpy(tx: Tracer, tensor: TensorVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``tensor.numpy()``; ``force=True`` detaches and moves to CPU first."""
    converted: Any = tensor
    if realize(tx, kwargs.get("force", ConstantVariable(False))).is_truthy(tx):
        for method in ("detach", "cpu", "resolve_conj", "resolve_neg"):
            converted = realize(tx, converted.call_method(tx, method, [], {}))
    return tensor_to_numpy(converted)


_PLAIN_TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


_DTYPES_WITHOUT_NUMPY = frozenset(
    dtype for name, dtype in vars(torch).items() if name.startswith(("bfloat", "float8", "bits"))
)


@register_builder(np.ndarray)
def _array(tx: Tracer, real: Any, source: Source) -> Variable:
    tensor = tensor_from_array(real)
    if tensor is None or not real.flags.writeable:
        article = "an" if real.flags.writeable else "a read-only"
        raise Unsupported("numpy-array", f"{article} array of {real.dtype} with strides {real.strides}")
    tx.guard_type(real, source, "the array takes part in the computation")
    value: Any = tx.wrap(tensor, NumpyTensorSource(source))
    return NumpyNdarrayVariable(value, source=source, real_object=real)


def _is_numpy_function(real: Any) -> bool:
    is_dispatcher = isinstance(real, (np.ufunc, type(np.sum)))
    looks_like_numpy = type(real).__module__.startswith("numpy") or getattr(real, "__module__", "") == "numpy"
    return looks_like_numpy and (is_dispatcher or id(real) in _torch_numpy_functions())


register_builder_if(20, _is_numpy_function)(guarded_builder(NumpyFunctionVariable, "it was called"))


for _module in (np, np.linalg, np.fft):  # functions in Python would be inlined otherwise
    for _function in _functions_of(_module).values():
        if isinstance(_function, types.FunctionType) and _function.__module__.startswith("numpy"):
            register_rule(_function)(
                NumpyFunctionVariable(_function, ConstantSource(_function, _function.__name__)).call
            )


_MAX_ELEMENTS = 1 << 14
"""Maximum number of elements of a constant array, whose contents are stored with the code."""
_LAYOUT_ATTRIBUTES = frozenset(("shape", "ndim", "dtype", "size", "itemsize", "strides", "nbytes"))


class ConstantArrayStorageVariable(Variable):
    """Shared memory of constant arrays that alias: the base array at this point of the trace."""

    base_array: np.ndarray[Any, Any]
    views: weakref.WeakSet[ConstantNdarrayVariable] = fresh(weakref.WeakSet)
    flat_tensor: TensorVariable | None = state(None)
    """Flat graph tensor of all elements in memory order, once the graph has it."""
    _version: int = state(0)
    cls = np.ndarray
    is_mutable = True

    @property
    def is_current(self) -> bool:
        """True if ``base_array`` is current: the graph did not mutate the tensor."""
        return self.flat_tensor is None or self.flat_tensor.fake._version == self._version

    def materialize(self, tx: Tracer) -> TensorVariable:
        """Create a graph tensor of all elements. All arrays over this memory become views of it.

        Raises:
            Unsupported: no tensor can have the strides of one of the arrays.
        """
        if self.flat_tensor is not None:
            return self.flat_tensor
        arrays = list(self.views)
        if any(s < 0 or s % a.array.itemsize for a in arrays for s in a.array.strides):
            raise Unsupported(
                "numpy-array", "an array with strides that no tensor can have shares memory with one passed to torch"
            )
        with _in_outermost_graph(tx):
            flat = constant_tensor(tx, self.base_array.flatten(order="K"))
        self.flat_tensor, self._version = flat, flat.fake._version
        return flat

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(np.copy, self.base_array.copy(order="K"))


def constant_tensor(tx: Tracer, content: np.ndarray[Any, Any]) -> TensorVariable:
    """Emit a node that creates a tensor of these elements, laid out as by ``torch.tensor``.

    The array must not be mutated afterwards.

    Raises:
        Unsupported: torch has no such dtype or strides.
    """
    what = f"a tensor created from an array of {content.dtype}"
    with BreakGraph("numpy-array", what, (TypeError, ValueError)):
        laid_out = torch.tensor(content)
    shape, strides = tuple(laid_out.shape), laid_out.stride()
    flat_content = laid_out.as_strided((laid_out.numel(),), (1,)).numpy()

    def make() -> torch.Tensor:
        flat = torch.tensor(flat_content)
        return flat if shape == tuple(flat.shape) else flat.as_strided(shape, strides).clone()

    tensor: Any = emit_node(tx, "call_function", GraphCallable("constant_array", make), [], run=make)
    return tensor  # type: ignore[no-any-return]


class ConstantNdarrayVariable(NumpyNdarrayVariable):
    """A numpy array with constant elements."""

    __slots__ = ("_tx", "_view", "array", "storage")

    def __init__(self, tx: Tracer, array: np.ndarray[Any, Any], storage: ConstantArrayStorageVariable) -> None:
        self._tx = tx
        self.array = array
        self.storage = storage
        self.is_scalar = False
        self.source = None
        self.real_object = NotImplemented
        self._view: TensorVariable | None = None
        storage.views.add(self)

    @property
    def tensor(self) -> TensorVariable:
        """The elements as a graph tensor."""
        if self._view is None:
            flat = self.storage.materialize(self._tx)
            size = self.array.itemsize
            strides = TupleVariable([ConstantVariable(s // size) for s in self.array.strides])
            begin = (_address(self.array) - _address(self.storage.base_array)) // size
            shape = TupleVariable([ConstantVariable(n) for n in self.array.shape])
            with _in_outermost_graph(self._tx):
                view: Any = flat.call_method(self._tx, "as_strided", [shape, strides, ConstantVariable(begin)], {})
            self._view = view
        return self._view

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.array.dtype
        return dtype

    def describe(self) -> str:
        return f"array {self.dtype}[{', '.join(map(str, self.array.shape))}]"

    def child_variables(self) -> list[Variable]:
        return [self.storage] if self.storage.flat_tensor is None else [self.tensor]

    def is_truthy(self, tx: Tracer) -> bool:
        if not self.storage.is_current:
            return super().is_truthy(tx)
        return bool(tx.fold_constant(bool, self.array).as_python_constant(tx))

    def length(self, tx: Tracer) -> Variable:
        return tx.fold_constant(len, self.array)

    def _ndim(self, tx: Tracer) -> int:
        return self.array.ndim

    def _layout_attribute(self, tx: Tracer, name: str) -> Variable | None:
        return tx.from_python(getattr(self.array, name)) if name in _LAYOUT_ATTRIBUTES else None

    def copy_to_tensor(self, tx: Tracer) -> Variable | None:
        if not self.storage.is_current:
            return None
        root, content = self.storage.base_array.copy(order="K"), self.array
        begin = _address(content) - _address(self.storage.base_array)
        return constant_tensor(tx, make_array_view(root, content.shape, content.strides, begin, True, content.dtype))

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name in ("tolist", "item") and self.storage.is_current:
            constants = tx.as_python_constants([realize(tx, a) for a in args])
            return tx.fold_constant(getattr(self.array, name), *constants)
        return super().call_method(tx, name, args, kwargs)

    def reconstruct(self, cg: PyCodegen) -> None:
        if self.storage.flat_tensor is not None:
            super().reconstruct(cg)
            return
        if self.array is self.storage.base_array:
            cg.load(self.storage)
            return
        array, begin = self.array, _address(self.array) - _address(self.storage.base_array)
        writeable = array.flags.writeable
        cg.call(make_array_view, self.storage, array.shape, array.strides, begin, writeable, array.dtype)


def _in_outermost_graph(tx: Tracer) -> contextlib.AbstractContextManager[None]:
    """Emit nodes into the outermost graph.

    An array may outlive the subgraph of a higher-order operator that reads it.
    """
    outermost = tx.graph
    while outermost.outer is not None:
        outermost = outermost.outer
    return emitting_into(tx, outermost)


def _address(array: np.ndarray[Any, Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _base_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _compute_constant(tx: Tracer, name: str, function: _Function, tree: TreeSpec, leaves: list[Any]) -> Variable | None:
    """Compute a numpy call on constant arrays; None if the graph must compute it.

    ``tree`` is the structure of the arguments, ``leaves`` are the arrays among them.

    Raises:
        Unsupported: numpy raises or warns. All mutations are undone.
    """
    if tx.in_subgraph():
        return None
    if not all(isinstance(a, ConstantNdarrayVariable) and a.storage.is_current for a in leaves):
        return None
    memories = list(dict.fromkeys(a.storage for a in leaves))
    if any(m.flat_tensor is not None for m in memories):
        return _read_only_result(tx, function, tree, leaves)
    before = [m.base_array.copy(order="K") for m in memories]
    warned: list[str] = []
    args, keywords = unflatten_python(tree, (a.array for a in leaves))
    with contextlib.ExitStack() as undo:
        undo.callback(_restore, memories, before)
        try:
            with np.errstate(all="call", call=lambda kind, _: warned.append(kind)):
                result = function(*args, **keywords)
        except Exception as error:  # eager raises it, too, where the code runs as Python
            raise Unsupported("numpy-function", f"numpy.{name} raises {type(error).__name__}") from error
        if warned:
            raise Unsupported("numpy-function", f"numpy.{name} warns of a {warned[0]}")
        wrapped = _wrap_constant_result(tx, result, leaves)
        changed = [m for m, old in zip(memories, before, strict=True) if m.base_array.tobytes("A") != old.tobytes("A")]
        if wrapped is None and changed:
            return None
        undo.pop_all()
    for memory in changed:
        tx.side_effects.record_mutation(memory)
    return wrapped


def _read_only_result(tx: Tracer, function: _Function, tree: TreeSpec, leaves: list[Any]) -> Variable | None:
    """Compute a read-only call with a scalar result on arrays in the graph; None for others."""
    views = []
    for leaf in leaves:
        view = leaf.array.view()
        view.flags.writeable = False
        views.append(view)
    args, keywords = unflatten_python(tree, iter(views))
    try:
        with np.errstate(all="raise"):
            result = function(*args, **keywords)
    except (ArithmeticError, ValueError, IndexError, TypeError):
        return None  # it mutates or raises: the graph must handle it
    return tx.from_python(result) if isinstance(result, np.generic) else None


def _restore(memories: Sequence[ConstantArrayStorageVariable], before: Sequence[np.ndarray[Any, Any]]) -> None:
    for memory, was in zip(memories, before, strict=True):
        memory.base_array[...] = was


def _wrap_constant_result(tx: Tracer, result: Any, leaves: Sequence[Any]) -> Variable | None:
    """Wrap a result; None if it is too large to store, or reads memory as another dtype."""
    parts: list[Any] = []
    tree = flatten_python(result, parts)
    items = [
        _wrap_array(tx, part, leaves) if isinstance(part, np.ndarray) else non_array_result(tx, part) for part in parts
    ]
    return None if None in items else unflatten_variable(tx, tree, iter(items))  # type: ignore[arg-type]


def _wrap_array(tx: Tracer, result: np.ndarray[Any, Any], leaves: Sequence[Any]) -> Variable | None:
    same = next((a for a in leaves if a.array is result), None)
    if same is not None:
        argument: Variable = same
        return argument
    root = _base_array(result)
    if type(result) is not np.ndarray or type(root) is not np.ndarray or root.base is not None:
        raise Unsupported("numpy-function", f"numpy returns a {type(result).__name__}")
    if root.size > _MAX_ELEMENTS or result.size > _MAX_ELEMENTS or root.dtype != result.dtype:
        return None
    if result.dtype.kind not in "biufc" or not result.dtype.isnative:
        raise Unsupported("numpy-array", f"an array of {result.dtype}")
    memory = next((a.storage for a in leaves if a.storage.base_array is root), None)
    return ConstantNdarrayVariable(tx, result, memory if memory is not None else ConstantArrayStorageVariable(root))
