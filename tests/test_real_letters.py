"""The letters of real pairs against what was read in their files by hand.

Between them the pairs have every letter. Each expectation was checked once in both releases' own
source, without the checker; the facts are beside it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from kvpatch.catalogue import load
from kvpatch.compat import MEANINGS
from kvpatch.fold import Memo
from kvpatch.matrix import Release, Workshop
from kvpatch.model_runner import SKIPS, WAY
from kvpatch.plan import Options
from kvpatch.series import discover
from releases import whole_release

pytestmark = pytest.mark.releases

# (vLLM, LMCache): the letters as released, then with the patches in.
PAIRS = {
    # The worker makes the connector and nothing calls register_model; all else fits.
    ("0.8.5", "0.3.3"): ("H", ""),
    # The adapter imports vllm_adapter, which imports vllm.attention.backends.flash_attn: that file
    # is gone. It reads Request.mm_hashes, and 0.11.0 has mm_features only.
    ("0.11.0", "0.3.3"): ("X H C", "X C"),
    # allocate_and_copy_objects returns keys[:len(allocated_objects)].
    ("0.11.0", "0.3.9.post2"): ("H S", "S"),
    # get_num_new_matched_tokens gives Request.all_token_ids to lookup, which encodes it by msgspec.
    ("0.11.0", "0.3.10"): ("H C S", "S"),
    # LlamaForCausalLM has embed_input_ids; line 72 of base.py calls get_input_embeddings.
    ("0.11.1", "0.3.9.post2"): ("H E S", "S"),
    # get_rope's rotary_dim has no default and is not given; vllm/attention/__init__.py is empty.
    ("0.12.0", "0.5.6"): ("H A R", ""),
    # vllm.utils has no cdiv, and its __getattr__ forwards other names.
    ("0.13.0", "0.3.6"): ("X H A R C E", "X C"),
    # get_rope takes 6 arguments and is given 8; get_kv_events is called and not there.
    ("0.13.0", "0.3.10"): ("H A R C E S", "C S"),
    # LMCache falls back to model_executor.layers.attention.attention, which 0.14.0 has not.
    ("0.14.0", "0.5.6"): ("H A", ""),
    # That fallback is there; DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES holds Qwen3ForCausalLM.
    ("0.22.0", "0.5.6"): ("H V", "V"),
    # From 0.4.1 on it hands them to transport.send_and_recv_all; 0.4.5 makes them a list before.
    ("0.20.0", "0.4.4"): ("H A C E S", ""),
    ("0.20.0", "0.4.5"): ("H A S", ""),
    # The cache is (num_blocks, 2, ...); VLLMPagedMemGPUConnectorV2 asks for no shape.
    ("0.23.0", "0.3.12"): ("H A R C E S V", "S V"),
    # The cache is (num_blocks, num_kv_heads, block_size, 2 * head_size), which KV006 moves from
    # 0.4.7 on; keys[:len(allocated_objects)] is mended by KV009.
    ("0.26.0", "0.4.6"): ("H A K S V", "K V"),
    # allocated_keys.append(key): the keys are right; use_v2_model_runner is the default for all.
    ("0.32.0", "0.5.6"): ("H K V", "V"),
}
# Where and when the letter strikes, and a part of the sentence.
PLACES = [
    ("0.11.0", "0.3.3", "X", "lmcache/integration/vllm/vllm_adapter.py", 22, "flash_attn"),
    ("0.13.0", "0.3.6", "X", "lmcache/integration/vllm/vllm_v1_adapter.py", 22, "cdiv"),
    ("0.11.0", "0.3.3", "C", "lmcache/integration/vllm/vllm_v1_adapter.py", 778, "mm_hashes"),
    (
        "0.32.0",
        "0.3.13",
        "C",
        "lmcache/v1/lookup_client/lmcache_lookup_client.py",
        208,
        "ConstantL",
    ),
    ("0.14.0", "0.5.6", "A", "lmcache/v1/compute/attention/flash_attn.py", 7, "no Attention"),
    ("0.12.0", "0.5.6", "R", "lmcache/v1/compute/positional_encoding.py", 184, "rotary_dim"),
    ("0.13.0", "0.3.10", "R", "lmcache/v1/compute/positional_encoding.py", 174, "and gets 8"),
    ("0.11.1", "0.3.9.post2", "E", "lmcache/v1/compute/models/base.py", 72, "get_input_embeddings"),
    ("0.32.0", "0.5.6", "K", "lmcache/v1/gpu_connector/gpu_connectors.py", 882, "2 * head size"),
    ("0.23.0", "0.3.12", "S", "lmcache/v1/gpu_connector.py", 112, "for another one"),
    ("0.22.0", "0.5.6", "V", "vllm/config/vllm.py", 493, "for Qwen3ForCausalLM"),
    # What profile and doctor say of it.
    ("0.22.0", "0.5.6", "V", "vllm/config/vllm.py", 493, SKIPS),
    ("0.22.0", "0.5.6", "V", "vllm/config/vllm.py", 493, WAY),
]


@cache
def workshop() -> Workshop:
    return Workshop(discover(), Options(known=load(), memo=Memo()))


@cache
def release(package: str, version: str) -> Release:
    found = whole_release(package, version)
    return Release(package, found.wheel.version, found, found.wheel.filename)


@cache
def pair(vllm: str, lmcache: str) -> dict[str, Any]:
    return workshop().pair(release("vllm", vllm), release("lmcache", lmcache))


def test_the_pairs_have_every_letter_between_them() -> None:
    seen = {letter for before, _ in PAIRS.values() for letter in before.split()}
    assert seen == set(MEANINGS)
    assert len(PAIRS) >= 10


@pytest.mark.parametrize(("vllm", "lmcache"), PAIRS, ids=lambda version: version)
def test_the_letters_are_those_that_were_read_by_hand(vllm: str, lmcache: str) -> None:
    found = pair(vllm, lmcache)
    before, after = PAIRS[vllm, lmcache]
    assert (found["before"], found["after"]) == (before.split(), after.split())


@pytest.mark.parametrize(("vllm", "lmcache", "letter", "path", "line", "words"), PLACES)
def test_a_letter_stands_where_it_was_read(
    vllm: str, lmcache: str, letter: str, path: str, line: int, words: str
) -> None:
    findings = pair(vllm, lmcache)["findings"]
    told = [(f["path"], f["line"], f["sentence"]) for f in findings if f["letter"] == letter]
    assert any((path, line) == (p, at) and words in sentence for p, at, sentence in told), told
