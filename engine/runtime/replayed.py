"""Replay a program as one launch: recorded once for fixed addresses (a CUDA graph), its results in memory that waits until nobody holds them.

The idea is that of torch's ``cudagraph_trees``; here each recording has memory of its own, results that are still held make the next call
record again or run plainly, and what moves between calls is copied to where the recording reads it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

Run = Callable[..., tuple[Any, ...]]
use_count: Callable[[int], int] = torch._C._storage_Use_Count

RECORDINGS = 4
"""Recordings of one program that are kept for inputs of one shape; what they do not serve runs plainly."""
ATTEMPTS = 16
"""Recordings that are ever made for inputs of one shape."""
SHAPES = 16
"""Shapes for which one program is recorded."""
LIGHT = 32 << 20
"""Bytes that may be copied at each call without asking whether they will lie still later."""
PATIENCE = 4
"""Plain calls that wait for heavier inputs to lie still."""
GIVEN_AWAY = 4 << 20
"""Bytes up to which a result is copied out of the recording's memory, so that a caller who keeps it hinders no later call."""


@dataclass(frozen=True)
class Recording:
    """``replay()`` does the work again, reads the tensors that were given when it was recorded, and writes ``outputs``."""

    replay: Callable[[], None]
    outputs: tuple[Any, ...]


class Recorder(Protocol):
    """What records on one kind of device."""

    device_type: str
    """Where recorded work finds its tensors."""

    def place(self) -> object | None:
        """Where work goes now (the current stream), None where nothing can be recorded."""
        ...

    def record(self, run: Callable[[], tuple[Any, ...]]) -> Recording:
        """Record what ``run`` launches. The results are not computed yet.

        Raises:
            Exception: ``run`` does something that cannot be replayed.
        """
        ...


@dataclass(frozen=True)
class Kept:
    """How one result is handed out: ``tensor`` lies in the recording's memory; else it is input ``given``, seen as a view, or ``value``."""

    tensor: torch.Tensor | None = None
    is_copied: bool = False
    given: int = -1
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None = None
    value: Any = None

    def hand_out(self, given: Sequence[Any]) -> Any:
        """The result as a tensor that nobody else has."""
        if self.tensor is not None:
            if self.is_copied:
                return torch.empty_strided(
                    self.tensor.shape, self.tensor.stride(), dtype=self.tensor.dtype, device=self.tensor.device
                ).copy_(self.tensor)
            return self.tensor.detach()
        if self.given < 0:
            return self.value
        source = given[self.given]
        if self.view is None:
            return source
        size, stride, offset = self.view
        return source.as_strided(size, stride, source.storage_offset() + offset)


