"""The guard that inserted code stands behind, and what a module is where it reads false."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache

from .patch import Judgement

GUARD = "_kvpatch_uses_lmcache"
"""The name of the inserted function that tells whether LMCache's connector is configured."""

PREFIX = "_kvpatch_"
GUARD_SOURCE = f'''
def {GUARD}(vllm_config):
    """Whether LMCache's in-process connector is configured, alone or in a MultiConnector."""

    def read(entry, key):
        return entry.get(key) if isinstance(entry, dict) else getattr(entry, key, None)

    pending = [getattr(vllm_config, "kv_transfer_config", None)]
    while pending:
        entry = pending.pop()
        name = str(read(entry, "kv_connector") or "")
        module = str(read(entry, "kv_connector_module_path") or "")
        if name.startswith("LMCacheConnector"):
            return True
        if name != "LMCacheMPConnector" and f"{{module}}.".startswith("lmcache."):
            return True
        extra = read(entry, "kv_connector_extra_config")
        if name == "MultiConnector" and isinstance(extra, dict):
            connectors = extra.get("connectors")
            pending.extend(connectors if isinstance(connectors, (list, tuple)) else ())
    return False
'''


def stock_without_guard(stock: ast.Module, patched: ast.Module) -> Judgement:
    """Judge whether the patched module is the stock one wherever the guard reads false."""
    if _same(patched, stock):
        return Judgement(True, "without LMCache's connector the module is the stock one")
    return Judgement(False, "without LMCache's connector the module is not the stock one")


def is_guard(node: ast.stmt) -> bool:
    """Whether a function is the guard as kvpatch writes it; an edited one proves nothing."""
    if not isinstance(node, ast.FunctionDef) or node.name != GUARD:
        return False
    return ast.dump(node) == _guard_as_written()


@cache
def _guard_as_written() -> str:
    return ast.dump(ast.parse(GUARD_SOURCE).body[0])


def _without_guard(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements left where the guard reads false; lists inside them stay as they are."""
    kept: list[ast.stmt] = []
    for node in body:
        match node:
            case ast.FunctionDef(name=name) if name.startswith(PREFIX):
                continue
            case ast.If(test=ast.Call(func=ast.Name(id=name)), orelse=orelse) if name == GUARD:
                kept += _without_guard(orelse)
            case ast.If(
                test=ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=ast.Name(id=name))), body=inner
            ) if name == GUARD:
                kept += _without_guard(inner)
            case _:
                kept.append(node)
    return kept


def _same(patched: object, stock: object) -> bool:
    """Whether a patched part is the stock one, positions and guarded parts apart."""
    if patched.__class__ is not stock.__class__:
        return False
    if isinstance(patched, ast.AST):
        for field in patched._fields:
            one, other = getattr(patched, field, None), getattr(stock, field, None)
            # Names and contexts mostly are the very same objects.
            if one is not other and not _same(one, other):
                return False
        return True
    if isinstance(patched, list) and isinstance(stock, list):
        left = _without_guard(patched) if patched and isinstance(patched[0], ast.stmt) else patched
        return len(left) == len(stock) and all(map(_same, left, stock))
    return patched == stock
