"""Re-rotate cached keys with the model's own rotary embedding."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from kvpatch.blending import as_written, find, function, released_elsewhere
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target, Transform

if TYPE_CHECKING:
    import libcst as cst
    from packaging.version import Version

BASE = "lmcache/v1/compute/models/base.py"
LLAMA = "lmcache/v1/compute/models/llama.py"

MODEL_ROPE = '''
def _kvpatch_model_rope(rotary_emb):
    """Move keys between positions with the model's own rotary embedding, checked against it."""
    from types import SimpleNamespace

    from lmcache.v1.compute.positional_encoding import FusedRope

    kind, size = type(rotary_emb).__name__, rotary_emb.head_size
    cache = getattr(rotary_emb, "cos_sin_cache", None)
    if rotary_emb.rotary_dim != size:
        raise NotImplementedError(
            f"kvpatch: blending can't move keys of a partial rotary embedding: {kind} rotates "
            f"{rotary_emb.rotary_dim} of {size} dimensions"
        )
    if not isinstance(cache, torch.Tensor) or cache.dim() != 2 or cache.shape[1] != size:
        raise NotImplementedError(f"kvpatch: blending can't move keys of the rope {kind}")
    cos, sin = cache.float().chunk(2, dim=-1)
    scale = (cos * cos + sin * sin).sqrt()
    if (scale - 1).abs().max() > 0.01:
        # YaRN's table scales keys too, and cached keys are scaled already.
        cache = torch.cat((cos / scale, sin / scale), dim=-1).to(cache.dtype)
    fused = {}

    def move(old_positions, new_positions, k):
        use = (k.dtype, k.device)
        if use not in fused:
            table = cache.to(device=k.device, dtype=k.dtype)
            fused[use] = FusedRope(
                SimpleNamespace(head_size=size, cos_sin_cache=table), rotary_emb.is_neox_style
            )
        return fused[use](old_positions, new_positions, k)

    last, device = cache.shape[0] - 1, cache.device
    some = sorted({min(place, last) for place in (0, 1, 7, 100, 1000, last // 2, last)})
    old = torch.tensor([place for place in some for _ in some], device=device)
    new = torch.tensor(some * len(some), device=device)
    seeded = torch.Generator(device=device).manual_seed(0)
    keys = torch.randn(len(old), size, generator=seeded, device=device).to(rotary_emb.dtype)
    cached = rotary_emb(old, keys.clone(), keys.clone())[1]
    wanted = rotary_emb(new, keys.clone(), keys.clone())[1].float()
    apart = (move(old, new, cached.clone()).float() - wanted).norm(dim=-1)
    error = (apart / wanted.norm(dim=-1)).max().item()
    if not error < 0.03:
        raise RuntimeError(
            f"kvpatch: keys that blending moves are off by {error:.0%} from the model's own rotary "
            f"embedding {kind} (up to position {last}), so blending would give wrong output"
        )
    return move
'''

REUSE = """
# kvpatch KV003: a second rope would lack the model's scaling and position range.
self.fused_rotary_emb = _kvpatch_model_rope(rotary_emb)
"""
_BOUND = "rotary_emb = vllm_model.model.layers[0].self_attn.rotary_emb"
_BUILT = "self.fused_rotary_emb = get_fused_rope(*___)"


def _reuse_rope(owner: str) -> Transform:
    def transform(module: cst.Module) -> cst.Module:
        """Give the model its own rotary embedding in place of a second one.

        Raises:
            Refusal: where the anchors are not there exactly once.
        """
        from kvpatch import anchors, rewrite

        init = f"{owner}.__init__"
        module = anchors.replace(module, init, _BOUND, lambda line: [line])
        module = anchors.replace(
            module, init, _BUILT, lambda line: anchors.like(line, module, REUSE)
        )
        return rewrite.append_function(module, MODEL_ROPE)

    return transform


def moves_keys_by_the_models_rope(module: ast.Module, _version: Version) -> Judgement:
    """Judge whether the one rope that moves keys is the model's own, checked before use."""
    for owner in ("LMCBaseModel", "LMCLlamaModel"):
        init = function(module, f"{owner}.__init__")
        made = find(init, "self.fused_rotary_emb = ___")
        if not made:
            continue
        own = find(init, "self.fused_rotary_emb = _kvpatch_model_rope(rotary_emb)")
        bound = find(init, "rotary_emb = ___")
        model = find(init, _BOUND)
        if len(made) != 1 or own != made:
            return Judgement(False, f"{owner} moves keys by another rope than the model's own")
        if len(bound) != 1 or model != bound:
            return Judgement(False, f"{owner} does not take the rope from the model's first layer")
        if not as_written(function(module, "_kvpatch_model_rope"), MODEL_ROPE):
            return Judgement(False, "the function that checks the model's rope was edited")
        return Judgement(True, "keys are moved by the model's own rotary embedding, after a check")
    return Judgement(False, "nothing here sets the rope that moves cached keys")


PATCH = Patch(
    id="KV003",
    distribution="lmcache",
    targets=(
        Target(LLAMA, "<0.3.8", _reuse_rope("LMCLlamaModel")),
        Target(BASE, ">=0.3.8", _reuse_rope("LMCBaseModel")),
    ),
    versions=">=0.3.3",
    why="LMCache builds a second rotary embedding without the model's scaling, by a call that many "
    "vLLM releases refuse: blending fails, or moves keys of Llama-3.1, YaRN and linear "
    "models wrongly without a word.",
    how="Moves cached keys by the cos/sin table of the model's own rotary embedding, after a check "
    "against it at shifts up to the model's length; partial rotary and unknown kinds are "
    "refused by name, and a failed check stops the start.",
    upstream="https://github.com/LMCache/LMCache/issues/2262",
    retire_when="An LMCache release re-rotates keys with the model's own rotary embedding.",
    post_condition=moves_keys_by_the_models_rope,
    faithful=released_elsewhere,
    cures=("R",),
    proved="run on a CPU with rope llama3: vLLM 0.32.0 with LMCache 0.5.6; the call that get_rope "
    "refuses: static only",
)

_STOCK = """
class LMCBaseModel:
    def __init__(self, vllm_model, blender):
        self.vllm_model = vllm_model

        # The shape of the first layer stands for all.
        rotary_emb = vllm_model.model.layers[0].self_attn.rotary_emb
        self.fused_rotary_emb = get_fused_rope(
            rotary_emb.head_size,
            base=rotary_emb.base,
            rope_scaling=None,
        )
"""

_PATCHED = (
    """
class LMCBaseModel:
    def __init__(self, vllm_model, blender):
        self.vllm_model = vllm_model

        # The shape of the first layer stands for all.
        rotary_emb = vllm_model.model.layers[0].self_attn.rotary_emb
        # kvpatch KV003: a second rope would lack the model's scaling and position range.
        self.fused_rotary_emb = _kvpatch_model_rope(rotary_emb)

"""
    + MODEL_ROPE
)

_BY_HAND = (
    """
class LMCBaseModel:
    def __init__(self, vllm_model, blender):
        rotary_emb = vllm_model.model.layers[0].self_attn.rotary_emb
        self.fused_rotary_emb = _kvpatch_model_rope(rotary_emb)
        self.blender = blender

"""
    + MODEL_ROPE
)

EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "takes the model's rotary embedding where a second one was built",
        "0.5.6",
        _STOCK,
        after=_PATCHED,
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves a release alone that has no blending",
        "0.3.2",
        _STOCK,
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees the model's rotary embedding put in by hand",
        "0.5.6",
        _BY_HAND,
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where the rope is taken from elsewhere",
        "0.5.6",
        _STOCK.replace("layers[0]", "layers[-1]"),
        outcome=Outcome.MISSING,
        reason="layers[-1]",
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where two ropes are built",
        "0.3.7",
        _STOCK.replace("LMCBaseModel", "LMCLlamaModel")
        + "        self.fused_rotary_emb = get_fused_rope(rotary_emb.head_size)\n",
        outcome=Outcome.AMBIGUOUS,
        reason="in 2 places",
    ),
)
