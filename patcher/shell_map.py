"""A table of names whose copies share all that neither of them changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_PARTS = 128


class SharedMap(Generic[_Item]):
    """Names with what belongs to each; a copy costs the same however many there are."""

    __slots__ = ("_own", "_parts")

    def __init__(self, items: Mapping[str, _Item] | None = None) -> None:
        self._parts: list[dict[str, _Item]] = [{}] * _PARTS
        # Places of the parts that no other one has; None where not even the list is its own.
        self._own: set[int] | None = set()
        for name, item in (items or {}).items():
            self[name] = item

    def copy(self) -> SharedMap[_Item]:
        """Another that may go on otherwise."""
        found = SharedMap.__new__(SharedMap)
        found._parts, found._own, self._own = self._parts, None, None
        return found

    def get(self, name: str) -> _Item | None:
        """What belongs to a name; None where it is not there."""
        return self._parts[hash(name) % _PARTS].get(name)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __setitem__(self, name: str, item: _Item) -> None:
        place = hash(name) % _PARTS
        if self._own is None:
            self._parts, self._own = self._parts.copy(), set()
        if place not in self._own:
            self._parts[place] = dict(self._parts[place])
            self._own.add(place)
        self._parts[place][name] = item

    def items(self) -> Iterator[tuple[str, _Item]]:
        """All of them, in no order."""
        return (pair for part in self._parts for pair in part.items())

    def same(self, other: SharedMap[_Item]) -> bool:
        """Whether both hold the same."""
        return self._parts is other._parts or all(
            a is b or a == b for a, b in zip(self._parts, other._parts, strict=True)
        )

    def met(
        self,
        other: SharedMap[_Item],
        both: Callable[[str, _Item | None, _Item | None], _Item],
    ) -> SharedMap[_Item]:
        """What is left of two; ``both`` is asked where one of them may have changed a name."""
        found = self.copy()
        if self._parts is other._parts:
            return found
        found._parts, found._own = self._parts.copy(), set()
        for place, (a, b) in enumerate(zip(self._parts, other._parts, strict=True)):
            if a is not b:
                found._own.add(place)
                found._parts[place] = {
                    name: both(name, a.get(name), b.get(name)) for name in {**a, **b}
                }
        return found
