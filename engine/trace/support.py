"""Small functions that generated code calls when it runs: they put back what the tracer did with values."""

from __future__ import annotations

import abc
import contextlib
import contextvars
import functools
import logging
import pathlib
import random
import sys
import threading
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, tee
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from engine.ir.global_state import without_torch_function_modes

_HEAP_TYPE_FLAG = 1 << 9
"""The flag of classes made by Python code."""


class TailCall:
    """What a resume function returns instead of calling the next one: the root's code calls it, so that loops do not nest frames."""

    __slots__ = ("arguments", "function")

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function = function
        self.arguments = arguments

    def take_arguments(self) -> tuple[Any, ...]:
        """The arguments, which nothing but the call holds then: an error that they lead to may know the frame of the caller."""
        arguments, self.arguments = self.arguments, ()
        return arguments


def run_tail_calls(result: Any) -> Any:
    """Go on with resume functions until one returns a value."""
    while type(result) is TailCall:
        result = result.function(*result.take_arguments())
    return result


def set_context_var(variable: contextvars.ContextVar[Any], value: Any) -> contextvars.Token[Any]:
    """Set a context variable in the context of the caller."""
    return variable.set(value)


def make_removable_handle(before: RemovableHandle | None, table: Any, *others: Any) -> RemovableHandle:
    """A handle for a hook that is about to be put into these tables; the one ``before`` has its number already."""
    return RemovableHandle(table, extra_dict=list(others))


def call_without_function_modes(run: Callable[..., Any], *inputs: Any) -> Any:
    """Call a graph in which torch-function modes have done their part already."""
    with without_torch_function_modes():
        return run(*inputs)


def switch_function_modes(left: int, *entered: Any) -> None:
    """Take so many torch-function modes out of force, the innermost first, and put others in force."""
    for _ in range(left):
        torch._C._pop_torch_function_stack()
    for mode in entered:
        torch._C._push_on_torch_function_stack(mode)


def call_restoring_grad_state(graph: Callable[..., Any], *inputs: Any) -> Any:
    """Call a graph that switches grad mode or autocast; if it raises half-way, they are as before."""
    return call_leaving_with_block(torch.is_grad_enabled(), graph, *inputs)


def call_leaving_with_block(grad: bool, graph: Callable[..., Any], *inputs: Any) -> Any:
    """The same for the rest of a ``with`` statement that was entered before: an exception leaves it, and grad mode is what it was outside."""
    entered = len(_ENTERED.contexts)
    autocast = _autocast()
    try:
        return graph(*inputs)
    except BaseException:
        while len(_ENTERED.contexts) > entered:
            _ENTERED.contexts.pop().__exit__(None, None, None)
        torch._C._set_grad_enabled(grad)
        _set_autocast(autocast)
        raise


def as_subclass(tensor: torch.Tensor, cls: type) -> Any:
    """``tensor.as_subclass(cls)`` without asking the classes concerned."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(cls)


def to_numpy(tensor: torch.Tensor, is_scalar: bool) -> Any:
    """The numpy array over a tensor's memory, or its one number."""
    array = tensor.numpy()
    return array[()] if is_scalar else array


def make_array_view(
    memory: Any, shape: tuple[int, ...], strides: tuple[int, ...], begin: int, is_writeable: bool, dtype: Any
) -> Any:
    """A numpy array over the memory of another one."""
    array = type(memory)(shape, dtype, memory, begin, strides)
    array.flags.writeable = is_writeable
    return array


class AssumptionError(Exception):
    """A tensor is not as the graph took for granted."""


def check_condition(tensor: torch.Tensor, truth: bool) -> None:
    """Raise unless a tensor has this truth."""
    if bool(tensor) is not truth:
        raise AssumptionError


def save_rng_state(generator: random.Random) -> Callable[[], None]:
    """What puts a generator of random numbers back into the state that it has now."""
    return functools.partial(generator.setstate, generator.getstate())


def save_tensor(tensor: torch.Tensor) -> Callable[[], None]:
    """What makes a tensor as it is now: the numbers that it holds, how it is laid out, and how often it has been written to."""
    memory, version = tensor.detach(), tensor._version
    kept = memory.clone()
    layout = tensor.shape, tensor.stride(), tensor.storage_offset()

    def restore() -> None:
        with torch.no_grad():
            if tensor.untyped_storage()._cdata != memory.untyped_storage()._cdata or tensor.dtype != memory.dtype:
                tensor.data = memory
            if (tensor.shape, tensor.stride(), tensor.storage_offset()) != layout:
                tensor.as_strided_(*layout)
            tensor.copy_(kept)
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))

    return restore


