"""Rules about values that do not go together, on real releases."""

from __future__ import annotations

import re

import pytest
from kvpatch import key_history, pairs, rules, series
from kvpatch.absence import Absence
from kvpatch.curing import curable
from kvpatch.lint import lint
from kvpatch.lint_combinations import LOADS_NONE
from kvpatch.rules import Level
from kvpatch.surroundings import Surroundings
from kvpatch.templates import load
from kvpatch.yaml_source import parse_yaml
from linted import BLEND, NEWEST, ids, only, run, schema
from packaging.version import Version
from releases import release_file, vllm_releases

pytestmark = pytest.mark.releases


def test_blending_without_layerwise_is_an_error_with_the_fix() -> None:
    found = only(run(BLEND.replace("use_layerwise: true\n", "")), rules.LAYERWISE)
    assert found.fix is not None
    assert (found.fix.key, found.fix.value) == ("use_layerwise", True)


def test_blending_without_ratios_is_an_error_from_0_3_6_on() -> None:
    text = "enable_blending: true\nuse_layerwise: true\nsave_unfull_chunk: true\n"
    fixes = {one.fix.key: one.fix.value for one in run(text).findings if one.fix}
    assert fixes == {"blend_recompute_ratios": [0.15], "blend_check_layers": [1]}
    assert ids(run(text)) == {"blending-without-choice"}
    assert "blending-without-choice" not in ids(run(text, "0.3.5"))


def test_gds_on_a_release_that_mixes_up_its_keys_is_an_error() -> None:
    text = "gds_path: /mnt/a\n{}: 64\n"
    assert "gds-release-corrupts" in ids(run(text.format("cufile_buffer_size"), "0.3.9"))
    assert "gds-release-corrupts" not in ids(run(text.format("gds_buffer_size"), "0.5.4"))


@pytest.mark.parametrize(
    ("release", "there", "level", "step"),
    [
        ("0.4.3", True, Level.ERROR, ": take LMCache 0.5.4, or the profile cpu-offload"),
        ("0.4.4", None, Level.NOTE, "whether KV009 is in place, or take LMCache 0.5.4"),
        ("0.4.4", False, Level.ERROR, "`kvpatch apply` (KV009), or take LMCache 0.5.4"),
        ("0.4.4", True, None, ""),
        ("0.5.3", False, Level.ERROR, "`kvpatch apply` (KV009)"),
        ("0.5.3", True, None, ""),
        ("0.5.4", False, None, ""),
    ],
)
def test_the_patch_for_gds_cures_that_from_0_4_4_on(
    release: str, there: bool | None, level: Level | None, step: str
) -> None:
    buffer = "gds_buffer_size" if release >= "0.4.4" else "cufile_buffer_size"
    file = parse_yaml(f"gds_path: /mnt/a\n{buffer}: 64\n")
    around = Surroundings(gds_blends=there)
    found = lint(file, schema(release), key_history.load(), around).findings
    told = [one for one in found if one.rule is rules.CORRUPTS]
    assert [one.level for one in told] == [level] * bool(level)
    assert all(step in one.message for one in told)


@pytest.mark.parametrize(
    ("absent", "level", "said"),
    [
        (Absence(("KV001", "KV003")), Level.WARNING, "(KV001, KV003): run `kvpatch apply`"),
        (Absence(("KV001",), unsure=True), Level.WARNING, "(KV001)"),
        (Absence((), unsure=True), Level.NOTE, "can't be told"),
        (Absence(), None, ""),
        (None, None, ""),
    ],
)
def test_blending_on_a_host_that_lacks_patches_is_a_warning(
    absent: Absence | None, level: Level | None, said: str
) -> None:
    around = Surroundings(absence=None if absent is None else lambda: absent)
    found = lint(parse_yaml(BLEND), schema(NEWEST), key_history.load(), around).findings
    assert [one.level for one in found if one.rule is rules.PATCHES] == [level] * bool(level)
    assert all(said in one.message for one in found)
    off = lint(parse_yaml("chunk_size: 256\n"), schema(NEWEST), key_history.load(), around)
    assert off.findings == ()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("", "(KV003)"),
        ("local_disk: /mnt/kv/\n", "(KV003)"),
        ("local_disk: /mnt/kv/\nmax_local_disk_size: 5\n", "(KV003, KV014)"),
    ],
)
def test_the_patch_for_chunks_on_disk_is_asked_for_where_they_go_there(
    more: str, told: str
) -> None:
    around = Surroundings(absence=lambda: Absence(("KV003", "KV014")))
    found = lint(parse_yaml(BLEND + more), schema(NEWEST), key_history.load(), around).findings
    (only_one,) = [one for one in found if one.rule is rules.PATCHES]
    assert told in only_one.message


