"""The release that a configuration is for, and its keys kept for the same files."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_site import WORKER, install
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.release import find_release, schema_of_files, version_of
from kvpatch.schema import CONFIG
from lmcache_config import files_of, schema_of
from packaging.version import Version
from releases import release_file

pytestmark = pytest.mark.releases


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "lib" / "python3.11" / "site-packages"
    folder.mkdir(parents=True)
    texts = {path: text.decode() for path, text in files_of("0.5.6").items()}
    install(folder, "lmcache", "0.5.6", {"lmcache/__init__.py": "", **texts})
    return folder


def test_the_installed_release_is_read_from_its_files(site: Path) -> None:
    found = find_release(None, site, None, None)
    assert found.lmcache == Version("0.5.6")
    assert found.schema == schema_of("0.5.6")
    assert found.gds_blends is False
    assert (found.vllm, found.python) == (None, None)


def test_beside_a_named_release_stands_the_vllm_of_the_environment(site: Path) -> None:
    install(site, "vllm", "0.32.0", {"vllm/__init__.py": ""})
    other = find_release(None, site, "0.5.4", None)
    assert (other.lmcache, other.vllm) == (Version("0.5.4"), Version("0.32.0"))
    assert (other.schema, other.absence) == (schema_of("0.5.4"), None)
    itself = find_release(None, site, "0.5.6", None)
    assert itself.vllm == Version("0.32.0")
    assert itself.absence is not None
    assert find_release(None, None, "0.5.4", None).vllm is None
    assert find_release(None, site.parent, "0.5.4", "0.31.0").vllm == Version("0.31.0")


def test_the_patch_for_gds_with_blending_is_seen(site: Path) -> None:
    backend = site / "lmcache/v1/storage_backend/gds_backend.py"
    backend.write_text(backend.read_text() + "# kvpatch KV009: here.\n")
    assert find_release(None, site, None, None).gds_blends is False
    backend.with_name("storage_manager.py").write_text("# kvpatch KV009: here.\n")
    assert find_release(None, site, None, None).gds_blends is True


def test_the_patch_for_several_ranks_is_seen(site: Path) -> None:
    blender = site / "lmcache/v1/compute/blend/blender.py"
    blender.parent.mkdir(parents=True, exist_ok=True)
    for text, there in (
        ("", False),
        ("# kvpatch KV010: a.\n", False),
        ("# kvpatch KV012: b.\n", True),
    ):
        blender.write_text(text)
        found = find_release(None, site, None, None).ranks_agree
        assert found is not None
        assert found() is there


def test_what_blending_lacks_is_looked_for_in_the_files_of_both(site: Path) -> None:
    worker = release_file("vllm", "0.32.0", WORKER).decode()
    install(site, "vllm", "0.32.0", {"vllm/__init__.py": "", WORKER: worker})
    for vllm, there in ((None, True), ("0.32.0", True), ("0.31.0", False)):
        ask = find_release(None, site, None, vllm).absence
        assert ask is not None
        assert ("KV001" in ask().patches) is there
    assert find_release(None, None, "0.5.6", None).absence is None


def test_changed_files_are_read_anew_and_the_same_ones_are_not(tmp_path: Path) -> None:
    files = dict(files_of("0.5.6"))
    version = Version("0.5.6")
    first = schema_of_files(files.get, version, tmp_path)
    assert len([*tmp_path.glob("schema/*.json")]) == 1
    assert schema_of_files(files.get, version, tmp_path) == first
    assert len([*tmp_path.glob("schema/*.json")]) == 1
    files[CONFIG] = files[CONFIG].replace(b'"chunk_size"', b'"piece_size"')
    changed = schema_of_files(files.get, version, tmp_path)
    assert "piece_size" in changed.keys
    assert "chunk_size" not in changed.keys


def test_a_cache_that_was_tampered_with_is_not_believed(tmp_path: Path) -> None:
    files = files_of("0.5.6")
    schema_of_files(files.get, Version("0.5.6"), tmp_path)
    (place,) = tmp_path.glob("schema/*.json")
    place.write_text("{")
    assert schema_of_files(files.get, Version("0.5.6"), tmp_path) == schema_of("0.5.6")


@pytest.mark.parametrize("option", ["--vllm", "--lmcache"])
def test_what_is_no_version_is_usage_with_an_example_of_its_own(option: str) -> None:
    with pytest.raises(KvpatchError) as caught:
        version_of(option, "abc")
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.hint.endswith(f"{option} {'0.32.0' if option == '--vllm' else '0.5.6'}")
    assert version_of(option, None) is None


def test_a_release_without_configuration_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KvpatchError) as caught:
        schema_of_files({}.get, Version("0.5.6"), tmp_path)
    assert caught.value.exit_code is ExitCode.REFUSED
