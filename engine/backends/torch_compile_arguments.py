"""Arguments of ``torch.compile``, translated to the engine's options."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from engine import errors
from engine.backends.external import inductor_option_names, inductor_option_type
from engine.backends.registry import BACKENDS, backend_callable, backend_name
from engine.options import OPTION_NAMES, Options
from engine.torch_private.global_state import DYNAMIC_SPEC_ATTR, lookup_torch_backend

ALWAYS_ON = {"shape_padding": True}
"""Options of Inductor, with the value that the engine's lowering always uses."""
_FLAGS = ("triton.cudagraphs", "max_autotune")
"""Options of Inductor that name a mode: their type is known without loading Inductor."""


def backend_and_options(
    backend: str | Callable[..., Any] | None, options: Mapping[str, Any] | None, **arguments: Any
) -> tuple[str | Callable[..., Any], dict[str, Any]]:
    """Return a backend and options in the engine's terms, with arguments that are not None.

    A callable backend is called with ``mode=`` and with its own options as ``options=``, as ``torch.compile`` does.
    """
    backend = find_backend(backend)
    called = backend_callable(backend)
    own = {name: value for name, value in (options or {}).items() if name not in OPTION_NAMES}
    passed: dict[str, Any] = {"options": own} if own else {}
    if (mode := arguments.get("mode")) not in (None, "default"):
        passed["mode"] = mode
    if called is None or not passed:
        return backend, options_of_torch(options, backend, **arguments)
    bound: Any = functools.partial(called, **passed)
    bound.__name__ = backend_name(backend)
    rest = options and {name: value for name, value in options.items() if name not in own}
    return bound, options_of_torch(rest, bound, **arguments)


def options_of_torch(
    options: Mapping[str, Any] | None, backend: str | Callable[..., Any] | None = None, **arguments: Any
) -> dict[str, Any]:
    """Return options in the engine's terms, with the arguments that are not None.

    Options of Inductor that mean the same as a mode become it, backend "inductor" takes them all, and others
    have no effect, with a warning. Unknown options are returned as they are.

    Raises:
        errors.BadArgument: there are a mode and options, or a value has another type than the option.
    """
    if options is not None and arguments.get("mode") is not None:
        raise errors.BadArgument('Pass mode= or options=, not both: options={"mode": ..., ...} takes the mode too.')
    named = {**(options or {}), **{name: value for name, value in arguments.items() if value is not None}}
    if backend == "inductor":
        theirs = _inductor_options({name: value for name, value in named.items() if name not in OPTION_NAMES})
        inductor_options = {name: value for name, value in named.items() if name not in theirs}
        return {**inductor_options, "inductor": tuple(sorted(theirs.items()))} if theirs else inductor_options
    if named.get("mode") == "lite":
        named["mode"] = "default"
    _check_types({name: value for name, value in named.items() if name in _FLAGS}, lambda _: bool)
    uses_graphs, is_tuned = named.pop("triton.cudagraphs", False), named.pop("max_autotune", False)
    if uses_graphs or is_tuned:
        tuned = "max-autotune" if uses_graphs else "max-autotune-no-cudagraphs"
        named.setdefault("mode", tuned if is_tuned else "reduce-overhead")
    unused = _inductor_options({name: value for name, value in named.items() if name not in OPTION_NAMES})
    for name in [name for name in unused if unused[name] is not ALWAYS_ON.get(name)]:
        warnings.warn(f"The option {name!r} of Inductor has no effect in engine.compile.", stacklevel=4)
    return {name: value for name, value in named.items() if name not in unused}


