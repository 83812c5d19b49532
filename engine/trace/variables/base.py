"""Variable base class, lazy variables, and constants."""

from __future__ import annotations

import cmath
import enum
import inspect
import math
import types
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, ClassVar

from engine.frame_code.codegen_runtime.f_strings import format_value, join_f_string
from engine.ir.introspection.literal_types import IDENTIFIED_LITERAL_TYPES, PLAIN_LITERAL_TYPES
from engine.ir.introspection.python_objects import is_heap_type
from engine.ir.introspection.python_operators import Operator
from engine.ir.sources.base import Source
from engine.ir.sources.iterators import positions_in
from engine.ir.sources.roots import ConstantSource
from engine.trace.annotations import ExceptionVariable, NNModuleVariable, PyCodegen, Tracer
from engine.trace.exc import Unsupported, UserException
from engine.trace.graph_breaks.reasons import unknown_call_kind
from engine.trace.operators.operand import CONSTANT_OPERATORS, Operand, OperatorResult
from engine.trace.variables.slotted_type import SlottedType, fresh, state


def type_name(cls: type) -> str:
    """Return the class name that CPython's messages use; C classes include their module."""
    if is_heap_type(cls) or cls.__module__ == "builtins":
        return cls.__name__
    return f"{cls.__module__}.{cls.__name__}"


def raise_missing_method(tx: Tracer, cls: type, name: str) -> Any:
    """Raise Python's TypeError for an operation whose special method the class lacks."""
    return tx.raise_error(TypeError, f"'{cls.__name__}' object has no {name}", is_exact=False)


class _NoConstant:
    """Type of the sentinel ``NO_CONSTANT``."""


NO_CONSTANT = _NoConstant()
"""Stands for the constant of a variable that is not a constant."""


class MutatedObject:
    """Mutation of an object by the code after the graph."""

    __slots__ = ()

    mutation_words = ""
    """Description of a mutation of the object, with ``{}`` for its class, or ""."""

    def describe_mutation(self: Any) -> str:
        """Return how code after the graph mutates the object; "" if it is unchanged.

        Raises:
            Unsupported: no code can mutate such an object.
        """
        if not self.mutation_words:
            raise Unsupported("rebuild-value", f"changing a {self.python_type().__name__}")
        return str(self.mutation_words.format(self.python_type().__name__))

    def emit_mutation(self: Any, cg: PyCodegen) -> str:
        """Emit code that mutates the object after the graph; return a description, or ""."""
        description = self.describe_mutation()
        if not description:
            return ""
        cg.load(self)
        self.fill(cg)
        return f"{self.describe() if self.source is None else self.source.expr}: {description}"

    def before_mutation(self) -> None:
        """Read what depends on the object's contents before it is mutated."""

    def fill(self: Any, cg: PyCodegen) -> None:
        """Emit code that pops the existing object on the stack and mutates it."""
        raise self.unsupported("a mutation after the graph")


class ObjectFacts:
    """Part of ``Variable``: facts about its object that add no guards."""

    __slots__ = ()

    source: Source | None = None
    is_mutable = False
    handled_exception: Variable | None = None
    """The exception that a stack entry keeps while it is handled; None for anything else."""
    must_not_be_copied = False
    """True if a copy is wrong when other code has the object too: traced code may mutate it."""
    is_loaded_by_source = True
    """False for a cell: its source reads its contents."""
    is_constant = False
    """True for an immutable Python object known while tracing (``constant``)."""
    is_lazy = False
    """True for a real object that has no variable yet."""
    is_constructed = False
    """True if each call constructs its own object although the variable has a source."""
    is_user_object = False
    """True for an instance that keeps its own attributes (``UserDefinedObjectVariable``)."""
    is_dynamic_bool = False
    """True for a bool that changed between calls (``DynamicBoolVariable``)."""
    is_copied_by_reference = False
    """True if ``copy.copy`` and ``copy.deepcopy`` return the object itself."""
    reconstruct_before_break = False
    """True if reconstruction reads state that Python may change after a graph break.

    Such a variable is reconstructed before any Python code runs at the break, and the result is stored.
    """

    @property
    def resolved(self: Any) -> Variable:
        """The variable that a lazy variable was realized to; else itself. Adds no guards."""
        variable: Variable = self
        return variable

    @property
    def known_items_left(self) -> int:
        """Number of items that an iterator still has if no guard is needed to know it; else 0."""
        return 0

    @property
    def constant(self) -> Any:
        """The immutable Python object that this variable holds; else ``NO_CONSTANT``."""
        return NO_CONSTANT

    @property
    def holds_suspended_generator(self) -> bool:
        """True for a generator that has started and not finished."""
        return False

    def runs_handlers_when_freed(self) -> bool:
        """Return True for a generator with exception handlers: they run if it is destroyed."""
        return False

    def as_class(self) -> Any:
        """Return the class that this variable is; None for anything else."""
        return None

    def as_exception(self) -> ExceptionVariable | None:
        """Return the exception that this variable is; None for anything else."""
        return None

    def as_module(self) -> NNModuleVariable | None:
        """Return the ``nn.Module`` that this variable is; None for anything else."""
        return None

    def as_python_object(self) -> Any:
        """Return the Python object that this variable is by identity, else ``NotImplemented``."""
        return NotImplemented

    child_fields: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that hold a variable, or None."""

    def child_variables(self) -> list[Variable]:
        """Return the variables inside this one, for codegen's traversal."""
        return [child for name in self.child_fields if (child := getattr(self, name)) is not None]


