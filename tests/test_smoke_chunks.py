"""What is loaded against what was stored, with torch, where the smoke's children run."""

from __future__ import annotations

import pytest
from targets import run_in_target

HEAD = """
import json, tempfile, torch
from types import SimpleNamespace as Names
from smoke_chunks import Chunks, apart, turned

SIZE, HEADS = 8, 2

class Rope:
    head_size = rotary_dim = SIZE

    def __init__(self, neox=True, scale=1.0):
        self.is_neox_style, self.scale = neox, scale
        self.speeds = 1000.0 ** (-torch.arange(SIZE // 2) / (SIZE // 2))

    def __call__(self, positions, query, key):
        return query, self.turn(positions, key)

    def turn(self, positions, rows):
        # Written with sines and cosines, and in place, as vLLM's kernels are.
        heads = rows.view(len(rows), -1, SIZE)
        half = SIZE // 2
        first = heads[..., :half] if self.is_neox_style else heads[..., ::2]
        second = heads[..., half:] if self.is_neox_style else heads[..., 1::2]
        angle = (positions[:, None] * self.speeds)[:, None]
        cos, sin = angle.cos() * self.scale, angle.sin() * self.scale
        a, b = first.clone(), second.clone()
        first.copy_(a * cos - b * sin)
        second.copy_(b * cos + a * sin)
        return rows

torch.manual_seed(0)
raw = torch.randn(6, HEADS * SIZE)
"""

TURNED = (
    HEAD
    + """
found = []
for neox in (True, False):
    for scale in (1.0, 1.3):
        rope = Rope(neox, scale)
        old, new = torch.arange(6), torch.tensor([40, 41, 42, 7, 8, 9])
        keys = rope.turn(old, raw.clone())
        before = keys.clone()
        found.append(apart(turned(keys, old, new, rope), rope.turn(new, raw.clone())))
        found.append(apart(keys, before))
half = Rope()
half.rotary_dim = SIZE // 2
try:
    turned(raw, torch.arange(6), torch.arange(6), half)
except ValueError as error:
    found.append(str(error))
print(json.dumps(found))
"""
)


@pytest.mark.stack
def test_keys_are_turned_as_the_rope_itself_would_have_whatever_its_style_and_scale() -> None:
    *found, told = run_in_target(TURNED)
    assert max(found) < 1e-5
    assert told == "the rope turns 4 of 8 dimensions"


COMPARED = (
    HEAD
    + """
rope = Rope()

class Connector:
    def batched_from_gpu(self, objects, starts, ends, **more):
        for layer in objects:
            for number, (start, end) in enumerate(zip(starts, ends)):
                keys = rope.turn(torch.arange(start, end), raw[start:end].clone())
                layer[number].tensor = torch.stack([keys, raw[start:end] + 1])
            yield
        yield

    def batched_to_gpu(self, starts, ends, **more):
        return ["loaded", starts, ends, more]

connector, chunks = Connector(), Chunks()
chunks.watch(connector)
chunks.tokens = torch.arange(100, 106)
objects = [[Names(), Names()] for _ in range(2)]
for _ in connector.batched_from_gpu(objects, [0, 2], [2, 6], sync=True):
    pass
# What is kept is a copy.
objects[0][0].tensor.zero_()
with tempfile.NamedTemporaryFile() as file:
    chunks.save(file.name)
    chunks = Chunks()
    chunks.load(file.name)
chunks.watch(connector)
# The second chunk, a separator, the first chunk.
order = [2, 3, 4, 5, -1, 0, 1]
chunks.tokens = [100 + one for one in order]
passed = connector.batched_to_gpu([0, 5], [4, 7], offset=1)
rows = torch.stack([raw[max(one, 0)] for one in order])
right = rope.turn(torch.arange(7), rows.clone())
values = rows + 1
still = rope.turn(torch.tensor(order).clamp(min=0), rows.clone())
right[4] = values[4] = still[4] = 0

def told(keys, values, picked=None):
    one = chunks.compare(1, (keys, values), picked, rope)
    return [one["rows"], one["moved"]] + [round(one[n], 3) for n in ("keys", "still", "values")]

def anew_there(order, at, spoilt, picked):
    chunks.tokens, chunks.places = [100 + one for one in order], at
    rows = torch.stack([raw[one] for one in order])
    keys, values = rope.turn(torch.arange(len(order)), rows.clone()), rows + 1
    keys[spoilt] *= 2
    one = chunks.compare(1, (keys, values), torch.tensor(picked), rope)
    return [one["anew"], round(one["off"], 3), round(one["keys"], 3)]

whole, both = [0, 1, 2, 3, 4, 5], [(0, 2), (2, 6)]
there = [
    anew_there(whole, both, 3, [1, 3]),
    anew_there(whole, both, 4, [1, 3]),
    # Of a chunk that moved, nothing is known of what has to be computed.
    anew_there([2, 3, 4, 5, 0, 1], [(0, 4), (4, 6)], 3, [1, 3]),
]
chunks.tokens, chunks.places = [100 + one for one in order], [(0, 4), (5, 7)]

other = Chunks()
other.tokens, other.places = chunks.tokens, chunks.places
anew = right.clone()
anew[[0, 5]] = 9.0
bad = values.clone()
bad[6] += 1
print(json.dumps([
    passed[1:],
    told(right, values),
    told(still, values),
    told(anew, values),
    told(anew, values, torch.tensor([0, 5])),
    told(right, bad),
    told(right, values, torch.arange(7)),
    Chunks.compare(other, 1, (right, values), None, rope)["unknown"],
    there,
]))
"""
)


