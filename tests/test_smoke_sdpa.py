from __future__ import annotations

import pytest
from targets import run_in_target

# Against attention written out; rows 1 and 3 of 5 are picked, with 4 heads over 2 KV heads.
CODE = """
import json, torch, types
from smoke_sdpa import SdpaBackend
torch.manual_seed(0)
backend = SdpaBackend(types.SimpleNamespace(impl=types.SimpleNamespace(scale=0.3)))
key, value = torch.randn(5, 2, 8), torch.randn(5, 2, 8)
query = torch.randn(5, 4, 8)

def written_out(rows):
    result = torch.zeros(len(rows), 4, 8)
    for number, row in enumerate(rows):
        for head in range(4):
            scores = key[: row + 1, head // 2] @ query[row, head] * 0.3
            result[number, head] = torch.softmax(scores, 0) @ value[: row + 1, head // 2]
    return result

found = []
metadata = backend.init_attn_metadata(input_ids=torch.arange(5))
output = torch.empty(5, 4, 8)
backend.forward_contiguous(query, key, value, output, metadata)
found.append(float((output - written_out(range(5))).abs().max()))
metadata.update_from_top_indices(torch.tensor([1, 3]))
output = torch.empty(2, 4, 8)
backend.forward_contiguous(query[[1, 3]], key, value, output, metadata)
found.append(float((output - written_out([1, 3])).abs().max()))
print(json.dumps(found))
"""


@pytest.mark.stack
def test_all_rows_and_picked_rows_see_the_keys_up_to_their_own_places() -> None:
    assert max(run_in_target(CODE)) < 1e-5