class Variable(Operand, MutatedObject, ObjectFacts, metaclass=SlottedType):
    """Base of all variables. Operations raise ``Unsupported`` unless a subclass has its own.

    ``source`` is how compiled code reaches the value again. It is None for values created while tracing.
    """

    __slots__ = ("__weakref__",)

    def describe(self) -> str:
        """Return a short description for messages."""
        return self.python_type().__name__

    def unsupported_method(self, name: str) -> Unsupported:
        """Return the graph break for a method that has no tracing rule."""
        return self.unsupported(f"the method {name!r}", "unsupported-method")

    def unsupported_attribute(self, action: str, name: str) -> Unsupported:
        """Return the graph break for "reading", "setting" or "deleting" an attribute."""
        kind = "unsupported-attribute" if action == "reading" else "attribute-write"
        return self.unsupported(f"{action} the attribute {name!r}", kind)

    def lacks_methods(self, *names: str) -> bool:
        """Return True if the value's class defines none of these special methods."""
        return not any(name in base.__dict__ for base in self.python_type().__mro__ for name in names)

    def _unsupported_operation(self, tx: Tracer, operation: str, name: str, *instead: str) -> Unsupported:
        """Return the graph break for an operation.

        Raise the user's TypeError if the class has neither the operation's method nor an alternative.
        """
        if self.lacks_methods(name, *instead):
            raise_missing_method(tx, self.python_type(), name)
        return self.unsupported(operation)

    def format_contents(self, tx: Tracer, proxies: dict[int, Any]) -> Any:
        """Return a builtin container of format proxies, or None if the type is not supported.

        A container enters ``proxies`` before its items: a recursive container gets a recursive proxy.
        """
        return None

    def format_parts(self, tx: Tracer) -> list[FormatPart]:
        """Return the parts of a string; a symbolic number in it stays symbolic."""
        return [(ConstantVariable(str(realize(tx, self).as_python_constant(tx))), (0, ""))]

    def lookup_special_method(self, tx: Tracer, name: str) -> Variable | None:
        """Return a bound special method that a user-defined class defines; None without one."""
        return None

    def call_user_method(self, tx: Tracer, name: str, args: Args) -> Variable | None:
        """Call a special method that a user-defined class defines; return None without one."""
        method = self.lookup_special_method(tx, name)
        return None if method is None else realize(tx, method.call(tx, args, {}))

    def call_c_method(self, tx: Tracer, owner: type, name: str, args: Args, kwargs: Kwargs) -> Variable | None:
        """Call the method that the C class ``owner`` defines, not an override.

        None if there is no rule for it.
        """
        return self.call_method(tx, name, args, kwargs)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        """Return the variable of ``self.name``."""
        if self.lacks_methods(name, "__getattr__") and self.python_type().__dictoffset__ == 0:
            return tx.raise_error(AttributeError, f"'{type_name(self.python_type())}' object has no attribute '{name}'")
        raise self.unsupported_attribute("reading", name)

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        """Trace ``self.name = value``."""
        if self.lacks_methods(name, "__getattr__") and self.python_type().__dictoffset__ == 0:
            text = f"'{type_name(self.python_type())}' object has no attribute '{name}'"
            tx.raise_error(AttributeError, text, is_exact=False)
        raise self.unsupported_attribute("setting", name)

    def del_attr(self, tx: Tracer, name: str) -> None:
        """Trace ``del self.name``."""
        raise self.unsupported_attribute("deleting", name)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        """Trace ``self(*args, **kwargs)``."""
        if self.lacks_methods("__call__"):
            return tx.raise_type_error(f"'{type_name(self.python_type())}' object is not callable")
        raise Unsupported(unknown_call_kind(self.python_type()), f"calling {self.describe()}")

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        """Trace ``self.name(*args, **kwargs)``."""
        return realize(tx, self.get_attr(tx, name)).call(tx, args, kwargs)

    def is_truthy(self, tx: Tracer) -> bool:
        """Return ``bool(self)``."""
        if self.lacks_methods("__bool__", "__len__"):
            return True
        raise self.unsupported("a truth test")

    def position_sources(self, source: Source) -> tuple[Source, ...]:
        """Return the sources of numbers that change when this iterator advances."""
        return ()

    def length(self, tx: Tracer) -> Variable:
        """Return the variable of ``len(self)``."""
        raise self._unsupported_operation(tx, "len()", "__len__")

    def get_iterator(self, tx: Tracer) -> Variable:
        """Return the variable of ``iter(self)``."""
        raise self._unsupported_operation(tx, "iteration", "__iter__", "__getitem__")

    def iterated_items(self, tx: Tracer) -> list[Variable]:
        """Return all items that iteration yields; for a sequence, the list that holds them."""
        iterator = realize(tx, self.get_iterator(tx))
        items: list[Variable] = []
        while (item := iterator.next_item(tx)) is not None:
            items.append(item)
        return items

    def next_item(self, tx: Tracer) -> Variable | None:
        """Return the variable of ``next(self)``, or None when the iterator is exhausted."""
        raise self._unsupported_operation(tx, "next()", "__next__")

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        """Return the variable of ``self[key]``."""
        raise self._unsupported_operation(tx, "indexing", "__getitem__")

    def set_item(self, tx: Tracer, key: Variable, value: Variable) -> None:
        """Trace ``self[key] = value``."""
        raise self._unsupported_operation(tx, "item assignment", "__setitem__")

    def del_item(self, tx: Tracer, key: Variable) -> None:
        """Trace ``del self[key]``."""
        raise self._unsupported_operation(tx, "item deletion", "__delitem__")

    def contains(self, tx: Tracer, item: Variable) -> bool:
        """Return ``item in self``."""
        raise self._unsupported_operation(tx, "a membership test", "__contains__", "__iter__", "__getitem__")

    def unary(self, tx: Tracer, op: Operator) -> Variable:
        """Trace ``-self``, ``+self`` or ``~self``."""
        if not tx.is_python_constant(self):
            raise self.unsupported(f"the operator {op.symbol}")
        return tx.fold_constant(op.function, self.as_python_constant(tx))

    def as_operator_value(self, tx: Tracer, classes: dict[type, type]) -> Any:
        """Return a Python object that acts as this value in an operator.

        ``classes`` holds the classes made for the operator's other operands.

        Raises:
            NotPythonConstant: there is none.
        """
        return self.as_python_constant(tx)

    def hash_key(self, tx: Tracer) -> Any:
        """Return a hashable object for use as a dict key. Equal values have equal keys."""
        method: Any = self.python_type().__hash__
        if method is None:
            tx.raise_error(TypeError, f"unhashable type: '{type_name(self.python_type())}'", is_exact=False)
        if method is object.__hash__:
            return tx.objects.as_identity_key(self)
        raise self.unsupported("hashing")

    def as_python_constant(self, tx: Tracer) -> Any:
        """Return the value as a Python object without tensors.

        Raises:
            NotPythonConstant: the value is not fully known while tracing.
        """
        raise NotPythonConstant(self)

    def reconstruct(self, cg: PyCodegen) -> None:
        """Emit bytecode that pushes the value. Called only for variables without a source."""
        raise Unsupported("rebuild-value", f"rebuilding a value of type {self.python_type().__name__} after the graph")


