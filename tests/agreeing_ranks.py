"""Tensor-parallel ranks of a check layer, each a process; run by path with orders as JSON.

Real: the release's LMCBlender, the vLLM release's GroupCoordinator.all_reduce and broadcast, gloo.
Stand-ins: the model's sharded weights, keys of a changed context, and a rotary embedding that turns
nothing.
"""

from __future__ import annotations

import ast
import json
import logging
import multiprocessing
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

TOKENS, HEADS, SIZE, HIDDEN = 64, 4, 16, 32
FUTURE = "from __future__ import annotations"


def defined(text: str, names: tuple[str, ...], **given: Any) -> dict[str, Any]:
    """These classes and functions of a module."""
    body = [node for node in ast.parse(text).body if getattr(node, "name", "") in names]
    code = ast.Module([*ast.parse(FUTURE).body, *body], [])
    space: dict[str, Any] = dict(given)
    exec(compile(code, "released", "exec"), space)
    return space


def coordinator(text: str, rank: int, ranks: int, noise: float) -> Any:
    """The vLLM release's own group, as far as it is asked here, on gloo."""
    (owner,) = [node for node in ast.parse(text).body if getattr(node, "name", "") == _GROUP]
    assert isinstance(owner, ast.ClassDef)
    kept = ("all_reduce", "_all_reduce_out_place", "broadcast")
    owner.body = [node for node in owner.body if getattr(node, "name", "") in kept]
    owner.bases, owner.decorator_list = [], []
    space: dict[str, Any] = {"torch": torch}
    exec(compile(ast.Module([*ast.parse(FUTURE).body, owner], []), "vllm", "exec"), space)

    def all_reduce(given: Any) -> Any:
        dist.all_reduce(given)
        # A rank that rounds otherwise.
        return given + noise * rank * torch.arange(given.shape[0])

    group = space[_GROUP]()
    group.world_size, group.ranks, group.device_group = ranks, list(range(ranks)), None
    group.use_custom_op_call = False
    group.device_communicator = SimpleNamespace(all_reduce=all_reduce)
    return group


_GROUP = "GroupCoordinator"


def rank_of(order: dict[str, Any], rank: int, told: Any) -> None:
    """Process one check layer, and tell what was picked and what o_proj's sum comes to."""
    torch.set_num_threads(1)
    ranks, kv_heads = order["ranks"], order["kv_heads"]
    dist.init_process_group(
        "gloo", init_method=f"file://{order['meet']}", rank=rank, world_size=ranks
    )
    module = ModuleType("vllm.distributed.parallel_state")
    group = coordinator(order["parallel_state"], rank, ranks, order["noise"])
    vars(module)["get_tp_group"] = lambda: group
    for name in ("vllm", "vllm.distributed"):
        sys.modules[name] = ModuleType(name)
    sys.modules[module.__name__] = module

    source = torch.Generator().manual_seed(order["seed"])
    query, key, value = (
        torch.randn(TOKENS, heads * SIZE, generator=source) for heads in (HEADS, kv_heads, kv_heads)
    )
    off = torch.rand(TOKENS, kv_heads, generator=source).repeat_interleave(SIZE, 1)
    cached = key + torch.randn(TOKENS, kv_heads * SIZE, generator=source) * off
    if order["noise"]:
        cached = key + 1
    weight = torch.randn(HEADS * SIZE, HIDDEN, generator=source)
    residual = torch.randn(TOKENS, HIDDEN, generator=source)
    # As vLLM shards: query heads apart, KV heads apart or, of fewer than ranks, the same on some.
    own = slice(rank * HEADS // ranks * SIZE, (rank + 1) * HEADS // ranks * SIZE)
    first, end = rank * kv_heads // ranks, max((rank + 1) * kv_heads // ranks, 1)
    own_kv = slice(first * SIZE, max(end, first + 1) * SIZE)

    names = ("LMCBlender", "_kvpatch_pick")
    logger = logging.getLogger("blender")
    blender = object.__new__(
        defined(order["blender"], names, torch=torch, logger=logger)["LMCBlender"]
    )
    held = cached[:, own_kv].clone(), value[:, own_kv].clone()
    blender.gpu_connector = SimpleNamespace(
        get_kv=lambda _layer: held, current_gap_positions=torch.tensor([], dtype=torch.int64)
    )
    attention = SimpleNamespace(rotary_emb=lambda _positions, query, key: (query, key))
    layers = [None, SimpleNamespace(self_attn=attention)]
    model = SimpleNamespace(model=SimpleNamespace(layers=layers))
    blender.layerwise_model = SimpleNamespace(vllm_model=model)
    blender.common_metadata = SimpleNamespace(check_layers=[1], recomp_ratios=[order["ratio"]])
    blender.metadata = SimpleNamespace(imp_indices=None, attn_mask=None, positions=None)
    attended = SimpleNamespace(update_from_top_indices=lambda _rows: None)
    picked, *_ = blender.process_qkv(
        query[:, own], key[:, own_kv], value[:, own_kv], residual, 1, None, attended
    )
    rows = blender.metadata.imp_indices
    # What a row-parallel layer does on each rank, and then adds up.
    found = picked @ weight[own]
    dist.all_reduce(found)
    wanted = (query @ weight)[rows]
    error = ((found - wanted).norm(dim=1) / wanted.norm(dim=1)).max()
    dist.barrier()
    told.send({"rows": rows.tolist(), "error": float(error)})


def together(order: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank told. Forked, so that torch is imported once."""
    forking = multiprocessing.get_context("fork")
    pipes = [forking.Pipe(duplex=False) for _ in range(order["ranks"])]
    ranks = [
        forking.Process(target=rank_of, args=(order, rank, told))
        for rank, (_, told) in enumerate(pipes)
    ]
    for one in ranks:
        one.start()
    for _, told in pipes:
        told.close()
    found = [heard.recv() for heard, _ in pipes]
    for one in ranks:
        one.join()
    return found


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    print(json.dumps({name: together(order) for name, order in given.items()}))
