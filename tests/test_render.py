"""Profiles in the keys of a release: valid YAML, only known keys, and said what is missing."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.render import Rendered, render
from kvpatch.schema import Key, Schema
from kvpatch.templates import Pair, load, names, profiles
from packaging.specifiers import SpecifierSet
from packaging.version import Version

GDS = {"gds_path": "/mnt/nvme/lmcache"}
NEW = [
    "chunk_size",
    "enable_blending",
    "use_layerwise",
    "blend_recompute_ratios",
    "blend_check_layers",
    "blend_min_tokens",
    "blend_special_str",
    "save_unfull_chunk",
    "gds_path",
    "gds_path_sharding",
    "gds_buffer_size",
    "use_gds",
    "gds_backend",
    "local_cpu",
    "max_local_cpu_size",
    "retrieve_locations",
    "pre_caching_hash_algorithm",
    "extra_config",
]
OLD = [
    "chunk_size",
    "enable_blending",
    "use_layerwise",
    "blend_recompute_ratio",
    "blend_min_tokens",
    "blend_special_str",
    "save_unfull_chunk",
    "gds_path",
    "cufile_buffer_size",
    "local_cpu",
    "max_local_cpu_size",
    "pre_caching_hash_algorithm",
    "extra_config",
]


def schema(names: Sequence[str], *extra: str) -> Schema:
    keys = {name: Key(name, "Any", None, None) for name in names}
    return Schema("9.9", keys, frozenset(extra))


def made(
    keys: Schema | None = None,
    lmcache: str = "0.5.6",
    vllm: str | None = "",
    registered: bool | None = True,
    settings: dict[str, str] | None = None,
    profile: str = "gds-blend",
) -> Rendered:
    """A profile for a pair; where no vLLM is given, one that the LMCache goes with."""
    if vllm == "":
        vllm = "0.32.0" if Version(lmcache) >= Version("0.3.14") else "0.11.0"
    pair = Pair(Version(lmcache), Version(vllm) if vllm else None, registered)
    given = (GDS if "gds" in profile else {}) if settings is None else settings
    return render(profile, keys or schema(NEW), pair, given)


def loaded(rendered: Rendered) -> dict[str, Any]:
    values = yaml.safe_load(rendered.text)
    assert isinstance(values, dict)
    return values


def header(rendered: Rendered) -> str:
    """The comment above the first key, its lines joined again."""
    lines = rendered.text[: rendered.text.index("\n\n")].splitlines()
    assert all(line.startswith("#") for line in lines)
    return " ".join(" ".join(line[1:].split()) for line in lines)


def test_a_new_lmcache_gets_the_new_keys() -> None:
    assert loaded(made()) == {
        "chunk_size": 256,
        "enable_blending": True,
        "use_layerwise": True,
        "blend_recompute_ratios": [0.15],
        "blend_check_layers": [1],
        "blend_min_tokens": 256,
        "blend_special_str": " # # ",
        "save_unfull_chunk": True,
        "gds_path": "/mnt/nvme/lmcache",
        "gds_path_sharding": "by_gpu",
        "gds_buffer_size": 4096,
        "use_gds": True,
        "gds_backend": "cufile",
        "local_cpu": False,
        "max_local_cpu_size": 5.0,
        "retrieve_locations": ["GdsBackend"],
        "pre_caching_hash_algorithm": "builtin",
    }


def test_an_old_lmcache_gets_the_old_keys() -> None:
    values = loaded(made(schema(OLD, "use_cufile"), "0.3.3"))
    assert values["blend_recompute_ratio"] == 0.15
    assert values["cufile_buffer_size"] == 4096
    assert values["extra_config"] == {"use_cufile": True}
    assert set(values) == set(OLD)


def test_the_schema_decides_and_not_the_version() -> None:
    assert "cufile_buffer_size" in loaded(made(schema(OLD), "0.5.6"))
    assert "gds_buffer_size" in loaded(made(schema(NEW), "0.3.3"))


def test_of_two_spellings_the_newer_is_taken() -> None:
    values = loaded(made(schema([*NEW, *OLD], "use_cufile")))
    assert "gds_buffer_size" in values
    assert not {"cufile_buffer_size", "blend_recompute_ratio", "extra_config"} & set(values)


def test_a_name_that_lmcache_does_not_look_for_is_left_out_with_a_word() -> None:
    rendered = made(schema(OLD), "0.3.3")
    assert "extra_config" not in loaded(rendered)
    assert "is the default of this LMCache" in rendered.text


def test_every_key_has_a_comment_above_it() -> None:
    for rendered in (made(), made(schema(OLD, "use_cufile"), "0.3.3")):
        body = rendered.text[rendered.text.index("\n\n") :].strip()
        blocks = [block for block in body.split("\n\n") if block != "extra_config:"]
        assert len(blocks) >= 12
        for block in blocks:
            assert block.removeprefix("extra_config:\n").lstrip().startswith("# "), block


@pytest.mark.parametrize("lacking", [["gds_path"], ["gds_buffer_size"], ["enable_blending"]])
def test_an_lmcache_without_gds_or_blending_is_refused(lacking: list[str]) -> None:
    names = [name for name in NEW if name not in lacking]
    with pytest.raises(KvpatchError, match=r"LMCache 9\.9 can't run gds-blend") as caught:
        made(schema(names))
    assert (caught.value.code, caught.value.exit_code) == ("no-key", ExitCode.REFUSED)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["", "gdsblend", "../gds-blend", "gds-blend.yaml", "_common"])
def test_an_unknown_profile_is_a_usage_error_that_names_those_there_are(name: str) -> None:
    with pytest.raises(KvpatchError) as caught:
        render(name, schema(NEW), Pair(Version("0.5.6")), GDS)
    assert (caught.value.code, caught.value.exit_code) == ("unknown-profile", ExitCode.USAGE)
    assert "gds-blend" in caught.value.hint


def test_an_unknown_setting_is_a_usage_error() -> None:
    with pytest.raises(KvpatchError) as caught:
        made(settings={"gdspath": "/a"})
    assert (caught.value.code, caught.value.exit_code) == ("unknown-setting", ExitCode.USAGE)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/mnt/a b",
        "/mnt/it's",
        '/mnt/"quoted"',
        "/mnt/a: b",
        "/mnt/a #b",
        "/mnt/{gds_path}",
        "/mnt/back\\slash\\n",
        "/mnt/%s/$HOME/`id`",
        "/mnt/\u00e4\u4e2d\U0001f600",
        "/mnt/" + "long name " * 60 + "end",
        "/1",
        "/null",
        "/mnt/[a,/b]",
    ],
)
def test_a_path_with_odd_characters_stays_that_path(path: str) -> None:
    rendered = made(settings={"gds_path": path})
    assert loaded(rendered)["gds_path"] == path
    assert rendered.text.isascii()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "not an absolute path"),
        ("relative", "not an absolute path"),
        ("./here", "not an absolute path"),
        ("~/cache", "not an absolute path"),
        ("/mnt/a\nuse_gds: false", "can't be printed"),
        ("/mnt/a\r", "can't be printed"),
        ("/mnt/a\x00", "can't be printed"),
        ("/mnt/a\u2028b", "can't be printed"),
        ("/mnt/a\x85b", "can't be printed"),
        ("/mnt/\udcff", "can't be printed"),
        ("/mnt/../etc", "has .. in it"),
        ("/mnt/end ", "space at an end"),
        (" /mnt", "space at an end"),
        ("/mnt/a,b", "not an absolute path"),
        ("/mnt/a, /mnt/b", "space at an end"),
        ("/mnt/a,", "not an absolute path"),
    ],
)
def test_a_path_that_cannot_be_meant_is_a_usage_error(path: str, why: str) -> None:
    with pytest.raises(KvpatchError) as caught:
        made(settings={"gds_path": path})
    assert (caught.value.code, caught.value.exit_code) == ("bad-path", ExitCode.USAGE)
    assert why in caught.value.message
    assert caught.value.message.isascii()
    assert caught.value.message.isprintable()


def test_several_folders_go_only_where_lmcache_shares_them_out() -> None:
    both = {"gds_path": "/mnt/a,/mnt/b"}
    assert loaded(made(settings=both))["gds_path"] == "/mnt/a,/mnt/b"
    with pytest.raises(KvpatchError, match="takes one folder"):
        made(schema(OLD), settings=both)


def test_without_a_path_the_placeholder_is_one_that_lmcache_stops_on() -> None:
    rendered = made(settings={})
    folder = Path(loaded(rendered)["gds_path"])
    with pytest.raises(NotADirectoryError):
        folder.mkdir(parents=True)
    assert "gds_path is a placeholder" in header(rendered)
    assert any("placeholder" in note for note in rendered.notes)
    assert not any("placeholder" in note for note in made().notes)


def test_the_header_names_both_versions_and_what_is_missing() -> None:
    text = header(made())
    assert "For LMCache 0.5.6 and vLLM 0.32.0." in text
    assert "TODAY THIS PAIR DOES NOT RUN IT" in text
    assert "[in place] KV001" in text
    assert "[MISSING] GDS" in text
    assert "[MISSING] K," in text
    assert "[MISSING] KV001" in header(made(registered=False))
    assert "[not known] KV001" in header(made(registered=None))
    assert "no vLLM beside it" in header(made(vllm=None))


def needs(rendered: Rendered) -> dict[str, bool | None]:
    return {need.id: need.present for need in rendered.needs}


@pytest.mark.parametrize("lmcache", ["0.5.4", "0.5.6", "0.5.7rc2"])
@pytest.mark.parametrize("vllm", ["0.8.5", "0.11.1", "0.22.0", "0.33.0", None])
def test_no_pair_is_said_to_run_gds_blend_while_no_patch_cures_it(
    lmcache: str, vllm: str | None
) -> None:
    rendered = made(lmcache=lmcache, vllm=vllm)
    assert not rendered.runs
    assert needs(rendered)["GDS"] is False


@pytest.mark.parametrize(
    ("lmcache", "vllm", "missing"),
    [
        ("0.5.6", "0.25.1", set()),
        ("0.5.6", "0.26.0", {"K"}),
        ("0.5.6", "0.13.0", {"A"}),
        ("0.5.6", "0.12.0", {"A", "R"}),
        ("0.4.6", "0.20.0", {"A"}),
        ("0.4.4", "0.20.0", {"A", "E"}),
        ("0.3.9", "0.11.0", set()),
        ("0.3.9", "0.11.1", {"E"}),
        ("0.3.11", "0.14.0", {"A", "R", "E"}),
    ],
)
def test_what_else_a_pair_lacks_is_named(lmcache: str, vllm: str, missing: set[str]) -> None:
    found = needs(made(lmcache=lmcache, vllm=vllm, profile="blend"))
    assert {name for name, present in found.items() if present is False} == missing


def test_a_patch_of_this_kvpatch_for_a_letter_is_looked_up_like_the_others() -> None:
    for state in (True, False, None):
        pair = Pair(Version("0.5.6"), Version("0.32.0"), True, {"K": state, "GDS": True})
        rendered = render("gds-blend", schema(NEW), pair, GDS)
        assert needs(rendered) == {"KV001": True, "GDS": True, "K": state}
        assert rendered.runs is (state is True)
        if state is False:
            assert "[MISSING] K, " in header(rendered)
            assert "run `kvpatch apply`" in header(rendered)


@pytest.mark.parametrize(
    ("lmcache", "vllm", "way"),
    [
        ("0.3.7", "0.11.1", "0.3.9"),
        ("0.3.9", "0.14.0", "0.3.10.post2"),
        ("0.3.12", "0.24.0", "0.3.14"),
    ],
)
def test_a_pair_that_no_patch_can_cure_is_refused_with_the_release_that_can(
    lmcache: str, vllm: str, way: str
) -> None:
    for profile in ("blend", "cpu-offload"):
        with pytest.raises(KvpatchError) as caught:
            made(lmcache=lmcache, vllm=vllm, profile=profile)
        assert (caught.value.code, caught.value.exit_code) == ("no-cure", ExitCode.REFUSED)
        assert f"LMCache {lmcache} with vLLM {vllm} can't run {profile}" in caught.value.message
        assert way in caught.value.hint


def test_deferring_the_connector_is_needed_up_to_vllm_0_11_0_alone() -> None:
    assert needs(made(vllm="0.11.0"))["KV002"] is True
    assert needs(made(vllm="0.11.0", registered=False))["KV002"] is False
    assert "KV002" not in needs(made(vllm="0.11.1"))


def test_without_a_vllm_what_hangs_on_it_is_not_known() -> None:
    found = needs(made(vllm=None, registered=None))
    assert found["KV001"] is found["KV002"] is found["K"] is None
    assert found["GDS"] is False


@pytest.mark.parametrize(
    ("lmcache", "corrupts"),
    [
        ("0.3.6", False),
        ("0.3.7", True),
        ("0.3.9.post2", True),
        ("0.4.8.dev42", True),
        ("0.5.4rc2", True),
        ("0.5.4rc3", False),
        ("0.5.6", False),
    ],
)
def test_the_releases_that_mix_up_gds_keys_are_refused(lmcache: str, corrupts: bool) -> None:
    for profile, instead in (("gds", "cpu-offload"), ("gds-blend", "blend")):
        if not corrupts:
            assert made(lmcache=lmcache, profile=profile).text
            continue
        with pytest.raises(KvpatchError, match="silently wrong") as caught:
            made(lmcache=lmcache, profile=profile)
        assert caught.value.hint.endswith(f"the profile {instead}")


def test_a_release_outside_of_what_was_tested_is_noted() -> None:
    assert not any("was made for" in note for note in made().notes)
    (note,) = [note for note in made(lmcache="0.9.0").notes if "was made for" in note]
    assert "not for 0.9.0" in note


def command(rendered: Rendered) -> str:
    """The lines to type, taken out of the header."""
    _, _, launch = rendered.text.partition("# Start vLLM with it")
    lines = [line[4:] for line in launch.splitlines() if line.startswith("#   ")]
    return "\n".join(lines)


def test_a_newer_vllm_is_started_with_the_bare_setting_and_an_older_one_eagerly() -> None:
    for vllm in ("0.17.0", "0.33.0"):
        text = command(made(vllm=vllm))
        assert '"kv_connector_extra_config": {"use_layerwise": true}' in text
        assert "--enforce-eager" not in text
    for old in ("0.8.5", "0.16.0", None):
        text = command(made(vllm=old))
        assert "use_layerwise" not in text
        assert "--enforce-eager" in text


def test_every_start_has_prefix_caching_off_and_a_fixed_hash_seed() -> None:
    for vllm in ("0.8.5", "0.33.0", None):
        text = command(made(vllm=vllm))
        assert "--no-enable-prefix-caching" in text
        assert "export PYTHONHASHSEED=0" in text
        assert "export LMCACHE_CONFIG_FILE=" in text


def test_an_lmcache_with_moved_code_is_named_by_its_module() -> None:
    text = command(made(lmcache="0.5.7rc2"))
    assert '"kv_connector": "LMCacheConnectorV1Dynamic"' in text
    assert "lmcache.inprocess.integration.vllm.lmcache_connector_v1" in text
    assert '"kv_connector": "LMCacheConnectorV1"' in command(made())


@pytest.mark.parametrize(
    "output", ["/etc/lmcache.yaml", "/a b/it's $HOME.yaml", "/\u00e4/'\\x41'\u4e2d.yaml"]
)
def test_the_commands_of_the_header_are_what_a_shell_reads(output: str) -> None:
    rendered = made(settings={**GDS, "output": output})
    assert rendered.text.isascii()
    script = command(rendered).replace("vllm serve", "set --")
    script += '\nprintf "%s\\0" "$LMCACHE_CONFIG_FILE" "$@"'
    said = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    file, model, *rest = said.decode().split("\0")
    assert (file, model) == (output, "MODEL")
    assert yaml.safe_load(rest[-2]) == {
        "kv_connector": "LMCacheConnectorV1",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"use_layerwise": True},
    }


def test_an_output_that_no_comment_can_hold_is_left_to_the_reader() -> None:
    rendered = made(settings={**GDS, "output": "/a\nchunk_size: 1"})
    assert loaded(rendered)["chunk_size"] == 256
    assert shlex.split(command(rendered).splitlines()[0])[1].endswith("/path/to/this/file.yaml")


def test_every_template_says_what_it_is_for_and_what_it_was_tested_on() -> None:
    infos = profiles()
    assert [info.name for info in infos] == [
        "blend",
        "cpu-offload",
        "gds",
        "gds-blend",
        "mp-cache",
        "native-offload",
    ]
    for info in infos:
        assert info.purpose
        assert bool(info.needs) is ("blend" in info.name)
        assert set(info.tested) == {"lmcache", "vllm"}
        for spec in info.tested.values():
            assert SpecifierSet(spec)


def test_every_concept_says_what_happens_where_no_line_fits() -> None:
    for name in names():
        for concept, entry in load(name).concepts:
            assert ("refuse" in entry) != ("absent" in entry), concept
            assert all(line["why"] and line["keys"] for line in entry["lines"])
