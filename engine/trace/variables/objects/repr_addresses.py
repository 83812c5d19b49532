"""Default repr with addresses.

An object created while tracing gets an assigned address. Text with such an address must not leave compiled code.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Variable, realize
from engine.trace.variables.callables.functions import FunctionVariable
from engine.trace.variables.callables.methods import BoundMethodVariable
from engine.trace.variables.objects.class_lookup import find_in_class
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable


class _AssignedAddresses:
    """Addresses assigned in one trace to objects that tracing created."""

    def __init__(self) -> None:
        self.by_variable_id: dict[int, tuple[str, int, Variable]] = {}
        """Each has the number of the root instruction that read it."""


_FIRST_ASSIGNED_ADDRESS = 0xFABE_0000_0000
"""Above the addresses of all objects in a process."""
_ASSIGNED_ADDRESS = re.compile("0xfabe[0-9a-f]{8}")


def default_repr(tx: Tracer, of: Variable) -> str | None:
    """Return the default ``repr`` of an object, function or method; None for anything else."""
    return _default_repr(of, tx)


@functools.singledispatch
def _default_repr(of: Variable, tx: Tracer) -> str | None:
    return None


@_default_repr.register(BoundMethodVariable)
def _repr_of_method(of: BoundMethodVariable, tx: Tracer) -> str | None:
    shown = realize(tx, tx.wrap_static(repr).call(tx, [of.obj], {})).as_python_constant(tx)
    return f"<bound method {_qualified_name(tx, of.function)} of {shown}>"


@_default_repr.register(FunctionVariable)
def _repr_of_function(of: FunctionVariable, tx: Tracer) -> str | None:
    return f"<function {_qualified_name(tx, of)} at {_address_of(tx, of, of.source is None)}>"


@_default_repr.register(UserDefinedObjectVariable)
def _repr_of_object(of: UserDefinedObjectVariable, tx: Tracer) -> str | None:
    cls = of.python_type()
    found = find_in_class(cls, "__repr__")
    if found is None or found.owner is not object:
        return None
    name = cls.__qualname__ if cls.__module__ in (None, "builtins") else f"{cls.__module__}.{cls.__qualname__}"
    return f"<{name} object at {_address_of(tx, of, of.source is None or of.is_constructed)}>"


def _qualified_name(tx: Tracer, function: Variable) -> str:
    return str(realize(tx, function.get_attr(tx, "__qualname__")).as_python_constant(tx))


def _address_of(tx: Tracer, of: Variable, is_made: bool) -> str:
    if not is_made:
        real = tx.objects.real_object(of)
        if real is NotImplemented or of.source is None or of.source.chain()[0].is_passed_by_caller:
            raise Unsupported("object-address", f"the address of {of.describe()} is shown")
        tx.guard_identity(real, of.source, "its address was shown")
        return f"{id(real):#x}"
    assigned = tx.state_of(_AssignedAddresses).by_variable_id
    if id(of) not in assigned:
        address = f"{_FIRST_ASSIGNED_ADDRESS + 16 * len(assigned):#x}"
        assigned[id(of)] = (address, tx.interpreter.root_instruction_number, of)
    return assigned[id(of)][0]


def check_no_assigned_address(tx: Tracer, value: Any) -> None:
    """Check that a constant contains no assigned address.

    Raises:
        Unsupported: it contains one, so Python must create the text.
    """
    assigned = tx.state_of(_AssignedAddresses).by_variable_id
    if not assigned:
        return
    text = str(value) if isinstance(value, (str, bytes, tuple)) else ""
    found = _ASSIGNED_ADDRESS.findall(text)
    if not found:
        return
    refused = Unsupported("object-address", "a string shows the address of an object that compiled code creates again")
    refused.created_at = min((born for address, born, _ in assigned.values() if address in found), default=0)
    raise refused
