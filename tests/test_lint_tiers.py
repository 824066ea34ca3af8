"""Rules about where chunks are kept, on real releases and against their source."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from kvpatch import rules
from kvpatch.lint_tiers import BACKENDS, ONE_PLACE, PLUGIN_PLACES, WITHOUT_POSITIONS
from kvpatch.rules import Level
from linted import BLEND, ids, only, run, schema
from packaging.version import Version
from releases import lmcache_releases, release_file, whole_release

pytestmark = pytest.mark.releases

RELEASES = [str(one) for one in lmcache_releases()]
STORAGE = "storage_backend/"
FS = "remote_url: fs://host:0/tmp/x\n"
DISK = "local_disk: /x/\nmax_local_disk_size: 5\n"
CPU_OFF = "local_cpu: false\n"


@cache
def files(release: str, part: str) -> dict[str, str]:
    """The files of a release below ``lmcache`` whose path has that at its end, or as a folder."""
    wheel = whole_release("lmcache", release)
    # The server's own tiers stand elsewhere.
    there = [
        path
        for path in wheel.entries
        if path.endswith(".py")
        and re.fullmatch(r"lmcache/(v1|inprocess)/.*", path)
        and f"/{part}" in path
        and "/distributed/" not in path
    ]
    wheel.prefetch(there)
    return {path: (wheel.read(path) or b"").decode() for path in there}


def engine(release: str) -> str:
    """The text of the release's cache engine."""
    (text,) = [
        text
        for path, text in files(release, "cache_engine.py").items()
        if path.endswith("/cache_engine.py") and "def retrieve_layer" in text
    ]
    return text


@pytest.mark.parametrize("release", RELEASES)
def test_from_one_release_on_a_layer_comes_from_one_place(release: str) -> None:
    newer = Version(release) >= ONE_PLACE
    assert ("All retrieved keys should be from the same location" in engine(release)) is newer
    if "retrieve_locations" in schema(release).keys:
        wanted = r"contains\(\s*keys_multi_layer\[0\], self\.retrieve_locations\s*\)"
        assert re.search(wanted, engine(release))


@pytest.mark.parametrize("release", RELEASES)
def test_the_places_are_called_as_the_release_calls_them(release: str) -> None:
    (text,) = [
        text
        for path, text in files(release, STORAGE).items()
        if path.endswith(f"{STORAGE}__init__.py") and "def CreateStorageBackends" in text
    ]
    made = ast.unparse(
        next(
            node
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef) and node.name == "CreateStorageBackends"
        )
    )
    for key, name in BACKENDS.items():
        plain = key.rpartition(".")[2]
        if plain in made:
            assert name in made or name in text, key
    assert "config.local_disk and config.max_local_disk_size > 0" in made
    newer = Version(release) >= PLUGIN_PLACES
    assert bool(re.search("RemoteBackend-.*plugin_name", made)) is newer


@pytest.mark.parametrize("release", RELEASES)
def test_no_remote_place_of_any_release_knows_positions_and_the_disk_does(release: str) -> None:
    found = {
        path.partition(STORAGE)[2]: "cached_positions" in text
        for path, text in files(release, STORAGE).items()
    }
    remote = [path for path in found if path.startswith("connector/") or "remote" in path]
    assert len(remote) > 10
    others = [f"{name}_backend.py" for name in ("nixl_storage", "p2p", "maru", "weka_gds")]
    assert not [path for path in (*remote, *others) if found.get(path)]
    assert found["local_disk_backend.py"] is (Version(release) >= ONE_PLACE)


@pytest.mark.parametrize(
    ("text", "release", "level"),
    [
        (FS + CPU_OFF, "0.5.6", Level.ERROR),
        (FS, "0.5.6", Level.WARNING),
        (FS + DISK + CPU_OFF, "0.5.6", Level.WARNING),
        (FS + CPU_OFF, "0.3.9.post2", Level.ERROR),
        (FS + CPU_OFF, "0.3.9", Level.ERROR),
        (DISK + CPU_OFF, "0.3.9", Level.ERROR),
        (DISK, "0.3.5", Level.WARNING),
        ("remote_url: external://h:1/m/?connector_name=C\n" + CPU_OFF, "0.5.6", Level.WARNING),
        ("remote_storage_plugins: [fs]\n" + CPU_OFF, "0.5.6", Level.WARNING),
        ("enable_p2p: true\n", "0.5.6", Level.WARNING),
    ],
)
def test_what_can_not_be_blended_from_is_told(text: str, release: str, level: Level) -> None:
    assert only(run(BLEND + text, release), rules.UNLOADED).level is level


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("", "0.5.6"),
        (DISK + CPU_OFF, "0.5.6"),
        (FS + "retrieve_locations: [LocalCPUBackend]\n", "0.5.6"),
        ("remote_url: blackhole://h:1/\n", "0.5.6"),
    ],
)
def test_what_can_be_blended_from_is_left_alone(text: str, release: str) -> None:
    told = {one.rule for one in run(BLEND + text, release).findings}
    assert not told & {rules.UNLOADED, rules.TWO_TIERS}


