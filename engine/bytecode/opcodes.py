"""Opcodes of CPython 3.11 to 3.14: families, unsupported opcodes, version differences."""

from __future__ import annotations

import dis
import sys
from dataclasses import dataclass, replace
from types import CodeType

VERSION = sys.version_info[:2]
CALL_PREFIX_OPS = frozenset(("KW_NAMES", "PRECALL"))
"""Opcodes between the arguments of a call and its CALL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BytecodeRules:
    """Version differences of opcodes: their names and how they use the stack."""

    loop_end: tuple[str, ...]
    """Instructions at the jump target of FOR_ITER; the last of them pops the iterator."""
    jump_if_false: tuple[str, ...]
    """Instructions that pop a value and jump if it is false; the last has the target."""
    subscript: tuple[str, int | None]
    """Opcode of ``a[b]``, and its argument."""
    cell_load: str
    """Opcode that pushes a cell, not its contents."""
    call_prefix: str = ""
    """Opcode before each CALL, with the same argument."""
    null_above_callable: bool = True
    """NULL or ``self`` is above the callable of a call, not below it."""
    keywords_on_stack: bool = True
    """CALL_KW pops the names of keyword arguments; before, KW_NAMES sets them for CALL."""
    attributes_after_function: bool = True
    """SET_FUNCTION_ATTRIBUTE sets defaults and closure; before, MAKE_FUNCTION pops them."""
    load_attr_has_flag: bool = True
    """LOAD_ATTR has a flag to load methods; before, LOAD_METHOD does it."""
    send_keeps_iterator: bool = True
    """SEND leaves an exhausted iterator on the stack, for END_SEND."""
    mapping_is_optional: bool = False
    """CALL_FUNCTION_EX always pops the mapping of ``**`` or NULL; before, it has a flag."""
    offsets_are_raw: bool = False
    """Only raising an exception pushes the offset that handlers pop: it is no object."""
    exit_is_pair: bool = False
    """``with`` keeps ``__exit__`` on the stack as a callable and NULL or ``self``."""
    close_returns_value: bool = True
    """``close`` of a generator returns what the body returns; before, it returns None."""


_RULES_OF_3_13 = BytecodeRules(
    loop_end=("END_FOR", "POP_TOP"),
    jump_if_false=("TO_BOOL", "POP_JUMP_IF_FALSE"),
    subscript=("BINARY_SUBSCR", None),
    cell_load="LOAD_FAST",
)
_RULES_OF_3_12 = replace(
    _RULES_OF_3_13,
    loop_end=("END_FOR",),
    jump_if_false=("POP_JUMP_IF_FALSE",),
    cell_load="LOAD_CLOSURE",
    null_above_callable=False,
    keywords_on_stack=False,
    attributes_after_function=False,
    close_returns_value=False,
)
_RULES_BY_VERSION: dict[tuple[int, int], BytecodeRules] = {
    (3, 11): replace(
        _RULES_OF_3_12,
        loop_end=(),
        jump_if_false=("POP_JUMP_FORWARD_IF_FALSE",),
        call_prefix="PRECALL",
        load_attr_has_flag=False,
        send_keeps_iterator=False,
    ),
    (3, 12): _RULES_OF_3_12,
    (3, 13): _RULES_OF_3_13,
    (3, 14): replace(
        _RULES_OF_3_13,
        loop_end=("END_FOR", "POP_ITER"),
        subscript=("BINARY_OP", 26),
        mapping_is_optional=True,
        offsets_are_raw=True,
        exit_is_pair=True,
    ),
    # Add (3, 15) here, its opcodes to FAMILIES or UNSUPPORTED below, and run tests/engine/bytecode on it.
}
SUPPORTED_VERSIONS = tuple(_RULES_BY_VERSION)
RULES = _RULES_BY_VERSION.get(VERSION, _RULES_BY_VERSION[SUPPORTED_VERSIONS[-1]])
"""Rules of the running interpreter; ``engine`` cannot be imported on an unsupported one."""

EXIT_FROM_TOP = -5 if RULES.exit_is_pair else -4
"""Stack index of ``__exit__`` where an exception leaves a ``with`` block."""

FAMILIES: dict[str, frozenset[str]] = {
    "stack": frozenset(
        "CACHE NOP NOT_TAKEN RESUME PRECALL EXTENDED_ARG POP_TOP PUSH_NULL COPY SWAP KW_NAMES END_FOR POP_ITER "
        "MAKE_CELL COPY_FREE_VARS RETURN_VALUE RETURN_CONST ".split()
    ),
    "names": frozenset(
        "LOAD_CONST LOAD_SMALL_INT LOAD_COMMON_CONSTANT LOAD_FAST LOAD_FAST_BORROW LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR "
        "LOAD_FAST_LOAD_FAST LOAD_FAST_BORROW_LOAD_FAST_BORROW STORE_FAST STORE_FAST_LOAD_FAST "
        "STORE_FAST_STORE_FAST STORE_FAST_MAYBE_NULL DELETE_FAST LOAD_GLOBAL STORE_GLOBAL DELETE_GLOBAL "
        "LOAD_CLOSURE LOAD_DEREF STORE_DEREF DELETE_DEREF "
        "LOAD_ASSERTION_ERROR ".split()
    ),
    "operators": frozenset(
        "BINARY_OP BINARY_SUBSCR STORE_SUBSCR DELETE_SUBSCR BINARY_SLICE STORE_SLICE COMPARE_OP IS_OP CONTAINS_OP UNARY_POSITIVE "
        "UNARY_NEGATIVE UNARY_NOT UNARY_INVERT TO_BOOL CALL_INTRINSIC_1".split()
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
    "calls": frozenset("CALL CALL_KW CALL_FUNCTION_EX MAKE_FUNCTION SET_FUNCTION_ATTRIBUTE LOAD_BUILD_CLASS".split()),
    "generators": frozenset("RETURN_GENERATOR YIELD_VALUE SEND END_SEND GET_YIELD_FROM_ITER ".split()),
    "exceptions": frozenset(
        "RAISE_VARARGS RERAISE PUSH_EXC_INFO POP_EXCEPT CHECK_EXC_MATCH BEFORE_WITH LOAD_SPECIAL "
        "WITH_EXCEPT_START CLEANUP_THROW".split()
    ),
    "imports": frozenset("IMPORT_NAME IMPORT_FROM".split()),
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
    **dict.fromkeys(
        ("CHECK_EG_MATCH", "PREP_RERAISE_STAR", "CALL_INTRINSIC_2"),
        "it belongs to except* or to type parameters, which Python runs",
    ),
    **dict.fromkeys(
        "LOAD_NAME STORE_NAME DELETE_NAME LOAD_LOCALS SETUP_ANNOTATIONS LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF "
        "LOAD_FROM_DICT_OR_GLOBALS".split(),
        "it occurs in the body of a class, which Python runs",
    ),
    **dict.fromkeys(("BUILD_INTERPOLATION", "BUILD_TEMPLATE"), "it builds a template string, which Python does"),
    "ASYNC_GEN_WRAP": "an asynchronous generator is run by an event loop",
    **dict.fromkeys(
        (
            "SETUP_FINALLY SETUP_CLEANUP SETUP_WITH POP_BLOCK JUMP JUMP_NO_INTERRUPT JUMP_IF_FALSE JUMP_IF_TRUE "
            "ANNOTATIONS_PLACEHOLDER LOAD_SUPER_METHOD LOAD_ZERO_SUPER_METHOD LOAD_ZERO_SUPER_ATTR"
        ).split(),
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


COMMON_CONSTANTS: tuple[object, ...] = (AssertionError, NotImplementedError, tuple, all, any)
"""Constants of LOAD_COMMON_CONSTANT by its argument."""


def opcode_family(opname: str) -> str | None:
    """Return the family that traces ``opname``; None if it is unsupported or unknown."""
    return _FAMILY_OF.get(opname)


def unsupported_reason(opname: str) -> str:
    """Return the reason why ``opname`` is unsupported and runs in Python."""
    return UNSUPPORTED.get(opname, f"this version of the tracer does not know the opcode {opname}")


CO_HAS_DOCSTRING = 1 << 26
"""``inspect.CO_HAS_DOCSTRING`` of 3.14; before, a first constant that is a string is one."""


def docstring_of(code: CodeType) -> str | None:
    """Return the docstring of the function that has this code."""
    first = code.co_consts[0] if code.co_consts else None
    has_docstring = VERSION < (3, 14) or bool(code.co_flags & CO_HAS_DOCSTRING)
    return first if has_docstring and isinstance(first, str) else None


def index_after_loop(target: int) -> int:
    """Return the index after a loop, given the jump target of its FOR_ITER.

    The instructions that end the loop there are skipped; the iterator is then off the stack.
    """
    return target + len(RULES.loop_end)


_FAMILY_OF = {name: kind for kind, names in FAMILIES.items() for name in names}
