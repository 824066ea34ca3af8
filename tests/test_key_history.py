"""In which releases keys are known, against the sources of all of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from kvpatch import key_history
from kvpatch.key_history import RENAMED, build, load, nearest, variables_in
from kvpatch.schema import EXTRA, Key, Schema
from kvpatch.schema_source import parse_schema
from lmcache_config import schema_of
from packaging.version import Version
from releases import lmcache_releases, release_file, variables_of

RELEASES = [one.version for one in lmcache_releases() if ".dev" not in one.version]


@cache
def schemas() -> dict[str, Schema]:
    return {release: schema_of(release) for release in RELEASES}


@pytest.mark.releases
def test_what_came_with_kvpatch_is_what_the_sources_say() -> None:
    kept = load()
    # A release that is newer than this kvpatch is not in it.
    assert set(kept.releases) <= set(RELEASES)
    assert len(kept.releases) >= 54
    for name, spans in kept.spans.items():
        for release in kept.releases:
            inside = any(
                Version(first) <= Version(release) <= Version(last or "99") for first, last in spans
            )
            assert schemas()[release].has(name) is inside, (name, release)


@pytest.mark.releases
def test_making_it_anew_from_the_same_releases_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = load()
    old = parse_schema(release_file("lmcache", "0.3.3", "lmcache/config.py"), "0.3.3")
    variables = {one: variables_of(one) for one in kept.releases}
    made = build({one: schemas()[one] for one in kept.releases}, sorted(old.keys), variables)
    (tmp_path / "lmcache_keys.json").write_text(made)
    monkeypatch.setattr(key_history, "__file__", str(tmp_path / "key_history.py"))
    assert vars(load()) == vars(kept)


@pytest.mark.releases
@pytest.mark.parametrize(("old", "new"), sorted(RENAMED.items()))
def test_a_renamed_key_goes_where_its_new_name_comes(old: str, new: str) -> None:
    history = load()
    if old in history.first_line:
        assert history.spans[new][0][0] == "0.3.3"
        return
    _, gone = history.spans[old][-1]
    came = history.spans[new][0][0]
    assert gone is not None
    # At once, or with one release that has both.
    later = [one for one in history.releases if Version(one) > Version(gone)]
    assert Version(came) <= Version(later[0])
    assert not schemas()[later[0]].has(old)
    assert schemas()[later[0]].has(new)


def schema(release: str, *names: str, extra: tuple[str, ...] = ()) -> Schema:
    keys = {name: Key(name, "int", 1, "int") for name in (*names, EXTRA)}
    return Schema(release, keys, frozenset(extra))


def test_a_name_is_followed_forwards_and_backwards() -> None:
    history = load()
    new = history.renaming("cufile_buffer_size", schema("0.5.6", "gds_buffer_size"))
    assert new is not None
    assert (new.name, new.since) == ("gds_buffer_size", "0.4.4")
    back = history.renaming("gds_buffer_size", schema("0.4.3", "cufile_buffer_size"))
    assert back is not None
    assert (back.name, back.since) == ("cufile_buffer_size", "0.4.4")
    assert history.renaming("chunk_size", schema("0.5.6", "chunk_size")) is None


def test_the_releases_of_a_key_are_told_in_words() -> None:
    history = load()
    assert history.told("weka_path") == "LMCache 0.3.3 to 0.3.11"
    assert history.told("use_gds") == "LMCache from 0.4.4 on"
    assert history.told("local_device") == "the configuration before lmcache.v1"
    assert history.told("nothing") == ""


def test_variables_are_texts_of_their_own_in_the_code() -> None:
    source = b'''"""LMCACHE_IN_WORDS counts not, and a comment neither."""
# LMCACHE_COMMENT
HOST = os.environ.get("LMCACHE_RESP_HOST", "")
_PREFIX = "LMCACHE_CONTROLLER_"
name = f"LMCACHE_{key}"
'''
    assert variables_in(source) == {"LMCACHE_RESP_HOST", "LMCACHE_CONTROLLER_"}
    assert variables_in(b"chunk_size = 256") == frozenset()


def test_a_variable_is_known_from_the_release_that_brought_it_to_the_last_one() -> None:
    history = load()
    assert "LMCACHE_RESP_HOST" not in history.variables_of(Version("0.4.2"))
    assert "LMCACHE_RESP_HOST" in history.variables_of(Version("0.4.3"))
    assert "LMCACHE_RESP_HOST" in history.variables_of(Version("0.9"))
    assert "LMCACHE_BLEND_MODEL_NAME" in history.variables_of(Version("0.4.2"))
    assert "LMCACHE_BLEND_MODEL_NAME" not in history.variables_of(Version("0.4.3"))


def test_the_nearest_name_is_near() -> None:
    assert nearest("chunk_sizes", ["chunk_size", "gds_path"]) == "chunk_size"
    assert nearest("nothing_like_it", ["chunk_size", "gds_path"]) is None
