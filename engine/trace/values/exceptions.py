"""Exceptions raised while tracing, as values."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from engine.bytecode.resume import InstructionOffset
from engine.ir.origin import Attr
from engine.trace.support import new_exception
from engine.trace.values.base import NONE, Attributed, Const, Value, force
from engine.trace.values.classes import class_attribute, class_origin, find_in_class
from engine.trace.values.sequences import TupleValue
from engine.trace.values.wrap import is_literal, makes

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class Handling(Value):
    """What lies on the stack while ``error`` is handled: CPython keeps there what was handled before."""

    def __init__(self, error: Value) -> None:
        self.error = error

    def type(self) -> type:
        return types.NoneType

    def children(self) -> list[Value]:
        return [self.error]

    def reconstruct(self, cg: Codegen) -> None:
        cg.load(self.error)


@makes(InstructionOffset)
def _offset(tx: Tracer, value: InstructionOffset) -> Value:
    return Const(value)


class ExceptionValue(Attributed):
    """An exception. ``error`` is the Python object where a real one was raised while folding."""

    is_mutable = True

    def __init__(self, cls: type[BaseException], args: list[Value], error: BaseException | None = None) -> None:
        self.cls = cls
        self.args = args
        self.error = error
        self.attributes: dict[str, Value] = {}
        self.line = 0
        """Where the root frame raised it, or called what did."""

    def type(self) -> type:
        return self.cls

    def describe(self) -> str:
        return f"{self.cls.__name__}({', '.join(a.describe() for a in self.args)})"

    def key(self, tx: Tracer) -> Any:
        return self

    def truth(self, tx: Tracer) -> bool:
        return True

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        match name:
            case "args":
                return TupleValue(list(self.args))
            case "value" if issubclass(self.cls, StopIteration):
                return self.args[0] if self.args else NONE
            case "__class__":
                return tx.fixed(self.cls)
            case "__cause__" | "__context__":
                return NONE
            case "__suppress_context__":
                return Const(False)
            case "__traceback__":
                raise self.refuse("reading the traceback")
        if not hasattr(self.cls, name):
            tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")
        found = class_attribute(tx, self.cls, name, self)
        if found is None:
            raise self.refuse(f"reading the attribute {name!r}")
        return found

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        tx.mutating(self)
        self.attributes[name] = value

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "with_traceback":
            return self
        if name == "__init__":
            self.args = list(args)
            return NONE
        if name in ("__str__", "__repr__"):
            own = find_in_class(self.cls, name)
            if own is not None and isinstance(own[1], types.FunctionType):
                return tx.wrap(own[1], Attr(class_origin(own[0]), name)).call(tx, [self, *args], kwargs)
            if self.attributes:
                made = BaseException(*(force(tx, a).python(tx) for a in self.args))
                return Const(str(made) if name == "__str__" else f"{self.cls.__name__}{made.args!r}")
            return tx.fold(str if name == "__str__" else repr, self.made(tx))
        return super().call_method(tx, name, args, kwargs)

    def made(self, tx: Tracer) -> BaseException:
        """A Python exception like this one."""
        if self.error is not None:
            return self.error
        return self.cls(*(force(tx, a).python(tx) for a in self.args))

    def children(self) -> list[Value]:
        return [*self.args, *self.attributes.values()]

    def reconstruct(self, cg: Codegen) -> None:
        cg.helper(new_exception, 0)
        cg.const(self.cls)
        cg.const(self.line)
        cg.load_all(self.args)
        cg.out.call(2 + len(self.args))
        cg.remember(self)
        for name, value in (*self._folded(), *self.attributes.items()):
            cg.out.emit("COPY", 1)
            cg.load(value)
            cg.out.emit("SWAP", 2)
            cg.out.emit("STORE_ATTR", name)

    def _folded(self) -> list[tuple[str, Value]]:
        """Attributes of an exception that Python raised while folding."""
        own = vars(self.error) if self.error is not None else {}
        if not all(is_literal(v) for v in own.values()):
            raise self.refuse("rebuilding its attributes")
        return [(name, Const(value)) for name, value in own.items()]