def save_requires_grad(tensor: torch.Tensor) -> Callable[[], None]:
    """What tells a leaf to require gradients, or not to, as it does now."""
    return functools.partial(_set_requires_grad, tensor, tensor.requires_grad)


def _set_requires_grad(tensor: torch.Tensor, wanted: bool) -> None:
    tensor.requires_grad_(wanted)


def save_grad_context() -> Callable[[], None]:
    """What switches grad mode and autocast back to what they are now."""
    grad, autocast = torch.is_grad_enabled(), _autocast()

    def regain() -> None:
        torch._C._set_grad_enabled(grad)
        _set_autocast(autocast)

    return regain


def _autocast() -> tuple[int, list[tuple[str, bool, torch.dtype]]]:
    settings = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
    return _autocast_nesting(), settings


def _set_autocast(state: tuple[int, list[tuple[str, bool, torch.dtype]]]) -> None:
    nesting, settings = state
    for device, enabled, dtype in settings:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    # Where contexts are not counted right, weights that autocast keeps as another type are kept for ever.
    for _ in range(nesting - _autocast_nesting()):
        torch.autocast_increment_nesting()
    for _ in range(_autocast_nesting() - nesting):
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


def _autocast_nesting() -> int:
    """How many autocast contexts are open."""
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return nesting


def make_grad_context(cls: Any, mode: bool, before: bool | None) -> Any:
    """``torch.no_grad`` and its like, without switching grad mode; entered when ``before``, the mode to return to, is given."""
    made = object.__new__(cls)
    if cls is torch.set_grad_enabled:
        made.mode = mode
    if before is not None or cls is not torch.enable_grad:
        made.prev = bool(before)
    return made


def wrap_in_grad_mode(mode: bool, function: Callable[..., Any]) -> Any:
    """A function that runs in a grad mode."""
    return (torch.enable_grad() if mode else torch.no_grad())(function)


def exit_autocast(device: str, enabled: bool, dtype: torch.dtype, is_cached: bool) -> None:
    """Leave an autocast context that found these settings."""
    if torch.autocast_decrement_nesting() == 0:
        torch.clear_autocast_cache()
    torch.set_autocast_enabled(device, enabled)
    torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(is_cached)


def make_context(make: Callable[..., Any], entered: bool, names: tuple[str, ...], *values: Any) -> Any:
    """A context manager, entered if so wished."""
    made = make(**dict(zip(names, values, strict=True)))
    if entered:
        made.__enter__()
    return made


class _EnteredContexts(threading.local):
    """Contexts that running graphs of this thread have entered and not left."""

    def __init__(self) -> None:
        self.contexts: list[Any] = []


_ENTERED = _EnteredContexts()


def enter_context(made: Any) -> Any:
    """Enter a context in a graph; it is left by ``exit_context``, or when the graph raises."""
    made.__enter__()
    _ENTERED.contexts.append(made)
    return made


def exit_context(made: Any) -> None:
    """Leave a context that the graph entered."""
    _ENTERED.contexts.remove(made)
    made.__exit__(None, None, None)


def refill_deque(deque: Any, items: list[Any]) -> None:
    """Give a deque other contents."""
    deque.clear()
    deque.extend(items)