Args = list[Variable]
Kwargs = dict[str, Variable]
FormatPart = tuple[Variable, tuple[int, str]]
"""A part of an f-string: a variable, its conversion and its format."""


class UserErrors:
    """Context manager: errors of these types are raised in the traced code."""

    __slots__ = ("kinds", "tx")

    def __init__(self, tx: Tracer, *kinds: type[Exception]) -> None:
        self.tx = tx
        self.kinds = kinds

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self.kinds):
            raise self.tx.make_user_exception(error) from error


class RealObjectVariable(Variable):
    """A variable of one real object, loaded through ``source`` if it has one."""

    real_object: Any
    source: Source | None

    def python_type(self) -> type:
        return type(self.real_object)

    def as_python_object(self) -> Any:
        return self.real_object


class FixedObjectVariable(RealObjectVariable):
    """A real object that is a constant of the program, such as a C function or a class."""

    def as_python_constant(self, tx: Tracer) -> Any:
        return self.real_object

    def hash_key(self, tx: Tracer) -> Any:
        return self.real_object

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_const(self.real_object)


class NotPythonConstant(Exception):
    """Raised by ``as_python_constant`` if a variable's value is not fully known."""

    def __init__(self, variable: Variable) -> None:
        super().__init__()
        self.variable = variable


