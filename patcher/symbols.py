"""Facts of one Python file: what it defines, imports, calls and reads, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ANY = "*"
"""In ``forwarded``: the module's ``__getattr__`` may answer any name."""


@dataclass(frozen=True)
class Import:
    """One import statement. ``level`` counts its dots.

    ``names`` are pairs (name, bound as), none for ``import a.b``; ``bound`` is the name that the
    latter binds.
    """

    line: int
    module: str
    level: int
    names: tuple[tuple[str, str], ...] = ()
    bound: str = ""


@dataclass(frozen=True)
class Choice:
    """Ways of which one has to work: a try with its handlers, or the branches of an if.

    ``tests`` are those that lead to each way of an if, empty for its else.
    """

    ways: tuple[tuple[Step, ...], ...]
    tests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dead:
    """A handler or a branch that raises: no way out."""

    line: int


Step = Import | Choice | Dead


@dataclass(frozen=True)
class Binding:
    """What a name at module level stands for; ``module`` is None for what is defined there."""

    line: int
    module: str | None = None
    level: int = 0
    name: str | None = None


@dataclass(frozen=True)
class Signature:
    """How a function may be called; ``self`` is among ``positional`` of a method."""

    positional: tuple[str, ...]
    defaults: int
    keywords: tuple[str, ...]
    required_keywords: tuple[str, ...]
    more_positional: bool
    more_keywords: bool

    def refuses(self, call: Call, *, bound: bool = False) -> str | None:
        """Why a call does not fit, as the end of a sentence; None where it fits or can't be told.

        Args:
            call: the call.
            bound: whether the first parameter is filled in already, as in a method.
        """
        if call.spread:
            return None
        names = self.positional[1:] if bound else self.positional
        if call.positional > len(names) and not self.more_positional:
            return f"takes {len(names)} positional arguments, and gets {call.positional}"
        for given_name, name in zip(call.arguments, names, strict=False):
            if given_name != name and given_name in names:
                return f"takes {name} where it gets {given_name}"
        taken = set(names[: call.positional])
        for word in call.keywords:
            if word not in (*names, *self.keywords) and not self.more_keywords:
                return f"has no parameter {word}"
            if word in taken:
                return f"gets {word} twice"
        given = taken.union(call.keywords)
        required = [*names[: max(len(names) - self.defaults, 0)], *self.required_keywords]
        missing = [name for name in required if name not in given]
        return f"needs {', '.join(missing)}" if missing else None


@dataclass(frozen=True)
class Call:
    """A call: the dotted name that is called, how many positionals, which keywords.

    ``arguments`` are the names of the positional ones, empty for what is no name. ``when`` are the
    tests of the ifs that it stands under, those of an else left out.
    """

    line: int
    callee: str
    positional: int
    keywords: tuple[str, ...]
    spread: bool
    arguments: tuple[str, ...] = ()
    when: tuple[str, ...] = ()


@dataclass(frozen=True)
class Read:
    """An attribute that is read: of what (dotted), which, and whether its absence is coped with."""

    line: int
    owner: str
    name: str
    guarded: bool


@dataclass(frozen=True)
class Function:
    """One function or method, what lies inside it included."""

    line: int
    signature: Signature
    annotations: Mapping[str, str]
    steps: tuple[Step, ...]
    calls: tuple[Call, ...]
    reads: tuple[Read, ...]
    returns: tuple[str, ...]


@dataclass(frozen=True)
class Class:
    """One class: the names of its bases, and the attributes its own body and methods give it."""

    line: int
    bases: tuple[str, ...]
    members: Mapping[str, int]


@dataclass(frozen=True)
class Module:
    """One file. ``typing`` are the names that exist for type checkers alone, ``words`` the strings
    in the literal collections of its constants.
    """

    steps: tuple[Step, ...] = ()
    bindings: Mapping[str, Binding] = field(default_factory=dict)
    typing: Mapping[str, Binding] = field(default_factory=dict)
    stars: tuple[Import, ...] = ()
    forwarded: tuple[str, ...] = ()
    classes: Mapping[str, Class] = field(default_factory=dict)
    functions: Mapping[str, Function] = field(default_factory=dict)
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
