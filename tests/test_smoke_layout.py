from __future__ import annotations

import pytest
from odd_kernel import HEAD
from targets import run_in_target

ROUND = (
    HEAD
    + """
found = []
for dtype in (torch.float32, torch.bfloat16):
    harness = Harness()
    whole, key, value, slots = wrote(harness, dtype)
    read = torch.empty(2, 6, HEADS * SIZE, dtype=dtype)
    harness.transfer(read, whole, slots, 1)
    found.append(bool((read[0] == key.view(6, -1)).all() and (read[1] == value.view(6, -1)).all()))
    before = whole.clone()
    whole.zero_()
    harness.transfer(read, whole, slots, 0)
    found.append(bool((whole == before).all()))
    majors = torch.empty(6, 2, HEADS * SIZE, dtype=dtype)
    harness.transfer(majors, whole, slots, 1, token_major=True)
    found.append(bool((majors[:, 0] == key.view(6, -1)).all()))
    skipping = torch.tensor([-1, 1, -1, 6, 9, 11])
    part = torch.full((2, 6, HEADS * SIZE), 7.0, dtype=dtype)
    harness.transfer(part, whole, skipping, 1)
    found.append(bool((part[:, 0] == 7).all() and (part[0, 1] == key[1].view(-1)).all()))
    found.append(harness.named()[0].startswith("K:"))
print(json.dumps(found))
"""
)
LOSSY = (
    HEAD
    + """
harness = Harness()
wrote(harness, torch.float32)
harness.layout.last_write = (lambda **_: None, harness.layout.last_write[1])
try:
    harness.layout._probe("key")
except HarnessError as error:
    print(json.dumps([error.step, harness.problem["step"]]))
"""
)
UNKNOWN = (
    HEAD
    + """
harness = Harness()
try:
    harness.transfer(torch.zeros(2, 1, 16), layer(torch.float32)[0], torch.tensor([0]), 1)
except HarnessError as error:
    print(json.dumps(error.why))
"""
)
NOTHING = (
    HEAD
    + """
import sys, types
for name in ("vllm", "vllm._custom_ops"):
    sys.modules[name] = types.ModuleType(name)
try:
    Harness().install()
except HarnessError as error:
    print(json.dumps([error.step, error.why]))
"""
)


@pytest.mark.stack
def test_what_a_kernel_packs_its_own_way_is_read_and_written_by_what_was_probed() -> None:
    found = run_in_target(ROUND)
    assert found == [True] * 10


@pytest.mark.stack
def test_a_kernel_that_loses_something_is_not_carried() -> None:
    assert run_in_target(LOSSY) == ["kv-layout", "kv-layout"]


@pytest.mark.stack
def test_a_cache_that_vllm_never_wrote_to_is_not_guessed_at() -> None:
    assert "never wrote" in run_in_target(UNKNOWN)


@pytest.mark.stack
def test_a_vllm_whose_writer_is_unknown_is_not_carried() -> None:
    step, why = run_in_target(NOTHING)
    assert step == "kv-layout"
    assert "nothing known writes" in why
