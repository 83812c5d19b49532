"""Fakes torch.distributed and torch.cuda: a program runs as one rank, without devices."""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from engine.planning.observe_step import StepObserver
from engine.planning.time_model import PlannedEvent, PlannedStream, Timeline
from engine.torch_private.fake_tensors import FakeTensorMode
from engine.torch_private.lazily_loaded import (
    FakeStore,
    OpDispatcher,
    ProcessGroupReducer,
    ShardingPropagator,
    Work,
    c10d,
    distributed_utils,
    fsdp_common,
)

MEMORY_OF_DEVICE = 80 * 2**30
"""Bytes that ``get_device_properties`` gives as the device's memory."""


class PlannedTensorMode(FakeTensorMode):
    """Fake tensor mode that never initializes the machine's own GPU."""

    @property
    def avoid_device_init(self) -> bool:
        """Return True: CUDA is never initialized, also where it is installed."""
        return True


@contextlib.contextmanager
def fake_world(
    rank: int,
    world: int,
    mesh: Mapping[str, int],
    device: str,
    observer: StepObserver,
    names: list[dict[str, Any]],
    replacements: Replacements = (),
) -> Iterator[FakeTensorMode]:
    """Replace the distributed and device APIs by fakes of one rank of ``world`` in the block.

    ``names`` are namespaces of the program, in which imported functions are replaced too. ``replacements`` are further ones.
    """
    local = min(world, observer.hardware.devices_per_node)
    variables = {
        "RANK": rank, "LOCAL_RANK": rank % local, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": local, "GROUP_RANK": rank // local,
        "ROLE_RANK": rank, "ROLE_WORLD_SIZE": world, "MASTER_ADDR": "localhost", "MASTER_PORT": 29500,
    }  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {k: str(v) for k, v in variables.items()}))
        stack.enter_context(_preserve_global_state())
        stack.enter_context(_empty_process_groups())
        patches = [*_fake_distributed_functions(rank, world, mesh, observer), *replacements]
        if device == "cuda":
            patches += _fake_device_functions(rank % local, local, observer)
        for owner, name, value in patches:
            _patch_attribute(stack, owner, name, value, names)
        for register, hook in _hooks(observer):
            stack.callback(register(hook).remove)
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        mode = stack.enter_context(PlannedTensorMode(allow_non_fake_inputs=True))
        _patch_attribute(stack, torch.utils, "swap_tensors", _swap_fake_tensors(mode), names)
        stack.enter_context(observer)
        yield mode


def _patch_attribute(stack: ExitStack, owner: Any, name: str, value: Any, names: list[dict[str, Any]]) -> None:
    """Replace an attribute, also where torch.distributed or the program imported it."""
    before = getattr(owner, name, None)
    stack.enter_context(mock.patch.object(owner, name, value, create=True))
    if before is None or inspect.isclass(owner):
        return
    modules = [
        vars(m)
        for n, m in list(sys.modules.items())
        if n.startswith(("torch.distributed", "torch.nn.parallel")) and m is not None
    ]
    for namespace in (*modules, *names):
        for key in [k for k, v in namespace.items() if v is before]:
            stack.enter_context(mock.patch.dict(namespace, {key: value}))


@contextlib.contextmanager
def _preserve_global_state() -> Iterator[None]:
    dtype, grad, state, python_state = (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_rng_state(),
        random.getstate(),
    )
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.set_rng_state(state)
        random.setstate(python_state)


@contextlib.contextmanager
def _empty_process_groups() -> Iterator[None]:
    """Start without process groups; afterwards those of before are as they were."""
    tables = [v for k, v in vars(c10d).items() if k.startswith(("_pg_", "_tags_")) and hasattr(v, "keys")]
    saved = [dict(table) for table in tables]
    default, count = c10d._world.default_pg, c10d._group_count
    for table in tables:
        table.clear()
    c10d._world.default_pg = None
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
        for table, entries in zip(tables, saved, strict=True):
            table.clear()
            table.update(entries)
        c10d._world.default_pg = default
        if default is not None:
            c10d._group_count = count


def _hooks(observer: StepObserver) -> list[tuple[Callable[[Any], Any], Callable[..., None]]]:
    return [
        (register_module_forward_pre_hook, lambda module, args: observer.enter_module(module)),
        (register_module_forward_hook, lambda module, args, result: observer.leave_module(module)),
        (register_optimizer_step_pre_hook, lambda optimizer, args, kwargs: observer.enter_optimizer(optimizer)),
        (register_optimizer_step_post_hook, lambda optimizer, args, kwargs: observer.leave_optimizer(optimizer)),
    ]


Replacements = Sequence[tuple[Any, str, Any]]
"""Replaced attributes as (owner, attribute, value)."""


