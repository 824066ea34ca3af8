"""Configuration keys and profiles on the files of every LMCache release on the index."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path

import pytest
import yaml
from commands import kvpatch
from kvpatch.coercion import effective
from kvpatch.curing import curable
from kvpatch.env_format import variables
from kvpatch.key_history import load
from kvpatch.launch_script import parse_launch
from kvpatch.lint import lint
from kvpatch.model_config import parse_model
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.render import Rendered, render
from kvpatch.rules import CORRUPTS, Level
from kvpatch.schema import CONFIG
from kvpatch.schema_source import parse_schema
from kvpatch.sizing import Wanted
from kvpatch.surroundings import Surroundings
from kvpatch.templates import profiles
from kvpatch.yaml_source import parse_yaml
from lmcache_config import executed, schema_of
from packaging.version import Version
from releases import ReleaseFilesMissingError, lmcache_releases, release_file, vllm_releases

pytestmark = pytest.mark.releases

RELEASES = [str(release) for release in lmcache_releases()]


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


PROFILES = ("gds", "gds-blend", "blend", "cpu-offload")
# From 0.4.4 on a patch pairs GDS data with its own keys.
CORRUPT = (Version("0.3.7"), Version("0.4.4"))
# Where layerwise loading turns save_unfull_chunk off, whatever the file says.
TURNED_OFF = ("0.3.7", "0.3.9")
ODD = "/mnt/a \"b\": 'c' #\u00e4"
MODEL = parse_model(
    {
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    },
    "Llama-3.1-8B",
)


def vllm_for(release: str) -> Version:
    """A vLLM that the release goes with, the patches in place."""
    fitting = (("0.4.7", "0.32.0"), ("0.3.14", "0.25.1"), ("0.3.3", "0.11.0"))
    newest = "0.25.1" if Version(release) > Version("0.5.6") else ""
    return Version(newest or next(v for since, v in fitting if Version(release) >= Version(since)))


@cache
def rendered(profile: str, release: str) -> Rendered:
    """A profile for a release; the pair is one that nothing keeps from it."""
    settings = {"gds_path": ODD} if profile.startswith("gds") else {}
    pair = curable(Version(release), vllm_for(release))
    return render(profile, schema_of(release), pair, settings, Wanted(MODEL, ranks=2))


def claimed(release: str) -> list[str]:
    """The profiles that claim to work on a release."""
    first, fixed = CORRUPT
    version = Version(release)
    without = ("gds", "gds-blend") if first <= version < fixed else ()
    # The patch for both together is made for 0.4.4 to 0.5.6.
    if not Version("0.4.4") <= version <= Version("0.5.6"):
        without += ("gds-blend",)
    return [name for name in PROFILES if name not in without]


@pytest.mark.parametrize("release", RELEASES)
def test_a_profile_is_refused_on_every_release_that_can_not_run_it_and_on_no_other(
    release: str,
) -> None:
    for profile in PROFILES:
        if profile in claimed(release):
            assert rendered(profile, release).text
            continue
        with pytest.raises(KvpatchError) as caught:
            rendered(profile, release)
        assert (caught.value.code, caught.value.exit_code) == ("no-cure", ExitCode.REFUSED)
        assert "0.5.4" in caught.value.hint


@pytest.mark.parametrize("release", RELEASES)
def test_the_released_code_reads_every_value_of_every_profile_as_meant(
    release: str, tmp_path: Path
) -> None:
    names = claimed(release)
    made = {name: rendered(name, release) for name in names}
    meant = {name: yaml.safe_load(one.text) for name, one in made.items()}
    cases = [{"text": made[name].text, "names": list(meant[name])} for name in names]
    for name, told in zip(names, executed(release, cases, tmp_path), strict=True):
        turned = release in TURNED_OFF and "blend" in name
        assert told["stop"] is None, (name, told)
        assert told["values"] == {
            **meant[name],
            **({"save_unfull_chunk": False} if turned else {}),
        }, name
        said = [one for one in told["said"] if "save_unfull_chunk=False" not in one]
        assert said == [], name
        assert turned is any("save_unfull_chunk off" in one for one in made[name].warnings)
        keys = schema_of(release)
        assert set(meant[name].get("extra_config") or {}) <= keys.extra


@pytest.mark.parametrize("release", RELEASES)
def test_the_released_code_reads_every_variable_of_every_profile_as_meant(
    release: str, tmp_path: Path
) -> None:
    names, keys = claimed(release), schema_of(release)
    meant, cases = [], []
    for name in names:
        values = yaml.safe_load(rendered(name, release).text)
        found = variables(keys, values)
        environ = dict(line.split("=", 1) for line in found.lines)
        environ = {key: shlex.split(value)[0] for key, value in environ.items()}
        left = {key: value for key, value in values.items() if key not in found.left_out}
        meant.append(left)
        cases.append({"text": None, "environ": environ, "names": list(left)})
    for name, want, told in zip(names, meant, executed(release, cases, tmp_path), strict=True):
        assert told["stop"] is None, (name, told)
        assert told["values"] == want, name
        assert [one for one in told["said"] if "save_unfull_chunk=False" not in one] == []
    if not keys.reading.converts_file:
        # Its variables are read by code that the schema leaves out, so no value is claimed.
        seen = effective(keys, {}, cases[0]["environ"], alone=True)
        assert {one.failure for one in seen.values.values()} == {""}
        return
    for case, want in zip(cases, meant, strict=True):
        seen = effective(keys, {}, case["environ"], alone=True)
        turned = {name: value for name, value in want.items() if seen.get(name) != value}
        assert (turned, seen.stop) == ({name: want[name] for name in seen.changed}, "")


@pytest.mark.parametrize("release", RELEASES)
def test_lint_has_nothing_against_what_a_profile_writes(release: str) -> None:
    history = load()
    for name in claimed(release):
        made = rendered(name, release)
        launch = parse_launch(" ".join(map(shlex.quote, made.serve.argv)))
        around = Surroundings(
            {**made.serve.environ, "LMCACHE_CONFIG_FILE": "-"},
            launch=launch,
            vllm=vllm_for(release),
            python=(3, 12),
        )
        found = lint(parse_yaml(made.text), schema_of(release), history, around).findings
        # Where the file needs KV009 to be right, lint may say so of the release as it is.
        allowed = {CORRUPTS} if "S" in {need.id for need in made.needs} else set()
        assert {one.rule for one in found if one.level is Level.ERROR} <= allowed, name


PAIRS = (("0.3.7", "0.11.0"), ("0.4.7", "0.26.0"), ("0.5.6", "0.14.0"), ("0.5.6", "0.32.0"))


@pytest.mark.parametrize(("lmcache", "vllm"), PAIRS)
@pytest.mark.parametrize("profile", [one.name for one in profiles()])
def test_lint_has_nothing_against_what_the_verb_writes_in_any_format(
    profile: str, lmcache: str, vllm: str, tmp_path: Path
) -> None:
    pair = ("--lmcache", lmcache, "--vllm", vllm)
    gds = ("--gds-path", "/mnt/a b") if profile.startswith("gds") else ()
    written: dict[str, Path] = {}
    for form in ("yaml", "env", "serve", "bundle"):
        place = tmp_path / f"made.{form}"
        made = kvpatch("profile", profile, *pair, "--format", form, *gds, "-o", place)
        if made.code == ExitCode.DONE:
            written[form] = place
        else:
            # A pair that the profile does not run on, or one that has no file of LMCache's.
            assert made.code in (ExitCode.REFUSED, ExitCode.USAGE), made.err
    folder = written.get("bundle", tmp_path)
    ways = {
        "yaml": (written.get("yaml"),),
        "env": ("--env-file", written.get("env")),
        "serve": ("--serve", written.get("serve")),
        "bundle": ("--serve", folder / "serve.sh"),
    }
    if "yaml" in written:
        # The command names a file that is to be written there.
        ways["serve"] = (written["yaml"], *ways["serve"])
        ways["bundle"] = (folder / "lmcache.yaml", *ways["bundle"])
    for form in written:
        ran = kvpatch("lint", *ways[form], *pair, "--json")
        errors = [one for one in ran.data["findings"] if one["level"] == "error"]
        # Such a release corrupts until its patch is there.
        assert [one for one in errors if one["name"] != CORRUPTS.name] == [], form
        assert ran.code == (ExitCode.NO if errors else ExitCode.DONE)
