"""Stances and settings of ``torch.compile`` that also apply here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import CellType, SimpleNamespace
from typing import Any

from engine.errors import BadArgument
from engine.ir.current_session import slow_dispatch_tokens
from engine.options import config
from engine.torch_private.global_state import STANCE_ATTR, changed_setting, stance_module

CONFIG_NAMES = {
    "recompile_limit": "recompile_limit",
    "automatic_dynamic": "automatic_dynamic_shapes",
    "capture_scalar_outputs": "capture_scalar_outputs",
    "capture_dynamic_output_shape_ops": "capture_dynamic_output_shape_ops",
    "verify_correctness": "verify_correctness",
}
"""Settings of ``engine.config`` by name, with the name in ``torch._dynamo.config``."""
EAGER_FIRST = ("eager_then_compile", "aot_eager_then_compile")
"""Stances under which the first call runs eagerly."""
STANCES = ("default", *EAGER_FIRST, "force_eager", "eager_on_recompile", "fail_on_recompile")

stance_owner_cell = CellType(SimpleNamespace(**{STANCE_ATTR: None}))
"""Cell of the object that holds the stance: Dynamo's module once it is loaded."""
usual_stance_cell = CellType(None)
"""Cell of the stance under which dispatch takes its fast path."""


def follow_stance() -> str:
    """Return the user's stance; from now on the fast path sees a change of it.

    Raises:
        BadArgument: torch has no such stance, and names it only at a call.
    """
    module = stance_module()
    if module is None:
        return "default"
    stance: Any = getattr(module, STANCE_ATTR)
    if stance.stance not in STANCES:
        raise BadArgument(f"There is no stance {stance.stance!r}: choose one of {', '.join(STANCES)}.")
    stance_owner_cell.cell_contents = module
    if stance.stance == "default" and stance.backend is None and not skips_guards():
        usual_stance_cell.cell_contents = stance
    return str(stance.stance)


def takes_fast_path() -> bool:
    """Return True if no session records, no frame compiles, and the stance is the usual one."""
    owner = stance_owner_cell.cell_contents
    return not slow_dispatch_tokens and getattr(owner, STANCE_ATTR) is usual_stance_cell.cell_contents


def skips_guards() -> bool:
    """Return True if the user's stance runs a function's only cache entry without its guards."""
    stance: Any = getattr(stance_module(), STANCE_ATTR, None)
    return bool(getattr(stance, "skip_guard_eval_unsafe", False))


def forced_backend() -> str | Callable[..., Any] | None:
    """Return the backend that the user's stance forces; None if it forces none."""
    stance: Any = getattr(stance_module(), STANCE_ATTR, None)
    forced: str | Callable[..., Any] | None = getattr(stance, "backend", None)
    return forced


@contextlib.contextmanager
def torch_settings() -> Iterator[None]:
    """Compile with the settings that the user changed in ``torch._dynamo.config``.

    One that the user also changed in ``engine.config`` has precedence.
    """
    defaults = type(config)()
    stock = {
        name: value
        for name, theirs in CONFIG_NAMES.items()
        if getattr(config, name) == getattr(defaults, name) and (value := changed_setting(theirs)) is not None
    }
    own = {name: getattr(config, name) for name in stock}
    for name, value in stock.items():
        setattr(config, name, value)
    try:
        yield
    finally:
        for name, value in own.items():
            setattr(config, name, value)


def is_number_static(value: object) -> bool:
    """Return True if the user's settings keep this number from becoming a symbol."""
    setting = {int: "specialize_int", float: "specialize_float"}.get(type(value))
    return setting is not None and bool(changed_setting(setting))