@dataclass(eq=False)
class Instance:
    """One recording: for inputs at ``addresses`` (those at ``stays``), the others copied to ``buffers``."""

    stays: tuple[int, ...]
    addresses: tuple[int, ...]
    moves: tuple[int, ...]
    buffers: list[torch.Tensor]
    replay: Callable[[], None]
    results: tuple[Kept, ...]
    twins: tuple[int, ...]
    """For each result, the first one that is the same tensor."""
    storages: tuple[tuple[int, int], ...]
    """Memory that results may be held in: its identity, and how often it is referred to while nobody holds any."""

    def fits(self, addresses: Sequence[int]) -> bool:
        """Whether what stays lies where it lay."""
        return tuple([addresses[n] for n in self.stays]) == self.addresses

    def is_free(self) -> bool:
        """Whether nobody holds a result of an earlier replay."""
        return all(use_count(storage) == count for storage, count in self.storages)

    def __call__(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """Replay for these inputs."""
        if self.moves:
            fill(self.buffers, [given[n] for n in self.moves])
        self.replay()
        made: list[Any] = []
        for n, (result, twin) in enumerate(zip(self.results, self.twins, strict=True)):
            made.append(result.hand_out(given) if twin == n else made[twin])
        return tuple(made)


@dataclass(eq=False)
class _Shape:
    """What is known of calls with inputs of one shape."""

    instances: list[Instance] = field(default_factory=list)
    moving: set[int] = field(default_factory=set)
    """Inputs that were seen to lie elsewhere each time."""
    seen: list[tuple[int, ...]] = field(default_factory=list)
    """Addresses of earlier plain calls."""
    patience: int = PATIENCE
    attempts: int = ATTEMPTS

    def has_room(self, addresses: Sequence[int]) -> bool:
        """Whether one more recording may be made; an old one for other addresses goes for it."""
        if not self.attempts:
            return False
        if len(self.instances) < RECORDINGS:
            return True
        old = next((i for i in self.instances if not i.fits(addresses) and i.is_free()), None)
        if old is not None:
            self.instances.remove(old)
        return old is not None


class Replayed:
    """``run`` as a callable that records itself and then replays. ``results``: how many outputs the caller sees (None: all).

    ``is_dynamic``: sizes may differ from call to call. Which inputs are tensors may not. ``told`` is called once with a sentence: what was recorded, or why nothing can be.
    """

    def __init__(
        self,
        run: Run,
        recorder: Recorder,
        *,
        is_boxed: bool = False,
        is_dynamic: bool = True,
        results: int | None = None,
        told: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.run = run
        self.refused = ""
        self._recorder = recorder
        self._is_boxed = is_boxed
        self._is_dynamic = is_dynamic
        self._are_tensors: tuple[bool, ...] | None = None
        self._results = results
        self._told = told
        self._shapes: dict[Any, _Shape] = {}
        self._has_recorded = False
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """The outputs for these inputs."""
        if self.refused or (place := self._recorder.place()) is None:
            return self.run(*inputs)
        given: Sequence[Any] = inputs[0] if self._is_boxed else inputs
        kinds = self._are_tensors
        if kinds is None:
            kinds = self._are_tensors = tuple([isinstance(x, torch.Tensor) for x in given])
        addresses = [x.data_ptr() if is_tensor else 0 for x, is_tensor in zip(given, kinds, strict=True)]
        numbers = () if all(kinds) else [x for x, is_tensor in zip(given, kinds, strict=True) if not is_tensor]
        sizes = [x.shape for x in given if isinstance(x, torch.Tensor)] if self._is_dynamic else ()
        key = (place, torch.is_inference_mode_enabled(), *numbers, *sizes)
        with self._lock:
            made = self._replayed(key, given, addresses)
        if made is None:
            return self.run(*inputs)
        if self._is_boxed:
            inputs[0].clear()
        return made

    def _replayed(self, key: Any, given: Sequence[Any], addresses: list[int]) -> tuple[Any, ...] | None:
        """The outputs from a recording, None where this call had better run plainly."""
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) < SHAPES and not self._refusal(given):
                self._shapes[key] = _Shape(seen=[tuple(addresses)])
            return None
        for instance in shape.instances:
            if instance.fits(addresses) and instance.is_free():
                return instance(given)
        if not self._is_time(shape, given, addresses) or not shape.has_room(addresses):
            return None
        shape.attempts -= 1
        try:
            instance = self._record(shape, given, addresses)
        except Exception as error:
            first = str(error).strip().split("\n")[0]
            self._refuse(f"it cannot be recorded ({type(error).__name__}: {first})")
            return None
        shape.instances.append(instance)
        return instance(given)

    def _refusal(self, given: Sequence[Any]) -> str:
        for value in given:
            if isinstance(value, torch.Tensor) and self._is_elsewhere(value) and value.dim():
                self._refuse(f"a tensor lies on another device ({value.device})")
        return self.refused

    def _is_elsewhere(self, value: torch.Tensor) -> bool:
        return value.device.type != self._recorder.device_type

    def _refuse(self, reason: str) -> None:
        if not self.refused:
            self.refused = f"Kernels are launched one by one: {reason}."
            self._told(self.refused)

    def _is_time(self, shape: _Shape, given: Sequence[Any], addresses: list[int]) -> bool:
        """Whether to record now; notes which inputs move."""
        if any(instance.fits(addresses) for instance in shape.instances):
            return True  # its results are held
        heavier = [(self._moved(shape, known, addresses), known) for known in shape.seen]
        nearest = min((moved for moved, _ in heavier), key=lambda moved: _bytes(given, moved))
        if nearest and _bytes(given, nearest) > LIGHT and shape.patience:
            shape.patience -= 1
            shape.seen.append(tuple(addresses))
            return False
        shape.moving |= nearest
        return True

    def _moved(self, shape: _Shape, known: tuple[int, ...], addresses: list[int]) -> set[int]:
        return {n for n, (a, b) in enumerate(zip(known, addresses, strict=True)) if a != b} - shape.moving

    def _record(self, shape: _Shape, given: Sequence[Any], addresses: list[int]) -> Instance:
        read, moves = list(given), []
        tensors = {n: x for n, x in enumerate(given) if isinstance(x, torch.Tensor)}
        device = next((x.device for x in tensors.values() if not self._is_elsewhere(x)), self._recorder.device_type)
        for n, value in tensors.items():
            if n in shape.moving or self._is_elsewhere(value):
                moves.append(n)
                read[n] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        buffers = [read[n] for n in moves]
        fill(buffers, [given[n] for n in moves])
        recording = self._recorder.record(
            (lambda: self.run(list(read))) if self._is_boxed else (lambda: self.run(*read))
        )
        stays = tuple(n for n in tensors if n not in moves)
        results, storages = self._kept(recording.outputs, read)
        first = {id(out): n for n, out in reversed(list(enumerate(recording.outputs)))}
        twins = tuple(first[id(o)] if isinstance(o, torch.Tensor) else n for n, o in enumerate(recording.outputs))
        if not self._has_recorded:
            self._has_recorded = True
            self._told(
                f"Its kernels are recorded and launched as one; {len(moves)} of {len(tensors)} inputs are copied."
            )
        return Instance(
            stays, tuple(addresses[n] for n in stays), tuple(moves), buffers, recording.replay, results, twins, storages
        )

    def _kept(
        self, outputs: Sequence[Any], read: Sequence[Any]
    ) -> tuple[tuple[Kept, ...], tuple[tuple[int, int], ...]]:
        """How each output is handed out, and the memory to watch."""
        inputs = {
            x.untyped_storage()._cdata: n for n, x in reversed(list(enumerate(read))) if isinstance(x, torch.Tensor)
        }
        memory: dict[int, torch.UntypedStorage] = {}
        kept: list[Kept] = []
        for position, out in enumerate(outputs):
            if not isinstance(out, torch.Tensor):
                kept.append(Kept(value=out))
                continue
            storage = out.untyped_storage()
            if storage._cdata in inputs:
                kept.append(_passed_on(out, inputs[storage._cdata], read))
                continue
            if storage._cdata not in memory:
                memory[storage._cdata] = _fixed(storage, out.device)
            tensor = torch.empty(0, dtype=out.dtype, device=out.device)
            tensor.set_(memory[storage._cdata], out.storage_offset(), out.shape, out.stride())
            is_seen = self._results is None or position < self._results
            kept.append(Kept(tensor, is_copied=is_seen and not self._is_boxed and storage.nbytes() <= GIVEN_AWAY))
        watched = [s._cdata for s in memory.values()]
        memory.clear()
        return tuple(kept), tuple((s, use_count(s)) for s in watched)


def _passed_on(out: torch.Tensor, position: int, read: Sequence[Any]) -> Kept:
    """A result that is an input, or a view of one."""
    same = next((n for n, x in enumerate(read) if x is out), None)
    if same is not None:
        return Kept(given=same)
    offset = out.storage_offset() - read[position].storage_offset()
    return Kept(given=position, view=(tuple(out.shape), out.stride(), offset))


def _fixed(storage: torch.UntypedStorage, device: torch.device) -> torch.UntypedStorage:
    """The same memory as a storage that cannot be moved by resizing a tensor in it."""
    if not storage.nbytes():
        return storage
    whole = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
    capsule = torch._C._to_dlpack(whole)
    return torch.utils.dlpack.from_dlpack(capsule).untyped_storage()


def _bytes(given: Sequence[Any], positions: set[int]) -> int:
    return sum(given[n].nbytes for n in positions if isinstance(given[n], torch.Tensor))


def fill(buffers: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy values to where a recording reads them. Elements that share memory are written once."""
    for buffer, value in zip(buffers, values, strict=True):
        if 0 in buffer.stride():
            distinct = tuple([slice(0, 1) if s == 0 else slice(None) for s in buffer.stride()])
            buffer[distinct].copy_(value[distinct], non_blocking=True)
        else:
            buffer.copy_(value, non_blocking=True)


class CudaRecorder:
    """Records CUDA graphs on the current device."""

    device_type = "cuda"

    def __init__(self) -> None:
        self._streams: dict[int, torch.cuda.Stream] = {}

    def place(self) -> object | None:
        """The current device and stream; None while somebody else records on it."""
        if torch._C._cuda_isCurrentStreamCapturing():
            return None
        device = torch._C._cuda_getDevice()
        return device, torch._C._cuda_getCurrentRawStream(device)

    def record(self, run: Callable[[], tuple[Any, ...]]) -> Recording:
        """A CUDA graph with a memory pool of its own.

        Raises:
            Exception: what ``run`` raised, or CUDA, because the work cannot be captured.
        """
        device = torch.cuda.current_device()
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        stream, graph = self._streams[device], torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream), _collector_off(), _scratch_of_its_own():
            # Other threads may allocate meanwhile: only what this thread does must be allowed in a capture.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                outputs = run()
            except BaseException:
                with contextlib.suppress(Exception):
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(stream)
        return Recording(graph.replay, outputs)


@contextlib.contextmanager
def _scratch_of_its_own() -> Any:
    """The matrix library's scratch memory is taken from the recording's own memory, and is not kept a second time for calls outside of it."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


@contextlib.contextmanager
def _collector_off() -> Any:
    """Old graphs must not be destroyed while one is captured."""
    import gc

    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
