"""What running a piece of code imports, and the first of it that fails against another package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from .codebase import Codebase
from .reach import Reached, imports_in, usual
from .symbols import Choice, Dead, Import, Step


@dataclass(frozen=True)
class Failure:
    """An import, a call or an attribute that does not work out: where it stands, and why."""

    path: str
    line: int
    module: str
    name: str
    why: str


Ask = tuple[str, str]
"""A module, and a name to be imported from it; no name for the module alone."""


@dataclass
class Pair:
    """Code of one package that imports another, with what was already found out about loading it.

    Where it is not ``deep``, what ``own`` imports of itself is taken to load.
    """

    own: Codebase
    other: Codebase
    deep: bool = True
    _loading: dict[str, Failure | None] = field(default_factory=dict)

    def load(self, module: str) -> Failure | None:
        """The first import that fails when a module of ``own`` is loaded, None if all work."""
        asks = self.own.once(("asks", module), lambda: self._asks_of(module))
        key = ("loaded", module, self._unmet(asks))
        return self.own.once(key, lambda: self._loaded(module))

    def start(self, item: Reached) -> Failure | None:
        """The first import inside a function of ``own`` that fails when it runs."""
        steps = item.function.steps
        if not steps:
            return None
        found = ("ran", item.module, item.name, self._unmet(self.asks(item)))
        return self.own.once(found, lambda: self.run(item.module, steps))

    def asks(self, item: Reached) -> tuple[Ask, ...]:
        """All that the imports inside a function of ``own`` may ask of the other package."""
        key = ("asks", item.module, item.name)
        return self.own.once(key, lambda: self._asks_in(item.module, item.function.steps))

    def run(self, within: str, steps: Sequence[Step]) -> Failure | None:
        """The first import of these steps that fails, with the modules of ``own`` they load."""
        for step in steps:
            failure = self._step(within, step)
            if failure is not None:
                return failure
        return None

    def outside(self, module: str) -> frozenset[str]:
        """The top names of what loading a module of ``own`` may import that is neither package."""
        return frozenset(
            name.partition(".")[0]
            for name, _ in self._imported(module, (Import(0, module, 0),))
            if not self.own.owns(name) and not self.other.owns(name)
        )

    def _unmet(self, asks: Sequence[Ask]) -> tuple[tuple[Ask, str], ...]:
        """What the other package can't answer: all that loading depends on, beside ``own``."""
        answers = [(ask, self._refusal(*ask)) for ask in asks]
        return tuple((ask, why) for ask, why in answers if why is not None)

    def _refusal(self, module: str, name: str) -> str | None:
        """Why ``from module import name`` fails on the other package; no name, the module alone."""
        return self.other.once(("refusal", module, name), lambda: self._refused(module, name))

    def _refused(self, module: str, name: str) -> str | None:
        for part in _parents(module):
            if not self.other.exists(part):
                return f"there is no module {part}"
        if name and self.other.resolve(module, name) is None:
            return f"{module} has no {name}"
        return None

    def _asks_of(self, module: str) -> tuple[Ask, ...]:
        return self._asks_in(module, (Import(0, module, 0),))

    def _asks_in(self, within: str, steps: Sequence[Step]) -> tuple[Ask, ...]:
        """All that these steps, and the modules they load, may ask of the other package."""
        found: dict[Ask, None] = {}
        for module, step in self._imported(within, steps):
            if self.other.owns(module):
                found.update(((module, name), None) for name, _ in step.names if name != "*")
                found[module, ""] = None
        return tuple(sorted(found))

    def _imported(self, within: str, steps: Sequence[Step]) -> Iterator[tuple[str, Import]]:
        """Each import of these steps and of the modules of ``own`` they load, by full name."""
        seen: set[str] = set()
        waiting = [(within, step) for step in imports_in(steps)]
        while waiting:
            here, step = waiting.pop()
            module = self.own.absolute(here, step.module, step.level)
            yield module, step
            if not self.own.owns(module):
                continue
            for name in (*_parents(module), *(f"{module}.{name}" for name, _ in step.names)):
                facts = None if name in seen else self.own.module(name)
                seen.add(name)
                if facts is not None:
                    waiting += [(name, inner) for inner in imports_in(facts.steps)]

    def _loaded(self, module: str) -> Failure | None:
        if module not in self._loading:
            # A module that is being loaded is there for those it imports.
            self._loading[module] = None
            try:
                self._loading[module] = self._load(module)
            except BaseException:
                del self._loading[module]
                raise
        return self._loading[module]

    def _load(self, module: str) -> Failure | None:
        facts = self.own.module(module)
        if facts is None:
            return None
        key = ("steps", module, self.other.package)
        return self.run(module, self.own.once(key, lambda: self._ours(module, facts.steps)))

    def _ours(self, within: str, steps: Sequence[Step]) -> tuple[Step, ...]:
        """The steps without the imports of what is neither package."""
        kept: list[Step] = []
        for step in steps:
            if isinstance(step, Import):
                module = self.own.absolute(within, step.module, step.level)
                if self.own.owns(module) or self.other.owns(module):
                    kept.append(step)
            elif isinstance(step, Choice):
                ways = tuple(self._ours(within, way) for way in step.ways)
                kept.append(Choice(ways, step.tests))
            else:
                kept.append(step)
        return tuple(kept)

    def _step(self, within: str, step: Step) -> Failure | None:
        if isinstance(step, Dead):
            return Failure(self.own.path(within), step.line, "", "", "gives up")
        if isinstance(step, Choice):
            failures = []
            tests = step.tests or ("",) * len(step.ways)
            for way, test in zip(step.ways, tests, strict=True):
                if not usual(test):
                    continue
                failure = self.run(within, way)
                if failure is None:
                    return None
                failures.append(failure)
            # The last of an except chain is a raise, the first says what is missing.
            return failures[0] if failures else None
        return self._import(within, step)

    def _import(self, within: str, step: Import) -> Failure | None:
        path = self.own.path(within)
        module = self.own.absolute(within, step.module, step.level)
        if self.other.owns(module):
            return self._from_other(path, step, module)
        if not self.own.owns(module) or not self.deep:
            return None
        for part in _parents(module):
            if not self.own.exists(part):
                return Failure(path, step.line, module, "", f"there is no module {part}")
            failure = self._loaded(part)
            if failure is not None:
                return failure
        for name, _ in step.names:
            inner = f"{module}.{name}"
            if name != "*" and self.own.resolve(module, name) is None:
                return Failure(path, step.line, module, name, f"{module} has no {name}")
            if self.own.module(inner) is not None and (failure := self._loaded(inner)) is not None:
                return failure
        return None

    def _from_other(self, path: str, step: Import, module: str) -> Failure | None:
        for name in ("", *(name for name, _ in step.names if name != "*")):
            why = self._refusal(module, name)
            if why is not None:
                return Failure(path, step.line, module, name, why)
        return None


@lru_cache(maxsize=4096)
def _parents(module: str) -> tuple[str, ...]:
    parts = module.split(".")
    return tuple(".".join(parts[:end]) for end in range(1, len(parts) + 1))
