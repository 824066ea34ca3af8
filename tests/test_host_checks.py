"""What drivers, libraries and limits mean."""

from __future__ import annotations

from typing import Any

import pytest
from kvpatch.diagnosis import State
from kvpatch.host_checks import host_checks, library_check
from kvpatch.probe import Answer

GOOD: dict[str, Any] = {
    "devices": ["nvidia0", "nvidiactl"],
    "nvidia_fs_loaded": True,
    "counters": {"reads": 3, "writes": 1},
    "cufile": {"path": "/etc/cufile.json", "there": True, "compat": False},
    "rdma": ["mlx5_0"],
    "modules": ["rpcrdma"],
    "memlock": None,
}


def states(*, nfs: bool = True, **more: Any) -> dict[str, tuple[State, str]]:
    found = host_checks(Answer({**GOOD, **more}), nfs=nfs)
    return {one.name: (one.state, one.reason) for one in found}


def test_a_host_with_everything_is_ok() -> None:
    assert {state for state, _ in states().values()} == {State.OK}
    assert "RDMA" not in states(nfs=False)


@pytest.mark.parametrize(
    ("more", "name", "state", "told"),
    [
        ({"nvidia_fs_loaded": False}, "nvidia-fs", State.FAIL, "not loaded"),
        ({"counters": None}, "nvidia-fs", State.WARN, "counts nothing"),
        ({"counters": {"reads": 0, "writes": 0}}, "nvidia-fs", State.WARN, "not moved"),
        ({"cufile": {"path": "/e", "there": False}}, "cufile.json", State.WARN, "not there"),
        ({"cufile": {"path": "/e", "there": True, "problem": "x"}}, "cufile.json", State.FAIL, "x"),
        (
            {"cufile": {"path": "/e", "there": True, "compat": True}},
            "cufile.json",
            State.WARN,
            "CPU",
        ),
        ({"devices": []}, "NVIDIA driver", State.FAIL, "no GPU or no driver"),
        ({"rdma": []}, "RDMA", State.FAIL, "no RDMA device"),
        ({"modules": []}, "RDMA", State.FAIL, "not loaded"),
        ({"memlock": 8 * 2**20}, "memlock", State.WARN, "8 MiB"),
        ({"memlock": 2**40}, "memlock", State.OK, "MiB"),
    ],
)
def test_what_a_host_lacks_is_told(
    more: dict[str, Any], name: str, state: State, told: str
) -> None:
    found, reason = states(**more)[name]
    assert found is state
    assert told in reason


@pytest.mark.parametrize(
    ("loads", "wheels", "module", "state", "told"),
    [
        (("ok", "ok"), [], True, State.OK, "finds"),
        (("ok", "ok"), [], False, State.FAIL, "module cufile"),
        (("no", "ok"), [], True, State.FAIL, "although there is libcufile.so.0"),
        (("no", "no"), ["/s/nvidia/cufile/lib/libcufile.so.0"], True, State.FAIL, "/s/nvidia"),
        (("no", "no"), [], True, State.FAIL, "does not find it"),
    ],
)
def test_libcufile_is_looked_for_as_the_loader_does(
    loads: tuple[str, str], wheels: list[str], module: bool, state: State, told: str
) -> None:
    facts = {
        "loads": dict(zip(("libcufile.so", "libcufile.so.0"), loads, strict=True)),
        "wheels": wheels,
        "module": module,
    }
    found = library_check(Answer(facts))
    assert found.state is state
    assert told in found.reason


def test_a_probe_that_told_nothing_is_not_checked() -> None:
    assert library_check(Answer(None, "x")).state is State.NOT_CHECKED
    assert host_checks(Answer(None, "x"), nfs=False)[0].state is State.NOT_CHECKED
