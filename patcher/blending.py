"""What the patches of LMCache share: how their results are read, and what they leave alone."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache

from packaging.version import Version

from .guard import PREFIX
from .matching import matches
from .patch import Condition, Judgement
from .walk import walk

EDITED = frozenset(
    {
        "LMCBaseModel.__init__",
        "LMCBaseModel.compute_layer",
        "LMCLlamaModel.__init__",
        "LMCLlamaModel.compute_layer",
        "VLLMBufferLayerwiseGPUConnector.batched_to_gpu",
        "VLLMBufferLayerwiseGPUConnector.batched_from_gpu",
        "VLLMPagedMemLayerwiseGPUConnector.batched_to_gpu",
        "VLLMPagedMemLayerwiseGPUConnector.batched_from_gpu",
        "LMCBlender.process_qkv",
        "LMCFlashAttnBackend.forward_contiguous",
        "SegmentTokenDatabase.__init__",
        "SegmentTokenDatabase._fast_split_by_subtensor",
        "SegmentTokenDatabase.process_tokens",
        "LMCacheConnectorV1Impl.__init__",
        "LMCacheConnectorV1Impl.build_connector_meta",
        "LMCacheConnectorV1Impl.get_num_new_matched_tokens",
        "ReqMeta.from_request_tracker",
        "RequestTracker.update",
        "GdsBackend.__init__",
        "GdsBackend.contains",
        "GdsBackend._read_metadata",
        "GdsBackend.submit_put_task",
        "GdsBackend._async_save_bytes_to_disk",
        "GdsBackend._save_gds",
        "GdsBackend._load_bytes_from_disk_with_allocation",
        "GdsBackend._load_bytes_from_disk_with_memory",
        "GdsBackend._batched_get_blocking_by_thread_pool_impl",
        "GdsBackend.insert_key",
        "LocalDiskBackend.submit_put_task",
        "LocalDiskBackend.batched_get_non_blocking",
        "allocate_and_copy_objects",
        "LMCacheEngine.retrieve_layer",
    }
)
"""The functions of LMCache that patches edit; all else is the released text."""

ADDED = frozenset(
    {
        "GdsBackend.batched_contains",
        "GdsBackend.batched_get_non_blocking",
        "LocalDiskBackend.batched_contains",
    }
)
"""The methods that patches add to classes of LMCache."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def function(module: ast.Module, qualified_name: str) -> Function | None:
    """The one function of that name, such as ``LMCBlender.blend``; None where it isn't just one."""
    *owners, name = qualified_name.split(".")
    body: list[ast.stmt] = module.body
    for owner in owners:
        found = [n for n in body if isinstance(n, ast.ClassDef) and n.name == owner]
        if len(found) != 1:
            return None
        body = found[0].body
    functions = [n for n in body if isinstance(n, Function) and n.name == name]
    return functions[0] if len(functions) == 1 else None


def find(root: ast.AST | None, pattern: str) -> list[ast.AST]:
    """Every node below the root that is the pattern, one expression or one statement."""
    if root is None:
        return []
    target = _parsed(pattern)
    return [node for node in _by_kind(root).get(type(target), ()) if matches(target, node)]


def suites(root: ast.AST | None) -> list[list[ast.stmt]]:
    """The statements that run one after the other, suite by suite."""
    if root is None:
        return []
    found = (
        getattr(node, name, None) for node in walk(root) for name in ("body", "orelse", "finalbody")
    )
    return [suite for suite in found if isinstance(suite, list)]


def follow(root: ast.AST | None, *patterns: str) -> bool:
    """Whether the statements stand one right after the other, and the last one nowhere else."""
    wanted = [_statement(pattern) for pattern in patterns]
    found = [
        (suite, at)
        for suite in suites(root)
        for at, node in enumerate(suite)
        if matches(wanted[-1], node)
    ]
    if len(found) != 1:
        return False
    suite, last = found[0]
    before = suite[: last + 1][-len(wanted) :]
    return len(before) == len(wanted) and all(map(matches, wanted, before))


@lru_cache(maxsize=4)
def _by_kind(root: ast.AST) -> Mapping[type[ast.AST], Sequence[ast.AST]]:
    """The nodes below a root by their kind: a post-condition looks for many things in one place."""
    found: dict[type[ast.AST], list[ast.AST]] = {}
    for node in walk(root):
        found.setdefault(type(node), []).append(node)
    return found


@cache
def _statement(pattern: str) -> ast.stmt:
    (wanted,) = ast.parse(textwrap.dedent(pattern)).body
    return wanted


def _parsed(pattern: str) -> ast.AST:
    wanted = _statement(pattern)
    return wanted.value if isinstance(wanted, ast.Expr) else wanted


def as_written(found: ast.AST | None, source: str) -> bool:
    """Whether a function is the one of that source, comments apart."""
    (wanted,) = ast.parse(textwrap.dedent(source)).body
    return found is not None and ast.dump(found) == ast.dump(wanted)


def released_elsewhere(stock: ast.Module, patched: ast.Module) -> Judgement:
    """Judge whether the patched module is the stock one outside the functions patches edit."""
    if list(_rest(stock.body)) == list(_rest(patched.body)):
        return Judgement(
            True, "outside the functions that blending uses the module is the stock one"
        )
    return Judgement(False, "the module differs from the stock one beyond what blending uses")


def _rest(body: list[ast.stmt], owner: str = "") -> Iterator[str]:
    """What patches leave alone: of edited functions the name, decorators and annotation alone."""
    for node in body:
        if isinstance(node, Function):
            name = owner + node.name
            if node.name.startswith(PREFIX) or name in ADDED:
                continue
            if name in EDITED:
                yield f"{type(node).__name__} {name}"
                yield from _dumped([*node.decorator_list, node.returns])
                continue
        elif isinstance(node, ast.ClassDef):
            yield f"class {owner}{node.name}"
            yield from _dumped([*node.decorator_list, *node.bases, *node.keywords])
            yield from _rest(node.body, f"{owner}{node.name}.")
            yield "end"
            continue
        elif not owner and find(node, "from ___ import Attention"):
            continue
        yield ast.dump(node)


def _dumped(nodes: Iterable[ast.AST | None]) -> Iterator[str]:
    for node in nodes:
        yield "none" if node is None else ast.dump(node)


def since(release: str) -> Condition:
    """The condition that the vLLM beside LMCache is that release or a newer one."""

    def holds(pair: Mapping[str, Version]) -> bool:
        vllm = pair.get("vllm")
        return vllm is not None and Version(vllm.base_version) >= Version(release)

    return Condition(f"vLLM is {release} or newer", holds)