@pytest.mark.stack
def test_what_is_reused_is_what_was_stored_turned_to_its_new_place() -> None:
    passed, right, still, anew, picked, values, nothing, *rest = run_in_target(COMPARED)
    assert passed == [[0, 5], [4, 7], {"offset": 1}]
    rows, moved, keys, unturned, values_off = right
    # All of both chunks, and not the separator between them.
    assert (rows, moved, keys, values_off) == (6, 6, 0, 0)
    assert unturned > 0.1
    assert still[2] > 0.1
    assert still[3] == 0
    assert anew[2] > 0.5
    assert picked[:3] == [4, 4, 0]
    assert values[4] > 0.1
    assert nothing == [0, 0, 0, 0, 0]
    assert rest == [6, [[2, 1, 0], [2, 0, 1], [0, 0, 0]]]


WRITTEN = (
    HEAD
    + """
chunks = Chunks()
# One token of a separator before two chunks, and two between them, of which one is zeros.
chunks.places = [(1, 4), (6, 7)]
held = (torch.randn(7, HEADS * SIZE), torch.randn(7, HEADS * SIZE))
held[0][5], held[1][5] = 0.0, 0.0

def told(picked, **off):
    there = [part.clone() for part in held]
    for row in off.get("rows", ()):
        there[off["part"]][row] *= 2
    one = chunks.written(2, held, picked and torch.tensor(picked), there)
    return [one[name] for name in ("layer", "reused", "anew", "separators", "empty", "marks")]

lost = tuple(torch.full_like(part, float("nan")) for part in held)
print(json.dumps([
    chunks.places_of(held).tolist(),
    told([1, 4]),
    told(None, rows=[1], part=0),
    told([1, 4], rows=[1], part=1),
    told([1, 4], rows=[6], part=1),
    told([1], rows=[4], part=0),
    told(None, rows=[0], part=0),
    chunks.written(2, held, None, lost)["reused"],
    chunks.written(2, held, None, [part * 0 for part in held])["empty"],
]))
"""
)


@pytest.mark.stack
def test_what_stands_in_vllms_cache_is_told_by_what_became_of_the_token() -> None:
    places, right, reused, anew, other, *marks, lost, empty = run_in_target(WRITTEN)
    assert places == [0, 1, 2, 3, 4, 5, 6]
    assert right == [2, 0, 0, 0, 1, 3]
    assert reused == other == [2, 1, 0, 0, 1, 3]
    assert anew == [2, 0, 1, 0, 1, 3]
    assert marks == [[2, 0, 0, 1, 1, 3]] * 2
    assert lost == 1e6
    assert empty == 3
