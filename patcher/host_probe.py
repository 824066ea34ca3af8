"""Looks at a host's GPUDirect Storage and RDMA, as far as /proc, /sys and /etc show them.

Stands alone: run as a script with the root to read below (``/`` for this host). Prints one line of
JSON. It opens no device and writes nothing.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def text_of(root: str, path: str) -> str | None:
    """A file's text; None where it can't be read."""
    try:
        with Path(root, path).open(encoding="utf-8", errors="replace") as stream:
            return stream.read(1024 * 1024)
    except OSError:
        return None


def names(root: str, path: str) -> list[str]:
    """What a folder holds; nothing where it can't be read."""
    try:
        return sorted(found.name for found in Path(root, path).iterdir())
    except OSError:
        return []


def counters(stats: str | None) -> dict[str, Any] | None:
    """The reads and writes that nvidia-fs has counted; None where it counts nothing."""
    if not stats:
        return None
    found: dict[str, Any] = {}
    for kind in ("Reads", "Writes"):
        line = re.search(kind + r"\s*:[^\n]*?\bn=(\d+)", stats)
        if line:
            found[kind.lower()] = int(line[1])
    enabled = re.search(r"IO stats:\s*(\w+)", stats)
    found["io_stats"] = enabled[1] if enabled else ""
    return found


def cufile(root: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """The settings of cufile.json that matter here."""
    path = environ.get("CUFILE_ENV_PATH_JSON") or "/etc/cufile.json"
    text = text_of(root, path.lstrip("/"))
    if text is None:
        return {"path": path, "there": False}
    found: dict[str, Any] = {"path": path, "there": True}
    # It has comments, which JSON has not.
    plain = re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*', lambda one: one[1] or "", text)
    try:
        data = json.loads(re.sub(r",(\s*[}\]])", r"\1", plain))
        properties = data.get("properties") or {}
        found["compat"] = properties.get("allow_compat_mode")
        found["rdma_addresses"] = properties.get("rdma_dev_addr_list") or []
    except (ValueError, AttributeError) as error:
        found["problem"] = str(error)
    return found


def look(root: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """All that is told of the host."""
    stats = text_of(root, "proc/driver/nvidia-fs/stats")
    modules = text_of(root, "proc/modules") or ""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "nvidia_fs": text_of(root, "proc/driver/nvidia-fs/version") or "",
        "nvidia_fs_loaded": "nvidia_fs" in modules or stats is not None,
        "counters": counters(stats),
        "devices": [name for name in names(root, "dev") if name.startswith("nvidia")],
        "rdma": names(root, "sys/class/infiniband"),
        "modules": sorted(
            line.split()[0]
            for line in modules.splitlines()
            if line.split() and re.match(r"(rdma_|ib_|mlx|xprtrdma|rpcrdma|nvidia)", line)
        ),
        "cufile": cufile(root, environ),
        "memlock": None if soft == resource.RLIM_INFINITY else soft,
    }


if __name__ == "__main__":
    print(json.dumps(look(sys.argv[1], dict(os.environ))))
