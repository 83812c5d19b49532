"""Migration of saved sessions from schema version 1 to 2: renamed fields and values.

Works on the JSON values, before records are created from them.
"""

from __future__ import annotations

import types
import typing
from typing import Any

from engine.records.aot import CallValuesRecord, PartitionRecord, WrapperValuesRecord
from engine.records.autograd import BackwardRecord
from engine.records.base import Record, field_types
from engine.records.graph import EditRecord, PassRecord
from engine.records.guards import Fix, GuardFailure, GuardRecord, ObservedSymbolEvent, ObservedSymbolRecord
from engine.records.kernels import KernelRecord, TargetRecord
from engine.records.lowering import AutotuneChoice, LoweringRecord
from engine.records.runtime import CallRecord, SkippedRecord
from engine.records.session_data import CompilationRecord, SessionData
from engine.records.trace import BreakRecord, DiscardedAttempt, StepRecord, TracedSymbolRecord, TraceRecord

RENAMED_FIELDS: dict[type[Record], dict[str, str]] = {
    PartitionRecord: {"kept_bytes": "saved_input_bytes", "default_bytes": "bytes_without_recompute"},
    WrapperValuesRecord: {"layer": "wrapper", "cut": "dropped"},
    CallValuesRecord: {"moments": "wrapper_values", "how": "replayed_on"},
    BackwardRecord: {"sizes": "symbolic_sizes"},
    EditRecord: {"at": "line", "gone": "removed_count", "made": "added_lines"},
    PassRecord: {
        "before": "nodes_before",
        "after": "nodes_after",
        "gone": "removed_count",
        "made": "added_count",
        "is_exact": "has_exact_edits",
        "start": "lines_before",
    },
    GuardRecord: {"origin": "source"},
    Fix: {"tried": "unverified_reason"},
    GuardFailure: {"origin": "source", "lesson": "hint"},
    ObservedSymbolRecord: {"value": "hint"},
    TargetRecord: {"configuration": "smaller_blocks_note"},
    KernelRecord: {"launch": "launch_args"},
    AutotuneChoice: {"taken": "chosen", "ways": "candidates", "is_known": "from_disk_cache"},
    LoweringRecord: {"launching": "launch_mode", "choices": "autotune_choices"},
    CallRecord: {"asked": "checked_entries", "rejections": "guard_failures"},
    SkippedRecord: {"remedy": "hint"},
    CompilationRecord: {
        "backward": "backward_lowering",
        "subject": "compiler",
        "restarts": "restart_reasons",
        "symbols": "observed_symbols",
        "caches": "disk_caches",
        "texts": "artifacts",
        "passages": "call_values",
    },
    SessionData: {"subject": "compiler", "texts": "artifacts"},
    BreakRecord: {
        "what": "context",
        "why": "explanation",
        "remedies": "hints",
        "skipped": "skips_frame",
        "times": "count",
        "before": "example_before",
        "after": "example_after",
    },
    StepRecord: {"effects": "side_effects"},
    TracedSymbolRecord: {
        "places": "sources",
        "relations": "assumptions",
        "became": "specialized_to",
        "settled": "specialized_by",
    },
    DiscardedAttempt: {"what": "context", "effects": "side_effects", "switched": "restored_state"},
    TraceRecord: {"rewritten": "modified_instructions", "attempts": "discarded_attempts", "effects": "side_effects"},
}
"""Fields of each record class renamed in schema version 2: old name to new name."""

RENAMED_VALUES: dict[tuple[type[Record], str], dict[str, str]] = {
    (PassRecord, "name"): {
        "drop_dead": "eliminate_dead_code",
        "drop_aliases": "remove_noop_aliases",
        "attentions": "fuse_attention",
        "whole": "pad_matmul",
        "masks_as_numbers": "bool_to_bias_mask",
    },
    (ObservedSymbolEvent, "kind"): {"specialised": "specialized"},
}
"""Values renamed in schema version 2, per record class and field: old name to new name."""


def migrate_session(data: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON values of a version-1 session as those of version 2.

    Values of an unexpected type are returned unchanged: creating the records reports them.
    """
    return {**_migrate(SessionData, data), "version": 2}


def _migrate(expected: Any, data: Any) -> Any:
    """Rename the fields in ``data``, the JSON value of the annotated type ``expected``."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin is typing.Union or origin is types.UnionType:
        for arm in arguments:
            data = _migrate(arm, data)
        return data
    if origin is tuple and isinstance(data, list):
        if arguments[1:] == (Ellipsis,):
            return [_migrate(arguments[0], value) for value in data]
        if len(arguments) == len(data):
            return [_migrate(argument, value) for argument, value in zip(arguments, data, strict=True)]
    if origin is dict and isinstance(data, dict):
        return {key: _migrate(arguments[1], value) for key, value in data.items()}
    if isinstance(expected, type) and issubclass(expected, Record) and isinstance(data, dict):
        return _migrate_record(expected, data)
    return data


def _migrate_record(cls: type[Record], data: dict[str, Any]) -> dict[str, Any]:
    new_names, annotations = RENAMED_FIELDS.get(cls, {}), field_types(cls)
    migrated = {}
    for old_name, value in data.items():
        name = new_names.get(old_name, old_name)
        migrated[name] = _migrate(annotations.get(name, Any), value)
        if isinstance(value, str):
            migrated[name] = RENAMED_VALUES.get((cls, name), {}).get(value, value)
    return migrated
