"""Keys moved by the model's own rotary embedding, by the code that real LMCache files get (KV003).

The ropes are written here, each kind by its formula; LMCache's kernel is stood in for by its
definition: turn back by the old positions' angles, then on by the new ones'.
"""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import pytest
from lmcache_files import executed, patched_text
from tensors import load_torch

torch = load_torch()

pytestmark = [pytest.mark.releases, pytest.mark.tensors]

BASE = "lmcache/v1/compute/models/base.py"
LLAMA = "lmcache/v1/compute/models/llama.py"
POSITIONS = "lmcache/v1/compute/positional_encoding.py"
RELEASES = {"0.3.3": LLAMA, "0.3.7": LLAMA, "0.3.9": BASE, "0.4.4": BASE, "0.5.6": BASE}
SIZE, LENGTH = 16, 512


class Rope:
    """A rotary embedding as vLLM's models have one."""

    def __init__(self, kind: str, dtype: Any = torch.float32, neox: bool = True) -> None:
        self.head_size = self.rotary_dim = SIZE
        self.is_neox_style = neox
        self.dtype = dtype
        self.base, self.max_position_embeddings = 10000.0, LENGTH
        self.moved_by = 0
        frequencies = 10000.0 ** -(torch.arange(0, SIZE, 2) / SIZE)
        length, scale = LENGTH, 1.0
        if kind == "llama3":
            waves = 2 * math.pi / frequencies
            smooth = ((64 / waves - 1) / 3).clamp(0, 1)
            frequencies = (1 - smooth) * frequencies / 8 + smooth * frequencies
        elif kind == "linear":
            frequencies, length = frequencies / 4, LENGTH * 4
        elif kind == "dynamic":
            frequencies = (10000.0 * 3.7) ** -(torch.arange(0, SIZE, 2) / SIZE)
            length = LENGTH * 2
        elif kind == "yarn":
            ramp = ((torch.arange(SIZE // 2) - 2) / 3).clamp(0, 1)
            frequencies = frequencies / 4 * ramp + frequencies * (1 - ramp)
            length, scale = LENGTH * 4, 0.1 * math.log(4) + 1
        angles = torch.arange(length)[:, None] * frequencies
        table = torch.cat((angles.cos(), angles.sin()), dim=-1) * scale
        self.cos_sin_cache = table.to(dtype)

    def __call__(self, positions: Any, query: Any, key: Any) -> tuple[Any, Any]:
        table = self.cos_sin_cache[positions + self.moved_by].to(key.dtype)
        return turned(query, table, self.is_neox_style), turned(key, table, self.is_neox_style)


def turned(flat: Any, table: Any, neox: bool, back: bool = False) -> Any:
    """Pairs of each head turned by the table's angles, or back."""
    heads = flat.view(flat.shape[0], -1, SIZE)
    cos, sin = (part[:, None] for part in table.chunk(2, dim=-1))
    sin = -sin if back else sin
    one, two = heads.chunk(2, dim=-1) if neox else (heads[..., ::2], heads[..., 1::2])
    new = (one * cos - two * sin, two * cos + one * sin)
    joined = torch.cat(new, dim=-1) if neox else torch.stack(new, dim=-1).flatten(-2)
    return joined.reshape(flat.shape)


class Ops:
    """LMCache's ``rotary_embedding_k_fused``, by its definition, in place."""

    def rotary_embedding_k_fused(
        self, old: Any, new: Any, key: Any, size: int, table: Any, neox: bool
    ) -> None:
        assert key.dtype == table.dtype
        flat = key.reshape(key.shape[0], -1)
        before = turned(flat, table[old], neox, back=True)
        key.copy_(turned(before, table[new], neox).view(key.shape))


@pytest.fixture(params=sorted(RELEASES))
def model_rope(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The patched function, with that release's real FusedRope around the stand-in kernel."""
    release = str(request.param)
    from releases import release_file

    text = release_file("lmcache", release, POSITIONS).decode()
    space = executed(text, ["FusedRope"], torch=torch, lmc_ops=Ops(), device_ops=Ops())
    for name in ("lmcache", "lmcache.v1", "lmcache.v1.compute"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = ModuleType("lmcache.v1.compute.positional_encoding")
    module.FusedRope = space["FusedRope"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    text = patched_text(release, RELEASES[release])
    return executed(text, ["_kvpatch_model_rope"], torch=torch)["_kvpatch_model_rope"]


@pytest.mark.parametrize("neox", [True, False], ids=["neox", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["default", "llama3", "linear", "dynamic", "yarn"])
def test_moved_keys_are_those_of_the_models_rope(
    model_rope: Any, kind: str, dtype: Any, neox: bool
) -> None:
    rope = Rope(kind, dtype, neox)
    move = model_rope(rope)
    source = torch.Generator().manual_seed(5)
    length = rope.cos_sin_cache.shape[0]
    old, new = torch.randint(0, length, (2, 300), generator=source)
    keys = torch.randn(300, 2 * SIZE, generator=source).to(dtype)
    cached, wanted = rope(old, keys, keys)[1], rope(new, keys, keys)[1].float()
    found = move(old, new, cached.clone()).float()
    error = ((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max()
    assert error < {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}[dtype]


def test_a_table_of_another_dtype_than_the_keys_is_taken_in_theirs(model_rope: Any) -> None:
    rope = Rope("llama3")
    rope.dtype = torch.bfloat16
    found = model_rope(rope)(
        torch.arange(9), torch.arange(9) + 300, torch.ones(9, SIZE, dtype=torch.bfloat16)
    )
    assert found.dtype == torch.bfloat16


def test_partial_rotary_is_refused_by_name(model_rope: Any) -> None:
    rope = Rope("default")
    rope.rotary_dim = SIZE // 2
    with pytest.raises(NotImplementedError, match=r"partial.*Rope rotates 8 of 16 dimensions"):
        model_rope(rope)


def test_a_rope_without_a_table_is_refused_by_name(model_rope: Any) -> None:
    rope = Rope("default")
    del rope.cos_sin_cache
    with pytest.raises(NotImplementedError, match="the rope Rope"):
        model_rope(rope)


@pytest.mark.parametrize("fault", ["shifted", "another table", "not a number"])
def test_a_failed_check_stops_with_an_error(model_rope: Any, fault: str) -> None:
    rope = Rope("default")
    if fault == "shifted":
        rope.moved_by = -1
    elif fault == "another table":
        table = Rope("llama3").cos_sin_cache
        rope.__class__ = type(
            "Odd", (Rope,), {"__call__": lambda _, p, q, k: (q, turned(k, table[p], True))}
        )
    else:
        rope.cos_sin_cache = rope.cos_sin_cache * math.nan
    with pytest.raises(RuntimeError, match=r"off by .* from the model's own rotary embedding"):
        model_rope(rope)
