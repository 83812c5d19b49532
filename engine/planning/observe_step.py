"""Observes a training step: its collectives, live storages and modeled time."""

from __future__ import annotations

import gc
import itertools
import pathlib
import sys
import sysconfig
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from engine.graph.fake_tensors.eager_results import arguments_by_name
from engine.ir.user_code_files import display_name
from engine.planning.time_model import Hardware, Timeline, length_outside, merge_intervals
from engine.records.plan import MEMORY_CATEGORIES, MemoryPoint, PlannedCollective, PlannedOperator, RankClass
from engine.torch_private.autograd import current_graph_task_id
from engine.torch_private.dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from engine.torch_private.fake_tensors import DataDependentOutputException, FakeTensor, unset_fake_temporarily
from engine.torch_private.lazily_loaded import ProcessGroup, c10d, create_work_from_future
from engine.torch_private.pytree import tree_leaves

MAX_POINTS = 240
"""Points of a memory curve."""
OPERATORS_BY_KIND = {
    "all_reduce": "allreduce_ allreduce_coalesced_ all_reduce all_reduce_ all_reduce_coalesced all_reduce_coalesced_",
    "all_gather": (
        "allgather_ _allgather_base_ allgather_coalesced_ allgather_into_tensor_coalesced_ all_gather_into_tensor"
        " all_gather_into_tensor_out all_gather_into_tensor_coalesced"
    ),
    "reduce_scatter": (
        "reduce_scatter_ _reduce_scatter_base_ reduce_scatter_tensor_coalesced_ reduce_scatter_tensor"
        " reduce_scatter_tensor_out reduce_scatter_tensor_coalesced"
    ),
    "all_to_all": "alltoall_ alltoall_base_ all_to_all_single shard_dim_alltoall",
    "broadcast": "broadcast_ broadcast",
    "reduce": "reduce_",
    "gather": "gather_",
    "scatter": "scatter_",
    "barrier": "barrier monitored_barrier_",
    "send": "send isend",
    "recv": "recv_ recv_any_source_ irecv",
}
KINDS = {name: kind for kind, names in OPERATORS_BY_KIND.items() for name in names.split()}
"""Kind of a collective by its operator's name."""
MESH_FILES, MESH_DEPTH = ("device_mesh.py", "_mesh_layout.py"), 12
"""Files whose integers are computed, and how many frames above an operator they may be."""
RANDOM_FILLS = frozenset(f"aten.{name}_" for name in ("uniform", "normal", "random", "bernoulli", "exponential"))
NO_MEMORY_TRAFFIC = frozenset(
    f"aten.{name}"
    for name in "empty empty_like empty_strided empty_permuted _unsafe_view set_ set_data _local_scalar_dense".split()
)
IGNORED_FOLDERS = tuple(
    str(pathlib.Path(folder)) for folder in (sysconfig.get_paths()["stdlib"], torch.__path__[0], pathlib.Path(__file__).parents[1])
)  # fmt: skip


ASSUMED_VALUES: dict[Any, Callable[[torch.Tensor], Any]] = {
    torch.ops.aten.equal.default: lambda tensor: True,
    torch.ops.aten._local_scalar_dense.default: lambda tensor: (
        {True: 1.0, False: 1}[tensor.dtype.is_floating_point] if tensor.dtype is not torch.bool else False
    ),
}
"""Values for elements that the program reads: tensors of a plan have none."""
PLAIN_TYPES = frozenset((FakeTensor, torch.Tensor))


class AllStepsObserved(BaseException):
    """Ends the program: all steps to plan were observed."""


@dataclass(slots=True)
class Allocation:
    """Live storage: its bytes, and what is known about its use."""

    bytes: int
    phase: str
    category: str = ""
    is_communicated: bool = False
    is_host: bool = False
    """True if its elements are computed, as those of a mesh."""
    died_in: str = ""

    def category_index(self) -> int:
        """Return the index in ``MEMORY_CATEGORIES`` of what the memory is used for."""
        name = self.category or ("communication" if self.is_communicated else "")
        if not name and self.phase == "setup":
            name = "inputs and others"
        if not name:
            name = "activations" if self.phase == "forward" and self.died_in != "forward" else "temporaries"
        return MEMORY_CATEGORIES.index(name)