class LazyVariable(RealObjectVariable):
    """A real object that has no variable yet. It adds no guards before ``realize``."""

    realized: Variable | None = state(None)

    @property
    def is_lazy(self) -> bool:  # type: ignore[override]
        return self.realized is None

    @property
    def resolved(self) -> Variable:
        return self if self.realized is None else self.realized

    def describe(self) -> str:
        return f"{self.python_type().__name__} (not read yet)" if self.realized is None else self.realized.describe()

    @property
    def holds_suspended_generator(self) -> bool:
        if self.realized is None:
            return self.python_type() is types.GeneratorType
        return self.realized.holds_suspended_generator

    def position_sources(self, source: Source) -> tuple[Source, ...]:
        return positions_in(self.real_object, source)

    def runs_handlers_when_freed(self) -> bool:
        if self.realized is not None:
            return self.realized.runs_handlers_when_freed()
        is_generator = self.python_type() is types.GeneratorType
        return is_generator and bool(self.real_object.gi_code.co_exceptiontable)

    def realize(self, tx: Tracer) -> Variable:
        """Return the realized variable. The first call wraps the object and adds its guards."""
        if self.realized is None:
            assert self.source is not None
            self.realized = tx.wrap(self.real_object, self.source)
        return self.realized

    def hash_key(self, tx: Tracer) -> Any:
        return self.realize(tx).hash_key(tx)


class StringFormatVariable(Variable):
    """A string with symbolic or lazy values, formatted after the graph or when realized.

    ``parts`` are those of an f-string: variables with their conversions and formats.
    """

    parts: list[FormatPart]
    realized: Variable | None = state(None)
    cls = str

    def describe(self) -> str:
        """Return the string's repr as of this call; values known only at run time are described."""
        if self.realized is not None:
            return self.realized.describe()
        return repr("".join(_shown_part(value.resolved, part_format) for value, part_format in self.parts))

    def realize(self, tx: Tracer) -> Variable:
        """Return the string as a constant. This specializes the values in it."""
        if self.realized is None:
            texts = (format_value(realize(tx, v).as_python_constant(tx), *form) for v, form in self.parts)
            self.realized = ConstantVariable("".join(texts))
        return self.realized

    def format_parts(self, tx: Tracer) -> list[FormatPart]:
        return self.parts if self.realized is None else super().format_parts(tx)

    def child_variables(self) -> list[Variable]:
        return [value for value, _ in self.parts]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(join_f_string, tuple(part_format for _, part_format in self.parts), *self.child_variables())


def _shown_part(value: Any, part_format: tuple[int, str]) -> str:
    if value.is_symbolic:
        example = value.sym.node.hint
    elif value.is_constant:
        example = value.constant
    else:
        example = value.real_object if is_formatted_later(value) and value.is_lazy else None
    try:
        return f"{{{value.describe()}}}" if example is None else format_value(example, *part_format)
    except (TypeError, ValueError):  # Python raises it when the string is formatted
        return f"{{{value.describe()}}}"


_TYPES_FORMATTED_LATER = frozenset((str, int, float, bool, type(None)))


def is_formatted_later(value: Variable) -> bool:
    """Return True if a text can show the value without guards until it is realized."""
    is_plain = value.is_lazy and value.python_type() in _TYPES_FORMATTED_LATER
    return is_plain or value.__class__ is StringFormatVariable


