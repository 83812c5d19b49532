"""numpy arrays as graph tensors; numpy functions run through ``torch._numpy``.

Real numpy runs on probe arrays of the same dtype, shape and strides. If ``torch._numpy`` returns another dtype,
shape or aliasing, the graph breaks.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from engine.ir.graph_callable import GraphCallable
from engine.ir.introspection.unbacked_symbols import has_unbacked_symbols
from engine.ir.sources.base import Source
from engine.ir.sources.roots import ConstantSource
from engine.ir.sources.tensors import NumpyTensorSource, tensor_from_array
from engine.trace.codegen_runtime.tensors import to_numpy
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.operators.arithmetic import call_special_by_name, fold_constant_call
from engine.trace.operators.operand import OperatorResult
from engine.trace.operators.table import Operator
from engine.trace.symbols.unbacked_symints import data_dependent_break
from engine.trace.variables.base import (
    NONE,
    Args,
    ConstantVariable,
    Kwargs,
    NotPythonConstant,
    RealObjectVariable,
    Variable,
    realize,
)
from engine.trace.variables.builder import register_builder, register_builder_if
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.iterators import SequenceIteratorVariable
from engine.trace.variables.containers.sequences import (
    ListVariable,
    SequenceVariable,
    TupleVariable,
)
from engine.trace.variables.tensors.sym_node import SymNodeVariable, has_hint, hint
from engine.trace.variables.tensors.tensor import TensorVariable
from engine.trace.variables.tensors.tensor_members import register_tensor_method
from engine.trace.variables.tensors.tensor_methods import can_tolist, tolist

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.tracer import Tracer


_MAX_PROBE_ELEMENTS = 1 << 24
"""Maximum number of elements of a probe array."""


_INDEX_DTYPES = frozenset((torch.int32, torch.int64, torch.bool))
_MIN_NESTED_DIM = 2
"""Number of dims that make an array a nested sequence, which torch may read as a tuple."""


_VIEW_ATTRIBUTES = ("T", "real", "imag")


_UNSUPPORTED_METHODS = frozenset(
    "tolist item tobytes tofile dump dumps view getfield byteswap setflags __array__ __reduce__".split()
)


class NumpyNdarrayVariable(Variable):
    """A numpy array, or a numpy scalar if ``is_scalar``, over the memory of a tensor."""

    __slots__ = ("is_scalar", "real_object", "source", "tensor")

    is_mutable = True

    def __init__(
        self,
        tensor: TensorVariable,
        *,
        is_scalar: bool = False,
        source: Source | None = None,
        real_object: Any = NotImplemented,
    ) -> None:
        self.tensor = tensor
        self.is_scalar = is_scalar
        self.source = source
        self.real_object = real_object

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the elements."""
        return _numpy_dtype(self.tensor.fake.dtype)

    def python_type(self) -> type:
        return self.dtype.type if self.is_scalar else np.ndarray

    def describe(self) -> str:
        return f"array {self.dtype}[{', '.join(str(s) for s in self.tensor.fake.shape)}]"

    def as_python_object(self) -> Any:
        return self.real_object

    def hash_key(self, tx: Tracer) -> Any:
        if not self.is_scalar:
            tx.raise_type_error("unhashable type: 'numpy.ndarray'")
        return super().hash_key(tx)

    def child_variables(self) -> list[Variable]:
        return [self.tensor]

    def is_truthy(self, tx: Tracer) -> bool:
        raise Unsupported("data-dependent", f"bool() of an {self.describe()}")

    def length(self, tx: Tracer) -> Variable:
        if not self.tensor.fake.dim():
            tx.raise_type_error("len() of unsized object")
        return self.tensor.size(tx, 0)

    def get_iterator(self, tx: Tracer) -> Variable:
        if not self.tensor.fake.dim():
            tx.raise_type_error("iteration over a 0-d array")
        count = int(self.tensor.size(tx, 0).as_python_constant(tx))
        return SequenceIteratorVariable([self.get_item(tx, ConstantVariable(n)) for n in range(count)], type(iter(())))

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return call_numpy(tx, "ndarray.__getitem__", lambda a, k: a[k], lambda a, k: a[k], [self, key], {})

    def set_item(self, tx: Tracer, key: Variable, value: Variable) -> None:
        def assign(a: Any, k: Any, v: Any) -> None:
            a[k] = v

        call_numpy(tx, "ndarray.__setitem__", assign, assign, [self, key, value], {})

    def binary(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        return _apply_operator(tx, op, self, right)

    inplace = compare = binary

    def reflected(self, tx: Tracer, op: Operator, left: Variable) -> OperatorResult:
        return _apply_operator(tx, op, left, self)

    def unary(self, tx: Tracer, op: Operator) -> Variable:
        return _apply_operator(tx, op, self)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        found = self._layout_attribute(tx, name)
        if found is not None:
            return found
        if name == "__class__":
            return tx.wrap_static(self.python_type())
        if name in _VIEW_ATTRIBUTES:
            return call_numpy(tx, f"ndarray.{name}", _attribute(name), _attribute(name), [self], {})
        method = getattr(np.ndarray, name, None)
        if method is None:
            tx.raise_error(AttributeError, f"'{self.python_type().__name__}' object has no attribute '{name}'")
        if not callable(method):
            raise self.unsupported_attribute("reading", name)
        return BuiltinMethodVariable(self, name)

    def _layout_attribute(self, tx: Tracer, name: str) -> Variable | None:
        """Return an attribute of the array's layout, or None for any other attribute."""
        fake = self.tensor.fake
        match name:
            case "shape":
                return TupleVariable([self.tensor.size(tx, d) for d in range(fake.dim())])
            case "ndim":
                return ConstantVariable(fake.dim())
            case "dtype":
                return ConstantVariable(self.dtype)
            case "size":
                return self.tensor.call_method(tx, "numel", [], {})
            case "itemsize":
                return ConstantVariable(self.dtype.itemsize)
            case "strides":
                return TupleVariable([tx.fold_constant(int, s * self.dtype.itemsize) for s in fake.stride()])
            case "nbytes":
                return tx.fold_constant(int, fake.numel() * self.dtype.itemsize)
        return None

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name == "tolist" and not args and not kwargs and not self.is_scalar and can_tolist(self.tensor):
            return tolist(tx, self.tensor)
        if name in _UNSUPPORTED_METHODS:
            raise Unsupported("data-dependent", f"ndarray.{name} is called")
        match name:
            case "__len__":
                return self.length(tx)
            case "__getitem__":
                return self.get_item(tx, args[0])
            case "__iter__":
                return self.get_iterator(tx)
        if name.startswith("__") and len(args) == 1:
            return call_special_by_name(tx, self, name, args, kwargs)
        method = _method(name)
        return call_numpy(tx, f"ndarray.{name}", method, method, [self, *args], kwargs)

    def as_tensor_index(self, *, in_tuple: bool) -> Variable:
        fake = self.tensor.fake
        if not in_tuple and fake.dim() >= _MIN_NESTED_DIM:
            return self
        is_index = fake.dtype in _INDEX_DTYPES and not (self.is_scalar and fake.dtype is torch.bool)
        return self.tensor if is_index else self

    def copy_to_tensor(self, tx: Tracer) -> Variable | None:
        """Copy the elements to a graph tensor without a tensor over the array's memory, or None."""
        return None

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        raise Unsupported("unsupported-argument", "a numpy array as an argument of a torch operation")

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_helper(to_numpy, 0)
        cg.load(self.tensor)
        cg.load_const(self.is_scalar)
        cg.body.call(2)


def _attribute(name: str) -> Callable[[Any], Any]:
    return lambda a: getattr(a, name)


def _method(name: str) -> Callable[..., Any]:
    return lambda a, *args, **kwargs: getattr(a, name)(*args, **kwargs)


@functools.cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype


@functools.cache
def _torch_numpy_functions() -> dict[int, tuple[Any, Callable[..., Any]]]:
    """Return numpy functions that ``torch._numpy`` also has, by id."""
    import torch._numpy as torch_numpy

    found: dict[int, tuple[Any, Callable[..., Any]]] = {}
    for theirs, ours in ((np, torch_numpy), (np.linalg, torch_numpy.linalg), (np.fft, torch_numpy.fft)):
        for name, function in vars(theirs).items():
            if name.startswith("_") or not callable(function) or isinstance(function, type):
                continue
            other = _stack_nested_arrays if name == "array" else getattr(ours, name, None)
            if callable(other) and not isinstance(other, type):
                found[id(function)] = (function, other)
    return found


def _stack_nested_arrays(data: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``numpy.array``, also on sequences of arrays, which ``torch._numpy`` rejects."""
    import torch._numpy

    torch_numpy: Any = torch._numpy
    if isinstance(data, (list, tuple)) and any(isinstance(d, (list, tuple, torch_numpy.ndarray)) for d in data):
        data = torch_numpy.stack([_stack_nested_arrays(d) for d in data])
    return torch_numpy.array(data, *args, **kwargs)


class NumpyFunctionVariable(RealObjectVariable):
    """A numpy function."""

    __slots__ = ()

    def describe(self) -> str:
        return f"numpy.{self.real_object.__name__}"

    def is_truthy(self, tx: Tracer) -> bool:
        return True

    def as_python_constant(self, tx: Tracer) -> Any:
        return self.real_object

    def hash_key(self, tx: Tracer) -> Any:
        return self.real_object

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        known = _torch_numpy_functions().get(id(self.real_object))
        if known is None:
            raise Unsupported("numpy-function", f"{self.describe()} is called")
        return call_numpy(tx, self.real_object.__name__, self.real_object, known[1], list(args), kwargs)


class _TensorArgument:
    """A tensor passed to numpy directly; numpy reads its memory or calls its methods."""

    def __init__(self, tensor: TensorVariable) -> None:
        self.tensor = tensor
        self.is_scalar = False


class _LeafPlaceholder:
    """Placeholder of the n-th array, tensor or symbol among a call's arguments."""

    def __init__(self, index: int) -> None:
        self.index = index


def call_numpy(
    tx: Tracer, name: str, numpys: Callable[..., Any], torchs: Callable[..., Any], args: Args, kwargs: Kwargs
) -> Variable:
    """Trace ``numpys(*args)`` as a node that calls ``torchs``.

    Without array arguments and an array result, numpy runs while tracing.

    Raises:
        Unsupported: ``torch._numpy`` returns another dtype, shape or aliasing, or the result depends on array elements.
    """
    leaves: list[_LeafVariable] = []
    packed = [_collect_leaves(tx, realize(tx, a), leaves) for a in args]
    words = {k: _collect_leaves(tx, realize(tx, v), leaves) for k, v in kwargs.items()}
    if (known := _constant_result(tx, name, numpys, packed, words, leaves)) is not None:
        return known
    models = [_probe_array(tx, a) for a in leaves]
    try:
        wanted = numpys(
            *_substitute_leaves(packed, models, theirs=True), **_substitute_leaves(words, models, theirs=True)
        )
    except Exception as error:
        raise Unsupported("numpy-function", f"numpy.{name} raises {type(error).__name__}") from error
    if not leaves and not _holds_arrays(wanted):
        return non_array_result(tx, wanted)
    _check_not_value_dependent(name)
    for runner in (_TorchNumpyCall(torchs, packed, words), _TorchNumpyCall(torchs, packed, words, as_doubles=True)):
        result = emit_node(
            tx, "call_function", GraphCallable(f"numpy.{name}", runner), list(map(_leaf_argument, leaves)), run=runner
        )
        try:
            return _wrap_result(tx, name, realize(tx, result), wanted, leaves, models)
        except _ResultMismatch:
            if not any(isinstance(a, NumpyNdarrayVariable) and a.dtype.kind in "iub" for a in leaves):
                break
    raise Unsupported("numpy-function", f"numpy.{name} returns another type than torch's numpy")


_LeafVariable = NumpyNdarrayVariable | _TensorArgument | SymNodeVariable


def _constant_result(
    tx: Tracer, name: str, function: Callable[..., Any], packed: Any, words: Any, leaves: list[_LeafVariable]
) -> Variable | None:
    """Compute the call with numpy if all arguments are constants or constant arrays."""

    def place(contents: Sequence[Any]) -> tuple[Any, Any]:
        return _substitute_leaves(packed, contents, theirs=True), _substitute_leaves(words, contents, theirs=True)

    (compute,) = _CONSTANT_EVALUATORS
    return compute(tx, name, function, place, leaves)


if TYPE_CHECKING:
    _Place = Callable[[Sequence[Any]], tuple[Any, Any]]
    _ConstantEvaluator = Callable[[Tracer, str, Callable[..., Any], _Place, Sequence[Any]], Variable | None]

_CONSTANT_EVALUATORS: list[_ConstantEvaluator] = []


def register_constant_evaluator(evaluator: _ConstantEvaluator) -> _ConstantEvaluator:
    """Register the function that computes a numpy call on constants while tracing."""
    _CONSTANT_EVALUATORS.append(evaluator)
    return evaluator


class _ResultMismatch(Exception):
    """Raised if ``torch._numpy`` returns another dtype, shape or aliasing than numpy."""


def _leaf_argument(leaf: _LeafVariable) -> Variable:
    return leaf if isinstance(leaf, SymNodeVariable) else leaf.tensor


def _collect_leaves(tx: Tracer, value: Variable, leaves: list[_LeafVariable]) -> Any:
    if isinstance(value, TensorVariable):
        tensor_to_numpy(tx, value)  # raises Unsupported if numpy cannot read the tensor
        leaves.append(_TensorArgument(value))
        return _LeafPlaceholder(len(leaves) - 1)
    if isinstance(value, NumpyNdarrayVariable) or (isinstance(value, SymNodeVariable) and has_hint(value.sym)):
        leaves.append(value)
        return _LeafPlaceholder(len(leaves) - 1)
    if isinstance(value, (TupleVariable, ListVariable)):
        items = [_collect_leaves(tx, realize(tx, i), leaves) for i in value.items]
        return tuple(items) if isinstance(value, TupleVariable) else items
    if isinstance(value, DictVariable):
        return {k: _collect_leaves(tx, realize(tx, v), leaves) for k, (_, v) in value.entries.items()}
    try:
        return value.as_python_constant(tx)
    except NotPythonConstant:
        raise Unsupported("numpy-function", f"numpy is called on a {value.python_type().__name__}") from None


def _substitute_leaves(packed: Any, arrays: Sequence[Any], *, theirs: bool) -> Any:
    """Substitute arrays for the placeholders in the arguments.

    For ``torch._numpy``, numpy dtypes are replaced by its own.
    """
    if isinstance(packed, _LeafPlaceholder):
        return arrays[packed.index]
    if isinstance(packed, (tuple, list)):
        return type(packed)(_substitute_leaves(p, arrays, theirs=theirs) for p in packed)
    if isinstance(packed, dict):
        return {k: _substitute_leaves(p, arrays, theirs=theirs) for k, p in packed.items()}
    if not theirs and (isinstance(packed, np.dtype) or (isinstance(packed, type) and issubclass(packed, np.generic))):
        import torch._numpy as torch_numpy

        return getattr(torch_numpy, np.dtype(packed).name)
    return packed.item() if not theirs and isinstance(packed, np.generic) else packed


def _probe_array(tx: Tracer, of: _LeafVariable) -> Any:
    """Create a probe array, tensor or number with the metadata of this one.

    Raises:
        Unsupported: the size depends on tensor elements, or it is too large.
    """
    if isinstance(of, SymNodeVariable):
        return hint(of.sym)
    fake = of.tensor.fake
    unknown = next((size for size in fake.shape if has_unbacked_symbols(size)), None)
    if unknown is not None:
        raise data_dependent_break(tx, unknown, "dynamic-output", "numpy on an array whose size depends on data")
    shape, strides = tuple(map(hint, fake.shape)), tuple(map(hint, fake.stride()))
    if math.prod(shape) > _MAX_PROBE_ELEMENTS:
        raise Unsupported("numpy-function", "numpy on a very large array")
    tensor = torch.empty_strided(shape, strides, dtype=fake.dtype).fill_(1)
    if isinstance(of, _TensorArgument):
        return tensor
    made = tensor.numpy()
    return made[()] if of.is_scalar else made


def _holds_arrays(result: Any) -> bool:
    if isinstance(result, (tuple, list)):
        return any(_holds_arrays(r) for r in result)
    return isinstance(result, np.ndarray)


def non_array_result(tx: Tracer, result: Any) -> Variable:
    """Build the variable of a numpy result without arrays."""
    if isinstance(result, (tuple, list)):
        items = [non_array_result(tx, r) for r in result]
        return ListVariable(items) if isinstance(result, list) else TupleVariable(items, type(result))
    if not isinstance(result, (np.generic, np.dtype, bool, int, float, complex, str, type(None), type)):
        raise Unsupported("numpy-function", f"numpy returns a {type(result).__name__}")
    return tx.from_python(result)


def _check_not_value_dependent(name: str) -> None:
    if name in ("allclose", "array_equal", "array_equiv"):
        raise Unsupported("data-dependent", f"numpy.{name} needs the values of arrays")


class _TorchNumpyCall:
    """Callable of a graph node: calls ``torch._numpy`` on tensors and returns tensors."""

    def __init__(
        self, function: Callable[..., Any], packed: list[Any], words: dict[str, Any], *, as_doubles: bool = False
    ) -> None:
        self._function = function
        self._packed = packed
        self._words = words
        self._as_doubles = as_doubles
        """Convert integers to doubles first, as numpy does if the result is not integral."""

    def __call__(self, *tensors: torch.Tensor) -> Any:
        import torch._numpy

        array: Any = getattr(torch._numpy, "ndarray")  # noqa: B009
        if self._as_doubles:
            tensors = tuple(t.double() if isinstance(t, torch.Tensor) and _is_integral(t) else t for t in tensors)
        arrays = [array(t) if isinstance(t, torch.Tensor) else t for t in tensors]
        args = _substitute_leaves(self._packed, arrays, theirs=False)
        return _arrays_to_tensors(self._function(*args, **_substitute_leaves(self._words, arrays, theirs=False)))


def _is_integral(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _arrays_to_tensors(result: Any) -> Any:
    if isinstance(result, (tuple, list)):
        return (
            type(result)(map(_arrays_to_tensors, result))
            if type(result) in (tuple, list)
            else tuple(map(_arrays_to_tensors, result))
        )
    return getattr(result, "tensor", result)


def _wrap_result(
    tx: Tracer, name: str, result: Variable, wanted: Any, leaves: list[_LeafVariable], models: list[Any]
) -> Variable:
    """Wrap a result, if its metadata and aliasing match those of numpy's result."""
    if isinstance(wanted, (tuple, list)):
        if not isinstance(result, SequenceVariable) or len(result.items) != len(wanted):
            raise _ResultMismatch
        items = [
            _wrap_result(tx, name, realize(tx, r), w, leaves, models) for r, w in zip(result.items, wanted, strict=True)
        ]
        return ListVariable(items) if isinstance(wanted, list) else TupleVariable(items, type(wanted))
    if not isinstance(wanted, (np.ndarray, np.generic)):
        if isinstance(result, ConstantVariable) and (wanted is None or type(wanted) is type(result.value)):
            return NONE if wanted is None else result
        raise _ResultMismatch
    if not isinstance(result, TensorVariable):
        raise _ResultMismatch
    fake = result.fake
    sizes = tuple(map(hint, fake.shape)) if all(map(has_hint, fake.shape)) else None
    if fake.device.type != "cpu" or sizes != wanted.shape or _numpy_dtype(fake.dtype) != wanted.dtype:
        raise _ResultMismatch
    is_scalar = isinstance(wanted, np.generic)
    for leaf, model in zip(leaves, models, strict=True):
        if isinstance(leaf, SymNodeVariable):
            continue
        if leaf.tensor is result and wanted is model and isinstance(leaf, NumpyNdarrayVariable):
            return leaf
        memory = model.numpy() if isinstance(model, torch.Tensor) else model
        theirs = isinstance(wanted, np.ndarray) and isinstance(memory, np.ndarray) and np.shares_memory(wanted, memory)
        mine = fake.untyped_storage()._cdata == leaf.tensor.fake.untyped_storage()._cdata
        if theirs != mine and not is_scalar:
            if theirs:
                raise _ResultMismatch
            result = realize(tx, result.call_method(tx, "clone", [], {}))
            assert isinstance(result, TensorVariable)
    return NumpyNdarrayVariable(result, is_scalar=is_scalar)


def _apply_operator(tx: Tracer, op: Operator, *operands: Variable) -> Variable:
    """Trace a Python operator on arrays."""
    return call_numpy(tx, op.function.__name__, op.function, op.function, list(operands), {})


def _register_scalar_types() -> None:
    for cls in {v for v in vars(np).values() if isinstance(v, type) and issubclass(v, (np.number, np.bool_))}:
        if "Abstract" not in (cls.__doc__ or ""):
            register_rule(cls)(_scalar_type_rule(cls))


def _scalar_type_rule(cls: Any) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return fold_constant_call(
            tx, cls, args, kwargs, f"numpy.{cls.__name__} of a value that is not known while tracing is created"
        )

    return rule


_register_scalar_types()


def _register_type_info(of: Any) -> None:
    """Register the rule of ``np.finfo`` or ``np.iinfo``."""

    @register_rule(of)
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        given = realize(tx, args[0]) if len(args) == 1 and not kwargs else NONE
        real = (
            given.as_python_object()
            if isinstance(given.as_python_object(), (type, of))
            else given.as_python_constant(tx)
        )
        return tx.fold_constant(of, real)


_register_type_info(np.finfo)


_register_type_info(np.iinfo)


@register_rule(np.dtype)
def _dtype(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return fold_constant_call(tx, np.dtype, args, kwargs, "numpy.dtype of a value that is not known while tracing")


def tensor_to_numpy(tx: Tracer, tensor: TensorVariable) -> Variable:
    """Trace ``tensor.numpy()``."""
    fake = tensor.fake
    if fake.requires_grad or fake.device.type != "cpu" or fake.is_conj() or fake.is_neg():
        raise Unsupported("data-dependent", "Tensor.numpy is called on a tensor that numpy cannot represent")
    if (
        fake.layout is not torch.strided
        or fake.dtype in _DTYPES_WITHOUT_NUMPY
        or tensor.python_type() not in _PLAIN_TENSOR_TYPES
    ):
        raise Unsupported("data-dependent", "Tensor.numpy is called on a tensor that numpy cannot represent")
    return NumpyNdarrayVariable(tensor)


@register_tensor_method("numpy")
def _numpy(tx: Tracer, tensor: TensorVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``tensor.numpy()``; ``force=True`` detaches and moves to CPU first."""
    found: Variable = tensor
    if realize(tx, kwargs.get("force", ConstantVariable(False))).is_truthy(tx):
        for method in ("detach", "cpu", "resolve_conj", "resolve_neg"):
            found = realize(tx, found.call_method(tx, method, [], {}))
    assert isinstance(found, TensorVariable)
    return tensor_to_numpy(tx, found)


_PLAIN_TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


_DTYPES_WITHOUT_NUMPY = frozenset(
    d
    for d in vars(torch).values()
    if isinstance(d, torch.dtype) and ("bfloat" in str(d) or "float8" in str(d) or "bits" in str(d))
)


@register_builder(np.ndarray)
def _array(tx: Tracer, real: Any, origin: Source) -> Variable:
    tensor = tensor_from_array(real)
    if tensor is None or not real.flags.writeable:
        raise Unsupported("numpy-array", f"an array of {real.dtype}")
    tx.guard_type(real, origin, "the array takes part in the computation")
    value = tx.wrap(tensor, NumpyTensorSource(origin))
    assert isinstance(value, TensorVariable)
    return NumpyNdarrayVariable(value, source=origin, real_object=real)


def _is_numpy_function(real: Any) -> bool:
    return isinstance(real, np.ufunc) or id(real) in _torch_numpy_functions()


def _looks_like_numpy(real: Any) -> bool:
    return type(real).__module__.startswith("numpy") or getattr(real, "__module__", "") == "numpy"


@register_builder_if(20, lambda real: _looks_like_numpy(real) and _is_numpy_function(real))
def _function(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_identity(real, origin, "it was called")
    return NumpyFunctionVariable(real, origin)


def _register_python_functions() -> None:
    """Register rules for numpy functions in Python, which would be inlined otherwise."""
    for module in (np, np.linalg, np.fft):
        for function in vars(module).values():
            if isinstance(function, types.FunctionType) and function.__module__.startswith("numpy"):
                register_rule(function)(_numpy_function_rule(function))


def _numpy_function_rule(function: Any) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return NumpyFunctionVariable(function, ConstantSource(function, function.__name__)).call(tx, args, kwargs)

    return rule


_register_python_functions()
