"""Faults that people met with versions, each with what kvpatch says of it before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import kvpatch
from kvpatch import pairs
from kvpatch.diagnosis import State
from kvpatch.pair_checks import extension_check
from kvpatch.probe import probe
from packaging.version import Version
from targets import target
from test_field_blending import rows, site_of

pytestmark = pytest.mark.releases

# vLLM 0.11.1 and newer have these helpers in vllm.utils.torch_utils, older ones in vllm.utils.
VLLM, LMCACHE = "0.12.0", "0.3.7"


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``validate`` says of a pair whose releases moved apart."""
    ended = kvpatch("validate", "--vllm", f"=={VLLM}", "--lmcache", f"=={LMCACHE}", "--json")
    (pair,) = ended.data["pairs"]
    return dict(pair)


def test_34_validate_and_doctor_say_which_pair_works_instead(
    validated: dict[str, Any], tmp_path: Path
) -> None:
    assert validated["ok"] is False
    found = rows(site_of(tmp_path, VLLM, LMCACHE))
    assert found["pair"]["state"] == found["catalogue"]["state"] == "fail"
    assert found["patches"]["todo"] == "take another pair first, as above"
    advised = found["catalogue"]["todo"]
    assert advised == pairs.load().advice(Version(VLLM), Version(LMCACHE))
    # What is advised does blend.
    with_this = advised.split("take LMCache ")[1].split()[0]
    known = pairs.load().of(Version(VLLM), Version(with_this))
    assert known is not None
    assert known.ok


def test_35_a_module_that_is_not_there_is_seen_before_anything_runs(
    validated: dict[str, Any],
) -> None:
    first = validated["findings"][0]
    assert validated["before"][0] == validated["after"][0] == first["letter"] == "X"
    assert first["when"] == "engine start"
    assert first["path"].startswith("lmcache/")
    assert first["line"] > 0
    assert first["sentence"].startswith("vllm.utils has no ")


@pytest.mark.parametrize(
    ("cubin", "state"), [("0.6.2+cu130", "fail"), ("0.6.1+cu130", "ok"), ("0.6.1", "ok")]
)
def test_36_flashinfers_parts_are_compared_without_local_parts(
    tmp_path: Path, cubin: str, state: str
) -> None:
    site = site_of(tmp_path, "0.32.0", "0.5.6")
    for name, version in (("flashinfer-python", "0.6.1"), ("flashinfer-cubin", cubin)):
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    row = rows(site)["flashinfer"]
    assert row["state"] == state
    assert ("pip install flashinfer-cubin==0.6.1" in row["todo"]) is (state == "fail")


@pytest.mark.stack
def test_37_a_real_extension_that_does_not_load_is_a_warning_and_not_ok() -> None:
    python = target()
    site = next(python.parents[1].glob("lib/python3*/site-packages"))
    assert any((site / "lmcache").glob("*_ops.*.so"))
    answer = probe("stack_probe", ["extension", str(site)], limit=180.0, python=python)
    assert answer.facts is not None
    check = extension_check(answer, Version("0.5.6"))
    assert check.state is (State.WARN if "problem" in answer.facts else State.OK)
    if not answer.facts["built_for_gpu"]:
        assert check.state is State.WARN
        assert "for the CPU alone; LMCache falls back to slow Python" in check.reason
        assert ("no GPU" in check.todo) is not answer.facts["gpu"]
