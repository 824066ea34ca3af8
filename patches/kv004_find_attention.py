"""Import vLLM's Attention class from whichever home this vLLM gives it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from kvpatch.blending import find, released_elsewhere, since
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    import libcst as cst
    from packaging.version import Version

FLASH = "lmcache/v1/compute/attention/flash_attn.py"
SPARSE = "lmcache/v1/compute/attention/flash_infer_sparse.py"

HOMES = (
    "vllm.attention",
    "vllm.attention.layer",
    "vllm.model_executor.layers.attention.attention",
)
"""Where releases of vLLM keep the class: to 0.11.2, 0.12.0 to 0.15.1, and since 0.16.0."""

_IMPORT = "from vllm.attention import Attention"
_FALLBACK = """
try:
    from vllm.attention import Attention
except ImportError:
    from vllm.model_executor.layers.attention.attention import Attention
"""

EVERY_HOME = """
# kvpatch KV004: vLLM moved the class at 0.12.0 and again at 0.16.0.
try:
    from vllm.attention import Attention
except ImportError:
    try:
        from vllm.attention.layer import Attention
    except ImportError:
        from vllm.model_executor.layers.attention.attention import Attention
"""


def try_every_home(module: cst.Module) -> cst.Module:
    """Put the whole chain of homes where the class is imported from one.

    Raises:
        Refusal: where the import is not there exactly once.
    """
    from kvpatch import anchors

    return anchors.replace(module, "", _IMPORT, lambda line: anchors.like(line, module, EVERY_HOME))


def extend_fallback(module: cst.Module) -> cst.Module:
    """Put the whole chain of homes where LMCache tries two of them.

    Raises:
        Refusal: where that fallback is not there exactly once.
    """
    from kvpatch import anchors

    return anchors.replace(
        module, "", _FALLBACK, lambda line: anchors.like(line, module, EVERY_HOME)
    )


def finds_attention(module: ast.Module, _version: Version) -> Judgement:
    """Judge whether the class is found in every home that a release of vLLM gives it."""
    if not find(module, "from ___ import Attention"):
        return Judgement(False, "vLLM's Attention class is not imported here")
    lost = [home for home in HOMES if not _binds(module.body, home)]
    if lost:
        return Judgement(
            False, f"Attention is not found where vLLM keeps it in {' or '.join(lost)}"
        )
    return Judgement(True, "Attention is found in every home that vLLM gave it")


def _binds(body: Sequence[ast.stmt], home: str) -> bool:
    """Whether a body binds ``Attention`` where only that module has it."""
    for node in body:
        match node:
            case ast.ImportFrom(module=module, names=names) if _attention(names):
                return module == home
            case ast.Try(body=first, handlers=handlers) if find(node, "from ___ import Attention"):
                return _binds(first, home) or any(
                    _binds(handler.body, home) for handler in handlers if _catches(handler.type)
                )
    return False


def _attention(names: Sequence[ast.alias]) -> bool:
    return any((alias.asname or alias.name) == "Attention" for alias in names)


def _catches(caught: ast.expr | None) -> bool:
    match caught:
        case None:
            return True
        case ast.Name(id=name):
            return name in ("ImportError", "Exception")
        case ast.Tuple(elts=several):
            return any(map(_catches, several))
    return False


PATCH = Patch(
    id="KV004",
    distribution="lmcache",
    targets=(
        Target(FLASH, "<0.4.7.dev0", try_every_home),
        Target(FLASH, ">=0.4.7.dev0", extend_fallback),
        Target(SPARSE, ">=0.3.4", try_every_home),
    ),
    versions=">=0.3.3",
    why="vLLM's Attention class left vllm.attention in 0.12.0 and moved again in 0.16.0; LMCache "
    "knows at most the first and the last home, so the blender can't be built.",
    how="Tries every home of the class in order, also in the sparse FlashInfer back end.",
    upstream="https://github.com/LMCache/LMCache/pull/2946",
    retire_when="An LMCache release finds the class in every vLLM that it supports.",
    post_condition=finds_attention,
    faithful=released_elsewhere,
    cures=("A",),
    when=since("0.12.0"),
)

_STOCK = """
# Third Party
from vllm.attention import Attention
import torch


class Backend:
    def __init__(self, vllm_attn: Attention):
        self.vllm_attn = vllm_attn
"""

_PATCHED = """
# Third Party
# kvpatch KV004: vLLM moved the class at 0.12.0 and again at 0.16.0.
try:
    from vllm.attention import Attention
except ImportError:
    try:
        from vllm.attention.layer import Attention
    except ImportError:
        from vllm.model_executor.layers.attention.attention import Attention
import torch


class Backend:
    def __init__(self, vllm_attn: Attention):
        self.vllm_attn = vllm_attn
"""

EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "tries every home where the class is imported from one",
        "0.4.4",
        _STOCK,
        after=_PATCHED,
        path=FLASH,
        beside="0.14.0",
    ),
    Example(
        ExampleKind.REWRITTEN,
        "adds the home in between to LMCache's own fallback",
        "0.5.6",
        _STOCK.replace(_IMPORT, _FALLBACK.strip("\n")),
        after=_PATCHED,
        path=FLASH,
        beside="0.14.0",
    ),
    Example(
        ExampleKind.REWRITTEN,
        "tries every home in the sparse back end",
        "0.5.6",
        _STOCK,
        after=_PATCHED,
        path=SPARSE,
        beside="0.32.0",
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves LMCache alone beside a vLLM that keeps the class where it was",
        "0.4.4",
        _STOCK,
        path=FLASH,
        beside="0.11.2",
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees that every home is tried already",
        "0.4.4",
        """
try:
    from vllm.model_executor.layers.attention.attention import Attention
except ImportError:
    try:
        from vllm.attention import Attention
    except (ImportError, AttributeError):
        from vllm.attention.layer import Attention
""",
        path=FLASH,
        beside="0.14.0",
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where the class is imported in another way",
        "0.5.6",
        _STOCK,
        path=FLASH,
        beside="0.14.0",
        outcome=Outcome.MISSING,
        reason="nowhere",
    ),
)
