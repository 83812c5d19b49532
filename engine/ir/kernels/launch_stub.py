"""LLVM IR that makes any kernel a function of Python, run by torch's threads.

The function takes the kernel's arguments as Python numbers and returns the kernel's status. It has the calling
convention ``METH_FASTCALL`` of CPython, since a call through ctypes costs several times more. Its ``self`` is the
address of a descriptor: the kernel, the number of its arguments, the chunk that threads share a multiple of, and a byte
per argument that is 1 for a float. The last two arguments are the extent and the cost of one iteration.
"""

THREAD_WORK = 1 << 16
"""Least work per thread, in units of the printer's cost of one element.

On two cores, a kernel of twice this work takes 4 us on one thread and 3.5 us on two. With less work, starting the
second thread takes as long as it saves.
"""

STUB_NAME = "engine_launch"

LAUNCH_STUB = f"""
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare double @PyFloat_AsDouble(ptr)
declare ptr @PyLong_FromLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @_ZN2at15get_num_threadsEv()
declare zeroext i1 @_ZN2at18in_parallel_regionEv()
declare i32 @omp_get_num_threads()
declare i32 @omp_get_thread_num()
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i64 @llvm.umin.i64(i64, i64)
@engine_is_forked = external global i32

define ptr @{STUB_NAME}(ptr %self, ptr %given, i64 %given.count) {{
entry:
  %descriptor = call ptr @PyLong_AsVoidPtr(ptr %self)
  %kernel = load ptr, ptr %descriptor
  %count.place = getelementptr i64, ptr %descriptor, i64 1
  %count = load i64, ptr %count.place
  %chunk.place = getelementptr i64, ptr %descriptor, i64 2
  %chunk = load i64, ptr %chunk.place
  %kinds = getelementptr i64, ptr %descriptor, i64 3
  %arguments = alloca i64, i64 %count
  br label %unpack
unpack:
  %k = phi i64 [ 0, %entry ], [ %k.next, %stored ]
  %object.place = getelementptr ptr, ptr %given, i64 %k
  %object = load ptr, ptr %object.place
  %kind.place = getelementptr i8, ptr %kinds, i64 %k
  %kind = load i8, ptr %kind.place
  %place = getelementptr i64, ptr %arguments, i64 %k
  %is_float = icmp ne i8 %kind, 0
  br i1 %is_float, label %float, label %whole
float:
  %number = call double @PyFloat_AsDouble(ptr %object)
  store double %number, ptr %place
  br label %stored
whole:
  %integer = call i64 @PyLong_AsLongLong(ptr %object)
  store i64 %integer, ptr %place
  br label %stored
stored:
  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, %count
  br i1 %more, label %unpack, label %run
run:
  %status = call i32 @engine_run(ptr %kernel, ptr %arguments, i64 %count, i64 %chunk)
  %long = sext i32 %status to i64
  %made = call ptr @PyLong_FromLong(i64 %long)
  ret ptr %made
}}

define internal i32 @engine_run(ptr %kernel, ptr %arguments, i64 %count, i64 %chunk) noinline {{
entry:
  %extent.number = sub i64 %count, 2
  %extent.place = getelementptr i64, ptr %arguments, i64 %extent.number
  %extent = load i64, ptr %extent.place
  %cost.place = getelementptr i64, ptr %extent.place, i64 1
  %cost = load i64, ptr %cost.place
  %work = mul i64 %extent, %cost
  %is_short = icmp slt i64 %work, {2 * THREAD_WORK}
  br i1 %is_short, label %alone, label %long
alone:
  %status.alone = call i32 %kernel(ptr %arguments, i64 0, i64 %extent)
  ret i32 %status.alone
long:
  %state = call ptr @PyEval_SaveThread()
  %forked = load i32, ptr @engine_is_forked
  %is_forked = icmp ne i32 %forked, 0
  %is_inside = call zeroext i1 @_ZN2at18in_parallel_regionEv()
  %busy = or i1 %is_forked, %is_inside
  br i1 %busy, label %single, label %share
share:
  %most = call i32 @_ZN2at15get_num_threadsEv()
  %shares = udiv i64 %work, {THREAD_WORK}
  %chunk.last = sub i64 %chunk, 1
  %chunks.more = add i64 %extent, %chunk.last
  %chunks = udiv i64 %chunks.more, %chunk
  %wanted.one = call i64 @llvm.umin.i64(i64 %shares, i64 %chunks)
  %most.long = zext i32 %most to i64
  %wanted = call i64 @llvm.umin.i64(i64 %wanted.one, i64 %most.long)
  %is_single = icmp ule i64 %wanted, 1
  br i1 %is_single, label %single, label %shared
single:
  %status.single = call i32 %kernel(ptr %arguments, i64 0, i64 %extent)
  call void @PyEval_RestoreThread(ptr %state)
  ret i32 %status.single
shared:
  %job = alloca {{ ptr, ptr, i64, i64, i32 }}
  store ptr %arguments, ptr %job
  %kernel.slot = getelementptr {{ ptr, ptr, i64, i64, i32 }}, ptr %job, i64 0, i32 1
  store ptr %kernel, ptr %kernel.slot
  %extent.slot = getelementptr {{ ptr, ptr, i64, i64, i32 }}, ptr %job, i64 0, i32 2
  store i64 %extent, ptr %extent.slot
  %chunk.slot = getelementptr {{ ptr, ptr, i64, i64, i32 }}, ptr %job, i64 0, i32 3
  store i64 %chunk, ptr %chunk.slot
  %status.slot = getelementptr {{ ptr, ptr, i64, i64, i32 }}, ptr %job, i64 0, i32 4
  store i32 0, ptr %status.slot
  %threads = trunc i64 %wanted to i32
  call void @GOMP_parallel(ptr @engine_share, ptr %job, i32 %threads, i32 0)
  %status = load i32, ptr %status.slot
  call void @PyEval_RestoreThread(ptr %state)
  ret i32 %status
}}

define internal void @engine_share(ptr %job) {{
entry:
  %arguments = load ptr, ptr %job
  %kernel.slot = getelementptr {{ ptr, ptr, i64, i64, i32 }}, ptr %job, i64 0, i32 1
  %kernel = load ptr, ptr %kernel.slot
  %extent.slot = getelementptr {{ ptr, ptr, i64, i64, i32 }}, ptr %job, i64 0, i32 2
  %extent = load i64, ptr %extent.slot
  %chunk.slot = getelementptr {{ ptr, ptr, i64, i64, i32 }}, ptr %job, i64 0, i32 3
  %chunk = load i64, ptr %chunk.slot
  %number.int = call i32 @omp_get_thread_num()
  %number = zext i32 %number.int to i64
  %count.int = call i32 @omp_get_num_threads()
  %count = zext i32 %count.int to i64
  %chunk.last = sub i64 %chunk, 1
  %more = add i64 %extent, %chunk.last
  %chunks = udiv i64 %more, %chunk
  %first.product = mul i64 %chunks, %number
  %first = udiv i64 %first.product, %count
  %next.number = add i64 %number, 1
  %last.product = mul i64 %chunks, %next.number
  %last = udiv i64 %last.product, %count
  %begin = mul i64 %first, %chunk
  %end.high = mul i64 %last, %chunk
  %end = call i64 @llvm.umin.i64(i64 %end.high, i64 %extent)
  %status = call i32 %kernel(ptr %arguments, i64 %begin, i64 %end)
  %is_good = icmp eq i32 %status, 0
  br i1 %is_good, label %done, label %bad
bad:
  %status.slot = getelementptr {{ ptr, ptr, i64, i64, i32 }}, ptr %job, i64 0, i32 4
  store atomic i32 %status, ptr %status.slot monotonic, align 4
  br label %done
done:
  ret void
}}
"""
