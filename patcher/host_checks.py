"""What a host's drivers, libraries and limits mean for GDS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .diagnosis import Check, fail, not_checked, ok, warn
from .pip_command import pip_install
from .probe import Answer

_LOCKED = 2**30


def library_check(answer: Answer, python: Path | None = None) -> Check:
    """Whether the loader finds libcufile by the name that LMCache's Python module asks for.

    ``python`` is the interpreter that a command installs into.
    """
    name = "libcufile"
    if answer.facts is None:
        return not_checked(name, answer.problem)
    loads, wheels = answer.facts["loads"], answer.facts["wheels"]
    if loads["libcufile.so"] == "ok":
        if not answer.facts["module"]:
            todo = pip_install(python, "cufile-python")
            return fail(name, "the loader finds it, but the Python module cufile is missing", todo)
        return ok(name, "the loader finds libcufile.so")
    wheel = next((path for path in wheels if path.endswith(".so.0")), None)
    if loads["libcufile.so.0"] == "ok" or wheel:
        place = wheel or "libcufile.so.0"
        return fail(
            name,
            f"libcufile.so is missing although there is {place}; LMCache needs it even with "
            "use_gds: false",
            "make a link libcufile.so to it in a folder of LD_LIBRARY_PATH, or install CUDA's "
            "libcufile-dev",
        )
    told = loads["libcufile.so"]
    todo = "install CUDA's libcufile-dev (RPM: libcufile-devel)"
    return fail(name, f"the loader does not find it: {told}", todo)


def host_checks(answer: Answer, *, nfs: bool) -> tuple[Check, ...]:
    """The rows of the host."""
    if answer.facts is None:
        return (not_checked("nvidia-fs", answer.problem),)
    facts = answer.facts
    return (
        *_gpu(facts["devices"]),
        _driver(facts),
        _settings(facts["cufile"]),
        *_rdma(facts, nfs=nfs),
        _memlock(facts["memlock"]),
    )


def _gpu(devices: Sequence[str]) -> Iterator[Check]:
    if not devices:
        yield fail(
            "NVIDIA driver",
            "there is no /dev/nvidia*: no GPU or no driver here, so nothing goes through GDS",
            "look on the host that serves; start a container with --gpus all",
        )


def _driver(facts: Mapping[str, Any]) -> Check:
    name = "nvidia-fs"
    if not facts["nvidia_fs_loaded"]:
        return fail(
            name,
            "the kernel module nvidia_fs is not loaded: cuFile has only its compat mode",
            "install nvidia-gds and run modprobe nvidia-fs",
        )
    counted = facts["counters"]
    if not counted or not ({"reads", "writes"} & set(counted)):
        todo = "echo 1 > /sys/module/nvidia_fs/parameters/rw_stats_enabled"
        return warn(name, "it is loaded and counts nothing, so nothing can be proved", todo)
    moved = f"{counted.get('reads', 0)} reads, {counted.get('writes', 0)} writes so far"
    if not counted.get("reads") and not counted.get("writes"):
        todo = "send a request twice and look again: they must move"
        return warn(name, f"it is loaded; its counters have not moved ({moved})", todo)
    return ok(name, f"it is loaded; {moved}")


def _settings(found: Mapping[str, Any]) -> Check:
    name = "cufile.json"
    if not found["there"]:
        return warn(
            name, f"{found['path']} is not there: cuFile's defaults hold", "install gds-tools"
        )
    if "problem" in found:
        todo = f"mend {found['path']}"
        return fail(name, f"{found['path']} can't be read: {found['problem']}", todo)
    if found["compat"]:
        return warn(
            name,
            "allow_compat_mode is true: cuFile reads through CPU memory where GDS does not work, "
            "without a word",
            "set it to false to be told",
        )
    return ok(name, f"{found['path']} is read; compat mode is off")


def _rdma(facts: Mapping[str, Any], *, nfs: bool) -> Iterator[Check]:
    if not nfs:
        return
    name = "RDMA"
    modules = set(facts["modules"])
    if not facts["rdma"]:
        yield fail(name, "no RDMA device in /sys/class/infiniband", "install its driver")
    elif not modules & {"rpcrdma", "xprtrdma"}:
        yield fail(name, "NFS over RDMA is not loaded", "run modprobe rpcrdma")
    else:
        yield ok(name, f"{', '.join(facts['rdma'])}, and NFS over RDMA is loaded")


def _memlock(limit: int | None) -> Check:
    name = "memlock"
    if limit is None:
        return ok(name, "no limit on locked memory")
    told = f"{limit / 2**20:.0f} MiB of locked memory for this user"
    if limit < _LOCKED:
        todo = "set ulimit -l unlimited, LimitMEMLOCK=infinity, or --ulimit memlock=-1"
        return warn(name, f"{told}; pinned buffers need more", todo)
    return ok(name, told)
