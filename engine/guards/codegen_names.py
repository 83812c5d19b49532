"""Names in generated checks: parameters, locals for shared prefixes, constants."""

from __future__ import annotations

import keyword
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from engine.ir.sources.attributes import InstanceDictGetSource, ModuleHooksSource, ModuleMemberSource
from engine.ir.sources.base import MISSING, Source

CELLS_PARAM = "__cells__"
"""Name of the check's first parameter: the closure cells of the called function."""


class CheckNames:
    """Allocates unique names and owns the namespace of the generated code."""

    def __init__(self, parameters: tuple[str, ...]) -> None:
        self.namespace: dict[str, Any] = {}
        self._taken: set[str] = {CELLS_PARAM, *keyword.kwlist}
        self._next: defaultdict[str, int] = defaultdict(int)
        self._by_id: dict[int, str] = {}
        self.parameters: dict[str, str] = {}
        for parameter in parameters:
            self.parameters[parameter] = self.fresh(parameter if parameter.isidentifier() else "argument")

    def fresh(self, preferred: str) -> str:
        """Return ``preferred``, with a numeric suffix if the name is taken."""
        name = preferred
        while name in self._taken:
            self._next[preferred] += 1
            name = f"{preferred}_{self._next[preferred]}"
        self._taken.add(name)
        return name

    def const(self, held: object, preferred: str) -> str:
        """Return the name of an object in the namespace (a ``ConstName``); one name per object.

        ``preferred`` may come from user code and be no identifier: then the name says nothing.
        """
        name = self._by_id.get(id(held))
        if name is None:
            name = self._by_id[id(held)] = self.fresh(preferred if preferred.isidentifier() else "held")
            self.namespace[name] = held
        return name


class SourceReads:
    """Code that reads sources; a source that is read more than once is stored in a local."""

    def __init__(self, names: CheckNames, origins: Iterable[Source]) -> None:
        self._names = names
        self._texts: dict[Source, str] = {}
        self._uses: Counter[Source] = Counter()
        self._dicts: dict[Source, str] = {}
        self._local_names = (f"_{i}" for i in range(1, 10_000_000))
        seen: set[Source] = set()
        for origin in origins:
            self._uses[origin] += 1
            _count_parents(origin, seen, self._uses)

    def text(self, origin: Source, lines: list[str]) -> str:
        """Return code that reads the source; append the assignments that it needs to ``lines``."""
        text = self._texts.get(origin)
        if text is not None:
            return text
        for link in self._links_without_text(origin):
            self._texts[link] = self._read(link, lines)
        return self._texts[origin]

    def _links_without_text(self, origin: Source) -> list[Source]:
        """Return the links of the chain that have no code yet, outermost first."""
        links: list[Source] = []
        link: Source | None = origin
        while link is not None and link not in self._texts:
            links.append(link)
            link = link.parent
        return links[::-1]

    def set_text(self, origin: Source, text: str) -> None:
        """Declare that ``text`` reads the source."""
        self._texts[origin] = text

    def _read(self, origin: Source, lines: list[str]) -> str:
        if origin.parameter_name:
            return self._names.parameters[origin.parameter_name]
        text = self._read_module_dict(origin, lines)
        if not text:
            base = "" if origin.parent is None else self._texts[origin.parent]
            text = origin.code(base, self._names.const)
        if self._uses[origin] < 2 or text.isidentifier():
            return text
        local = self._names.fresh(next(self._local_names))
        lines.append(f"{local} = {text}")
        return local

    def _read_module_dict(self, origin: Source, lines: list[str]) -> str:
        """Return code that reads module tables through the module's ``__dict__``, or "".

        The ``__dict__`` is read once. Attribute access is slow on a class with ``__getattr__``.
        """
        if not isinstance(origin, (ModuleMemberSource, ModuleHooksSource, InstanceDictGetSource)):
            return ""
        space = self._dicts.get(origin.base)
        if space is None:
            space = self._dicts[origin.base] = self._names.fresh(f"{next(self._local_names)}_dict")
            lines.append(f"{space} = {self._texts[origin.base]}.__dict__")
        if isinstance(origin, ModuleMemberSource):
            return f"{space}[{origin.table!r}][{origin.member_name!r}]"
        if isinstance(origin, InstanceDictGetSource):
            return f"{space}.get({origin.attribute!r}, {self._names.const(MISSING, 'MISSING')})"
        return "(" + " or ".join(f"{space}[{table!r}]" for table in ModuleHooksSource.TABLES) + ")"


def _count_parents(origin: Source, seen: set[Source], uses: Counter[Source]) -> None:
    while origin not in seen:
        seen.add(origin)
        parent = origin.parent
        if parent is None:
            return
        uses[parent] += 1
        origin = parent
