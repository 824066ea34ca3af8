"""One self-contained page of what a smoke came to: its checks, and the price of each ratio."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from .outputs import put

_KINDS = {"ok": "ok", "NO": "no", "not run": "none", "reported": "none"}
_WIDTH, _HEIGHT = 640, 340
_STEPS = 4
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 18, 16, 56
_LINES = (
    (False, "as", "as LMCache is"),
    (True, "filled", "with separators filled in"),
)
_PRICE = (
    "Mean difference of the next token's log-probabilities from those of an engine without cache, "
    "over the whole vocabulary and a set of prompts, by recompute ratio."
)
_RUNNING = "The ratio was changed on the running blender, without a restart."
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5a6470; --line: #d5dae0; --paper: #fff;
  --ok: #1a7f37; --no: #c62828; --as: #c62828; --filled: #1565c0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #9aa4b0; --line: #3a424c;
  --paper: #14181d; --ok: #57c26d; --no: #ff7b72; --as: #ff7b72; --filled: #6cb2ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 60rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; max-width: 46rem; }
.soft { color: var(--soft); }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem .4rem 0;
  border-bottom: 1px solid var(--line); }
td { overflow-wrap: anywhere; } .gaps td { overflow-wrap: normal; }
th { font-weight: 600; }
th.name, td.number { white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.ok { color: var(--ok); } .no { color: var(--no); font-weight: 600; } .none { color: var(--soft); }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 13px system-ui, sans-serif; }
svg .axis { stroke: var(--line); }
svg .as { stroke: var(--as); } svg .filled { stroke: var(--filled); }
svg polyline { fill: none; stroke-width: 2; } svg circle { stroke-width: 2; fill: var(--paper); }
.key span { display: inline-block; margin-right: 1.25rem; }
.key i { display: inline-block; width: 1.2rem; border-top: 3px solid; margin-right: .4rem;
  vertical-align: middle; }
.key .as i { border-color: var(--as); } .key .filled i { border-color: var(--filled); }
@media (max-width: 40rem) { .checks tr { display: block; border-bottom: 1px solid var(--line);
  padding: .4rem 0; } .checks th, .checks td { display: block; border: 0; padding: 0; }
  .checks thead { display: none; } .gaps { font-size: .8rem; } svg text { font-size: 22px; } }
"""


def save(path: Path, data: Mapping[str, Any]) -> None:
    """Write the page.

    Raises:
        KvpatchError: ``not-written``; exit 4.
    """
    put(path, page(data))


def page(data: Mapping[str, Any]) -> str:
    """The page's text; it loads nothing."""
    checks: Sequence[Mapping[str, Any]] = data["checks"]
    failed = [check["name"] for check in checks if check["ok"] is False]
    verdict = f"{', '.join(failed)} failed" if failed else "every check that was made holds"
    pair = f"vLLM {data['vllm']} (as {data['distribution']}) with LMCache {data['lmcache']}"
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        f"<title>kvpatch smoke: {escape(verdict)}</title><style>{_STYLE}</style>",
        f"<h1>CacheBlend, run on {escape(str(data['device']))}</h1>",
        f"<p class={'no' if failed else 'ok'}>{escape(verdict)}</p>",
        f"<p class=soft>{escape(pair)}; {escape(_model(data))}</p>",
        "<h2>Checks</h2>",
        _checks(checks),
        *_prices(data),
        "<h2>What ran</h2>",
        _facts(data),
    ]
    if data["stand_ins"]:
        parts.append("<h2>Stood in for, so not proved here</h2><ul>")
        parts += [f"<li>{escape(str(one))}" for one in data["stand_ins"]]
        parts.append("</ul>")
    return "\n".join(parts) + "\n"


def _model(data: Mapping[str, Any]) -> str:
    if data["model"]:
        return f"model {data['model']}"
    return f"a tiny random {data['arch']}, rope {data['rope']}, tokenizer {data['tokenizer']}"


