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

from engine.autograd.order import Node, Place

Registry = Mapping[int, Any]
"""Hooks by the ids of their handles, in the order in which they were registered."""


@dataclass(frozen=True, eq=False)
class Removed:
    """A hook that is gone, what it was taken from, the place of the node whose code did that, and whether it was the hook itself."""

    registry: Registry
    id: int
    hook: Any
    place: int
    is_own: bool


@dataclass(eq=False)
class Running:
    """A captured backward that runs in this thread. ``find_nodes`` walks autograd's graph: None where it is not the one captured."""

    find_nodes: Callable[[], tuple[Node, ...] | None]
    hooks: Sequence[Any]
    """Those that it was called with."""
    wanted: Sequence[Place] = ()
    """What its results are the gradients of, if it has any."""
    task: int = field(default_factory=itertools.count(1 << 40).__next__)
    """What torch calls the id of the graph's task."""
    place: int = -1
    """In the walk, of the node whose hook or function runs."""
    hook: Any = None
    """The hook that runs."""
    removed: list[Removed] = field(default_factory=list)
    known: dict[tuple[Any, int], Registry] = field(default_factory=dict)
    """Of tensors that are no leaves: by their nodes, and which of the nodes' gradients are theirs."""
    keeps: list[tuple[Any, int, weakref.ref[torch.Tensor]]] = field(default_factory=list)
    """Tensors that keep their gradients since this backward began, with their nodes, as in ``known``."""
    is_changed: bool = False
    context: Any = None
    """Of the Python function that runs, as its backward sees it."""
    _nodes: tuple[Node, ...] | None = None
    _is_walked: bool = False

    @property
    def nodes(self) -> tuple[Node, ...] | None:
        """Autograd's nodes in the order of the walk."""
        if not self._is_walked:
            self._nodes, self._is_walked = self.find_nodes(), True
        return self._nodes

    def made(self, registry: Registry, owner: Any) -> None:
        """A hook is about to be added for ``owner``: a tensor, a module, or, where it is unknown, a node."""
        if isinstance(owner, torch.nn.Module) or self.nodes is None:
            return
        if isinstance(owner, torch.Tensor):
            if not any(n.node is owner.grad_fn or getattr(n.node, "variable", None) is owner for n in self.nodes):
                return
            if owner.grad_fn is not None:
                self.known[owner.grad_fn, owner.output_nr] = registry
        self.is_changed = True

    def retained(self, tensor: torch.Tensor) -> None:
        """A tensor is to keep its gradient from now on."""
        if self.nodes is not None and any(n.node is tensor.grad_fn for n in self.nodes):
            self.keeps.append((tensor.grad_fn, tensor.output_nr, weakref.ref(tensor)))
            self.is_changed = True

    def gone(self, registry: Registry, id: int) -> None:
        """A hook is about to be removed."""
        hook = registry[id]
        if any(h is hook for h in self.hooks) and self.nodes is not None:
            self.removed.append(Removed(registry, id, hook, self.place, hook is self.hook))
            self.is_changed = True

    def places_of(self, removed: Removed) -> Sequence[Place]:
        """Nodes, and which of their gradients, that a hook was removed from, as far as tensors are left that tell it."""
        return [
            (t.grad_fn, t.output_nr)
            for t in gc.get_referrers(removed.registry)
            if isinstance(t, torch.Tensor) and t.grad_fn is not None and t._backward_hooks is removed.registry
        ]

    def rank_of(self, removed: Removed) -> tuple[int, int]:
        """Of all times that this hook was registered on tensors that are no leaves: which one was taken back, of how many."""
        leaves = [n.node.variable._backward_hooks for n in self.nodes or () if hasattr(n.node, "variable")]
        ids = {r.id for r in self.removed if r.hook is removed.hook}
        for registry in gc.get_referrers(removed.hook):
            if isinstance(registry, OrderedDict) and not any(registry is r for r in leaves):
                ids |= {id for id, hook in registry.items() if hook is removed.hook}
        return sorted(ids).index(removed.id), len(ids)