def _fake_distributed_functions(rank: int, world: int, mesh: Mapping[str, int], observer: StepObserver) -> Replacements:
    init, new_group = c10d.init_process_group, c10d._new_process_group_helper
    init_mesh = torch.distributed.device_mesh.init_device_mesh

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        init("fake", store=FakeStore(), rank=rank, world_size=world)

    def make_group(size: int, own: int, ranks: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("backend_options", None)
        return new_group(size, own, ranks, "fake", *args, **kwargs)

    def init_device_mesh(device_type: str, mesh_shape: Any, *args: Any, **kwargs: Any) -> Any:
        dim_names = kwargs.get("mesh_dim_names", args[0] if args else None) or ()
        shape = tuple(mesh[n] for n in dim_names) if mesh and set(dim_names) == set(mesh) else mesh_shape
        if tuple(shape) != tuple(mesh_shape):
            observer.notes[f"The program's mesh {tuple(mesh_shape)} is planned as {tuple(shape)}, as given."] = None
        kwargs.pop("backend_override", None)
        return init_mesh(device_type, tuple(shape), *args, **kwargs)

    verify_shapes = distributed_utils._verify_param_shape_across_processes

    def verify(group: Any, tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        observer.bucket_device = next((t.device for t in tensors), None)
        return verify_shapes(group, tensors, *args, **kwargs)

    def flagged(owner: Any, name: str, flag: str) -> tuple[Any, str, Any]:
        return owner, name, _setting_flag(getattr(owner, name), observer, flag)

    return [
        (c10d, "init_process_group", init_process_group),
        (c10d, "_new_process_group_helper", make_group),
        (c10d, "is_nccl_available", lambda: True),
        (torch.distributed.device_mesh, "init_device_mesh", init_device_mesh),
        (Work, "wait", lambda work, *args, **kwargs: observer.wait(work)),
        (torch.UntypedStorage, "resize_", _tracking_resize(observer)),
        flagged(ShardingPropagator, "_propagate_tensor_meta_non_cached", "is_paused"),
        (fsdp_common, "_chunk_with_empty", Chunks),
        (OpDispatcher, "redistribute_local_args", staticmethod(_recording_redistribution(observer))),
        flagged(ProcessGroupReducer, "__init__", "runs_integers"),
        flagged(ProcessGroupReducer, "_rebuild_buckets", "runs_integers"),
        (distributed_utils, verify_shapes.__name__, _setting_flag(verify, observer, "runs_integers")),
        (torch, "compile", _compile_as_eager),
        (torch.utils.data.DataLoader, "__init__", _load_in_process(torch.utils.data.DataLoader.__init__)),
    ]


class Chunks(Sequence[torch.Tensor]):
    """Chunks of a tensor for all ranks, made when read: a rank reads its own of many."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self.tensor, self.chunks, self.dim = tensor, num_chunks, dim

    def __len__(self) -> int:
        return self.chunks

    def __getitem__(self, number: Any) -> Any:
        """Return a chunk as ``torch.chunk`` makes it; an empty tensor where that makes none."""
        size = self.tensor.size(self.dim)
        each = max(1, -(-size // self.chunks))
        first = range(self.chunks)[number] * each
        if first >= size:
            return self.tensor.new_empty(0) if size else self.tensor
        return self.tensor.narrow(self.dim, first, min(each, size - first))


def _recording_redistribution(observer: StepObserver) -> Callable[..., None]:
    redistribute = OpDispatcher.redistribute_local_args

    def run(info: Any, schema: Any, *args: Any, **kwargs: Any) -> None:
        observer.redistributes_for = str(schema.op.overloadpacket)
        try:
            redistribute(info, schema, *args, **kwargs)
        finally:
            observer.redistributes_for = ""

    return run


def _swap_fake_tensors(mode: FakeTensorMode) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Return a swap of tensors that drops weak references to them, which forbid it."""
    swap = torch.utils.swap_tensors
    memo = mode.fake_tensor_converter.meta_converter.tensor_memo

    def swap_tensors(first: torch.Tensor, second: torch.Tensor) -> None:
        for key in [k for k, tensor in memo.items() if tensor is first or tensor is second]:
            del memo[key]
        swap(first, second)  # type: ignore[no-untyped-call]

    return swap_tensors


def _compile_as_eager(model: Any = None, **options: Any) -> Any:
    """Return the function or module itself: a plan observes operators as eager runs them."""
    return model if model is not None else lambda function: function


_IN_PROCESS = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "pin_memory": False}
"""Arguments of a data loader that starts no processes."""


def _load_in_process(init: Callable[..., None]) -> Callable[..., None]:
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs |= {k: v for k, v in _IN_PROCESS.items() if k in kwargs}
        init(self, *args, **kwargs)

    return construct


def _setting_flag(function: Callable[..., Any], observer: StepObserver, flag: str) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        before = getattr(observer, flag)
        setattr(observer, flag, True)
        try:
            return function(*args, **kwargs)
        finally:
            setattr(observer, flag, before)

    return run


def _tracking_resize(observer: StepObserver) -> Callable[[torch.UntypedStorage, int], Any]:
    resize = torch.UntypedStorage.resize_

    def observed(self: torch.UntypedStorage, size: int) -> Any:
        result = resize(self, size)
        if not observer.is_paused:
            observer.storages.track(self)
            observer.note_peak()
        return result

    return observed


def _fake_device_functions(local: int, count: int, observer: StepObserver) -> Replacements:
    """Return replacements in torch.cuda and torch.accelerator: a device that runs nothing."""
    timeline = observer.timeline
    properties = SimpleNamespace(
        name="planned device", major=9, minor=0, total_memory=MEMORY_OF_DEVICE, multi_processor_count=132
    )

    def constant(value: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: value

    def live(*args: Any, **kwargs: Any) -> int:
        return observer.storages.total

    def set_stream(stream: PlannedStream) -> None:
        timeline.current = stream

    cuda = {
        "is_available": constant(True),
        "is_initialized": constant(True),
        "device_count": constant(count),
        "current_device": constant(local),
        **dict.fromkeys("init set_device synchronize empty_cache manual_seed manual_seed_all".split(), constant(None)),
        **dict.fromkeys(("set_rng_state", "reset_peak_memory_stats"), constant(None)),
        "get_device_properties": constant(properties),
        "get_device_name": constant(properties.name),
        "get_device_capability": constant((9, 0)),
        "is_bf16_supported": constant(True),
        "get_rng_state": lambda *args, **kwargs: torch.empty(16, dtype=torch.uint8, device="cpu"),
        "memory_allocated": live,
        "memory_reserved": live,
        "max_memory_allocated": lambda *args, **kwargs: observer.storages.peak,
        "mem_get_info": lambda *args, **kwargs: (MEMORY_OF_DEVICE - observer.storages.total, MEMORY_OF_DEVICE),
        "device": lambda index: contextlib.nullcontext(),
        "Stream": _bind_to_timeline(PlannedStream, timeline),
        "Event": _bind_to_timeline(PlannedEvent, timeline),
        "stream": lambda stream: stream or contextlib.nullcontext(),
        "current_stream": lambda *args: timeline.current,
        "default_stream": lambda *args: timeline.default,
        "set_stream": set_stream,
        "is_current_stream_capturing": constant(False),
    }
    accelerator = {
        "is_available": constant(True),
        "current_accelerator": constant(torch.device("cuda")),
        "device_count": constant(count),
        "current_device_index": constant(local),
        "set_device_index": constant(None),
        "synchronize": constant(None),
        "current_stream": lambda *args: timeline.current,
    }
    return [
        *((torch.cuda, name, value) for name, value in cuda.items()),
        *((torch.accelerator, name, value) for name, value in accelerator.items()),
        (torch.Tensor, "record_stream", constant(None)),
        (sys.modules[FakeTensorMode.__module__], "init_gpu_context", constant(None)),
        *_device_moves(local),
    ]


def _bind_to_timeline(base: type[Any], timeline: Timeline) -> type[Any]:
    """Return a subclass whose instances belong to a timeline: programs test instances of it."""
    return type(base.__name__, (base,), {"__init__": lambda self, *args, **kwargs: base.__init__(self, timeline)})


def _device_moves(local: int) -> Replacements:
    """Move tensors between devices that C++ code does not see."""
    move, here = torch.Tensor.to, torch.device("cuda", local)

    def indexed(value: Any) -> torch.device:
        device = torch.device(value)
        return here if device.type == "cuda" and device.index is None else device

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        other = args[0] if args else kwargs.pop("other", None)
        if torch.is_tensor(other):
            return to(self, other.device, other.dtype, *args[1:], **kwargs)
        devices = [v for v in (*args, *kwargs.values()) if hasattr(v, "index")]
        if not devices:
            return move(self, *args, **kwargs)
        device = indexed(devices[0])
        rest = [v for v in args if v is not devices[0]]
        others = {k: v for k, v in kwargs.items() if v is not devices[0]}
        if device == self.device:
            return move(self, *rest, **others) if any(hasattr(v, "itemsize") for v in rest) or others else self
        if device.type == "cuda":
            return move(self, device, *rest, **others)
        dtype = next((v for v in (*rest, *others.values()) if hasattr(v, "itemsize")), self.dtype)
        return torch.ops.aten._to_copy.default(self, dtype=dtype, device=device)  # type: ignore[no-any-return]

    def cuda(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return to(self, here)

    def cpu(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return to(self, "cpu")

    def device_of(self: DTensor) -> torch.device:
        return self._local_tensor.device

    return [
        (torch.Tensor, "to", to),
        (torch.Tensor, "cuda", cuda),
        (torch.Tensor, "cpu", cpu),
        (DTensor, "device", property(device_of)),
    ]
