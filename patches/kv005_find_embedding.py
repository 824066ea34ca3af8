"""Look tokens up in the model's embedding by the name that this vLLM gives it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from kvpatch.blending import as_written, find, function, released_elsewhere, since
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target, Transform

if TYPE_CHECKING:
    import libcst as cst
    from packaging.version import Version

from .kv003_reuse_rope import BASE, LLAMA

EMBEDDING = '''
# kvpatch KV005: vLLM renamed the method at 0.11.1.
def _kvpatch_embedding(model):
    """The model's embedding lookup, by the name that this vLLM gives it."""
    return getattr(model, "embed_input_ids", None) or model.get_input_embeddings
'''

_OLD = "self.vllm_model.get_input_embeddings"
_NEW = "_kvpatch_embedding(self.vllm_model)"


def _find_embedding(owner: str) -> Transform:
    def transform(module: cst.Module) -> cst.Module:
        """Ask for the embedding by either name.

        Raises:
            Refusal: where the lookup is not there exactly once.
        """
        from kvpatch import anchors, rewrite

        compute = f"{owner}.compute_layer"
        module = anchors.replace_expression(module, compute, _OLD, lambda _: _NEW)
        return rewrite.append_function(module, EMBEDDING)

    return transform


def looks_up_by_either_name(module: ast.Module, _version: Version) -> Judgement:
    """Judge whether the lookup works by both names that releases of vLLM give it."""
    for owner in ("LMCBaseModel", "LMCLlamaModel"):
        compute = function(module, f"{owner}.compute_layer")
        if compute is None:
            continue
        helper = function(module, "_kvpatch_embedding")
        if find(compute, f"{_NEW}(___)") and not find(compute, _OLD):
            if as_written(helper, EMBEDDING):
                return Judgement(True, "tokens are looked up by either name")
            return Judgement(False, "the function that finds the embedding was edited")
        asked = find(compute, 'hasattr(self.vllm_model, "embed_input_ids")')
        if asked and find(compute, "self.vllm_model.embed_input_ids(___)"):
            return Judgement(True, "LMCache looks tokens up by either name itself")
        return Judgement(False, "tokens are looked up by get_input_embeddings alone")
    return Judgement(False, "no layerwise model is defined here")


PATCH = Patch(
    id="KV005",
    distribution="lmcache",
    targets=(
        Target(LLAMA, "<0.3.8", _find_embedding("LMCLlamaModel")),
        Target(BASE, ">=0.3.8", _find_embedding("LMCBaseModel")),
    ),
    versions=">=0.3.3,<0.4.5.dev0",
    why="vLLM 0.11.1 renamed get_input_embeddings to embed_input_ids, so the first blended request "
    "fails with an AttributeError.",
    how="Asks the model for embed_input_ids first, and for get_input_embeddings where it has none.",
    upstream="https://github.com/LMCache/LMCache/issues/2067",
    retire_when="Support for LMCache 0.4.4 and older ends; 0.4.5 asks for both itself.",
    post_condition=looks_up_by_either_name,
    faithful=released_elsewhere,
    cures=("E",),
    when=since("0.11.1"),
    proved="run on a CPU: vLLM 0.11.1.post2 with LMCache 0.3.9.post2",
)

_STOCK = """
class LMCBaseModel:
    def compute_layer(self, input_ids):
        input_ids = input_ids.cuda()
        hidden_states = self.vllm_model.get_input_embeddings(input_ids)
        yield hidden_states
"""

_PATCHED = """
class LMCBaseModel:
    def compute_layer(self, input_ids):
        input_ids = input_ids.cuda()
        hidden_states = _kvpatch_embedding(self.vllm_model)(input_ids)
        yield hidden_states


""" + EMBEDDING.lstrip("\n")

EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "asks for the embedding by either name",
        "0.4.4",
        _STOCK,
        after=_PATCHED,
        beside="0.14.0",
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves LMCache alone beside a vLLM of the old name",
        "0.3.9.post2",
        _STOCK,
        beside="0.11.0",
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees that LMCache asks for both",
        "0.4.4",
        """
class LMCBaseModel:
    def compute_layer(self, input_ids):
        if hasattr(self.vllm_model, "embed_input_ids"):
            hidden_states = self.vllm_model.embed_input_ids(input_ids)
        else:
            hidden_states = self.vllm_model.get_input_embeddings(input_ids)
        yield hidden_states
""",
        beside="0.14.0",
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where the lookup is elsewhere",
        "0.4.4",
        _STOCK.replace("self.vllm_model.get_input", "self.vllm_model.model.get_input"),
        outcome=Outcome.MISSING,
        reason="nowhere",
        beside="0.14.0",
    ),
)
