"""Pins and torch's ABI as the wheels' metadata has them."""

from __future__ import annotations

import pytest
from kvpatch.wheel_notes import notes, read_pins
from packaging.version import Version


def metadata(*requirements: str) -> bytes:
    lines = ["Metadata-Version: 2.1", "Name: x", *(f"Requires-Dist: {r}" for r in requirements)]
    return "\n".join(lines).encode() + b"\n\nRequires-Dist: in the description\n"


def told(vllm: list[str], lmcache: list[str], release: str = "0.5.6") -> list[str]:
    pins = read_pins(metadata(*vllm)), read_pins(metadata(*lmcache))
    return list(notes(*pins, Version(release)))


@pytest.mark.parametrize(
    ("pinned", "release", "word"),
    [
        ("torch==2.13.0", "0.5.6", ""),
        ("torch==2.14.0", "0.5.6", "slow Python"),
        ("torch==2.8.0", "0.4.0", ""),
        ("torch==2.9.1", "0.4.0", ""),
        ("torch==2.10.0", "0.4.0", "fails at its import"),
        ("torch==2.10.0", "0.4.3", ""),
        ("torch>=2.6", "0.4.0", ""),
        # Of a release that is newer than the table nothing is claimed.
        ("torch==2.14.0", "0.5.7", ""),
    ],
)
def test_an_extension_that_does_not_load_with_the_pinned_torch_is_told(
    pinned: str, release: str, word: str
) -> None:
    found = told([pinned], ["torch"], release)
    assert bool(found) is bool(word)
    assert word in "".join(found)


@pytest.mark.parametrize(
    ("ours", "theirs", "meet"),
    [
        (">=4.56,<5", ">=5.4", False),
        (">=4.56,<5", ">=4.51.1", True),
        ("<5", "", True),
        ("==1.2.3", ">=1.2,<1.3", True),
        ("==1.2.3", "!=1.2.3", False),
        (">1.2.3", "<1.2.4", True),
        (">=1.2", "<1.2", False),
        ("==2.*", ">=2.5", True),
        ("==2.*", ">=3", False),
    ],
)
def test_pins_that_no_release_meets_are_told(ours: str, theirs: str, meet: bool) -> None:
    found = told([f"transformers{ours}"], [f"transformers{theirs}"])
    assert (found == []) is meet
    if not meet:
        assert "pip can't install both: vLLM wants transformers" in found[0]


def test_extras_other_platforms_and_broken_lines_are_left_out() -> None:
    asked = [
        "a==1; extra == 'x'",
        "b==1; platform_system == 'Darwin'",
        "not a requirement!",
        "C.d==1; python_version >= '3.10'",
    ]
    assert read_pins(metadata(*asked)).asked == {"c-d": "==1"}
    assert read_pins(None).asked == {}