def realize(tx: Tracer, value: Variable) -> Variable:
    """Realize a lazy variable; return any other variable unchanged."""
    return value.realize(tx) if value.__class__ is LazyVariable or value.__class__ is StringFormatVariable else value


def reachable_variables(values: Iterable[Variable]) -> Iterator[Variable]:
    """Yield each variable reachable from these, once. Unrealized lazy variables are skipped."""
    visited: set[int] = set()
    todo = list(values)
    while todo:
        value = todo.pop().resolved
        if id(value) not in visited and not value.is_lazy:
            visited.add(id(value))
            yield value
            todo += value.child_variables()


class NullVariable(Variable):
    """CPython's NULL on the stack, below a callable without ``self``."""

    cls = type(None)

    def describe(self) -> str:
        return "NULL"


NULL = NullVariable()


class AttributeDictVariable(Variable):
    """A variable that stores its attributes by name, as the traced code sets them."""

    __slots__ = ()

    attributes: dict[str, Variable] = fresh(dict)

    def current_attributes(self, tx: Tracer) -> dict[Any, tuple[Variable, Variable]]:
        """Return the current ``__dict__``, as dict entries, without what C code stores elsewhere."""
        cls = self.python_type()
        is_own = {n: not hasattr(type(inspect.getattr_static(cls, n, None)), "__set__") for n in self.attributes}
        return {name: (ConstantVariable(name), value) for name, value in self.attributes.items() if is_own[name]}

    def write_attr(self, tx: Tracer, name: str, value: Variable | None) -> None:
        """Set an attribute; a value of None deletes it."""
        tx.side_effects.record_mutation(self)
        self.attributes.pop(name, None)
        if value is not None:
            self.attributes[name] = value


