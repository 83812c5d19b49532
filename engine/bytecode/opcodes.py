"""Opcodes of CPython 3.11 to 3.13: families, unsupported opcodes, version differences."""

from __future__ import annotations

import dis
import sys

VERSION = sys.version_info[:2]
SUPPORTED_VERSIONS = ((3, 11), (3, 12), (3, 13))

FAMILIES: dict[str, frozenset[str]] = {
    "stack": frozenset(
        "CACHE NOP RESUME PRECALL EXTENDED_ARG POP_TOP PUSH_NULL COPY SWAP KW_NAMES END_FOR "
        "MAKE_CELL COPY_FREE_VARS RETURN_VALUE RETURN_CONST ".split()
    ),
    "names": frozenset(
        "LOAD_CONST LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_FAST_LOAD_FAST STORE_FAST STORE_FAST_LOAD_FAST "
        "STORE_FAST_STORE_FAST STORE_FAST_MAYBE_NULL DELETE_FAST LOAD_GLOBAL STORE_GLOBAL DELETE_GLOBAL "
        "LOAD_CLOSURE LOAD_DEREF STORE_DEREF DELETE_DEREF "
        "LOAD_ASSERTION_ERROR ".split()
    ),
    "operators": frozenset(
        "BINARY_OP BINARY_SUBSCR STORE_SUBSCR DELETE_SUBSCR BINARY_SLICE STORE_SLICE COMPARE_OP IS_OP CONTAINS_OP UNARY_POSITIVE "
        "UNARY_NEGATIVE UNARY_NOT UNARY_INVERT TO_BOOL CALL_INTRINSIC_1 CALL_INTRINSIC_2".split()
    ),
    "attributes": frozenset("LOAD_ATTR STORE_ATTR DELETE_ATTR LOAD_METHOD LOAD_SUPER_ATTR ".split()),
    "containers": frozenset(
        "BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_MAP BUILD_CONST_KEY_MAP BUILD_SLICE BUILD_STRING LIST_APPEND LIST_EXTEND LIST_TO_TUPLE "
        "SET_ADD SET_UPDATE MAP_ADD DICT_UPDATE DICT_MERGE UNPACK_SEQUENCE UNPACK_EX FORMAT_VALUE FORMAT_SIMPLE FORMAT_WITH_SPEC "
        "CONVERT_VALUE GET_LEN".split()
    ),
    "jumps": frozenset(
        "JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_TRUE "
        "POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_FALSE POP_JUMP_BACKWARD_IF_TRUE "
        "POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE POP_JUMP_IF_FALSE POP_JUMP_IF_TRUE POP_JUMP_IF_NONE "
        "POP_JUMP_IF_NOT_NONE JUMP_IF_FALSE_OR_POP JUMP_IF_TRUE_OR_POP GET_ITER FOR_ITER".split()
    ),
    "calls": frozenset("CALL CALL_KW CALL_FUNCTION_EX MAKE_FUNCTION SET_FUNCTION_ATTRIBUTE".split()),
    "generators": frozenset("RETURN_GENERATOR YIELD_VALUE SEND END_SEND GET_YIELD_FROM_ITER ".split()),
    "exceptions": frozenset(
        "RAISE_VARARGS RERAISE PUSH_EXC_INFO POP_EXCEPT CHECK_EXC_MATCH CHECK_EG_MATCH PREP_RERAISE_STAR BEFORE_WITH WITH_EXCEPT_START "
        "CLEANUP_THROW".split()
    ),
    "imports": frozenset("IMPORT_NAME IMPORT_FROM".split()),
    "class_bodies": frozenset(
        "LOAD_BUILD_CLASS LOAD_NAME STORE_NAME DELETE_NAME LOAD_LOCALS SETUP_ANNOTATIONS LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF "
        "LOAD_FROM_DICT_OR_GLOBALS".split()
    ),
    "match": frozenset("MATCH_MAPPING MATCH_SEQUENCE MATCH_KEYS MATCH_CLASS".split()),
}
"""Opcode names by family; each family has its own handlers in the tracer."""

UNSUPPORTED: dict[str, str] = {
    "GET_AWAITABLE": "await needs an event loop, which a graph does not have",
    "GET_AITER": "asynchronous iteration needs an event loop, which a graph does not have",
    "GET_ANEXT": "asynchronous iteration needs an event loop, which a graph does not have",
    "END_ASYNC_FOR": "asynchronous iteration needs an event loop, which a graph does not have",
    "BEFORE_ASYNC_WITH": "an asynchronous context needs an event loop, which a graph does not have",
    "IMPORT_STAR": "a star import happens at module level only",
    "PRINT_EXPR": "it occurs at an interactive prompt only",
    "ASYNC_GEN_WRAP": "an asynchronous generator is run by an event loop",
    **dict.fromkeys(
        (
            "SETUP_FINALLY",
            "SETUP_CLEANUP",
            "SETUP_WITH",
            "POP_BLOCK",
            "JUMP",
            "JUMP_NO_INTERRUPT",
            "LOAD_SUPER_METHOD",
            "LOAD_ZERO_SUPER_METHOD",
            "LOAD_ZERO_SUPER_ATTR",
        ),
        "it is CPython's own note while compiling and does not occur in finished code",
    ),
    **dict.fromkeys(
        ("INTERPRETER_EXIT", "RESERVED", "ENTER_EXECUTOR", "EXIT_INIT_CHECK"),
        "it belongs to the interpreter and does not occur in a function's code",
    ),
}
"""Opcodes without a handler, each with a readable reason."""

BINARY_OPERATORS: tuple[str, ...] = tuple(symbol for _, symbol in getattr(dis, "_nb_ops", ()))
"""Symbols of BINARY_OP by its argument: ``+`` ... ``+=`` ..."""


def real_opcodes() -> tuple[str, ...]:
    """Return the interpreter's opcodes without instrumented and specialized variants."""
    return tuple(name for name in dis.opmap if not name.startswith("INSTRUMENTED_") and not name.startswith("<"))


def opcode_family(opname: str) -> str | None:
    """Return the family that traces ``opname``; None if it is unsupported or unknown."""
    return _FAMILY_OF.get(opname)


def unsupported_reason(opname: str) -> str:
    """Return the reason why ``opname`` is unsupported and runs in Python."""
    return UNSUPPORTED.get(opname, f"this version of the tracer does not know the opcode {opname}")


def index_after_loop(target: int) -> int:
    """Return the index after a loop, given the jump target of its FOR_ITER.

    From 3.12 on, END_FOR is skipped. The iterator is then off the stack.
    """
    return target + VERSION[1] - 11


_FAMILY_OF = {name: kind for kind, names in FAMILIES.items() for name in names}
