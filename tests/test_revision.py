"""The number of the series: as committed, and the next one when a patch changes."""

from __future__ import annotations

import json
from pathlib import Path

import kvpatch
import pytest
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.revision import number, renumbered
from kvpatch.series import Series, discover
from planning import chosen

TEXT = (Path(str(kvpatch.__file__)).parent / "revision.json").read_text()


def test_the_series_that_is_shipped_has_its_number() -> None:
    """Where this fails, a patch was changed: run ``make generate``."""
    assert number(discover()) == json.loads(TEXT)["revision"] >= 1


def test_the_same_series_keeps_its_number() -> None:
    assert renumbered(TEXT, discover()) == TEXT


def test_another_series_gets_the_next_number() -> None:
    other = chosen(["KV001"])
    data = json.loads(renumbered(TEXT, other))
    assert data == {"revision": json.loads(TEXT)["revision"] + 1, "series": other.digest}


def test_a_series_that_was_not_numbered_has_no_number() -> None:
    with pytest.raises(KvpatchError) as caught:
        number(Series(()))
    assert (caught.value.code, caught.value.exit_code) == ("unnumbered", ExitCode.BUG)
