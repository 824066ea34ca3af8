"""Rules about where chunks are kept, and from which of these places they are loaded.

Read from ``CreateStorageBackends``, ``StorageManager`` and ``retrieve_layer`` of every release.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from . import rules
from .lint_context import DISK_SIZE, Context
from .rules import Finding, Fix, Level, one_line
from .secrecy import masked

ONE_PLACE = Version("0.3.9.post1")
"""From here on all chunks of a layer come from where the first lies; before, from CPU memory."""
WITHOUT_POSITIONS = ("remote_url", "remote_storage_plugins")
"""Places whose chunks come back without the positions that blending moves keys from."""
PLUGIN_PLACES = Version("0.4.4")
"""From here on each of ``remote_storage_plugins`` is a place; before, one is a kind of remote."""
_STAGING_GB = 5.0
BACKENDS = {
    "local_cpu": "LocalCPUBackend",
    "enable_p2p": "P2PBackend",
    "extra_config.enable_nixl_storage": "NixlStorageBackend",
    "local_disk": "LocalDiskBackend",
    "weka_path": "WekaGdsBackend",
    "gds_path": "GdsBackend",
    "maru_path": "MaruBackend",
    "remote_url": "RemoteBackend",
}
"""What ``retrieve_locations`` calls the places, in the order in which LMCache looks."""
_LOCATIONS = "retrieve_locations"
# It keeps nothing.
_NOWHERE = "blackhole://"
# What others wrote, or what is there for tests alone.
_FOREIGN = ("external://", "mock://", "audit://")
_OLD_SWITCHES = ("enable_nixl", "enable_xpyd")
"""What stands for enable_pd in a file for LMCache 0.3.6 and older, which is told by itself."""
_ELSEWHERE = ("enable_pd", "enable_nixl", "storage_plugins", "external_backends")


def tiers(context: Context) -> Iterator[Finding]:
    """Where chunks are kept."""
    staging = context.value("max_local_cpu_size")
    number = isinstance(staging, int | float)
    if number and staging == 0 and (context.blends or context.gds or context.value("local_cpu")):
        message = "max_local_cpu_size must be above 0, also with local_cpu: false"
        fix = Fix("set", "max_local_cpu_size", value=_STAGING_GB)
        yield context.found(rules.NO_STAGING, message, "max_local_cpu_size", fix=fix)
    if context.value("local_disk") and not context.disk:
        given = context.is_set(DISK_SIZE)
        state = f"{DISK_SIZE} is {'0' if given else '0 where it is not written'}"
        message = f"{state}, and LMCache then keeps nothing on local_disk: give it in GiB"
        yield context.found(rules.NO_DISK, message, DISK_SIZE if given else "local_disk")
    elif context.value("local_disk"):
        message = "local_disk starts empty after each restart, while the files of before stay "
        message += f"there and don't count for {DISK_SIZE}"
        todo = "remove them before vLLM starts"
        yield context.found(rules.FORGOTTEN, message, "local_disk", todo=todo)
    yield from _unfolded(context)
    yield from _apart(context)
    names = (*BACKENDS, "remote_storage_plugins", *_ELSEWHERE)
    if not any(context.value(name) for name in names):
        message = "local_cpu is off and there is no other tier"
        yield context.found(rules.NO_TIER, message, "local_cpu")


def _apart(context: Context) -> Iterator[Finding]:
    """Settings of prefill and decode apart, whose switch was forgotten."""
    switches = ("enable_pd", *(name for name in context.file.entries if name in _OLD_SWITCHES))
    given = [one for one in context.effective.values if one.startswith("pd_")]
    given = [one for one in given if context.is_set(one) and context.value(one)]
    if given and not any(name in context.file.entries or context.is_set(name) for name in switches):
        message = f"without enable_pd: true LMCache looks at none of {', '.join(given)}"
        yield context.found(rules.NO_EFFECT, message, given[0])


def _unfolded(context: Context) -> Iterator[Finding]:
    """Folders that a shell would unfold, which LMCache does not."""
    for key in ("local_disk", "weka_path"):
        for folder in str(context.value(key) or "").split(","):
            first = folder.strip().partition("/")[0]
            if first.startswith(("~", "$")):
                message = f"LMCache makes a folder that is called {first} of {key} "
                message += f"{context.shown(key, folder.strip())}: write an absolute path"
                yield context.found(rules.GDS_PATH, message, key)


def loading(context: Context) -> Iterator[Finding]:
    """Whether what is kept can be loaded layer by layer, as blending does."""
    if not context.by_layer:
        return
    places = list(_places(context))
    # What GDS asks for is told with it.
    others = [one for one in places if one[0] not in ("local_cpu", "gds_path")]
    if context.lmcache < ONE_PLACE:
        for key, _ in others:
            message = (
                f"LMCache {context.schema.version} loads layer by layer from CPU memory alone, and "
                f"not what {key} keeps"
            )
            yield _unloaded(context, message, key, places)
        return
    if context.blends:
        for key, name in others:
            yield from _without_positions(context, key, name, places)
        places = [one for one in places if one[0] not in WITHOUT_POSITIONS]
        if context.gds:
            # LMCache has to be told to look there alone, which is an error of its own.
            places = [] if _LOCATIONS in context.schema.keys else places
            places = [one for one in places if one[0] != "local_cpu"]
    if len(places) > 1:
        keys = [key for key, _ in places]
        sure = [key for key in keys if key in BACKENDS and key != "enable_p2p"]
        told = f"{', '.join(keys[:-1])} and {keys[-1]}"
        message = (
            f"chunks of one prompt can lie at several places ({told}), for example where one was "
            "full, and such a prompt ends the engine"
        )
        todo = f"keep chunks at one place{_or_look(context, places[0][1])}"
        # A peer's memory is no place to it, and what plugins are is not known.
        lower = Level.WARNING if len(sure) < 2 else None
        yield context.found(rules.TWO_TIERS, message, keys[-1], lower=lower, todo=todo)


def _without_positions(
    context: Context, key: str, name: str, places: list[tuple[str, str]]
) -> Iterator[Finding]:
    """A place from which chunks come back without their positions."""
    if key in ("local_disk", "storage_plugins", "external_backends"):
        return
    if key in WITHOUT_POSITIONS:
        url = str(context.value(key)) if key == "remote_url" else ""
        sure = bool(url) and not url.startswith(_FOREIGN)
        shown = (
            f"remote_url {context.shown(key, url)}" if url else f"{key} ({one_line(masked(name))})"
        )
        message = f"LMCache does not keep the positions of chunks at {shown}"
        message += ", and can't blend what comes from there" if sure else " by itself"
    else:
        sure = False
        message = f"nothing in LMCache keeps the positions of chunks for {key}, as blending needs"
    yield _unloaded(context, message, key, places, sure=sure)


def _unloaded(
    context: Context,
    message: str,
    key: str,
    places: list[tuple[str, str]],
    *,
    sure: bool = True,
) -> Finding:
    """A finding about a place that chunks are kept at and not loaded from.

    Where another place is asked first, it shows only once that one has lost a chunk.
    """
    if sure and len(places) == 1:
        todo = f"set local_cpu: true and leave out {key}"
        return context.found(rules.UNLOADED, message, key, todo=todo)
    cpu = BACKENDS["local_cpu"]
    todo = f"leave out {key}"
    if ("local_cpu", cpu) in places:
        message += ", once CPU memory has lost a chunk" if sure else ""
        todo += _or_look(context, cpu)
    return context.found(rules.UNLOADED, message, key, lower=Level.WARNING, todo=todo)


def _or_look(context: Context, name: str) -> str:
    if _LOCATIONS not in context.schema.keys:
        return ""
    return f", or look at one alone: {_LOCATIONS}: {context.form(_LOCATIONS, [name])}"


def _places(context: Context) -> Iterator[tuple[str, str]]:
    """Where LMCache looks for chunks: the key, and what it calls the place."""
    only = context.value(_LOCATIONS)
    for key, name in _kept(context):
        if not (isinstance(only, list) and only) or name in only:
            yield key, name


def _kept(context: Context) -> Iterator[tuple[str, str]]:
    for key, name in BACKENDS.items():
        value = context.value(key)
        if not value or (key == "local_disk" and not context.disk):
            continue
        if key == "remote_url" and str(value).startswith(_NOWHERE):
            continue
        yield key, name
    for key, form in (
        ("remote_storage_plugins", "RemoteBackend-{}"),
        ("storage_plugins", "{}"),
        ("external_backends", "{}"),
    ):
        value = context.value(key)
        if key == "remote_storage_plugins" and context.lmcache < PLUGIN_PLACES:
            continue
        for one in value if isinstance(value, list) else []:
            yield key, form.format(one)
