"""Tracks hooks that are added or removed during a captured backward; reads a node's hooks."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from engine.autograd.execution_order import AutogradNode, NodeEdge
from engine.torch_private.autograd import torch_c_module

HookRegistry = Mapping[int, Any]
"""Hooks by handle id, in the order of registration."""


@dataclass(frozen=True, eq=False)
class RemovedHook:
    """A removed hook, its registry, and the node whose code removed it."""

    registry: HookRegistry
    id: int
    hook: Any
    node_index: int
    removed_by_itself: bool


@dataclass(eq=False)
class ActiveBackward:
    """A captured backward that runs in this thread.

    ``find_nodes`` walks autograd's graph; it returns None if that is not the captured graph.
    """

    find_nodes: Callable[[], tuple[AutogradNode, ...] | None]
    captured_hooks: Sequence[Any]
    """Hooks that the captured graph was called with."""
    input_edges: Sequence[NodeEdge] = ()
    """Edges whose gradients are the results; empty if the backward has no results."""
    graph_task_id: int = field(default_factory=itertools.count(1 << 40).__next__)
    """Value for torch's ``_current_graph_task_id``."""
    node_index: int = -1
    """Walk index of the node whose hook or function runs."""
    running_hook: Any = None
    """Running hook."""
    removed_hooks: list[RemovedHook] = field(default_factory=list)
    tensor_registries: dict[tuple[Any, int], HookRegistry] = field(default_factory=dict)
    """Registries of non-leaf tensors, by node and index of the gradient."""
    newly_retained: list[tuple[Any, int, weakref.ref[torch.Tensor]]] = field(default_factory=list)
    """Tensors that called ``retain_grad`` during this backward, with node and gradient index."""
    hooks_changed: bool = False
    function_context: Any = None
    """Ctx of the running autograd.Function, as its backward sees it."""
    _nodes: tuple[AutogradNode, ...] | None = None
    _is_walked: bool = False

    @property
    def nodes(self) -> tuple[AutogradNode, ...] | None:
        """Autograd nodes in the order of the walk; None if the graph is not the captured one."""
        if not self._is_walked:
            self._nodes, self._is_walked = self.find_nodes(), True
        return self._nodes

    def on_hook_added(self, registry: HookRegistry, owner: Any) -> None:
        """Record that a hook is about to be added.

        ``owner``: a tensor or a module; any other value means that the hook is on an unknown node.
        """
        if isinstance(owner, torch.nn.Module) or self.nodes is None:
            return
        if isinstance(owner, torch.Tensor):
            if not any(n.node is owner.grad_fn or getattr(n.node, "variable", None) is owner for n in self.nodes):
                return
            if owner.grad_fn is not None:
                self.tensor_registries[owner.grad_fn, owner.output_nr] = registry
        self.hooks_changed = True

    def on_grad_retained(self, tensor: torch.Tensor) -> None:
        """Record that a tensor called ``retain_grad``."""
        if self.nodes is not None and any(n.node is tensor.grad_fn for n in self.nodes):
            self.newly_retained.append((tensor.grad_fn, tensor.output_nr, weakref.ref(tensor)))
            self.hooks_changed = True

    def on_hook_removed(self, registry: HookRegistry, id: int) -> None:
        """Record that a hook of the captured graph is about to be removed."""
        hook = registry[id]
        if any(h is hook for h in self.captured_hooks) and self.nodes is not None:
            self.removed_hooks.append(RemovedHook(registry, id, hook, self.node_index, hook is self.running_hook))
            self.hooks_changed = True

    def edges_of_removed(self, removed: RemovedHook) -> Sequence[NodeEdge]:
        """Return the edges that a hook was removed from, if their tensors still exist."""
        return [
            (t.grad_fn, t.output_nr)
            for t in gc.get_referrers(removed.registry)
            if isinstance(t, torch.Tensor) and t.grad_fn is not None and t._backward_hooks is removed.registry
        ]

    def registration_rank(self, removed: RemovedHook) -> tuple[int, int]:
        """Return (rank of the removed registration, number of registrations) of a hook.

        Only registrations on non-leaf tensors count.
        """
        leaves = [n.node.variable._backward_hooks for n in self.nodes or () if hasattr(n.node, "variable")]
        ids = {r.id for r in self.removed_hooks if r.hook is removed.hook}
        for registry in gc.get_referrers(removed.hook):
            if isinstance(registry, OrderedDict) and not any(registry is r for r in leaves):
                ids |= {id for id, hook in registry.items() if hook is removed.hook}
        return sorted(ids).index(removed.id), len(ids)


