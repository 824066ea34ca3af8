"""Configuration keys and profiles on the files of every LMCache release on the index."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml
from kvpatch.render import Rendered, render
from kvpatch.schema import Schema
from kvpatch.schema_source import CONFIG, parse_schema, read_schema
from kvpatch.templates import Pair
from packaging.version import Version
from releases import ReleaseFilesMissingError, lmcache_releases, release_file, vllm_releases

pytestmark = pytest.mark.releases

RELEASES = [str(release) for release in lmcache_releases()]


@cache
def schema_of(release: str) -> Schema:
    return read_schema(lambda path: release_file("lmcache", release, path), release)


def made(keys: Schema, release: str, gds_path: str = "/mnt/nvme/lmcache") -> Rendered:
    pair = Pair(Version(release), Version("0.32.0"), registered=True)
    return render("gds-blend", keys, pair, {"gds_path": gds_path})


def test_the_index_has_all_releases_from_the_first_supported_on() -> None:
    vllm = vllm_releases()
    assert vllm[0] == "0.8.5"
    assert {"0.8.5.post1", "0.10.1.1", "0.11.0", "0.33.0"} <= set(vllm)
    assert list(vllm) == sorted(vllm, key=Version)
    assert not any(Version(version).is_prerelease for version in vllm)
    lmcache = {str(release): release.pre for release in lmcache_releases()}
    assert lmcache["0.3.3"] is False
    assert lmcache["0.5.7rc2"] is True


def test_a_file_that_a_release_has_not_fails_the_test_that_asks_for_it() -> None:
    with pytest.raises(ReleaseFilesMissingError, match=r"vllm/no_such_file\.py"):
        release_file("vllm", "0.10.0", "vllm/no_such_file.py")
    with pytest.raises(ReleaseFilesMissingError, match=r"vllm 0\.0\.999"):
        release_file("vllm", "0.0.999", "vllm/version.py")


@pytest.mark.parametrize("release", RELEASES)
def test_the_keys_of_every_release_are_read(release: str) -> None:
    schema = schema_of(release)
    assert len(schema.keys) >= 43
    assert schema.keys["chunk_size"].type == "int"
    assert schema.keys["chunk_size"].default == 256
    assert schema.keys["enable_blending"].default is False
    assert schema.keys["blend_special_str"].default == " # # "
    assert schema.has("extra_config.use_direct_io")
    assert schema.has("use_gds") != schema.has("extra_config.use_cufile")
    assert schema.has("gds_buffer_size") != schema.has("cufile_buffer_size")
    assert schema.has("blend_recompute_ratios") != schema.has("blend_recompute_ratio")


@pytest.mark.parametrize(("release", "keys"), [("0.3.3", 43), ("0.3.4", 53), ("0.5.6", 108)])
def test_releases_have_as_many_keys_as_were_counted(release: str, keys: int) -> None:
    source = release_file("lmcache", release, CONFIG)
    assert len(parse_schema(source, release).keys) == keys


@pytest.mark.parametrize("release", RELEASES)
def test_every_key_written_is_one_that_the_release_defines(release: str) -> None:
    keys = schema_of(release)
    values = yaml.safe_load(made(keys, release).text)
    assert len(values) >= 13
    for name, value in values.items():
        assert name in keys.keys
        kind = keys.keys[name].type
        assert type(value).__name__ in kind, (name, value, kind)
    assert set(values.get("extra_config", {})) <= keys.extra
    for name in ("enable_blending", "use_layerwise", "save_unfull_chunk"):
        assert values[name] is True
    assert values["blend_special_str"] == " # # "
    assert values.get("gds_buffer_size", values.get("cufile_buffer_size")) == 4096
    assert values.get("use_gds", values.get("extra_config", {}).get("use_cufile")) is True


# Where layerwise loading turns save_unfull_chunk off, whatever the file says.
TURNED_OFF = ("0.3.7", "0.3.9")

# LMCache's own modules around its configuration, as far as loading a file needs them.
LOADER = """
import importlib.util, json, logging, sys, types
folder, file = sys.argv[1:]
complaints = []
class Keep(logging.Handler):
    def emit(self, record):
        complaints.append(record.getMessage())
def init_logger(name):
    logger = logging.getLogger(name)
    logger.handlers, logger.propagate = [Keep(logging.WARNING)], False
    return logger
for name in ("lmcache", "lmcache.v1", "lmcache.logging", "lmcache.config"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
sys.modules["lmcache.config"].LMCacheEngineConfig = object
sys.modules["lmcache"].config = sys.modules["lmcache.config"]
sys.modules["lmcache.logging"].init_logger = init_logger
sys.modules["lmcache.v1"].__path__ = [folder]
from lmcache.v1.config import LMCacheEngineConfig
config = LMCacheEngineConfig.from_file(file)
names = json.loads(sys.stdin.read())
print(json.dumps([complaints, {name: getattr(config, name) for name in names}]))
"""


@pytest.mark.parametrize("release", RELEASES)
def test_the_released_code_reads_every_value_as_meant(release: str, tmp_path: Path) -> None:
    (tmp_path / "config.py").write_bytes(release_file("lmcache", release, CONFIG))
    try:
        base = release_file("lmcache", release, "lmcache/v1/config_base.py")
        (tmp_path / "config_base.py").write_bytes(base)
    except ReleaseFilesMissingError:
        assert Version(release) < Version("0.3.12")
    rendered = made(schema_of(release), release, "/mnt/a \"b\": 'c' #\u00e4")
    meant = yaml.safe_load(rendered.text)
    file = tmp_path / "gds-blend.yaml"
    file.write_text(rendered.text, "utf-8")
    ended = subprocess.run(
        [sys.executable, "-I", "-c", LOADER, str(tmp_path), str(file)],
        input=json.dumps(list(meant)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    complaints, values = json.loads(ended.stdout.splitlines()[-1])
    if release in TURNED_OFF:
        (complaint,) = complaints
        assert "save_unfull_chunk=False" in complaint
        assert values == {**meant, "save_unfull_chunk": False}
    else:
        assert complaints == []
        assert values == meant
    assert any("save_unfull_chunk off" in one for one in rendered.warnings) is (
        release in TURNED_OFF
    )
