"""numpy in traced code: arrays are tensors of the graph, and functions of numpy run as those of ``torch._numpy``.

What numpy itself makes of arrays of the same kind and size says of which type, size and memory a result is: where torch's numpy would differ, the graph breaks.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from engine.ir.in_graph import InGraph
from engine.ir.origin import ArrayTensor, Fixed, Origin, tensor_of_array
from engine.ir.unbacked import is_unbacked
from engine.options import config
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.support import numpy_of
from engine.trace.unbacked import needs_number
from engine.trace.values.base import NONE, Const, HeldValue, NotConstant, Value, force, is_none, reached
from engine.trace.values.iterators import SequenceIterator
from engine.trace.values.mappings import DictValue
from engine.trace.values.methods import MethodOf
from engine.trace.values.rules import special
from engine.trace.values.sequences import ListValue, RangeValue, SequenceValue, TupleValue, sequence_items
from engine.trace.values.symbolic import SymValue, has_hint, hint
from engine.trace.values.tensor import TensorValue
from engine.trace.values.wrap import wraps, wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]
_LIMIT = 1 << 24
"""Larger arrays are not made only to ask numpy what it would return."""
_ATTRIBUTES = ("T", "real", "imag")
_NOT_TRACED = frozenset(
    "tolist item tobytes tofile dump dumps view getfield byteswap setflags __array__ __reduce__".split()
)


class ArrayValue(Value):
    """A numpy array, or with ``is_scalar`` a numpy number, whose memory is a tensor's."""

    is_mutable = True

    def __init__(
        self, tensor: TensorValue, *, is_scalar: bool = False, origin: Origin | None = None, held: Any = NotImplemented
    ) -> None:
        self.tensor = tensor
        self.is_scalar = is_scalar
        self.origin = origin
        self.held = held

    @property
    def dtype(self) -> np.dtype[Any]:
        """numpy's type of the elements."""
        return _numpy_dtype(self.tensor.fake.dtype)

    def type(self) -> type:
        return self.dtype.type if self.is_scalar else np.ndarray

    def describe(self) -> str:
        return f"array {self.dtype}[{', '.join(str(s) for s in self.tensor.fake.shape)}]"

    def real(self) -> Any:
        return self.held

    def key(self, tx: Tracer) -> Any:
        if not self.is_scalar:
            tx.raise_type_error("unhashable type: 'numpy.ndarray'")
        return super().key(tx)

    def children(self) -> list[Value]:
        return [self.tensor]

    def truth(self, tx: Tracer) -> bool:
        raise Unsupported("data-dependent", f"the truth of an {self.describe()}")

    def length(self, tx: Tracer) -> Value:
        if not self.tensor.fake.dim():
            tx.raise_type_error("len() of unsized object")
        return self.tensor.size(tx, 0)

    def iterate(self, tx: Tracer) -> Value:
        if not self.tensor.fake.dim():
            tx.raise_type_error("iteration over a 0-d array")
        count = int(self.tensor.size(tx, 0).python(tx))
        return SequenceIterator([self.get_item(tx, Const(n)) for n in range(count)], type(iter(())))

    def get_item(self, tx: Tracer, key: Value) -> Value:
        return call_numpy(tx, "ndarray.__getitem__", lambda a, k: a[k], lambda a, k: a[k], [self, key], {})

    def set_item(self, tx: Tracer, key: Value, value: Value) -> None:
        def assign(a: Any, k: Any, v: Any) -> None:
            a[k] = v

        call_numpy(tx, "ndarray.__setitem__", assign, assign, [self, key, value], {})

    def get_attr(self, tx: Tracer, name: str) -> Value:
        found = self._layout(tx, name)
        if found is not None:
            return found
        if name == "__class__":
            return tx.fixed(self.type())
        if name in _ATTRIBUTES:
            return call_numpy(tx, f"ndarray.{name}", _attribute(name), _attribute(name), [self], {})
        method = getattr(np.ndarray, name, None)
        if method is None:
            tx.raise_error(AttributeError, f"'{self.type().__name__}' object has no attribute '{name}'")
        if not callable(method):
            raise self.refuse(f"reading the attribute {name!r}")
        return MethodOf(self, name)

    def _layout(self, tx: Tracer, name: str) -> Value | None:
        """An attribute that says how the array lies; None where that is another one."""
        fake = self.tensor.fake
        match name:
            case "shape":
                return TupleValue([self.tensor.size(tx, d) for d in range(fake.dim())])
            case "ndim":
                return Const(fake.dim())
            case "dtype":
                return Const(self.dtype)
            case "size":
                return self.tensor.call_method(tx, "numel", [], {})
            case "itemsize":
                return Const(self.dtype.itemsize)
            case "strides":
                return TupleValue([tx.fold(int, s * self.dtype.itemsize) for s in fake.stride()])
            case "nbytes":
                return tx.fold(int, fake.numel() * self.dtype.itemsize)
        return None

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        from engine.trace.operations import operator_method

        if name == "tolist" and not args and not kwargs and not self.is_scalar and self.tensor.is_listed():
            return self.tensor.listed(tx)
        if name in _NOT_TRACED:
            raise Unsupported("data-dependent", f"ndarray.{name} is called")
        match name:
            case "__len__":
                return self.length(tx)
            case "__getitem__":
                return self.get_item(tx, args[0])
            case "__iter__":
                return self.iterate(tx)
        if name.startswith("__") and len(args) == 1:
            return operator_method(tx, self, name, args, kwargs)
        method = _method(name)
        return call_numpy(tx, f"ndarray.{name}", method, method, [self, *args], kwargs)

    def copied(self, tx: Tracer) -> Value | None:
        """A tensor of the graph with the same elements, where that needs no tensor over its memory; else None."""
        return None

    def graph_arg(self, tx: Tracer) -> tuple[Any, Any]:
        raise Unsupported("unsupported-argument", "a numpy array as an argument of a torch operation")

    def reconstruct(self, cg: Codegen) -> None:
        cg.helper(numpy_of, 0)
        cg.load(self.tensor)
        cg.const(self.is_scalar)
        cg.out.call(2)


