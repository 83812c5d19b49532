"""Entries of the contract with torch: private names, checked when they are loaded.

Each module of this package declares the names of one stage, grouped by what happens without them, and loads them. The
engine then imports them as plain names: an entry that torch has as expected *is* torch's object, at no cost per call.

An entry that torch does not have, or has with another kind or signature, becomes a placeholder. It can be imported,
registered and subclassed; using it raises ``MissingTorchName``, which becomes a fallback to eager like any other error
of a stage. Features that cannot work without an entry ask ``why_off`` first.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from engine.supported_versions import NEWEST_TORCH
from engine.torch_private import entry_check_cache

logger = logging.getLogger(__name__)


class MissingTorchName(Exception):
    """A private name of torch is used that this version of torch does not have as expected."""


class Kind(enum.Enum):
    """Kind of object that a name refers to."""

    FUNCTION = "a function"
    CLASS = "a class"
    EXCEPTION = "an exception class"
    MODULE = "a module"
    TABLE = "a mapping"
    VALUE = "a value"


class Feature(enum.Enum):
    """Parts of the engine that a missing entry turns off, each with what happens instead.

    One place asks for each feature, except ``CALL``: there the placeholder raises where it is used.
    """

    COMPILATION = "compiled functions run eagerly"
    FUNCTIONAL_GRAPHS = "graphs run as traced, without kernels"
    KERNELS = "graphs run in ATen, without kernels"
    COMPILED_AUTOGRAD = "backwards run in torch's engine"
    GUARD_HELPERS = "guards are checked one by one, which is slower"
    FAST_ALLOCATION = "tensors are made by empty_strided and as_strided, which is slower"
    CUDA_GRAPHS = "kernels are launched one by one, without CUDA graphs"
    DISK_CACHE = "nothing is stored on disk"
    SOURCE_LIMIT = "sources of generated code stay in memory until the process ends"
    OBSERVATION = "torch.compile is not observed"
    CALL = "what needs it runs eagerly"


@dataclass(frozen=True, slots=True)
class Entry:
    """A private name of torch.

    ``path`` is "module:attribute". ``elsewhere`` are paths of the same object in other versions, tried in order.
    ``calls`` are the forms in which the engine calls it, such as "(tensor, mode, device=)": the signature must take them.
    ``since`` and ``until`` are the first version that has it, if later than the oldest supported one, and the last one:
    in other versions nothing is turned off because it is missing. ``without`` says what fails then, ``off`` is the feature
    that is turned off.
    """

    path: str
    kind: Kind
    use: str
    without: str = ""
    off: Feature = Feature.CALL
    calls: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    """Attributes of the object, or of instances of the class, that the engine reads."""
    since: str = "2.11"
    until: str = ""
    elsewhere: tuple[str, ...] = ()
    alias: str = ""
    build: str = ""
    """"cuda" if builds of torch for the CPU do not have the name."""

    @property
    def name(self) -> str:
        """Name in the package: the attribute without leading underscores, unless it has an alias."""
        return self.alias or re.split("[:.]", self.path)[-1].lstrip("_")

    @property
    def public_path(self) -> str:
        """The name as torch's users write it."""
        return self.path.replace(":", ".").rstrip(".")

    @property
    def is_expected_here(self) -> bool:
        """True if this version of torch is known to have the name."""
        here = torch_version()
        if self.build == "cuda" and not torch.backends.cuda.is_built():
            return False
        return parse_version(self.since) <= here and (not self.until or here <= parse_version(self.until))


_EFFECT = re.compile(r"If missing, (.+?)(?: \(([A-Z_]+)\))?:")
_ENTRY = re.compile(r"    (\w+) (\S+)((?: \([^()]*\))*)((?: \w+=\S+)*) -- (.+)")


def read_entries(table: str) -> tuple[Entry, ...]:
    """Return the entries of a table: effects, and below each one the names that have it.

    ::

        If missing, nothing can be traced (COMPILATION):
            class torch._C:_DisableAutocast () -- Runs without autocast.
            function torch:_check (a) (a, b) alias=torch_check -- Traced condition.

    An effect ends with its ``Feature``, unless that is ``CALL``. An entry has its kind, path, calls, other fields of
    ``Entry`` and use. A line indented further continues the one before.
    """
    entries = []
    without, feature = "", ""
    for line in re.sub(r",\n {8}", ",", table.strip()).replace("\n        ", " ").splitlines():
        if effect := _EFFECT.fullmatch(line):
            without, feature = effect.groups(default=Feature.CALL.name)
        elif written := _ENTRY.fullmatch(line):
            kind, path, calls, other, use = written.groups()
            fields: dict[str, Any] = dict(field.split("=") for field in other.split())
            fields |= {name: tuple(fields[name].split(",")) for name in ("members", "elsewhere") if name in fields}
            forms = tuple(re.findall(r"\([^()]*\)", calls))
            entries.append(Entry(path, Kind[kind.upper()], use, without, Feature[feature], forms, **fields))
        else:
            raise ValueError(f"not an entry: {line}")
    return tuple(entries)


