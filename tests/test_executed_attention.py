"""To what recomputed tokens attend, by real releases' own attention as kvpatch leaves it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from lmcache_files import QUIET, executed, patched_text, stock_files
from tensors import load_torch

torch = load_torch()

pytestmark = [pytest.mark.releases, pytest.mark.tensors]

BLENDER = "lmcache/v1/compute/blend/blender.py"
FLASH = "lmcache/v1/compute/attention/flash_attn.py"
RELEASES = ["0.3.3", "0.3.9.post2", "0.4.4", "0.5.6"]
TOKENS, HEADS, KV_HEADS, SIZE = 40, 6, 2, 8
PICKED = [0, 3, 4, 5, 17, 30, 39]


def written_out(query: Any, key: Any, value: Any, rows: list[int], window: int = -1) -> Any:
    """Attention token by token: each to what precedes it, or to that many tokens and itself."""
    made = torch.zeros_like(query)
    for at, row in enumerate(rows):
        first = 0 if window < 0 else max(0, row - window)
        for head in range(HEADS):
            own = head * KV_HEADS // HEADS
            scores = key[first : row + 1, own] @ query[at, head] * 0.3
            made[at, head] = torch.softmax(scores, 0) @ value[first : row + 1, own]
    return made


def kernel(
    *, q: Any, k: Any, v: Any, out: Any, window_size: Any, causal: bool, **more: Any
) -> None:
    """FlashAttention by its documentation: rows are taken for the last ones of the tokens."""
    assert causal
    assert not more["softcap"]
    assert more["block_table"] is None
    for part, name in ((q, "q"), (k, "k")):
        assert more[f"cu_seqlens_{name}"].tolist() == [0, len(part)]
        assert more[f"max_seqlen_{name}"] == len(part)
    last = list(range(len(k) - len(q), len(k)))
    out.copy_(written_out(q, k, v, last, window_size[0]))


def backend(text: str, window: int = -1, **more: Any) -> Any:
    """The released back end around that kernel; nothing of it is stood in for but the kernel."""
    names = ["LMCFlashAttnBackend", *(["_kvpatch_attend"] if "_kvpatch_attend" in text else [])]
    space = executed(
        text,
        names,
        torch=torch,
        AttentionInterface=object,
        LMCFlashAttnMetadata=SimpleNamespace,
        flash_attn_varlen_func=kernel,
    )
    made = object.__new__(space["LMCFlashAttnBackend"])
    made.vllm_attn_impl = SimpleNamespace(
        scale=0.3,
        alibi_slopes=None,
        logits_soft_cap=0,
        sliding_window=(window, 0 if window >= 0 else -1),
        vllm_flash_attn_version=2,
    )
    vars(made.vllm_attn_impl).update(more)
    one = torch.ones(1)
    made.vllm_attn = SimpleNamespace(_q_scale=one, _k_scale=one, _v_scale=one)
    made.aot_schedule = False
    made.flash_attn_varlen_func = kernel
    return made


def answered(made: Any, rows: list[int] | None, window: int = -1) -> tuple[Any, Any]:
    """What the back end makes of some rows of a prompt, or of all; and what it should be."""
    torch.manual_seed(0)
    key, value = torch.randn(TOKENS, KV_HEADS, SIZE), torch.randn(TOKENS, KV_HEADS, SIZE)
    whole = torch.randn(TOKENS, HEADS, SIZE)
    query = whole if rows is None else whole[rows]
    metadata = SimpleNamespace(
        query_start_loc=torch.tensor([0, len(query)]),
        seq_lens=torch.tensor([TOKENS]),
        cu_seqlens_k=torch.tensor([0, TOKENS]),
        max_query_len=len(query),
        max_seq_len=TOKENS,
    )
    if rows is not None:
        metadata.kvpatch_rows = torch.tensor(rows)
    output = torch.full_like(query, float("nan"))
    found = made.forward_contiguous(query, key, value, output, metadata)
    assert found is output
    asked = list(range(TOKENS)) if rows is None else rows
    return found, written_out(query, key, value, asked, window)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("window", [-1, 7])
@pytest.mark.parametrize("rows", [PICKED, [0], [39], list(range(TOKENS))])
def test_picked_tokens_attend_to_what_precedes_them(
    release: str, window: int, rows: list[int]
) -> None:
    found, wanted = answered(backend(patched_text(release, FLASH), window), rows, window)
    assert (found - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("release", RELEASES)
def test_as_released_they_attend_to_what_follows_them(release: str) -> None:
    text = stock_files(release)[FLASH].decode()
    found, wanted = answered(backend(text), PICKED)
    assert (found - wanted).abs().max() > 0.1
    found, wanted = answered(backend(text), [37, 38, 39])
    assert (found - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("release", RELEASES)
def test_where_all_tokens_are_computed_the_kernel_stays(release: str) -> None:
    made = backend(patched_text(release, FLASH), alibi_slopes=torch.ones(HEADS))
    found, wanted = answered(made, None)
    assert (found - wanted).abs().max() < 1e-5


def test_many_rows_are_computed_in_parts() -> None:
    text = patched_text("0.5.6", FLASH)
    assert text.count("(1 << 26)") == 1
    for bound in (1, 8, 9):
        made = backend(text.replace("(1 << 26)", f"(1 << {bound})"))
        found, wanted = answered(made, PICKED)
        assert (found - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("more", [{"alibi_slopes": torch.ones(HEADS)}, {"logits_soft_cap": 30.0}])
def test_what_the_mask_does_not_know_is_refused_by_name(more: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match="ALiBi nor a soft cap"):
        answered(backend(patched_text("0.5.6", FLASH), **more), PICKED)


@pytest.mark.parametrize("release", RELEASES)
def test_attention_is_told_which_tokens_the_blender_picked(release: str) -> None:
    made = executed(
        patched_text(release, BLENDER),
        ["LMCBlender"],
        torch=torch,
        logger=QUIET,
        _kvpatch_pick=lambda apart, count: torch.topk(apart, k=count).indices,
        **dict.fromkeys(("LMCAttnMetadata", "LMCacheEngineConfig"), object),
    )["LMCBlender"]
    blender = object.__new__(made)
    torch.manual_seed(0)
    old = torch.randn(32, 8)
    attention = SimpleNamespace(rotary_emb=lambda _places, q, k: (q, k))
    inner = SimpleNamespace(layers=[SimpleNamespace(self_attn=attention)])
    blender.gpu_connector = SimpleNamespace(
        get_kv=lambda _layer: (old.clone(), old.clone()), current_gap_positions=None
    )
    blender.layerwise_model = SimpleNamespace(vllm_model=SimpleNamespace(model=inner))
    blender.common_metadata = SimpleNamespace(check_layers=[0], recomp_ratios=[0.25])
    blender.metadata = SimpleNamespace(imp_indices=None, attn_mask=None, positions=None)
    new = old.clone()
    wanted = [2, 3, 7, 11, 19, 20, 30, 31]
    new[wanted] += 1
    told = SimpleNamespace(update_from_top_indices=lambda _: None)
    blender.process_qkv(old.clone(), new, old.clone(), old.clone(), 0, None, told)
    assert told.kvpatch_rows.tolist() == wanted