def _attribute(name: str) -> Callable[[Any], Any]:
    return lambda a: getattr(a, name)


def _method(name: str) -> Callable[..., Any]:
    return lambda a, *args, **kwargs: getattr(a, name)(*args, **kwargs)


@functools.cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype


@functools.cache
def _functions() -> dict[int, tuple[Any, Callable[..., Any]]]:
    """Functions of numpy that torch's numpy has too, by id."""
    import torch._numpy as torch_numpy

    found: dict[int, tuple[Any, Callable[..., Any]]] = {}
    for theirs, ours in ((np, torch_numpy), (np.linalg, torch_numpy.linalg), (np.fft, torch_numpy.fft)):
        for name, function in vars(theirs).items():
            if name.startswith("_") or not callable(function) or isinstance(function, type):
                continue
            other = _array_of_arrays if name == "array" else getattr(ours, name, None)
            if callable(other) and not isinstance(other, type):
                found[id(function)] = (function, other)
    return found


def _array_of_arrays(data: Any, *args: Any, **kwargs: Any) -> Any:
    """``numpy.array``, also of sequences of arrays, which torch's numpy refuses."""
    import torch._numpy

    torch_numpy: Any = torch._numpy
    if isinstance(data, (list, tuple)) and any(isinstance(d, (list, tuple, torch_numpy.ndarray)) for d in data):
        data = torch_numpy.stack([_array_of_arrays(d) for d in data])
    return torch_numpy.array(data, *args, **kwargs)


class NumpyFunction(HeldValue):
    """A function of numpy."""

    def describe(self) -> str:
        return f"numpy.{self.held.__name__}"

    def truth(self, tx: Tracer) -> bool:
        return True

    def python(self, tx: Tracer) -> Any:
        return self.held

    def key(self, tx: Tracer) -> Any:
        return self.held

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        known = _functions().get(id(self.held))
        if known is None:
            raise Unsupported("unknown-call", f"{self.describe()} is called")
        return call_numpy(tx, self.held.__name__, self.held, known[1], list(args), kwargs)


class _Given:
    """A tensor that is given to numpy as it is: numpy reads its memory, or asks it for a method."""

    def __init__(self, tensor: TensorValue) -> None:
        self.tensor = tensor
        self.is_scalar = False


class _Leaf:
    """Stands for the n-th array, tensor or symbol among a call's arguments."""

    def __init__(self, number: int) -> None:
        self.number = number


