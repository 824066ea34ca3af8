"""What a smoke asks of the engines it started: pure judgements over what their children wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .smoke_measure import Measured, Start, Verdict, failure, found_and_within, within
from .smoke_reuse import emptied, moved, reused, twice, written
from .smoke_together import together

SCALED_KEYS = 1e-2
# What blending costs is for whoever pays it to judge.
REPORTED = ("gap",)


@dataclass(frozen=True)
class Check:
    """One thing that was asked.

    ``ok`` is None where it was not checked; ``means`` says what a failure means, ``seen`` what was
    seen, or why it was not checked. ``limit`` is None for what is reported and not judged.
    """

    name: str
    ok: bool | None
    value: object
    limit: object
    means: str
    seen: str = ""

    @property
    def verdict(self) -> str:
        """``ok``, ``NO``, ``reported`` (and not judged) or ``not run``."""
        if self.ok is None:
            return "not run"
        if not self.ok:
            return "NO"
        return "reported" if self.name in REPORTED else "ok"

    def data(self) -> Mapping[str, object]:
        """As it stands in ``data.checks``."""
        return {
            "name": self.name,
            "ok": self.ok,
            "verdict": self.verdict,
            "value": self.value,
            "limit": self.limit,
            "means": self.means,
            "seen": self.seen,
        }


MEANS = {
    "starts": "the engine can't start with LMCache and blending",
    "registered": "LMCache doesn't know vLLM's model when its connector is built, so it can't "
    "blend",
    "blender": "LMCache made no blender, so nothing is ever blended",
    "answers": "a request was never answered: the engine hung or died",
    "stored": "what a request computed isn't in the cache, so nothing can be reused",
    "hit": "chunks in another order were not found: check separator, chunks and hash seed",
    "layers": "the cache hit but the blender didn't run for every layer: keys stay rotated for "
    "other positions and answers are silently wrong",
    "written": "what the blender ended with isn't what vLLM's attention reads, so answers are "
    "silently wrong",
    "oracle": "with every token recomputed the answer must be that without cache; it isn't, so "
    "keys or positions are wrong",
    "separators": "LMCache leaves zeros for separators, and every later token attends to them",
    "reused": "not the share of tokens that the recompute ratio says is computed anew: blending "
    "saves nothing, or leaves more as it was loaded than was asked for",
    "moved": "what is reused isn't what was stored, turned to its new place, so answers are "
    "silently wrong; at ratio 1 this doesn't show",
    "gap": "reported, not judged: the price of blending at the configured ratio",
    "twice": "the same prompt again is computed or answered otherwise, although nothing moved: "
    "what is computed anew is wrong beside what was loaded (as released LMCache lets it see tokens "
    "that follow it, which KV015 mends)",
    "permutation": "a prompt whose chunks are all cached, in another order, goes wrong",
    "new-chunk": "a prompt with one new chunk among cached ones goes wrong",
    "together": "a prompt that vLLM computes over several steps, as chunked prefill does with long "
    "or many ones, ends the engine, is answered wrongly or isn't stored whole",
    "one-token": "a prompt of one token goes wrong",
    "layerwise": "LMCache goes wrong layer by layer even without blending, so blending isn't at "
    "fault",
    "untouched": "kvpatch changed an engine that has no LMCache",
    "gds": "chunks stored through GDS can't be blended by the next process",
}


def judge(measured: Measured) -> tuple[Check, ...]:
    """Every check, in the order in which one needs another."""
    checks: list[Check] = []
    for name, verdict in _verdicts(measured):
        ok, value, limit, seen = verdict
        checks.append(Check(name, ok, value, limit, MEANS[name], seen))
    return tuple(checks)


def _verdicts(measured: Measured) -> Iterator[tuple[str, Verdict]]:
    found: dict[str, Verdict] = {}
    for name, needs, ask in _CHAIN:
        broken = next((need for need in needs if found[need][0] is not True), None)
        if broken is None:
            found[name] = ask(measured)
        else:
            found[name] = (None, None, None, f"not checked, because of {broken}")
    yield from found.items()


def registered(measured: Measured) -> Verdict:
    """Whether the model was registered before the worker's connector was built."""
    events = list(measured.blend.events)
    if "connector:worker" not in events:
        why = "the engine never came to its connector"
        return (None if measured.blend.code != 0 else False, events, None, why)
    at = events.index("connector:worker")
    held = "registered" in events[:at]
    seen = " then ".join(events)
    return held, held, True, seen if held else f"{seen or 'nothing'}: {failure(measured.blend)}"