def parse_version(text: str) -> tuple[int, ...]:
    """Return major and minor number of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def torch_version() -> tuple[int, ...]:
    """Return major and minor number of the running torch."""
    return parse_version(str(torch.__version__))


class Faults:
    """Entries that this torch does not have as expected, found while they are loaded."""

    entries: dict[str, tuple[Entry, str]]
    """Entries by path, each with a clause that says what is wrong."""

    def __init__(self) -> None:
        self.entries = {}
        self.checked: dict[str, str] = {}
        """Result of the check of each loaded entry: empty, or the fault."""
        self.known = entry_check_cache.read()

    def find(self, entry: Entry, value: Any) -> str:
        """Check the kind and signature of an entry; the result is stored by version of torch."""
        stored = None if self.known is None else self.known.get(entry.path)
        fault = check(entry, value) if stored is None else stored
        self.checked[entry.path] = fault
        return fault


FAULTS = Faults()


def load_into(namespace: dict[str, Any]) -> Callable[[str], tuple[Entry, ...]]:
    """Return a function that binds the entries of a table in the namespace, and returns them."""

    def load(table: str) -> tuple[Entry, ...]:
        entries = read_entries(table)
        namespace.update({entry.name: load_entry(entry) for entry in entries})
        return entries

    return load


def load_lazily_into(namespace: dict[str, Any]) -> Callable[[str], tuple[Entry, ...]]:
    """Return a function like ``load_into`` that binds each entry at its first use.

    For entries whose modules take long to import.
    """

    def load(table: str) -> tuple[Entry, ...]:
        entries = read_entries(table)
        by_name = {entry.name: entry for entry in entries}

        def read(name: str) -> Any:
            if name not in by_name:
                raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
            namespace[name] = load_entry(by_name[name])
            return namespace[name]

        namespace["__getattr__"] = read
        return entries

    return load


def load_entry(entry: Entry) -> Any:
    """Return torch's object, or a placeholder if torch does not have it as expected."""
    fault = "is not there"
    for path in (entry.path, *entry.elsewhere):
        try:
            value = resolve(path)
        except (ImportError, AttributeError):
            continue
        except Exception as error:  # a private module may raise anything when it is imported
            fault = f"raises {type(error).__name__} when it is imported: {error}"
            continue
        fault = FAULTS.find(entry, value)
        if not fault:
            return value
        break
    if entry.is_expected_here:
        FAULTS.entries[entry.path] = (entry, fault)
    return make_placeholder(entry, fault)


def resolve(path: str) -> Any:
    """Return the object at "module:attribute.attribute"."""
    module, _, attributes = path.partition(":")
    value: Any = importlib.import_module(module)
    for name in attributes.split("."):
        value = getattr(value, name) if hasattr(value, name) else importlib.import_module(f"{module}.{name}")
    return value


def check(entry: Entry, value: Any) -> str:
    """Compare an object with its entry; return a clause on the difference, or ""."""
    if not _KIND_TESTS[entry.kind](value):
        return (
            f"is {'a class' if inspect.isclass(value) else f'of type {type(value).__name__}'}, not {entry.kind.value}"
        )
    if entry.calls and (signature := signature_of(value)) is not None:
        for call in entry.calls:
            if not accepts(signature, call):
                return f"has the signature {signature}, which does not take {call}"
    if lacking := [name for name in entry.members if not _has_member(value, name)]:
        return f"has no {', '.join(lacking)}"
    return ""


def _has_member(value: Any, name: str) -> bool:
    """Look for an attribute of an object, or for one that instances of a class have."""
    return hasattr(value, name) or name in getattr(value, "__annotations__", ())


_KIND_TESTS: dict[Kind, Callable[[Any], bool]] = {
    Kind.FUNCTION: lambda value: callable(value) and not inspect.isclass(value),
    Kind.CLASS: inspect.isclass,
    Kind.EXCEPTION: lambda value: inspect.isclass(value) and issubclass(value, BaseException),
    Kind.MODULE: inspect.ismodule,
    Kind.TABLE: lambda value: hasattr(value, "keys"),
    Kind.VALUE: lambda value: value is not None,
}


def signature_of(value: Any) -> inspect.Signature | None:
    """Return the signature of a function or class, or None where C code does not declare one."""
    try:
        return inspect.signature(value)
    except (ValueError, TypeError):
        return _documented_signature(value)


