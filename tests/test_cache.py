"""Where kvpatch keeps what it has read."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvpatch.cache import default_cache


@pytest.mark.parametrize(("base", "expected"), [("/x", "/x/kvpatch"), ("rel", None), ("", None)])
def test_an_absolute_xdg_folder_counts_and_else_the_home(
    base: str, expected: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == (Path(expected) if expected else tmp_path / ".cache" / "kvpatch")