def starts(measured: Measured) -> Verdict:
    """Whether the blending engine came up, also where it never got as far as its connector."""
    if registered(measured)[0] is False:
        return None, None, None, "not checked, because of registered"
    up = measured.blend.up
    seconds = measured.blend.result.get("stages", {}).get("requests")
    return up, up, True, f"up after {seconds:.0f} s" if up else failure(measured.blend)


def blender(measured: Measured) -> Verdict:
    """Whether a blender was made."""
    made = "blender" in measured.blend.events
    return made, made, True, "LMCache made its blender" if made else "LMCache made none"


def answers(measured: Measured) -> Verdict:
    """Whether every request was answered that was sent alone."""
    done = measured.blend.alone
    count = len(measured.blend.answers)
    seen = f"{count} requests" if done else f"{count} requests, then {failure(measured.blend)}"
    return done, count, None, seen


def stored(measured: Measured) -> Verdict:
    """Whether the cache engine knows all of the prompt that was to be stored."""
    start = measured.store or measured.blend
    known = [int(a.get("known") or 0) for a in start.answers if a.prompt == "store"]
    wanted = start.length("store")
    got = max(known, default=0)
    ok = got >= wanted > 0
    seen = f"{got} of {wanted} tokens are known"
    return ok, got, wanted, seen if ok else f"{seen}; {broken_cache(start)}"


def broken_cache(start: Start) -> str:
    """Why LMCache holds nothing, as far as its log says: it lets vLLM run on without a cache."""
    if "marked as init failed" in start.output:
        said = re.findall(r"^(\w+(?:Error|Exception): .*)$", start.output, re.MULTILINE)
        return f"LMCache could not start: {said[0] if said else 'see its log'}"
    quiet = start.done and not start.result.get("broken")
    return "LMCache says nothing of it" if quiet else failure(start)


def hit(measured: Measured) -> Verdict:
    """Whether chunks in another order were retrieved."""
    found = measured.blended("reordered-")
    wanted = min((measured.blend.cached(a.prompt) for a in found), default=0)
    got = min((int(a.get("retrieved") or 0) for a in found), default=0)
    return got >= wanted > 0, got, wanted, f"retrieved {got} tokens or more, expected {wanted}"


def layers(measured: Measured) -> Verdict:
    """Whether the blender ran for every layer of every request that hit."""
    count = int(measured.blend.result.get("engine", {}).get("layers", 0))
    hits = [a for a in measured.undivided() if a.get("retrieved")]
    least = min((len(set(a.get("layers") or ())) for a in hits), default=0)
    return least == count > 0, least, count, f"{least} of {count} layers in {len(hits)} requests"


def oracle(measured: Measured) -> Verdict:
    """At ratio 1, separators filled in: the answers without cache, up to rounding."""
    found = measured.blended("reordered-", ratio=1.0, fill=True)
    ok, most, limit, seen = within(measured, found)
    if ok is False:
        seen += f"; {wrong_keys(measured)}"
    return ok, most, limit, seen


def wrong_keys(measured: Measured) -> str:
    """What vLLM's cache and the re-rotated keys of the first layer say about the reason."""
    if written(measured)[0] is False:
        return "vLLM's cache doesn't hold what the blender ended with"
    worst = max(float(a.get("key_error") or 0.0) for a in measured.blended("reordered-"))
    if worst < SCALED_KEYS:
        return "the re-rotated keys are right, so the fault is elsewhere"
    scaled = measured.rope not in ("", "default")
    about = (
        f"scaled rope: this model's rope is {measured.rope!r}, and LMCache re-rotates its keys "
        "without the scaling, which KV003 mends"
        if scaled
        else "keys were re-rotated for wrong positions, or with another rope than the model's"
    )
    return f"{about} (re-rotated keys are off by {worst:.2g} of the largest)"