def call_numpy(
    tx: Tracer, name: str, numpys: Callable[..., Any], torchs: Callable[..., Any], args: Args, kwargs: Words
) -> Value:
    """``numpys(*args)`` as a node that calls ``torchs``; run at once where no array takes part and the result is none.

    Raises:
        Unsupported: torch's numpy gives another type, size or memory; or what numpy returns depends on values.
    """
    leaves: list[_Leaves] = []
    packed = [_collected(tx, force(tx, a), leaves) for a in args]
    words = {k: _collected(tx, force(tx, v), leaves) for k, v in kwargs.items()}
    if (known := _known_result(tx, name, numpys, packed, words, leaves)) is not None:
        return known
    models = [_model(tx, a) for a in leaves]
    try:
        wanted = numpys(*_placed(packed, models, theirs=True), **_placed(words, models, theirs=True))
    except Exception as error:
        raise Unsupported("unknown-call", f"numpy.{name} raises {type(error).__name__}") from error
    if not leaves and not _holds_arrays(wanted):
        return plain_result(tx, wanted)
    _check_known(name)
    for runner in (_Run(torchs, packed, words), _Run(torchs, packed, words, as_doubles=True)):
        result = emit(tx, "call_function", InGraph(f"numpy.{name}", runner), list(map(_argument, leaves)), run=runner)
        try:
            return _wrapped(tx, name, force(tx, result), wanted, leaves, models)
        except _Differs:
            if not any(isinstance(a, ArrayValue) and a.dtype.kind in "iub" for a in leaves):
                break
    raise Unsupported("unsupported-operation", f"numpy.{name} gives another kind of result than torch's numpy")


_Leaves = ArrayValue | _Given | SymValue


def _known_result(
    tx: Tracer, name: str, function: Callable[..., Any], packed: Any, words: Any, leaves: list[_Leaves]
) -> Value | None:
    """What numpy itself makes of constants, and of arrays made of them."""
    from engine.trace.values.known_arrays import computed

    def place(contents: Sequence[Any]) -> tuple[Any, Any]:
        return _placed(packed, contents, theirs=True), _placed(words, contents, theirs=True)

    return computed(tx, name, function, place, leaves)


class _Differs(Exception):
    """torch's numpy gives another type, size or memory than numpy."""


def _argument(leaf: _Leaves) -> Value:
    return leaf if isinstance(leaf, SymValue) else leaf.tensor


def _collected(tx: Tracer, value: Value, leaves: list[_Leaves]) -> Any:
    if isinstance(value, TensorValue):
        array_of_tensor(tx, value)  # refuses what numpy cannot read
        leaves.append(_Given(value))
        return _Leaf(len(leaves) - 1)
    if isinstance(value, ArrayValue) or (isinstance(value, SymValue) and has_hint(value.sym)):
        leaves.append(value)
        return _Leaf(len(leaves) - 1)
    if isinstance(value, (TupleValue, ListValue)):
        items = [_collected(tx, force(tx, i), leaves) for i in value.items]
        return tuple(items) if isinstance(value, TupleValue) else items
    if isinstance(value, DictValue):
        return {k: _collected(tx, force(tx, v), leaves) for k, (_, v) in value.entries.items()}
    try:
        return value.python(tx)
    except NotConstant:
        raise Unsupported("unsupported-argument", f"numpy is called on a {value.type().__name__}") from None


def _placed(packed: Any, arrays: Sequence[Any], *, theirs: bool) -> Any:
    """Arguments with arrays in their places; for torch's numpy, types of elements become its own."""
    if isinstance(packed, _Leaf):
        return arrays[packed.number]
    if isinstance(packed, (tuple, list)):
        return type(packed)(_placed(p, arrays, theirs=theirs) for p in packed)
    if isinstance(packed, dict):
        return {k: _placed(p, arrays, theirs=theirs) for k, p in packed.items()}
    if not theirs and (isinstance(packed, np.dtype) or (isinstance(packed, type) and issubclass(packed, np.generic))):
        import torch._numpy as torch_numpy

        return getattr(torch_numpy, np.dtype(packed).name)
    return packed.item() if not theirs and isinstance(packed, np.generic) else packed