def _checks(checks: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for check in checks:
        word = check["verdict"]
        kind = _KINDS[word]
        seen = escape(str(check["seen"] or ""))
        means = f"<br><span class=soft>{escape(check['means'])}</span>" if kind == "no" else ""
        rows.append(
            f"<tr><th class=name scope=row>{escape(check['name'])}</th>"
            f"<td class={kind}>{word}</td><td>{seen}{means}</td></tr>"
        )
    head = "<thead><tr><th>check<th>verdict<th>what was seen</thead>"
    return f"<table class=checks>{head}<tbody>{''.join(rows)}</tbody></table>"


def _prices(data: Mapping[str, Any]) -> list[str]:
    gaps: Sequence[Mapping[str, Any]] = data["gaps"]
    if not gaps:
        return []
    key = "".join(f"<span class={name}><i></i>{words}</span>" for _, name, words in _LINES)
    return [
        "<h2>What blending costs</h2>",
        f"<p>{_PRICE}</p>",
        f"<p class=key>{key}</p>",
        plot(gaps),
        _table(gaps),
        f"<p class=soft>Configured ratio: {data['ratio']:g}. {_RUNNING}</p>",
    ]


def plot(gaps: Sequence[Mapping[str, Any]]) -> str:
    """The mean gap (nats) against the recompute ratio, as SVG."""
    step = _step(max(gap["mean_logprob_gap"] for gap in gaps))
    top = _STEPS * step
    right, floor = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def at(gap: Mapping[str, Any]) -> tuple[float, float]:
        share = gap["mean_logprob_gap"] / top
        x = _LEFT + gap["ratio"] * (right - _LEFT)
        return round(x, 1), round(floor - share * (floor - _TOP), 1)

    drawn = []
    for number in range(_STEPS + 1):
        share = number / _STEPS
        y = round(floor - share * (floor - _TOP), 1)
        x = round(_LEFT + share * (right - _LEFT), 1)
        drawn += [
            f"<line class=axis x1={_LEFT} x2={right} y1={y} y2={y} />",
            f"<text x={_LEFT - 8} y={y + 5} text-anchor=end>{number * step:.4g}</text>",
            f"<text x={x} y={floor + 22} text-anchor=middle>{share:g}</text>",
        ]
    middle, half = (_LEFT + right) / 2, (_TOP + floor) / 2
    turned = f'transform="rotate(-90 18 {half})"'
    drawn += [
        f"<text x={middle} y={_HEIGHT - 6} text-anchor=middle>recompute ratio</text>",
        f"<text x=18 y={half} text-anchor=middle {turned}>nats</text>",
    ]
    for filled, name, words in _LINES:
        line = [gap for gap in gaps if gap["separators_filled"] is filled]
        points = " ".join(f"{x},{y}" for x, y in map(at, line))
        drawn.append(f'<polyline class={name} points="{points}" />')
        for gap in line:
            x, y = at(gap)
            told = f"{words}, ratio {gap['ratio']:g}: {gap['mean_logprob_gap']:.3g} nats"
            drawn.append(f"<circle class={name} cx={x} cy={y} r=4><title>{told}</title></circle>")
    title = "Mean log-probability gap against recompute ratio"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role=img aria-label="{title}">'
        f"{''.join(drawn)}</svg>"
    )


def _step(most: float) -> float:
    """A round step of which :data:`_STEPS` reach over the largest value; never 0."""
    least = most / _STEPS if most > 0 else 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return power * next(one for one in (1.0, 2.0, 2.5, 5.0, 10.0) if power * one >= least)


def _table(gaps: Sequence[Mapping[str, Any]]) -> str:
    heads = ("ratio", "separators", "largest", "mean", "KL", "same first")
    rows = "".join(
        f"<tr><td class=number>{gap['ratio']:g}<td>"
        f"{'filled' if gap['separators_filled'] else 'as is'}"
        f"<td class=number>{gap['max_logprob_gap']:.3g}<td class=number>"
        f"{gap['mean_logprob_gap']:.3g}<td class=number>{gap['kl']:.3g}"
        f"<td class=number>{gap['top1_agreement']:.0%}</tr>"
        for gap in gaps
    )
    head = "".join(f"<th{'' if name == 'separators' else ' class=number'}>{name}" for name in heads)
    return f"<table class=gaps><thead><tr>{head}</thead><tbody>{rows}</tbody></table>"


def _facts(data: Mapping[str, Any]) -> str:
    engine = data["engine"]
    names = ("runner", "graph_mode", "attention", "kv_shape", "executor", "dtype", "model")
    facts = [(name.replace("_", " "), engine.get(name)) for name in names if name in engine]
    facts += [
        ("tolerance", f"{data['tolerance']:.2g} nats, from rounding of {data['rounding']:.2g}"),
        ("engine starts", f"{data['starts']} in {data['wall_s']:g} s"),
    ]
    rows = "".join(
        f"<tr><th scope=row>{escape(name)}</th><td>{escape(str(value))}</td></tr>"
        for name, value in facts
    )
    return f"<table><tbody>{rows}</tbody></table>"
