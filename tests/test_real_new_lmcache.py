"""A new LMCache on the way: real wheels, rewritten here, and what validate says of them."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import kvpatch
from kvpatch import verdicts
from kvpatch.wheel import Wheel
from kvpatch.wheel_copy import write
from releases import whole_wheel

pytestmark = pytest.mark.releases

VLLM, LMCACHE, NEW = "0.32.0", "0.5.6", "0.6.0"
MODEL = "lmcache/v1/compute/models/base.py"
FLASH = "lmcache/v1/compute/attention/flash_attn.py"
SPARSE = "lmcache/v1/compute/attention/flash_infer_sparse.py"
BLENDER = "lmcache/v1/compute/blend/blender.py"
ADAPTER = "lmcache/integration/vllm/vllm_v1_adapter.py"

Rewrite = Callable[[str], str]


def scope(tree: ast.Module, name: str) -> list[ast.stmt]:
    """The body of a function by its dotted name, that of the module where there is no name."""
    body = tree.body
    for part in filter(None, name.split(".")):
        (body,) = [n.body for n in body if getattr(n, "name", None) == part]  # type: ignore[attr-defined]
    return body


def rope(source: str) -> ast.stmt:
    body = scope(ast.parse(source), "LMCBaseModel.__init__")
    (found,) = [n for n in body if ast.unparse(n).startswith("self.fused_rotary_emb = ")]
    return found


def attention(source: str) -> ast.stmt:
    (found,) = [
        n
        for n in ast.parse(source).body
        if isinstance(n, (ast.Try, ast.ImportFrom))
        and re.search(r"import Attention$", ast.unparse(n), re.M)
    ]
    return found


def picked(source: str) -> ast.stmt:
    last = scope(ast.parse(source), "LMCBlender.process_qkv")[-1]
    assert "imp_indices is not None" in ast.unparse(last)
    return last


ANCHORS: dict[str, tuple[str, Callable[[str], ast.stmt]]] = {
    "KV003": (MODEL, rope),
    "KV004": (FLASH, attention),
    "KV010": (BLENDER, picked),
}


def replaced(source: str, old: ast.stmt, new: str) -> str:
    """The source with a statement written otherwise, at its own indentation."""
    assert old.end_lineno is not None
    lines = source.splitlines(keepends=True)
    text = textwrap.indent(textwrap.dedent(new).strip("\n") + "\n", " " * old.col_offset)
    return "".join([*lines[: old.lineno - 1], text, *lines[old.end_lineno :]])


def gone(source: str, old: ast.stmt) -> str:
    return replaced(source, old, "pass")


def doubled(source: str, old: ast.stmt) -> str:
    return replaced(source, old, f"{ast.unparse(old)}\n{ast.unparse(old)}")


def moved(source: str, old: ast.stmt) -> str:
    elsewhere = textwrap.indent(ast.unparse(old), "    ")
    return f"{gone(source, old)}\n\ndef moved_elsewhere(self):\n{elsewhere}\n"


def changed(folder: Path, original: Path, rewrites: dict[str, Rewrite], version: str = NEW) -> Path:
    """The wheel as a later release, with those files rewritten."""
    wheel = folder / original.name.replace(f"-{LMCACHE}-", f"-{version}-")
    with Wheel(original) as source, wheel.open("wb", buffering=0) as out:
        texts = {path: source.read(path).decode() for path in rewrites}
        contents = {path: rewrite(texts[path]).encode() for path, rewrite in rewrites.items()}
        assert all(contents[path] != text.encode() for path, text in texts.items())
        write(source, out, contents, str)
    return wheel


@pytest.fixture(scope="module")
def original() -> Path:
    return whole_wheel("lmcache", LMCACHE)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdicts on wheels that are nowhere but here stay out of the user's cache."""
    monkeypatch.setattr(verdicts.Kept, "keep", lambda *_: None)


def validated(wheel: Path) -> tuple[int, dict[str, Any], dict[str, Any], list[str]]:
    """Exit code, the new release's row, its pair with vLLM, and the codes of the errors."""
    asked = ["--vllm", f"=={VLLM}", "--lmcache", f"=={LMCACHE}", "--source", wheel]
    ran = kvpatch("validate", "--json", *asked)
    (row,) = [row for row in ran.data["releases"] if row["version"] == NEW]
    (pair,) = [pair for pair in ran.data["pairs"] if pair["lmcache"] == NEW]
    return ran.code, row, pair, [error["code"] for error in ran.envelope["errors"]]


