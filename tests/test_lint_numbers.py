"""Rules about numbers, on real releases, and their units against the releases' own code."""

from __future__ import annotations

import re

import pytest
from kvpatch import catalogue, rules
from kvpatch.lint_numbers import GIB, MIB, UNITS
from kvpatch.rules import Level
from linted import BLEND, NEWEST, only, run, schema
from packaging.version import Version
from releases import release_file

pytestmark = pytest.mark.releases

BACKENDS = "lmcache/v1/storage_backend"
# Where each size is multiplied by its unit, or handed to an allocator that takes bytes.
MULTIPLIED = {
    "gds_buffer_size": (f"{BACKENDS}/gds_backend.py", r"config\.gds_buffer_size \* 1024\*\*2"),
    "max_local_cpu_size": (
        f"{BACKENDS}/local_cpu_backend.py",
        r"config\.max_local_cpu_size \* 1024\*\*3",
    ),
    "max_local_disk_size": (
        f"{BACKENDS}/local_disk_backend.py",
        r"config\.max_local_disk_size \* 1024\*\*3",
    ),
    "reserve_local_cpu_size": (
        f"{BACKENDS}/local_cpu_backend.py",
        r"system_available_memory_gb - reserve_cpu_size",
    ),
    "lazy_memory_safe_size": (
        f"{BACKENDS}/local_cpu_backend.py",
        r"cpu_size > config\.lazy_memory_safe_size",
    ),
    "max_hidden_state_cpu_size": (
        "lmcache/v1/hidden_state_store.py",
        r"config\.max_hidden_state_cpu_size \* _GIB",
    ),
    "maru_pool_size": (
        f"{BACKENDS}/maru_backend.py",
        r"_pool_size_gb_to_bytes\(config\.maru_pool_size\)",
    ),
    "nixl_buffer_size": (
        f"{BACKENDS}/nixl_storage_backend.py",
        r"buffer_size = config\.nixl_buffer_size\n",
    ),
    "pd_buffer_size": (f"{BACKENDS}/pd_backend.py", r"buffer_size=config\.pd_buffer_size,"),
}


def test_the_unit_of_every_size_is_the_one_that_the_newest_release_takes() -> None:
    sizes = {name for name in schema(NEWEST).keys if name.endswith("_size")} - {"chunk_size"}
    assert sizes == set(MULTIPLIED) == set(UNITS) - {"cufile_buffer_size"}
    for name, (path, pattern) in MULTIPLIED.items():
        assert re.search(pattern, release_file("lmcache", NEWEST, path).decode()), name


@pytest.mark.parametrize(("name", "unit"), [(n, u) for n, u in UNITS.items() if u > 1])
def test_bytes_are_an_error_with_the_right_number_as_the_fix(name: str, unit: int) -> None:
    release = "0.4.3" if name == "cufile_buffer_size" else NEWEST
    # More than the unit's limit, whatever the unit is.
    count = 4096 if unit == MIB else 5
    found = only(run(f"{name}: {count * unit}\n", release), rules.BYTES)
    assert found.fix is not None
    assert found.fix.value == count
    assert f"bytes are {count} {'MiB' if unit == MIB else 'GiB'}" in found.message
    assert rules.BYTES not in {one.rule for one in run(f"{name}: {count}\n", release).findings}


def test_a_number_of_bytes_that_is_no_whole_unit_has_no_certain_fix() -> None:
    found = only(run("max_local_cpu_size: 5000000000\n"), rules.BYTES)
    assert found.fix is None
    assert "give it in GiB" in found.message


def test_both_sizes_of_an_ordinary_file_are_found() -> None:
    linted = run(
        f"local_cpu: true\nmax_local_cpu_size: {5 * GIB}\nmax_local_disk_size: {10 * GIB}\n"
    )
    fixes = {one.key: one.fix.value for one in linted.findings if one.fix}
    assert fixes == {"max_local_cpu_size": 5, "max_local_disk_size": 10}


def test_a_buffer_in_bytes_that_holds_nothing_is_an_error() -> None:
    assert only(run("nixl_buffer_size: 4096\n"), rules.BYTES).fix is None
    assert rules.BYTES not in {one.rule for one in run(f"nixl_buffer_size: {GIB}\n").findings}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("blend_recompute_ratios: [15]", "15 % are 0.15"),
        ("blend_recompute_ratios: [0.1, -0.1]", "not -0.1"),
        ("blend_recompute_ratios: [150]", "from 0 to 1, and not 150"),
        ("blend_check_layers: [-1]", "must be 0 or more"),
        ("chunk_size: 0", "must be 1 or more"),
        ("chunk_size: -256", "must be 1 or more"),
        ("max_local_cpu_size: -1", "must be 0 or more"),
        ("gds_buffer_size: -1", "must be 0 or more"),
        ("max_local_disk_size: .nan", "must be 0 or more"),
        ("pd_proxy_port: -1", "is no port"),
        ("pd_proxy_port: 70000", "is no port"),
        ("lmcache_worker_ports: [8000, -1]", "-1 is no port"),
        ("internal_api_server_port_start: 99999", "is no port"),
    ],
)
def test_a_number_that_cannot_be_is_an_error_and_left_to_the_user(text: str, said: str) -> None:
    found = only(run(f"{text}\n"), rules.IMPOSSIBLE)
    assert said in found.message
    assert found.fix is None
    assert found.line == 1


