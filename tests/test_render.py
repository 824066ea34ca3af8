"""Profiles in the keys of a release: valid YAML, only known keys, and said what is missing."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from kvpatch.curing import curable
from kvpatch.model_config import parse_model
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.render import Rendered, render
from kvpatch.render import header as top_of
from kvpatch.schema import Key, Schema
from kvpatch.series import discover
from kvpatch.sizing import Wanted
from kvpatch.templates import Pair, load, names, profiles
from packaging.specifiers import SpecifierSet
from packaging.version import Version

MODEL = {
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "hidden_size": 256,
    "max_position_embeddings": 4096,
}
GDS = {"gds_path": "/mnt/nvme/lmcache"}
NEW = [
    "chunk_size",
    "enable_blending",
    "use_layerwise",
    "blend_recompute_ratios",
    "blend_check_layers",
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


def pair_of(lmcache: str, vllm: str | None, state: bool | None = True) -> Pair:
    """A pair on which every patch that is made for it is in place; or none, or nobody looked."""
    pair = curable(Version(lmcache), Version(vllm) if vllm else None)
    return replace(pair, registered=state, cured=dict.fromkeys(pair.cured, state))


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
    pair = pair_of(lmcache, vllm, registered)
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
    values = loaded(made(schema(OLD, "use_cufile")))
    assert values["blend_recompute_ratio"] == 0.15
    assert values["cufile_buffer_size"] == 4096
    assert values["extra_config"] == {"use_cufile": True}
    assert set(values) == set(OLD)


def test_the_schema_decides_and_not_the_version() -> None:
    assert "cufile_buffer_size" in loaded(made(schema(OLD), "0.5.6"))
    assert "gds_buffer_size" in loaded(made(schema(NEW), "0.3.3", profile="gds"))


def test_of_two_spellings_the_newer_is_taken() -> None:
    values = loaded(made(schema([*NEW, *OLD], "use_cufile")))
    assert "gds_buffer_size" in values
    assert not {"cufile_buffer_size", "blend_recompute_ratio", "extra_config"} & set(values)


def test_a_name_that_lmcache_does_not_look_for_is_left_out_with_a_word() -> None:
    rendered = made(schema(OLD))
    assert "extra_config" not in loaded(rendered)
    assert "is the default of this LMCache" in rendered.text


def test_every_key_has_a_comment_above_it() -> None:
    for rendered in (made(), made(schema(OLD, "use_cufile"))):
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


@pytest.mark.parametrize("profile", names())
@pytest.mark.parametrize("vllm", ["0.16.0", "0.40.0"])
def test_no_header_has_two_empty_lines_in_a_row(profile: str, vllm: str) -> None:
    template, pair = load(profile), pair_of("0.5.6", vllm, False)
    settings = GDS if template.gds else {}
    lines = top_of(template, pair, render(profile, schema(NEW), pair, settings))
    assert "#" in lines
    assert lines[-1] != "#"
    assert not any(one == two == "#" for one, two in pairwise(lines))


def test_an_unknown_setting_is_a_usage_error() -> None:
    for profile, hint in (("gds-blend", "it has --gds-path"), ("blend", "gds-blend and gds do")):
        with pytest.raises(KvpatchError) as caught:
            made(settings={"gds-pat": "/a"}, profile=profile)
        assert (caught.value.code, caught.value.exit_code) == ("unknown-setting", ExitCode.USAGE)
        assert caught.value.message == f"the profile {profile} has no --gds-pat"
        assert hint in caught.value.hint


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
        ("/mnt/a,b", "has a comma, at which LMCache parts it, and 'b' is not an absolute path"),
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


@pytest.mark.parametrize(("folder", "shown"), [("/mnt/kv", "'/mnt/kv'"), ("/mnt/\u00e4", "xe4")])
def test_the_folder_that_a_model_gets_below_the_given_one_is_told(folder: str, shown: str) -> None:
    model = parse_model(MODEL, "m")
    pair = pair_of("0.5.6", "0.32.0")
    given = {"gds_path": folder}
    rendered = render("gds-blend", schema(NEW), pair, given, Wanted(model, ranks=2))
    assert loaded(rendered)["gds_path"] == f"{folder}/m-tp2-lmcache0.5.6"
    (note,) = [note for note in rendered.notes if "m-tp2-lmcache0.5.6" in note]
    assert "a folder of its own" in note
    assert shown in note
    assert rendered.text.isascii()
    assert not any("folder of its own" in note for note in made(settings=given).notes)


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
    assert "What it needs besides this file: all of it is in place." in text
    assert "[in place] KV001," in text
    assert "[in place] GDS (KV009)," in text
    text = header(made(registered=False))
    assert "TODAY THIS PAIR DOES NOT RUN IT" in text
    assert "[MISSING] KV001, " in text
    assert "[MISSING] K (KV006), " in text
    assert "[MISSING] rope (KV003), " in text
    assert "[MISSING] steps (KV013), " in text
    assert text.count("run `kvpatch apply`") == text.count("[MISSING]") == 10
    text = header(made(registered=None))
    assert "[not known] KV001" in text
    assert "NO HOST WAS LOOKED AT" in text
    assert "no vLLM beside it" in header(made(vllm=None))


def needs(rendered: Rendered) -> dict[str, bool | None]:
    return {need.id: need.present for need in rendered.needs}


@pytest.mark.parametrize("state", [True, False, None])
@pytest.mark.parametrize("lmcache", ["0.5.4", "0.5.6"])
@pytest.mark.parametrize("vllm", ["0.8.5", "0.11.1", "0.22.0", "0.33.0"])
def test_a_pair_runs_gds_blend_where_all_that_is_made_for_it_is_in_place(
    lmcache: str, vllm: str, state: bool | None
) -> None:
    rendered = made(lmcache=lmcache, vllm=vllm, registered=state)
    assert rendered.runs is (state is True)
    assert set(needs(rendered)) >= {"KV001", "GDS", "rope", "separator", "blanks", "places"}
    assert set(needs(rendered).values()) == {state}
    assert not any("rope" in one or "BOS" in one for one in rendered.warnings)


@pytest.mark.parametrize(
    ("lmcache", "vllm", "missing"),
    [
        ("0.5.6", "0.25.1", {}),
        ("0.5.6", "0.26.0", {"K": "KV006"}),
        ("0.5.6", "0.13.0", {"A": "KV004"}),
        ("0.5.6", "0.12.0", {"A": "KV004", "R": "KV003"}),
        ("0.4.6", "0.20.0", {"A": "KV004"}),
        ("0.4.4", "0.20.0", {"A": "KV004", "E": "KV005", "tokens": "KV011"}),
        ("0.3.9", "0.11.0", {}),
        ("0.3.9", "0.11.1", {"E": "KV005"}),
        ("0.3.11", "0.14.0", {"A": "KV004", "R": "KV003", "E": "KV005", "tokens": "KV011"}),
    ],
)
def test_what_else_a_pair_lacks_is_named_with_the_patch_for_it(
    lmcache: str, vllm: str, missing: dict[str, str]
) -> None:
    found = made(lmcache=lmcache, vllm=vllm, profile="blend", registered=False).needs
    of_a_pair = {"A", "R", "E", "K", "tokens"}
    letters = {need.id: need.patches for need in found if need.id in of_a_pair}
    assert letters == {letter: (patch,) for letter, patch in missing.items()}


def test_one_patch_that_is_not_in_place_is_told_apart_from_the_others() -> None:
    pair = pair_of("0.5.6", "0.32.0")
    for patch, need in (("KV009", "GDS"), ("KV003", "rope"), ("KV007", "separator")):
        lacking = replace(pair, cured={**pair.cured, patch: False})
        rendered = render("gds-blend", schema(NEW), lacking, GDS)
        assert [one.id for one in rendered.needs if not one.present] == [need]
        assert not rendered.runs


@pytest.mark.parametrize(
    ("profile", "lmcache", "vllm"),
    [
        ("gds-blend", "0.3.6", "0.11.0"),
        ("gds-blend", "0.5.7rc2", "0.22.0"),
        ("blend", "0.4.6", "0.26.0"),
        ("blend", "0.5.7rc2", "0.33.0"),
    ],
)
def test_what_no_patch_is_made_for_is_refused(profile: str, lmcache: str, vllm: str) -> None:
    for state in (True, None):
        with pytest.raises(KvpatchError, match="no patch for that on this release") as caught:
            made(lmcache=lmcache, vllm=vllm, profile=profile, registered=state)
        assert (caught.value.code, caught.value.exit_code) == ("no-cure", ExitCode.REFUSED)
        assert f"can't run {profile}. It needs this: LMCache" in caught.value.message


def test_a_release_without_a_patch_for_the_separator_is_warned_of() -> None:
    rendered = made(lmcache="0.5.7rc2", vllm="0.22.0", profile="blend")
    assert "separator" not in needs(rendered)
    assert [one for one in rendered.warnings if "BOS token" in one]
    assert [one for one in rendered.warnings if "unpins chunks" in one]


def test_every_patch_that_a_profile_names_is_there_and_has_its_release_in_range() -> None:
    patches = {member.id: member.patch for member in discover().members}
    wanted = load("gds-blend").common["needs"]
    named = {patch for need in wanted.values() for patch in need.get("patches", ())}
    named |= {name for name, need in wanted.items() if need.get("given") == "registration"}
    curing = {patch.id for patch in patches.values() for cure in patch.cures if cure in wanted}
    # KV008 stops at settings that no profile writes, and none writes a local_disk.
    assert named | curing == set(patches) - {"KV008", "KV014"}
    for release in ("0.5.4", "0.5.6"):
        assert release in wanted["GDS"]["instead"]
        assert patches["KV009"].in_range(Version(release))
    for release in ("0.4.7", "0.5.6"):
        assert release in wanted["K"]["instead"]
        assert patches["KV006"].in_range(Version(release))


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


@pytest.mark.parametrize(
    ("lmcache", "needed"),
    [("0.3.9.post2", False), ("0.3.10", True), ("0.4.4", True), ("0.4.5", False)],
)
def test_blending_needs_tokens_that_can_be_sent(lmcache: str, needed: bool) -> None:
    assert ("tokens" in needs(made(lmcache=lmcache, vllm="0.11.0", profile="blend"))) is needed
    assert made(lmcache=lmcache, vllm="0.11.0", profile="cpu-offload").text


@pytest.mark.parametrize(
    ("profile", "lmcache", "needed"),
    [
        ("blend", "0.3.9.post2", True),
        ("blend", "0.3.10", True),
        ("cpu-offload", "0.3.3", True),
        ("cpu-offload", "0.5.6", True),
        ("mp-cache", "0.5.6", False),
        ("gds", "0.3.6", True),
    ],
)
def test_what_a_preempted_request_needs_has_nothing_to_do_with_blending(
    profile: str, lmcache: str, needed: bool
) -> None:
    vllm = "0.11.0" if needed else "0.32.0"
    found = made(lmcache=lmcache, vllm=vllm, profile=profile).needs
    assert (("preempted", ("KV016",)) in [(one.id, one.patches) for one in found]) is needed


@pytest.mark.parametrize(
    ("profile", "lmcache", "needed"),
    [
        ("blend", "0.4.2", False),
        ("blend", "0.4.3", True),
        ("blend", "0.5.6", True),
        ("cpu-offload", "0.5.6", False),
        ("gds-blend", "0.5.6", False),
    ],
)
def test_pins_are_to_be_kept_where_the_cpu_tier_is_loaded_layer_by_layer(
    profile: str, lmcache: str, needed: bool
) -> None:
    found = made(lmcache=lmcache, vllm="0.14.0", profile=profile).needs
    assert (("pins", ("KV018",)) in [(one.id, one.patches) for one in found]) is needed


def test_a_profile_that_does_not_blend_needs_pins_where_a_file_loads_layer_by_layer() -> None:
    pair = replace(pair_of("0.5.6", "0.32.0", True), by_layer=True)
    found = render("cpu-offload", schema(NEW), pair, {}).needs
    assert ("pins", ("KV018",)) in [(one.id, one.patches) for one in found]


def test_deferring_the_connector_is_needed_up_to_vllm_0_11_0_alone() -> None:
    assert needs(made(vllm="0.11.0"))["KV002"] is True
    assert needs(made(vllm="0.11.0", registered=False))["KV002"] is False
    assert "KV002" not in needs(made(vllm="0.11.1"))


def test_without_a_vllm_what_hangs_on_it_is_not_known() -> None:
    found = needs(made(vllm=None, registered=None))
    assert found["KV001"] is found["KV002"] is found["K"] is None
    assert found["GDS"] is None


@pytest.mark.parametrize(
    ("lmcache", "corrupts"),
    [("0.3.6", False), ("0.3.7", True), ("0.3.9.post2", True), ("0.4.3", True), ("0.4.4", False)],
)
def test_the_releases_that_mix_up_gds_keys_are_refused_where_no_patch_mends_it(
    lmcache: str, corrupts: bool
) -> None:
    for profile, instead in (("gds", "cpu-offload"), ("gds-blend", "blend")):
        if not corrupts and profile == "gds-blend" and Version(lmcache) < Version("0.4.4"):
            continue
        if not corrupts:
            assert made(lmcache=lmcache, vllm="0.11.0", profile=profile).text
            continue
        with pytest.raises(KvpatchError, match="silently wrong") as caught:
            made(lmcache=lmcache, profile=profile)
        assert caught.value.hint.endswith(f"the profile {instead}")


@pytest.mark.parametrize(
    ("lmcache", "mixed_up"),
    [
        ("0.4.4", True),
        ("0.5.0", True),
        ("0.4.8.dev42", True),
        ("0.5.3", True),
        ("0.5.4rc2", True),
        ("0.5.4rc3", False),
        ("0.5.6", False),
    ],
)
@pytest.mark.parametrize("profile", ["gds", "gds-blend"])
def test_mixed_up_gds_keys_are_a_need_that_kv009_meets(
    profile: str, lmcache: str, mixed_up: bool
) -> None:
    for state in (True, False, None):
        rendered = made(lmcache=lmcache, vllm="0.25.1", profile=profile, registered=state)
        found = {need.id: (need.patches, need.present) for need in rendered.needs}
        assert found.get("S") == ((("KV009",), state) if mixed_up else None)
        told = [one for one in rendered.warnings if "0.5.6 alone" in one]
        assert len(told) == mixed_up


@pytest.mark.parametrize(
    ("lmcache", "vllm", "told"),
    [
        ("0.9.0", "0.32.0", "LMCache 0.9.0 is untested: this kvpatch knows LMCache 0.3.3 to"),
        ("0.5.6", "0.40.0", "vLLM 0.40.0 is untested: this kvpatch knows vLLM 0.8.5 to"),
    ],
)
def test_a_newer_release_than_known_is_warned_of_at_the_top(
    lmcache: str, vllm: str, told: str
) -> None:
    rendered = made(lmcache=lmcache, vllm=vllm, profile="cpu-offload")
    assert [told in one for one in rendered.warnings].count(True) == 1
    before, untested, after = header(rendered).partition(f"WARNING: {told}")
    assert untested
    assert before.rstrip().endswith(f"For LMCache {lmcache} and vLLM {vllm}.")
    assert told not in after


def test_a_newer_release_than_known_is_not_promised_that_apply_will_do() -> None:
    known, newer = made(registered=None), made(vllm="0.40.0", registered=None)
    assert {need.hint for need in known.needs} == {"run `kvpatch apply`"}
    assert {need.id for need in newer.needs} == {need.id for need in known.needs}
    assert {need.hint for need in newer.needs} == {
        "try `kvpatch apply`, which is untested on this pair"
    }
    assert not any("untested" in one for one in known.warnings)
    assert not any("untested" in one for one in made(vllm="0.32.0+cpu").warnings)


@pytest.mark.parametrize(
    ("lmcache", "vllm", "told"),
    [
        ("0.3.3", "0.8.0", "vLLM 0.8.0 is too old for cpu-offload: kvpatch covers vLLM 0.8.5 to"),
        ("0.3.2", "0.11.0", "LMCache 0.3.2 is too old for cpu-offload: kvpatch covers LMCache"),
    ],
)
def test_an_older_release_than_supported_is_refused_with_the_range(
    lmcache: str, vllm: str, told: str
) -> None:
    with pytest.raises(KvpatchError) as caught:
        made(lmcache=lmcache, vllm=vllm, profile="cpu-offload")
    assert (caught.value.code, caught.value.exit_code) == ("no-cure", ExitCode.REFUSED)
    assert caught.value.message.startswith(told)


PLACE = ("--python", "/srv/a  b/\u00e4/bin/python", "--state", "/var/lib/kvpatch/of/this/host")


def test_every_command_of_the_header_is_whole_and_for_the_named_place() -> None:
    pair = pair_of("0.5.6", "0.32.0", False)
    rendered = render("gds-blend", schema(NEW), pair, GDS, place=PLACE)
    (hint,) = {need.hint for need in rendered.needs}
    line = hint.removeprefix("run `").removesuffix("`")
    said = subprocess.run(
        ["bash", "-c", f"kvpatch() {{ printf '%s\\0' \"$@\"; }}; {line}"],
        capture_output=True,
        check=True,
    )
    assert said.stdout.decode().split("\0")[:-1] == ["apply", *PLACE]
    assert rendered.text.isascii()
    assert rendered.text.count(f"`{line}`") == len(rendered.needs) > 1
    assert rendered.text.count("kvpatch apply") == len(rendered.needs)


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
    text = command(made(lmcache="0.5.7rc2", profile="cpu-offload"))
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
        assert bool(info.needs) is (info.name not in ("mp-cache", "native-offload"))
        assert set(info.tested) == {"lmcache", "vllm"}
        for spec in info.tested.values():
            assert SpecifierSet(spec)


def test_every_concept_says_what_happens_where_no_line_fits() -> None:
    for name in names():
        for concept, entry in load(name).concepts:
            assert ("refuse" in entry) != ("absent" in entry), concept
            assert all(line["keys"] for line in entry["lines"])
            assert all({"why", "here"} & set(line) for line in entry["lines"])
