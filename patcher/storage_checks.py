"""What the facts of a folder mean for GDS."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .diagnosis import Check, fail, not_checked, ok, warn
from .probe import Answer

_MOUNT, _ACCESS, _SPACE, _KEYS = "gds mount", "gds access", "gds space", "gds keys"
_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_LAYERED = ("overlay", "overlayfs", "aufs", "fuse.fuse-overlayfs")
_DIRECT = ("ext4", "xfs", "lustre", "wekafs", "beegfs", "gpfs", "nfs", "nfs4", "vastnfs")
_RDMA_SIZE = 65536
_LEAST_INODES = 100_000
_CHUNK_FILES = (".weka1", ".kvcache.safetensors", ".safetensors", ".pt", ".metadata")


def storage_checks(answer: Answer, prompt_mib: int | None, release: str) -> tuple[Check, ...]:
    """The rows of a folder.

    Args:
        answer: of the storage probe.
        prompt_mib: what the longest prompt takes; None where it is not known.
        release: of LMCache, whose key format the folder should have alone.
    """
    if answer.hung:
        todo = "see whether its server answers; every file call of LMCache would hang as well"
        return (fail(_MOUNT, f"the folder does not answer: {answer.problem}", todo),)
    if answer.facts is None:
        return (not_checked(_MOUNT, answer.problem),)
    facts = answer.facts
    found = [mount_check(facts)]
    if facts["there"]:
        found += [*_access(facts), *_space(facts, prompt_mib), *_hygiene(facts, release)]
    return tuple(found)


def mount_check(facts: Mapping[str, Any]) -> Check:
    """Whether the folder lies on storage that GDS can read."""
    mount, real = facts["mount"], facts["real"]
    if mount is None:
        return not_checked(_MOUNT, f"no mount is told for {real}")
    kind, point = str(mount["type"]), str(mount["point"])
    where = f"{real} is on {kind} ({mount['source']}) at {point}"
    missing = f"{real} is not there: LMCache would make it on {kind} at {point}"
    if not facts["there"] and point == "/":
        return fail(_MOUNT, missing, "mount the storage and make the folder before vLLM starts")
    if kind in _MEMORY:
        return fail(
            _MOUNT, f"{where}: that is memory, gone at a restart", "name a folder on storage"
        )
    if kind in _LAYERED:
        todo = "mount the storage into the container, for example with -v /mnt/nvme:/mnt/nvme"
        return fail(_MOUNT, f"{where}: a container's own layer, which has no GDS", todo)
    if not facts["there"]:
        # Something is mounted above it, as where a profile chose a folder on the storage given.
        return warn(_MOUNT, missing, "make the folder before vLLM starts")
    if kind.startswith(("nfs", "vastnfs")):
        return _nfs(mount, where)
    if point == "/":
        todo = f"mount the storage; if this disk is meant, `mount --bind {real} {real}` says so"
        return warn(_MOUNT, f"{where}: the root file system; is the storage mounted?", todo)
    if kind in _DIRECT:
        return ok(_MOUNT, where)
    return warn(_MOUNT, f"{where}, which is not one that GDS is known for", "use ext4, xfs or NFS")


def _nfs(mount: Mapping[str, Any], where: str) -> Check:
    options = {name: value for name, _, value in (one.partition("=") for one in mount["options"])}
    proto = options.get("proto", "")
    if proto != "rdma":
        return warn(
            _MOUNT,
            f"{where} by proto={proto or 'tcp'}: cuFile has only its compat mode there",
            "mount it with proto=rdma,port=20049",
        )
    if "soft" in options or "hard" not in options:
        return warn(_MOUNT, f"{where} is not mounted hard: a timeout loses data", "mount it hard")
    large = [name for name in ("rsize", "wsize") if _number(options.get(name)) > _RDMA_SIZE]
    if large:
        told = ", ".join(f"{name}={options[name]}" for name in large)
        return warn(
            _MOUNT,
            f"{where} has {told}, above {_RDMA_SIZE}, which not every server takes over RDMA",
            f"with ONTAP mount it with rsize={_RDMA_SIZE},wsize={_RDMA_SIZE}",
        )
    return ok(_MOUNT, f"{where} by RDMA, hard")


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _access(facts: Mapping[str, Any]) -> Iterator[Check]:
    steps = facts.get("steps") or {}
    if not steps:
        yield not_checked(_ACCESS, "nothing was written")
        return
    failed = {name: why for name, why in steps.items() if why != "ok"}
    if "write" in failed:
        todo = f"let this user write in {facts['real']}, or run kvpatch as the user of vLLM"
        yield fail(_ACCESS, f"this user can't write there: {failed['write']}", todo)
    elif failed:
        told = "; ".join(f"{name}: {why}" for name, why in failed.items())
        yield fail(_ACCESS, told, "use a file system that can, such as ext4 or xfs")
    else:
        yield ok(_ACCESS, f"{', '.join(steps)} work as this user")


def _space(facts: Mapping[str, Any], prompt_mib: int | None) -> Iterator[Check]:
    free = int(facts["free_bytes"])
    told = f"{free / 2**30:.1f} GiB free"
    least = (prompt_mib or 1024) * 2**20 * 10
    inodes = facts["free_inodes"]
    if facts["read_only"]:
        yield fail(_SPACE, "it is mounted read-only", "mount it for writing")
    elif free < least:
        todo = "make room: LMCache deletes nothing there and has no quota"
        of_them = f"less than the {least / 2**30:.1f} GiB that 10 of the longest prompts take"
        yield warn(_SPACE, f"{told}, {of_them}", todo)
    elif inodes is not None and inodes < _LEAST_INODES:
        yield warn(_SPACE, f"{inodes} inodes free, one file a chunk", "make room for more files")
    else:
        yield ok(_SPACE, f"{told}; LMCache deletes nothing there and has no quota")


def _hygiene(facts: Mapping[str, Any], release: str) -> Iterator[Check]:
    """Whether the folder is this release's alone."""
    own = re.search(r"lmcache(\d[\w.]*)$", str(facts["real"]))
    if own and own[1] != release:
        todo = "name a folder of this release's own"
        yield fail(_KEYS, f"the folder is named for LMCache {own[1]}, and this is {release}", todo)
        return
    entries = list(facts.get("entries") or [])
    if not entries:
        yield ok(_KEYS, "the folder is empty")
        return
    foreign = [name for name in entries if name == "lost+found" or not _looks_kept(name)]
    if foreign and len(foreign) == len([one for one in entries if one != "lost+found"]):
        todo = "give LMCache a folder of its own"
        yield warn(_KEYS, f"it holds other things, such as {foreign[0]}", todo)
    else:
        yield warn(
            _KEYS,
            f"it holds {len(entries)} entries already; keys differ by LMCache release and model",
            "make sure that they were written by this release, for this model, or use a fresh one",
        )


def _looks_kept(name: str) -> bool:
    # LMCache spreads its files over folders named by two hex digits, and by a number of each GPU.
    return bool(re.fullmatch(r"[0-9a-f]{2}|\d+", name)) or name.endswith(_CHUNK_FILES)