def outcomes(row: dict[str, Any]) -> dict[str, str]:
    return {patch["id"]: patch["outcome"] for patch in row["patches"]}


def test_a_new_release_that_is_as_the_last_one_is_patched_by_its_anchors(
    tmp_path: Path, original: Path
) -> None:
    touched: dict[str, Rewrite] = {BLENDER: lambda text: text + "\n# a later release\n"}
    code, row, pair, errors = validated(changed(tmp_path, original, touched))
    assert (code, errors, row["ok"]) == (0, [], True)
    assert {outcomes(row)[name] for name in ANCHORS} == {"pending"}
    assert not {"A", "R"} & set(pair["after"])


@pytest.mark.parametrize(
    ("what", "outcome"), [(gone, "missing"), (moved, "missing"), (doubled, "ambiguous")]
)
def test_a_new_release_whose_anchors_are_elsewhere_is_red(
    tmp_path: Path, original: Path, what: Callable[[str, ast.stmt], str], outcome: str
) -> None:
    rewrites: dict[str, Rewrite] = {
        path: lambda text, find=find: what(text, find(text))  # type: ignore[misc]
        for path, find in ANCHORS.values()
    }
    code, row, pair, errors = validated(changed(tmp_path, original, rewrites))
    assert (code, errors) == (1, ["newest-unpatched"])
    assert row["ok"] is False
    assert {outcomes(row)[patch] for patch in ANCHORS} == {outcome}
    # All or nothing: the others go in neither.
    assert (pair["ok"], pair["after"]) == (False, pair["before"])


def finds_every_home(source: str) -> str:
    homes = ("vllm.attention", "vllm.attention.layer")
    tried = "".join(
        f"{'    ' * depth}try:\n{'    ' * depth}    from {home} import Attention\n"
        f"{'    ' * depth}except ImportError:\n"
        for depth, home in enumerate(homes)
    )
    last = "        from vllm.model_executor.layers.attention.attention import Attention\n"
    return replaced(source, attention(source), tried + last)


def keeps_separators(source: str) -> str:
    picks = "            top_indices = torch.topk(diff_k, k=topk_num).indices\n"
    assert source.count(picks) == 1
    first = "if gaps is not None and gaps.numel():\n"
    first += '    diff_k[gaps] = float("inf")\n'
    first += "    topk_num = min(topk_num + gaps.numel(), total_len)\n"
    before = textwrap.indent(f"gaps = self.gpu_connector.current_gap_positions\n{first}", " " * 12)
    source = source.replace(picks, before + picks)
    old = picked(source)
    assert isinstance(old, ast.If)
    kept = "gaps = self.gpu_connector.current_gap_positions\n"
    kept += "old_k[gaps], old_v[gaps] = k[gaps], v[gaps]\n"
    old.orelse = [*ast.parse(kept).body, *old.orelse]
    return replaced(source, old, ast.unparse(old))


def test_a_new_release_with_the_fix_in_it_is_absorbed(tmp_path: Path, original: Path) -> None:
    fixes: dict[str, Rewrite] = {
        FLASH: finds_every_home,
        SPARSE: finds_every_home,
        BLENDER: keeps_separators,
    }
    code, row, pair, errors = validated(changed(tmp_path, original, fixes))
    assert (code, errors, row["ok"]) == (0, [], True)
    found = outcomes(row)
    assert (found["KV004"], found["KV010"], found["KV003"]) == ("absorbed", "absorbed", "pending")
    assert "A" not in pair["before"]


def registers(source: str) -> str:
    """The connector tells LMCache's tracker of the model before it is used."""
    first = scope(ast.parse(source), "LMCacheConnectorV1Impl.__init__")[0]
    lines = source.splitlines(keepends=True)
    told = "VLLMModelTracker.register_model(ENGINE_NAME, vllm_config.model)\n"
    lines.insert(first.lineno - 1, " " * first.col_offset + told)
    return "".join(lines)


def test_a_new_release_that_registers_the_model_itself_lacks_the_registration_no_more(
    tmp_path: Path, original: Path
) -> None:
    code, row, pair, errors = validated(changed(tmp_path, original, {ADAPTER: registers}))
    assert (code, errors, row["ok"]) == (0, [], True)
    assert "H" not in pair["before"]
