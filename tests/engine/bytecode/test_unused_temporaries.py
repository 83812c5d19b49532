"""Generated code stores no value that only the next instruction reads, or none."""

import dis

import torch

import engine
from engine.bytecode.assemble import Emitter, drop_unused_temporaries


def emitted(*instructions):
    out = Emitter()
    for name, *arg in instructions:
        out.emit(name, *arg)
    return [(i.name, i.arg) for i in drop_unused_temporaries(out.code, ("user",))]


def test_a_copy_that_nothing_reads_is_dropped():
    """A copy in a local that nothing reads goes; one of the user's variables stays."""
    assert emitted(("COPY", 1), ("STORE_FAST", "__v1")) == []
    assert len(emitted(("COPY", 1), ("STORE_FAST", "user"))) == 2
    assert len(emitted(("COPY", 1), ("STORE_FAST", "__v1"), ("LOAD_CONST", 1), ("LOAD_FAST", "__v1"))) == 4


def test_a_store_before_its_only_load_is_dropped():
    """A value stays on the stack if the next instruction alone reads it."""
    assert emitted(("STORE_FAST", "__out1"), ("LOAD_FAST", "__out1")) == []
    assert emitted(("STORE_FAST", "__out1"), ("LOAD_FAST", "__out1"), ("COPY", 1), ("STORE_FAST", "__v2")) == []
    assert len(emitted(("STORE_FAST", "__out1"), ("LOAD_FAST", "__out1"), ("LOAD_FAST", "__out1"))) == 3


def test_a_frame_with_one_result_has_no_temporaries():
    """The code of a compiled function returns the graph's result without locals."""
    fn = engine.compile(lambda x: x.sin() + 1, backend="eager")
    x = torch.ones(3)
    assert torch.equal(fn(x), x.sin() + 1)
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__, strict=True))
    run = cells["bound"].cell_contents[1]
    assert "STORE_FAST" not in {i.opname for i in dis.get_instructions(run)}