def _model(tx: Tracer, of: _Leaves) -> Any:
    """An array, tensor or number like this one, to ask numpy with.

    Raises:
        Unsupported: values decide the array's size.
    """
    if isinstance(of, SymValue):
        return hint(of.sym)
    fake = of.tensor.fake
    unknown = next((size for size in fake.shape if is_unbacked(size)), None)
    if unknown is not None:
        raise needs_number(tx, unknown, "dynamic-output", "numpy on an array whose size depends on values")
    shape, strides = tuple(map(hint, fake.shape)), tuple(map(hint, fake.stride()))
    if math.prod(shape) > _LIMIT:
        raise Unsupported("unsupported-operation", "numpy on a very large array")
    tensor = torch.empty_strided(shape, strides, dtype=fake.dtype).fill_(1)
    if isinstance(of, _Given):
        return tensor
    made = tensor.numpy()
    return made[()] if of.is_scalar else made


def _holds_arrays(result: Any) -> bool:
    if isinstance(result, (tuple, list)):
        return any(_holds_arrays(r) for r in result)
    return isinstance(result, np.ndarray)


def plain_result(tx: Tracer, result: Any) -> Value:
    """What numpy returns, where that holds no array."""
    if isinstance(result, (tuple, list)):
        items = [plain_result(tx, r) for r in result]
        return ListValue(items) if isinstance(result, list) else TupleValue(items, type(result))
    if not isinstance(result, (np.generic, np.dtype, bool, int, float, complex, str, type(None), type)):
        raise Unsupported("unsupported-operation", f"numpy returns a {type(result).__name__}")
    return tx.from_python(result)


def _check_known(name: str) -> None:
    if name in ("allclose", "array_equal", "array_equiv"):
        raise Unsupported("data-dependent", f"numpy.{name} needs the values of arrays")


class _Run:
    """Calls a function of torch's numpy on tensors; arrays in its result are given as tensors."""

    def __init__(
        self, function: Callable[..., Any], packed: list[Any], words: dict[str, Any], *, as_doubles: bool = False
    ) -> None:
        self._function = function
        self._packed = packed
        self._words = words
        self._as_doubles = as_doubles
        """Whether whole numbers are made doubles first, as numpy does where a result is not a whole number."""

    def __call__(self, *tensors: torch.Tensor) -> Any:
        import torch._numpy

        array: Any = getattr(torch._numpy, "ndarray")  # noqa: B009
        if self._as_doubles:
            tensors = tuple(t.double() if isinstance(t, torch.Tensor) and _is_whole(t) else t for t in tensors)
        arrays = [array(t) if isinstance(t, torch.Tensor) else t for t in tensors]
        args = _placed(self._packed, arrays, theirs=False)
        return _tensors(self._function(*args, **_placed(self._words, arrays, theirs=False)))


