"""Loads and stores in LLVM IR: contiguous vectors, gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.ir.static_sizes import static_size
from engine.kernels.cpu.addresses import Address, Addresses
from engine.kernels.cpu.ir_writer import IrWriter
from engine.kernels.cpu.llvm_types import MEMORY_TYPES, NotPrintable, iota, splat, type_suffix, wide
from engine.kernels.cpu.loop_plan import SHORT_STRIDES
from engine.kernels.source_builder import SourceLine

MIN_MASKED_BYTES = 4
"""Every vector unit can store vectors of elements of this size with a mask."""
SET_BYTES = 1 << 10
"""Lines at a multiple of this distance share few places of the first cache of a core."""
MEMORY_BYTES = {scalar: dtype.itemsize for dtype, scalar in MEMORY_TYPES.items()}


class Memory:
    """Writes loads and stores of vectors with a fixed number of lanes.

    ``lane_bytes``: the bytes that a register has for each lane.
    """

    def __init__(self, writer: IrWriter, addresses: Addresses, lanes: int, lane_bytes: int) -> None:
        self._writer = writer
        self._addresses = addresses
        self._lanes = lanes
        self._lane_bytes = lane_bytes

    def load(self, pointer: str, dtype: torch.dtype, at: Address, mask: str, hint: str, *, is_vector: bool) -> str:
        """Load one value, or one per lane, in its memory type. An empty ``mask`` loads all."""
        scalar = _memory_type(dtype)
        if not is_vector:
            return self._load_scalar(pointer, scalar, at.base, mask, hint)
        if at.until_wrap:
            return self._load_cyclic(pointer, dtype, at, mask, hint)
        kind, size, write = wide(scalar, self._lanes), dtype.itemsize, self._writer
        if not at.lanes and at.stride == 1:
            address = self._pointer_at(pointer, scalar, at.base)
            if not mask:
                return write.assign(hint, f"load {kind}, ptr {address}, align {size}")
            function = f"llvm.masked.load.{type_suffix(scalar, self._lanes)}.p0"
            write.declare(function, kind, f"ptr, <{self._lanes} x i1>, {kind}")
            masked = f"<{self._lanes} x i1> {mask}"
            return write.assign(
                hint, f"call {kind} @{function}(ptr align {size} {address}, {masked}, {kind} zeroinitializer)"
            )
        if not mask and not at.lanes and at.stride in SHORT_STRIDES:
            return self._load_every(int(at.stride), self._pointer_at(pointer, scalar, at.base), scalar, hint)
        addresses = self._lane_pointers(pointer, scalar, at)
        function = f"llvm.masked.gather.{type_suffix(scalar, self._lanes)}.v{self._lanes}p0"
        write.declare(function, kind, f"<{self._lanes} x ptr>, <{self._lanes} x i1>, {kind}")
        masked = f"<{self._lanes} x i1> {mask or splat('i1', 'true', self._lanes)}"
        return write.assign(
            hint,
            f"call {kind} @{function}(<{self._lanes} x ptr> align {size} {addresses}, {masked}, {kind} zeroinitializer)",
        )

    def _load_cyclic(self, pointer: str, dtype: torch.dtype, at: Address, mask: str, hint: str) -> str:
        """Load adjacent elements up to the end of a period, and the rest from its start."""
        scalar, write, lanes = _memory_type(dtype), self._writer, self._lanes
        kind, masks = wide(scalar, lanes), f"<{lanes} x i1>"
        left = self._addresses.broadcast("i64", at.until_wrap)
        function = f"llvm.masked.load.{type_suffix(scalar, lanes)}.p0"
        write.declare(function, kind, f"ptr, {masks}, {kind}")
        loaded, base = "zeroinitializer", at.base
        for order in ("slt", "sge"):
            chosen = write.assign("chosen", f"icmp {order} {wide('i64', lanes)} {iota(lanes)}, {left}")
            chosen = write.assign("chosen", f"and {masks} {chosen}, {mask}") if mask else chosen
            address = self._pointer_at(pointer, scalar, base)
            loaded = write.assign(
                hint,
                f"call {kind} @{function}(ptr align {dtype.itemsize} {address}, {masks} {chosen}, {kind} {loaded})",
            )
            base = write.assign("at", f"sub i64 {at.base}, {at.period}") if order == "slt" else base
        return loaded

    def _load_every(self, stride: int, address: str, scalar: str, hint: str) -> str:
        """Load elements at a short stride, from vectors that end where the elements end."""
        kind, lanes, write = wide(scalar, self._lanes), self._lanes, self._writer
        size, loaded = MEMORY_BYTES[scalar], ""
        for part in range(stride):
            at = self._pointer_at(address, scalar, str(part * (lanes - 1)))
            row = write.assign("part", f"load {kind}, ptr {at}, align {size}")
            starts = [min(stride - 1, lane * stride // (lanes - 1)) for lane in range(lanes)]
            picks = [
                lanes + lane * stride - part * (lanes - 1) if starts[lane] == part else lane for lane in range(lanes)
            ]
            chosen = ", ".join(f"i32 {n}" for n in picks)
            loaded = write.assign(
                hint, f"shufflevector {kind} {loaded or 'poison'}, {kind} {row}, <{lanes} x i32> <{chosen}>"
            )
        return loaded

    def tile_type(self, dtype: torch.dtype) -> str:
        """Return the type of a tile's elements: words for smaller ones.

        A shuffle moves words in one step, and smaller elements in three.
        """
        scalar = _memory_type(dtype)
        return "i32" if MEMORY_BYTES[scalar] < 4 <= self._lane_bytes else scalar

    def load_tile(self, pointer: str, dtype: torch.dtype, at: Address, mask: str, slot: str, number: str = "0") -> None:
        """Store a transposed tile in a stack slot; each vector read is contiguous in memory.

        It starts at vector ``number`` of the slot. With a ``mask``, vectors of lanes that are not in it are zero, and nothing is read if it is empty.
        """
        address, step = self._pointer_at(pointer, _memory_type(dtype), at.base), self._addresses.size_name(at.stride)
        slot = self._pointer_at(slot, wide(self.tile_type(dtype), self._lanes), number)
        if not mask:
            self._load_rows(address, dtype, step, "", slot)
            return
        word = self._writer.assign("exist", f"bitcast <{self._lanes} x i1> {mask} to i{self._lanes}")
        vector = wide(self.tile_type(dtype), self._lanes)
        self._writer.choose(
            self._writer.assign("exists", f"icmp ne i{self._lanes} {word}, 0"),
            lambda: self._load_rows(address, dtype, step, word, slot),
            lambda: self._store_rows(["zeroinitializer"] * self._lanes, vector, slot),
        )

    def _load_rows(self, address: str, dtype: torch.dtype, step: str, word: str, slot: str) -> None:
        """Load the rows of a tile, at distances of ``step`` elements; transpose and store them.

        Rows whose bits are not in ``word`` are zero. The tile that follows in the lanes' direction is prefetched: its
        rows are too distant from each other for the CPU to foresee. Rows at a distance of a power of 2 share
        few lines of the first cache, so that they go to the second.
        """
        scalar, write, lanes = _memory_type(dtype), self._writer, self._lanes
        kind, tile_vector = wide(scalar, lanes), wide(self.tile_type(dtype), lanes)
        bits = wide(f"i{8 * dtype.itemsize}", lanes)
        conditions = self._lane_conditions(word)
        zeros = self._zeros(kind) if word else ""
        rows = []
        write.declare("llvm.prefetch.p0", "void", "ptr, i32, i32, i32")
        level = 2 if step.isdigit() and int(step) * dtype.itemsize % SET_BYTES == 0 else 3
        ahead = write.assign("ahead", f"mul i64 {step}, {lanes}")
        for lane in range(lanes):
            row_address = address
            next_address = self._pointer_at(address, scalar, ahead)
            write.line(f"call void @llvm.prefetch.p0(ptr {next_address}, i32 0, i32 {level}, i32 1)")
            if word:
                row_address = write.assign("place", f"select i1 {conditions[lane]}, ptr {address}, ptr {zeros}")
            row = write.assign(
                "row", f"load {kind if tile_vector == kind else bits}, ptr {row_address}, align {dtype.itemsize}"
            )
            rows.append(row if tile_vector == kind else write.assign("row", f"zext {bits} {row} to {tile_vector}"))
            if lane + 1 < lanes:
                address = self._pointer_at(address, scalar, step)
        self._store_rows(self._transpose(rows, tile_vector), tile_vector, slot)

    def _store_rows(self, rows: list[str], tile_vector: str, slot: str) -> None:
        for number, row in enumerate(rows):
            address = self._pointer_at(slot, tile_vector, str(number))
            self._writer.line(f"store {tile_vector} {row}, ptr {address}")

    def _lane_conditions(self, word: str) -> list[str]:
        """Return the bits of a word as conditions; an empty list without one."""
        if not word:
            return []
        lanes, write = self._lanes, self._writer
        bits = [write.assign("bit", f"and i{lanes} {word}, {1 << lane}") for lane in range(lanes)]
        return [write.assign("exists", f"icmp ne i{lanes} {bit}, 0") for bit in bits]

    def _zeros(self, kind: str) -> str:
        """Return the address of a vector of zeros."""
        slot = self._writer.entry("zeros", f"alloca {kind}")
        self._writer.line(f"store {kind} zeroinitializer, ptr {slot}")
        return slot

    def load_from_tile(self, dtype: torch.dtype, slot: str, number: str, hint: str) -> str:
        """Load one vector of a tile, narrowed from words."""
        write = self._writer
        kind, tile_vector = (wide(scalar, self._lanes) for scalar in (_memory_type(dtype), self.tile_type(dtype)))
        loaded = write.assign(hint, f"load {tile_vector}, ptr {self._pointer_at(slot, tile_vector, number)}")
        if tile_vector == kind:
            return loaded
        bits = wide(f"i{8 * dtype.itemsize}", self._lanes)
        loaded = write.assign(hint, f"trunc {tile_vector} {loaded} to {bits}")
        return loaded if bits == kind else write.assign(hint, f"bitcast {bits} {loaded} to {kind}")

    def _transpose(self, rows: list[str], kind: str) -> list[str]:
        """Transpose a square of vectors: each step interleaves the two halves of the rows."""
        half, lanes = self._lanes // 2, self._lanes
        low, high = (
            "<" + ", ".join(f"i32 {start + k}, i32 {lanes + start + k}" for k in range(half)) + ">"
            for start in (0, half)
        )
        for _ in range(lanes.bit_length() - 1):
            rows = [
                self._writer.assign("tile", f"shufflevector {kind} {a}, {kind} {b}, <{lanes} x i32> {part}")
                for a, b in zip(rows[:half], rows[half:], strict=True)
                for part in (low, high)
            ]
        return rows

    def store(self, pointer: str, dtype: torch.dtype, at: Address, mask: str, value: str, *, is_vector: bool) -> None:
        """Store one value, or one per lane, of a memory type. An empty ``mask`` stores all."""
        scalar, size, write = _memory_type(dtype), dtype.itemsize, self._writer
        if not is_vector:
            address = self._pointer_at(pointer, scalar, at.base)
            if mask:
                address = self._masked_pointer(address, scalar, mask)
            write.line(f"store {scalar} {value}, ptr {address}, align {size}")
            return
        kind = wide(scalar, self._lanes)
        if not at.lanes and at.stride == 1:
            address = self._pointer_at(pointer, scalar, at.base)
            if not mask:
                write.line(f"store {kind} {value}, ptr {address}, align {size}")
                return
            function = f"llvm.masked.store.{type_suffix(scalar, self._lanes)}.p0"
            write.declare(function, "void", f"{kind}, ptr, <{self._lanes} x i1>")
            write.line(
                f"call void @{function}({kind} {value}, ptr align {size} {address}, <{self._lanes} x i1> {mask})"
            )
            return
        if not mask and not at.lanes and at.stride in SHORT_STRIDES and size >= MIN_MASKED_BYTES:
            self._store_every(int(at.stride), self._pointer_at(pointer, scalar, at.base), scalar, value)
            return
        addresses = self._lane_pointers(pointer, scalar, at)
        function = f"llvm.masked.scatter.{type_suffix(scalar, self._lanes)}.v{self._lanes}p0"
        write.declare(function, "void", f"{kind}, <{self._lanes} x ptr>, <{self._lanes} x i1>")
        masked = f"<{self._lanes} x i1> {mask or splat('i1', 'true', self._lanes)}"
        write.line(f"call void @{function}({kind} {value}, <{self._lanes} x ptr> align {size} {addresses}, {masked})")

    def store_interleaved(self, pointer: str, dtype: torch.dtype, at: Address, vectors: Sequence[str]) -> None:
        """Store two to four vectors whose elements alternate in memory.

        ``at`` is the address of the last one.
        """
        scalar, lanes, write, count = _memory_type(dtype), self._lanes, self._writer, len(vectors)
        kind, long = wide(scalar, lanes), wide(scalar, count * lanes)
        pairs = [vectors[n : n + 2] for n in range(0, count, 2)]
        if count > 2:
            kind, joined = wide(scalar, 2 * lanes), iota(2 * lanes, "i32")
            pairs = [[self._shuffle_pair(pair, scalar, joined) for pair in pairs]]
        addresses = ", ".join(f"i32 {n % count * lanes + n // count}" for n in range(count * lanes))
        (first, second), length = pairs[0], count * lanes
        row = write.assign("rows", f"shufflevector {kind} {first}, {kind} {second}, <{length} x i32> <{addresses}>")
        address = self._pointer_at(self._pointer_at(pointer, scalar, at.base), scalar, str(1 - count))
        write.line(f"store {long} {row}, ptr {address}, align {dtype.itemsize}")

    def _shuffle_pair(self, pair: Sequence[str], scalar: str, addresses: str) -> str:
        """Return one vector with the elements of one or two."""
        kind, second = wide(scalar, self._lanes), pair[1] if len(pair) > 1 else "poison"
        length = 2 * self._lanes
        return self._writer.assign(
            "both", f"shufflevector {kind} {pair[0]}, {kind} {second}, <{length} x i32> {addresses}"
        )

    def _store_every(self, stride: int, address: str, scalar: str, value: str) -> None:
        """Store elements at a short stride, as long vectors with a mask."""
        lanes, write, count = self._lanes, self._writer, stride * self._lanes
        kind, long = wide(scalar, lanes), wide(scalar, count)
        spread = ", ".join(f"i32 {n // stride}" if n % stride == 0 else "i32 poison" for n in range(count))
        mask = ", ".join("i1 true" if n % stride == 0 else "i1 false" for n in range(count))
        spread_value = write.assign(
            "spread", f"shufflevector {kind} {value}, {kind} poison, <{count} x i32> <{spread}>"
        )
        function = f"llvm.masked.store.{type_suffix(scalar, count)}.p0"
        write.declare(function, "void", f"{long}, ptr, <{count} x i1>")
        size = MEMORY_BYTES[scalar]
        write.line(f"call void @{function}({long} {spread_value}, ptr align {size} {address}, <{count} x i1> <{mask}>)")

    def _load_scalar(self, pointer: str, scalar: str, base: str, mask: str, hint: str) -> str:
        address = self._pointer_at(pointer, scalar, base)
        if mask:
            address = self._masked_pointer(address, scalar, mask)
        return self._writer.assign(hint, f"load {scalar}, ptr {address}")

    def _masked_pointer(self, address: str, scalar: str, mask: str) -> str:
        """Return the address where the mask is true, else that of a zero on the stack.

        What the stack held is often a subnormal number, the half of a pointer: arithmetic on it is slow.
        """
        slot = self._writer.entry("unused", f"alloca {scalar}")
        self._writer.entry_lines.append(SourceLine(f"  store {scalar} zeroinitializer, ptr {slot}"))
        return self._writer.assign("place", f"select i1 {mask}, ptr {address}, ptr {slot}")

    def _pointer_at(self, pointer: str, scalar: str, base: str) -> str:
        if base == "0":
            return pointer
        return self._writer.assign("place", f"getelementptr {scalar}, ptr {pointer}, i64 {base}")

    def _lane_pointers(self, pointer: str, scalar: str, at: Address) -> str:
        kind, offsets = wide("i64", self._lanes), at.lanes
        if not offsets:
            stride = static_size(at.stride)
            if stride is None:
                step = self._addresses.broadcast("i64", self._addresses.size_name(at.stride))
                offsets = self._writer.assign("offsets", f"mul {kind} {iota(self._lanes)}, {step}")
            else:
                offsets = iota(self._lanes, step=stride)
            pointer = self._pointer_at(pointer, scalar, at.base)
        return self._writer.assign("places", f"getelementptr {scalar}, ptr {pointer}, {kind} {offsets}")


def _memory_type(dtype: torch.dtype) -> str:
    if dtype not in MEMORY_TYPES:
        raise NotPrintable(f"{dtype} has no CPU kernels")
    return MEMORY_TYPES[dtype]
