"""Normal form of one call: operator, arguments by parameter name, defaults dropped.

``x.sum(-1)``, ``torch.sum(x, dim=1)`` and ``aten.sum.dim_IntList(x, [-1])`` of a matrix have one form.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.observe.canonical.call_arguments import LIST_OF_SIZES, ArgumentValue, ConstantValue, ListValue, SliceValue

ALIASES = {
    "absolute": "abs", "negative": "neg", "multiply": "mul", "divide": "div", "true_divide": "div", "truediv": "div",
    "subtract": "sub", "floordiv": "floor_divide", "mod": "remainder", "and_": "bitwise_and", "or_": "bitwise_or",
    "xor": "bitwise_xor", "invert": "bitwise_not", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le",
    "not_equal": "ne", "clip": "clamp", "concat": "cat", "concatenate": "cat", "swapaxes": "transpose", "swapdims": "transpose",
    "moveaxis": "movedim", "arccos": "acos", "arcsin": "asin", "arctan": "atan", "arctan2": "atan2", "fix": "trunc",
    "ger": "outer", "row_stack": "vstack", "iadd": "add_", "isub": "sub_", "imul": "mul_", "itruediv": "div_",
    "expit": "sigmoid",
}  # fmt: skip
COMMUTATIVE = {"add", "mul", "eq", "ne", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"}
CASTS = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "long": "int64", "int": "int32",
    "short": "int16", "bool": "bool",
}  # fmt: skip
DEFAULTS = {
    "std": {"correction": 1, "unbiased": True},
    "var": {"correction": 1, "unbiased": True},
    "pad": {"value": 0},
    "arange": {"start": 0, "step": 1},
}
"""Arguments equal to what the operator does without them, though no schema has them."""
_WINDOWS = ("kernel_size", "stride", "padding", "dilation")
"""Parameters of pooling, of which one number stands for all dimensions."""
_NEW_DIMENSION = {"unsqueeze", "stack"}
_OTHER_NAMES = {
    "input": "self",
    "axis": "dim",
    "keepdims": "keepdim",
    "x": "self",
    "tensors": "self",
    "training": "train",
}
"""Parameter names that functions and schemas spell differently."""
NONE = ConstantValue(None)

NamedValues = list[tuple[str, ArgumentValue]]


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it is spelled.

    ``name``: the operator without its namespace ("sum"). ``overload``: empty if the call names none.
    """

    name: str
    args: tuple[ArgumentValue, ...] = ()
    kwargs: Mapping[str, ArgumentValue] = field(default_factory=dict)
    overload: str = ""
    is_method: bool = False


def canonical_call(call: Call, *, is_float: bool = False) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """Return operator and named arguments of a call, sorted by name.

    ``is_float``: the result is a floating tensor, where ``2`` and ``2.0`` mean the same.
    """
    call = _canonical_form(call)
    named = [(k, v) for k, v in _bind(call) if not _is_implied(call.name, k, v)]
    rank = next((v.rank for _, v in named if v.rank is not None), None)
    if rank is not None and call.name in _NEW_DIMENSION:
        rank += 1
    arguments = [(k, v.normal_form(k, rank, is_float)) for k, v in named]
    if call.name in COMMUTATIVE and len(arguments) == 2:
        values = sorted((v for _, v in arguments), key=repr)
        arguments = [(k, v) for (k, _), v in zip(arguments, values, strict=True)]
    name, values_of = call.name, dict(arguments)
    if "_pool" in name:
        values_of = _with_short_windows(values_of)
    elif name in ("transpose", "permute"):
        name, values_of = "permute", _as_permutation(values_of, rank or 0)
    return name, tuple(sorted(values_of.items()))