def test_without_loading_layer_by_layer_nothing_is_said_of_it() -> None:
    for release in ("0.3.5", "0.5.6"):
        told = {one.rule for one in run(FS + DISK, release).findings}
        assert not told & {rules.UNLOADED, rules.TWO_TIERS}


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (BLEND + DISK, "local_cpu and local_disk"),
        (BLEND + FS + DISK, "local_cpu and local_disk"),
        ("use_layerwise: true\n" + FS, "local_cpu and remote_url"),
        ("use_layerwise: true\n" + FS + DISK, "local_cpu, local_disk and remote_url"),
    ],
)
def test_two_places_to_load_from_are_an_error(text: str, keys: str) -> None:
    found = only(run(text), rules.TWO_TIERS)
    assert found.level is Level.ERROR
    assert "such a prompt ends the engine" in found.message
    assert f"({keys})" in found.message
    assert "retrieve_locations: ['LocalCPUBackend']" in found.message
    assert "retrieve_locations" not in only(run(text, "0.4.1"), rules.TWO_TIERS).message
    one = run(f"{text}retrieve_locations: [LocalCPUBackend]\n")
    assert not [finding for finding in one.findings if finding.rule is rules.TWO_TIERS]


def test_gds_beside_another_place_is_told_with_gds_alone_where_it_can_be_named() -> None:
    text = f"{BLEND}gds_path: /mnt/a\ngds_buffer_size: 64\n{DISK}{CPU_OFF}"
    assert "looked for at one place" in only(run(text), rules.TWO_TIERS).message
    assert "(local_disk and gds_path)" in only(run(text, "0.4.1"), rules.TWO_TIERS).message


@pytest.mark.parametrize("size", ["", "max_local_disk_size: 0\n", "max_local_disk_size: -1\n"])
@pytest.mark.parametrize("release", ["0.3.3", "0.3.9", "0.5.6"])
def test_a_disk_tier_without_a_size_is_an_error(size: str, release: str) -> None:
    linted = run(f"local_disk: /x/\n{size}", release)
    default = schema(release).keys["max_local_disk_size"].default
    # LMCache 0.3.3 takes 5 GiB for a file that has none.
    if not size and default:
        assert (release, default) == ("0.3.3", 5)
        assert rules.NO_DISK not in {one.rule for one in linted.findings}
        return
    found = only(linted, rules.NO_DISK)
    assert found.key == ("max_local_disk_size" if size else "local_disk")
    assert "disk-without-size" not in ids(run(DISK, release))


def test_nothing_stored_anywhere_is_a_warning() -> None:
    assert ids(run(CPU_OFF), Level.WARNING) == {"nothing-stored"}


def test_the_places_without_positions_are_keys() -> None:
    assert set(WITHOUT_POSITIONS) <= set(schema("0.5.6").keys)


@pytest.mark.parametrize(
    ("release", "line", "folder"),
    [
        ("0.3.7", "local_disk: file://~/x", "~"),
        ("0.5.6", "local_disk: file://~/x", "~"),
        ("0.5.6", "local_disk: ~root/x", "~root"),
        ("0.5.6", "local_disk: '/mnt/a, $HOME/x'", "$HOME"),
        ("0.3.7", "weka_path: ${HOME}", "${HOME}"),
    ],
)
def test_a_folder_is_not_unfolded_as_a_shell_does(release: str, line: str, folder: str) -> None:
    found = only(run(f"{line}\nmax_local_disk_size: 1\n", release), rules.GDS_PATH)
    assert f"called {folder} of " in found.message
    assert found.level is Level.ERROR


@pytest.mark.parametrize("path", ["file:///a/~b", "/a", "a/b", "file://a"])
def test_a_path_with_nothing_to_unfold_is_taken(path: str) -> None:
    linted = run(f"local_disk: {path}\nmax_local_disk_size: 1\n")
    assert "gds-path" not in ids(linted)


def test_a_place_that_may_never_be_asked_is_a_warning_beside_one_that_is() -> None:
    text = "use_layerwise: true\nstorage_plugins: [mine]\n"
    assert only(run(text), rules.TWO_TIERS).level is Level.WARNING
    assert only(run(text + DISK), rules.TWO_TIERS).level is Level.ERROR


@pytest.mark.parametrize(
    ("release", "path"),
    [
        ("0.3.9", "lmcache/v1/cache_engine.py"),
        ("0.3.9.post1", "lmcache/v1/cache_engine.py"),
        ("0.4.5", "lmcache/v1/cache_engine.py"),
        ("0.5.6", "lmcache/v1/cache_engine.py"),
        ("0.5.7rc2", "lmcache/inprocess/v1/cache_engine.py"),
    ],
)
def test_a_second_place_fails_an_assertion_of_the_releases(release: str, path: str) -> None:
    code = release_file("lmcache", release, path)
    asserts = re.search(rb"assert location == current_location", code)
    assert bool(asserts) is (release != "0.3.9")


def test_settings_of_prefill_and_decode_apart_want_their_switch() -> None:
    text = "pd_role: sender\npd_buffer_size: 1073741824\n"
    found = only(run(text), rules.NO_EFFECT)
    assert found.level is Level.WARNING
    assert "without enable_pd: true LMCache looks at none of pd_role, pd_buffer_size" in (
        found.message
    )
    # One that is off was thought of, and an old name is told by itself.
    for switch in ("enable_pd: false", "enable_pd: true", "enable_nixl: true"):
        told = {one.rule for one in run(f"{text}{switch}\n").findings}
        assert rules.NO_EFFECT not in told
