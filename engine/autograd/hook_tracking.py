"""Notices hooks that come and go while a captured backward runs, and reads which hooks a node has now."""

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

HookRegistry = Mapping[int, Any]
"""Hooks by the ids of their handles, in the order in which they were registered."""


@dataclass(frozen=True, eq=False)
class RemovedHook:
    """A hook that is gone, what it was taken from, the place of the node whose code did that, and whether it was the hook itself."""

    registry: HookRegistry
    id: int
    hook: Any
    node_index: int
    removed_by_itself: bool


@dataclass(eq=False)
class ActiveBackward:
    """A captured backward that runs in this thread. ``find_nodes`` walks autograd's graph: None where it is not the one captured."""

    find_nodes: Callable[[], tuple[AutogradNode, ...] | None]
    captured_hooks: Sequence[Any]
    """Those that it was called with."""
    input_edges: Sequence[NodeEdge] = ()
    """What its results are the gradients of, if it has any."""
    graph_task_id: int = field(default_factory=itertools.count(1 << 40).__next__)
    """What torch calls the id of the graph's task."""
    node_index: int = -1
    """In the walk, of the node whose hook or function runs."""
    running_hook: Any = None
    """The hook that runs."""
    removed_hooks: list[RemovedHook] = field(default_factory=list)
    tensor_registries: dict[tuple[Any, int], HookRegistry] = field(default_factory=dict)
    """Of tensors that are no leaves: by their nodes, and which of the nodes' gradients are theirs."""
    newly_retained: list[tuple[Any, int, weakref.ref[torch.Tensor]]] = field(default_factory=list)
    """Tensors that keep their gradients since this backward began, with their nodes, as in ``known``."""
    hooks_changed: bool = False
    function_context: Any = None
    """Of the Python function that runs, as its backward sees it."""
    _nodes: tuple[AutogradNode, ...] | None = None
    _is_walked: bool = False

    @property
    def nodes(self) -> tuple[AutogradNode, ...] | None:
        """Autograd's nodes in the order of the walk."""
        if not self._is_walked:
            self._nodes, self._is_walked = self.find_nodes(), True
        return self._nodes

    def on_hook_added(self, registry: HookRegistry, owner: Any) -> None:
        """A hook is about to be added for ``owner``: a tensor, a module, or, where it is unknown, a node."""
        if isinstance(owner, torch.nn.Module) or self.nodes is None:
            return
        if isinstance(owner, torch.Tensor):
            if not any(n.node is owner.grad_fn or getattr(n.node, "variable", None) is owner for n in self.nodes):
                return
            if owner.grad_fn is not None:
                self.tensor_registries[owner.grad_fn, owner.output_nr] = registry
        self.hooks_changed = True

    def on_grad_retained(self, tensor: torch.Tensor) -> None:
        """A tensor is to keep its gradient from now on."""
        if self.nodes is not None and any(n.node is tensor.grad_fn for n in self.nodes):
            self.newly_retained.append((tensor.grad_fn, tensor.output_nr, weakref.ref(tensor)))
            self.hooks_changed = True

    def on_hook_removed(self, registry: HookRegistry, id: int) -> None:
        """A hook is about to be removed."""
        hook = registry[id]
        if any(h is hook for h in self.captured_hooks) and self.nodes is not None:
            self.removed_hooks.append(RemovedHook(registry, id, hook, self.node_index, hook is self.running_hook))
            self.hooks_changed = True

    def edges_of_removed(self, removed: RemovedHook) -> Sequence[NodeEdge]:
        """Nodes, and which of their gradients, that a hook was removed from, as far as tensors are left that tell it."""
        return [
            (t.grad_fn, t.output_nr)
            for t in gc.get_referrers(removed.registry)
            if isinstance(t, torch.Tensor) and t.grad_fn is not None and t._backward_hooks is removed.registry
        ]

    def registration_rank(self, removed: RemovedHook) -> tuple[int, int]:
        """Of all times that this hook was registered on tensors that are no leaves: which one was taken back, of how many."""
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


