"""The page: self-contained, whole, and safe to put any text into."""

from __future__ import annotations

import json
import re
from typing import Any

from kvpatch.heatmap import compact, page


def data(sentence: str = "it is so") -> dict[str, Any]:
    finding = {
        "letter": "K",
        "when": "first stored request",
        "path": "a.py",
        "line": 3,
        "sentence": sentence,
        "scope": "always",
        "cures": ["KV001", "KV002"],
        "before": True,
        "after": False,
    }
    one = {"vllm": "0.9.0", "before": ["K"], "after": [], "ok": True, "settings": False}
    pairs = [{**one, "lmcache": version, "findings": [finding]} for version in ("0.5.5", "0.5.6")]
    keys = ("pairs", "green_as_released", "green_by_registration_alone", "green_after")
    summary = dict.fromkeys((*keys, "green_after_with_settings", "green_after_with_notes"), 2)
    return {"summary": summary, "pairs": pairs}


def embedded(html: str) -> Any:
    (line,) = re.findall(r"^const data = (.*);$", html, re.MULTILINE)
    return json.loads(line)


def test_the_page_holds_all_pairs_and_each_finding_once() -> None:
    held = embedded(page(data()))
    assert held == {**json.loads(json.dumps(compact(data()))), "red": []}
    assert [pair["f"] for pair in held["pairs"]] == [[[0, 1]], [[0, 1]]]
    assert held["findings"] == [
        ["K", "first stored request", "a.py", "it is so", "always", "3", "KV001 KV002"]
    ]
    assert set(held["meanings"]) >= set("XCHAREKSV")


def test_the_page_tells_of_wheels_sources_and_s_with_gds() -> None:
    told = data()
    told["pairs"][0]["sources"] = {"vllm": "/src/vllm"}
    told["pairs"][0]["notes"] = ["its wheel is for another torch"]
    html = page(told)
    held = embedded(html)
    assert [pair["v"] for pair in held["pairs"]] == ["0.9.0 (source)", "0.9.0"]
    assert [pair["n"] for pair in held["pairs"]] == [[0], []]
    assert any("only with GDS" in line for line in held["legend"])
    assert any("/src/vllm" in line for line in held["legend"])
    assert "green_after_with_notes" in html


def test_the_page_tells_of_what_has_no_cell() -> None:
    html = page(data(), ["not read: vllm 0.12.0: </script> it is damaged"])
    assert embedded(html)["red"] == ["not read: vllm 0.12.0: </script> it is damaged"]
    assert html.count("</script>") == 1
    assert 'id="red"' in html


def test_no_text_can_end_the_script() -> None:
    nasty = "</script><script>alert(1)</script><!--"
    html = page(data(nasty))
    assert html.count("</script>") == 1
    assert embedded(html)["findings"][0][3] == nasty


def test_the_page_fetches_nothing() -> None:
    assert not re.search(r"(src|href)=|https?://|@import|url\(", page(data()))
