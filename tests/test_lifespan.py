"""Which releases have something."""

from __future__ import annotations

import pytest
from kvpatch.lifespan import lives
from packaging.version import Version

ONE, TWO = Version("1.0"), Version("2.0")


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, [True, True, True]),
        (ONE, None, [False, True, True]),
        (None, TWO, [True, True, False]),
        (ONE, TWO, [False, True, False]),
    ],
)
def test_it_is_there_from_one_release_until_before_the_other(
    since: Version | None, until: Version | None, expected: list[bool]
) -> None:
    assert [lives((since, until), release) for release in (Version("0.9"), ONE, TWO)] == expected