class _RegistryAnswer(Exception):
    """Carries a node's registry out of the registration of a hook, which then does not take place."""


def read_hooks(register: Callable[[Any], Any]) -> tuple[HookRegistry, bool]:
    """The hooks that one of a node's methods for registering adds to, and whether there is a registry at all."""
    first, second = _probe_registry(register), _probe_registry(register)
    return first, first is second


def _probe_registry(register: Callable[[Any], Any]) -> HookRegistry:
    _thread.is_probing = True
    try:
        register(None)
    except _RegistryAnswer as answer:
        found: HookRegistry = answer.args[0]
        return found
    finally:
        _thread.is_probing = False
    return {}


def hooks_changed() -> bool:
    """Whether hooks came or went since this thread's captured backward began."""
    running = _thread.active
    return running is not None and running.hooks_changed


@contextlib.contextmanager
def running_function(context: Any) -> Iterator[None]:
    """While a Python function's backward runs, whose context is this."""
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
    """The captured backward that runs in this thread."""
    assert _thread.active is not None
    return _thread.active


class PositionedHook:
    """A step of the node at a place in the walk that runs code of the user's: the first argument is the hook or context."""

    def __init__(self, place: int, run: Callable[..., Any]) -> None:
        self._node_index = place
        self._run = run

    def __call__(self, hook: Any, *args: Any) -> Any:
        """What ``run`` returns."""
        running = _thread.active
        if running is not None:
            running.node_index, running.running_hook = self._node_index, hook
        return self._run(hook, *args)


@contextlib.contextmanager
def track_hooks(running: ActiveBackward) -> Iterator[None]:
    """Notice what happens to hooks in this thread, and tell the user's code which node runs, while this backward does.

    Only one thread at a time runs a captured backward; only then do handles of hooks, and two functions of torch's, take the way round here.
    """
    module: Any = torch._C
    handle: Any = RemovableHandle
    told = {name: getattr(module, name) for name in _PATCHED_TORCH_FUNCTIONS}
    for name, tell in _PATCHED_TORCH_FUNCTIONS.items():
        setattr(module, name, functools.partial(tell, told[name]))
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
        for name, tell in told.items():
            setattr(module, name, tell)


def _patched_current_node(by_torch: Callable[[], Any]) -> Any:
    found, running = by_torch(), _thread.active
    if found is not None or running is None or running.node_index < 0 or running.nodes is None:
        return found
    return running.nodes[running.node_index].node if running.function_context is None else running.function_context


def _patched_graph_task_id(by_torch: Callable[[], int]) -> int:
    found, running = by_torch(), _thread.active
    return running.graph_task_id if found == -1 and running is not None else found


_PATCHED_TORCH_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "_current_autograd_node": _patched_current_node,
    "_current_graph_task_id": _patched_graph_task_id,
}
"""Functions of torch's that know only its own engine's backwards."""

_original_init, _original_remove = RemovableHandle.__init__, RemovableHandle.remove


def _patched_retain_grad(self: torch.Tensor) -> Any:
    running, kept = _thread.active, self.requires_grad and self.retains_grad
    super(torch.Tensor, self).retain_grad()
    if running is not None and not kept and self.grad_fn is not None:
        running.on_grad_retained(self)


def _patched_init(self: RemovableHandle, hooks_dict: Any, **rest: Any) -> None:
    if _thread.is_probing:
        raise _RegistryAnswer(hooks_dict)
    running = _thread.active
    if running is not None:
        running.on_hook_added(hooks_dict, sys._getframe(1).f_locals.get("self"))
    _original_init(self, hooks_dict, **rest)


def _patched_remove(self: RemovableHandle) -> None:
    running, registry = _thread.active, self.hooks_dict_ref()
    if running is not None and registry is not None and self.id in registry:
        running.on_hook_removed(registry, self.id)
    _original_remove(self)
