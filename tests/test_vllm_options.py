"""What vLLM's options come to, against the sources of every release."""

from __future__ import annotations

import ast
import re

import pytest
from kvpatch.option_names import known
from kvpatch.vllm_options import (
    SHORTEST,
    Offloads,
    default_utilization,
    full_name,
    is_no_number,
    level,
    level_is_safe,
    offloads,
    utilization,
)
from packaging.version import Version
from releases import ReleaseFilesMissingError, release_file, vllm_releases


def first_of(release: str, *paths: str) -> str:
    """The first of these files that the release has."""
    path, *others = paths
    try:
        return release_file("vllm", release, path).decode()
    except ReleaseFilesMissingError:
        if not others:
            raise
        return first_of(release, *others)


def options(release: str) -> set[str]:
    """Every option that the engine and the server have, with the no- forms."""
    engine = first_of(release, "vllm/engine/arg_utils.py")
    server = first_of(
        release,
        "vllm/entrypoints/launchers/cli_args.py",
        "vllm/entrypoints/openai/cli_args.py",
        "vllm/entrypoints/common/cli_args.py",
    )
    texts = {
        node.value
        for text in (engine, server)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    names = {text[2:] for text in texts if re.fullmatch(r"--[a-z][a-z0-9_-]+", text)}
    return {name.replace("_", "-") for name in names}


@pytest.mark.releases
@pytest.mark.parametrize("release", vllm_releases())
def test_so_much_of_a_name_is_no_other_options(release: str) -> None:
    there = known(Version(release)) or frozenset()
    assert "kv-transfer-config" in there
    assert not any(name.startswith("x-") for name in there)
    for option, shortest in SHORTEST.items():
        plain, part = option.removeprefix("no-"), shortest.removeprefix("no-")
        assert {name for name in there if name.startswith(part)} <= {plain}


@pytest.mark.releases
@pytest.mark.parametrize("release", vllm_releases())
def test_the_defaults_are_the_releases_own(release: str) -> None:
    cache = first_of(release, "vllm/config/cache.py", "vllm/config/__init__.py", "vllm/config.py")
    (share,) = re.findall(r"gpu_memory_utilization: float = (?:Field\(default=)?([\d.]+)", cache)
    assert default_utilization(Version(release)) == float(share)
    alias = "device-memory-utilization"
    name, _ = utilization({alias: "0.5"}, Version(release))
    assert (name == alias) is (alias in options(release))


@pytest.mark.releases
@pytest.mark.parametrize("release", vllm_releases())
def test_a_level_chooses_the_graphs_where_the_release_says_so(release: str) -> None:
    text = first_of(release, "vllm/config/vllm.py", "vllm/config/__init__.py", "vllm/config.py")
    for number, mode in (("0", "NONE"), ("1", "PIECEWISE")):
        found = re.search(rf"^OPTIMIZATION_LEVEL_0{number} = \{{.*?^\}}", text, re.M | re.S)
        assert level_is_safe(number, Version(release)) is (True if found else None)
        assert found is None or f"CUDAGraphMode.{mode}," in found[0]


@pytest.mark.releases
@pytest.mark.parametrize("release", vllm_releases())
def test_offloading_is_what_the_release_makes_of_it(release: str) -> None:
    vllm = Version(release)
    text = first_of(release, "vllm/config/vllm.py", "vllm/config/__init__.py", "vllm/config.py")
    found = re.search(r"def _post_init_kv_transfer_config.*?^    def ", text, re.M | re.S)
    backend = offloads({"kv-offloading-backend": "native"}, vllm)
    size = offloads({"kv-offloading-size": "4"}, vllm)
    if found is None:
        assert "no such option" in backend.stops
        assert "no such option" in size.stops
        assert "kv-offloading-size" not in options(release)
        return
    wants = "You must set kv_offloading_size" in found[0]
    assert bool(backend.stops) is wants
    assert size.chooses is (not wants)
    both = {"kv-offloading-size": "4", "kv-offloading-backend": "lmcache"}
    assert offloads(both, vllm) == Offloads(True, '"LMCacheConnectorV1"' in found[0])


def test_without_a_release_nothing_definite_is_said() -> None:
    assert offloads({}, None) == Offloads()
    assert offloads({"kv-offloading-size": "4"}, None).chooses is None
    assert level_is_safe("0", None) is None
    assert level_is_safe("3", None) is False


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("kv-transfer", "kv-transfer-config"),
        ("kv-transfer.kv_role", "kv-transfer-config.kv_role"),
        ("no-enable-prefix-cach", "no-enable-prefix-caching"),
        ("kv", "kv"),
        ("kv-transfer-configs", "kv-transfer-configs"),
        ("", ""),
    ],
)
def test_the_beginning_of_a_name_is_the_option_where_it_can_be_no_other(
    name: str, full: str
) -> None:
    assert full_name(name) == full


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ({}, None),
        ({"O0": True}, "0"),
        ({"O": "1"}, "1"),
        ({"optimization-level": "0", "O3": "m"}, "3"),
        ({"O": '{"level": 0}'}, None),
    ],
)
def test_the_level_is_read_in_every_form(flags: dict[str, str | bool], found: str | None) -> None:
    assert level(flags) == found


@pytest.mark.parametrize(("text", "is_none"), [("0.9", False), ("95%", True), ("$X", False)])
def test_what_is_no_number_is_known(text: str, is_none: bool) -> None:
    assert is_no_number(text) is is_none
