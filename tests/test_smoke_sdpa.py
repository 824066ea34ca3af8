from __future__ import annotations

import pytest
from targets import run_in_target

# Against attention written out, with 4 heads over 2 KV heads of LMCache's own back end.
CODE = """
import json, torch, types
from smoke_sdpa import backend
torch.manual_seed(0)
key, value = torch.randn(5, 2, 8), torch.randn(5, 2, 8)
query = torch.randn(5, 4, 8)

def written_out(queries, rows, first=lambda row: 0):
    result = torch.zeros(len(rows), 4, 8)
    for number, row in enumerate(rows):
        for head in range(4):
            seen = slice(first(row), row + 1)
            scores = key[seen, head // 2] @ queries[number, head] * 0.3
            result[number, head] = torch.softmax(scores, 0) @ value[seen, head // 2]
    return result

def off(queries, wanted, window=None):
    layer = types.SimpleNamespace(
        impl=types.SimpleNamespace(scale=0.3, alibi_slopes=None), sliding_window=window
    )
    made = backend(layer)
    metadata = made.init_attn_metadata(input_ids=torch.arange(5))
    if len(queries) < 5:
        metadata.update_from_top_indices(torch.arange(len(queries)))
    output = torch.empty(len(queries), 4, 8)
    found = made.forward_contiguous(queries, key, value, output, metadata)
    return float((found - wanted).abs().max())

def refused(rows=5, tokens=5, **impl):
    layer = types.SimpleNamespace(impl=types.SimpleNamespace(scale=0.3, **impl))
    made = backend(layer)
    metadata = made.init_attn_metadata(input_ids=torch.arange(tokens))
    metadata.update_from_top_indices(torch.arange(rows))
    try:
        made.forward_contiguous(query, key, value, torch.empty(5, 4, 8), metadata)
    except (ValueError, NotImplementedError) as error:
        return str(error)

print(json.dumps([
    off(query, written_out(query, range(5))),
    off(query, written_out(query, range(5), lambda row: max(0, row - 1)), window=2),
    # The kernel is not told which rows they are.
    off(query[:2], written_out(query[:2], [3, 4])),
    refused(),
    refused(rows=4),
    refused(tokens=6),
    refused(alibi_slopes=torch.ones(4)),
    refused(logits_soft_cap=30.0),
]))
"""


@pytest.mark.stack
def test_rows_see_what_flash_attention_documents() -> None:
    *off, nothing, rows, tokens, alibi, cap = run_in_target(CODE)
    assert max(off) < 1e-5
    # What the kernel would make of it is never tried.
    assert nothing is None
    assert rows == "q has 5 rows, told: torch.int32 [0, 4], 4"
    assert tokens == "k has 5 rows, told: torch.int32 [0, 6], 6"
    assert alibi == cap == "the stand-in knows no soft cap, no ALiBi and no block table"
