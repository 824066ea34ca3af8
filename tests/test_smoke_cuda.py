from __future__ import annotations

import pytest
from targets import run_in_target

DEVICES = """
import json, torch
from smoke_cuda import cpu_for_cuda
cpu_for_cuda()
made = [torch.empty(2, device="cuda"), torch.zeros(2, device=torch.device("cuda:0")),
        torch.arange(2, device="cuda:0"), torch.tensor([1]).cuda(), torch.ones(1).to("cuda:0"),
        torch.ones(1).to(device=torch.device("cuda")), torch.ones(1, device="meta")]
wide = torch.ones(1).to(torch.float64)
print(json.dumps([*(str(one.device) for one in made), wide.dtype.itemsize,
                  torch.cuda.device_count(), torch.cuda.current_device()]))
"""
ROTATE = """
import json, torch
from smoke_cuda import rotate_keys
SIZE, FAR = 8, 64
angles = torch.arange(FAR)[:, None] / 100 ** (torch.arange(SIZE // 2) / (SIZE // 2))
table = torch.cat([angles.cos(), angles.sin()], dim=-1)

def rotated(key, positions, neox):
    # Each pair as a complex number, turned by its position's angle.
    pairs = key.unflatten(-1, (2, -1)).transpose(-1, -2) if neox else key.unflatten(-1, (-1, 2))
    turned = torch.view_as_complex(pairs.contiguous()) * torch.polar(
        torch.ones(()), angles[positions])[:, None]
    parts = torch.view_as_real(turned)
    return (parts.transpose(-1, -2) if neox else parts).flatten(-2)

plain = torch.randn(5, 2, SIZE)
old, new = torch.tensor([0, 3, 9, 20, 63]), torch.tensor([5, 3, 2, 21, 0])
off = []
for neox in (True, False):
    key = rotated(plain, old, neox)
    rotate_keys(old, new, key, SIZE, table, neox)
    off.append(float((key - rotated(plain, new, neox)).abs().max()))
    off.append(float((key - rotated(plain, old, neox)).abs().max()))
print(json.dumps(off))
"""


@pytest.mark.stack
def test_what_asks_for_a_cuda_device_gets_the_cpu() -> None:
    assert run_in_target(DEVICES) == [*["cpu"] * 6, "meta", 8, 1, 0]


@pytest.mark.stack
def test_keys_come_to_where_they_would_have_been_computed() -> None:
    neox, neox_before, pairs, pairs_before = run_in_target(ROTATE)
    assert max(neox, pairs) < 1e-5
    assert min(neox_before, pairs_before) > 0.1


@pytest.mark.stack
@pytest.mark.parametrize("name", ["wait_stream", "record", "synchronize"])
def test_a_stream_that_does_nothing_answers_to_everything(name: str) -> None:
    code = f"import json\nfrom smoke_cuda import Idle\nprint(json.dumps(Idle().{name}(1)))"
    assert run_in_target(code) is None