def _is_whole(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _tensors(result: Any) -> Any:
    if isinstance(result, (tuple, list)):
        return type(result)(map(_tensors, result)) if type(result) in (tuple, list) else tuple(map(_tensors, result))
    return getattr(result, "tensor", result)


def _wrapped(tx: Tracer, name: str, result: Value, wanted: Any, leaves: list[_Leaves], models: list[Any]) -> Value:
    """A result as a value, if it is of the kind that numpy gives."""
    if isinstance(wanted, (tuple, list)):
        if not isinstance(result, SequenceValue) or len(result.items) != len(wanted):
            raise _Differs
        items = [_wrapped(tx, name, force(tx, r), w, leaves, models) for r, w in zip(result.items, wanted, strict=True)]
        return ListValue(items) if isinstance(wanted, list) else TupleValue(items, type(wanted))
    if not isinstance(wanted, (np.ndarray, np.generic)):
        if isinstance(result, Const) and (wanted is None or type(wanted) is type(result.value)):
            return NONE if wanted is None else result
        raise _Differs
    if not isinstance(result, TensorValue):
        raise _Differs
    fake = result.fake
    sizes = tuple(map(hint, fake.shape)) if all(map(has_hint, fake.shape)) else None
    if fake.device.type != "cpu" or sizes != wanted.shape or _numpy_dtype(fake.dtype) != wanted.dtype:
        raise _Differs
    is_scalar = isinstance(wanted, np.generic)
    for leaf, model in zip(leaves, models, strict=True):
        if isinstance(leaf, SymValue):
            continue
        if leaf.tensor is result and wanted is model and isinstance(leaf, ArrayValue):
            return leaf
        memory = model.numpy() if isinstance(model, torch.Tensor) else model
        theirs = isinstance(wanted, np.ndarray) and isinstance(memory, np.ndarray) and np.shares_memory(wanted, memory)
        mine = fake.untyped_storage()._cdata == leaf.tensor.fake.untyped_storage()._cdata
        if theirs != mine and not is_scalar:
            if theirs:
                raise _Differs
            result = force(tx, result.call_method(tx, "clone", [], {}))
            assert isinstance(result, TensorValue)
    return ArrayValue(result, is_scalar=is_scalar)


# Operators.


def array_operator(tx: Tracer, function: Callable[..., Any], operands: list[Value]) -> Value | None:
    """Python's operator on arrays; None where no operand is one."""
    if not any(isinstance(o, ArrayValue) for o in operands):
        return None
    return call_numpy(tx, function.__name__, function, function, operands, {})


def _numbers() -> None:
    for cls in {v for v in vars(np).values() if isinstance(v, type) and issubclass(v, (np.number, np.bool_))}:
        if "Abstract" not in (cls.__doc__ or ""):
            special(cls)(_number(cls))


def _number(cls: Any) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        from engine.trace.operations import fold_call

        return fold_call(tx, cls, args, kwargs, f"numpy.{cls.__name__} of what is not known is created")

    return rule


_numbers()


def _limits(of: Any) -> None:
    """``np.finfo`` and ``np.iinfo``: what a type of numbers can hold."""

    @special(of)
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        given = force(tx, args[0]) if len(args) == 1 and not kwargs else NONE
        real = given.real() if isinstance(given.real(), (type, of)) else given.python(tx)
        return tx.fold(of, real)


_limits(np.finfo)
_limits(np.iinfo)


@special(np.dtype)
def _dtype(tx: Tracer, args: Args, kwargs: Words) -> Value:
    from engine.trace.operations import fold_call

    return fold_call(tx, np.dtype, args, kwargs, "numpy.dtype of what is not known")


# From and to tensors.


def array_of_tensor(tx: Tracer, tensor: TensorValue) -> Value:
    """``tensor.numpy()``."""
    fake = tensor.fake
    if fake.requires_grad or fake.device.type != "cpu" or fake.is_conj() or fake.is_neg():
        raise Unsupported("data-dependent", "Tensor.numpy is called on what numpy cannot hold as it is")
    if fake.layout is not torch.strided or fake.dtype in _UNKNOWN_TO_NUMPY or tensor.type() not in _PLAIN:
        raise Unsupported("data-dependent", "Tensor.numpy is called on what numpy cannot hold as it is")
    return ArrayValue(tensor)


def array_by_force(tx: Tracer, tensor: TensorValue) -> Value:
    """``tensor.numpy(force=True)``: of what numpy can hold, without its gradient."""
    found: Value = tensor
    for method in ("detach", "cpu", "resolve_conj", "resolve_neg"):
        found = force(tx, found.call_method(tx, method, [], {}))
    assert isinstance(found, TensorValue)
    return array_of_tensor(tx, found)


_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_UNKNOWN_TO_NUMPY = frozenset(
    d
    for d in vars(torch).values()
    if isinstance(d, torch.dtype) and ("bfloat" in str(d) or "float8" in str(d) or "bits" in str(d))
)


@special(torch.from_numpy)
def _from_numpy(tx: Tracer, args: Args, kwargs: Words) -> Value:
    array = force(tx, args[0])
    if not isinstance(array, ArrayValue) or array.is_scalar:
        raise Unsupported("unknown-call", f"torch.from_numpy of {array.describe()}")
    return emit(tx, "call_method", "detach", [array.tensor])


def tensor_of(tx: Tracer, array: ArrayValue, kwargs: Words, *, copy: bool) -> Value:
    """``torch.tensor(array)`` or ``torch.as_tensor(array)``."""
    words = {k: v for k, v in kwargs.items() if k in ("dtype", "device")}
    if set(kwargs) != set(words):
        raise Unsupported("unsupported-argument", "a tensor is made of an array with more than a dtype and a device")
    words = {k: v for k, v in words.items() if not (isinstance(force(tx, v), Const) and force(tx, v).real() is None)}
    if copy and (made := array.copied(tx)) is not None:
        return emit(tx, "call_method", "to", [made], words) if words else made
    if not copy and not words:
        return emit(tx, "call_method", "detach", [array.tensor])
    return (
        emit(tx, "call_method", "to", [array.tensor], {**words, "copy": Const(copy)})
        if words
        else emit(tx, "call_method", "clone", [array.tensor])
    )


def _made_tensor(make: Any, *, copy: bool) -> None:
    @special(make)
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        given = list(args)
        data = force(tx, given[0] if given else kwargs.get("data", NONE))
        if isinstance(data, ArrayValue):
            rest = dict(zip(("dtype", "device"), given[1:], strict=False)) | {
                k: v for k, v in kwargs.items() if k != "data"
            }
            return tensor_of(tx, data, rest, copy=copy)
        if isinstance(data, RangeValue):
            given[:1] = [ListValue([Const(n) for n in data.value])] if given else []
            return emit(tx, "call_function", make, given, kwargs if args else {**kwargs, "data": data})
        if len(given) == 1 and kwargs.keys() <= {"dtype", "device"} and (kind := _type_of_arrays(tx, data)) is not None:
            make([np.zeros(1)])  # torch warns once in a process that this is slow
            words = {"dtype": Const(kind)} | {k: v for k, v in kwargs.items() if not is_none(force(tx, v))}
            return emit(tx, "call_method", "to", [_stacked_arrays(tx, data)], words)
        if _has_no_dtype(tx, args, kwargs) and _has_types_of_numpy(tx, data):
            return _of_numpy_numbers(tx, make, data, args, kwargs)
        if isinstance(data, (SequenceValue, SymValue)) and config.capture_scalar_outputs:
            return _of_numbers(tx, make, data, args, kwargs)
        return emit(tx, "call_function", make, args, kwargs)


def _has_types_of_numpy(tx: Tracer, data: Value) -> bool:
    """Whether a number among these, in lists of any depth, has a type of numpy's."""
    data = force(tx, data)
    if isinstance(data, SequenceValue):
        return any(_has_types_of_numpy(tx, item) for item in data.items)
    return isinstance(data, Const) and isinstance(data.value, np.generic)


def _type_of_arrays(tx: Tracer, data: Value) -> torch.dtype | None:
    """The one type of the arrays that lists of any depth consist of; None where they hold anything else."""
    data = force(tx, data)
    if isinstance(data, ArrayValue):
        return None if data.is_scalar else data.tensor.fake.dtype
    if not isinstance(data, SequenceValue) or not data.items:
        return None
    kinds = {_type_of_arrays(tx, item) for item in data.items}
    return kinds.pop() if len(kinds) == 1 else None


def _stacked_arrays(tx: Tracer, data: Value) -> Value:
    data = force(tx, data)
    if isinstance(data, ArrayValue):
        return data.tensor
    assert isinstance(data, SequenceValue)
    return emit(tx, "call_function", torch.stack, [ListValue([_stacked_arrays(tx, item) for item in data.items])])


def _of_numpy_numbers(tx: Tracer, make: Any, data: Value, args: Args, kwargs: Words) -> Value:
    """A tensor of numbers that have types of numpy's, which decide its own."""
    if len(args) > 1:
        raise Unsupported("unsupported-argument", f"{make.__name__} of a number of numpy's with more by position")
    (real,) = tx.constants([data])
    wanted = make(real).dtype
    plain = tx.from_python(torch.tensor(real).tolist())
    rest = {k: v for k, v in kwargs.items() if k != "data"}
    return emit(tx, "call_function", make, [plain], {**rest, "dtype": Const(wanted)})


def _of_numbers(tx: Tracer, make: Any, data: Value, args: Args, kwargs: Words) -> Value:
    """A tensor of nested sequences, in which tensors of one element are numbers."""
    kinds: set[torch.dtype] = set()
    plain = _with_numbers(tx, data, kinds)
    if any(isinstance(v, SymValue) for v in reached([plain])):
        if all(leaf.type() is bool for leaf in _leaves(tx, data)):
            kinds.add(torch.bool)
        make = torch._refs.tensor  # which takes symbols, as torch's own constructors do not
    elif not kinds:
        return emit(tx, "call_function", make, args, kwargs)
    words = {**kwargs, "dtype": Const(kinds.pop())} if len(kinds) == 1 and _has_no_dtype(tx, args, kwargs) else kwargs
    if kinds and words is kwargs and _has_no_dtype(tx, args, kwargs):
        raise Unsupported("unsupported-argument", "a tensor is made of numbers and tensors of several types")
    rest = {k: v for k, v in words.items() if k != "data"}
    return emit(tx, "call_function", make, [plain, *args[1:]], rest)


def _leaves(tx: Tracer, data: Value) -> list[Value]:
    data = force(tx, data)
    return [leaf for item in data.items for leaf in _leaves(tx, item)] if isinstance(data, SequenceValue) else [data]


def _has_no_dtype(tx: Tracer, args: Args, kwargs: Words) -> bool:
    return is_none(force(tx, kwargs.get("dtype", args[1] if len(args) > 1 else NONE)))


def _with_numbers(tx: Tracer, data: Value, kinds: set[torch.dtype]) -> Value:
    data = force(tx, data)
    if isinstance(data, SequenceValue):
        return ListValue([_with_numbers(tx, item, kinds) for item in data.items])
    if isinstance(data, ArrayValue) and data.is_scalar:
        data = data.tensor
    if isinstance(data, TensorValue) and data.fake.numel() == 1:
        kinds.add(data.fake.dtype)
        return data.call_method(tx, "item", [], {})
    if isinstance(data, SymValue) and data.type() is bool:
        return emit(tx, "call_function", torch.sym_ite, [data, Const(1), Const(0)])
    if isinstance(data, SymValue) or not kinds:
        return data
    kinds.add(torch.get_default_dtype() if data.type() is float else torch.int64)
    return data


@special(torch._shape_as_tensor)
def _shape_as_tensor(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if not isinstance(of, TensorValue) or len(args) > 1 or kwargs:
        return emit(tx, "call_function", torch._shape_as_tensor, args, kwargs)
    sizes = ListValue(list(sequence_items(tx, of.get_attr(tx, "shape"))))
    return force(tx, tx.fixed(torch.tensor).call(tx, [sizes], {"dtype": Const(torch.int64)}))


@special(torch.Tensor.new_tensor)
def _new_tensor(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    data = force(tx, args[1] if len(args) > 1 else kwargs["data"])
    if _has_types_of_numpy(tx, data):
        raise Unsupported("unsupported-argument", "new_tensor of numbers of numpy's types")
    if not isinstance(of, TensorValue) or of.type() not in _PLAIN or not isinstance(data, SequenceValue):
        return emit(tx, "call_method", "new_tensor", args, kwargs)
    words = {k: v for k, v in kwargs.items() if k != "data"}
    words.setdefault("dtype", Const(of.fake.dtype))
    words.setdefault("device", Const(of.fake.device))
    return force(tx, tx.fixed(torch.tensor).call(tx, [data], words))


_made_tensor(torch.tensor, copy=True)
_made_tensor(torch.as_tensor, copy=False)
_made_tensor(torch.asarray, copy=False)


# Reading real arrays.


@wraps(np.ndarray)
def _array(tx: Tracer, real: Any, origin: Origin) -> Value:
    tensor = tensor_of_array(real)
    if tensor is None or not real.flags.writeable:
        raise Unsupported("unsupported-operation", f"an array of {real.dtype}")
    tx.guard_type(real, origin, "the array takes part in the computation")
    value = tx.wrap(tensor, ArrayTensor(origin))
    assert isinstance(value, TensorValue)
    return ArrayValue(value, origin=origin, held=real)


def _is_function(real: Any) -> bool:
    return isinstance(real, np.ufunc) or id(real) in _functions()


def _looks_like_numpy(real: Any) -> bool:
    return type(real).__module__.startswith("numpy") or getattr(real, "__module__", "") == "numpy"


@wraps_if(20, lambda real: _looks_like_numpy(real) and _is_function(real))
def _function(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_object(real, origin, "it was called")
    return NumpyFunction(real, origin)


def _python_functions() -> None:
    """Functions of numpy that are written in Python would be looked into."""
    for module in (np, np.linalg, np.fft):
        for function in vars(module).values():
            if isinstance(function, types.FunctionType) and function.__module__.startswith("numpy"):
                special(function)(_calls(function))


def _calls(function: Any) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        return NumpyFunction(function, Fixed(function, function.__name__)).call(tx, args, kwargs)

    return rule


_python_functions()
