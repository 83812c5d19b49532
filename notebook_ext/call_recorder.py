"""Records the root calls of a cell with cloned arguments.

Another compiler can then replay exactly the same calls.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch

from engine.torch_private.pytree import keystr, tree_flatten, tree_flatten_with_path, tree_unflatten

MAX_CALLS = 16
MAX_BYTES = 512_000_000
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class NotReplayableError(Exception):
    """Raised for a call that cannot be replayed on clones; the message is the reason."""


@dataclass
class ClonedCall:
    """One recorded call; ``root`` is an index into ``CallRecorder.roots``."""

    root: int
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    rng_state: torch.Tensor
    grad_enabled: bool
    names: tuple[str, ...] = ()
    """Name of each value in ``arguments`` and ``keywords``."""
    results: dict[str, torch.Tensor] = field(default_factory=dict)
    """Returned tensors by their path in the result."""
    mutated: dict[str, torch.Tensor] = field(default_factory=dict)
    """Tensor arguments that the call mutated, with their values after the call."""


class CallRecorder:
    """Recorder of the root calls of one cell.

    Recording stops at the first call that cannot be replayed; ``stop_reason`` says why.
    """

    def __init__(self) -> None:
        self.roots: list[Any] = []
        """Copies of modules from before their first call; functions themselves."""
        self.compiled_roots: list[Callable[..., Any]] = []
        """Result of this compiler for each root."""
        self.calls: list[ClonedCall] = []
        self.stop_reason = ""
        self._root_indices: dict[int, int] = {}
        self._versions: dict[int, list[tuple[torch.Tensor, int]]] = {}
        self._bytes = 0

    def record_calls(self, root: Any, target: Callable[..., Any]) -> Callable[..., Any]:
        """Return a callable that records each call of ``root`` and runs it through ``target``."""
        self._add_root(root, target)

        @functools.wraps(target if not isinstance(target, torch.nn.Module) else type(target).forward)
        def recorded(*arguments: Any, **keywords: Any) -> Any:
            call = self._begin_call(root, arguments, keywords)
            before = (
                [] if call is None else [version_counter(t) for _, t in tensor_arguments(call, arguments, keywords)]
            )
            result = target(*arguments, **keywords)
            if call is not None:
                call.results = {name: t.detach().clone() for name, t in tensor_results(result)}
                after = zip(tensor_arguments(call, arguments, keywords), before, strict=True)
                call.mutated = {
                    name: t.detach().clone() for (name, t), version in after if version_counter(t) != version
                }
                self._versions[id(root)] = [(t, version_counter(t)) for t in captured_tensors(root)]
            return result

        return recorded

    def _add_root(self, root: Any, target: Callable[..., Any]) -> None:
        if id(root) in self._root_indices or self.stop_reason:
            return
        try:
            root_copy = copy.deepcopy(root) if isinstance(root, torch.nn.Module) else root
        except Exception as error:
            self.stop_reason = f"{type(root).__name__} cannot be copied ({type(error).__name__})"
            return
        self._root_indices[id(root)] = len(self.roots)
        self.roots.append(root_copy)
        self.compiled_roots.append(target)
        self._versions[id(root)] = [(t, version_counter(t)) for t in captured_tensors(root)]

    def _begin_call(self, root: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> ClonedCall | None:
        if self.stop_reason:
            return None
        if len(self.calls) >= MAX_CALLS:
            self.stop_reason = f"only the first {MAX_CALLS} calls are recorded"
        elif any(version_counter(t) != version for t, version in self._versions[id(root)]):
            self.stop_reason = (
                "parameters changed between the calls (a training step), but a replay repeats only the calls"
            )
        if self.stop_reason:
            return None
        try:
            copied = self._copy_tensors((arguments, keywords))
        except NotReplayableError as error:
            self.stop_reason = str(error)
            return None
        names = _argument_names(root, arguments, keywords)
        call = ClonedCall(
            self._root_indices[id(root)], copied[0], copied[1], torch.get_rng_state(), torch.is_grad_enabled(), names
        )
        self.calls.append(call)
        return call

    def _copy_tensors(self, values: Any) -> Any:
        leaves, shape = tree_flatten(values)
        storages: set[int] = set()
        copies: list[Any] = []
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                if not isinstance(leaf, (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)):
                    raise NotReplayableError(
                        f"an argument is of type {type(leaf).__name__}, which cannot be copied safely"
                    )
                copies.append(leaf)
                continue
            if leaf.layout is not torch.strided or leaf.is_quantized:
                raise NotReplayableError("an argument is a sparse or quantized tensor, which is not compared")
            if leaf.untyped_storage().data_ptr() in storages:
                raise NotReplayableError("two arguments share their memory")
            storages.add(leaf.untyped_storage().data_ptr())
            self._bytes += leaf.nbytes
            if self._bytes > MAX_BYTES:
                raise NotReplayableError(f"the inputs take more than {MAX_BYTES // 1_000_000} MB")
            copies.append(leaf.detach().clone().requires_grad_(leaf.requires_grad))
        return tree_unflatten(copies, shape)


def _argument_names(root: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[str, ...]:
    """Return the parameter name of each argument, or its position if the name is unknown."""
    function = root.forward if isinstance(root, torch.nn.Module) else root
    try:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.kind in _BY_POSITION]
    except (TypeError, ValueError):
        parameters = []
    positional = [p.name for p in parameters[: len(arguments)]]
    more = [f"argument {i}" for i in range(len(positional) + 1, len(arguments) + 1)]
    return (*positional, *more, *keywords)


def version_counter(tensor: torch.Tensor) -> int:
    """Return the version counter of a tensor; 0 for an inference tensor, which has none."""
    return 0 if tensor.is_inference() else tensor._version


def tensor_arguments(
    call: ClonedCall, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in the arguments of a call, each with its path as a name."""
    for name, value in zip(call.names, (*arguments, *keywords.values()), strict=True):
        yield from _iterate_tensors(name, value)


def tensor_results(result: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in a result, each with its path as a name."""
    return _iterate_tensors("result", result)


def _iterate_tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for path, leaf in tree_flatten_with_path(value)[0]:
        if isinstance(leaf, torch.Tensor):
            yield name + keystr(path), leaf


def captured_tensors(root: Any) -> list[torch.Tensor]:
    """Return the tensors that a call of ``root`` reads besides its arguments.

    These are parameters and buffers, and for a function the tensors and modules among the globals that it
    names.
    """
    return list(_module_state(root))


def _module_state(root: Any) -> Iterator[torch.Tensor]:
    if isinstance(root, torch.nn.Module):
        yield from root.parameters()
        yield from root.buffers()
    elif isinstance(root, FunctionType):
        for name in root.__code__.co_names:
            value = root.__globals__.get(name)
            if isinstance(value, torch.Tensor):
                yield value
            elif isinstance(value, torch.nn.Module):
                yield from _module_state(value)