def _documented_signature(value: Any) -> inspect.Signature | None:
    """Return the signature that bindings of C++ write on the first line of a docstring."""
    first = (getattr(value, "__doc__", None) or "").strip().partition("\n")[0]
    written = re.match(r"\w+(\(.*\)) -> ", first)
    if written is None or "*args" in first:
        return None
    flat = written[1]
    while (inner := re.sub(r"\[[^\[\]]*\]|<[^<>]*>|(?<=.)\([^()]*\)(?=.)", "", flat)) != flat:
        flat = inner
    parameters = [
        inspect.Parameter(
            re.sub(r"\W", "", part.partition(":")[0]),
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=None if "=" in part else inspect.Parameter.empty,
        )
        for part in flat[1:-1].split(",")
        if part.strip()
    ]
    return inspect.Signature(parameters)


def accepts(signature: inspect.Signature, call: str) -> bool:
    """Return True if a signature takes a call in the form "(a, b, key=)"."""
    parameters = [name.strip() for name in call.strip("()").split(",") if name.strip()]
    keywords = {name[:-1]: None for name in parameters if name.endswith("=")}
    try:
        signature.bind(*[None] * (len(parameters) - len(keywords)), **keywords)
    except TypeError:
        return False
    return True


# Placeholders.


def make_placeholder(entry: Entry, fault: str) -> Any:
    """Return the placeholder of an entry that this torch does not have."""
    message = f"{entry.public_path} of torch {torch.__version__} {fault}: {entry.without}"
    if entry.kind is Kind.EXCEPTION:
        return type(entry.name, (Exception,), {"__doc__": message, "missing_reason": message})
    if entry.kind is Kind.CLASS:
        return MissingClass(entry.name, (), {"__doc__": message, "missing_reason": message})
    return MissingObject(entry.name, message)


class MissingObject:
    """Placeholder of a function, module, mapping or value."""

    def __init__(self, name: str, missing_reason: str) -> None:
        self.__name__ = self.__qualname__ = name
        self.missing_reason = missing_reason

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MissingObject(f"{self.__name__}.{name}", self.missing_reason)

    def __dir__(self) -> list[str]:
        return []

    def _raise(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise MissingTorchName(self.missing_reason)

    __call__ = __iter__ = __getitem__ = __contains__ = __len__ = __bool__ = __enter__ = __exit__ = __or__ = _raise
    __instancecheck__ = __subclasscheck__ = __int__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = _raise


class MissingClass(type):
    """Metaclass of placeholders of classes."""

    missing_reason: str

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: D102 - instances cannot be made
        raise MissingTorchName(cls.missing_reason)

    def __instancecheck__(cls, instance: Any) -> bool:
        if "missing_reason" in cls.__dict__:
            raise MissingTorchName(cls.missing_reason)
        return False  # a class of the engine that derives from the placeholder has no instances

    def __subclasscheck__(cls, subclass: type) -> bool:
        if "missing_reason" in cls.__dict__ and subclass is not cls:
            raise MissingTorchName(cls.missing_reason)
        return cls in subclass.__mro__

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MissingObject(f"{cls.__name__}.{name}", cls.missing_reason)


def is_available(value: Any) -> bool:
    """Return True if an entry is torch's object, not a placeholder."""
    return "missing_reason" not in getattr(value, "__dict__", {})


# What is off.


def why_off(feature: Feature) -> str:
    """Return why a feature is turned off, or "" if it is not."""
    return next((describe(entry, fault) for entry, fault in FAULTS.entries.values() if entry.off is feature), "")


def require(feature: Feature) -> None:
    """Raise if a feature is turned off.

    Raises:
        MissingTorchName: an entry that the feature needs is missing.
    """
    if reason := why_off(feature):
        raise MissingTorchName(reason)


def describe(entry: Entry, fault: str) -> str:
    """Return a clause about an entry that torch does not have as expected."""
    return f"{entry.public_path} {fault} in torch {torch.__version__}"


def sentence() -> str:
    """Return one sentence on what is turned off, or "" if nothing is."""
    faults = list(FAULTS.entries.values())
    if not faults:
        return ""
    names = ", ".join(f"{entry.public_path} {fault}" for entry, fault in faults[:3])
    more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
    effects = "; ".join(dict.fromkeys(entry.off.value for entry, _ in faults))
    newest = ".".join(map(str, NEWEST_TORCH))
    newer = f", which is newer than the newest tested one ({newest})" if torch_version() > NEWEST_TORCH else ""
    return f"In torch {torch.__version__}{newer}, {names}{more}: {effects}."
