"""The names of hash algorithms, against LMCache's own choice with the functions that vLLM has."""

from __future__ import annotations

import ast
import sys
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kvpatch.hash_names import ASKS_VLLM, BUILTIN, BYTES_SINCE, is_taken, names
from packaging.version import Version
from releases import (
    ReleaseFilesMissingError,
    lmcache_releases,
    release_file,
    vllm_releases,
    whole_release,
)

pytestmark = pytest.mark.releases

TRIED = (BUILTIN, "sha256", "sha256_cbor", "sha256_cbor_64bit", "xxhash", "xxhash_cbor", "sha265")
VLLM = ("0.8.5", "0.10.0", "0.10.1.1", "0.10.2", "0.11.0", "0.11.1", "0.12.0", "0.13.0", "0.33.0")


@cache
def module(release: str, path: str) -> ast.Module | None:
    try:
        return ast.parse(release_file("vllm", release, path))
    except ReleaseFilesMissingError:
        return None


@cache
def hash_functions(release: str) -> dict[str, dict[str, Any]]:
    """The release's own hash functions by module. What they call in their turn is not there."""
    found: dict[str, dict[str, Any]] = {}
    for name, paths in {
        "vllm.utils": ("vllm/utils/__init__.py", "vllm/utils.py"),
        "vllm.utils.hashing": ("vllm/utils/hashing.py",),
    }.items():
        parsed = next((one for path in paths if (one := module(release, path))), None)
        if parsed is None:
            continue
        kept = [
            node
            for node in parsed.body
            if isinstance(node, ast.FunctionDef)
            and node.name.startswith(("sha256", "xxhash", "get_hash_fn"))
        ]
        for node in kept:
            node.decorator_list, node.returns = [], None
            for one in node.args.args:
                one.annotation = None
        space: dict[str, Any] = {}
        exec(compile(ast.Module(kept, []), name, "exec"), space)
        space.pop("__builtins__")
        found[name] = space
    return found


@cache
def token_database(release: str) -> ast.ClassDef:
    """LMCache's class that chooses the function."""
    wheel = whole_release("lmcache", release)
    (path,) = [
        p
        for p in wheel.entries
        if p.endswith(("v1/token_database.py", "process/token_database.py"))
    ]
    for node in ast.walk(ast.parse(wheel.read(path) or b"")):
        if isinstance(node, ast.ClassDef) and node.name == "TokenDatabase":
            return node
    raise AssertionError(release)


def chosen(name: str, lmcache: str, vllm: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The function that the release's own code takes beside that vLLM."""
    for one in [one for one in sys.modules if one.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, one)
    package = ModuleType("vllm")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "vllm", package)
    for place, functions in hash_functions(vllm).items():
        made = ModuleType(place)
        made.__path__ = []
        vars(made).update(functions)
        monkeypatch.setitem(sys.modules, place, made)
    body = [
        node
        for node in token_database(lmcache).body
        if isinstance(node, ast.FunctionDef)
        and node.name in ("__init__", "_get_vllm_hash_func", "_try_get_hash")
    ]
    for node in body:
        node.decorator_list = []
        node.args.args = [ast.arg(one.arg) for one in node.args.args]
        node.returns = None
    made_class = ast.ClassDef("Chooses", [], [], body, [])
    if sys.version_info >= (3, 12):
        made_class.type_params = []
    tree = ast.fix_missing_locations(ast.Module([made_class], []))
    silent = SimpleNamespace(info=lambda *_: None, warning=lambda *_: None)
    space: dict[str, Any] = {"logger": silent, "os": SimpleNamespace(getenv=lambda *_: "0")}
    exec(compile(tree, "token_database", "exec"), space)
    config = SimpleNamespace(
        pre_caching_hash_algorithm=name, get_extra_config_value=lambda _key, default: default
    )
    return space["Chooses"](config, SimpleNamespace(use_mla=False)).hash_func


@pytest.mark.parametrize("lmcache", [str(one) for one in lmcache_releases()])
def test_lmcache_takes_these_names_and_python_s_own_hash_for_others(
    lmcache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ever: dict[str, set[bool]] = {name: set() for name in TRIED}
    for vllm in VLLM:
        for name in TRIED:
            taken = chosen(name, lmcache, vllm, monkeypatch) is not hash
            ever[name].add(taken)
            if name != BUILTIN:
                found = is_taken(name, Version(lmcache), Version(vllm))
                assert found is taken, (name, vllm)
    for name in TRIED[1:]:
        told = is_taken(name, Version(lmcache), None)
        assert {True: {True}, False: {False}, None: {True, False}}[told] == ever[name], name
    assert {name for name in TRIED if True in ever[name]} == set(names(Version(lmcache)))


@pytest.mark.parametrize("release", vllm_releases())
def test_the_functions_of_vllm_give_bytes_from_one_release_on(release: str) -> None:
    paths = ("vllm/utils/hashing.py", "vllm/utils/__init__.py", "vllm/utils.py")
    (given,) = {
        ast.unparse(node.returns)
        for path in paths
        for node in (
            ast.parse(release_file("vllm", release, path)).body if module(release, path) else []
        )
        if isinstance(node, ast.FunctionDef) and node.name == "sha256" and node.returns
    }
    assert (given == "bytes") is (Version(release) >= BYTES_SINCE)


def test_python_s_own_hash_is_always_one() -> None:
    for lmcache in ("0.3.3", str(ASKS_VLLM)):
        assert is_taken(BUILTIN, Version(lmcache), None)
