"""Rules about values that don't go together on this release."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from packaging.version import Version

from . import layer_dtype, rules
from .lint_context import Context
from .lint_hashing import hashes_none
from .rules import Finding, Fix, Level

_GDS = "GdsBackend"
_RATIO = 0.15
_CORRUPT = (Version("0.3.7"), Version("0.5.4rc3"))
_CURABLE = (Version("0.4.4"), Version("0.5.7.dev0"))
"""First release that the patch KV009 is made for, and the first that it is not."""
_FOR_DISK, _FOR_PREEMPTED, _FOR_WHOLE, _FOR_PINS = "KV014", "KV016", "KV017", "KV018"
LOADS_NONE = Version("0.31.0")
"""From here on vLLM loads nothing of a prompt whose log probs are asked for."""
_APPLY = "run `kvpatch apply`"
_PLACEHOLDER = "/dev/null"


def blending(context: Context) -> Iterator[Finding]:
    """What blending asks for."""
    if not context.blends:
        return
    told = f"on LMCache {context.schema.version}"
    if not context.value("use_layerwise"):
        fix = Fix("set", "use_layerwise", value=True)
        message = "enable_blending is on and use_layerwise is not: set use_layerwise: true"
        yield context.found(rules.LAYERWISE, message, _either(context, "use_layerwise"), fix=fix)
    for name, value in (("blend_recompute_ratios", [_RATIO]), ("blend_check_layers", [1])):
        if name in context.schema.keys and not context.value(name):
            message = f"blending needs {name} {told}, for example {context.form(name, value)}"
            fix = Fix("set", name, value=value)
            yield context.found(rules.CHOICE, message, _either(context, name), fix=fix)
    name = "save_unfull_chunk"
    if not context.value(name) and name in context.schema.keys:
        if name in context.effective.changed:
            message = (
                f"LMCache {context.schema.version} turns {name} off wherever use_layerwise is on"
            )
            yield context.found(rules.UNFULL, message, name, lower=Level.WARNING)
        else:
            message = f"blending needs {name}: true {told}"
            fix = Fix("set", name, value=True)
            yield context.found(rules.UNFULL, message, _either(context, name), fix=fix)
    separator = context.value("blend_special_str")
    if separator == "":
        fix = Fix("set", "blend_special_str", value=" # # ")
        yield context.found(rules.SEPARATOR, "the separator is empty", "blend_special_str", fix=fix)


def gds(context: Context) -> Iterator[Finding]:
    """What storage by GDS asks for."""
    if not context.gds:
        return
    buffer = next(n for n in ("gds_buffer_size", "cufile_buffer_size", "") if _known(context, n))
    if buffer and not context.value(buffer) and not _lost(context, buffer):
        message = f"gds_path needs {buffer}, in MiB, large enough for a whole prompt"
        yield context.found(rules.NO_BUFFER, message, "gds_path")
    yield from _wrong_keys(context)
    yield from _path(context)
    if context.by_layer:
        yield from _gds_by_layer(context)
    if context.blends:
        yield from _gds_and_blending(context)


def _wrong_keys(context: Context) -> Iterator[Finding]:
    first, fixed = _CORRUPT
    if not first <= context.lmcache < fixed:
        return
    told = (
        f"LMCache {context.schema.version} can mix up GDS chunks when requests store a shared "
        "prefix at once"
    )
    name = "gds-blend" if context.blends else "gds"
    if not _curable(context):
        yield context.found(rules.CORRUPTS, told, "gds_path", todo=_instead(context, name))
    elif context.gds_blends is None:
        todo = f"see `kvpatch status` whether KV009 is in place, or {_instead(context, name)}"
        yield context.found(rules.CORRUPTS, told, "gds_path", lower=Level.NOTE, todo=todo)
    elif not context.gds_blends:
        todo = f"{_APPLY} (KV009), or {_instead(context, name)}"
        yield context.found(rules.CORRUPTS, told, "gds_path", todo=todo)


def _curable(context: Context) -> bool:
    """Whether KV009 is made for this LMCache."""
    first, end = _CURABLE
    return first <= context.lmcache < end


def _instead(context: Context, profile: str) -> str:
    """What to take where no patch helps: other releases, or another profile."""
    from . import pairs
    from .curing import curable
    from .ways_out import instead

    pair = replace(curable(context.lmcache, context.vllm), by_layer=context.by_layer)
    known = map(Version, pairs.load().lmcache)
    # Where GDS is wanted, one release's fault is no cure of another's.
    lost = context.gds and context.python is not None
    told = instead(
        profile, pair, [one for one in known if not (lost and hashes_none(one, context.python))]
    )
    return told or "take another release of LMCache: `kvpatch validate` says which blend"


def patches(context: Context) -> Iterator[Finding]:
    """Patches that are needed and that are not in place where it will run."""
    vllm = context.vllm
    packed = vllm is not None and Version(vllm.base_version) >= layer_dtype.PACKED
    # Without its patch nothing that blends works, and nothing that moves a packed layer.
    vital = context.blends or (context.by_layer and packed)
    key = "enable_blending" if context.blends else "use_layerwise" if context.by_layer else ""
    if vital and _hopeless(context):
        does = "blend with" if context.blends else "move layer by layer the KV cache of"
        message = (
            f"LMCache {context.schema.version} does not {does} vLLM {context.vllm}, with the "
            "patches either"
        )
        yield context.found(rules.PATCHES, message, key, todo=_instead(context, _profile(context)))
        return
    if context.absence is None:
        return
    found = context.absence()
    missing = [one for one in found.patches if _needed(context, one, packed=packed)]
    for_what = "for blending" if context.blends else "for going layer by layer"
    if not context.by_layer:
        for_what = "for requests that vLLM preempts"
        if _FOR_WHOLE in missing:
            for_what += " or that ask for log probs of the prompt"
    if missing:
        message = f"here patches {for_what} are missing ({', '.join(missing)})"
        yield context.found(rules.PATCHES, message, key, todo=_APPLY)
    elif found.unsure and vital:
        message = f"whether all patches {for_what} are in place can't be told"
        todo = "see `kvpatch status`"
        yield context.found(rules.PATCHES, message, key, lower=Level.NOTE, todo=todo)


def _needed(context: Context, patch: str, *, packed: bool) -> bool:
    """Whether this configuration needs a patch of its releases."""
    if context.blends:
        return patch != _FOR_DISK or context.disk
    older = context.vllm is not None and context.vllm < LOADS_NONE
    return (
        patch == _FOR_PREEMPTED
        or (patch == _FOR_WHOLE and older)
        or (context.by_layer and patch == layer_dtype.PATCH and packed)
        or (context.by_layer and patch == _FOR_PINS and bool(context.value("local_cpu")))
    )


def _profile(context: Context) -> str:
    """The profile for such a use."""
    if context.blends:
        return "blend"
    return "gds" if context.gds else "cpu-offload"


def _hopeless(context: Context) -> bool:
    """Whether the catalogue knows that no patch makes this pair blend, or move single layers."""
    from .pairs import load

    if context.vllm is None:
        return False
    known = load().of(context.vllm, context.lmcache)
    if known is None:
        return False
    return not known.ok if context.blends else "K" in known.after


def _gds_by_layer(context: Context) -> Iterator[Finding]:
    does = "loads chunks to blend from GDS" if context.blends else "loads layer by layer from GDS"
    if context.gds_blends:
        pass
    elif not _curable(context):
        message = f"no patch {does} on LMCache {context.schema.version}, so apply does not help"
        todo = _instead(context, "gds-blend" if context.blends else "gds")
        yield context.found(rules.GDS_BLEND, message, "gds_path", todo=todo)
    elif context.gds_blends is None:
        message = f"what {does} is KV009"
        todo = "see `kvpatch status` whether it is in place"
        yield context.found(rules.GDS_BLEND, message, "gds_path", lower=Level.NOTE, todo=todo)
    else:
        message = f"here the patch that {does} is missing (KV009)"
        yield context.found(rules.GDS_BLEND, message, "gds_path", todo=_APPLY)


def _gds_and_blending(context: Context) -> Iterator[Finding]:
    if context.value("local_cpu"):
        fix = Fix("set", "local_cpu", value=False)
        message = "chunks would come from CPU memory and from GDS: set local_cpu: false"
        yield context.found(rules.TWO_TIERS, message, _either(context, "local_cpu"), fix=fix)
    name = "retrieve_locations"
    if name in context.schema.keys and context.value(name) != [_GDS]:
        fix = Fix("set", name, value=[_GDS])
        given = context.is_set(name)
        message = f"chunks to blend must be looked for at one place: set {name}: "
        message += context.form(name, [_GDS])
        lower = None if given else Level.WARNING
        yield context.found(rules.TWO_TIERS, message, _either(context, name), fix=fix, lower=lower)


def _path(context: Context) -> Iterator[Finding]:
    for folder in str(context.value("gds_path")).split(","):
        if folder.startswith(_PLACEHOLDER):
            message = "gds_path is the profile's placeholder: set it to a folder that is mounted"
        elif not folder.strip().startswith("/"):
            message = f"{context.shown('gds_path', folder)} is not an absolute path"
        else:
            continue
        yield context.found(rules.GDS_PATH, message, "gds_path")
    several = "," in str(context.value("gds_path"))
    if several and "gds_path_sharding" not in context.schema.keys:
        message = f"LMCache {context.schema.version} takes one folder, commas and all"
        yield context.found(rules.GDS_PATH, message, "gds_path")


def _known(context: Context, name: str) -> bool:
    return not name or name in context.schema.keys


def _lost(context: Context, name: str) -> bool:
    seen = context.effective.values.get(name)
    return seen is not None and bool(seen.failure)


def _either(context: Context, name: str) -> str:
    """The key itself where it is written, else the one that turns the feature on."""
    if context.is_set(name):
        return name
    return "enable_blending" if context.is_set("enable_blending") else name
