"""Rules about how LMCache looks up whether a prompt is kept, which blending does by segments.

Read from ``LookupClientFactory``, every lookup client and ``async_lookup_and_prefetch`` of every
release.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from . import rules
from .lint_context import Context
from .rules import Finding, Fix

ASSERTS = Version("0.3.5")
"""From here on the external client asserts that blending is off."""
BY_LAYER = Version("0.4.6")
"""From here on asynchronous loading asks for the layers of a chunk, which layerwise keeps."""
_EXTERNAL = "external_lookup_client"
_ASYNC = "enable_async_loading"
_RATIO = "hit_miss_ratio"


def lookup(context: Context) -> Iterator[Finding]:
    """Ways to look prompts up that don't go with blending, or with loading by layers."""
    told = f"LMCache {context.schema.version}"
    share = context.value(_RATIO)
    if context.blends and isinstance(share, int | float) and 0 < share <= 1:
        message = f"{_RATIO} cuts what {told} finds at whole chunks, in the middle of a segment"
        yield context.found(rules.LOOKUP, message, _RATIO, todo=f"leave out {_RATIO}")
    if context.blends and context.value(_EXTERNAL) is not None:
        message = f"{told} looks up by {_EXTERNAL} in whole chunks, and knows no segments there"
        if context.lmcache >= ASSERTS:
            message = f"{told} stops at {_EXTERNAL} with blending, which its client does not know"
        yield context.found(rules.LOOKUP, message, _EXTERNAL, todo=f"leave out {_EXTERNAL}")
    if not context.value(_ASYNC) or context.value(_EXTERNAL) is not None:
        return
    if context.blends and context.lmcache >= BY_LAYER:
        message = (
            f"with {_ASYNC} {told} counts segments without the separators between them, and cuts "
            f"each prompt that has one: set {_ASYNC}: false"
        )
    elif context.value("use_layerwise") and context.lmcache < BY_LAYER:
        message = (
            f"with {_ASYNC} {told} looks for whole chunks, and use_layerwise keeps each layer by "
            f"itself, so that nothing is found: set {_ASYNC}: false"
        )
    else:
        return
    yield context.found(rules.LOOKUP, message, _ASYNC, fix=Fix("set", _ASYNC, value=False))
