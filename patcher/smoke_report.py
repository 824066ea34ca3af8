"""What a smoke came to, as text and data, and what kept one from being run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .outcome import ExitCode, KvpatchError, Report
from .remedy import Remedy
from .smoke_checks import Check
from .smoke_measure import Measured, Start, failure
from .tree import PACKAGES

# Engine starts that a smoke may take, and its time, as so many times that many plain starts.
BUDGET, BUDGET_GDS = 3, 5
SLACK = 1.3
# Checks that fail where a patch is missing, and those of which no patch is the reason.
PATCHED = ("registered", "oracle", "separators", "together")
UNPATCHED = ("layerwise", "untouched")
ONE_RANK = "more than one rank (tensor or pipeline parallel)"


def report(
    pair: Mapping[str, Any],
    measured: Measured,
    checks: Sequence[Check],
    seconds: float,
    html: Path | None,
    way: Remedy | None = None,
) -> Report:
    """The report; exit 1 where a check failed, 4 where only the page could not be written.

    ``way`` is what `kvpatch apply` would do, where a check failed.
    """
    failed = [check for check in checks if check.ok is False]
    data = {**pair, **measured_data(measured, seconds), "checks": [c.data() for c in checks]}
    errors = tuple(
        KvpatchError(
            f"smoke-{check.name}",
            f"{check.name}: {check.seen or check.means}",
            hint(check, way),
            ExitCode.NO,
        )
        for check in failed
    )
    text, code = smoke_text(data, checks), ExitCode.NO if failed else ExitCode.DONE
    if html is not None:
        from . import smoke_page

        try:
            smoke_page.save(html, data)
            text += f"\nwrote {html}"
        except KvpatchError as error:
            # What the engines took a minute for is told all the same.
            errors, code = (*errors, error), code or error.exit_code
    return Report("smoke", text, data, code, errors)


def hint(check: Check, way: Remedy | None) -> str:
    """What a failure means, and what to do where that is to be done with the patches."""
    # Without LMCache or without blending, no patch is in it.
    if way is None or check.name in UNPATCHED:
        return check.means
    # That all is in place says something only where a patch is what cures it.
    if way.settled and check.name not in PATCHED:
        return check.means
    return f"{check.means}; {way.sentence}"


def measured_data(measured: Measured, seconds: float) -> dict[str, Any]:
    """What was measured, beside the checks."""
    starts = [
        start
        for start in (measured.reference, measured.store, measured.blend, measured.layerwise)
        if start is not None and start.role != "none"
    ]
    plain = plain_start(measured.reference)
    budget = BUDGET_GDS if measured.gds else BUDGET
    engine = dict(measured.blend.result.get("engine", measured.reference.result.get("engine", {})))
    return {
        "engine": engine,
        "stand_ins": list(
            dict.fromkeys(name for start in starts for name in start.result.get("stand_ins", ()))
        ),
        "gaps": [gap.data() for gap in measured.gaps()] if measured.blended(sweep=True) else [],
        "ratio": measured.ratio,
        "seconds_to_first_token": seconds_to_first_token(measured),
        "rounding": measured.rounding,
        "tolerance": measured.tolerance,
        "failure": failed_start(starts),
        "starts": len(starts),
        "start_budget": budget,
        # Of the reference, in its own process, with the files as they were before kvpatch.
        "restarts": int(any(a.get("originals") for a in measured.reference.answers)),
        "plain_start_s": round(plain, 2),
        "wall_s": round(seconds, 1),
        "wall_in_plain_starts": round(seconds / plain, 2) if plain else None,
        "wall_limit_in_plain_starts": round(SLACK * budget, 2),
        "ratio_changed_on": "the running blender, without a restart",
    }


def failed_start(starts: Sequence[Start]) -> dict[str, Any] | None:
    """The first start that did not do all that was ordered: how it failed, and where.

    ``places`` are files of the two packages, by their path in the site folder, with line and
    function: of each exception of the chain, as far as it went through these.
    """
    for start in starts:
        if not start.done:
            return {"role": start.role, "told": failure(start), "places": places(start)}
    return None


def places(start: Start) -> list[list[Any]]:
    """Where a start's error went through the two packages, the place it was raised at first."""
    found: list[list[Any]] = []
    for link in start.result.get("error", {}).get("chain", ()):
        for name, line, function in reversed(link["places"]):
            _, folder, inside = str(name).rpartition("-packages/")
            if folder and inside.split("/", 1)[0] in PACKAGES:
                found.append([inside, int(line), str(function)])
    return found