class ConstantVariable(Variable):
    """An immutable Python object known while tracing: number, string, None, dtype, enum."""

    __slots__ = ("source", "value")
    is_constant = True

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.value = value
        self.source = source

    def python_type(self) -> type:
        return type(self.value)

    def describe(self) -> str:
        try:
            text = repr(self.value)
        except ValueError:  # an int with more digits than CPython converts to a string
            return "a number with very many digits"
        return text if len(text) <= 60 else text[:57] + "..."

    @property
    def constant(self) -> Any:
        return self.value

    @property
    def is_copied_by_reference(self) -> bool:  # type: ignore[override]
        return self.python_type() not in IDENTIFIED_LITERAL_TYPES

    def as_python_object(self) -> Any:
        return self.value

    def as_python_constant(self, tx: Tracer) -> Any:
        return self.value

    def hash_key(self, tx: Tracer) -> Any:
        return self.value

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        value = self.value
        if type(value).__module__ == "numpy" and hasattr(value, "item"):  # fx serializes Python numbers only
            value = value.item()
            if type(value) is bool:  # eager ops disagree: most treat it as a float, some as a bool
                raise Unsupported("unsupported-argument", "a numpy bool as an argument of a torch operation")
        if isinstance(value, enum.Enum):  # an op takes the member as its number or string
            kind: Any = next((base for base in (int, float, str) if base in type(value).__mro__), None)
            value = value if kind is None else kind.__str__(value) if kind is str else kind(value)
        if type(type(value)).__name__ == "pybind11_type":  # fx writes Python source, where this type has no name
            raise Unsupported("unsupported-argument", f"{value} as an argument of a torch operation")
        if type(value) is complex and not _survives_repr_round_trip(value):
            node = tx.graph.create_node("call_function", complex, (value.real, value.imag), {}, tx.node_provenance())
            node.meta["example_value"] = value
            return node, value
        return value, value

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        if self.lacks_methods("__call__"):
            return super().call(tx, args, kwargs)
        return self.call_method(tx, "__call__", args, kwargs)

    def binary(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        method = getattr(self.python_type(), op.method, None)
        rule = CONSTANT_OPERATORS.get(method) if isinstance(method, Hashable) else None  # pybind11's is not hashable
        return rule(tx, self.value, right) if rule is not None else self._operate(tx, op, self, right)

    def reflected(self, tx: Tracer, op: Operator, left: Variable) -> OperatorResult:
        return self._operate(tx, op, left, self)

    def inplace(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        return self._operate(tx, op, self, right) if right.is_constant else NotImplemented

    def compare(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        return self._operate(tx, op, self, right)

    @property
    def equals_by_identity(self) -> bool:  # type: ignore[override]
        return self.python_type().__module__ != "numpy"

    def _operate(self, tx: Tracer, op: Operator, left: Variable, right: Variable) -> OperatorResult:
        """Compute an operator on two constants; the other may be in a subclass instance."""
        other, method = (right, op.method) if left is self else (left, op.reflected)
        contents = other.builtin_contents
        if not contents.is_constant:
            return NotImplemented
        if contents is other:
            return tx.fold_constant(op.function, left.constant, right.constant)
        function = getattr(self.python_type(), method, None)
        if function is None or self.python_type().__module__ == "numpy":  # numpy treats subclasses differently
            return NotImplemented
        try:
            return unwrap_not_implemented(tx.fold_constant(function, self.value, contents.constant))
        except UserException as error:
            if error.exception.python_type() is not TypeError:
                raise
            return NotImplemented  # the method of a sequence, which Python calls after those of the other operand

    def is_same_as(self, tx: Tracer, other: Variable) -> bool | None:
        if not other.is_constant:
            return None
        a, b = self.value, other.constant
        if a is not b and (type(a) is not type(b) or a != b or type(a) not in _UNINTERNED_TYPES):
            return type(a) is type(b) and bool(a == b)
        if type(a) in _UNINTERNED_TYPES and (self.source is not None or other.source is not None):
            left, right = (
                v if v.source is not None else ConstantVariable(value, ConstantSource(value, repr(value)))
                for v, value in ((self, a), (other, b))
            )
            tx.guard_same_object(left, right, a is b)
        return a is b

    def as_graph_operand(self, tx: Tracer) -> Variable | None:
        return self

    def is_truthy(self, tx: Tracer) -> bool:
        if self.value is NotImplemented:
            raise self.unsupported("bool()", "warning")
        return bool(self.value)

    def length(self, tx: Tracer) -> Variable:
        return tx.fold_constant(len, self.value)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return tx.get_constant_attr(self, name)

    def get_iterator(self, tx: Tracer) -> Variable:
        if issubclass(self.python_type(), (str, bytes)):
            return tx.from_python(iter(self.value))
        method = getattr(self.python_type(), "__iter__", None)
        if method is enum.Flag.__iter__:
            return tx.from_python(iter(tuple(self.value)))
        if not inspect.isfunction(method):
            return super().get_iterator(tx)
        return self.call_method(tx, "__iter__", [], {})

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return tx.fold_constant(lambda a, b: a[b], self.value, key.as_python_constant(tx))

    def contains(self, tx: Tracer, item: Variable) -> bool:
        return bool(tx.fold_constant(lambda: item.as_python_constant(tx) in self.value).as_python_constant(tx))

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_const(self.value)


def are_plain_constants(values: Iterable[Variable]) -> bool:
    """Return True if all are numbers, strings or None that do not vary between calls."""
    resolved = [v.resolved for v in values]
    is_constant = {v.__class__ for v in resolved} <= {ConstantVariable}
    return is_constant and {type(v.constant) for v in resolved} <= PLAIN_LITERAL_TYPES


def _survives_repr_round_trip(value: complex) -> bool:
    """Return True if fx can write a complex number as Python source without changing it.

    NaN, infinities and negative zeros do not survive ``repr``.
    """
    parts = (value.real, value.imag)
    return cmath.isfinite(value) and not any(part == 0 and math.copysign(1, part) < 0 for part in parts)


_UNINTERNED_TYPES = (int, float, complex, str, bytes, *IDENTIFIED_LITERAL_TYPES)
"""Types whose equal instances may be distinct objects."""


def unwrap_not_implemented(value: Variable) -> OperatorResult:
    """Return ``NotImplemented`` for its variable; any other variable unchanged."""
    return NotImplemented if is_not_implemented(value) else value


def describe_attribute_writes(written: Iterable[str]) -> str:
    """Return the names of the attributes that are set, as a clause; "" if there are none."""
    names = list(written)
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} set" if names else ""


def is_none(value: Variable) -> bool:
    """Return True if a realized variable is the constant None."""
    return value.constant is None


def is_not_implemented(value: Variable) -> bool:
    """Return True if a realized variable is the constant NotImplemented."""
    return value.constant is NotImplemented


TRUE, FALSE = ConstantVariable(True), ConstantVariable(False)
NONE = ConstantVariable(None)
