from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from kvpatch import smoke_page
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.smoke_checks import judge
from kvpatch.smoke_gpu import on_a_gpu
from kvpatch.smoke_report import measured_data
from packaging.version import Version
from smokes import measured

PAIR = {
    "vllm": "1.0",
    "distribution": "vllm<cpu>",
    "lmcache": "2.0",
    "device": "cpu",
    "on_a_gpu": dict(on_a_gpu(Version("1.0"), "llama")),
    "model": None,
    "arch": "llama",
    "rope": "default",
    "tokenizer": "bos",
}


def _data(**change: Any) -> dict[str, Any]:
    found = measured(**change)
    checks = [check.data() for check in judge(found)]
    return {**PAIR, **measured_data(found, 40.0), "checks": checks}


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    text = smoke_page.page(_data())
    assert not re.search(r"https?:|<script|<link|url\(|@import", text)


def test_every_check_is_on_the_page() -> None:
    data = _data()
    text = smoke_page.page(data)
    assert all(f">{check['name']}<" in text for check in data["checks"])


def test_text_from_the_host_is_escaped() -> None:
    text = smoke_page.page(_data())
    assert "vllm&lt;cpu&gt;" in text
    assert "vllm<cpu>" not in text


def test_the_plot_has_a_point_for_each_ratio_and_line() -> None:
    data = _data()
    plot = smoke_page.plot(data["gaps"])
    assert plot.count("<circle") == len(data["gaps"]) == 6
    assert plot.count("<polyline") == 2


def test_a_larger_gap_is_drawn_higher() -> None:
    plot = smoke_page.plot(_data()["gaps"])
    heights = [float(y) for y in re.findall(r"<circle class=as [^>]*cy=([\d.]+)", plot)]
    filled = [float(y) for y in re.findall(r"<circle class=filled [^>]*cy=([\d.]+)", plot)]
    assert min(heights) < min(filled)


def test_a_page_without_prices_has_no_plot() -> None:
    data = {**_data(), "gaps": []}
    assert "<svg" not in smoke_page.page(data)


def test_a_failed_check_says_on_the_page_what_it_means() -> None:
    data = _data()
    failed = {"ok": False, "verdict": "NO", "means": "it means & this"}
    data["checks"][0] = {**data["checks"][0], **failed}
    assert "it means &amp; this" in smoke_page.page(data)


def test_the_tags_close() -> None:
    opened: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            if tag in ("table", "tbody", "style", "svg", "h1", "h2", "p", "ul", "title"):
                opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag in opened:
                assert opened.pop() == tag

    Reader().feed(smoke_page.page(_data()))
    assert opened == []


def test_a_page_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(KvpatchError) as caught:
        smoke_page.save(tmp_path / "no" / "page.html", _data())
    assert (caught.value.code, caught.value.exit_code) == ("not-written", ExitCode.ENVIRONMENT)