def with_dynamic_shapes(options: Options, spec: Any) -> Options:
    """Return options with the symbols and ranges of torch's ``dynamic_shapes`` argument.

    Raises:
        errors.BadArgument: ``spec`` is not such an argument.
    """
    if spec is None:
        return options
    if not (hasattr(spec, "items") or hasattr(spec, "to_jsonable")):
        raise errors.BadArgument(f"dynamic_shapes must be a ParamsSpec, a ShapesSpec or a dict, not {spec!r}.")
    tree = spec.to_jsonable() if hasattr(spec, "to_jsonable") else {"params": spec}
    while "params" in tree:
        tree = tree["params"] or {}
    leaves = [leaf for name, part in tree.items() for leaf in _spec_leaves(_parameter_pattern(name), part)]
    return replace(
        options,
        dynamic_sources=tuple(pattern for pattern, size in leaves if not _is_fixed(size)),
        dynamic_ranges=tuple((pattern, *bounds) for pattern, size in leaves if any(bounds := _bounds_of(size))),
    )


def shape_spec_of(subject: Any, spec: Any) -> Any:
    """Return the ``dynamic_shapes`` given for a function, or those of its decorator.

    Raises:
        errors.BadArgument: there are both.
    """
    attached = getattr(getattr(subject, "forward", subject), DYNAMIC_SPEC_ATTR, None)
    if attached is not None and spec is not None:
        raise errors.BadArgument("The function has a dynamic_spec already: remove it, or remove dynamic_shapes.")
    return spec if attached is None else attached


def _parameter_pattern(name: str) -> str:
    """Return the pattern of a parameter; ``*args`` and ``**kwargs`` match any name."""
    return r"L\['\w+'\]" if name.startswith("*") else rf"L\['{re.escape(name)}'\]"


_ITEMS = {"DictSpec": "entries", "SeqSpec": "entries", "ObjectSpec": "fields"}
"""Field of a spec's JSON form with the specs inside it."""
_READERS: dict[type, Callable[[Any], Iterable[tuple[Any, Any]]]] = {dict: dict.items, list: enumerate}


def _spec_leaves(base: str, part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the sizes and numbers of a part of a spec, below ``base``, by their patterns.

    Each is an integer, a variable in JSON form, or an expression of variables.
    """
    part = part.to_jsonable() if hasattr(part, "to_jsonable") else part
    kind = part.get("type", "") if hasattr(part, "items") else ""
    if kind == "TensorSpec":
        yield from ((f"{base}$:{dim}", size) for dim, size in enumerate(part["dims"]) if size is not None)
    elif kind in ("IntVar", "ShapeVar") or hasattr(part, "node") or _is_fixed(part):
        yield f"{base}$", part
    else:
        inside = part.get(_ITEMS[kind], {}) if kind in _ITEMS else part
        read = _READERS.get(type(inside), lambda leaf: ())
        for key, each in read(inside):
            key_pattern = rf"\.{re.escape(key)}" if kind == "ObjectSpec" else rf"\[{re.escape(repr(key))}\]"
            yield from _spec_leaves(base + key_pattern, each)


def _is_fixed(size: Any) -> bool:
    return type(size) is int


def _bounds_of(size: Any) -> tuple[int | None, int | None]:
    """Return the least and the greatest value of a variable in JSON form, or of a fixed size."""
    if _is_fixed(size):
        return size, size
    return (size.get("min"), size.get("max")) if hasattr(size, "items") else (None, None)


def _inductor_options(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that Inductor has; loads it only if there are any options."""
    known_names = inductor_option_names() if named else ()
    options = {name: value for name, value in named.items() if name.replace("-", "_") in known_names}
    _check_types(options, inductor_option_type)
    return options


def _check_types(options: Mapping[str, Any], type_of: Callable[[str], type | None]) -> None:
    for name, value in options.items():
        expected = type_of(name)
        if expected is not None and not issubclass(type(value), expected):
            raise errors.BadArgument(f"The option {name!r} must be a {expected.__name__}, not {value!r}.")


def find_backend(backend: str | Callable[..., Any] | None) -> str | Callable[..., Any]:
    """Return a name of the engine's backends, or a callable, which torch may know by its name.

    Raises:
        errors.UnknownBackend: the backend is neither a known name nor callable.
    """
    if backend is None:
        return "triton"
    if callable(backend) or backend in BACKENDS:
        return backend
    stock_backend = lookup_torch_backend(backend)
    if stock_backend is None:
        raise errors.UnknownBackend(backend, tuple(sorted(BACKENDS)))
    return stock_backend
