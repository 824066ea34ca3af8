"""A small matrix of pairs, as validating comes to one."""

from __future__ import annotations

from typing import Any

from kvpatch.matrix import Row
from kvpatch.remote import Traffic
from kvpatch.validate import Matrix


def pair(vllm: str, lmcache: str, before: str, after: str, **more: Any) -> dict[str, Any]:
    findings = [
        {
            "letter": letter,
            "scope": "at default settings" if letter == "V" else "always",
            "before": letter in before,
            "after": letter in after,
        }
        for letter in dict.fromkeys(before + after)
    ]
    ok = not set(after) - {"V"}
    data = {"vllm": vllm, "lmcache": lmcache, "before": list(before), "after": list(after)}
    return {**data, "ok": ok, "settings": "V" in after, "findings": findings, **more}


PATCHED = ({"id": "KV001", "outcome": "pending", "reason": "apply would put it in"},)
MISSING = ({"id": "KV001", "outcome": "missing", "reason": "no | anchor"},)
ROWS = (
    Row("vllm", "0.9.0", "a.whl", PATCHED),
    Row("vllm", "0.33.0", "b.whl", PATCHED),
    Row("lmcache", "0.5.6", "c.whl", PATCHED),
)
PAIRS = (pair("0.9.0", "0.5.6", "HR", "R"), pair("0.33.0", "0.5.6", "HV", "V"))


def matrix(rows: tuple[Row, ...] = ROWS, pairs: tuple[Any, ...] = PAIRS) -> Matrix:
    return Matrix(rows, pairs, Traffic(3, 2_000_000), 1.5)