@pytest.mark.parametrize("absent", [None, Absence(), Absence((), unsure=True), Absence(("KV003",))])
@pytest.mark.parametrize(
    ("vllm", "lmcache"), [("0.32.0", "0.4.5"), ("0.32.0", "0.5.6"), ("0.11.0", "0.3.3")]
)
def test_a_pair_that_no_patch_cures_is_told_with_what_to_take(
    vllm: str, lmcache: str, absent: Absence | None
) -> None:
    around = Surroundings(vllm=Version(vllm), absence=None if absent is None else lambda: absent)
    found = lint(parse_yaml(BLEND), schema(lmcache), key_history.load(), around).findings
    told = [one for one in found if one.rule is rules.PATCHES]
    shipped = pairs.load()
    known = shipped.of(Version(vllm), Version(lmcache))
    assert known is not None
    if known.ok:
        assert len(told) == (absent not in (None, Absence()))
        assert all("`kvpatch " in one.todo for one in told)
        return
    nearest = shipped.nearest(Version(vllm), Version(lmcache))[0]
    (only_one,) = told
    assert only_one.level is Level.WARNING
    assert only_one.todo.startswith(f"take {' '.join(nearest.split()[:2])}")
    assert only_one.message.endswith(only_one.todo)


@pytest.mark.parametrize("there", [None, False])
@pytest.mark.parametrize("release", ["0.3.9.post2", "0.4.3", "0.4.4", "0.5.6", "0.5.7rc2"])
def test_apply_is_named_for_gds_with_blending_only_where_its_patch_is_for_the_release(
    release: str, there: bool | None
) -> None:
    patch = series.discover().get("KV009").patch
    buffer = "cufile_buffer_size" if release < "0.4" else "gds_buffer_size"
    text = f"{BLEND}gds_path: /mnt/a\n{buffer}: 64\nlocal_cpu: false\n"
    around = Surroundings(vllm=Version("0.11.0"), gds_blends=there)
    found = lint(parse_yaml(text), schema(release), key_history.load(), around).findings
    (told,) = (one for one in found if one.rule is rules.GDS_BLEND)
    made = patch.in_range(Version(release))
    assert ("KV009" in told.message) is made
    assert ("`kvpatch " in told.todo) is made
    assert made or re.search(r"^take LMCache 0\.5\.\d, or the profile ", told.todo)
    assert made or told.level is Level.WARNING


def test_gds_and_blending_take_chunks_from_one_tier_alone() -> None:
    text = f"{BLEND}gds_path: /mnt/a\ngds_buffer_size: 64\n"
    fixes = {one.fix.key: one.fix.value for one in run(text).findings if one.fix}
    assert fixes == {"local_cpu": False, "retrieve_locations": ["GdsBackend"]}
    whole = f"{text}local_cpu: false\nretrieve_locations: [GdsBackend]\n"
    assert ids(run(whole)) == set()
    assert ids(run(whole), Level.NOTE) == {"gds-and-blending", "hash-seed"}
    wrong = whole.replace("[GdsBackend]", "[LocalCPUBackend]")
    assert ids(run(wrong)) == {"blending-from-two-tiers"}


def test_gds_needs_its_buffer_staging_memory_and_an_absolute_path() -> None:
    linted = run("gds_path: cache\nlocal_cpu: false\nmax_local_cpu_size: 0\n")
    assert ids(linted) == {"gds-without-buffer", "no-staging-memory", "gds-path"}


@pytest.mark.parametrize(
    ("there", "level"), [(None, Level.NOTE), (False, Level.WARNING), (True, None)]
)
def test_gds_with_blending_is_told_by_whether_its_patch_is_there(
    there: bool | None, level: Level | None
) -> None:
    text = f"{BLEND}gds_path: /mnt/a\ngds_buffer_size: 64\n"
    around = Surroundings(gds_blends=there)
    found = lint(parse_yaml(text), schema(NEWEST), key_history.load(), around).findings
    assert [one.level for one in found if one.rule is rules.GDS_BLEND] == [level] * bool(level)


LAYERS = "use_layerwise: true\n"


@pytest.mark.parametrize(
    ("vllm", "absent", "level", "said"),
    [
        ("0.32.0", Absence(("KV001", "KV006")), Level.WARNING, "missing (KV006): run `kvpatch"),
        ("0.32.0", Absence(("KV001", "KV003")), None, ""),
        ("0.32.0", Absence((), unsure=True), Level.NOTE, "can't be told"),
        ("0.25.1", Absence(("KV001",), unsure=True), None, ""),
        ("0.32.0", None, None, ""),
        (None, Absence(("KV001",), unsure=True), None, ""),
    ],
)
def test_layer_by_layer_without_blending_asks_for_its_patch_alone(
    vllm: str | None, absent: Absence | None, level: Level | None, said: str
) -> None:
    around = Surroundings(
        vllm=Version(vllm) if vllm else None, absence=None if absent is None else lambda: absent
    )
    found = lint(parse_yaml(LAYERS), schema(NEWEST), key_history.load(), around).findings
    assert [(one.level, one.key) for one in found] == [(level, "use_layerwise")] * bool(level)
    assert all(one.rule is rules.PATCHES and said in one.message for one in found)
    off = lint(parse_yaml("use_layerwise: false\n"), schema(NEWEST), key_history.load(), around)
    assert off.findings == ()


