"""The part of a variable that takes part in operations of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.fx

from engine.ir.guards.base import user_expr
from engine.trace.annotations import Tracer, Variable
from engine.trace.exc import Unsupported


class NodeArgument:
    """Part of ``Variable`` that ``emit_node`` asks for.

    By default, a value cannot be an argument of a graph operation.
    """

    __slots__ = ()

    cls: type
    """Python type of the value (``type(x)``), unless the class has its own ``python_type``."""
    fake: Any = None
    """The fake tensor of a tensor; None for any other value."""
    sym: Any = None
    """The symbolic number of a SymInt, SymFloat or SymBool; None for any other value."""
    is_numpy_array = False
    """True for an array or scalar of numpy over the memory of a tensor."""
    symbol: Any = None
    """The symbol that was created for a symbolic number; None for any other value."""
    may_have_torch_function = False
    """True for variables of user objects and of tensor subclasses."""

    def python_type(self) -> type:
        """Return the Python type of the value, as ``type(x)`` does."""
        return self.cls

    @property
    def typed_name(self: Any) -> str:
        """The expression that reads the value, if it has a source, and its type."""
        kind = self.python_type().__name__
        return f"a value of type {kind}" if self.source is None else f"{user_expr(self.source)} (type {kind})"

    @property
    def has_torch_function(self) -> bool:
        """True if operations on the value dispatch to its class's ``__torch_function__``."""
        return self.may_have_torch_function and hasattr(self.python_type(), "__torch_function__")

    @property
    def node_or_none(self) -> torch.fx.Node | None:
        """The node that computes a tensor, if the graph has it already; None for any other value."""
        return None

    @property
    def graph_value(self) -> Any:
        """Fake tensor or symbolic number that the graph computes for the value; else None."""
        return self.sym if self.fake is None else self.fake

    @property
    def is_graph_value(self) -> bool:
        """True if the graph computes the value, as a tensor or a symbolic number."""
        return self.fake is not None or self.sym is not None

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        """Return the value as an argument of an fx node, and as an argument of a fake tensor call."""
        raise Unsupported("unsupported-argument", f"{self.typed_name} as an argument of a torch operation")

    def argument_items(self) -> Sequence[Variable]:
        """Return the items that torch reads as separate arguments: those of a list or tuple."""
        return ()

    def pytree_parts(self, tx: Tracer) -> tuple[type, tuple[Any, ...], Sequence[Variable]] | None:
        """Return class, keys and items of a container of pytrees; None for any other value."""
        return None

    def as_operand_of(self: Variable, tx: Tracer, target: Any) -> Variable:  # type: ignore[misc]
        """Return the variable that an operation with this target takes in place of this one."""
        return self

    def as_sizes(self: Variable, tx: Tracer) -> Variable:  # type: ignore[misc]
        """Return the value with tensors of one integer as numbers, as torch reads sizes."""
        return self

    def as_tensor_index(self: Variable, tx: Tracer, *, in_tuple: bool) -> Variable:  # type: ignore[misc]
        """Return the variable that indexes a tensor in place of this one."""
        return self