class _Thread(threading.local):
    running: Running | None = None
    is_asking = False


_thread = _Thread()


class _Asked(Exception):
    """Carries a node's registry out of the registration of a hook, which then does not take place."""


def hooks_of(register: Callable[[Any], Any]) -> tuple[Registry, bool]:
    """The hooks that one of a node's methods for registering adds to, and whether there is a registry at all."""
    first, second = _asked(register), _asked(register)
    return first, first is second


def _asked(register: Callable[[Any], Any]) -> Registry:
    _thread.is_asking = True
    try:
        register(None)
    except _Asked as answer:
        found: Registry = answer.args[0]
        return found
    finally:
        _thread.is_asking = False
    return {}


def is_changed() -> bool:
    """Whether hooks came or went since this thread's captured backward began."""
    running = _thread.running
    return running is not None and running.is_changed


@contextlib.contextmanager
def in_function(context: Any) -> Iterator[None]:
    """While a Python function's backward runs, whose context is this."""
    running = _thread.running
    if running is None:
        yield
        return
    running.context = context
    try:
        yield
    finally:
        running.context = None


def running_here() -> Running:
    """The captured backward that runs in this thread."""
    assert _thread.running is not None
    return _thread.running


class At:
    """A step of the node at a place in the walk that runs code of the user's: the first argument is the hook or context."""

    def __init__(self, place: int, run: Callable[..., Any]) -> None:
        self._place = place
        self._run = run

    def __call__(self, hook: Any, *args: Any) -> Any:
        """What ``run`` returns."""
        running = _thread.running
        if running is not None:
            running.place, running.hook = self._place, hook
        return self._run(hook, *args)


@contextlib.contextmanager
def watched(running: Running) -> Iterator[None]:
    """Notice what happens to hooks in this thread, and tell the user's code which node runs, while this backward does.

    Only one thread at a time runs a captured backward; only then do handles of hooks, and two functions of torch's, take the way round here.
    """
    module: Any = torch._C
    handle: Any = RemovableHandle
    told = {name: getattr(module, name) for name in _TOLD}
    for name, tell in _TOLD.items():
        setattr(module, name, functools.partial(tell, told[name]))
    handle.__init__, handle.remove = _made, _gone
    tensor: Any = torch.Tensor
    tensor.retain_grad = _retain
    _thread.running = running
    try:
        yield
    finally:
        _thread.running = None
        handle.__init__, handle.remove = _make, _remove
        del tensor.retain_grad
        for name, tell in told.items():
            setattr(module, name, tell)


def _node(by_torch: Callable[[], Any]) -> Any:
    found, running = by_torch(), _thread.running
    if found is not None or running is None or running.place < 0 or running.nodes is None:
        return found
    return running.nodes[running.place].node if running.context is None else running.context


def _task(by_torch: Callable[[], int]) -> int:
    found, running = by_torch(), _thread.running
    return running.task if found == -1 and running is not None else found


_TOLD: Mapping[str, Callable[..., Any]] = {"_current_autograd_node": _node, "_current_graph_task_id": _task}
"""Functions of torch's that know only its own engine's backwards."""

_make, _remove = RemovableHandle.__init__, RemovableHandle.remove


def _retain(self: torch.Tensor) -> Any:
    running, kept = _thread.running, self.requires_grad and self.retains_grad
    super(torch.Tensor, self).retain_grad()
    if running is not None and not kept and self.grad_fn is not None:
        running.retained(self)


def _made(self: RemovableHandle, hooks_dict: Any, **rest: Any) -> None:
    if _thread.is_asking:
        raise _Asked(hooks_dict)
    running = _thread.running
    if running is not None:
        running.made(hooks_dict, sys._getframe(1).f_locals.get("self"))
    _make(self, hooks_dict, **rest)


def _gone(self: RemovableHandle) -> None:
    running, registry = _thread.running, self.hooks_dict_ref()
    if running is not None and registry is not None and self.id in registry:
        running.gone(registry, self.id)
    _remove(self)