def refill_dict(target: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
    """Give a dict other contents, in order, by the methods of ``dict`` itself."""
    dict.clear(target)
    for key, value in zip(keys, values, strict=True):
        dict.__setitem__(target, key, value)


def add_entries(target: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
    """Set items of a dict, in order, by the methods of ``dict`` itself."""
    for key, value in zip(keys, values, strict=True):
        dict.__setitem__(target, key, value)


def refill_ordered(target: OrderedDict[Any, Any], keys: list[Any], values: list[Any]) -> None:
    """Give an OrderedDict other contents, by its own methods."""
    OrderedDict.clear(target)
    for key, value in zip(keys, values, strict=True):
        OrderedDict.__setitem__(target, key, value)


def refill_set(target: set[Any], items: list[Any]) -> None:
    """Give a set other contents."""
    target.clear()
    target.update(items)


def end_unstarted_generator(generator: Any, mark: Any) -> None:
    """End a generator that waits where it started, its body unrun."""
    with contextlib.suppress(StopIteration):
        generator.send(mark)


def make_advanced_iterator(iterable: Any, position: int) -> Iterator[Any]:
    """An iterator over ``iterable`` that has given ``position`` items already."""
    iterator: Any = iter(iterable)
    if hasattr(iterator, "__setstate__"):
        iterator.__setstate__(position)
        return iter(iterator)
    return islice(iterator, position, None)


def advance_iterator(iterator: Iterator[Any], steps: int) -> None:
    """Take items from an iterator that code before the end of the graph has seen already."""
    for _ in range(steps):
        next(iterator, None)


def make_acquired_lock(make: Callable[[], Any], count: int) -> Any:
    """A lock that this thread has taken so many times."""
    made = make()
    for _ in range(count):
        made.acquire()
    return made


def make_buffer(cls: Any, contents: Any, position: int) -> Any:
    """A text or byte buffer in a given state."""
    made = cls(contents)
    made.seek(position)
    return made


def make_tee(iterator: Iterator[Any]) -> Iterator[Any]:
    """One of what ``itertools.tee`` makes of an iterator."""
    return tee(iterator, 1)[0]


def make_reversed(sequence: Any, index: int) -> Iterator[Any]:
    """A reversed iterator whose next item is number ``index``; -1 is its end."""
    iterator: Any = reversed(sequence)
    if index < 0:
        for _ in iterator:
            pass  # one that has ended stays so, whatever is added later
    else:
        iterator.__setstate__(index)
    return iter(iterator)


def skip_items(iterator: Iterator[Any], count: int) -> Iterator[Any]:
    """The iterator, ``count`` items on."""
    for _ in range(count):
        next(iterator)
    return iterator


def make_function(
    code: types.CodeType,
    namespace: dict[str, Any],
    name: str,
    qualname: str,
    defaults: tuple[Any, ...] | None,
    keyword_defaults: dict[str, Any] | None,
    closure: Iterable[Any],
    attributes: dict[str, Any] | None,
    annotations: dict[str, Any] | None,
) -> types.FunctionType:
    """A function as the traced code made it."""
    made = types.FunctionType(code, namespace, name, defaults, tuple(closure) or None)
    made.__qualname__ = qualname
    made.__kwdefaults__ = keyword_defaults
    for word, value in (attributes or {}).items():
        setattr(made, word, value)
    if annotations is not None:
        made.__annotations__ = annotations
    return made


def make_singledispatch(classes: tuple[Any, ...], functions: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    """``functools.singledispatch`` of the first function, with the others registered for their classes."""
    made = functools.singledispatch(functions[0])
    for cls, function in zip(classes[1:], functions[1:], strict=True):
        made.register(cls, function)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def build_class(name: str, bases: tuple[Any, ...], namespace: dict[str, Any], /, **words: Any) -> Any:
    """What a class statement does when its body has run."""
    resolved = types.resolve_bases(bases)
    metaclass, prepared, rest = types.prepare_class(name, resolved, words)
    for key, value in namespace.items():
        prepared[key] = value
    if resolved is not bases:
        prepared["__orig_bases__"] = bases
    return metaclass(name, resolved, prepared, **rest)


class _NoInitSubclass:
    """A base whose ``__init_subclass__`` does nothing."""

    def __init_subclass__(cls, **words: Any) -> None:
        pass


def call_type_new(name: str, bases: tuple[Any, ...], namespace: dict[str, Any], /, metaclass: Any) -> Any:
    """What ``type.__new__`` makes, without running any ``__init_subclass__``: that was traced already."""
    resolved = types.resolve_bases(bases)
    space = dict(namespace) if resolved is bases else {**namespace, "__orig_bases__": bases}
    make = abc.ABCMeta.__new__ if issubclass(metaclass, abc.ABCMeta) else type.__new__
    if not any(_has_init_subclass(base) for base in resolved):
        return make(metaclass, name, resolved, space)
    made: Any = make(metaclass, name, (_NoInitSubclass, *resolved), space)
    made.__bases__ = resolved
    return made


def _has_init_subclass(base: type) -> bool:
    return any("__init_subclass__" in c.__dict__ for c in base.__mro__ if c is not object)


def warn_at_line(message: Any, category: type[Warning], file: str, line: int, namespace: dict[str, Any]) -> None:
    """``warnings.warn`` as if a line of a file had called it."""
    registry = namespace.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, file, line, namespace.get("__name__") or "<sys>", registry)


def log_at_line(
    logger: logging.Logger, level: int, file: str, line: int, function: str, message: str, *args: Any
) -> None:
    """``logger.log`` as if a line of a file had called it."""
    if logger.isEnabledFor(level):
        logger.handle(logger.makeRecord(logger.name, level, file, line, message, args, None, function))


def warn_at_caller(message: Any, category: type[Warning], above: int) -> None:
    """``warnings.warn`` as if the caller so many frames of the user's above the compiled one had called it."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and above:
        frame = frame.f_back
        if frame is not None and not _is_engine_file(frame.f_code.co_filename):
            above -= 1
    if frame is None:
        warnings.warn_explicit(message, category, "sys", 1, "sys", {})
        return
    warn_at_line(message, category, frame.f_code.co_filename, frame.f_lineno, frame.f_globals)


_ENGINE_FOLDER = str(pathlib.Path(__file__).parents[1])


def _is_engine_file(file: str) -> bool:
    return file.startswith(("<engine", _ENGINE_FOLDER))


def new_object(cls: type) -> Any:
    """An instance whose ``__init__`` has been traced already."""
    made: Any = object.__new__(cls)
    return made


def new_thread_local() -> threading.local:
    """Data of the thread, empty as yet."""
    return threading.local()


def make_suspended_generator(
    code: types.CodeType, namespace: dict[str, Any], names: tuple[str, str], cells: tuple[Any, ...], *values: Any
) -> types.GeneratorType[Any, Any, Any]:
    """A generator that waits at the ``yield`` at which its code begins."""
    made: types.GeneratorType[Any, Any, Any] = types.FunctionType(code, namespace, code.co_name, None, cells)(*values)
    made.__name__, made.__qualname__ = names
    next(made)
    return made


def make_finished_generator(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A generator that has come to its end."""
    made = make(*args, **kwargs)
    made.close()
    return made


def new_exception(cls: type[BaseException], line: int, *args: Any) -> BaseException:
    """An exception whose class's own ``__init__`` has been traced already; what C code does at its creation is done.

    ``line`` is where the calling frame raised it, 0 if it was not raised.
    """
    base: Any = next(c for c in cls.__mro__ if not c.__flags__ & _HEAP_TYPE_FLAG)
    made: BaseException = base.__new__(cls, *args)
    base.__init__(made, *args)
    if line:
        frame = sys._getframe(1)
        # Of the instruction, whose line would be shown instead, nothing is said.
        made.__traceback__ = types.TracebackType(None, frame, -1, line)
        made.__context__ = sys.exc_info()[1]
    return made


def call_exit(leave: Callable[..., Any], error: BaseException) -> Any:
    """What a ``with`` statement calls when an exception passes it."""
    return leave(type(error), error, error.__traceback__)


def choose_attribute_setter(cls: type, names: Iterable[str]) -> Callable[[Any, tuple[str, ...], tuple[Any, ...]], None]:
    """How these attributes of an instance are set: looked up while tracing, since asking each class for each name takes longer than setting it."""
    return set_attributes_past_descriptors if any(_has_python_setter(cls, name) for name in names) else set_attributes


def set_attributes(target: Any, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
    """Set attributes past any ``__setattr__`` of the class, which was traced already."""
    plainly: Any = threading.local.__setattr__ if isinstance(target, threading.local) else object.__setattr__
    for name, value in zip(names, values, strict=True):
        plainly(target, name, value)


def set_attributes_past_descriptors(target: Any, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
    """Set attributes past any ``__setattr__`` and descriptor of the class, which were traced already."""
    for name, value in zip(names, values, strict=True):
        if _has_python_setter(type(target), name):
            target.__dict__[name] = value
        else:
            object.__setattr__(target, name, value)


def set_instance_dict(target: Any, namespace: dict[str, Any]) -> None:
    """Let a dict hold the attributes of an instance, past any ``__setattr__`` of the class."""
    object.__setattr__(target, "__dict__", namespace)


def delete_attributes(target: Any, names: tuple[str, ...]) -> None:
    """Delete attributes past any ``__delattr__`` of the class."""
    for name in names:
        if _has_python_setter(type(target), name):
            del target.__dict__[name]
        else:
            object.__delattr__(target, name)


def _has_python_setter(cls: type, name: str) -> bool:
    """Whether setting an attribute would ask a descriptor written in Python."""
    if issubclass(cls, torch.Tensor):
        return False
    found = next((base.__dict__[name] for base in cls.__mro__ if name in base.__dict__), None)
    from_c = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return hasattr(type(found), "__set__") and not isinstance(found, from_c)


def refill_list(target: list[Any], items: list[Any]) -> None:
    """Give a list other contents, by the methods of ``list`` itself."""
    list.__setitem__(target, slice(None), items)


def format_value(value: Any, conversion: int, spec: str) -> str:
    """One part of an f-string. ``conversion``: 0 none, 1 str, 2 repr, 3 ascii."""
    return format(value if not conversion else (str, repr, ascii)[conversion - 1](value), spec)


def join_f_string(parts: tuple[str | tuple[int, str], ...], *values: Any) -> str:
    """The text of an f-string: pieces as they are, and values in their formats."""
    given = iter(values)
    return "".join(part if isinstance(part, str) else format_value(next(given), *part) for part in parts)


def new_container(cls: Any, *items: Any) -> Any:
    """An instance of a subclass of a builtin container whose ``__init__`` has been traced already."""
    for base in cls.__mro__:
        if base in (OrderedDict, dict, list, set, frozenset, tuple, int, float, complex, str, bytes):
            return base.__new__(cls, *items)
    raise TypeError(cls)
