"""CUDA graphs: record a program's launches once and replay them as one launch.

The idea is that of torch's ``cudagraph_trees``. Differences: each recording has its own memory pool, which only the
backward of a recorded forward shares; while an earlier output is alive, a call records again or launches normally;
inputs whose address changes are copied to static buffers.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import Any, Protocol

import torch

from engine.errors import named_error_line
from engine.ir.node_values import tensors_by_position, tensors_in
from engine.process_state import make_lock
from engine.runtime.graph_pools import (
    ConsumedInputs,
    CudaGraphPool,
    GraphPool,
    OutputInSharedPool,
    OutputPool,
    SavedMemory,
    find_consumed_inputs,
    outputs_in,
)
from engine.runtime.record_launches import Launched, capture_launches, reporting_replay
from engine.torch_private import cuda
from engine.torch_private.tensors import storage_Use_Count, to_dlpack

Run = Callable[..., tuple[Any, ...]]
use_count: Callable[[int], int] = storage_Use_Count
new_tensor: Callable[[torch.Tensor], torch.Tensor] = attrgetter("data")
"""Returns a new tensor object of the same memory.

In contrast to ``detach``, it has its own version counter.
"""
copy_all = torch.ops.aten._foreach_copy_.default
"""Copies a list of tensors into another; the last argument is ``non_blocking``."""

MAX_RECORDINGS_PER_SHAPE = 4
"""Maximum number of live recordings of one program per input shape."""
MAX_ATTEMPTS_PER_SHAPE = 16
"""Maximum number of recordings ever made per input shape."""
MAX_SHAPES = 16
"""Maximum number of input shapes of one program that are recorded."""
CHEAP_COPY_BYTES = 256 << 20
"""Bytes of inputs with changing addresses that are copied at each call without waiting."""
CHEAP_COPIES = 2
"""Maximum number of them; those of a backward move until its forward is recorded."""
STABLE_ADDRESS_WAIT = 2
"""Calls that wait for stable addresses of more or larger inputs before those are copied."""
LARGE_SAVED_INPUTS = 16
"""Bytes of saved inputs per byte of tangents, from which on tangents are copied.

A tangent that moves would need another recording, which cannot share the memory of the first.
"""
MAX_COPIED_OUTPUT_BYTES = 4 << 20
"""Maximum size in bytes of an output that is copied out of the graph's memory.

A caller who holds the copy does not block later replays.
"""
OBSERVED_CALLS = 4
"""Calls in a row that must drop their small outputs until those are not copied."""


@dataclass(frozen=True)
class GraphRecording:
    """A recording: ``replay()`` reads the recorded input tensors and writes ``outputs``."""

    replay: Callable[[], None]
    outputs: tuple[Any, ...]
    pool: GraphPool | None = None
    """Memory that the recording of its backward may share; None if it must not."""


class GraphRecorder(Protocol):
    """Protocol of recorders, one per device type."""

    device_type: str
    """Device type on which the recorded tensors are."""

    def current_stream(self) -> object | None:
        """Return a key of the current stream; None if nothing can be recorded on it."""
        ...

    def record(self, run: Callable[[], tuple[Any, ...]], pool: Any = None) -> GraphRecording:
        """Record the launches of ``run`` without running them, in an earlier ``pool`` if any.

        Raises:
            OutputInSharedPool: an output is in ``pool``.
            Exception: ``run`` does something that cannot be replayed.
        """
        ...


@dataclass(frozen=True)
class RecordedOutput:
    """Plan to reconstruct one output after a replay.

    ``tensor`` is memory of the recording. Without it the output is input ``input_index`` (through ``view``, a size,
    stride and offset), or else the constant ``value``.
    """

    tensor: torch.Tensor | None = None
    is_copyable: bool = False
    """Small, and seen by the caller."""
    is_lent: bool = False
    """Small, and not copied all the same: callers drop it before the next call."""
    input_index: int = -1
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None = None
    value: Any = None

    @property
    def is_copied(self) -> bool:
        """True if the caller gets a copy, which no replay overwrites."""
        return self.is_copyable and not self.is_lent

    @property
    def whole_input(self) -> int:
        """The position of the input that the output is; -1 for a view of one and for all others."""
        return self.input_index if self.tensor is None and self.view is None else -1

    def reconstruct(self, arguments: Sequence[Any]) -> Any:
        """Return the output as a new tensor object."""
        if self.tensor is not None:
            if self.is_copied:
                return torch.empty_strided(
                    self.tensor.shape, self.tensor.stride(), dtype=self.tensor.dtype, device=self.tensor.device
                ).copy_(self.tensor)
            return new_tensor(self.tensor)
        if self.input_index < 0:
            return self.value
        source = arguments[self.input_index]
        if self.view is None:
            return source
        size, stride, offset = self.view
        return source.as_strided(size, stride, source.storage_offset() + offset)


Pick = Callable[[Sequence[Any]], tuple[Any, ...]]
"""Returns some items of a sequence."""


def items_at(positions: Sequence[int]) -> Pick:
    """Return a function that picks the items at these positions as a tuple."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda items: tuple([items[n] for n in positions])