@pytest.mark.parametrize(
    ("text", "vllm", "key", "said"),
    [
        ("chunk_size: 256\n", "0.31.0", "", "for requests that vLLM preempts are missing (KV016)"),
        ("chunk_size: 256\n", "0.30.0", "", "log probs of the prompt are missing (KV016, KV017)"),
        (LAYERS, "0.25.1", "use_layerwise", "by layer are missing (KV016, KV017, KV018)"),
        (LAYERS, "0.32.0", "use_layerwise", "are missing (KV006, KV016, KV018)"),
        (f"{LAYERS}local_cpu: false\n", "0.31.0", "use_layerwise", "are missing (KV006, KV016)"),
    ],
)
def test_what_is_served_without_blending_asks_for_the_patches_of_its_own_faults(
    text: str, vllm: str, key: str, said: str
) -> None:
    absent = Absence(("KV001", "KV006", "KV014", "KV016", "KV017", "KV018"))
    around = Surroundings(vllm=Version(vllm), absence=lambda: absent)
    found = lint(parse_yaml(text), schema(NEWEST), key_history.load(), around).findings
    told = [one for one in found if one.rule is rules.PATCHES]
    assert [(one.level, one.key) for one in told] == [(Level.WARNING, key)]
    assert said in told[0].message


@pytest.mark.parametrize("release", vllm_releases())
def test_log_probs_of_a_prompt_ask_for_a_patch_where_vllm_loads_it_all_the_same(
    release: str,
) -> None:
    scheduler = release_file("vllm", release, "vllm/v1/core/sched/scheduler.py")
    loads = b"request.skip_reading_prefix_cache" not in scheduler
    assert (Version(release) < LOADS_NONE) is loads
    needs = load("cpu-offload").needs(curable(Version(NEWEST), Version(release)))
    assert ("logprobs" in {need.id for need in needs}) is loads


@pytest.mark.parametrize(("lmcache", "wrong"), [("0.4.6", True), ("0.4.7", False)])
def test_a_pair_that_no_patch_moves_layer_by_layer_is_told(lmcache: str, wrong: bool) -> None:
    around = Surroundings(vllm=Version("0.32.0"))
    found = lint(parse_yaml(LAYERS), schema(lmcache), key_history.load(), around).findings
    told = [one for one in found if one.rule is rules.PATCHES]
    assert [one.todo for one in told] == ["take LMCache 0.4.7, or leave use_layerwise off"] * wrong


@pytest.mark.parametrize(
    ("release", "there", "todo"),
    [
        ("0.5.6", True, None),
        ("0.5.6", False, "run `kvpatch apply`"),
        ("0.5.6", None, "see `kvpatch status` whether it is in place"),
        ("0.5.7rc2", False, "take LMCache 0.5.6, or leave use_layerwise off"),
    ],
)
def test_layer_by_layer_from_gds_needs_its_patch_without_blending_too(
    release: str, there: bool | None, todo: str | None
) -> None:
    text = f"{LAYERS}gds_path: /mnt/a\ngds_buffer_size: 64\nlocal_cpu: false\n"
    around = Surroundings(vllm=Version("0.25.1"), gds_blends=there)
    found = lint(parse_yaml(text), schema(release), key_history.load(), around).findings
    told = [one for one in found if one.rule is rules.GDS_BLEND]
    assert [one.todo for one in told] == ([] if todo is None else [todo])
    assert all("layer by layer" in one.message for one in told)


@pytest.mark.parametrize("separator", ["\\n\\n", " \\n", "\\t"])
def test_a_separator_of_blanks_is_a_separator(separator: str) -> None:
    blank = f'{BLEND}blend_special_str: "{separator}"\n'
    assert rules.SEPARATOR not in {one.rule for one in run(blank).findings}
    empty = run(f'{BLEND}blend_special_str: ""\n')
    assert rules.SEPARATOR in {one.rule for one in empty.findings}


@pytest.mark.parametrize("python", [(3, 11), (3, 12)])
def test_the_release_to_take_for_gds_keeps_its_keys_on_that_python(python: tuple[int, ...]) -> None:
    text = "gds_path: /mnt/k\nlocal_cpu: false\ncufile_buffer_size: 4096\n"

    def told(release: str) -> list[str]:
        findings = run(text, release, vllm="0.11.0", python=python).findings
        return [one.message for one in findings if one.rule in (rules.CORRUPTS, rules.SEED)]

    (mixed,) = [one for one in told("0.3.9.post2") if "mix up" in one]
    right = re.search(r"take LMCache (\S+), or ", mixed)
    assert right is not None
    assert not [one for one in told(right[1]) if "mix up" in one or "hashes None" in one]
