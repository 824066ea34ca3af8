"""The modules of one package in a source tree, and what a name in them stands for at its end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .digest import sha256
from .reading import Parsed, parse, read_module
from .symbols import ANY, Binding, Class, Function, Module

_T = TypeVar("_T")

_KEPT_TREES = 40


@dataclass
class Facts:
    """Facts of files by the sha256 of their bytes, shared by all trees that are read in one run."""

    modules: dict[str, Module] = field(default_factory=dict)
    _trees: OrderedDict[bytes, Parsed] = field(default_factory=OrderedDict)

    def of(self, content: bytes) -> Module | None:
        """The facts of a file; None where it is not Python that this interpreter can parse."""
        key = sha256(content)
        if key not in self.modules:
            try:
                self.modules[key] = read_module(content, self.parsed)
            except SyntaxError:
                return None
        return self.modules[key]

    def parsed(self, content: bytes) -> Parsed:
        """A file, parsed; those asked for last are kept.

        Raises:
            SyntaxError: as :func:`kvpatch.reading.parse`.
        """
        if content in self._trees:
            self._trees.move_to_end(content)
            return self._trees[content]
        parsed = self._trees[content] = parse(content)
        if len(self._trees) > _KEPT_TREES:
            self._trees.popitem(last=False)
        return parsed


@dataclass(frozen=True)
class Place:
    """Where a name was found: path below the site folder, line, module and name there."""

    path: str
    line: int
    module: str
    name: str


@dataclass
class Codebase:
    """The Python of one package (``vllm`` or ``lmcache``) behind a function that reads a path.

    ``opaque`` says whether a module is an extension or a folder without ``__init__``, of which
    nothing is known but that it is there. ``unread`` collects the files that this interpreter can't
    parse.
    """

    package: str
    read: Callable[[str], bytes | None]
    facts: Facts = field(default_factory=Facts)
    opaque: Callable[[str], bool] = lambda _: False
    unread: list[str] = field(default_factory=list)
    _modules: dict[str, tuple[str, Module] | None] = field(default_factory=dict)
    _resolved: dict[tuple[str, str], Place | None] = field(default_factory=dict)
    _known: dict[Hashable, Any] = field(default_factory=dict)

    def once(self, key: Hashable, find: Callable[[], _T]) -> _T:
        """What ``find`` gives, asked once for this code; it may look at nothing else."""
        if key not in self._known:
            self._known[key] = find()
        found: _T = self._known[key]
        return found

    def owns(self, module: str) -> bool:
        """Whether a module's name lies in this package."""
        return module == self.package or module.startswith(f"{self.package}.")

    def module(self, name: str) -> Module | None:
        """The facts of a module; None where it is not there as source."""
        found = self._found(name)
        return found[1] if found else None

    def path(self, name: str) -> str:
        """The path of a module that is there; else the one that it would have."""
        found = self._found(name)
        return found[0] if found else f"{name.replace('.', '/')}.py"

    def exists(self, name: str) -> bool:
        """Whether a module of that name can be imported, as source or otherwise."""
        return self._found(name) is not None or self.opaque(name)

    def absolute(self, within: str, module: str, level: int) -> str:
        """The full name of a module that ``within`` imports with so many leading dots."""
        if not level:
            return module
        parts = within.split(".")
        if not self.path(within).endswith("/__init__.py"):
            parts = parts[:-1]
        parts = parts[: len(parts) - level + 1]
        return ".".join([*parts, module] if module else parts)

    def resolve(self, module: str, name: str) -> Place | None:
        """What ``from module import name`` gives; None where that fails."""
        key = (module, name)
        if key not in self._resolved:
            # A cycle finds nothing on its way round.
            self._resolved[key] = None
            try:
                self._resolved[key] = self._resolve(module, name)
            except BaseException:
                # A file that can't be read is no answer, neither to this pair nor to the next.
                del self._resolved[key]
                raise
        return self._resolved[key]

    def follow(self, within: str, name: str, *, typing: bool = False) -> Place | None:
        """What a dotted name inside a module stands for, if it is something of this package."""
        head, _, rest = name.partition(".")
        facts = self.module(within)
        if facts is None:
            return None
        bound = facts.bindings.get(head)
        if bound is None and typing:
            bound = facts.typing.get(head)
        if bound is None:
            return None
        if bound.module is None:
            return Place(self.path(within), bound.line, within, name)
        return self._followed(within, bound, rest)

    def members(self, place: Place) -> Mapping[str, Place] | None:
        """The attributes of a class through its bases; None where a base is not to be seen."""
        key = ("members", place.module, place.name)
        return self.once(key, lambda: self._members(place, frozenset()))

    def lineage(self, place: Place) -> frozenset[tuple[str, str]]:
        """Module and name of a class and of its bases, as far as they are to be seen."""
        return self.once(("lineage", place.module, place.name), lambda: self._lineage(place))

    def class_at(self, place: Place) -> Class | None:
        """The class that a place names."""
        facts = self.module(place.module)
        return facts.classes.get(place.name) if facts else None

    def function_at(self, place: Place) -> Function | None:
        """The function that a place names; of a class its constructor, through its bases."""
        facts = self.module(place.module)
        if facts is None:
            return None
        if place.name in facts.functions:
            return facts.functions[place.name]
        if place.name in facts.classes:
            members = self.members(place)
            maker = members.get("__init__") if members else None
            return self.function_at(maker) if maker and maker != place else None
        return None

    def _found(self, name: str) -> tuple[str, Module] | None:
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> tuple[str, Module] | None:
        if not self.owns(name):
            return None
        base = name.replace(".", "/")
        for path in (f"{base}/__init__.py", f"{base}.py"):
            content = self.read(path)
            if content is None:
                continue
            facts = self.facts.of(content)
            if facts is None:
                self.unread.append(path)
                facts = Module(forwarded=(ANY,))
            return path, facts
        return None

    def _resolve(self, module: str, name: str) -> Place | None:
        facts = self.module(module)
        if facts is None:
            return Place(self.path(module), 1, module, name) if self.opaque(module) else None
        bound = facts.bindings.get(name)
        if bound is not None:
            if bound.module is None:
                return Place(self.path(module), bound.line, module, name)
            found = self._followed(module, bound, "")
            if found is not None:
                return found
        for star in facts.stars:
            target = self.absolute(module, star.module, star.level)
            if not self.owns(target):
                return Place(self.path(module), star.line, module, name)
            if not name.startswith("_") and (found := self.resolve(target, name)) is not None:
                return found
        inner = f"{module}.{name}"
        if self.exists(inner):
            return Place(self.path(inner), 1, inner, "")
        if name in facts.forwarded or ANY in facts.forwarded:
            return Place(self.path(module), 1, module, name)
        return None

    def _followed(self, within: str, bound: Binding, rest: str) -> Place | None:
        target = self.absolute(within, bound.module or "", bound.level)
        if not self.owns(target):
            # Another distribution's: taken to be there.
            name = ".".join(filter(None, (bound.name, rest)))
            return Place(self.path(within), bound.line, target, name)
        place: Place | None
        if bound.name is None:
            place = Place(self.path(target), 1, target, "") if self.exists(target) else None
        else:
            place = self.resolve(target, bound.name)
        for part in filter(None, rest.split(".")):
            if place is None:
                return None
            if place.name:
                place = Place(place.path, place.line, place.module, f"{place.name}.{part}")
            else:
                place = self.resolve(place.module, part)
        return place

    def _lineage(self, place: Place) -> frozenset[tuple[str, str]]:
        found: dict[tuple[str, str], None] = {}
        waiting: list[Place | None] = [place]
        while waiting:
            one = waiting.pop()
            key = (one.module, one.name) if one else ("", "")
            facts = self.class_at(one) if one and key not in found else None
            if one is not None and facts is not None:
                found[key] = None
                waiting += [self.follow(one.module, base) for base in facts.bases]
        return frozenset(found)

    def _members(self, place: Place, seen: frozenset[Place]) -> Mapping[str, Place] | None:
        found = self.class_at(place)
        if found is None or place in seen:
            return None
        members: dict[str, Place] = {}
        for base in reversed(found.bases):
            name = base.rpartition(".")[2]
            if name in _PLAIN_BASES:
                continue
            target = self.follow(place.module, base)
            inherited = self._members(target, seen | {place}) if target else None
            if inherited is None:
                if target is not None and not self.owns(target.module):
                    members["*"] = target
                    continue
                return None
            members.update(inherited)
        for name, line in found.members.items():
            members[name] = Place(place.path, line, place.module, f"{place.name}.{name}")
        return members


_PLAIN_BASES = frozenset({"object", "ABC", "Protocol", "Generic", "NamedTuple"})
