"""LLVM IR that makes a kernel a function of Python, run by torch's threads.

The function takes the kernel's arguments as Python numbers and returns the kernel's status. It has the calling
convention ``METH_FASTCALL`` of CPython, since a call through ctypes costs several times more.
"""

from __future__ import annotations

from collections.abc import Sequence

THREAD_WORK = 1 << 15
"""Least work per thread, in units of the printer's cost of one element."""

_POOL = """
declare i32 @omp_get_max_threads()
declare i32 @omp_get_num_threads()
declare i32 @omp_get_thread_num()
declare i32 @omp_in_parallel()
declare void @GOMP_parallel(ptr, ptr, i32, i32)
@engine_is_forked = external global i32
"""


def launch_stub(name: str, kinds: Sequence[str], chunk: int) -> str:
    """Return the IR of ``name_from_python`` around the kernel ``name``.

    ``kinds`` are "pointer", "size" or "float" for each argument; the last two are the extent and the cost of one of its
    iterations. Threads take multiples of ``chunk`` iterations.
    """
    return "".join((_unpack(name, kinds), _run(name, len(kinds), chunk), _worker(name, chunk), _DECLARATIONS, _POOL))


_DECLARATIONS = """
declare i64 @PyLong_AsLongLong(ptr)
declare double @PyFloat_AsDouble(ptr)
declare ptr @PyLong_FromLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
"""


def _unpack(name: str, kinds: Sequence[str]) -> str:
    count = len(kinds)
    lines = [
        f"define ptr @{name}_from_python(ptr %self, ptr %given, i64 %count) {{",
        f"  %arguments = alloca [{count} x i64]",
    ]
    for k, kind in enumerate(kinds):
        lines += [f"  %g{k} = getelementptr ptr, ptr %given, i64 {k}", f"  %o{k} = load ptr, ptr %g{k}"]
        if kind == "float":
            lines.append(f"  %v{k} = call double @PyFloat_AsDouble(ptr %o{k})")
        else:
            lines.append(f"  %v{k} = call i64 @PyLong_AsLongLong(ptr %o{k})")
        lines.append(f"  %a{k} = getelementptr i64, ptr %arguments, i64 {k}")
        lines.append(f"  store {'double' if kind == 'float' else 'i64'} %v{k}, ptr %a{k}")
    lines += [
        f"  %status = call i32 @{name}_run(ptr %arguments)",
        "  %long = sext i32 %status to i64",
        "  %made = call ptr @PyLong_FromLong(i64 %long)",
        "  ret ptr %made",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _run(name: str, count: int, chunk: int) -> str:
    return f"""
define i32 @{name}_run(ptr %arguments) {{
entry:
  %extent.place = getelementptr i64, ptr %arguments, i64 {count - 2}
  %extent = load i64, ptr %extent.place
  %cost.place = getelementptr i64, ptr %arguments, i64 {count - 1}
  %cost = load i64, ptr %cost.place
  %work = mul i64 %extent, %cost
  %is_short = icmp slt i64 %work, {2 * THREAD_WORK}
  br i1 %is_short, label %alone, label %long
alone:
  %status.alone = call i32 @{name}(ptr %arguments, i64 0, i64 %extent)
  ret i32 %status.alone
long:
  %state = call ptr @PyEval_SaveThread()
  %forked = load i32, ptr @engine_is_forked
  %inside = call i32 @omp_in_parallel()
  %busy = or i32 %forked, %inside
  %may_share = icmp eq i32 %busy, 0
  br i1 %may_share, label %count, label %single
count:
  %most = call i32 @omp_get_max_threads()
  %shares = udiv i64 %work, {THREAD_WORK}
  %chunks.more = add i64 %extent, {chunk - 1}
  %chunks = udiv i64 %chunks.more, {chunk}
  %wanted.one = call i64 @llvm.umin.i64(i64 %shares, i64 %chunks)
  %most.long = zext i32 %most to i64
  %wanted = call i64 @llvm.umin.i64(i64 %wanted.one, i64 %most.long)
  %is_single = icmp ule i64 %wanted, 1
  br i1 %is_single, label %single, label %shared
single:
  %status.single = call i32 @{name}(ptr %arguments, i64 0, i64 %extent)
  call void @PyEval_RestoreThread(ptr %state)
  ret i32 %status.single
shared:
  %job = alloca {{ ptr, i64, i32 }}
  store ptr %arguments, ptr %job
  %extent.slot = getelementptr {{ ptr, i64, i32 }}, ptr %job, i64 0, i32 1
  store i64 %extent, ptr %extent.slot
  %status.slot = getelementptr {{ ptr, i64, i32 }}, ptr %job, i64 0, i32 2
  store i32 0, ptr %status.slot
  %threads = trunc i64 %wanted to i32
  call void @GOMP_parallel(ptr @{name}_share, ptr %job, i32 %threads, i32 0)
  %status = load i32, ptr %status.slot
  call void @PyEval_RestoreThread(ptr %state)
  ret i32 %status
}}
declare i64 @llvm.umin.i64(i64, i64)
"""


def _worker(name: str, chunk: int) -> str:
    return f"""
define void @{name}_share(ptr %job) {{
entry:
  %arguments = load ptr, ptr %job
  %extent.slot = getelementptr {{ ptr, i64, i32 }}, ptr %job, i64 0, i32 1
  %extent = load i64, ptr %extent.slot
  %number.int = call i32 @omp_get_thread_num()
  %number = zext i32 %number.int to i64
  %count.int = call i32 @omp_get_num_threads()
  %count = zext i32 %count.int to i64
  %more = add i64 %extent, {chunk - 1}
  %chunks = udiv i64 %more, {chunk}
  %first.product = mul i64 %chunks, %number
  %first = udiv i64 %first.product, %count
  %next.number = add i64 %number, 1
  %last.product = mul i64 %chunks, %next.number
  %last = udiv i64 %last.product, %count
  %begin = mul i64 %first, {chunk}
  %end.high = mul i64 %last, {chunk}
  %end = call i64 @llvm.umin.i64(i64 %end.high, i64 %extent)
  %status = call i32 @{name}(ptr %arguments, i64 %begin, i64 %end)
  %is_good = icmp eq i32 %status, 0
  br i1 %is_good, label %done, label %bad
bad:
  %status.slot = getelementptr {{ ptr, i64, i32 }}, ptr %job, i64 0, i32 2
  store atomic i32 %status, ptr %status.slot monotonic, align 4
  br label %done
done:
  ret void
}}
"""
