"""The configuration keys of an LMCache release, read from its source without importing it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from .outcome import ExitCode, KvpatchError

CONFIG = "lmcache/v1/config.py"
"""Where LMCache 0.3.3 and later keep their configuration, below the site folder."""

DEFINITIONS = "_CONFIG_DEFINITIONS"
FIELDS = "LMCacheEngineConfig"


@dataclass(frozen=True)
class Key:
    """One key: its type and default as the source spells them; None for a default it has not."""

    name: str
    type: str
    default: str | None
    env_converter: str | None = None


@dataclass(frozen=True)
class Schema:
    """The keys that one LMCache release reads from its configuration file."""

    version: str
    keys: Mapping[str, Key]


def parse_schema(source: bytes, version: str) -> Schema:
    """Read the keys from the text of ``lmcache/v1/config.py``.

    From 0.3.4 on they are a dict literal, ``_CONFIG_DEFINITIONS``; in 0.3.3 the fields of a
    dataclass.

    Raises:
        KvpatchError: ``no-schema``, where neither is there.
    """
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise _no_schema(version, f"the file does not parse: {error}") from error
    keys = _definitions(module) or _fields(module)
    if not keys:
        raise _no_schema(version, f"neither {DEFINITIONS} nor {FIELDS} is there as expected")
    return Schema(version, keys)


def _definitions(module: ast.Module) -> Mapping[str, Key]:
    for node in module.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict() as literal)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Dict() as literal)
            ) if name == DEFINITIONS:
                pairs = zip(literal.keys, literal.values, strict=True)
                return {
                    key.value: _defined(key.value, value)
                    for key, value in pairs
                    if isinstance(key, ast.Constant) and isinstance(key.value, str)
                    if isinstance(value, ast.Dict)
                }
    return {}


def _defined(name: str, literal: ast.Dict) -> Key:
    parts = {
        key.value: ast.unparse(value)
        for key, value in zip(literal.keys, literal.values, strict=True)
        if isinstance(key, ast.Constant)
    }
    return Key(name, parts.get("type", "Any"), parts.get("default"), parts.get("env_converter"))


def _fields(module: ast.Module) -> Mapping[str, Key]:
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == FIELDS:
            return {
                item.target.id: Key(
                    item.target.id,
                    ast.unparse(item.annotation),
                    ast.unparse(item.value) if item.value is not None else None,
                )
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
    return {}


def _no_schema(version: str, why: str) -> KvpatchError:
    return KvpatchError(
        "no-schema",
        f"the configuration keys of LMCache {version} can't be read: {why}",
        "a newer kvpatch may know this release; LMCache's own documentation lists its keys",
        ExitCode.REFUSED,
    )