def separators(measured: Measured) -> Verdict:
    """As LMCache leaves them: no zeros at the configured ratio, and at ratio 1 no other answers."""
    found = measured.blended("reordered-", ratio=1.0, fill=False)
    ok, most, limit, seen = within(measured, found)
    empty = emptied(measured)
    return ok and not empty, most, limit, f"{seen}; {empty}" if empty else seen


def gap(measured: Measured) -> Verdict:
    """The price at the configured ratio."""
    asked = (False, measured.ratio)
    at = next((one for one in measured.gaps() if (one.filled, one.ratio) == asked), None)
    if at is None:
        return None, None, None, f"no request at ratio {measured.ratio:g}"
    seen = (
        f"at {at.ratio:g}: largest {at.most:.3g}, mean {at.mean:.3g} nats, KL {at.divergence:.3g}, "
        f"same first token {at.agreement:.0%}"
    )
    return True, at.data(), None, seen


def permutation(measured: Measured) -> Verdict:
    """Everything cached, in another order: found whole, and the oracle holds."""
    return found_and_within(measured, "permutation")


def new_chunk(measured: Measured) -> Verdict:
    """One new chunk: what stands before it is found, and the oracle holds."""
    return found_and_within(measured, "new-chunk")


def one_token(measured: Measured) -> Verdict:
    """A prompt of one token, which is shorter than a separator."""
    found = measured.blended("one-token")
    ok, most, limit, seen = within(measured, found)
    longest = max((float(a.get("seconds") or 0.0) for a in found), default=0.0)
    return ok, most, limit, f"{seen}; answered in {longest:.1f} s"


def layerwise(measured: Measured) -> Verdict:
    """The control: layer by layer without blending, a prompt stored and sent again."""
    start = measured.layerwise
    if not start.done:
        return False, None, None, failure(start)
    again = [a for a in start.answers if a.prompt == "twice"]
    got = min((int(a.get("retrieved") or 0) for a in again), default=0)
    whole = start.length("twice") // measured.chunk_size * measured.chunk_size
    ok, most, limit, seen = within(measured, again)
    told = f"retrieved {got} tokens, in whole chunks {whole}; {seen}"
    return ok and got >= whole > 0, most, limit, told


def untouched(measured: Measured) -> Verdict:
    """The files before and after kvpatch, without LMCache: the same distributions."""
    before = [a for a in measured.reference.answers if a.get("originals")]
    if not measured.journal:
        return None, None, None, "not checked: no journal, so kvpatch has changed nothing here"
    if not before:
        return None, None, None, f"not checked: {failure(measured.reference)}"
    most = max(measured.off(a).most for a in before)
    return most == 0.0, most, 0.0, f"{len(before)} prompts, largest difference {most:.2g}"


def gds(measured: Measured) -> Verdict:
    """Stored in one process and blended in the next."""
    if not measured.gds:
        return None, None, None, "not asked for (--gds)"
    found = measured.blended("reordered-")
    got = min((int(a.get("retrieved") or 0) for a in found), default=0)
    if not measured.blend.alone:
        return False, got, None, failure(measured.blend)
    return got > 0, got, 1, f"{got} tokens came from files another process wrote"


_CHAIN = (
    ("registered", (), registered),
    ("starts", (), starts),
    ("blender", ("starts",), blender),
    ("answers", ("starts",), answers),
    ("stored", ("answers",), stored),
    ("hit", ("stored",), hit),
    ("layers", ("hit",), layers),
    ("written", ("layers",), written),
    ("oracle", ("layers",), oracle),
    ("separators", ("oracle",), separators),
    ("reused", ("layers",), reused),
    ("moved", ("oracle", "reused"), moved),
    ("gap", ("layers",), gap),
    ("twice", ("layers",), twice),
    ("permutation", ("oracle",), permutation),
    ("new-chunk", ("oracle",), new_chunk),
    ("together", ("oracle",), together),
    ("one-token", ("answers",), one_token),
    ("layerwise", (), layerwise),
    ("untouched", (), untouched),
    ("gds", (), gds),
)