def test_numbers_at_the_ends_of_what_can_be_are_fine() -> None:
    text = (
        "blend_recompute_ratios: [0, 1.0]\nblend_check_layers: [0]\nchunk_size: 1\n"
        "max_local_disk_size: 0\ninternal_api_server_port_start: 65535\n"
        "lmcache_worker_ports: [0]\n"
    )
    assert run(text).findings == ()


def test_ratios_behind_the_first_are_told_to_have_no_effect() -> None:
    two = BLEND.replace("[0.15]", "[0.15, 0.2]")
    found = only(run(two), rules.APART)
    assert found.level is Level.WARNING
    assert "2 numbers for 1 check layer: LMCache takes the first (0.15)" in found.message
    assert "for 2 check layers" in only(run(two.replace("[1]", "[1, 9]")), rules.APART).message
    told = {one.rule for one in run(BLEND.replace("[1]", "[1, 9]")).findings}
    assert rules.APART not in told
    off = two.replace("enable_blending: true", "enable_blending: false")
    assert rules.APART not in {one.rule for one in run(off).findings}


def test_every_release_with_ratios_takes_the_first_alone() -> None:
    for release in catalogue.load().releases["lmcache"]:
        if Version(release) >= Version("0.3.6"):
            text = release_file("lmcache", release, "lmcache/v1/compute/blend/blender.py").decode()
            used = re.findall(r"recomp_ratios\[(.*?)\]", text)
            assert set(used) == {"0"}, release


def test_a_least_number_of_tokens_is_noted_as_what_no_release_looks_at() -> None:
    for written in ("64", "256", "-1"):
        (found,) = run(f"{BLEND}blend_min_tokens: {written}\n").findings
        assert (found.rule, found.level) == (rules.NO_EFFECT, Level.NOTE)
        assert "no LMCache up to 0.5.7rc2 looks at blend_min_tokens" in found.message
    assert run(BLEND).findings == ()


@pytest.mark.parametrize("release", ["0.3.3", "0.3.9.post2", "0.4.5", "0.5.6"])
def test_what_blends_in_a_release_does_not_look_at_that_number(release: str) -> None:
    for path in ("v1/compute/blend/blender", "integration/vllm/vllm_v1_adapter", "v1/cache_engine"):
        code = release_file("lmcache", release, f"lmcache/{path}.py")
        assert b"blend" in code
        assert b"blend_min_tokens" not in code


@pytest.mark.parametrize(("size", "right"), [("4", "4096"), ("15", "15360"), ("16", None)])
def test_a_gds_buffer_of_a_few_mib_may_be_meant_in_gib(size: str, right: str | None) -> None:
    text = f"gds_path: /mnt/a\nlocal_cpu: false\ngds_buffer_size: {size}\n"
    found = [one for one in run(text).findings if one.rule is rules.BYTES]
    assert [one.level for one in found] == [Level.WARNING] * (right is not None)
    assert all(f"write {right} if {size} GiB are meant" in one.message for one in found)


@pytest.mark.parametrize(
    ("size", "prompt", "right"),
    [(32, 32, None), (4, 4, None), (32, 64, 64), (4, 4096, 4096), (4, None, 4 * 1024)],
)
def test_a_small_gds_buffer_is_held_against_the_longest_prompt(
    size: int, prompt: int | None, right: int | None
) -> None:
    text = f"gds_path: /mnt/a\nlocal_cpu: false\ngds_buffer_size: {size}\n"
    linted = run(text, prompt_mib=prompt)
    found = [one for one in linted.findings if one.rule is rules.BYTES]
    assert [one.level for one in found] == [Level.WARNING] * (right is not None)
    assert all(f"write {right}" in one.message for one in found)


@pytest.mark.parametrize(
    ("layers", "ratios", "told"),
    [("[1, 20]", "[0.15]", True), ("[1, 1]", "[0.15]", False), ("[1, 20]", "[1.0]", False)],
)
def test_two_check_layers_are_a_warning(layers: str, ratios: str, told: bool) -> None:
    text = BLEND.replace("[0.15]", ratios).replace("[1]", layers)
    found = [one for one in run(text).findings if one.rule is rules.TWO_LAYERS]
    assert [one.key for one in found] == ["blend_check_layers"] * told
