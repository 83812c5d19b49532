"""Text that defines a program's own operators again, for a script that runs alone."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from engine.ir.user_code_files import is_installed_file
from engine.records.scripts.graph_script import CannotWrite
from engine.torch_private.operators import OPDEFS, CustomOpDef

_OPERATOR = re.compile(r"\b(?!torch\.ops\b)(\w+)\.(\w+)")
_FUNCTIONALIZED = '''\
def auto_functionalized_v2(operator, **arguments):
    """Call an operator that writes to its arguments on copies of them."""
    return torch._higher_order_ops.auto_functionalize.auto_functionalized_v2(operator.default, **arguments)'''
_CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device)


def operator_definitions(statements: Iterable[str]) -> str:
    """Return text that defines the user's operators that a graph's statements call.

    It has all code of the user that they run.

    Raises:
        CannotWrite: the source of a function is unknown, or it reads a value that no text can hold.
    """
    writer = _Writer()
    for statement in statements:
        for namespace, operator in _OPERATOR.findall(statement):
            if (definition := OPDEFS.get(f"{namespace}::{operator}")) is not None:
                writer.add_operator(definition)
                writer.blocks[f"torch.ops.{namespace}"] = f"{namespace} = torch.ops.{namespace}"
        if "auto_functionalized_v2(" in statement:
            writer.blocks["auto_functionalized_v2"] = _FUNCTIONALIZED
    blocks = "".join(f"\n\n{text}\n" for text in writer.blocks.values())
    return "".join(f"{text}\n" for text in writer.imports) + (f"{blocks}\n\n" if blocks else "")


class _Writer:
    """Imports, and definitions by name in the order in which they must run."""

    def __init__(self) -> None:
        self.imports: dict[str, None] = {}
        self.blocks: dict[str, str] = {}

    def add_operator(self, definition: CustomOpDef) -> str:
        """Add an operator with its kernels, fake and gradient; return the name of its variable."""
        namespace, _, operator = definition._qualname.partition("::")
        name = f"{namespace}_{operator}"
        if name in self.blocks:
            return name
        run = definition._init_fn
        maker = "custom_op"
        if run.__module__ == "torch._library.triton":
            run, maker = _closed_function(run), "triton_op"
        kernels = {device: _closed_function(inspect.unwrap(f)) for device, f in definition._backend_fns.items()}
        devices = [device for device, f in kernels.items() if f is definition._init_fn and device is not None]
        schema = definition._opoverload._schema
        mutated = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
        options = f"mutates_args={mutated!r}, schema={definition._schema!r}"
        options += f", device_types={devices!r}" if devices else ""
        function = self.add_function(run, f"{name}_kernel")
        lines = [f"{name} = torch.library.{maker}({definition._qualname!r}, {function}, {options})"]
        for device, kernel in kernels.items():
            if kernel is not definition._init_fn:
                function = self.add_function(kernel, f"{name}_{device or 'any'}_kernel")
                lines.append(f"{name}.register_kernel({device!r}, {function})")
        if definition._abstract_fn not in (None, run):
            lines.append(f"{name}.register_fake({self.add_function(definition._abstract_fn, f'{name}_fake')})")
        if definition._backward_fn is not None:
            setup = definition._setup_context_fn
            context = "" if setup is None else f", setup_context={self.add_function(setup, f'{name}_setup')}"
            backward = self.add_function(definition._backward_fn, f"{name}_backward")
            lines.append(f"{name}.register_autograd({backward}{context})")
        self.blocks[name] = "\n".join(lines)
        return name

    def add_function(self, function: Any, name: str = "") -> str:
        """Add a function with what it reads; return its name.

        A function that gets a name has no decorators: they register it.
        """
        try:
            text = textwrap.dedent(inspect.getsource(function))
            tree: Any = ast.parse(text).body[0]
        except (OSError, TypeError, SyntaxError, ValueError) as error:
            raise CannotWrite(f"the source of {getattr(function, '__name__', function)} is unknown") from error
        if not hasattr(tree, "decorator_list"):
            raise CannotWrite(f"{function.__name__} is no function with a name")
        if name:
            text = "\n".join(text.splitlines()[tree.lineno - 1 :])
            text = re.sub(rf"def\s+{re.escape(tree.name)}\b", f"def {name}", text, count=1)
            tree.decorator_list = []
        name = name or tree.name
        if name not in self.blocks:
            self.blocks[name] = ""  # it may call itself
            self._add_values(function, sorted({getattr(node, "id", "") for node in ast.walk(tree)}))
            del self.blocks[name]
            self.blocks[name] = text.rstrip()
        return name

    def _add_values(self, function: Any, names: Iterable[str]) -> None:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        values = function.__globals__ | {name: cell.cell_contents for name, cell in cells}
        for name in names:
            if name in values and getattr(builtins, name, self) is not values[name]:
                self._add_value(name, values[name], function.__name__)

    def _add_value(self, name: str, value: Any, reader: str) -> None:
        """Add a value under its name: a module, an operator, a constant, a function or a class."""
        _WRITERS.get(type(value), _Writer._add_object)(self, name, value, reader)

    def _add_module(self, name: str, value: Any, reader: str) -> None:
        self.imports[f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"] = None

    def _add_operator_name(self, name: str, value: Any, reader: str) -> None:
        self.blocks[name] = f"{name} = {self.add_operator(value)}"

    def _add_constant(self, name: str, value: Any, reader: str) -> None:
        self.blocks[name] = f"{name} = {value!r}"

    def _add_object(self, name: str, value: Any, reader: str) -> None:
        inner = value
        while hasattr(inner, "fn"):  # a Triton kernel
            inner = inner.fn
        code = getattr(inner, "__code__", None)
        if code is not None and not is_installed_file(code.co_filename):
            if (written := self.add_function(inner)) != name:
                self.blocks[name] = f"{name} = {written}"
        elif getattr(value, "__module__", None) not in (None, "__main__") and hasattr(value, "__qualname__"):
            self.imports[f"from {value.__module__} import {value.__qualname__} as {name}"] = None
        else:
            raise CannotWrite(f"{reader} reads {name}, which is a {type(value).__name__}")


_WRITERS: dict[type, Callable[[_Writer, str, Any, str], None]] = {
    types.ModuleType: _Writer._add_module,
    CustomOpDef: _Writer._add_operator_name,
    **dict.fromkeys(_CONSTANTS, _Writer._add_constant),
}
"""Methods that write a value, by its type."""


def _closed_function(wrapper: Callable[..., Any]) -> Any:
    """Return the function ``fn`` that torch's wrapper calls."""
    return inspect.getclosurevars(wrapper).nonlocals.get("fn", wrapper)