@dataclass(eq=False)
class ReplayInstance:
    """One recording for inputs at ``static_addresses``; other tensor inputs are copied.

    ``static_inputs`` and ``copied_inputs`` are input positions; ``input_buffers`` receive the copies.
    """

    static_inputs: tuple[int, ...]
    static_addresses: tuple[int, ...]
    copied_inputs: tuple[int, ...]
    input_buffers: list[torch.Tensor]
    replay: Callable[[], None]
    recorded_outputs: tuple[RecordedOutput, ...]
    first_alias: tuple[int, ...]
    """For each output, the position of the first output that is the same tensor."""
    output_storages: tuple[tuple[int, int], ...]
    """Storages of outputs: identity, and use count while the caller holds no output."""
    written_inputs: frozenset[int] = frozenset()
    """Positions of inputs that the launches write."""
    saved: SavedMemory | None = None
    """Memory of outputs that only the backward reads."""
    consumed: ConsumedInputs | None = None
    """Inputs whose memory a replay overwrites."""
    saves_outputs: bool = False
    """True if it has outputs for a backward."""
    has_lent: bool = False
    """True if callers have had small outputs that were not copies."""

    @functools.cached_property
    def _returned_inputs(self) -> Pick:
        """Returns, for each output, the input that it is; the first input for others."""
        return items_at([max(out.whole_input, 0) for out in self.recorded_outputs])

    @functools.cached_property
    def _static_inputs_of(self) -> Pick:
        """Returns the items of static inputs, of one item per input."""
        return items_at(self.static_inputs)

    @functools.cached_property
    def _static_outputs(self) -> tuple[tuple[int, ...], list[torch.Tensor]]:
        """Positions and memory of the outputs that are the recording's memory itself."""
        static_outputs = {n: out.tensor for n, out in enumerate(self.recorded_outputs) if self._is_static(n)}
        return tuple(static_outputs), tensors_in(list(static_outputs.values()))

    @functools.cached_property
    def _other_outputs(self) -> tuple[tuple[int, RecordedOutput, int], ...]:
        """All outputs but static ones and inputs.

        With their position and that of the first equal output.
        """
        plans = enumerate(zip(self.recorded_outputs, self.first_alias, strict=True))
        return tuple((n, plan, first) for n, (plan, first) in plans if plan.whole_input < 0 and not self._is_static(n))

    def _is_static(self, position: int) -> bool:
        out = self.recorded_outputs[position]
        return out.tensor is not None and not out.is_copied and self.first_alias[position] == position

    def matches_addresses(self, addresses: Sequence[int]) -> bool:
        """Return True if the static inputs have their recorded addresses."""
        return self._static_inputs_of(addresses) == self.static_addresses

    def can_replay(self, inputs: Sequence[Any]) -> bool:
        """Return True if a replay overwrites nothing that the caller or autograd holds."""
        return self.has_no_live_outputs() and (self.consumed is None or self.consumed.are_unshared(inputs))

    def lending(self, *, is_lent: bool) -> ReplayInstance:
        """Return this recording with its small outputs lent to callers, or copied."""
        if not any(o.is_copyable for o in self.recorded_outputs):
            return self
        outputs = tuple([replace(o, is_lent=is_lent and o.is_copyable) for o in self.recorded_outputs])
        return replace(self, recorded_outputs=outputs, has_lent=True)

    def has_no_live_outputs(self) -> bool:
        """Return True if no output of an earlier replay is alive."""
        return all(use_count(storage) == count for storage, count in self.output_storages)

    def is_replaced_by(self, copied: set[int], addresses: Sequence[int]) -> bool:
        """Return True if a recording that copies ``copied`` can replay all calls of this one.

        False while an output of this one is alive.
        """
        shared = [(n, a) for n, a in zip(self.static_inputs, self.static_addresses, strict=True) if n not in copied]
        return (
            copied > set(self.copied_inputs)
            and all(addresses[n] == address for n, address in shared)
            and self.has_no_live_outputs()
        )

    def __call__(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Copy inputs, replay, copy mutations back; return the outputs."""
        if self.copied_inputs:
            copy_inputs(self.input_buffers, [arguments[n] for n in self.copied_inputs])
        self.replay()
        if self.written_inputs:
            for n, buffer in zip(self.copied_inputs, self.input_buffers, strict=True):
                if n in self.written_inputs:
                    arguments[n].copy_(buffer, non_blocking=True)
        results = list(self._returned_inputs(arguments)) if arguments else [None] * len(self.recorded_outputs)
        positions, memory = self._static_outputs
        for n, output in zip(positions, map(new_tensor, memory), strict=True):
            results[n] = output
        for n, result, first in self._other_outputs:
            results[n] = result.reconstruct(arguments) if first == n else results[first]
        return tuple(results)


@dataclass(eq=False)
class _ShapeState:
    """Recordings and address history of calls whose inputs have one shape."""

    instances: list[ReplayInstance] = field(default_factory=list)
    changing_inputs: set[int] = field(default_factory=set)
    """Positions of inputs whose address changes between calls."""
    earlier_addresses: list[tuple[int, ...]] = field(default_factory=list)
    """Input addresses of earlier calls without replay."""
    calls_to_observe: int = OBSERVED_CALLS
    """Calls until it is known that callers drop small outputs; 0: observed enough."""
    last_copies: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    calls_to_wait: int = STABLE_ADDRESS_WAIT
    attempts_left: int = MAX_ATTEMPTS_PER_SHAPE

    def can_record(self, addresses: Sequence[int]) -> bool:
        """Return True if one more recording may be made; may evict an old one.

        An evicted recording has other addresses and no live outputs.
        """
        if not self.attempts_left:
            return False
        if len(self.instances) < MAX_RECORDINGS_PER_SHAPE:
            return True
        old = next((i for i in self.instances if not i.matches_addresses(addresses) and i.has_no_live_outputs()), None)
        if old is not None:
            self.instances.remove(old)
        return old is not None

    def observe_outputs(self, instance: ReplayInstance, results: tuple[Any, ...]) -> None:
        """Lend small outputs once those of a few calls in a row were dropped before the next call."""
        if instance.saves_outputs or any(copy() is not None for copy in self.last_copies):
            self.calls_to_observe = 0
            return
        self.calls_to_observe -= 1
        copied = [n for n, out in enumerate(instance.recorded_outputs) if out.is_copied]
        self.last_copies = [weakref.ref(results[n]) for n in copied]
        if not self.calls_to_observe:
            self.instances = [i.lending(is_lent=True) for i in self.instances]

    def stop_lending(self, addresses: Sequence[int]) -> bool:
        """Copy small outputs again if a lent one may prevent this replay."""
        is_lent = any(o.is_lent for i in self.instances if i.matches_addresses(addresses) for o in i.recorded_outputs)
        if is_lent:
            self.instances = [i.lending(is_lent=False) for i in self.instances]
        return is_lent

    def drop_replaced(self, addresses: tuple[int, ...] | list[int]) -> None:
        """Free the memory of recordings whose calls the next recording can replay too.

        A caller may hold an output that was lent for good: its recording would never be replayed again.
        """
        self.instances = [
            i
            for i in self.instances
            if not i.is_replaced_by(self.changing_inputs, addresses)
            and not (i.has_lent and i.matches_addresses(addresses))
        ]


class CudaGraphReplay:
    """``run`` as a callable that records itself and then replays the recording.

    ``visible_outputs``: number of outputs that the user sees (None: all). ``written_inputs``: positions of inputs
    that the launches write. ``first_tangent``: position of the first input of a backward that its forward did not
    save. ``is_dynamic``: sizes may differ between calls; which inputs are tensors may not. ``on_status`` is called once, with a message: recorded, or why not.
    """

    def __init__(
        self,
        run: Run,
        recorder: GraphRecorder,
        *,
        is_boxed: bool = False,
        is_dynamic: bool = True,
        visible_outputs: int | None = None,
        written_inputs: frozenset[int] = frozenset(),
        first_tangent: int | None = None,
        on_status: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.run = run
        self.disabled_reason = ""
        self._recorder = recorder
        self._is_boxed = is_boxed
        self._is_dynamic = is_dynamic
        self._are_tensors: Sequence[bool] | None = None
        """For each input, True if it is a tensor; empty if all are."""
        self._visible_outputs = visible_outputs
        self._written_inputs = written_inputs
        self._first_tangent = first_tangent
        self._on_status = on_status
        self._shapes: dict[Any, _ShapeState] = {}
        self._has_recorded = False
        self._lock = make_lock()

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Replay a recording, record one, or run: whichever these inputs allow."""
        if self.disabled_reason or (stream := self._recorder.current_stream()) is None:
            return self.run(*inputs)
        arguments: Sequence[Any] = inputs[0] if self._is_boxed else inputs
        kinds = self._are_tensors
        if kinds is None:
            kinds = [isinstance(x, torch.Tensor) for x in arguments]
            kinds = self._are_tensors = () if all(kinds) else tuple(kinds)
        numbers: Sequence[Any] = ()
        if kinds:
            addresses = [x.data_ptr() if is_tensor else 0 for x, is_tensor in zip(arguments, kinds, strict=True)]
            numbers = [x for x, is_tensor in zip(arguments, kinds, strict=True) if not is_tensor]
        else:
            addresses = [x.data_ptr() for x in arguments]
        sizes = [x.shape for x in arguments if isinstance(x, torch.Tensor)] if self._is_dynamic else ()
        key = (stream, torch.is_inference_mode_enabled(), *numbers, *sizes)
        with self._lock:
            results = self._replay(key, arguments, addresses)
        if results is None:
            return self.run(*inputs)
        if self._is_boxed:
            inputs[0].clear()
        return results

    def _replay(self, key: Any, arguments: Sequence[Any], addresses: list[int]) -> tuple[Any, ...] | None:
        """Return the outputs of a replay; None if this call must launch normally."""
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) < MAX_SHAPES and not self._why_not_recordable(arguments):
                self._shapes[key] = _ShapeState(earlier_addresses=[tuple(addresses)])
            return None
        for instance in shape.instances:
            if instance.matches_addresses(addresses) and instance.can_replay(arguments):
                results = instance(arguments)
                if shape.calls_to_observe:
                    shape.observe_outputs(instance, results)
                return results
        if shape.stop_lending(addresses):
            return None
        if not self._should_record(shape, arguments, addresses) or not shape.can_record(addresses):
            return None
        shape.attempts_left -= 1
        shape.drop_replaced(addresses)
        try:
            instance = self._record(shape, arguments, addresses)
        except Exception as error:
            self._disable(f"the CUDA graph cannot be recorded ({named_error_line(error)})")
            return None
        shape.instances.append(instance)
        return instance(arguments)

    def _why_not_recordable(self, arguments: Sequence[Any]) -> str:
        if torch.Generator in map(type, arguments):
            self._disable("a replay cannot advance a torch.Generator that is an input")
        for value in arguments:
            if isinstance(value, torch.Tensor) and self._is_on_other_device(value) and value.dim():
                self._disable(f"a tensor is on another device ({value.device})")
        return self.disabled_reason

    def _is_on_other_device(self, value: torch.Tensor) -> bool:
        return value.device.type != self._recorder.device_type

    def _disable(self, reason: str) -> None:
        if not self.disabled_reason:
            self.disabled_reason = f"Kernels are launched one by one: {reason}."
            self._on_status(self.disabled_reason)

    def _should_record(self, shape: _ShapeState, arguments: Sequence[Any], addresses: list[int]) -> bool:
        """Return True if this call should record; marks the inputs whose address changes."""
        if any(instance.matches_addresses(addresses) for instance in shape.instances):
            return True  # all recordings for these addresses have live outputs
        heavier = [(self._changed_addresses(shape, earlier, addresses), earlier) for earlier in shape.earlier_addresses]
        nearest = min((moved for moved, _ in heavier), key=lambda moved: _bytes(arguments, moved))
        is_cheap = len(nearest) <= CHEAP_COPIES and _bytes(arguments, nearest) <= CHEAP_COPY_BYTES
        if not is_cheap and shape.calls_to_wait:
            shape.calls_to_wait -= 1
            shape.earlier_addresses.append(tuple(addresses))
            return False
        shape.changing_inputs |= nearest
        return True

    def _changed_addresses(self, shape: _ShapeState, earlier: tuple[int, ...], addresses: list[int]) -> set[int]:
        return {n for n, (a, b) in enumerate(zip(earlier, addresses, strict=True)) if a != b} - shape.changing_inputs

    def _record(self, shape: _ShapeState, arguments: Sequence[Any], addresses: list[int]) -> ReplayInstance:
        consumed = find_consumed_inputs(arguments, shape.changing_inputs) if self._is_boxed else None
        if consumed is not None and self._first_tangent is not None:
            tangents = set(range(self._first_tangent, len(arguments)))
            if LARGE_SAVED_INPUTS * _bytes(arguments, tangents) <= _bytes(arguments, set(consumed.positions)):
                shape.changing_inputs |= tangents.difference(consumed.positions)
        read, moves = list(arguments), []
        tensors = tensors_by_position(arguments)
        device = next(
            (x.device for x in tensors.values() if not self._is_on_other_device(x)), self._recorder.device_type
        )
        for n, value in tensors.items():
            if n in shape.changing_inputs or self._is_on_other_device(value):
                moves.append(n)
                read[n] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        buffers = [read[n] for n in moves]
        copy_inputs(buffers, [arguments[n] for n in moves])
        recording, launches, consumed = self._capture(read, consumed)
        stays = tuple(n for n in tensors if n not in moves)
        results, storages, saved = self._plan_outputs(recording, read)
        first = {id(out): n for n, out in reversed(list(enumerate(recording.outputs)))}
        first_aliases = tuple(
            first[id(o)] if isinstance(o, torch.Tensor) else n for n, o in enumerate(recording.outputs)
        )
        if not self._has_recorded:
            self._has_recorded = True
            self._on_status(
                f"Its kernels are replayed as one CUDA graph; {len(moves)} of {len(tensors)} inputs are copied."
            )
        return ReplayInstance(
            stays,
            tuple(addresses[n] for n in stays),
            tuple(moves),
            buffers,
            reporting_replay(recording.replay, launches) if launches else recording.replay,
            results,
            first_aliases,
            storages,
            self._written_inputs,
            saved,
            consumed,
            self._visible_outputs is not None and bool(tensors_in(recording.outputs[self._visible_outputs :])),
        )

    def _capture(
        self, read: Sequence[Any], consumed: ConsumedInputs | None
    ) -> tuple[GraphRecording, list[Launched], ConsumedInputs | None]:
        """Return a recording, its launches, and ``consumed`` if it shares a pool."""
        if consumed is not None:
            mine = list(read)
            for n, tensor in consumed.saved.take({n: read[n] for n in consumed.positions}).items():
                mine[n] = tensor
                del tensor  # ``mine`` is the only owner: each is freed after its last use
            with capture_launches() as launches, contextlib.suppress(OutputInSharedPool):
                return self._recorder.record(lambda: self.run(mine), consumed.saved.pool), launches, consumed
        with capture_launches() as launches:
            recording = self._recorder.record(
                (lambda: self.run(list(read))) if self._is_boxed else (lambda: self.run(*read))
            )
        return recording, launches, None

    def _plan_outputs(
        self, recording: GraphRecording, read: Sequence[Any]
    ) -> tuple[tuple[RecordedOutput, ...], tuple[tuple[int, int], ...], SavedMemory | None]:
        """Return the plan of each output, the storages to check, and saved memory."""
        outputs, saved = recording.outputs, SavedMemory(recording.pool) if recording.pool is not None else None
        seen = {x.untyped_storage()._cdata for x in tensors_in(outputs[: self._visible_outputs])}
        inputs = {
            x.untyped_storage()._cdata: n for n, x in reversed(list(enumerate(read))) if isinstance(x, torch.Tensor)
        }
        memory: dict[int, torch.UntypedStorage] = {}
        planned: list[RecordedOutput] = []
        for position, out in enumerate(outputs):
            if not isinstance(out, torch.Tensor):
                planned.append(RecordedOutput(value=out))
                continue
            storage = out.untyped_storage()
            if storage._cdata in inputs:
                planned.append(_input_as_output(out, inputs[storage._cdata], read))
                continue
            if storage._cdata not in memory:
                is_lent = saved is not None and storage.nbytes() and storage._cdata not in seen
                memory[storage._cdata] = (
                    saved.lend(storage) if saved and is_lent else _unresizable_storage(storage, out.device)
                )
            tensor = torch.empty(0, dtype=out.dtype, device=out.device)
            tensor.set_(memory[storage._cdata], out.storage_offset(), out.shape, out.stride())
            is_seen = self._visible_outputs is None or position < self._visible_outputs
            planned.append(
                RecordedOutput(tensor, is_seen and not self._is_boxed and storage.nbytes() <= MAX_COPIED_OUTPUT_BYTES)
            )
        # Empty storages are not watched: nothing can overwrite them, and their use count falls with ``memory``.
        watched = [s._cdata for s in memory.values() if s.nbytes()]
        memory.clear()
        counts = tuple((s, use_count(s)) for s in watched)
        if saved is not None:
            saved.counts |= dict(counts)
        return tuple(planned), counts, saved


