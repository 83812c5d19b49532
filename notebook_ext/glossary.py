"""Glossary of the field: ``%glossary`` and ``notebooks/reference/GLOSSARY.md``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

TERMS: Mapping[str, str] = {
    "alias": "Two tensors are aliases when they share memory: what is written through one is seen through the other.",
    "AOT": "Ahead of time: forward and backward are traced and divided before the first of them runs.",
    "arithmetic intensity": "How many operations a kernel does for each byte that it moves. It decides on which side of the roofline's bend it lies.",
    "ATen": "PyTorch's library of operators. An ATen graph consists of calls to them and nothing else.",
    "autograd": "PyTorch's machinery that computes gradients: while the forward runs, it keeps what the backward will need.",
    "backend": "What makes a traced graph into something that runs: Triton kernels, ATen calls, or a function of yours.",
    "bytecode": "What Python itself executes: each function is a list of small instructions for a stack machine. The tracer follows these, not the text.",
    "cache entry": "One compilation of a function, with the guards that say when it may be used. A function can have several.",
    "closure": "Variables of an outer function that an inner function uses. They are guarded like other values that are read.",
    "compiled autograd": "The backward pass captured as a whole, with its hooks and the accumulation of gradients, and compiled as one graph.",
    "decomposition": "An operator written with simpler ones: layer norm as means, differences and a root. Fusion works on the simple ones.",
    "dispatcher": "What stands in place of a compiled function: it checks the guards of each entry and calls the first that fits.",
    "dynamic shape": "A size that is a symbol in the compiled code, so that the code serves many values of it.",
    "eager": "PyTorch as it usually works: each operation runs as soon as Python reaches it.",
    "fake tensor": "A tensor with shape, dtype and device but no data. The tracer computes with them.",
    "functionalisation": "Rewriting a graph so that nothing in it is changed in place: mutations become new values, put back into the inputs afterwards.",
    "fusion": "Several operations in one kernel, so that what lies between them never travels through memory.",
    "FX graph": "The recorded operations as a list of nodes, in PyTorch's own format, torch.fx.",
    "graph": "The tensor operations that a function would run, written down in order. It holds one path: loops are unrolled, branches decided.",
    "graph break": "A place where the graph has to end because a line needs Python. Python runs it, and a second graph goes on behind it.",
    "guard": "Something taken for granted when code was compiled (a shape, a type, a value). It is checked before each call.",
    "hook": "A function of yours that autograd or a module calls on the way, for example when a gradient is ready.",
    "inlining": "Following a call into the called function, so that its operations join the caller's graph.",
    "joint graph": "Forward and backward in one graph, before they are divided.",
    "kernel": "A program for a GPU that runs in thousands of copies at once, each on its part of the data.",
    "lowering": "Going from operators to the loops and memory accesses that compute them.",
    "mutation": "Changing a tensor or an object in place. After a compiled call it must look exactly as after a plain one.",
    "occupancy": "How many of the threads that a GPU's multiprocessor could hold really fit, given the registers and shared memory that each needs.",
    "onion": "The layers around the functional graph: each turns one thing of the user's call (an alias, a mutation) into what the graph can take, and back.",
    "partition": "Dividing the joint graph into forward and backward, and choosing what is kept between them and what is computed again.",
    "program instance": "One of the many copies of a Triton kernel; it handles one block of the data.",
    "PTX": "NVIDIA's assembly language for a GPU that does not exist: every GPU of a generation understands it, after one more translation.",
    "recompile": "Compiling a function once more, because no entry's guards hold for a call.",
    "register": "The fastest memory, private to a thread. When there are too few, values spill into slow memory.",
    "resume function": "The rest of a function behind a graph break, made into a function of its own that is compiled in turn.",
    "roofline": "A bound on a kernel's speed: by memory bandwidth when it does little arithmetic per byte, by arithmetic when it does much.",
    "SASS": "The machine code that an NVIDIA GPU really runs.",
    "session": "Everything recorded while a cell ran. It can be saved, opened elsewhere, and compared with another.",
    "side effect": "What a function does besides returning: appending to a list, setting an attribute. It is replayed after the graph, in order.",
    "source": "Where a guarded value is read from: a local, a global, an attribute, an item of a list.",
    "specialisation": "Making code for one certain value; a guard says which.",
    "stride": "How many elements lie between neighbours along a dimension. A transposed tensor has the same data and other strides.",
    "symbol": "A name that stands for a size or a number in compiled code, such as s77. Its story tells where it comes from and what is assumed of it.",
    "tangent": "The gradient that comes into the backward for an output of the forward.",
    "tracing": "Following a function instruction by instruction with stand-ins for its tensors, and writing down what it does to them.",
    "Triton": "A language for GPU kernels that reads like Python and works on blocks of data; the compiler's last output in text that people read.",
    "view": "A tensor that shows another tensor's memory in another way: a slice, a transpose, a reshape.",
    "wrapper": "One layer of the onion.",
}

VIEW_TERMS: Mapping[str, tuple[str, ...]] = {
    "linked": ("FX graph", "ATen", "lowering", "Triton", "PTX", "SASS"),
    "guards": ("guard", "source", "cache entry", "specialisation"),
    "recompiles": ("recompile", "dispatcher", "symbol", "dynamic shape"),
    "breaks": ("graph break", "resume function", "side effect"),
    "graph": ("graph", "decomposition", "joint graph", "view"),
    "kernels": ("kernel", "fusion", "roofline", "arithmetic intensity", "occupancy", "register"),
    "tracer": ("tracing", "bytecode", "fake tensor", "inlining"),
    "onion": ("onion", "wrapper", "functionalisation", "mutation", "alias", "partition"),
    "contents": ("session", "backend"),
}
"""Terms that each view of the explorer shows beside its keys."""


def terms_by_view() -> dict[str, list[tuple[str, str]]]:
    """Return the terms of each view with their definitions."""
    return {view: [(term, TERMS[term]) for term in terms] for view, terms in VIEW_TERMS.items()}


def explain_term(word: str) -> str:
    """Return the definition of a term; for "", all definitions.

    For an unknown term, suggest the closest known ones.
    """
    if not word:
        return "\n".join(f"{term}: {text}" for term, text in TERMS.items())
    known = {term.lower(): term for term in TERMS}
    asked = word.lower()
    for form in (asked, asked.removesuffix("s"), asked.removesuffix("es")):
        if form in known:
            return f"{known[form]}: {TERMS[known[form]]}"
    near = [known[n] for n in difflib.get_close_matches(asked, known, 3, 0.5)]
    return f"{word!r} is not in the glossary." + (f" Did you mean {' or '.join(near)}?" if near else "")


def glossary_page() -> str:
    """Return the text of ``notebooks/reference/GLOSSARY.md``."""
    rows = "\n\n".join(f"### {term}\n\n{text}" for term, text in TERMS.items())
    return f"# Glossary\n\nTerms of PyTorch compilers, as this project uses them. In a notebook, `%glossary guard` explains one term.\n\n{rows}\n"