class _Thread(threading.local):
    active: ActiveBackward | None = None
    is_probing = False


_thread = _Thread()


class _RegistryFound(Exception):
    """Carries a node's registry out of a hook registration, which it aborts."""


def read_hooks(register: Callable[[Any], Any]) -> tuple[HookRegistry, bool]:
    """Return the hooks of a node's ``register`` method, and True if a registry exists."""
    first, second = _probe_registry(register), _probe_registry(register)
    return first, first is second


def _probe_registry(register: Callable[[Any], Any]) -> HookRegistry:
    _thread.is_probing = True
    try:
        register(None)
    except _RegistryFound as answer:
        registry: HookRegistry = answer.args[0]
        return registry
    finally:
        _thread.is_probing = False
    return {}


def hooks_changed() -> bool:
    """Return True if hooks changed since this thread's captured backward began."""
    running = _thread.active
    return running is not None and running.hooks_changed


@contextlib.contextmanager
def running_function(context: Any) -> Iterator[None]:
    """Set the ctx of the autograd.Function whose backward runs."""
    running = _thread.active
    if running is None:
        yield
        return
    running.function_context = context
    try:
        yield
    finally:
        running.function_context = None


def active_backward() -> ActiveBackward:
    """Return the captured backward that runs in this thread."""
    assert _thread.active is not None
    return _thread.active


class PositionedHook:
    """User code of the node at an index of the walk; its first argument is the hook or ctx."""

    def __init__(self, position: int, run: Callable[..., Any]) -> None:
        self._node_index = position
        self._run = run

    def __call__(self, hook: Any, *args: Any) -> Any:
        """Set the running node and hook, then return the result of ``run``."""
        running = _thread.active
        if running is not None:
            running.node_index, running.running_hook = self._node_index, hook
        return self._run(hook, *args)


@contextlib.contextmanager
def track_hooks(running: ActiveBackward) -> Iterator[None]:
    """Track changes of hooks in this thread, and make torch report the running node.

    Only one thread at a time runs a captured backward. Hook handles and the torch functions are patched only then.
    """
    module: Any = torch_c_module
    handle: Any = RemovableHandle
    originals = {name: getattr(module, name) for name in _PATCHED_TORCH_FUNCTIONS}
    for name, tell in _PATCHED_TORCH_FUNCTIONS.items():
        setattr(module, name, functools.partial(tell, originals[name]))
    handle.__init__, handle.remove = _patched_init, _patched_remove
    tensor: Any = torch.Tensor
    tensor.retain_grad = _patched_retain_grad
    _thread.active = running
    try:
        yield
    finally:
        _thread.active = None
        handle.__init__, handle.remove = _original_init, _original_remove
        del tensor.retain_grad
        for name, tell in originals.items():
            setattr(module, name, tell)


def _patched_current_node(by_torch: Callable[[], Any]) -> Any:
    node, running = by_torch(), _thread.active
    if node is not None or running is None or running.node_index < 0 or running.nodes is None:
        return node
    return running.nodes[running.node_index].node if running.function_context is None else running.function_context


def _patched_graph_task_id(by_torch: Callable[[], int]) -> int:
    task_id, running = by_torch(), _thread.active
    return running.graph_task_id if task_id == -1 and running is not None else task_id


_PATCHED_TORCH_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "_current_autograd_node": _patched_current_node,
    "_current_graph_task_id": _patched_graph_task_id,
}
"""Replacements of torch functions that know only backwards of torch's own engine."""

_original_init, _original_remove = RemovableHandle.__init__, RemovableHandle.remove


def _patched_retain_grad(self: torch.Tensor) -> Any:
    running, retained = _thread.active, self.requires_grad and self.retains_grad
    super(torch.Tensor, self).retain_grad()
    if running is not None and not retained and self.grad_fn is not None:
        running.on_grad_retained(self)


def _patched_init(self: RemovableHandle, hooks_dict: Any, **rest: Any) -> None:
    if _thread.is_probing:
        raise _RegistryFound(hooks_dict)
    running = _thread.active
    if running is not None:
        running.on_hook_added(hooks_dict, sys._getframe(1).f_locals.get("self"))
    _original_init(self, hooks_dict, **rest)


def _patched_remove(self: RemovableHandle) -> None:
    running, registry = _thread.active, self.hooks_dict_ref()
    if running is not None and registry is not None and self.id in registry:
        running.on_hook_removed(registry, self.id)
    _original_remove(self)
