"""Constructors of datetime and pathlib objects."""

from __future__ import annotations

import pathlib
from typing import Any

from engine.trace.annotations import Tracer
from engine.trace.operators import arithmetic
from engine.trace.variables.base import Args, Kwargs, Variable
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.literals import DATETIME_TYPES, PATH_TYPES


def _literal_constructor(cls: type) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return arithmetic.fold_constant_call(
            tx, cls, args, kwargs, f"{cls.__name__} of values that are not known while tracing is created"
        )

    return rule


for _cls in (*DATETIME_TYPES, *PATH_TYPES, pathlib.Path, pathlib.PurePath):
    register_rule(_cls)(_literal_constructor(_cls))