class LiveStorages:
    """Live storages with their bytes, and all changes of them in order."""

    def __init__(self) -> None:
        self.live: dict[int, tuple[weakref.ref[Any], Allocation]] = {}
        self.changes: list[tuple[int, str, Allocation, int]] = []
        """Changes as (operator, phase, allocation, bytes)."""
        self.total = 0
        self.peak = 0
        self.at = 0
        """Number of operators so far."""
        self.phase = "setup"

    def track(self, storage: torch.UntypedStorage) -> Allocation:
        """Return the allocation of a storage; its bytes are those of now."""
        key = storage._cdata
        size = storage.nbytes()
        entry = self.live.get(key)
        if entry is None:
            allocation = Allocation(0, self.phase)
            self.live[key] = weakref.ref(storage, lambda _: self._end(key)), allocation
        else:
            allocation = entry[1]
        if size != allocation.bytes:
            self._resize_allocation(allocation, size - allocation.bytes)
        return allocation

    def _end(self, key: int) -> None:
        _, allocation = self.live.pop(key)
        allocation.died_in = self.phase
        if allocation.bytes:
            self._resize_allocation(allocation, -allocation.bytes)

    def _resize_allocation(self, allocation: Allocation, count: int) -> None:
        allocation.bytes += count
        self.total += count
        self.changes.append((self.at, self.phase, allocation, count))

    def curve(self) -> tuple[list[MemoryPoint], MemoryPoint, MemoryPoint]:
        """Return points with the largest totals, the peak, and the peak of the steps."""
        totals = [0] * len(MEMORY_CATEGORIES)
        best: dict[int, MemoryPoint] = {}
        peak = step_peak = MemoryPoint(0, "setup", tuple(totals))
        stretch = max(1, -(-self.at // MAX_POINTS))
        for at, phase, allocation, count in self.changes:
            totals[allocation.category_index()] += count
            point = MemoryPoint(at, phase, tuple(totals))
            if at // stretch not in best or point.total > best[at // stretch].total:
                best[at // stretch] = point
            if point.total > peak.total:
                peak = point
            if point.total > step_peak.total and phase != "setup":
                step_peak = point
        return list(best.values()), peak, step_peak


class StepObserver(TorchDispatchMode):
    """Dispatch mode that fakes collectives and observes all operators of a program.

    Args:
        hardware: constants of the time model.
        mesh: ranks along each dimension of the mesh that this rank belongs to.
        steps: the program ends at the start of the step after these.
    """

    def __init__(self, hardware: Hardware, mesh: dict[str, list[int]], steps: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.hardware = hardware
        self.mesh = mesh
        self.steps = steps
        self.step = 0
        self.timeline = Timeline()
        self.storages = LiveStorages()
        self.collectives: list[PlannedCollective] = []
        self.operators: dict[str, list[float]] = {}
        self.peak_line = ""
        self.is_paused = False
        self.runs_integers = False
        """True while integers of the host are computed, as for the sizes of buckets."""
        self.bucket_device: torch.device | None = None
        """Device of the parameters that DistributedDataParallel makes buckets for."""
        self.redistributes_for = ""
        """Operator on DTensors whose inputs are being redistributed."""
        self.has_stepped = False
        self.step_start = 0.0
        self.notes: dict[str, None] = {}

    # Phases.

    def enter_module(self, module: torch.nn.Module) -> None:
        """Start the forward pass of a step at the first call of a module after an update."""
        if self.is_paused or current_graph_task_id() != -1:
            return
        if self.storages.phase in {"setup", "update"}:
            if self.storages.phase == "setup" or self.has_stepped:
                self._start_step()
            self.storages.phase = "forward"
        for p in module.parameters(recurse=False):
            self.mark(p, "parameters")
        for b in module.buffers(recurse=False):
            self.mark(b, "inputs and others")

    def leave_module(self, module: torch.nn.Module) -> None:
        """Mark parameters that were gathered for this call."""
        for p in module.parameters(recurse=False):
            self.mark(p, "gathered parameters", replaces=False)

    def _start_step(self) -> None:
        if self.step >= self.steps:
            raise AllStepsObserved
        self.step += 1
        gc.collect()
        self.has_stepped = False
        self.step_start = self.timeline.now
        self.timeline.default.ready = self.step_start
        self.timeline.computed.clear()
        self.operators.clear()

    def enter_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Mark parameters and gradients before a step of the optimizer."""
        self.storages.phase = "update"
        for group in optimizer.param_groups:
            for p in group["params"]:
                self.mark(p, "parameters")
                if p.grad is not None:
                    self.mark(p.grad, "gradients")

    def leave_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Mark the optimizer's state after its step."""
        self.has_stepped = True
        for state in optimizer.state.values():
            for value in state.values():
                if torch.is_tensor(value):
                    self.mark(value, "optimizer state")

    def mark(self, tensor: torch.Tensor, category: str, *, replaces: bool = True) -> None:
        """Give the storages of a tensor a memory category."""
        if category == "parameters" and hasattr(tensor, "placements"):
            self._note_unequal_shards(tensor)
        for local in local_tensors(tensor):
            allocation = self.storages.track(local.untyped_storage())
            if replaces or not allocation.category:
                allocation.category = category

    def _note_unequal_shards(self, tensor: Any) -> None:
        for dim, placement in enumerate(tensor.placements):
            ranks = tensor.device_mesh.size(dim)
            if placement.is_shard() and (size := tensor.shape[placement.dim]) % ranks:
                shape = " x ".join(map(str, tensor.shape))
                self.notes[f"{ranks} ranks do not divide size {size} of a parameter ({shape}): shards are unequal."] = (
                    None
                )

    def wait(self, work: Any) -> bool:
        """Let the current stream wait for a collective; return True, as ``Work.wait``."""
        for t in tensors_of(work.get_future().value()):
            self._wait_for(t)
        return True

    def _wait_for(self, tensor: torch.Tensor) -> None:
        end = self.timeline.pending.pop(tensor.untyped_storage()._cdata, 0.0)
        stream = self.timeline.current
        stream.ready = max(stream.ready, end)

    # Operators.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            # C++ code sees planned tensors on the CPU, so that it asks no driver; Python code sees their device.
            device = func(*args)
            return torch.device("cpu") if device.type == "cuda" else device
        if self.is_paused:
            return func(*args, **kwargs)
        if not PLAIN_TYPES.issuperset(types):
            return NotImplemented
        if current_graph_task_id() != -1:
            self.storages.phase = "backward"
        elif self.storages.phase == "backward":
            self.storages.phase = "update"
        self.storages.at += 1
        before = tensors_of((args, kwargs))
        for t in before:
            self.storages.track(t.untyped_storage())
        if func.namespace == "c10d":
            return self._answer_collective(func, args, kwargs, before)
        result = self._run(func, args, kwargs, before)
        after = tensors_of(result)
        for t in after:
            self.storages.track(t.untyped_storage()).is_host |= not hasattr(t, "fake_mode")
        self.note_peak()
        self._note_time(func, args, kwargs, result, before, after)
        return result

    def _run(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        packet = str(func.overloadpacket)
        if packet in RANDOM_FILLS:
            return args[0]
        if packet == "fsdp.record_grad_output_stream":
            return None
        if self._runs_for_real(packet, kwargs, tensors):
            with unset_fake_temporarily():
                return func(*args, **({**kwargs, "device": torch.device("cpu")} if "device" in kwargs else kwargs))
        if self.runs_integers and "device" in kwargs and self.bucket_device is not None:
            kwargs = {**kwargs, "device": self.bucket_device}
        try:
            return func(*args, **kwargs)
        except DataDependentOutputException:
            if func not in ASSUMED_VALUES:
                raise
            where = "{}:{}".format(*user_line())
            self.notes[
                f"{where} reads a tensor's value, which a plan does not have; it assumes 1 for numbers and False for bools."
            ] = None
            return ASSUMED_VALUES[func](args[0])

    def _runs_for_real(self, packet: str, kwargs: Any, tensors: list[torch.Tensor]) -> bool:
        if packet == "aten.randperm":
            return True
        if tensors:
            return all(self.storages.track(t.untyped_storage()).is_host for t in tensors) or (
                not any(hasattr(t, "fake_mode") for t in tensors) and called_from_mesh()
            )
        dtype = kwargs.get("dtype")
        is_integer = dtype is None or not (dtype.is_floating_point or dtype.is_complex)
        return is_integer and (self.runs_integers or called_from_mesh())

    def note_peak(self) -> None:
        """Remember the user line of the largest total of live bytes."""
        if self.storages.total > self.storages.peak:
            self.storages.peak = self.storages.total
            file, line = user_line()
            self.peak_line = f"{display_name(file)}:{line}" if line else ""

    def _note_time(
        self, func: Any, args: Any, kwargs: Any, result: Any, before: list[torch.Tensor], after: list[torch.Tensor]
    ) -> None:
        if func.namespace in {"_c10d_functional", "_dtensor"}:
            if func is torch.ops._c10d_functional.wait_tensor.default:
                self._wait_for(before[0])
            else:
                self._note_collective(func, args, kwargs, before, after, waits=False)
            return
        if has_no_memory_traffic(func):
            return
        counter: Callable[..., int] | None = flop_registry.get(func.overloadpacket)
        flops = int(counter(*args, **kwargs, out_val=result)) if counter else 0
        written = {id(t) for t in before}
        size = sum(map(bytes_of, before)) + sum(bytes_of(t) for t in after if id(t) not in written)
        dtype = dtype_name(after or before)
        seconds = self.hardware.operator_seconds(flops, size, dtype)
        self.timeline.compute(seconds, [t.untyped_storage()._cdata for t in (*before, *after)])
        entry = self.operators.setdefault(f"{func.namespace}.{func.overloadpacket.__name__}", [0, 0.0, 0, 0])
        for i, value in enumerate((1, seconds, flops, size)):
            entry[i] += value

    # Collectives.

    def _answer_collective(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        """Record a collective without executing it, and return a finished handle."""
        waits = not arguments_by_name(func, args, kwargs).get("async_op", True)
        for t in tensors:
            self.storages.track(t.untyped_storage()).is_communicated = True
        self._note_collective(func, args, kwargs, tensors, [], waits=waits)
        if self.runs_integers and func is torch.ops.c10d.allgather_.default:
            gather_own_values(args[0], args[1])
        self.note_peak()
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(tensors)
        work = create_work_from_future(future)
        return (args[0], work.boxed()) if len(func._schema.returns) == 2 else work.boxed()

    def _note_collective(
        self, func: Any, args: Any, kwargs: Any, before: list[torch.Tensor], after: list[torch.Tensor], *, waits: bool
    ) -> None:
        kind = KINDS.get(func.overloadpacket.__name__)
        if kind is None:
            self.notes[f"The plan does not know {func}: its time and bytes are left out."] = None
            return
        arguments = arguments_by_name(func, args, kwargs)
        handle = arguments.get("process_group")
        group = c10d._resolve_process_group(arguments["group_name"]) if handle is None else ProcessGroup.unbox(handle)
        ranks = torch.distributed.get_process_group_ranks(group)
        written = sum(map(bytes_of, tensors_of(args[0]))) if func.namespace == "c10d" else sum(map(bytes_of, after))
        size = max(
            written, sum(map(bytes_of, before)) - written if func.namespace == "c10d" else sum(map(bytes_of, before))
        )
        node = self.hardware.devices_per_node
        crosses = len({r // node for r in ranks}) > 1
        seconds = self.hardware.collective_time(kind, size, len(ranks), crosses_nodes=crosses)
        keys = [t.untyped_storage()._cdata for t in (after or before)]
        start = self.timeline.communicate(seconds, str(group.group_name), keys, waits=waits)
        file, line = user_line()
        self.collectives.append(
            PlannedCollective(
                kind, str(func).rpartition(".")[0], dtype_name(before), size, self._group_name(ranks), len(ranks),
                "between nodes" if crosses else "within a node", self.storages.phase, self.step, file, line, start, seconds, hidden_by=self.redistributes_for,
            )
        )  # fmt: skip

    def _group_name(self, ranks: list[int]) -> str:
        for name, along in self.mesh.items():
            if along == ranks:
                return name
        return "world" if len(ranks) == torch.distributed.get_world_size() else f"ranks {','.join(map(str, ranks[:8]))}"

    # Result.

    def result(self, rank: int) -> RankClass:
        """Return what was observed, with this rank alone in its class."""
        curve, peak, step_peak = self.storages.curve()
        steps = max(1, self.step)
        own = [c for c in self.collectives if c.step == self.step]
        computed = merge_intervals(self.timeline.computed)
        timed = []
        for c in own:
            exposed = length_outside((c.start, c.start + c.seconds), computed)
            timed.append(replace(c, step=steps, start=c.start - self.step_start, exposed_seconds=exposed))
        spans = merge_intervals([(c.start, c.start + c.seconds) for c in own])
        operators = sorted(self.operators.items(), key=lambda item: -item[1][1])
        return RankClass(
            ranks=(rank,),
            steps=steps,
            setup=tuple(c for c in self.collectives if c.step == 0 and self.step > 0),
            collectives=tuple(timed),
            peak_bytes=peak.total,
            peak=peak,
            step_peak=step_peak,
            peak_line=self.peak_line,
            curve=tuple(curve),
            step_seconds=self.timeline.now - self.step_start,
            compute_seconds=sum(b - a for a, b in computed),
            communication_seconds=sum(b - a for a, b in spans),
            exposed_seconds=sum(length_outside(span, computed) for span in spans),
            operators=tuple(PlannedOperator(n, int(v[0]), v[1], int(v[2]), int(v[3])) for n, v in operators),
            notes=tuple(self.notes),
        )


def gather_own_values(outputs: Any, inputs: Any) -> None:
    """Fill gathered integers with this rank's own, as if they were equal on all ranks."""
    with unset_fake_temporarily():
        for gathered, own in zip(outputs, inputs, strict=True):
            for tensor in gathered:
                tensor.copy_(own)


def local_tensors(tensor: Any) -> Iterator[torch.Tensor]:
    """Return the plain tensors inside a tensor, as the local shard of a DTensor."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for value in (getattr(tensor, name) for name in names):
        if torch.is_tensor(value):
            yield from local_tensors(value)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors in arguments or results of an operator."""
    return [leaf for leaf in tree_leaves(value) if torch.is_tensor(leaf)]


def bytes_of(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return int(tensor.numel()) * tensor.element_size()


def dtype_name(tensors: list[torch.Tensor]) -> str:
    """Return the dtype of the first tensor: ``float32``."""
    return str(tensors[0].dtype).rpartition(".")[2] if tensors else ""


@cache
def has_no_memory_traffic(func: Any) -> bool:
    """Return True for operators that move no data: views and allocations."""
    returns = func._schema.returns
    is_view = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    return is_view or func.namespace == "prim" or str(func.overloadpacket) in NO_MEMORY_TRAFFIC


def user_line() -> tuple[str, int]:
    """Return file and line of the innermost frame outside of libraries and the engine."""
    frames = traceback.walk_stack(sys._getframe(1))
    return next(((file, line) for f, line in frames if not is_library(file := f.f_code.co_filename)), ("", 0))


def user_line_of(error: BaseException) -> tuple[str, int]:
    """Return file and line of the innermost user frame that an error passed."""
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return next(((file, line) for file, line in reversed(lines) if not is_library(file)), ("", 0))


def called_from_mesh() -> bool:
    """Return True if code of device meshes, which reads ranks, calls the operator."""
    frames = itertools.islice(traceback.walk_stack(sys._getframe(1)), MESH_DEPTH)
    return any(frame.f_code.co_filename.endswith(MESH_FILES) for frame, _ in frames)


@cache
def is_library(file: str) -> bool:
    """Return True for files of libraries, of the engine and of generated code."""
    return file.startswith((*IGNORED_FOLDERS, "<frozen", "<string", "<eval_with_key")) or "site-packages" in file
