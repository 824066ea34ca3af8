"""The functions of a package that run when others do, as far as its text tells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .codebase import Codebase, Place
from .symbols import Call, Choice, Function, Import, Step


@dataclass(frozen=True, eq=False)
class Reached:
    """A function that is run: its module, its dotted name there, and its facts."""

    module: str
    name: str
    function: Function


def reached(
    own: Codebase, start: Sequence[Place], *, unless: str | None = None
) -> Sequence[Reached]:
    """The functions of a package that run when those of ``start`` do, each once.

    Only calls whose target can be told are followed: names, ``self``'s own methods, constructors,
    and methods of what a parameter's annotation says, in the classes that are built on the way.
    Those under a test that is not :func:`usual`, or that has ``unless`` in it, are not.
    """
    key = ("reached", tuple((place.module, place.name) for place in start), unless)
    return own.once(key, lambda: tuple(_reached(own, start, unless)))


def _reached(own: Codebase, start: Sequence[Place], unless: str | None) -> Iterator[Reached]:
    waiting = list(start)
    seen: set[tuple[str, str]] = set()
    given = _Given(own)
    while waiting:
        place = waiting.pop(0)
        found = _function(own, place)
        if found is None or (found.module, found.name) in seen:
            continue
        seen.add((found.module, found.name))
        yield found
        for call in found.function.calls:
            if not all(usual(test) and not (unless and unless in test) for test in call.when):
                continue
            target = called(own, found, call)
            if target is None:
                waiting += given.asked(found, call)
            elif own.owns(target.module):
                waiting += [target, *given.built(target)]


class _Given:
    """What is asked of parameters by their annotations, and the classes built that answer it."""

    def __init__(self, own: Codebase) -> None:
        self._own = own
        self._asked: dict[tuple[str, str], set[str]] = {}
        self._built: dict[tuple[str, str], Place] = {}

    def asked(self, by: Reached, call: Call) -> list[Place]:
        """The methods that a call of a parameter's method runs, of the classes built so far."""
        head, _, method = call.callee.partition(".")
        kind = plain_name(by.function.annotations.get(head, "")) if method else ""
        target = self._own.follow(by.module, kind, typing=True) if kind else None
        if target is None or "." in method or self._own.class_at(target) is None:
            return []
        key = target.module, target.name
        asked = self._asked.setdefault(key, set())
        if method in asked:
            return []
        asked.add(method)
        answers = (self._answers(one, key, method) for one in self._built.values())
        return [place for place in answers if place is not None]

    def built(self, target: Place) -> list[Place]:
        """The methods asked for so far that run in a class once it is built."""
        key = target.module, target.name
        if key in self._built or self._own.class_at(target) is None:
            return []
        self._built[key] = target
        answers = (
            self._answers(target, kind, method)
            for kind, methods in self._asked.items()
            for method in sorted(methods)
        )
        return [place for place in answers if place is not None]

    def _answers(self, one: Place, kind: tuple[str, str], method: str) -> Place | None:
        if kind not in self._own.lineage(one):
            return None
        return (self._own.members(one) or {}).get(method)


@lru_cache(maxsize=4096)
def plain_name(annotation: str) -> str:
    """The dotted name that an annotation is, or that it allows beside None; empty for others."""
    text = annotation.strip().strip("\"'")
    optional = re.fullmatch(r"Optional\[(.+)\]", text) or re.fullmatch(r"(.+) \| None", text)
    text = optional.group(1).strip("\"'") if optional else text
    return text if re.fullmatch(r"[A-Za-z_][\w.]*", text) else ""


@lru_cache(maxsize=4096)
def usual(test: str) -> bool:
    """Whether a test is one that blending passes: no optional feature of the configuration."""
    test = _NEGATED.sub("", test)
    if _ELSEWHERE.search(test):
        return False
    return all(name in _BLENDING for name in _SETTING.findall(test))


_SETTING = re.compile(r"config\.(\w+)")
_NEGATED = re.compile(r"\bnot [\w.]+(\(\))?")
_ELSEWHERE = re.compile(r"sparse|rocm|\bhip\b|xpu|mla\b|native", re.IGNORECASE)
_BLENDING = frozenset({"enable_blending", "use_layerwise", "extra_config", "chunk_size"})


def called(own: Codebase, by: Reached, call: Call) -> Place | None:
    """What a call calls, as far as that can be told; of another package its module and name."""
    key = ("called", by.module, by.name, call.callee)
    return own.once(key, lambda: _called(own, by, call))


def _called(own: Codebase, by: Reached, call: Call) -> Place | None:
    head, _, rest = call.callee.partition(".")
    owner = by.name.rpartition(".")[0]
    if head in ("self", "cls") and owner:
        place = Place(own.path(by.module), 0, by.module, owner)
        if head == "cls" and not rest:
            return place
        members = own.members(place)
        return members.get(rest) if members and "." not in rest else None
    for step in imports_in(by.function.steps):
        target = own.absolute(by.module, step.module, step.level)
        for name, bound in step.names:
            if bound == head:
                if not own.owns(target):
                    return Place("", step.line, target, ".".join(filter(None, (name, rest))))
                place_ = own.resolve(target, name)
                return _below(place_, rest)
    return own.follow(by.module, call.callee)


def _below(place: Place | None, rest: str) -> Place | None:
    if place is None or not rest:
        return place
    return Place(place.path, place.line, place.module, ".".join(filter(None, (place.name, rest))))


def _function(own: Codebase, place: Place) -> Reached | None:
    facts = own.module(place.module)
    if facts is None:
        return None
    if place.name in facts.functions:
        return Reached(place.module, place.name, facts.functions[place.name])
    if place.name in facts.classes:
        maker = (own.members(place) or {}).get("__init__")
        return _function(own, maker) if maker is not None else None
    owner, _, method = place.name.rpartition(".")
    if owner in facts.classes:
        inherited = (own.members(Place(place.path, 0, place.module, owner)) or {}).get(method)
        if inherited is not None and inherited != place:
            return _function(own, inherited)
    return None


def imports_in(steps: Sequence[Step]) -> Iterator[Import]:
    """Every import of these steps, whichever way they go."""
    for step in steps:
        if isinstance(step, Import):
            yield step
        elif isinstance(step, Choice):
            for way in step.ways:
                yield from imports_in(way)