def _input_as_output(out: torch.Tensor, position: int, read: Sequence[Any]) -> RecordedOutput:
    """Return the plan of an output that is an input or a view of one."""
    same = next((n for n, x in enumerate(read) if x is out), None)
    if same is not None:
        return RecordedOutput(input_index=same)
    offset = out.storage_offset() - read[position].storage_offset()
    return RecordedOutput(input_index=position, view=(tuple(out.shape), out.stride(), offset))


def _unresizable_storage(storage: torch.UntypedStorage, device: torch.device) -> torch.UntypedStorage:
    """Return the same memory as a storage that resizing a tensor cannot move."""
    if not storage.nbytes():
        return storage
    memory = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
    capsule = to_dlpack(memory)
    return torch.utils.dlpack.from_dlpack(capsule).untyped_storage()


def _bytes(arguments: Sequence[Any], positions: set[int]) -> int:
    return sum(x.nbytes for x in tensors_in([arguments[n] for n in positions]))


def copy_inputs(buffers: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy inputs into a recording's static buffers; overlapping elements are written once."""
    pairs = [_distinct_elements(b, v) if 0 in b.stride() else (b, v) for b, v in zip(buffers, values, strict=True)]
    if pairs:
        into, source = map(list, zip(*pairs, strict=True))
        copy_all(into, source, True)


def _distinct_elements(buffer: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the elements of both without those that overlap others in the buffer."""
    distinct = tuple([slice(0, 1) if s == 0 else slice(None) for s in buffer.stride()])
    return buffer[distinct], value[distinct]


_streams: dict[int, torch.cuda.Stream] = {}
"""Stream on which each device is captured; a pool's memory is reused on one stream only."""
_capture_lock = make_lock()


class CudaGraphRecorder:
    """Records CUDA graphs on the current device."""

    device_type = "cuda"

    def current_stream(self) -> object | None:
        """Return the current device and stream; None while a capture is active on it."""
        if cuda.is_stream_capturing():
            return None
        device = cuda.current_device_index()
        return device, cuda.current_raw_stream(device)

    def record(self, run: Callable[[], tuple[Any, ...]], pool: CudaGraphPool | None = None) -> GraphRecording:
        """Capture a CUDA graph with its own memory pool, or in ``pool`` without its outputs.

        Raises:
            OutputInSharedPool: an output is in ``pool``.
            Exception: what ``run`` or CUDA raised because the work cannot be captured.
        """
        device = torch.cuda.current_device()
        own = None if pool is None else OutputPool(device)
        with _capture_lock:
            stream = _streams.get(device) or _streams.setdefault(device, torch.cuda.Stream(device))
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize(device)
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream), _gc_disabled(), _private_cublas_workspace(), outputs_in(own):
                # thread_local: other threads may allocate during the capture.
                graph.capture_begin(pool.graph.pool() if pool is not None else None, capture_error_mode="thread_local")
                try:
                    outputs = run()
                except BaseException:
                    with contextlib.suppress(Exception):
                        _end_capture(graph)
                    raise
                _end_capture(graph)
            torch.cuda.current_stream(device).wait_stream(stream)
        if pool is not None:
            pool.check_outputs(outputs)
        return GraphRecording(graph.replay, outputs, CudaGraphPool(graph, own))


def _end_capture(graph: torch.cuda.CUDAGraph) -> None:
    """End a capture, also for random number generators if CUDA has invalidated it.

    They leave capture mode only where a capture succeeds; until then each random number on the GPU raises an error.
    """
    try:
        graph.capture_end()
    except RuntimeError:
        filled, successful = torch.empty(1, device="cuda"), torch.cuda.CUDAGraph()
        successful.capture_begin(capture_error_mode="thread_local")
        filled.zero_()  # torch warns of an empty graph
        successful.capture_end()
        raise


@contextlib.contextmanager
def _private_cublas_workspace() -> Any:
    """Allocate cuBLAS workspaces in the graph's memory pool, for this capture only."""
    cuda.clear_cublas_workspaces()
    try:
        yield
    finally:
        cuda.clear_cublas_workspaces()


@contextlib.contextmanager
def _gc_disabled() -> Any:
    """Disable the garbage collector: no old graph may be destroyed during a capture."""
    import gc

    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