def _with_short_windows(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a pooling operator's arguments, equal numbers as one, without defaults."""
    for name in _WINDOWS:
        value: Any = arguments.get(name)
        sizes = set(value) if hasattr(value, "__iter__") else {value}
        arguments[name] = sizes.pop() if len(sizes) == 1 else value
    implied = {"stride": (None, (), arguments["kernel_size"]), "padding": (None, 0), "dilation": (None, 1)}
    return {k: v for k, v in arguments.items() if v not in implied.get(k, (None,))}


def _as_permutation(arguments: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return the arguments of ``transpose`` as those of ``permute``."""
    order = range(rank)
    first, second = arguments.get("dim0"), arguments.get("dim1")
    if "dims" in arguments or not {first, second} <= set(order):
        return arguments
    exchanged = {first: second, second: first}
    return {"self": arguments.get("self"), "dims": tuple(exchanged.get(d, d) for d in order)}


def _is_implied(operator: str, parameter: str, value: ArgumentValue) -> bool:
    implied = DEFAULTS.get(operator, {})
    return parameter in implied and (value.equals(implied[parameter]) or value.equals(None))


def _canonical_form(call: Call) -> Call:
    """Return the call with the operator and the order of arguments that its synonyms share."""
    name, args = ALIASES.get(call.name, call.name), call.args
    if name in CASTS and len(args) == 1:
        return Call("to", (*args, ConstantValue(CASTS[name])))
    if "_pool" in name:
        kept = {k: v for k, v in call.kwargs.items() if k != "return_indices" or not v.equals(False)}
        return Call(name, args, kept, call.overload)
    if name == "t" and args and args[0].rank == 2:
        return Call("transpose", (*args, ConstantValue(0), ConstantValue(1)))
    if name == "rsub" and len(args) == 2 and not call.kwargs:
        return Call("sub", args[::-1])
    if name == "where" and call.is_method and len(args) == 3:
        args = (args[1], args[0], args[2])
    elif name in ("getitem", "setitem"):
        args = (args[0], _without_full_bounds(args[1], getattr(args[0], "shape", None)), *args[2:])
    elif name == "einsum" and len(args) > 1 and args[1].accepts("Tensor"):
        args = (args[0], ListValue(args[1:]))
    elif name in COMMUTATIVE and len(args) == 2 and args[0].rank is None:
        args = args[::-1]
    return Call(name, args, call.kwargs, call.overload)


def _without_full_bounds(index: ArgumentValue, shape: tuple[str, ...] | None) -> ArgumentValue:
    """Return an index with slice bounds counted from the start: ``2:4`` of size 4 is ``2:``."""
    items = getattr(index, "items", (index,))
    if shape is None or len(items) > len(shape) or not all(hasattr(i, "step") for i in items):
        return index
    slices = tuple(_slice_of(i, size) for i, size in zip(items, shape, strict=False))
    return ListValue(slices) if hasattr(index, "items") else slices[0]


def _slice_of(index: Any, size: str) -> SliceValue:
    """Return a slice of a dimension of this size with its shortest bounds."""
    whole = int(size) if size.isdigit() else sys.maxsize
    start, stop = (
        ConstantValue(b.value % whole) if b.is_size and size.isdigit() and -whole <= getattr(b, "value", 0) < 0 else b
        for b in (index.start, index.stop)
    )
    is_whole = stop.equals(whole) or stop.equals(sys.maxsize)
    step = NONE if index.step.equals(1) else index.step
    return SliceValue(NONE if start.equals(0) else start, NONE if is_whole else stop, step)


def _bind(call: Call) -> NamedValues:
    for schema in _schemas(call.name, call.overload):
        bound = _bind_schema(schema, call.args, call.kwargs)
        if bound is not None:
            return bound
    signature = _python_signature(call.name)
    try:
        values = signature.bind(*call.args, **call.kwargs).arguments.items() if signature else ()
    except TypeError:
        values = ()
    if not values or signature is None:
        positional = [("self" if i == 0 else f"argument {i}", v) for i, v in enumerate(call.args)]
        return positional + [(_OTHER_NAMES.get(k, k), v) for k, v in call.kwargs.items()]
    defaults = {k: p.default for k, p in signature.parameters.items()}
    named: NamedValues = []
    for name, value in values:
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            named += value.items()
        elif signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            named.append((name, ListValue(value)))
        elif not name.startswith("_") and not value.equals(defaults[name]):
            named.append((_OTHER_NAMES.get(name, name), value))
    return named


@functools.cache
def _torch() -> Any:
    """Return torch, or None where it is not installed.

    A page of a log is made without it, so only a comparison imports it.
    """
    return importlib.import_module("torch") if importlib.util.find_spec("torch") else None


@functools.cache
def _schemas(name: str, overload: str) -> tuple[Any, ...]:
    torch = _torch()
    packet = getattr(torch.ops.aten, name, None) if torch and name.isidentifier() else None
    if packet is None:
        return ()
    names = [overload] if overload else [n for n in packet.overloads() if "out" not in n.split("_")]
    overloads = [getattr(packet, n, None) for n in names]
    return tuple(op._schema for op in overloads if op is not None)


@functools.cache
def _python_signature(name: str) -> inspect.Signature | None:
    torch = _torch()
    for owner in (torch.nn.functional, torch) if torch else ():
        function = getattr(owner, name, None)
        if inspect.isfunction(function):
            return inspect.signature(function)
    return None


def _bind_schema(schema: Any, args: Sequence[ArgumentValue], kwargs: Mapping[str, ArgumentValue]) -> NamedValues | None:
    """Return the arguments by name without defaults, or None if the schema does not take them."""
    parameters = {p.name: p for p in schema.arguments}
    positional = [p for p in schema.arguments if not p.kwarg_only]
    args = _gather_varargs(positional, args)
    kwargs = {_schema_name(k, parameters): v for k, v in kwargs.items()}
    values = {p.name: v for p, v in zip(positional, args, strict=False)}
    if len(args) > len(positional) or not set(kwargs) <= set(parameters) - set(values):
        return None
    values |= kwargs
    if any(name not in values and not p.has_default_value() for name, p in parameters.items()):
        return None
    types = {k: _schema_type(parameters[k]) for k in values}
    if not all(v.equals(None) or v.accepts(types[k]) for k, v in values.items()):
        return None
    lists = {k: ListValue((v,)) if types[k] in LIST_OF_SIZES and v.is_size else v for k, v in values.items()}
    return [(_OTHER_NAMES.get(k, k), v) for k, v in lists.items() if not _is_default(parameters[k], v)]


def _is_default(parameter: Any, value: ArgumentValue) -> bool:
    return parameter.has_default_value() and value.equals(parameter.default_value)


def _schema_type(parameter: Any) -> str:
    text = str(parameter.type)
    return text[len("Optional[") : -1] if text.startswith("Optional[") else text


def _schema_name(name: str, parameters: Mapping[str, Any]) -> str:
    """Return the schema's name of a parameter that Python functions name otherwise."""
    spelled = (o for o, n in _OTHER_NAMES.items() if n == name and o in parameters)
    return name if name in parameters else next(spelled, _OTHER_NAMES.get(name, name))


def _gather_varargs(positional: Sequence[Any], args: Sequence[ArgumentValue]) -> Sequence[ArgumentValue]:
    """Fold ``view(-1, 2)`` into ``view([-1, 2])``: the last integers are one list."""
    last = len(positional) - 1
    is_list = last >= 0 and str(positional[last].type) in LIST_OF_SIZES
    if is_list and len(args) > last and all(v.is_size for v in args[last:]):
        return [*args[:last], ListValue(tuple(args[last:]))]
    return args