def seconds_to_first_token(measured: Measured) -> dict[str, float | None]:
    """The middle one of the same prompts without cache and blended; reported, never judged."""
    cold = [
        float(a.get("seconds"))
        for a in measured.reference.answers
        if a.prompt.startswith("reordered-") and not a.get("jitter") and not a.get("originals")
    ]
    warm = [
        float(a.get("seconds"))
        for a in measured.blended("reordered-", ratio=measured.ratio, sweep=True, fill=False)
    ]
    return {"without_cache": _middle(cold), "blended": _middle(warm)}


def _middle(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def plain_start(reference: Start) -> float:
    """Seconds the reference took from its first import to be ready, without making the model."""
    stages = reference.result.get("stages", {})
    ready = float(stages.get("requests", 0.0))
    making = (
        float(stages.get("tokenizer", 0.0)) - float(stages["model"]) if "model" in stages else 0
    )
    return max(ready - making, 0.0)


def smoke_text(data: Mapping[str, Any], checks: Sequence[Check]) -> str:
    """The table for people."""
    width = max(len(check.name) for check in checks)
    pair = f"vLLM {data['vllm']} (as {data['distribution']}) with LMCache {data['lmcache']}"
    lines = [f"{pair}, on {data['device']}", ""]
    lines += [
        f"{check.verdict:8}  {check.name:{width}}  {check.seen or check.value}" for check in checks
    ]
    engine = data["engine"]
    if engine and engine["dtype"] != "float32" and data["tolerance"]:
        taken = f"in {engine['dtype']} up to {data['tolerance']:.2g} nats are taken for rounding"
        lines.append(f"({taken}, so checks that are judged in nats are weak)")
    if engine:
        names = ("runner", "graph_mode", "attention", "kv_shape", "executor", "dtype")
        lines += ["", f"{'':12}{'here':42}on a GPU this release takes"]
        lines += [
            f"{name:12}{_short(engine.get(name)):42}{data['on_a_gpu'][name]}" for name in names
        ]
    if data["gaps"]:
        lines += ["", "ratio  separators  largest gap  mean gap      KL  same first token"]
        lines += map(_gap_line, data["gaps"])
        lines.append("(nats against no cache; the ratio was changed on the running blender)")
        if data["model"] is None:
            lines.append("(a tiny model of random weights: how much a real one loses is its own)")
    if data["stand_ins"]:
        lines += ["", "stood in for, so not proved here:"]
        lines += [f"  {stand_in}" for stand_in in data["stand_ins"]]
    lines += ["", f"not proved here: {ONE_RANK}"]
    plain = f"{data['wall_in_plain_starts']} times a plain start of {data['plain_start_s']:g} s"
    again = ", one of them twice for the originals," if data["restarts"] else ""
    limit = f"budget: {data['start_budget']} starts, {data['wall_limit_in_plain_starts']} times"
    lines += [
        "",
        f"{data['starts']} engine starts{again} in {data['wall_s']:g} s, {plain} ({limit})",
    ]
    if (data["wall_in_plain_starts"] or 0) > data["wall_limit_in_plain_starts"]:
        lines.append(
            "(over the budget: this host is busy, or has one core; nothing is judged by it)"
        )
    first = data["seconds_to_first_token"]
    if first["blended"] is not None:
        lines.append(
            f"time to first token: {first['without_cache']:.3g} s without cache, "
            f"{first['blended']:.3g} s blended (reported, not judged; on a CPU it says nothing)"
        )
    failed = sum(check.ok is False for check in checks)
    count = "1 check" if failed == 1 else f"{failed} checks"
    lines.append(f"{count} failed" if failed else "every check that was made holds")
    return "\n".join(lines)


def _short(value: object) -> str:
    """A class without its module."""
    return str(value).rpartition(".")[2] if isinstance(value, str) else str(value)


def _gap_line(gap: Mapping[str, Any]) -> str:
    separators = "filled in" if gap["separators_filled"] else "as is"
    numbers = f"{gap['max_logprob_gap']:11.3g}  {gap['mean_logprob_gap']:8.3g}  {gap['kl']:6.3g}"
    return f"{gap['ratio']:5g}  {separators:10}  {numbers}  {gap['top1_agreement']:16.0%}"


# (pattern in an error or the output, code, message, hint); the first that fits.
_UNABLE = (
    (r"No module named 'torch'", "no-torch", "the target has no torch",
     "install the pair there as its releases ask, then smoke again"),
    (r"Address already in use|EADDRINUSE", "port-in-use", "a port the engine needs is in use",
     "end what holds it, or wait for it to go"),
    # Where multiprocessing makes semaphores and shared memory, its error doesn't name the place.
    (r"/dev/shm|shared memory|\((?:synchronize|shared_memory)\.py\)",  # noqa: S108
     "shared-memory", "the engine found no shared memory to use",
     "make /dev/shm writable and large enough (a container's --shm-size), or free it"),
    (r"can't start new thread|Resource temporarily unavailable", "no-threads",
     "the engine could start no further thread or process",
     "raise what limits them: `ulimit -u`, `ulimit -v`, or the container's pids limit"),
    (r"Cannot find any model weights", "no-weights", "the model has no weights",
     "give a model folder that holds its weights too"),
    # "in static TLS block" is the loader's, and says nothing of the memory that is free.
    ((r"MemoryError|out of memory|OutOfMemory|bad_alloc|No available memory for the|"
      r"desired .PU memory utilization|larger than the available KV cache memory|"
      r"less than requested memory for kv|"
      r"(?:can't|[Cc]annot) allocate memory(?! in static TLS)"),
     "out-of-memory", "there was not enough memory for the engine",
     "free memory, or smoke with the tiny model (without --model)"),
)  # fmt: skip


LAST_WORDS = 2000
# A start that was ended before so many plain ones were over has not been seen to hang.
PATIENCE = 3.0


def unable(measured: Measured) -> KvpatchError | None:
    """What kept the smoke from being run, where that says nothing of the pair."""
    starts = [measured.reference, measured.store, measured.blend, measured.layerwise]
    enough = PATIENCE * plain_start(measured.reference)
    for start in starts:
        if start is None or start.done or start.role == "none":
            continue
        found = _unable(start)
        if found is None and start.code is None and start.seconds < enough:
            found = _late(start, "too early to call it a hang", "or free the machine")
        if found is not None:
            return found
    return None


def _unable(start: Start) -> KvpatchError | None:
    stage = start.result.get("stage", "begin")
    error = start.result.get("error") or {}
    said = f"{error.get('type', '')}: {error.get('text', '')}"
    problem = start.result.get("harness_problem")
    if problem:
        return _error(
            "harness",
            f"this pair can't be carried on a CPU: step {problem['step']}: {problem['why']}",
            "run it on a GPU, or report this with both versions",
        )
    if start.code is not None and start.code < 0:
        # What ends by a signal has no word of its own: the last one is on its streams.
        said += start.output[-LAST_WORDS:]
    if error.get("where"):
        said += f"\n{error['type']} in {error['where']}: {error['text']}"
    for pattern, code, message, hint in _UNABLE:
        line = re.search(f".*(?:{pattern}).*", said)
        if line:
            return _error(code, f"{message}: {_first(line[0])}", hint)
    if re.search(r"Model type \w+ is not supported", said):
        return KvpatchError(
            "unsupported-model",
            f"LMCache can't blend this model: {_first(said)}",
            "take a model of a class that this LMCache has (Llama, Qwen2, Qwen3 ForCausalLM)",
            ExitCode.REFUSED,
        )
    if start.code is not None and start.code == -9:
        return _error(
            "killed",
            f"the engine's process was killed at stage {stage}, perhaps for want of memory",
            "see the kernel's log, free memory, and smoke again",
        )
    if start.role == "reference" and start.code is None and not start.up:
        about = f"at stage {stage}; how long it needs is not known"
        return _late(start, about, "or see that vLLM itself starts with this model")
    if stage == "tokenizer":
        return _error(
            "no-tokenizer",
            f"the model has no tokenizer that can be loaded: {_first(said)}",
            "give a model folder that holds its tokenizer too",
        )
    if start.role == "reference" and not start.result.get("stages", {}).get("originals"):
        return _error(
            "no-reference",
            f"the engine doesn't run even without LMCache: {failure(start)}",
            "see that vLLM itself works in this environment with this model",
        )
    return None


def _late(start: Start, about: str, otherwise: str) -> KvpatchError:
    return _error(
        "timeout",
        f"time was over {start.seconds:.0f} s into the start {start.role!r}, {about}",
        f"give more time with --timeout, {otherwise}",
    )


def _first(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        lines[0] += f" {lines[1]}"
    return (lines or ["it said nothing"])[0][:300]


def _error(code: str, message: str, hint: str) -> KvpatchError:
    return KvpatchError(code, message, hint, ExitCode.ENVIRONMENT)
