"""Arguments as ``torch.compile`` spells them, in the engine's terms."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from engine import errors
from engine.backends.external import inductor_option_names
from engine.backends.registry import BACKENDS
from engine.options import OPTION_NAMES
from engine.torch_private.global_state import lookup_torch_backend

ALWAYS_ON = {"shape_padding": True}
"""Options of Inductor, with the value that the engine's lowering always uses."""


def options_of_torch(
    options: Mapping[str, Any] | None, backend: str | Callable[..., Any] | None = None, **arguments: Any
) -> dict[str, Any]:
    """Return options in the engine's terms, with the arguments that are not None.

    Options of Inductor that mean the same as a mode become it, backend "inductor" takes them all, and others
    have no effect, with a warning. Unknown options are returned as they are.
    """
    named = {**(options or {}), **{name: value for name, value in arguments.items() if value is not None}}
    if backend == "inductor":
        theirs = _known_to_inductor({name: value for name, value in named.items() if name not in OPTION_NAMES})
        others = {name: value for name, value in named.items() if name not in theirs}
        return {**others, "inductor": tuple(sorted(theirs.items()))} if theirs else others
    if named.get("mode") == "lite":
        named["mode"] = "default"
    uses_graphs, is_tuned = named.pop("triton.cudagraphs", False), named.pop("max_autotune", False)
    if uses_graphs or is_tuned:
        tuned = "max-autotune" if uses_graphs else "max-autotune-no-cudagraphs"
        named.setdefault("mode", tuned if is_tuned else "reduce-overhead")
    unused = _known_to_inductor({name: value for name, value in named.items() if name not in OPTION_NAMES})
    for name in [name for name in unused if unused[name] is not ALWAYS_ON.get(name)]:
        warnings.warn(f"The option {name!r} of Inductor has no effect in engine.compile.", stacklevel=3)
    return {name: value for name, value in named.items() if name not in unused}


def dynamic_sources_of(spec: Any) -> tuple[str, ...]:
    """Return the patterns of the sources that a ``dynamic_shapes`` of torch makes dynamic.

    Raises:
        errors.BadArgument: it is none of them.
    """
    if not (spec is None or hasattr(spec, "items") or hasattr(spec, "to_jsonable")):
        raise errors.BadArgument(f"dynamic_shapes must be a ParamsSpec, a ShapesSpec or a dict, not {spec!r}.")
    tree = spec.to_jsonable() if hasattr(spec, "to_jsonable") else {"params": spec}
    while "params" in tree:
        tree = tree["params"] or {}
    return tuple(text for name, part in tree.items() for text in _patterns_of(_parameter_pattern(name), part))


def _parameter_pattern(name: str) -> str:
    """Return the pattern of a parameter; ``*args`` and ``**kwargs`` match any name."""
    return r"L\['\w+'\]" if name.startswith("*") else rf"L\['{re.escape(name)}'\]"


_ITEMS = {"DictSpec": "entries", "SeqSpec": "entries", "ObjectSpec": "fields"}
"""Field of a spec's JSON form with the specs inside it."""
_READERS: dict[type, Callable[[Any], Iterable[tuple[Any, Any]]]] = {dict: dict.items, list: enumerate}


def _patterns_of(base: str, part: Any) -> Iterator[str]:
    """Yield the patterns of the dynamic sizes and numbers in a part of a spec, below ``base``."""
    part = part.to_jsonable() if hasattr(part, "to_jsonable") else part
    kind = part.get("type", "") if hasattr(part, "items") else ""
    if kind == "TensorSpec":
        yield from (f"{base}$:{dim}" for dim, size in enumerate(part["dims"]) if _is_dynamic(size))
    elif kind in ("IntVar", "ShapeVar"):
        yield f"{base}$"
    else:
        inside = part.get(_ITEMS[kind], {}) if kind in _ITEMS else part
        read = _READERS.get(type(inside), lambda found: ())
        for key, each in read(inside):
            place = rf"\.{re.escape(key)}" if kind == "ObjectSpec" else rf"\[{re.escape(repr(key))}\]"
            yield from _patterns_of(base + place, each)


def _is_dynamic(size: Any) -> bool:
    """Return True for a variable in JSON form and for an expression of variables."""
    return hasattr(size, "items") or hasattr(size, "node")


def _known_to_inductor(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that Inductor has; loads it only if there are any options."""
    known = inductor_option_names() if named else ()
    return {name: value for name, value in named.items() if name.replace("-", "_") in known}


def find_backend(backend: str | Callable[..., Any] | None) -> str | Callable[..., Any]:
    """Return a name of the engine's backends, or a callable, which torch may know by its name.

    Raises:
        errors.UnknownBackend: the backend is neither a known name nor callable.
    """
    if backend is None:
        return "triton"
    if callable(backend) or backend in BACKENDS:
        return backend
    found = lookup_torch_backend(backend)
    if found is None:
        raise errors.UnknownBackend(backend, tuple(sorted(BACKENDS)))
    return found
